"""Backends: parts of programs in the Edge dialect that something else computes.

A `Partitioner` chooses the parts, a `Backend` makes of each what its run time runs.
"""

from lostwax.backends.lower import lower_program
from lostwax.backends.partition import (
    CapabilityPartitioner,
    Partitioner,
    PartitionResult,
    PatternPartitioner,
    group_nodes,
)
from lostwax.backends.patterns import BackendOperator
from lostwax.backends.report import DelegationReport
from lostwax.backends.spec import Backend, CompileSpec, DelegationSpec, Payload
from lostwax.backends.whole import lower_whole
from lostwax.backends.xnnpack.partitioner import XnnpackBackend, XnnpackPartitioner
from lostwax.ir.graph.delegate import LoweredBackendModule

__all__ = [
    "Backend",
    "BackendOperator",
    "CapabilityPartitioner",
    "CompileSpec",
    "DelegationReport",
    "DelegationSpec",
    "LoweredBackendModule",
    "PartitionResult",
    "Partitioner",
    "PatternPartitioner",
    "Payload",
    "XnnpackBackend",
    "XnnpackPartitioner",
    "group_nodes",
    "lower_program",
    "lower_whole",
]
