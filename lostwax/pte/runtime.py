"""Runs a `.pte` file in the ExecuTorch runtime: that of lostwax-run where it is installed, else
that of ExecuTorch's own Python.

Must not be needed to write a file.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, cast

import torch

from lostwax.errors import LoadError, did_you_mean
from lostwax.location import user_location
from lostwax.pte.file.reader import read_file
from lostwax.pte.file.schema import DTYPES, DYNAMIC_BOUND
from lostwax.pte.lowering.listing import STATE_ARENA

_RUNTIME = "executorch.extension.pybindings.portable_lib"


AnyFile = str | os.PathLike[str] | bytes
Plans = Sequence[dict[str, Any]]
Call = Callable[[Sequence[Any]], Sequence[Any]]
"""A method that is loaded."""
Runtime = Callable[[bytes, bytes | None, Plans], Callable[[str], Call]]
"""Loads a file; what it returns loads a method by its name."""


def run(
    file: AnyFile,
    inputs: Sequence[Any],
    *,
    method: str = "forward",
    weights: AnyFile | None = None,
) -> list[Any]:
    """Run a `method` of a `file`, a path or its bytes, once with a flat list of `inputs` and return
    its results, a flat list. Tensors are laid out as the method expects them. `weights` is the file
    with weights that are beside; else it is looked for there."""
    return load_runtime(file, weights).run(inputs, method=method)


_FLAT = "a method takes its inputs one by one, as the example's leaves were"


class LoadedProgram:
    """A file in the runtime: methods keep their state from call to call, and share it."""

    def __init__(
        self, data: bytes, weights: bytes | None = None, runtime: Runtime | None = None
    ) -> None:
        plans = read_file(data).program["execution_plan"] or ()
        self._plans = {plan["name"]: plan for plan in plans}
        self._load = (runtime or load_anywhere)(data, weights, plans)
        self._methods: dict[str, Call] = {}

    @property
    def methods(self) -> set[str]:
        return set(self._plans)

    def run(self, inputs: Sequence[Any], *, method: str = "forward") -> list[Any]:
        """Run a method and return its results."""
        plan = self._plans.get(method)
        if plan is None:
            near = did_you_mean(method, self._plans)
            raise LoadError(
                f"there is no method {method!r}{near}; there are {sorted(self._plans)}\n"
                "  why: a file has the methods that it was written with\n"
                f"  instead: method={next(iter(self._plans), 'forward')!r}"
            )
        wanted = [plan["values"][i]["val"] for i in plan["inputs"] or ()]
        if isinstance(inputs, torch.Tensor):
            raise LoadError(
                f"{method!r} is given a tensor, not a list of its inputs\n  why: {_FLAT}\n"
                "  instead: a list of it, run(file, [x])"
            )
        if len(wanted) != len(inputs):
            raise LoadError(
                f"{method!r} takes {len(wanted)} inputs, {len(inputs)} are given\n  why: {_FLAT}\n"
                f"  instead: a list of {len(wanted)}, structures taken apart in their order"
            )
        pairs = zip(inputs, wanted, strict=True)
        given = [lay_out(at, v, t) for at, (v, t) in enumerate(pairs)]
        if method not in self._methods:
            self._methods[method] = self._load(method)
        return list(self._methods[method](given))


def load_anywhere(data: bytes, weights: bytes | None, plans: Plans) -> Callable[[str], Call]:
    """Load a file into lostwax-run's runtime, if it is there and has what the file needs; else into
    ExecuTorch's."""
    return load_lostwax_run(data, weights, plans) or load_executorch(data, weights, plans)


def load_lostwax_run(
    data: bytes, weights: bytes | None, plans: Plans
) -> Callable[[str], Call] | None:
    try:
        package = import_module("lostwax_run")
    except ImportError:
        return None
    try:
        program = package.Program(data, weights)
    except package.RunError as error:
        raise LoadError(str(error)) from error
    if program.missing:  # ExecuTorch's Python has kernels more
        return None
    return bind_lostwax_run(package, program)


def bind_lostwax_run(package: Any, program: Any) -> Callable[[str], Call]:
    """The methods of a program of lostwax-run's, with tensors in and out."""

    def load(name: str) -> Call:
        def call(inputs: Sequence[Any]) -> list[Any]:
            try:
                results = program.run(*map(_as_array, inputs), method=name)
            except package.RunError as error:
                raise RuntimeError(str(error)) from error
            specs = program.describe(name).outputs
            return [_as_tensor(r, spec.dtype) for r, spec in zip(results, specs, strict=True)]

        return call

    return load


