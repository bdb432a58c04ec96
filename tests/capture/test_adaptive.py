"""`lostwax.capture`: programs as calls need them, on the module's own state."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import lostwax


class Counting(nn.Module):
    """Writes to buffers, branches on a size, takes an int."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, k=1):
        self.calls = self.calls + 1
        y = self.norm(self.linear(x)) * k
        return y + 1 if x.shape[0] > 5 else y


@pytest.fixture
def pair() -> tuple[Counting, Counting]:
    torch.manual_seed(0)
    ours, eager = Counting(), Counting()
    eager.load_state_dict(ours.state_dict())
    return ours, eager


def test_calls_give_what_the_module_gives_and_change_its_state(pair) -> None:
    ours, eager = pair
    captured = lostwax.capture(ours)
    for rows, k in ((4, 1), (4, 1), (3, 1), (5, 1), (9, 1), (2, 3), (2, 4), (12, 7)):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(captured(x, k), eager(x, k))
    torch.testing.assert_close(ours.state_dict(), eager.state_dict())
    assert [v.calls for v in captured.variants] == [2, 2, 1, 2, 1]
    assert [v.varying for v in captured.variants[1:4]] == [
        ("x.shape[0]",), ("x.shape[0]",), ("x.shape[0]", "k"),
    ]  # fmt: skip
    assert captured.programs[0].range_constraints == {}


def test_what_is_switched_or_replaced_is_captured_again(pair) -> None:
    ours, eager = pair
    captured = lostwax.capture(ours)
    x = torch.randn(4, 3)
    for change in (lambda m: m, nn.Module.eval, nn.Module.double):
        change(ours), change(eager)
        x = x.to(ours.linear.weight.dtype)
        torch.testing.assert_close(captured(x), eager(x))
    assert len(captured.programs) == 3
    text = captured.explain()
    assert "self.training was True, is False" in text
    assert "self.norm.weight has another dtype or size now" in text
    ours.float(), eager.float()
    torch.testing.assert_close(captured(x.float()), eager(x.float()))
    assert len(captured.programs) == 3


def test_weights_that_change_are_seen(pair) -> None:
    ours, eager = pair
    captured, x = lostwax.capture(ours.eval()), torch.randn(4, 3)
    captured(x)
    with torch.no_grad():
        ours.linear.weight.add_(1)
        eager.linear.weight.add_(1)
    torch.testing.assert_close(captured(x), eager.eval()(x))
    captured(x).sum().backward()
    eager(x).sum().backward()
    torch.testing.assert_close(ours.linear.weight.grad, eager.linear.weight.grad)
    assert len(captured.programs) == 1


def double(x):
    return x * 2


def test_one_program_for_each_size() -> None:
    captured = lostwax.capture(double, dynamic=False)
    for n in (3, 4, 5, 4):
        assert captured(torch.ones(n)).shape == (n,)
    assert len(captured.programs) == 3


def test_all_dynamic_from_the_start() -> None:
    captured = lostwax.capture(double, dynamic=True)
    for n in (1, 0, 5):
        assert captured(torch.ones(n, 2)).shape == (n, 2)
    assert len(captured.programs) == 1


def test_marks_count() -> None:
    captured, x = lostwax.capture(double), torch.ones(3)
    lostwax.mark_dynamic(x, 0)
    captured(x)
    assert captured(torch.ones(9)).shape == (9,)
    assert len(captured.programs) == 1


def test_the_program_of_the_seeds() -> None:
    def f(x, y):
        z = torch.cat([x, y])
        return z.mul(2) if z.size(0) > 2 else z.add(2)

    captured = lostwax.capture(f, dynamic=True)
    for n, m in ((1, 1), (0, 2), (2, 1), (5, 5)):
        x, y = torch.randn(n), torch.randn(m)
        torch.testing.assert_close(captured(x, y), f(x, y))
    (small,), (large,) = (p.guards for p in captured.programs)
    assert small.predicate == "x.shape[0] + y.shape[0] <= 2"
    assert large.predicate == "x.shape[0] + y.shape[0] >= 3"
    assert "captured under the condition x.shape[0] + y.shape[0] <= 2" in captured.explain()


def test_decisions_are_told(caplog) -> None:
    with caplog.at_level(logging.INFO, "lostwax.dynamic"):
        lostwax.capture(lambda x: x + 1 if x.shape[0] > 5 else x, dynamic=True)(torch.ones(9))
    told = "\n".join(caplog.messages)
    assert "s0 is x.shape[0], example 9, range 0 to None" in told
    assert "guard x.shape[0] >= 6  # branch: the trace follows the example (x.shape[0] = 9)" in told
    assert "test_adaptive.py" in told


def test_logs_by_environment() -> None:
    code = "import torch, lostwax; lostwax.capture(lambda x: x, dynamic=True)(torch.ones(2))"
    environment = {**os.environ, "LOSTWAX_LOGS": "dynamic,static"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert "lostwax dynamic: s0 is x.shape[0], example 2" in run.stderr
    assert "LOSTWAX_LOGS: no topic 'static'" in run.stderr
