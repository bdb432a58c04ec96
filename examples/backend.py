"""A backend of one's own, small: its payload is a list of calls as JSON, which Python runs.

`SimulatedBackend` computes a few elementwise operators; `run_payload` is its run time, and knows
nothing of lostwax. `TakesWhatItCan` chooses every operator that it computes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from lostwax import ExportedProgram, ops
from lostwax.backends import Backend, CapabilityPartitioner, CompileSpec, DelegationSpec
from lostwax.errors import LoweringError

aten = ops.edge.aten
FUNCTIONS: dict[Any, str] = {
    aten.add.Tensor: "add",
    aten.mul.Tensor: "mul",
    aten.relu.default: "relu",
    aten.sigmoid.default: "sigmoid",
    aten.addmm.default: "addmm",
    aten.permute_copy.default: "permute",
}
"""What this backend computes, and what its run time calls it."""


class SimulatedBackend(Backend):
    """Writes a part as a list of calls."""

    def preprocess(self, program: ExportedProgram, compile_specs: Sequence[CompileSpec]) -> bytes:
        nodes = list(program.graph.nodes)
        names = program.graph_signature.user_inputs
        held = program.graph_signature.inputs_to_parameters | dict(
            program.graph_signature.inputs_to_buffers | lifted(program)
        )
        state = {**program.state_dict, **program.constants}
        calls = []
        for node in nodes:
            if node.op == "call_function":
                if node.target not in FUNCTIONS or node.kwargs:
                    raise LoweringError(f"{node.name} = {node.target} is not of this backend")
                args = [a.name if isinstance(a, Node) else a for a in node.args]
                calls.append([node.name, FUNCTIONS[node.target], args])
        payload = {
            "inputs": list(names),
            "constants": {name: state[target].tolist() for name, target in held.items()},
            "calls": calls,
            "outputs": list(program.graph_signature.user_outputs),
            "settings": {spec.key: spec.value.decode() for spec in compile_specs},
        }
        return json.dumps(payload).encode()


def lifted(program: ExportedProgram) -> dict[str, str]:
    """The constants of a program by the names of their inputs."""
    return dict(program.graph_signature.inputs_to_lifted_tensor_constants)


def run_payload(data: bytes, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """The run time of this backend."""
    payload = json.loads(data)
    values: dict[str, Any] = dict(zip(payload["inputs"], inputs, strict=True))
    values |= {name: torch.tensor(data) for name, data in payload["constants"].items()}
    for name, function, args in payload["calls"]:
        ready = [values[a] if isinstance(a, str) else a for a in args]
        values[name] = getattr(torch, function)(*ready)
    return [values[name] for name in payload["outputs"]]


def make_partitioner(
    explain: Callable[[Node], str] | None = None, *specs: CompileSpec
) -> CapabilityPartitioner:
    """A partitioner that takes what the backend computes."""
    return CapabilityPartitioner(
        DelegationSpec(SimulatedBackend(), specs), explain or explain_missing
    )


def explain_missing(node: Node) -> str:
    """Why the backend does not compute a call; "" if it does."""
    if node.target not in FUNCTIONS:
        return f"the backend has no {node.target}"
    return "" if node.meta["val"].dtype is torch.float32 else "it computes in float32"
