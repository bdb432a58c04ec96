"""Operators that the runtime has no kernels for: computed by others, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

import lostwax
from lostwax import Dim, EdgeConfig
from lostwax.errors import LoweringError
from tests.pte.runtime import Runtime, assert_close

NAN, INF = float("nan"), float("inf")


def lower(function: Any, *inputs: Any, shapes: Any = None, **options: Any) -> bytes:
    program = lostwax.export(function, inputs, dynamic_shapes=shapes)
    buffer: bytes = program.to_edge(**options).to_executable().buffer
    return buffer


def assert_same(function: Any, *inputs: Any) -> None:
    """Every element is eager's, bit for bit, and in the second call, too."""
    runtime = Runtime(lower(function, *inputs))
    for _ in range(2):
        for ours, eager in zip(runtime(*inputs), tree_leaves(function(*inputs)), strict=True):
            torch.testing.assert_close(ours, eager, rtol=0, atol=0, equal_nan=True)


def make_ties() -> torch.Tensor:
    x = torch.randint(0, 4, (5, 40)).float()
    x[0, 3] = x[0, 9] = x[2, 0] = NAN
    x[1, 2] = x[1, 8] = INF
    return x


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_sorting_keeps_the_order_of_equals(dim: int, descending: bool) -> None:
    options: Any = {"dim": dim, "descending": descending, "stable": True}
    assert_same(lambda x: torch.sort(x, **options), make_ties())
    assert_same(lambda x: torch.sort(x > 1, **options), make_ties())
    assert_same(lambda x: torch.argsort(x.to(torch.int32), **options), make_ties().nan_to_num(9, 8))


def test_sorting_a_size_that_varies() -> None:
    def compute(x: Any) -> Any:
        return torch.sort(x, dim=0, stable=True)

    x = torch.randint(0, 3, (5, 4))
    runtime = Runtime(lower(compute, x, shapes=({0: Dim("n", max=9)},)))
    for n in (5, 9, 1):
        x = torch.randint(0, 3, (n, 4))
        assert_close(runtime(x), compute(x))


@pytest.mark.parametrize(("low", "high", "bins"), [(0, 3, 4), (0.1, 0.3, 7), (-1, 2.5, 10)])
def test_a_histogram_counts_as_eager(low: float, high: float, bins: int) -> None:
    edges = torch.linspace(low, high, bins + 1)
    x = torch.cat([torch.randn(300), edges, torch.tensor([NAN, INF, -INF])])
    assert_same(lambda x: torch.histc(x, bins, low, high), x)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_scattering_reduces_as_eager(reduce: Any, include_self: bool) -> None:
    def compute(x: Any, index: Any, source: Any) -> Any:
        return x.scatter_reduce(0, index, source, reduce, include_self=include_self)

    x, index, source = torch.randn(4, 6), torch.randint(0, 4, (7, 5)), torch.randn(8, 6)
    source[2, 2] = NAN
    assert_close(
        Runtime(lower(compute, x, index, source))(x, index, source), [compute(x, index, source)]
    )
    if reduce != "mean":
        assert_same(compute, (9 * x).long(), index, (9 * source.nan_to_num()).int().long())


@pytest.mark.parametrize(
    ("kernel", "dilation", "padding", "stride"),
    [((2, 3), 1, (0, 1), (1, 2)), (3, (2, 1), 1, 1), (2, 1, 0, 2)],
)
def test_windows_are_folded(kernel: Any, dilation: Any, padding: Any, stride: Any) -> None:
    columns = F.unfold(torch.randn(2, 3, 8, 9), kernel, dilation, padding, stride)

    def compute(x: Any) -> Any:
        return F.fold(x, (8, 9), kernel, dilation, padding, stride)

    for x in (columns, columns[0].clone()):
        assert_close(Runtime(lower(compute, x))(x), [compute(x)])


CONVOLUTIONS: list[Callable[[], nn.Module]] = [
    lambda: nn.ConvTranspose3d(4, 6, 3, 2, 1, 1),
    lambda: nn.ConvTranspose3d(4, 6, (2, 1, 3), (1, 2, 3), groups=2, dilation=(1, 2, 2)),
    lambda: nn.ConvTranspose3d(4, 6, 2, 1, 1, bias=False),
    lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 2, 2), nn.BatchNorm2d(6)),
    lambda: nn.ConvTranspose2d(4, 6, (3, 1), (1, 3), (2, 0), (0, 2), groups=2),
    lambda: nn.ConvTranspose1d(4, 6, 5, 3, 4, 1, dilation=2),
]


