"""Small programs of what differs between ONNX and torch: each a function and its arguments, a line
each. In `SIZED` the first size of the argument varies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

nan, inf = float("nan"), float("inf")
F32 = torch.tensor([-7.5, -1.0, -0.3, 0.0, 0.3, 1.0, 2.5, 7.5])
I64 = torch.tensor([-7, -2, -1, 0, 1, 2, 3, 7])
BY = torch.tensor([2, -3, 4, 5, -1, 3, -2, 2])
ODD = torch.tensor([nan, inf, -inf, 0.0, 1.0, -1.0])
X = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
IMAGE = torch.randn(2, 4, 9, 7, generator=torch.Generator().manual_seed(1))


def _write(x: Tensor) -> Tensor:
    x[x > 0] = 7.0
    x[:, 1] = 0
    x[..., 1:3] *= 2
    x[0, :, -1] += 1
    return x


Case = tuple[Callable[..., Any], tuple[Any, ...]]
CASES: dict[str, Case] = {
    # quotients and powers
    "floor division of integers": (lambda x, y: x // y, (I64, BY)),
    "truncated division": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), (I64, BY)),
    "remainder of integers": (lambda x, y: (x % y, torch.fmod(x, y)), (I64, BY)),
    "floor division of floats": (lambda x: (x // 0.1, x // -2.5, 1.0 // (x + 9)), (F32,)),
    "floor division by zero": (lambda x, y: x // y, (F32, torch.zeros(8))),
    "remainder of floats": (lambda x: (x % 3.0, x % -3.0, torch.fmod(x, -3.0)), (F32,)),
    "true division of integers": (lambda x, y: x / y, (I64, BY)),
    "powers of integers": (lambda x: (x**2, x**3, x**5, 2 ** x.abs()), (I64,)),
    "large powers": (lambda x: x**13, (torch.tensor([11, -13, 3]),)),
    "powers of floats": (lambda x: (x**2, x**0.5, x**-1, x**-0.5, x**3, x**2.5), (F32.abs() + 0.1,)),
    "shifts": (lambda x: (x << 2, x >> 1, x & 3, x | 4, x ^ 5, ~x), (I64,)),
    # dtypes
    "promotion": (lambda x, y: (x + y, x * 2.5, y * 2.5, y + True), (F32, I64)),
    "narrow integers": (lambda x, y: (x + y, x * y, x.sum(), x.max(), x < y), (I64.to(torch.int8), BY.to(torch.int8))),
    "wrapping": (lambda x: x * 100, (I64.to(torch.int8),)),
    "bytes": (lambda x: (x - 250, -x, x.float() / 3), (torch.tensor([1, 2, 255], dtype=torch.uint8),)),
    "truths": (lambda x, y: (x & y, x | y, x ^ y, ~x, x + y, x * y, x < y, x == y, x.sum(), x.any(), x.all()), (F32 > 0, I64 > 1)),
    "doubles": (lambda x: (x.sin(), x.exp(), x.sum(), x.mean(), x @ x), (F32.double(),)),
    "half": (lambda x: (x * 2, x.softmax(0), x.relu()), (F32.half(),)),
    "sums of half precision": (lambda x, i: (x.index_add(0, i, x[:3]), x.scatter_add(0, i, x), x[0].gather(0, i * 0)), (F32.half(), torch.tensor([0, 2, 2]))),
    "casts": (lambda x: (x.int(), x.bool(), x.to(torch.int8), x.double()), (F32,)),
    # odd numbers
    "signs": (lambda x: (x.sign(), x.isnan(), x.isinf(), x.isfinite(), x.relu(), x.abs()), (ODD,)),
    "extrema of odd numbers": (lambda x: (x.clamp(-1, 1)[1:], torch.maximum(x, x.flip(0))[1:5]), (ODD,)),
    "small logarithms": (lambda x: (x.log1p(), x.expm1()), (torch.tensor([1e-8, -1e-8, 0.5, -0.5, 3.0, 0.0, inf]),)),
    "angles": (lambda y, x: torch.atan2(y, x), (torch.tensor([1.0, -1, 0, 0, 0, 2]), torch.tensor([0.0, 0, 1, -1, 0, -3]))),
    "rounding": (lambda x: (x.round(), x.floor(), x.ceil(), x.trunc(), x.frac()), (F32,)),
    "rounding integers": (lambda x: (x.round(), x.floor(), x.trunc()), (I64,)),
    # reductions
    "reductions": (lambda x: (x.sum(), x.sum(-1), x.mean((0, 2)), x.amax(1, keepdim=True), x.prod(1), x.logsumexp(-1)), (X,)),
    "variances": (lambda x: (x.var(), x.std(-1), x.var((0, 1), correction=0, keepdim=True), torch.var_mean(x, 1)), (X,)),
    "norms": (lambda x: (x.norm(), x.norm(p=1, dim=-1), torch.linalg.vector_norm(x, inf, dim=1), torch.linalg.vector_norm(x, 3, dim=(0, 1))), (X,)),
    "arguments": (lambda x: (x.argmax(), x.argmax(-1), x.argmin(1, keepdim=True), x.max(-1), x.min(0, keepdim=True)), (X,)),
    "scans": (lambda x: (x.cumsum(-1), x.cumsum(0), (x > 0).cumsum(1)), (X,)),
    "sums of logarithms": (lambda x: (x.logcumsumexp(1), x.logcumsumexp(0), x[0, 0].logcumsumexp(0)), (torch.tensor([[1.0, -200, 300, -inf, 2], [-inf, -inf, 5, inf, 1]]),)),
    "largest so far": (lambda x: (x.cummax(1), x.cummin(0), x[0].cummax(0)), (torch.tensor([[1.0, 3, 3, 2, 5], [nan, 1, -1, 7, 2]]),)),
    "largest so far of integers": (lambda x: (x.cummax(0), x.cummin(0)), (BY,)),
    "determinants": (lambda x: torch.linalg.det(x), (torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(5)),)),
    "signs of zeros": (lambda x: (x.signbit(), torch.copysign(torch.ones(4), x)), (torch.tensor([0.0, -0.0, -3.0, 2.0]),)),
    "places in a number": (lambda x: (x.nonzero(), torch.zeros(3).nonzero()), (torch.tensor(2.0),)),
    "common divisors": (lambda x, y: (torch.gcd(x, y), torch.lcm(x, y[:1])), (I64 * 6, BY)),
    "without dims": (lambda x: (x.sum(), x.softmax(0), x.max(), x.sum(-1), x.argmax()), (torch.tensor(2.0),)),
    "order": (lambda x: (x.sort(-1), x.sort(0, descending=True), x.topk(2, 1), x.argsort(-1), x.topk(2, -1, largest=False)), (X,)),
    "truths of none": (lambda x: (x.any(), x.all(), x.sum(), x.any(1)), (torch.zeros(2, 0),)),
    # views
    "views": (lambda x: (x.reshape(-1), x.reshape(6, -1), x.transpose(-1, 0), x.unsqueeze(-1), x.flatten(1), x.T if x.ndim == 2 else x), (X,)),
    "squeezing": (lambda x: (x[:1].squeeze(0), x[:, :1].squeeze(), x[:1, :1].squeeze((0, 1))), (X,)),
    "slices": (lambda x: (x[1:], x[:, -2:], x[..., ::2], x[-1], x[:, 1:-1], x[:, 5:], x[0, -1, 2]), (X,)),
    "joins": (lambda x: (torch.cat([x, x], -1), torch.stack([x, x], 1), torch.cat([x, x.int()]), torch.cat([torch.zeros(0), x.flatten()])), (X,)),
    "splits": (lambda x: (x.split(2, -1), x.chunk(2, 2), x.unbind(1), x.split([1, 3], -1)), (X,)),
    "repeats": (lambda x: (x.repeat(2, 1, 3), x[:1].expand(4, 3, 4), x.repeat_interleave(2, 1), x.tile(2)), (X,)),
    "pads": (lambda x: (F.pad(x, (1, 2)), F.pad(x, (1, -1), value=3), F.pad(x, (1, 1), "reflect"), F.pad(x, (2, 1), "replicate"), F.pad(x > 0, (1, 1))), (X,)),
    "flips and rolls": (lambda x: (x.flip(0, -1), x.roll(1, -1), x.roll((1, 2), (0, 1)), x.rot90(1, (1, 2))), (X,)),
    "triangles": (lambda x: (x.tril(), x.triu(1), x.tril(-1), torch.ones(3, 3).tril().bool(), x.diagonal(0, 1, 2)), (X,)),
    "windows": (lambda x: (x.unfold(2, 2, 1), x.unfold(1, 2, 2)), (X,)),
    # indices
    "indices": (lambda x, i: (x[i], x[:, i], x[i, i], x[:, i, i], x[i, :, i], x[i[:, None], i]), (torch.randn(4, 4, 4), torch.tensor([0, 2, -1]))),
    "masks": (lambda x: (x[x > 0], x[x.sum(-1) > 0], x.masked_fill(x > 0, -1.0), x.masked_select(x[0] > 0)), (X,)),
    "gathered": (lambda x, i: (x.gather(1, i), x.index_select(1, i[0, :, 0]), torch.take_along_dim(x, i, 1)), (X, torch.tensor([[[0, 1, 2, 1], [2, 2, 0, 0]]]).expand(2, 2, 4))),
    "scattered": (lambda x, i: (x.scatter(1, i, 5.0), x.scatter(1, i, x), x.scatter_add(1, i, x), x.scatter_reduce(1, i, x, "amax")), (X, torch.tensor([[[0, 1, 2, 1]]]))),
    "put by indices": (lambda x, i: (x.index_put((i,), torch.tensor(9.0)), x.index_put((i, i), torch.ones(3, 4), accumulate=True), x.index_add(0, i, x[:3]), x.index_copy(1, i, x[:, :3])), (torch.randn(4, 4, 4), torch.tensor([0, 2, 1]))),
    "rows of inner dims put": (lambda x, i: torch.index_put(x, (torch.arange(2)[:, None], i), torch.tensor(1.0)), (X, torch.tensor([[0, 2], [1, 1]]))),
    "written by masks": (lambda x: _write(x.clone()), (X,)),
    "searches": (lambda b, x: (torch.bucketize(x, b), torch.bucketize(x, b, right=True), torch.searchsorted(b, x), torch.searchsorted(b.flip(0), x, sorter=torch.tensor([2, 1, 0]))), (torch.tensor([0.0, 1, 2]), F32)),
    "reduced without what was there": (lambda x, i: [x.scatter_reduce(1, i, x * 2, how, include_self=own) for how in ("sum", "prod", "amax", "amin", "mean") for own in (True, False)], (X, torch.tensor([[[0, 1, 2, 1]]]))),
    "runs": (lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True), (torch.tensor([3, 1, 1, 3, 2, 2, 2]),)),
    "unique": (lambda x: torch.unique(x, return_inverse=True, return_counts=True), (torch.tensor([3, 1, 3, 2]),)),
    "one hot": (lambda x: F.one_hot(x, 5), (torch.tensor([0, 4, 2]),)),
    "embedding": (lambda w, i: F.embedding(i, w), (torch.randn(5, 3), torch.tensor([[1, 4]]))),
    "bags": (lambda w, i, o: [F.embedding_bag(i, w, o, mode=how, padding_idx=pad) for how in ("sum", "mean", "max") for pad in (None, 2)] + [F.embedding_bag(i, w, o, mode="sum", per_sample_weights=i * 0.5, include_last_offset=True)], (torch.randn(9, 3), torch.tensor([1, 2, 2, 8, 2]), torch.tensor([0, 2, 2, 4]))),
    "einsum": (lambda x: torch.einsum("abc,dbc->ad", x, x), (X,)),
    # made
    "made": (lambda x: (torch.full_like(x, 3), torch.arange(5), torch.arange(0, 1, 0.25), torch.arange(7, 1, -2), torch.eye(3), torch.linspace(0, 1, 4), x.new_ones(2)), (X,)),
    # networks
    "convolutions": (lambda x: (F.conv2d(x, torch.ones(2, 4, 3, 3), stride=2, padding=1), F.conv2d(x, torch.ones(4, 1, 3, 2), groups=4, dilation=(1, 2)), F.conv2d(x, torch.ones(2, 4, 3, 3), padding="same")), (IMAGE,)),
    "transposed convolutions": (lambda x: F.conv_transpose2d(x, torch.ones(4, 3, 3, 3), torch.ones(3), stride=2, padding=1, output_padding=1), (IMAGE,)),
    "poolings": (lambda x: (F.max_pool2d(x, 3, 2, 1), F.max_pool2d(x, 2, ceil_mode=True), F.avg_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), F.avg_pool2d(x, 2, divisor_override=3)), (IMAGE,)),
    "poolings that round up": (lambda x: (F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), F.avg_pool2d(x, 2, ceil_mode=True, count_include_pad=False), F.max_pool2d(x, 3, 2, 1, ceil_mode=True)), (IMAGE,)),
    "where maxima are": (lambda x: F.max_pool2d(x, 2, return_indices=True), (IMAGE,)),
    "adaptive poolings": (lambda x: (F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, (4, 3)), F.adaptive_avg_pool2d(x, (3, None)), F.adaptive_max_pool2d(x, (3, 1))), (IMAGE,)),
    "normalizations": (lambda x: (F.layer_norm(x, (9, 7)), F.group_norm(x, 2), F.instance_norm(x), F.batch_norm(x, torch.ones(4), torch.ones(4) * 2), F.rms_norm(x, (7,)), F.normalize(x, dim=1), F.local_response_norm(x, 2)), (IMAGE,)),
    "resampled": (lambda x: (F.interpolate(x, scale_factor=2), F.interpolate(x, (5, 12)), F.interpolate(x, scale_factor=1.7, mode="bilinear"), F.interpolate(x, (5, 12), mode="bilinear", align_corners=True), F.interpolate(x, (5, 12), mode="bicubic"), F.interpolate(x, (5, 12), mode="nearest-exact"), F.interpolate(x, (1, 1), mode="bilinear")), (IMAGE,)),
    "resampled by products": (lambda x: (torch.ops.aten._upsample_bilinear2d_aa(x, [8, 7], True, 0.8, 1.0), torch.ops.aten.upsample_bilinear2d(x, [3, 3], False, 1.7, 0.9), F.interpolate(x, (5, 4), mode="bicubic", antialias=True, align_corners=True)), (IMAGE,)),
    "grids": (lambda x, g: (F.grid_sample(x, g, align_corners=False), F.grid_sample(x, g, "nearest", "border", align_corners=True), F.grid_sample(x, g, padding_mode="reflection", align_corners=False)), (IMAGE, torch.rand(2, 3, 3, 2, generator=torch.Generator().manual_seed(3)) * 2.4 - 1.2)),
    "shuffled pixels": (lambda x: (F.pixel_shuffle(x, 2), F.pixel_unshuffle(x[..., :8, :6], 2), F.unfold(x, 2)), (IMAGE,)),
    "shuffled pixels of integers": (lambda x: (F.pixel_shuffle(x, 2), F.pixel_shuffle(x[0].float(), 2)), (torch.arange(72).reshape(2, 4, 3, 3),)),
    "edges cut off": (lambda x: (F.pad(x, (-4, 7, 0, 0), "replicate"), F.pad(x, (1, -2, -1, 3), "replicate")), (IMAGE,)),
    "nothing": (lambda x: (torch.triu_indices(20, 0) + x.sum().long(), x[:0].softmax(1), x[:, :0].amax((2, 3)), torch.cat([x[:0], x]), x[:0].sum()), (IMAGE,)),
    "activations": (lambda x: (F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.mish(x), F.hardswish(x), F.hardsigmoid(x), F.elu(x, 0.5), F.selu(x), F.celu(x, 2.0), F.leaky_relu(x, 0.2), F.softplus(x, 2), F.hardtanh(x), F.relu6(x), F.softsign(x), F.logsigmoid(x), F.hardshrink(x), F.softshrink(x), F.threshold(x, 0.1, 20), F.prelu(x, torch.tensor([0.3])), F.glu(x, -1), F.tanhshrink(x)), (X,)),
    "attention": (lambda q: (F.scaled_dot_product_attention(q, q, q), F.scaled_dot_product_attention(q, q, q, is_causal=True), F.scaled_dot_product_attention(q, q, q, torch.ones(5, 5).tril().bool(), scale=0.3)), (torch.randn(2, 2, 5, 4),)),
    "losses": (lambda x: (F.cross_entropy(x, torch.tensor([1, 0])), F.mse_loss(x, x.flip(0)), F.smooth_l1_loss(x, x.flip(0)), F.binary_cross_entropy_with_logits(x, (x > 0).float()), F.nll_loss(x.log_softmax(1), torch.tensor([2, 2])), F.kl_div(x, x.softmax(1))), (X[..., 0],)),
}  # fmt: skip


SIZED: dict[str, Case] = {
    "reshaped": (lambda x: (x.reshape(-1, 4), x.flatten(1), x.reshape(x.shape[0] * 3, 2, 2), x.reshape(3, -1)), (X,)),
    "sizes as numbers": (lambda x: (x * x.shape[0], x.sum() / (x.shape[0] - 0.5), torch.arange(x.shape[0] * 2), torch.full((x.shape[0],), x.shape[0] // 2)), (X,)),
    "slices by sizes": (lambda x: (x[: x.shape[0] // 2], x[x.shape[0] - 1 :], x[-1], F.pad(x, (0, x.shape[0]))), (X,)),
    "broadcast": (lambda x: (x.mean(0).expand(x.shape[0], 3, 4), torch.zeros(x.shape[0], 1) + x[:, 0], x.new_ones(x.shape[0], 2)), (X,)),
    "variances": (lambda x: (x.var(0), x.std(), x.mean(0)), (X,)),
    "products": (lambda x: (x @ x.transpose(1, 2), x.reshape(-1, 4) @ torch.ones(4, 2), torch.einsum("nij,nkj->nik", x, x)), (X,)),
    "written": (lambda x: _write(x.clone()), (X,)),
    "windows": (lambda x: x.unfold(0, 2, 1), (X,)),
    "diagonals": (lambda x: (x[..., 0].diagonal(), x[..., 1].diagonal(1), x[..., 2].diagonal(-1)), (X,)),
    "normalized": (lambda x: F.layer_norm(x.transpose(0, 2), (x.shape[0],)), (X,)),
    "triangles": (lambda x: torch.ones(x.shape[0], x.shape[0]).tril() @ x[:, 0], (X,)),
}  # fmt: skip
