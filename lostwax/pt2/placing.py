"""A program over shards, put on another mesh than that of its capture: one of the same shape, where
this process has the same place. Its collectives name the groups of that mesh.

Must not talk to other processes.
"""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule, Node

from lostwax.errors import LoadError
from lostwax.ir.data import Mesh, Settings, Sharding
from lostwax.ir.graph.lookup import all_nodes
from lostwax.ir.program import ExportedProgram
from lostwax.ir.shards import describe, describe_mesh
from lostwax.ops.registry import has_trait, operator
from lostwax.ops.traits import Trait


def place(program: ExportedProgram, mesh: Any) -> None:
    """Let a program run on a mesh (`DeviceMesh`)."""
    settings = program.settings
    if settings is None or settings.sharding is None:
        raise LoadError(
            "the program has no shards, and mesh= was given\n"
            "  why: it was captured with plain tensors alone\n  instead: load it without mesh="
        )
    meshes = tuple(_find(each, mesh) for each in settings.sharding.meshes)
    names: dict[str, str] = {}
    for captured, found in zip(settings.sharding.meshes, meshes, strict=True):
        for old, new in zip(captured.groups, found.groups, strict=True):
            if names.setdefault(old, new) != new:
                raise LoadError(
                    f"the process group {old!r} of the capture is {names[old]!r} and {new!r} in "
                    "this mesh\n  instead: a mesh made in the same way as at capture"
                )
    _rename(program, settings, settings.sharding._replace(meshes=meshes), names)


def _find(captured: Mesh, mesh: Any) -> Mesh:
    """What a mesh of the capture is here: the mesh itself, or the part of it of these names."""
    names = tuple(mesh.mesh_dim_names or ())
    if captured.names and captured.names != names and {*captured.names} <= {*names}:
        mesh = mesh[captured.names]
    found = describe_mesh(mesh)
    if (found.device, found.shape) != (captured.device, captured.shape):
        raise LoadError(
            f"the program was captured on {describe(captured)}, and mesh= is {describe(found)}\n"
            "  why: each rank has a program over its shards, which are as many as ranks\n"
            f"  instead: init_device_mesh({captured.device!r}, {captured.shape}), or export it "
            "again on this mesh"
        )
    if found.coordinate != captured.coordinate:
        raise LoadError(
            f"the program has the shards of the rank at {captured.coordinate} of its mesh, and "
            f"this rank is at {found.coordinate}\n"
            "  instead: load the file that was exported for this place"
        )
    return found


def _rename(
    program: ExportedProgram, settings: Settings, sharding: Sharding, names: dict[str, str]
) -> None:
    for node in all_nodes(program.graph_module):
        if has_trait(node.target, Trait.COMMUNICATES):
            _rename_group(node, names)
    for module in program.graph_module.modules():
        if isinstance(module, GraphModule):
            module.recompile()
    groups = tuple(each._replace(name=names.get(each.name, each.name)) for each in settings.groups)
    program.settings = settings._replace(groups=groups, sharding=sharding)


def _rename_group(node: Node, names: dict[str, str]) -> None:
    target: Any = node.target
    at, given = operator(target).argument_names.index("group_name"), dict[str, Any](node.kwargs)
    if "group_name" in given:
        name = str(given["group_name"])
        node.kwargs = given | {"group_name": names.get(name, name)}
    else:
        name = str(node.args[at])
        node.update_arg(at, names.get(name, name))
