"""Ends that data decide, queues and stacks, and elements that data set."""

from __future__ import annotations

from collections import deque
from itertools import islice, takewhile

import torch
from torch import Tensor, nn

from tests.capture.flow.algorithms.program import draw, floats, ints, number, program

FLOATS = (floats(3, 2, -1, 5), floats(-1, 2, 3, 4), floats(1, 2, 3, 4), floats(5, 4, 1, 9))
CHAIN = torch.tensor([[0, 1, 0], [0, 0, 1], [1, 0, 0]]) > 0
FAN = torch.tensor([[0, 1, 1], [0, 0, 0], [0, 0, 0]]) > 0
GRAPHS = ((CHAIN, number(0)), (CHAIN, number(2)), (FAN, number(0)), (FAN, number(2)))


@program(*FLOATS)
def polynomial_up_to_a_sign(x: Tensor) -> tuple[Tensor, Tensor]:
    last, total = x[0], torch.zeros(())
    for last in takewhile(lambda t: t > 0, x):
        total = total * 2 + last
    else:
        total = total + 100
    return total, last


@program(*FLOATS)
def at_most_two_large(x: Tensor) -> tuple[Tensor, int]:
    large, total = 0, torch.zeros(())
    for i, t in enumerate(takewhile(lambda t: t > 0 and large < 2, x)):  # noqa: B023
        if t > 3:
            large += 1
        total = total + t * i
    return total, large


@program(*FLOATS)
def is_any_large_before_a_sign(x: Tensor) -> bool:
    return any(t > 3 for t in takewhile(lambda t: t > 0, x))


@program((draw(4), number(2)), (draw(4), number(0)), (draw(4), number(9)))
def between_two_places(x: Tensor, n: Tensor) -> Tensor:
    total = torch.zeros(())
    for t in islice(x, 1, n.item()):
        total = total * 2 + t
    return total


@program((draw(2), number(2)), (draw(2), number(1)), (draw(2), number(0)))
class LayersFromAPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        for k, layer in enumerate(self.layers[: -n.item()]):
            x = layer(x) + k
        for layer in self.layers[n.item() :]:
            x = torch.tanh(layer(x))
        return x


@program(*GRAPHS)
def breadth_first(edges: Tensor, start: Tensor) -> Tensor:
    queue, order, seen = deque([start.item()]), [], torch.zeros(3, dtype=torch.bool)
    seen[start] = True
    while queue:
        node = queue.popleft()
        order.append(node)
        for other in range(3):
            if edges[node, other] and not seen[other]:
                seen[other] = True
                queue.append(other)
    return torch.tensor(order)


@program(*FLOATS)
def selection_sort_of_a_list(x: Tensor) -> Tensor:
    values = list(x)
    for i in range(len(values)):
        least = i
        for j in range(i + 1, len(values)):
            if values[j] < values[least]:
                least = j
        values[i], values[least] = values[least], values[i]
    return torch.stack(values)


@program(ints([0, 1], [2, 3]), ints([0, 1], [1, 2]), ints([3, 2], [0, 3]))
def union_find_in_a_list(edges: Tensor) -> Tensor:
    parent = list(range(4))

    def find(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    for a, b in edges.tolist():
        root, other = find(a), find(b)
        if root != other:
            parent[other] = root
    return torch.tensor([find(i) for i in range(4)])
