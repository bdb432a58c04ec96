"""Attention, taken apart before C++ would do it: into a device's kernel, or portable operators.

Fills the table of `composites.py`. Must not compute types itself.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from lostwax import torch_version
from lostwax.fake.asked_tensor import is_marked
from lostwax.fake.composite.composites import matmul, reshape, to_dtype
from lostwax.fake.composite.dropouts import dropout
from lostwax.fake.tensor import FakeTensor
from lostwax.ops.nn.attention import EFFICIENT, FLASH, choose_on_cuda, time_major
from lostwax.ops.registry import aten, composite, mark
from lostwax.ops.shapes import fail, is_one, is_same, is_zero, preserved_strides
from lostwax.ops.traits import Trait
from lostwax.sym import Size, specialize
from lostwax.types import Sizes, TensorType

if TYPE_CHECKING:
    from lostwax.fake.mode import FakeTensorMode


mark(Trait.READS_GRADIENT, "scaled_dot_product_attention")


@composite("scaled_dot_product_attention")
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
    if _has_no_elements(q.fake_type, k.fake_type, v.fake_type):
        return _attend_to_empty(mode, q.fake_type, v.fake_type)
    if torch_version.ATTENTION_LIFTS and all(x.fake_type.ndim == 3 for x in (q, k, v)):
        lifted = [mode.call(aten.unsqueeze.default, x, 0) for x in (q, k, v)]
        mask = _lift_mask(mode, attn_mask)
        how = {"scale": scale, "enable_gqa": enable_gqa}
        out = scaled_dot_product_attention(mode, *lifted, mask, dropout_p, is_causal, **how)
        return mode.call(aten.squeeze.dim, out, 0)
    if mode.portable or _would_be_fixed(q, k, v):
        return _portable_attention(
            mode, q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa
        )
    if q.fake_type.device.type == "cuda":
        return _attend_on_cuda(mode, q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    fits = _fits_flash(q.fake_type, k.fake_type, v.fake_type, enable_gqa)
    if dropout_p or not fits or _has_gradient(mode, attn_mask):
        return mode.call(
            aten._scaled_dot_product_attention_math.default,
            q, k, v, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa,
        )[0]  # fmt: skip
    return mode.call(
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        q, k, v, dropout_p, is_causal, attn_mask=_to_additive(mode, attn_mask, q), scale=scale,
    )[0]  # fmt: skip


def _has_no_elements(q: TensorType, k: TensorType, v: TensorType) -> bool:
    """Are they integers, and is there nothing to weigh, or nothing to compute? Elsewhere eager has
    no attention of integers, or not with every torch."""
    if q.dtype.is_floating_point or q.dtype.is_complex or q.dtype is torch.bool:
        return False
    if q.device.type != "cpu" or q.ndim < 3:
        return False
    outer = [t.size[:-2] for t in (q, k, v)]
    fits = outer == [outer[0]] * 3 and k.size[-1] == q.size[-1] and v.size[-2] == k.size[-2]
    return fits and any(s == 0 for s in (*q.size[:-1], k.size[-2], v.size[-1]))


def _attend_to_empty(mode: FakeTensorMode, q: TensorType, v: TensorType) -> Any:
    size = [*q.size[:-1], v.size[-1]]
    return mode.call(aten.full.default, size, 0, dtype=q.dtype, device=q.device)


def _would_be_fixed(*tensors: FakeTensor) -> bool:
    """Would C++ specialise to the example's sizes?"""
    is_safe = torch_version.ATTENTION_KEEPS_SYMBOLS or not torch.is_grad_enabled()
    return not is_safe and any(x.fake_type.is_symbolic for x in tensors)


