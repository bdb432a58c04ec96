"""The format "lostwax_onnx": `.onnx` files that onnxruntime runs.

A model of ONNX takes and returns tensors in a row. What stands where in a call of the model is
noted in the file. Must not be needed for other formats: onnx_ir is imported when it is used.
"""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.exporters.metadata import ExportMetadata

from lostwax.errors import OnnxError
from lostwax.interop.transformers.conditions import note_conditions
from lostwax.interop.transformers.exporter import LostwaxConfig, LostwaxExporter
from lostwax.interop.transformers.runner import CALL
from lostwax.ir.program import ExportedProgram
from lostwax.ir.signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from lostwax.ops.decompositions.runtime import grouped_mm

_PLAIN = (type(None), bool, int, float, str)


@dataclass
class LostwaxOnnxConfig(LostwaxConfig):
    """How a model is exported to an `.onnx` file."""

    export_format: str = "lostwax_onnx"
    opset: int | None = None
    """The version of ONNX's operators; None: that of `lostwax.onnx.save`."""


class LostwaxOnnxExporter(LostwaxExporter):
    """Exports models of transformers to `.onnx` files; programs are `onnx_ir.Model`."""

    export_format = "lostwax_onnx"
    config_class = LostwaxOnnxConfig
    program_suffix = ".onnx"
    required_packages = ["torch", "onnx_ir"]  # noqa: RUF012 - as its base class declares it

    def export_program(
        self, model: nn.Module, sample_inputs: MutableMapping[str, Any], config: LostwaxOnnxConfig
    ) -> tuple[Any, ExportMetadata]:
        program, metadata = super().export_program(model, sample_inputs, config)
        note_conditions(program, metadata)
        opset = {} if config.opset is None else {"opset": config.opset}
        made = program.to_onnx(decompositions=list_own_operators(), **opset)
        note_call(program, made)
        return made, metadata

    @classmethod
    def save_program(cls, program: Any, path: str | Path) -> None:
        import_module("lostwax.onnx.saving").save_model(program, path, external_data=True)

    @classmethod
    def program_files(cls, filename: str) -> list[str]:
        return [filename, f"{filename}.data"]

    @classmethod
    def load_program(cls, path: str | Path) -> Any:
        model = import_module("onnx_ir").load(str(path))
        model.meta["path"] = str(path)  # from where onnxruntime reads the weights itself
        return model


def list_own_operators() -> dict[Any, Any]:
    """How operators are computed that transformers has itself."""
    operator = getattr(torch.ops.transformers, "grouped_mm_fallback", None)
    return {} if operator is None else {operator.default: grouped_mm}


# ------------------------------------------------------------------------------------------- calls


def note_call(program: ExportedProgram, model: Any) -> None:
    """Tell in the model what each leaf of a call's arguments and results is: a tensor or a number,
    by its name there, or a constant."""
    signature, graph = program.graph_signature, model.graph
    given = [s.arg for s in signature.input_specs if s.kind is InputKind.USER_INPUT]
    wanted = [s.arg for s in signature.output_specs if s.kind is OutputKind.USER_OUTPUT]
    taken = {value.name for value in graph.inputs}
    values = {n.name: n.meta["val"] for n in program.graph.nodes if n.op == "placeholder"}
    written = [arg for arg in wanted if not _is_left_out(arg)]
    names = [value.name for value in graph.outputs][len(graph.outputs) - len(written) :]
    given_out = dict(zip(map(id, written), names, strict=True))
    call = {
        "inputs": [
            _describe(arg, arg.name) if arg.name in taken else _constant(values[arg.name])
            for arg in given
        ],
        "outputs": [_describe(arg, given_out.get(id(arg))) for arg in wanted],
    }
    model.metadata_props[CALL] = json.dumps(call)


def _is_left_out(arg: Any) -> bool:
    """Is a result none of the model's? (It writes numbers, but no texts.)"""
    return isinstance(arg, ConstantArgument) and isinstance(arg.value, (type(None), str))


def _describe(arg: Any, name: str | None) -> tuple[str, Any]:
    if isinstance(arg, ConstantArgument):
        return _constant(arg.value)
    return "tensor" if isinstance(arg, TensorArgument) else "number", name


def _constant(value: Any) -> tuple[str, Any]:
    if not isinstance(value, _PLAIN):
        raise OnnxError(
            f"the model takes or returns {value!r}, a {type(value).__name__}\n"
            "  why: an .onnx file holds tensors, numbers and texts\n"
            "  instead: leave it out, or the format of .pt2 files: LostwaxConfig"
        )
    return "constant", value
