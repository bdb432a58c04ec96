"""What lets large models become files in little memory: layers and tables of quantized weights that
are computed in pieces, weights that are quantized in rows and put aside."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.nn import functional as F

from lostwax.checkpoints import aside
from lostwax.checkpoints.aside import is_aside, put_aside
from lostwax.classes import TENSORS
from lostwax.llm import pieces, quantizing
from lostwax.llm.pieces import InPieces, ShapesAlone, copy_sparsely, make_zeros
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


def make(quantize: str | None, embedding: int | None) -> torch.nn.Module:
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


def test_shapes_alone(few: list[int]) -> None:
    net = make("8da4w", 8)
    with ShapesAlone():
        found = net(TOKENS)
    assert torch.equal(found, torch.zeros(1, 4, 100))
    assert len(few) == 1, "the rows of the table that are looked up"


def test_copies_leave_out_zeros() -> None:
    given = make_zeros((3, 1 << 17), torch.bfloat16)
    given[1, 5] = 2
    copied = copy_sparsely(given)
    assert torch.equal(copied, given)
    copied[0, 0] = 1
    assert not given[0, 0]


def test_what_is_quantized_in_rows_is_what_torchao_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    import torchao.quantization as ao
    from torchao.quantization.granularity import PerAxis, PerGroup

    monkeypatch.setattr(quantizing, "AT_ONCE", 7 * 64)
    layer = ao.Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4,
        weight_granularity=PerGroup(32),
        weight_scale_dtype=torch.bfloat16,
    )
    table = ao.IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0))
    for large in (quantizing.LARGE, 1):
        monkeypatch.setattr(quantizing, "LARGE", large)
        net, whole = make("8da4w", 8), make(None, None)
        ao.quantize_(whole, layer)
        ao.quantize_(whole, table, lambda module, path: isinstance(module, torch.nn.Embedding))
        for found, wanted in zip(net.parameters(), whole.parameters(), strict=True):
            assert type(found) is type(wanted)
            if type(wanted) not in TENSORS:
                names, rest = wanted.__tensor_flatten__()
                assert found.__tensor_flatten__() == (names, rest)
                for name in names:
                    part: Any = getattr(found, name)
                    assert torch.equal(part, getattr(wanted, name))
                    assert is_aside(part) is (large == 1)


def test_where_there_is_no_room_tensors_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"a": torch.arange(5), "b": torch.ones(3, 2, dtype=torch.bfloat16)}
    for name, each in put_aside(given).items():
        assert torch.equal(each, given[name])
        assert is_aside(each)
    monkeypatch.setattr(aside, "map_file", Mock(side_effect=OSError(28, "No space left")))
    assert put_aside(given) == given
    assert not is_aside(given["a"])


class Keeps(torch.nn.Module):
    """A layer beside a tensor that each call makes anew, as some make the angles of rope."""

    def __init__(self, other: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(64, 8)
        self.register_buffer("angles", torch.ones(8), persistent=False)
        self.other = [other]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.register_buffer("angles", torch.arange(8.0), persistent=False)
        if self.other[0] is not None:
            self.layer.weight = self.other[0]
        return self.layer(x) * self.angles


def test_quantized_weights_beside_tensors_that_are_kept() -> None:
    import lostwax
    from lostwax.errors import LostwaxError
    from lostwax.llm.quantizing import list_kept_operators

    x, net, other = torch.randn(3, 64), Keeps(), Keeps()
    for each in (net.requires_grad_(False), other.requires_grad_(False)):
        quantize_(each, "8w", None, 32)
    program = lostwax.export(net, (x,), keep=list_kept_operators(net))
    torch.testing.assert_close(program.module()(x), net(x))
    swaps = Keeps(other.layer.weight).requires_grad_(False)
    quantize_(swaps, "8w", None, 32)
    with pytest.raises((LostwaxError, AttributeError)):  # in which words is another matter
        lostwax.export(swaps, (x,), keep=list_kept_operators(swaps))
