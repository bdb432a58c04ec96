"""Runs a `.pte` file in the ExecuTorch runtime, if that is installed.

Must not be needed to write a file.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from lostwax.errors import LoadError
from lostwax.pte.file.reader import read_file
from lostwax.pte.file.schema import DTYPES, DYNAMIC_BOUND
from lostwax.pte.lowering.listing import STATE_ARENA

_RUNTIME = "executorch.extension.pybindings.portable_lib"


AnyFile = str | os.PathLike[str] | bytes


def run(
    file: AnyFile,
    inputs: Sequence[Any],
    *,
    method: str = "forward",
    weights: AnyFile | None = None,
) -> list[Any]:
    """Run a method of a file once and return its results, a flat list. Tensors are laid out as the
    method expects them. `weights` is the file with weights that are beside; else it is looked for
    there."""
    return load_runtime(file, weights).run(inputs, method=method)


class LoadedProgram:
    """A file in the runtime: methods keep their state from call to call, and share it."""

    def __init__(self, data: bytes, weights: bytes | None = None) -> None:
        self._data, self._weights = data, weights  # the runtime only points into them
        plans = read_file(data).program["execution_plan"] or ()
        self._plans = {plan["name"]: plan for plan in plans}
        runtime = _import_runtime()
        _require_backends(runtime, plans)
        full = runtime.Verification.InternalConsistency
        self._methods: dict[str, Any] = {}
        if weights is None:
            # Loaded as a program, methods lie in the same memory, and so does the state they share.
            program = runtime._load_program_from_buffer(data, program_verification=full)
            self._load = program.load_method
            return
        if any(len(plan["non_const_buffer_sizes"] or ()) > STATE_ARENA for plan in plans):
            raise LoadError(
                "ExecuTorch's Python cannot load methods that share state with weights beside them"
                "\n  instead: weights in the file, or Module with share_memory_arenas in C++"
            )
        load = runtime._load_for_executorch_from_buffer
        module = load(data, data_map_buffer=weights, program_verification=full)
        self._load = lambda name: _ModuleMethod(module, name)

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
        pairs = zip(inputs, wanted, strict=True)
        given = [_lay_out(at, v, t) for at, (v, t) in enumerate(pairs)]
        if method not in self._methods:
            self._methods[method] = self._load(method)
        return list(self._methods[method].call(given))


@dataclass(frozen=True)
class _ModuleMethod:
    module: Any
    name: str

    def call(self, inputs: Sequence[Any]) -> Any:
        return self.module.run_method(self.name, tuple(inputs))


def load_runtime(file: AnyFile, weights: AnyFile | None = None) -> LoadedProgram:
    """Load a file into the runtime, and that with its weights, if they are beside."""
    if weights is None and not isinstance(file, bytes) and os.path.exists(weights_path(file)):
        weights = weights_path(file)
    return LoadedProgram(_read(file), None if weights is None else _read(weights))


def weights_path(path: str | os.PathLike[str]) -> str:
    """Where the weights of a file are, if they are beside."""
    return os.path.splitext(os.fspath(path))[0] + ".ptd"


def _read(file: AnyFile) -> bytes:
    if isinstance(file, (str, os.PathLike)):
        with open(file, "rb") as opened:
            return opened.read()
    return bytes(file)


def _import_runtime() -> Any:
    try:
        return import_module(_RUNTIME)
    except ModuleNotFoundError as error:
        raise LoadError(
            "the ExecuTorch runtime is not installed\n  instead: pip install executorch"
        ) from error
    except ImportError as error:
        raise LoadError(
            f"the ExecuTorch runtime that is installed does not load: {error}\n"
            f"  why: its wheel is built for one version of torch, and this is {torch.__version__}\n"
            "  instead: pip install the version of executorch that was released with this torch"
        ) from error


def _require_backends(runtime: Any, plans: Sequence[dict[str, Any]]) -> None:
    """Refuse a file with delegates of a backend that the runtime has not, before it does."""
    there = runtime._get_registered_backend_names()
    for plan in plans:
        for delegate in plan["delegates"] or ():
            if delegate["id"] not in there:
                raise LoadError(
                    f"the method {plan['name']!r} needs the backend {delegate['id']!r}, and this "
                    f"runtime has {', '.join(there)}\n  instead: a build of the runtime with it"
                )


def _lay_out(at: int, value: Any, wanted: dict[str, Any]) -> Any:
    """A tensor in the layout that the method reads: the runtime copies bytes, and asks nothing.
    What would end the process is refused."""
    if wanted[""] != "Tensor":
        return value
    sizes, bounded = list(wanted["sizes"] or ()), wanted["shape_dynamism"] == DYNAMIC_BOUND
    if not _fits(value, wanted["scalar_type"], sizes, bounded):
        limit = "at most " if bounded else ""
        raise LoadError(
            f"input {at} is {_describe(value)}; the method takes a tensor on the CPU of "
            f"{_DTYPE_NAMES.get(wanted['scalar_type'], '?')} and {limit}{sizes}"
        )
    plain = value.detach()
    if type(plain) is not torch.Tensor:
        plain = plain.as_subclass(torch.Tensor)
    order = list(wanted["dim_order"] or b"")
    is_last = order == [0, 2, 3, 1]
    return plain.contiguous(
        memory_format=torch.channels_last if is_last else torch.contiguous_format
    )


def _fits(value: Any, dtype: int, sizes: list[int], bounded: bool) -> bool:
    if not isinstance(value, torch.Tensor) or DTYPES.get(value.dtype) != dtype:
        return False
    if value.device.type != "cpu" or value.layout is not torch.strided:
        return False
    if bounded:
        return value.ndim == len(sizes) and all(map(operator.le, value.shape, sizes))
    return list(value.shape) == sizes


def _describe(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}"
    kind = "" if value.layout is torch.strided else "sparse, "
    return f"a tensor of {value.dtype} and {list(value.shape)} ({kind}{value.device})"


_DTYPE_NAMES = {number: str(dtype) for dtype, number in DTYPES.items()}
