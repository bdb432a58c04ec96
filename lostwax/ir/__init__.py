"""The program: its graph, its signature, how it is called, checked, printed and run."""

from lostwax.ir.data import CallSpec, ModuleCallEntry, ModuleCallSignature
from lostwax.ir.program import ExportedProgram
from lostwax.ir.pytree import register_dataclass
from lostwax.ir.rules.verify import RULES, Violation, validate, verify
from lostwax.ir.signature import (
    ArgumentSpec,
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

__all__ = [
    "RULES",
    "ArgumentSpec",
    "CallSpec",
    "ConstantArgument",
    "CustomObjArgument",
    "ExportBackwardSignature",
    "ExportGraphSignature",
    "ExportedProgram",
    "InputKind",
    "InputSpec",
    "ModuleCallEntry",
    "ModuleCallSignature",
    "OutputKind",
    "OutputSpec",
    "SymBoolArgument",
    "SymFloatArgument",
    "SymIntArgument",
    "TensorArgument",
    "TokenArgument",
    "Violation",
    "register_dataclass",
    "validate",
    "verify",
]
