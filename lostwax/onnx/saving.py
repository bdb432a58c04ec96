"""`save`: an ONNX model into a file, its weights in it or beside it.

A path is replaced only when all is written. The same program gives the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import IO, Any

import onnx_ir as ir
from torch._ops import OpOverload

from lostwax.errors import OnnxError
from lostwax.ir.decompose.expander import Decomposition
from lostwax.ir.program import ExportedProgram
from lostwax.onnx.functions import Wanted
from lostwax.onnx.model import to_onnx
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
    external_data: bool | None = None,
    functions: Wanted = False,
    matmul_nbits: bool = False,
) -> ir.Model:
    """Write a program to an ONNX file; `opset`, `decompositions`, `functions` and `matmul_nbits`
    are those of `to_onnx`.

    Weights lie in the file, or, with `external_data=True`, and where there are more than 1.5 GB of
    them, in a second file beside it: `model.onnx.data`. Returns the model that was written.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise OnnxError(
            f"a model is written to a path, not to a {type(path).__name__}\n"
            '  instead: lostwax.onnx.save(program, "model.onnx")'
        )
    model = to_onnx(
        program,
        opset=opset,
        decompositions=decompositions,
        functions=functions,
        matmul_nbits=matmul_nbits,
    )
    save_model(model, path, external_data)
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
    with _WeightsBeside(model, f"{target}.data") as weights:
        replace_files({weights.path: weights.write, target: lambda file: file.write(encode(model))})


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

    def __init__(self, model: ir.Model, path: str) -> None:
        self.path = path
        self.places: list[tuple[int, ir.Value, Any]] = []
        at = 0
        for value in model.graph.initializers.values():
            data: Any = value.const_value
            if data is None or data.nbytes < _LEAST_BESIDE:
                continue
            at = -(-at // _PAGE) * _PAGE  # a page each: runtimes map them
            self.places.append((at, value, data))
            value.const_value = ir.ExternalTensor(
                os.path.basename(path),
                at,
                data.nbytes,
                data.dtype,
                shape=data.shape,
                name=str(value.name),
                base_dir=os.path.dirname(path),
            )
            at += data.nbytes

    def __enter__(self) -> _WeightsBeside:
        return self

    def __exit__(self, *_: object) -> None:
        for _at, value, data in self.places:
            value.const_value = data

    def write(self, file: IO[bytes]) -> None:
        for at, _, data in self.places:
            file.write(bytes(at - file.tell()))
            data.tofile(file)