def _as_array(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return (value.view(torch.uint16) if value.dtype == torch.bfloat16 else value).numpy()


def _as_tensor(value: Any, dtype: str) -> Any:
    if not hasattr(value, "dtype"):
        return value
    found = torch.from_numpy(value)
    return found.view(torch.bfloat16) if dtype == "bfloat16" else found


def load_executorch(data: bytes, weights: bytes | None, plans: Plans) -> Callable[[str], Call]:
    runtime = _import_runtime()
    _require_backends(runtime, plans)
    load_kernels([_name_kernel(op) for plan in plans for op in plan["operators"] or ()])
    full = runtime.Verification.InternalConsistency
    if weights is None:
        # Loaded as a program, methods lie in the same memory, and so does the state they share.
        program = runtime._load_program_from_buffer(data, program_verification=full)

        def load(name: str) -> Call:
            assert data  # the runtime only points into it: it lives as long as this
            return cast(Call, program.load_method(name).call)

        return load
    if any(len(plan["non_const_buffer_sizes"] or ()) > STATE_ARENA for plan in plans):
        raise LoadError(
            "ExecuTorch's Python cannot load methods that share state with weights beside them"
            "\n  instead: lostwax-run (docs/recipes/run-without-torch.md), weights in the file, or "
            "Module with share_memory_arenas in C++"
        )
    from_buffers = runtime._load_for_executorch_from_buffer
    module = from_buffers(data, data_map_buffer=weights, program_verification=full)

    def load_of_module(name: str) -> Call:
        return lambda inputs: (data, weights) and module.run_method(name, tuple(inputs))

    return load_of_module


def load_runtime(file: AnyFile, weights: AnyFile | None = None) -> LoadedProgram:
    """Load a file into the runtime, and that with its weights, if they are beside."""
    if weights is None and not isinstance(file, bytes) and os.path.exists(weights_path(file)):
        weights = weights_path(file)
    return LoadedProgram(_read(file), None if weights is None else _read(weights))


def weights_path(path: str | os.PathLike[str]) -> str:
    """Where the weights of a file are, if they are beside."""
    return os.path.splitext(os.fspath(path))[0] + ".ptd"


def record_path(path: str | os.PathLike[str]) -> str:
    """Where the ETRecord of a file is, if there is one."""
    return os.path.splitext(os.fspath(path))[0] + ".etrecord"


def bundle_path(path: str | os.PathLike[str]) -> str:
    """Where the bundled program of a file is, if there is one."""
    return os.path.splitext(os.fspath(path))[0] + ".bpte"


def _read(file: AnyFile) -> bytes:
    if isinstance(file, (str, os.PathLike)):
        try:
            with open(file, "rb") as opened:
                return opened.read()
        except FileNotFoundError as error:
            error.add_note(f"  at {user_location()}")
            folder = os.path.abspath(os.path.dirname(file))
            error.add_note(f"  why: there is no such file in {folder}")
            error.add_note("  instead: program.to_edge().to_executable().save(path) writes it")
            raise
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


_LIBRARIES = {
    "llama": "executorch.extension.llm.custom_ops.custom_ops",
    "quantized_decomposed": "executorch.kernels.quantized",
}
"""The modules of ExecuTorch's that bring kernels beside those that every runtime has."""


def load_kernels(names: Sequence[str]) -> None:
    """Load the kernels with these names into the runtime, if ExecuTorch's Python has them. (The
    runtime itself says which it has not.)"""
    wanted = {name.partition("::")[0] for name in names} & _LIBRARIES.keys()
    if wanted:
        _import_runtime()
    for each in sorted(wanted):
        import_module(_LIBRARIES[each])


def _name_kernel(operator: dict[str, Any]) -> str:
    overload = operator["overload"]
    return f"{operator['name']}.{overload}" if overload else str(operator["name"])


def lay_out(at: int, value: Any, wanted: dict[str, Any]) -> Any:
    """A tensor in the layout that the method reads: the runtime copies bytes, and asks nothing.
    What would end the process is refused."""
    if wanted[""] != "Tensor":
        return value
    sizes, bounded = list(wanted["sizes"] or ()), wanted["shape_dynamism"] == DYNAMIC_BOUND
    if not _fits(value, wanted["scalar_type"], sizes, bounded):
        limit = "at most " if bounded else ""
        dtype = _DTYPE_NAMES.get(wanted["scalar_type"], "?")
        raise LoadError(
            f"input {at} is {_describe(value)}; the method takes a tensor on the CPU of "
            f"{dtype} and {limit}{sizes}\n"
            "  why: its memory is planned for the dtypes and sizes of the example\n"
            f"  instead: {_propose(value, dtype)}"
        )
    plain = value.detach()
    if type(plain) is not torch.Tensor:
        plain = plain.as_subclass(torch.Tensor)
    order = list(wanted["dim_order"] or b"")
    is_last = order == [0, 2, 3, 1]
    return plain.contiguous(
        memory_format=torch.channels_last if is_last else torch.contiguous_format
    )


def _propose(value: Any, dtype: str) -> str:
    if not isinstance(value, torch.Tensor):
        return "torch.as_tensor(x)"
    if str(value.dtype) != dtype:
        return f"x.to({dtype})"
    if value.device.type != "cpu":
        return "x.cpu()"
    return "an input of that size; or export it with dynamic_shapes, which have the greatest sizes"


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
