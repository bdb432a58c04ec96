"""The tensors that were marked (`mark_dynamic`). Every export asks for them, and few find any."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

MARKS: Any = WeakIdKeyDictionary()
"""Tensor → {dimension: hint}; the tensor itself stays untouched."""


def marks_of(tensor: torch.Tensor) -> dict[int, Any]:
    """The marks of a tensor, by dimension."""
    found: dict[int, Any] = MARKS.get(tensor, {})
    return found
