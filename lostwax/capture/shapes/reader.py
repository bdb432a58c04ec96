"""Reads `dynamic_shapes` along the structure of the example call: dicts, tuples, wildcards,
containers, marks; down to an entry for each dimension.

Knows one leaf at a time: spec.py decides what the entries mean together (one Dim in two places).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

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
    adopt_dim,
    roots_by_name,
)
from lostwax.capture.shapes.marks import marks_of
from lostwax.errors import DynamicShapesError, did_you_mean
from lostwax.ir.pytree import MAPPINGS, child_steps, container_class, leaf_text, sketch_spec

SizeEntry: TypeAlias = Hint | Dim | DerivedDim
LeafEntries: TypeAlias = tuple[SizeEntry, ...] | SizeEntry | None
WILDCARD = "*"


def read_dynamic_shapes(dynamic_shapes: Any, call: ExampleCall) -> list[LeafEntries]:
    """What `dynamic_shapes` says about each leaf of the call."""
    try:
        given = _Reader(call).read(dynamic_shapes)
        named = roots_by_name(map(adopt_dim, pytree.tree_leaves(dynamic_shapes)))
        # Elsewhere in the spec, the name alone may stand for one of these Dims.
        return [
            _LeafReader(leaf, path, trail, named).read(one)
            for leaf, path, trail, one in zip(
                call.leaves, call.paths(), call.trails(), given, strict=True
            )
        ]
    except _NestingError as found:
        wrong = found
    raise spec_error(
        wrong.path,
        f"{wrong.sentence}\n  the call:       {_sketch_arguments(call)}\n"
        f"  dynamic_shapes: {shorten(dynamic_shapes, 300)}",
        wrong.instead,
    )


class _NestingError(Exception):
    """The spec is nested in another way than the call."""

    def __init__(self, path: str, sentence: str, instead: str) -> None:
        self.path, self.sentence, self.instead = path, sentence, instead


def _sketch_arguments(call: ExampleCall) -> str:
    """Show the structure of the arguments as that of a spec: `{'x': f32[2], 'mask': [f32[3]]}`."""
    texts = [leaf_text(leaf) for leaf in call.leaves]
    parts = (
        f"{name!r}: {sketch_spec(tree, iter(texts[start : start + tree.num_leaves]))}"
        for name, tree, start in call.arguments.values()
    )
    return f"{{{', '.join(parts)}}}"


def spec_error(path: str, sentence: str, instead: str) -> DynamicShapesError:
    return DynamicShapesError(f"dynamic_shapes: {sentence}\n  instead: {instead}", path)


def _spec_code(trail: Sequence[Label], inner: str) -> str:
    """The code of a spec that says `inner` about one leaf, as nested dicts."""
    for label in reversed(trail):
        inner = f"{{{label!r}: {inner}}}"
    return f"dynamic_shapes={inner}"


def shorten(value: Any, length: int = 80) -> str:
    """The repr of a value, cut if it is long."""
    text = repr(value)
    return text if len(text) <= length else f"{text[: length - 3]}..."


# ------------------------------------------------------------------------------------- structure


class _Unsaid:
    """The spec says nothing about a leaf: it is static, unless it has marks."""

    def __repr__(self) -> str:
        return "nothing"


class _Wildcard:
    """What a wildcard says about a leaf: it counts only where it fits."""

    def __init__(self, given: Any) -> None:
        self.given = given


UNSAID = _Unsaid()


class _Reader:
    """Walks the structure of a call and its spec side by side."""

    def __init__(self, call: ExampleCall) -> None:
        self.call = call
        self.found: list[Any] = [UNSAID] * len(call.leaves)

    def read(self, given: Any) -> list[Any]:
        given = adopt_dim(given)
        if isinstance(given, str):
            given = {WILDCARD: {0: Dim(given)}}
        if isinstance(given, Mapping):
            self._read_by_name(given)
        elif isinstance(given, tuple | list):
            self._read_by_position(given)
        elif isinstance(given, Hint):
            self._read_by_name({WILDCARD: given})
        elif given is not None:
            first = next(iter(self.call.arguments), "x")
            raise spec_error(
                "",
                f"expected a dict by argument name, a tuple by position or the name of the batch "
                f"dimension, not {shorten(given)}",
                _spec_code([first], '{0: Dim("batch")}'),
            )
        return self.found

    # ---- arguments

    def _read_by_name(self, given: Mapping[Any, Any]) -> None:
        arguments, slots = self.call.arguments, self.call.slots
        taken: set[str] = set()
        for key, value in given.items():
            for argument, part in self._arguments_named(key, value, list(arguments.values())):
                if argument.name in taken:
                    raise spec_error(
                        argument.name,
                        f"{argument.name} is described twice, once by position and once by name",
                        _spec_code([argument.name], '{0: Dim("batch")}'),
                    )
                taken.add(argument.name)
                self._read_argument(argument, part)
        if WILDCARD in given and WILDCARD not in slots:
            for argument in arguments.values():
                if argument.name not in taken:
                    self._read_argument(argument, _Wildcard(given[WILDCARD]))

    def _arguments_named(
        self, key: Any, value: Any, arguments: list[Argument]
    ) -> Iterator[tuple[Argument, Any]]:
        slot = self.call.slots.get(key) or self.call.arguments.get(key)
        if slot is None and isinstance(key, int) and 0 <= key < len(arguments):
            slot = self.call.flat_arguments()[key]
        if slot is None and key == WILDCARD:
            return
        if slot is None:
            raise self._unknown_name_error(key)
        if isinstance(slot, Argument):
            yield slot, value
        else:
            yield from self._split_group(key, slot, value)

    def _split_group(
        self, name: str, slot: list[Argument] | dict[str, Argument], value: Any
    ) -> Iterator[tuple[Argument, Any]]:
        """Split the entry for all of `*args`, or of `**kwargs`, among the arguments in it."""
        names = list(slot) if isinstance(slot, dict) else list(range(len(slot)))
        members = list(slot.values()) if isinstance(slot, dict) else slot
        if isinstance(value, Mapping) and any(map(_is_size_entry, value.values())):
            each = '{0: Dim("batch")}'
            all_of = dict.fromkeys(names, each) if isinstance(slot, dict) else [each] * len(names)
            stars = "**" if isinstance(slot, dict) else "*"
            raise spec_error(
                name,
                f"{stars}{name} is {len(names)} argument(s) of this call, and "
                f"{shorten(value)} is about the dimensions of one tensor",
                _spec_code([name], str(all_of).replace("'{", "{").replace("}'", "}")),
            )
        parts = _parts(names, value, name, isinstance(slot, dict), (name,))
        yield from zip(members, parts, strict=True)

    def _unknown_name_error(self, key: Any) -> DynamicShapesError:
        names = list(self.call.arguments)
        what = f"{key!r} is not an argument of this call{did_you_mean(key, names)}"
        what += f"; its arguments are {', '.join(names) or 'none'}"
        instead = _spec_code(names[:1], '{0: Dim("batch")}')
        only = list(self.call.arguments.values())
        if len(only) == 1 and only[0].tree.type in MAPPINGS and key in labels(only[0].tree):
            what += f"; {key!r} is a key inside {only[0].name}"
            instead = _spec_code([only[0].name, key], '{0: Dim("batch")}')
        return spec_error("", what, instead)

    def _read_by_position(self, given: Sequence[Any]) -> None:
        for argument, part in self._arguments_by_position(given):
            self._read_argument(argument, part)

    def _arguments_by_position(self, given: Sequence[Any]) -> Iterator[tuple[Argument, Any]]:
        slots = self.call.slots
        if len(given) == len(slots) and all(map(_fits_slot, slots.values(), given)):
            for (name, slot), part in zip(slots.items(), given, strict=True):
                if isinstance(slot, Argument):
                    yield slot, part
                else:
                    yield from self._split_group(name, slot, part)
            return
        flat = self.call.flat_arguments()
        if len(given) > len(flat):
            names = ", ".join(argument.name for argument in flat)
            instead = _spec_code([flat[0].name], '{0: Dim("batch")}') if flat else "leave it out"
            of_dims = all(each is None or _is_size_entry(each) for each in given)
            if len(flat) == 1 and flat[0].tree.is_leaf() and of_dims:
                instead = f"dynamic_shapes=({shorten(given)},), a tuple with one entry an argument"
            raise _NestingError(
                "",
                f"{len(given)} entries for {len(flat)} argument(s) ({names})",
                instead,
            )
        yield from zip(flat, given, strict=False)

    def _read_argument(self, argument: Argument, given: Any) -> None:
        self._read_tree(argument.tree, given, argument.name, (argument.name,), argument.start)

    # ---- containers

    def _read_tree(
        self, tree: TreeSpec, given: Any, path: str, trail: tuple[Label, ...], start: int
    ) -> None:
        given = adopt_dim(given)
        if tree.is_leaf():
            self.found[start] = given
            return
        names = labels(tree)
        if isinstance(given, _Wildcard | _Unsaid):
            parts = [given] * len(names)
        elif given is None or isinstance(given, Hint):
            parts = [UNSAID if given is None else _Wildcard(given)] * len(names)
        else:
            parts = self._split_container(tree, given, path, trail, names)
        for child, part, step, label in zip(
            tree.children(), parts, child_steps(tree), names, strict=True
        ):
            self._read_tree(child, part, path + step, (*trail, label), start)
            start += child.num_leaves

    def _split_container(
        self, tree: TreeSpec, given: Any, path: str, trail: tuple[Label, ...], names: list[Label]
    ) -> list[Any]:
        """What a spec for a container says about each child."""
        cls = container_class(tree)
        if tree.type not in MAPPINGS and type(given) is cls and cls not in (list, tuple, deque):
            return _parts_of_instance(tree, given, names)
        return _parts(names, given, path, tree.type in MAPPINGS, trail, cls.__name__)


def _is_size_entry(given: Any) -> bool:
    return isinstance(adopt_dim(given), SizeEntry)


def _fits_slot(slot: Any, given: Any) -> bool:
    """Can this entry of a tuple stand for all of `*args`, or of `**kwargs`?"""
    if given is None or isinstance(slot, Argument):
        return True
    if isinstance(slot, dict):
        return isinstance(given, Mapping) and set(given) <= {*slot, WILDCARD}
    return isinstance(given, tuple | list) and len(given) == len(slot)


def _parts_of_instance(tree: TreeSpec, given: Any, names: list[Label]) -> list[Any]:
    """The entries in a container of the argument's own class."""
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
        raise _NestingError(
            path,
            f"{path} is a {kind} in the example call, but {shorten(given)} was written for it",
            _spec_code([*trail, example], '{0: Dim("batch")}'),
        )
    if len(given) != len(names):
        raise _NestingError(
            path,
            f"{path} is a {kind} with {len(names)} element(s) in the example call, but "
            f"{len(given)} were written for it: {shorten(given)}",
            _spec_code([*trail, example], '{0: Dim("batch")}'),
        )
    return list(given)


