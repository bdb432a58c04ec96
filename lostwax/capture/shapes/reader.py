"""Read what was written for `dynamic_shapes` along the structure of the example call: forms,
wildcards, containers, marks; down to an entry for each dimension.

Knows one leaf at a time. What the entries mean together (one Dim in two places) is spec.py's.
"""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.utils._pytree as pytree
from torch.utils._pytree import SUPPORTED_NODES, TreeSpec

from lostwax.capture.example_call import Argument, ExampleCall, Label, labels
from lostwax.capture.shapes.dims import (
    Auto,
    DerivedDim,
    Dim,
    Dynamic,
    Hint,
    Static,
    adopted,
    marks_of,
)
from lostwax.errors import DynamicShapesError
from lostwax.ir.pytree import MAPPINGS, container_class, steps

Entry: TypeAlias = Hint | Dim | DerivedDim
Leaf: TypeAlias = tuple[Entry, ...] | Entry | None
WILDCARD = "*"


def read(dynamic_shapes: Any, call: ExampleCall) -> list[Leaf]:
    """What was written, for each leaf of the call."""
    given = _Reader(call).read(dynamic_shapes)
    named = _named(dynamic_shapes)
    return [
        _Leaf(leaf, path, trail, named).entries(one)
        for leaf, path, trail, one in zip(
            call.leaves, call.paths(), call.trails(), given, strict=True
        )
    ]


def _named(dynamic_shapes: Any) -> dict[str, Dim]:
    """The Dims in a spec, which may also be referred to by name alone."""
    entries = map(adopted, pytree.tree_leaves(dynamic_shapes))
    roots = (e.root if isinstance(e, DerivedDim) else e for e in entries)
    return {root.__name__: root for root in roots if isinstance(root, Dim)}


def wrong(path: str, sentence: str, instead: str) -> DynamicShapesError:
    return DynamicShapesError(f"dynamic_shapes: {sentence}\n  instead: {instead}", path)


