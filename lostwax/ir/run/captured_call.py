"""What a call of a program must be, and what is wrong with one that is not.

A call is walked slowly here, with an error at the first place where it differs from the captured
one, and with what to pass or to declare instead. Must not run on calls that are right:
`calling.py` generates the check for those.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch.utils import _pytree
from torch.utils._pytree import TreeSpec

from lostwax.errors import InputStructureError, InputValueError, did_you_mean
from lostwax.ir.pytree import (
    MAPPINGS,
    argument_names,
    call_paths,
    child_steps,
    container_class,
    mapping_keys,
    sketch_call,
    sketch_captured,
    sketch_spec,
)
from lostwax.ir.run.declaration import Place, declare_sizes
from lostwax.ir.run.leaves import (
    Changes,
    ConstantLeaf,
    NumberLeaf,
    TensorLeaf,
    check_value,
    is_another_number,
    make_leaf,
)
from lostwax.sym import Expr, Guard, Symbol, evaluate, show
from lostwax.sym.expressions.affine import read_affine

Range = tuple[int | None, int | None]


@dataclass(frozen=True)
class NumberPlace:
    """A number in a call whose value depends on symbols: a dimension of a tensor, or an int."""

    leaf: int
    dim: int | None
    expr: Expr
    text: str


class CapturedCall:
    """The call that a program was captured with: its structure, its leaves, and the numbers in it
    that vary, with the conditions on them."""

    def __init__(
        self,
        in_spec: TreeSpec,
        captured: Sequence[Any],
        names: Sequence[str] | None,
        ranges: Mapping[str, Range] | None,
        guards: Sequence[Guard],
        changes: Changes,
    ) -> None:
        self.in_spec = in_spec
        self.names = argument_names(in_spec, names)
        self.positional = in_spec.child(0).num_children
        paths = call_paths(in_spec, names)
        self.leaves = [make_leaf(p, c, changes) for p, c in zip(paths, captured, strict=True)]
        self.places = list(self._places())
        self.solved = dict(solve_symbols([place.expr for place in self.places]))
        self.ranges = {s: ranges[s.name] for s in self.solved if ranges and s.name in ranges}
        known = self.solved.keys()
        self.guards = [g for g in guards if g.cond.symbols() <= known]

    def _places(self) -> Iterator[NumberPlace]:
        for i, x in enumerate(self.leaves):
            if isinstance(x, TensorLeaf):
                for d, size in enumerate(x.size):
                    if isinstance(size, Expr):
                        yield NumberPlace(i, d, size, f"{x.path}.shape[{d}]")
            elif isinstance(x, NumberLeaf):
                yield NumberPlace(i, None, x.value, x.path)

    @property
    def argument_specs(self) -> list[TreeSpec]:
        """The structures of the arguments, in the order of `names`."""
        positional, by_name = self.in_spec.children()
        return [*positional.children(), *by_name.children()]

    # ---- what is wrong with a call

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the arguments in the order of `names`; refuse a call that has others."""
        raise NotImplementedError

    def explain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
        """Raise an error that says what is wrong with a call that the generated check refused."""
        flat: list[Any] = []
        arguments = zip(self.names, self.argument_specs, self.arguments(args, kwargs), strict=True)
        for name, spec, value in arguments:
            found = _try_walk(spec, value, name)
            if isinstance(found, _PartError):
                fix = "pass the structure that was captured, or capture it again with this one"
                self.refuse_structure(found.text, found.path, args, kwargs, fix)
            flat += found
        for value, expected in zip(flat, self.leaves, strict=True):
            check_value(value, expected, lambda: self._declare_for(flat))
        self._check_symbols(flat)
        raise AssertionError("a call was refused, and nothing is wrong with it")

    def refuse_structure(
        self, text: str, path: str, args: tuple[Any, ...], kwargs: dict[str, Any], fix: str
    ) -> NoReturn:
        captured = sketch_captured(self.in_spec, [x.text for x in self.leaves])
        called = sketch_call(args, kwargs)
        raise InputStructureError(
            f"{text}\n  captured with: {captured}\n  called with:   {called}\n  fix: {fix}", path
        )

    def sketch_argument(self, name: str) -> str:
        """Show what an argument was at capture."""
        texts = iter([x.text for x in self.leaves])
        sketches = [sketch_spec(spec, texts) for spec in self.argument_specs]
        return sketches[self.names.index(name)]

    # ---- what to declare

    def _declare_for(self, flat: Sequence[Any]) -> str:
        """Return a declaration under which all sizes and numbers of this call may vary that were
        fixed. Sizes that were equal and are still equal get one Dim."""
        apart: dict[Place, Any] = {}
        for i, (leaf, value) in enumerate(zip(self.leaves, flat, strict=True)):
            if isinstance(leaf, ConstantLeaf) and is_another_number(value, leaf.value):
                apart[i, None] = None
            if not isinstance(leaf, TensorLeaf) or not isinstance(value, torch.Tensor):
                continue
            for d, (size, given) in enumerate(zip(leaf.size, value.shape, strict=False)):
                if isinstance(size, int) and given != size and value.ndim == len(leaf.size):
                    apart[i, d] = (size, given) if isinstance(given, int) else (i, d)
        return self._declare(apart)

    def _declare(
        self, apart: Mapping[Place, Any] | None = None, widened: Mapping[Symbol, int] | None = None
    ) -> str:
        return declare_sizes(self.in_spec, self.names, self.leaves, apart, widened)

    # ---- sizes that vary

    def _check_symbols(self, flat: list[Any]) -> None:
        given = [
            v if p.dim is None else v.shape[p.dim] for p in self.places for v in [flat[p.leaf]]
        ]
        values: dict[Symbol, int] = {}
        origin: dict[Symbol, NumberPlace] = {}
        for symbol, (index, factor, offset) in self.solved.items():
            place = self.places[index]
            origin[symbol] = place
            values[symbol], rest = divmod(given[index] - offset, factor)
            if rest:
                self._refuse_number(place, given[index], str(place.expr))
        for place, number in zip(self.places, given, strict=True):
            if place.expr.symbols() <= values.keys():
                self._check_place(place, number, values, origin)
        self._check_conditions(values, origin)

    def _check_place(
        self,
        place: NumberPlace,
        number: int,
        values: dict[Symbol, int],
        origin: dict[Symbol, NumberPlace],
    ) -> None:
        wanted = evaluate(place.expr, values)
        if number != wanted:
            names = {s: origin[s].text for s in place.expr.symbols()}
            given = ", ".join(f"{names[s]} is {values[s]}" for s in sorted(names, key=_by_id))
            shown = f"{show(place.expr, names)} = {wanted}, since {given}"
            self._refuse_number(place, number, shown)

    def _refuse_number(self, place: NumberPlace, number: int, wanted: str) -> NoReturn:
        """Refuse a number that is not what it was declared to be."""
        declared = self._declare(apart={(place.leaf, place.dim): place})
        raise InputValueError(
            f"{place.text} is {number}, but must be {wanted}\n"
            f"  fix: pass what was declared; or capture it again with {declared}",
            place.text,
        )

    def _check_conditions(
        self, values: dict[Symbol, int], origin: dict[Symbol, NumberPlace]
    ) -> None:
        for guard in self.guards:
            if not evaluate(guard.cond, values):
                names = {s: origin[s].text for s in guard.cond.symbols()}
                given = ", ".join(f"{names[s]} = {values[s]}" for s in sorted(names, key=_by_id))
                raise InputValueError(
                    f"the program was captured under the condition {show(guard.cond, names)}, "
                    f"and here {given}\n  because {guard.reason}\n  at {guard.where}",
                    next(iter(names.values())),
                )
        for symbol, (lo, hi) in self.ranges.items():
            value, place = values[symbol], origin[symbol].text
            if (lo is not None and value < lo) or (hi is not None and value > hi):
                what = "" if origin[symbol].expr is symbol.expr else f" makes {symbol.name}"
                limits = f"{'' if lo is None else f'{lo} <= '}{symbol.name if what else place}"
                limits += "" if hi is None else f" <= {hi}"
                raise InputValueError(
                    f"{place}{what} {'is ' if not what else '= '}{value}, "
                    f"but the program holds for {limits}{self._widen_for(symbol, value)}",
                    place,
                )

    def _widen_for(self, symbol: Symbol, value: int) -> str:
        """Return the fix for a value outside of a range, if it is the range that was declared and
        not what the trace has found."""
        lo, hi = symbol.lo, symbol.hi
        if (lo is None or value >= lo) and (hi is None or value <= hi):
            return ""
        return f"\n  fix: capture it again with {self._declare(widened={symbol: value})}"


