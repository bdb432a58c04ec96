"""`to_torch` and `from_torch`: a program of ours as torch's `ExportedProgram`, and the other way.

Nothing is traced again, nothing is written to a file and no weight is copied: state is passed by
reference. `to_torch` fills torch's classes itself (`building.py`), in about the time of an export;
torch's verifier passes on what it makes, and is not run. `from_torch` reads them (`reading.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from lostwax import collector
from lostwax.fake import FakeTensor
from lostwax.identity import ByIdentity
from lostwax.interop.building import build_program
from lostwax.interop.numbers import PeerNumbers
from lostwax.interop.values import PeerValues
from lostwax.ir.passes.transforms.copies import SeparateWrites, lent_state, needs_copies
from lostwax.ir.passes.transforms.gradients import PlainGradients, has_custom_gradients
from lostwax.ir.program import ExportedProgram, check_is_program
from lostwax.ir.run.write_back import copy_with_strides
from lostwax.ir.signature import list_members
from lostwax.location import warn

if TYPE_CHECKING:
    import torch.export


def to_torch(
    program: ExportedProgram, *, plain_names: bool = False
) -> torch.export.ExportedProgram:
    """Make a `torch.export.ExportedProgram` of a program, for consumers that take torch's own.

    Both share parameters, buffers and constants. Only a buffer that is replaced in each call, and
    shares memory with another one, is copied. A warning tells what torch has no form for: the
    backwards of `torch.autograd.Function`s, and results that are members of an enumeration.

    A dim that was declared as `batch` is `s_batch` in torch's program. With `plain_names` it is
    `batch`, for torch.onnx.export and others that do not compile: Inductor needs the `s`.
    """
    check_is_program(program, "to_torch")
    _warn_of_lost(program)
    with ExitStack() as undo:
        collector.pause(undo.callback)  # the first time loads half of torch
        return build_program(*prepare(program), plain_names)


def _warn_of_lost(program: ExportedProgram) -> None:
    if has_custom_gradients(program):
        warn(
            "the program has a backward of its own (torch.autograd.Function), for which torch has "
            "no form: handed over, the program differentiates what it computes"
        )
    if members := list_members(program.graph_signature):
        warn(
            "torch's programs return no members of an enumeration: handed over, this one returns "
            f"plain numbers or texts in place of {', '.join(map(repr, members))}"
        )


def prepare(
    program: ExportedProgram,
) -> tuple[ExportedProgram, dict[str, Any], dict[str, Any]]:
    """A program that torch can run as its own, its state and its constants."""
    if has_custom_gradients(program):
        program = PlainGradients()(program)
    replaced = lent_state(program)
    if needs_copies(program):
        program = SeparateWrites()(program)
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
    from torch.export.exported_program import ExportedProgram as Peer

    if not isinstance(program, Peer):
        is_ours = isinstance(program, ExportedProgram)
        what = "one of lostwax already" if is_ours else f"a {type(program).__name__}"
        fix = (
            "use it as it is" if is_ours else "torch.export.export(module, args), or lostwax.export"
        )
        raise TypeError(
            f"from_torch takes torch's programs; this is {what}\n"
            f"  why: it makes a program of lostwax of one of torch's\n  instead: {fix}"
        )
    from lostwax.interop.reading import read_program  # to_torch needs no reader

    with ExitStack() as undo:
        collector.pause(undo.callback)
        return read_program(program)


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
