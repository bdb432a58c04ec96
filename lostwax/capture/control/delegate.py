"""`executorch_call_delegate`: a lowered part of another program, called by the module.

Its payload goes through as it is. It asks of sizes and dtypes what its own program asks, and the
types in it are found again for this call. Must not look into payloads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from lostwax.capture.control.outputs import new_results
from lostwax.capture.trace.tracer import Tracer
from lostwax.classes import SYMBOLIC
from lostwax.errors import CaptureError
from lostwax.fake.tensor import FakeTensor, new_fake
from lostwax.ir.graph.control import find_calls, recorded_value
from lostwax.ir.graph.copying import copy_module
from lostwax.ir.graph.delegate import CALL_DELEGATE, LoweredBackendModule
from lostwax.ir.graph.retype import retype
from lostwax.ir.signature import InputKind
from lostwax.ir.trace.log import HeldModule
from lostwax.types import TensorType


def record_delegate(tracer: Tracer, delegate: Any, *given: Any) -> Any:
    """Record a call of a delegate."""
    if not isinstance(delegate, LoweredBackendModule):
        cls = type(delegate)
        raise CaptureError.here(
            f"executorch_call_delegate calls a {cls.__module__}.{cls.__qualname__}",
            why="a program has delegates that were lowered here",
            instead="lostwax.backends.lower_whole(edge_program, spec), or "
            "program.to_edge().to_backend(partitioner)",
        )
    if not tracer.is_recording:
        return delegate.original_module.module()(*given)
    with tracer.pause_recording():
        delegate.original_module.module()(*given)  # asks what it must of sizes and dtypes
        placed = _place(tracer, delegate, given)
    step = tracer.add_step(CALL_DELEGATE, (HeldModule("lowered_module", placed), *given), {})
    returned: Any = placed.graph.output_node().args[0]
    types = [_plain_type(recorded_value(node)) for node in returned]
    return tuple(new_results(tracer, step, types))


def _place(
    tracer: Tracer, delegate: LoweredBackendModule, given: Sequence[Any]
) -> LoweredBackendModule:
    """The delegate with the sizes of this call in the place of its own symbols."""
    program = delegate.program
    nodes = program.graph.nodes
    if not any(_is_symbolic(n.meta.get("val")) for n in nodes):
        return delegate
    if any(True for _ in find_calls(program.graph)):
        raise CaptureError.here(
            f"a delegate of {delegate.backend_id} with branches or loops, for sizes that vary",
            why="what varies in them would have to be found again for this call",
            instead="lower it for fixed sizes",
        )
    module, _ = copy_module(program.graph_module)
    inputs = module.graph.find_nodes(op="placeholder")
    rest = iter(given)
    for node in module.graph.nodes:
        value = node.meta.pop("val", None)
        if node.op == "placeholder":
            node.meta["val"] = value
    for node, spec in zip(inputs, program.graph_signature.input_specs, strict=True):
        value = next(rest) if spec.kind is InputKind.USER_INPUT else node.meta["val"]
        is_tensor = isinstance(value, torch.Tensor)
        node.meta["val"] = new_fake(tracer, _plain_type(value)) if is_tensor else value
    retype(module.graph, tracer, {})
    placed = delegate.with_program(replace(program, graph_module=module, guards=()))
    tracer.delegates.append(placed)
    return placed


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_is_symbolic, value))
    if isinstance(value, FakeTensor):
        return value.fake_type.is_symbolic
    return isinstance(value, SYMBOLIC)


def _plain_type(value: Any) -> Any:
    """The type of a tensor as it lies in the Edge dialect."""
    t = value.fake_type
    return TensorType(t.size, t.dtype, t.device)
