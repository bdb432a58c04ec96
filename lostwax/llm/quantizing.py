"""Weights of fewer bits, by torchao: linear layers and tables of embeddings of a model.

torchao is imported when it is asked for. Must not know how programs are lowered.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload

from lostwax.checkpoints.aside import put_aside
from lostwax.checkpoints.mapped import release
from lostwax.classes import TENSORS
from lostwax.errors import CaptureError, LoadError
from lostwax.identity import ByIdentity, Seen
from lostwax.location import warn

LAYERS: dict[str, tuple[str, str, bool]] = {
    "8da4w": ("Int8DynamicActivationIntxWeightConfig", "int4", True),
    "8da8w": ("Int8DynamicActivationIntxWeightConfig", "int8", False),
    "8w": ("IntxWeightOnlyConfig", "int8", False),
    "4w": ("IntxWeightOnlyConfig", "int4", False),
}
"""What linear layers may become: the configuration of torchao, the bits of weights, and whether
they are in groups or by rows."""

TABLES = {8: "int8", 4: "int4", 2: "int2"}


def check_words(quantize: str | None, embedding: int | None, group: int) -> None:
    """Refuse what is no way to quantize."""
    if quantize is not None and quantize not in LAYERS:
        known = ", ".join(f'"{name}"' for name in LAYERS)
        raise CaptureError(f"quantize is None or one of {known}, not {quantize!r}")
    if embedding is not None and embedding not in TABLES:
        raise CaptureError(f"embeddings are of 8, 4 or 2 bits, not {embedding!r}")
    if not isinstance(group, int) or group < 1:
        raise CaptureError(f"a group is a number of weights, not {group!r}")


def copy_without_weights(model: nn.Module) -> Any:
    """A copy of the modules that has the same parameters and buffers, not copies of them."""
    shared = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in shared})


def quantize_(
    model: nn.Module,
    quantize: str | None,
    embedding: int | None,
    group: int,
    dtype: torch.dtype | None = None,
) -> None:
    """Quantize the layers and tables of a model in place, one after the other. Each gets the dtype
    just before: all of them in floats may be more than memory holds."""
    torchao = _import_torchao()
    blocks = import_module("torchao.quantization.granularity")
    if quantize is not None:
        name, bits, has_groups = LAYERS[quantize]
        block = blocks.PerGroup(group) if has_groups else blocks.PerAxis(0)
        if name == "IntxWeightOnlyConfig":
            config = getattr(torchao, name)(weight_dtype=getattr(torch, bits), granularity=block)
        else:
            # XNNPACK has scales of groups in bfloat16; so has the module then.
            scales = torch.bfloat16 if has_groups else None
            config = getattr(torchao, name)(
                weight_dtype=getattr(torch, bits),
                weight_granularity=block,
                weight_scale_dtype=scales,
            )
        _apply(torchao, model, nn.Linear, config, group if has_groups else 1, dtype)
    if embedding is not None:
        block = blocks.PerAxis(0) if embedding == 8 else blocks.PerGroup(group)
        bits = getattr(torch, TABLES[embedding])
        config = torchao.IntxWeightOnlyConfig(weight_dtype=bits, granularity=block)
        _apply(torchao, model, nn.Embedding, config, 1 if embedding == 8 else group, dtype)


def is_quantized(model: nn.Module) -> bool:
    """Does a model have weights that were quantized?"""
    return any(type(each) not in TENSORS for each in model.parameters())


def has_small_tables(model: nn.Module) -> bool:
    """Does a model have tables of embeddings that were quantized?"""
    tables = [each for each in model.modules() if isinstance(each, nn.Embedding)]
    return any(type(each.weight) not in TENSORS for each in tables)


def list_kept_operators(model: nn.Module) -> list[OpOverload]:
    """The operators that stay whole in the program of a model that was quantized: layers, and those
    that quantize. Their Python would ask for the number of tokens."""
    if not is_quantized(model):
        return []
    names = ("choose_qparams_affine", "quantize_affine", "dequantize_affine")
    found = [getattr(torch.ops.torchao, name, None) for name in names]
    return [torch.ops.aten.linear.default, *(each.default for each in found if each is not None)]


def set_dtype(module: nn.Module, dtype: torch.dtype | None) -> None:
    """Give floats the dtype, and what is quantized results of it. Parameters that are one stay
    one."""
    for each in (*module.parameters(), *module.buffers()):
        if dtype is not None and type(each) in TENSORS and each.is_floating_point():
            each.data = each.data.to(dtype)
    if dtype is not None:
        _change_small(module, lambda weight: weight if weight.dtype is dtype else weight.to(dtype))


def round_scales(model: nn.Module) -> int:
    """Round the scales of groups of layers of four bits to bfloat16, which are the only ones that
    XNNPACK has. Returns how many layers had others."""
    before = Seen()
    before.update([*model.parameters()])
    for module in model.modules():
        if isinstance(module, nn.Linear):
            _change_small(module, _round_scales)
    return sum(each not in before for each in model.parameters())


def _round_scales(weight: Any) -> Any:
    scale, block = getattr(weight, "scale", None), getattr(weight, "block_size", None)
    if scale is None or block is None or block[-1] == weight.shape[-1]:
        return weight
    rounded = scale.to(torch.bfloat16).to(scale.dtype)
    if torch.equal(rounded, scale):
        return weight
    names, rest = weight.__tensor_flatten__()
    parts = {name: getattr(weight, name) for name in names} | {"scale": rounded}
    return type(weight).__tensor_unflatten__(parts, rest, weight.shape, weight.stride())


def _change_small(model: nn.Module, change: Callable[[Any], Any]) -> None:
    """Put other weights in the places of those that were quantized; one that has several places,
    once."""
    changed = ByIdentity[Any, Any]()
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is None or type(weight) in TENSORS:
                continue
            if weight not in changed:
                made = change(weight)
                is_same = made is weight
                changed[weight] = weight if is_same else nn.Parameter(made, requires_grad=False)
            module._parameters[name] = changed[weight]


def _apply(
    torchao: Any,
    model: nn.Module,
    kind: type[nn.Module],
    config: Any,
    group: int,
    dtype: torch.dtype | None,
) -> None:
    """Quantize the modules of a kind; those whose rows are no whole groups stay as they are. Who
    else holds their parameters keeps them: views of a file, which are not to become floats in
    memory."""
    left, is_large = [], sum(each.numel() for each in model.parameters()) > LARGE
    for path, module in model.named_modules():
        weight: Any = module.weight if isinstance(module, kind) else None
        if type(weight) not in TENSORS:
            continue
        if weight.shape[1] % group:
            left.append(path)
            continue
        for name, each in module._parameters.items():
            if name != "weight" and each is not None and dtype is not None:
                module._parameters[name] = nn.Parameter(each.detach().to(dtype), False)
        made = _quantize_rows(
            torchao, kind, weight.detach(), config, dtype or weight.dtype, is_large
        )
        module.weight = nn.Parameter(made, requires_grad=False)
    if left:
        warn(
            f"{len(left)} layers stay in floats, {left[0]} first: their rows are no whole groups "
            f"of {group} weights\n  instead: another group, which divides them"
        )


LARGE = 1_000_000_000
"""What is made of models with more weights is put aside, in files: memory may not hold it."""
AT_ONCE = 1 << 19
"""So many weights are quantized at a time. Each row has scales of its own, and all of them at once
would take many times their memory, and twice the time."""


def _quantize_rows(
    torchao: Any,
    kind: Any,
    weight: torch.Tensor,
    config: Any,
    dtype: torch.dtype,
    is_large: bool,
) -> Any:
    """The weights as torchao makes them; put aside, if they are of a large model."""
    whole: dict[str, torch.Tensor] = {}
    made: Any = None
    count = max(1, AT_ONCE // weight.shape[1])
    for start in range(0, weight.shape[0], count):
        some = weight[start : start + count]
        small = nn.Sequential(kind(1, 1))
        small[0].weight = nn.Parameter(some.to(dtype), requires_grad=False)
        torchao.quantize_(small, config, lambda module, path: isinstance(module, kind))
        made = small[0].weight
        names, rest = made.__tensor_flatten__()
        for name in names:
            part = getattr(made, name)
            if not start:
                whole[name] = part.new_empty((weight.shape[0], *part.shape[1:]))
            whole[name][start : start + len(some)] = part
        release(some.data_ptr(), some.nbytes)
    whole = put_aside(whole) if is_large else whole
    return type(made).__tensor_unflatten__(whole, rest, None, None)


def _import_torchao() -> Any:
    try:
        return import_module("torchao.quantization")
    except ImportError as error:
        raise LoadError(
            f"weights of fewer bits are made by torchao, which does not load: {error}\n"
            "  instead: pip install 'torchao>=0.18'"
        ) from error
