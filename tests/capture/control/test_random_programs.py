"""Some random programs with control flow; thousands were run when this was written
(`random_programs.py`)."""

from __future__ import annotations

import pytest

from tests.capture.control.random_programs import compare


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_random_programs(first: int) -> None:
    refused = [text for text in map(compare, range(first, first + 10)) if text]
    assert len(refused) <= 1, refused
