"""What the user's Python asks of tensors while a capture runs, beside their types:
`x.requires_grad`, `x.grad is None`, `isinstance(x, nn.Parameter)`; and of torch's modes.

The answers are baked into the program. Here such questions are noted; at the end they tell what a
call of the program must check. What torch's own code asks changes how something is computed, not
what, and is not noted, but for tensors that it tells apart. Must not record anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import combinations
from typing import Any, NamedTuple, NoReturn

from lostwax.capture.trace.gradient_reach import gradient_sources
from lostwax.errors import UnsupportedFakeError
from lostwax.fake.asked_tensor import (
    ATTRIBUTES,
    is_marked,
    is_marked_leaf,
    read_attributes,
    select_attributes,
)
from lostwax.fake.tensor import FakeTensor
from lostwax.ir.data import Answer, Assumption, Ref
from lostwax.ir.run.conditions.answers import ATTRIBUTE, GRADIENTS, ONE, PLAIN, answer
from lostwax.ir.trace.log import Value
from lostwax.ir.trace.views import Root, Tracked
from lostwax.location import Location

OF_GRADIENTS = ("requires_grad", "is_leaf", "grad_fn is None", GRADIENTS)
"""Questions that what is computed answers by what it is computed from."""

_OF_VIEWS = ("_base is None", "_is_view()")
"""Questions that what is computed answers by how torch computes it."""

_UNSURE = ("_base is None", "untyped_storage().nbytes()", "class")
"""Questions that a fake may answer otherwise than the tensor that it stands for."""


class QuestionNote(NamedTuple):
    """One question."""

    what: str
    fake: FakeTensor
    tracked: Tracked
    values: tuple[Value, ...]
    where: Location | str
    is_joint: bool = False
    """Is it asked of all of the values, whether it holds of any?"""


class QuestionLog:
    """The questions of one capture."""

    def __init__(self) -> None:
        self._notes: dict[tuple[str, int], QuestionNote] = {}
        """By what is asked, and of which tensor, which is kept."""
        self._modes: dict[str, tuple[Answer, Location | str]] = {}
        """The modes of torch that were asked for: the answer, and where."""
        self._objects: dict[int, tuple[FakeTensor, Location | str]] = {}
        """The tensors whose identity was asked for (`id(x)`, `{x}`), and where."""
        self._pairs: dict[tuple[int, int], tuple[FakeTensor, FakeTensor, Location | str]] = {}
        """The pairs of which the code asked whether they are one tensor (`x is y`), and where."""
        self._distinguished: dict[Root, Location] = {}
        """Those that torch has distinguished for the user (`self.buffers()` has each once)."""

    def note(
        self,
        fake: FakeTensor,
        what: str,
        value: Callable[[FakeTensor], Value],
        real: Any,
        where: Location | str,
    ) -> None:
        """`real` is the tensor that the fake stands for, if it is one that the program is given."""
        if what == "_version":
            refuse_version(f"{fake!r}", where)
        key = what, id(fake)
        if key not in self._notes:
            if real is None and what in _OF_VIEWS:
                raise UnsupportedFakeError(
                    f"{what.removesuffix(' is None')} of {fake!r} was asked for, which is computed:"
                    f" whether it is a view.\n  at {where}\n"
                    "  why: torch may take a view or a copy, by the sizes, strides and modes of the"
                    " call, and a program may do it otherwise\n"
                    "  instead: say which one is meant, .clone() for a copy, and do not ask"
                )
            is_sure = real is None or what not in _UNSURE
            if not is_sure and answer(what, fake) != answer(what, real):
                raise UnsupportedFakeError(
                    f"{what} of {fake!r} was asked for, and a capture cannot answer as the example "
                    f"would: {answer(what, real)}.\n  at {where}\n"
                    "  instead: pass a copy in the example, x.clone(), or do not ask"
                )
            self._notes[key] = QuestionNote(what, fake, fake.tracked, (value(fake),), where)

    def note_joint(self, values: Sequence[Value], where: Location | str, what: str) -> None:
        """A program, or the capture itself, asked whether gradients reach these."""
        first = values[0].fake
        key = f"{what} of all at {where}", id(first)
        self._notes[key] = QuestionNote(what, first, first.tracked, (*values,), where, True)

    def note_mode(self, what: str, found: Answer, where: Location | str) -> None:
        """A mode of torch itself was asked for."""
        self._modes.setdefault(what, (found, where))

    def note_object(self, fake: FakeTensor, where: Location | str) -> None:
        """`id(fake)` was asked for: it may be compared with all others of which it was."""
        if id(fake) not in self._objects:
            for other, _ in self._objects.values():
                self.note_pair(other, fake, where)
            self._objects[id(fake)] = fake, where

    def note_pair(self, one: FakeTensor, other: FakeTensor, where: Location | str) -> None:
        """`one is other` was asked."""
        self._pairs.setdefault((id(one), id(other)), (one, other, where))

    def note_distinguished(self, fake: FakeTensor, where: Location) -> None:
        self._distinguished.setdefault(fake.tracked.root, where)

    def find_distinguished(
        self, ones: Set[Root], others: Set[Root], shown: Callable[[Root], Iterable[Root]]
    ) -> Location | str | None:
        """Where the code distinguished one of these from one of the others; None if nowhere.
        `shown` lists what a tensor may be."""
        pairs = [(a.tracked.root, b.tracked.root, at) for a, b, at in self._pairs.values()]
        pairs += [(a, b, at) for (a, _), (b, at) in combinations(self._distinguished.items(), 2)]
        for one, other, where in pairs:
            for a, b in ((one, other), (other, one)) if one is not other else ():
                if not (ones.isdisjoint(shown(a)) or others.isdisjoint(shown(b))):
                    return where
        return None

    def __bool__(self) -> bool:
        return bool(self._notes or self._modes or self._pairs)

    def list_assumptions(
        self, given: Mapping[int, tuple[Ref, Any]], inputs: Mapping[Value, Ref], grad: bool
    ) -> Iterator[Assumption]:
        """What a call must check. `given` are the inputs and the state, by the id of the fake, with
        the real tensors; `inputs` the same by their values; `grad`: are gradients switched on?"""
        for what, (found, where) in self._modes.items():
            yield Assumption(what, (), found, str(where))
        for note in self._notes.values():
            direct = None if note.is_joint else given.get(id(note.fake))
            if direct is not None:
                yield from _ask_given(note, *direct)
            elif note.what in OF_GRADIENTS:
                yield from _ask_sources(note, inputs, grad)
            elif note.what in ("is_inference()", "is_conj()", "is_neg()"):  # views are as the base
                ref = inputs.get(_first_source(note.tracked))
                for of, tensor in given.values():
                    if of == ref:
                        yield from _ask_given(note, of, tensor)
        for one, other, where in self._pairs.values():
            if _may_be_one(one, other) and id(one) in given and id(other) in given:
                refs = sorted([given[id(one)][0], given[id(other)][0]], key=_state_first)
                yield Assumption(ONE, tuple(refs), False, str(where))


def _may_be_one(one: FakeTensor, other: FakeTensor) -> bool:
    """Could one tensor be both of these in another call?"""
    a, b = one.fake_type, other.fake_type
    if one is other or a.dtype is not b.dtype or len(a.size) != len(b.size):
        return False
    return all(m == n for m, n in zip(a.size, b.size, strict=True) if type(m) is type(n) is int)


def _state_first(ref: Ref) -> tuple[bool, Ref]:
    return isinstance(ref, int), ref


def refuse_version(what: str, where: Location | str) -> NoReturn:
    raise UnsupportedFakeError(
        f"_version of {what} was asked for: how often it was written to.\n  at {where}\n"
        "  why: the caller's tensors come with any number, and a program has no writes\n"
        "  instead: keep a count of your own, or compare values"
    )


def _first_source(tracked: Tracked) -> Value:
    """What a tensor is made of, by the first argument of each step."""
    value = tracked.root.value
    while value.step is not None and value.step.args and isinstance(value.step.args[0], Value):
        value = value.step.args[0]
    return value


def _ask_given(note: QuestionNote, ref: Ref, tensor: Any) -> Iterator[Assumption]:
    what = note.what
    if what.startswith(ATTRIBUTE) or what == ATTRIBUTES:
        if isinstance(ref, str):  # the program's own state has no attributes of the user's
            return
        for name, value in select_attributes(read_attributes(tensor)):
            if type(value) in PLAIN or what not in (ATTRIBUTES, ATTRIBUTE + name):
                continue
            raise UnsupportedFakeError(
                f"the attribute {name} of an input is read, a {type(value)}.\n"
                f"  at {note.where}\n"
                "  why: a call with another one, or with none, would have to be told apart\n"
                "  instead: pass it as an argument"
            )
    yield Assumption(what, (ref,), answer(what, tensor), str(note.where))


def _ask_sources(
    note: QuestionNote, inputs: Mapping[Value, Ref], grad: bool
) -> Iterator[Assumption]:
    """A computed tensor has a gradient if what it is computed from has one: ask that."""
    if not note.is_joint and is_marked_leaf(note.fake):  # it was marked itself
        return
    sources = dict.fromkeys(s for value in note.values for s in gradient_sources(value, grad))
    of = tuple(sorted([inputs[value] for value in sources if value in inputs], key=str))
    constants = [value for value in sources if value not in inputs]
    if of and not any(value.fake is not None and is_marked(value.fake) for value in constants):
        found = grad and any(value.fake is not None and is_marked(value.fake) for value in sources)
        what = GRADIENTS if note.what == GRADIENTS else "requires_grad"
        yield Assumption(what, of, found, str(note.where), computed=True)
