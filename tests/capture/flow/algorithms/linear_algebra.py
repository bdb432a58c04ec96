"""Matrices, until something has converged."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.capture.flow.algorithms.program import draw, floats, program


def _spd(seed: int) -> Tensor:
    return draw(3, 3, seed=seed) @ draw(3, 3, seed=seed).T + 3 * torch.eye(3)


@program(_spd(0), _spd(1), torch.eye(3), torch.diag(floats(5.0, 1.0, 0.1)))
def power_iteration(a: Tensor) -> tuple[Tensor, Tensor, int]:
    v = torch.ones(3) / 3**0.5
    value = torch.tensor(0.0)
    for i in range(20):
        w = a @ v
        new = torch.dot(v, w)
        v = w / w.norm()
        if torch.abs(new - value) < 1e-4:
            break
        value = new
    return value, v, i


@program(_spd(0), _spd(1), torch.eye(3))
def power_iteration_while(a: Tensor) -> Tensor:
    v = torch.ones(3)
    error = float("inf")
    i = 0
    while error > 1e-4 and i < 100:
        w = a @ v
        w = w / torch.linalg.norm(w)
        error = (w - v).abs().max().item()
        v = w
        i += 1
    return v


@program(
    (_spd(0), draw(3)),
    (_spd(1), draw(3, seed=7)),
    (torch.eye(3), draw(3)),
    (_spd(2), torch.zeros(3)),
)
def conjugate_gradients(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    x = torch.zeros_like(b)
    r = b - a @ x
    p = r.clone()
    rs = r @ r
    k = 0
    while rs.sqrt() > 1e-4 and k < b.numel() * 2:
        ap = a @ p
        alpha = rs / (p @ ap)
        x = x + alpha * p
        r = r - alpha * ap
        new = r @ r
        p = r + (new / rs) * p
        rs = new
        k += 1
    return x, rs


@program(
    (_spd(0), draw(3)),
    (_spd(1), draw(3, seed=2)),
    (torch.eye(3), torch.zeros(3)),
    (floats([1, 5, 5], [5, 1, 5], [5, 5, 1]), torch.ones(3)),
)
def jacobi(a: Tensor, b: Tensor) -> Tensor:
    d = torch.diag(a)
    rest = a - torch.diag(d)
    x = torch.zeros_like(b)
    for _ in range(20):
        new = (b - rest @ x) / d
        if torch.allclose(new, x, atol=1e-4):
            return new
        x = new
    return x


@program((_spd(0), draw(3)), (_spd(1), draw(3, seed=2)), (torch.eye(3), torch.zeros(3)))
def gauss_seidel(a: Tensor, b: Tensor) -> tuple[Tensor, int]:
    x = torch.zeros_like(b)
    iterations = 0
    change = torch.tensor(1.0)
    while change > 1e-4:
        old = x.clone()
        for i in range(3):
            s = a[i] @ x - a[i, i] * x[i]
            x[i] = (b[i] - s) / a[i, i]
        change = (x - old).abs().max()
        iterations += 1
    return x, iterations


@program(_spd(0), torch.eye(3), torch.diag(floats(3.0, 2.0, 1.0)))
def qr_iteration(a: Tensor) -> Tensor:
    for _ in range(15):
        q, r = torch.linalg.qr(a)
        a = r @ q
        below = torch.tril(a, -1)
        if below.abs().sum() < 1e-3:
            break
    return torch.diagonal(a)


@program(
    (floats([0.0, 2.0], [1.0, 3.0]), floats(2.0, 4.0)),
    (floats([4.0, 2.0], [1.0, 3.0]), floats(2.0, 4.0)),
    (floats([0.0, 0.0], [0.0, 1.0]), floats(1.0, 1.0)),
)
def gaussian_elimination(a: Tensor, b: Tensor) -> Tensor:
    n = a.shape[0]
    a, b = a.clone(), b.clone()
    for i in range(n):
        pivot = i
        for j in range(i + 1, n):
            if a[j, i].abs() > a[pivot, i].abs():
                pivot = j
        if a[pivot, i] == 0:
            raise ValueError("the matrix is singular")
        if pivot != i:
            a[[i, pivot]] = a[[pivot, i]]
            b[[i, pivot]] = b[[pivot, i]]
        for j in range(i + 1, n):
            factor = a[j, i] / a[i, i]
            a[j] = a[j] - factor * a[i]
            b[j] = b[j] - factor * b[i]
    x = torch.zeros_like(b)
    for i in reversed(range(n)):
        x[i] = (b[i] - a[i] @ x) / a[i, i]
    return x


@program(draw(3, 3), torch.eye(3), draw(3, 3, seed=4) * 9)
def newton_schulz_inverse(a: Tensor) -> tuple[Tensor, Tensor]:
    x = a.T / (a.norm(1) * a.norm(float("inf")))
    eye = torch.eye(3)
    residual = torch.linalg.norm(eye - a @ x)
    while residual > 1e-3:
        x = x @ (2 * eye - a @ x)
        residual = torch.linalg.norm(eye - a @ x)
    return x, residual


@program(
    draw(4, 4).abs(),
    torch.ones(4, 4),
    draw(4, 4, seed=3).abs() * 5 + 0.1,
    torch.full((4, 4), float("nan")),
)
def sinkhorn(cost: Tensor) -> Tensor:
    p = torch.exp(-cost)
    for _ in range(20):
        p = p / p.sum(dim=1, keepdim=True)
        p = p / p.sum(dim=0, keepdim=True)
        if (p.sum(dim=1) - 1).abs().max() < 1e-4:
            break
    else:
        raise RuntimeError("Sinkhorn has not converged")
    return p


@program(_spd(0), torch.eye(3), -torch.eye(3))
def cholesky_with_jitter(a: Tensor) -> Tensor:
    jitter = 0.0
    smallest = torch.linalg.eigvalsh(a)[0]
    while smallest + jitter <= 0:
        jitter = max(2 * jitter, 0.3)
    return torch.linalg.cholesky(a + jitter * torch.eye(3))


@program(draw(3, 3), draw(3, 3, seed=1), torch.eye(3))
def gram_schmidt_skipping_dependent(a: Tensor) -> Tensor:
    basis: list[Tensor] = []
    for v in a:
        for b in basis:
            v = v - (v @ b) * b
        norm = v.norm()
        if norm > 1e-6:
            v = v / norm
        basis.append(v)
    return torch.stack(basis)


@program(draw(4, 4).abs(), torch.ones(4, 4), torch.eye(4) + 0.1, torch.full((4, 4), float("nan")))
def page_rank(links: Tensor, damping: float = 0.85) -> tuple[Tensor, int]:
    transition = links / links.sum(dim=0)
    rank = torch.full((4,), 0.25)
    for iteration in range(20):
        new = damping * transition @ rank + (1 - damping) / 4
        delta = torch.sum(torch.abs(new - rank)).item()
        rank = new
        if delta < 1e-5:
            return rank, iteration
    return rank, 20


@program(draw(2, 2), torch.eye(2) * 8, torch.zeros(2, 2))
def matrix_exponential(a: Tensor) -> Tensor:
    squarings = 0
    while a.abs().max() > 0.5:
        a = a / 2
        squarings += 1
    result = term = torch.eye(2)
    for k in range(1, 8):
        term = term @ a / k
        result = result + term
    for _ in range(squarings):
        result = result @ result
    return result
