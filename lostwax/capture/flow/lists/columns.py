"""How elements of lists are kept in tensors: a column for each place of an element.

An element is a tensor, a number, or a tuple of such; what stands for several (`spans.py`) can be
kept with them. Must not know who appends them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from lostwax.capture.control.scope import are_equal
from lostwax.capture.flow.lists.blocks import MixedPieces, lay_blocks, measure
from lostwax.capture.flow.lists.spans import Appended, Pieces, Rows, Scalars, Tuples
from lostwax.capture.flow.numbers import DTYPES, find_kind, number_to_tensor
from lostwax.capture.trace.tracer import Tracer
from lostwax.fake.symbolic.node import unwrap, wrap
from lostwax.location import Location
from lostwax.sym import Expr, Size
from lostwax.types import TensorType, contiguous_strides


class Shape(NamedTuple):
    """How the elements of a list are made: a leaf, or a tuple of such."""

    parts: tuple[Shape, ...] | None = None

    @staticmethod
    def of(element: Any) -> Shape:
        if isinstance(element, Tuples):
            return Shape(tuple(map(Shape.of, element.parts)))
        return Shape(tuple(map(Shape.of, element))) if type(element) is tuple else Shape()

    def build(self, spans: Iterator[Appended]) -> Appended:
        if self.parts is None:
            return next(spans)
        return Tuples([part.build(spans) for part in self.parts])


def flatten_element(element: Any) -> list[Any]:
    if isinstance(element, Tuples) or type(element) is tuple:
        parts = element.parts if isinstance(element, Tuples) else element
        return [leaf for each in parts for leaf in flatten_element(each)]
    return [element]


class Column:
    """What is in one place of the elements that a loop appends."""

    def __init__(self, leaf: Any, tracer: Tracer, where: Location) -> None:
        self._where = where
        self.kind: tuple[type, ...] = ()
        """The classes of numbers, if it has such."""
        self.dims = _find_dims([leaf])
        """In which sizes its tensors differ."""
        self.type: TensorType | None = None
        """What one element is."""
        self.is_dense = True
        """Are all tensors contiguous, as the rows of one are?"""
        self.least: int | None = None
        if isinstance(leaf, Scalars):
            self.kind = next(k for k, dtype in DTYPES.items() if dtype is leaf.tensor.dtype)
        else:
            self.kind, self.type = find_kind(leaf), find_type(leaf, tracer)

    @property
    def is_ragged(self) -> bool:
        """Do its tensors differ in a size?"""
        return bool(self.dims)

    @property
    def measures(self) -> str:
        """What tells how large they are, in its stores."""
        return "sizes" if len(self.dims) > 1 else "lengths"

    @property
    def is_known(self) -> bool:
        """Is it something that can be kept in a tensor?"""
        return bool(self.kind) or self.type is not None

    def fits(self, leaf: Any) -> bool:
        """Can it have this, too?"""
        if self.kind:
            if isinstance(leaf, Scalars):
                return leaf.tensor.dtype is DTYPES[self.kind]
            return find_kind(leaf) is self.kind
        return isinstance(leaf, (torch.Tensor, Rows, Pieces, MixedPieces))

    def list_starts(self) -> dict[str, torch.Tensor]:
        """What is in its stores at first."""
        if self.kind:
            return {"rows": torch.zeros(0, dtype=DTYPES[self.kind])}
        assert self.type is not None
        size = [wrap(n) if isinstance(n, Expr) else n for n in self.type.size]
        if len(self.dims) > 1:
            size = []
        elif self.is_ragged:  # it is the first one of the tensor that keeps them
            del size[self.dims[0]]
        size = [0, *size]
        rows = torch.zeros(size, dtype=self.type.dtype, device=self.type.device)
        if not self.is_ragged:
            return {"rows": rows}
        size = [0, len(self.dims)] if len(self.dims) > 1 else [0]
        return {"rows": rows, self.measures: torch.zeros(size, dtype=torch.int64)}

    @torch.enable_grad()
    def lay_out(self, leaf: Any) -> dict[str, torch.Tensor]:
        """What is laid into its stores for one thing that is appended."""
        if self.kind:
            if isinstance(leaf, Scalars):
                return {"rows": leaf.tensor}
            return {"rows": number_to_tensor(leaf, DTYPES[self.kind]).reshape(1)}
        if not self.is_ragged:
            return {"rows": leaf.in_order(9) if isinstance(leaf, Rows) else leaf.unsqueeze(0)}
        if len(self.dims) > 1:
            return lay_blocks(leaf, self.dims)
        (dim,) = self.dims
        if isinstance(leaf, Pieces):
            return {"rows": _put_first(leaf.tensor, dim), "lengths": leaf.lengths}
        if isinstance(leaf, Rows):
            rows = leaf.in_order(9)
            lengths = torch.full((rows.shape[0],), rows.shape[dim + 1])
            rows = rows if dim == 0 else rows.movedim(dim + 1, 1)
            return {"rows": rows.flatten(0, 1), "lengths": lengths}
        lengths = torch.full((1,), leaf.shape[dim])
        return {"rows": _put_first(leaf, dim), "lengths": lengths}

    def lay_out_turn(self, leaf: Any) -> torch.Tensor:
        """The row of a `scan` for one thing that is appended."""
        if isinstance(leaf, Scalars):
            return leaf.tensor
        if self.kind:
            return number_to_tensor(leaf, DTYPES[self.kind])
        if self.is_ragged:
            sizes = measure(leaf.shape, self.dims)
            return sizes if len(self.dims) > 1 else sizes[0]
        return leaf.in_order(9) if isinstance(leaf, Rows) else leaf

    def stand_for(self, found: Mapping[str, torch.Tensor]) -> Appended:
        """What stands for its elements, that are in these tensors."""
        if self.kind:
            return Scalars(found["rows"], self._where, self.least)
        if len(self.dims) > 1:
            assert self.type is not None
            rows, sizes = found["rows"], found["sizes"]
            return MixedPieces(rows, sizes, self.dims, self.type, self._where, self.is_dense)
        if self.is_ragged:
            dim, rows = self.dims[0], found["rows"]
            rows = rows if dim == 0 else rows.movedim(0, dim)
            return Pieces(rows, found["lengths"], self._where, dim, self.is_dense)
        return Rows(found["rows"], self._where, self.is_dense)

    def note(self, leaves: Sequence[Any], tracer: Tracer) -> None:
        """See what is appended."""
        types = [t for leaf in leaves if (t := find_type(leaf, tracer)) is not None]
        if types:
            self.type, self.is_dense = types[-1], all(map(_is_dense, types))
        if not all(map(_holds_dense, leaves)):
            self.is_dense = False
        bounds = [tracer.shape_env.bounds(unwrap(n))[0] for n in leaves if _is_integer(n)]
        known = [lo for lo in bounds if lo is not None]
        self.least = min(known) if known and len(known) == len(leaves) else None

    def note_sizes(self, leaves: Sequence[Any], types: Sequence[TensorType], new: Any = ()) -> bool:
        """See the sizes of what is appended, of which those with `new` symbols are others in each
        turn. Returns whether all can be kept."""
        return self.let_differ([*_find_dims(leaves), *find_differing(types, new)], leaves)

    def let_differ(self, dims: Sequence[int], leaves: Sequence[Any]) -> bool:
        """Let tensors differ in these sizes, too. Returns whether all can be kept."""
        self.dims = tuple(sorted({*self.dims, *dims}))
        pieces = [each for each in leaves if isinstance(each, Pieces)]
        return len(self.dims) < 2 or all(each.dim == 0 for each in pieces)


def _find_dims(leaves: Sequence[Any]) -> tuple[int, ...]:
    """In which sizes those differ for which one of these stands."""
    blocks = [each.dims for each in leaves if isinstance(each, MixedPieces)]
    pieces = [each.dim for each in leaves if isinstance(each, Pieces)]
    return tuple(sorted({*pieces, *(dim for dims in blocks for dim in dims)}))


def _put_first(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    return tensor if dim == 0 else tensor.movedim(dim, 0)


def find_differing(types: Sequence[TensorType], new: Any = ()) -> list[int]:
    """The dimensions in which tensors of as many dimensions differ, or have one of these symbols in
    their sizes."""
    first = types[0].size if types else ()
    return [
        dim
        for dim, size in enumerate(first)
        if any(
            has_symbols(t.size[dim], new) or not are_equal((t.size[dim],), (size,)) for t in types
        )
    ]


def has_symbols(size: Size, symbols: Any) -> bool:
    return isinstance(size, Expr) and not set(size.symbols()).isdisjoint(symbols)


def find_type(leaf: Any, tracer: Tracer) -> TensorType | None:
    """What one tensor is, of those that are there or that something stands for."""
    if isinstance(leaf, Rows):
        t = tracer.adopt(leaf.tensor).fake_type
        return t.replace(size=t.size[1:], stride=t.stride[1:], offset=0)
    if isinstance(leaf, Pieces):
        return tracer.adopt(leaf.tensor).fake_type
    if isinstance(leaf, MixedPieces):
        return leaf.kind
    return tracer.adopt(leaf).fake_type if isinstance(leaf, torch.Tensor) else None


def _holds_dense(leaf: Any) -> bool:
    if isinstance(leaf, Pieces):
        return leaf.are_dense
    return leaf.is_dense if isinstance(leaf, (Rows, MixedPieces)) else True


def _is_dense(t: TensorType) -> bool:
    return are_equal(t.stride, contiguous_strides(t.size))


def _is_integer(number: Any) -> bool:
    return isinstance(number, (int, torch.SymInt)) and not isinstance(number, bool)


class Columns:
    """All that is in the elements of a list."""

    def __init__(self, sample: Any, tracer: Tracer, where: Location) -> None:
        self._tracer = tracer
        self.sample, self.shape = sample, Shape.of(sample)
        self.list = [Column(leaf, tracer, where) for leaf in flatten_element(sample)]

    def find_misfit(self, elements: Sequence[Any]) -> Any:
        """An element that is made otherwise; None if there is none."""
        for each in elements:
            if Shape.of(each) != self.shape:
                return each
            pairs = zip(self.list, flatten_element(each), strict=True)
            if not all(column.fits(leaf) for column, leaf in pairs):
                return each
        return None

    def take_leaves(self, elements: Sequence[Any]) -> list[tuple[Column, list[Any]]]:
        """What the elements have in each column."""
        leaves = [flatten_element(each) for each in elements]
        return [(column, [each[i] for each in leaves]) for i, column in enumerate(self.list)]

    def note(self, elements: Sequence[Any]) -> bool:
        """See these elements. Returns whether tensors are alike, but for their sizes."""
        for column, leaves in self.take_leaves(elements):
            column.note(leaves, self._tracer)
            types = [t for leaf in leaves if (t := find_type(leaf, self._tracer)) is not None]
            if not all(is_alike(types[0], t) for t in types[1:]):
                return False
            if not column.note_sizes(leaves, types):
                return False
        return True

    @torch.enable_grad()
    def lay_out(self, elements: Sequence[Any], what: str = "") -> list[dict[str, torch.Tensor]]:
        """The tensors in which these elements lie one behind the other, for each column. `what`:
        that has them in eager, in an error for who writes to one."""
        found = []
        for column, leaves in self.take_leaves(elements):
            laid = [column.lay_out(leaf) for leaf in leaves] or [column.list_starts()]
            found.append({part: torch.cat([each[part] for each in laid]) for part in laid[0]})
            if what:
                _note_copies(self._tracer, leaves, found[-1]["rows"], what)
        return found

    def stand_for(self, found: Sequence[Mapping[str, torch.Tensor]]) -> Appended:
        pairs = zip(self.list, found, strict=True)
        return self.shape.build(iter([column.stand_for(each) for column, each in pairs]))


def is_alike(one: TensorType, other: TensorType) -> bool:
    """Are they of one type, but for their sizes?"""
    return (one.dtype, one.device, one.ndim) == (other.dtype, other.device, other.ndim)


def join_elements(
    parts: Sequence[Any],
    tracer: Tracer,
    where: Location,
    what: str = "a list to which a loop appends",
) -> Appended | None:
    """What stands for all of these elements, some of which stand for several already; None if they
    are not of one kind. `what`: that has them in eager, in an error."""
    columns = Columns(parts[0], tracer, where)
    if not all(column.is_known for column in columns.list):
        return None
    if columns.find_misfit(parts) is not None or not columns.note(parts):
        return None
    return columns.stand_for(columns.lay_out(parts, what))


def _note_copies(tracer: Tracer, leaves: Sequence[Any], copy: torch.Tensor, what: str) -> None:
    """In eager the elements are the tensors themselves: none of them may be written to."""
    kept = [
        each.tensor if isinstance(each, (Rows, Pieces, MixedPieces)) else each for each in leaves
    ]
    for each in kept:
        if isinstance(each, torch.Tensor):
            roots = tracer.adopt(each).tracked.root, tracer.adopt(copy).tracked.root
            tracer.sharing.maybe_shared.update(dict.fromkeys(roots, what))
