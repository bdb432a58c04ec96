"""Truths of tensors that functions of Python's own ask for."""

from __future__ import annotations

import bisect
import heapq
import operator
from functools import reduce
from itertools import compress, dropwhile, filterfalse, groupby, takewhile

import torch
from torch import Tensor, nn

from tests.capture.flow.algorithms.program import draw, floats, ints, number, program


@program(draw(3, 2), draw(3, 2, seed=1), torch.zeros(3, 2))
def nearest_to_the_origin(points: Tensor) -> Tensor:
    return min(points, key=lambda p: p.norm())


@program(draw(3, 2), draw(3, 2, seed=1), draw(3, 2, seed=4))
def nearest_by_index(points: Tensor) -> tuple[int, Tensor]:
    best = min(range(len(points)), key=lambda i: points[i].norm())
    return best, points[best]


@program(draw(3), draw(3, seed=1), draw(3, seed=4))
def best_by_its_name(x: Tensor) -> Tensor:
    scores = {"sum": x.sum(), "largest": x.max(), "norm": x.norm() - 1}
    weights = {"sum": 1.0, "largest": 2.0, "norm": 3.0}
    return x * weights[max(scores, key=scores.get)]


@program(draw(3), draw(3, seed=1), draw(3, seed=4))
def best_of_pairs(x: Tensor) -> Tensor:
    candidates = [(x.sum(), x * 2), (x.max(), x * 3), (x.norm(), x * 4)]
    _, best = max(candidates, key=operator.itemgetter(0))
    return best


@program(floats(3, 2, 0, 5), floats(0, 1, 1, 1), floats(1, 2, 3, 4))
def sum_until_zero(x: Tensor) -> Tensor:
    return sum(takewhile(lambda t: t > 0, x), torch.zeros(()))


@program(floats(3, 2, 0, 5), floats(0, 0, 0, 1), floats(0, 0, 0, 0))
def sum_without_leading_zeros(x: Tensor) -> Tensor:
    return sum((t * i for i, t in enumerate(dropwhile(lambda t: t == 0, x))), torch.zeros(()))


@program((ints(1, 2, 3), ints(2, 5)), (ints(1, 4, 3), ints(2, 5)), (ints(5, 5, 5), ints(2, 5)))
def stop_words(ids: Tensor, stops: Tensor) -> tuple[Tensor, int]:
    kept = 0
    words = stops.tolist()
    for token in ids.tolist():
        if token in words:
            break
        kept += 1
    return ids[:kept], kept


@program(number(1), number(5), number(9))
def is_special(token: Tensor) -> Tensor:
    if token in (torch.tensor(1), torch.tensor(9)):
        return token * 10
    return token


@program(draw(3), -torch.ones(3), torch.ones(3))
def equals_true(x: Tensor) -> Tensor:
    is_positive = (x > 0).all()
    if is_positive == True:  # noqa: E712
        return x * 2
    return x - 1


@program(draw(4), -torch.ones(4), torch.ones(4))
def sum_of_filtered(x: Tensor) -> Tensor:
    return sum(filter(lambda t: t > 0, x), torch.zeros(()))


@program(draw(4), -torch.ones(4), torch.ones(4))
def count_of_filtered(x: Tensor) -> int:
    return len(list(filter(lambda t: t > 0, x)))


@program(draw(4), -torch.ones(4), torch.ones(4))
def sum_of_rejected(x: Tensor) -> Tensor:
    total = torch.zeros(())
    for each in filterfalse(lambda t: t > 0, x):
        total = total + each
    return total


@program((draw(4), floats(1, 0, 0, 1)), (draw(4), torch.zeros(4)), (draw(4), torch.ones(4)))
def sum_of_compressed(x: Tensor, mask: Tensor) -> Tensor:
    return sum(compress(x, mask), torch.zeros(()))


@program(draw(3, 2), torch.zeros(3, 2), torch.full((3, 2), float("nan")))
def any_is_bad(x: Tensor) -> Tensor:
    if any(map(lambda row: row.isnan().any(), x)):  # noqa: C417
        return torch.zeros_like(x)
    return x


@program(draw(3, 2), torch.zeros(3, 2), torch.ones(3, 2))
def all_are_small(x: Tensor) -> Tensor:
    are_small = all(map(lambda row: row.norm() < 1, x))  # noqa: C417
    if are_small and not any(map(torch.is_nonzero, x[:, 0])):
        return x + 1
    return x


@program(draw(5), -torch.ones(5), torch.ones(5))
def count_of_truths(x: Tensor) -> tuple[int, Tensor]:
    positive = sum(1 for t in x if t > 0)
    return positive, sum(t > 0 for t in x)


@program(floats(3, 1, 2), floats(1, 1, 1), floats(-1, -2, -3))
def sorted_by_distance(x: Tensor) -> Tensor:
    return torch.stack(sorted(x, key=lambda t: (t - 1.5).abs()))


@program((ints(3, 1, 2), number(1)), (ints(1, 1, 1), number(1)), (ints(1, 2, 3), number(3)))
def index_in_a_list(ids: Tensor, word: Tensor) -> int:
    return ids.tolist().index(word.item())


@program((ints(3, 1, 2), number(1)), (ints(1, 1, 1), number(1)), (ints(1, 2, 3), number(4)))
def count_in_a_list(ids: Tensor, word: Tensor) -> int:
    return ids.tolist().count(word.item())


@program(floats(3, 1, 2), floats(1, 1, 1), floats(-1, -2, -3))
def largest_by_reduce(x: Tensor) -> Tensor:
    return reduce(lambda a, b: a if a > b else b, x)


@program((draw(3), number(0.0)), (draw(3), number(2.0)), (draw(3), number(-1.0)))
def or_a_default(x: Tensor, scale: Tensor) -> Tensor:
    return x * (scale.item() or 1.0)


@program(draw(4), draw(4, seed=1), torch.zeros(4))
class RoutesByLargestScore(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x)
        _, expert = max(zip(scores, self.experts), key=lambda pair: pair[0])
        return expert(x)


@program(draw(5), draw(5, seed=1), torch.zeros(5))
def two_largest_by_a_heap(x: Tensor) -> Tensor:
    return torch.stack(heapq.nlargest(2, x))


@program(number(0.3), number(1.5), number(9.0))
def bucket_by_bisect(x: Tensor) -> int:
    return bisect.bisect_left([0.5, 1.0, 2.0], x.item())


@program(ints(1, 1, 2, 2, 2), ints(1, 1, 1, 1, 1), ints(1, 2, 3, 4, 5))
def runs_by_groupby(ids: Tensor) -> int:
    return len([key for key, _ in groupby(ids.tolist())])


@program(floats(3, 1, 2), floats(1, 1, 1), floats(-1, -2, -3))
def clamp_by_min_and_max(x: Tensor) -> Tensor:
    return torch.stack([min(max(t, torch.tensor(0.0)), torch.tensor(2.0)) for t in x])
