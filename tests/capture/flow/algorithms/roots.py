"""Where functions are zero, and where iterations stay."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.capture.flow.algorithms.program import draw, floats, number, program


@program(number(2.0), number(100.0), number(0.25), number(1.0))
def newton_square_root(a: Tensor) -> tuple[Tensor, int]:
    x = a.clone()
    steps = 0
    while (x * x - a).abs() > 1e-4 and steps < 50:
        x = 0.5 * (x + a / x)
        steps += 1
    return x, steps


@program(floats(1.0, 2.0, 3.0), floats(-5.0, 0.0, 9.0), floats(0.0, 0.0, 0.0))
def newton_cube_root(a: Tensor) -> Tensor:
    x = torch.ones_like(a)
    for _ in range(30):
        step = (x**3 - a) / (3 * x**2 + 1e-6)
        x = x - step
        if step.abs().max() < 1e-5:
            break
    return x


@program(
    (number(0.5), number(2.1)),
    (number(1.0), number(1.5)),
    (number(-1.0), number(0.5)),
    (number(1.4142135), number(9.0)),
    (number(0.0), number(4.0)),
)
def bisection(low: Tensor, high: Tensor) -> Tensor:
    def f(x: Tensor) -> Tensor:
        return x * x - 4

    if f(low) * f(high) > 0:
        raise ValueError("no change of sign")
    while high - low > 1e-4:
        middle = (low + high) / 2
        if f(middle) == 0:
            return middle
        if f(low) * f(middle) < 0:
            high = middle
        else:
            low = middle
    return (low + high) / 2


@program((number(1.0), number(2.0)), (number(0.0), number(3.0)), (number(1.0), number(1.0)))
def secant(a: Tensor, b: Tensor) -> tuple[Tensor, bool]:
    fa, fb = a**3 - 2 * a - 5, b**3 - 2 * b - 5
    converged = False
    for _ in range(20):
        if (fb - fa).abs() < 1e-6:
            converged = True
            break
        a, b, fa = b, b - fb * (b - a) / (fb - fa), fb
        fb = b**3 - 2 * b - 5
    return b, converged


@program((number(0.0), number(3.0)), (number(1.0), number(2.5)), (number(-2.0), number(2.1)))
def regula_falsi(low: Tensor, high: Tensor, tolerance: float = 1e-3) -> tuple[Tensor, int]:
    f_low, f_high = low**2 - 3, high**2 - 3
    side = 0
    count = 0
    middle = low
    while (high - low).abs() > tolerance:
        middle = (f_low * high - f_high * low) / (f_low - f_high)
        f_middle = middle**2 - 3
        if f_middle.abs() < tolerance:
            break
        if f_middle * f_high > 0:
            high, f_high = middle, f_middle
            if side == -1:
                f_low = f_low / 2
            side = -1
        else:
            low, f_low = middle, f_middle
            if side == 1:
                f_high = f_high / 2
            side = 1
        count += 1
    return middle, count


@program(number(0.5), number(-3.0), number(0.7390851))
def fixed_point_of_cosine(x: Tensor) -> tuple[Tensor, Tensor]:
    error = torch.tensor(float("inf"))
    steps = torch.zeros((), dtype=torch.int64)
    while error > 1e-4:
        new = torch.cos(x)
        error = torch.abs(new - x)
        x = new
        steps += 1
    return x, steps


@program(number(0.5), number(40.0), number(-1.0))
def lambert_w(z: Tensor) -> Tensor:
    if z < -1 / math.e:
        return torch.full_like(z, float("nan"))
    w = torch.log1p(z)
    for _ in range(8):
        e = torch.exp(w)
        delta = (w * e - z) / (e * (w + 1))
        w = w - delta
        if delta.abs().item() < 1e-6:
            break
    return w


@program(number(0.1), number(3.0), number(6.0), number(float("nan")))
def kepler(mean_anomaly: Tensor, eccentricity: float = 0.3) -> Tensor:
    e = mean_anomaly if mean_anomaly < math.pi else torch.full_like(mean_anomaly, math.pi)
    iteration = 0
    while True:
        delta = (e - eccentricity * torch.sin(e) - mean_anomaly) / (1 - eccentricity * torch.cos(e))
        e = e - delta
        iteration += 1
        if abs(delta) < 1e-5:
            break
        if iteration > 5:
            raise RuntimeError("no convergence")
    return e


@program(
    floats(1.0, -3.0, 2.0), floats(1.0, 2.0, 1.0), floats(1.0, 0.0, 4.0), floats(0.0, 2.0, 1.0)
)
def quadratic_formula(c: Tensor) -> Tensor:
    if c[0] == 0:
        root = -c[2] / c[1]
        return torch.stack([root, root])
    discriminant = c[1] ** 2 - 4 * c[0] * c[2]
    if discriminant > 0:
        r = discriminant.sqrt()
        return torch.stack([(-c[1] - r) / (2 * c[0]), (-c[1] + r) / (2 * c[0])])
    elif discriminant == 0:
        root = -c[1] / (2 * c[0])
        return torch.stack([root, root])
    return torch.full((2,), float("nan"))


@program(number(1.0), number(9.0), number(1e9))
def square_root_with_retries(a: Tensor) -> Tensor:
    tolerance = 1e-6
    x = a
    for attempt in range(3):
        x = a / 2 + 0.1
        for _ in range(4):
            x = 0.5 * (x + a / x)
        if (x * x - a).abs() <= tolerance:
            return x
        tolerance *= 100
    return x


@program(draw(2), draw(2, seed=1) * 4, floats(0.0, 0.0))
def mandelbrot_escape(c: Tensor) -> tuple[Tensor, int]:
    z = torch.zeros(2)
    n = 0
    while n < 20:
        if z[0] ** 2 + z[1] ** 2 > 4:
            break
        z = torch.stack([z[0] ** 2 - z[1] ** 2 + c[0], 2 * z[0] * z[1] + c[1]])
        n += 1
    return z, n
