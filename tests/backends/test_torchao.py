"""Layers that torchao's `quantize_` gave weights of 8 and 4 bits, in XNNPACK and without it, run by
the real runtime beside the quantized module."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax.backends import XnnpackPartitioner
from lostwax.errors import CaptureError
from lostwax.fake import FakeTensorMode
from tests.backends.quantized import list_nodes, lower, run

torchao: Any = pytest.importorskip("torchao.quantization")
granularity: Any = pytest.importorskip("torchao.quantization.granularity")
utils: Any = pytest.importorskip("torchao.utils")
pytestmark = pytest.mark.filterwarnings("ignore")

EACH_LAYER = ["Convert rows of i8", "FullyConnected f32"]
FLOAT_LAYERS = ["FullyConnected f32", "Add f32", "FullyConnected f32"]
CASES: dict[str, tuple[torch.dtype, Any, float]] = {
    "8 bits": (torch.int8, granularity.PerAxis(0), 1e-5),
    "4 bits": (torch.int4, granularity.PerAxis(0), 1e-5),
    # XNNPACK has the scales of groups in bfloat16: 2 ** -9 of each product
    "4 bits in groups": (torch.int4, granularity.PerGroup(32), 0.01),
}


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 64)
        self.layers = nn.Sequential(nn.Linear(64, 33), nn.ReLU(), nn.Linear(33, 64, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.table(x))  # type: ignore[no-any-return]


def make(dtype: torch.dtype, block: Any, layers: Any = None) -> tuple[nn.Module, nn.Module]:
    """Layers, and the same quantized."""
    torch.manual_seed(0)
    model = layers or nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5, bias=False))
    config = torchao.Int8DynamicActivationIntxWeightConfig
    quantized = copy.deepcopy(model)
    torchao.quantize_(quantized, config(weight_dtype=dtype, weight_granularity=block))
    return model, quantized


@pytest.mark.parametrize("name", CASES)
def test_weights(name: str) -> None:
    dtype, block, close = CASES[name]
    model, module = make(dtype, block)
    x = torch.randn(1, 3, 64)
    want = module(x)
    lowered = lower(module, (x,))
    assert lowered.delegation_report().share == 1
    assert list_nodes(lowered) == EACH_LAYER * 2
    torch.testing.assert_close(
        run(lowered, (x,)), want, rtol=0, atol=close * float(want.abs().max())
    )
    assert (want - model(x)).norm() < 0.15 * want.norm()
    plain = lostwax.export(module, (x,), keep="composite").to_edge()
    torch.testing.assert_close(run(plain, (x,)), want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int4])
def test_layers_of_floats_with_small_weights(dtype: torch.dtype) -> None:
    """Weights by rows stay integers in the file, also where nothing else is quantized."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 6, bias=False))
    floats = lower(module, (torch.randn(2, 64),)).to_executable().buffer
    torchao.quantize_(module, torchao.IntxWeightOnlyConfig(weight_dtype=dtype))
    for rows in (1, 3):
        x = torch.randn(rows, 64)
        lowered = lower(module, (x,))
        assert list_nodes(lowered) == FLOAT_LAYERS
        torch.testing.assert_close(run(lowered, (x,)), module(x), rtol=1e-5, atol=1e-5)
    bits = 8 if dtype is torch.int8 else 4
    saved = 64 * 256 * (32 - bits) // 8
    assert len(lowered.to_executable().buffer) < len(floats) - saved


def test_a_class_of_tensors_is_what_it_is_made_of(tmp_path: Any) -> None:
    """Of each weight the program has the tensors inside, as buffers; the module keeps its own."""
    _, module = make(torch.int4, granularity.PerGroup(32))
    weight, x = module[0].weight, torch.randn(2, 3, 64)  # type: ignore[index]
    length = lostwax.Dim("length", min=1, max=9)
    program = lostwax.export(module, (x,), dynamic_shapes=({1: length},), keep="composite")
    assert module[0].weight is weight  # type: ignore[index]
    assert program.state_dict["0.weight.qdata"] is weight.qdata
    assert [n for n in program.graph_signature.buffers if n.startswith("0")] == [
        f"0.weight.{name}" for name in ("qdata", "scale", "zero_point")
    ]
    lostwax.save(program, tmp_path / "m.pt2")
    again = lostwax.load(tmp_path / "m.pt2")
    for count in (1, 3, 9):
        x = torch.randn(2, count, 64)
        for each in (program, again):
            assert torch.equal(each.module()(x), module(x))


def test_a_class_of_tensors_with_gradients_is_refused() -> None:
    _, module = make(torch.int4, granularity.PerGroup(32))
    module.requires_grad_(True)
    if not module[0].weight.requires_grad:  # type: ignore[index]
        pytest.skip("this torchao's tensors have no gradients")
    with pytest.raises(
        CaptureError, match=r"0.weight is a .* and requires gradients[\s\S]*no_grad"
    ):
        lostwax.export(module, (torch.randn(2, 64),))
    with torch.no_grad():
        lostwax.export(module, (torch.randn(2, 64),))


BLOCKS = [((5, 8), (1, 4)), ((5, 8), (1, 8)), ((2, 3, 8), (1, 1, 8)), ((4, 8), (4, 8)),
          ((4, 8), (2, 4)), ((3, 1, 8), (1, 1, 8)), ((4, 8), (1, 1))]  # fmt: skip


