"""Process groups that a program counts on: those that its collectives name are as large as at
capture, and where the program has the shards of one rank, it runs on that rank.

Must not talk to other processes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from torch._ops import OpOverload
from torch.fx import GraphModule

from lostwax.errors import SettingsError
from lostwax.ir.data import Group
from lostwax.ir.graph.lookup import all_nodes
from lostwax.ops.registry import has_trait, operator
from lostwax.ops.traits import Trait


def list_groups(module: GraphModule, meshes: Iterable[Any]) -> tuple[Group, ...]:
    """The groups that a graph names, and those of meshes over which state is cut."""
    if not _is_initialized():
        return ()
    found: dict[str, Group] = {}
    for node in all_nodes(module):
        if has_trait(node.target, Trait.COMMUNICATES):
            target: Any = node.target
            given: Any = dict(zip(_names(target), node.args, strict=False)) | node.kwargs
            group = _open(name := given["group_name"])
            if group is not None:
                found[name] = Group(name, group.size())
    for mesh in meshes:
        for group in mesh.get_all_groups():
            found[group.group_name] = Group(group.group_name, group.size(), group.rank())
    return tuple(found.values())


def _names(target: OpOverload) -> tuple[str, ...]:
    return operator(target).argument_names


def check_groups(groups: Iterable[Group]) -> None:
    """Refuse to run where the groups are others."""
    for captured in groups:
        found = _open(captured.name) if _is_initialized() else None
        if found is None:
            raise SettingsError.here(
                f"the program has collectives of the process group {captured.name!r}, and there is "
                "none of this name",
                why="each process of a group runs its program, and they talk to each other",
                instead="call torch.distributed.init_process_group(...) before, and make other "
                "groups and meshes in the same order as at capture",
            )
        if found.size() != captured.size:
            raise SettingsError.here(
                f"the process group {captured.name!r} has {found.size()} ranks, and had "
                f"{captured.size} at capture",
                why="the program is one of as many parts",
                instead="run it with as many processes, or export it with these",
            )
        if captured.rank not in (None, found.rank()):
            raise SettingsError.here(
                f"the program has the shards of rank {captured.rank} of the process group "
                f"{captured.name!r}, and this is rank {found.rank()}",
                instead="load the program that this rank has exported",
            )


def _is_initialized() -> bool:
    module: Any = sys.modules.get("torch.distributed.distributed_c10d")
    return module is not None and bool(module.is_initialized())


def _open(name: str) -> Any:
    module: Any = sys.modules["torch.distributed.distributed_c10d"]
    try:
        return module._resolve_process_group(name)
    except (RuntimeError, ValueError):
        return None
