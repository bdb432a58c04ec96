"""torch's C++ composite operators on our SymInts: the guards they leave, and that where these hold
the sizes are eager's, also at 0 and 1. Then data, layout, indexing and factories."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from lostwax.errors import DataDependentError
from lostwax.fake.symbolic import layout
from lostwax.fake.symbolic.indexing import getitem, setitem
from lostwax.fake.symbolic.node import unwrap, wrap
from lostwax.sym import ShapeEnv, evaluate
from lostwax.torch_version import TORCH
from tests.fake.symbolic.mini import WRITTEN, Mini, MiniMode, Trace

B, S, T, N = ("b", 4), ("s", 8), ("t", 8), ("n", 3)
S7 = ("s", 7)


def _padded(x):
    n = x.shape[1]
    return F.pad(x, (0, 0, 0, (n + 7) // 8 * 8 - n)).view(x.shape[0], -1, 8, 64)


def _padded_by_remainder(x):
    y = F.pad(x, (0, 0, 0, -x.shape[1] % 8))
    return y.view(x.shape[0], y.shape[1] // 8, 8, 64)


def _loop(x):
    return torch.cat([x[:, 4 * i : 4 * i + 4] for i in range(x.shape[1] // 4)])


# name: (program, sizes of its inputs, guards)
PROGRAMS: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "view -1": (lambda x: x.view(-1, 64), {"x": (B, S7, 64)}, []),
    "view b, -1": (lambda x: x.view(x.shape[0], -1), {"x": (B, S7, 64)}, ["b != 0"]),
    "flatten and back": (
        lambda x: x.reshape(-1, 64).view(x.shape[0], x.shape[1], 64),
        {"x": (B, S7, 64)},
        [],
    ),
    "sizes of another input": (
        lambda x, m: x.view(m.shape[0], m.shape[1], 64),
        {"x": (("r", 28), 64), "m": (B, S7)},
        ["b*s == r"],
    ),
    "view of even": (
        lambda x: x.view(x.shape[0], x.shape[1] // 2, 128),
        {"x": (B, S, 64)},
        ["s % 2 == 0"],
    ),
    "pad to a multiple": (_padded, {"x": (B, S7, 64)}, ["b != 0"]),
    "pad by the remainder": (_padded_by_remainder, {"x": (B, S7, 64)}, []),
    "chunk": (lambda x: x.chunk(2, 1), {"x": (B, S, 6)}, ["s >= 2"]),
    "split": (lambda x: x.split(4, 1), {"x": (B, S, 6)}, ["s >= 5", "s <= 8"]),
    "split with sizes": (lambda x: x.split([3, x.shape[1] - 3], 1), {"x": (B, S)}, ["s >= 3"]),
    "tensor_split": (lambda x: x.tensor_split(3, 1), {"x": (B, S)}, ["s % 3 >= 2"]),
    "last n": (lambda x, y: x[:, -y.shape[0] :], {"x": (B, S), "y": (N,)}, ["n >= 1"]),
    "first n": (lambda x, y: x[:, : y.shape[0]] + y, {"x": (B, S), "y": (N,)}, ["s >= n"]),
    "last": (lambda x: x[:, -1], {"x": (B, S)}, ["s >= 1"]),
    "all but the first": (lambda x: x[:, 1:], {"x": (B, S)}, []),
    "neighbours": (lambda x: x[:, :-1] + x[:, 1:], {"x": (B, S)}, []),
    "every second": (lambda x: x[:, ::2], {"x": (B, S)}, []),
    "index n - 1": (
        lambda x, y: x[y.shape[0] - 1],
        {"x": (B, S), "y": (N,)},
        ["b >= n and b + n >= 1"],
    ),
    "index behind a slice": (
        lambda x, y: x[:, y.shape[0]],
        {"x": (B, S), "y": (N,)},
        ["s > n"],
    ),
    "index behind dots": (lambda x, y: x[..., y.shape[0]], {"x": (B, 2, S), "y": (N,)}, ["s > n"]),
    "index and None": (
        lambda x, y: x[None, y.shape[0], :, None],
        {"x": (B, S), "y": (N,)},
        ["b > n"],
    ),
    "two indices": (
        lambda x, y: x[y.shape[0], :, x.shape[2] - 1],
        {"x": (B, 2, S), "y": (N,)},
        ["s >= 1", "b > n"],
    ),
    "index with a tensor": (
        lambda x, y, i: x[y.shape[0], i.long()],
        {"x": (B, 9, 6), "y": (N,), "i": (5,)},
        ["b > n"],
    ),
    "broadcast": (lambda x, y: x + y, {"x": (B, S), "y": (T,)}, ["s == t"]),
    "linear": (
        lambda x, w: F.linear(x, w).softmax(-1),
        {"x": (("b", 1), S7, 64), "w": (32, 64)},
        [],
    ),
    "transpose, reshape": (
        lambda x: x.transpose(1, 2).reshape(x.shape[0], -1),
        {"x": (B, S7, 64)},
        ["b != 0"],
    ),
    "matmul": (
        torch.matmul,
        {"input": (B, 2, S7, 64), "other": (("c", 4), 2, 64, T)},
        ["b == c"],
    ),
    "matmul of 3 and 2": (torch.matmul, {"input": (B, S7, 64), "other": (64, T)}, []),
    "einsum": (
        lambda x, y: torch.einsum("bid,bjd->bij", x, y),
        {"x": (B, S7, 64), "y": (("c", 4), T, 64)},
        ["b == c"],
    ),
    "cat, split": (
        lambda x, y: torch.cat([x, y]).split([x.shape[0], y.shape[0]]),
        {"x": (B, S), "y": (("c", 3), T)},
        ["s == t"],
    ),
    "int()": (lambda x: x.view(int(x.shape[0]), -1) * 1, {"x": (B, S)}, ["b == 4"]),
    "len": (lambda x: torch.zeros(len(x)), {"x": (B, S)}, ["b == 4"]),
    "ceil": (lambda x: torch.zeros(math.ceil(x.shape[1] / 2)), {"x": (B, S)}, []),
    "int of a half": (
        lambda x: torch.zeros(int(x.shape[0] * 0.5)),
        {"x": (B, S)},
        ["b >= 4 and b <= 5"],
    ),
    "loop": (_loop, {"x": (B, S)}, ["s >= 8 and s <= 11"]),
    "arange": (lambda x: torch.arange(x.shape[1]) + torch.zeros(x.shape[1]), {"x": (B, S)}, []),
    "full": (lambda x: torch.full((x.shape[0], 2), 1.5), {"x": (B, S)}, []),
    "mask": (lambda x: x + torch.ones(x.shape[1], x.shape[1]).tril(), {"x": (B, S, S)}, []),
    "expand": (lambda x: x.unsqueeze(1).expand(-1, x.shape[1], -1), {"x": (B, S)}, []),
    "expand_as": (lambda x, y: x.expand_as(y), {"x": (1, S), "y": (B, S)}, []),
    "unflatten": (lambda x: x.unflatten(1, (-1, 4)), {"x": (B, S)}, ["s % 4 == 0"]),
    "flatten": (lambda x: x.flatten(1), {"x": (B, S, 3)}, []),
    "narrow": (lambda x: x.narrow(1, 2, x.shape[1] - 3), {"x": (B, S)}, ["s >= 3"]),
    "repeat": (lambda x: x.repeat(2, x.shape[0]), {"x": (B, S)}, []),
    "repeat_interleave": (lambda x: x.repeat_interleave(3, dim=1), {"x": (B, S)}, []),
    "tile": (lambda x: x.tile((2, 3)), {"x": (B, S)}, []),
    "diff": (lambda x: x.diff(dim=1), {"x": (B, S)}, ["s >= 1"]),
    "numel": (lambda x: torch.zeros(x.numel()), {"x": (B, S)}, []),
    "number of Size": (lambda x: torch.zeros(x.shape.numel()), {"x": (B, S)}, ["b == 4", "s == 8"]),
}
if TORCH < (2, 13):  # its C++ asks for plain sizes; fakes take these apart themselves
    for name in ("linear", "matmul", "matmul of 3 and 2"):
        del PROGRAMS[name]


@pytest.fixture(params=PROGRAMS)
def program(request):
    fn, inputs, guards = PROGRAMS[request.param]
    return Trace(fn, **inputs), fn, inputs, guards


def test_guards(program):
    trace, _, _, guards = program
    assert trace.guards() == guards


def test_sizes_are_eagers_wherever_the_guards_hold(program):
    trace, fn, inputs, _ = program
    names = list(trace.symbols)
    tried = 0
    grid = [0, 1, 2, 3, 4, 5, 8, 12] if len(names) < 3 else [0, 1, 2, 5, 8]
    for values in itertools.product(grid, repeat=len(names)):
        sizes = dict(zip(names, values, strict=True))
        if not trace.accepts(**sizes):
            continue
        tried += 1
        real = {
            k: torch.zeros([d if isinstance(d, int) else sizes[d[0]] for d in dims])
            for k, dims in inputs.items()
        }
        expected, found = fn(**real), trace.result
        single = isinstance(expected, torch.Tensor)
        for e, f in zip(
            (expected,) if single else expected, (found,) if single else found, strict=True
        ):
            assert trace.at(f, **sizes) == tuple(e.shape), sizes
    assert tried > 0


def test_who_asked_is_kept():
    trace = Trace(lambda x: x[:, -1], x=(B, S))
    (guard,) = trace.env.guards
    assert guard.asked_by.startswith("TensorIndexing.h:")
    assert guard.where.file == __file__


# ---------------------------------------------------------------------------------- data


def test_nonzero():
    trace = Trace(lambda x: x.nonzero()[:, 0].view(-1, 1), x=(B, S))
    assert trace.shape() == "u0, 1"
    assert trace.guards() == []


def test_a_branch_on_data_is_refused_with_its_origin():
    with pytest.raises(DataDependentError, match="u0 comes from nonzero"):
        Trace(lambda x: x + 1 if x.nonzero().shape[0] > 3 else x, x=(B, S))


def test_item_as_a_size_and_as_an_index():
    trace = Trace(lambda x: torch.zeros(x.sum((0, 1)).item(), 4), x=(B, S))
    assert trace.shape() == "u0, 4"
    assert [(str(g.cond), g.kind) for g in trace.env.guards] == [("u0 >= 0", "assert")]

    def checked(x):
        n = x.sum((0, 1)).item()
        torch._check(n >= 1)
        torch._check(n <= x.shape[1])
        return x[:, :n].reshape(-1), x.select(1, n - 1), x[:, n - 1]

    trace = Trace(checked, x=(B, S))
    assert [str(unwrap(t.shape[0])) for t in trace.result] == ["b*u0", "b", "b"]
    assert trace.guards() == ["u0 >= 1", "s >= u0"]
    trace = Trace(lambda x: x[x.sum((0, 1)).item()], x=(B, S))
    assert trace.guards() == ["b > u0 and b + u0 >= 0"]


# ---------------------------------------------------------------------------------- layout


def test_a_branch_on_contiguity_is_a_guard():
    def transposed(x):
        return x if x.transpose(0, 1).is_contiguous() else x + 1

    trace = Trace(transposed, x=(B, S))
    assert trace.guards() == ["b != 1 and b*s != 0 and s != 1"]
    for b, s in itertools.product(range(4), repeat=2):
        assert trace.accepts(b=b, s=s) == (not torch.zeros(b, s).t().is_contiguous())
    assert Trace(lambda x: x if x.is_contiguous() else None, x=(B, S)).guards() == []


STRIDES = {
    "contiguous": (lambda t: t.is_contiguous(), layout.is_contiguous),
    "channels last": (
        lambda t: t.is_contiguous(memory_format=torch.channels_last),
        layout.is_channels_last(4),
    ),
    "dense": (torch.ops.aten.is_non_overlapping_and_dense, layout.is_non_overlapping_and_dense),
    "like channels last": (
        lambda t: torch.ops.aten.is_strides_like_format(t, torch.channels_last),
        layout.has_channels_last_strides(4),
    ),
}


@pytest.mark.parametrize("name", STRIDES)
def test_layout_questions_agree_with_eager_at_the_example(name):
    eager, ours = STRIDES[name]
    for size in itertools.product(range(4), repeat=4):
        x = torch.zeros(size)
        views = [
            x,
            x.permute(0, 3, 1, 2),
            x.transpose(0, 3),
            x[:, :1],
            x[..., ::2],
            x.permute(3, 2, 1, 0),
        ]
        for t in views:
            env = ShapeEnv()
            dims = [env.symbol(hint=n) for n in (*t.shape, *t.stride())]
            answer = ours(dims[:4], dims[4:])
            values = {next(iter(d.symbols())): d.hint for d in dims}
            assert bool(evaluate(answer, values)) == eager(t), (t.shape, t.stride())


# ---------------------------------------------------------------------------------- indexing


def test_indexing_agrees_with_eager():
    """All places for a symbolic index among slices, None, dots and tensors."""
    real = torch.zeros(4, 5, 6)
    parts = [slice(None), None, ..., 1, "n", slice(1, None), torch.tensor([0, 2, 1])]
    tried = 0
    for index in itertools.product(parts, repeat=3):
        if sum(p is ... for p in index) > 1 or "n" not in [p for p in index if isinstance(p, str)]:
            continue
        concrete = tuple(2 if isinstance(p, str) else p for p in index)
        expected = real[concrete]
        n = wrap(ShapeEnv().symbol("n", hint=2))
        found = getitem(real, tuple(n if isinstance(p, str) else p for p in index))
        assert found.shape == expected.shape, index
        tried += 1
    assert tried > 80


def test_too_many_indices():
    n = wrap(ShapeEnv().symbol("n", hint=2))
    with pytest.raises(IndexError, match="too many indices"):
        getitem(torch.zeros(4), (0, n))


def test_assignment_with_a_symbolic_index():
    WRITTEN.clear()

    def fill(x, y):
        x[y.shape[0], :] = 0.0
        x[:, y.shape[0]] = y.sum((0,))
        x[y.shape[0]] = x[0]
        return x

    trace = Trace(fill, x=(B, S), y=(N,))
    assert WRITTEN == [("s",), ("b",), ("s",)]
    assert [str(g.cond) for g in trace.env.guards] == ["b > n", "s > n"]


def test_a_real_tensor_is_indexed_too():
    n = wrap(ShapeEnv().symbol("n", hint=2))
    x = torch.arange(12).view(4, 3)
    assert getitem(x, n - 1).tolist() == [3, 4, 5]
    assert getitem(x, (slice(None), 1)).tolist() == [1, 4, 7, 10]
    setitem(x, n - 1, 7)
    assert x[1].tolist() == [7, 7, 7]


# ---------------------------------------------------------------------------------- factories


@pytest.mark.parametrize(
    "make",
    [
        lambda n: torch.zeros(n, 3),
        lambda n: torch.empty(n, 3),
        lambda n: torch.ones((n, 3)),
        lambda n: torch.full((n, 3), 2.0),
        lambda n: torch.randn(n, 3),
        lambda n: torch.rand([n, 3]),
        lambda n: torch.arange(n).view(-1, 1).expand(-1, 3),
    ],
)
def test_factories_under_a_mode(make):
    env = ShapeEnv()
    n = wrap(env.symbol("n", hint=4))
    with MiniMode():
        result = make(n)
    assert isinstance(result, Mini)
    assert result.shape[0].node is n.node
    assert env.guards == []


def test_a_class_may_take_the_functions_instead_of_the_mode():
    class Indexed(Mini):
        __getitem__ = getitem
        __setitem__ = setitem

    trace = Trace(lambda x: x, x=(B, S))
    x = Indexed(trace.result.shape)
    n = wrap(trace.env.symbol("n", hint=2))
    x[n, 1:] = 0.0
    assert [tuple(map(str, t.shape)) for t in (x[n], x[:, n], x[0])] == [
        ("s",),
        ("b",),
        ("s",),
    ]
    assert [str(g.cond) for g in trace.env.guards] == ["b > n", "s > n"]
