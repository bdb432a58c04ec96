"""Composite operators, taken apart here before C++ would do it.

Two reasons to be in this table: the operator is on the hot path (one trip through Python instead of
three), or its C++ form asks questions about sizes (`numel == 0`?) that would cost guards. Each
entry calls, through `mode.call`, the same primitive operators that eager's dispatch reaches. All
other composite operators are left to C++. Must not compute types itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

from lostwax.fake.symnode import unwrap
from lostwax.fake.tensor import FakeTensor, concrete_device
from lostwax.ops.registry import Operator, aten
from lostwax.ops.shapes import (
    broadcast_sizes,
    fail,
    is_one,
    is_zero,
    preserved_strides,
    require,
    same,
    wrap_dim,
)
from lostwax.ops.views import inferred_size, view_strides
from lostwax.sym import Size, ceildiv, decide, decide_or, eq, specialize
from lostwax.types import Sizes, TensorType, product

if TYPE_CHECKING:
    from lostwax.fake.mode import FakeTensorMode

Composite = Callable[..., Any]
_BY_TORCH = torch._C.DispatchKey.CompositeImplicitAutograd
COMPOSITES: dict[OpOverload, Composite] = {}


def composite(*overloads: OpOverload) -> Callable[[Composite], Composite]:
    """Register how a composite operator is taken apart: (mode, *arguments) -> results."""

    def register(function: Composite) -> Composite:
        for overload in overloads:
            COMPOSITES[overload] = function
        return function

    return register


def strategy(func: OpOverload) -> Callable[..., Any]:
    """How a mode evaluates calls of an operator of the table."""
    function = COMPOSITES[func]

    def evaluate(mode: FakeTensorMode, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
        return function(mode, *args, **kwargs)

    return evaluate


# ---------------------------------------------------------------------------------- views or copies


@composite(aten.reshape.default)
def reshape(mode: FakeTensorMode, self: Any, shape: Sequence[Any]) -> Any:
    x = mode.adopt(self)
    t = x.fake_type
    if t.is_contiguous:
        return mode.call(aten.view.default, x, shape)
    size = inferred_size([unwrap(s) for s in shape], product(t.size))
    if view_strides(t, size, must=False) is not None:
        return mode.call(aten.view.default, x, shape)
    copy = mode.call(aten.clone.default, x, memory_format=torch.contiguous_format)
    return mode.call(aten._unsafe_view.default, copy, shape)


@composite(aten.flatten.using_ints)
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


@composite(aten.contiguous.default)
def contiguous(
    mode: FakeTensorMode, self: Any, *, memory_format: torch.memory_format = torch.contiguous_format
) -> Any:
    x = mode.adopt(self)
    if memory_format is torch.preserve_format:
        fail("preserve memory format is unsupported by the contiguous operator")
    t = x.fake_type
    is_so = t.is_contiguous if memory_format is torch.contiguous_format else t.is_channels_last
    return x if is_so else mode.call(aten.clone.default, x, memory_format=memory_format)


def _to(
    mode: FakeTensorMode,
    self: Any,
    dtype: torch.dtype | None,
    device: torch.device | None,
    non_blocking: bool,
    copy: bool,
    memory_format: torch.memory_format | None,
) -> Any:
    x = mode.adopt(self)
    t = x.fake_type
    device = concrete_device(device)
    same_dtype = dtype is None or dtype is t.dtype
    same_device = device is None or device == t.device
    if same_dtype and same_device and not copy:
        wanted = memory_format or torch.preserve_format
        if wanted is torch.preserve_format or contiguous(mode, x, memory_format=wanted) is x:
            return x
    options = {"dtype": dtype or t.dtype, "device": device, "memory_format": memory_format}
    options = {k: v for k, v in options.items() if v is not None}
    return mode.call(aten._to_copy.default, x, **options)


@composite(aten.to.dtype)
def to_dtype(
    mode: FakeTensorMode,
    self: Any,
    dtype: torch.dtype,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Any:
    return _to(mode, self, dtype, None, non_blocking, copy, memory_format)


@composite(aten.to.device)
def to_device(
    mode: FakeTensorMode,
    self: Any,
    device: torch.device,
    dtype: torch.dtype,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Any:
    return _to(mode, self, dtype, device, non_blocking, copy, memory_format)


@composite(aten.to.other)
def to_other(
    mode: FakeTensorMode,
    self: Any,
    other: Any,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Any:
    like = mode.adopt(other).fake_type
    return _to(mode, self, like.dtype, like.device, non_blocking, copy, memory_format)


@composite(aten.to.dtype_layout)
def to_dtype_layout(
    mode: FakeTensorMode,
    self: Any,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Any:
    return _to(mode, self, dtype, device, non_blocking, copy, memory_format)


@composite(aten.type_as.default)
def type_as(mode: FakeTensorMode, self: Any, other: Any) -> Any:
    return to_other(mode, self, other)


@composite(aten.chunk.default)
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


@composite(aten.narrow.default)
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


@composite(aten.narrow.Tensor)
def narrow_from(mode: FakeTensorMode, self: Any, dim: int, start: Any, length: Any) -> Any:
    x = mode.adopt(start)
    if x.fake_type.ndim or x.fake_type.dtype.is_floating_point or x.fake_type.dtype is torch.bool:
        fail("start must be an 0-dim integral Tensor.")
    return narrow(mode, self, dim, mode.call(aten._local_scalar_dense.default, x), length)


@composite(aten.tensor_split.tensor_indices_or_sections)
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


# --------------------------------------------------------------------------------------- arithmetic


@composite(aten.linear.default)
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


@composite(aten.matmul.default)
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
            return _folded(mode, a, b)
    elif _folds(mode.call(aten.transpose.int, b, -2, -1), a, right=True):
        turned = mode.call(aten.t.default, a) if ranks[0] == 2 else a
        out = _folded(mode, mode.call(aten.transpose.int, b, -2, -1), turned)
        if ranks[0] == 1:
            return out
        return contiguous(mode, mode.call(aten.transpose.int, out, -2, -1))
    return _batched(mode, a, b)


def _folds(large: FakeTensor, small: FakeTensor, right: bool = False) -> bool:
    """Does eager multiply the large operand as one tall matrix? It does if that costs no copy, or
    saves a gradient's."""
    t = large.fake_type
    if t.ndim < 3 or small.fake_type.ndim > 2:
        return False
    if small.requires_grad:
        return True
    if right and small.fake_type.ndim == 2:
        return False
    size, stride = t.size, t.stride
    return is_zero(t.numel()) or all(
        same(stride[d], stride[d + 1] * size[d + 1]) for d in range(t.ndim - 2)
    )