@pytest.mark.parametrize("kind", ["ASYMMETRIC", "SYMMETRIC"])
@pytest.mark.parametrize(("size", "block"), BLOCKS)
def test_type_rules(kind: str, size: tuple[int, ...], block: tuple[int, ...]) -> None:
    ops, form = torch.ops.torchao, (torch.int8, -128, 127)
    x = torch.randn(size)

    def compute(x: Tensor) -> list[Tensor]:
        made = ops.choose_qparams_affine.default(x, kind, block, *form, None, None, torch.int8)
        if block == (1, 1):  # what eager makes of it, it cannot use
            return list(made)
        integers = ops.quantize_affine.default(x, block, *made, *form)
        return [*made, integers, ops.dequantize_affine.default(integers, block, *made, *form)]

    wanted = compute(x)
    with FakeTensorMode() as mode:
        found = compute(mode.from_tensor(x))
    for a, b in zip(found, wanted, strict=True):
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())


@pytest.mark.parametrize(("dtype", "group"), [(torch.int8, 64), (torch.int4, 16), (torch.int2, 32)])
def test_tables_are_never_floats(dtype: torch.dtype, group: int) -> None:
    """Rows become floats after they were looked up, by kernels that every runtime has."""
    torch.manual_seed(0)
    table = nn.Sequential(nn.Embedding(1000, 64))
    config = torchao.IntxWeightOnlyConfig(
        weight_dtype=dtype, granularity=granularity.PerGroup(group)
    )
    torchao.quantize_(table, config, lambda m, _: isinstance(m, nn.Embedding))
    x = torch.tensor([[3, 0, 999], [3, 7, 1]])
    executable = lower(table, (x,)).to_executable()
    assert executable.arena_sizes["forward"] < 20_000
    assert torch.equal(lostwax.pte.run(executable.buffer, (x,))[0], table(x))


def test_what_stays_is_not_taken_apart_everywhere() -> None:
    """An embedding of integers, and a layer whose groups XNNPACK has not, stay; others do not."""
    _, module = make(torch.int4, granularity.PerAxis(0), Tokens())
    config = torchao.IntxWeightOnlyConfig(weight_dtype=torch.int8)
    torchao.quantize_(module, config, lambda m, _: isinstance(m, nn.Embedding))
    utils.unwrap_tensor_subclass(module)
    x = torch.tensor([[3, 0, 19]])
    lowered = lower(module, (x,))
    left = [each.operator.split(".")[-2] for each in lowered.delegation_report().undelegated]
    assert left == ["dequantize_affine", "embedding"]
    assert list_nodes(lowered) == EACH_LAYER * 2
    want = module(x)
    torch.testing.assert_close(
        run(lowered, (x,)), want, rtol=0, atol=0.01 * float(want.abs().max())
    )


def test_groups_that_xnnpack_has_not() -> None:
    _, module = make(torch.int4, granularity.PerGroup(16))
    utils.unwrap_tensor_subclass(module)
    x = torch.randn(2, 64)
    lowered = lower(module, (x,))
    report = lowered.delegation_report()
    assert "for layers with symmetric weights of 8 bits, or of 4" in str(report)
    assert len(report.undelegated) == 6
    torch.testing.assert_close(run(lowered, (x,)), module(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["ASYMMETRIC", "SYMMETRIC", "SYMMETRIC_NO_CLIPPING_ERR"])
def test_operators_without_a_backend(kind: str) -> None:
    """The runtime's own kernels compute the same, to the last bit."""
    ops = torch.ops.torchao
    form = (torch.int8, -128, 127)

    def step(x: Tensor) -> tuple[Tensor, ...]:
        scale, zero = ops.choose_qparams_affine.default(
            x, kind, [1, 4], *form, 1e-5, None, torch.int8
        )
        integers = ops.quantize_affine.default(x, [1, 4], scale, zero, *form)
        return (
            scale,
            zero,
            integers,
            ops.dequantize_affine.default(integers, [1, 4], scale, zero, *form),
        )

    for shapes in (None, ({0: lostwax.Dim("rows", max=9)},)):
        lowered = lower(step, (torch.randn(5, 8),), dynamic_shapes=shapes)
        assert "torchao" in str(lowered.delegation_report())
        runtime = lostwax.pte.load_runtime(lowered.to_executable().buffer)
        for x in (torch.randn(5, 8), torch.randn(9 if shapes else 5, 8)):
            for a, b in zip(runtime.run((x,)), step(x), strict=True):
                assert torch.equal(a, b)


def test_integers_that_are_made_floats_as_they_are_stay_integers() -> None:
    """`Int8WeightOnlyConfig` multiplies by the scales behind the product."""
    module = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32)).eval()
    torchao.quantize_(module, torchao.Int8WeightOnlyConfig())
    x = torch.randn(3, 64)
    lowered = lower(module, (x,))
    assert lowered.delegation_report().share == 1
    executable = lowered.to_executable()
    assert executable.sizes["weights of delegates"] < 1.4 * (64 * 96 + 96 * 32)
    torch.testing.assert_close(run(lowered, (x,)), module(x), atol=1e-5, rtol=1e-5)


def test_sizes_are_asked_after_a_capture_that_kept_both_ways() -> None:
    """No question of what takes a program apart starts a capture anew. (XNNPACK has no bfloat16:
    torchao's Python computes the scales, and asks for the number of rows.)"""
    _, module = make(torch.int8, granularity.PerAxis(0))
    module.to(torch.bfloat16)
    shapes = ({0: lostwax.Dim("rows", min=1, max=8)},)
    kept = [torch.ops.aten.linear.default]
    names = ("choose_qparams_affine", "quantize_affine", "dequantize_affine")
    kept += [getattr(torch.ops.torchao, name).default for name in names]
    x = torch.randn(3, 64, dtype=torch.bfloat16)
    program = lostwax.export(module, (x,), dynamic_shapes=shapes, control_flow="sizes", keep=kept)
    edge = lostwax.to_edge_transform_and_lower(program, partitioner=XnnpackPartitioner())
    assert edge.delegation_report().share < 1
