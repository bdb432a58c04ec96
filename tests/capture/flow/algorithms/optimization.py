"""Minima, step by step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.capture.flow.algorithms.program import draw, floats, number, program


@program(draw(3), draw(3, seed=1) * 10, torch.zeros(3), torch.full((3,), 1e9))
def gradient_descent(x: Tensor) -> tuple[Tensor, int]:
    target = torch.tensor([1.0, -2.0, 0.5])
    for step in range(10):
        grad = 2 * (x - target)
        if grad.norm() < 1e-2:
            return x, step
        x = x - 0.4 * grad
    return x, 10


@program(
    (draw(4), draw(4, seed=1)), (draw(4) * 9, draw(4, seed=2)), (torch.zeros(4), torch.ones(4))
)
def armijo_line_search(x: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    def f(x: Tensor) -> Tensor:
        return (x**4).sum() + (x**2).sum()

    grad = 4 * x**3 + 2 * x
    slope = torch.dot(grad, direction)
    if slope > 0:
        direction = -direction
        slope = -slope
    step = torch.tensor(1.0)
    while f(x + step * direction) > f(x) + 1e-4 * step * slope:
        step = step * 0.5
        if step < 1e-6:
            break
    return x + step * direction, step


@program((number(0.0), number(4.0)), (number(-1.0), number(1.0)), (number(2.0), number(9.0)))
def golden_section(a: Tensor, b: Tensor) -> Tensor:
    ratio = (5**0.5 - 1) / 2
    c, d = b - ratio * (b - a), a + ratio * (b - a)
    while (b - a).abs() > 1e-3:
        if (c - 2) ** 2 < (d - 2) ** 2:
            b = d
        else:
            a = c
        c, d = b - ratio * (b - a), a + ratio * (b - a)
    return (a + b) / 2


@program(draw(5), draw(5, seed=1) * 0.1, draw(5, seed=2) * 8)
def backtrack_until_it_improves(x: Tensor) -> tuple[Tensor, Tensor, int]:
    best = (x**2).sum()
    rate = 4.0
    tries = 0
    while tries < 8:
        candidate = x - rate * x
        loss = (candidate**2).sum()
        tries += 1
        if loss >= best:
            rate = rate / 2
            continue
        x, best = candidate, loss
        break
    return x, best, tries


@program(draw(6, 2), draw(6, 2, seed=3) * 5, torch.ones(6, 2))
def k_means(points: Tensor) -> tuple[Tensor, Tensor]:
    centers = points[:2].clone()
    labels = torch.zeros(points.shape[0], dtype=torch.int64)
    while True:
        distances = torch.cdist(points, centers)
        new_labels = distances.argmin(dim=1)
        new_centers = centers.clone()
        for k in range(2):
            members = new_labels == k
            if members.any():
                new_centers[k] = points[members].mean(dim=0)
        if torch.equal(new_labels, labels) and torch.allclose(new_centers, centers):
            break
        labels, centers = new_labels, new_centers
    return centers, labels


@program(draw(3), draw(3, seed=4) * 6, floats(0.1, -0.1, 0.2))
def soft_threshold_until_sparse(x: Tensor) -> tuple[Tensor, float]:
    penalty = 0.05
    while (x != 0).sum() > 1:
        x = torch.sign(x) * torch.relu(x.abs() - penalty)
        penalty *= 1.5
    return x, penalty


class MomentumWithRestart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("velocity", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(5):
            grad = torch.stack([20 * x[0], 2 * x[1]])
            if torch.dot(grad, self.velocity) > 0:
                self.velocity = torch.zeros_like(self.velocity)
            self.velocity = 0.9 * self.velocity - 0.04 * grad
            x = x + self.velocity
        return x


program(floats(1.0, 1.0), floats(-2.0, 0.3), floats(0.0, 0.0))(MomentumWithRestart)


@program(draw(4), draw(4, seed=5) * 3, torch.zeros(4))
def project_onto_simplex(y: Tensor) -> Tensor:
    u, _ = torch.sort(y, descending=True)
    total = torch.zeros(())
    theta = torch.zeros(())
    for j in range(u.shape[0]):
        total = total + u[j]
        t = (total - 1) / (j + 1)
        if u[j] - t > 0:
            theta = t
    return torch.clamp(y - theta, min=0)


@program(
    (draw(3), number(0.5)),
    (draw(3) * 0.01, number(1.0)),
    (draw(3) * 100, number(2.0)),
    (floats(0.4, 0.0, 0.0), number(0.39)),
)
def trust_region_step(grad: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    step = -grad
    norm = step.norm()
    if norm > radius:
        step = step * (radius / norm)
    predicted = -(grad * step).sum() - 0.5 * (step * step).sum()
    actual = (grad.abs() - (grad + step).abs()).sum()
    rho = actual / predicted
    if rho < 0.25:
        radius = radius * 0.25
    elif rho > 0.75 and norm >= radius:
        radius = torch.minimum(2 * radius, torch.tensor(3.0))
    return step, radius


@program(draw(8), draw(8, seed=1), torch.zeros(8), torch.arange(8.0), -torch.arange(8.0))
def hill_climbing(heights: Tensor) -> tuple[int, Tensor]:
    at = 3
    while True:
        left = max(at - 1, 0)
        right = min(at + 1, 7)
        if heights[left] > heights[at]:
            at = left
        elif heights[right] > heights[at]:
            at = right
        else:
            break
    return at, heights[at]


@program(
    (draw(4, 3), floats(1.0, -1.0, 1.0, -1.0)),
    (torch.eye(4)[:, :3] + 1, floats(1.0, 1.0, -1.0, 1.0)),
    (torch.ones(4, 3), torch.ones(4)),
    (torch.ones(4, 3), floats(1.0, -1.0, 1.0, -1.0)),
)
def perceptron(points: Tensor, labels: Tensor) -> tuple[Tensor, int]:
    w = torch.zeros(3)
    for epoch in range(4):
        mistakes = 0
        for x, y in zip(points, labels):
            if y * (w @ x) <= 0:
                w = w + y * x
                mistakes += 1
        if mistakes == 0:
            return w, epoch
    return w, 4
