"""Runs `.pte` programs of ExecuTorch with numpy: no torch, no lostwax.

    from lostwax_run import Program

    program = Program("model.pte")
    (y,) = program.forward(x)

Names are loaded when they are first asked for, numpy with them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lostwax_run.description import Spec
    from lostwax_run.errors import FileError, InputError, MissingError, RunError
    from lostwax_run.file import Trace
    from lostwax_run.program import Method, Program, get_threads, set_threads

__version__ = "0.2.0.dev0"
__all__ = [
    "FileError",
    "InputError",
    "Method",
    "MissingError",
    "Program",
    "RunError",
    "Spec",
    "Trace",
    "get_threads",
    "set_threads",
]

_PLACES = {"Spec": "description", "Method": "program", "Program": "program", "Trace": "file"}
_PLACES |= {"get_threads": "program", "set_threads": "program"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PLACES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
