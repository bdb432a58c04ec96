"""What two processes run where one of them fails: it refuses its call, raises, or dies. The other
one must end with an error within the time limit of the group, and not wait for ever."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

import lostwax
from lostwax import Dim
from lostwax.errors import InputValueError
from tests.distributed.ranks import run_cases

LIMIT = 3
"""Seconds that a process waits for the other one."""
DYING, PIPELINE = "a rank that dies", "a stage that raises"


def end_soon(call: Callable[[], Any]) -> None:
    """The call must raise, and not later than the limit says."""
    start = time.monotonic()
    with pytest.raises((RuntimeError, InputValueError)):
        call()
    assert time.monotonic() - start < LIMIT + 10


def make_program(group: Any, dynamic: Any = None) -> Any:
    def call(x: Tensor) -> Tensor:
        y = x * 2
        dist.all_reduce(y, group=group)
        return y + 1

    with torch.no_grad():
        return lostwax.export(call, (torch.ones(3),), dynamic_shapes=dynamic).module()


def check_refused(group: Any, rank: int) -> None:
    """Rank 1 passes what its program refuses, before it comes to the collective."""
    program = make_program(group, ({0: Dim("size", max=4)},))
    if rank:
        with pytest.raises(InputValueError, match="size"):
            program(torch.ones(5))
    else:
        end_soon(lambda: program(torch.ones(3)))


def check_raising(group: Any, rank: int) -> None:
    """The code around the program of rank 1 raises."""
    program = make_program(group)
    if not rank:
        end_soon(lambda: program(torch.ones(3)))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x))  # type: ignore[no-any-return]


def check_stage(group: Any, rank: int) -> None:
    """The first stage refuses its inputs; the second one waits for them."""
    sizes = ({0: Dim("rows", max=4)},)
    program = lostwax.export(Two(), (torch.ones(2, 3),), dynamic_shapes=sizes)
    stages = lostwax.split(program, at=["two"])
    stage = PipelineStage(stages[rank].module(), rank, 2, torch.device("cpu"), group=group)
    schedule = ScheduleGPipe(stage, 1)
    with torch.no_grad():
        end_soon(lambda: schedule.step(*[torch.ones(6, 3)] * (not rank)))


def check_dying(group: Any, rank: int) -> None:
    """Rank 1 is killed while rank 0 waits for it. (It writes down nothing more.)"""
    program = make_program(group)
    program(torch.ones(3))
    if rank:
        os.kill(os.getpid(), signal.SIGKILL)
    end_soon(lambda: program(torch.ones(3)))


def make_cases(rank: int) -> dict[str, Callable[[], None]]:
    def group() -> Any:
        """Of its own for each case: one in which a call has failed is broken."""
        return dist.new_group([0, 1], timeout=timedelta(seconds=LIMIT))

    cases = {
        "a rank that refuses": check_refused,
        "a rank that raises": check_raising,
        PIPELINE: check_stage,
        DYING: check_dying,
    }
    return {name: partial(check_together, each, group(), rank) for name, each in cases.items()}


def check_together(check: Callable[[Any, int], None], group: Any, rank: int) -> None:
    dist.barrier()  # the one that waited for the other is late
    check(group, rank)


CASES = ("a rank that refuses", "a rank that raises", PIPELINE, DYING)

if __name__ == "__main__":
    run_cases(make_cases)