def _by_id(symbol: Symbol) -> int:
    return symbol.id


def solve_symbols(numbers: Sequence[Expr]) -> Iterator[tuple[Symbol, tuple[int, int, int]]]:
    """Yield for each symbol a number that gives its value, as (index, factor, offset): the number
    is factor * symbol + offset. Numbers that are the symbol itself are preferred."""
    forms: dict[Symbol, tuple[int, int, int]] = {}
    for i, number in enumerate(numbers):
        found = read_affine(number)
        if found is None:
            continue
        symbol, form = found.symbol, (i, found.factor, found.offset)
        best = forms.get(symbol)
        if best is None or (best[1:] != (1, 0) and form[1:] == (1, 0)):
            forms[symbol] = form
    yield from forms.items()


# -------------------------------------------------------------------------------------- structures


class _PartError(Exception):
    """The structure of a value differs from the captured one here."""

    def __init__(self, text: str, path: str) -> None:
        self.text, self.path = text, path


def _try_walk(spec: TreeSpec, value: Any, path: str) -> list[Any] | _PartError:
    """Return the leaves, or the error that says where the structures differ. It is returned, not
    raised, so that Python shows no chain of errors."""
    try:
        return _walk(spec, value, path)
    except _PartError as parting:
        return parting


def _walk(spec: TreeSpec, value: Any, path: str) -> list[Any]:
    """The leaves of a value that has the structure of `spec`."""
    if spec.is_leaf():
        if _pytree.tree_is_leaf(value):
            return [value]
        raise _PartError(f"{path} is a {type(value).__name__}, not a single value", path)
    cls = container_class(spec)
    if type(value) is not cls:
        given = "None" if value is None else f"a {type(value).__name__}"
        raise _PartError(f"{path} is {given}, not a {cls.__name__}", path)
    children = _children(spec, value, path)
    parts = zip(spec.children(), children, child_steps(spec), strict=True)
    return [x for child, part, step in parts for x in _walk(child, part, path + step)]


