"""The public face of lostwax. Lazy: `import lostwax` loads no torch; a name loads its layer when
it is first used. Nothing inside the package imports this module.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lostwax import collector, doors, namespaces

if TYPE_CHECKING:
    from lostwax import backends, errors, interop, ops, passes, pte
    from lostwax.backends.transform import to_edge_transform_and_lower
    from lostwax.capture.adaptive import capture
    from lostwax.capture.draft import draft_export
    from lostwax.capture.export import export
    from lostwax.capture.joint import export_joint
    from lostwax.capture.shapes.collect import AdditionalInputs, ShapesCollection
    from lostwax.capture.shapes.dims import Dim, dims, mark_dynamic
    from lostwax.capture.shapes.spec import Constraint
    from lostwax.capture.shapes.violations import refine_dynamic_shapes_from_suggested_fixes
    from lostwax.checking.check import check
    from lostwax.checking.result import CheckResult
    from lostwax.dialects.manager import EdgeConfig, EdgeProgramManager, to_edge
    from lostwax.fake import (
        FakeTensor,
        FakeTensorMode,
        detect_fake_mode,
        unset_fake_temporarily,
    )
    from lostwax.fake.prop import FakeTensorProp
    from lostwax.interop.patching import patch_torch_export
    from lostwax.ir.data import ModuleCallEntry, ModuleCallSignature
    from lostwax.ir.decompose.core_aten import CustomDecompTable, default_decompositions
    from lostwax.ir.diff import diff
    from lostwax.ir.program import ExportedProgram
    from lostwax.ir.pytree import register_dataclass
    from lostwax.ir.run.shared import modules
    from lostwax.ir.signature import (
        ConstantArgument,
        CustomObjArgument,
        ExportBackwardSignature,
        ExportGraphSignature,
        InputKind,
        InputSpec,
        OutputKind,
        OutputSpec,
        SymBoolArgument,
        SymFloatArgument,
        SymIntArgument,
        TensorArgument,
        TokenArgument,
    )
    from lostwax.ir.unflatten.interpreter import InterpreterModule, InterpreterModuleDispatcher
    from lostwax.ir.unflatten.unflatten import FlatArgsAdapter, UnflattenedModule, unflatten
    from lostwax.passes import Pipeline, move_to_device_pass
    from lostwax.problems.report import report
    from lostwax.pt2 import PT2ArchiveReader, PT2ArchiveWriter, is_pt2_package, load, save
    from lostwax.pte.executable import ExecutableConfig, ExecutableProgram
    from lostwax.sym import ShapeEnv

__version__ = "0.1.0"

__all__ = [
    "AdditionalInputs",
    "CheckResult",
    "ConstantArgument",
    "Constraint",
    "CustomDecompTable",
    "CustomObjArgument",
    "Dim",
    "EdgeConfig",
    "EdgeProgramManager",
    "ExecutableConfig",
    "ExecutableProgram",
    "ExportBackwardSignature",
    "ExportGraphSignature",
    "ExportedProgram",
    "FakeTensor",
    "FakeTensorMode",
    "FakeTensorProp",
    "FlatArgsAdapter",
    "InputKind",
    "InputSpec",
    "InterpreterModule",
    "InterpreterModuleDispatcher",
    "ModuleCallEntry",
    "ModuleCallSignature",
    "OutputKind",
    "OutputSpec",
    "PT2ArchiveReader",
    "PT2ArchiveWriter",
    "Pipeline",
    "ShapeEnv",
    "ShapesCollection",
    "SymBoolArgument",
    "SymFloatArgument",
    "SymIntArgument",
    "TensorArgument",
    "TokenArgument",
    "UnflattenedModule",
    "__version__",
    "backends",
    "capture",
    "check",
    "default_decompositions",
    "detect_fake_mode",
    "diff",
    "dims",
    "draft_export",
    "errors",
    "explore",
    "export",
    "export_joint",
    "interop",
    "is_pt2_package",
    "load",
    "mark_dynamic",
    "modules",
    "move_to_device_pass",
    "ops",
    "passes",
    "patch_torch_export",
    "pte",
    "refine_dynamic_shapes_from_suggested_fixes",
    "register_dataclass",
    "report",
    "save",
    "to_edge",
    "to_edge_transform_and_lower",
    "unflatten",
    "unset_fake_temporarily",
]

_HOME = {
    "ShapeEnv": "lostwax.sym",
    "FakeTensor": "lostwax.fake",
    "FakeTensorMode": "lostwax.fake",
    "FakeTensorProp": "lostwax.fake.prop",
    "detect_fake_mode": "lostwax.fake",
    "unset_fake_temporarily": "lostwax.fake",
    "ConstantArgument": "lostwax.ir.signature",
    "CustomObjArgument": "lostwax.ir.signature",
    "ExportBackwardSignature": "lostwax.ir.signature",
    "ExportGraphSignature": "lostwax.ir.signature",
    "ExportedProgram": "lostwax.ir.program",
    "InputKind": "lostwax.ir.signature",
    "InputSpec": "lostwax.ir.signature",
    "ModuleCallEntry": "lostwax.ir.data",
    "ModuleCallSignature": "lostwax.ir.data",
    "OutputKind": "lostwax.ir.signature",
    "OutputSpec": "lostwax.ir.signature",
    "SymBoolArgument": "lostwax.ir.signature",
    "SymFloatArgument": "lostwax.ir.signature",
    "SymIntArgument": "lostwax.ir.signature",
    "TensorArgument": "lostwax.ir.signature",
    "TokenArgument": "lostwax.ir.signature",
    "register_dataclass": "lostwax.ir.pytree",
    "report": "lostwax.problems.report",
    "modules": "lostwax.ir.run.shared",
    "CustomDecompTable": "lostwax.ir.decompose.core_aten",
    "default_decompositions": "lostwax.ir.decompose.core_aten",
    "Pipeline": "lostwax.passes",
    "move_to_device_pass": "lostwax.passes",
    "InterpreterModule": "lostwax.ir.unflatten.interpreter",
    "InterpreterModuleDispatcher": "lostwax.ir.unflatten.interpreter",
    "FlatArgsAdapter": "lostwax.ir.unflatten.unflatten",
    "UnflattenedModule": "lostwax.ir.unflatten.unflatten",
    "unflatten": "lostwax.ir.unflatten.unflatten",
    "export": "lostwax.capture",
    "export_joint": "lostwax.capture.joint",
    "AdditionalInputs": "lostwax.capture.shapes.collect",
    "ShapesCollection": "lostwax.capture.shapes.collect",
    "CheckResult": "lostwax.checking.result",
    "check": "lostwax.checking.check",
    "draft_export": "lostwax.capture.draft",
    "Constraint": "lostwax.capture.shapes.spec",
    "Dim": "lostwax.capture.shapes.dims",
    "dims": "lostwax.capture.shapes.dims",
    "mark_dynamic": "lostwax.capture.shapes.dims",
    "refine_dynamic_shapes_from_suggested_fixes": "lostwax.capture.shapes.violations",
    "diff": "lostwax.ir.diff",
    "explore": "lostwax.explorer.page",
    "EdgeConfig": "lostwax.dialects.manager",
    "EdgeProgramManager": "lostwax.dialects.manager",
    "to_edge": "lostwax.dialects.manager",
    "to_edge_transform_and_lower": "lostwax.backends.transform",
    "ExecutableConfig": "lostwax.pte.executable",
    "ExecutableProgram": "lostwax.pte.executable",
    "PT2ArchiveReader": "lostwax.pt2",
    "PT2ArchiveWriter": "lostwax.pt2",
    "is_pt2_package": "lostwax.pt2",
    "patch_torch_export": "lostwax.interop.patching",
    "load": "lostwax.pt2",
    "save": "lostwax.pt2",
}

doors.set_doors(
    {
        "edge": "lostwax.dialects.edge_operators",
        "to_edge": "lostwax.dialects.manager",
        "lower_methods": "lostwax.backends.lower",
        "make_report": "lostwax.backends.report",
        "ExecutableProgram": "lostwax.pte.executable",
        "plot": "lostwax.explorer.page",
        "show_values": "lostwax.interop.exchange",
    }
)


def __getattr__(name: str) -> Any:
    # `lostwax.capture` is a folder that can be called.
    if name in ("backends", "capture", "errors", "interop", "ops", "passes", "pte"):
        return _load(f"lostwax.{name}")
    if name not in _HOME and name not in _NAMESPACES:
        raise AttributeError(f"module 'lostwax' has no attribute {name!r}")
    value = sys.modules[f"lostwax.{name}"] if name in _NAMESPACES else _find(name)
    globals()[name] = value  # the next use does not come here
    return value


def _find(name: str) -> Any:
    """What a name of the face stands for."""
    return getattr(_load(_HOME[name]), name)


_NAMESPACES: dict[str, list[str]] = {
    "decomp_utils": ["CustomDecompTable"],
    "dynamic_shapes": [
        *("AdditionalInputs", "Constraint", "Dim", "ShapesCollection", "dims"),
        "refine_dynamic_shapes_from_suggested_fixes",
    ],
    "exported_program": [
        *("ExportedProgram", "ModuleCallEntry", "ModuleCallSignature", "default_decompositions"),
    ],
    "graph_signature": [name for name, home in _HOME.items() if home == "lostwax.ir.signature"],
    "pt2_archive": ["PT2ArchiveReader", "PT2ArchiveWriter", "is_pt2_package"],
    "unflatten": [
        *("FlatArgsAdapter", "InterpreterModule", "InterpreterModuleDispatcher"),
        *("UnflattenedModule", "unflatten"),
    ],
}
"""The names that torch.export has in modules below it; `lostwax.passes` is a file."""

namespaces.add_namespaces("lostwax", _NAMESPACES, _find)


def _load(module: str) -> Any:
    """Import a module. The garbage collector is paused meanwhile: it would walk all of torch's
    objects, which takes half as long as the import."""
    with ExitStack() as undo:
        collector.pause(undo.callback)
        return _import(module)


def _import(module: str) -> Any:
    try:
        return import_module(module)
    except (ImportError, AttributeError) as error:
        version = sys.modules.get("lostwax.torch_version")  # not there: torch itself does not load
        if version is None or version.is_tested():
            raise
        raise version.make_import_error(error) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
