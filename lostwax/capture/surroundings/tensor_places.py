"""Where tensors lie in memory, and what else changes of one while it is the same object."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch


def storage(tensor: torch.Tensor) -> int:
    """What is the same for tensors in one memory."""
    found = memory(tensor)
    return id(tensor) if found is None else int(found._cdata)


def memory(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # it has none, it is sparse
        return None


def place(tensor: torch.Tensor) -> Any:
    """Where it lies in its memory."""
    return tensor.storage_offset(), tensor.stride()


def _version(tensor: torch.Tensor) -> int:
    """How often it was written to; those of inference mode do not count."""
    return -1 if tensor.is_inference() else tensor._version


def tensor_content(tensor: torch.Tensor) -> Any:
    """What changes of a tensor that is no state, while it is the same object: `x.data = y` is no
    write."""
    return TYPE(tensor), _version(tensor), storage(tensor), place(tensor)


def address(tensor: torch.Tensor | None) -> int:
    """Where its numbers are: `x.data = y` moves them."""
    try:
        return 0 if tensor is None else tensor.data_ptr()
    except (NotImplementedError, RuntimeError, ValueError):  # sparse, fake, not initialized
        return 0


def data_of(tensor: torch.Tensor) -> bytes:
    """What is in it; of what cannot be read, nothing."""
    try:
        plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        return bytes(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    except (NotImplementedError, RuntimeError, TypeError):  # sparse, fake, on meta
        return b""


TOLD = attrgetter("dtype", "shape", "requires_grad", "device")
TYPE = attrgetter("dtype", "shape", "requires_grad", "device", "__class__")
