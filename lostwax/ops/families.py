"""Which files know something of an operator. They are loaded when it is first met, so that a
program costs the families that it uses, and no others.

The lists are generated (`index.py`, `make index`): a file registers what it knows, and nobody lists
it by hand. Must not know what is registered.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from lostwax import torch_version

COMMON = (
    *("lostwax.ops.math.matmul", "lostwax.ops.math.pointwise", "lostwax.ops.math.reduce"),
    *("lostwax.ops.nn.activations", "lostwax.ops.nn.attention", "lostwax.ops.nn.conv"),
    *("lostwax.ops.nn.embeddings", "lostwax.ops.nn.norm"),
    *("lostwax.ops.tensors.factory", "lostwax.ops.tensors.indexing"),
    *("lostwax.ops.tensors.rearrange", "lostwax.ops.tensors.view_parts"),
    *("lostwax.fake.composite.attention", "lostwax.fake.composite.dropouts"),
    *("lostwax.fake.composite.layers",),
)
"""What most models need, or most transformers (counted over those of bench/cold.py). It is loaded
with `export`: the first export need not do what is the same for nearly all."""


def index_name(operator: str) -> str:
    """The name of an operator in an index: nearly all are of ATen."""
    return operator.removeprefix("aten::")


class Families:
    """Files by the operators that they know something of."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[str, ...]] = {}
        self._loaded: set[str] = set()

    def add(self, index: Mapping[str, str]) -> None:
        """Add files, each with the names of its operators."""
        for file, names in index.items():
            for name in names.split():
                self._files[name] = (*self._files.get(name, ()), file)

    def load(self, operator: str) -> None:
        """Load what is known of the operator of this name, `aten::add`."""
        for file in self._files.get(index_name(operator), ()):
            if file not in self._loaded:
                self._load(file)

    def load_common(self) -> None:
        for file in COMMON:
            self._load(file)

    def load_all(self) -> None:
        for file in sorted({*chain.from_iterable(self._files.values())} - self._loaded):
            self._load(file)

    def _load(self, file: str) -> None:
        try:
            __import__(file)  # which is quick for what others have loaded
        except (ImportError, AttributeError) as error:
            if torch_version.is_tested():
                raise
            raise torch_version.make_import_error(error) from error
        self._loaded.add(file)
