"""Parts of a program that were handed to a backend: `LoweredBackendModule`, and the calls of it.

In a graph, a delegate is read by `get_attr` and called by `executorch_call_delegate`. It has what
the backend made of the part, and the part itself as a program, which is what runs in Python. Must
not know which backends there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from lostwax.errors import LoweringError
from lostwax.ir.data import Program
from lostwax.ir.graph.lookup import find_attribute, graph_modules

CALL_DELEGATE: Any = torch.ops.higher_order.executorch_call_delegate
"""The operator that calls a delegate: the delegate, then what its program is given."""


class LoweredBackendModule(nn.Module):
    """A part of a program as a backend has it. Nothing of it is changed once it is made."""

    def __init__(
        self,
        program: Any,
        backend_id: str,
        processed_bytes: bytes,
        compile_specs: Sequence[Any] = (),
        named_data: Mapping[str, Any] | None = None,
        backend: Any = None,
        events: Mapping[int | str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__()
        self.original_module = program
        """The part as a program, whose `module()` computes it; torch's operator calls this."""
        self.backend_id = backend_id
        """The name by which the runtime finds the backend."""
        self.processed_bytes = processed_bytes
        """What the backend made of the part, to be read by its run time."""
        self.compile_specs = tuple(compile_specs)
        self.named_data = dict(named_data or {})
        """Data beside the payload, which delegates and methods share by name."""
        self.backend = backend
        """What made the payload, if it is at hand: it is asked again to find what is wrong."""
        self.events = dict(events or {})
        """The names of the nodes of the part that each event of the backend's run time is of."""

    @property
    def program(self) -> Program:
        """What it computes, as it was before it was lowered."""
        found: Program = self.original_module
        return found

    @property
    def graph(self) -> Graph:
        """The graph of the part, for who reads it."""
        return self.program.graph

    def forward(self, *args: Any) -> Any:
        """Compute the part in Python."""
        return self.original_module.module()(*args)

    def __deepcopy__(self, memo: dict[int, Any]) -> LoweredBackendModule:
        return self

    def extra_repr(self) -> str:
        return f"{self.backend_id}, {len(self.processed_bytes):,} bytes"


def find_delegate(node: Node) -> LoweredBackendModule | None:
    """The delegate that a node calls; None if it calls none."""
    source = node.args[0] if node.target is CALL_DELEGATE and node.args else None
    if not isinstance(source, Node) or source.op != "get_attr":
        return None
    found = find_attribute(node.graph.owning_module, str(source.target))
    return found if isinstance(found, LoweredBackendModule) else None


def find_delegates(graph: Graph) -> Iterator[tuple[Node, LoweredBackendModule]]:
    """The calls of delegates in a graph."""
    for node in graph.find_nodes(op="call_function", target=CALL_DELEGATE):
        delegate = find_delegate(node)
        if delegate is not None:
            yield node, delegate


def refuse_delegates(module: GraphModule, what: str) -> None:
    """Refuse to do something to a program that has delegates, which are whole and stay so."""
    if any(True for each in graph_modules(module) for _ in find_delegates(each.graph)):
        raise LoweringError(
            f"{what}: the program has delegates, which are of a backend's own form\n  instead: do "
            "it before to_backend; to_executable() writes delegates into a file"
        )
