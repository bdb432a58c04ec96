"""Programs as inputs: the module of a program, exported again."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax import Dim, export
from lostwax.errors import ConstraintViolationError, InputValueError

X = torch.randn(3, 4)


class First(nn.Module):
    """Asks of its sizes what eager checks as well."""

    def forward(self, x: Tensor) -> Any:
        return x[0], x.sin()


class Chooses(nn.Module):
    """Asks of its sizes what eager does not check: the other way is another program."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sin() if x.shape[0] > 2 else x.cos()


def reread(program: Any) -> Any:
    file = io.BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    return lostwax.load(file)


@pytest.mark.parametrize("way", [lambda p: p, reread], ids=["made", "read"])
def test_a_check_stays_a_check(way: Any) -> None:
    shapes = {"x": {0: Dim("batch")}}
    program = way(export(First(), (X,), dynamic_shapes=shapes))
    again = export(program.module(), (X,), dynamic_shapes=shapes)
    assert [(str(g.cond), g.kind) for g in again.guards] == [("batch >= 1", "check")]
    for rows in (1, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(again.module()(x), First()(x))
    with pytest.raises(InputValueError):
        again.module()(torch.randn(0, 4))


def test_a_choice_does_not_become_a_check() -> None:
    program = export(Chooses(), (X,), dynamic_shapes={"x": {0: Dim.AUTO}})
    with pytest.raises(ConstraintViolationError):
        export(program.module(), (X,), dynamic_shapes={"x": {0: Dim("batch")}})
