"""What is known of each operator, one family a file: loaded when an operator of it is met.

`lostwax.ops.edge` has the operators of the Edge dialect by name: `ops.edge.aten.add.Tensor`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lostwax.late_imports import late_import

__all__ = ["edge"]

if TYPE_CHECKING:
    from lostwax.late_imports import edge as edge
else:  # type checkers would take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name == "edge":
            return late_import("edge")
        raise AttributeError(f"module 'lostwax.ops' has no attribute {name!r}")
