"""Programs exchanged with `torch.export` in memory.

The only folder that knows torch's own export stack, which it imports when it is used.
"""

from lostwax.interop.exchange import from_torch, to_torch

__all__ = ["from_torch", "to_torch"]
