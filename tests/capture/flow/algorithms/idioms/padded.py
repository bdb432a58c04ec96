"""Texts of any length, in blocks of one size: padded, computed, and cut to what they were."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lostwax import Dim
from tests.capture.flow.algorithms.program import draw, program

ROWS: Any = {"dynamic_shapes": ({0: Dim("rows", min=1)},), "control_flow": "sizes"}
EACH = (draw(6, 2), draw(1, 2), draw(4, 2), draw(8, 2), draw(9, 2))


@program(*EACH, **ROWS)
def scanned_in_blocks(x: Tensor) -> Tensor:
    n = x.shape[0]
    pad = (4 - n % 4) % 4
    y = F.pad(x, (0, 0, 0, pad)).reshape(-1, 4, 2).cumsum(1).reshape(-1, 2)
    if pad > 0:
        y = y[:n]
    return y * x


@program(*EACH, **ROWS)
def padded_if_it_must_be(x: Tensor) -> Tensor:
    n = x.shape[0]
    if n % 4 != 0:
        x = torch.cat([x, x.new_zeros(4 - n % 4, 2)])
    y = x.view(-1, 4, 2).flip(1).reshape(-1, 2)
    return y[:n] if n % 4 else y


COLUMNS: Any = {"dynamic_shapes": ({1: Dim("columns", min=1)},), "control_flow": "sizes"}
WIDE = (draw(2, 7, 3), draw(2, 1, 3), draw(2, 3, 3), draw(2, 6, 3), draw(2, 11, 3))


@program(*WIDE, **COLUMNS)
def attention_in_blocks(x: Tensor) -> Tensor:
    n, state, out = x.shape[1], x.new_zeros(2, 3, 3), []
    for i in range((n + 2) // 3):
        start = i * 3
        block = x[:, start : min(start + 3, n)]
        out.append(block @ state + block * (i + 1))
        state = state * 0.5 + block.mT @ block
    return torch.cat(out, dim=-2)


@program(*WIDE, **COLUMNS)
def attention_to_windows(x: Tensor) -> Any:
    n = x.shape[1]
    windows = [(0, 1)]
    for start in range(1, n, 2):
        windows.append((start, min(n, start + 2)))
    out, weights = [], []
    for start, end in windows:
        scores = (x[:, start:end] @ x.mT).softmax(-1)
        out.append(scores @ x)
        weights.append(scores)
    total = torch.zeros(())
    for each in weights:
        total = total * 2 + each[..., -1].sum()
    return torch.cat(out, 1), torch.cat(weights, dim=1), total, out[0] + 1, out[-1].mT


@program(*WIDE, **COLUMNS)
def blocks_after_a_first_one(x: Tensor) -> Tensor:
    out = [x[:, :2] * 2]
    for start in range(0, x.shape[1], 4):
        out.append(x[:, start : start + 4].cumsum(1))
    return torch.cat(out, dim=1)


@program(*WIDE, **COLUMNS)
def blocks_of_one_width(x: Tensor) -> Tensor:
    out = []
    for start in range(0, x.shape[1], 3):
        out.append(x[:, start : start + 3].mT.contiguous())
    return torch.stack([each.sum(2) for each in out])
