"""What writes a few rows of a tensor, as caches are written, does not lay out all of it anew: it is
`TensorScatter` from opset 24 on, `ScatterElements` before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax import Dim
from tests.onnx.running import Session, compare


def copied(cache: Tensor, x: Tensor, at: Tensor) -> None:
    cache.index_copy_(2, at + torch.arange(x.shape[2]), x)


def put(cache: Tensor, x: Tensor, at: Tensor) -> None:
    cache[:, :, torch.arange(x.shape[2]) + at] = x


def put_one(cache: Tensor, x: Tensor, at: Tensor) -> None:
    cache[:, :, at] = x[:, :, 0]


def sliced(cache: Tensor, x: Tensor, at: Tensor) -> None:
    start, length = int(at), x.shape[2]
    torch._check(start >= 0)
    torch._check(start + length <= 8)
    cache[:, :, start : start + length] = x


def first(cache: Tensor, x: Tensor, at: Tensor) -> None:
    cache[:, :, : x.shape[2]] = x + at


def backwards(cache: Tensor, x: Tensor, at: Tensor) -> None:
    """Places that do not lie one behind the other."""
    cache.index_copy_(2, at + torch.arange(x.shape[2]).flip(0), x)


def rows(cache: Tensor, x: Tensor, at: Tensor) -> None:
    """Of the first dim."""
    length = x.shape[2]
    cache.flatten(0, 1).index_copy_(0, torch.arange(2) + at, x[0, :2, :1].expand(2, 8, 4))
    cache[:, 1, :length] += 1


class Cache(nn.Module):
    def __init__(self, write: Any) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 3, 8, 4))
        self.write = write

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        self.write(self.keys, x, at)
        return self.keys * 2


WRITES = {each.__name__: each for each in (copied, put, put_one, sliced, first, backwards, rows)}
OTHERS = ("put", "backwards")
"""Where places may count from the end, or come in another order, each is named."""


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("opset", [18, 23, 24, 26])
def test_rows_of_a_cache(name: str, opset: int) -> None:
    module = Cache(WRITES[name])
    length = {2: Dim("length", min=1, max=7)}
    call = torch.randn(2, 3, 2, 4), torch.tensor(1)
    session = Session(lostwax.export(module, call, dynamic_shapes=(length, None)), opset)
    assert ("TensorScatter" in session.nodes) == (opset >= 24 and name not in OTHERS)
    assert "Concat" not in session.nodes or (name in ("first", "rows") and opset < 24)
    assert "Transpose" not in session.nodes
    eager = Cache(WRITES[name])
    for at, rows in ((1, 2), (4, 3), (0, 1)):
        compare(session, eager, (torch.randn(2, 3, rows, 4), torch.tensor(at)))


@pytest.mark.parametrize("opset", [18, 24])
def test_a_place_that_counts_from_the_end(opset: int) -> None:
    def function(x: Tensor, at: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        one, many = x.clone(), x.clone()
        one[:, at] = y
        many[:, torch.arange(2) + at] = y[:, None]
        return one, many

    args = torch.randn(2, 5), torch.tensor(1), torch.randn(2)
    session = Session(lostwax.export(function, args), opset)
    for at in (0, 3, -2, -5, -1):
        compare(session, function, (torch.randn(2, 5), torch.tensor(at), torch.randn(2)))
