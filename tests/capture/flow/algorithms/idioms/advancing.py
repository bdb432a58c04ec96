"""Iterators that only one way advances, and loops that leave them before their end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, count, cycle, islice, pairwise, product, repeat, zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from tests.capture.flow.algorithms.program import draw, floats, ints, number, program


@program(draw(4), draw(4, seed=1) * 10, -torch.ones(4) * 3)
class NextLayerIfNeeded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        layers = iter(self.layers)
        x = next(layers)(x)
        if x.norm() > 1:
            x = next(layers)(x)
        return next(layers)(x)


@program((draw(5), floats(1, 0, 1, 1, 0)), (draw(5), torch.zeros(5)), (draw(5), torch.ones(5)))
def fill_masked(x: Tensor, mask: Tensor) -> Tensor:
    values = iter(range(10, 20))
    out = []
    for each, is_masked in zip(x, mask):
        if is_masked > 0:
            out.append(each * 0 + next(values))
        else:
            out.append(each)
    return torch.stack(out)


@program((draw(5), floats(1, 0, 1, 1, 0)), (draw(5), torch.zeros(5)), (draw(5), torch.ones(5)))
def fill_masked_with_rows(x: Tensor, mask: Tensor) -> Tensor:
    images = iter(torch.arange(5.0) * 100)
    out = []
    for i in range(5):
        out.append(next(images) if mask[i] > 0 else x[i])
    return torch.stack(out)


@program(draw(4), draw(4, seed=1) * 10, torch.zeros(4))
class ChainOfLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.decoder = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in chain(self.encoder, self.decoder):
            new = torch.tanh(layer(x))
            if (new - x).norm() < 1.0:
                break
            x = new
        return x


@program((draw(6), number(2)), (draw(6), number(0)), (draw(6), number(9)))
def first_rows_by_islice(x: Tensor, n: Tensor) -> Tensor:
    total = torch.zeros(())
    for each in islice(x, n.item()):
        total = total + each
    return total


@program(floats(1, 2, 3, -4, 5), floats(-1, 2, 3, 4, 5), floats(1, 2, 3, 4, 5))
def islice_then_break(x: Tensor) -> Tensor:
    total = torch.zeros(())
    for each in islice(x, 1, 5, 2):
        if each < 0:
            break
        total = total + each
    return total


@program(draw(4), draw(4, seed=1) * 10, torch.zeros(4))
class GeneratorOfStages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def stages(self, x: Tensor) -> Iterator[Tensor]:
        for layer in self.layers:
            x = torch.tanh(layer(x))
            yield x

    def forward(self, x: Tensor) -> Tensor:
        for state in self.stages(x):
            if state.abs().max() > 0.7:
                break
        return state


def _newton(x: Tensor) -> Iterator[Tensor]:
    root = x
    while True:
        root = (root + x / root) / 2
        yield root


@program(number(2.0), number(100.0), number(1.0))
def take_from_an_endless_generator(x: Tensor) -> tuple[Tensor, int]:
    for step, root in enumerate(_newton(x)):
        if (root * root - x).abs() < 1e-3 or step == 20:
            break
    return root, step


@program(
    (ints(2, 3, 0, 1), number(1)), (ints(1, 0, 0, 2), number(3)), (ints(3, 3, 3, 3), number(2))
)
def until_a_sentinel(table: Tensor, start: Tensor) -> tuple[Tensor, int]:
    state = {"at": start}

    def step() -> Tensor:
        state["at"] = table[state["at"]]
        return state["at"]

    steps = 0
    for _ in iter(step, 0):
        steps += 1
        if steps > 8:
            break
    return state["at"], steps


@program(floats(-1, -2, 3, 4), floats(-1, -2, -3, -4), floats(5, 1, 1, 1))
def first_that_is_positive(x: Tensor) -> tuple[int, Tensor]:
    at = next((i for i, each in enumerate(x) if each > 0), -1)
    return at, x[at]


@program(floats(-1, -2, 3, 4), floats(-1, -2, -3, -4), floats(5, 1, 1, 1))
def first_value_or_default(x: Tensor) -> Tensor:
    return next((each * 2 for each in x if each > 0), torch.tensor(-1.0))


class ProgressBar:
    """What tqdm does of which models see something."""

    def __init__(self, values: Any, total: int | None = None) -> None:
        self.values, self.n, self.postfix = values, 0, ""
        self.total = len(values) if total is None else total

    def __iter__(self) -> Iterator[Any]:
        for each in self.values:
            yield each
            self.n += 1

    def set_postfix(self, **shown: Any) -> None:
        self.postfix = ", ".join(shown)

    def update(self, n: int = 1) -> None:
        self.n += n


@program(floats(9, 4), floats(0.1, 0.1), floats(1e3, 1))
def descend_with_a_progress_bar(x: Tensor) -> Tensor:
    bar = ProgressBar(range(20))
    for _ in bar:
        x = x - 0.4 * x
        bar.set_postfix(loss=x)
        if x.norm() < 0.1:
            break
    return x


@program(floats(9, 4), floats(0.1, 0.1), floats(1e3, 1))
def descend_and_update_a_bar(x: Tensor) -> Tensor:
    bar = ProgressBar((), total=20)
    for _ in range(20):
        x = x - 0.4 * x
        bar.update(1)
        if x.norm() < 0.1:
            break
    return x


@program(floats(1, 2, -3, 4), floats(4, 3, 2, 1), floats(1, 2, 3, 4))
def first_descent(x: Tensor) -> tuple[Tensor, int]:
    at = 0
    for one, other in pairwise(x):
        if other < one:
            break
        at += 1
    else:
        return x.sum(), -1
    return x[at], at


@program(floats([1, 9], [2, 3]), floats([1, 2], [3, 4]), floats([9, 1], [1, 1]))
def first_large_cell(x: Tensor) -> Tensor:
    found = torch.tensor([-1, -1])
    for i, j in product(range(2), range(2)):
        if x[i, j] > 5:
            found = torch.tensor([i, j])
            break
    return found


@program((number(1.0), number(20.0)), (number(3.0), number(4.0)), (number(9.0), number(1.0)))
def doubling_with_count(x: Tensor, limit: Tensor) -> tuple[Tensor, int]:
    for step in count():
        if x >= limit:
            break
        x = x * 2
    return x, step


@program((number(1.0), number(20.0)), (number(3.0), number(4.0)), (number(9.0), number(1.0)))
def factors_in_a_cycle(x: Tensor, limit: Tensor) -> Tensor:
    factors = cycle([2.0, 3.0])
    while x < limit:
        x = x * next(factors)
    return x


@program(floats(9, 4), floats(0.1, 0.1), floats(1e3, 1))
def retries_by_repeat(x: Tensor) -> Tensor:
    for rate in repeat(0.5, 6):
        if x.norm() < 0.2:
            break
        x = x * rate
    return x


@program(
    (floats(1, 2, 3), floats(1, 2)),
    (floats(1, 5, 3), floats(1, 2)),
    (floats(3, 2, 1), floats(3, 2)),
)
def compare_to_the_longer(a: Tensor, b: Tensor) -> int:
    same = 0
    for one, other in zip_longest(a, b):
        if other is None or one != other:
            break
        same += 1
    return same


@program(floats(1, -2, 3, 4), floats(-1, -2, -3, -4), floats(5, 1, 1, 1))
def next_until_it_stops(x: Tensor) -> Tensor:
    rows, total = iter(x), torch.zeros(())
    while True:
        try:
            row = next(rows)
        except StopIteration:
            break
        if row > 0:
            total = total + row
    return total


@program(floats(1, -2, 3, -4), floats(-1, -2, -3, -4), floats(5, 1, 1, 1))
def skip_the_one_after(x: Tensor) -> Tensor:
    rows, total = iter(x), torch.zeros(())
    for row in rows:
        total = total + row
        if row < 0:
            next(rows, None)
    return total


@program(floats(5, 1, 2, 8), floats(1, 1, 1, 1), floats(9, 9, 9, 9))
def queue_of_jobs(x: Tensor) -> Tensor:
    queue, done = deque(x), torch.zeros(())
    budget = 4
    while queue and budget > 0:
        job = queue.popleft()
        if job > 4:
            queue.append(job / 2)
        else:
            done = done + job
        budget -= 1
    return done


@program(
    (floats(1, 2, 3), floats(0.4, 0.7)),
    (floats(1, 1, 1), floats(0.1, 0.1)),
    (floats(3, 2, 1), floats(0.9, 0.9)),
)
def fall_back_to_the_next_rate(x: Tensor, loss: Tensor) -> Tensor:
    rates: Iterable[float] = iter([1.0, 0.5, 0.25])
    rate = next(rates)
    for each in loss:
        if each > 0.5:
            rate = next(rates)
        x = x * rate
    return x


@program(ints(3, 1, 2, 9, 5), ints(9, 1, 1, 1, 1), ints(1, 2, 3, 4, 5))
def rest_after_a_mark(ids: Tensor) -> tuple[Tensor, Tensor]:
    rows = iter(ids)
    before = after = torch.zeros((), dtype=torch.int64)
    for row in rows:
        if row == 9:
            break
        before = before + row
    for row in rows:
        after = after + row
    return before, after


@program(floats(1, 2, -3), floats(-1, 2, 3), floats(1, 2, 3))
def reversed_with_break(x: Tensor) -> tuple[Tensor, int]:
    kept = 3
    for row in reversed(list(x)):
        if row > 0:
            break
        kept -= 1
    return x.sum(), kept
