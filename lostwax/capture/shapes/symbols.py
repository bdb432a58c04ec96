"""Makes the symbols for the sizes and numbers of the example call that are declared dynamic.

There is one symbol for each Dim, wherever it stands, and one for each dynamic size without a name.
Also knows where a running program finds their values. Must not know how users declare dimensions
(`spec.py`), nor what the trace does with the symbols.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from lostwax.capture.shapes.dims import Auto, DerivedDim, Dim, Dynamic, Static, root_of
from lostwax.capture.shapes.spec import Constraint, Spec
from lostwax.errors import DynamicShapesError
from lostwax.location import user_location
from lostwax.sym import BoolExpr, Condition, Expr, Guard, ShapeEnv, Symbol
from lostwax.sym.numbers.real import Real, unbacked_real


class SymbolSource(NamedTuple):
    """The number of a call from which a program reads a symbol's value: it is
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
        """`fixed` are the ids of tensors that keep their sizes whatever is declared. `agreed`: a
        tensor that is passed several times has the same sizes in all of its places."""
        self.env = env
        self.leaves = leaves
        self.spec, self.paths = spec, spec.paths
        self.sources: dict[Symbol | Real, SymbolSource] = {}
        self.named: dict[str, Expr] = {}
        """The symbols of Dims, by name."""
        self.unnamed: set[Symbol] = set()
        """The symbols of `Dim.DYNAMIC`: guards may narrow and relate them, but not fix them."""
        self._best = _best_sources(spec)
        self.values: list[Any] = []
        """For each leaf: its sizes, its symbolic number, or None if it is static."""
        first: dict[int, int] = {}
        entries = _agree_on_leaves(spec, leaves, fixed) if agreed else spec.leaves
        for i, (leaf, entry) in enumerate(zip(leaves, entries, strict=True)):
            is_one = agreed and isinstance(leaf, torch.Tensor)
            again = first.setdefault(id(leaf), i) if is_one else i
            self.values.append(self._leaf_value(i, entry) if again == i else self.values[again])
        self.promises = [g for c in spec.constraints for g in self._make_promises(c)]
        """The relations that the user stated."""

    def _leaf_value(self, i: int, entry: Any) -> Any:
        if entry is None:
            return None
        leaf = self.leaves[i]
        if isinstance(leaf, torch.Tensor):
            sizes = tuple(
                self._symbolic_number(e, SymbolSource(i, d), n)
                for d, (e, n) in enumerate(zip(entry, leaf.shape, strict=True))
            )
            return None if all(s is None for s in sizes) else sizes
        if isinstance(leaf, float):
            symbol = unbacked_real(self.env, f"the input {self.paths[i]}")
            self.sources[symbol] = SymbolSource(i, None)
            return symbol
        return self._symbolic_number(entry, SymbolSource(i, None), leaf)

    def _symbolic_number(self, entry: Any, source: SymbolSource, example: int) -> Any:
        """The symbolic number at one place of the call; None if it is fixed."""
        if isinstance(entry, (Dim, DerivedDim)):
            return self._dim_size(entry)
        if not isinstance(entry, (Auto, Dynamic)):
            return None
        declared = self._source_text(source) if isinstance(entry, Dynamic) else None
        least = 0 if source.dim is not None else None
        lo = entry.min if entry.min is not None else least
        e = self._make_symbol(source, example, lo, entry.max, declared)
        if declared:
            self.unnamed |= e.symbols()
        return e

    def _dim_size(self, entry: Dim | DerivedDim) -> Any:
        root = root_of(entry)
        name = root.__name__
        e = self.named.get(name)
        if e is None:
            source = self._best[name]
            example = (self._example_number(source) - source.offset) // source.scale
            e = self.named[name] = self._make_symbol(source, example, root.min, root.max, name)
        if not isinstance(entry, DerivedDim):
            return e
        size = e * entry.scale + entry.offset
        self._learn(size >= 0)
        return size

    def _make_symbol(
        self,
        source: SymbolSource,
        example: int,
        lo: int | None,
        hi: int | None,
        declared: str | None,
    ) -> Expr:
        e = self.env.symbol(
            hint=example, lo=lo, hi=hi, source=self._source_text(source), declared=declared
        )
        (symbol,) = e.symbols()
        self.sources[symbol] = source
        return e

    def _learn(self, fact: Condition) -> None:
        if not isinstance(fact, bool):
            self.env.learn(fact)

    def _make_promises(self, constraint: Constraint) -> Iterator[Guard]:
        """The guards for a relation that the user states: the trace relies on it, and each call is
        checked for it."""
        condition = constraint.condition({**self._numbers_by_path(), **self.named})
        if condition is False:
            raise DynamicShapesError(f"no sizes satisfy the constraint {constraint.text!r}")
        if isinstance(condition, BoolExpr):
            self.env.learn(condition)
            reason = f"constraints=[{constraint.text!r}] says so"
            yield Guard(condition, "declared", user_location(), "", reason)

    def _numbers_by_path(self) -> dict[str, Any]:
        """The symbolic numbers by path: `x.shape[0]`, `n`."""
        found: dict[str, Any] = {}
        for path, value in zip(self.paths, self.values, strict=True):
            if isinstance(value, tuple):
                pairs = enumerate(value)
                found |= {f"{path}.shape[{d}]": s for d, s in pairs if s is not None}
            elif value is not None:
                found[path] = value
        return found

    # ------------------------------------------------------------------------------------ sources

    def _example_number(self, source: SymbolSource) -> int:
        leaf = self.leaves[source.leaf]
        return leaf if source.dim is None else leaf.shape[source.dim]  # type: ignore[no-any-return]

    def _source_text(self, source: SymbolSource) -> str:
        """The symbol as a Python expression of the inputs: `x.shape[0]`, `(y.shape[1] - 1)//2`."""
        path = self.paths[source.leaf]
        text = path if source.dim is None else f"{path}.shape[{source.dim}]"
        if source.offset:
            sign = "-" if source.offset > 0 else "+"
            text = f"{text} {sign} {abs(source.offset)}"
            text = f"({text})"
        return text if source.scale == 1 else f"{text}//{source.scale}"


