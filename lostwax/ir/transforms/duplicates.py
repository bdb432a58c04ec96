"""Common subexpressions as a pass; the work is done in `cse.py`."""

from __future__ import annotations

from dataclasses import dataclass

from lostwax.ir.cse import share
from lostwax.ir.draft import Draft
from lostwax.ir.passes import Pass


@dataclass(frozen=True)
class CommonSubexpressions(Pass):
    """Computes once what is computed twice, in each sub-graph by itself."""

    requires = ("functional",)
    ensures = ("no-duplicates",)

    def edit(self, draft: Draft) -> None:
        for module in draft.graph_modules():
            share(module.graph)
