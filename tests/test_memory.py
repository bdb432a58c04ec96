"""Places in memory, compared with brute force: every element of every small layout is listed."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest
import torch

from lostwax import memory
from lostwax.sym import ShapeEnv
from lostwax.types import TensorType

CPU = torch.device("cpu")


def layout(
    size: tuple[Any, ...], stride: tuple[Any, ...], offset: Any = 0, dtype: Any = torch.float32
) -> TensorType:
    return TensorType(size, dtype, CPU, stride, offset)


def listed(t: TensorType) -> list[Any]:
    """The place of each element, in order."""
    indices = product(*map(range, t.size))
    return [t.offset + sum(i * st for i, st in zip(at, t.stride, strict=True)) for at in indices]


def bytes_of(t: TensorType) -> set[int]:
    width = t.dtype.itemsize
    return {place * width + i for place in listed(t) for i in range(width)}


def drawn(seed: int) -> TensorType:
    draw = random.Random(seed)
    ndim = draw.randint(0, 3)
    size = tuple(draw.choice((0, 1, 1, 2, 2, 3, 4)) for _ in range(ndim))
    stride = tuple(draw.choice((0, 1, 1, 2, 2, 3, 4, 5, 6, 8, 12)) for _ in range(ndim))
    if draw.random() < 0.3:
        stride = TensorType(size, torch.float32, CPU).stride
    dtype = draw.choice((torch.float32, torch.float32, torch.int8, torch.float64, torch.complex128))
    return layout(size, stride, draw.randint(0, 12), dtype)


LAYOUTS = [drawn(seed) for seed in range(1500)]
PAIRS = [(a, b) for i, a in enumerate(LAYOUTS) for b in LAYOUTS[i : i + 4]]


def test_the_layouts_are_of_all_kinds():
    assert {memory.overlap(a, b) for a, b in PAIRS} == {True, False}
    assert {memory.repeats(t) for t in LAYOUTS} == {True, False}
    several = [(a, b) for a, b in PAIRS if a.dtype is b.dtype and a != b and 0 not in a.size]
    assert {memory.lies_within(a, b) for a, b in several} == {True, False}
    assert {memory.shows_all(a, b) for a, b in several} == {True, False}


def test_places_are_those_of_the_elements_in_their_order():
    for t in LAYOUTS:
        found = memory.places(t)
        assert found.shape == t.size
        assert found.reshape(-1).tolist() == listed(t), t


def test_a_span_ends_behind_the_last_element():
    for t in LAYOUTS:
        there = listed(t)
        assert memory.span(t) == (t.offset, max(there) + 1 if there else t.offset), t
        inside = bytes_of(t)
        low, high = memory.byte_span(t)
        assert (low, high) == (min(inside), max(inside) + 1) if inside else low == high


def test_an_overlap_is_a_byte_of_both():
    for a, b in PAIRS:
        assert memory.overlap(a, b) == memory.overlap(b, a) == bool(bytes_of(a) & bytes_of(b)), (
            a, b, a.stride, b.stride,
        )  # fmt: skip


def test_spans_meet_where_a_byte_lies_between_first_and_last_of_both():
    for a, b in PAIRS:
        between = [range(*memory.byte_span(t)) for t in (a, b)]  # type: ignore[arg-type]
        assert memory.spans_meet(a, b) == bool(set(between[0]) & set(between[1]))


def test_repeats_counts_places_against_elements():
    for t in LAYOUTS:
        there = listed(t)
        assert memory.repeats(t) == (len(set(there)) < len(there)), (t, t.stride)
        if any(s > 1 for s in memory.expanded_sizes(t)):  # type: ignore[operator]
            assert memory.repeats(t) or 0 in t.size


def test_lies_within_and_shows_all_count_elements():
    for a, b in PAIRS:
        if a.dtype is not b.dtype:
            continue
        part, whole = listed(a), listed(b)
        assert memory.lies_within(a, b) == (set(part) <= set(whole)), (a, b)
        is_all = sorted(set(part)) == sorted(part) == sorted(set(whole)) == sorted(whole)
        if memory.shows_all(a, b):
            assert is_all or a == b
        elif is_all and part:  # for certain, so it may be missed: only where there are gaps
            assert not (a.is_dense and b.is_dense)


@pytest.mark.parametrize("columns", [10, 11, 20])
def test_large_layouts_are_compared_without_being_listed(columns: int):
    rows = 10**9
    left = layout((rows, columns), (30, 1))
    right = layout((rows, 10), (30, 1), 10)
    turned = layout((10, rows), (1, 30), 10)
    assert memory.overlap(left, right) == memory.overlap(left, turned) == (columns > 10)
    assert not memory.repeats(layout((rows, 30, 2), (60, 1, 30)))
    assert memory.repeats(layout((rows, 31, 2), (60, 1, 30)))


def test_unknown_sizes_may_reach_everywhere():
    n: Any = ShapeEnv().symbol("n", hint=4, lo=2)
    assert memory.overlap(layout((n,), (1,)), layout((3,), (1,), 100))
    assert memory.span(layout((n, 3), (6, 2))) == (0, 6 * (n - 1) + 5)
    assert memory.spans_meet(layout((n,), (1,)), layout((3,), (1,), 1))
    assert not memory.spans_meet(layout((n,), (1,)), layout((3,), (1,), 2))
    assert memory.expanded_sizes(layout((n, 1, 5, 0, n), (0, 0, 0, 0, 1))) == [n, 5]
