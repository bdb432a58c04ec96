"""Layers and tables of quantized weights computed in pieces: they are what torchao's own are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from lostwax.llm import pieces
from lostwax.llm.pieces import InPieces
from lostwax.llm.quantizing import quantize_

pytest.importorskip("torchao")
TOKENS = torch.tensor([[3, 0, 95, 3]])


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of 64 weights come seven at a time. How many floats were made of them."""
    monkeypatch.setattr(pieces, "MOST", 7 * 64)
    seen: list[int] = []
    take = pieces._cut

    def see(weight: Any, places: Any) -> Any:
        found = take(weight, places)
        seen.append(found.numel())
        return found

    monkeypatch.setattr(pieces, "_cut", see)
    return seen


def make(quantize: str, embedding: int) -> torch.nn.Module:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Embedding(96, 64), torch.nn.Linear(64, 100))
    quantize_(net.requires_grad_(False), quantize, embedding, 32)
    return net


@pytest.mark.parametrize("quantize", ["8da4w", "8da8w", "8w", "4w"])
@pytest.mark.parametrize("embedding", [8, 4, 2])
def test_a_model_in_pieces_is_the_model(few: list[int], quantize: str, embedding: int) -> None:
    net = make(quantize, embedding)
    wanted = net(TOKENS)
    with InPieces():
        found = net(TOKENS)
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-6)
    assert len(few) == 1 + 15
    assert max(few) == 7 * 64, "the table has four rows of the 96, the layer seven of the 100"


def test_a_program_in_pieces_is_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    import lostwax
    from lostwax.llm.quantizing import list_kept_operators

    net = make("8da4w", 8)
    program = lostwax.export(net, (TOKENS,), keep=list_kept_operators(net)).module()
    wanted = program(TOKENS)
    monkeypatch.setattr(pieces, "MOST", 7 * 64)
    taken: list[int] = []
    compute = pieces._Floats.compute

    def see(floats: Any) -> torch.Tensor:
        found = compute(floats)
        taken.append(found.numel())
        return found

    monkeypatch.setattr(pieces._Floats, "compute", see)
    with InPieces():
        found = program(TOKENS)
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-6)
    assert len(taken) == 1 + 15
    assert max(taken) == 7 * 64


def test_what_asks_for_all_floats_gets_them(few: list[int]) -> None:
    net: Any = make("8w", 8)
    weight = net[1].weight
    dequantize = torch.ops.torchao.dequantize_affine.default
    rest = torch.int8, -128, 127
    with InPieces():
        floats = dequantize(weight.qdata, [1, 64], weight.scale, weight.zero_point, *rest)
        assert not isinstance(floats, torch.Tensor)
        turned = torch.ops.aten.t.default(floats)
    assert torch.equal(turned, weight.dequantize().t())
    assert not few
    assert torch.equal(F.linear(torch.ones(64), weight), torch.ones(64) @ turned)
