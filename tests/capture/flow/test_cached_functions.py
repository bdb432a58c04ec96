"""Functions with a cache (`functools.lru_cache`) that are asked in sides of an `if` on data, in
loops and in calls in a row: eager computes a result once. A program equals eager, or says why
not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax.errors import CaptureError
from tests.control_programs import cond, plain_python

INPUTS = [
    torch.tensor(each)
    for each in ([1.0, 2.0, -3.0], [-1.0, -2.0, 1.0], [3.0, 0.0, 2.0], [0.0, 0.0, 0.0])
]


def compare(make: Callable[[], Any]) -> None:
    """Is the program as eager, for calls that go either way?"""
    for example in INPUTS[:2]:
        program = lostwax.export(make(), (example,))
        for x in INPUTS:
            torch.testing.assert_close(program.module()(x), make()(x))


def refuse(make: Callable[[], Any], *texts: str) -> None:
    for example in INPUTS[:2]:
        with pytest.raises(CaptureError) as caught:
            lostwax.export(make(), (example,))
        for text in texts:
            assert text in str(caught.value)


def count(act: Callable[[Any, Tensor], Any], most: int | None = None) -> Callable[[], Any]:
    """Make a function that acts with one that counts, and returns how often it was computed."""

    def call(x: Tensor) -> Tensor:
        n = [0]

        @lru_cache(most)
        def compute(k: int) -> int:
            n[0] += 1
            return k

        act(compute, x)
        return x + n[0]

    return lambda: call


def one_side(g: Any, x: Tensor) -> None:
    if x[0] > 0:
        g(1)
        g(1)
    g(1)


def both_sides(g: Any, x: Tensor) -> None:
    y = g(1) if x[0] > 0 else g(1) + 1
    g(y)


def clears(g: Any, x: Tensor) -> None:
    g(1)
    if x[0] > 0:
        g.cache_clear()
    g(1)


def drops(g: Any, x: Tensor) -> None:
    g(1)
    g(2)
    if x[0] > 0:
        g(1)
    g(3)
    g(1)


def joins(g: Any, x: Tensor) -> None:
    if x[0] > 0 and g(1):
        x = x + 1
    g(1)


def known_before(g: Any, x: Tensor) -> None:
    g(1)
    while x.sum() < 5:
        x = x + g(1)


@pytest.mark.parametrize("most", [None, 4])
@pytest.mark.parametrize("act", [one_side, clears, joins, known_before])
def test_what_computing_does_is_done_once(act: Any, most: int | None) -> None:
    compare(count(act, most))


def test_a_cache_with_a_bound_drops_what_was_asked_for_first() -> None:
    compare(count(drops, 2))


def test_what_c_computes_is_computed_once() -> None:
    def make() -> Any:
        def call(x: Tensor) -> Tensor:
            found: list[int] = []
            append = lru_cache(None)(found.append)
            if x[0] > 0:
                append(1)
                append(1)
            append(1)
            return x + len(found)

        return call

    compare(make)


def test_a_loop_that_computes_once_is_refused() -> None:
    def loop(g: Any, x: Tensor) -> None:
        while x.sum() < 5:
            x = x + g(1)

    refuse(count(loop), "the cache of compute", "while x.sum() < 5:")


def test_a_side_that_computes_for_the_next_call_is_refused() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(()))

        @lru_cache(None)  # noqa: B019
        def compute(self, k: int) -> int:
            self.n += 1
            return k

        def forward(self, x: Tensor) -> Tensor:
            if x[0] > 0:
                self.compute(1)
            return x * self.n  # type: ignore[operator]

    refuse(Net, "the cache of compute", "instead: call the function before", "__wrapped__")


# ------------------------------------------------------------------------- what makes no difference


@lru_cache(None)
def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@lru_cache(maxsize=8)
def table(n: int) -> Tensor:
    return torch.arange(n) * 2.0


@lru_cache(None)
def say_once(text: str) -> None:
    print(text, end="")


class Scaled(nn.Module):
    def __init__(self, act: Any) -> None:
        super().__init__()
        self.by, self.act = 3, act

    @lru_cache(None)  # noqa: B019
    def scale(self, k: int) -> int:
        return k * self.by

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self, x)


def only_one_side(self: Any, x: Tensor) -> Any:
    if x[0] > 0:
        say_once("")
        x = x * fibonacci(5) * self.scale(2) + table(3)
    return x


def side_and_after(self: Any, x: Tensor) -> Any:
    if x[0] > 0:
        x = x * fibonacci(5) - table(3)
    return x * fibonacci(5) * self.scale(2) + table(3)


def in_a_loop(self: Any, x: Tensor) -> Any:
    while x.sum() < 5:
        x = x + fibonacci(3) * self.scale(1) + table(3)
    return x


def unrolled(self: Any, x: Tensor) -> Any:
    for i in range(3):
        if x[0] > i:
            x = x + fibonacci(i) + table(3)
    return x


def in_an_operator(self: Any, x: Tensor) -> Any:
    y = cond(x[0] > 0, lambda x: x * fibonacci(5) + table(3), lambda x: x * self.scale(2), (x,))
    return y * 1


@pytest.mark.parametrize(
    "act", [only_one_side, side_and_after, in_a_loop, unrolled, in_an_operator]
)
def test_constants_are_computed_again(act: Any) -> None:
    before = fibonacci.cache_info(), table.cache_info()
    module = Scaled(act)
    program = lostwax.export(module, (INPUTS[0],))
    assert (fibonacci.cache_info().currsize, table.cache_info().currsize) == tuple(
        each.currsize for each in before
    )
    for x in INPUTS:
        with plain_python():
            torch.testing.assert_close(program.module()(x), module(x))
    fibonacci.cache_clear()
    table.cache_clear()


def test_what_has_changed_since_is_refused() -> None:
    def call(x: Tensor) -> Tensor:
        held = [1]

        @lru_cache(None)
        def compute(k: int) -> int:
            return held[0] * k

        if x[0] > 0:
            compute(2)
        held[0] = 10
        return x * compute(2)

    refuse(lambda: call, "whether the cache of compute has a result depends on data", "another")


def test_tensors_that_are_written_to_later_are_refused() -> None:
    def call(x: Tensor) -> Tensor:
        made = lru_cache(None)(lambda n: torch.zeros(n))
        if x[0] > 0:
            x = x + made(3)
        made(3).add_(1)
        return x + made(3)

    refuse(lambda: call, "the cache of <lambda>")


def test_how_often_is_refused_only_where_data_decide() -> None:
    def asks(x: Tensor) -> Tensor:
        g = lru_cache(None)(lambda k: k)
        g(1)
        if x[0] > 0:
            g(1)
        return x + g.cache_info().hits

    refuse(lambda: asks, "how often the cache of <lambda> had a result is asked")

    def knows(x: Tensor) -> Tensor:
        g = lru_cache(None)(lambda k: k)
        if x[0] > 0:
            x = x + 1
        g(1)
        return x + g.cache_info().misses

    compare(lambda: knows)


# -------------------------------------------------------------------------------------- later calls


class Keeping(nn.Module):
    def __init__(self, compute: Callable[[Any], Any], use: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(()))
        self.w = nn.Parameter(torch.ones(3))
        self.make, self.use = compute, use

    @lru_cache(None)  # noqa: B019
    def compute(self) -> Any:
        return self.make(self)

    def forward(self, x: Tensor) -> Any:
        return self.use(self, x)


def count_and(self: Any, x: Tensor) -> Any:
    self.n += 1
    return x * self.compute()


def write(self: Any, x: Tensor) -> Any:
    return x + self.compute().add_(1)


def append(self: Any, x: Tensor) -> Any:
    self.n += 1
    self.compute().append(1)
    return x + len(self.compute())


def step(self: Any) -> int:
    self.n += 1
    return 2


LATER: dict[str, tuple[Any, Any, str]] = {
    "of a buffer that is written": (lambda self: self.n * 2, count_and, "depends on the buffer n"),
    "written to": (lambda self: torch.zeros(3), write, "it is written to after it was computed"),
    "random": (lambda self: torch.rand(3), lambda self, x: x + self.compute(), "aten.rand.default"),
    "a list": (lambda self: [], append, "a later call is another program"),
    "what is done": (step, lambda self, x: x * self.compute() + self.n, "a later call is another"),
}


@pytest.mark.parametrize("name", LATER)
def test_what_the_next_call_would_find_is_refused(name: str) -> None:
    compute, use, text = LATER[name]
    refuse(lambda: Keeping(compute, use), text)


def mask(self: Any) -> Tensor:
    made = torch.zeros(3)
    made[0] = 1
    made.add_(2)
    return made


@pytest.mark.parametrize(
    "compute", [mask, lambda self: self.w * 2, lambda self: 3, lambda self: torch.arange(3)]
)
def test_what_the_next_call_computes_alike_is_kept(compute: Any) -> None:
    module = Keeping(compute, count_and)
    program = lostwax.export(module, (INPUTS[0],))
    called = program.module()
    for x in INPUTS:
        torch.testing.assert_close(called(x), module(x))


class Holder:
    def __init__(self) -> None:
        self.k = 1


def test_a_number_that_data_leave_in_a_kept_object_is_refused() -> None:
    @lru_cache
    def make(n: int) -> Holder:
        return Holder()

    def sets_it_on_one_side(x: Tensor) -> Tensor:
        if x.sum() > 0:
            make(1).k = 5
        return x * make(1).k

    with pytest.raises(CaptureError, match="keeps a number, and data or a size decide it"):
        lostwax.export(sets_it_on_one_side, (INPUTS[0],))


# ----------------------------------------------------------------------------- as before the export


@pytest.mark.parametrize("most", [None, 3])
@pytest.mark.parametrize("typed", [False, True])
def test_caches_are_as_before(most: int | None, typed: bool) -> None:
    closed_over = 1

    @functools.lru_cache(most, typed=typed)
    def compute(a: Any, b: Any = 2, *, c: Any = 3) -> Any:
        return a, b, c, closed_over

    held = [compute(1), compute("x", b=4), compute(1.5, c=(1, 2))]
    program = lostwax.export(lambda x: x + compute(7)[0] + compute(1)[0], (INPUTS[0],))
    torch.testing.assert_close(program.module()(INPUTS[0]), INPUTS[0] + 8)
    misses = compute.cache_info().misses
    again = [compute(1), compute("x", b=4), compute(1.5, c=(1, 2))]
    assert all(a is b for a, b in zip(held, again, strict=True))
    assert compute.cache_info().misses == misses
    assert compute(7) == (7, 2, 3, 1)
    assert compute.cache_info().misses == misses + 1


# ------------------------------------------------------------- given a number that data decide

SCALES = [1]


@functools.cache
def times_scale(n: int) -> int:
    return n * SCALES[0]


@functools.cache
def three_places(n: int) -> Tensor:
    return torch.arange(3) * n


class Timed(nn.Module):
    scale = 2

    @functools.cache  # noqa: B019
    def times(self, n: int) -> int:
        return n * self.scale


class GivenNumbers(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        times_scale.cache_clear()
        return x * times_scale(int(x.sum())) + three_places(int(x[0])) + three_places(3)


class SetsBefore(Timed):
    def forward(self, x: Tensor) -> Tensor:
        self.scale = int(x[0])
        return x * self.times(int(x.sum()))


class SetsBetween(Timed):
    def forward(self, x: Tensor) -> Tensor:
        first = x * self.times(int(x.sum()))
        self.scale = 3
        return first + self.times(6)


class SetsAndPutsBack(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        SCALES[0] = 2
        first = times_scale(6)
        SCALES[0] = 1
        return x * times_scale(int(x.sum())) + first


class SetsAfter(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        first = x * times_scale(int(x.sum()))
        SCALES[0] = 2
        second = times_scale(int(x[0]) + 5)
        SCALES[0] = 1
        return first + second


def test_a_function_that_computes_from_its_arguments_is_computed() -> None:
    three_places(3)  # as eager finds it
    compare(GivenNumbers)


@pytest.mark.parametrize("make", [SetsBefore, SetsBetween, SetsAndPutsBack, SetsAfter])
def test_a_function_that_gets_at_what_changes_is_refused(make: Callable[[], Any]) -> None:
    """Eager may have an older result, with what was there then."""
    times_scale.cache_clear()
    told = "has a cache, and is given a number that data decide.\n  at ", ".__wrapped__(n), or give"
    refuse(make, *told, "it can get at something that changes")
    assert SCALES == [1]
