"""Removes calls and state that nothing reads.

Must not remove what has effects (draws random numbers, checks) or what a caller can see.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import GraphModule

from lostwax.ir.graph.effects import must_stay
from lostwax.ir.passes.draft import Draft
from lostwax.ir.passes.pipeline import Pass
from lostwax.ir.signature import InputKind


@dataclass(frozen=True)
class DeadCode(Pass):
    """Removes calls that nothing reads, in sub-graphs too.

    Calls that draw random numbers stay, since without them later calls would draw other numbers; so
    do checks, and values that the signatures of preserved modules name.
    """

    ensures = ("no-dead-code",)

    def edit(self, draft: Draft) -> None:
        named = draft.program.named_by_calls
        for module in draft.graph_modules():
            remove_dead(module, named)


def remove_dead(module: GraphModule, named: set[str]) -> int:
    """Erase what nothing reads, except nodes with these names; return how many went."""
    graph, count = module.graph, 0
    for node in reversed(graph.nodes):
        if not node.users and not must_stay(node) and node.name not in named:
            graph.erase_node(node)
            count += 1
    return count


@dataclass(frozen=True)
class UnusedState(Pass):
    """Removes parameters, buffers and constants that nothing reads and nothing writes, under all
    their names. Inputs of the user stay: how a program is called does not change."""

    ensures = ("no-unused-state",)

    def edit(self, draft: Draft) -> None:
        written = {s.target for s in draft.outputs}
        for node, spec in list(draft.inputs.items()):
            is_state = spec.kind not in (InputKind.USER_INPUT, InputKind.TOKEN)
            if is_state and not node.users and spec.target not in written:
                del draft.inputs[node]
                draft.graph.erase_node(node)
        stores = (draft.state_dict, draft.constants)
        named = {spec.target for spec in draft.inputs.values()}
        kept = {id(v) for store in stores for k, v in store.items() if k in named}
        for store in stores:  # a tensor that is tied has several names
            for name in [k for k, v in store.items() if id(v) not in kept]:
                del store[name]
