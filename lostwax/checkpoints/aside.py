"""Tensors that are put aside: into a file without a name, which is gone when nobody has them.

They are mapped, so that they take memory only while they are read, and that is given back when
others want it. Must not know what they are.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch

from lostwax.checkpoints.mapped import is_mapped, map_file

_ALIGNMENT = 64


def put_aside(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same tensors as views of a file in the folder for such (`TMPDIR`), or as they are where
    that cannot be. They are contiguous, and have elements."""
    places, at = [], 0
    try:
        handle, path = tempfile.mkstemp(prefix="lostwax-", suffix=".aside")
    except OSError:
        return dict(tensors)
    try:
        with os.fdopen(handle, "wb") as file:
            for each in tensors.values():
                file.seek(at)
                places.append(at)
                file.write(_view_bytes(each))
                at += -(-each.nbytes // _ALIGNMENT) * _ALIGNMENT
        mapped = map_file(path)
    except OSError:  # there is no room for them
        return dict(tensors)
    finally:
        with suppress(OSError):  # Linux keeps what is mapped
            os.unlink(path)
    return {
        name: torch.frombuffer(mapped, dtype=each.dtype, count=each.numel(), offset=place).view(
            each.shape
        )
        for (name, each), place in zip(tensors.items(), places, strict=True)
    }


def is_aside(tensor: torch.Tensor) -> bool:
    """Does a tensor lie in a file?"""
    return tensor.device.type == "cpu" and tensor.is_contiguous() and is_mapped(_view_bytes(tensor))


def _view_bytes(tensor: torch.Tensor) -> Any:
    return memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
