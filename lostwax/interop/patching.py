"""`patch_torch_export`: code that calls `torch.export` uses lostwax meanwhile, as it is written.

Must import torch's own modules before it changes any of their names: a module that is imported
meanwhile keeps what it finds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from lostwax.capture.draft import draft_export
from lostwax.capture.export import export
from lostwax.capture.shapes.collect import AdditionalInputs, ShapesCollection
from lostwax.capture.shapes.dims import Dim, dims
from lostwax.capture.shapes.spec import Constraint
from lostwax.ir import signature
from lostwax.ir.data import ModuleCallEntry, ModuleCallSignature
from lostwax.ir.decompose.core_aten import CustomDecompTable, default_decompositions
from lostwax.ir.program import ExportedProgram
from lostwax.ir.pytree import register_dataclass
from lostwax.ir.unflatten.unflatten import FlatArgsAdapter, UnflattenedModule, unflatten
from lostwax.pt2 import load, save

_OURS = {
    each.__name__: each
    for each in (
        *(AdditionalInputs, Constraint, CustomDecompTable, Dim, ExportedProgram, FlatArgsAdapter),
        *(ModuleCallEntry, ModuleCallSignature, ShapesCollection, UnflattenedModule),
        *(default_decompositions, dims, draft_export, export, load, register_dataclass, save),
        unflatten,
        *(signature.ExportBackwardSignature, signature.ExportGraphSignature),
    )
}


class _Patch:
    """The names of torch's that are replaced while any block lasts. Blocks of several threads may
    begin and end in any order: the last that ends puts torch's names back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: set[object] = set()
        self._before: dict[str, Any] = {}

    def enter(self, module: ModuleType, block: object) -> None:
        with self._lock:
            if not self._blocks:
                self._before = {n: v for n, v in vars(module).items() if n in _OURS}
            self._blocks.add(block)
            vars(module).update({name: _OURS[name] for name in self._before})

    def leave(self, module: ModuleType, block: object) -> None:
        """End a block, also one that an interrupt kept from beginning."""
        with self._lock:
            self._blocks.discard(block)
            if not self._blocks:
                vars(module).update(self._before)


_PATCH = _Patch()


@contextmanager
def patch_torch_export() -> Iterator[None]:
    """Let `torch.export.export`, `.save`, `.load`, `.unflatten`, `.Dim` and the other names of
    `torch.export` be lostwax's, for a block of existing code.

    It holds for the whole process, all threads. Code that has imported a name before
    (`from torch.export import export`) keeps torch's; a module that is imported inside the block
    keeps ours. Functions of torch that take programs (of `torch.onnx`, of AOTInductor) want torch's
    own: `lostwax.interop.to_torch(program)`, after the block.
    """
    import torch._export.serde.serialize  # `to_torch` needs it, with torch's names in it
    import torch.export

    block = object()
    try:
        _PATCH.enter(torch.export, block)
        yield
    finally:
        _PATCH.leave(torch.export, block)
