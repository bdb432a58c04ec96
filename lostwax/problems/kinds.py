"""What a report finds beside errors: kinds with codes, as the classes of errors have them. Must not
import torch: `lostwax explain` shows them."""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of findings."""

    code: str
    name: str
    level: str
    """"error": there is no program; "warning": it holds for less than was declared, or cannot be
    lowered; "note": good to know."""
    cause: str
    fix: str


SPECIALIZED = Kind(
    "LW1001",
    "specialized size",
    "warning",
    "A size that was declared to vary cannot vary as declared: a line of the module asks for more, "
    "or an operator does.",
    "Declare it as the finding says; or change the line, so that it does not ask for the size.",
)
GUARD = Kind(
    "LW1002",
    "guard",
    "note",
    "The program is right under a condition on its sizes, which it checks when it is called: the "
    "trace went one way at this line, as the example did.",
    'Nothing, if calls fulfil it; or control_flow="sizes", which keeps both ways; or a range, '
    "Dim(name, min=..., max=...), inside of which it is always so.",
)
BAKED_IN = Kind(
    "LW1003",
    "baked-in value",
    "note",
    "A number or text that the module reads from an attribute, a global or a variable around is a "
    "constant of the program: to change it there later changes nothing.",
    "Nothing, if it is a constant; or pass it as an argument, or keep it in a buffer.",
)
NOT_CORE = Kind(
    "LW1101",
    "not in core ATen",
    "warning",
    "An operator is not of core ATen, and nothing takes it apart.",
    "Write it by other operators; or give a decomposition, program.run_decompositions({op: f}).",
)
NOT_EDGE = Kind(
    "LW1102",
    "not in Edge",
    "warning",
    "The Edge dialect does not have an operator, a dtype or a layout.",
    "Write it by others; or EdgeConfig(decompositions={op: f}).",
)
NO_KERNEL = Kind(
    "LW1103",
    "no runtime kernel",
    "warning",
    "The ExecuTorch runtime has no kernel that computes a call.",
    "Write it by other operators; or hand it to a backend that has it.",
)
NOT_DELEGATED = Kind(
    "LW1104",
    "not delegated",
    "note",
    "No backend took a call: the runtime's own kernels compute it, which may be slower.",
    "Write it by operators that the backend has, if its time counts; or give sizes upper bounds.",
)
UNBOUNDED = Kind(
    "LW1105",
    "unbounded size",
    "warning",
    "A size has no upper bound, and the memory of an executable is planned before it runs.",
    "Dim(name, max=...); or torch._check(n <= ...) for a size that depends on data.",
)
KINDS = (
    SPECIALIZED,
    GUARD,
    BAKED_IN,
    NOT_CORE,
    NOT_EDGE,
    NO_KERNEL,
    NOT_DELEGATED,
    UNBOUNDED,
)
