"""Delegates in files: what a backend made, as our own record says it.

Payloads, data beside them and weights are tensors of the archive, in a table of our own. A file is
not trusted: whatever is read here is checked. Must not look into payloads.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import torch

from lostwax.errors import LoadError
from lostwax.ir.graph.delegate import CompileSpec, LoweredBackendModule, held_delegates
from lostwax.ir.program import ExportedProgram
from lostwax.ir.signature import InputKind, InputSpec

Json = Mapping[str, Any]


def describe_delegate(delegate: LoweredBackendModule, number: int) -> dict[str, Any]:
    """The record of a delegate, but for its graph."""
    return {
        "backend": delegate.backend_id,
        "compile_specs": [
            [s.key, base64.b64encode(bytes(s.value)).decode()] for s in delegate.compile_specs
        ],
        "data": {
            name: "tensor" if isinstance(data, torch.Tensor) else "bytes"
            for name, data in delegate.named_data.items()
        },
        "events": [[event, list(names)] for event, names in delegate.events.items()],
    }


def list_held(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """The tensors that the delegates of a program hold, by the names that a file has for them."""
    found: dict[str, torch.Tensor] = {}
    for number, delegate in enumerate(held_delegates(program.graph_module)):
        found[_payload(number)] = _as_tensor(delegate.processed_bytes)
        for name, data in delegate.named_data.items():
            is_tensor = isinstance(data, torch.Tensor)
            found[_data(number, name)] = data.detach() if is_tensor else _as_tensor(data)
        part = delegate.program
        for name, value in {**part.state_dict, **part.constants}.items():
            found[_state(number, name)] = value
    return found


def _payload(number: int) -> str:
    return f"{number}.payload"


def _data(number: int, name: str) -> str:
    return f"{number}.data.{name}"


def _state(number: int, name: str) -> str:
    return f"{number}.state.{name}"


def _as_tensor(data: Any) -> torch.Tensor:
    raw = bytearray(data)
    return torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)


def read_delegate(
    given: Json, number: int, program: ExportedProgram, held: Mapping[str, torch.Tensor]
) -> LoweredBackendModule:
    """The delegate of a record. `program` is its graph; it gets its state here."""
    backend, data, events = given["backend"], given["data"], given["events"]
    if not isinstance(backend, str):
        raise LoadError(f"{backend!r} is no name of a backend")
    for spec in program.graph_signature.input_specs:
        if spec.kind is not InputKind.USER_INPUT:
            _give_state(program, spec, held[_state(number, str(spec.target))])
    return LoweredBackendModule(
        program,
        backend,
        _as_bytes(held[_payload(number)]),
        [_compile_spec(*each) for each in given["compile_specs"]],
        {
            name: held[_data(number, name)]
            if kind == "tensor"
            else _as_bytes(held[_data(number, name)])
            for name, kind in data.items()
        },
        events={_event(event): tuple(map(_name, names)) for event, names in events},
    )


def _give_state(program: ExportedProgram, spec: InputSpec, tensor: torch.Tensor) -> None:
    passing = spec.kind is InputKind.CONSTANT_TENSOR or spec.persistent is False
    place: dict[str, Any] = program.constants if passing else program.state_dict
    place[str(spec.target)] = tensor


def _as_bytes(tensor: torch.Tensor) -> bytes:
    if tensor.dtype is not torch.uint8 or tensor.dim() != 1 or tensor.device.type != "cpu":
        raise LoadError("bytes of a delegate are no row of bytes")
    return tensor.contiguous().numpy().tobytes()


def _compile_spec(key: Any, value: Any) -> CompileSpec:
    try:
        return CompileSpec(_name(key), base64.b64decode(value, validate=True))
    except (binascii.Error, TypeError, ValueError):
        raise LoadError(f"the compile spec {key!r} is damaged") from None


def _event(event: Any) -> int | str:
    if event.__class__ not in (int, str):
        raise LoadError(f"{event!r} is no event of a backend")
    found: int | str = event
    return found


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise LoadError(f"{value!r} is not a name")
    return value
