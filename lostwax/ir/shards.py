"""How DTensors are cut: what a program keeps of meshes and placements, and the whole that a shard
is of. Must not talk to other processes, nor import DTensor's modules before the user has.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch

from lostwax.fake.symbolic.node import wrap
from lostwax.fake.tensor import FakeTensor
from lostwax.ir.data import Mesh
from lostwax.ops.shapes import hint
from lostwax.sym import Expr

_PLACEMENT = re.compile(r"Replicate\(\)|Shard\((\d{1,3})\)|Partial\((sum|avg|min|max|product)\)")


def is_dtensor(value: Any) -> bool:
    """Is it a DTensor? There is none where its module is not imported."""
    cls = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return cls is not None and isinstance(value, cls)


def describe_mesh(mesh: Any) -> Mesh:
    """What a program keeps of a mesh."""
    coordinate = mesh.get_coordinate()
    groups = tuple(group.group_name for group in mesh.get_all_groups())
    names = tuple(mesh.mesh_dim_names or ())
    with torch._C._DisableTorchDispatch():  # a program may be called within a capture
        shape, ranks = tuple(mesh.mesh.shape), tuple(mesh.mesh.flatten().tolist())
    return Mesh(mesh.device_type, shape, names, groups, tuple(coordinate or ()), ranks)


def describe_placements(placements: Sequence[Any]) -> tuple[str, ...] | None:
    """The placements as a program keeps them; None if one is of another kind."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    found = []
    for each in placements:
        kind = type(each)
        if kind is Shard:
            found.append(f"Shard({each.dim})")
        elif kind is Replicate:
            found.append("Replicate()")
        elif kind is Partial:
            found.append(f"Partial({each.reduce_op})")
    known = len(found) == len(placements) and all(map(_PLACEMENT.fullmatch, found))
    return tuple(found) if known else None


def is_placement(text: str) -> bool:
    return _PLACEMENT.fullmatch(text) is not None


def count_shards(placements: Sequence[str], shape: Sequence[int]) -> dict[int, int]:
    """Into how many shards each dimension is cut that is."""
    found: dict[int, int] = {}
    for text, size in zip(placements, shape, strict=True):
        if (match := _PLACEMENT.fullmatch(text)) and match[1]:
            found[int(match[1])] = found.get(int(match[1]), 1) * size
    return found


def infer_whole(
    shard: torch.Tensor, cut: Mapping[int, int], like: torch.Tensor | None = None
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The size and strides of a whole of which this is one of shards that are alike. `like` says
    which dimension lies outside of which, if another than the shard does."""
    size, stride = _read_form(shard)
    order = [hint(n) for n in _read_form(shard if like is None else like)[1]]
    strides = []
    for d, step in enumerate(stride):
        inner = [n for dim, n in cut.items() if _is_inside(order, dim, d)]
        strides.append(step * prod(inner) if inner else step)
    sizes = [n * cut[d] if d in cut else n for d, n in enumerate(size)]
    return tuple(map(_wrap, sizes)), tuple(map(_wrap, strides))


def _is_inside(order: Sequence[int | None], inner: int, outer: int) -> bool:
    a, b = order[inner], order[outer]
    return a is not None and b is not None and (a, -inner) < (b, -outer)


def _read_form(tensor: torch.Tensor) -> tuple[Any, Any]:
    """Its size and strides. A fake that is asked itself takes it for a question of the user's."""
    if isinstance(tensor, FakeTensor):
        return tensor.fake_type.size, tensor.fake_type.stride
    return tensor.shape, tensor.stride()


def _wrap(number: Any) -> Any:
    return wrap(number) if isinstance(number, Expr) else number


def make_placements(texts: Sequence[str]) -> list[Any]:
    from torch.distributed.tensor import Partial, Replicate, Shard

    found: list[Any] = []
    for text in texts:
        match = _PLACEMENT.fullmatch(text)
        assert match is not None
        kind = Shard(int(match[1])) if match[1] else Partial(match[2]) if match[2] else Replicate()
        found.append(kind)
    return found


def is_same(captured: Mesh, found: Mesh) -> bool:
    """Do they stand for the same processes?"""
    return captured._replace(names=()) == found._replace(names=())


def describe(mesh: Mesh) -> str:
    shape = "x".join(map(str, mesh.shape))
    return f"a mesh of {shape} {mesh.device} ranks {list(mesh.ranks)}"


def cut_shard(whole: torch.Tensor, placements: Sequence[str], mesh: Mesh) -> torch.Tensor:
    """The shard of a tensor that one rank has, as a view of it."""
    found = whole
    for text, size, place in zip(placements, mesh.shape, mesh.coordinate, strict=True):
        match = _PLACEMENT.fullmatch(text)
        if match is not None and match[1]:
            dim = int(match[1])
            share = -(-found.shape[dim] // size)
            start = min(place * share, found.shape[dim])
            found = found.narrow(dim, start, min(share, found.shape[dim] - start))
    return found
