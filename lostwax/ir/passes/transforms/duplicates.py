"""Common subexpressions as a pass; the work is done in `cse.py`."""

from __future__ import annotations

from dataclasses import dataclass

from lostwax.ir.graph.cse import share
from lostwax.ir.passes.draft import Draft
from lostwax.ir.passes.pipeline import Pass


@dataclass(frozen=True)
class CommonSubexpressions(Pass):
    """Computes once what is computed twice, in each sub-graph by itself."""

    requires = ("functional",)
    ensures = ("no-duplicates",)

    def edit(self, draft: Draft) -> None:
        for module in draft.graph_modules():
            share(module.graph)
