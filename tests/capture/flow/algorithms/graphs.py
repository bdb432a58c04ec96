"""Graphs, as matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.capture.flow.algorithms.program import floats, ints, program

INF = float("inf")
CHAIN = floats([0, 1, INF, INF], [INF, 0, 1, INF], [INF, INF, 0, 1], [INF, INF, INF, 0])
FULL = floats([0, 5, 2, 9], [1, 0, 7, 1], [4, 2, 0, 6], [3, 3, 3, 0])
APART = torch.full((4, 4), INF).fill_diagonal_(0)


@program(CHAIN, FULL, APART)
def dijkstra(weights: Tensor) -> Tensor:
    n = weights.shape[0]
    distance = torch.full((n,), float("inf"))
    distance[0] = 0
    visited = torch.zeros(n, dtype=torch.bool)
    for _ in range(n):
        masked = torch.where(visited, float("inf"), distance)
        u = masked.argmin()
        if masked[u] == float("inf"):
            break
        visited[u] = True
        for v in range(n):
            if not visited[v] and distance[u] + weights[u, v] < distance[v]:
                distance[v] = distance[u] + weights[u, v]
    return distance


@program(CHAIN, FULL, APART)
def dijkstra_while(weights: Tensor) -> tuple[Tensor, Tensor]:
    n = weights.shape[0]
    distance = torch.full((n,), float("inf"))
    distance[0] = 0
    done = torch.zeros(n, dtype=torch.bool)
    order = torch.zeros(n, dtype=torch.int64)
    step = 0
    while not done.all():
        u = torch.where(done, float("inf"), distance).argmin()
        done[u] = True
        distance = torch.minimum(distance, distance[u] + weights[u])
        order[u] = step
        step += 1
        if (distance[~done] == float("inf")).all():
            break
    return distance, order


@program(CHAIN, FULL, APART)
def bellman_ford(weights: Tensor) -> tuple[Tensor, int]:
    distance = torch.full((4,), float("inf"))
    distance[0] = 0.0
    rounds = 0
    for rounds in range(4):
        new = torch.minimum(distance, (distance[:, None] + weights).min(dim=0).values)
        if torch.equal(new, distance):
            break
        distance = new
    return distance, rounds


@program(CHAIN, FULL, floats([0, -1, INF, INF], [-1, 0, 1, INF], [INF, INF, 0, 1], [1, 1, 1, 0]))
def bellman_ford_with_negative_cycles(weights: Tensor) -> Tensor:
    distance = torch.full((4,), float("inf"))
    distance[0] = 0.0
    for _ in range(3):
        distance = torch.minimum(distance, (distance[:, None] + weights).min(dim=0).values)
    again = torch.minimum(distance, (distance[:, None] + weights).min(dim=0).values)
    assert bool((again == distance).all()), "there is a negative cycle"
    return distance


@program(CHAIN, FULL, APART)
def floyd_warshall(d: Tensor) -> Tensor:
    d = d.clone()
    n = len(d)
    for k in range(n):
        for i in range(n):
            if d[i, k] == float("inf"):
                continue
            d[i] = torch.minimum(d[i], d[i, k] + d[k])
    return d


@program(CHAIN, FULL, APART)
def reachable(weights: Tensor) -> tuple[Tensor, int]:
    adjacent = torch.isfinite(weights)
    reached = torch.tensor([True, False, False, False])
    frontier = reached
    depth = 0
    while frontier.any():
        new = (adjacent & frontier[:, None]).any(dim=0) & ~reached
        reached = reached | new
        frontier = new
        depth += 1
    return reached, depth


@program(ints([0, 1], [1, 2], [3, 4]), ints([0, 1], [2, 3], [1, 3]), ints([0, 0], [1, 1], [2, 2]))
def union_find(edges: Tensor) -> Tensor:
    parent = torch.arange(5)

    def find(i: Tensor) -> Tensor:
        while parent[i] != i:
            i = parent[i]
        return i

    for a, b in edges:
        root_a, root_b = find(a), find(b)
        if root_a != root_b:
            parent[root_b] = root_a
    return torch.stack([find(torch.tensor(i)) for i in range(5)])


@program(
    ints([0, 1, 0], [0, 0, 1], [0, 0, 0]),
    ints([0, 1, 0], [0, 0, 1], [1, 0, 0]),
    ints([0, 0, 0], [1, 0, 0], [1, 1, 0]),
)
def topological_sort(adjacent: Tensor) -> Tensor:
    degree = adjacent.sum(dim=0)
    removed = torch.zeros(3, dtype=torch.bool)
    order = torch.full((3,), -1)
    for position in range(3):
        free = (degree == 0) & ~removed
        if not free.any():
            raise ValueError("the graph has a cycle")
        node = free.int().argmax()
        order[position] = node
        removed[node] = True
        degree = degree - adjacent[node]
    return order


@program(ints(1, 2, 3, 3), ints(0, 0, 0, 0), ints(3, 0, 1, 2))
def follow_pointers_to_a_root(parent: Tensor) -> tuple[Tensor, int]:
    node = torch.tensor(0)
    hops = 0
    while parent[node] != node and hops < 10:
        node = parent[node]
        hops += 1
    return node, hops


@program(ints(1, 2, 3, 1), ints(1, 2, 3, 3), ints(1, 2, 3, 0))
def find_cycle(successor: Tensor) -> tuple[Tensor, int]:
    slow = successor[0]
    fast = successor[successor[0]]
    while slow != fast:
        slow = successor[slow]
        fast = successor[successor[fast]]
    length = 1
    fast = successor[slow]
    while slow != fast:
        fast = successor[fast]
        length += 1
    return slow, length


@program(
    ints([0, 1, 0], [1, 0, 1], [0, 1, 0]),
    ints([0, 1, 1], [1, 0, 1], [1, 1, 0]),
    ints([0, 0, 0], [0, 0, 0], [0, 0, 0]),
)
def two_coloring(adjacent: Tensor) -> tuple[Tensor, bool]:
    color = torch.full((3,), -1)
    for start in range(3):
        if color[start] >= 0:
            continue
        color[start] = 0
        for _ in range(3):
            for v in range(3):
                if color[v] < 0 and (adjacent[v] * (color >= 0)).any():
                    u = (adjacent[v] * (color >= 0)).argmax()
                    color[v] = 1 - color[u]
    same = (color[:, None] == color[None, :]) & (adjacent > 0)
    if same.any():
        return color, False
    return color, True


@program(FULL, CHAIN.nan_to_num(posinf=50.0), torch.ones(4, 4))
def prim(weights: Tensor) -> Tensor:
    inside = torch.tensor([True, False, False, False])
    total = torch.tensor(0.0)
    while not inside.all():
        cost = weights.clone()
        cost[~inside] = float("inf")
        cost[:, inside] = float("inf")
        best = cost.argmin()
        total += cost.flatten()[best]
        inside[best % 4] = True
    return total
