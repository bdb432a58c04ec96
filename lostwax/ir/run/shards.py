"""DTensors at the door of a program, which computes with shards alone: of those that a call passes
it takes the shards, and of its results it makes them again.

The mesh is made of process groups that are there. Must not talk to other processes, nor import
DTensor's modules where no program needs them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import torch
from torch.utils import _pytree as pytree

from lostwax.errors import InputValueError, LostwaxError
from lostwax.identity import ByIdentity
from lostwax.ir.data import Layout, Mesh, Sharding
from lostwax.ir.run.calling import Convention
from lostwax.ir.shards import (
    count_shards,
    describe,
    describe_mesh,
    describe_placements,
    infer_whole,
    is_dtensor,
    is_same,
    make_placements,
)

Whole = ByIdentity[torch.Tensor, Any]
"""DTensors by their shards."""


class Shards(tuple[Any, ...]):
    """The inputs of a program, and the DTensors whose shards are among them, by the shards."""

    whole: Whole


class Door:
    """Takes the shards of a call, and makes the DTensors that it returns."""

    def __init__(self, convention: Convention, sharding: Sharding) -> None:
        self.convention = convention
        self.sharding = sharding
        self.inputs = dict(sharding.inputs)
        self.results = dict(sharding.results)
        self._meshes: dict[int, Any] = {}
        for i in {layout.mesh for layout in self.results.values()}:
            with suppress(RuntimeError, ValueError):  # its groups may come later
                self._meshes[i] = open_mesh(sharding.meshes[i])

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The inputs of the program."""
        whole: Whole = ByIdentity()
        taken: ByIdentity[Any, torch.Tensor] = ByIdentity()

        def take(value: Any) -> Any:
            if not is_dtensor(value):
                return value
            if value not in taken:  # a shard is a new tensor: one DTensor that comes twice has one
                taken[value] = value.to_local()
                whole[taken[value]] = value
            return taken[value]

        args, kwargs = pytree.tree_map(take, (args, kwargs))
        try:
            inputs = Shards(self.convention.bind(args, kwargs))
        except LostwaxError:
            self._explain(args, kwargs, whole)
            raise
        self._check(inputs, whole)
        inputs.whole = whole
        return inputs

    def take_shards(self, args: Any, kwargs: Any) -> Any:
        """A call with the shards alone, as graphs that were edited take it."""
        take = lambda x: x.to_local() if is_dtensor(x) else x  # noqa: E731
        return pytree.tree_map(take, (args, kwargs))

    def rebuild(self, values: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """The results of inputs that were bound, those that are shards as DTensors."""
        if not self.results:
            return list(values)
        from torch.distributed.tensor import DTensor

        found = list(values)
        whole: Whole = getattr(inputs, "whole", ByIdentity())
        made: ByIdentity[torch.Tensor, Any] = ByIdentity()
        for i, layout in self.results.items():
            shard = found[i]
            again = whole.get(shard)
            if again is not None and describe_placements(again.placements) == layout.placements:
                found[i] = again
                continue
            if shard not in made:
                mesh = self._find_mesh(layout.mesh, whole)
                size, stride = layout.size, layout.stride
                if size is None or stride is None:
                    cut = count_shards(layout.placements, self.sharding.meshes[layout.mesh].shape)
                    size, stride = infer_whole(shard, cut)
                made[shard] = DTensor.from_local(
                    shard,
                    mesh,
                    make_placements(layout.placements),
                    run_check=False,
                    shape=torch.Size(size),
                    stride=stride,
                )
            found[i] = made[shard]
        return found

    def _find_mesh(self, index: int, whole: Whole) -> Any:
        wanted = self.sharding.meshes[index]
        for each in whole:
            mesh = whole[each].device_mesh
            if is_same(wanted, describe_mesh(mesh)):
                return mesh
        if index not in self._meshes:
            self._meshes[index] = open_mesh(wanted)
        return self._meshes[index]

    def _explain(self, args: Any, kwargs: Any, whole: Whole) -> None:
        """A DTensor that is cut in another way may be refused for its size: say the cause."""
        try:
            leaves = pytree.tree_leaves(self.convention.arguments(args, kwargs))
        except LostwaxError:
            return
        if len(leaves) == len(self.convention.leaves):
            self._check(leaves, whole)

    def _check(self, inputs: Sequence[Any], whole: Whole) -> None:
        for i, value in enumerate(inputs):
            given = whole.get(value) if isinstance(value, torch.Tensor) else None
            if given is not None:
                self._check_placement(self.convention.leaves[i].path, given, self.inputs.get(i))

    def _check_placement(self, path: str, given: Any, wanted: Layout | None) -> None:
        if wanted is None:
            raise InputValueError(
                f"{path} is a DTensor, and was a plain tensor at capture\n"
                f"  fix: pass {path}.full_tensor() or {path}.to_local(), what the program is to "
                "see; or capture it again with a DTensor",
                path,
            )
        found = describe_placements(given.placements) or tuple(map(str, given.placements))
        if found != wanted.placements:
            _refuse_placements(path, found, wanted.placements)
        mesh, captured = describe_mesh(given.device_mesh), self.sharding.meshes[wanted.mesh]
        if not is_same(captured, mesh):
            raise InputValueError(
                f"{path} is on {describe(mesh)}, and was on {describe(captured)} at capture\n"
                "  fix: pass a DTensor of that mesh, or capture it again with this one",
                path,
            )
        cut = count_shards(wanted.placements, captured.shape)
        size = wanted.size or infer_whole(given._local_tensor, cut)[0]
        if tuple(given.shape) != size:
            raise InputValueError(
                f"{path} is of size {tuple(given.shape)}, in shards that are not alike; the "
                f"program was captured with shards that are, so that this one is of {size}\n"
                f"  fix: pass sizes that {' and '.join(map(str, cut.values()))} ranks share "
                "without rest",
                path,
            )


def _refuse_placements(path: str, found: Sequence[str], wanted: Sequence[str]) -> NoReturn:
    texts = [", ".join(each) for each in (found, wanted)]
    raise InputValueError(
        f"{path} is a DTensor of [{texts[0]}], and was one of [{texts[1]}] at capture\n"
        f"  fix: {path}.redistribute(placements=[{texts[1]}]), or capture it again with this one",
        path,
    )


def open_mesh(mesh: Mesh) -> Any:
    """The mesh, of process groups that are there: nothing is sent."""
    from torch.distributed.device_mesh import DeviceMesh

    find: Any = sys.modules["torch.distributed.distributed_c10d"]
    groups = [find._resolve_process_group(name) for name in mesh.groups]
    ranks = torch.tensor(mesh.ranks, dtype=torch.int).view(mesh.shape)
    return DeviceMesh.from_group(groups, mesh.device, mesh=ranks, mesh_dim_names=mesh.names or None)
