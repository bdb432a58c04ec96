"""The classes by which values are told apart: what an operator takes beside tensors.

They are asked by `in`, of the class itself: torch's classes are slow to be asked by `isinstance`.
"""

from __future__ import annotations

import torch
from torch.fx.immutable_collections import immutable_list

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
"""Numbers that are not known."""
SHOWN: dict[type, type] = dict(zip(SYMBOLIC, (int, float, bool), strict=True))
"""The classes that they are of to the program that is captured."""
PLAIN: frozenset[type] = frozenset(
    (int, float, bool, type(None), str, complex, torch.dtype, torch.layout, torch.memory_format)
)
"""What means the same everywhere. Not so a device: one without a number is the current one."""
LISTS = frozenset((list, tuple, immutable_list, torch.Size))
TENSORS = (torch.nn.Parameter, torch.Tensor)
"""Tensors that are nothing more."""
