"""The least tensor with symbolic sizes: what it takes to run torch's C++ composite operators on our
SymInts. Few operators, with the plainest rules; whatever else happens to a size, C++ did it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lostwax.fake.symbolic.indexing import getitem, setitem
from lostwax.fake.symbolic.node import unwrap, wrap
from lostwax.sym import (
    ShapeEnv,
    Size,
    decide,
    decide_or,
    eq,
    evaluate,
    expect,
    maximum,
    minimum,
    ne,
)
from lostwax.types import contiguous_strides, product

aten = torch.ops.aten
_RULES: dict[Any, Callable[..., Any]] = {}


class Mini(torch.Tensor):
    @staticmethod
    def __new__(
        cls, size: Sequence[Any], stride: Sequence[Any] | None = None, dtype: Any = torch.float32
    ) -> Mini:
        strides = contiguous_strides([unwrap(s) for s in size]) if stride is None else stride
        return torch.Tensor._make_wrapper_subclass(
            cls, [wrap(s) for s in size], strides=[wrap(s) for s in strides],
            dtype=dtype, device="cpu", storage_size=0,
        )  # fmt: skip

    def __repr__(self, **options: Any) -> str:
        return f"Mini{tuple(self.shape)}"

    __getitem__, __setitem__ = getitem, setitem

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class MiniMode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class Trace:
    """One run of `fn` on symbolic inputs: the sizes that came out, and the guards it left."""

    def __init__(self, fn: Callable[..., Any], **inputs: Sequence[Any]) -> None:
        """`inputs`: for each argument its sizes; ("b", 4) is a symbol named b with hint 4."""
        self.env = ShapeEnv()
        self.symbols: dict[str, Any] = {}
        tensors = {k: Mini([self._size(d) for d in dims]) for k, dims in inputs.items()}
        ENV[0] = self.env
        with MiniMode():
            self.result = fn(**tensors)
        self.minimal = self.env.minimal_guards()

    def _size(self, dim: Any) -> Size:
        if isinstance(dim, int):
            return dim
        name, hint, *lo = dim
        if name not in self.symbols:
            self.symbols[name] = self.env.symbol(name, hint=hint, lo=lo[0] if lo else 0)
        return self.symbols[name]

    def guards(self) -> list[str]:
        return [str(g.cond) for g in self.minimal]

    def shape(self) -> str:
        return ", ".join(str(unwrap(s)) for s in self.result.shape)

    def accepts(self, **sizes: int) -> bool:
        values = self._values(sizes)
        return all(evaluate(g.cond, values) for g in self.minimal)

    def at(self, tensor: torch.Tensor, **sizes: int) -> tuple[int, ...]:
        """The shape of a result at other sizes."""
        values = self._values(sizes)
        return tuple(evaluate(unwrap(s), values) for s in tensor.shape)

    def _values(self, sizes: dict[str, int]) -> dict[Any, int]:
        return {next(iter(self.symbols[k].symbols())): v for k, v in sizes.items()}


ENV: list[Any] = [None]


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    rule = _RULES.get(func)
    if rule is None and torch.Tag.pointwise in func.tags:
        rule = _pointwise
    if rule is None:
        raise NotImplementedError(str(func))
    return rule(*args, **kwargs)


def _rule(*overloads: Any) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        _RULES.update(dict.fromkeys(overloads, function))
        return function

    return register


def sizes(x: torch.Tensor) -> list[Size]:
    return [unwrap(s) for s in x.shape]


def require(condition: Any, text: str) -> None:
    if not expect(condition):
        raise RuntimeError(text)


def _broadcast(a: list[Size], b: list[Size]) -> list[Size]:
    n = max(len(a), len(b))
    out: list[Size] = []
    for x, y in zip([1] * (n - len(a)) + a, [1] * (n - len(b)) + b, strict=True):
        if decide_or(eq(x, 1), False):
            out.append(y)
            continue
        if not decide_or(eq(y, 1), False):
            require(eq(x, y), f"{x} and {y} do not broadcast")
        out.append(x)
    return out


def _pointwise(*args: Any, **kwargs: Any) -> Mini:
    size: list[Size] = []
    for a in args:
        if isinstance(a, torch.Tensor):
            size = _broadcast(size, sizes(a))
    return Mini(size)


@_rule(aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default)
def _view(x: Any, shape: Any, stride: Any = None) -> Mini:
    size = [unwrap(s) for s in shape]
    if -1 in [s for s in size if isinstance(s, int)]:
        i = size.index(-1)
        known = product(size[:i] + size[i + 1 :])
        require(ne(known, 0), "ambiguous")
        require(eq(product(sizes(x)) % known, 0), "not divisible")
        size[i] = product(sizes(x)) // known
    require(eq(product(sizes(x)), product(size)), "view")
    return Mini(size)


@_rule(aten.expand.default)
def _expand(x: Any, shape: Any, *, implicit: bool = False) -> Mini:
    size, stride = [], []
    lead = len(shape) - x.dim()
    for i, s in enumerate(map(unwrap, shape)):
        old = unwrap(x.shape[i - lead]) if i >= lead else 1
        if i >= lead and (decide_or(eq(s, -1), False) or decide_or(ne(old, 1), True)):
            require(eq(s, old) if not decide_or(eq(s, -1), False) else True, "expand")
            size.append(old)
            stride.append(x.stride(i - lead))
        else:
            size.append(s)
            stride.append(0)
    return Mini(size, stride)


@_rule(aten.slice.Tensor)
def _slice(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Mini:
    n = unwrap(x.shape[dim])

    def bound(v: Any, default: Size) -> Size:
        v = unwrap(v)
        if v is None or (isinstance(v, int) and v >= 2**62):
            return default
        if decide(v < 0):
            v = v + n
        return maximum(minimum(v, n), 0)

    length = maximum(bound(end, n) - bound(start, 0), 0)
    size, stride = sizes(x), list(x.stride())
    size[dim] = -(-length // step)
    stride[dim] = stride[dim] * step
    return Mini(size, stride)


@_rule(aten.select.int)
def _select(x: Any, dim: int, index: Any) -> Mini:
    n, i = unwrap(x.shape[dim]), unwrap(index)
    require((i < n) & (-n <= i), "index out of range")
    size, stride = list(x.shape), list(x.stride())
    del size[dim], stride[dim]
    return Mini(size, stride)


@_rule(aten.transpose.int)
def _transpose(x: Any, a: int, b: int) -> Mini:
    size, stride = list(x.shape), list(x.stride())
    size[a], size[b] = size[b], size[a]
    stride[a], stride[b] = stride[b], stride[a]
    return Mini(size, stride)


@_rule(aten.t.default)
def _t(x: Any) -> Mini:
    return _transpose(x, 0, 1)


@_rule(aten.permute.default)
def _permute(x: Any, dims: Any) -> Mini:
    return Mini([x.shape[d] for d in dims], [x.stride(d) for d in dims])


@_rule(aten.unsqueeze.default)
def _unsqueeze(x: Any, dim: int) -> Mini:
    size, stride = list(x.shape), list(x.stride())
    dim %= x.dim() + 1
    size.insert(dim, 1)
    stride.insert(dim, 1)
    return Mini(size, stride)


@_rule(aten.squeeze.dim)
def _squeeze(x: Any, dim: int) -> Mini:
    size, stride = list(x.shape), list(x.stride())
    if decide(eq(unwrap(size[dim]), 1)):
        del size[dim], stride[dim]
    return Mini(size, stride)


@_rule(
    aten.clone.default, aten.detach.default, aten.alias.default, aten._softmax.default,
    aten.tril.default, aten._to_copy.default, aten.lift_fresh.default,
)  # fmt: skip
def _like(x: Any, *args: Any, **kwargs: Any) -> Mini:
    return Mini(sizes(x), dtype=kwargs.get("dtype") or x.dtype)


@_rule(aten.split.Tensor)
def _split(x: Any, length: Any, dim: int = 0) -> list[Mini]:
    n, step, count = unwrap(x.shape[dim]), unwrap(length), 1
    while decide(n > step * count):
        count += 1
    lengths = [step] * (count - 1) + [n - step * (count - 1)]
    return [_with_size(x, dim, k) for k in lengths]


@_rule(aten.split_with_sizes.default)
def _split_with_sizes(x: Any, lengths: Any, dim: int = 0) -> list[Mini]:
    parts = [unwrap(k) for k in lengths]
    require(eq(sum(parts), unwrap(x.shape[dim])), "split sizes do not add up")
    for k in parts:
        require(k >= 0, "negative split size")
    return [_with_size(x, dim, k) for k in parts]


def _with_size(x: Any, dim: int, n: Size) -> Mini:
    size = sizes(x)
    size[dim] = n
    return Mini(size, x.stride())


@_rule(aten.cat.default)
def _cat(tensors: Any, dim: int = 0) -> Mini:
    size = sizes(tensors[0])
    for t in tensors[1:]:
        for d, (a, b) in enumerate(zip(size, sizes(t), strict=True)):
            if d == dim % len(size):
                size[d] = a + b
            else:
                require(eq(a, b), "cat")
    return Mini(size)


@_rule(aten.constant_pad_nd.default)
def _pad(x: Any, pad: Any, value: Any = 0) -> Mini:
    size = sizes(x)
    for i in range(len(pad) // 2):
        size[-1 - i] = size[-1 - i] + unwrap(pad[2 * i]) + unwrap(pad[2 * i + 1])
        require(size[-1 - i] >= 0, "negative size")
    return Mini(size)


@_rule(aten.mm.default)
def _mm(a: Any, b: Any) -> Mini:
    require(eq(sizes(a)[1], sizes(b)[0]), "mm")
    return Mini([a.shape[0], b.shape[1]])


@_rule(aten.addmm.default)
def _addmm(bias: Any, a: Any, b: Any, **scale: Any) -> Mini:
    return _mm(a, b)


@_rule(aten.bmm.default)
def _bmm(a: Any, b: Any) -> Mini:
    require(eq(sizes(a)[0], sizes(b)[0]) & eq(sizes(a)[2], sizes(b)[1]), "bmm")
    return Mini([a.shape[0], a.shape[1], b.shape[2]])


@_rule(aten.sum.dim_IntList, aten.mean.dim)
def _sum(x: Any, dims: Any, keepdim: bool = False, **kwargs: Any) -> Mini:
    dims = [d % x.dim() for d in dims]
    return Mini([1 if d in dims else n for d, n in enumerate(sizes(x)) if keepdim or d not in dims])


@_rule(aten.nonzero.default)
def _nonzero(x: Any) -> Mini:
    count = ENV[0].unbacked(lo=0, origin="nonzero")
    ENV[0].learn(count <= product(sizes(x)))
    return Mini([count, x.dim()], dtype=torch.int64)


@_rule(aten._local_scalar_dense.default)
def _item(x: Any) -> Any:
    return wrap(ENV[0].unbacked(origin="item"))


@_rule(aten.arange.default)
def _arange(end: Any, **kwargs: Any) -> Mini:
    return Mini([end], dtype=torch.int64)


@_rule(
    aten.zeros.default, aten.ones.default, aten.empty.memory_format, aten.full.default,
    aten.randn.default, aten.rand.default,
)  # fmt: skip
def _factory(size: Any, *args: Any, **kwargs: Any) -> Mini:
    for s in size:
        require(unwrap(s) >= 0, "negative size")
    return Mini(list(size))


@_rule(aten.repeat.default)
def _repeat(x: Any, times: Any) -> Mini:
    size = [1] * (len(times) - x.dim()) + sizes(x)
    return Mini([a * unwrap(b) for a, b in zip(size, times, strict=True)])


@_rule(aten.index.Tensor)
def _index(x: Any, index: Any) -> Mini:
    shape: list[Size] = []
    for t in index:
        if t is not None:
            shape = _broadcast(shape, sizes(t))
    at = next(i for i, t in enumerate(index) if t is not None)
    kept = [n for i, n in enumerate(sizes(x)) if i >= len(index) or index[i] is None]
    return Mini([*kept[:at], *shape, *kept[at:]])


@_rule(aten.copy_.default, aten.fill_.Tensor, aten.fill_.Scalar)
def _write(x: Any, source: Any, *args: Any) -> Any:
    if isinstance(source, torch.Tensor):
        _broadcast(sizes(x), sizes(source))
    WRITTEN.append(tuple(map(str, x.shape)))
    return x


WRITTEN: list[tuple[str, ...]] = []
