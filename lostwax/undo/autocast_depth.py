"""How many `with torch.autocast(...)` are around. torch tells only who changes the number.

An interrupt comes after a call of C, never between the two lines of a `try` and its `finally`; so
the number stays right. Layer 0: imports nothing of lostwax.
"""

from __future__ import annotations

import torch


def read_autocast_depth() -> int:
    """The answer is right even inside a dispatch, which switches autocast off."""
    try:
        torch.autocast_increment_nesting()
    finally:
        depth = torch.autocast_decrement_nesting()
    return depth


def set_autocast_depth(wanted: int) -> None:
    depth = read_autocast_depth()
    for _ in range(depth - wanted):
        torch.autocast_decrement_nesting()
    for _ in range(wanted - depth):
        torch.autocast_increment_nesting()
