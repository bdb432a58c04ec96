"""How functions of torch and of Python are exchanged while a capture runs, *for the thread that
captures*: every other thread sees them as they are.

Nothing is put into the places of functions, where other threads, tables and imports would find it.
What a function does is exchanged by its code (`Answers`), and what an attribute of a module shows
by the module's class (`Shown`); both ask for the thread first. All of it is made once, not for each
capture. Must not know what the functions do.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter, is_
from threading import RLock, get_ident
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from lostwax.errors import CaptureError
from lostwax.fake import thread_state
from lostwax.fake.undo import Undo
from lostwax.location import user_location

if TYPE_CHECKING:
    from lostwax.capture.trace.tracer import Tracer
    from lostwax.fake.thread_state import ThreadState

running: list[Tracer] = []
"""Of the captures that run, the innermost last. They are of one thread: others wait."""
_outside: list[ThreadState] = []
"""For each of them, what torch kept for the thread before."""
_capturing = 0
"""The thread that captures."""


def is_capturing() -> bool:
    """Is it this thread that captures?"""
    return get_ident() == _capturing


one_at_a_time = RLock()
"""A capture puts fakes into its module: another thread's capture waits."""
_LONGEST = 120.0
"""Seconds that a call of a module waits for its capture: the capture may wait for that call."""


def wait() -> None:
    """Wait in another thread until nothing is captured."""
    if not one_at_a_time.acquire(timeout=_LONGEST):
        raise CaptureError(
            "a module is called in this thread while another thread exports it, and that takes too "
            f"long.\n  at {user_location()}\n"
            "  why: while it is exported, its parameters have no data; and if its own forward "
            "waits for this thread, it waits for ever\n"
            "  instead: call a module's parts in the thread that calls its forward"
        )
    one_at_a_time.release()


def claim(tracer: Tracer, undo: Undo) -> None:
    """From here on no other thread computes with the fakes of this tracer: before they are in the
    module, until they are out of it."""
    undo.add(partial(setattr, tracer, "thread", 0))
    tracer.thread = get_ident()


def is_alone() -> bool:
    """Is there no other thread that runs Python?"""
    return len(sys._current_frames()) == 1


def begin(tracer: Tracer, undo: Undo) -> None:
    """From here on this thread captures."""
    global _capturing
    undo.add(partial(_end, _capturing, len(running)))
    undo.add(undo.put_thread_back)  # here, too: what follows is put back outside of the tracer
    running.append(tracer)
    _outside.append(undo.thread)
    _capturing = get_ident()


def _end(before: int, count: int) -> None:
    global _capturing
    _capturing = before
    del running[count:], _outside[count:]


def outside(function: Callable[..., Any], *args: Any) -> Any:
    """Call something in the capturing thread that is no part of the capture: torch is as it was
    before it."""
    global _capturing
    thread, inside = _capturing, thread_state.take()
    try:
        _capturing = 0
        # Transforms of torch.func stay: they could not be entered again.
        thread_state.put_back(_outside[-1]._replace(transforms=inside.transforms))
        return function(*args)
    finally:
        thread_state.put_back(inside)
        _capturing = thread


def set_all(owners: Sequence[Any], names: Sequence[str], values: Sequence[Any]) -> None:
    """Set attributes, in one step of Python: no interrupt comes in between."""
    deque(map(setattr, owners, names, values), maxlen=0)


# ---------------------------------------------------------------------------- the code of functions


class Answer(NamedTuple):
    """What a function of Python does while this thread captures. The answer is called with the
    function as it is, and with the arguments of the call."""

    function: Any
    answer: Callable[..., Any]


class Answers:
    """Several of them, given together.

    The code of the functions is exchanged, not they: who holds such a function calls what it
    should, and the tables that torch keeps of its functions stay right.
    """

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = answers
        self.functions = [each.function for each in answers]
        self._names = ["__code__"] * len(answers)
        self._plain: list[CodeType] = []
        self._stand_ins: list[CodeType] = []

    def give(self, undo: Undo) -> None:
        """From here on the functions answer so."""
        functions, names = self.functions, self._names
        before = list(map(_CODE, functions))
        undo.add(partial(set_all, functions, names, before))
        if not all(map(is_, before, self._stand_ins)) or not self._stand_ins:
            if not all(map(is_, before, self._plain)) or not self._plain:  # at first; or changed
                self._stand_ins = list(map(_stand_in, self._answers, before))
                self._plain = before
            set_all(functions, names, self._stand_ins)


_CODE = attrgetter("__code__")


def _stand_in(answer: Answer, code: CodeType) -> CodeType:
    """Code that asks for the thread, and for others does what this code does."""
    function = answer.function
    plain = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    plain.__kwdefaults__ = function.__kwdefaults__
    return _choosing(plain, answer.answer)


def _choosing(plain: FunctionType, answer: Callable[..., Any]) -> CodeType:
    def choose(*args: Any, **kwargs: Any) -> Any:
        if get_ident() == _capturing:
            return answer(plain, *args, **kwargs)
        return plain(*args, **kwargs)

    shape = _SHAPES[len(plain.__code__.co_freevars)]
    constants = tuple([choose if each == _CHOOSE else each for each in shape.co_consts])
    return shape.replace(co_consts=constants, co_name=plain.__code__.co_name)


_CHOOSE = "what chooses"


def _of_no_cells(*args: Any, **kwargs: Any) -> Any:
    choose: Any = "what chooses"
    return choose(*args, **kwargs)


def _of_one_cell() -> CodeType:
    """Of a method that says `super()`: a function keeps the number of its cells."""
    cell = None

    def of_one_cell(*args: Any, **kwargs: Any) -> Any:
        choose: Any = "what chooses"
        return choose(*args, **kwargs) if cell is not choose else None

    return of_one_cell.__code__


_SHAPES = (_of_no_cells.__code__, _of_one_cell())


# ------------------------------------------------------------------------ the attributes of modules


class Shown(NamedTuple):
    """What the attribute of a module shows while this thread captures. What stands in knows the
    function itself as `stands_for`."""

    where: Any
    name: str
    function: Callable[..., Any]


def show(classes: Sequence[tuple[Any, type]], undo: Undo) -> None:
    """From here on these objects are of these classes."""
    owners = [owner for owner, _ in classes]
    names = ["__class__"] * len(owners)
    before = list(map(type, owners))
    undo.add(partial(set_all, owners, names, before))
    set_all(owners, names, [cls for _, cls in classes])


def classes_of(shown: Sequence[Shown]) -> list[tuple[Any, type]]:
    """For each module, a class of modules that shows these."""
    return [
        (module, _class_of(module, [each for each in shown if each.where is module]))
        for module in dict.fromkeys(each.where for each in shown)
    ]


def _class_of(module: ModuleType, shown: Sequence[Shown]) -> type:
    original: Any = type(module)
    names = {each.name: _attribute(each) for each in shown}
    return type(original.__name__, (original,), {"__slots__": (), **names})


def _attribute(shown: Shown) -> property:
    """Only what is still there is stood in for: another function is the user's."""
    _, name, function = shown
    original = function.stands_for  # type: ignore[attr-defined]

    def get(module: Any) -> Any:
        try:
            found = module.__dict__[name]
        except KeyError:
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}") from None
        return function if found is original and get_ident() == _capturing else found

    def put(module: Any, value: Any) -> None:
        module.__dict__[name] = original if value is function else value  # as it was got

    def delete(module: Any) -> None:
        get(module)
        del module.__dict__[name]

    return property(get, put, delete)
