"""View rules against eager: random chains of views, static (exact) and symbolic (at many sizes),
the stated hard cases with their guards, inverses against writes in place, the texts of errors.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lostwax.ops
from lostwax.ops.registry import operator
from lostwax.sym import Expr, ShapeEnv, ceildiv, evaluate, known
from lostwax.types import TensorType
from tests.ops.shadow import significant, type_of

assert lostwax.ops
aten = torch.ops.aten
CPU = torch.device("cpu")

Shape = tuple[Any, ...]
Step = Callable[[Shape], tuple[Any, tuple[Any, ...]]]
"""From sizes, concrete or symbolic, to one call: the overload and what follows the tensor."""


def ruled(overload: Any, *args: Any, **kwargs: Any) -> Any:
    rule = operator(overload).rule
    assert rule is not None, overload
    return rule(*args, **kwargs)


# ------------------------------------------------------------------------------------ random chains


def random_step(r: random.Random, rank: int) -> Step:
    """A view that often exists for a tensor of this rank; its arguments follow its sizes."""
    d = r.randrange(-max(rank, 1), max(rank, 1))
    e = r.randrange(max(rank, 1))
    k = r.choice((1, 2, 3))
    bound = r.choice((None, 0, 1, 2, -1, -2, 7, sys.maxsize))
    start = r.choice((None, 0, 1, 2, -1, -2, -9))
    order = r.sample(range(rank), rank)
    steps: list[Step] = [
        lambda s: (aten.transpose.int, (d, e)),
        lambda s: (aten.permute.default, (order,)),
        lambda s: (aten.unsqueeze.default, (r_in(d, rank + 1),)),
        lambda s: (aten.squeeze.dim, (d,)),
        lambda s: (aten.squeeze.default, ()),
        lambda s: (aten.alias.default, ()),
        lambda s: (aten.t.default, ()),
    ]
    if rank:
        steps += [
            lambda s: (aten.slice.Tensor, (d, start, bound, k)),
            lambda s: (aten.slice.Tensor, (d, start, bound, 1)),
            lambda s: (aten.slice.Tensor, (d, None, s[e])),
            lambda s: (aten.slice.Tensor, (d, -s[e], None)),
            lambda s: (aten.select.int, (d, r_in(k, 2) - 1)),
            lambda s: (aten.unfold.default, (d, k, k)),
            lambda s: (aten.split.Tensor, (k, d)),
            lambda s: (aten.split.Tensor, (ceildiv(s[d], k), d)),
            lambda s: (aten.split_with_sizes.default, ([1, s[d] - 1], d)),
            lambda s: (aten.view.default, ([*s[:e], ceildiv(s[e], k), k, *s[e + 1 :]],)),
            lambda s: (aten.view.default, ([*s[:e], -1, k, *s[e + 1 :]],)),
            lambda s: (aten.view.default, ([-1],)),
            lambda s: (aten.view.default, ([*s, 1],)),
            lambda s: (aten.expand.default, ([k, *s],)),
            lambda s: (aten.expand.default, ([k if i == e else -1 for i in range(rank)],)),
            lambda s: (aten.expand.default, ([s[d] if i == e else x for i, x in enumerate(s)],)),
        ]
    if rank > 1:
        i = r.randrange(rank - 1)
        steps += [
            lambda s: (aten.view.default, ([*s[:i], s[i] * s[i + 1], *s[i + 2 :]],)),
            lambda s: (aten.view.default, ([*s[:i], -1, *s[i + 2 :]],)),
            lambda s: (aten.diagonal.default, (k - 2, i, i + 1)),
        ]
    return r.choice(steps)


def r_in(x: int, n: int) -> int:
    return x % n


def one_of(result: Any, choice: int) -> Any:
    """Chains go on with one piece of a split."""
    return result[choice % len(result)] if isinstance(result, (list, tuple)) else result


def strided_tensor(r: random.Random) -> torch.Tensor:
    """Up to four dimensions of sizes 0 to 4, in some order, with gaps and an offset."""
    size = [r.choice((0, 1, 2, 2, 3, 4, 4)) for _ in range(r.randrange(5))]
    x = torch.arange(5000.0).as_strided([s + 1 for s in size], [7 * 5**d for d in range(len(size))])
    x = x.clone() if r.random() < 0.5 else x
    for d, s in enumerate(size):
        x = x.narrow(d, r.randrange(2), s)
    x = x.permute(r.sample(range(len(size)), len(size)))
    return x.clone(memory_format=torch.contiguous_format) if r.random() < 0.4 else x


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_chains_give_the_strides_of_eager(seed: int) -> None:
    r = random.Random(seed)
    x = strided_tensor(r)
    for _ in range(6):
        overload, args = random_step(r, x.dim())(tuple(x.shape))
        choice = r.randrange(4)
        want, refused = outcome(lambda: overload(x, *args))  # noqa: B023
        got, refused_by_rule = outcome(lambda: ruled(overload, type_of(x), *args))  # noqa: B023
        assert refused_by_rule == refused, (overload, args, x.shape, x.stride())
        if refused:
            continue
        pieces = zip(
            got if isinstance(got, list) else [got],
            want if isinstance(got, list) else [want],
            strict=True,
        )
        for g, w in pieces:
            assert (g.size, g.stride, g.offset) == (w.shape, w.stride(), w.storage_offset()), (
                overload,
                args,
                x.shape,
                x.stride(),
            )
        x = one_of(want, choice)


def outcome(call: Callable[[], Any]) -> tuple[Any, tuple[type, str] | None]:
    """The result, or the class and text of the refusal."""
    try:
        return call(), None
    except (RuntimeError, IndexError) as e:
        return None, (type(e), text(e))


def text(e: Exception) -> str:
    return str(e).split("\nException raised")[0]


Chain = list[tuple[Step, int]]


def run_eager(x: torch.Tensor, chain: Chain) -> torch.Tensor:
    for step, choice in chain:
        overload, args = step(tuple(x.shape))
        x = one_of(overload(x, *args), choice)
    return x


def run_rules(x: TensorType, chain: Chain) -> TensorType:
    for step, choice in chain:
        overload, args = step(x.size)
        x = one_of(ruled(overload, x, *args), choice)
    return x


def working_chain(r: random.Random, x: torch.Tensor) -> Chain:
    """A chain that eager runs at these sizes."""
    chain: Chain = []
    for _ in range(5):
        link = (random_step(r, x.dim()), r.randrange(4))
        try:
            x = run_eager(x, [link])
        except (RuntimeError, IndexError):
            continue
        chain.append(link)
    return chain


def assert_same(got: TensorType, want: torch.Tensor, values: dict[Any, int], scene: Any) -> None:
    size = tuple(evaluate(s, values) for s in got.size)
    assert size == tuple(want.shape), scene
    if want.numel():
        stride = tuple(evaluate(s, values) for s in got.stride)
        assert significant(size, stride) == significant(size, want.stride()), scene
        assert evaluate(got.offset, values) == want.storage_offset(), scene


def sizes_admitted(seed: int) -> tuple[int, int]:
    """Check one chain at every size its guards admit; how many sizes that were, and of how many."""
    r = random.Random(seed)
    hints = [r.choice((2, 3, 4, 6, 1)) for _ in range(r.randrange(1, 4))]
    chain = working_chain(r, torch.empty(hints))
    env = ShapeEnv()
    symbols = [env.symbol(hint=h) for h in hints]
    got = run_rules(TensorType(tuple(symbols), torch.float32, CPU), chain)
    atoms = [next(iter(s.symbols())) for s in symbols]
    points = [tuple(hints), *product((0, 1, 2, 3, 4, 6), repeat=len(hints))]
    admitted = 0
    for sizes in points:
        values = dict(zip(atoms, sizes, strict=True))
        if not all(evaluate(g.cond, values) for g in env.guards):
            assert sizes != tuple(hints), (seed, "the guards refuse the example itself")
            continue
        admitted += 1
        scene = (seed, hints, sizes, [str(g.cond) for g in env.guards])
        assert_same(got, run_eager(torch.empty(sizes), chain), values, scene)
    return admitted, len(points)


def test_symbolic_chains_hold_at_all_sizes_their_guards_admit() -> None:
    counts = [sizes_admitted(seed) for seed in range(300)]
    admitted, tried = (sum(c) for c in zip(*counts, strict=True))
    assert admitted > tried / 3, "the guards refuse so much that this test proves little"


# --------------------------------------------------------------------------------------- hard cases


def symbols(*hints: int) -> tuple[ShapeEnv, list[Expr]]:
    env = ShapeEnv()
    return env, [env.symbol(hint=h) for h in hints]


def tensor(*size: Any) -> TensorType:
    return TensorType(tuple(size), torch.float32, CPU)


def conditions(env: ShapeEnv) -> list[str]:
    return [str(g.cond) for g in env.guards]


def test_view_with_a_hole_needs_divisibility_alone() -> None:
    env, (b, s) = symbols(4, 6)
    out = ruled(aten.view.default, tensor(b, s, 64), [-1, 64])
    assert out.size == (b * s, 64)
    assert not env.guards


def test_view_beside_a_symbol_needs_it_positive() -> None:
    env, (b, s) = symbols(4, 6)
    out = ruled(aten.view.default, tensor(b, s), [b, -1])
    assert out.size == (b, s)
    assert len(env.guards) == 1
    assert known(b >= 1) is True


def test_view_splits_a_product_without_a_guard() -> None:
    env, (b, s) = symbols(4, 6)
    out = ruled(aten.view.default, tensor(b * s, 8), [b, s, 8])
    assert out == tensor(b, s, 8)
    assert not env.guards


def test_view_of_half_needs_an_even_size() -> None:
    env, (b, s) = symbols(4, 6)
    ruled(aten.view.default, tensor(b, s, 64), [b, s // 2, 128])
    assert conditions(env) == ["s1 % 2 == 0"]


def test_heads_are_split_moved_and_joined_without_a_guard() -> None:
    env, (b, s) = symbols(4, 6)
    x = ruled(aten.view.default, tensor(b, s, 64), [b, s, 8, 8])
    x = ruled(aten.permute.default, x, [0, 2, 1, 3])
    x = ruled(aten.clone.default, ruled(aten.transpose.int, x, 1, 2))
    assert ruled(aten.view.default, x, [b, s, 64]).size == (b, s, 64)
    assert not env.guards


def test_the_two_ways_to_drop_one_agree_also_when_empty() -> None:
    env, (b, s) = symbols(4, 6)
    x = tensor(b, s)
    first = ruled(aten.slice.Tensor, x, 1, 0, -1)
    last = ruled(aten.slice.Tensor, x, 1, 1, sys.maxsize)
    assert first.size == last.size
    assert not env.guards
    (atom,) = s.symbols()
    assert [evaluate(first.size[1], {atom: n}) for n in (0, 1, 2, 5)] == [0, 0, 1, 4]


def test_slice_by_a_size_clamps() -> None:
    env, (n, s) = symbols(2, 6)
    out = ruled(aten.slice.Tensor, tensor(s), 0, 0, n)
    assert not env.guards
    values = {next(iter(n.symbols())): 9, next(iter(s.symbols())): 6}
    assert evaluate(out.size[0], values) == 6


def test_the_sign_of_a_bound_is_a_branch() -> None:
    env, (n, s) = symbols(2, 6)
    out = ruled(aten.slice.Tensor, tensor(s), 0, -n, None)
    assert conditions(env) == ["s0 >= 1"]
    values = {next(iter(n.symbols())): 2, next(iter(s.symbols())): 6}
    assert evaluate(out.size[0], values) == 2
    assert evaluate(out.offset, values) == 4


def test_chunk_leaves_two_linear_guards_at_most() -> None:
    env, (s,) = symbols(10)
    assert len(ruled(aten.split.Tensor, tensor(s), 4)) == 3
    assert set(conditions(env)) == {"s0 <= 12", "s0 >= 9"}
    env, (s,) = symbols(10)
    assert len(ruled(aten.split.Tensor, tensor(s), (s + 1) // 2)) == 2
    assert conditions(env) == ["s0 >= 2"]


def test_expanding_a_one_and_a_size() -> None:
    env, (b, s) = symbols(4, 6)
    out = ruled(aten.expand.default, tensor(1, s), [b, -1])
    assert (out.size, out.stride) == ((b, s), (0, 1))
    assert not env.guards


def test_an_unbacked_position_needs_no_decision() -> None:
    env = ShapeEnv()
    u = env.unbacked()
    out = ruled(aten.slice.Tensor, tensor(10), 0, 0, u)
    assert all(g.kind == "assert" for g in env.guards)
    (atom,) = u.symbols()
    for n in (-20, -3, -1, 0, 3, 10, 40):
        assert evaluate(out.size[0], {atom: n}) == len(range(10)[:n])
    picked = ruled(aten.select.int, tensor(10, 2), 0, u)
    assert [evaluate(picked.offset, {atom: n}) for n in (-1, 0, 9)] == [18, 0, 18]


def test_boolean_masks_and_nonzero_ask_for_a_size_with_its_bounds() -> None:
    env, (b, s) = symbols(4, 6)
    asked: list[Any] = []

    class Fresh:
        def size(self, upper: Any = None, lower: int = 0) -> Any:
            asked.append(upper)
            return env.unbacked(lo=lower)

    mask = TensorType((b, s), torch.bool, CPU)
    out = ruled(aten.index.Tensor, Fresh(), tensor(b, s, 8), [mask])
    assert out.size[1:] == (8,)
    assert out.size[0].unbacked
    assert ruled(aten.nonzero.default, Fresh(), mask).size[1] == 2
    assert asked == [b * s, b * s]
    assert not env.guards
    assert known(out.size[0] >= 0) is True


# ------------------------------------------------------------------------------------ other forms

VIEWS: list[tuple[Any, tuple[int, ...], tuple[Any, ...]]] = [
    (aten.view.default, (2, 6), ([3, 4],)),
    (aten.alias.default, (2, 3), ()),
    (aten.detach.default, (2, 3), ()),
    (aten.squeeze.default, (1, 3, 1), ()),
    (aten.squeeze.dim, (1, 3, 1), (0,)),
    (aten.squeeze.dims, (1, 3, 1), ([0, -1],)),
    (aten.unsqueeze.default, (2, 3), (-1,)),
    (aten.unsqueeze.default, (2, 3), (0,)),
    (aten.permute.default, (2, 3, 4), ([1, -1, 0],)),
    (aten.transpose.int, (2, 3, 4), (0, -1)),
    (aten.t.default, (2, 3), ()),
    (aten.select.int, (2, 3, 4), (-2, 1)),
    (aten.slice.Tensor, (5, 3), (0, 1, -1, 2)),
    (aten.slice.Tensor, (5, 3), (-1,)),
    (aten.diagonal.default, (3, 4, 2), (1, 0, 1)),
    (aten.diagonal.default, (3, 4), (-1,)),
    (aten.as_strided.default, (3, 4), ([2, 2], [4, 1], 1)),
    (aten.expand.default, (3, 1), ([3, 1],)),
    (aten.unfold.default, (7, 2), (0, 2, 3)),
    (aten.unfold.default, (2, 6), (-1, 3, 3)),
    (aten.split.Tensor, (5, 3), (2,)),
    (aten.split_with_sizes.default, (3, 5), ([1, 4], -1)),
    (aten.unbind.int, (2, 3), (1,)),
    (aten.view.dtype, (2, 4), (torch.int32,)),
    (aten.view.dtype, (2, 4), (torch.int16,)),
    (aten.view.dtype, (2, 4), (torch.float64,)),
    (aten.view_as_complex.default, (3, 2), ()),
]


@pytest.mark.parametrize(("overload", "size", "args"), VIEWS, ids=lambda v: str(v))
@pytest.mark.parametrize("layout", ["row-major", "permuted"])
def test_inverses_do_what_a_write_in_place_does(
    overload: Any, size: tuple[int, ...], args: tuple[Any, ...], layout: str
) -> None:
    numel = torch.Size(size).numel()
    base = torch.arange(float(numel)).view(size)
    if layout == "permuted":
        base = base.view(size[::-1]).permute(*range(len(size) - 1, -1, -1))
        if overload in (aten.view.default, aten.view.dtype, aten.view_as_complex.default):
            pytest.skip("no such view of a permuted tensor")
    pieces = overload(base, *args)
    count = len(pieces) if isinstance(pieces, (list, tuple)) else 1
    for position in range(count):
        expected = base.clone()
        many = isinstance(pieces, (list, tuple))
        view = overload(expected, *args)[position] if many else overload(expected, *args)
        new = torch.randint(100, (view.numel(),)).to(view.dtype).view(view.shape)
        view.copy_(new)
        where = (position,) if many else ()
        got = operator(overload).view_inverse(base, new, *where, *args)  # type: ignore[misc]
        assert got.shape == base.shape
        assert got.dtype == base.dtype
        assert bytes(got.contiguous().numpy()) == bytes(expected.contiguous().numpy())


@pytest.mark.parametrize("overload", [aten.view_as_real.default, aten._conj.default])
def test_inverses_of_complex_views(overload: Any) -> None:
    base = torch.randn(3, 2, dtype=torch.complex64)
    expected = base.clone()
    view = overload(expected)
    new = torch.randn(view.shape, dtype=view.dtype)
    view.copy_(new)
    got = operator(overload).view_inverse(base, new)  # type: ignore[misc]
    torch.testing.assert_close(got, expected)


def test_every_view_of_strided_tensors_has_an_inverse() -> None:
    without = {
        str(o)
        for o in lostwax.ops.registry.overloads_with_rules()
        if operator(o).kind == "view" and operator(o).view_inverse is None
    }
    assert not without


COPIES = [
    (getattr(getattr(aten, f"{o.overloadpacket.__name__}_copy"), o._overloadname), o, size, args)
    for o, size, args in VIEWS
    if o is not aten.view.dtype
]


@pytest.mark.parametrize(("copy", "overload", "size", "args"), COPIES, ids=lambda v: str(v))
def test_copies_are_new_and_row_major(
    copy: Any, overload: Any, size: tuple[int, ...], args: tuple[Any, ...]
) -> None:
    base = torch.empty(size[::-1]).permute(*range(len(size) - 1, -1, -1))
    if overload in (aten.view.default, aten.view_as_complex.default):
        base = torch.empty(size)
    want, got = copy(base, *args), ruled(copy, type_of(base), *args)
    for w, g in zip(
        want if isinstance(want, (list, tuple)) else [want],
        got if isinstance(got, list) else [got],
        strict=True,
    ):
        assert (g.size, g.stride, g.offset, g.dtype) == (w.shape, w.stride(), 0, w.dtype)


IN_PLACE: list[tuple[Any, tuple[Any, ...]]] = [
    (aten.t_.default, ()),
    (aten.transpose_.default, (0, -1)),
    (aten.squeeze_.default, ()),
    (aten.squeeze_.dim, (1,)),
    (aten.squeeze_.dims, ([0, 1],)),
    (aten.unsqueeze_.default, (1,)),
    (aten.as_strided_.default, ([2], [1], 1)),
    (aten.resize_.default, ([3, 2],)),
    (aten.resize_.default, ([1, 4],)),
    (aten.set_.default, ()),
]


@pytest.mark.parametrize(("overload", "args"), IN_PLACE, ids=lambda v: str(v))
def test_metadata_changed_in_place(overload: Any, args: tuple[Any, ...]) -> None:
    x = torch.empty(4, 1).t()
    got = ruled(overload, type_of(x), *args)
    assert operator(overload).changes_metadata
    overload(x, *args)
    assert (got.size, got.stride, got.offset) == (x.shape, x.stride(), x.storage_offset())


# ------------------------------------------------------------------------------------------- errors


def r(*size: int) -> torch.Tensor:
    return torch.zeros(size)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values)


ERRORS: list[tuple[Any, ...]] = [
    (aten.view.default, r(2, 3), [4, 2]),
    (aten.view.default, r(2, 3), [-1, -1]),
    (aten.view.default, r(2, 3), [-2, 3]),
    (aten.view.default, r(2, 3), [4, -1]),
    (aten.view.default, r(0, 3), [0, -1]),
    (aten.view.default, r(2, 3).t(), [6]),
    (aten.expand.default, r(2, 3), [3]),
    (aten.expand.default, r(2, 3), [-1, 2, 3]),
    (aten.expand.default, r(2, 3), [4, 3]),
    (aten.permute.default, r(2, 3), [0]),
    (aten.permute.default, r(2, 3), [0, 0]),
    (aten.permute.default, r(2, 3), [0, 2]),
    (aten.t.default, r(1, 2, 3)),
    (aten.transpose.int, r(2, 3), 0, 5),
    (aten.unsqueeze.default, r(2, 3), 5),
    (aten.squeeze.dims, r(2, 3), [0, 0]),
    (aten.select.int, r(2, 3), 0, 5),
    (aten.select.int, r(2, 3), 1, -4),
    (aten.select.int, r(), 0, 0),
    (aten.slice.Tensor, r(2, 3), 0, 0, 1, 0),
    (aten.slice.Tensor, r(), 0),
    (aten.split.Tensor, r(2, 3), -1),
    (aten.split.Tensor, r(2, 3), 0),
    (aten.split.Tensor, r(), 1),
    (aten.split_with_sizes.default, r(2, 3), [1, 2]),
    (aten.split_with_sizes.default, r(2, 3), [-1, 3]),
    (aten.unbind.int, r()),
    (aten.unfold.default, r(2, 3), 0, 5, 1),
    (aten.unfold.default, r(2, 3), 0, 1, 0),
    (aten.unfold.default, r(2, 3), 0, -1, 1),
    (aten.diagonal.default, r(2, 3), 0, 0, 0),
    (aten.as_strided.default, r(2, 3), [2], [1, 2]),
    (aten.as_strided.default, r(2, 3), [2], [-1]),
    (aten.as_strided.default, r(2, 3), [2], [1], -1),
    (aten.view.dtype, r(2, 3), torch.float64),
    (aten.view.dtype, r(), torch.float64),
    (aten.view.dtype, r(2, 2).t(), torch.int8),
    (aten.view.dtype, r(3, 4)[:, 1:3], torch.float64),
    (aten.view.dtype, r(3, 3)[:, :2], torch.float64),
    (aten.view_as_complex.default, r(2, 3)),
    (aten.view_as_complex.default, r(2, 3)[:, :2]),
    (aten.view_as_complex.default, r(2, 2).long()),
    (aten.view_as_real.default, r(2)),
    (aten.index.Tensor, r(2, 3), [ints(0), ints(0), ints(0)]),
    (aten.index.Tensor, r(2, 3), [r(2)]),
    (aten.index.Tensor, r(2, 3), [r(3).bool()]),
    (aten.index.Tensor, r(2, 3), [ints(0, 1), ints(0, 1, 2)]),
    (aten.index.Tensor, r(0, 3), [ints(0)]),
    (aten.index_put.default, r(2, 3), [ints(0, 1)], r(4)),
    (aten.index_put.default, r(2, 3), [ints(0)], ints(1)),
    (aten.index_select.default, r(2, 3), 0, r(1, 1).long()),
    (aten.index_select.default, r(2, 3), 0, r(1)),
    (aten.gather.default, r(2, 3), 0, r(2, 3)),
    (aten.gather.default, r(2, 3), 0, ints(0)),
    (aten.gather.default, r(2, 3), 0, r(2, 4).long()),
    (aten.scatter.src, r(2, 3), 0, r(2, 3).long(), r(1, 3)),
    (aten.scatter.src, r(2, 3), 0, r(2, 3).long(), r(2, 3).double()),
    (aten.index_add.default, r(2, 3), 0, ints(0, 1), r(3, 3)),
    (aten.index_add.default, r(2, 3), 0, ints(0), r(1, 4)),
    (aten.index_copy.default, r(2, 3), 0, ints(0, 1), r(3, 3)),
    (aten.index_copy.default, r(2, 3), 0, ints(0), r(1, 4)),
    (aten.masked_select.default, r(2, 3), r(2, 3)),
    (aten.masked_scatter.default, r(2, 3), r(2, 3).bool(), r(2, 3).double()),
    (aten.embedding.default, r(3), ints(0)),
    (aten.embedding.default, r(2, 3), r(2)),
    (aten.cat.default, []),
    (aten.cat.default, [r()]),
    (aten.cat.default, [r(2, 3), r(2, 4)]),
    (aten.cat.default, [r(2, 3), r(2)]),
    (aten.stack.default, [r(2, 3), r(3, 2)]),
    (aten.constant_pad_nd.default, r(2, 3), [1]),
    (aten.constant_pad_nd.default, r(2, 3), [1] * 6),
    (aten.constant_pad_nd.default, r(2, 3), [-4, 0, 1, 1]),
    (aten.reflection_pad1d.default, r(2, 3, 4), [9, 9]),
    (aten.reflection_pad2d.default, r(4, 5), [1] * 4),
    (aten.repeat.default, r(2, 3), [2]),
    (aten.roll.default, r(2, 3), [1, 2], [0]),
    (aten.flip.default, r(2, 3), [0, 0]),
    (aten.slice_scatter.default, r(2, 3), r(3, 3)),
    (aten.select_scatter.default, r(2, 3), r(2), 0, 0),
    (aten.copy.default, r(2, 3), r(3, 3)),
    (aten.copy.default, r(2, 3), r(2, 2, 3)),
    (aten.empty.memory_format, [-1, 2]),
    (aten.empty_strided.default, [2, 3], [1]),
    (aten.arange.start_step, 5, 1, 1),
    (aten.arange.start_step, 0, 1, 0),
    (aten.linspace.default, 0, 1, -1),
    (aten.eye.default, -1),
    (aten.rand.default, [-1]),
    (aten.randint.default, 0, [2]),
    (aten.multinomial.default, torch.rand(2, 3), 4),
    (aten.multinomial.default, torch.rand(2, 3), 0),
]


@pytest.mark.parametrize("call", ERRORS, ids=[f"{i}-{c[0]}" for i, c in enumerate(ERRORS)])
def test_errors_are_those_of_eager(call: tuple[Any, ...]) -> None:
    overload, *args = call
    with pytest.raises(Exception) as eager:
        overload(*args)
    types = torch.utils._pytree.tree_map_only(torch.Tensor, type_of, args)
    fresh = (None,) if operator(overload).data_dependent else ()
    with pytest.raises(type(eager.value)) as ours:
        ruled(overload, *fresh, *types)
    assert str(ours.value) == text(eager.value)
