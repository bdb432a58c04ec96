"""`lostwax.cache`: what it finds is the program that an export would make."""

from __future__ import annotations

import functools
import math
import threading
from typing import Any

import pytest
import torch
from torch import nn

from lostwax import Dim, cache, export
from tests.export_cache.exports import Net, Small, X, add, captures, entries


def test_the_second_export_captures_nothing(kept):
    net = Net()
    assert captures(kept, net, (X,))
    assert "first export" in kept.why()
    assert not captures(kept, net, (X,))
    assert kept.why() == ""
    assert (kept.hits, kept.misses) == (1, 1)


def test_the_program_is_bound_to_the_modules_own_tensors(kept):
    net = Net()
    with kept:
        export(net, (X,))
        other = Net()
        program = export(other, (X,))
    assert kept.hits == 1
    assert program.state_dict["linear.weight"] is other.linear.weight
    assert any(each is other.table for each in program.constants.values())
    torch.testing.assert_close(program.module()(X), other(X))


# ---------------------------------------------------------------------------------- all programs


def branch(x):
    if x.sum() > 0:
        return x.relu()
    return -x


def count_down(x):
    while x.sum() > 0:
        x = x - 1
    return x


class Writing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 4))
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x, at):
        self.cache[0] = x[0]
        at.add_(1)
        return self.norm(x), self.cache.sum()


class Result(dict):
    pass


PROGRAMS: dict[str, Any] = {
    "branch": lambda: (branch, (X,), {}),
    "loop": lambda: (count_down, (X,), {}),
    "writes": lambda: (Writing(), (X, torch.zeros(2)), {}),
    "unbacked": lambda: (lambda x: x.nonzero() * 2, (X,), {}),
    "masked": lambda: (lambda x: x[x > 0], (X,), {}),
    "several": lambda: (lambda x: (x.split(1), {"a": x.topk(2)}), (X,), {}),
    "nothing": lambda: (lambda x: None, (X,), {}),
    "complex": lambda: (lambda x: torch.fft.fft(x).abs() * 1j, (X,), {}),
    "infinite": lambda: (lambda x: x.masked_fill(x > 0, -math.inf), (X,), {}),
    "lstm": lambda: (nn.LSTM(4, 4), (X,), {}),
    "numbers": lambda: (add, (X, 2, 3), {"dynamic_shapes": (None, Dim.DYNAMIC, Dim.AUTO)}),
    "dims": lambda: (
        nn.MultiheadAttention(4, 2, batch_first=True),
        (torch.randn(2, 3, 4),) * 3,
        {"dynamic_shapes": ({0: (b := Dim("b"))}, {0: b}, {0: b})},
    ),
    "method": lambda: (Small().step, (X,), {}),
    "partial": lambda: (functools.partial(add, n=4), (X, X + 1), {}),
    "preserved": lambda: (Small().eval(), (X,), {"preserve_module_call_signature": ["a"]}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(kept, name):
    function, args, options = PROGRAMS[name]()
    torch.manual_seed(0)
    assert captures(kept, function, args, **options)
    assert "not kept" not in kept.why()
    assert not captures(kept, function, args, **options)


# ------------------------------------------------------------------------------------------ its use


def test_threads(kept):
    """A block is for its own thread, `enable` for all."""

    def work() -> None:
        export(add, (X, X))

    def run() -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    with kept:
        run()
    assert (kept.hits, kept.misses) == (0, 0)
    kept.enable()
    try:
        run()
        run()
    finally:
        kept.disable()
    assert (kept.hits, kept.misses) == (1, 1)
    run()
    assert (kept.hits, kept.misses) == (1, 1)


def test_an_inner_cache_is_asked(kept, tmp_path):
    with kept, cache(tmp_path / "inner") as inner:
        export(add, (X, X))
    assert (kept.misses, inner.misses) == (0, 1)


def test_an_export_that_fails_fails(kept):
    def wrong(x):
        return x @ torch.ones(7)

    for _ in range(2):
        with kept, pytest.raises(Exception, match="7"):
            export(wrong, (X,))
    assert not entries(kept)