def _folded(mode: FakeTensorMode, large: FakeTensor, small: FakeTensor) -> Any:
    size = large.fake_type.size
    rows = reshape(mode, large, [product(size[:-1]), size[-1]])
    op = aten.mm.default if small.fake_type.ndim == 2 else aten.mv.default
    out = mode.call(op, rows, small)
    return mode.call(aten._unsafe_view.default, out, [*size[:-1], *small.fake_type.size[1:]])


def _batched(mode: FakeTensorMode, a: FakeTensor, b: FakeTensor) -> Any:
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


@composite(aten.softmax.int)
def softmax(mode: FakeTensorMode, self: Any, dim: int, dtype: torch.dtype | None = None) -> Any:
    return _softmax(mode, aten._softmax.default, self, dim, dtype)


@composite(aten.log_softmax.int)
def log_softmax(mode: FakeTensorMode, self: Any, dim: int, dtype: torch.dtype | None = None) -> Any:
    return _softmax(mode, aten._log_softmax.default, self, dim, dtype)


def _softmax(
    mode: FakeTensorMode, op: OpOverload, self: Any, dim: int, dtype: torch.dtype | None
) -> Any:
    x = self if dtype is None else to_dtype(mode, self, dtype)
    return mode.call(op, x, dim, False)


@composite(aten.dropout.default)
def dropout(mode: FakeTensorMode, input: Any, p: float, train: bool) -> Any:
    if not 0 <= p <= 1:
        fail(f"dropout probability has to be between 0 and 1, but got {p}")
    if p == 0 or not train or is_zero(product(mode.adopt(input).fake_type.size)):
        return input
    if p == 1:
        return mode.call(aten.mul.Tensor, input, mode.call(aten.zeros.default, []))
    noise = mode.call(aten.empty_like.default, input, memory_format=torch.preserve_format)
    noise = mode.call(aten.bernoulli_.float, noise, 1 - p)
    return mode.call(aten.mul.Tensor, input, mode.call(aten.div_.Scalar, noise, 1 - p))


