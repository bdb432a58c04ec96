"""Reads the specs of torch 2.15 (`ShapesSpec`, `ParamsSpec`, `TensorSpec`, `ShapeVar`, `IntVar`,
`@dynamic_spec`) as our own: Dims in the structure of the call, and constraints.

Knows their classes by name: nothing of torch's is imported. What they mean together spec.py
decides. Must not make symbols for a capture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import TreeSpec

from lostwax.capture.example_call import Argument, ExampleCall, identifier, labels
from lostwax.capture.shapes.dims import DerivedDim, Dim, IntVariable
from lostwax.capture.shapes.marks import is_of_torch_spec
from lostwax.capture.shapes.reader import shorten, spec_error
from lostwax.errors import DynamicShapesError, ParseError
from lostwax.ir.pytree import MAPPINGS, child_steps, is_namedtuple
from lostwax.sym import Condition, Expr, ShapeEnv, Size, show
from lostwax.sym.text.show import WHOLE
from lostwax.sym.text.srepr import parse_srepr


class _NumberSlot(NamedTuple):
    """A place of the call for a number: what was written for it, and its path and dimension."""

    given: Any
    path: str
    dim: int | None

    @property
    def text(self) -> str:
        return self.path if self.dim is None else f"{self.path}.shape[{self.dim}]"


def read_torch_spec(given: Any, call: ExampleCall) -> tuple[dict[str, Any], list[str]]:
    """The spec as `dynamic_shapes` and `constraints` that say the same."""
    params = getattr(given, "_params", given)
    leaves: list[Any] = [None] * len(call.leaves)
    for argument, part in _split_arguments(params, call):
        for start, path, written in _walk(argument.tree, part, argument.name, argument.start):
            leaves[start] = _check_leaf(call.leaves[start], written, path)
    paths = call.paths()
    reading = _SpecReader(list(_find_slots(leaves, paths)))
    found = list(map(reading.read_leaf, leaves, paths))
    assumed = [reading.read_assumption(each) for each in getattr(given, "_assumptions", ())]
    return call.mirror(found), [*reading.stated, *filter(None, assumed)]


# ------------------------------------------------------------------------------------- structure


def _split_arguments(params: Any, call: ExampleCall) -> Iterator[tuple[Argument, Any]]:
    if params is None:
        return
    if isinstance(params, dict):
        named = {name: part for name, part in params.items() if name not in _GROUPS}
        listed, by_key = (params.get(group) for group in _GROUPS)
    else:
        named, listed, by_key = params._named_args, params._varargs, params._varkw
    listed, by_key = listed or [], by_key or {}
    for name, part in {**named, **by_key}.items():
        argument = call.arguments.get(name)
        if argument is None:
            known = ", ".join(call.arguments) or "none"
            raise spec_error(
                "",
                f"{name!r} is not an argument of this call; its arguments are {known}",
                "their names, and ParamsSpec's '*args' and '**kwargs' for what has none",
            )
        yield argument, part
    rest = next((slot for slot in call.slots.values() if isinstance(slot, list)), [])
    if len(listed) > len(rest):
        raise spec_error(
            "", f"{len(listed)} entries for {len(rest)} argument(s) of *args", "one entry for each"
        )
    yield from zip(rest, listed, strict=False)


_GROUPS = ("*args", "**kwargs")


def _walk(tree: TreeSpec, given: Any, path: str, start: int) -> Iterator[tuple[int, str, Any]]:
    """The leaves of an argument that something was written for."""
    if given is None:
        return
    if tree.is_leaf():
        yield start, path, given
        return
    parts = _read_container(tree, given, path)
    names = range(tree.num_children) if _is_sequence(tree) else labels(tree)
    for name, child, step in zip(names, tree.children(), child_steps(tree), strict=True):
        yield from _walk(child, parts.pop(name, None), path + step, start)
        start += child.num_leaves
    if parts:
        raise spec_error(
            path,
            f"{path} has no {', '.join(map(repr, parts))} in the example call",
            f"one of {', '.join(map(repr, names)) or 'none'}",
        )


def _read_container(tree: TreeSpec, given: Any, path: str) -> dict[Any, Any]:
    """What a spec says about the children of a container, by label."""
    kind = type(given).__name__ if is_of_torch_spec(given) else ""
    if tree.type in MAPPINGS:
        wanted, parts = "DictSpec", getattr(given, "_entries", None)
    elif _is_sequence(tree):
        wanted, parts = "SeqSpec", getattr(given, "_entries", None)
    else:
        wanted, parts = "ObjectSpec", getattr(given, "_fields", None)
    if kind != wanted or parts is None:
        what = f"{path} is a container in the example call, and takes a {wanted}"
        raise spec_error(path, f"{what}, not {shorten(given)}", f"{wanted}(...) for {path}")
    return dict(parts) if isinstance(parts, dict) else dict(enumerate(parts))


def _is_sequence(tree: TreeSpec) -> bool:
    return tree.type in (list, tuple) or is_namedtuple(tree)


def _check_leaf(leaf: Any, given: Any, path: str) -> Any:
    """What was written for a leaf: the entries of a tensor, or one for an int."""
    if isinstance(leaf, torch.Tensor):
        if type(given).__name__ == "TensorSpec" and is_of_torch_spec(given):
            return tuple(given)
        raise spec_error(
            path, f"{path} is a tensor, not {shorten(given)}", f"TensorSpec([...]) for {path}"
        )
    is_int = isinstance(leaf, int) and not isinstance(leaf, bool)
    if is_int and isinstance(given, int | torch.SymInt) and not isinstance(given, bool):
        return given
    kind = "None" if leaf is None else f"a {type(leaf).__name__}"
    raise spec_error(
        path, f"{path} is {kind} in the example call, and was given {shorten(given)}", "None"
    )


def _find_slots(leaves: Sequence[Any], paths: Sequence[str]) -> Iterator[_NumberSlot]:
    for given, path in zip(leaves, paths, strict=True):
        if isinstance(given, tuple):
            yield from (_NumberSlot(each, path, i) for i, each in enumerate(given))
        else:
            yield _NumberSlot(given, path, None)


# --------------------------------------------------------------------------------------- numbers


class _SpecReader:
    """The variables of one spec, each a Dim with a name of its own, and the relations that no Dim
    can state."""

    def __init__(self, slots: Sequence[_NumberSlot]) -> None:
        self.dims: dict[str, Dim] = {}
        """By torch's name for the variable, which has its number in it."""
        self.stated: list[str] = []
        self._taken: set[str] = set()
        variables = [slot for slot in slots if _is_variable(slot.given)]
        sizes = {str(slot.given.sympy_sym) for slot in variables if slot.dim is not None}
        for slot in variables:
            name = str(slot.given.sympy_sym)
            if name not in self.dims:
                self.dims[name] = self._make_dim(slot, name in sizes)
        env = ShapeEnv()
        self._symbols = {
            name: env.symbol(dim.__name__, hint=0, lo=None) for name, dim in self.dims.items()
        }
        self._names = {
            symbol: str(symbol) for e in self._symbols.values() for symbol in e.symbols()
        }

    def _make_dim(self, slot: _NumberSlot, is_size: bool) -> Dim:
        name, lo, hi = slot.given.name, slot.given.min, slot.given.max
        made = self._make_name(slot.text if name == "anon" else name)
        if is_size:
            return Dim(made, min=max(lo or 0, 0), max=hi)
        return IntVariable(made, lo, hi)

    def _make_name(self, text: str) -> str:
        """A name for a Dim that no other has. Two variables of one name are two variables."""
        name = first = identifier(text.replace("]", ""))
        while name in self._taken:
            name = f"{first}_{len(self._taken)}"
        self._taken.add(name)
        return name

    def read_leaf(self, given: Any, path: str) -> Any:
        if isinstance(given, tuple):
            return tuple(self._read_number(_NumberSlot(e, path, i)) for i, e in enumerate(given))
        return self._read_number(_NumberSlot(given, path, None))

    def _read_number(self, slot: _NumberSlot) -> Any:
        if slot.given is None or isinstance(slot.given, int):
            return slot.given
        if _is_variable(slot.given):
            return self.dims[str(slot.given.sympy_sym)]
        e = self._read_expression(slot.given, slot.text)
        if isinstance(e, int):
            return e
        assert isinstance(e, Expr)
        derived = self._as_derived(e) if slot.dim is not None else None
        if derived is not None:
            return derived
        name = self._make_name(slot.text)
        self.stated.append(f"{name} == {show(e, longest=WHOLE)}")
        return Dim(name) if slot.dim is not None else IntVariable(name, None, None)

    def _as_derived(self, e: Expr) -> Dim | DerivedDim | None:
        """The expression as `scale*dim + offset`, if it is that."""
        for name, symbol in self._symbols.items():
            (monomial,) = symbol.terms
            if e.terms.keys() - {()} == {monomial} and e.terms[monomial] >= 1:
                return e.terms[monomial] * self.dims[name] + e.terms.get((), 0)
        return None

    def read_assumption(self, given: Any) -> str | None:
        condition = self._read_expression(given, "assumptions")
        return None if condition is True else show(condition, longest=WHOLE)

    def _read_expression(self, given: Any, where: str) -> Size | Condition:
        import sympy  # type: ignore[import-untyped]  # it is loaded: torch's variables are its own

        expression = given.node._expr
        lost = [str(s) for s in expression.free_symbols if str(s) not in self.dims]
        if lost:
            names = ", ".join(sorted(name.partition("#")[0] for name in lost))
            raise DynamicShapesError(
                f"dynamic_shapes: {where} depends on {names}, which no argument is declared to be\n"
                f"  why: a call could not be asked for its value\n"
                f"  instead: {names} itself, as the size of a tensor or an int argument"
            )
        try:
            return parse_srepr(sympy.srepr(expression), self._symbols)
        except ParseError as error:
            raise DynamicShapesError(
                f"dynamic_shapes: {where} is no relation of integers that we can check: {error}\n"
                "  instead: sums, products, //, %, max and min of the variables"
            ) from None


def _is_variable(given: Any) -> bool:
    return hasattr(given, "sympy_sym") and is_of_torch_spec(given)
