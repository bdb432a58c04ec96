"""Sizes of what a loop hands on that are others in each turn: `x = torch.cat([x, y])`. In the body
they are numbers of which nothing is known but how small they may be, and so they are after it.

Tensors whose sizes change alike have one number for them: what is known to be equal at first, and
after each turn, is equal. Must not record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from lostwax.capture.control.scope import RecordedFunction
from lostwax.ir.trace.log import Value
from lostwax.sym import Expr, Guard, ShapeEnv, Size, Symbol, eq, evaluate, known
from lostwax.types import TensorType, contiguous_strides


class _ChangingSize(NamedTuple):
    """A size that changes."""

    start: Size
    """What it is before the loop."""
    least: int


class LoopCarriedSizes:
    """The sizes of one loop that change."""

    def __init__(self, env: ShapeEnv, what: str) -> None:
        self._env, self._what = env, what
        self._numbers: dict[Size, _ChangingSize] = {}
        """By what they are in the body."""
        self._found: list[tuple[_ChangingSize, list[tuple[int, int]]]] = []
        """What the last recording has shown to change: in which tensors, in which dimensions."""

    def compare(self, pairs: Sequence[tuple[TensorType | None, Any]]) -> None:
        """Given the types of what the body gets, and what it returns for each: note the sizes that
        change. Called while the body is recorded, for what it knows."""
        groups: dict[tuple[Size, Size], list[tuple[int, int]]] = {}
        after: dict[Size, Size] = {}
        for i, (t, leaf) in enumerate(pairs):
            new = leaf.type if isinstance(leaf, Value) else None
            if t is None or new is None or not _can_change(t, new):
                continue
            for d, (was, now) in enumerate(zip(t.size, new.size, strict=True)):
                if not self._is_kept(was, now, after):
                    groups.setdefault((was, now), []).append((i, d))
        self._found = [(self._find_number(*sizes), places) for sizes, places in groups.items()]

    def _is_kept(self, was: Size, now: Size, after: dict[Size, Size]) -> bool:
        """Is what is said of a size true of the next turn, too?"""
        found = self._numbers.get(was)
        if found is None:
            return known(eq(was, now)) is True
        first = after.setdefault(was, now)
        return known(eq(first, now)) is True and known(now >= found.least) is True

    def _find_number(self, was: Size, now: Size) -> _ChangingSize:
        found = self._numbers.get(was)
        if found is not None:
            return _ChangingSize(found.start, 0)
        lo, _ = self._env.bounds(was)
        return _ChangingSize(was, max(lo or 0, 0) if known(now >= was) is True else 0)

    def take_changed(self, types: Sequence[TensorType | None]) -> dict[int, TensorType]:
        """The types that have to be others in the body, by their places. Called outside of it."""
        sizes: dict[int, list[Size]] = {}
        for number, places in self._found:
            size = self._name(number)
            self._numbers[size] = number
            for i, d in places:
                sizes.setdefault(i, [*types[i].size])[d] = size  # type: ignore[union-attr]
        self._found = []
        return {i: _resize(types[i], size) for i, size in sizes.items()}  # type: ignore[arg-type]

    def _name(self, number: _ChangingSize) -> Expr:
        return self._env.unbacked(
            lo=number.least, origin=f"a size of what {self._what} hands on, which changes"
        )

    def __contains__(self, size: Size) -> bool:
        return size in self._numbers

    @property
    def symbols(self) -> Iterable[Symbol]:
        return [symbol for size in self._numbers for symbol in size.symbols()]  # type: ignore[union-attr]

    def make_result_types(self, types: Sequence[TensorType | None]) -> list[TensorType | None]:
        """The types after the loop: their sizes are other numbers than in the body."""
        made: dict[Size, Expr] = {}

        def find(size: Size) -> Size:
            if size not in self._numbers:
                return size
            if size not in made:
                made[size] = self._name(self._numbers[size])
            return made[size]

        return [
            _resize(t, [find(size) for size in t.size])
            if t is not None and any(size in self._numbers for size in t.size)
            else t
            for t in types
        ]

    def find_refuted(self, body: RecordedFunction) -> set[Size]:
        """The sizes of which the body needs something that is not so in the first turn of the
        example."""
        found: set[Size] = set()
        for guard in body.scope.guards if self._numbers else ():
            own = {s.expr for s in guard.cond.symbols() if s.expr in self._numbers}
            if own and self._is_refuted(guard):
                found |= own
        return found

    def _is_refuted(self, guard: Guard) -> bool:
        """Is it surely false where sizes are as at first?"""
        values: dict[Any, int] = {}
        for symbol in guard.cond.symbols():
            found = self._numbers.get(symbol.expr)
            size = symbol.expr if found is None else found.start
            hint = size if isinstance(size, int) else size.hint
            if hint is None:
                return False
            values[symbol] = hint
        return not evaluate(guard.cond, values)


def _can_change(t: TensorType, new: TensorType) -> bool:
    """May the one become the other, but for its sizes?"""
    is_alike = (t.dtype, t.device, t.ndim) == (new.dtype, new.device, new.ndim)
    return is_alike and t.is_contiguous and new.is_contiguous


def _resize(t: TensorType, size: Sequence[Size]) -> TensorType:
    return TensorType(tuple(size), t.dtype, t.device, contiguous_strides(size))
