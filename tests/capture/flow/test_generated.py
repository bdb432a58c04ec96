"""Generated programs with control flow on data (`fuzz/flow.py`)."""

from __future__ import annotations

from collections import Counter

import pytest

from fuzz import appending, flow, flow_programs, rewriting, sizes
from tests.whole import sampled

MOSTLY_REFUSED = ("errors", "unwinding", "beside")
"""What is caught outside of a side, and lists that one side alone makes longer."""


@pytest.mark.parametrize("kind", flow_programs.KINDS)
def test_generated_programs_are_right_or_refused(kind: str) -> None:
    outcomes = Counter[str]()
    for seed in sampled(range(1, 3), range(8)):
        outcome, text = flow.judge(seed, kind)
        outcomes[outcome] += 1
        assert outcome != "wrong", f"{text}\n{flow_programs.write_program(seed, kind)}"
    assert outcomes["right"] >= sampled(0, kind not in MOSTLY_REFUSED)


def test_generated_loops_append_right_or_are_refused() -> None:
    outcomes = Counter[str]()
    for seed in range(sampled(6, 12)):
        kind, text = appending.judge(seed)
        outcomes[kind] += 1
        assert kind != "wrong", f"{text}\n{appending.write_program(seed)}"
    assert outcomes["right"] >= 1


@pytest.mark.parametrize("start", range(0, sampled(6, 120), 6))
def test_branches_on_sizes_are_right_or_refused(start: int) -> None:
    outcomes = Counter[str]()
    for seed in range(start, start + 6):
        kind, text = sizes.judge(seed)
        outcomes[kind] += 1
        assert kind != "wrong", f"{text}\n{sizes.write_program(seed)}"
    assert outcomes["right"] >= 1


@pytest.mark.parametrize("start", range(4, sampled(10, 64), 6))
def test_rewritten_functions_do_what_they_did(start: int) -> None:
    found = {seed: rewriting.judge(seed) for seed in range(start, start + 6)}
    assert not {seed: text for seed, text in found.items() if text not in (None, "refused")}
    assert list(found.values()).count(None) >= 4


def test_names_of_ours_are_no_names_of_python() -> None:
    source = rewriting.write_function(8) + "    return (i for i in range(3) if value or x and y)\n"
    plain, new = (
        {name for code in codes for name in (*code.co_varnames, *code.co_cellvars)}
        for codes in map(rewriting.list_codes, rewriting.compile_both(source))
    )
    assert all(" " in name for name in new - plain)