# ------------------------------------------------------------- one tensor in several places


def _agree_on_leaves(spec: Spec, leaves: Sequence[Any], fixed: Container[int]) -> list[Any]:
    """The entries of all leaves, where a tensor in several places has the same entry in each.
    Raises an error if the declarations contradict each other."""
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
        one = tuple([_agree_on_entry(entry, [p.format(d) for p in paths]) for d, entry in columns])
        for i in several:
            entries[i] = one
    return entries


def _agree_on_entry(entries: Sequence[Any], paths: Sequence[str]) -> Any:
    """The entry that satisfies all of them: `AUTO` admits any, `DYNAMIC` any but `Static`."""
    kinds = [[e for e in entries if isinstance(e, kind)] for kind in (Auto, Dynamic, Static)]
    said = list(dict.fromkeys(e for e in entries if not isinstance(e, (Auto, Dynamic))))
    if len(said) > 1 or (kinds[1] and kinds[2]):
        texts = ", ".join(f"{p} is {e!r}" for p, e in zip(paths, entries, strict=False))
        other = "of the module's own" if len(entries) > len(paths) else "in all of these places"
        raise DynamicShapesError(
            f"one tensor of the example, {other}, cannot vary in several ways: {texts}\n"
            "  why: the program is captured for one tensor there, and asks each call for one\n"
            "  instead: pass copies in the example, x.clone(); or declare one Dim for all of them"
        )
    return (said or list(dict.fromkeys(kinds[1])) or kinds[0])[0]


def _sourced_entries(spec: Spec) -> Iterator[tuple[SymbolSource, Any]]:
    for i, entry in enumerate(spec.leaves):
        if isinstance(entry, tuple):
            yield from ((SymbolSource(i, d), e) for d, e in enumerate(entry))
        elif entry is not None:
            yield SymbolSource(i, None), entry


def _best_sources(spec: Spec) -> dict[str, SymbolSource]:
    """The source of each Dim's value: a place of the Dim itself, if there is one."""
    best: dict[str, SymbolSource] = {}
    for source, entry in _sourced_entries(spec):
        if isinstance(entry, DerivedDim):
            derived = SymbolSource(source.leaf, source.dim, entry.scale, entry.offset)
            best.setdefault(entry.root.__name__, derived)
        elif isinstance(entry, Dim) and not _is_symbol(best.get(entry.__name__)):
            best[entry.__name__] = source
    return best


def _is_symbol(source: SymbolSource | None) -> bool:
    return source is not None and source.is_symbol
