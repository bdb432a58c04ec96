"""Converts state as a whole: tied tensors stay tied, views stay views of one memory.

Must not change the tensors that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from lostwax.fake import FakeTensor
from lostwax.fake.tensor import storage_key

Conversion = Callable[[torch.Tensor], torch.Tensor]


def convert_state(values: Mapping[str, Any], convert: Conversion) -> dict[str, Any]:
    """Apply `convert` once to each tensor among the values. Parameters stay parameters."""
    tensors = {id(v): v for v in values.values() if isinstance(v, torch.Tensor)}
    sharing: dict[int, list[torch.Tensor]] = {}
    for tensor in tensors.values():
        sharing.setdefault(storage_key(tensor), []).append(tensor)
    new: dict[int, torch.Tensor] = {}
    for together in sharing.values():
        new.update(_convert_together(together, convert))
    return {name: new.get(id(value), value) for name, value in values.items()}


def _convert_together(tensors: list[torch.Tensor], convert: Conversion) -> dict[int, torch.Tensor]:
    first = tensors[0]
    if len(tensors) == 1 or len({t.dtype for t in tensors}) > 1 or isinstance(first, FakeTensor):
        return {id(t): _convert_alone(t, convert) for t in tensors}
    # Convert all of the memory that they share once; then each is a view of that.
    count = first.untyped_storage().nbytes() // first.itemsize
    whole = convert(torch.as_strided(first.detach(), (count,), (1,), 0))
    return {
        id(t): _restore_class(whole.as_strided(t.shape, t.stride(), t.storage_offset()), t)
        for t in tensors
    }


def _convert_alone(tensor: torch.Tensor, convert: Conversion) -> torch.Tensor:
    given = tensor.detach()
    new = convert(given)
    return tensor if new is given else _restore_class(new, tensor)


def _restore_class(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Give the new tensor the class of the old one: a parameter, or a plain tensor."""
    if isinstance(old, nn.Parameter):
        return nn.Parameter(new, old.requires_grad)
    return new.requires_grad_(old.requires_grad) if old.requires_grad else new
