"""What is written in fewer nodes, and what is not: each beside eager, in onnxruntime."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lostwax
from lostwax import Dim
from tests.onnx.running import Session, compare, onnx_ir


def write(
    function: Callable[..., Any], *args: Any, opset: int = 23, keep: Any = (), varies: bool = True
) -> Session:
    shapes = tuple({0: Dim("batch", min=1)} for _ in args) if varies else None
    return Session(lostwax.export(function, args, dynamic_shapes=shapes, keep=keep), opset)


class RootMeanSquare(nn.Module):
    """As transformers spells it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 2, 8))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight.to(x.dtype) * wide.to(x.dtype)


def test_a_root_mean_square_norm_is_one_node() -> None:
    x = torch.randn(2, 3, 8)
    session = write(RootMeanSquare(), x)
    assert session.nodes == ["RMSNormalization"]
    compare(session, RootMeanSquare(), (torch.randn(5, 3, 8) * 9,))
    assert "RMSNormalization" not in write(RootMeanSquare(), x, opset=22).nodes
    half = write(RootMeanSquare(), x.half())
    assert "RMSNormalization" in half.nodes
    compare(half, RootMeanSquare(), (x.half(),), tol=2e-3)


def test_norms_that_look_alike_stay_as_they_are() -> None:
    def other_dim(x: Tensor) -> Tensor:
        return torch.ones(8) * (x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-6))

    def other_square(x: Tensor) -> Tensor:
        return torch.ones(8) * (x * torch.rsqrt((x * (x + 1)).mean(-1, keepdim=True) + 2))

    for function in (other_dim, other_square):
        session = write(function, torch.rand(2, 3, 8))
        assert "RMSNormalization" not in session.nodes
        compare(session, function, (torch.rand(4, 3, 8),))


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos.unsqueeze(1) + turned * sin.unsqueeze(1)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    both = torch.cat((angles, angles), -1)
    return _turn(x, both.cos(), both.sin())


def rotate_unevenly(x: Tensor, angles: Tensor) -> Tensor:
    both = torch.cat((angles, angles + 1), -1)
    return _turn(x, both.cos(), both.sin())


def test_rotary_embeddings_are_one_node_where_both_halves_are_equal() -> None:
    x, angles = torch.randn(2, 3, 5, 8), torch.randn(2, 5, 4)
    session = write(rotate, x, angles)
    assert session.nodes.count("RotaryEmbedding") == 1
    assert "Neg" not in session.nodes
    compare(session, rotate, (torch.randn(4, 3, 5, 8), torch.randn(4, 5, 4)))
    session = write(rotate_unevenly, x, angles)
    assert "RotaryEmbedding" not in session.nodes
    compare(session, rotate_unevenly, (x, angles))


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    k, v = (each[:, :, None].expand(-1, -1, 2, -1, -1).reshape(-1, 4, 7, 8) for each in (k, v))
    return F.scaled_dot_product_attention(q, k, v, mask)


@pytest.mark.parametrize("rows", [1, 5])
def test_attention_with_shared_heads_is_one_node(rows: int) -> None:
    def call(batch: int, shown: Tensor) -> tuple[Tensor, ...]:
        q, k, v = torch.randn(batch, 4, 5, 8), *torch.randn(2, batch, 2, 7, 8)
        return q, k, v, shown.expand(batch, 1, rows, 7).clone()

    shown = torch.tensor([True, True, False, True, False, True, True])
    session = write(attend, *call(2, shown), keep="composite")
    assert session.nodes.count("Attention") == 1
    assert session.nodes == [*["Expand"] * (rows == 1), "Attention"]
    compare(session, attend, call(3, shown))
    compare(session, attend, call(3, torch.zeros(7, dtype=torch.bool)))  # nothing is shown
    below = write(attend, *call(2, shown), keep="composite", opset=22)
    assert "Attention" not in below.nodes
    compare(below, attend, call(3, shown))


def test_a_mask_of_least_numbers_hides_no_row_as_a_whole() -> None:
    """To onnxruntime's operator such a row is hidden; eager gives the mean of all."""

    def function(q: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q, mask)

    q, mask = torch.randn(2, 1, 4, 8), torch.zeros(2, 1, 4, 4)
    session = write(function, q, mask, keep="composite")
    mask[0, 0, 1] = torch.finfo(torch.float32).min
    compare(session, function, (q, mask))


def test_layers_on_many_rows_are_products_of_all_of_them() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3, bias=False)).eval()
    session = write(model, torch.randn(2, 5, 6))
    assert session.nodes == ["MatMul", "Add", "Relu", "MatMul"]
    compare(session, model, (torch.randn(7, 5, 6),))


def test_batch_norms_are_part_of_convolutions() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    bias = nn.Sequential(nn.Conv1d(4, 4, 3, groups=2, bias=False), nn.BatchNorm1d(4)).eval()
    for each, x in ((model, torch.randn(2, 3, 9, 8)), (bias, torch.randn(2, 4, 9))):
        with torch.no_grad():
            each[1].running_mean.normal_()
            each[1].running_var.uniform_(0.5, 3)
            each[1].weight.normal_()
        session = write(each, x)
        assert session.nodes == ["Conv", "Relu"][: len(session.nodes)]
        compare(session, each, (x,))


def test_a_convolution_that_others_read_keeps_its_batch_norm_apart() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return self.norm(y) + y

    model = Both().eval()
    session = write(model, torch.randn(2, 3, 5, 5))
    assert session.nodes == ["Conv", "BatchNormalization", "Add"]
    compare(session, model, (torch.randn(2, 3, 5, 5),))


