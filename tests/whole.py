"""How much of a long generated run is tried: a small sample that is always the same, or all of it,
which takes as long as all other tests (`make fuzz`)."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

WHOLE = os.environ.get("WHOLE") == "1"


def sampled(sample: T, whole: T) -> T:
    return whole if WHOLE else sample
