"""What is refused names the line, why, and what to write instead; and what it says works."""

from __future__ import annotations

import copy
import inspect
import re
from typing import Any

import pytest
import torch
from torch import Tensor

import lostwax
from lostwax.capture.flow import repetition
from lostwax.errors import LostwaxError
from tests.capture.flow.refusals import REFUSALS, Refusal

INPUTS = [torch.tensor(each) for each in ([1.0, 2, 3], [-1.0, -2, 1], [0.0, 0, 0], [30.0, 40, 50])]


def get_name(refusal: Refusal) -> str:
    return getattr(refusal.program, "__name__", type(refusal.program).__name__)


@pytest.mark.parametrize("refusal", REFUSALS, ids=get_name)
def test_it_is_refused_with_its_line_and_a_fix(refusal: Refusal) -> None:
    with pytest.raises(LostwaxError, match=refusal.text) as error:
        lostwax.export(refusal.program, (INPUTS[0],))  # type: ignore[arg-type]
    assert not type(error.value).__name__.startswith("_")
    text, program = str(error.value), refusal.program
    lines, first = inspect.getsourcelines(getattr(type(program), "forward", program))
    places = [f"flow/refusals.py:{first + i} in " for i in range(len(lines))]
    assert any(place in text for place in places)
    assert "why:" in text
    assert re.search(f"instead: .*{refusal.fix}", text)


@pytest.mark.parametrize("refusal", REFUSALS, ids=get_name)
def test_the_fix_works(refusal: Refusal) -> None:
    fixed: Any = refusal.fixed
    run = lostwax.export(copy.deepcopy(fixed), (INPUTS[0],)).module()
    for each in INPUTS:
        torch.testing.assert_close(run(each), fixed(each))


def test_a_loop_that_hands_on_something_else_each_time_ends(monkeypatch: Any) -> None:
    def chain(x: Tensor) -> Tensor:
        a = b = c = x
        while a.sum() < 100:
            a, b, c = b, c, c * 2
        return a

    monkeypatch.setattr(repetition, "MOST_TRIALS", 1)
    with pytest.raises(LostwaxError, match="each turn hands on something else: ") as error:
        lostwax.export(chain, (INPUTS[0],))
    assert "test_refusals.py" in str(error.value)
    monkeypatch.undo()
    run = lostwax.export(chain, (INPUTS[0],)).module()
    assert run(INPUTS[0]).equal(chain(INPUTS[0]))
