"""TensorType: what one value of a graph is, without data and without torch's tensor machinery.

Sizes, strides and offset are `int | Expr`. Immutable by convention: a type is shared freely between
fakes, recorded metadata and rules, so a metadata mutation makes a new type and never edits one.
Must not know of operators, modes or tracing.

Strides of symbolic contiguous types are plain products of sizes. Where a size is 1, or the tensor
is empty, a stride addresses nothing and may differ from eager's; in the static case strides are
exactly eager's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lostwax.cache import Cache
from lostwax.sym import Size, eq, known, maximum

Sizes = tuple[Size, ...]


def product(sizes: Sequence[Size]) -> Size:
    """The number of elements of a tensor with these sizes."""
    n: Size = 1
    for s in sizes:
        n = n * s
    return n


def contiguous_strides(size: Sequence[Size]) -> Sizes:
    """Row-major strides; a concrete size 0 counts as 1, as in eager."""
    for s in size:
        if s.__class__ is not int:  # products of symbols are dear, and asked for again and again
            known = s.env.strides  # type: ignore[union-attr]
            key = tuple(size)
            found = known.get(key)
            if found is None:
                found = known[key] = _row_major(key)
            return found
    return _row_major(size)


def _row_major(size: Sequence[Size]) -> Sizes:
    out: list[Size] = []
    step: Size = 1
    for s in reversed(size):
        out.append(step)
        if s.__class__ is not int:
            step = s if step.__class__ is int and step == 1 else step * s
        elif s > 1:
            step = step * s
    out.reverse()
    return tuple(out)


def visible_strides(t: TensorType, first: TensorType) -> Sizes:
    """The strides of `t`, in memory that was made for `first`, as Python should see them: in
    row-major memory a size that may be 0 counts as 1, as in eager. Inside lostwax such sizes are
    plain factors of a stride: it makes no difference there, and products are easier to compare."""
    if first.stride != contiguous_strides(first.size):
        return t.stride
    orders = [tuple(range(t.ndim))]
    hints = [s if isinstance(s, int) else s.hint for s in t.stride]
    if None not in hints:
        orders.append(tuple(sorted(orders[0], key=lambda d: (-(hints[d] or 0), d))))
    for order in orders:
        size = [t.size[d] for d in order]
        if contiguous_strides(size) == tuple(t.stride[d] for d in order):
            found = contiguous_strides([maximum(1, s) for s in size])
            return tuple(found[order.index(d)] for d in range(t.ndim))
    return t.stride


def channels_last_strides(size: Sequence[Size]) -> Sizes:
    """Strides of NCHW (or NCDHW) sizes laid out with the channels innermost."""
    order = (1, *range(len(size) - 1, 1, -1), 0)
    out: list[Size] = [0] * len(size)
    step: Size = 1
    for d in order:
        out[d] = step
        s = size[d]
        step = step * (max(s, 1) if isinstance(s, int) else s)
    return tuple(out)


class TensorType:
    """Size, stride, offset, dtype, device and layout of one tensor value."""

    __slots__ = (
        "_contiguous", "_dense", "device", "dtype", "layout", "mark", "offset", "size", "stride",
        "token",
    )  # fmt: skip

    size: Sizes
    stride: Sizes
    offset: Size
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    _contiguous: bool | None
    _dense: bool | None
    token: object | None
    """What stands in a key for a type that `unique` gave, so that no hash need be computed."""
    mark: object | None
    """The same for a symbolic type."""

    def __init__(
        self,
        size: Sizes,
        dtype: torch.dtype,
        device: torch.device,
        stride: Sizes | None = None,
        offset: Size = 0,
        layout: torch.layout = torch.strided,
    ) -> None:
        self.size = size
        if stride is None:
            self.stride = contiguous_strides(size)
            self._contiguous = self._dense = True if _is_lasting(size) else None
        else:
            self.stride = stride
            self._contiguous = self._dense = None
        self.offset = offset
        self.dtype = dtype
        self.device = device
        self.layout = layout
        self.token = self.mark = None

    @property
    def ndim(self) -> int:
        return len(self.size)

    def numel(self) -> Size:
        return product(self.size)

    @property
    def is_symbolic(self) -> bool:
        """Does any size, stride or the offset depend on a symbol?"""
        for s in self.size:  # loops, not `any`: asked once for every fake that is made
            if s.__class__ is not int:
                return True
        for s in self.stride:
            if s.__class__ is not int:
                return True
        return self.offset.__class__ is not int

    @property
    def is_contiguous(self) -> bool:
        """Is it certainly row-major? Proven, never guessed, and never at the price of a guard."""
        if self._contiguous is not None:
            return self._contiguous
        found = _follows(self.size, self.stride, range(len(self.size) - 1, -1, -1))
        if not found or _is_lasting((*self.size, *self.stride)):
            self._contiguous = found
        return found

    @property
    def is_channels_last(self) -> bool:
        """Are the channels certainly innermost (4-d or 5-d)?"""
        n = len(self.size)
        if n not in (4, 5):
            return False
        return _follows(self.size, self.stride, (1, *range(n - 1, 1, -1), 0))

    @property
    def is_dense(self) -> bool:
        """Is it certainly dense, without overlap? Then some order of the dimensions is
        contiguous."""
        if self._dense is not None:
            return self._dense
        found = self.is_contiguous or _is_dense(self.size, self.stride)
        if not found or _is_lasting((*self.size, *self.stride)):
            self._dense = found
        return found

    def nbytes(self) -> Size:
        """Bytes of the elements themselves, as if dense."""
        return self.numel() * self.dtype.itemsize

    def replace(
        self,
        *,
        size: Sizes | None = None,
        stride: Sizes | None = None,
        offset: Size | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> TensorType:
        """This type with some parts replaced. Sizes without strides give a contiguous type."""
        if stride is None and size is None:
            stride = self.stride
        return TensorType(
            self.size if size is None else size,
            dtype or self.dtype,
            device or self.device,
            stride,
            self.offset if offset is None else offset,
            self.layout,
        )

    def at_example(self) -> TensorType | None:
        """This type with the numbers that the example has; None where it has none."""
        if not self.is_symbolic:
            return self
        numbers = (*self.size, *self.stride, self.offset)
        found = [n if isinstance(n, int) else n.hint for n in numbers]
        plain = tuple(n for n in found if n is not None)
        if len(plain) < len(found):
            return None
        return self.replace(size=plain[: self.ndim], stride=plain[self.ndim : -1], offset=plain[-1])

    def fresh(self, size: Sizes | None = None, dtype: torch.dtype | None = None) -> TensorType:
        """A new contiguous tensor on the same device: own storage, offset 0."""
        return TensorType(self.size if size is None else size, dtype or self.dtype, self.device)

    def key(self) -> tuple[object, ...]:
        return (self.size, self.stride, self.offset, self.dtype, self.device, self.layout)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorType) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def __repr__(self) -> str:
        sizes = ", ".join(map(str, self.size))
        text = f"{str(self.dtype).removeprefix('torch.')}[{sizes}]"
        if not self.is_contiguous:
            text += f" stride ({', '.join(map(str, self.stride))})"
        if self.offset.__class__ is not int or self.offset != 0:
            text += f" offset {self.offset}"
        return text if self.device.type == "cpu" else f"{text} {self.device}"


def unique(t: TensorType) -> TensorType:
    """The one object that stands for all types equal to this one, if it is concrete. A symbolic
    type stands for itself."""
    if t.token is not None or t.is_symbolic:
        return t
    key = t.key()
    found = _UNIQUE.get(key)
    if found is None:
        found = _CACHE.keep(key, t)  # where it is emptied, types in use keep their tokens
        t.token = object()
    return found


def known_concrete(
    size: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int | torch.SymInt,
    dtype: torch.dtype,
    device: torch.device,
) -> TensorType | None:
    """The object that `unique` would give for a type of plain numbers, if there is one yet."""
    return _UNIQUE.get((size, stride, offset, dtype, device, _STRIDED))


_STRIDED = torch.strided
_CACHE = Cache[tuple[object, ...], TensorType](__name__, "types", 50_000)
_UNIQUE = _CACHE.table


def is_same(a: Size, b: Size) -> bool:
    """Are they provably equal? Never a guard."""
    if a is b:
        return True
    if a.__class__ is int and b.__class__ is int:
        return a == b
    return known(eq(a, b)) is True


def _is_lasting(numbers: Sizes) -> bool:
    """Is what is known of them now known of them everywhere? In a branch (or a body) more is."""
    for n in numbers:
        if n.__class__ is not int:
            return not n.env.facts.are_tried  # type: ignore[union-attr]
    return True


def _is_dense(size: Sizes, stride: Sizes) -> bool:
    left = [d for d, s in enumerate(size) if s != 1]
    step: Size = 1
    while left:
        for d in left:
            if stride[d] == step:  # the same object, if symbolic
                break
        else:
            d = next((d for d in left if is_same(stride[d], step)), -1)
            if d < 0:
                return known(eq(product(size), 0)) is True
        left.remove(d)
        step = step * size[d]
    return True


def _follows(size: Sizes, stride: Sizes, order: Sequence[int]) -> bool:
    """Is this a dense layout whose dimensions run in this order, innermost first?"""
    step: Size = 1
    for d in order:
        s = size[d]
        if s.__class__ is int:
            if s == 1:
                continue
            if s == 0:
                return True
        if not is_same(stride[d], step):
            if s.__class__ is not int and known(eq(s, 1)) is True:
                continue
            return known(eq(product(size), 0)) is True
        step = step * s
    return True
