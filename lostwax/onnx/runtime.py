"""Runs an ONNX model in onnxruntime, if that is installed.

Must not be needed to write a file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import onnx_ir as ir
import torch

from lostwax.errors import LoadError, OnnxError
from lostwax.onnx.model import RANGES, STATE
from lostwax.onnx.values import DTYPES
from lostwax.onnx.weights import TURNED

_KINDS = {kind: dtype for dtype, kind in DTYPES.items()}
_TORCH = {kind.value: dtype for kind, dtype in _KINDS.items()}
_NAMES = {"tensor(float)": torch.float32, "tensor(double)": torch.float64} | {
    f"tensor({kind.name.lower()})": dtype for dtype, kind in DTYPES.items()
}
_EXACT = "session.qdq_matmulnbits_accuracy_level"
"""onnxruntime rounds activations to eight bits where weights are of few, unless told not to: what
is compared here is the model."""
_QUIET = 3
"""Errors alone: onnxruntime tells of each initializer that it drops."""


class LoadedModel:
    """A model in onnxruntime. It keeps what the model writes from call to call."""

    def __init__(self, model: str | os.PathLike[str] | bytes | ir.Model, threads: int = 0) -> None:
        runtime = import_runtime()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = _QUIET
        options.add_session_config_entry(_EXACT, "1")
        source: str | bytes
        if isinstance(model, ir.Model):
            source = ir.to_proto(model).SerializeToString()
        else:
            source = model if isinstance(model, bytes) else os.fspath(model)
        try:
            self.session = runtime.InferenceSession(
                source, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its errors have no class of their own
            raise LoadError(
                f"onnxruntime does not load the model: {' '.join(str(error).split())}"
            ) from error
        found = self.session.get_modelmeta().custom_metadata_map
        self.pairs: dict[str, str] = json.loads(found.get(STATE, "{}"))
        """From inputs that are state to the outputs that are handed to them in the next call."""
        self.ranges: dict[str, list[int | None]] = json.loads(found.get(RANGES, "{}"))
        self.shapes = {each.name: list(each.shape) for each in self.session.get_inputs()}
        """Sizes of inputs: numbers, names, formulas."""
        self.inputs = [each.name for each in self.session.get_inputs()]
        """The inputs that a call gives, in order. State has values of its own."""
        held = self.session.get_overridable_initializers()
        self.kinds = {each.name: _NAMES[each.type] for each in (*self.session.get_inputs(), *held)}
        self.state: dict[str, torch.Tensor] = {}

    def __call__(self, *values: Any, **named: Any) -> list[torch.Tensor]:
        """The results for these inputs, tensors and numbers."""
        free = [name for name in self.inputs if name not in named]
        if len(values) > len(free):
            many = f"{len(self.inputs)} input{'s' * (len(self.inputs) != 1)}"
            raise OnnxError(
                f"the model takes {many}, {', '.join(self.inputs)}; {len(values) + len(named)} are "
                "given"
            )
        return [*self.run(dict(zip(free, values, strict=False)) | named).values()]

    def run(self, given: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The results by name, for inputs by name."""
        self._check_names(given)
        fed = {
            name: make_value(name, x, self.kinds[name])
            for name, x in {**self.state, **given}.items()
        }
        names = [each.name for each in self.session.get_outputs()]
        try:
            made = self.session.run_with_ort_values(names, fed)
        except Exception as error:
            raise OnnxError(f"onnxruntime: {' '.join(str(error).split())}") from error
        found = {name: read_value(x) for name, x in zip(names, made, strict=True)}
        self.state |= {name: found.pop(new) for name, new in self.pairs.items()}
        return found

    def _check_names(self, given: Mapping[str, Any]) -> None:
        strange = [name for name in given if name not in self.kinds]
        missing = [name for name in self.inputs if name not in {**self.state, **given}]
        if strange:
            there = ", ".join(self.kinds)
            raise OnnxError(f"there is no input {strange[0]!r}; there is {there}")
        if missing:
            raise OnnxError(
                f"the model takes {', '.join(self.inputs)}; {', '.join(missing)} is not given"
            )


def read_weights(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """What a model holds, by name; matrices that it holds transposed, as they were."""
    found = {}
    for name, value in ir.load(path).graph.initializers.items():
        data = value.const_value
        if data is not None and data.dtype in _KINDS:
            flat = torch.frombuffer(bytearray(data.tobytes()) or bytearray(1), dtype=torch.uint8)
            count = data.size * _KINDS[data.dtype].itemsize
            tensor = flat[:count].view(_KINDS[data.dtype]).reshape(tuple(data.shape.numpy()))
            plain = name.removesuffix(TURNED)
            found[plain] = tensor.t() if plain != name and tensor.dim() == 2 else tensor
    return found


def make_value(name: str, x: Any, kind: torch.dtype) -> Any:
    """A tensor, or a number, as onnxruntime takes it."""
    tensor = x.detach().cpu().contiguous() if isinstance(x, torch.Tensor) else torch.tensor(x)
    if not isinstance(x, torch.Tensor):
        tensor = tensor.to(kind)
    if tensor.dtype is not kind:
        raise OnnxError(f"the input {name!r} is {tensor.dtype}; the model takes {kind}")
    make = import_runtime().OrtValue.ortvalue_from_numpy_with_onnx_type
    if kind.is_floating_point and kind not in (torch.float32, torch.float64, torch.float16):
        tensor = tensor.view(torch.uint16 if kind.itemsize == 2 else torch.uint8)
    return make(tensor.numpy(), DTYPES[kind].value)


def read_value(value: Any) -> torch.Tensor:
    """A tensor of torch's with a result's elements."""
    kind = _TORCH[value.element_type()]
    try:
        return torch.from_numpy(value.numpy())
    except Exception:  # numpy has no such dtype
        return torch.utils.dlpack.from_dlpack(value).view(kind).clone()


def import_runtime() -> Any:
    try:
        return import_module("onnxruntime")
    except ImportError as error:
        raise LoadError(
            f"onnxruntime cannot be loaded: {error}\n  instead: pip install onnxruntime"
        ) from error
