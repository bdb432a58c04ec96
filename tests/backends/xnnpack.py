"""Programs lowered to XNNPACK and run by the real runtime, beside eager."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import lostwax
from lostwax.backends import XnnpackPartitioner
from tests.pte.runtime import assert_close


def lower(
    module: Any, inputs: tuple[Any, ...], dynamic_shapes: Any = None
) -> lostwax.EdgeProgramManager:
    program = lostwax.export(module, inputs, dynamic_shapes=dynamic_shapes)
    return lostwax.to_edge_transform_and_lower(program, partitioner=XnnpackPartitioner())


def compare(
    module: Any, lowered: lostwax.EdgeProgramManager, cases: Sequence[tuple[Any, ...]]
) -> None:
    """Run each case in the runtime, twice, and in eager."""
    loaded = lostwax.pte.load_runtime(lowered.to_executable().buffer)
    for case in cases:
        with torch.no_grad():
            want = tree_leaves(module(*case))
        for _ in range(2):
            assert_close(loaded.run(case), want)
