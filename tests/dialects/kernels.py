"""Which calls of operators the runtime's own kernels take: each is a file of one instruction, and
runs in a process that may end, since some kernels end it for a dtype that they have not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer as load
from torch._ops import OpOverload

from lostwax.dialects.edge_operators import find_out_variant
from lostwax.pte.emit import emit_file
from lostwax.pte.lowering.kernels import kernel_names, kernel_parameters
from lostwax.pte.lowering.listing import Call, Listing, Number, Storage, Tensor
from lostwax.pte.lowering.writer import CallWriter

ALIGNMENT = 64
DRAWN = ("rand", "native_dropout")
UNSAID = ("empty",)
"""Operators whose values are not to be compared: those that draw them, those that leave them."""

Trial = tuple[dict[str, Any], Sequence[torch.Tensor]]
"""The arguments of a call by name, and the tensors that torch's kernel returns for them."""


def find_kernel(op: OpOverload) -> str:
    """The runtime's kernel for an operator, or for its out variant; "" if it has none."""
    variants = [each._schema for each in (op, find_out_variant(op)) if each is not None]
    names = [f"{each.name}.{each.overload_name}".removesuffix(".") for each in variants]
    return next((name for name in names if name in kernel_names()), "")


def judge(op: OpOverload, trials: Sequence[Trial]) -> list[bool]:
    """For each call whether the runtime's kernel takes it, and gives what torch's gives."""
    kernel = find_kernel(op)
    if not kernel:
        return [False] * len(trials)
    is_compared = not op._schema.name.removeprefix("aten::").startswith((*DRAWN, *UNSAID))
    found: list[bool] = []
    while len(found) < len(trials):
        found += _run_apart(kernel, trials[len(found) :], is_compared)
    return found


def _run_apart(kernel: str, trials: Sequence[Trial], is_compared: bool) -> list[bool]:
    """What becomes of the first of these calls, at least of one: as many as a process outlives, and
    the one that ends it."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        _answer(writes, kernel, trials, is_compared)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        answers = [bool(byte) for byte in pipe.read()]
    os.waitpid(child, 0)
    return answers if len(answers) == len(trials) else [*answers, False]


def _answer(pipe: int, kernel: str, trials: Sequence[Trial], is_compared: bool) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what the runtime says of each refusal
    for given, wanted in trials:
        os.write(pipe, bytes([_is_taken(kernel, given, wanted, is_compared)]))
    os._exit(0)


def _is_taken(
    kernel: str, given: dict[str, Any], wanted: Sequence[torch.Tensor], is_compared: bool
) -> bool:
    try:
        data, inputs = write_call(kernel, given, wanted)
        results = load(data).run_method("forward", inputs)
    except Exception:
        return False
    if not is_compared:
        return True
    return all(map(is_close, results, wanted))


def is_close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Within what half precision leaves of a sum that is rounded at each step."""
    a, b = found.to(torch.complex128), wanted.to(torch.complex128)
    finite = b[b.isfinite()].abs()
    scale = max(1.0, float(finite.max())) if finite.numel() else 1.0
    return found.shape == wanted.shape and torch.allclose(a, b, 0, 5e-2 * scale, equal_nan=True)


def write_call(
    kernel: str, given: dict[str, Any], wanted: Sequence[torch.Tensor]
) -> tuple[bytes, tuple[torch.Tensor, ...]]:
    """A file with one call, and its inputs."""
    writer, place = _Writer(), _Arena()
    parameters = [p for p in kernel_parameters(kernel) if not p.is_out]
    args = [place.put(given.get(p.name, p.default)) for p in parameters]
    inputs, outs = list(place.tensors), [place.new(tensor) for tensor in wanted]
    if wanted:
        writer.call(kernel, *args, outs=outs)
    else:
        number = Number()
        writer.listing.steps.append(Call(kernel, [*args, number], (number,)))
    writer.listing.inputs, writer.listing.outputs = inputs, list(outs)
    chunks = emit_file([writer.listing], [[place.size]], {}).chunks
    return b"".join(map(bytes, chunks)), tuple(place.values)


class _Writer(CallWriter):
    def __init__(self) -> None:
        super().__init__(Listing("forward"))


class _Arena:
    """Tensors one behind the other."""

    def __init__(self) -> None:
        self.size = 0
        self.tensors: list[Tensor] = []
        self.values: list[torch.Tensor] = []

    def put(self, value: Any) -> Any:
        """An argument with tensors of the listing in place of torch's, which are inputs."""
        if isinstance(value, (list, tuple)):
            return [self.put(each) for each in value]
        if not isinstance(value, torch.Tensor):
            return value
        self.values.append(value.contiguous())
        self.tensors.append(self.new(value))
        return self.tensors[-1]

    def new(self, like: torch.Tensor) -> Tensor:
        nbytes, offset = like.numel() * like.itemsize, self.size
        self.size += -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        storage = Storage(nbytes, is_given=True, offset=offset)
        return Tensor(tuple(like.shape), like.dtype, storage, tuple(like.shape))
