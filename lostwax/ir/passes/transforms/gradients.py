"""Removes the custom backwards of `autograd.Function`, so that a program differentiates what it
computes.

This is for consumers that do not know `with_gradient`: real torch, files, backends. Must not change
what a program computes.
"""

from __future__ import annotations

from dataclasses import dataclass

from lostwax.ir.graph.gradient import remove_gradients, with_gradient
from lostwax.ir.graph.lookup import graph_modules
from lostwax.ir.passes.draft import Draft
from lostwax.ir.passes.pipeline import Pass
from lostwax.ir.program import ExportedProgram


@dataclass(frozen=True)
class PlainGradients(Pass):
    """Removes custom backwards: gradients are those of what the program computes."""

    def edit(self, draft: Draft) -> None:
        for module in draft.graph_modules():
            remove_gradients(module.graph)


def has_custom_gradients(program: ExportedProgram) -> bool:
    graphs = (module.graph for module in graph_modules(program.graph_module))
    return any(g.find_nodes(op="call_function", target=with_gradient) for g in graphs)
