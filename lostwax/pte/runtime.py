"""Runs a `.pte` file in the ExecuTorch runtime, if that is installed.

Must not be needed to write a file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from lostwax.errors import LoadError
from lostwax.pte.file.reader import read_file

_RUNTIME = "executorch.extension.pybindings.portable_lib"


def run(
    file: str | os.PathLike[str] | bytes, inputs: Sequence[Any], *, method: str = "forward"
) -> list[Any]:
    """Run a method of a file once and return its results, a flat list. Tensors are laid out as the
    method expects them."""
    return load_runtime(file).run(inputs, method=method)


class LoadedProgram:
    """A file in the runtime: methods keep their state from call to call, and share it."""

    def __init__(self, data: bytes) -> None:
        self._data = data  # the runtime only points into it
        plans = read_file(data).program["execution_plan"] or ()
        self._plans = {plan["name"]: plan for plan in plans}
        runtime = _import_runtime()
        full = runtime.Verification.InternalConsistency
        # Loaded as a program, methods lie in the same memory, and so does the state they share.
        self._program = runtime._load_program_from_buffer(data, program_verification=full)
        self._methods: dict[str, Any] = {}

    @property
    def methods(self) -> set[str]:
        return set(self._plans)

    def run(self, inputs: Sequence[Any], *, method: str = "forward") -> list[Any]:
        """Run a method and return its results."""
        plan = self._plans.get(method)
        if plan is None:
            raise LoadError(f"there is no method {method!r}; there are {sorted(self._plans)}")
        wanted = [plan["values"][i]["val"] for i in plan["inputs"] or ()]
        if len(wanted) != len(inputs):
            raise LoadError(f"{method!r} takes {len(wanted)} inputs, {len(inputs)} are given")
        given = [_lay_out(v, t) for v, t in zip(inputs, wanted, strict=True)]
        if method not in self._methods:
            self._methods[method] = self._program.load_method(method)
        return list(self._methods[method].call(given))


def load_runtime(file: str | os.PathLike[str] | bytes) -> LoadedProgram:
    """Load a file into the runtime."""
    if isinstance(file, (str, os.PathLike)):
        with open(file, "rb") as opened:
            file = opened.read()
    return LoadedProgram(bytes(file))


def _import_runtime() -> Any:
    try:
        return import_module(_RUNTIME)
    except ImportError as error:
        raise LoadError(
            "the ExecuTorch runtime is not installed\n  instead: pip install executorch"
        ) from error


def _lay_out(value: Any, wanted: dict[str, Any]) -> Any:
    """A tensor in the layout that the method reads: the runtime copies bytes, and asks nothing."""
    if not isinstance(value, torch.Tensor) or wanted[""] != "Tensor":
        return value
    plain = value.detach()
    if type(plain) is not torch.Tensor:
        plain = plain.as_subclass(torch.Tensor)
    order = list(wanted["dim_order"] or b"")
    is_last = order == [0, 2, 3, 1]
    return plain.contiguous(
        memory_format=torch.channels_last if is_last else torch.contiguous_format
    )