def test_state_that_is_one_or_nothing_at_first_is_no_constant() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.tensor(1.0))
            self.register_buffer("count", torch.tensor(0))

        def forward(self, x: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
            found = x * self.scale, i + self.count
            self.scale += 1
            self.count += 2
            return found

    args = (torch.ones(3), torch.arange(3))
    session, model = write(Scaled(), *args, varies=False), Scaled()
    for _ in range(3):
        compare(session, model, args)


def test_nodes_that_change_nothing_are_not_written() -> None:
    def function(x: Tensor, i: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return (x * 1.0)[:, None][None] / 1, i + 0, x + 0.0

    session = write(function, torch.randn(2, 3), torch.arange(2))
    assert sorted(session.nodes) == ["Add", "Identity", "Unsqueeze"]
    x = torch.tensor([[-0.0, 1, 2]])
    assert session(x, torch.tensor([4]))[2].signbit().tolist() == [[False, False, False]]


@pytest.mark.parametrize("bits", ["int4 in groups", "int8 in rows"])
def test_weights_of_torchao_stay_of_few_bits(bits: str) -> None:
    quantization = pytest.importorskip("torchao.quantization", reason="not installed")
    granularity = pytest.importorskip("torchao.quantization.granularity")
    is_grouped = bits.startswith("int4")
    config = quantization.IntxWeightOnlyConfig(
        weight_dtype=torch.int4 if is_grouped else torch.int8,
        granularity=granularity.PerGroup(32) if is_grouped else granularity.PerAxis(0),
    )
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32, bias=False)).eval()
    quantization.quantize_(model, config)
    session = write(model, torch.randn(2, 64))
    assert sorted(session.nodes) == ["DequantizeLinear"] * 2 + ["Gemm", "MatMul", "Relu"]
    held = {v.name: v.const_value for v in session.model.graph.initializers.values()}
    kinds = {v.dtype.name for v in held.values()}
    assert kinds == {"FLOAT", "INT4" if is_grouped else "INT8"}
    compare(session, model, (torch.randn(5, 64),))
    compare(write(model, torch.randn(2, 64), opset=20), model, (torch.randn(5, 64),))


@pytest.mark.parametrize("group", [16, 32])
@pytest.mark.parametrize("opset", [21, 23])
def test_products_with_weights_of_four_bits_on_request(group: int, opset: int) -> None:
    quantization = pytest.importorskip("torchao.quantization", reason="not installed")
    granularity = pytest.importorskip("torchao.quantization.granularity")
    layers = [nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 33, bias=False), nn.Linear(33, 2)]
    model = nn.Sequential(*layers).eval()
    quantization.quantize_(
        model,
        quantization.IntxWeightOnlyConfig(
            weight_dtype=torch.int4,
            granularity=granularity.PerGroup(group),
            mapping_type=quantization.MappingType.ASYMMETRIC,
        ),
        lambda layer, _: isinstance(layer, nn.Linear) and layer.in_features > 33,
    )
    for x in (torch.randn(2, 64), torch.randn(2, 3, 64)):
        rows = ({0: Dim("rows", min=1)},)
        program = lostwax.export(model, (x,), dynamic_shapes=rows, keep="composite")
        session = Session(program, opset, matmul_nbits=True)
        assert session.nodes.count("MatMulNBits") == 2
        assert "DequantizeLinear" not in session.nodes
        (first, second) = (n for n in session.model.graph if n.op_type == "MatMulNBits")
        assert first.domain == "com.microsoft"
        assert second.attributes["block_size"].as_int() == group
        held = session.model.graph.initializers.values()
        assert not [v.name for v in held if v.dtype is onnx_ir.DataType.INT4]
        compare(session, model, (torch.randn(5, *x.shape[1:]),))


class Turned(nn.Module):
    """Positions of a table, as halves of `chunk`."""

    def __init__(self, equal: bool) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(64.0), torch.rand(4))
        both = torch.cat([angles, angles if equal else angles + 1], -1)
        self.register_buffer("cos", both.cos())
        self.register_buffer("sin", both.sin())

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, -1)
        n = x.shape[2]
        return x * self.cos[:n] + torch.cat([-right, left], -1) * self.sin[:n]


@pytest.mark.parametrize("equal", [True, False])
def test_rotary_embeddings_by_a_table(equal: bool) -> None:
    module, sizes = Turned(equal), ({0: Dim("batch", min=1), 2: Dim("length", min=2)},)
    session = Session(lostwax.export(module, (torch.randn(2, 3, 5, 8),), dynamic_shapes=sizes))
    assert ("RotaryEmbedding" in session.nodes) == equal
    assert ("Split" in session.nodes) == (not equal)
    for batch, length in ((1, 2), (3, 64), (2, 7)):
        compare(session, module, (torch.randn(batch, 3, length, 8),))


def test_what_is_computed_of_small_weights_is_computed_once() -> None:
    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.randn(9, 2))
            self.register_buffer("index", torch.arange(16).reshape(4, 4) % 9)
            self.register_buffer("count", torch.tensor(0))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            self.count += 1
            return x + self.bias[self.index].permute(2, 0, 1), x * (self.count + 1)

    module = Biased()
    session = write(copy.deepcopy(module), torch.randn(2, 4, 4), varies=False)
    assert sorted(session.nodes) == ["Add", "Add", "Add", "Cast", "Mul"]
    for _ in range(3):
        compare(session, module, (torch.randn(2, 4, 4),))
