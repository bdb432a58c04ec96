"""Poolings: of windows, and adaptive ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lostwax.onnx.operators.reductions import reduce
from lostwax.onnx.table import NotWritten, translation
from lostwax.onnx.values import OnnxTensor
from lostwax.onnx.writer import OnnxWriter
from lostwax.types import product


def _spread(given: Any, spatial: int) -> list[int]:
    found = [given] if isinstance(given, int) else list(given)
    return found * spatial if len(found) == 1 else found


def _add_batch(on: OnnxWriter, self: OnnxTensor, spatial: int) -> tuple[OnnxTensor, bool]:
    is_alone = self.rank == spatial + 1
    if not self.dtype.is_floating_point:
        raise NotWritten("ONNX pools floats", "pool x.float()")
    return (on.Unsqueeze(self, on.ints(0)) if is_alone else self), is_alone


def _max_pool(spatial: int, has_indices: bool) -> Callable[..., Any]:
    def write(
        on: OnnxWriter,
        self: OnnxTensor,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:
        x, is_alone = _add_batch(on, self, spatial)
        kernel = _spread(kernel_size, spatial)
        pads = _spread(padding, spatial)
        options: Any = {
            "kernel_shape": kernel,
            "strides": _spread(stride, spatial) if stride else kernel,
            "pads": [*pads, *pads],
            "dilations": _spread(dilation, spatial),
            "ceil_mode": int(ceil_mode) or None,
        }
        out = (on.out[0] if has_indices else on.out).size[-spatial:]
        if ceil_mode and all(isinstance(n, int) for n in (*out, *self.size[-spatial:])):
            options["pads"] = [*pads, *_pad_ends(self.size[-spatial:], out, options)]
            options["ceil_mode"] = None
        if not has_indices:
            made = on.MaxPool(x, **options)
            return on.Squeeze(made, on.ints(0)) if is_alone else made
        found = on.several("MaxPool", x, outputs=2, dtype=[x.dtype, torch.int64], **options)
        # ONNX counts through the whole tensor, torch through each plane
        plane = on.scalar(product(self.size[-spatial:]))
        both = [found[0], on.Mod(found[1], plane)]
        return [on.Squeeze(each, on.ints(0)) for each in both] if is_alone else both

    return write


def _pad_ends(size: Any, out: Any, options: dict[str, Any]) -> list[int]:
    """So many at the ends that all windows of the result are whole. With `ceil_mode`, what opsets
    before 22 say of windows in the padding is not what torch does."""
    spatial = len(size)
    found = []
    for d in range(spatial):
        width = (options["kernel_shape"][d] - 1) * options["dilations"][d] + 1
        before, after = options["pads"][d], options["pads"][d + spatial]
        reach = (out[d] - 1) * options["strides"][d] + width
        found.append(max(after, reach - size[d] - before))
    return found


for _n in (1, 2, 3):
    translation(f"max_pool{_n}d")(_max_pool(_n, has_indices=False))
for _n in (2, 3):
    translation(f"max_pool{_n}d_with_indices")(_max_pool(_n, has_indices=True))


def _avg_pool(spatial: int) -> Callable[..., OnnxTensor]:
    def write(
        on: OnnxWriter,
        self: OnnxTensor,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Any = None,
    ) -> OnnxTensor:
        x, is_alone = _add_batch(on, self, spatial)
        kernel, pads = _spread(kernel_size, spatial), _spread(padding, spatial)
        strides, out = _spread(stride, spatial) if stride else kernel, on.out.size[-spatial:]
        ends = [*zip(self.size[-spatial:], pads, kernel, strides, out, strict=True)]
        if all(isinstance(n, int) for end in ends for n in end):
            ceil_mode = any((n + 2 * p - k) // s + 1 != m for n, p, k, s, m in ends)
        made = on.AveragePool(
            x,
            kernel_shape=kernel,
            strides=strides,
            pads=[*pads, *pads],
            ceil_mode=int(ceil_mode) or None,
            count_include_pad=int(count_include_pad or divisor_override is not None),
        )
        if divisor_override is not None:
            factor = float(product(kernel)) / divisor_override
            made = on.Mul(made, on.constant(factor, x.dtype))
            if ceil_mode:
                raise NotWritten(
                    "with ceil_mode and a divisor, windows at the end count what is not there",
                    "leave one of them out",
                )
        return on.Squeeze(made, on.ints(0)) if is_alone else made

    return write


for _n in (1, 2, 3):
    translation(f"avg_pool{_n}d")(_avg_pool(_n))


# ------------------------------------------------------------------------------- adaptive


def _adaptive_avg(spatial: int) -> Callable[..., OnnxTensor]:
    def write(on: OnnxWriter, self: OnnxTensor, output_size: Any) -> OnnxTensor:
        out, dims = on.out.size[-spatial:], list(range(self.rank - spatial, self.rank))
        given = self.size[-spatial:]
        if out == given:
            return self
        if all(n == 1 for n in out):
            return reduce(on, "ReduceMean", self, dims, True)
        if not all(isinstance(n, int) for n in (*out, *given)):
            raise NotWritten("windows of its sizes vary", "pool to 1, or fix these sizes")
        x = self
        for d, (n, m) in enumerate(zip(given, out, strict=True)):  # one dim after the other
            x = _average(on, x, self.rank, dims[d], n, m)
        return x

    return write


def _average(on: OnnxWriter, x: OnnxTensor, rank: int, dim: int, n: Any, m: Any) -> OnnxTensor:
    """Means of windows along one dim: a product with a matrix that holds their weights."""
    if n == m:
        return x
    weights = torch.zeros(n, m, dtype=torch.float64)
    for i in range(m):
        first, last = i * n // m, -(-(i + 1) * n // m)
        weights[first:last, i] = 1 / (last - first)
    order = [*(d for d in range(rank) if d != dim), dim]
    is_last = dim == rank - 1
    x = x if is_last else on.Transpose(x, perm=order)
    x = on.MatMul(x, on.constant(weights, x.dtype))
    back = [order.index(d) for d in range(rank)]
    return x if is_last else on.Transpose(x, perm=back)


for _n in (1, 2, 3):
    translation(f"adaptive_avg_pool{_n}d", f"_adaptive_avg_pool{_n}d")(_adaptive_avg(_n))


def _adaptive_max(spatial: int) -> Callable[..., Any]:
    pool = _max_pool(spatial, has_indices=True)

    def write(on: OnnxWriter, self: OnnxTensor, output_size: Any) -> Any:
        out, given = on.out[0].size[-spatial:], self.size[-spatial:]
        is_plain = all(isinstance(n, int) for n in (*out, *given))
        if not is_plain or any(n % m for n, m in zip(given, out, strict=True)):
            raise NotWritten(
                "its windows are of different sizes", "pool to sizes that divide those of the input"
            )
        kernel = [n // m for n, m in zip(given, out, strict=True)]
        return pool(on, self, kernel, kernel)

    return write


for _n in (2, 3):
    translation(f"adaptive_max_pool{_n}d")(_adaptive_max(_n))
