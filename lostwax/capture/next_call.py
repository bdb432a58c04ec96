"""Whether the next call of a module is the same program, where it leaves other numbers and words in
Python than it found.

A program keeps tensors from call to call, and nothing else. If it keeps some, and the next call of
the original computes with a number that the last one has left (`self.count += 1; self.n +=
self.count`), the two part at the second call. So the call is captured once more, with what it
leaves in place, and the two programs are compared. Must not know how a capture works.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

import torch

from lostwax.capture import threads
from lostwax.capture.heap.contents import key_of, read, read_items, stands_for, write
from lostwax.capture.heap.edges import FILES, MUTABLE_ARRAYS
from lostwax.capture.heap.hidden import Fixed
from lostwax.capture.heap.holders import MISSING
from lostwax.capture.heap.moment import Moment
from lostwax.capture.python.functions_run import find_watcher, let_watch
from lostwax.capture.state.global_state import leads_to_fake
from lostwax.capture.state.module_state import PLAIN
from lostwax.capture.state.unkept_changes import collect_changes
from lostwax.classes import SYMBOLIC
from lostwax.errors import CaptureError, asks_data
from lostwax.fake.symbolic.node import unwrap
from lostwax.ir.diff import find_change
from lostwax.ir.program import ExportedProgram
from lostwax.ir.signature import OutputKind
from lostwax.undo.undo import Undo, run_and_undo

T = TypeVar("T")
Left = tuple[Any, Any]
"""A place, and other values in it than there were, by key; of an array or file all of them."""
_WHOLE = (*MUTABLE_ARRAYS, *FILES, Fixed)
_KEPT = (
    OutputKind.BUFFER_MUTATION,
    OutputKind.PARAMETER_MUTATION,
    OutputKind.USER_INPUT_MUTATION,
)


def check_next_call(
    program: ExportedProgram, capture: Callable[[], ExportedProgram], warning: str
) -> None:
    """Refuse the program if it keeps tensors, and the next call would be another one. `capture`
    captures the call; `warning` says what that leaves. This takes up to three captures more."""
    if not any(spec.kind in _KEPT for spec in program.graph_signature.output_specs):
        return
    first = _Calling()
    difference = _find_difference(program, first, capture)  # an iterator is further on by now
    second = _Calling(first.left)
    if difference is None and first.left:
        difference = _find_difference(program, second, capture)
    if difference is None and second.left:  # and so on: the answers to what it asks may change
        doubted = [(at, _doubt(left)) for at, left in first.left]
        difference = _find_difference(program, _Calling(doubted), capture)
    if difference is not None:
        raise CaptureError(
            f"{warning.partition('; the program')[0]}, and a later call is another program: "
            f"{difference}\n"
            "  why: of what the module keeps from call to call, a program keeps tensors alone\n"
            '  instead: keep it in a buffer, self.register_buffer("n", torch.zeros(())), and '
            "compute with that; or, if the first call alone is another one, call the module once "
            "before it is exported"
        )


def _find_difference(
    program: ExportedProgram, calling: _Calling, capture: Callable[[], ExportedProgram]
) -> str | None:
    try:
        change = find_change(program, _capture_quietly(calling, capture))
        return None if change is None else change.between_runs()
    except Exception as error:
        if asks_data(error):
            raise
        return f"it raises {type(error).__name__}: {error}"
    finally:
        calling.put_back()


def _capture_quietly(calling: _Calling, capture: Callable[[], ExportedProgram]) -> ExportedProgram:
    def work(undo: Undo) -> ExportedProgram:
        collect_changes(undo, hears_all=False)
        let_watch(calling, undo)
        return capture()

    return copy_context().run(run_and_undo, work)


class _Calling:
    """Is there when a capture calls the module."""

    def __init__(self, given: Sequence[Left] = ()) -> None:
        """`given` is put into its places first."""
        self.left: list[Left] = []
        """Where the call has left something else, and what."""
        self._given = given
        self._before: list[Left] = []
        self._around = find_watcher()

    def call(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        call = partial(self._call, function)
        around = self._around
        return call(*args, **kwargs) if around is None else around.call(call, *args, **kwargs)

    def _call(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        self._before = [(holder, _put(holder, values)) for holder, values in self._given]
        found = Moment(threads.running[-1].python.reachable)
        made = function(*args, **kwargs)
        for (_, holder, _), before, after in found.list_contents():
            old, new = dict(before), dict(after)
            pairs = {key: (old.get(key, MISSING), new.get(key, MISSING)) for key in {**old, **new}}
            changed = {key: _find_number(*pair) for key, pair in pairs.items() if _is_other(*pair)}
            for known, values in self._before:  # where it is as it was before the first call
                if key_of(known) == key_of(holder):
                    changed = {k: v for k, v in changed.items() if _is_other(values.get(k), v)}
            if changed:
                self.left.append((holder, changed))
        places = [place.value for _, place, _ in found.list_changes()]
        wholes = [each for each in places if isinstance(each, _WHOLE) and read_items(each) is None]
        self.left += [(each, read(each)) for each in wholes]
        return made

    def put_back(self) -> None:
        """Let everything be as it was before the call."""
        for holder, values in reversed(self._before):
            _put(holder, values)


def _put(holder: Any, values: Any) -> Any:
    """Put values into a place. Returns what was there."""
    if not isinstance(values, dict):
        whole = read(holder)
        write(holder, values)
        return whole
    found = dict(read_items(holder) or [])
    write(holder, [*{**found, **values}.items()])
    return {key: found.get(key, MISSING) for key in values}


def _is_other(old: Any, new: Any) -> bool:
    """Are these not the same, and may the next capture find the new one? (Not a tensor.)"""
    if new is old or stands_for(new, old):
        return False
    if not isinstance(new, PLAIN):
        return not leads_to_fake(new)
    return type(new) is not type(old) or unwrap(new) != unwrap(old)


def _find_number(old: Any, new: Any) -> Any:
    """A number that the next call may find in the place of one that data or sizes decide."""
    if not isinstance(new, SYMBOLIC):
        return new
    hint = getattr(unwrap(new), "hint", None)
    if hint is not None:
        return hint
    if isinstance(new, torch.SymBool):
        return old is not True
    return 618033 if isinstance(new, torch.SymInt) else 0.618033


# --------------------------------------------------------------------------------- doubtful numbers


def _doubt(value: Any) -> Any:
    """The number, as one that answers each question otherwise than it should: if that makes no
    difference, nothing depends on the answers. Of values by key each is one."""
    if isinstance(value, dict):
        return {key: _doubt(each) for key, each in value.items()}
    return _DOUBTFUL[type(value)](value) if type(value) in _DOUBTFUL else value


def _make_doubtful(cls: type) -> type:
    def compute(name: str) -> Any:
        own = getattr(cls, name)
        return lambda self, *others: _doubt(own(self, *others))

    def answer(name: str) -> Any:
        own = getattr(cls, name)

        def ask(self: Any, *others: Any) -> Any:
            found = own(self, *others)
            return found if found is NotImplemented else not found

        return ask

    methods = {name: compute(name) for name in _COMPUTING if hasattr(cls, name)}
    methods.update({name: answer(name) for name in _ASKING}, __hash__=cls.__hash__)
    return type(f"doubtful {cls.__name__}", (cls,), methods)


_ASKING = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__bool__")
_TWO_SIDED = ("add", "sub", "mul", "floordiv", "mod", "truediv", "pow", "and", "or", "xor")
_COMPUTING = (
    *(f"__{side}{name}__" for name in _TWO_SIDED for side in ("", "r")),
    *("__neg__", "__abs__", "__invert__"),
)
_DOUBTFUL = {cls: _make_doubtful(cls) for cls in (int, float)}
