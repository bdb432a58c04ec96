"""No test depends on what ran before it in its process.

Each begins with the same random numbers, and so does each file when it is imported. One that leaves
a setting of the process otherwise than it was fails: else another one would, which only asks it.

What the imports of all tests have made is frozen: a million objects, which each collection of
garbage would look at. So would each capture of control flow, for the functions that there are: it
gets those of its file from an index.
"""

from __future__ import annotations

import builtins
import gc
import logging
import os
import random
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Generator, Iterator
from importlib import import_module
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch

from lostwax import collector


def settings() -> dict[str, Any]:
    """What of the process a test may change, and another depends on."""
    return {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "gradient mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "autocast": [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")],
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "threads of torch": torch.get_num_threads(),
        "modes of functions": torch._C._len_torch_function_stack(),
        "modes of operators": torch._C._len_torch_dispatch_stack(),
        "collector": (gc.isenabled(), gc.get_threshold()),
        "profile function": sys.getprofile(),
        "trace function": sys.gettrace(),
        "watched frames": count_holders(object()),
        "logging": logging.root.manager.disable,
        "folder": os.getcwd(),
        "signals": [signal.getsignal(each) for each in (signal.SIGALRM, signal.SIGINT)],
        "timer": signal.getitimer(signal.ITIMER_REAL)[0] > 0,
        "threads": {
            each for each in threading.enumerate() if not each.daemon and not _is_pooled(each)
        },
        **{f"environment: {k}": v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"},
    }


def count_holders(value: object) -> int:
    """How many hold an object. Who calls this is one of them where something watches each frame:
    what is left of a `torch.compile` that failed."""
    return sys.getrefcount(value)


def _is_pooled(thread: threading.Thread) -> bool:
    """Is it one of a library's, which waits for more work?"""
    return thread.name.startswith("ThreadPoolExecutor")


def seed_all() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def forget_absent_devices() -> None:
    """`torch.manual_seed` notes for each kind of device what to do once there is one, with the text
    of the stack, which is long in a test: several milliseconds, for each sample of an operator and
    for each test. Nobody asks for it where there is no such device."""
    for name in ("cuda.random", "xpu.random", "mtia"):
        device = getattr(torch, name.partition(".")[0])
        if not device.is_available():
            import_module(f"torch.{name}")._lazy_call = lambda call, **options: None


forget_absent_devices()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    if isinstance(collector, pytest.Module):
        seed_all()
    return (yield)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.collect()
    imported = defaultdict[str, list[FunctionType]](list)
    for each in collector.find_holders():
        if type(each) is FunctionType:
            imported[each.__code__.co_filename].append(each)
    gc.freeze()

    def find_functions(file: str) -> list[FunctionType]:
        newer = gc.get_referrers(vars(builtins))  # none of those that are frozen
        return [*imported.get(file, ()), *collector.select_functions(newer, file)]

    collector.find_functions = find_functions


@pytest.fixture(autouse=True)
def leaves_the_process_as_it_was() -> Iterator[None]:
    seed_all()
    before, path, deepest = settings(), [*sys.path], sys.getrecursionlimit()
    level = logging.root.level
    yield
    after = settings()
    # Libraries change these when they are imported, and set variables for themselves.
    sys.path[:] = path
    sys.setrecursionlimit(deepest)
    logging.root.setLevel(level)
    names = {*before, *(each for each in after if "LOSTWAX" in each)}
    changed = [each for each in names if before.get(each) != after.get(each)]
    assert not changed, [f"{each}: {before.get(each)} is {after.get(each)}" for each in changed]
