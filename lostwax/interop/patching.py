"""`patch_torch_export`: code that calls `torch.export` uses lostwax meanwhile, as it is written.

Must import torch's own modules before it changes any of their names: a module that is imported
meanwhile keeps what it finds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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

    known = vars(torch.export)
    before = {name: known[name] for name in _OURS if name in known}
    try:
        for name in before:
            setattr(torch.export, name, _OURS[name])
        yield
    finally:
        for name, value in before.items():
            setattr(torch.export, name, value)
