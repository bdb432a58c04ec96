"""Steps are what `dis` reads, each of them one thing, under the same names in every Python."""

from __future__ import annotations

import dis
from typing import Any

import pytest

from lostwax.bytecode import (
    find_places,
    gets,
    outline,
    read_chains,
    read_guarded,
    read_handlers,
    read_steps,
    sets,
)
from lostwax.bytecode.copies import write_guarded
from tests.bytecode.library import codes


def test_each_jump_leads_to_a_step_and_each_step_is_of_one_instruction() -> None:
    jumps = 0
    for code in codes():
        steps, read = read_steps(code), {each.offset: each for each in dis.get_instructions(code)}
        places = find_places(steps)
        for step in steps:
            raw = read[step.offset]
            assert (raw.arg or 0, raw.positions) == (step.arg, step.positions)
            if raw.opcode in dis.hasjrel:
                assert step.argval == raw.argval
                assert step.argval in places
                jumps += 1
        prefixes = {each.offset for each in read.values()} - {each.offset for each in steps}
        assert {read[at].opname for at in prefixes} <= {"EXTENDED_ARG", "PRECALL"}
    assert jumps > 300


def test_handlers_are_those_of_dis_and_are_written_as_they_were_read() -> None:
    found = 0
    for code in codes():
        wanted = dis._parse_exception_table(code)  # type: ignore[attr-defined]
        assert [*read_handlers(code)] == [(e.start, e.end, e.target) for e in wanted]
        assert write_guarded(read_guarded(code.co_exceptiontable)) == code.co_exceptiontable
        found += len(wanted)
    assert found > 100


def reading(x: Any, self: Any) -> Any:
    a, b = x * self.scale, self.method(x)
    if a == b:
        self.seen = b
    while a:
        a = a - 1
    return None


NAMES = {"LOAD_METHOD", "RETURN_CONST", "PRECALL", "LOAD_FAST_LOAD_FAST", "EXTENDED_ARG"}


def test_names_are_the_same_in_every_python() -> None:
    steps = read_steps(reading.__code__)
    names = [each.opname for each in steps]
    assert NAMES.isdisjoint(names)
    assert not any("FORWARD_IF" in each or "BACKWARD_IF" in each for each in names)
    assert names[-2:] == ["LOAD_CONST", "RETURN_VALUE"]
    loaded = [each.argval for each in steps if each.opname == "LOAD_FAST"]
    assert loaded[:8] == ["x", "self", "self", "x", "a", "b", "b", "self"]
    assert {each.argval for each in steps if gets(each, each.argval)} == {"scale", "method"}
    assert [each.argval for each in steps if sets(each, "seen")] == ["seen"]
    assert [each.line for each in steps if each.opname == "LOAD_ATTR"] == [
        reading.__code__.co_firstlineno + 1
    ] * 2


def test_chains() -> None:
    found = [
        (each.name, *[key for _, key in each.steps]) for each in read_chains(_chained.__code__)
    ]
    wanted = [("x",), ("self", "config", "eps"), ("SCALES", "x", 1), ("y",), ("torch", "pi")]
    assert [each for each in found if each in wanted] == wanted


SCALES: Any = {}
torch: Any = None


def _chained(self: Any, x: Any) -> Any:
    y = x * self.config.eps + SCALES["x"][1]
    return [y + torch.pi for _ in range(2)]


@pytest.mark.parametrize(
    ("asked", "body"),
    [
        ("may_set_computed_names", "setattr(x, y, 1)"),
        ("may_set_computed_names", "vars(x).update(y)"),
        ("may_set_computed_names", "object.__setattr__(x, y, 1)"),
        ("may_read_computed_names", "getattr(x, y)"),
        ("may_read_computed_names", "x.__dict__[y]"),
        ("may_read_computed_names", "[operator.attrgetter(y)(each) for each in x]"),
        ("may_reach_unnamed", "eval(y)"),
        ("may_reach_unnamed", "(lambda: globals()[y])()"),
        ("may_reach_unnamed", "sys._getframe().f_back"),
        ("may_reach_unnamed", "inspect.stack()[1].frame.f_locals[y]"),
        ("may_reach_unnamed", "sys.modules[y]"),
        ("may_reach_unnamed", "x.__globals__"),
    ],
)
def test_what_names_say(asked: str, body: str) -> None:
    code: Any = eval(f"lambda x, y: {body}").__code__
    assert getattr(outline(code), asked)()
    plain: Any = eval("lambda x, y: torch.stack([x.value, y[0]])").__code__
    assert not getattr(outline(plain), asked)()
