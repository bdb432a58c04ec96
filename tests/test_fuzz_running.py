"""Fuzzers judge in processes, go on after one that dies, and end in time (`fuzz/running.py`)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

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


def test_what_is_judged_here_leaves_torch_as_it_was() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert len([*running.judge_many(judge_slowly, [(0,)], 1, time.time() + 60)]) == 1
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


SLOW = """
import sys, time
from fuzz import running

def judge(seed):
    time.sleep(0.05)
    return "right", ""

if __name__ == "__main__":
    sys.exit(running.main(judge, lambda seed: ""))
"""


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_what_was_found_is_told_when_it_is_killed_and_is_not_judged_again(
    tmp_path: Path, jobs: str
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    results = tmp_path / "results.jsonl"
    command = [sys.executable, str(tmp_path / "slow.py"), "--results", str(results)]
    command += ["--count", "1000", "--jobs", jobs]
    inside = {**os.environ, "PYTHONPATH": str(Path(running.__file__).parents[1])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=inside) as process:
        while not (results.exists() and results.read_text().count("\n") > 5):
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        told, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    before = results.read_text().count("\n")
    assert told.splitlines()[-1].startswith(f"{before} programs in ")
    with results.open("a") as file:
        file.write('["", 99')  # killed while it wrote
    told = subprocess.check_output([*command, "--seconds", "0"], text=True, env=inside)
    assert f"{1000 - before} programs were not judged" in told
