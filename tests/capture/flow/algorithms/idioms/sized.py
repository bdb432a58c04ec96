"""Python that counts by sizes: one program for all of them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from lostwax import Dim
from tests.capture.flow.algorithms.program import draw, program

ROWS: Any = {"dynamic_shapes": ({0: Dim("rows", min=1)},), "control_flow": "sizes"}
EACH = (draw(4, 2), draw(1, 2), draw(7, 2))


@program(*EACH, **ROWS)
def mean_by_hand(x: Tensor) -> Tensor:
    return sum(x) / len(x)


@program(*EACH, **ROWS)
def mean_of_a_comprehension(x: Tensor) -> Tensor:
    n = x.shape[0]
    return sum(x[i] for i in range(n)) / n


@program(*EACH, **ROWS)
def scaled_by_its_row(x: Tensor) -> Tensor:
    return torch.stack([x[i] * i for i in range(len(x))])


@program(*EACH, **ROWS)
def listed_rows(x: Tensor) -> Tensor:
    rows = list(x)
    return torch.stack(rows[::-1])


@program(*EACH, **ROWS)
class CausalMaskPerSize(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.masks: dict[int, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[0]
        if n not in self.masks:
            self.masks[n] = torch.ones(n, n).tril() > 0
        scores = (x @ x.T).masked_fill(~self.masks[n], float("-inf"))
        return scores.softmax(dim=-1) @ x


@program(*EACH, **ROWS)
class PositionsThatGrow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(4.0)[:, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] > self.table.shape[0]:
            table = torch.arange(float(x.shape[0]))[:, None]
        else:
            table = self.table
        return x + table[: x.shape[0]]


@program(*EACH, **ROWS)
def by_its_shape(x: Tensor) -> Tensor:
    total = torch.zeros(())
    for each in (x, x[None], x[0]):
        match each.shape:
            case (rows, _):
                total = total + each.sum() / rows
            case (batch, rows, _):
                total = total + each.sum() / (batch * rows)
            case _:
                total = total + each.mean()
    return total


@program(*EACH, **ROWS)
def match_a_size(x: Tensor) -> Tensor:
    match x.shape:
        case (1, _):
            return x[0]
        case (n, 2) if n > 4:
            return x[:4].sum(dim=0)
        case _:
            return x.sum(dim=0)


@program(*EACH, **ROWS)
def padded_to_even(x: Tensor) -> Tensor:
    if x.shape[0] % 2:
        x = torch.cat([x, torch.zeros(1, 2)])
    return x.view(-1, 2, 2).sum(dim=1)


@program(*EACH, **ROWS)
def windows_of_three(x: Tensor) -> Tensor:
    out = []
    for start in range(0, x.shape[0], 3):
        out.append(x[start : start + 3].sum(dim=0))
    return torch.stack(out)


@program(*EACH, **ROWS)
def out_by_its_index(x: Tensor) -> Tensor:
    out: list[Any] = [None] * len(x)
    for i, row in enumerate(x):
        out[len(x) - 1 - i] = row * 2
    return torch.stack(out)


@program(*EACH, **ROWS)
def halved_until_one_is_left(x: Tensor) -> Tensor:
    while x.shape[0] > 1:
        if x.shape[0] % 2:
            x = torch.cat([x, x[-1:]])
        x = x[0::2] + x[1::2]
    return x


@program(*EACH, **ROWS)
def levels_by_logarithm(x: Tensor) -> Tensor:
    levels = int(math.log2(len(x)))
    for _ in range(levels):
        x = x * 0.5 + 1
    return x


@program(*EACH, **ROWS)
def prefix_sums(x: Tensor) -> Tensor:
    sums = [x[0]]
    for row in x[1:]:
        sums.append(sums[-1] + row)
    return torch.stack(sums)


@program(*EACH, **ROWS)
def flattened_by_hand(x: Tensor) -> Tensor:
    n, *rest = x.shape
    return x.reshape(n * math.prod(rest)) / max(x.shape)


@program(*EACH, **ROWS)
def pairs_of_rows(x: Tensor) -> Tensor:
    total = torch.zeros(())
    for i in range(len(x)):
        for j in range(i + 1, len(x)):
            total = total + (x[i] - x[j]).norm()
    return total
