"""Functions of all kinds that ask data do what they do in eager, or are refused in words."""

from __future__ import annotations

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
