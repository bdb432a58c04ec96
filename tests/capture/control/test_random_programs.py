"""Some random programs with control flow; thousands were run when this was written
(`random_programs.py`)."""

from __future__ import annotations

import pytest

from tests.capture.control.random_programs import compare
from tests.whole import sampled

MAY_RETURN_ITS_START = (
    "a tensor is written to, and while_loop, if it does not run once, returns it as it is."
)
REFUSED = {
    13: "the body of while_loop writes to a value that it is handed.",
    17: MAY_RETURN_ITS_START,
    27: MAY_RETURN_ITS_START,
}


@pytest.mark.parametrize("first", range(0, sampled(10, 30), 10))
def test_random_programs(first: int) -> None:
    seeds = range(first, first + 10)
    refused = {seed: text for seed in seeds if (text := compare(seed))}
    assert refused == {seed: REFUSED[seed] for seed in seeds if seed in REFUSED}
