"""Type rules of attention: the fused kernels behind `scaled_dot_product_attention`, and the fused
encoder layer.

`_fused_sdp_choice` returns no tensor: torch's C++ calls the kernel that it names, so the answer
must be eager's. Layouts on the CPU are those of its kernel; those of accelerators follow what torch
documents.
"""

from __future__ import annotations

import torch

from lostwax import torch_version
from lostwax.ops.elementwise import new_like
from lostwax.ops.math.matmul import require_expandable
from lostwax.ops.registry import mark, rule
from lostwax.ops.shapes import (
    fail,
    is_met,
    is_one,
    is_same,
    is_zero,
    preserved_strides,
    require,
    wrap_dim,
)
from lostwax.ops.spelling import require_same_dtype, scalar_type
from lostwax.ops.traits import Trait
from lostwax.sym import Size, decide, eq, known, ne
from lostwax.types import Sizes, TensorType

Optional = TensorType | None
Choice = int
MATH, FLASH, EFFICIENT = 0, 1, 2
_CPU = torch.device("cpu")
_FLASH_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

# ------------------------------------------------------------------------------------- which kernel


@rule("_fused_sdp_choice")
def fused_sdp_choice(
    query: TensorType,
    key: TensorType,
    value: TensorType,
    attn_mask: Optional = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Choice:
    """The kernel that eager picks on the CPU or on CUDA; elsewhere the mathematical form."""
    if query.device.type == "cuda":
        return choose_on_cuda(query, key, value, attn_mask, is_causal, enable_gqa)
    flash = torch.backends.cuda.flash_sdp_enabled()
    math = torch.backends.cuda.math_sdp_enabled()
    if not flash and not math:
        fail(
            "No viable backend for scaled_dot_product_attention was found. This is likely due to "
            "turning off both the math kernel and the fused kernels."
        )
    if query.device.type != "cpu":
        return MATH
    if flash and _can_use_flash(query, key, value, attn_mask, dropout_p, enable_gqa):
        return FLASH
    if not math:
        fail("No available kernel.  Aborting execution.")
    return MATH


mark(Trait.RULE_READS_SETTINGS, "_fused_sdp_choice")  # which kernels are switched on


def choose_on_cuda(
    q: TensorType, k: TensorType, v: TensorType, mask: Optional, is_causal: bool, grouped: bool
) -> Choice:
    """The kernel that CUDA has for these arguments, found without guards. FLASH also stands for
    cuDNN's, which lays its result out alike: which of the two runs depends on the GPU."""
    settings, types = torch.backends.cuda, (q, k, v)
    if any(t.ndim != 4 or not is_one(t.stride[-1]) or not _is_filled(t) for t in types):
        return MATH
    if not all(is_same(t.size[0], q.size[0]) for t in types) or not is_same(k.size[1], v.size[1]):
        return MATH
    is_half = q.dtype in (torch.float16, torch.bfloat16)
    width, wide = q.size[-1], v.size[-1]
    if is_half and is_same(width, wide):
        is_square = is_same(q.size[2], k.size[2]) or not is_causal
        if settings.flash_sdp_enabled() and mask is None and is_square and _least(256, width):
            return FLASH
        aligned = is_zero(width % 8) and _least(128, width)
        if settings.cudnn_sdp_enabled() and aligned and torch.backends.cudnn.enabled:
            return FLASH
    step = 8 if is_half else 4
    heads = is_same(k.size[1], q.size[1]) and not grouped
    is_aligned = is_zero(width % step) and is_zero(wide % step)
    known_dtype = is_half or q.dtype is torch.float32
    if settings.mem_efficient_sdp_enabled() and known_dtype and heads and is_aligned:
        return EFFICIENT
    return MATH


def _is_filled(t: TensorType) -> bool:
    return all(known(ne(s, 0)) is True for s in t.size)


def _least(limit: int, size: Size) -> bool:
    return known(size <= limit) is True


def _can_use_flash(
    q: TensorType,
    k: TensorType,
    v: TensorType,
    mask: Optional,
    dropout_p: float,
    enable_gqa: bool,
) -> bool:
    if dropout_p > 0 or q.dtype not in _FLASH_DTYPES or not len(q.size) == len(k.size) == 4:
        return False
    if len(v.size) != 4 or any(is_zero(x.size[2]) for x in (q, k)):
        return False
    # The kernel needs rows of adjacent elements. The stride of a row of one element is no matter.
    if any(not is_same(x.stride[3], 1) and not is_one(x.size[3]) for x in (q, k, v)):
        return False
    if not (decide(eq(q.size[3], k.size[3])) and decide(eq(q.size[3], v.size[3]))):
        return False
    return _batches_agree(q, k, v, enable_gqa) and (mask is None or _mask_fits(mask, q, k))


def _batches_agree(q: TensorType, k: TensorType, v: TensorType, enable_gqa: bool) -> bool:
    if not (decide(eq(q.size[0], k.size[0])) and decide(eq(q.size[0], v.size[0]))):
        return False
    if not decide(eq(k.size[1], v.size[1])):
        return False
    if enable_gqa:
        return decide(eq(q.size[1] % k.size[1], 0))
    if decide(eq(q.size[1], k.size[1])):
        return True
    return torch_version.ATTENTION_SHARES_ONE_HEAD and decide(eq(k.size[1], 1))


def _mask_fits(mask: TensorType, q: TensorType, k: TensorType) -> bool:
    wrap_dim(-2, len(mask.size))
    if len(mask.size) not in (2, 4):
        return False
    target = (q.size[0], q.size[1], q.size[2], k.size[2])[4 - len(mask.size) :]
    return all(
        is_one(have) or is_same(have, want) or decide(eq(have, want)) or decide(eq(have, 1))
        for have, want in zip(mask.size, target, strict=True)
    )


# ----------------------------------------------------------------------------------- the CPU kernel


@rule("_scaled_dot_product_flash_attention_for_cpu")
def flash_attention_for_cpu(
    query: TensorType,
    key: TensorType,
    value: TensorType,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Optional = None,
    scale: float | None = None,
) -> tuple[TensorType, TensorType]:
    _require_flash_arguments(query, key, value, dropout_p)
    if attn_mask is not None:
        _require_mask(attn_mask, query, key)
    b, h, t = query.size[:3]
    out = new_like(query)
    return out, _logsumexp(query, b, h, t)


def _require_flash_arguments(q: TensorType, k: TensorType, v: TensorType, dropout_p: float) -> None:
    name = "scaled_dot_product_attention_flash_attention"
    if q.dtype not in _FLASH_DTYPES:
        fail(
            f"{name}: Expected data type in FP32, FP64, BF16, FP16, "
            f"but got {scalar_type(q.dtype)} instead."
        )
    if not len(q.size) == len(k.size) == len(v.size) == 4:
        fail(f"{name}: Accept only 4 dims inputs shape of {{B, H, T, K}}")
    if dropout_p != 0.0:
        fail(f"{name}: Currently do not support dropout > 0")
    for x in (k, v):
        ok = eq(q.size[3], x.size[3])
        if ok is not True and not is_met(ok):
            fail(f"{name}: Q/K/V should have the same head size")
    require_same_dtype(q.dtype, k.dtype, v.dtype)


def _require_mask(mask: TensorType, q: TensorType, k: TensorType) -> None:
    name = "scaled_dot_product_attention_flash_attention"
    if mask.dtype not in (q.dtype, torch.float32):
        fail(f"{name}: Attention mask is the same data type as query")
    if len(mask.size) not in (2, 4):
        fail(f"{name}: Attention mask dim in {{2, 4}}")
    size: Sizes = mask.size if len(mask.size) == 4 else (1, 1, *mask.size)
    require_expandable(size, (size[0], size[1], q.size[2], k.size[2]), mask.dtype)


def _logsumexp(q: TensorType, b: Size, h: Size, t: Size) -> TensorType:
    """The logarithms of the sums: laid out time-major, in the precision of the sums."""
    dtype = torch.float64 if q.dtype is torch.float64 else torch.float32
    strides = TensorType((b, t, h), dtype, q.device).stride
    return TensorType((b, h, t), dtype, q.device, (strides[0], strides[2], strides[1]))


def time_major(x: TensorType) -> TensorType:
    """A new tensor of this size with adjacent heads: the transpose of a (B, T, H, D) tensor."""
    b, h, t, d = x.size
    s = TensorType((b, t, h, d), x.dtype, x.device).stride
    return TensorType(x.size, x.dtype, x.device, (s[0], s[2], s[1], s[3]))


@rule("_scaled_dot_product_flash_attention_for_cpu_backward")
def flash_attention_for_cpu_backward(
    grad_out: TensorType,
    query: TensorType,
    key: TensorType,
    value: TensorType,
    *_: object,
    **__: object,
) -> tuple[TensorType, TensorType, TensorType]:
    return time_major(query), time_major(key), time_major(value)


# ------------------------------------------------------------------------------------- accelerators


@rule("_scaled_dot_product_flash_attention")
def flash_attention(
    query: TensorType, key: TensorType, *_: object, **__: object
) -> tuple[object, ...]:
    b, h, t = query.size[:3]
    seed = query.fresh((2,), torch.uint64)
    return (
        new_like(query),
        query.fresh((b, h, t), torch.float32),
        None,
        None,
        t,
        key.size[2],
        seed,
        query.fresh((), torch.uint64),
        query.fresh((0,)),
    )


@rule("_scaled_dot_product_efficient_attention")
def efficient_attention(
    query: TensorType,
    key: TensorType,
    value: TensorType,
    attn_bias: Optional,
    compute_log_sumexp: bool,
    *_: object,
    **__: object,
) -> tuple[TensorType, ...]:
    b, h, t = query.size[:3]
    rows = (t + 31) // 32 * 32 if compute_log_sumexp else 0
    seed = TensorType((), torch.int64, _CPU)
    out = time_major(query.replace(size=(b, h, t, value.size[3])))
    return out, query.fresh((b, h, rows), torch.float32), seed, seed


@rule("_efficient_attention_forward")
def efficient_attention_forward(
    query: TensorType,
    key: TensorType,
    value: TensorType,
    bias: Optional,
    cu_seqlens_q: Optional,
    cu_seqlens_k: Optional,
    max_seqlen_q: Size | None,
    max_seqlen_k: Size | None,
    dropout_p: float,
    custom_mask_type: int,
    compute_log_sumexp: bool = False,
    *_: object,
    **__: object,
) -> tuple[object, ...]:
    """Here the heads come after time. `cu_seqlens_q` packs sequences of several lengths."""
    b, t, h = query.size[:3]
    batches, longest = b, t
    if cu_seqlens_q is not None:
        batches = cu_seqlens_q.size[0] - 1
        longest = t if max_seqlen_q is None else max_seqlen_q
    rows = (longest + 31) // 32 * 32 if compute_log_sumexp else 0
    seed = TensorType((), torch.int64, _CPU)
    sums = query.fresh((batches, h, rows), torch.float32)
    read = key.size[1] if max_seqlen_k is None else max_seqlen_k
    return query.fresh((b, t, h, value.size[-1])), sums, seed, seed, longest, read


@rule("_scaled_dot_product_cudnn_attention")
def cudnn_attention(
    query: TensorType,
    key: TensorType,
    value: TensorType,
    attn_bias: Optional,
    compute_log_sumexp: bool,
    *_: object,
    **__: object,
) -> tuple[object, ...]:
    b, h, t = query.size[:3]
    size = (b, h, t, value.size[3])
    out = TensorType(size, query.dtype, query.device, preserved_strides(query.replace(size=size)))
    seed = query.fresh((), torch.int64)
    return (
        out,
        query.fresh((b, h, t, 1), torch.float32) if compute_log_sumexp else query.fresh((0,)),
        None,
        None,
        t,
        key.size[2],
        seed,
        seed,
        None,
    )


@rule(
    "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_cudnn_attention_backward",
)
def fused_attention_backward(
    grad_out: TensorType,
    query: TensorType,
    key: TensorType,
    value: TensorType,
    *saved: object,
    **__: object,
) -> tuple[TensorType, ...]:
    return tuple(new_like(x) for x in (query, key, value))


# -------------------------------------------------------------------------- the fused encoder layer


def _require_self_attention(
    query: TensorType, key: TensorType, value: TensorType, embed_dim: int, num_head: int
) -> None:
    if len(query.size) != 3:
        fail(f"expected 3-D `query`, got {len(query.size)}-D tensor")
    if not is_met(eq(query.size[2], embed_dim)):
        fail(f"passed-in embed_dim {embed_dim} didn't match last dim of query {query.size[2]}")
    for x in (key, value):
        if len(x.size) != 3:
            fail("expected `query`/`key`/`value` shapes to match")
        for a, b in zip(query.size, x.size, strict=True):
            require(eq(a, b), "expected `query`/`key`/`value` shapes to match")
    if embed_dim % num_head:
        fail("`embed_dim` must divide evenly by `num_heads`")


@rule("_native_multi_head_attention")
def native_multi_head_attention(
    query: TensorType,
    key: TensorType,
    value: TensorType,
    embed_dim: int,
    num_head: int,
    qkv_weight: TensorType,
    qkv_bias: TensorType,
    proj_weight: TensorType,
    proj_bias: TensorType,
    mask: Optional = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[TensorType, TensorType | None]:
    _require_self_attention(query, key, value, embed_dim, num_head)
    b, t, _ = query.size
    weights = None
    if need_weights:
        size = (b, t, t) if average_attn_weights else (b, num_head, t, t)
        weights = query.fresh(size)
    return query.fresh(), weights


@rule("_transformer_encoder_layer_fwd")
def transformer_encoder_layer_fwd(
    src: TensorType, embed_dim: int, num_heads: int, *parameters: object, **__: object
) -> TensorType:
    _require_self_attention(src, src, src, embed_dim, num_heads)
    return src.fresh()


@rule("_transform_bias_rescale_qkv")
def transform_bias_rescale_qkv(
    qkv: TensorType, qkv_bias: TensorType, num_heads: int
) -> tuple[TensorType, TensorType, TensorType]:
    b, t, width = qkv.size
    require(eq(width % (3 * num_heads), 0), "D % num_head == 0")
    part = qkv.fresh((b, num_heads, t, width // (3 * num_heads)))
    return part, part, part
