"""`to_torch` and `from_torch`: a program of ours as torch's `ExportedProgram`, and the other way.

Nothing is traced again, nothing is written to a file and no weight is copied: state is passed by
reference. `to_torch` fills torch's classes itself (`building.py`), in about the time of an export;
torch's verifier passes on what it makes, and is not run. `from_torch` goes the long way: torch's
serializer makes the records that files hold, and these are read (`lostwax.pt2`).
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
from lostwax.interop.building import build_program
from lostwax.interop.numbers import PeerNumbers
from lostwax.interop.values import PeerValues
from lostwax.ir.passes.transforms.copies import SeparateWrites, lent_state, needs_copies
from lostwax.ir.passes.transforms.gradients import PlainGradients, has_custom_gradients
from lostwax.ir.program import ExportedProgram, check_is_program
from lostwax.ir.run.write_back import copy_with_strides
from lostwax.pt2.graph.decode import decode
from lostwax.pt2.plain import make_plain
from lostwax.types import TensorType

if TYPE_CHECKING:
    import torch.export


def to_torch(
    program: ExportedProgram, *, plain_names: bool = False
) -> torch.export.ExportedProgram:
    """Make a `torch.export.ExportedProgram` of a program, for consumers that take torch's own.

    Both share parameters, buffers and constants. Only a buffer that is replaced in each call, and
    shares memory with another one, is copied. The backwards of `torch.autograd.Function`s are left
    out: torch has no form for them.

    A dim that was declared as `batch` is `s_batch` in torch's program. With `plain_names` it is
    `batch`, for torch.onnx.export and others that do not compile: Inductor needs the `s`.
    """
    check_is_program(program, "to_torch")
    return build_program(*prepare(program), plain_names)


def prepare(
    program: ExportedProgram,
) -> tuple[ExportedProgram, dict[str, Any], dict[str, Any]]:
    """A program that torch can run as its own, its state and its constants."""
    if has_custom_gradients(program):
        program = PlainGradients()(program)
    replaced = lent_state(program)
    if needs_copies(program):
        program = SeparateWrites()(program)
    program = make_plain(program)
    held = (program.state_dict, program.constants)
    state, constants = (_with_own_memory(each, replaced) for each in held)
    return program, state, constants


def show_values(program: ExportedProgram) -> dict[str, Any]:
    """What `meta["val"]` of the program's nodes is to torch: its own fake tensors, by the names of
    the nodes. Nothing, if torch has no form for the program."""
    try:
        values = PeerValues(PeerNumbers(program, plain_names=False))
        nodes = [node for node in program.graph.nodes if "val" in node.meta]
        return {node.name: values.value(node.meta["val"]) for node in nodes}
    except Exception:  # of any class: whatever torch stumbles over
        return {}


def from_torch(program: torch.export.ExportedProgram) -> ExportedProgram:
    """Make a program of a `torch.export.ExportedProgram`. Both share their state."""
    from torch._export.serde import serialize

    if isinstance(program, ExportedProgram):
        raise TypeError("from_torch takes torch's programs; this is one of lostwax already")
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
    state = {name: _with_own_fake(mode, value) for name, value in program.state_dict.items()}
    constants = {name: _with_own_fake(mode, value) for name, value in program.constants.items()}
    ours = decode(given, state, constants, "a torch.export.ExportedProgram")
    ours.example_inputs = program.example_inputs
    return ours


def _without_data(program: torch.export.ExportedProgram) -> Any:
    """A copy of the program without data, for a serializer that would pickle all of it."""
    bare: Any = copy.copy(program)
    bare._example_inputs = None
    for name in ("_state_dict", "_constants"):
        held = getattr(program, name).items()
        setattr(bare, name, {key: _make_small(value) for key, value in held})
    return bare


def _make_small(value: Any) -> Any:
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(torch.empty(0), requires_grad=False)
    return torch.empty(0) if isinstance(value, torch.Tensor) else value


def _with_own_memory(state: Mapping[str, Any], replaced: Iterable[torch.Tensor]) -> dict[str, Any]:
    """The state, with copies of some tensors in their place."""
    own = ByIdentity[Any, torch.Tensor]()
    for tensor in replaced:
        if not isinstance(tensor, FakeTensor):
            copy = copy_with_strides(tensor.detach()).requires_grad_(tensor.requires_grad)
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            own[tensor] = torch.nn.Parameter(copy, copy.requires_grad) if is_parameter else copy
    copies = {name: own.get(value) for name, value in state.items()}
    return {name: value if copies[name] is None else copies[name] for name, value in state.items()}


def _with_own_fake(mode: FakeTensorMode, value: Any) -> Any:
    """A tensor of the state for lostwax: one of torch's fakes becomes one of ours."""
    from torch._subclasses import FakeTensor as PeerTensor

    if not isinstance(value, PeerTensor):
        return value
    layout = tuple(int(s) for s in value.shape), tuple(int(s) for s in value.stride())
    t = TensorType(layout[0], value.dtype, value.device, layout[1])
    made = new_fake(mode, t, requires_grad=value.requires_grad)
    if isinstance(value, torch.nn.Parameter):
        made._is_param = True
    return made
