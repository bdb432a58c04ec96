"""Each operator of XNNPACK's table, run by the real runtime beside eager: nothing stays outside,
and as many nodes are written as there should be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lostwax
from examples.backend import make_partitioner
from lostwax import Dim
from lostwax.backends import XnnpackPartitioner
from lostwax.backends.xnnpack.schema import TABLES
from lostwax.errors import LoadError, LoweringError
from lostwax.ir.graph.delegate import find_delegates
from lostwax.pte.file import tables
from tests.backends.xnnpack import compare, lower

torch.manual_seed(0)
ROWS, IMAGE, SIGNAL = torch.randn(3, 5), torch.randn(2, 4, 8, 8), torch.randn(2, 4, 9)
POSITIVE = torch.rand(3, 5) + 0.1


def norm(module: nn.Module) -> nn.Module:
    """A norm that has seen something."""
    for p in (*module.parameters(), *module.buffers()):
        if p.dtype.is_floating_point:
            p.data = torch.rand_like(p) + 0.5
    return module


FUNCTIONS: dict[str, Any] = {
    "abs": torch.abs,
    "ceil": torch.ceil,
    "cos": torch.cos,
    "exp": torch.exp,
    "floor": torch.floor,
    "gelu": F.gelu,
    "gelu, approximately": lambda x: F.gelu(x * 3, approximate="tanh"),
    "repeat": lambda x: x[:, None].expand(3, 4, 5) * 2,
    "mask": lambda x: x.masked_fill(torch.arange(5) > 2, -torch.inf).softmax(-1),
    "mask of others": lambda x: torch.where(torch.arange(5) > 2, x * 1e10, -1e9),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "neg": torch.neg,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "sin": torch.sin,
    "tanh": torch.tanh,
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.7),
    "clamp": lambda x: x.clamp(min=-0.3),
    "clamp of both": lambda x: x.clamp(-0.3, 0.4),
    "elu": lambda x: F.elu(x, 0.7),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "square": lambda x: x**2,
    "cube": lambda x: x**3,
    "add": lambda x: x + x * 2,
    "add with alpha": lambda x: torch.add(x, torch.ones(5), alpha=3),
    "add a number with alpha": lambda x: torch.ops.aten.add.Scalar(x, 2, 3),
    "sub a number with alpha": lambda x: torch.ops.aten.sub.Scalar(x, 2, alpha=3),
    "sub": lambda x: 1 - x,
    "div": lambda x: x / 3,
    "broadcast": lambda x: x * x[:, :1] - torch.arange(5.0),
    "minimum": lambda x: torch.minimum(x, -x),
    "maximum": lambda x: torch.maximum(x, torch.zeros(5)),
    "add and relu": lambda x: F.relu(x + 0.5),
    "mul and relu6": lambda x: F.relu6(x * 9),
    "softmax": lambda x: x.softmax(-1),
    "mean of rows": lambda x: (x.mean(-1, keepdim=True), x.mean(-1) * 2),
    "layer_norm": lambda x: F.layer_norm(x, (5,), torch.arange(5.0), torch.ones(5)),
    "layer_norm, plain": lambda x: F.layer_norm(x, (5,)),
    "rms": lambda x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5),
    "several results": lambda x: (x + 1, F.relu(x + 1), x * 2),
    "result of a constant": lambda x: x + torch.ones(3, 1),
    "reshape": lambda x: torch.relu(x.view(5, 3)).unsqueeze(0),
    "transpose": lambda x: torch.relu(x).t(),
    "slice": lambda x: x[1:, 2:4] * 2,
    "slice from the end": lambda x: x[:, -2:] * 2,
    "select": lambda x: x[1] * x[:, 3:4],
    "roll": lambda x: torch.roll(x * 2, (1, -2), (0, 1)),
    "chosen rows": lambda x: x.index_select(1, torch.tensor([3, 4, 0, 0])) * 2,
    "neighbouring rows": lambda x: x.index_select(1, torch.tensor([2, 3, 4])) * 2,
    "split": lambda x: [p * 2 for p in x.split([2, 3], 1)],
    "chunk": lambda x: [p * 2 for p in x.chunk(3, 0)],
    "pad": lambda x: F.pad(x * 2, (1, 2, 0, 1), value=3.0),
    "cat": lambda x: torch.cat([x, x * 2, x + 1], 1),
    "cat of one": lambda x: torch.cat([x * 2], 1),
    "cat of seven": lambda x: torch.cat([x + i for i in range(7)], 0),
    "matrix": lambda x: x @ torch.ones(5, 4),
    "bmm of a constant": lambda x: (x * 2)[None] @ torch.ones(1, 5, 4),
    "wide constant": lambda x: x[1] * torch.full((1, 1), 2.0),
    "bmm": lambda x: x[None] @ (x + 1).t()[None],
    "nothing": lambda x: torch.relu(x).view(3, 5).expand(3, 5),
}

ON_IMAGES: dict[str, Any] = {
    "conv": nn.Conv2d(4, 6, 3),
    "conv, all options": nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
    "conv without bias": nn.Conv2d(4, 6, 1, bias=False),
    "groups": nn.Conv2d(4, 6, 3, groups=2),
    "depthwise": nn.Conv2d(4, 4, 3, padding=1, groups=4),
    "depthwise, wider": nn.Conv2d(4, 8, 3, groups=4),
    "transposed": nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1),
    "transposed in groups": nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2),
    "norm of a conv": nn.Sequential(nn.Conv2d(4, 6, 3), norm(nn.BatchNorm2d(6)), nn.ReLU()),
    "norm of a transposed conv": nn.Sequential(
        nn.ConvTranspose2d(4, 6, 2, groups=2), norm(nn.BatchNorm2d(6)), nn.ReLU6()
    ),
    "norm alone": nn.Sequential(norm(nn.BatchNorm2d(4)), nn.ReLU()),
    "norm behind a pool": nn.Sequential(nn.MaxPool2d(2), norm(nn.BatchNorm2d(4))),
    "max_pool": nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.ReLU()),
    "max_pool, dilated": nn.MaxPool2d(2, 1, 0, 2),
    "avg_pool": nn.AvgPool2d(2),
    "max_pool, rounded up": nn.MaxPool2d(3, 2, ceil_mode=True),
    "max_pool, rounded up and padded": nn.MaxPool2d(3, 3, 1, ceil_mode=True),
    "avg_pool, rounded up": nn.AvgPool2d(3, 2, ceil_mode=True),
    "avg_pool, rounded up and padded": nn.AvgPool2d(3, 3, 1, True, count_include_pad=False),
    "avg_pool of padding": nn.AvgPool2d(3, 1, 1),
    "nearest": lambda x: F.interpolate(x, scale_factor=2, mode="nearest") * 2,
    "nearest, doubled by another factor": lambda x: F.interpolate(x, scale_factor=(1.05, 2.1)) * 2,
    "nearest, other sizes": lambda x: F.interpolate(x, size=(24, 16), mode="nearest"),
    "avg_pool, padded": nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "mean": lambda x: x.mean([2, 3]) * 2,
    "mean of last channels": lambda x: (x * 2).mean([1, 2]) + (x * 2).mean([1, 2], keepdim=True),
    "mean, kept": lambda x: x.mean((-1, -2), keepdim=True) * x,
    "adaptive": nn.AdaptiveAvgPool2d(1),
    "adaptive, windows": nn.AdaptiveAvgPool2d((2, 4)),
    "prelu": nn.Sequential(nn.Conv2d(4, 4, 1), norm(nn.PReLU(4))),
    "bilinear": lambda x: F.interpolate(x, size=(5, 11), mode="bilinear"),
    "bilinear, by a factor": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear, corners": lambda x: F.interpolate(
        x, size=(5, 11), mode="bilinear", align_corners=True
    ),
    "softmax of channels": lambda x: F.max_pool2d(x, 2).softmax(1),
    "cat of channels": lambda x: torch.cat([F.avg_pool2d(x, 2), F.max_pool2d(x, 2)], 1),
    "cat of plain and last": lambda x: torch.cat([F.max_pool2d(x, 3, 1, 1), x * 2], 2),
    "pad": lambda x: F.pad(F.max_pool2d(x, 2), (1, 0, 0, 2)),
    "slice with steps": lambda x: x[:, 1::2, :, 2:7:4] * F.max_pool2d(x, 2)[:, ::2, ::4, ::2],
    "slice": lambda x: F.max_pool2d(x, 2)[:, 1:3, :, 2:] * 2,
    "constants by channel": lambda x: F.max_pool2d(x, 2) * torch.arange(4.0)[:, None, None],
    "one constant": lambda x: F.max_pool2d(x, 2) * torch.full((1, 1), 2.0),
    "low rank": lambda x: F.max_pool2d(x, 2) + x[0, 0, 0, :4],
    "cube": lambda x: F.max_pool2d(x, 2) ** 3,
    "channels last": lambda x: F.max_pool2d(x, 2).permute(0, 2, 3, 1) * 2,
    "and back": lambda x: F.max_pool2d((x * 2).permute(0, 3, 1, 2), 2),
    "both layouts": lambda x: (F.max_pool2d(x, 2), F.max_pool2d(x, 2).flatten(1) * 2),
    "one pixel": lambda x: F.linear(F.adaptive_avg_pool2d(x, 1).flatten(1), torch.ones(3, 4)),
}

ON_SIGNALS: dict[str, Any] = {
    "conv1d": nn.Sequential(nn.Conv1d(4, 6, 3, padding=2, dilation=2), nn.ReLU()),
    "depthwise": nn.Conv1d(4, 4, 3, groups=4),
    "transposed": nn.ConvTranspose1d(4, 6, 3, stride=2),
    "norm": nn.Sequential(nn.Conv1d(4, 6, 3), norm(nn.BatchNorm1d(6)), nn.Conv1d(6, 2, 1)),
    "mean": lambda x: (x.mean(1) * 2, x.mean(1, keepdim=True) * 2),
    "linear": nn.Sequential(nn.Linear(9, 4), nn.ReLU(), nn.Linear(4, 2)),
    "product": lambda x: torch.matmul(x, x.transpose(1, 2)).softmax(-1) @ x,
    "heads": lambda x: (x.view(2, 2, 2, 9).transpose(1, 2) * 2).reshape(2, 4, 9),
}

CASES = [
    *((f"rows: {name}", f, ROWS) for name, f in FUNCTIONS.items()),
    *((f"rows: {f.__name__}", f, POSITIVE) for f in (torch.log, torch.sqrt, torch.rsqrt)),
    *((f"images: {name}", f, IMAGE) for name, f in ON_IMAGES.items()),
    *((f"signals: {name}", f, SIGNAL) for name, f in ON_SIGNALS.items()),
]


@pytest.mark.parametrize(("name", "function", "x"), CASES, ids=[c[0] for c in CASES])
def test_an_operator_is_taken_and_computes_as_eager(name: str, function: Any, x: Any) -> None:
    module = function.eval() if isinstance(function, nn.Module) else function
    lowered = lower(module, (x,))
    report = lowered.delegation_report()
    assert not report.undelegated, str(report)
    assert len(report.delegates) == 1
    compare(module, lowered, [(x,)])


def read_kinds(lowered: lostwax.EdgeProgramManager) -> list[str]:
    """The kinds of the nodes in the payload."""
    ((_, delegate),) = find_delegates(lowered.exported_program().graph)
    reader = tables.TableReader(delegate.processed_bytes[32:], TABLES)
    root = reader.number("u32", 0, "the graph")
    graph = reader.table(root, "XNNGraph", "the graph", 0)
    return [node["xnode_union"][""] for node in graph["xnodes"]]


def test_layers_norms_and_limits_are_one_node() -> None:
    block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    lowered = lower(nn.Sequential(block, block, nn.MaxPool2d(2)).eval(), (IMAGE,))
    assert read_kinds(lowered) == [
        *("XNNStaticTranspose", "XNNConv2d", "XNNConv2d", "XNNMaxPooling2d", "XNNStaticTranspose"),
    ]
    layers = nn.Sequential(nn.Linear(9, 4), nn.ReLU(), nn.Linear(4, 2))
    assert read_kinds(lower(layers, (SIGNAL,))) == ["XNNFullyConnected"] * 2


REASONS: dict[str, tuple[Any, str]] = {
    "dtype": (lambda x: x.double() * 2, "XNNPACK has no dim_order_ops::_to_dim_order_copy"),
    "operator": (lambda x: torch.erf(x), "XNNPACK has no aten::erf"),
    "rank": (lambda x: x.view(1, 1, 1, 1, 1, 3, 5) * 2, "at most 6 dimensions"),
    "scalar": (lambda x: x[0, 0].reshape(()) * 2, "it has a tensor without dimensions"),
    "step": (lambda x: x[:, ::2] * 2, "slices have no step, as 2, of 5 elements"),
    "rows": (lambda x: torch.index_select(x, 0, x[0, :2].long().abs() % 3), "not i64"),
    "elu": (lambda x: F.selu(x), "XNNPACK's elu has no scales"),
    "limits": (lambda x: x.clamp(2.0, 1.0), "leave nothing between them"),
    "power": (lambda x: x**2.5, "XNNPACK has no power of 2.5"),
    "weight": (lambda x: x @ x.t(), "its weight is no constant"),
    "alpha": (lambda x: torch.add(x, x * 2, alpha=2), "no multiple (alpha=2)"),
    "empty": (lambda x: x[:0] * 2, "it has no elements"),
    "moving": (lambda x: x.t().reshape(-1), "XNNPACK would only move its elements"),
    "chosen": (lambda x: torch.where(x > 0, x, -1.0), "in float32, not b8"),
    "replaced": (lambda x: x.masked_fill(torch.arange(5) > 2, 3.0), "only hides values"),
    "softmax": (lambda x: x.softmax(0), "along the last dimension"),
}


@pytest.mark.parametrize("name", REASONS)
def test_what_stays_has_a_reason_and_runs(name: str) -> None:
    function, reason = REASONS[name]
    lowered = lower(function, (ROWS,))
    reasons = [r for each in lowered.delegation_report().undelegated for r in each.reasons]
    assert any(reason in each for each in reasons), reasons
    compare(function, lowered, [(ROWS,)])


def test_sizes_that_vary() -> None:
    module = nn.Sequential(
        *(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(6, 3), nn.LayerNorm(3), nn.Softmax(-1)),
    )
    shapes = ({0: Dim("batch", max=5), 2: Dim("height", max=20), 3: Dim("width", max=20)},)
    lowered = lower(module.eval(), (IMAGE,), shapes)
    assert lowered.delegation_report().share == 1
    others = [(torch.randn(n, 4, h, w),) for n, h, w in ((5, 20, 20), (1, 4, 6), (3, 9, 7))]
    compare(module, lowered, [(IMAGE,), *others])


def test_parts_of_tensors_whose_sizes_vary() -> None:
    def f(x: Any) -> Any:
        first, second = (x * 2).chunk(2, 2)
        return x[:, :, 1:3] * 2, first + second, x[:, :, 1] * 2

    shapes = ({0: Dim("batch", max=5), 1: Dim("length", max=9)},)
    lowered = lower(f, (torch.randn(2, 3, 4),), shapes)
    left = {each.node: each.reasons for each in lowered.delegation_report().undelegated}
    assert left == {"select": ("XNNPACK reshapes to at most one size that varies, not 2",)}
    compare(f, lowered, [(torch.randn(n, m, 4),) for n, m in ((2, 3), (5, 9), (1, 4))])


def test_layers_see_through_views_whose_sizes_vary() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4), nn.LayerNorm(4))
    shapes = ({0: Dim("batch", max=5), 1: Dim("length", max=9)},)
    lowered = lower(module, (torch.randn(2, 3, 4),), shapes)
    report = lowered.delegation_report()
    assert report.share == 1, str(report)
    compare(module, lowered, [(torch.randn(n, m, 4),) for n, m in ((2, 3), (5, 9), (1, 4))])


def test_a_view_of_layers_in_two_parts() -> None:
    class Parallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.first, self.second = nn.LayerNorm(4), nn.Linear(4, 6), nn.Linear(4, 6)

        def forward(self, x: Any) -> Any:
            x = self.norm(x)
            return torch.erf(self.first(x)) * self.second(x)  # the second can be computed later

    module = Parallel()
    shapes = ({0: Dim("batch", max=5), 1: Dim("length", max=9)},)
    lowered = lower(module, (torch.randn(2, 3, 4),), shapes)
    compare(module, lowered, [(torch.randn(n, m, 4),) for n, m in ((2, 3), (5, 9), (1, 4))])


def test_parts_of_a_length_that_varies_stay() -> None:
    table = torch.randn(9, 4)
    shapes = ({0: Dim("length", max=9)},)

    def f(x: Any) -> Any:
        return x * table[: x.shape[0]]

    lowered = lower(f, (torch.randn(3, 4),), shapes)
    (left,) = lowered.delegation_report().undelegated
    assert left.reasons == ("XNNPACK slices no dimension whose size varies",)
    compare(f, lowered, [(torch.randn(n, 4),) for n in (3, 9, 1)])


def test_sizes_without_a_bound_stay() -> None:
    lowered = lower(lambda x: x * 2, (ROWS,), ({0: Dim("rows")},))
    (left,) = lowered.delegation_report().undelegated
    assert left.reasons == ("the size rows has no upper bound",)


def test_a_factor_that_is_a_size_stays() -> None:
    def f(x: Any) -> Any:
        return torch.add(x, torch.ones(5), alpha=x.shape[0])

    lowered = lower(f, (ROWS,), ({0: Dim("rows", max=8)},))
    reasons = [r for each in lowered.delegation_report().undelegated for r in each.reasons]
    assert "XNNPACK adds and subtracts no multiple (alpha=sym_size)" in reasons
    compare(f, lowered, [(ROWS,), (torch.randn(7, 5),)])


def test_numbers_beyond_float32_stay() -> None:
    lowered = lower(lambda x: F.leaky_relu(x, 1e40), (ROWS,))
    (left,) = lowered.delegation_report().undelegated
    assert left.reasons == ("XNNPACK computes in float32, which has no 1e+40",)


def test_weights_without_data_are_refused() -> None:
    module = nn.Linear(5, 4, device="meta")
    edge = lostwax.export(module, (ROWS.to("meta"),)).to_edge()
    with pytest.raises(LoweringError, match="the state 'weight' has no data"):
        edge.to_backend(XnnpackPartitioner())


def test_methods_share_weights() -> None:
    layer = nn.Linear(50, 50)
    one = lostwax.export(layer, (torch.ones(2, 50),))
    other = lostwax.export(nn.Sequential(layer, nn.ReLU()), (torch.ones(3, 50),))
    lowered = lostwax.to_edge_transform_and_lower(
        {"forward": one, "other": other}, partitioner=XnnpackPartitioner()
    )
    executable = lowered.to_executable()
    assert len(executable.buffer) < 1.5 * 50 * 50 * 4
    loaded = lostwax.pte.load_runtime(executable.buffer)
    x = torch.randn(3, 50)
    torch.testing.assert_close(loaded.run([x], method="other"), [layer(x).relu()])
    torch.testing.assert_close(loaded.run([x[:2]]), [layer(x[:2])])


def test_a_weight_that_others_read_too_is_there_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(100, 32)

        def forward(self, x: Any) -> Any:
            return F.linear(self.table(x) * 2, self.table.weight)

    module, x = Tied(), torch.tensor([[3, 99, 0]])
    lowered = lower(module, (x,))
    (left,) = lowered.delegation_report().undelegated
    assert left.node == "embedding"
    buffer = lowered.to_executable().buffer
    assert len(buffer) < 1.5 * 100 * 32 * 4
    text = lostwax.pte.dump(buffer)
    assert int(text.split(" of them")[0].split()[-1].replace(",", "")) < len(buffer)
    compare(module, lowered, [(x,), (x + 0,)])


def test_state_stays_outside_and_is_kept() -> None:
    class Total(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3, 5))

        def forward(self, x: Any) -> Any:
            self.total.add_(torch.relu(x))
            return self.total * 2

    module = Total()
    lowered = lower(module, (ROWS,))
    assert lowered.delegation_report().share == 1
    loaded = lostwax.pte.load_runtime(lowered.to_executable().buffer)
    for _ in range(3):
        torch.testing.assert_close(loaded.run([ROWS]), [module(ROWS)])


def test_the_checker_compares_delegates() -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.Softmax(-1)).eval()
    executable = lower(module, (ROWS,)).to_executable()
    lostwax.check(executable, module).raise_on_difference()


def test_a_backend_that_the_runtime_has_not() -> None:
    edge = lostwax.export(torch.relu, (torch.ones(3),)).to_edge().to_backend(make_partitioner())
    with pytest.raises(LoadError, match="needs the backend 'SimulatedBackend', and this runtime"):
        lostwax.pte.run(edge.to_executable().buffer, [torch.ones(3)])


@pytest.mark.parametrize("least", [0, 1])
def test_a_batch_that_may_be_empty_is_told_of(least: int, recwarn: pytest.WarningsRecorder) -> None:
    """XNNPACK leaves the sizes of a convolution's result unset then: the call fails."""
    batch = Dim("batch", min=least, max=4)
    lower(nn.Sequential(nn.Conv2d(4, 2, 3), nn.ReLU()), (IMAGE,), dynamic_shapes=({0: batch},))
    told = [str(each.message) for each in recwarn if "XNNPACK" in str(each.message)]
    assert len(told) == (least == 0)
    for text in told:
        assert "do not run on an empty batch, and batch may be 0" in text
        assert "Conv2d" in text
        assert "Dim(..., min=1)" in text
