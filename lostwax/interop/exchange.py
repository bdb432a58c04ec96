"""`to_torch` and `from_torch`: a program of ours as torch's `ExportedProgram`, and the other way.

Nothing is traced again, nothing written and no weight copied: graph and signature go by way of the
records that files hold (`lostwax.pt2`), state by reference. Symbols, ranges and guards are made in
torch's own ShapeEnv by torch's own reader, which also verifies the program.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from lostwax import torch_version
from lostwax.errors import LoadError, LostwaxError
from lostwax.fake import FakeTensor, FakeTensorMode
from lostwax.fake.tensor import new_fake
from lostwax.identity import ByIdentity
from lostwax.ir.passes.transforms.copies import SeparateWrites, lent, needs_copies
from lostwax.ir.passes.transforms.gradients import PlainGradients, has_custom_gradients
from lostwax.ir.program import ExportedProgram
from lostwax.ir.run.write_back import copied
from lostwax.pt2.graph.decode import decode
from lostwax.pt2.graph.encode import encode
from lostwax.types import TensorType

if TYPE_CHECKING:
    import torch.export


def to_torch(program: ExportedProgram) -> torch.export.ExportedProgram:
    """The program as a `torch.export.ExportedProgram`, for torch's own consumers.

    It shares parameters, buffers and constants with the program; but for a buffer that is replaced
    in each call and lies in the memory of another. Backwards of the program's own
    (`torch.autograd.Function`) are left out, as torch knows none.
    """
    from torch._export.serde import schema, serialize

    if has_custom_gradients(program):
        program = PlainGradients()(program)
    replaced = lent(program)
    if needs_copies(program):
        program = SeparateWrites()(program)
    records: Any = serialize._dict_to_dataclass(schema.ExportedProgram, _plain(encode(program)))
    return serialize.ExportedProgramDeserializer().deserialize(
        records,
        _faked(_with_own_memory(program.state_dict, replaced)),
        _faked(_with_own_memory(program.constants, replaced)),
        program.example_inputs,
    )


def from_torch(program: torch.export.ExportedProgram) -> ExportedProgram:
    """A `torch.export.ExportedProgram` as a program of ours, with the same state."""
    from torch._export.serde import serialize

    try:
        serializer = serialize.ExportedProgramSerializer()
        if torch_version.SERIALIZER_LEAVES_OUT:
            leave_out = ("state_dict", "constants", "example_inputs")
            records = serializer.serialize(program, **{f"serialize_{n}": False for n in leave_out})
        else:
            records = serializer.serialize(_without_data(program))
    except LostwaxError:
        raise
    except Exception as error:  # of any class: whatever a graph holds that the schema does not
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise LoadError(
            f"torch.export has no form for a part of this program: {reason}",
            ("a torch.export.ExportedProgram",),
        ) from error
    given = json.loads(serialize._to_json_bytes(records.exported_program))
    mode = FakeTensorMode()
    state = {name: _unfaked(mode, value) for name, value in program.state_dict.items()}
    constants = {name: _unfaked(mode, value) for name, value in program.constants.items()}
    ours = decode(given, state, constants, "a torch.export.ExportedProgram")
    ours.example_inputs = program.example_inputs
    return ours


def _without_data(program: torch.export.ExportedProgram) -> Any:
    """The program for a serializer that pickles what it does not need."""
    bare: Any = copy.copy(program)
    bare._example_inputs = None
    for name in ("_state_dict", "_constants"):
        held = getattr(program, name).items()
        setattr(bare, name, {key: _small(value) for key, value in held})
    return bare


def _small(value: Any) -> Any:
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(torch.empty(0), requires_grad=False)
    return torch.empty(0) if isinstance(value, torch.Tensor) else value


def _plain(records: dict[str, Any]) -> dict[str, Any]:
    """Without our own record, which torch's classes have no field for."""
    return {key: value for key, value in records.items() if key != "lostwax"}


def _with_own_memory(state: Mapping[str, Any], replaced: Iterable[torch.Tensor]) -> dict[str, Any]:
    """The state, with copies of some tensors in their place."""
    own = ByIdentity[Any, torch.Tensor]()
    for tensor in replaced:
        if not isinstance(tensor, FakeTensor):
            copy = copied(tensor.detach()).requires_grad_(tensor.requires_grad)
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            own[tensor] = torch.nn.Parameter(copy, copy.requires_grad) if is_parameter else copy
    copies = {name: own.get(value) for name, value in state.items()}
    return {name: value if copies[name] is None else copies[name] for name, value in state.items()}


def _faked(state: Mapping[str, Any]) -> dict[str, Any]:
    """State for torch: weights without data become torch's fakes."""
    if not any(isinstance(value, FakeTensor) for value in state.values()):
        return dict(state)
    from torch._subclasses import FakeTensorMode as PeerMode

    with PeerMode():
        return {name: _peer_fake(value) for name, value in state.items()}


def _peer_fake(value: Any) -> Any:
    if not isinstance(value, FakeTensor):
        return value
    t = value.fake_type
    sizes: Any = (t.size, t.stride)
    made = torch.empty_strided(*sizes, dtype=t.dtype, device=t.device)
    if getattr(value, "_is_param", False):
        return torch.nn.Parameter(made, requires_grad=value.requires_grad)
    return made


def _unfaked(mode: FakeTensorMode, value: Any) -> Any:
    """State for us: torch's fakes become ours."""
    from torch._subclasses import FakeTensor as PeerTensor

    if not isinstance(value, PeerTensor):
        return value
    layout = tuple(int(s) for s in value.shape), tuple(int(s) for s in value.stride())
    t = TensorType(layout[0], value.dtype, value.device, layout[1])
    made = new_fake(mode, t, requires_grad=value.requires_grad)
    if isinstance(value, torch.nn.Parameter):
        made._is_param = True
    return made
