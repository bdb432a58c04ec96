"""Statements that ask data do what they do in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops import scan

import lostwax
from tests.capture.flow.statements import PROGRAMS

INPUTS = [
    torch.tensor(each, dtype=torch.float32)
    for each in ([1, 1, 1], [-1, -1, -1], [1, -2, 3], [0, 0, 0], [5, 1, -7], [3, 3, 2], [9, 9, 9])
]


@pytest.mark.parametrize("function", PROGRAMS)
def test_it_does_what_eager_does(function: Any) -> None:
    run = lostwax.export(function, (INPUTS[0],)).module()
    for each in INPUTS:
        torch.testing.assert_close(run(each), function(each))


# ------------------------------------------------------------- numbers that branches and loops read


def floats_in_both(x: Tensor) -> Tensor:
    s, i = x.sum().item(), 0
    while i < 3:
        if x[0] > i:
            x = x * s
        else:
            x = x + s * 2
        i = i + (1 if x.sum() > 3 else 2)
    return x


def truths_and_floats(x: Tensor) -> Tensor:
    s, half = x.sum().item() ** 2, x.shape[0] / 2
    is_large = s > 4
    if x[0] > 0:
        return x * s if is_large else x + half
    return x + s if is_large else x - half


def floats_of_operators(x: Tensor) -> Any:
    s, n = x.sum().item(), int(x.sum())
    y = torch.cond(x[0] > 0, lambda x: x * s + n, lambda x: x + s / 3, (x,))
    return y, scan(lambda c, row: (c * s + row, c + n), torch.zeros(()), x)


@pytest.mark.parametrize("function", [floats_in_both, truths_and_floats, floats_of_operators])
def test_torch_reads_files_with_numbers_that_branches_read(function: Any, tmp_path: Any) -> None:
    dims, file = ({0: lostwax.Dim("n", min=2)},), tmp_path / "program.pt2"
    lostwax.save(lostwax.export(function, (INPUTS[0],), dynamic_shapes=dims), file)
    runs = [lostwax.load(file).module(), torch.export.load(file).module()]
    for each in (*INPUTS, torch.ones(5), torch.full((2,), 0.5)):
        for run in runs:
            torch.testing.assert_close(run(each), function(each))
