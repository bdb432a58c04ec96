"""From declared dimensions to symbols: which sizes and numbers of the example call are symbolic.

One symbol for each Dim, wherever it stands, and one for each unnamed dynamic size. Also knows where
a running program finds their values. Must not know how dimensions are declared (`spec.py`) nor what
the trace makes of them.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from lostwax.capture.shapes.dims import Auto, DerivedDim, Dim, Dynamic, Static
from lostwax.capture.shapes.spec import Constraint, Spec
from lostwax.errors import DynamicShapesError
from lostwax.location import user_location
from lostwax.sym import BoolExpr, Condition, Expr, Guard, ShapeEnv, Symbol
from lostwax.sym.numbers.real import Real, unbacked_real


class Place(NamedTuple):
    """A number of the example call that a symbol's value is read from: it is
    `scale * symbol + offset`."""

    leaf: int
    dim: int | None
    scale: int = 1
    offset: int = 0

    @property
    def is_symbol(self) -> bool:
        return (self.scale, self.offset) == (1, 0)


class Symbols:
    """The symbols of one capture."""

    def __init__(
        self,
        env: ShapeEnv,
        spec: Spec,
        leaves: Sequence[Any],
        fixed: Container[int] = (),
        agreed: bool = True,
    ) -> None:
        """`fixed` are tensors, by id, that have their own sizes whatever is declared; `agreed`: one
        tensor in several places has the same sizes in all of them."""
        self.env = env
        self.leaves = leaves
        self.spec, self.paths = spec, spec.paths
        self.places: dict[Symbol | Real, Place] = {}
        self.named: dict[str, Expr] = {}
        """By the name of their Dim."""
        self.unnamed: set[Symbol] = set()
        """Those of `Dim.DYNAMIC`: they may be narrowed and related, only not fixed."""
        self._best = _best_places(spec)
        self.values: list[Any] = []
        """For each leaf: its sizes, the number that stands for it, or None if it is static."""
        first: dict[int, int] = {}
        entries = _agreed(spec, leaves, fixed) if agreed else spec.leaves
        for i, (leaf, entry) in enumerate(zip(leaves, entries, strict=True)):
            is_one = agreed and isinstance(leaf, torch.Tensor)
            again = first.setdefault(id(leaf), i) if is_one else i
            self.values.append(self._of_leaf(i, entry) if again == i else self.values[again])
        self.promised = [g for c in spec.constraints for g in self._promise(c)]
        """The relations that the user stated."""

    def _of_leaf(self, i: int, entry: Any) -> Any:
        if entry is None:
            return None
        leaf = self.leaves[i]
        if isinstance(leaf, torch.Tensor):
            sizes = tuple(
                self._number(e, Place(i, d), n)
                for d, (e, n) in enumerate(zip(entry, leaf.shape, strict=True))
            )
            return None if all(s is None for s in sizes) else sizes
        if isinstance(leaf, float):
            symbol = unbacked_real(self.env, f"the input {self.paths[i]}")
            self.places[symbol] = Place(i, None)
            return symbol
        return self._number(entry, Place(i, None), leaf)

    def _number(self, entry: Any, place: Place, example: int) -> Any:
        """The symbolic number at one place; None if it is fixed."""
        if isinstance(entry, (Dim, DerivedDim)):
            return self._dim(entry)
        if not isinstance(entry, (Auto, Dynamic)):
            return None
        declared = self._text(place) if isinstance(entry, Dynamic) else None
        least = 0 if place.dim is not None else None
        lo = entry.min if entry.min is not None else least
        e = self._symbol(place, example, lo, entry.max, declared)
        if declared:
            self.unnamed |= e.symbols()
        return e

    def _dim(self, entry: Dim | DerivedDim) -> Any:
        root = entry.root if isinstance(entry, DerivedDim) else entry
        name = root.__name__
        e = self.named.get(name)
        if e is None:
            place = self._best[name]
            example = (self._example(place) - place.offset) // place.scale
            e = self.named[name] = self._symbol(place, example, root.min, root.max, name)
        if not isinstance(entry, DerivedDim):
            return e
        size = e * entry.scale + entry.offset
        self._learn(size >= 0)
        return size

    def _symbol(
        self, place: Place, example: int, lo: int | None, hi: int | None, declared: str | None
    ) -> Expr:
        e = self.env.symbol(hint=example, lo=lo, hi=hi, source=self._text(place), declared=declared)
        (symbol,) = e.symbols()
        self.places[symbol] = place
        return e

    def _learn(self, fact: Condition) -> None:
        if not isinstance(fact, bool):
            self.env.learn(fact)

    def _promise(self, constraint: Constraint) -> Iterator[Guard]:
        """A relation that the user states: the trace counts on it, each call is checked for it."""
        condition = constraint.condition({**self._by_path(), **self.named})
        if condition is False:
            raise DynamicShapesError(f"no sizes satisfy the constraint {constraint.text!r}")
        if isinstance(condition, BoolExpr):
            self.env.learn(condition)
            reason = f"constraints=[{constraint.text!r}] says so"
            yield Guard(condition, "declared", user_location(), "", reason)

    def _by_path(self) -> dict[str, Any]:
        """Each symbolic number by where it stands: `x.shape[0]`, `n`."""
        found: dict[str, Any] = {}
        for path, value in zip(self.paths, self.values, strict=True):
            if isinstance(value, tuple):
                pairs = enumerate(value)
                found |= {f"{path}.shape[{d}]": s for d, s in pairs if s is not None}
            elif value is not None:
                found[path] = value
        return found

    # ------------------------------------------------------------------------------------- places

    def _example(self, place: Place) -> int:
        leaf = self.leaves[place.leaf]
        return leaf if place.dim is None else leaf.shape[place.dim]  # type: ignore[no-any-return]

    def _text(self, place: Place) -> str:
        """The symbol as Python over the inputs: `x.shape[0]`, `(y.shape[1] - 1)//2`."""
        path = self.paths[place.leaf]
        text = path if place.dim is None else f"{path}.shape[{place.dim}]"
        if place.offset:
            sign = "-" if place.offset > 0 else "+"
            text = f"{text} {sign} {abs(place.offset)}"
            text = f"({text})"
        return text if place.scale == 1 else f"{text}//{place.scale}"


# ------------------------------------------------------------- one tensor in several places


def _agreed(spec: Spec, leaves: Sequence[Any], fixed: Container[int]) -> list[Any]:
    """The entries of all leaves. One tensor in several places has one size: what is said of it in
    one must suit what is said in the others."""
    entries: list[Any] = list(spec.leaves)
    places: dict[int, list[int]] = {}
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            places.setdefault(id(leaf), []).append(i)
    for key, several in places.items():
        if len(several) == 1 and key not in fixed:
            continue
        said = [entries[i] or (Static(),) * leaves[i].ndim for i in several]
        own = [(Static(),) * leaves[several[0]].ndim] if key in fixed else []
        paths = [f"{spec.paths[i]}.shape[{{}}]" for i in several]
        columns = enumerate(zip(*said, *own, strict=True))
        one = tuple([_agree(entry, [p.format(d) for p in paths]) for d, entry in columns])
        for i in several:
            entries[i] = one
    return entries


def _agree(entries: Sequence[Any], paths: Sequence[str]) -> Any:
    """What holds if all of them hold: `AUTO` is any, `DYNAMIC` any that varies."""
    kinds = [[e for e in entries if isinstance(e, kind)] for kind in (Auto, Dynamic, Static)]
    said = list(dict.fromkeys(e for e in entries if not isinstance(e, (Auto, Dynamic))))
    if len(said) > 1 or (kinds[1] and kinds[2]):
        told = ", ".join(f"{p} is {e!r}" for p, e in zip(paths, entries, strict=False))
        other = "of the module's own" if len(entries) > len(paths) else "in all of these places"
        raise DynamicShapesError(
            f"one tensor of the example, {other}, cannot vary in several ways: {told}\n"
            "  why: the program is captured for one tensor there, and asks each call for one\n"
            "  instead: pass copies in the example, x.clone(); or declare one Dim for all of them"
        )
    return (said or list(dict.fromkeys(kinds[1])) or kinds[0])[0]


def _entries(spec: Spec) -> Iterator[tuple[Place, Any]]:
    for i, entry in enumerate(spec.leaves):
        if isinstance(entry, tuple):
            yield from ((Place(i, d), e) for d, e in enumerate(entry))
        elif entry is not None:
            yield Place(i, None), entry


def _best_places(spec: Spec) -> dict[str, Place]:
    """For each Dim the place that gives its value: where it stands itself, if anywhere."""
    best: dict[str, Place] = {}
    for place, entry in _entries(spec):
        if isinstance(entry, DerivedDim):
            derived = Place(place.leaf, place.dim, entry.scale, entry.offset)
            best.setdefault(entry.root.__name__, derived)
        elif isinstance(entry, Dim) and not _is_symbol(best.get(entry.__name__)):
            best[entry.__name__] = place
    return best


def _is_symbol(place: Place | None) -> bool:
    return place is not None and place.is_symbol