def _children(spec: TreeSpec, value: Any, path: str) -> list[Any]:
    if spec.type in MAPPINGS:
        keys = mapping_keys(spec)
        others = [key for key in value if key not in keys]
        for key in keys:
            if key not in value:
                near = did_you_mean(key, others, "is it")
                raise _PartError(f"{path}[{key!r}] is missing{near}", f"{path}[{key!r}]")
        for key in others:
            raise _PartError(f"{path}[{key!r}] was not there at capture", f"{path}[{key!r}]")
        if spec.type is OrderedDict and list(value) != keys:
            raise _PartError(f"{path} has its keys in another order than at capture", path)
        return [value[key] for key in keys]
    children, context = _pytree.SUPPORTED_NODES[spec.type].flatten_fn(value)
    children = list(children)
    if len(children) != spec.num_children:
        raise _PartError(
            f"{path} has {len(children)} elements, not {spec.num_children}"
            + _context_text(spec, context),
            path,
        )
    if context != spec.context:
        raise _PartError(
            f"{path} is another kind of {spec.type.__name__}{_context_text(spec, context)}", path
        )
    return children


def _context_text(spec: TreeSpec, context: Any) -> str:
    if context == spec.context:
        return ""
    given, captured = repr(context), repr(spec.context)
    if len(given) + len(captured) > 200:  # from shortly before the first difference
        pairs = enumerate(zip(given, captured, strict=False))
        start = max(next((i for i, (a, b) in pairs if a != b), 0) - 40, 0)
        given, captured = (f"...{text[start : start + 80]}..." for text in (given, captured))
    return f": {given}, at capture {captured}"
