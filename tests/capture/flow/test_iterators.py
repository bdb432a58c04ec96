"""A loop over an iterator that data leave before its end: what is left of it is seen by whoever has
the iterator, too. Where nobody has, the loop is captured."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lostwax
from lostwax.errors import CaptureError
from tests.capture.flow import iterators

CALLS = (
    torch.tensor([1.0, 2.0, -3.0, 4.0]),
    torch.tensor([-1.0, 2.0, -3.0, 4.0]),
    torch.tensor([1.0, 2.0, 3.0, 4.0]),
)


@pytest.mark.parametrize("function", iterators.CAPTURED, ids=lambda each: each.__name__)
def test_each_way_equals_eager(function: Any) -> None:
    run = lostwax.export(function, (CALLS[0],)).module()
    for x in CALLS:
        torch.testing.assert_close(run(x), function(x))


@pytest.mark.parametrize("function", iterators.REFUSED, ids=lambda each: each.__name__)
def test_an_iterator_that_others_have_is_not_run_to_its_end(function: Any) -> None:
    with pytest.raises(CaptureError, match="a loop over an iterator is left where data say so"):
        lostwax.export(function, (CALLS[0],))
