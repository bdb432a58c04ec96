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
