"""DTensors among the inputs and results of a call that is captured: the program has their shards,
and a table says how they were cut.

Must not import DTensor's modules before the user has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from lostwax.capture.example_call import PlainCall
from lostwax.errors import CaptureError
from lostwax.fake.symbolic.node import unwrap
from lostwax.identity import ByIdentity
from lostwax.ir.data import Layout, Mesh, Sharding
from lostwax.ir.shards import (
    count_shards,
    describe_mesh,
    describe_placements,
    infer_whole,
    is_dtensor,
)
from lostwax.ops.shapes import hint
from lostwax.sym import eq


class CutCall(PlainCall):
    """A call that may have DTensors."""

    meshes: list[Any]

    def __init__(
        self, leaves: list[Any], list_paths: Callable[[], Iterable[str]], differentiates: bool
    ) -> None:
        self.given = {i: leaf for i, leaf in enumerate(leaves) if is_dtensor(leaf)}
        paths = [*list_paths()] if self.given else []
        self.shards = [leaf._local_tensor if i in self.given else leaf
                       for i, leaf in enumerate(leaves)]  # fmt: skip
        self.meshes = []
        self._known: list[Mesh] = []
        for i, leaf in self.given.items():
            if leaf.requires_grad and torch.is_grad_enabled() and not differentiates:
                raise CaptureError(
                    f"the input {paths[i]} is a DTensor that requires gradients.\n"
                    "  why: a program has its shard, and gradients of shards are not recorded\n"
                    f"  instead: {paths[i]}.detach(), or export it under torch.no_grad(); "
                    "lostwax.export_joint records them"
                )
        layouts = {i: self._describe(x, f"the input {paths[i]}") for i, x in self.given.items()}
        self.inputs = {i: self._shorten(self.given[i], each) for i, each in layouts.items()}
        self.results: dict[int, Layout] = {}
        self._whole: dict[int, Any] = {}

    def wrap(self, leaves: list[Any]) -> list[Any]:
        """DTensors around the fakes of shards."""
        if not self.given:
            return leaves
        found = list(leaves)
        made: ByIdentity[Any, tuple[Any, Any]] = ByIdentity()
        for i, given in self.given.items():
            whole, its = made.get(leaves[i]) or (None, None)
            if whole is not given:
                its = self._wrap(given, leaves[i], self.inputs[i])
                made[leaves[i]] = given, its
            found[i] = its
        self._whole = {i: found[i] for i in self.given}
        return found

    def list_whole(self) -> Iterable[tuple[int, torch.Tensor]]:
        return self._whole.items()

    def add_result(self, index: int, tensor: torch.Tensor) -> torch.Tensor:
        if not is_dtensor(tensor):
            return tensor
        found: Any = tensor
        what = "a gradient"
        self.results[index] = self._shorten(found, self._describe(found, what), what)
        return found._local_tensor  # type: ignore[no-any-return]

    def unwrap(self, outputs: list[Any]) -> list[Any]:
        count = len(outputs)  # after these come gradients
        self.results = {i: layout for i, layout in self.results.items() if i >= count}
        found = list(outputs)
        for i, each in enumerate(outputs):
            if is_dtensor(each):
                what = f"the result {i}" if len(outputs) > 1 else "the result"
                self.results[i] = self._shorten(each, self._describe(each, what), what)
                found[i] = each._local_tensor
        return found

    def make_table(self, state: Mapping[str, Any]) -> Sharding | None:
        found = [
            (name, self._shorten(each, self._describe(each, name), exact=True))
            for name, each in state.items()
            if is_dtensor(each)
        ]
        inputs, results = tuple(self.inputs.items()), tuple(self.results.items())
        if not (found or inputs or results):
            return None
        return Sharding(tuple(self._known), tuple(found), inputs, results)

    def cut_example(self, args: Any, kwargs: Any) -> Any:
        if not self.given:
            return args, kwargs
        return pytree.tree_map(lambda x: x._local_tensor if is_dtensor(x) else x, (args, kwargs))

    # ------------------------------------------------------------------------------------- layouts

    def _describe(self, tensor: Any, what: str) -> Layout:
        placements = describe_placements(tensor.placements)
        if placements is None:
            raise CaptureError(
                f"{what} is a DTensor with placements {list(tensor.placements)}.\n"
                "  why: a file has names for Shard, Replicate and Partial alone\n"
                "  instead: x.redistribute(placements=[Shard(0)]), or x.to_local()"
            )
        if (index := _find(self.meshes, tensor.device_mesh)) is None:
            index = len(self.meshes)
            self.meshes.append(tensor.device_mesh)
            self._known.append(describe_mesh(tensor.device_mesh))
            _check_rank(self._known[-1], what)
        return Layout(index, placements)

    def _shorten(self, tensor: Any, layout: Layout, what: str = "", exact: bool = False) -> Layout:
        """The layout; with the size of the whole, where one shard does not say it."""
        cut = count_shards(layout.placements, self._known[layout.mesh].shape)
        size, stride = infer_whole(tensor._local_tensor, cut)
        whole = tensor._spec.tensor_meta
        same = all(_is_one(a, b) for a, b in zip(size, whole.shape, strict=True))
        plain = [*map(_example, stride)] == [*map(_example, whole.stride)]
        if same and plain and not exact:
            return layout
        if what and any(type(n) is torch.SymInt for n in (*whole.shape, *whole.stride)):
            raise CaptureError(
                f"{what} is a DTensor of {list(layout.placements)} whose shards are not alike, of "
                "a size that varies.\n"
                "  why: each rank has one program, and cannot tell the size of the whole from its "
                "shard\n"
                f"  instead: declare sizes that are shared without rest, {_advise(cut)}; or return "
                "x.redistribute(placements=[Replicate()])"
            )
        numbers = [tuple(int(n) for n in each) for each in (whole.shape, whole.stride)]
        return layout._replace(size=numbers[0], stride=numbers[1])

    def _wrap(self, given: Any, fake: Any, layout: Layout) -> Any:
        names, context = given.__tensor_flatten__()
        size, stride = layout.size, layout.stride
        if size is None or stride is None:
            cut = count_shards(layout.placements, self._known[layout.mesh].shape)
            size, stride = infer_whole(fake, cut, like=given._local_tensor)
        parts = {name: getattr(given, name) for name in names} | {"_local_tensor": fake}
        return type(given).__tensor_unflatten__(parts, context, torch.Size(size), stride)


def _check_rank(mesh: Mesh, what: str) -> None:
    """Refuse a mesh as another rank sees it. torch's caches answer with the mesh that a process had
    first, where two of them differ in the rank of the process alone."""
    if not mesh.coordinate:
        return
    place = 0
    for at, size in zip(mesh.coordinate, mesh.shape, strict=False):
        place = place * size + at
    found, rank = mesh.ranks[place], torch.distributed.get_rank()
    if found != rank:
        raise CaptureError(
            f"{what} is a DTensor on a mesh of rank {found}, and this process is rank {rank}.\n"
            "  why: torch remembers how DTensors are cut, and takes meshes of two ranks for one\n"
            "  instead: a process for each rank, or lostwax.export_ranks"
        )


def _advise(cut: Any) -> str:
    return ", ".join(f'{n} * Dim("part")' for n in cut.values()) or "2 * Dim(...)"


def _find(meshes: Sequence[Any], mesh: Any) -> int | None:
    return next((i for i, each in enumerate(meshes) if each is mesh or each == mesh), None)


def _is_one(a: Any, b: Any) -> bool:
    return eq(unwrap(a), unwrap(b)) is True


def _example(number: Any) -> int | None:
    return hint(unwrap(number))
