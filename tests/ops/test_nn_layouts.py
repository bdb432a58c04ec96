"""Layouts of neural-network operators against eager: channels-last, permuted, sliced, degenerate.

op_db's samples are row-major almost everywhere; the other layouts are checked here, static and
symbolic.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lostwax.ops.registry import operator
from tests.ops.shadow import Shadow, type_of

aten = torch.ops.aten


def images(*size: int) -> Iterator[Tensor]:
    """One image tensor in every layout a user meets."""
    x = torch.rand(*size)
    yield x
    yield x.contiguous(
        memory_format=torch.channels_last if len(size) == 4 else torch.channels_last_3d
    )
    yield x.transpose(-1, -2).contiguous().transpose(-1, -2)
    yield torch.rand(*size[:-1], size[-1] * 2)[..., ::2]
    yield torch.rand(size[1], size[0], *size[2:]).transpose(0, 1)


def all_images(sizes: list[tuple[int, ...]]) -> list[Tensor]:
    return [x for size in sizes for x in images(*size)]


def with_gradient(f: Callable[..., Any], *tensors: Tensor) -> None:
    leaves = [t.detach().requires_grad_() for t in tensors]
    out = f(*leaves)
    out = out[0] if isinstance(out, tuple) else out
    out.backward(torch.ones_like(out))


def agree(calls: Iterator[Callable[[], Any]] | list[Callable[[], Any]], least: int) -> None:
    """Each call gives under eager what the rules say, and at least so many rules were asked."""
    asked = 0
    for call in calls:
        for symbolic in (False, True):
            with Shadow(symbolic) as shadow:
                call()
            assert not shadow.wrong, "\n".join(shadow.wrong[:5])
            asked += sum(shadow.checked.values())
    assert asked >= least


IMAGES = [(2, 4, 8, 9), (1, 1, 8, 9), (3, 4, 6, 6), (2, 1, 5, 5), (1, 4, 7, 7)]
VOLUMES = [(2, 4, 5, 6, 7), (1, 1, 5, 5, 5), (1, 4, 4, 4, 4)]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kernel", [1, 3])
def test_convolution_2d_takes_the_format_of_input_or_weight(transposed: bool, kernel: int) -> None:
    convolve = F.conv_transpose2d if transposed else F.conv2d

    def calls() -> Iterator[Callable[[], Any]]:
        for x in all_images([(2, 4, 5, 6), (1, 1, 5, 5), (1, 4, 4, 4)]):
            c = x.shape[1]
            weights = images(*((c, 4) if transposed else (4, c)), kernel, kernel)
            for w in itertools.islice(weights, 3):
                yield lambda x=x, w=w: with_gradient(convolve, x, w)

    agree(calls(), 200)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_convolution_3d_is_channels_last_where_onednn_runs_it(dtype: torch.dtype) -> None:
    def calls() -> Iterator[Callable[[], Any]]:
        for x in all_images([*VOLUMES, (1, 8, 16, 16, 16)]):
            for w in itertools.islice(images(4, x.shape[1], 3, 3, 3), 2):
                yield lambda x=x, w=w: F.conv3d(x.to(dtype), w.to(dtype))

    agree(calls(), 40)


def test_convolution_1d_is_channels_last_only_by_its_weight() -> None:
    signals = torch.rand(2, 4, 9), torch.rand(2, 9, 4).transpose(1, 2)
    weights = torch.rand(6, 4, 3), torch.rand(6, 3, 4).transpose(1, 2)
    pairs = itertools.product(signals, weights)
    agree([lambda x=x, w=w: with_gradient(F.conv1d, x, w) for x, w in pairs], 16)
    single = torch.rand(2, 9, 1).transpose(1, 2)  # its strides, though row-major, say otherwise
    with Shadow() as shadow:
        F.conv1d(single, torch.rand(6, 1, 3))
    assert not shadow.wrong


POOLS_2D: list[Callable[[Tensor], Any]] = [
    lambda x: F.max_pool2d(x, 2),
    lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    lambda x: F.max_pool2d(x, 2, 3, 1, ceil_mode=True),
    lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    lambda x: F.adaptive_avg_pool2d(x, (2, 3)),
    lambda x: F.adaptive_max_pool2d(x, (2, 3)),
    lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
    lambda x: F.interpolate(x, size=(3, 7), mode="nearest-exact"),
    lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"),
    lambda x: F.interpolate(x, size=(4, 4), mode="bicubic", antialias=True),
    lambda x: F.interpolate(x, size=(4, 4), mode="bilinear", antialias=True),
    lambda x: F.interpolate(x, size=(4, 4), mode="bicubic"),
    lambda x: F.unfold(x, 2, padding=1),
    lambda x: F.grid_sample(x, torch.zeros(x.shape[0], 3, 3, 2), align_corners=False),
    lambda x: F.batch_norm(x, None, None, training=True),
    lambda x: F.instance_norm(x),
    lambda x: F.layer_norm(x, x.shape[-2:]),
    lambda x: F.group_norm(x, 1),
    lambda x: F.rms_norm(x, x.shape[-1:]),
]


@pytest.mark.parametrize("index", range(len(POOLS_2D)))
def test_image_operators_keep_the_memory_format(index: int) -> None:
    f = POOLS_2D[index]
    agree([lambda x=x: with_gradient(f, x) for x in all_images(IMAGES)], 50)


POOLS_3D: list[Callable[[Tensor], Any]] = [
    lambda x: F.max_pool3d(x, 2),
    lambda x: F.avg_pool3d(x, 2),
    lambda x: F.adaptive_avg_pool3d(x, 2),
    lambda x: F.adaptive_max_pool3d(x, 2),
    lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
    lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"),
    lambda x: F.batch_norm(x, torch.zeros(x.shape[1]), torch.ones(x.shape[1])),
    lambda x: F.group_norm(x, 1),
]


@pytest.mark.parametrize("index", range(len(POOLS_3D)))
def test_volume_operators(index: int) -> None:
    f = POOLS_3D[index]
    agree([lambda x=x: with_gradient(f, x) for x in all_images(VOLUMES)], 30)


def test_unbatched_pooling() -> None:
    flat = torch.rand(8, 8, 3).permute(2, 0, 1)
    solid = torch.rand(6, 6, 6, 3).permute(3, 0, 1, 2)
    agree([lambda: with_gradient(lambda x: F.max_pool2d(x, 2), flat)], 4)
    agree([lambda: with_gradient(lambda x: F.max_pool3d(x, 2), solid)], 4)
    agree([lambda: with_gradient(lambda x: F.avg_pool2d(x, 2), flat)], 4)


def test_shuffles_keep_the_memory_format() -> None:
    calls: list[Callable[[], Any]] = []
    for x in all_images([(2, 8, 4, 4), (1, 4, 2, 2)]):
        calls += [lambda x=x: F.pixel_shuffle(x, 2), lambda x=x: F.pixel_unshuffle(x, 2)]
        calls += [lambda x=x: F.channel_shuffle(x, 2)]
    agree(calls, 60)


def heads() -> list[Tensor]:
    qkv = torch.rand(2, 5, 3, 4, 8)
    return [
        torch.rand(2, 4, 5, 8),
        torch.rand(2, 5, 4, 8).transpose(1, 2),
        qkv[:, :, 0].transpose(1, 2),
        torch.rand(2, 4, 8, 5).transpose(-1, -2),
        torch.rand(1, 4, 5, 8).expand(2, 4, 5, 8),
        torch.rand(5, 4, 2, 8).permute(2, 1, 0, 3),
    ]


@pytest.mark.parametrize("masked", [False, True])
def test_attention_keeps_the_layout_of_the_query(masked: bool) -> None:
    mask = torch.rand(5, 5) if masked else None

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask)

    calls = [
        lambda q=q, k=k: with_gradient(attend, q, k, k)
        for q, k in itertools.product(heads(), heads())
    ]
    agree(calls, 200)


def test_the_choice_of_the_attention_kernel_is_eager_s() -> None:
    q, k = torch.rand(2, 3, 5, 8), torch.rand(2, 3, 7, 8)
    masks = [None, torch.rand(5, 7), torch.rand(1, 7), torch.rand(2, 1, 5, 7), torch.rand(3, 5, 7)]
    others: list[tuple[Any, ...]] = [(k, k, m) for m in masks]
    others += [(k, k, None, 0.5), (k, torch.rand(2, 3, 7, 4)), (torch.rand(1, 3, 7, 8), k)]
    others += [(k.mT.contiguous().mT, k), (k[:, :1], k[:, :1]), (k[:, :, :0], k[:, :, :0])]
    rule = operator(aten._fused_sdp_choice.default).rule
    assert rule is not None
    for key, value, *rest in others:
        types = [type_of(t) if isinstance(t, Tensor) else t for t in (q, key, value, *rest)]
        want = aten._fused_sdp_choice(q, key, value, *rest)
        assert rule(*types) == want, types


def matrices() -> list[Tensor]:
    return [torch.rand(2, 4, 4), torch.rand(2, 4, 4).mT, torch.rand(4, 2, 4).transpose(0, 1)]


def test_lapack_results_are_column_major() -> None:
    calls: list[Callable[[], Any]] = []
    for a in matrices():
        spd = a @ a.mT + torch.eye(4)
        calls += [
            lambda a=a: torch.linalg.svd(a, full_matrices=False),
            lambda a=a: torch.linalg.qr(a),
            lambda a=a: torch.linalg.inv(a),
            lambda a=a: torch.linalg.solve(a, torch.ones(2, 4)),
            lambda a=a: torch.linalg.solve(a, torch.ones(2, 3, 4), left=False),
            lambda a=spd: torch.linalg.cholesky(a),
            lambda a=spd: torch.linalg.eigh(a),
            lambda a=a: torch.linalg.lstsq(a[..., :3], torch.ones(2, 4, 2)),
        ]
    agree(calls, 40)


@pytest.mark.parametrize("dims", [(0,), (1,), (0, 2), (2, 1), (0, 1, 2)])
def test_fourier_transforms_put_their_dimensions_innermost(dims: tuple[int, ...]) -> None:
    calls: list[Callable[[], Any]] = []
    for order in itertools.permutations(range(3)):
        x = torch.rand(4, 5, 6).permute(order)
        z = torch.rand(4, 5, 6, dtype=torch.complex64).permute(order)
        calls += [lambda z=z: torch.fft.fftn(z, dim=dims), lambda x=x: torch.fft.rfftn(x, dim=dims)]
        calls += [lambda z=z: torch.fft.irfftn(z, dim=dims)]
    agree(calls, 30)


def test_products_are_row_major() -> None:
    a, b = torch.rand(4, 5), torch.rand(5, 6)
    turned = torch.rand(5, 4).t(), torch.rand(6, 5).t()
    c, d = torch.rand(2, 4, 5), torch.rand(2, 5, 6)
    agree(
        [
            lambda: turned[0] @ turned[1],
            lambda: torch.addmm(torch.rand(6, 4).t(), a, b),
            lambda: torch.baddbmm(torch.rand(2, 6, 4).mT, c, d),
            lambda: torch.addr(torch.rand(6, 4).t(), a[:, 0], b[0]),
            lambda: torch.mv(turned[0], b[:, 0]),
            lambda: torch.cdist(turned[0], torch.rand(5, 7).t()),
        ],
        12,
    )
