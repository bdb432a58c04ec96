"""How functions of torch and of Python are exchanged while a capture runs, *for the thread that
captures*: every other thread sees them as they are.

Nothing is put into the places of functions, where other threads, tables and imports would find it.
What a function does is exchanged by its code (`CodeSwap`), and what a name in a module shows by the
module's class (`NameSwap`); both ask for the thread first (`capture/threads.py`). All of it is made
once, not for each capture. Must not know what the functions do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter, is_
from threading import get_ident
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from lostwax.capture import threads
from lostwax.location import PASSING_ON
from lostwax.undo.undo import Undo

PASSING_ON.add(__file__)


def set_all(owners: Sequence[Any], names: Sequence[str], values: Sequence[Any]) -> None:
    """Set attributes, in one step of Python: no interrupt comes in between."""
    deque(map(setattr, owners, names, values), maxlen=0)


# ---------------------------------------------------------------------------- the code of functions


class CodeSwap(NamedTuple):
    """What a function of Python does while this thread captures. The answer is called with the
    function as it is, and with the arguments of the call."""

    function: Any
    answer: Callable[..., Any]


class CodeSwaps:
    """Swaps that are made together.

    The code of the functions is exchanged, not the functions: code that holds one of them
    calls what it should, and the tables that torch keeps of its functions stay right.
    """

    def __init__(self, swaps: Sequence[CodeSwap]) -> None:
        self._swaps = swaps
        self.functions = [each.function for each in swaps]
        self._names = ["__code__"] * len(swaps)
        self._plain: list[CodeType] = []
        self._stand_ins: list[CodeType] = []

    def apply(self, undo: Undo) -> None:
        """From here on the functions run the answers."""
        functions, names = self.functions, self._names
        before = list(map(_CODE, functions))
        undo.add(partial(set_all, functions, names, before))
        if not all(map(is_, before, self._stand_ins)) or not self._stand_ins:
            if not all(map(is_, before, self._plain)) or not self._plain:  # at first; or changed
                self._stand_ins = list(map(_stand_in, self._swaps, before))
                self._plain = before
            set_all(functions, names, self._stand_ins)


_CODE = attrgetter("__code__")


def _stand_in(swap: CodeSwap, code: CodeType) -> CodeType:
    """Code that asks for the thread, and for others does what this code does."""
    function = swap.function
    plain = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    plain.__kwdefaults__ = function.__kwdefaults__
    return _make_chooser(plain, swap.answer)


def _make_chooser(plain: FunctionType, answer: Callable[..., Any]) -> CodeType:
    def choose(*args: Any, **kwargs: Any) -> Any:
        if get_ident() == threads.capturing_thread:
            return answer(plain, *args, **kwargs)
        return plain(*args, **kwargs)

    shape = _SHAPES[len(plain.__code__.co_freevars)]
    constants = tuple([choose if each == _CHOOSE else each for each in shape.co_consts])
    return shape.replace(co_consts=constants, co_name=plain.__code__.co_name)


_CHOOSE = "what chooses"


def _without_cells(*args: Any, **kwargs: Any) -> Any:
    choose: Any = "what chooses"
    return choose(*args, **kwargs)


def _with_one_cell() -> CodeType:
    """For a method that says `super()`: its new code must have as many cells as the old."""
    cell = None

    def of_one_cell(*args: Any, **kwargs: Any) -> Any:
        choose: Any = "what chooses"
        return choose(*args, **kwargs) if cell is not choose else None

    return of_one_cell.__code__


_SHAPES = (_without_cells.__code__, _with_one_cell())


# ------------------------------------------------------------------------ the attributes of modules


class NameSwap(NamedTuple):
    """The function that an attribute of a module shows while this thread captures. It is marked by
    `stand_for`."""

    where: Any
    name: str
    function: Callable[..., Any]


def stand_for(original: Any, stand_in: Any) -> Any:
    """Mark what stands in for a function, by whose name it goes."""
    stand_in.__name__, stand_in.stands_for = original.__name__, original
    return stand_in


def set_classes(classes: Sequence[tuple[Any, type]], undo: Undo) -> None:
    """From here on these objects are of these classes."""
    owners = [owner for owner, _ in classes]
    names = ["__class__"] * len(owners)
    before = list(map(type, owners))
    undo.add(partial(set_all, owners, names, before))
    set_all(owners, names, [cls for _, cls in classes])


def make_classes(swaps: Sequence[NameSwap]) -> list[tuple[Any, type]]:
    """For each module, a class of modules that shows these."""
    return [
        (module, _make_class(module, [each for each in swaps if each.where is module]))
        for module in dict.fromkeys(each.where for each in swaps)
    ]


def _make_class(module: ModuleType, swaps: Sequence[NameSwap]) -> type:
    original: Any = type(module)
    names = {each.name: _make_property(each) for each in swaps}
    return type(original.__name__, (original,), {"__slots__": (), **names})


def _make_property(swap: NameSwap) -> property:
    """Only the original function is stood in for: another one in its place is the user's."""
    _, name, function = swap
    original = function.stands_for  # type: ignore[attr-defined]

    def get(module: Any) -> Any:
        try:
            found = module.__dict__[name]
        except KeyError:
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}") from None
        return function if found is original and get_ident() == threads.capturing_thread else found

    def put(module: Any, value: Any) -> None:
        module.__dict__[name] = original if value is function else value  # as it was got

    def delete(module: Any) -> None:
        get(module)
        del module.__dict__[name]

    return property(get, put, delete)
