"""Programs of ranks from that of another rank, without another capture, where the module and all
that the capture has read are alike.

A rank gets the program of an earlier one if its module is made of the same (`likeness.py`), what
else the functions that ran have read has not changed since (`surroundings/`), and what was read of
the rank shows in numbers alone (`rank_reads.py`). In any doubt there is a capture of its own. Must
not know how a capture works.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from lostwax import bytecode
from lostwax.capture.python.functions_run import function_key, let_watch
from lostwax.capture.sharded.likeness import Likeness
from lostwax.capture.sharded.rank_reads import RankWatch, put_numbers, take_numbers
from lostwax.capture.state.module_state import ModuleState
from lostwax.capture.surroundings.world import Surroundings
from lostwax.ir.data import ModuleCallEntry, Settings
from lostwax.ir.program import ExportedProgram
from lostwax.undo.undo import Undo, run_and_undo


class KnownRank(NamedTuple):
    """A rank whose program was captured, and does for others."""

    program: ExportedProgram
    likeness: Likeness
    world: Surroundings
    state: ModuleState
    numbers: Mapping[str, tuple[Any, ...]]
    """The nodes with numbers of the rank."""


class KnownRanks:
    """The ranks of a job whose programs were captured so far."""

    def __init__(self) -> None:
        self._known: list[KnownRank] = []
        self._gives_symbol = True
        """Has no capture failed yet for the symbol in the place of the rank?"""

    def find_or_capture(
        self, module: Any, export: Callable[[], ExportedProgram]
    ) -> ExportedProgram:
        """The program of this rank: from those of a known rank, or by `export`, which makes it
        known if it does for others."""
        if not isinstance(module, nn.Module) or not _is_one_of_equals():
            return export()
        likeness = Likeness(module)
        for each in self._known:
            if each.likeness.is_like(likeness) and each.world.is_unchanged():
                return _bind(each, module)
        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        watch = RankWatch(rank, world, self._gives_symbol)
        program = self._capture(watch, export)
        if program is None:
            return export()
        numbers = take_numbers(program.graph_module)
        if watch.calls and not watch.is_read and (around := _look(module, watch)) is not None:
            state = ModuleState(module)
            self._known.append(KnownRank(program, likeness, around, state, numbers))
        return program

    def _capture(
        self, watch: RankWatch, export: Callable[[], ExportedProgram]
    ) -> ExportedProgram | None:
        """The program; None if the symbol in the place of the rank stood in its way."""
        try:
            program = _run_watched(watch, export)
        except Exception:
            if not watch.has_symbol:
                raise
        else:
            if not (watch.has_symbol and watch.is_read):
                return program
        self._gives_symbol = False
        return None


def _is_one_of_equals() -> bool:
    """Is the rank the only difference of the processes: are all of them in each group?"""
    groups: Any = torch.distributed.distributed_c10d._world.pg_map
    world = torch.distributed.get_world_size()
    return all(group.size() == world for group in groups)


def _run_watched(watch: RankWatch, export: Callable[[], ExportedProgram]) -> ExportedProgram:
    def work(undo: Undo) -> ExportedProgram:
        let_watch(watch, undo)
        return export()

    return run_and_undo(work)


def _look(module: nn.Module, watch: RankWatch) -> Surroundings | None:
    """What the functions that ran have read; None if some of it cannot be compared."""
    ran = watch.functions.ran()
    if ran is None:
        return None
    world = Surroundings(module, ran)
    if world.unsure or world.random:
        return None
    seen = (code for f in world.functions for code in bytecode.nested_codes(f.__code__))
    return world if ran <= set(map(function_key, seen)) else None


# ------------------------------------------------------------------------------------ the program


def _bind(known: KnownRank, module: nn.Module) -> ExportedProgram:
    """The program with the state of another module, which is alike, on this rank."""
    program, rank = known.program, torch.distributed.get_rank()
    state = ModuleState(module)
    graph_module = program.graph_module
    if known.numbers:
        graph_module = copy.deepcopy(graph_module)
        put_numbers(graph_module, known.numbers, rank)
    before, now = known.state.non_persistent, state.non_persistent
    constants = {
        name: now[name] if before.get(name) is held else held
        for name, held in program.constants.items()
    }
    return replace(
        program,
        graph_module=graph_module,
        state_dict=dict(state.persistent),
        constants=constants,
        module_call_graph=[*map(_copy_entry, program.module_call_graph)],
        example_inputs=pytree.tree_map(lambda x: x, program.example_inputs),
        settings=_place(program.settings, rank),
    )


def _copy_entry(entry: ModuleCallEntry) -> ModuleCallEntry:
    """The entry, with lists of its own: passes change these."""
    own = entry.signature
    if own is not None:
        own = replace(own, inputs=[*own.inputs], outputs=[*own.outputs])
    return replace(entry, signature=own)


def _place(settings: Settings | None, rank: int) -> Settings | None:
    """The settings of a program on this rank, whose groups all have all ranks."""
    if settings is None:
        return None
    groups = [
        g if g.rank is None else g._replace(rank=_open(g.name).rank()) for g in settings.groups
    ]
    sharding = settings.sharding
    if sharding is not None:
        meshes = [m._replace(coordinate=(m.ranks.index(rank),)) for m in sharding.meshes]
        sharding = sharding._replace(meshes=tuple(meshes))
    return settings._replace(groups=tuple(groups), sharding=sharding)


def _open(name: str) -> Any:
    resolve: Any = torch._C._distributed_c10d._resolve_process_group
    return resolve(name)
