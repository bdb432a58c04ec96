"""Reshapes where several sizes vary, in the real runtime beside eager; attention with any batch and
length in one delegate."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lostwax import Dim
from lostwax.backends.xnnpack.regroup import ShapeChange, find_changes
from lostwax.sym import ShapeEnv
from tests.backends.xnnpack import compare, lower

SHAPES = ({0: Dim("batch", min=1, max=4), 1: Dim("length", min=1, max=8)},)
CASES = ((2, 5), (1, 1), (4, 8), (3, 2), (1, 8), (4, 1))


class Attention(nn.Module):
    """Attention of 7 heads: more than are joined at once."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.into, self.out = nn.Linear(21, 63), nn.Linear(21, 21)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        three = self.into(x).split(width, -1)
        q, k, v = (t.view(batch, length, 7, 3).transpose(1, 2) for t in three)
        scores = torch.softmax(q @ k.transpose(-1, -2) * 0.5, -1)
        return x + self.out((scores @ v).transpose(1, 2).reshape(batch, length, width))


def test_attention_with_any_batch_and_length_is_one_delegate() -> None:
    model = Attention().eval()
    lowered = lower(model, (torch.randn(2, 5, 21),), SHAPES)
    report = lowered.delegation_report()
    assert report.share == 1, report
    assert len(report.delegates) == 1
    compare(model, lowered, [(torch.randn(*size, 21),) for size in CASES])


VIEWS = {
    "split": lambda x: x.view(*x.shape[:2], 3, 4),
    "in three": lambda x: x.view(*x.shape[:2], 2, 3, 2),
    "ones": lambda x: x.view(x.shape[0], 1, x.shape[1], 12, 1),
    "unsqueeze": lambda x: x.unsqueeze(2),
    "in front": lambda x: x.unsqueeze(0),
    "split and merged": lambda x: torch.exp(x.view(*x.shape[:2], 4, 3)).view(*x.shape[:2], 12),
    "other groups": lambda x: torch.exp(x.view(*x.shape[:2], 4, 3)).view(*x.shape[:2], 6, 2),
    "squeeze": lambda x: torch.exp(x.unsqueeze(1)).squeeze(1),
    "first": lambda x: torch.exp(x.permute(2, 0, 1)).view(3, 4, *x.shape[:2]),
    "first merged": lambda x: torch.exp(x.permute(2, 0, 1).view(3, 4, *x.shape[:2])).flatten(0, 1),
}


@pytest.fixture(scope="module")
def views() -> dict[str, Any]:
    """Each as a function of its own result, lowered in one program."""

    def f(x: Any) -> Any:
        return [torch.sigmoid(view(torch.tanh(x))) for view in VIEWS.values()]

    lowered = lower(f, (torch.randn(2, 5, 12),), SHAPES)
    return {"function": f, "lowered": lowered}


def test_views_with_several_sizes_that_vary(views: dict[str, Any]) -> None:
    report = views["lowered"].delegation_report()
    assert report.share == 1, report
    assert len(report.delegates) == 1
    compare(views["function"], views["lowered"], [(torch.randn(*size, 12),) for size in CASES])


def test_a_view_at_the_border_stays_outside() -> None:
    def f(x: Any) -> Any:
        return torch.sigmoid(x.view(*x.shape[:2], 3, 4)).view(*x.shape[:2], 6, 2)

    report = lower(f, (torch.randn(2, 5, 12),), SHAPES).delegation_report()
    assert [u.operator.split(".")[-2] for u in report.undelegated] == ["view_copy"] * 2
    assert "outside it costs nothing" in report.undelegated[0].reasons[0]


def test_what_varies_is_not_regrouped() -> None:
    env = ShapeEnv()
    b, n = env.symbol("b", hint=2), env.symbol("n", hint=3)
    assert find_changes((b, n, 12), (b, n, 3, 4)) == [ShapeChange("split", 2, 3)]
    assert find_changes((b, n, 3, 4), (b, n, 12)) == [ShapeChange("merge", 2)]
    assert find_changes((b, 1, n), (b, n, 1)) == [ShapeChange("drop", 1), ShapeChange("add", 2)]
    assert find_changes((b, n, 12), (b * n, 12)) is None
    assert find_changes((b, n, 12), (n, b, 12)) is None
    assert find_changes((b, n, 64), (b, n, 64, 1, 1, 1, 1)) is None  # too many dimensions
    assert find_changes((b, n, 66), (b, n, 33, 2)) is None  # too many slices
