"""From a checkpoint on disk to a module, without its weights in memory: `lostwax.checkpoint`.

    checkpoint = lostwax.checkpoint("folder")
    with checkpoint.on_meta():
        model = build()
    program = lostwax.export(model, args)

Headers are read, and no weights; the module that is built has views of the files as parameters.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import torch
from torch import nn

from lostwax.checkpoints.binding import bind, usual_dtype
from lostwax.checkpoints.building import WeightlessBuild
from lostwax.checkpoints.headers import StoredTensor, read_header, read_headers
from lostwax.checkpoints.reading import StoredReader
from lostwax.errors import LoadError
from lostwax.location import warn

__all__ = ["Checkpoint", "StoredTensor", "checkpoint", "read_header"]


def checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """The checkpoint at a `path`: a folder, an index (`model.safetensors.index.json`) or one
    `.safetensors` file. Its headers are read, and none of its weights."""
    return Checkpoint(os.fspath(path))


class Checkpoint:
    """The tensors of `.safetensors` files, by name."""

    tensors: Mapping[str, StoredTensor]
    """What each tensor is: its dtype and shape, and where it lies."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.tensors = read_headers(path)
        self._reader = StoredReader(self.tensors)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that most of the weights have."""
        return usual_dtype(self.tensors)

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        return sum(each.stop - each.start for each in self.tensors.values())

    @contextmanager
    def on_meta(self, dtype: torch.dtype | None = None) -> Iterator[None]:
        """Modules that are built inside get no weights, and those of the checkpoint at its end.

        Parameters are on `meta` as soon as they are registered; what a module computes for itself,
        as a table of positions, is computed. `dtype` is torch's default one meanwhile.
        """
        building = WeightlessBuild()
        with building.run(dtype):
            yield
        self._bind(building.list_roots())

    def bind(self, module: nn.Module) -> None:
        """Put the tensors of the checkpoint in the places of the module's parameters and buffers,
        by name. Dtypes and shapes are compared before; those that lack or are too many are told."""
        self._bind([module])

    def bind_exactly(self, module: nn.Module) -> bool:
        """Bind a module whose tensors are just those of the checkpoint; False: they are others, and
        the module is as it was, or has what both of them have."""
        with suppress(LoadError):
            return not bind([module], self._reader)
        return False

    def _bind(self, modules: list[nn.Module]) -> None:
        for note in bind(modules, self._reader):
            warn(f"{self.path}: {note}")

    def read(self, name: str) -> torch.Tensor:
        """A tensor, as a view of its file. Writing to it does not change the file."""
        return self._reader.read(name)

    def __repr__(self) -> str:
        count, gigabytes = len(self.tensors), self.nbytes / 1e9
        return f"Checkpoint({self.path!r}: {count:,} tensors, {gigabytes:,.2f} GB)"
