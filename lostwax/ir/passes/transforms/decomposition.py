"""Decomposition as a pass; the work is done in `decompose.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch._ops import OpOverload

from lostwax.ir.decompose.decompose import decompose_program
from lostwax.ir.decompose.expander import Decomposition
from lostwax.ir.passes.pipeline import Pass
from lostwax.ir.program import ExportedProgram


@dataclass(frozen=True)
class Decompose(Pass):
    """Takes operators apart, as `program.run_decompositions(table)` does.

    Without a table, the result is in core ATen, or the pass fails and names what is not (a `split`
    into a number of parts that depends on sizes). With one, nothing is ensured.
    """

    table: Mapping[OpOverload, Decomposition] | None = None

    requires = ("functional",)

    @property
    def ensures(self) -> tuple[str, ...]:
        """Core ATen, if no table of one's own says otherwise."""
        return ("core-aten",) if self.table is None else ()

    def run(self, program: ExportedProgram) -> ExportedProgram:
        return decompose_program(program, self.table)
