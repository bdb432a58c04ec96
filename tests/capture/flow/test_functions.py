"""Functions of all kinds that ask data do what they do in eager, or are refused in words."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import lostwax
from lostwax.errors import CaptureError
from tests.capture.flow.functions import PROGRAMS, REFUSED

INPUTS = [
    torch.tensor(each, dtype=torch.float32)
    for each in ([1, 1, 1], [-1, -1, -1], [1, -2, 3], [0, 0, 0], [5, 1, -7], [3, 3, 2], [9, 9, 9])
]


@pytest.mark.parametrize("function", PROGRAMS)
def test_it_does_what_eager_does(function: Any) -> None:
    run = lostwax.export(function, (INPUTS[0],)).module()
    for each in INPUTS:
        torch.testing.assert_close(run(each), function(each))


@pytest.mark.parametrize("function", REFUSED)
def test_what_cannot_be_one_program_is_refused_with_its_line(function: Any) -> None:
    with pytest.raises(CaptureError, match=REFUSED[function]) as error:
        lostwax.export(function, (INPUTS[0],))
    assert "flow/functions.py:" in str(error.value)
    assert "instead:" in str(error.value)


def test_captures_in_threads_give_what_one_alone_gives_while_others_run_eagerly() -> None:
    functions = list(PROGRAMS)[:4]
    inputs = INPUTS[:3]
    wanted = {f: [f(each) for each in inputs] for f in functions}
    alone = {f: str(lostwax.export(f, (INPUTS[0],)).graph) for f in functions}
    is_done = threading.Event()

    def run_eagerly() -> int:
        turns = 0
        while not is_done.is_set():
            for f in functions:
                torch.testing.assert_close([f(each) for each in inputs], wanted[f])
            turns += 1
        return turns

    def capture(f: Any) -> str:
        return str(lostwax.export(f, (INPUTS[0],)).graph)

    with ThreadPoolExecutor(1 + len(functions)) as pool:
        eager = pool.submit(run_eagerly)
        found = [pool.submit(capture, f) for f in functions]
        try:
            assert [each.result() for each in found] == [alone[f] for f in functions]
        finally:
            is_done.set()
        assert eager.result() > 0
