"""The runners: a program is made ready once, then called as the model was."""

from __future__ import annotations

import json
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from transformers.exporters.metadata import ExportMetadata, load_treespec
from transformers.exporters.runners.base import ModelRunner

from lostwax.errors import InputStructureError, InputValueError, LoadError
from lostwax.interop.transformers.conditions import check_conditions, list_conditions
from lostwax.interop.transformers.containers import hold_all
from lostwax.ir.passes.transforms.device import move_to_device_pass
from lostwax.ir.program import ExportedProgram
from lostwax.pte.executable import ExecutableProgram
from lostwax.pte.runtime import LoadedProgram, load_runtime

CALL, STATE = "lostwax.call", "lostwax.state"
"""Keys of an `.onnx` file: what stands where in a call, and which results are inputs of the next
one."""


class LostwaxRunner(ModelRunner):
    """Runs a program as a module. Inputs and outputs are never copied."""

    def __init__(self, module: nn.Module, metadata: ExportMetadata, device: torch.device) -> None:
        super().__init__(metadata)
        self.module = module
        self._device = device

    @property
    def device(self) -> torch.device:
        return self._device

    @classmethod
    def from_program(
        cls, program: ExportedProgram, metadata: ExportMetadata, device: Any = None
    ) -> LostwaxRunner:
        there = torch.device(metadata.export_device or "cpu")
        to = there if device is None else torch.device(device)
        moved = program if to == there else move_to_device_pass(program, to)
        return cls(moved.module(), metadata, to)

    def __call__(
        self, share_inputs: bool = True, share_outputs: bool = False, **kwargs: Any
    ) -> Any:
        with torch.no_grad():
            return self.module(**complete(self.metadata, kwargs))


class _CheckedRunner(ModelRunner, ABC):
    """Runs a file whose runtime takes and returns values in a row: here is compared what it does
    not compare."""

    def __init__(self, metadata: ExportMetadata) -> None:
        super().__init__(metadata)
        self.in_spec = load_treespec(metadata.in_spec)
        self.names = self.in_spec.child(1).context
        self.conditions = list_conditions(metadata)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @abstractmethod
    def run(self, leaves: list[Any]) -> list[Any]:
        """Call the runtime."""

    def __call__(
        self, share_inputs: bool = True, share_outputs: bool = False, **kwargs: Any
    ) -> Any:
        given = complete(self.metadata, kwargs)
        for name, value in self.metadata.in_constants.items():
            _check_constant(name, given[name], value)
        ordered = {name: given[name] for name in self.names if name in given}
        leaves, spec = pytree.tree_flatten(((), ordered))
        if spec != self.in_spec:
            raise InputStructureError(
                "the inputs are not built like those of the export\n"
                f"  here: {spec}\n  there: {self.in_spec}\n"
                "  instead: pass what the export was given, or export again with these inputs"
            )
        check_conditions(self.conditions, self.in_spec, leaves)
        return pytree.tree_unflatten(self.run(leaves), self.out_spec)


class LostwaxPteRunner(_CheckedRunner):
    """Runs a `.pte` file in the ExecuTorch runtime, which must be installed."""

    def __init__(self, loaded: LoadedProgram, metadata: ExportMetadata) -> None:
        super().__init__(metadata)
        self.loaded = loaded

    @classmethod
    def from_program(
        cls, program: ExecutableProgram | bytes, metadata: ExportMetadata, device: Any = None
    ) -> LostwaxPteRunner:
        _check_device("the ExecuTorch runtime of Python", device, "no device")
        data = program if isinstance(program, bytes) else program.buffer
        return cls(load_runtime(data), metadata)

    def run(self, leaves: list[Any]) -> list[Any]:
        return self.loaded.run(leaves)


