"""Things that move, and steps that adapt."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.capture.flow.algorithms.program import draw, floats, number, program


@program((number(1.0), number(0.0)), (number(0.1), number(-3.0)), (number(5.0), number(2.0)))
def bouncing_ball(height: Tensor, speed: Tensor) -> tuple[Tensor, Tensor, int]:
    bounces = 0
    for _ in range(12):
        speed = speed - 9.81 * 0.05
        height = height + speed * 0.05
        if height < 0:
            height = -height
            speed = -speed * 0.8
            bounces += 1
    return height, speed, bounces


@program((number(1.0), number(0.0)), (number(0.1), number(-3.0)), (number(5.0), number(2.0)))
def ball_until_it_rests(height: Tensor, speed: Tensor) -> tuple[Tensor, int]:
    time = torch.tensor(0.0)
    bounces = 0
    while bounces < 3:
        speed = speed - 9.81 * 0.05
        height = height + speed * 0.05
        time = time + 0.05
        if height <= 0 and speed < 0:
            height, speed = torch.zeros_like(height), -0.5 * speed
            bounces += 1
    return time, bounces


@program(floats(0.0, 1.0, 1.0, -1.0), floats(0.0, 3.0, 0.0, 0.0), floats(0.0, 0.2, -1.0, 1.0))
def collision_in_one_dimension(state: Tensor) -> Tensor:
    x, v = state[:2].clone(), state[2:].clone()
    for _ in range(5):
        x = x + 0.2 * v
        if (x[0] - x[1]).abs() < 0.3 and (v[0] - v[1]) * (x[1] - x[0]) > 0:
            v = v.flip(0)
    return torch.cat([x, v])


@program(number(1.0), number(0.01), number(20.0), number(0.3))
def adaptive_runge_kutta(y: Tensor) -> tuple[Tensor, int]:
    t, h = torch.tensor(0.0), torch.tensor(0.5)
    evaluations = 0

    def f(t: Tensor, y: Tensor) -> Tensor:
        return -y + torch.sin(t)

    while t < 1.0:
        if t + h > 1.0:
            h = 1.0 - t
        k1 = f(t, y)
        k2 = f(t + h / 2, y + h / 2 * k1)
        k3 = f(t + h, y - h * k1 + 2 * h * k2)
        low, high = y + h * k2, y + h * (k1 + 4 * k2 + k3) / 6
        error = (high - low).abs()
        evaluations += 3
        if error < 1e-3:
            t, y = t + h, high
            if error < 3e-4:
                h = h * 1.5
        else:
            h = h * 0.5
    return y, evaluations


@program(number(2.0), number(-1.0), number(0.0))
def event_detection(start: Tensor) -> tuple[Tensor, bool]:
    y = start
    for step in range(8):
        previous = y
        y = y - 0.5
        if previous > 0 and y <= 0:
            time = step + previous / (previous - y)
            return time, True
    return torch.tensor(-1.0), False


@program(draw(4), draw(4, seed=1) * 3, torch.zeros(4))
def heat_until_steady(rod: Tensor) -> tuple[Tensor, Tensor]:
    steps = torch.zeros((), dtype=torch.int32)
    rod = torch.cat([torch.ones(1), rod, torch.zeros(1)])
    change = torch.tensor(1.0)
    while change > 1e-2:
        middle = 0.25 * rod[:-2] + 0.5 * rod[1:-1] + 0.25 * rod[2:]
        change = (middle - rod[1:-1]).abs().max()
        rod = torch.cat([rod[:1], middle, rod[-1:]])
        steps += 1
    return rod, steps


@program(number(21.0), number(15.0), number(26.0))
def thermostat(temperature: Tensor) -> tuple[Tensor, int]:
    heating = False
    switches = 0
    for _ in range(6):
        if temperature < 19 and not heating:
            heating = True
            switches += 1
        elif temperature > 22 and heating:
            heating = False
            switches += 1
        temperature = temperature + (1.5 if heating else -0.7)
    return temperature, switches


@program(floats(0.0, 0.0, 1.0, 0.5), floats(0.9, 0.9, 3.0, 2.0), floats(0.5, 0.5, 0.0, 0.0))
def particle_in_a_box(state: Tensor) -> Tensor:
    position, velocity = state[:2], state[2:]
    for _ in range(4):
        position = position + 0.3 * velocity
        outside = (position < 0) | (position > 1)
        if outside.any():
            velocity = torch.where(outside, -velocity, velocity)
            position = position.clamp(0, 1)
    return torch.cat([position, velocity])


@program(floats(1.0, 0.0), floats(0.0, 0.0), floats(9.0, 9.0))
def random_walk_until_home(x: Tensor) -> tuple[Tensor, int]:
    steps = 0
    seed = torch.tensor(7)
    while x.abs().sum() > 0.5 and steps < 20:
        seed = (seed * 1103515245 + 12345) % 2147483648
        direction = seed // 65536 % 4
        if direction == 0:
            x = x + torch.tensor([1.0, 0.0])
        elif direction == 1:
            x = x - torch.tensor([1.0, 0.0])
        elif direction == 2:
            x = x + torch.tensor([0.0, 1.0])
        else:
            x = x - torch.tensor([0.0, 1.0])
        steps += 1
    return x, steps


@program((number(3.0), number(0.1)), (number(0.5), number(2.0)), (number(100.0), number(0.0)))
def orbit_escapes(radius: Tensor, speed: Tensor) -> tuple[str, Tensor]:
    energy = speed**2 / 2 - 1 / radius
    if energy >= 0:
        return "escapes", energy
    return "is bound", energy


@program(draw(3), draw(3, seed=2) * 9, torch.zeros(3), floats(0.5, 9.0, 8.0))
def predator_and_prey(x: Tensor) -> Tensor:
    prey, predators, grass = x.abs()
    for _ in range(4):
        eaten = torch.minimum(prey, predators * 0.5)
        prey = prey - eaten + grass * 0.3
        if prey <= 0:
            prey = torch.zeros_like(prey)
            predators = predators * 0.5
        elif predators > 3 * prey:
            predators = predators * 0.9
        else:
            predators = predators + 0.1 * eaten
    return torch.stack([prey, predators])
