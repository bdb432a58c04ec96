"""Numbers that are kept in tensors, where an operator returns them or a loop appends them.

Must not know why they are kept.
"""

from __future__ import annotations

from typing import Any

import torch

INTEGERS = (int, torch.SymInt)
FLOATS = (float, torch.SymFloat)
DTYPES: dict[tuple[type, ...], torch.dtype] = {
    (bool, torch.SymBool): torch.bool,
    INTEGERS: torch.int64,
    FLOATS: torch.float64,
}
"""The tensors in which numbers of these classes are kept."""


def find_kind(value: Any) -> tuple[type, ...]:
    """The classes of numbers of which this is one, and nothing more: a member of an `IntEnum`, or
    `np.float64`, has a class of its own, which a number that is computed would not have."""
    return next((kind for kind in DTYPES if type(value) in kind), ())


def number_to_tensor(
    number: Any, dtype: torch.dtype = torch.float64, device: torch.device | None = None
) -> torch.Tensor:
    """A number as a tensor; by default one from which a float can be read as it was."""
    return torch.full((), number, dtype=dtype, device=device or torch.device("cpu"))