# ------------------------------------------------------------------------------------- convolutions


def _convolution(dimensions: int) -> Composite:
    def convolution(
        mode: FakeTensorMode,
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Sequence[Size] = (1,),
        padding: Sequence[Size] = (0,),
        dilation: Sequence[Size] = (1,),
        groups: Size = 1,
    ) -> Any:
        lists = [_spread(v, dimensions) for v in (stride, padding, dilation)]
        rest = (weight, bias, *lists, False, [0] * dimensions, groups)
        return _convolved(mode, input, rest, f"conv{dimensions}d", dimensions)

    return convolution


def _transposed_convolution(dimensions: int) -> Composite:
    def convolution(
        mode: FakeTensorMode,
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Sequence[Size] = (1,),
        padding: Sequence[Size] = (0,),
        output_padding: Sequence[Size] = (0,),
        groups: Size = 1,
        dilation: Sequence[Size] = (1,),
    ) -> Any:
        lists = [_spread(v, dimensions) for v in (stride, padding, dilation)]
        rest = (weight, bias, *lists, True, _spread(output_padding, dimensions), groups)
        return _convolved(mode, input, rest, f"conv_transpose{dimensions}d", dimensions)

    return convolution


def _convolved(
    mode: FakeTensorMode, input: Any, rest: tuple[Any, ...], name: str, dimensions: int
) -> Any:
    """The convolution of a batch, or of a single input as a batch of one."""
    x = mode.adopt(input)
    if x.fake_type.ndim == dimensions + 2:
        return mode.call(aten.convolution.default, x, *rest)
    if x.fake_type.ndim != dimensions + 1:
        fail(
            f"Expected {dimensions + 1}D (unbatched) or {dimensions + 2}D (batched) "
            f"input to {name}, but got input of size: {list(x.fake_type.size)}"
        )
    out = mode.call(aten.convolution.default, mode.call(aten.unsqueeze.default, x, 0), *rest)
    return mode.call(aten.squeeze.dim, out, 0)


def _spread(values: Sequence[Size], count: int) -> list[Size]:
    return list(values) * count if len(values) == 1 else list(values)


for _n, _overload in enumerate((aten.conv1d.default, aten.conv2d.default, aten.conv3d.default), 1):
    COMPOSITES[_overload] = _convolution(_n)
for _n, _overload in enumerate(
    (aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input), 1
):
    COMPOSITES[_overload] = _transposed_convolution(_n)


# ------------------------------------------------------------------------------------------ pooling


@composite(aten.max_pool2d.default)
def max_pool2d(mode: FakeTensorMode, *args: Any, **kwargs: Any) -> Any:
    return mode.call(aten.max_pool2d_with_indices.default, *args, **kwargs)[0]


