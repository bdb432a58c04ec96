"""The table of placements in our own record of a file: which tensors are shards, and how they were
cut. Nothing of a file is trusted.
"""

from __future__ import annotations

from math import prod
from typing import Any

from lostwax.errors import LoadError
from lostwax.ir.data import Layout, Mesh, Sharding
from lostwax.ir.shards import count_shards, is_placement

_MOST = 1 << 24
"""Ranks of a mesh."""


def write(sharding: Sharding) -> dict[str, Any]:
    return {
        "meshes": [mesh._asdict() for mesh in sharding.meshes],
        "state": [[name, layout._asdict()] for name, layout in sharding.state],
        "inputs": [[i, layout._asdict()] for i, layout in sharding.inputs],
        "results": [[i, layout._asdict()] for i, layout in sharding.results],
    }


def read(given: Any) -> Sharding:
    try:
        meshes = tuple(_mesh(**each) for each in given["meshes"])
        state = tuple((_text(name), _layout(meshes, **each)) for name, each in given["state"])
        inputs = tuple((_int(i), _layout(meshes, **each)) for i, each in given["inputs"])
        results = tuple((_int(i), _layout(meshes, **each)) for i, each in given["results"])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise LoadError(f"the table of placements is damaged: {error}") from None
    return Sharding(meshes, state, inputs, results)


def _mesh(device: Any, shape: Any, names: Any, groups: Any, coordinate: Any, ranks: Any) -> Mesh:
    sizes, place = tuple(map(_int, shape)), tuple(map(_int, coordinate))
    told, of_groups = tuple(map(_text, names)), tuple(map(_text, groups))
    count = prod(sizes)
    if len(ranks) != count or count > _MOST or len(of_groups) != len(sizes):
        raise ValueError("a mesh of another shape than it says")
    if len(told) not in (0, len(sizes)) or len(place) not in (0, len(sizes)):
        raise ValueError("a mesh of as many names as dimensions is wanted")
    return Mesh(_text(device), sizes, told, of_groups, place, tuple(map(_int, ranks)))


def _layout(meshes: tuple[Mesh, ...], mesh: Any, placements: Any, size: Any, stride: Any) -> Layout:
    index, texts = _int(mesh), tuple(map(_text, placements))
    if not all(map(is_placement, texts)) or len(texts) != len(meshes[index].shape):
        raise ValueError(f"{texts!r:.80} are no placements on the mesh")
    sizes = None if size is None else tuple(map(_int, size))
    strides = None if stride is None else tuple(map(_int, stride))
    if (sizes is None) is not (strides is None) or len(sizes or ()) != len(strides or ()):
        raise ValueError("a size without strides")
    if sizes is not None and not count_shards(texts, meshes[index].shape).keys() <= {
        *range(len(sizes))
    }:
        raise ValueError("a dimension that is not there is cut")
    return Layout(index, texts, sizes, strides)


def _int(given: Any) -> int:
    if type(given) is not int or not 0 <= given < 1 << 62:
        raise TypeError(f"{given!r:.80} is no size")
    return given


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError(f"{given!r:.80} is no text")
    return given
