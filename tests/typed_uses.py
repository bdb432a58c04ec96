"""Uses of the public names that type checkers take, and mistakes that they find: each has a comment
which mypy calls needless if it finds nothing there. Nothing runs this; `make test` checks it."""

from __future__ import annotations

import torch
from torch import nn

import lostwax
from lostwax import Dim


def use(module: nn.Module, x: torch.Tensor) -> bytes:
    program = lostwax.export(module, (x,), dynamic_shapes={"x": {0: Dim("batch", max=8)}})
    executable = program.to_edge().to_executable()
    buffer: bytes = executable.buffer
    lostwax.interop.to_torch(program)
    return buffer


def mistake(module: nn.Module, x: torch.Tensor) -> None:
    lostwax.exprot(module, (x,))  # type: ignore[attr-defined]
    lostwax.interop.to_troch  # type: ignore[attr-defined]  # noqa: B018
    lostwax.ops.egde  # type: ignore[attr-defined]  # noqa: B018
    lostwax.export(module, "x")  # type: ignore[arg-type]
    lostwax.export(module, x, dynamic_shapes={0: Dim("batch")})  # type: ignore[dict-item]
    lostwax.export(module, x, dynamic_shape=None)  # type: ignore[call-arg]
    program = lostwax.export(module, x)
    program.to_edgy()  # type: ignore[attr-defined]
    program.to_edge(konfig=None)  # type: ignore[call-arg]
    program.to_edge().to_executabel()  # type: ignore[attr-defined]
    program.to_edge().to_executable().bufer  # type: ignore[attr-defined]  # noqa: B018
    size: int = program.to_edge().to_executable().buffer  # type: ignore[assignment]
    print(size)
