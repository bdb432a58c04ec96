"""`export_ranks`: the programs of all ranks, exported in one process that is none of them.

A process group without processes (torch's "fake" one) stands in for each rank in turn. Nothing is
sent, and no weight is needed. Must not know how a capture works.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import torch
from torch import nn
from torch.fx import Node

from lostwax.capture.example_call import ExampleArgs
from lostwax.capture.export import export
from lostwax.capture.sharded.known_ranks import KnownRanks
from lostwax.capture.sharded.rank_reads import forget_placements
from lostwax.errors import CaptureError
from lostwax.fake import FakeTensor
from lostwax.identity import ByIdentity
from lostwax.ir.diff import find_change
from lostwax.ir.program import ExportedProgram


class RankPrograms(Sequence[ExportedProgram]):
    """The programs of all ranks, by rank. Ranks whose graphs are equal share one."""

    def __init__(self, programs: Sequence[ExportedProgram]) -> None:
        self._programs = list(programs)

    def __getitem__(self, rank: Any) -> Any:
        return self._programs[rank]

    def __len__(self) -> int:
        return len(self._programs)

    @property
    def groups(self) -> list[list[int]]:
        """The ranks, those with one graph together."""
        found: ByIdentity[Any, list[int]] = ByIdentity()
        for rank, program in enumerate(self._programs):
            found.setdefault(program.graph_module, []).append(rank)
        return [found[each] for each in found]

    def __repr__(self) -> str:
        return f"<RankPrograms of {len(self)} ranks, {len(self.groups)} graphs>"


def export_ranks(
    make: Callable[[Any], nn.Module],
    args: ExampleArgs | Callable[[Any], ExampleArgs],
    kwargs: Mapping[str, Any] | None = None,
    *,
    mesh: Mapping[str, int],
    device: str = "cpu",
    **options: Any,
) -> RankPrograms:
    """The programs of all ranks of a job, from one process without the others, and without weights.

    `make(mesh)` builds the module of a rank on a mesh (`{"tp": 8}`: names and sizes) of `device`s,
    as the job would: on `meta`, or from a `lostwax.checkpoint`, of which each rank's program binds
    its slices. `args` and `kwargs` are an example call, or `args` a function of the mesh that makes
    one. `options` are those of `lostwax.export`, which runs under `torch.no_grad()`. Ranks whose
    programs are equal share a graph.
    """
    shape = tuple(mesh.values())
    if not shape or not all(type(n) is int and n > 0 for n in shape):
        raise ValueError(f'mesh= is {mesh!r}\n  instead: names and sizes, mesh={{"tp": 8}}')
    distributed: Any = torch.distributed
    if not distributed.is_available() or distributed.is_initialized():
        raise CaptureError(
            "export_ranks stands in for each rank in turn, and this process is a rank already.\n"
            "  why: a process has one default process group\n"
            "  instead: lostwax.export on each rank; or export_ranks in a process of its own"
        )
    programs: list[ExportedProgram] = []
    known = KnownRanks()
    for rank in range(prod(shape)):
        with _Rank(rank, prod(shape)), torch.no_grad():
            placed = distributed.device_mesh.init_device_mesh(
                device, shape, mesh_dim_names=tuple(mesh)
            )
            module = make(placed)
            if callable(args):
                program = export(module, args(placed), kwargs, **options)
            else:
                work = partial(export, module, args, kwargs, **options)
                program = known.find_or_capture(module, work)
        programs.append(_share_graph(program, programs))
    return RankPrograms(programs)


class _Rank:
    """Inside, this process is a rank of a group of which there are no others."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world

    def __enter__(self) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        forget_placements()
        torch.distributed.init_process_group(
            "fake", store=FakeStore(), rank=self.rank, world_size=self.world
        )

    def __exit__(self, *error: Any) -> None:
        torch.distributed.destroy_process_group()
        forget_placements()


def _share_graph(program: ExportedProgram, known: Sequence[ExportedProgram]) -> ExportedProgram:
    """The program, on the graph of an equal one."""
    graphs: ByIdentity[Any, ExportedProgram] = ByIdentity()
    for each in known:
        graphs.setdefault(each.graph_module, each)
    for module in graphs:
        if _takes_alike(graphs[module], program) and find_change(graphs[module], program) is None:
            return replace(program, graph_module=module)
    return program


def _takes_alike(a: ExportedProgram, b: ExportedProgram) -> bool:
    """Are shards and arguments of the same types? Those of all that is computed follow."""
    return [*map(_input_type, a.graph.find_nodes(op="placeholder"))] == [
        *map(_input_type, b.graph.find_nodes(op="placeholder"))
    ]


def _input_type(node: Node) -> str:
    value = node.meta["val"]
    return repr(value.fake_type) if isinstance(value, FakeTensor) else str(value)
