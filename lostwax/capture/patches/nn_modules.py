"""Modules of torch.nn that have kernels of their own for some devices go the common way; and those
that ask for data while they run are asked to compute with it.

What that would change is refused. Must not change what a module computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from lostwax.capture.patches.swap import CodeSwap
from lostwax.errors import CaptureError


def has_averages(modules: Sequence[nn.Module]) -> bool:
    """Do some of these normalize batches without a momentum?"""
    return any(isinstance(m, _BatchNorm) and m.momentum is None for m in modules)


def _normalize(plain: Any, self: _BatchNorm, input: torch.Tensor) -> torch.Tensor:
    """Without a momentum the statistics are averages over all batches: torch asks for the number of
    these, to hand it to a kernel."""
    mean, var, count = self.running_mean, self.running_var, self.num_batches_tracked
    is_asked = self.training and self.track_running_stats and self.momentum is None
    if not is_asked or mean is None or var is None or count is None:
        return plain(self, input)  # type: ignore[no-any-return]
    self._check_input_dim(input)
    out = functional.batch_norm(input, None, None, self.weight, self.bias, True, 0.0, self.eps)
    with torch.no_grad():
        count.add_(1)
        dims = [d for d in range(input.ndim) if d != 1]
        new_var, new_mean = torch.var_mean(input.to(mean.dtype), dims)
        share = 1.0 / count.to(mean.dtype)
        mean.lerp_(new_mean, share)
        var.lerp_(new_var, share)
    return out


def _encode(plain: Any, self: nn.TransformerEncoder, *args: Any, **kwargs: Any) -> Any:
    padding = args[2] if len(args) > 2 else kwargs.get("src_key_padding_mask")
    if padding is not None and _would_nest(self):
        raise CaptureError.here(
            "nn.TransformerEncoder makes nested tensors here, which no program can have",
            why="with src_key_padding_mask, in eval mode and without gradients, it leaves padding "
            "out and returns zeros there, if the mask has it at the end",
            instead="nn.TransformerEncoder(..., enable_nested_tensor=False)",
        )
    return plain(self, *args, **kwargs)


def _would_nest(module: nn.TransformerEncoder) -> bool:
    grad = torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())
    is_wanted = torch.backends.mha._is_fastpath_enabled and bool(module.use_nested_tensor)
    return is_wanted and not module.training and not grad


ENCODER = CodeSwap(nn.TransformerEncoder.forward, _encode)
NORM = CodeSwap(_BatchNorm.forward, _normalize)
