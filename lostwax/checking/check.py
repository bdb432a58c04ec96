"""`check`: compares a program with its module, at the example and at other sizes for which the
program claims to hold; an executable is run by the real runtime.

If they differ, both run once more node by node, to name the first that differs. Must not change the
module or the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from torch import nn

from lostwax.checking.calls import DrawnCall, list_calls
from lostwax.checking.program import ProgramCase
from lostwax.checking.result import (
    Case,
    CheckResult,
    Difference,
    Refusal,
    close_to_scale,
    make_close,
)
from lostwax.errors import CheckError
from lostwax.ir.program import ExportedProgram, check_is_program


def check(
    program: ExportedProgram | Any,
    module: nn.Module | Callable[..., Any] | None = None,
    inputs: Sequence[Any] | None = None,
    *,
    draws: int = 8,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    method: str = "forward",
    on_case: Callable[[str], None] | None = None,
) -> CheckResult:
    """Compare a program with the module that it was captured from.

    With `inputs`, a list of argument tuples or of pairs `(args, kwargs)`, both run with these;
    otherwise with the example, and with up to `draws` other sizes from the program's ranges, small
    and odd ones first; `seed` draws others, and the values. Compared are results, and what is
    written to inputs and buffers; tolerances are those of `torch.testing.assert_close`, unless
    `rtol` and `atol` are given. Both run on copies. The first case that differs ends the check.
    `on_case` is called with the title of each case before it runs.

    Of programs in the Edge dialect, lowered or not, the `method` is compared. An executable is run
    by the ExecuTorch runtime, twice for each case, and its `method` compared with the module, or if
    there is none with the program that it was lowered from; the bar is 1e-4 of the largest value.
    If a delegate differs, its backend is asked again, to find the operator inside.
    """
    make_case: Callable[[DrawnCall], Case]
    if not isinstance(program, ExportedProgram):
        from lostwax.dialects.manager import EdgeProgramManager
        from lostwax.pte.executable import ExecutableProgram

        if isinstance(program, EdgeProgramManager):
            program = program.exported_program(method)
    if isinstance(program, ExportedProgram):
        sides = ("program", "module")
        if module is None:
            raise CheckError(
                "a program is compared with its module\n  instead: check(program, module)"
            )
        make_case = partial(ProgramCase, program, module, seed, make_close(rtol, atol))
    elif isinstance(program, ExecutableProgram):
        from lostwax.checking.executable import ExecutableCase

        sides = ("executable", "module")
        close = close_to_scale if rtol is None and atol is None else make_close(rtol, atol)
        make_case = partial(ExecutableCase, program, method, module, close)
        program = program.exported_program(method)
    else:
        check_is_program(program, "check")
    calls = list_calls(program, inputs, draws, seed, on_case)
    return compare_calls(calls, make_case, sides, describe_told(program))


def compare_calls(
    calls: Iterable[DrawnCall],
    make_case: Callable[[DrawnCall], Case],
    sides: tuple[str, str],
    told: str = "",
) -> CheckResult:
    """Compare both sides in each of these calls, until they differ; `told` is for the report."""
    agreed: list[str] = []
    refused: list[str] = []
    for call in calls:
        case = make_case(call)
        try:
            what = case.find_difference()
        except Refusal as refusal:
            refused.append(f"{call.title}: {refusal}")
            continue
        if what:
            found = Difference(call.title, what, case.find_first_node(), case.code(), sides)
            return CheckResult(tuple(agreed), tuple(refused), (found,), sides, told)
        agreed.append(call.title)
    return CheckResult(tuple(agreed), tuple(refused), sides=sides, told=told)


def describe_told(program: ExportedProgram) -> str:
    """What code was told that asked whether it was being exported; "" if none did."""
    settings = program.settings
    if settings is None or not settings.asked:
        return ""
    told = "yes" if settings.exporting else "no, as in eager"
    lines = "".join(f"\n    {line}" for line in settings.asked)
    return (
        f"code asked whether it was being exported, and was told: {told}{lines}\n"
        f"    instead: export(..., tell_exporting={not settings.exporting})"
    )