def _attend_on_cuda(
    mode: FakeTensorMode,
    q: FakeTensor,
    k: FakeTensor,
    v: FakeTensor,
    mask: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    grouped: bool,
) -> Any:
    choice = _choose_kernel(mode, q, k, v, mask, is_causal, grouped)
    if choice == FLASH:
        flash = aten._scaled_dot_product_flash_attention.default
        return mode.call(flash, q, k, v, dropout_p, is_causal, scale=scale)[0]
    if choice == EFFICIENT:
        added = _to_additive(mode, mask, q)
        efficient = aten._scaled_dot_product_efficient_attention.default
        keeps = any(map(is_marked, (q, k, v)))
        args = (q, k, v, added, keeps, dropout_p, is_causal)
        return mode.call(efficient, *args, scale=scale)[0]
    return mode.call(
        aten._scaled_dot_product_attention_math.default,
        q, k, v, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=grouped,
    )[0]  # fmt: skip


def _choose_kernel(
    mode: FakeTensorMode,
    q: FakeTensor,
    k: FakeTensor,
    v: FakeTensor,
    mask: Any,
    is_causal: bool,
    grouped: bool,
) -> int:
    masked = None if mask is None else mode.adopt(mask).fake_type
    types = (q.fake_type, k.fake_type, v.fake_type)
    return choose_on_cuda(*types, masked, is_causal, grouped)


def _lift_mask(mode: FakeTensorMode, mask: Any) -> Any:
    """The mask with dimensions added until it has four."""
    while mask is not None and mode.adopt(mask).fake_type.ndim < 4:
        mask = mode.call(aten.unsqueeze.default, mask, 0)
    return mask


def _fits_flash(q: TensorType, k: TensorType, v: TensorType, grouped: bool) -> bool:
    """Does the CPU's fused kernel take this? Never a guard: the other form computes the same."""
    types = (q, k, v)
    if any(t.ndim != 4 or t.device.type != "cpu" or not is_one(t.stride[-1]) for t in types):
        return False
    if not all(is_same(t.size[0], q.size[0]) and is_same(t.size[-1], q.size[-1]) for t in types):
        return False
    heads, shared = q.size[1], k.size[1]
    if not is_same(shared, v.size[1]):
        return False
    if grouped:
        return is_zero(heads % shared)
    return is_same(shared, heads) or (torch_version.ATTENTION_SHARES_ONE_HEAD and is_one(shared))


def _has_gradient(mode: FakeTensorMode, mask: Any) -> bool:
    """Does a gradient reach the mask? The CPU's fused kernel has none for it."""
    if mask is None:
        return False
    fake = mode.adopt(mask)
    return is_marked(fake) or mode.observer.has_gradient(fake)


def _to_additive(mode: FakeTensorMode, mask: Any, q: FakeTensor) -> Any:
    """A boolean mask as numbers that are added to the scores."""
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
    """softmax(q kᵀ · scale, masked) v in plain operators, with the layout of eager's kernel."""
    if is_causal and mask is not None:
        fail("_scaled_dot_product_attention: Explicit attn_mask should not be set when "
             "is_causal=True")  # fmt: skip
    dtype = query.fake_type.dtype
    low = dtype in (torch.float16, torch.bfloat16)  # as the fused kernels, which sum in float32
    q, k, v = (to_dtype(mode, x, torch.float32) if low else x for x in (query, key, value))
    if grouped:
        k, v = (_repeat_heads(mode, x, q.fake_type.size[-3]) for x in (k, v))
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
    t = query.fake_type
    if t.device.type == "cuda":
        choice = _choose_kernel(mode, query, key, value, mask, is_causal, grouped)
        if choice == EFFICIENT:
            return _lay_out(mode, out, time_major(out.fake_type).stride)
        return _lay_out(mode, out, preserved_strides(t)) if choice == FLASH else out
    if dropout_p or not _fits_flash(t, key.fake_type, value.fake_type, grouped):
        return out
    if _has_gradient(mode, mask):
        return out
    return _lay_out(mode, out, preserved_strides(t))


def _repeat_heads(mode: FakeTensorMode, x: FakeTensor, heads: Size) -> Any:
    """Repeat each head as often as there are query heads for it."""
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
    # A row that is masked everywhere gets weights of 0, where softmax alone would divide by 0. It
    # is not filled with infinities, so that its gradient is 0, too.
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


def _lay_out(mode: FakeTensorMode, x: FakeTensor, stride: Sizes | None) -> Any:
    """The same values, with strides in this order."""
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
