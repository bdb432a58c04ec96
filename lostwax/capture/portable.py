"""Modules of torch.nn that have kernels of their own for some devices go the common way.

What that would change is refused. Must not change what a module computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from lostwax.errors import CaptureError
from lostwax.location import user_location


@contextmanager
def portable_modules() -> Iterator[None]:
    """Inside, attention and transformer layers do not take their fast path."""
    attention = torch.backends.mha
    before, forward = attention.get_fastpath_enabled(), nn.TransformerEncoder.forward
    attention.set_fastpath_enabled(False)
    if before:
        nn.TransformerEncoder.forward = _encode(forward)  # type: ignore[method-assign]
    try:
        yield
    finally:
        attention.set_fastpath_enabled(before)
        nn.TransformerEncoder.forward = forward  # type: ignore[method-assign]


def _encode(original: Any) -> Any:
    def forward(self: nn.TransformerEncoder, *args: Any, **kwargs: Any) -> Any:
        padding = args[2] if len(args) > 2 else kwargs.get("src_key_padding_mask")
        if padding is not None and _would_nest(self):
            raise CaptureError(
                "nn.TransformerEncoder makes nested tensors here, which no program can have.\n"
                f"  at {user_location()}\n"
                "  why: with src_key_padding_mask, in eval mode and without gradients, it leaves "
                "padding out and returns zeros there, if the mask has it at the end\n"
                "  instead: nn.TransformerEncoder(..., enable_nested_tensor=False)"
            )
        return original(self, *args, **kwargs)

    return forward


def _would_nest(module: nn.TransformerEncoder) -> bool:
    grad = torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())
    return bool(module.use_nested_tensor) and not module.training and not grad