@composite(aten.adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(mode: FakeTensorMode, self: Any, output_size: Sequence[Size]) -> Any:
    if len(output_size) == 2 and all(s.__class__ is int and s == 1 for s in output_size):
        x = mode.adopt(self)
        out = mode.call(aten.mean.dim, x, [-1, -2], True)
        if x.fake_type.is_channels_last:  # as eager: the layout of the input, kept for sizes of 1
            out = mode.call(aten.clone.default, out, memory_format=torch.channels_last)
        return out
    return mode.call(aten._adaptive_avg_pool2d.default, self, output_size)


@composite(aten.fill_diagonal_.default)
def fill_diagonal_(mode: FakeTensorMode, self: Any, fill_value: Any, wrap: bool = False) -> Any:
    x = mode.adopt(self)
    t = x.fake_type
    if t.ndim == 2 and not wrap:  # C++ would count the places in memory
        mode.call(aten.fill_.Scalar, mode.call(aten.diagonal.default, x), fill_value)
        return x
    kernel = partial(aten.fill_diagonal_.default._op_dk, _BY_TORCH)
    return mode.reentered(kernel, (x, fill_value, wrap), {})


# ------------------------------------------------------------------------------------ normalisation


@composite(aten.layer_norm.default)
def layer_norm(
    mode: FakeTensorMode,
    input: Any,
    normalized_shape: Sequence[Size],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-05,
    cudnn_enable: bool = True,
) -> Any:
    return mode.call(aten.native_layer_norm.default, input, normalized_shape, weight, bias, eps)[0]


@composite(aten.batch_norm.default)
def batch_norm(
    mode: FakeTensorMode,
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    if not training and (running_mean is None or running_var is None):
        fail("running_mean must be defined in evaluation mode")
    if mode.portable:
        return _portable_batch_norm(
            mode, input, weight, bias, running_mean, running_var, training, momentum, eps
        )
    return mode.call(
        aten.native_batch_norm.default,
        input, weight, bias, running_mean, running_var, training, momentum, eps,
    )[0]  # fmt: skip


def _portable_batch_norm(
    mode: FakeTensorMode,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if not training:
        op = aten._native_batch_norm_legit_no_training.default
        return mode.call(op, x, weight, bias, mean, var, momentum, eps)[0]
    if mean is None or var is None:
        op = aten._native_batch_norm_legit.no_stats
        return mode.call(op, x, weight, bias, True, momentum, eps)[0]
    op = aten._native_batch_norm_legit.default
    return mode.call(op, x, weight, bias, mean, var, True, momentum, eps)[0]


@composite(aten.group_norm.default)
def group_norm(
    mode: FakeTensorMode,
    input: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-05,
    cudnn_enabled: bool = True,
) -> Any:
    x = mode.adopt(input)
    t = x.fake_type
    if t.ndim < 2:
        fail(f"Expected at least 2 dimensions for input tensor but received {t.ndim}")
    is_last = t.is_channels_last and not t.is_contiguous
    x = contiguous(
        mode,
        x,
        memory_format=torch.channels_last if is_last and t.ndim == 4 else torch.contiguous_format,
    )
    n, c, pixels = t.size[0], t.size[1], product(t.size[2:])
    return mode.call(
        aten.native_group_norm.default, x, weight, bias, n, c, pixels, num_groups, eps
    )[0]


# ---------------------------------------------------------------------------------------- attention


@composite(aten.scaled_dot_product_attention.default)
def scaled_dot_product_attention(
    mode: FakeTensorMode,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    q, k, v = (mode.adopt(x) for x in (query, key, value))
    if mode.portable:
        return _portable_attention(
            mode, q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa
        )
    if dropout_p or not _fits_flash(q.fake_type, k.fake_type, v.fake_type, enable_gqa):
        return mode.call(
            aten._scaled_dot_product_attention_math.default,
            q, k, v, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa,
        )[0]  # fmt: skip
    return mode.call(
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        q, k, v, dropout_p, is_causal, attn_mask=_additive(mode, attn_mask, q), scale=scale,
    )[0]  # fmt: skip


def _fits_flash(q: TensorType, k: TensorType, v: TensorType, grouped: bool) -> bool:
    """What CPU's fused kernel takes; asked without guards: the other form computes the same."""
    types = (q, k, v)
    if any(t.ndim != 4 or t.device.type != "cpu" or not is_one(t.stride[-1]) for t in types):
        return False
    if not all(same(t.size[0], q.size[0]) and same(t.size[-1], q.size[-1]) for t in types):
        return False
    heads = q.size[1]
    if grouped:
        return same(k.size[1], v.size[1]) and is_zero(heads % k.size[1])
    return same(k.size[1], heads) and same(v.size[1], heads)


def _additive(mode: FakeTensorMode, mask: Any, q: FakeTensor) -> Any:
    """A boolean mask as the numbers that are added to the scores."""
    if mask is None or mode.adopt(mask).fake_type.dtype is not torch.bool:
        return mask
    options = {"dtype": q.fake_type.dtype, "device": q.fake_type.device}
    zero = mode.call(aten.scalar_tensor.default, 0.0, **options)
    low = mode.call(aten.scalar_tensor.default, float("-inf"), **options)
    return mode.call(aten.where.self, mask, zero, low)


def _portable_attention(
    mode: FakeTensorMode,
    query: FakeTensor,
    key: FakeTensor,
    value: FakeTensor,
    mask: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    grouped: bool,
) -> Any:
    """softmax(q kᵀ · scale, masked) v in plain operators, laid out as eager's kernel does it."""
    if is_causal and mask is not None:
        fail("_scaled_dot_product_attention: Explicit attn_mask should not be set when "
             "is_causal=True")  # fmt: skip
    dtype = query.fake_type.dtype
    low = dtype in (torch.float16, torch.bfloat16)  # as the fused kernels, which sum in float32
    q, k, v = (to_dtype(mode, x, torch.float32) if low else x for x in (query, key, value))
    if grouped:
        k, v = (_repeated_heads(mode, x, q.fake_type.size[-3]) for x in (k, v))
    if scale is None:
        width = specialize(q.fake_type.size[-1])
        scale = width**-0.5 if width else math.inf
    scores = matmul(
        mode, mode.call(aten.mul.Scalar, q, scale), mode.call(aten.transpose.int, k, -2, -1)
    )
    weights = dropout(mode, _masked_softmax(mode, scores, mask, is_causal), dropout_p, True)
    out = matmul(mode, weights, v)
    if low:
        out = to_dtype(mode, out, dtype)
    if dropout_p or not _fits_flash(query.fake_type, key.fake_type, value.fake_type, grouped):
        return out
    return _laid_out(mode, out, preserved_strides(query.fake_type))


def _repeated_heads(mode: FakeTensorMode, x: FakeTensor, heads: Size) -> Any:
    """Each head as often as there are query heads for it."""
    size = x.fake_type.size
    times = heads // size[-3]
    wide = mode.call(aten.unsqueeze.default, x, -3)
    wide = mode.call(aten.expand.default, wide, [*size[:-2], times, *size[-2:]])
    return reshape(mode, wide, [*size[:-3], heads, *size[-2:]])


def _masked_softmax(mode: FakeTensorMode, scores: FakeTensor, mask: Any, is_causal: bool) -> Any:
    low = float("-inf")
    if is_causal:
        options = {"dtype": torch.bool, "device": scores.fake_type.device}
        ones = mode.call(aten.ones.default, list(scores.fake_type.size[-2:]), **options)
        scores = mode.call(
            aten.masked_fill.Scalar, scores, mode.call(aten.triu.default, ones, 1), low
        )
        return mode.call(aten._softmax.default, scores, -1, False)
    if mask is None:
        return mode.call(aten._softmax.default, scores, -1, False)
    # A row that sees nothing has weights of 0, where softmax alone would divide by 0. So that its
    # gradient is 0, too, it is not filled with infinities.
    added = mode.adopt(mask)
    is_choice = added.fake_type.dtype is torch.bool
    seen = added if is_choice else mode.call(aten.ne.Scalar, added, low)
    some = mode.call(aten.any.dim, seen, -1, True)
    none = mode.call(aten.logical_not.default, some)
    if is_choice:
        unseen = mode.call(aten.logical_not.default, seen)
        scores = mode.call(
            aten.masked_fill.Scalar, scores, mode.call(aten.logical_and.default, unseen, some), low
        )
    else:
        added = to_dtype(mode, added, scores.fake_type.dtype)
        scores = mode.call(
            aten.add.Tensor, scores, mode.call(aten.masked_fill.Scalar, added, none, 0.0)
        )
    weights = mode.call(aten._softmax.default, scores, -1, False)
    return mode.call(aten.masked_fill.Scalar, weights, none, 0.0)


def _laid_out(mode: FakeTensorMode, x: FakeTensor, stride: Sizes | None) -> Any:
    """The same values with strides of this order."""
    if (
        stride is None
        or x.fake_type.stride == stride
        or any(s.__class__ is not int for s in stride)
    ):
        return x
    order = sorted(range(len(stride)), key=lambda d: -stride[d])
    back = sorted(range(len(order)), key=order.__getitem__)
    turned = mode.call(aten.permute.default, x, order)
    turned = mode.call(aten.clone.default, turned, memory_format=torch.contiguous_format)
    return mode.call(aten.permute.default, turned, back)
