"""torch's `ExportedProgram`, made directly of one of ours: its classes are filled, nothing of it is
parsed, traced or run.

Must not change the program; state is passed by reference.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree

from lostwax.fake import FakeTensor
from lostwax.interop.graphs import PeerGraphs
from lostwax.interop.numbers import PeerNumbers
from lostwax.interop.values import PeerValues
from lostwax.ir.data import ModuleCallEntry
from lostwax.ir.program import ExportedProgram
from lostwax.ir.signature import (
    ArgumentSpec,
    ConstantArgument,
    CustomObjArgument,
    InputKind,
    InputSpec,
    OutputSpec,
    strip_class,
)
from lostwax.pt2 import peer
from lostwax.pt2.graph.treespec import namedtuple_fields
from lostwax.pt2.guards import guards_code

if TYPE_CHECKING:
    import torch.export


def build_program(
    program: ExportedProgram, state: Mapping[str, Any], constants: Mapping[str, Any], plain: bool
) -> torch.export.ExportedProgram:
    """torch's program of one of ours that torch can run, with this state."""
    numbers = PeerNumbers(program, plain)
    values = PeerValues(numbers)
    module, nodes = PeerGraphs(numbers, values).convert(program.graph_module)
    numbers.add_ranges(program)
    guards = guards_code(program)
    numbers.add_guards(guards)
    names = {old.name: new.name for old, new in nodes.items() if old.name != new.name}
    signature = _Signature(names)
    calls = [signature.call_entry(entry) for entry in program.module_call_graph]
    trees = [
        tree for e in calls if e.signature for tree in (e.signature.in_spec, e.signature.out_spec)
    ]
    fields = namedtuple_fields(*trees)
    module.meta["treespec_namedtuple_fields"] = {k: v["field_names"] for k, v in fields.items()}
    made: Any = copy.copy(_template())
    vars(made).update({name: copy.copy(held) for name, held in vars(made).items()})
    vars(made).update(
        _graph_module=module,
        _graph_signature=signature.convert(program),
        _state_dict=_hand_over(state, values),
        _constants=_hand_over(constants, values),
        _range_constraints=numbers.ranges,
        _module_call_graph=calls,
        _example_inputs=_hand_over_example(program.example_inputs, values),
        _verifiers=[_verifier(program.dialect)],
        _guards_code=guards,
    )
    return made  # type: ignore[no-any-return]


@cache
def _template() -> Any:
    """An empty program of torch's: it has each attribute that this version gives one."""
    from torch.export.exported_program import ExportedProgram as Peer
    from torch.export.graph_signature import ExportGraphSignature

    graph = torch.fx.Graph()
    graph.output(())
    module = torch.fx.GraphModule({}, graph)
    return Peer(module, graph, ExportGraphSignature([], []), {}, {}, [], None, {})


def _verifier(dialect: str) -> Any:
    from torch._export.verifier import load_verifier

    return load_verifier(dialect)


def _hand_over(held: Mapping[str, Any], values: PeerValues) -> dict[str, Any]:
    """State for torch: weights without data become torch's fakes."""
    return {
        name: _make_fake(value, values) if isinstance(value, FakeTensor) else value
        for name, value in held.items()
    }


def _make_fake(value: FakeTensor, values: PeerValues) -> Any:
    made = values.fake(value, is_state=True)
    if getattr(value, "_is_param", False):
        made._is_param = True  # as `Parameter` does it, which asks a mode of the caller's
    return made


def _hand_over_example(example: Any, values: PeerValues) -> Any:
    """The arguments of the example: fakes, which torch could not save, become torch's."""
    if not any(isinstance(leaf, FakeTensor) for leaf in pytree.tree_leaves(example)):
        return example
    return pytree.tree_map_only(FakeTensor, partial(values.fake, is_state=True), example)


class _Signature:
    """Specifications of ours as torch's, which have the same names and fields."""

    def __init__(self, names: Mapping[str, str]) -> None:
        from torch.export import exported_program, graph_signature

        self._names = names
        """What nodes are called that have another name there."""
        self._peer: Any = graph_signature
        self._programs: Any = exported_program

    def convert(self, program: ExportedProgram) -> Any:
        given = program.graph_signature
        return self._peer.ExportGraphSignature(
            [self._input(spec) for spec in given.input_specs],
            [self._output(spec) for spec in given.output_specs],
        )

    def _input(self, spec: InputSpec) -> Any:
        kind = self._peer.InputKind[spec.kind.name]
        persistent = spec.persistent if spec.kind is InputKind.BUFFER else None
        return self._peer.InputSpec(kind, self._argument(spec.arg), spec.target, persistent)

    def _output(self, spec: OutputSpec) -> Any:
        kind = self._peer.OutputKind[spec.kind.name]
        return self._peer.OutputSpec(kind, self._argument(spec.arg), spec.target)

    def _argument(self, arg: ArgumentSpec) -> Any:
        cls = getattr(self._peer, type(arg).__name__)
        name = self._names.get(arg.name, arg.name)
        if isinstance(arg, ConstantArgument):
            return cls(name=name, value=strip_class(arg.value))
        if isinstance(arg, CustomObjArgument):
            return cls(name=name, class_fqn=arg.class_fqn, fake_val=arg.fake_val)
        return cls(name=name)

    def call_entry(self, entry: ModuleCallEntry) -> Any:
        call = entry.signature
        if call is None:
            return self._programs.ModuleCallEntry(fqn=entry.fqn)
        root = entry.fqn == ""
        names = peer.argument_names(call) if root else call.forward_arg_names
        made = self._programs.ModuleCallSignature(
            inputs=[] if root else [self._argument(arg) for arg in call.inputs],
            outputs=[] if root else [self._argument(arg) for arg in call.outputs],
            in_spec=call.in_spec,
            out_spec=call.out_spec,
            forward_arg_names=None if names is None else list(names),
        )
        return self._programs.ModuleCallEntry(fqn=entry.fqn, signature=made)
