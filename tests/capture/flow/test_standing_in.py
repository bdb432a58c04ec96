"""What stands in for Python's own objects while data decide what a function does is to all code
what it stands for, or the question is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lostwax
from lostwax.errors import LostwaxError
from tests.capture.flow import standing_in

CALLS = (
    torch.tensor([1.0, 2.0, -3.0]),
    torch.tensor([-1.0, -2.0, -3.0]),
    torch.tensor([5.0, 5.0, 5.0]),
)


@pytest.mark.parametrize("function", standing_in.CAPTURED, ids=lambda each: each.__name__)
def test_it_is_what_it_stands_for(function: Any) -> None:
    run = lostwax.export(function, (CALLS[0].clone(),)).module()
    for each in CALLS:
        torch.testing.assert_close(run(each.clone()), function(each.clone()))


@pytest.mark.parametrize("function", standing_in.REFUSED, ids=lambda each: each.__name__)
def test_what_it_cannot_answer_is_refused(function: Any) -> None:
    with pytest.raises(LostwaxError) as error:
        lostwax.export(function, (CALLS[0].clone(),))
    assert "standing_in.py:" in str(error.value)
    assert "instead:" in str(error.value)


def test_other_code_finds_pythons_own_type_again() -> None:
    lostwax.export(standing_in.leaves_of_a_list, (CALLS[0].clone(),))
    assert "type" not in vars(torch.utils._pytree)
