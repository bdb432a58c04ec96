"""The instructions of code, one after the other, under names that are the same in every Python.

Python 3.13 writes two instructions as one (`LOAD_FAST_LOAD_FAST`), Python 3.11 writes two for one
call; here each does one thing. It is slow beside a look at the bytes (`outline.py`), and for those
who have to know what stands where. Must not run anything.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

from lostwax.bytecode.encoding import read_guarded
from lostwax.cache import cached_by_identity


class Step(NamedTuple):
    """One instruction. The names are those of `dis`."""

    opname: str
    arg: int
    argval: Any
    """What its argument stands for: a name, a constant, where it jumps."""
    offset: int
    """Where a frame is that runs it."""
    start: int
    """Where a jump to it leads: parts of its argument may stand in front."""
    is_jump_target: bool
    positions: dis.Positions

    @property
    def line(self) -> int | None:
        return self.positions.lineno


@cached_by_identity(1000)
def read_steps(code: CodeType) -> tuple[Step, ...]:
    found, start, is_target = list[Step](), None, False
    for each in dis.get_instructions(code):
        start, is_target = each.offset if start is None else start, is_target or each.is_jump_target
        if each.opname in ("EXTENDED_ARG", "PRECALL"):
            continue
        place = each.positions or dis.Positions()
        for name, value in _take_apart(each):
            found.append(Step(name, each.arg or 0, value, each.offset, start, is_target, place))
            is_target = False
        start = None
    return tuple(found)


def _take_apart(read: dis.Instruction) -> Iterator[tuple[str, Any]]:
    name, value = read.opname, read.argval
    if name == "RETURN_CONST":
        yield "LOAD_CONST", value
        yield "RETURN_VALUE", None
    elif name.count("_FAST") == 2 and isinstance(value, tuple):
        yield from zip(name.replace("FAST_", "FAST ").split(), value, strict=True)
    elif name == "COMPARE_OP" and read.argrepr.startswith("bool("):
        yield name, value
        yield "TO_BOOL", None
    elif name == "LOAD_METHOD":
        yield "LOAD_ATTR", value
    elif name.startswith("POP_JUMP_"):
        yield name.replace("FORWARD_", "").replace("BACKWARD_", ""), value
    else:
        yield name, value


def read_lines(code: CodeType) -> dict[int, list[Step]]:
    """The steps of each line of the source."""
    found: dict[int, list[Step]] = {}
    for step in read_steps(code):
        if step.line is not None:
            found.setdefault(step.line, []).append(step)
    return found


def find_places(steps: tuple[Step, ...] | list[Step]) -> dict[Any, int]:
    """Where among these steps a jump to an offset leads."""
    return {each.start: i for i, each in reversed([*enumerate(steps)])}


@cached_by_identity(1000)
def read_handlers(code: CodeType) -> tuple[tuple[int, int, int], ...]:
    """From where to where exceptions are caught, and by which handler; the innermost first."""
    return tuple(
        (2 * start, 2 * (start + length), 2 * handler)
        for start, length, handler, _ in read_guarded(code.co_exceptiontable)
    )


def sets(step: Step, name: str) -> bool:
    """Does it set or delete an attribute or variable of this name that outlives the call?"""
    return step.opname in _SETTING and step.argval == name


def gets(step: Step, name: str) -> bool:
    """Does it read such an attribute or variable?"""
    return step.opname in _GETTING and step.argval == name


def puts_item(step: Step) -> bool:
    """Does it set or delete an item, `x[i] = y`?"""
    return step.opname in ("STORE_SUBSCR", "STORE_SLICE", "DELETE_SUBSCR")


_SETTING = frozenset(("STORE_ATTR", "DELETE_ATTR", "STORE_DEREF", "STORE_GLOBAL"))
_GETTING = frozenset(("LOAD_ATTR", "LOAD_DEREF", "LOAD_GLOBAL"))
