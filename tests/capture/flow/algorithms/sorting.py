"""Order, and looking for things."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.capture.flow.algorithms.program import draw, floats, ints, number, program


@program(draw(5), floats(1.0, 2.0, 3.0, 4.0, 5.0), floats(5.0, 4.0, 3.0, 2.0, 1.0))
def bubble_sort(x: Tensor) -> Tensor:
    x = x.clone()
    n = len(x)
    for i in range(n):
        swapped = False
        for j in range(n - 1 - i):
            if x[j] > x[j + 1]:
                x[j], x[j + 1] = x[j + 1].clone(), x[j].clone()
                swapped = True
        if not swapped:
            break
    return x


@program(draw(4), floats(1.0, 2.0, 3.0, 4.0), floats(4.0, 3.0, 2.0, 1.0))
def insertion_sort(x: Tensor) -> Tensor:
    x = x.clone()
    for i in range(1, len(x)):
        key = x[i].clone()
        j = i - 1
        while j >= 0 and x[j] > key:
            x[j + 1] = x[j]
            j -= 1
        x[j + 1] = key
    return x


@program(draw(5), floats(1.0, 2.0, 2.0, 4.0, 0.0), torch.zeros(5))
def selection_sort(x: Tensor) -> Tensor:
    values = list(x.unbind())
    for i in range(len(values)):
        for j in range(i + 1, len(values)):
            if values[j] < values[i]:
                values[i], values[j] = values[j], values[i]
    return torch.stack(values)


@program(draw(6), torch.arange(6.0), -torch.arange(6.0))
def sort_until_nothing_moves(x: Tensor) -> tuple[Tensor, Tensor]:
    rounds = torch.tensor(0)
    done = torch.tensor(False)
    while not done:
        even = x.view(-1, 2).sort(dim=1).values.view(-1)
        odd = torch.cat([even[:1], even[1:-1].view(-1, 2).sort(dim=1).values.view(-1), even[-1:]])
        done = (odd == x).all()
        x = odd
        rounds = rounds + 1
    return x, rounds


@program(
    (floats(1.0, 3.0, 5.0, 7.0, 9.0), number(7.0)),
    (floats(1.0, 3.0, 5.0, 7.0, 9.0), number(4.0)),
    (floats(1.0, 3.0, 5.0, 7.0, 9.0), number(1.0)),
    (floats(1.0, 3.0, 5.0, 7.0, 9.0), number(99.0)),
)
def binary_search(x: Tensor, value: Tensor) -> int:
    low, high = 0, len(x) - 1
    while low <= high:
        middle = (low + high) // 2
        if x[middle] == value:
            return middle
        if x[middle] < value:
            low = middle + 1
        else:
            high = middle - 1
    return -1


@program((draw(6), number(0.0)), (draw(6).abs(), number(-1.0)), (torch.ones(6), number(1.0)))
def first_index_above(x: Tensor, threshold: Tensor) -> Tensor:
    for i, value in enumerate(x):
        if value > threshold:
            return torch.tensor(i)
    return torch.tensor(-1)


@program(ints(1, 1, 2, 2, 2, 3), ints(4, 4, 4, 4, 4, 4), ints(1, 2, 3, 4, 5, 6))
def run_length_encoding(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    values = torch.zeros_like(x)
    counts = torch.zeros_like(x)
    n = torch.tensor(0)
    for i in range(len(x)):
        if i == 0 or x[i] != x[i - 1]:
            values[n] = x[i]
            counts[n] = 1
            n = n + 1
        else:
            counts[n - 1] += 1
    return values, counts, n


@program(ints(1, 1, 2, 2), ints(4, 4, 4, 4), ints(1, 2, 3, 4))
def run_length_encoding_to_lists(x: Tensor) -> list[Tensor]:
    runs = []
    count = 1
    for i in range(1, len(x)):
        if x[i] == x[i - 1]:
            count += 1
        else:
            runs.append(torch.stack([x[i - 1], torch.as_tensor(count)]))
            count = 1
    runs.append(torch.stack([x[-1], torch.as_tensor(count)]))
    return runs


@program(
    (draw(4), draw(4, seed=1)), (torch.zeros(4), torch.ones(4)), (torch.ones(4), torch.zeros(4))
)
def merge_sorted(a: Tensor, b: Tensor) -> Tensor:
    a, b = a.sort().values, b.sort().values
    out = torch.empty(8)
    i = torch.tensor(0)
    j = torch.tensor(0)
    for k in range(8):
        if j >= 4 or (i < 4 and a[i.clamp(max=3)] <= b[j.clamp(max=3)]):
            out[k] = a[i]
            i = i + 1
        else:
            out[k] = b[j]
            j = j + 1
    return out


@program(draw(7), torch.arange(7.0), torch.ones(7))
def quickselect_median(x: Tensor) -> Tensor:
    k = len(x) // 2
    while True:
        pivot = x[0]
        below = x[x < pivot]
        equal = (x == pivot).sum()
        if k < len(below):
            x = below
        elif k < len(below) + equal:
            return pivot
        else:
            k = k - len(below) - equal
            x = x[x > pivot]


@program(floats(3.0, -2.0, 5.0, -1.0), floats(-3.0, -2.0, -5.0, -1.0), floats(1.0, 1.0, 1.0, 1.0))
def largest_sum_of_a_slice(x: Tensor) -> Tensor:
    best = current = x[0]
    for value in x[1:]:
        current = max(current + value, value)
        best = current if current > best else best
    return best


@program(ints(2, 2, 1, 2), ints(1, 2, 3, 3), ints(5, 6, 7, 8))
def majority_vote(x: Tensor) -> tuple[Tensor, bool]:
    candidate, count = x[0], 0
    for value in x:
        if count == 0:
            candidate = value
            count = 1
        elif value == candidate:
            count += 1
        else:
            count -= 1
    return candidate, bool((x == candidate).sum() > len(x) // 2)


@program(
    (floats(2.0, 7.0, 11.0, 15.0), number(9.0)),
    (floats(1.0, 2.0, 3.0, 4.0), number(7.0)),
    (torch.zeros(4), number(1.0)),
)
def two_sum(x: Tensor, target: Tensor) -> tuple[int, int]:
    i, j = 0, len(x) - 1
    while i < j:
        total = x[i] + x[j]
        if total == target:
            return i, j
        elif total < target:
            i += 1
        else:
            j -= 1
    return -1, -1


@program(ints(1, 3, 2, 3), ints(1, 1, 1, 1), ints(4, 3, 2, 1))
def unique_in_order(x: Tensor) -> Tensor:
    seen: list[Tensor] = []
    for value in x:
        if not any(value == other for other in seen):
            seen.append(value)
    return torch.stack(seen)