def _parts_by_name(
    names: list[Label], given: Mapping[Any, Any], path: str, trail: tuple[Label, ...], kind: str
) -> list[Any]:
    rest = _Wildcard(given[WILDCARD]) if WILDCARD in given and WILDCARD not in names else UNSAID
    parts = [rest] * len(names)
    for key, value in given.items():
        if key in names:
            parts[names.index(key)] = value
        elif isinstance(key, int) and -len(names) <= key < len(names):
            parts[key] = value
        elif key != WILDCARD:
            known = ", ".join(map(repr, names)) or "none"
            raise _NestingError(
                path,
                f"{path} is a {kind} in the example call without "
                f"{key!r}{did_you_mean(key, names)}; it has {known}",
                _spec_code([*trail, names[0] if names else 0], '{0: Dim("batch")}'),
            )
    return parts


# ---------------------------------------------------------------------------------------- leaves


class _LeafReader(NamedTuple):
    """Reads what the spec says about one leaf of the call."""

    value: Any
    path: str
    trail: tuple[Label, ...]
    named: Mapping[str, Dim]

    def read(self, given: Any) -> LeafEntries:
        if isinstance(self.value, torch.Tensor):
            found = self._add_marks(self._read_tensor(given))
            return found if any(not isinstance(e, Static) for e in found) else None
        if isinstance(given, _Wildcard | _Unsaid) or given is None or isinstance(given, Static):
            return None
        if isinstance(self.value, int | float) and not isinstance(self.value, bool):
            entry = self._read_entry(given, None)
            return None if isinstance(entry, Static) else entry
        kind = "None" if self.value is None else f"a {type(self.value).__name__}"
        raise spec_error(
            self.path,
            f"{self.path} is {kind} in the example call: only sizes of tensors, ints and floats "
            f"can vary, but {shorten(given)} was written for it",
            f"{_spec_code(self.trail, 'None')}, or leave it out",
        )

    # ---- tensors

    def _read_tensor(self, given: Any) -> list[SizeEntry | None]:
        """An entry for each dimension; None if the spec says nothing about it."""
        ndim = self.value.ndim
        if isinstance(given, _Wildcard):
            given = self._fit_wildcard(given.given)
        if given is None or given is UNSAID:
            return [None] * ndim
        if isinstance(given, Hint):
            return [self._read_entry(given, i) for i in range(ndim)]
        if isinstance(given, Mapping):
            return self._read_by_index(given)
        if isinstance(given, tuple | list):
            if len(given) != ndim:
                raise self._nesting_error(
                    f"has {ndim} dimension(s) {tuple(self.value.shape)}, but {len(given)} entries "
                    f"were written for it: {shorten(given)}"
                )
            return [self._read_entry(one, i) for i, one in enumerate(given)]
        if not isinstance(given, Dim | DerivedDim | int | str):
            raise self._tensor_error(
                f"is a tensor, {shorten(given)} says nothing of its dimensions: expected a dict "
                "from dimension to Dim, or a tuple with an entry for each dimension"
            )
        if ndim != 1:
            raise self._tensor_error(
                f"is a tensor with {ndim} dimension(s); {shorten(given)} does not say which of "
                "them it is about"
            )
        return [self._read_entry(given, 0)]

    def _fit_wildcard(self, given: Any) -> Any:
        """The part of a wildcard that fits this tensor."""
        ndim, given = self.value.ndim, adopt_dim(given)
        if isinstance(given, Mapping):
            return {k: v for k, v in given.items() if not isinstance(k, int) or -ndim <= k < ndim}
        if isinstance(given, tuple | list):
            return given if len(given) == ndim else UNSAID
        return given

    def _read_by_index(self, given: Mapping[Any, Any]) -> list[SizeEntry | None]:
        ndim = self.value.ndim
        found: list[SizeEntry | None] = [None] * ndim
        for index, one in given.items():
            if not isinstance(index, int) or isinstance(index, bool):
                raise self._nesting_error(
                    f"is a tensor: {shorten(given)} must have its dimensions as keys, not {index!r}"
                )
            if not -ndim <= index < ndim:
                raise self._tensor_error(
                    f"has {ndim} dimension(s) {tuple(self.value.shape)}: there is no dimension "
                    f"{index}"
                )
            if found[index] is not None:
                raise self._tensor_error(
                    f"has dimension {index % ndim} described twice: {shorten(given)}"
                )
            found[index] = self._read_entry(one, index % ndim)
        return found

    def _add_marks(self, found: list[SizeEntry | None]) -> tuple[SizeEntry, ...]:
        """The entries, with the tensor's marks where the spec says nothing."""
        marks = marks_of(self.value)
        return tuple(
            entry if entry is not None else self._read_entry(marks.get(i), i)
            for i, entry in enumerate(found)
        )

    def _tensor_error(self, what: str) -> DynamicShapesError:
        return spec_error(self.path, f"{self.path} {what}", self._first_dim_code)

    def _nesting_error(self, what: str) -> _NestingError:
        return _NestingError(self.path, f"{self.path} {what}", self._first_dim_code)

    @property
    def _first_dim_code(self) -> str:
        return _spec_code(self.trail, '{0: Dim("batch")}')

    # ---- one size

    def _read_entry(self, given: Any, dim: int | None) -> SizeEntry:
        given = adopt_dim(given)
        if given is None or isinstance(given, Static):
            return Static()
        value = self.value if dim is None else self.value.shape[dim]
        if isinstance(given, Auto | Dynamic):
            self._check_range(given, dim, value)
            return given
        if isinstance(given, Dim | DerivedDim):
            if isinstance(value, float):
                raise self._error(dim, f"is a float; {given} is a name for integers", "Dim.DYNAMIC")
            return given
        if isinstance(given, str):
            return self.named.get(given) or Dim(given)
        is_number = isinstance(given, int) or (
            isinstance(value, float) and isinstance(given, float)
        )
        if is_number and not isinstance(given, bool):
            if given != value:
                raise self._error(
                    dim, f"is {value} in the example, but {given} was written", "None"
                )
            return Static()
        takes = "takes a Dim, Dim.AUTO, Dim.DYNAMIC, Dim.STATIC, an int or None"
        if isinstance(given, tuple | list | Mapping) and dim is not None:
            size = f"{self.path}.shape[{dim}]"
            sentence = f"{size} {takes}, not {shorten(given)}"
            raise _NestingError(size, sentence, self._first_dim_code)
        raise self._error(dim, f"{takes}, not {shorten(given)}", 'Dim("batch")')

    def _check_range(self, hint: Auto | Dynamic, dim: int | None, value: Any) -> None:
        if dim is not None and hint.min is not None and hint.min < 0:
            raise self._error(
                dim, f"is a size and never negative, {hint} cannot be", "Dim.DYNAMIC(min=0)"
            )
        if (hint.min is not None and value < hint.min) or (
            hint.max is not None and value > hint.max
        ):
            raise self._error(
                dim,
                f"is {value} in the example, outside of {hint}",
                f"Dim.{type(hint).__name__.upper()}",
            )

    def _error(self, dim: int | None, what: str, instead: str) -> DynamicShapesError:
        path = self.path if dim is None else f"{self.path}.shape[{dim}]"
        inner = instead if dim is None else f"{{{dim}: {instead}}}"
        return spec_error(path, f"{path} {what}", _spec_code(self.trail, inner))
