"""Where code raises after an answer to a question: `if size == 1: raise ValueError(...)`.

Must not know who asks, nor who catches it.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import NamedTuple

from lostwax.bytecode.steps import Step, find_places, read_steps
from lostwax.cache import cached_by_identity

NOWHERE: frozenset[int] = frozenset()
_LONGEST = 80  # instructions of a side that raises


class Raised(NamedTuple):
    offset: int
    names: tuple[str, ...]
    """The globals that are read on the way there: the exception's class is one of them."""


@cached_by_identity(1000)
def find_raising(code: CodeType) -> dict[tuple[int, bool], Raised]:
    """For each place where a truth is asked, and each answer after which the code raises: where it
    raises."""
    steps = _read(code)
    places = find_places(steps)
    found: dict[tuple[int, bool], Raised] = {}
    for i, jumps_if, asked in _jumps(steps):
        for start, answer in ((places.get(steps[i].argval), jumps_if), (i + 1, not jumps_if)):
            end = None if start is None else _raised_at(steps[start : start + _LONGEST])
            if end is not None:
                found.update({(offset, answer): end for offset in asked})
    return found


@cached_by_identity(1000)
def find_moot(code: CodeType) -> dict[tuple[int, bool], frozenset[int]]:
    """For each place where a truth is asked, and the answer after which further parts of the
    condition are: where these are asked, if all that is left is to raise or not."""
    steps = _read(code)
    found: dict[tuple[int, bool], frozenset[int]] = {}
    for i, jumps_if, asked in _jumps(steps):
        later = _only_asks_on(steps[i + 1 : i + _LONGEST], steps[i].argval)
        if later:
            found.update({(offset, not jumps_if): later for offset in asked})
    return found


@cached_by_identity(1000)
def _read(code: CodeType) -> list[Step]:
    """Its instructions; none if it never raises, as then no answer leads there."""
    if _RAISE not in code.co_code[::2]:
        return []
    steps, read = list[Step](), read_steps(code)
    for i, step in enumerate(read):
        last = steps[-1] if steps else None
        jumped = None if last is None else _ON_TRUTH.get(last.opname)
        if (
            step.opname.startswith("JUMP_BACKWARD")
            and last is not None
            and jumped is not None
            and last.argval == (read[i + 1].start if i + 1 < len(read) else None)
        ):  # since Python 3.12 no jump on a truth goes back: it jumps over one that does
            steps[-1] = last._replace(argval=step.argval, opname=_NAMES[not jumped])
        else:
            steps.append(step)
    return steps


def _jumps(steps: list[Step]) -> Iterator[tuple[int, bool, list[int]]]:
    """Yield each step that jumps on a truth, the truth on which it jumps, and where it is asked."""
    for i, step in enumerate(steps):
        if step.opname in _ON_TRUTH:
            yield i, _ON_TRUTH[step.opname], _find_asking(steps, i)


def _find_asking(steps: Sequence[Step], i: int) -> list[int]:
    """Where the truth on which this step jumps may be asked. (From Python 3.13 on, before it.)"""
    before = steps[max(i - 1, 0) : i]
    return [steps[i].offset, *[each.offset for each in before if each.opname == "TO_BOOL"]]


def _only_asks_on(steps: list[Step], way_out: object) -> frozenset[int]:
    """Find where these steps ask, if they only look at things and ask, each time with the same way
    out, until they raise."""
    later: list[int] = []
    is_looking = True
    for i, step in enumerate(steps):
        if step.opname == "RAISE_VARARGS":
            return frozenset(later)
        if step.opname in _ON_TRUTH:
            if not is_looking or step.argval != way_out:
                return NOWHERE
            later += _find_asking(steps, i)
        elif _goes_elsewhere(step):
            return NOWHERE
        else:
            is_looking = is_looking and step.opname.startswith(_LOOKING)
    return NOWHERE


def _raised_at(steps: list[Step]) -> Raised | None:
    """Where these steps raise, if they go there without a branch."""
    names: list[str] = []
    for step in steps:
        if step.opname == "RAISE_VARARGS":
            return Raised(step.offset, tuple(names))
        if _goes_elsewhere(step):
            return None
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names.append(str(step.argval))
    return None


def _goes_elsewhere(step: Step) -> bool:
    return "JUMP" in step.opname or step.opname.startswith(_ENDING)


_NAMES = {answer: f"POP_JUMP_IF_{answer}".upper() for answer in (True, False)}
_ON_TRUTH = {name: answer for answer, name in _NAMES.items()}
_ENDING = ("RETURN", "YIELD", "SEND", "RERAISE", "FOR_ITER")
_LOOKING = ("LOAD_", "BINARY_", "COMPARE_", "UNARY_", "TO_BOOL", "IS_OP", "CONTAINS_OP")
_RAISE = dis.opmap["RAISE_VARARGS"]
