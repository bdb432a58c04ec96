"""Composite operators whose C++ form reads plain sizes, or branches on them: they are taken apart
here if sizes are symbolic.

The values are those of C++ at every size. If sizes are fixed, C++ takes the operators apart. Must
not compute types itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

from lostwax.fake.composite.composites import linear, reshape
from lostwax.fake.symbolic.node import unwrap
from lostwax.fake.tensor import FakeTensor
from lostwax.ops.registry import Rule, aten, composite, find_overload
from lostwax.ops.shapes import broadcast_sizes, fail, hint, is_one, is_same, require, wrap_dim
from lostwax.sym import Size, eq, maximum
from lostwax.types import Sizes, product

if TYPE_CHECKING:
    from lostwax.fake.mode import FakeTensorMode

_BY_TORCH = torch._C.DispatchKey.CompositeImplicitAutograd


def composite_if_symbolic(*names: str) -> Callable[[Rule], Rule]:
    """Register how an operator is taken apart if a size of its tensors is symbolic. The function
    returns NotImplemented for what it leaves to C++."""

    def register(function: Rule) -> Rule:
        for name in names:
            composite(name)(_evaluate_if_symbolic(name, function))
        return function

    return register


def _evaluate_if_symbolic(name: str, function: Rule) -> Rule:
    def evaluate(mode: FakeTensorMode, *args: Any, **kwargs: Any) -> Any:
        if any(map(_is_symbolic, (*args, *kwargs.values()))):
            out = function(mode, *args, **kwargs)
            if out is not NotImplemented:
                return out
        kernel = partial(find_overload(name)._op_dk, _BY_TORCH)
        return mode.reenter(kernel, args, kwargs)

    return evaluate


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, FakeTensor):
        return value.fake_type.is_symbolic
    return isinstance(value, (list, tuple)) and any(map(_is_symbolic, value))


# ------------------------------------------------------------------------------------------- pieces


@composite_if_symbolic("tensor_split.sections")
def tensor_split(mode: FakeTensorMode, self: Any, sections: Any, dim: int = 0) -> Any:
    x = mode.adopt(self)
    count, ndim = unwrap(sections), x.fake_type.ndim
    if not isinstance(count, int) or count <= 0 or not ndim:
        return NotImplemented
    n = x.fake_type.size[wrap_dim(dim, ndim)]
    start: Size = 0
    pieces = []
    for i in range(count):
        end = start + (n + (count - 1 - i)) // count  # the first pieces are longer by one
        pieces.append(mode.call(aten.slice.Tensor, x, dim, start, end))
        start = end
    return pieces


@composite_if_symbolic("broadcast_tensors")
def broadcast_tensors(mode: FakeTensorMode, tensors: Sequence[Any]) -> Any:
    given = [mode.adopt(t) for t in tensors]
    size = broadcast_sizes([x.fake_type.size for x in given])
    return [_broadcast(mode, x, size) for x in given]


def _broadcast(mode: FakeTensorMode, x: FakeTensor, size: Sizes) -> Any:
    own = x.fake_type.size
    if len(own) == len(size) and all(map(is_same, own, size)):
        return x  # C++ returns it as it is
    return mode.call(aten.expand.default, x, list(size))


@composite_if_symbolic("histogramdd.int_bins")
def histogramdd(mode: FakeTensorMode, self: Any, bins: int, *how: Any, **more: Any) -> Any:
    size = mode.adopt(self).fake_type.size
    if not size or not isinstance(size[-1], int):
        return NotImplemented
    kernel = partial(aten.histogramdd.default._op_dk, _BY_TORCH)
    return mode.reenter(kernel, (self, [bins] * size[-1], *how), more)


@composite_if_symbolic("cosine_similarity")
def cosine_similarity(
    mode: FakeTensorMode, x1: Any, x2: Any, dim: int = 1, eps: float = 1e-08
) -> Any:
    spread = broadcast_tensors(mode, (x1, x2))
    kernel = partial(aten.cosine_similarity.default._op_dk, _BY_TORCH)
    return mode.reenter(kernel, (*spread, dim, eps), {})


@composite_if_symbolic("diff")
def diff(
    mode: FakeTensorMode,
    self: Any,
    n: int = 1,
    dim: int = -1,
    prepend: Any = None,
    append: Any = None,
) -> Any:
    x = mode.adopt(self)
    if n <= 0 or not x.fake_type.ndim:
        return NotImplemented
    parts = [p for p in (prepend, x, append) if p is not None]
    out = mode.call(aten.cat.default, parts, dim) if len(parts) > 1 else x
    apart = aten.logical_xor.default if x.fake_type.dtype is torch.bool else aten.sub.Tensor
    for _ in range(n):
        later = mode.call(aten.slice.Tensor, out, dim, 1)
        out = mode.call(apart, later, mode.call(aten.slice.Tensor, out, dim, 0, -1))
    return out


@composite_if_symbolic("take_along_dim")
def take_along_dim(mode: FakeTensorMode, self: Any, indices: Any, dim: int | None = None) -> Any:
    x, index = mode.adopt(self), mode.adopt(indices)
    if index.fake_type.dtype is not torch.int64:
        return NotImplemented
    if dim is None:
        flat = (reshape(mode, x, [-1]), 0, reshape(mode, index, [-1]))
        return mode.call(aten.gather.default, *flat)
    ndim = x.fake_type.ndim
    if ndim != index.fake_type.ndim:
        return NotImplemented
    at = wrap_dim(dim, ndim)
    own, wanted = list(x.fake_type.size), list(index.fake_type.size)
    own[at] = wanted[at] = 1
    common = broadcast_sizes([tuple(own), tuple(wanted)])
    spread = [
        mode.call(aten.expand.default, t, [*common[:at], t.fake_type.size[at], *common[at + 1 :]])
        for t in (x, index)
    ]
    return mode.call(aten.gather.default, spread[0], at, spread[1])


# ------------------------------------------------------------------------------------------ pooling


@composite_if_symbolic("max_pool1d")
def max_pool1d(mode: FakeTensorMode, self: Any, *how: Any, **more: Any) -> Any:
    """If no gradient is needed, C++ would call another kernel."""
    return mode.call(aten.max_pool1d_with_indices.default, self, *how, **more)[0]


@composite_if_symbolic("adaptive_max_pool1d")
def adaptive_max_pool1d(mode: FakeTensorMode, self: Any, output_size: Sequence[Any]) -> Any:
    for n in mode.adopt(self).fake_type.size[-2:]:
        text = "Expected input to have non-zero size for non-batch dimensions"
        require(n >= 1, f"adaptive_max_pool1d(): {text}")
    return NotImplemented


# ----------------------------------------------------------------------------------------- products


@composite_if_symbolic("tensordot")
def tensordot(
    mode: FakeTensorMode, self: Any, other: Any, dims_self: Sequence[int], dims_other: Sequence[int]
) -> Any:
    a, b = mode.adopt(self), mode.adopt(other)
    size_a, size_b = a.fake_type.size, b.fake_type.size
    if len(dims_self) != len(dims_other):
        return NotImplemented
    in_a = [wrap_dim(d, len(size_a)) for d in dims_self]
    in_b = [wrap_dim(d, len(size_b)) for d in dims_other]
    pairs = [(size_a[i], size_b[j]) for i, j in zip(in_a, in_b, strict=True)]
    if any(hint(m) != hint(n) or is_one(m) != is_one(n) for m, n in pairs):
        return NotImplemented  # if one of the two is 1, C++ sums over the other one
    for m, n in pairs:
        require(eq(m, n), f"contracted dimensions need to match, but they have sizes {m} and {n}")
    free_a = [d for d in range(len(size_a)) if d not in in_a]
    free_b = [d for d in range(len(size_b)) if d not in in_b]
    rows, columns = [size_a[d] for d in free_a], [size_b[d] for d in free_b]
    inner = product([m for m, _ in pairs])
    left = mode.call(aten.permute.default, a, [*free_a, *in_a])
    right = mode.call(aten.permute.default, b, [*in_b, *free_b])
    matrix = mode.call(
        aten.mm.default,
        reshape(mode, left, [product(rows), inner]),
        reshape(mode, right, [inner, product(columns)]),
    )
    return reshape(mode, matrix, [*rows, *columns])


@composite_if_symbolic("kron")
def kron(mode: FakeTensorMode, self: Any, other: Any) -> Any:
    a, b = mode.adopt(self), mode.adopt(other)
    ndim = max(a.fake_type.ndim, b.fake_type.ndim)
    outer, inner = (_pad_size(x.fake_type.size, ndim) for x in (a, b))
    left = reshape(mode, a, [n for s in outer for n in (s, 1)])
    right = reshape(mode, b, [n for s in inner for n in (1, s)])
    sizes = [m * n for m, n in zip(outer, inner, strict=True)]
    return reshape(mode, mode.call(aten.mul.Tensor, left, right), sizes)


def _pad_size(size: Sequence[Size], ndim: int) -> list[Size]:
    return [*(1,) * (ndim - len(size)), *size]


@composite_if_symbolic("pad_sequence")
def pad_sequence(
    mode: FakeTensorMode,
    sequences: Sequence[Any],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Any:
    """Each is padded to the longest. C++ writes them into what it has filled, and there casts and
    broadcasts them to what the first is; we do not."""
    given = [mode.adopt(each) for each in sequences]
    if len({(x.fake_type.dtype, x.fake_type.device, x.fake_type.ndim) for x in given}) != 1:
        return NotImplemented
    dtype, ndim = given[0].fake_type.dtype, given[0].fake_type.ndim
    number: Any = type(torch.zeros((), dtype=dtype).item())
    if not ndim or padding_side not in ("left", "right") or number(padding_value) != padding_value:
        return NotImplemented
    lengths = [x.fake_type.size[0] for x in given]
    longest = maximum(*lengths)
    padded = []
    for x, length in zip(given, lengths, strict=True):
        missing = [longest - length, 0] if padding_side == "left" else [0, longest - length]
        pads = [0, 0] * (ndim - 1) + missing
        padded.append(mode.call(aten.constant_pad_nd.default, x, pads, number(padding_value)))
    return mode.call(aten.stack.default, padded, 0 if batch_first else 1)


@composite_if_symbolic("cdist")
def cdist(
    mode: FakeTensorMode, x1: Any, x2: Any, p: float = 2.0, compute_mode: int | None = None
) -> Any:
    """The kernel decides itself whether there are so many rows that a product is better."""
    return mode.call(aten._cdist_forward.default, x1, x2, p, compute_mode)


# -------------------------------------------------------------------------------------- recurrences


def _gates(
    mode: FakeTensorMode, input: Any, hidden: Any, weights: Sequence[Any], parts: int
) -> tuple[list[Any], list[Any]]:
    """What the input and the hidden state contribute to each gate. Biases may be missing."""
    w_ih, w_hh, b_ih, b_hh = (*weights, None, None)[:4]
    x, h = mode.adopt(input).fake_type.size, mode.adopt(hidden).fake_type.size
    if len(x) == 2 == len(h):
        require(eq(x[0], h[0]), f"Input batch size {x[0]} doesn't match hidden batch size {h[0]}")
    found = (linear(mode, input, w_ih, b_ih), linear(mode, hidden, w_hh, b_hh))
    if parts == 1:
        return [found[0]], [found[1]]
    width = mode.adopt(w_hh).fake_type.size[0] // parts
    of_input, of_hidden = (mode.call(aten.split.Tensor, each, width, -1) for each in found)
    return of_input, of_hidden


@composite_if_symbolic("lstm_cell")
def lstm_cell(mode: FakeTensorMode, input: Any, hx: Sequence[Any], *weights: Any) -> Any:
    call, add, mul = mode.call, aten.add.Tensor, aten.mul.Tensor
    sigmoid, tanh = aten.sigmoid.default, aten.tanh.default
    if len(hx) != 2:
        fail("lstm_cell expects two hidden states")
    hidden, cell = hx
    said = zip(*_gates(mode, input, hidden, weights, 4), strict=True)
    take, keep, new, show = (call(add, h, x) for x, h in said)
    kept = call(mul, call(sigmoid, keep), cell)
    cell = call(add, kept, call(mul, call(sigmoid, take), call(tanh, new)))
    return call(mul, call(sigmoid, show), call(tanh, cell)), cell


@composite_if_symbolic("gru_cell")
def gru_cell(mode: FakeTensorMode, input: Any, hx: Any, *weights: Any) -> Any:
    call, add, mul, sigmoid = mode.call, aten.add.Tensor, aten.mul.Tensor, aten.sigmoid.default
    of_input, of_hidden = _gates(mode, input, hx, weights, 3)
    reset = call(sigmoid, call(add, of_hidden[0], of_input[0]))
    keep = call(sigmoid, call(add, of_hidden[1], of_input[1]))
    new = call(aten.tanh.default, call(add, of_input[2], call(mul, of_hidden[2], reset)))
    return call(add, call(mul, call(aten.sub.Tensor, hx, new), keep), new)


def _plain_cell(nonlinearity: OpOverload) -> Rule:
    def cell(mode: FakeTensorMode, input: Any, hx: Any, *weights: Any) -> Any:
        (x,), (h,) = _gates(mode, input, hx, weights, 1)
        return mode.call(nonlinearity, mode.call(aten.add.Tensor, h, x))

    return cell


composite_if_symbolic("rnn_tanh_cell")(_plain_cell(aten.tanh.default))
composite_if_symbolic("rnn_relu_cell")(_plain_cell(aten.relu.default))


# ----------------------------------------------------------------------------------- many positions


@composite_if_symbolic("nll_loss_nd")
def nll_loss_nd(
    mode: FakeTensorMode,
    self: Any,
    target: Any,
    weight: Any = None,
    reduction: int = 1,
    ignore_index: Any = -100,
) -> Any:
    """With more than two dimensions, all positions, even if there are none, go in one row."""
    x, y = mode.adopt(self), mode.adopt(target)
    size, wanted = x.fake_type.size, y.fake_type.size
    if len(size) < 3 or len(size) == 4 or len(wanted) != len(size) - 1:
        return NotImplemented
    for m, n in zip((size[0], *size[2:]), wanted, strict=True):
        require(eq(m, n), f"Expected target size {(size[0], *size[2:])}, got {wanted}")
    places = product(size[2:])
    out = mode.call(
        aten.nll_loss2d.default,
        reshape(mode, x, [size[0], size[1], 1, places]),
        reshape(mode, y, [wanted[0], 1, places]),
        weight,
        reduction,
        ignore_index,
    )
    return reshape(mode, out, list(wanted)) if reduction == 0 else out
