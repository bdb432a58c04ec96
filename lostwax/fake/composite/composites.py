"""Composite operators, taken apart here before C++ would do it: views and arithmetic.

An operator is in this folder because it is on the hot path (one trip through Python instead of
three), or because its C++ form asks questions about sizes (`numel == 0`?) that would cost guards.
Each function calls, through `mode.call`, the primitive operators that eager's dispatch reaches, and
is kept in the operator's record. C++ takes all other composite operators apart. Must not compute
types itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

from lostwax.fake import rule_cache
from lostwax.fake.devices import concrete_device
from lostwax.fake.symbolic.node import unwrap, wrap
from lostwax.fake.tensor import FakeTensor
from lostwax.ops.memory_format import suggested_format
from lostwax.ops.registry import aten, composite, itself, operator
from lostwax.ops.shapes import (
    broadcast_sizes,
    fail,
    is_same,
    is_zero,
    require,
    wrap_dim,
)
from lostwax.ops.tensors.views import infer_size, view_strides
from lostwax.sym import ceildiv, decide, decide_or, eq, known, specialize
from lostwax.types import Sizes, contiguous_strides, product

if TYPE_CHECKING:
    from lostwax.fake.mode import FakeTensorMode

_BY_TORCH = torch._C.DispatchKey.CompositeImplicitAutograd


# ---------------------------------------------------------------------------------- views or copies


@composite("reshape")
def reshape(mode: FakeTensorMode, self: Any, shape: Sequence[Any]) -> Any:
    x = mode.adopt(self)
    t = x.fake_type

    def is_view() -> bool:
        size = infer_size([unwrap(s) for s in shape], product(t.size))
        return view_strides(t, size, must=False) is not None

    if t.is_contiguous or rule_cache.ask_truth(
        mode, rule_cache.question(mode, operator(aten.reshape.default), (x, shape), {}), is_view
    ):
        return mode.call(aten.view.default, x, shape)
    copy = mode.call(aten.clone.default, x, memory_format=torch.contiguous_format)
    return mode.call(aten._unsafe_view.default, copy, shape)


@composite("flatten.using_ints")
def flatten(mode: FakeTensorMode, self: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    x = mode.adopt(self)
    size = x.fake_type.size
    start, end = wrap_dim(start_dim, len(size)), wrap_dim(end_dim, len(size))
    if start > end:
        fail("flatten() has invalid args: start_dim cannot come after end_dim")
    if not size:
        return reshape(mode, x, [1])
    if start == end:
        return x
    return reshape(mode, x, [*size[:start], product(size[start : end + 1]), *size[end + 1 :]])


@composite("contiguous")
def contiguous(
    mode: FakeTensorMode, self: Any, *, memory_format: torch.memory_format = torch.contiguous_format
) -> Any:
    x = mode.adopt(self)
    if memory_format is torch.preserve_format:
        fail("preserve memory format is unsupported by the contiguous operator")
    t = x.fake_type
    is_so = t.is_contiguous if memory_format is torch.contiguous_format else t.is_channels_last
    out = x if is_so else mode.call(aten.clone.default, x, memory_format=memory_format)
    mode.observer.note_layout_choice(x, out, "contiguous()")
    return out


def _to(
    mode: FakeTensorMode,
    self: Any,
    dtype: torch.dtype | None,
    device: torch.device | None,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Any:
    if not isinstance(self, torch.Tensor):  # `vmap` casts the number of `x * 2`
        number = {"dtype": dtype, "device": device}
        return mode.call(aten.scalar_tensor.default, self, **number)
    x = mode.adopt(self)
    t = x.fake_type
    device = concrete_device(device)
    same_dtype = dtype is None or dtype is t.dtype
    same_device = device is None or device == t.device
    # Gaps do not matter here: all that is not channels-last counts as `contiguous_format`.
    is_kept = memory_format in (None, torch.preserve_format) or suggested_format(t) is memory_format
    if same_dtype and same_device and is_kept and not copy:
        if memory_format is not None:
            mode.observer.note_layout_choice(x, x, "to(memory_format=...)")
        return x
    options = {"dtype": dtype or t.dtype, "device": device, "memory_format": memory_format}
    options = {k: v for k, v in options.items() if v is not None}
    return mode.call(aten._to_copy.default, x, **options)


@composite("to.dtype")
def to_dtype(mode: FakeTensorMode, self: Any, dtype: torch.dtype, *how: Any, **named: Any) -> Any:
    return _to(mode, self, dtype, None, *how, **named)


@composite("to.device")
def to_device(
    mode: FakeTensorMode,
    self: Any,
    device: torch.device,
    dtype: torch.dtype,
    *how: Any,
    **named: Any,
) -> Any:
    return _to(mode, self, dtype, device, *how, **named)


@composite("to.other")
def to_other(mode: FakeTensorMode, self: Any, other: Any, *how: Any, **named: Any) -> Any:
    like = mode.adopt(other).fake_type
    return _to(mode, self, like.dtype, like.device, *how, **named)


@composite("to.dtype_layout")
def to_dtype_layout(
    mode: FakeTensorMode,
    self: Any,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    **named: Any,
) -> Any:
    return _to(mode, self, dtype, device, **named)


@itself("type_as")
def _is_of_type(x: Any, other: Any) -> bool:
    if x is None or other is None:  # not known
        return True
    return x.dtype == other.dtype and x.device == other.device  # type: ignore[no-any-return]


@composite("type_as")
def type_as(mode: FakeTensorMode, self: Any, other: Any) -> Any:
    return to_other(mode, self, other)


@composite("chunk")
def chunk(mode: FakeTensorMode, self: Any, chunks: int, dim: int = 0) -> Any:
    x = mode.adopt(self)
    if x.fake_type.ndim == 0:
        fail("chunk expects at least a 1-dimensional tensor")
    if chunks <= 0:
        fail(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    n = x.fake_type.size[wrap_dim(dim, x.fake_type.ndim)]
    piece = ceildiv(n, chunks)
    if decide(eq(piece, 0)):
        return mode.call(aten.split_with_sizes.default, x, [0] * chunks, dim)
    return mode.call(aten.split.Tensor, x, piece, dim)


@composite("narrow")
def narrow(mode: FakeTensorMode, self: Any, dim: int, start: Any, length: Any) -> Any:
    x = mode.adopt(self)
    if x.fake_type.ndim == 0:
        fail("narrow() cannot be applied to a 0-dim tensor.")
    n = x.fake_type.size[wrap_dim(dim, x.fake_type.ndim)]
    begin, count = unwrap(start), unwrap(length)
    require(count >= 0, "narrow(): length must be non-negative.")
    range_text = f"start out of range (expected to be in range of [{-n}, {n}], but got {begin})"
    require(begin >= -n, range_text, IndexError)
    require(begin <= n, range_text, IndexError)
    if decide_or(begin < 0, False):
        begin = begin + n
    text = f"start ({begin}) + length ({count}) exceeds dimension size ({n})."
    require(begin + count <= n, text)
    return mode.call(aten.slice.Tensor, x, dim, begin, begin + count)


@composite("narrow.Tensor")
def narrow_from(mode: FakeTensorMode, self: Any, dim: int, start: Any, length: Any) -> Any:
    x = mode.adopt(start)
    if x.fake_type.ndim or x.fake_type.dtype.is_floating_point or x.fake_type.dtype is torch.bool:
        fail("start must be an 0-dim integral Tensor.")
    return narrow(mode, self, dim, mode.call(aten._local_scalar_dense.default, x), length)


@composite("tensor_split.tensor_indices_or_sections")
def tensor_split(
    mode: FakeTensorMode, self: Any, tensor_indices_or_sections: Any, dim: int = 0
) -> Any:
    where = mode.adopt(tensor_indices_or_sections)
    if where.fake_type.ndim not in (0, 1) or where.fake_type.dtype is not torch.int64:
        fail(
            "tensor_split expected tensor_indices_or_sections to be a zero-dimensional or "
            "one-dimensional tensor of dtype long, but got a tensor with "
            f"{where.fake_type.ndim} dims"
        )
    if where.fake_type.ndim == 0:
        sections = mode.call(aten._local_scalar_dense.default, where)
        return mode.call(aten.tensor_split.sections, self, int(sections), dim)
    indices = [
        mode.call(aten._local_scalar_dense.default, mode.call(aten.select.int, where, 0, i))
        for i in range(specialize(where.fake_type.size[0]))
    ]
    return mode.call(aten.tensor_split.indices, self, indices, dim)


@composite("_has_same_storage_numel")
def has_same_storage_numel(mode: FakeTensorMode, self: Any, other: Any) -> bool:
    """C++ asks this about a tensor and its tangent (`torch.func.jvp`). It then asks whether they
    are empty, and whether they are laid out alike; the former does not matter for the latter."""
    x, y = mode.adopt(self), mode.adopt(other)
    count, wanted = (f.fake_storage.nbytes // f.fake_type.dtype.itemsize for f in (x, y))
    is_equal = known(eq(count, wanted)) is True
    if is_equal and mode.shape_env is not None:
        mode.shape_env.passed_over = eq(product(x.fake_type.size), 0)
    return is_equal


@composite("fill_diagonal_")
def fill_diagonal_(mode: FakeTensorMode, self: Any, fill_value: Any, wrap: bool = False) -> Any:
    x = mode.adopt(self)
    t = x.fake_type
    if t.ndim < 2:
        fail("dimensions must larger than 1")
    if wrap and t.ndim == 2:
        if not t.is_contiguous:
            kernel = partial(aten.fill_diagonal_.default._op_dk, _BY_TORCH)
            return mode.reenter(kernel, (x, fill_value, wrap), {})
        flat = mode.call(aten.view.default, x, [product(t.size)])
        diagonal = mode.call(aten.slice.Tensor, flat, 0, None, None, t.size[1] + 1)
    else:  # C++ would count the places in memory
        for size in t.size[1:] if t.ndim > 2 else ():
            require(eq(size, t.size[0]), "all dimensions of input must be of equal length")
        diagonal = x
        for _ in t.size[1:]:
            diagonal = mode.call(aten.diagonal.default, diagonal)
    mode.call(aten.fill_.Scalar, diagonal, fill_value)
    return x


# --------------------------------------------------------------------------------------- arithmetic


@composite("linear")
def linear(mode: FakeTensorMode, input: Any, weight: Any, bias: Any = None) -> Any:
    x = mode.adopt(input)
    t = x.fake_type
    if t.ndim == 2 and bias is not None:
        return mode.call(aten.addmm.default, bias, x, mode.call(aten.t.default, weight))
    if t.ndim >= 3 and bias is not None and t.is_contiguous:
        rows = mode.call(aten.view.default, x, [product(t.size[:-1]), t.size[-1]])
        out = mode.call(aten.addmm.default, bias, rows, mode.call(aten.t.default, weight))
        return mode.call(aten.view.default, out, [*t.size[:-1], out.fake_type.size[1]])
    out = mode.call(aten.matmul.default, x, mode.call(aten.t.default, weight))
    return out if bias is None else mode.call(aten.add.Tensor, out, bias)


@composite("matmul")
def matmul(mode: FakeTensorMode, self: Any, other: Any) -> Any:
    a, b = mode.adopt(self), mode.adopt(other)
    ranks = (a.fake_type.ndim, b.fake_type.ndim)
    if 0 in ranks:
        fail(
            "both arguments to matmul need to be at least 1D, "
            f"but they are {ranks[0]}D and {ranks[1]}D"
        )
    if ranks == (2, 2):
        return mode.call(aten.mm.default, a, b)
    if ranks == (1, 1):
        return mode.call(aten.dot.default, a, b)
    if ranks == (2, 1):
        return mode.call(aten.mv.default, a, b)
    if ranks == (1, 2):
        row = mode.call(aten.mm.default, mode.call(aten.unsqueeze.default, a, 0), b)
        return mode.call(aten.squeeze_.dim, row, 0)
    if ranks[0] >= ranks[1]:
        if _folds(a, b):
            return _multiply_folded(mode, a, b)
    elif _folds(mode.call(aten.transpose.int, b, -2, -1), a, right=True):
        turned = mode.call(aten.t.default, a) if ranks[0] == 2 else a
        out = _multiply_folded(mode, mode.call(aten.transpose.int, b, -2, -1), turned)
        if ranks[0] == 1:
            return out
        return contiguous(mode, mode.call(aten.transpose.int, out, -2, -1))
    return _multiply_batched(mode, a, b)


def _folds(large: FakeTensor, small: FakeTensor, right: bool = False) -> bool:
    """Does eager multiply the large operand as one tall matrix? It does if that costs no copy, or
    if it saves the copy of a gradient."""
    t = large.fake_type
    if t.ndim < 3 or small.fake_type.ndim > 2:
        return False
    if small.requires_grad:
        return True
    if right and small.fake_type.ndim == 2:
        return False
    size, stride = t.size, t.stride
    return is_zero(t.numel()) or all(
        is_same(stride[d], stride[d + 1] * size[d + 1]) for d in range(t.ndim - 2)
    )


def _multiply_folded(mode: FakeTensorMode, large: FakeTensor, small: FakeTensor) -> Any:
    size = large.fake_type.size
    rows = reshape(mode, large, [product(size[:-1]), size[-1]])
    op = aten.mm.default if small.fake_type.ndim == 2 else aten.mv.default
    out = mode.call(op, rows, small)
    return mode.call(aten._unsafe_view.default, out, [*size[:-1], *small.fake_type.size[1:]])


def _multiply_batched(mode: FakeTensorMode, a: FakeTensor, b: FakeTensor) -> Any:
    x, y = a.fake_type.size, b.fake_type.size
    batch = broadcast_sizes([x[:-2], y[:-2]])
    rows, columns = x[-2:-1], y[-1:] if len(y) > 1 else ()
    count = product(batch)
    left_shape = (*(rows or (1,)), x[-1])
    left = _spread_batch(mode, a, (*batch, *left_shape), (count, *left_shape))
    if len(y) == 1:
        right = _spread_batch(mode, b, (*batch, y[0]), (count, y[0]))
        right = mode.call(aten.unsqueeze.default, right, 2)
    else:
        right = _spread_batch(mode, b, (*batch, *y[-2:]), (count, *y[-2:]))
    out = mode.call(aten.bmm.default, left, right)
    return mode.call(aten._unsafe_view.default, out, [*batch, *rows, *columns])


def _spread_batch(mode: FakeTensorMode, x: FakeTensor, size: Sizes, flat: Sizes) -> Any:
    return reshape(mode, mode.call(aten.expand.default, x, list(size)), list(flat))


@composite("softmax.int")
def softmax(mode: FakeTensorMode, self: Any, dim: int, dtype: torch.dtype | None = None) -> Any:
    return _softmax(mode, aten._softmax.default, self, dim, dtype)


@composite("log_softmax.int")
def log_softmax(mode: FakeTensorMode, self: Any, dim: int, dtype: torch.dtype | None = None) -> Any:
    return _softmax(mode, aten._log_softmax.default, self, dim, dtype)


def _softmax(
    mode: FakeTensorMode, op: OpOverload, self: Any, dim: int, dtype: torch.dtype | None
) -> Any:
    x = self if dtype is None else to_dtype(mode, self, dtype)
    return mode.call(op, x, dim, False)


@composite("_new_zeros_with_same_feature_meta")
def zeros_laid_out_as(
    mode: FakeTensorMode, self: Any, other: Any, *, self_num_batch_dims: int = 0
) -> Any:
    """Zeros for a tangent: in a memory as large as the primal's, at the same place in it. Batch
    dimensions come first."""
    x, like = mode.adopt(self), mode.adopt(other).fake_type
    batch = x.fake_type.size[:self_num_batch_dims]
    room = mode.adopt(other).fake_storage.nbytes // like.dtype.itemsize
    size, stride = (*batch, room), [*like.stride]
    zeros = mode.call(aten.new_zeros.default, x, [*map(wrap, size)])
    stride = [*contiguous_strides(size)[:-1], *stride]
    place = [[*map(wrap, (*batch, *like.size))], [*map(wrap, stride)], wrap(like.offset)]
    return mode.call(aten.as_strided.default, zeros, *place)