def _code(trail: Sequence[Label], inner: str) -> str:
    """A spec that says `inner` of one leaf, in dict form all the way down."""
    for label in reversed(trail):
        inner = f"{{{label!r}: {inner}}}"
    return f"dynamic_shapes={inner}"


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _did_you_mean(name: Any, known: Sequence[Any]) -> str:
    close = difflib.get_close_matches(str(name), [str(k) for k in known], n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


# ------------------------------------------------------------------------------------- structure


class _Unsaid:
    """Nothing was written for a leaf: static, unless a mark or a wildcard says otherwise."""

    def __repr__(self) -> str:
        return "nothing"


@dataclass(frozen=True)
class _Wild:
    """What a wildcard says of a leaf: it counts only where it fits."""

    given: Any


UNSAID = _Unsaid()


class _Reader:
    """Walks the structure of a call and what was written for it side by side."""

    def __init__(self, call: ExampleCall) -> None:
        self.call = call
        self.found: list[Any] = [UNSAID] * len(call.leaves)

    def read(self, given: Any) -> list[Any]:
        given = adopted(given)
        if isinstance(given, str):
            given = {WILDCARD: {0: Dim(given)}}
        if isinstance(given, Mapping):
            self._by_name(given)
        elif isinstance(given, tuple | list):
            self._by_position(given)
        elif isinstance(given, Hint):
            self._by_name({WILDCARD: given})
        elif given is not None:
            first = next(iter(self.call.arguments), "x")
            raise wrong(
                "",
                f"expected a dict by argument name, a tuple by position or the name of the batch "
                f"dimension, not {shown(given)}",
                _code([first], '{0: Dim("batch")}'),
            )
        return self.found

    # ---- arguments

    def _by_name(self, given: Mapping[Any, Any]) -> None:
        arguments, slots = self.call.arguments, self.call.slots
        taken: set[str] = set()
        for key, value in given.items():
            for argument, part in self._named(key, value, list(arguments.values())):
                if argument.name in taken:
                    raise wrong(
                        argument.name,
                        f"{argument.name} is described twice, once by position and once by name",
                        _code([argument.name], '{0: Dim("batch")}'),
                    )
                taken.add(argument.name)
                self._argument(argument, part)
        if WILDCARD in given and WILDCARD not in slots:
            for argument in arguments.values():
                if argument.name not in taken:
                    self._argument(argument, _Wild(given[WILDCARD]))

    def _named(
        self, key: Any, value: Any, arguments: list[Argument]
    ) -> Iterator[tuple[Argument, Any]]:
        slot = self.call.slots.get(key) or self.call.arguments.get(key)
        if slot is None and isinstance(key, int) and 0 <= key < len(arguments):
            slot = self.call.flat()[key]
        if slot is None and key == WILDCARD:
            return
        if slot is None:
            raise self._unknown(key)
        if isinstance(slot, Argument):
            yield slot, value
        else:
            yield from self._group(key, slot, value)

    def _group(
        self, name: str, slot: list[Argument] | dict[str, Argument], value: Any
    ) -> Iterator[tuple[Argument, Any]]:
        """The arguments that went into `*args` or `**kwargs`, given together."""
        names = list(slot) if isinstance(slot, dict) else list(range(len(slot)))
        members = list(slot.values()) if isinstance(slot, dict) else slot
        parts = _parts(names, value, name, isinstance(slot, dict), (name,))
        yield from zip(members, parts, strict=True)

    def _unknown(self, key: Any) -> DynamicShapesError:
        names = list(self.call.arguments)
        what = f"{key!r} is not an argument of this call{_did_you_mean(key, names)}"
        what += f"; its arguments are {', '.join(names) or 'none'}"
        instead = _code(names[:1], '{0: Dim("batch")}')
        only = list(self.call.arguments.values())
        if len(only) == 1 and only[0].tree.type in MAPPINGS and key in labels(only[0].tree):
            what += f"; {key!r} is a key inside {only[0].name}"
            instead = _code([only[0].name, key], '{0: Dim("batch")}')
        return wrong("", what, instead)

    def _by_position(self, given: Sequence[Any]) -> None:
        for argument, part in self._positions(given):
            self._argument(argument, part)

    def _positions(self, given: Sequence[Any]) -> Iterator[tuple[Argument, Any]]:
        slots = self.call.slots
        if len(given) == len(slots) and all(map(_fits_slot, slots.values(), given)):
            for (name, slot), part in zip(slots.items(), given, strict=True):
                if isinstance(slot, Argument):
                    yield slot, part
                else:
                    yield from self._group(name, slot, part)
            return
        flat = self.call.flat()
        if len(given) > len(flat):
            names = ", ".join(argument.name for argument in flat)
            instead = _code([flat[0].name], '{0: Dim("batch")}') if flat else "leave it out"
            if len(flat) == 1 and flat[0].tree.is_leaf():
                instead = f"dynamic_shapes=({shown(given)},), a tuple with one entry an argument"
            raise wrong(
                "",
                f"{len(given)} entries for {len(flat)} argument(s) ({names})",
                instead,
            )
        yield from zip(flat, given, strict=False)

    def _argument(self, argument: Argument, given: Any) -> None:
        self._tree(argument.tree, given, argument.name, (argument.name,), argument.start)

    # ---- containers

    def _tree(
        self, tree: TreeSpec, given: Any, path: str, trail: tuple[Label, ...], start: int
    ) -> None:
        given = adopted(given)
        if tree.is_leaf():
            self.found[start] = given
            return
        names = labels(tree)
        if isinstance(given, _Wild | _Unsaid):
            parts = [given] * len(names)
        elif given is None or isinstance(given, Hint):
            parts = [UNSAID if given is None else _Wild(given)] * len(names)
        else:
            parts = self._opened(tree, given, path, trail, names)
        for child, part, step, label in zip(
            tree.children(), parts, steps(tree), names, strict=True
        ):
            self._tree(child, part, path + step, (*trail, label), start)
            start += child.num_leaves

    def _opened(
        self, tree: TreeSpec, given: Any, path: str, trail: tuple[Label, ...], names: list[Label]
    ) -> list[Any]:
        """What a spec for a container says of each child."""
        cls = container_class(tree)
        if tree.type not in MAPPINGS and type(given) is cls and cls not in (list, tuple, deque):
            return _of_instance(tree, given, names)
        return _parts(names, given, path, tree.type in MAPPINGS, trail, cls.__name__)


def _fits_slot(slot: Any, given: Any) -> bool:
    """Whether an entry of a tuple can be meant for all of `*args`, or of `**kwargs`."""
    if given is None or isinstance(slot, Argument):
        return True
    if isinstance(slot, dict):
        return isinstance(given, Mapping) and set(given) <= {*slot, WILDCARD}
    return isinstance(given, tuple | list) and len(given) == len(slot)


def _of_instance(tree: TreeSpec, given: Any, names: list[Label]) -> list[Any]:
    """A container of the same class that holds entries where the argument holds leaves."""
    if all(isinstance(name, str) and hasattr(given, name) for name in names):
        return [getattr(given, name) for name in names]
    children, _ = SUPPORTED_NODES[tree.type].flatten_fn(given)
    return list(children)


def _parts(
    names: list[Label],
    given: Any,
    path: str,
    mapping: bool,
    trail: tuple[Label, ...],
    kind: str = "",
) -> list[Any]:
    """One part of `given` for each child, by name or by position."""
    kind = kind or ("dict" if mapping else "tuple")
    example = names[0] if names else 0
    if isinstance(given, Mapping):
        return _parts_by_name(names, given, path, trail, kind)
    if not isinstance(given, tuple | list | deque) or mapping:
        raise wrong(
            path,
            f"{path} is a {kind} in the example call, but {shown(given)} was written for it",
            _code([*trail, example], '{0: Dim("batch")}'),
        )
    if len(given) != len(names):
        raise wrong(
            path,
            f"{path} is a {kind} with {len(names)} element(s) in the example call, but "
            f"{len(given)} were written for it: {shown(given)}",
            _code([*trail, example], '{0: Dim("batch")}'),
        )
    return list(given)


def _parts_by_name(
    names: list[Label], given: Mapping[Any, Any], path: str, trail: tuple[Label, ...], kind: str
) -> list[Any]:
    rest = _Wild(given[WILDCARD]) if WILDCARD in given and WILDCARD not in names else UNSAID
    parts = [rest] * len(names)
    for key, value in given.items():
        if key in names:
            parts[names.index(key)] = value
        elif isinstance(key, int) and -len(names) <= key < len(names):
            parts[key] = value
        elif key != WILDCARD:
            known = ", ".join(map(repr, names)) or "none"
            raise wrong(
                path,
                f"{path} is a {kind} in the example call without "
                f"{key!r}{_did_you_mean(key, names)}; it has {known}",
                _code([*trail, names[0] if names else 0], '{0: Dim("batch")}'),
            )
    return parts


# ---------------------------------------------------------------------------------------- leaves


@dataclass(frozen=True)
class _Leaf:
    """One leaf of the call, to read what was written for it."""

    value: Any
    path: str
    trail: tuple[Label, ...]
    named: Mapping[str, Dim]

    def entries(self, given: Any) -> Leaf:
        if isinstance(self.value, torch.Tensor):
            found = self._marked(self._tensor(given))
            return found if any(not isinstance(e, Static) for e in found) else None
        if isinstance(given, _Wild | _Unsaid) or given is None or isinstance(given, Static):
            return None
        if isinstance(self.value, int | float) and not isinstance(self.value, bool):
            entry = self._entry(given, None)
            return None if isinstance(entry, Static) else entry
        kind = "None" if self.value is None else f"a {type(self.value).__name__}"
        raise wrong(
            self.path,
            f"{self.path} is {kind} in the example call: only sizes of tensors, ints and floats "
            f"can vary, but {shown(given)} was written for it",
            f"{_code(self.trail, 'None')}, or leave it out",
        )

    # ---- tensors

    def _tensor(self, given: Any) -> list[Entry | None]:
        """An entry for each dimension, None for those that nothing was said of."""
        ndim = self.value.ndim
        if isinstance(given, _Wild):
            given = self._fitting(given.given)
        if given is None or given is UNSAID:
            return [None] * ndim
        if isinstance(given, Hint):
            return [self._entry(given, i) for i in range(ndim)]
        if isinstance(given, Mapping):
            return self._by_index(given)
        if isinstance(given, tuple | list):
            if len(given) != ndim:
                raise self._refused(
                    f"has {ndim} dimension(s) {tuple(self.value.shape)}, but {len(given)} entries "
                    f"were written for it: {shown(given)}"
                )
            return [self._entry(one, i) for i, one in enumerate(given)]
        if not isinstance(given, Dim | DerivedDim | int | str):
            raise self._refused(
                f"is a tensor, {shown(given)} says nothing of its dimensions: expected a dict from "
                "dimension to Dim, or a tuple with an entry for each dimension"
            )
        if ndim != 1:
            raise self._refused(
                f"is a tensor with {ndim} dimension(s); {shown(given)} does not say which of them "
                "it is about"
            )
        return [self._entry(given, 0)]

    def _fitting(self, given: Any) -> Any:
        """The part of a wildcard that fits this tensor."""
        ndim, given = self.value.ndim, adopted(given)
        if isinstance(given, Mapping):
            return {k: v for k, v in given.items() if not isinstance(k, int) or -ndim <= k < ndim}
        if isinstance(given, tuple | list):
            return given if len(given) == ndim else UNSAID
        return given

    def _by_index(self, given: Mapping[Any, Any]) -> list[Entry | None]:
        ndim = self.value.ndim
        found: list[Entry | None] = [None] * ndim
        for index, one in given.items():
            if not isinstance(index, int) or isinstance(index, bool):
                raise self._refused(
                    f"is a tensor: {shown(given)} must have its dimensions as keys, not {index!r}"
                )
            if not -ndim <= index < ndim:
                raise self._refused(
                    f"has {ndim} dimension(s) {tuple(self.value.shape)}: there is no dimension "
                    f"{index}"
                )
            if found[index] is not None:
                raise self._refused(f"has dimension {index % ndim} described twice: {shown(given)}")
            found[index] = self._entry(one, index % ndim)
        return found

    def _marked(self, found: list[Entry | None]) -> tuple[Entry, ...]:
        """With the marks of the tensor for what was left open."""
        marks = marks_of(self.value)
        return tuple(
            entry if entry is not None else self._entry(marks.get(i), i)
            for i, entry in enumerate(found)
        )

    def _refused(self, what: str) -> DynamicShapesError:
        return wrong(self.path, f"{self.path} {what}", _code(self.trail, '{0: Dim("batch")}'))

    # ---- one size

    def _entry(self, given: Any, dim: int | None) -> Entry:
        given = adopted(given)
        if given is None or isinstance(given, Static):
            return Static()
        value = self.value if dim is None else self.value.shape[dim]
        if isinstance(given, Auto | Dynamic):
            self._check_range(given, dim, value)
            return given
        if isinstance(given, Dim | DerivedDim):
            if isinstance(value, float):
                raise self._at(dim, f"is a float; {given} is a name for integers", "Dim.DYNAMIC")
            return given
        if isinstance(given, str):
            return self.named.get(given) or Dim(given)
        is_number = isinstance(given, int) or (
            isinstance(value, float) and isinstance(given, float)
        )
        if is_number and not isinstance(given, bool):
            if given != value:
                raise self._at(dim, f"is {value} in the example, but {given} was written", "None")
            return Static()
        raise self._at(
            dim,
            f"takes a Dim, Dim.AUTO, Dim.DYNAMIC, Dim.STATIC, an int or None, not {shown(given)}",
            'Dim("batch")',
        )

    def _check_range(self, hint: Auto | Dynamic, dim: int | None, value: Any) -> None:
        if dim is not None and hint.min is not None and hint.min < 0:
            raise self._at(
                dim, f"is a size and never negative, {hint} cannot be", "Dim.DYNAMIC(min=0)"
            )
        if (hint.min is not None and value < hint.min) or (
            hint.max is not None and value > hint.max
        ):
            raise self._at(
                dim,
                f"is {value} in the example, outside of {hint}",
                f"Dim.{type(hint).__name__.upper()}",
            )

    def _at(self, dim: int | None, what: str, instead: str) -> DynamicShapesError:
        path = self.path if dim is None else f"{self.path}.shape[{dim}]"
        inner = instead if dim is None else f"{{{dim}: {instead}}}"
        return wrong(path, f"{path} {what}", _code(self.trail, inner))
