"""Layouts and types on CUDA that are not those of the CPU, on fakes: the driver need not be there.

What is expected was seen on a GPU (H200, torch 2.11); `tests/gpu` and `tests.ops.report --device
cuda` compare with one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from lostwax.capture import export
from lostwax.errors import CaptureError
from lostwax.fake import FakeTensorMode
from lostwax.sym import ShapeEnv
from tests.capture.small import Of


def on_cuda(function: Callable[..., Any], *sizes: tuple[int, ...], dtype: Any = None) -> Any:
    with FakeTensorMode(shape_env=ShapeEnv()):
        return function(*(torch.empty(s, device="cuda", dtype=dtype) for s in sizes))


SPECTRA: list[tuple[Callable[..., Tensor], dict[str, Any], tuple[int, ...]]] = [
    (torch.fft.fft, {"dim": -3}, (1, 35, 5)),
    (torch.fft.fft, {"n": 10, "dim": 1}, (70, 1, 10)),
    (torch.fft.fftn, {}, (42, 7, 1)),
    (torch.fft.rfftn, {}, (6, 1, 30)),
    (torch.fft.rfftn, {"dim": -2}, (28, 1, 4)),
    (torch.fft.ihfft2, {"s": (6, 8)}, (30, 1, 6)),
    (torch.fft.ihfft2, {"dim": (0, -1)}, (1, 20, 5)),
    (torch.fft.hfft, {"dim": -3}, (1, 56, 8)),
    (torch.fft.irfftn, {"dim": (0, -1)}, (12, 60, 1)),
]


@pytest.mark.parametrize(("function", "options", "stride"), SPECTRA)
def test_fourier_transforms(function: Any, options: Any, stride: Any) -> None:
    assert on_cuda(lambda x: function(x, **options), (5, 6, 7)).stride() == stride


def test_unique_slices_are_row_major() -> None:
    assert on_cuda(lambda x: torch.unique(x, dim=1), (5, 1, 5)).stride()[-1] == 1


def test_max_unpool_is_row_major() -> None:
    def unpooled(x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        return F.max_unpool2d(x, x.long(), 3, stride=2, output_size=(1, 2, 3, 6))

    assert on_cuda(unpooled, (1, 2, 1, 3)).stride() == (36, 18, 6, 1)


def test_decompositions_of_matrices() -> None:
    u, _, vh = on_cuda(torch.linalg.svd, (4, 3))
    assert (u.stride(), vh.stride()) == ((1, 4), (3, 1))
    assert on_cuda(torch.linalg.eig, (5, 5))[1].stride() == (5, 1)
    p, _, _ = on_cuda(lambda x: torch.linalg.lu(x, pivot=False), (3, 3, 5))
    assert p.shape == (0,)


def test_nonzero_static_is_laid_out_as_nonzero() -> None:
    assert on_cuda(lambda x: torch.nonzero_static(x, size=4), (3, 5)).stride() == (1, 4)
    assert on_cuda(lambda x: torch.nonzero_static(x, size=3), ()).stride() == (1, 3)


def test_histograms_of_integers() -> None:
    assert on_cuda(torch.histc, (7,), dtype=torch.int64).dtype is torch.int64
    with pytest.raises(NotImplementedError):
        torch.histc(torch.ones(7, dtype=torch.int64))  # not so on the CPU


def test_batch_norm_keeps_statistics_in_evaluation_too() -> None:
    def norm(x: Tensor, *rest: Tensor) -> Any:
        return torch.native_batch_norm(x, *rest, False, 0.5, 1e-5)

    saved = on_cuda(norm, (2, 3), (3,), (3,), (3,), (3,))[1]
    assert saved.shape == (3,)


def test_seeds_of_attention_are_on_the_cpu() -> None:
    def attention(x: Tensor) -> Any:
        op = torch.ops.aten._efficient_attention_forward
        return op(x, x, x, None, None, None, None, None, 0.0, 0, True)

    out, sums, seed, offset, *_ = on_cuda(attention, (2, 16, 4, 8))
    assert (out.shape, sums.shape) == ((2, 16, 4, 8), (2, 4, 32))
    assert seed.device.type == offset.device.type == "cpu"


def test_indexing_with_a_list_and_with_a_tensor_on_the_cpu() -> None:
    assert on_cuda(lambda x: x[[1, 2]], (5, 4)).shape == (2, 4)
    assert on_cuda(lambda x: x[torch.tensor([0, 3])], (5, 4)).device.type == "cuda"


ATTENTION: list[tuple[torch.dtype, SDPBackend | None, tuple[int, ...]]] = [
    (torch.float32, None, (2048, 32, 128, 1)),
    (torch.bfloat16, None, (2048, 512, 32, 1)),
    (torch.float16, None, (2048, 512, 32, 1)),
    (torch.float32, SDPBackend.EFFICIENT_ATTENTION, (2048, 32, 128, 1)),
    (torch.float32, SDPBackend.MATH, (2048, 512, 32, 1)),
]


@pytest.mark.parametrize(("dtype", "backend", "stride"), ATTENTION)
def test_attention(dtype: torch.dtype, backend: SDPBackend | None, stride: Any) -> None:
    def attend(x: Tensor) -> Tensor:
        if backend is None:
            return F.scaled_dot_product_attention(x, x, x)
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(x, x, x)

    assert on_cuda(attend, (2, 4, 16, 32), dtype=dtype).stride() == stride
    with FakeTensorMode():
        x = torch.empty(2, 4, 16, 32, device="cuda", dtype=dtype)
    program = export(Of(lambda self, x: attend(x)), (x,))
    (output,) = program.graph.find_nodes(op="output")
    assert output.args[0][0].meta["val"].stride() == stride


def test_recurrent_layers() -> None:
    with FakeTensorMode():
        layer = torch.nn.LSTM(4, 5, device="cuda")
        x = torch.empty(3, 2, 4, device="cuda")
    layer.flatten_parameters()
    program = export(layer, (x,))
    assert {n.meta["val"].device.type for n in program.graph.nodes if n.op == "placeholder"} == {
        "cuda"
    }


def test_ctc_loss_with_lengths_on_the_cpu() -> None:
    def loss(x: Tensor, made: Callable[[Any], Any]) -> Tensor:
        targets = torch.ones(2, 4, dtype=torch.int32)
        return F.ctc_loss(x, targets, made((9, 9)), made((4, 4)), reduction="mean")

    for made in (tuple, torch.tensor):
        found = on_cuda(lambda x, made=made: loss(x, made), (9, 2, 5))
        assert (found.shape, found.device.type) == ((), "cuda")


def test_functions_of_the_jiterator_are_refused() -> None:
    function = torch.cuda.jiterator._create_jit_fn("template <typename T> T f(T x) { return x; }")
    with pytest.raises(CaptureError, match=r"jiterator[\s\S]*test_cuda_layouts.py[\s\S]*instead"):
        export(Of(lambda self, x: function(x)), (torch.ones(3),))
