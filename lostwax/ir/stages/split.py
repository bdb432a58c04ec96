"""`split`: a program as stages, each a program of its own.

The graph is cut where modules begin (`places.py`); what a stage needs (`needs.py`) is its inputs,
and its graph is written anew (`parts.py`). Nothing is traced again. Must not change the program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule
from torch.utils._pytree import tree_structure

from lostwax.errors import SplitError
from lostwax.fake import FakeTensor
from lostwax.fake.symbolic.node import unwrap
from lostwax.identity import ByIdentity, Seen
from lostwax.ir.data import (
    SHARD,
    Assumption,
    ModuleCallEntry,
    ModuleCallSignature,
    Settings,
)
from lostwax.ir.graph.delegate import find_guards, refuse_delegates
from lostwax.ir.graph.lookup import all_nodes
from lostwax.ir.program import ExportedProgram, check_is_program
from lostwax.ir.ranges import RangeConstraints
from lostwax.ir.run.conditions.answers import ONE
from lostwax.ir.signature import ExportGraphSignature, InputKind, OutputKind
from lostwax.ir.stages.needs import Needs
from lostwax.ir.stages.parts import StageWriter
from lostwax.ir.stages.places import find_starts, read_paths
from lostwax.ir.text import type_text
from lostwax.sym import Expr


class Stages(Sequence[ExportedProgram]):
    """The stages of a program, in order: each takes what the one before returns."""

    def __init__(
        self,
        programs: Sequence[ExportedProgram],
        at: Sequence[str],
        shared: Mapping[str, list[int]],
    ) -> None:
        self._programs = list(programs)
        self.at = tuple(at)
        """The modules with which the stages but the first begin."""
        self.shared = dict(shared)
        """The parameters that several stages have, each with the numbers of these stages. Training
        must add up their gradients."""

    def __getitem__(self, index: Any) -> Any:
        return self._programs[index]

    def __len__(self) -> int:
        return len(self._programs)

    def __repr__(self) -> str:
        lines = [f"<Stages, {len(self)}>"]
        for i, (program, begin) in enumerate(zip(self, ("", *self.at), strict=True)):
            sizes = ByIdentity[torch.Tensor, int]()
            for tensor in program.state_dict.values():
                sizes[tensor] = tensor.numel()
            size = sum(sizes[each] for each in sizes)
            where = f"from {begin}" if begin else "from the beginning"
            lines.append(f"{i}: {where}, {size:,} weights")
            given, returned = _list_values(program)
            lines.append(f"   takes {given}\n   returns {returned}")
        lines += [f"shared by {stages}: {name}" for name, stages in self.shared.items()]
        return "\n".join(lines)


def split(program: ExportedProgram, at: Sequence[str]) -> Stages:
    """The program as stages that run one after the other, each a program of its own: for
    `torch.distributed.pipelining`.

    `at` names modules, by their paths, in the order in which they run: with the first operator of
    each, a stage begins ("block@1" is the second call of a module that is called several times).
    The first stage takes the program's arguments, each later one, as tensors, what it and those
    after it need of the earlier ones; the last returns the program's result. A stage has the state
    that it reads. A program that writes state in one stage and reads it in another is refused.
    """
    check_is_program(program, "split")
    _refuse(program)
    paths = read_paths(at)
    needs = Needs(program, find_starts(program, paths))
    programs = []
    for index in range(needs.count):
        made = _make_stage(program, needs, index)
        made.validate()
        programs.append(made)
    shared = {
        str(spec.target): [i for i, held in enumerate(needs.held) if node in held]
        for node, spec in needs.specs.items()
        if spec.kind is InputKind.PARAMETER
    }
    return Stages(programs, paths, {name: i for name, i in shared.items() if len(i) > 1})


def _refuse(program: ExportedProgram) -> None:
    refuse_delegates(program.graph_module, "split()")
    signature = program.graph_signature
    if signature.backward_signature is not None:
        raise SplitError.here(
            "the program has its own backward",
            why="each stage of a pipeline runs its backward when its gradients arrive",
            instead="split what lostwax.export returns: autograd differentiates the stages",
        )
    kinds = {spec.kind for spec in signature.input_specs}
    for kind, what in _BOUND.items():
        if kind in kinds:
            raise SplitError.here(
                f"the program has {what}",
                why="it is one for the whole program, and stages run in processes of their own",
                instead="run the program in one piece",
            )


_BOUND = {InputKind.TOKEN: "tokens, which order effects", InputKind.CUSTOM_OBJ: "custom objects"}


def _list_values(program: ExportedProgram) -> tuple[str, str]:
    """The inputs and results as text."""
    nodes = {node.name: node for node in program.graph.nodes}
    signature = program.graph_signature

    def describe(names: Iterable[Any]) -> str:
        return ", ".join(
            f"{name}: {type_text(nodes[name].meta.get('val'))}" if name in nodes else repr(name)
            for name in names
        )

    return describe(signature.user_inputs), describe(signature.user_outputs)


# ------------------------------------------------------------------------------------- one stage


def _make_stage(program: ExportedProgram, needs: Needs, index: int) -> ExportedProgram:
    writer = StageWriter(needs, index)
    module = writer.run()
    targets = {spec.target for spec in writer.inputs if spec.target is not None}
    held = {**program.constants, **program.state_dict}
    kept = Seen()
    kept.update([held[name] for name in targets])
    return replace(
        program,
        graph_module=module,
        graph_signature=ExportGraphSignature(writer.inputs, writer.outputs),
        state_dict={n: v for n, v in program.state_dict.items() if v in kept},
        constants={n: v for n, v in program.constants.items() if v in kept},
        range_constraints=_find_ranges(program, module),
        module_call_graph=_make_calls(program, writer, index + 1 == needs.count, index == 0),
        example_inputs=program.example_inputs if index == 0 else None,
        guards=find_guards(program.guards, module),
        settings=_find_settings(program, targets, index, needs.count),
        assumptions=_find_assumptions(program, targets, index),
    )


def _make_calls(
    program: ExportedProgram, writer: StageWriter, is_last: bool, is_first: bool
) -> list[ModuleCallEntry]:
    root = program.root_signature
    assert root is not None
    given = [s.arg for s in writer.inputs if s.kind is InputKind.USER_INPUT]
    returned = [s.arg for s in writer.outputs if s.kind is OutputKind.USER_OUTPUT]
    call = ModuleCallSignature(
        given,
        returned,
        tree_structure(((0,) * len(given), {})),
        tree_structure((0,) * len(returned)),
        [str(arg.name) for arg in given],
    )
    if is_first:
        names, original = root.forward_arg_names, root.original
        call = replace(call, in_spec=root.in_spec, forward_arg_names=names, original=original)
    if is_last:
        call = replace(call, out_spec=root.out_spec)
    stacks = (n.meta.get("nn_module_stack") or {} for n in writer.writer.graph.nodes)
    ran = {path.partition("@")[0] for stack in stacks for path, _ in stack.values()}
    inside = [e.fqn for e in program.module_call_graph if e.fqn.partition("@")[0] in ran and e.fqn]
    return [ModuleCallEntry("", call), *map(ModuleCallEntry, inside)]


def _find_ranges(program: ExportedProgram, module: GraphModule) -> Mapping[Any, Any]:
    """The ranges of the symbols that a stage speaks of."""
    symbols = {
        str(symbol)
        for node in all_nodes(module)
        for number in _numbers_in(node.meta.get("val"))
        for symbol in number.symbols()
    }
    ranges = program.range_constraints
    if isinstance(ranges, RangeConstraints):
        return RangeConstraints(
            (expr, limits)
            for expr, limits in ranges.limits.items()
            if symbols.issuperset(map(str, expr.symbols()))
        )
    return {
        expr: limits
        for expr, limits in ranges.items()
        if symbols.issuperset(map(str, expr.free_symbols))
    }


def _numbers_in(value: Any) -> Iterable[Expr]:
    values = value if isinstance(value, (tuple, list)) else (value,)
    for each in values:
        parts = (*each.fake_type.size,) if isinstance(each, FakeTensor) else (unwrap(each),)
        yield from (part for part in parts if isinstance(part, Expr))


def _find_settings(
    program: ExportedProgram, targets: set[str], index: int, count: int
) -> Settings | None:
    """Of the table of placements each stage has what is about its state, inputs and results."""
    settings = program.settings
    if settings is None or settings.sharding is None:
        return settings
    sharding = settings.sharding
    return settings._replace(
        sharding=sharding._replace(
            state=tuple(pair for pair in sharding.state if f"{pair[0]}.{SHARD}" in targets),
            inputs=sharding.inputs if index == 0 else (),
            results=sharding.results if index + 1 == count else (),
        )
    )


def _find_assumptions(
    program: ExportedProgram, targets: set[str], index: int
) -> tuple[Assumption, ...] | None:
    """What a stage can check of what the original asked: it sees its own state, and the first stage
    the arguments."""
    if program.assumptions is None:
        return None
    found = []
    for each in program.assumptions:
        seen = tuple(
            ref for ref in each.of if (index == 0 if isinstance(ref, int) else ref in targets)
        )
        if len(seen) == len(each.of) or (seen and _splits(program, each, seen)):
            found.append(each._replace(of=seen))
    return tuple(found)


def _splits(program: ExportedProgram, asked: Assumption, seen: tuple[Any, ...]) -> bool:
    """Can a stage that sees some of several tensors check a question about all of them? That none
    needs a gradient holds for each part; that one does, for a part in which one did."""
    if not asked.computed or asked.what == ONE:
        return False
    return not asked.answer or any(_needs_gradient(program, ref) for ref in seen)


def _needs_gradient(program: ExportedProgram, ref: Any) -> bool:
    held: Mapping[str, Any] = {**program.constants, **program.state_dict}
    value = held.get(ref) if isinstance(ref, str) else None
    return isinstance(value, torch.Tensor) and value.requires_grad
