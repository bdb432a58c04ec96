"""`save`: an ONNX model into a file, its weights in it or beside it.

A path is replaced only when all is written. The same program gives the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import IO, Any, Literal

import onnx_ir as ir
import torch
from torch._ops import OpOverload

from lostwax.checkpoints.mapped import FilePlace, find_place
from lostwax.errors import OnnxError
from lostwax.ir.decompose.expander import Decomposition
from lostwax.ir.program import ExportedProgram, check_is_program
from lostwax.onnx.functions import Wanted
from lostwax.onnx.model import write_model
from lostwax.onnx.table import USUAL
from lostwax.undo.replace_files import replace_files

MOST_INSIDE = 1_500_000_000
"""Bytes of weights that one file may hold: the format's own limit is 2 GB for all of it."""
_LEAST_BESIDE, _PAGE = 1024, 4096


def save(
    program: ExportedProgram,
    path: str | os.PathLike[str],
    *,
    opset: int = USUAL,
    decompositions: Mapping[OpOverload, Decomposition] | None = None,
    external_data: bool | Literal["checkpoint"] | None = None,
    functions: Wanted = False,
    matmul_nbits: bool = False,
) -> ir.Model:
    """Write a program to an ONNX file at `path`; `opset`, `decompositions`, `functions` and
    `matmul_nbits` are those of `to_onnx`.

    Weights lie in the file, or, with `external_data=True`, and where there are more than 1.5 GB of
    them, in a second file beside it: `model.onnx.data`. With `external_data="checkpoint"` those
    that `lostwax.checkpoint` has read, of files in the same folder or below, are not copied: the
    model refers to them. Returns the model that was written.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise OnnxError(
            f"a model is written to a path, not to a {type(path).__name__}\n"
            '  instead: lostwax.onnx.save(program, "model.onnx")'
        )
    check_is_program(program, "to_onnx")
    options = (program, opset, decompositions or {}, functions, matmul_nbits)
    if external_data != "checkpoint":
        model = write_model(*options)
        save_model(model, path, external_data)
        return model
    folder = os.path.dirname(os.path.abspath(os.fspath(path)))
    _check_files(program, folder)
    model = write_model(*options, stays=lambda data: _find_below(data, folder))
    _save_beside(model, os.fspath(path), partial(_refer, folder=folder))
    return model


def save_model(
    model: ir.Model, path: str | os.PathLike[str], external_data: bool | None = None
) -> None:
    """Write a model, which is as before then, as `save` writes a program."""
    target = os.fspath(path)
    weight = count_bytes(model)
    is_beside = weight > MOST_INSIDE if external_data is None else external_data
    if not is_beside and weight > MOST_INSIDE:
        raise OnnxError(
            f"the weights have {weight:,} bytes\n  why: a file of the format holds 2 GB at most\n"
            "  instead: leave external_data out, or external_data=True"
        )
    if not is_beside:
        replace_files({target: lambda file: file.write(encode(model))})
        return
    _save_beside(model, target, lambda _: None)


def _save_beside(model: ir.Model, target: str, refer: Callable[[Any], Any]) -> None:
    with _WeightsBeside(model, f"{target}.data", refer) as weights:
        files: dict[str | os.PathLike[str], Callable[[IO[bytes]], object]] = {}
        if weights.places:
            files[weights.path] = weights.write
        files[target] = lambda file: file.write(encode(model))
        replace_files(files)


def _check_files(program: ExportedProgram, folder: str) -> None:
    """Can the files of a checkpoint be referred to?"""
    places = [_find_below(tensor, folder) for tensor in program.state_dict.values()]
    files = {place.file for place in places if place is not None}
    if not files:
        raise OnnxError(
            f"no weights lie in .safetensors files of {folder}, or below\n"
            "  why: runtimes read no others, and weights are views of files if lostwax.checkpoint "
            "has read them\n  instead: write the model there; or external_data=True"
        )
    for file in files:
        if not file.is_unchanged():
            raise OnnxError(
                f"weights of {file.path} were changed after they were read\n  why: the file would "
                "be referred to, and has the old ones\n  instead: external_data=True"
            )


def _refer(data: Any, folder: str) -> Any:
    """A tensor of a checkpoint as one of a file that is there; None if it is not one."""
    raw = getattr(data, "raw", None)
    place = _find_below(raw, folder) if isinstance(raw, torch.Tensor) else None
    if place is None:
        return None
    name = os.path.relpath(place.file.path, folder)
    return _make_external(data, name, place.offset, folder)


def _find_below(data: torch.Tensor, folder: str) -> FilePlace | None:
    """Where a tensor lies in a `.safetensors` file of a folder, or of one below: runtimes read no
    others."""
    if data.device.type != "cpu" or not data.is_contiguous() or not data.numel():
        return None
    place = find_place(data.data_ptr())
    if place is None or not place.file.path.endswith(".safetensors"):
        return None
    return place if place.file.path.startswith(os.path.join(folder, "")) else None


def _make_external(data: Any, name: str, offset: int, folder: str) -> ir.ExternalTensor:
    return ir.ExternalTensor(
        name,
        offset,
        data.nbytes,
        data.dtype,
        shape=data.shape,
        name=str(data.name),
        base_dir=folder,
    )


def count_nodes(model: ir.Model) -> int:
    """How many nodes it has, with those of branches and loops."""
    return sum(1 for _ in model.graph.all_nodes())


def count_bytes(model: ir.Model) -> int:
    """Of all weights."""
    held = [v.const_value for v in model.graph.initializers.values()]
    return sum(each.nbytes for each in held if each is not None)


def encode(model: ir.Model) -> bytes:
    """The bytes of a file with all weights in it."""
    made: bytes = ir.to_proto(model).SerializeToString(deterministic=True)
    return made


class _WeightsBeside:
    """The larger initializers of a model, in a file of their own, to which it refers meanwhile."""

    def __init__(self, model: ir.Model, path: str, refer: Callable[[Any], Any]) -> None:
        self.path = path
        self.places: list[tuple[int, Any]] = []
        self._before: list[tuple[ir.Value, Any]] = []
        folder, name = os.path.split(path)
        at = 0
        for value in model.graph.initializers.values():
            data: Any = value.const_value
            there = None if data is None else refer(data)
            if there is None and (data is None or data.nbytes < _LEAST_BESIDE):
                continue
            self._before.append((value, data))
            value.const_value = there
            if there is None:
                at = -(-at // _PAGE) * _PAGE  # a page each: runtimes map them
                self.places.append((at, data))
                value.const_value = _make_external(data, name, at, folder)
                at += data.nbytes

    def __enter__(self) -> _WeightsBeside:
        return self

    def __exit__(self, *_: object) -> None:
        for value, data in self._before:
            value.const_value = data

    def write(self, file: IO[bytes]) -> None:
        for at, data in self.places:
            file.write(bytes(at - file.tell()))
            data.tofile(file)
