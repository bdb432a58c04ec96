"""Exits of several kinds, and variables that are something else at first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tests.capture.flow.algorithms.program import draw, floats, number, program


class Exit(NamedTuple):
    logits: Tensor
    depth: int


@program(draw(2, 4), draw(2, 4, seed=1) * 30, torch.zeros(2, 4))
class BranchyNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.early, self.late = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Exit:
        h = torch.relu(self.first(x))
        logits = self.early(h)
        if logits.softmax(dim=-1).amax(dim=-1).min() > 0.5379:
            return Exit(logits, 1)
        return Exit(self.late(torch.relu(self.second(h))), 2)


@program(draw(2, 4), draw(2, 4, seed=1) * 10, torch.zeros(2, 4))
class ReturnsNoneBeside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.aux = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        h = self.layer(x)
        if h.norm() > 2:
            return h, self.aux(h)
        return h, None


@program(floats(3, 1, 2), floats(5, 5, 5), floats(-1, -2, -3))
def best_from_infinity(x: Tensor) -> Tensor:
    best = float("inf")
    for each in x:
        loss = (each - 1).square()
        if loss < best:
            best = loss
    return best


@program(floats(3, 1, 2), floats(5, 5, 5), floats(-1, -2, -3))
def best_from_infinity_and_its_place(x: Tensor) -> tuple[Tensor, int]:
    best, at = math.inf, -1
    for i, each in enumerate(x):
        if each < best:
            best, at = each, i
    return x[at] * 2, at


@program(floats(9, 3), floats(0.5, 0.2), floats(100, 1))
def best_of_a_while(x: Tensor) -> tuple[Tensor, Tensor]:
    best, best_x = float("inf"), None
    patience = 0
    while patience < 2:
        x = x - 1
        loss = x.square().sum()
        if loss < best:
            best, best_x = loss, x
        else:
            patience += 1
    return best, best_x


@program(draw(4), -torch.ones(4), torch.ones(4))
def sum_from_zero(x: Tensor) -> Tensor:
    total = 0
    for each in x:
        if each > 0:
            total = total + each
    return torch.as_tensor(total) + x.sum()


@program(draw(4), -torch.ones(4), torch.ones(4))
def sum_from_zero_returned(x: Tensor) -> Tensor:
    total = 0
    for each in x:
        if each > 0:
            total += each
    return total


@program(draw(4), draw(4) * 10, torch.zeros(4))
def int_that_becomes_float(x: Tensor) -> tuple[Tensor, float]:
    scale = 1
    if x.norm() > 5:
        scale = 0.5
    return x * scale, scale


@program(draw(4), draw(4) * 100, torch.zeros(4))
def int_that_becomes_float_in_a_loop(x: Tensor) -> Tensor:
    scale = 1
    while (x * scale).norm() > 5:
        scale = scale * 0.5
    return x * scale


@program(draw(3, 4), torch.ones(3, 4), -torch.ones(3, 4))
def first_or_sum(rows: Tensor) -> Tensor:
    result = None
    for row in rows:
        if row.sum() > 0:
            result = row if result is None else result + row
    if result is None:
        return torch.zeros(4)
    return result


@program(draw(3, 4), torch.zeros(3, 4), -torch.ones(3, 4))
def or_none(rows: Tensor) -> Tensor | None:
    if (rows > 0).any():
        return rows.sum(dim=0)
    return None


@dataclass
class Result:
    value: Tensor
    steps: int
    is_done: bool


@program(floats(9, 3), floats(0.1, 0.1), floats(1e4, 1))
def dataclass_exits(x: Tensor) -> tuple[Tensor, int, bool]:
    def solve(x: Tensor) -> Result:
        for step in range(6):
            if x.norm() < 1:
                return Result(x, step, True)
            x = x / 2
        return Result(x, 6, False)

    found = solve(x)
    return found.value, found.steps, found.is_done


@program(draw(4), draw(4) * 10, torch.zeros(4))
def says_how_it_ended(x: Tensor) -> tuple[Tensor, str]:
    if x.norm() > 5:
        return x / 5, "clipped"
    return x, "kept"


@program(draw(4), draw(4) * 10, torch.zeros(4))
def one_or_two_results(x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
    if x.norm() > 5:
        return x / 5, x
    return x


@program((draw(4), number(1.0)), (draw(4) * 10, number(1.0)), (torch.zeros(4), number(0.0)))
def false_or_a_tensor(x: Tensor, limit: Tensor) -> Tensor:
    clipped = False
    if x.norm() > limit:
        clipped = x / x.norm()
    return x if clipped is False else clipped


@program(draw(2, 4), draw(2, 4, seed=1) * 10, torch.zeros(2, 4))
class OptionalState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for row in x:
            if row.abs().max() > 1:
                state = self.cell(row[None], state)
        return torch.zeros(1, 4) if state is None else state


@program(draw(4), draw(4) * 10, torch.zeros(4))
def python_float_or_tensor(x: Tensor) -> Tensor:
    norm = 1.0
    if x.norm() > 2:
        norm = x.norm()
    return x / norm


@program(draw(4), draw(4) * 10, torch.zeros(4))
def loss_with_penalty(x: Tensor) -> dict[str, Tensor | int]:
    loss, penalty = x.square().mean(), 0
    if loss > 1:
        penalty = loss - 1
    return {"loss": loss + penalty}
