"""How the export benchmarks take time: processor time, which a busy machine disturbs less than the
clock, of one call after a collection of garbage. What the call returns dies after the clock is
read: freeing a program is no part of making it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any


def processor_seconds(work: Callable[[], Any]) -> float:
    gc.collect()
    start = time.process_time()
    result = work()
    seconds = time.process_time() - start
    del result
    return seconds
