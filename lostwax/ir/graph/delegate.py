"""Parts of a program that were handed to a backend: `LoweredBackendModule`, and the calls of it.

In a graph, a delegate is read by `get_attr` and called by `executorch_call_delegate`. It has what
the backend made of the part, and the part itself as a program, which is what runs in Python. Must
not know which backends there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from lostwax.errors import InputStructureError, InputValueError, LoweringError
from lostwax.fake.tensor import FakeTensor
from lostwax.ir.data import Program
from lostwax.ir.described import DescribedProgram, has_strange_fakes
from lostwax.ir.graph.lookup import find_attribute, graph_modules
from lostwax.sym import Expr, Guard

CALL_DELEGATE: Any = torch.ops.higher_order.executorch_call_delegate
"""The operator that calls a delegate: the delegate, then what its program is given."""


@dataclass(frozen=True)
class CompileSpec:
    """A setting for a backend: its name, and its value as bytes. Both stand in the file, too."""

    key: str
    value: bytes

    def __post_init__(self) -> None:
        if not isinstance(self.key, str) or not isinstance(self.value, (bytes, bytearray)):
            raise LoweringError(
                f"a CompileSpec is a name and bytes, not {self.key!r} and {self.value!r}"
                '\n  instead: CompileSpec("speed", b"high")'
            )


class WholeCall(NamedTuple):
    """How a delegate that was a whole program is called: as that was."""

    in_spec: TreeSpec
    given: tuple[int, ...]
    """Which leaves of the arguments the delegate takes, in its order."""
    constants: Mapping[int, Any]
    """The leaves that are part of what was lowered."""
    out_spec: TreeSpec
    returned: tuple[tuple[str, Any], ...]
    """For each leaf of the result, what it is: a "result" of the delegate or an "argument", by its
    number, or a "value"."""

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The leaves of a call."""
        leaves, spec = tree_flatten((args, dict(kwargs)))
        if spec != self.in_spec:
            raise InputStructureError(
                f"the delegate is called with {spec}\n  why: it was lowered for {self.in_spec}"
            )
        for at, value in self.constants.items():
            if type(leaves[at]) is not type(value) or leaves[at] != value:
                raise InputValueError(
                    f"argument {at} of the delegate is {leaves[at]!r}\n  why: it was lowered for "
                    f"{value!r}, which is part of its payload"
                )
        return leaves

    def unflatten(self, leaves: Sequence[Any], results: Sequence[Any]) -> Any:
        """What the call returns."""
        found = {"result": results, "argument": leaves}
        values = [found[kind][at] if kind in found else at for kind, at in self.returned]
        return tree_unflatten(values, self.out_spec)


class LoweredBackendModule(nn.Module):
    """A part of a program as a backend has it. Nothing of it is changed once the program that has
    it is made."""

    def __init__(
        self,
        program: Any,
        backend_id: str,
        processed_bytes: bytes,
        compile_specs: Sequence[CompileSpec] = (),
        named_data: Mapping[str, Any] | None = None,
        backend: Any = None,
        events: Mapping[int | str, Sequence[str]] | None = None,
        call: WholeCall | None = None,
    ) -> None:
        super().__init__()
        self.program: Program = program
        """What it computes, as it was before it was lowered."""
        self.backend_id = backend_id
        """The name by which the runtime finds the backend."""
        self.processed_bytes = processed_bytes
        """What the backend made of the part, to be read by its run time."""
        self.compile_specs = tuple(compile_specs)
        self.named_data = dict(named_data or {})
        """Data beside the payload, which delegates and methods share by name."""
        self.backend = backend
        """What made the payload, if it is at hand: it is asked again to find what is wrong."""
        self.events = {event: tuple(names) for event, names in (events or {}).items()}
        """The names of the nodes of the part that each event of the backend's run time is of."""
        self.call = call
        """How it is called, if it was a whole program; else its inputs are given one by one."""

    @property
    def original_module(self) -> Any:
        """The part as a program, whose `module()` computes it: torch's operator calls this. Where
        it asks for types alone, as `torch.cond` does in eager, that is what it gets."""
        return DescribedProgram(self.program) if has_strange_fakes() else self.program

    @property
    def graph(self) -> Graph:
        """The graph of the part, for who reads it."""
        return self.program.graph

    def with_program(self, program: Program) -> LoweredBackendModule:
        """The same payload, of the part as this program has it."""
        return LoweredBackendModule(
            program,
            self.backend_id,
            self.processed_bytes,
            self.compile_specs,
            self.named_data,
            self.backend,
            self.events,
            self.call,
        )

    def give_ranges(self, ranges: Mapping[Any, Any], guards: Sequence[Guard] = ()) -> None:
        """Say in which ranges the sizes of a call are, and what the program with the call asks of
        them: it is known when that program is made."""
        program = self.program
        self.program = replace(
            program,
            range_constraints=ranges,
            guards=find_guards(guards, program.graph_module),
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the part in Python; in a module that is exported, the call becomes one of this
        delegate."""
        if self.call is None:
            return CALL_DELEGATE(self, *args, **kwargs)
        leaves = self.call.flatten(args, kwargs)
        return self.call.unflatten(
            leaves, CALL_DELEGATE(self, *(leaves[i] for i in self.call.given))
        )

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


def find_guards(guards: Sequence[Guard], module: GraphModule) -> tuple[Guard, ...]:
    """The conditions of a program that are about sizes of the inputs of a part of it."""
    inputs = (n.meta["val"] for n in module.graph.find_nodes(op="placeholder"))
    tensors = (value.fake_type.size for value in inputs if isinstance(value, FakeTensor))
    given = {x for size in tensors for s in size if isinstance(s, Expr) for x in s.symbols()}
    return tuple(g for g in guards if given.issuperset(g.cond.symbols()))


def held_delegates(module: nn.Module) -> Iterator[LoweredBackendModule]:
    """The delegates that a graph module and its sub-graphs have, each once."""
    return (each for each in module.modules() if isinstance(each, LoweredBackendModule))
