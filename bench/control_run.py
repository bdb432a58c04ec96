"""Loops of a program's module, beside Python's own loop over the same functions.

python -m bench.control_run
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch._higher_order_ops.while_loop import while_loop

import lostwax

STEPS = 1000


def below(i: Tensor, x: Tensor) -> Tensor:
    return i < STEPS


def step(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return i + 1, x * 0.5 + 1


class Loop(nn.Module):
    def forward(self, i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return while_loop(below, step, (i, x))  # type: ignore[no-any-return]


def run_in_python(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    while below(i, x):
        i, x = step(i, x)
    return i, x


def least_time(function: Callable[[], object], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        begin = time.process_time()
        function()
        best = min(best, time.process_time() - begin)
    return best


def main() -> None:
    torch.set_num_threads(1)
    args = torch.tensor(0), torch.ones(4)
    module = lostwax.export(Loop(), args).module()
    torch.testing.assert_close(module(*args), run_in_python(*args))
    for gradients in (False, True):
        given = args[0], args[1].clone().requires_grad_(gradients)
        ours = theirs = float("inf")
        for _ in range(5):  # they take turns
            ours = min(ours, least_time(partial(module, *given), 3))
            theirs = min(theirs, least_time(partial(run_in_python, *given), 3))
        what = "with gradients" if gradients else "without gradients"
        print(
            f"while_loop of {STEPS} small steps, {what}: module() {ours * 1e3:.1f} ms, "
            f"Python's own loop {theirs * 1e3:.1f} ms, ratio {ours / theirs:.2f} (bar 1.5)"
        )


if __name__ == "__main__":
    main()
