"""Scaled dot product attention: `Attention` from opset 23 on, spelled out before."""

from __future__ import annotations

import math
from typing import Any

import torch

from lostwax.onnx.patterns.fusions import find_maker
from lostwax.onnx.table import NotWritten, translation
from lostwax.onnx.values import OnnxTensor
from lostwax.onnx.writer import OnnxWriter


@translation("scaled_dot_product_attention", since=23)
def fused_attention(
    on: OnnxWriter,
    query: OnnxTensor,
    key: OnnxTensor,
    value: OnnxTensor,
    attn_mask: OnnxTensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Any = None,
    enable_gqa: bool = False,
) -> OnnxTensor:
    """A mask of floats is spelled out: runtimes take a row of least numbers for one that is hidden,
    which eager does not."""
    shown = attn_mask is None or attn_mask.dtype is torch.bool
    if dropout_p or not shown or not _is_fused(query, key, value, scale):
        return attention(
            on,
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
    if attn_mask is not None:
        if attn_mask.rank == 3:
            attn_mask = on.Unsqueeze(attn_mask, on.ints(0))
        wanted = (query.size[2], key.size[2])
        if attn_mask.type is None or attn_mask.size[-2:] != wanted:
            attn_mask = on.Expand(attn_mask, on.shape(wanted))
    return on.Attention(
        query,
        _without_repeats(on, key),
        _without_repeats(on, value),
        attn_mask,
        is_causal=int(is_causal) or None,
        scale=None if scale is None else float(scale),
    )


def _is_fused(query: OnnxTensor, key: OnnxTensor, value: OnnxTensor, scale: Any) -> bool:
    """Are they batches of heads, of numbers that are known?"""
    sizes = [x.size for x in (query, key, value)]
    if any(len(size) != 4 or not isinstance(size[1], int) for size in sizes):
        return False
    if any(size[0] != query.size[0] for size in sizes) or not isinstance(query.size[3], int):
        return False
    return scale is None or isinstance(scale, (int, float))


def _without_repeats(on: OnnxWriter, x: OnnxTensor) -> OnnxTensor:
    """Heads that queries share, before they are repeated: `Attention` shares them itself."""
    joined = find_maker(x.value, "Reshape")
    spread = find_maker(None if joined is None else joined.inputs[0], "Expand")
    alone = find_maker(None if spread is None else spread.inputs[0], "Unsqueeze")
    if joined is None or spread is None or alone is None or alone.inputs[0] is None:
        return x
    source, wide = (on.types.get(each) for each in (alone.inputs[0], spread.outputs[0]))
    if source is None or wide is None or len(source.size) != 4 or len(wide.size) != 5:
        return x
    batch, heads, *rest = source.size
    times = wide.size[2]
    if wide.size != (batch, heads, times, *rest) or x.size != (batch, heads * times, *rest):
        return x
    return OnnxTensor(alone.inputs[0], x.dtype, source)


@translation("scaled_dot_product_attention")
def attention(
    on: OnnxWriter,
    query: OnnxTensor,
    key: OnnxTensor,
    value: OnnxTensor,
    attn_mask: OnnxTensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Any = None,
    enable_gqa: bool = False,
) -> OnnxTensor:
    if dropout_p:
        raise NotWritten("it drops attention at random", "export the module in evaluation, .eval()")
    if enable_gqa and query.size[-3] != key.size[-3]:
        key, value = (_repeat_heads(on, x, query) for x in (key, value))
    dtype = query.dtype
    if scale is None:
        width = query.size[-1]
        if not isinstance(width, int):
            raise NotWritten("how wide a head is varies", "give it a scale")
        scale = 1 / math.sqrt(width)
    order = list(range(key.rank))
    order[-2:] = order[:-3:-1]
    turned = on.Transpose(key, perm=order)
    # As eager's kernel: both operands by the root, so that half precision does not overflow.
    root = on.operand(float(scale), dtype)
    weights = on.MatMul(on.Mul(query, root), turned)
    is_safe = attn_mask is None
    if is_causal:
        rows = on.shape((query.size[-2], key.size[-2]))
        ones = on.ConstantOfShape(rows, value=torch.ones(1, dtype=torch.bool), dtype=torch.bool)
        weights = _hide(on, weights, on.Trilu(ones, upper=0))
    if attn_mask is not None:
        if attn_mask.dtype is torch.bool:
            weights = _hide(on, weights, attn_mask)
        else:
            weights = on.Add(weights, on.cast(attn_mask, dtype))
    chances = on.Softmax(weights, axis=-1)
    if not is_safe:  # a row that is hidden as a whole gives zeros
        chances = on.Where(on.IsNaN(chances), on.constant(0, dtype), chances)
    return on.MatMul(chances, value)


def _hide(on: OnnxWriter, weights: OnnxTensor, shown: OnnxTensor) -> OnnxTensor:
    return on.Where(shown, weights, on.constant(float("-inf"), weights.dtype))


def _repeat_heads(on: OnnxWriter, x: OnnxTensor, query: OnnxTensor) -> OnnxTensor:
    """Each head as often as queries share it."""
    heads, wanted = x.size[-3], query.size[-3]
    if not isinstance(heads, int) or not isinstance(wanted, int) or x.rank != 4:
        raise NotWritten("how many heads there are varies", "repeat keys and values yourself")
    spread = on.Unsqueeze(x, on.ints(2))
    times = on.Expand(spread, on.ints(1, 1, wanted // heads, 1, 1))
    made = on.Reshape(times, on.shape((*x.size[:1], wanted, *x.size[2:])), allowzero=1)
    size = (*x.size[:1], wanted, *x.size[2:])
    assert x.type is not None
    return OnnxTensor(made.value, x.dtype, x.type.replace(size=size))


@translation(
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
)  # fmt: skip
def flash_attention(
    on: OnnxWriter,
    query: OnnxTensor,
    key: OnnxTensor,
    value: OnnxTensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *_: Any,
    attn_mask: OnnxTensor | None = None,
    scale: Any = None,
) -> list[Any]:
    write = fused_attention if on.opset >= 23 else attention
    made = write(
        on, query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=True
    )
    return [made, *[None] * (len(on.out) - 1)]
