"""Uses of the public names that type checkers take, and mistakes that they find: each has a comment
which mypy calls needless if it finds nothing there. Nothing runs this; `make test` checks it."""

from __future__ import annotations

import torch
from torch import nn

import lostwax
from lostwax import Dim
from lostwax.dynamic_shapes import ShapesCollection
from lostwax.exported_program import ExportedProgram
from lostwax.graph_signature import InputKind
from lostwax.unflatten import UnflattenedModule


def use(module: nn.Module, x: torch.Tensor) -> bytes:
    program = lostwax.export(module, (x,), dynamic_shapes={"x": {0: Dim("batch", max=8)}})
    executable = program.to_edge().to_executable()
    buffer: bytes = executable.buffer
    lostwax.interop.to_torch(program)
    return buffer


def use_modules_of_names(program: ExportedProgram, x: torch.Tensor) -> UnflattenedModule:
    shapes = ShapesCollection()
    shapes[x] = {0: 2 * Dim("half") + 1}
    print(InputKind.PARAMETER)
    return lostwax.unflatten(program)


def mistake(module: nn.Module, x: torch.Tensor) -> None:
    lostwax.exprot(module, (x,))  # type: ignore[attr-defined]
    lostwax.interop.to_troch  # type: ignore[attr-defined]  # noqa: B018
    lostwax.ops.egde  # type: ignore[attr-defined]  # noqa: B018
    lostwax.export(module, "x")  # type: ignore[arg-type]
    lostwax.export(module, x, dynamic_shapes={0: Dim("batch")})  # type: ignore[dict-item]
    lostwax.export(module, x, dynamic_shape=None)  # type: ignore[call-arg]
    lostwax.export(module, x, keep="compsite")  # type: ignore[arg-type]
    Dim("batch", maximum=8)  # type: ignore[call-arg]
    lostwax.dynamic_shapes.Dimm  # type: ignore[attr-defined]  # noqa: B018
    program = lostwax.export(module, x)
    program.to_edgy()  # type: ignore[attr-defined]
    program.to_edge(konfig=None)  # type: ignore[call-arg]
    program.to_edge().to_executabel()  # type: ignore[attr-defined]
    program.to_edge().to_executable().bufer  # type: ignore[attr-defined]  # noqa: B018
    size: int = program.to_edge().to_executable().buffer  # type: ignore[assignment]
    print(size)
