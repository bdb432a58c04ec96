"""Fuzzers judge in processes, go on after one that dies, and end in time (`fuzz/running.py`)."""

from __future__ import annotations

import os
import time

from fuzz import running


def judge(seed: int, kind: str) -> tuple[str, str]:
    if seed == 3:
        os._exit(7)
    return ("refused", "a text") if seed % 2 else ("right", "")


def judge_slowly(seed: int) -> tuple[str, str]:
    time.sleep(0.2)
    return "right", ""


def test_a_process_that_dies_has_judged_a_wrong_program() -> None:
    programs = [(seed, "some") for seed in range(8)]
    found = sorted(running.judge_many(judge, programs, 2, time.time() + 600), key=lambda j: j.seed)
    assert [each.seed for each in found] == [*range(8)]
    assert [each.outcome for each in found if each.seed % 2 == 0] == ["right"] * 4
    assert found[3] == ("some", 3, "wrong", "the process died (7)")
    *_, last = running.tell(found, 10, 2.0)
    assert last == (
        "8 programs in 2 s (4.0 a second): 4 right, 3 refused, 0 skipped, 1 wrong; wrong: some 3"
    )


def test_the_end_is_when_the_time_is_over() -> None:
    found = [*running.judge_many(judge_slowly, [(n,) for n in range(1000)], 1, time.time() + 0.5)]
    assert 1 <= len(found) <= 4
    judged = [running.Judged("", n, "right", "") for n in range(2)]
    assert "998 programs were not judged: the time is over" in running.tell(judged, 1000, 1)
