"""Code that asks whether it is being exported, `torch.compiler.is_exporting()`, `is_compiling()`,
and what it is told. Some then goes a way that an export can take, and eager does not.

The policy, `tell_exporting`:

- `"auto"`: yes, since libraries that ask have that way for us. If that is refused, no: the program
  is then that of eager. What was told, and where it was asked, stands in `program.settings`.
- `"compare"`: the same, and if both ways can be captured and give other values for the example, the
  program is that of eager. Costs a second capture, and a run of both programs, where code asked.
- `True`, `False`: this, always.

torch's own code is told yes: its ways compute the same. Must not know who asks.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree

from lostwax.capture.attempt import Attempt
from lostwax.errors import LostwaxError
from lostwax.fake.tensor import FakeTensor
from lostwax.ir.program import ExportedProgram
from lostwax.location import find_user_frame, is_user_code, warn

TellExporting = Literal["auto", "compare"] | bool
_MOST_LINES = 16


def check_option(given: Any) -> None:
    if given not in ("auto", "compare") and not isinstance(given, bool):
        raise ValueError(
            f'tell_exporting= takes "auto", "compare", True or False, not {given!r}\n'
            "  why: it is what code is told that asks whether it is being exported\n"
            "  instead: drop it"
        )


def answer(tracer: Any, name: str) -> bool:
    """What this question, a function of torch's, is answered. Whoever asks is noted."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != name:
        frame = frame.f_back
    asking = None if frame is None else frame.f_back
    if asking is None or not is_user_code(asking.f_code):
        return True
    line = _show_line(asking)
    if line not in tracer.asked_exporting and len(tracer.asked_exporting) < _MOST_LINES:
        tracer.asked_exporting.append(line)
    return bool(tracer.tells_exporting)


def _show_line(frame: FrameType) -> str:
    """The line that asks; not that of a function which only hands the question on, `is_tracing`."""
    asking: FrameType | None = frame
    while asking is not None and asking.f_code.co_name.startswith("is_"):
        asking = find_user_frame(asking.f_back)
    asking = asking or frame
    return f"{asking.f_code.co_filename}:{asking.f_lineno} in {asking.f_code.co_name}"


Make = Callable[[Attempt], ExportedProgram]


def capture_as_told(make: Make, attempt: Attempt, told: TellExporting) -> ExportedProgram:
    """The program of a call, by the policy."""
    if isinstance(told, bool):
        return make(attempt._replace(tells_exporting=told))
    attempt = attempt._replace(asked=[])
    try:
        program = make(attempt)
    except LostwaxError:
        if not attempt.asked:
            raise
        found = _try_as_eager(make, attempt)
        if found is None:
            raise
        return found
    except Exception:  # the module's own, on a way that eager may not go
        if not attempt.asked:
            raise
        return make(_as_eager(attempt))
    if told == "compare" and attempt.asked:
        found = _try_as_eager(make, attempt)
        if found is not None and _differ(program, found):
            warn(
                "the module gives other values if it is told that it is being exported; the "
                f"program is that of eager\n  asked at {attempt.asked[0]}\n"
                "  instead: tell_exporting=True or False says which one is wanted"
            )
            return found
    return program


def _as_eager(attempt: Attempt) -> Attempt:
    return attempt._replace(tells_exporting=False, keeps_options=False)


def _try_as_eager(make: Make, attempt: Attempt) -> ExportedProgram | None:
    """None, if that is refused. A library that asks has a way for exports: a mask that is there or
    not, as data say, is none of its own making."""
    try:
        return make(_as_eager(attempt))
    except Exception:
        return None


def _differ(one: ExportedProgram, other: ExportedProgram) -> bool:
    """Do they give other values for the example? Where that has no data, nobody knows."""
    from lostwax.ir.diff import find_change  # few ask

    if find_change(one, other) is None:
        return False
    held = pytree.tree_leaves((one.state_dict, one.constants, one.example_inputs))
    if any(isinstance(t, FakeTensor) or getattr(t, "is_meta", False) for t in held):
        return False
    (values, structure), (others, its) = _compute(one), _compute(other)
    return structure != its or not all(map(_is_close, values, others))


def _is_close(a: Any, b: Any) -> bool:
    try:
        torch.testing.assert_close(a, b, equal_nan=True)
    except (AssertionError, TypeError):
        return a is b
    return True


def _compute(program: ExportedProgram) -> tuple[list[Any], Any]:
    """The values that a program gives for the example, and their structure, which is None if it
    raises."""
    args, kwargs = copy.deepcopy(program.example_inputs or ((), {}))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            return pytree.tree_flatten(program.module()(*args, **kwargs))
        except Exception:
            return [], None
