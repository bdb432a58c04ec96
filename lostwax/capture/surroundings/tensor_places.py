"""Where tensors lie in memory, and what else can change in a tensor that stays the same object.

Must not keep a tensor alive.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch


def storage_key(tensor: torch.Tensor) -> int:
    """A number that is equal for tensors in the same storage."""
    found = storage_of(tensor)
    return id(tensor) if found is None else int(found._cdata)


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # a sparse tensor has none
        return None


def layout_of(tensor: torch.Tensor) -> Any:
    """Its place in its storage."""
    return tensor.storage_offset(), tensor.stride()


def _version(tensor: torch.Tensor) -> int:
    """How often it was written to; -1 for tensors of inference mode, which do not count that."""
    return -1 if tensor.is_inference() else tensor._version


def tensor_content(tensor: torch.Tensor) -> Any:
    """All that can change in a tensor that is no state. (`x.data = y` counts as no write, so the
    storage is part of it.)"""
    return TYPE(tensor), _version(tensor), storage_key(tensor), layout_of(tensor)


def address(tensor: torch.Tensor | None) -> int:
    """Where its numbers lie: `x.data = y` moves them."""
    try:
        return 0 if tensor is None else tensor.data_ptr()
    except (NotImplementedError, RuntimeError, ValueError):  # sparse, fake, not initialized
        return 0


def data_of(tensor: torch.Tensor) -> bytes:
    """Its bytes; empty if they cannot be read."""
    try:
        plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        return bytes(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    except (NotImplementedError, RuntimeError, TypeError):  # sparse, fake, on meta
        return b""


TYPE_BUT_CLASS = attrgetter("dtype", "shape", "requires_grad", "device")
TYPE = attrgetter("dtype", "shape", "requires_grad", "device", "__class__")
