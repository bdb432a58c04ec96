"""Passes under their public names: `from lostwax.passes import DeadCode, Pipeline`.

A face and nothing else; the work is in `lostwax.ir`. See docs/passes.md.
"""

from lostwax.ir.graph.cse import share
from lostwax.ir.passes.draft import Draft
from lostwax.ir.passes.journal import Entry, Journal
from lostwax.ir.passes.pipeline import FxPass, Pass, Pipeline
from lostwax.ir.passes.properties import PROPERTIES, Property
from lostwax.ir.passes.transforms.assertions import RuntimeAssertions
from lostwax.ir.passes.transforms.batch_norm import FoldBatchNorm
from lostwax.ir.passes.transforms.constants import ConstantFolding
from lostwax.ir.passes.transforms.decomposition import Decompose
from lostwax.ir.passes.transforms.device import MoveToDevice, move_to_device_pass
from lostwax.ir.passes.transforms.dtype import ConvertDtype
from lostwax.ir.passes.transforms.duplicates import CommonSubexpressions
from lostwax.ir.passes.transforms.gradients import PlainGradients
from lostwax.ir.passes.transforms.no_ops import NoOps
from lostwax.ir.passes.transforms.pattern import ReplacePattern
from lostwax.ir.passes.transforms.unused import DeadCode, UnusedState

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