@pytest.mark.parametrize("make", CONVOLUTIONS)
def test_a_transposed_convolution(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module = make().eval()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_var.uniform_(0.5, 2)
            part.weight.data.normal_()
    rank = next(p for p in module.parameters()).ndim - 2
    shapes = ({0: Dim("n", min=1, max=3), 2: Dim("m", min=3, max=6)},)
    x = torch.randn(2, 4, *(4, 5, 3)[:rank])
    fixed, varied = (Runtime(lower(module, x, shapes=s)) for s in (None, shapes))
    assert_close(fixed(x), [module(x)])
    for n, m in ((2, 4), (3, 6), (1, 3)):
        x = torch.randn(n, 4, m, *(5, 3)[: rank - 1])
        assert_close(varied(x), [module(x)])


def test_a_transposed_convolution_by_a_weight_that_is_given() -> None:
    x, w = torch.randn(2, 4, 3, 4, 5), torch.randn(4, 3, 3, 2, 2)

    def compute(x: Any, w: Any) -> Any:
        return F.conv_transpose3d(x, w, stride=2, groups=2)

    assert_close(Runtime(lower(compute, x, w))(x, w), [compute(x, w)])


def test_half_a_spectrum() -> None:
    x = torch.randn(3, 8)

    def compute(x: Any) -> Any:
        return torch.view_as_real(torch.fft.rfft(x)), torch.fft.irfft(torch.fft.rfft(x))

    assert_close(Runtime(lower(compute, x))(x), compute(x))


def test_a_product_by_groups_of_rows() -> None:
    x, w = torch.randn(6, 8), torch.randn(3, 8, 4)

    def compute(x: Any, w: Any, ends: Any) -> Any:
        return torch._grouped_mm(x, w, ends)

    runtime = Runtime(lower(compute, x, w, torch.tensor([2, 2, 6], dtype=torch.int32)))
    for ends in ([2, 2, 6], [0, 5, 6], [6, 6, 6]):
        given = x, w, torch.tensor(ends, dtype=torch.int32)
        assert_close(runtime(*given), [compute(*given)])


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


def test_a_custom_backward_is_left_out() -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return Scaled.apply(self.linear(x)) + 1

    module, x = Module(), torch.randn(2, 4)
    assert_close(Runtime(lower(module, x))(x), [module(x)])


def test_a_number_of_sizes_is_an_operand() -> None:
    def compute(x: Any) -> Any:
        return torch.roll(x, 1, 0), x.long() % x.shape[0]

    runtime = Runtime(lower(compute, torch.randn(5, 3), shapes=({0: Dim("n", min=1, max=9)},)))
    for n in (5, 9, 1):
        x = 9 * torch.randn(n, 3)
        assert_close(runtime(x), compute(x))


def _product(x: Any) -> Any:
    return x.scatter_reduce(0, x.long(), x, "prod")


REFUSED = {
    "histc": (lambda x: torch.histc(x, 5), "with a range of fixed numbers"),
    "scatter_reduce": (_product, "a sum of logarithms"),
    "_fft_c2c": (lambda x: torch.fft.fftn(x.view(2, 3)).real, "matrices of cosines and sines"),
    "torch.fft.fft": (lambda x: torch.fft.fft(x).real, "torch.fft.rfft"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_computed_is_refused(name: str) -> None:
    function, instead = REFUSED[name]
    with pytest.raises(LoweringError) as error:
        lower(function, torch.rand(6))
    message = str(error.value)
    assert name in message.splitlines()[0]
    assert "test_missing_kernels.py" in message
    assert instead in message


def test_a_user_says_how_an_operator_is_computed() -> None:
    @torch.library.custom_op("lostwax_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    x = torch.randn(3)
    with pytest.raises(LoweringError, match=r"EdgeConfig\(decompositions="):
        lower(lambda x: twice(x), x)
    overload = torch.ops.lostwax_tests.twice.default
    config = EdgeConfig(decompositions={overload: lambda x: x + x})
    assert_close(Runtime(lower(lambda x: twice(x), x, config=config))(x), [x * 2])


def test_what_is_preserved_is_not_taken_apart() -> None:
    program = lostwax.export(lambda x: x.sort()[1], (torch.randn(4),))
    kept = EdgeConfig(preserve_ops=(torch.ops.aten.sort.default,))
    names = [str(n.target) for n in program.to_edge(config=kept).exported_program().graph.nodes]
    assert "edge.aten.sort.default" in names
