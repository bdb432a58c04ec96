"""What is declared to vary of DTensors: the user speaks of whole tensors, and a program has shards.
Must not know symbols.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lostwax.capture.shapes.dims import Auto, DerivedDim, Dim, Dynamic, Static
from lostwax.capture.shapes.reader import spec_error
from lostwax.capture.shapes.spec import Spec
from lostwax.ir.shards import count_shards, describe_placements, is_dtensor


def divide_dims(spec: Spec, leaves: Sequence[Any]) -> None:
    """Let a spec, which is about whole tensors, say what varies of their shards."""
    for i, leaf in enumerate(leaves):
        entries = spec.leaves[i]
        if is_dtensor(leaf):
            if isinstance(entries, tuple):
                names = describe_placements(leaf.placements) or ()
                cut = count_shards(names, leaf.device_mesh.mesh.shape)
                path = f"{spec.paths[i]}.shape"
                _check_alike(leaf, entries, cut, path)
                spec.leaves[i] = tuple(
                    _divide(entry, cut[d], f"{path}[{d}]") if d in cut else entry
                    for d, entry in enumerate(entries)
                )
            spec.paths[i] = f"{spec.paths[i]}.to_local()"


def _check_alike(leaf: Any, entries: Sequence[Any], cut: Any, path: str) -> None:
    for d, count in cut.items():
        if leaf.shape[d] % count and not all(isinstance(each, Static) for each in entries):
            raise spec_error(
                path,
                f"{path}[{d}] is {leaf.shape[d]} in the example, and is cut into {count} shards, "
                "which are not alike; then no size of it may vary",
                f"an example of size {count * -(-leaf.shape[d] // count)} there, or Dim.STATIC "
                "everywhere",
            )


def _divide(entry: Any, count: int, path: str) -> Any:
    if isinstance(entry, (Auto, Dynamic)):
        lo, hi = entry.min, entry.max
        low = None if lo is None else -(-lo // count)
        return type(entry)(low, None if hi is None else hi // count)
    if isinstance(entry, Dim) and count > 1:
        raise spec_error(
            path,
            f"{path} is {entry.__name__}, and is cut into {count} shards, which are alike only if "
            f"{count} divides it",
            f'declare {count} * Dim("{entry.__name__}_part"), or Dim.DYNAMIC',
        )
    if isinstance(entry, DerivedDim):
        if entry.scale % count or entry.offset % count:
            raise spec_error(
                path,
                f"{path} is {entry}, and is cut into {count} shards, which are alike only if "
                f"{count} divides it",
                f"declare {count} * {entry.root}, or Dim.DYNAMIC",
            )
        scale, offset = entry.scale // count, entry.offset // count
        return entry.root if (scale, offset) == (1, 0) else DerivedDim(entry.root, scale, offset)
    return entry
