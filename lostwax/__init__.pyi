"""The public names of lostwax, each with where it is defined: the one list of them. Type checkers
read it, and `__init__.py`, which loads a name when it is first used. One name a line."""

from lostwax import backends as backends
from lostwax import errors as errors
from lostwax import interop as interop
from lostwax import llm as llm
from lostwax import onnx as onnx
from lostwax import ops as ops
from lostwax import passes as passes
from lostwax import pte as pte
from lostwax.backends.transform import to_edge_transform_and_lower as to_edge_transform_and_lower
from lostwax.capture.adaptive import capture as capture
from lostwax.capture.draft import draft_export as draft_export
from lostwax.capture.export import export as export
from lostwax.capture.joint import export_joint as export_joint
from lostwax.capture.shapes.collect import AdditionalInputs as AdditionalInputs
from lostwax.capture.shapes.collect import ShapesCollection as ShapesCollection
from lostwax.capture.shapes.dims import Dim as Dim
from lostwax.capture.shapes.dims import dims as dims
from lostwax.capture.shapes.dims import mark_dynamic as mark_dynamic
from lostwax.capture.shapes.dumped import dump_dynamic_shapes as dump_dynamic_shapes
from lostwax.capture.shapes.dumped import load_dynamic_shapes as load_dynamic_shapes
from lostwax.capture.shapes.spec import Constraint as Constraint
from lostwax.capture.shapes.violations import (
    refine_dynamic_shapes_from_suggested_fixes as refine_dynamic_shapes_from_suggested_fixes,
)
from lostwax.capture.sharded.ranks import export_ranks as export_ranks
from lostwax.checking.check import check as check
from lostwax.checking.result import CheckResult as CheckResult
from lostwax.checkpoints import Checkpoint as Checkpoint
from lostwax.checkpoints import checkpoint as checkpoint
from lostwax.dialects.manager import EdgeConfig as EdgeConfig
from lostwax.dialects.manager import EdgeProgramManager as EdgeProgramManager
from lostwax.dialects.manager import to_edge as to_edge
from lostwax.explorer.page import explore as explore
from lostwax.export_cache.cache import cache as cache
from lostwax.fake import FakeTensor as FakeTensor
from lostwax.fake import FakeTensorMode as FakeTensorMode
from lostwax.fake import detect_fake_mode as detect_fake_mode
from lostwax.fake import unset_fake_temporarily as unset_fake_temporarily
from lostwax.fake.prop import FakeTensorProp as FakeTensorProp
from lostwax.interop.patching import patch_torch_export as patch_torch_export
from lostwax.ir.data import ModuleCallEntry as ModuleCallEntry
from lostwax.ir.data import ModuleCallSignature as ModuleCallSignature
from lostwax.ir.decompose.core_aten import CustomDecompTable as CustomDecompTable
from lostwax.ir.decompose.core_aten import default_decompositions as default_decompositions
from lostwax.ir.diff import diff as diff
from lostwax.ir.program import ExportedProgram as ExportedProgram
from lostwax.ir.pytree import register_dataclass as register_dataclass
from lostwax.ir.run.shared import modules as modules
from lostwax.ir.signature import ArgumentSpec as ArgumentSpec
from lostwax.ir.signature import ConstantArgument as ConstantArgument
from lostwax.ir.signature import CustomObjArgument as CustomObjArgument
from lostwax.ir.signature import ExportBackwardSignature as ExportBackwardSignature
from lostwax.ir.signature import ExportGraphSignature as ExportGraphSignature
from lostwax.ir.signature import InputKind as InputKind
from lostwax.ir.signature import InputSpec as InputSpec
from lostwax.ir.signature import OutputKind as OutputKind
from lostwax.ir.signature import OutputSpec as OutputSpec
from lostwax.ir.signature import SymBoolArgument as SymBoolArgument
from lostwax.ir.signature import SymFloatArgument as SymFloatArgument
from lostwax.ir.signature import SymIntArgument as SymIntArgument
from lostwax.ir.signature import TensorArgument as TensorArgument
from lostwax.ir.signature import TokenArgument as TokenArgument
from lostwax.ir.stages.split import split as split
from lostwax.ir.unflatten.interpreter import InterpreterModule as InterpreterModule
from lostwax.ir.unflatten.interpreter import (
    InterpreterModuleDispatcher as InterpreterModuleDispatcher,
)
from lostwax.ir.unflatten.unflatten import FlatArgsAdapter as FlatArgsAdapter
from lostwax.ir.unflatten.unflatten import UnflattenedModule as UnflattenedModule
from lostwax.ir.unflatten.unflatten import unflatten as unflatten
from lostwax.passes import Pipeline as Pipeline
from lostwax.passes import move_to_device_pass as move_to_device_pass
from lostwax.problems.report import report as report
from lostwax.pt2.loading import load as load
from lostwax.pt2.records import PT2ArchiveReader as PT2ArchiveReader
from lostwax.pt2.records import PT2ArchiveWriter as PT2ArchiveWriter
from lostwax.pt2.records import is_pt2_package as is_pt2_package
from lostwax.pt2.saving import save as save
from lostwax.pte.executable import ExecutableConfig as ExecutableConfig
from lostwax.pte.executable import ExecutableProgram as ExecutableProgram
from lostwax.sym import ShapeEnv as ShapeEnv

__version__: str
