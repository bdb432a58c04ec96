"""Expressions that users reported as hangs, explosions or needless guards elsewhere: right, and
within a budget of steps.

Steps count the engine's own work, so the budgets hold on any machine. Each is two to four times
what the engine needed when the test was written: room for change, none for another order of growth.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import pairwise

import pytest

from lostwax import sym
from lostwax.errors import DataDependentError


@pytest.fixture
def env():
    return sym.ShapeEnv()


@contextmanager
def budget(env, steps):
    before = env.steps
    yield
    used = env.steps - before
    print(f"{used} steps of {steps}")
    assert used <= steps


def total(parts):
    return sum(parts, 0)


def certain(b):
    return sym.known(b) is True


def test_a_sum_of_100_unbacked_integers_divided(env):
    with budget(env, 30_000):
        numbers = [env.unbacked(lo=0) for _ in range(100)]
        everything = total(numbers)
        half = everything // 2
        assert certain(half >= 0)
        assert certain(everything >= half)
        assert certain(everything % 7 <= 6)
        assert certain(sym.eq(8 * everything // 8, everything))
        assert sym.known(sym.eq(half, 3)) is None
        assert not sym.decide_or(sym.eq(everything, 0), False)
        with pytest.raises(DataDependentError):
            sym.decide(sym.eq(half, 3))
        assert sym.expect(sym.eq(everything % 4, 0))
        assert certain(sym.eq(everything // 4 * 4, everything))
    assert len(env.guards) == 1


def test_partial_sums_of_100_unbacked_integers(env):
    """The offsets of a ragged batch: each is at most the next, and the last at most the total."""
    with budget(env, 30_000):
        numbers = [env.unbacked(lo=0, hi=64) for _ in range(100)]
        offsets = [0]
        for n in numbers:
            offsets.append(offsets[-1] + n)
        assert all(certain(a <= b) for a, b in pairwise(offsets[1:]))
        assert certain(offsets[-1] <= 6400)
        assert all(certain(o // 8 <= offsets[-1] // 8) for o in offsets[1::10])
    assert env.guards == []


@pytest.mark.parametrize("pad", [lambda s: (s + 7) // 8 * 8, lambda s: sym.ceildiv(s, 8) * 8])
def test_rounded_up_to_a_multiple_of_8(env, pad):
    with budget(env, 200):
        s = env.symbol(hint=13)
        padded = pad(s)
        assert certain(sym.eq(padded % 8, 0))
        assert env.divisor(padded) % 8 == 0
        assert certain(padded >= s)
        assert certain(padded - s <= 7)
        assert pad(padded) is padded
        assert certain(sym.eq(padded // 8, (s + 7) // 8))
        assert padded.hint == 16
    assert env.guards == []


def test_padding_of_padding(env):
    """Each layer pads what the one before it left: the expression must not grow with the depth."""
    with budget(env, 200):
        s = env.symbol(hint=13)
        padded = s
        for _ in range(50):
            padded = (padded + 7) // 8 * 8
        assert padded is (s + 7) // 8 * 8
        assert certain(sym.eq((padded // 2 + 3) // 4 * 4 * 2, padded))


def test_min_of_two_multiples(env):
    with budget(env, 100):
        s = env.symbol(hint=5)
        assert sym.minimum(64 * s, 512 * s) is 64 * s
        assert sym.maximum(64 * s, 512 * s) is 512 * s
        assert certain(sym.minimum(64 * s, 512 * s) <= 100 * s)
    assert env.guards == []


def test_min_of_two_multiples_of_any_sign(env):
    n = env.unbacked("n")
    e = sym.minimum(64 * n, 512 * n)
    assert certain(e <= 64 * n)
    assert sym.known(sym.eq(e, 64 * n)) is None
    env.learn(n <= 0)
    assert certain(sym.eq(e, 512 * n))


def test_swin_windows(env):
    """Padding to windows, splitting into them and joining them again, as Swin writes it."""
    with budget(env, 700):
        b, h, w = (env.symbol(n, hint=v, lo=1) for n, v in (("b", 2), ("h", 50), ("w", 61)))
        window, channels = 7, 96
        padded_h, padded_w = h + (window - h % window) % window, w + (window - w % window) % window
        assert certain(sym.eq(padded_h % window, 0))
        assert certain(padded_h >= h)
        rows, columns = padded_h // window, padded_w // window
        numel = b * padded_h * padded_w * channels
        assert certain(sym.eq(numel, b * rows * window * columns * window * channels))
        windows = b * rows * columns
        assert certain(sym.eq(windows * window * window * channels, numel))
        assert certain(sym.eq(windows // (padded_h * padded_w // window // window), b))
        assert certain(sym.eq(numel // (b * rows * columns * window * window), channels))
        assert certain(rows >= 1)
    assert env.guards == []


def test_swin_patch_merging(env):
    """Three times: pad to even, take every second row and column."""
    with budget(env, 600):
        h = env.symbol("h", hint=50, lo=1)
        side = h
        for _ in range(3):
            side = side + side % 2
            assert certain(sym.eq(side % 2, 0))
            evens, odds = (side + 1) // 2, (side - 1 + 1) // 2
            assert certain(sym.eq(evens, odds))
            side = evens
        assert certain(side >= 1)
        assert side.hint == 7
    assert env.guards == []


def test_4096_distinct_products(env):
    with budget(env, 500_000):
        left = [env.symbol(f"a{i}", hint=i + 1, lo=1) for i in range(64)]
        right = [env.symbol(f"b{i}", hint=i + 2) for i in range(64)]
        products = [a * b for a in left for b in right]
        assert len(set(map(id, products))) == 4096
        assert all(certain(p >= 0) for p in products)
        assert all(p // a is right[0] for p, a in zip(products[::64], left, strict=True))
        everything = total(products[::8])
        assert certain(everything >= products[0])
        assert sym.known(sym.eq(everything, 0)) is None
    assert env.guards == []


def test_a_product_of_two_long_sums(env):
    """(a0 + ... + a63)*(b0 + ... + b63) has 4,096 terms: too many to write out at every step."""
    with budget(env, 50_000):
        left = total(env.symbol(f"a{i}", hint=i + 1) for i in range(64))
        right = total(env.symbol(f"b{i}", hint=i + 2) for i in range(64))
        product = left * right
        assert product.hint == sum(range(1, 65)) * sum(range(2, 66))
        assert certain(product >= 0)
        assert certain(sym.eq(product, right * left))
        assert sym.known(sym.eq(product // 2, 7)) is None


def test_a_chain_of_100_convolutions(env):
    """Every layer's size is a quotient of the one before; only the smallest matters in the end."""
    with budget(env, 1_800):
        side = env.symbol("h", hint=1 << 20, lo=0)
        for _ in range(12):
            side = (side + 2 - 3) // 2 + 1
            assert sym.decide(side >= 1)
        for _ in range(100):
            side = (side + 2 - 3) // 1 + 1
    assert len(env.minimal_guards()) <= 1


def test_nested_extrema(env):
    """Clamping in a loop, as slices do: min and max of what was clamped before."""
    with budget(env, 6_000):
        s, n = env.symbol("s", hint=40), env.symbol("n", hint=30)
        end = n
        for k in range(30):
            end = sym.minimum(sym.maximum(end, 0), s + k)
        assert certain(end <= s)
        assert certain(end >= 0)
        other = n
        for k in range(12):
            other = sym.maximum(sym.minimum(other + k, s), k)
        assert certain(other >= 11)


def test_questions_that_are_too_hard_are_unknown(env):
    """Nobody can tell: the answer is None, at a bounded price."""
    a, b, c = (env.symbol(n, hint=v, lo=1) for n, v in (("a", 3), ("b", 4), ("c", 5)))
    with budget(env, 50_000):
        cubes = a * a * a + b * b * b - c * c * c
        assert sym.known(sym.eq(cubes, 0)) is None
        assert sym.known(sym.eq((a * b + c) % (a + b), (b * c + a) % (b + c))) is None
        knot = a
        for k in range(12):
            knot = (knot * b + k) // (c + k) + knot % (b + k)
        sym.known(knot >= 0)
        sym.known(sym.eq(knot % 2, 0))