class LostwaxOnnxRunner(_CheckedRunner):
    """Runs an `.onnx` file in onnxruntime, which must be installed. Inputs are not copied; what the
    model writes to its state is kept for the next call."""

    def __init__(self, session: Any, metadata: ExportMetadata) -> None:
        super().__init__(metadata)
        self.session = session
        held = session.get_modelmeta().custom_metadata_map
        call = json.loads(held[CALL])
        self._inputs, self._outputs = call["inputs"], call["outputs"]
        self._next: dict[str, str] = json.loads(held.get(STATE, "{}"))
        self._state: dict[str, Any] = {}

    @classmethod
    def from_program(
        cls,
        program: Any,
        metadata: ExportMetadata,
        device: Any = None,
        providers: Sequence[Any] | None = None,
        session_options: Any = None,
    ) -> LostwaxOnnxRunner:
        """`providers` and `session_options` are those of `onnxruntime.InferenceSession`."""
        _check_device("the runner of .onnx files", device, 'providers=["CUDAExecutionProvider"]')
        try:
            make = import_module("onnxruntime").InferenceSession
        except ImportError as error:
            raise LoadError(
                "onnxruntime is not installed\n  instead: pip install onnxruntime"
            ) from error
        chosen = {"providers": list(providers or ["CPUExecutionProvider"])}
        with _as_file(program) as file:
            return cls(make(file, session_options, **chosen), metadata)

    def run(self, leaves: list[Any]) -> list[Any]:
        given = {}
        for leaf, (kind, what) in zip(leaves, self._inputs, strict=True):
            if kind == "constant":
                _check_constant("an input", leaf, what)
            else:
                given[what] = leaf if isinstance(leaf, Tensor) else torch.tensor(leaf)
        feed = self._state | {name: _lend(tensor) for name, tensor in given.items()}
        names = [each.name for each in self.session.get_outputs()]
        found = dict(zip(names, self.session.run_with_ort_values(names, feed), strict=True))
        self._write(given, found)
        return [_read(kind, what, found) for kind, what in self._outputs]

    def _write(self, given: dict[str, Tensor], found: dict[str, Any]) -> None:
        for name, new in self._next.items():
            if name in given:
                with torch.no_grad():
                    given[name].copy_(_take(found[new]))
            else:
                self._state[name] = found[new]


@contextmanager
def _as_file(program: Any) -> Iterator[Any]:
    """What onnxruntime opens for an `onnx_ir.Model`: a path, or bytes, which have 2 GB at most."""
    saving = import_module("lostwax.onnx.saving")
    if "path" in program.meta:
        yield program.meta["path"]
    elif saving.count_bytes(program) <= saving.MOST_INSIDE:
        yield saving.encode(program)
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "model.onnx")
            saving.save_model(program, path)
            yield path


def _lend(tensor: Tensor) -> Any:
    """A tensor as onnxruntime's, in the same memory. (It cannot read torch's form of truths.)"""
    value: Any = import_module("onnxruntime").OrtValue
    plain = tensor.detach().contiguous()
    if plain.dtype is torch.bool:
        return value.ortvalue_from_numpy(plain.numpy())
    return value.from_dlpack(plain)


def _take(value: Any) -> Tensor:
    made: Tensor = torch.utils.dlpack.from_dlpack(value)
    return made.view(torch.bool) if value.data_type() == "tensor(bool)" else made


def _read(kind: str, what: Any, found: dict[str, Any]) -> Any:
    if kind == "constant":
        return what
    made = _take(found[what])
    return made.item() if kind == "number" else made


def _check_device(runtime: str, device: Any, instead: str) -> None:
    if device is not None and torch.device(device).type != "cpu":
        raise LoadError(f"{runtime} runs on the CPU, not on {device}\n  instead: {instead}")


def _check_constant(name: str, here: Any, there: Any) -> None:
    if type(here) is not type(there) or here != there:
        raise InputValueError(
            f"{name} is not {there!r}, with which the program was exported, and which is "
            "baked into it\n  instead: leave it out, or export again with the other one",
            name,
        )


def complete(metadata: ExportMetadata, given: dict[str, Any]) -> dict[str, Any]:
    """The inputs of a call with those that were plain values at the export, and with caches as
    programs have them."""
    return {name: hold_all(v) for name, v in {**metadata.in_constants, **given}.items()}
