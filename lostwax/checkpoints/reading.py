"""The tensors of a checkpoint, as views of its files, which are mapped when they are first read."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from lostwax.checkpoints.headers import StoredTensor
from lostwax.checkpoints.mapped import MappedFile, map_file


class StoredReader:
    """Reads tensors by name. Writing to them does not change the files."""

    def __init__(self, stored: Mapping[str, StoredTensor]) -> None:
        self.stored = stored
        self._files: dict[str, MappedFile] = {}

    def read(self, name: str) -> torch.Tensor:
        """A tensor of its own, in the memory of the file."""
        file, dtype, shape, start, stop = vars(self.stored[name]).values()
        if start == stop:
            return torch.empty(shape, dtype=dtype)
        mapped = self._files.get(file) or self._files.setdefault(file, map_file(file))
        flat = torch.frombuffer(mapped, dtype=torch.uint8, count=stop - start, offset=start)
        if start % dtype.itemsize:
            flat = flat.clone()  # elements lie at multiples of their size
        return flat.view(dtype).reshape(shape).detach()
