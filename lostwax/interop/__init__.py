"""Programs exchanged with `torch.export` in memory.

The only folder that knows torch's own export stack, which it imports when it is used.
"""

from typing import TYPE_CHECKING, Any

from lostwax.interop.exchange import from_torch, to_torch

if TYPE_CHECKING:
    from lostwax.interop.executorch import to_executorch_edge
    from lostwax.interop.patching import patch_torch_export
else:  # type checkers would take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name == "patch_torch_export":  # loads files and modules, which few need
            from lostwax.interop.patching import patch_torch_export

            return patch_torch_export
        if name == "to_executorch_edge":  # loads the dialects, which few need
            from lostwax.interop.executorch import to_executorch_edge

            return to_executorch_edge
        raise AttributeError(f"module 'lostwax.interop' has no attribute {name!r}")


__all__ = ["from_torch", "patch_torch_export", "to_executorch_edge", "to_torch"]
