"""Exceptions that data raise, and that the caller catches."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import Tensor, nn

from tests.capture.flow.algorithms.program import draw, floats, ints, number, program


class Converged(Exception):
    def __init__(self, value: Tensor) -> None:
        super().__init__("converged")
        self.value = value


def _check(x: Tensor) -> Tensor:
    if x.norm() > 10:
        raise ValueError("too large")
    return x * 2


@program(draw(3), draw(3) * 100, torch.zeros(3))
def caller_catches(x: Tensor) -> Tensor:
    try:
        return _check(x)
    except ValueError:
        return x / x.norm()


@program(draw(3), draw(3) * 100, torch.zeros(3))
def suppressed(x: Tensor) -> Tensor:
    with suppress(ValueError):
        x = _check(x)
    return x + 1


@program((number(10), number(2)), (number(10), number(0)), (number(7), number(-1)))
def divide_or_zero(a: Tensor, b: Tensor) -> int:
    try:
        return a.item() // b.item()
    except ZeroDivisionError:
        return 0


@program(floats(9, 3), floats(0.1, 0.1), floats(1e5, 1))
def leave_by_an_exception(x: Tensor) -> Tensor:
    try:
        for _ in range(10):
            x = x / 2
            if x.norm() < 1:
                raise Converged(x * 10)
    except Converged as found:
        return found.value
    return x


def _iterate(x: Tensor) -> Tensor:
    for _ in range(5):
        x = x / 2
        if x.norm() < 1:
            raise Converged(x * 10)
    return x


@program(floats(9, 3), floats(0.1, 0.1), floats(100, 1))
def callee_converges(x: Tensor) -> Tensor:
    try:
        return _iterate(x)
    except Converged as found:
        return found.value


@program((draw(3), number(1)), (draw(3), number(5)), (draw(3), number(-1)))
def element_or_last(x: Tensor, at: Tensor) -> Tensor:
    rows = list(x)
    try:
        return rows[at.item()]
    except IndexError:
        return rows[-1]


@program((draw(3), number(1)), (draw(3), number(5)), (draw(3), number(2)))
def key_or_default(x: Tensor, kind: Tensor) -> Tensor:
    scales = {1: 0.5, 2: 2.0}
    try:
        scale = scales[kind.item()]
    except KeyError:
        scale = 1.0
    return x * scale


@program(floats([2, 0], [0, 1]), floats([1, 2], [2, 1]), floats([0, 0], [0, 0]))
def cholesky_or_diagonal(x: Tensor) -> Tensor:
    try:
        return torch.linalg.cholesky(x)
    except torch.linalg.LinAlgError:
        return x.diagonal().diag()


@program(floats(4, 1), floats(30, 1), floats(300, 1))
def retry_with_smaller_steps(x: Tensor) -> Tensor:
    for _ in range(3):
        try:
            return _check(x)
        except ValueError:
            x = x / 5
    return x


@program(ints(1, 2, 0, 4), ints(0, 1, 1, 1), ints(1, 2, 3, 4))
def product_until_zero(x: Tensor) -> Tensor:
    total = torch.ones((), dtype=torch.int64)
    try:
        for each in x:
            if each == 0:
                raise StopIteration
            total = total * each
    except StopIteration:
        total = -total
    return total


@program(draw(3), draw(3) * 100, torch.zeros(3))
def assertion_or_clamp(x: Tensor) -> Tensor:
    try:
        assert x.abs().max() < 5, "out of range"
        y = x * 2
    except AssertionError:
        y = x.clamp(-5, 5)
    return y


@program(draw(3), draw(3) * 100, torch.zeros(3))
class SafeLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("failures", torch.zeros(()))

    def check(self, x: Tensor) -> Tensor:
        if x.abs().max() > 10:
            raise OverflowError("too large")
        return x

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.check(self.layer(x))
        except OverflowError:
            self.failures += 1
            return torch.zeros(3)


@program(draw(3), draw(3) * 100, torch.zeros(3))
def try_else_finally(x: Tensor) -> tuple[Tensor, Tensor]:
    calls = torch.zeros(())
    try:
        y = _check(x)
    except ValueError:
        y = x
    else:
        y = y + 1
    finally:
        calls = calls + 1
    return y, calls
