"""Passes under their public names: `from lostwax.passes import DeadCode, Pipeline`.

A face and nothing else; the work is in `lostwax.ir`. See docs/passes.md.
"""

from lostwax.ir.cse import share
from lostwax.ir.draft import Draft
from lostwax.ir.journal import Entry, Journal
from lostwax.ir.passes import FxPass, Pass, Pipeline
from lostwax.ir.properties import PROPERTIES, Property
from lostwax.ir.transforms.assertions import RuntimeAssertions
from lostwax.ir.transforms.batch_norm import FoldBatchNorm
from lostwax.ir.transforms.constants import ConstantFolding
from lostwax.ir.transforms.decomposition import Decompose
from lostwax.ir.transforms.device import MoveToDevice, move_to_device_pass
from lostwax.ir.transforms.dtype import ConvertDtype
from lostwax.ir.transforms.duplicates import CommonSubexpressions
from lostwax.ir.transforms.gradients import PlainGradients
from lostwax.ir.transforms.no_ops import NoOps
from lostwax.ir.transforms.pattern import ReplacePattern
from lostwax.ir.transforms.unused import DeadCode, UnusedState

__all__ = [
    "PROPERTIES",
    "CommonSubexpressions",
    "ConstantFolding",
    "ConvertDtype",
    "DeadCode",
    "Decompose",
    "Draft",
    "Entry",
    "FoldBatchNorm",
    "FxPass",
    "Journal",
    "MoveToDevice",
    "NoOps",
    "Pass",
    "Pipeline",
    "PlainGradients",
    "Property",
    "ReplacePattern",
    "RuntimeAssertions",
    "UnusedState",
    "move_to_device_pass",
    "share",
]
