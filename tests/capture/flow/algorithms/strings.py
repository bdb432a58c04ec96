"""Sequences of symbols: tables, automata, distances."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.capture.flow.algorithms.program import draw, floats, ints, program


@program(
    (ints(1, 2, 3, 4), ints(2, 4, 3)),
    (ints(1, 1, 1, 1), ints(1, 1, 1)),
    (ints(1, 2, 3, 4), ints(5, 6, 7)),
)
def longest_common_subsequence(a: Tensor, b: Tensor) -> Tensor:
    table = torch.zeros(len(a) + 1, len(b) + 1, dtype=torch.int64)
    for i in range(len(a)):
        for j in range(len(b)):
            if a[i] == b[j]:
                table[i + 1, j + 1] = table[i, j] + 1
            else:
                table[i + 1, j + 1] = torch.maximum(table[i, j + 1], table[i + 1, j])
    return table[-1, -1]


@program(
    (ints(1, 2, 3), ints(2, 3, 3)), (ints(1, 1, 1), ints(1, 1, 1)), (ints(1, 2, 3), ints(4, 5, 6))
)
def edit_distance(a: Tensor, b: Tensor) -> Tensor:
    previous = list(torch.arange(len(b) + 1))
    for i, x in enumerate(a):
        current = [torch.tensor(i + 1)]
        for j, y in enumerate(b):
            if x == y:
                current.append(previous[j])
            else:
                current.append(1 + min(previous[j], previous[j + 1], current[j]))
        previous = current
    return previous[-1]


@program(ints(1, 1, 0, 2, 2, 0), ints(0, 0, 0, 0, 0, 0), ints(1, 2, 1, 2, 0, 1))
def tokenise_with_states(text: Tensor) -> tuple[Tensor, Tensor]:
    """0 is a space, 1 a letter, 2 a digit: words and numbers are counted."""
    state = "between"
    words = torch.tensor(0)
    numbers = torch.tensor(0)
    for symbol in text:
        if symbol == 0:
            state = "between"
        elif state == "between":
            if symbol == 1:
                state = "word"
                words = words + 1
            else:
                state = "number"
                numbers = numbers + 1
    return words, numbers


@program(ints(1, 1, 0, 2, 2, 0), ints(0, 0, 0, 0, 0, 0), ints(1, 2, 1, 2, 0, 1))
def tokenise_with_numbered_states(text: Tensor) -> tuple[int, int]:
    between, word, digits = 0, 1, 2
    state = between
    words = numbers = 0
    for symbol in text:
        if symbol == 0:
            state = between
        elif state == between:
            if symbol == 1:
                state = word
                words += 1
            else:
                state = digits
                numbers += 1
    return words, numbers


@program(
    ints(1, 1, -1, -1, 1, -1),
    ints(1, 1, 1, -1, -1, -1),
    ints(-1, 1, 1, 1, -1, -1),
    ints(1, 1, 1, 1, 1, 1),
)
def balanced_brackets(text: Tensor) -> tuple[bool, Tensor]:
    depth = torch.tensor(0)
    deepest = torch.tensor(0)
    for symbol in text:
        depth = depth + symbol
        if depth < 0:
            return False, deepest
        if depth > deepest:
            deepest = depth
    return bool(depth == 0), deepest


@program(ints(1, 2, 3, 2, 1), ints(1, 2, 3, 4, 5), ints(1, 2, 3, 3, 1))
def is_palindrome(text: Tensor) -> Tensor:
    i, j = 0, len(text) - 1
    while i < j:
        if text[i] != text[j]:
            return torch.tensor(False)
        i, j = i + 1, j - 1
    return torch.tensor(True)


@program(
    (ints(1, 2, 1, 2, 3), ints(1, 2, 3)),
    (ints(1, 1, 1, 1, 1), ints(2, 2, 2)),
    (ints(4, 5, 6, 1, 2), ints(4, 5, 6)),
)
def find_pattern(text: Tensor, pattern: Tensor) -> int:
    for start in range(len(text) - len(pattern) + 1):
        for k in range(len(pattern)):
            if text[start + k] != pattern[k]:
                break
        else:
            return start
    return -1


@program(
    (draw(4, 3), draw(3, 3, seed=1), draw(3, seed=2)),
    (draw(4, 3, seed=5) * 9, torch.zeros(3, 3), torch.zeros(3)),
    (torch.zeros(4, 3), torch.zeros(3, 3), torch.zeros(3)),
)
def viterbi(emissions: Tensor, transitions: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    steps, states = emissions.shape
    scores = start + emissions[0]
    back = []
    for t in range(1, steps):
        new_scores, pointers = [], []
        for j in range(states):
            best, best_i = scores[0] + transitions[0, j], torch.tensor(0)
            for i in range(1, states):
                score = scores[i] + transitions[i, j]
                if score > best:
                    best, best_i = score, torch.tensor(i)
            new_scores.append(best + emissions[t, j])
            pointers.append(best_i)
        scores = torch.stack(new_scores)
        back.append(torch.stack(pointers))
    state = scores.argmax()
    path = [state]
    for pointers in reversed(back):
        state = pointers[state]
        path.insert(0, state)
    return torch.stack(path), scores.max()


@program(
    (ints(3, 4, 2), ints(4, 5, 3)), (ints(9, 9, 9), ints(1, 1, 1)), (ints(1, 1, 1), ints(2, 3, 4))
)
def knapsack(weights: Tensor, values: Tensor, capacity: int = 6) -> Tensor:
    best = torch.zeros(capacity + 1, dtype=torch.int64)
    for w, v in zip(weights, values):
        for c in range(capacity, 0, -1):
            if w <= c:
                best[c] = torch.maximum(best[c], best[c - w] + v)
    return best[-1]


@program(ints(10, 9, 2, 5, 3), ints(1, 2, 3, 4, 5), ints(5, 4, 3, 2, 1))
def longest_increasing_subsequence(x: Tensor) -> int:
    best = [1] * len(x)
    for i in range(len(x)):
        for j in range(i):
            if x[j] < x[i]:
                best[i] = max(best[i], best[j] + 1)
    return max(best)


@program(floats(1.0, 3.0, 2.0), floats(1.0, 1.0, 1.0), floats(0.0, 5.0, -1.0))
def dynamic_time_warping(a: Tensor) -> Tensor:
    b = torch.tensor([1.0, 2.0, 3.0])
    cost = torch.full((4, 4), float("inf"))
    cost[0, 0] = 0
    for i in range(3):
        for j in range(3):
            distance = (a[i] - b[j]).abs()
            cost[i + 1, j + 1] = distance + min(cost[i, j], cost[i, j + 1], cost[i + 1, j])
    return cost[3, 3]


@program(ints(1, 7, 0, 0), ints(0, 0, 0, 0), ints(5, 5, 5, 5))
def read_varint(data: Tensor) -> tuple[Tensor, int]:
    value = torch.tensor(0)
    for i, byte in enumerate(data):
        value = value | ((byte & 3) << (2 * i))
        if byte < 4:
            return value, i + 1
    raise ValueError("the number does not end")


@program((ints(1, 2), ints(1, 2)), (ints(3, 0), ints(0, 5)), (ints(0, 0), ints(0, 0)))
def add_with_carry(a: Tensor, b: Tensor) -> Tensor:
    out = []
    carry = torch.tensor(0)
    for x, y in zip(reversed(a.unbind()), reversed(b.unbind())):
        total = x + y + carry
        if total >= 4:
            out.append(total - 4)
            carry = torch.tensor(1)
        else:
            out.append(total)
            carry = torch.tensor(0)
    out.append(carry)
    return torch.stack(out[::-1])
