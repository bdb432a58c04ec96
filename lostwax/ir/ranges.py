"""`range_constraints`: the values that a program's symbols may have.

The keys are sympy's symbols, as documented; sympy is loaded only when somebody looks at them. Must
not decide anything: the limits come from capture or from a file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lostwax.fake.symbolic.face import to_sympy
from lostwax.sym import Expr

Limits = tuple[int | None, int | None]
"""The least and the greatest value; None means no limit."""


@dataclass(frozen=True)
class ValueRanges:
    """From `lower` to `upper`, both included; infinite where there is no limit."""

    lower: int | float
    upper: int | float

    def __contains__(self, value: int) -> bool:
        return self.lower <= value <= self.upper


class RangeConstraints(Mapping[Any, ValueRanges]):
    """The ranges of symbols, and of sizes that are computed from them (`s0 + 1`)."""

    def __init__(self, limits: Iterable[tuple[Expr, Limits]] = ()) -> None:
        self.limits = dict(limits)
        self._by_sympy: dict[Any, ValueRanges] | None = None

    @property
    def by_name(self) -> dict[str, Limits]:
        """The limits by the text of what they limit."""
        return {str(e): limits for e, limits in self.limits.items()}

    def _ranges_by_sympy(self) -> dict[Any, ValueRanges]:
        if self._by_sympy is None:
            pairs = self.limits.items()
            self._by_sympy = {to_sympy(e): _ranges(limits) for e, limits in pairs}
        return self._by_sympy

    def __getitem__(self, symbol: Any) -> ValueRanges:
        return self._ranges_by_sympy()[symbol]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._ranges_by_sympy())

    def __len__(self) -> int:
        return len(self.limits)

    def __repr__(self) -> str:
        parts = (f"{e}: {_ranges(limits)}" for e, limits in self.limits.items())
        return f"{{{', '.join(parts)}}}"


def limits_by_name(constraints: Mapping[Any, Any]) -> dict[str, Limits]:
    """Return the limits of each symbol by name, from our own ranges or from torch's."""
    if isinstance(constraints, RangeConstraints):
        return constraints.by_name
    return {str(symbol): _limits(given) for symbol, given in constraints.items()}


def _ranges(limits: Limits) -> ValueRanges:
    lo, hi = limits
    return ValueRanges(-math.inf if lo is None else lo, math.inf if hi is None else hi)


def _limits(given: Any) -> Limits:
    lo, hi = given if isinstance(given, tuple) else (given.lower, given.upper)
    return _finite(lo), _finite(hi)


def _finite(bound: Any) -> int | None:
    """Return the bound as an int; None if it is infinite, also as torch or sympy write that."""
    if bound is None or isinstance(bound, int):
        return bound
    return int(bound) if getattr(bound, "is_Integer", False) else None
