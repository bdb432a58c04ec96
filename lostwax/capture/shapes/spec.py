"""Turns `dynamic_shapes`, however it is written, into one flat list for the leaves of the example
call; and reads relations between sizes from their text.

Checks both against the example. Must not make symbols: symbols.py does, from a `Spec`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from lostwax.capture.example_call import ExampleCall, check_binding
from lostwax.capture.shapes.dims import DerivedDim, Dim, Static, root_of
from lostwax.capture.shapes.marks import is_of_torch_spec
from lostwax.capture.shapes.reader import (
    LeafEntries,
    read_dynamic_shapes,
    shorten,
    spec_error,
)
from lostwax.errors import DynamicShapesError, ParseError
from lostwax.sym import Condition, Size


class SizePlace(NamedTuple):
    """The place of a size: dimension `dim` of leaf `leaf`. `dim` is None for an int or float."""

    leaf: int
    dim: int | None
    path: str  # `x.shape[0]`, `n`
    value: Any


class NamedDim:
    """A Dim of the spec: its value in the example, and its range, in which every size derived from
    it is at least 0."""

    def __init__(self, dim: Dim, value: int) -> None:
        self.dim = dim
        self.value = value
        self.min: int | None = dim.min
        self.max = dim.max
        self.places: list[tuple[SizePlace, Dim | DerivedDim]] = []


class Constraint(NamedTuple):
    """A relation that the user stated. `names` are names of Dims and paths such as `x.shape[0]`;
    `fixed` has the values of static sizes by path."""

    text: str
    names: tuple[str, ...]
    fixed: dict[str, int]

    def condition(self, names: Mapping[str, Size]) -> Condition:
        """The relation as a condition over the expressions that the names stand for."""
        from lostwax.sym.text.parse import parse

        found = parse(self.text, {**self.fixed, **names})
        assert not isinstance(found, int) or isinstance(found, bool)
        return found  # type: ignore[return-value]


class Spec:
    """What varies in a call.

    `leaves` follows `tree_flatten((args, kwargs))`: None for a leaf that is fixed; for a tensor a
    tuple with an entry for each dimension; for an int or float a single entry. An entry is
    `Static`, `Auto(min, max)`, `Dynamic(min, max)`, a `Dim` or a `DerivedDim`. A limit that is None
    is 0 for a size from below, else no limit. `named_dims` are the Dims by name, also those that
    stand only in derived ones.
    """

    def __init__(
        self, leaves: list[LeafEntries], paths: list[str], call: ExampleCall | None = None
    ) -> None:
        self.leaves, self.paths, self.call = leaves, paths, call
        self.named_dims: dict[str, NamedDim] = {}
        self.constraints: list[Constraint] = []
        self.defers = False
        """Are relations between Dims that it does not state left to the call, not refused?"""
        self.check_more_calls: Callable[[Any], None] | None = None
        """Checks a program against the calls of which it was collected what varies."""

    def __bool__(self) -> bool:
        return any(leaf is not None for leaf in self.leaves)


def resolve_spec(
    dynamic_shapes: Any,
    function: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    constraints: Sequence[str] | None = None,
) -> Spec:
    """What `dynamic_shapes`, the marks on tensors and `constraints` say about this call."""
    more = None
    if hasattr(dynamic_shapes, "dynamic_shapes"):  # a collection, ours or torch's
        more = getattr(dynamic_shapes, "check", None)
        dynamic_shapes = dynamic_shapes.dynamic_shapes(function, args, kwargs)
    call = ExampleCall(function, args, kwargs)
    try:
        if _is_torch_spec(dynamic_shapes):
            from lostwax.capture.shapes.torch_spec import read_torch_spec

            dynamic_shapes, stated = read_torch_spec(dynamic_shapes, call)
            constraints = [*stated, *(constraints or ())]
        entries = read_dynamic_shapes(dynamic_shapes, call)
    except DynamicShapesError:
        check_binding(call.function, args, kwargs or {})  # it may be the call that is wrong
        raise
    spec = Spec(entries, call.paths(), call)
    spec.named_dims = _named_dims(list(_named_places(spec, call.leaves)))
    spec.constraints = _read_constraints(constraints, spec, call.leaves)
    spec.check_more_calls = more
    return spec


def _is_torch_spec(given: Any) -> bool:
    """Is this a spec of torch 2.15, or a dict of such for the arguments?"""
    parts = given.values() if isinstance(given, dict) else (given,)
    return any(is_of_torch_spec(part) for part in parts)


# ------------------------------------------------------------------------------------ named dims


def _named_places(spec: Spec, leaves: list[Any]) -> Iterator[tuple[SizePlace, Dim | DerivedDim]]:
    for i, (entries, path) in enumerate(zip(spec.leaves, spec.paths, strict=True)):
        if isinstance(entries, Dim | DerivedDim):
            yield SizePlace(i, None, path, leaves[i]), entries
        for dim, entry in enumerate(entries) if isinstance(entries, tuple) else ():
            if isinstance(entry, Dim | DerivedDim):
                yield SizePlace(i, dim, f"{path}.shape[{dim}]", leaves[i].shape[dim]), entry


def _named_dims(places: list[tuple[SizePlace, Dim | DerivedDim]]) -> dict[str, NamedDim]:
    roots: dict[str, NamedDim] = {}
    for place, entry in places:
        dim = root_of(entry)
        value = _root_value(place, entry)
        root = roots.get(dim.__name__)
        if root is None:
            root = roots[dim.__name__] = NamedDim(dim, value)
        elif dim != root.dim:
            raise _ranges_error(root, place, dim)
        if value != root.value:
            raise _values_error(root, place, entry, value)
        root.places.append((place, entry))
        if isinstance(entry, DerivedDim):  # no size is negative
            least = -(entry.offset // entry.scale)
            root.min = least if root.min is None else max(root.min, least)
    for root in roots.values():
        _check_example(root)
    return roots


def _root_value(place: SizePlace, entry: Dim | DerivedDim) -> int:
    if not isinstance(entry, DerivedDim):
        return int(place.value)
    value, rest = divmod(place.value - entry.offset, entry.scale)
    if rest:
        sizes = ", ".join(str(entry.scale * (value + i) + entry.offset) for i in (0, 1))
        raise spec_error(
            place.path,
            f"{place.path} = {place.value} is not {entry} for any integer {entry.root}",
            f"an example of size {sizes}, ...",
        )
    return int(value)


def _ranges_error(root: NamedDim, place: SizePlace, dim: Dim) -> DynamicShapesError:
    first = root.places[0][0].path
    return spec_error(
        place.path,
        f"{dim} is {root.dim!r} at {first}, but {dim!r} at {place.path}: one name has one range",
        f"make one Dim and use it in both places, {dim} = {root.dim!r}",
    )


def _values_error(
    root: NamedDim, place: SizePlace, entry: Dim | DerivedDim, value: int
) -> DynamicShapesError:
    first, before = root.places[0]
    name = root.dim.__name__
    what = f"{first.path} is {first.value}, {place.path} is {place.value}, "
    if isinstance(entry, Dim) and isinstance(before, Dim):
        what += f"both are Dim {name}"
    else:
        what += f"declared as {before} and {entry}: {name} would be {root.value} and {value}"
    return spec_error(
        place.path,
        what,
        f"an example in which they agree, or another Dim for {place.path}: "
        f'Dim("{name}_{place.leaf}")',
    )


def _check_example(root: NamedDim) -> None:
    low = root.min is not None and root.value < root.min
    if not low and (root.max is None or root.value <= root.max):
        return
    place, entry = root.places[0]
    limit = f"at least {root.min}" if low else f"at most {root.max}"
    name, word = root.dim.__name__, "min" if low else "max"
    derived = f", so {name} is {root.value}" if isinstance(entry, DerivedDim) else ""
    instead = f'{name} = Dim("{name}", {word}={root.value}), or an example within the range'
    if root.value < 0:
        instead = f"Dim.DYNAMIC for {place.path}: a Dim is a size, and never negative"
    raise spec_error(
        place.path,
        f"{place.path} is {place.value} in the example{derived}, but {root.dim!r} is {limit}",
        instead,
    )


# ----------------------------------------------------------------------------------- constraints


def _read_constraints(texts: Any, spec: Spec, leaves: list[Any]) -> list[Constraint]:
    if texts is None:
        return []
    if isinstance(texts, str):
        texts = [texts]
    named, dynamic, fixed = _example_values(spec, leaves)
    found = []
    for text in texts:
        if not isinstance(text, str):
            raise DynamicShapesError(
                f"constraints: expected texts, not {shorten(text)}\n"
                '  instead: constraints=["seq % 8 == 0", "h == w"]'
            )
        found.append(_read_constraint(text, {**fixed, **dynamic, **named}, fixed, list(named)))
    return found


def _example_values(
    spec: Spec, leaves: list[Any]
) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """The values in the example that constraints can name: Dims by name, sizes that vary by path,
    static sizes by path."""
    named = {name: root.value for name, root in spec.named_dims.items()}
    dynamic: dict[str, int] = {}
    fixed: dict[str, int] = {}
    for path, leaf, entries in zip(spec.paths, leaves, spec.leaves, strict=True):
        if isinstance(leaf, torch.Tensor):
            for i, size in enumerate(leaf.shape):
                static = entries is None or isinstance(entries[i], Static)  # type: ignore[index]
                (fixed if static else dynamic)[f"{path}.shape[{i}]"] = size
        elif isinstance(leaf, int) and not isinstance(leaf, bool):
            (fixed if entries is None else dynamic)[path] = leaf
    return named, dynamic, fixed


def _read_constraint(
    text: str, values: dict[str, int], fixed: dict[str, int], named: list[str]
) -> Constraint:
    used: dict[str, int] = {}

    def lookup(name: str) -> int | None:
        value = values.get(name)
        if value is not None:
            used[name] = value
        return value

    held = _evaluate_at_example(text, lookup, [*named, *(v for v in values if v not in named)])
    if not isinstance(held, bool):
        raise DynamicShapesError(
            f'constraints: "{text}" is a number, not a relation\n  instead: "{text} >= 1"'
        )
    if not held:
        example = ", ".join(f"{name} = {value}" for name, value in used.items())
        raise DynamicShapesError(
            f'constraints: "{text}" is not true of the example ({example})\n'
            "  instead: an example for which it holds, or leave the constraint out"
        )
    names = tuple(name for name in used if name in named or name not in fixed)
    return Constraint(text, names, {name: fixed[name] for name in used if name in fixed})


def _evaluate_at_example(text: str, lookup: Callable[[str], int | None], known: list[str]) -> Any:
    from lostwax.sym.text.parse import PYTHON, Parser

    try:
        return Parser(text, PYTHON, lookup).read_all()
    except ParseError as error:
        names = ", ".join(known[:12]) or "none"
        raise DynamicShapesError(
            f"constraints: {error}\n  names that can be used: {names}\n"
            '  instead: constraints=["seq % 8 == 0", "h == w", "2*h <= w + 1"]'
        ) from None
