"""`to_executorch_edge`: our Edge programs as ExecuTorch's own, for its backends."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from lostwax.dialects.manager import EdgeProgramManager
from lostwax.dialects.to_aten import lift_to_aten
from lostwax.errors import LoadError
from lostwax.interop.exchange import to_torch


def to_executorch_edge(manager: EdgeProgramManager) -> Any:
    """Hand the methods of a manager to ExecuTorch: its own `EdgeProgramManager`, which its
    partitioners and backends take. ExecuTorch must be installed."""
    try:
        exir = import_module("executorch.exir")
    except ImportError as error:
        raise LoadError("ExecuTorch is not installed\n  instead: pip install executorch") from error
    programs = {
        name: to_torch(lift_to_aten(manager.exported_program(name))) for name in manager.methods
    }
    return exir.to_edge(programs, constant_methods=manager.constant_methods)
