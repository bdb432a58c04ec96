"""Signals, and what controls them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tests.capture.flow.algorithms.program import draw, floats, number, program


@program(floats(1.0, 1.1, 9.0, 1.2), floats(0.0, 0.0, 0.0, 0.0), floats(5.0, -5.0, 5.0, -5.0))
def kalman_with_gating(measurements: Tensor) -> tuple[Tensor, Tensor, int]:
    x, p = torch.tensor(0.0), torch.tensor(1.0)
    rejected = 0
    for z in measurements:
        p = p + 0.1
        innovation = z - x
        s = p + 0.5
        if innovation**2 / s > 9.0:
            rejected += 1
            continue
        k = p / s
        x = x + k * innovation
        p = (1 - k) * p
    return x, p, rejected


@program(number(0.0), number(10.0), number(-3.0))
def pid_with_clamps(value: Tensor) -> tuple[Tensor, Tensor]:
    integral, last = torch.tensor(0.0), torch.tensor(0.0)
    for _ in range(5):
        error = 2.0 - value
        integral = integral + error
        if integral > 3:
            integral = torch.tensor(3.0)
        elif integral < -3:
            integral = torch.tensor(-3.0)
        output = 0.5 * error + 0.1 * integral + 0.05 * (error - last)
        output = output if output.abs() < 1.0 else output.sign()
        last = error
        value = value + output
    return value, integral


class Controller:
    """Plain Python, with tensors in it."""

    def __init__(self, gain: float) -> None:
        self.gain = gain
        self.integral = torch.tensor(0.0)
        self.saturated = torch.tensor(0)

    def step(self, error: Tensor) -> Tensor:
        output = self.gain * error + 0.2 * self.integral
        if output > 1:
            self.saturated = self.saturated + 1
            return torch.ones_like(output)
        if output < -1:
            self.saturated = self.saturated + 1
            return -torch.ones_like(output)
        self.integral = self.integral + error
        return output


@program(number(0.0), number(10.0), number(-3.0))
def controller_object(value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    controller = Controller(0.6)
    for _ in range(4):
        value = value + controller.step(2.0 - value)
    return value, controller.integral, controller.saturated


@program(draw(6), draw(6, seed=1) * 5, torch.zeros(6))
def hysteresis(signal: Tensor) -> Tensor:
    on = False
    out = []
    for value in signal:
        if value > 0.5:
            on = True
        elif value < -0.5:
            on = False
        out.append(torch.tensor(1.0 if on else 0.0))
    return torch.stack(out)


@program(draw(6), draw(6, seed=1) * 5, torch.zeros(6))
def find_peaks(signal: Tensor) -> tuple[Tensor, int]:
    is_peak = torch.zeros(6, dtype=torch.bool)
    count = 0
    for i in range(1, 5):
        if signal[i] > signal[i - 1] and signal[i] > signal[i + 1]:
            is_peak[i] = True
            count += 1
    return is_peak, count


@program(draw(6), draw(6, seed=1) * 5, torch.zeros(6))
def zero_crossings(signal: Tensor) -> int:
    count = 0
    previous = signal[0]
    for value in signal[1:]:
        if previous < 0 <= value or previous > 0 >= value:
            count += 1
        previous = value
    return count


@dataclass
class Statistics:
    mean: Tensor
    largest: Tensor
    resets: int = 0


@program(floats(1.0, 2.0, 30.0, 1.0), floats(1.0, 1.0, 1.0, 1.0), floats(-9.0, 9.0, -9.0, 9.0))
def running_statistics(signal: Tensor) -> tuple[Tensor, Tensor, int]:
    stats = Statistics(signal[0], signal[0])
    for value in signal[1:]:
        if (value - stats.mean).abs() > 5:
            stats = Statistics(value, value, stats.resets + 1)
        else:
            stats.mean = 0.9 * stats.mean + 0.1 * value
            stats.largest = torch.maximum(stats.largest, value)
    return stats.mean, stats.largest, stats.resets


@program(floats(0.0, 1.0, 0.0), floats(3.0, 3.0, 3.0), floats(-3.0, 9.0, 2.0))
class SlewLimiter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(3))
        self.limit = 0.5

    def forward(self, target: Tensor) -> Tensor:
        delta = target - self.last
        if delta.abs().max() > self.limit:
            delta = delta.clamp(-self.limit, self.limit)
        self.last = self.last + delta
        return self.last.clone()


@program(draw(6), torch.ones(6) * 5, torch.zeros(6))
def voice_activity(signal: Tensor) -> list[tuple[int, Tensor]]:
    segments = []
    energy = torch.tensor(0.0)
    for i, frame in enumerate(signal.view(3, 2)):
        energy = 0.5 * energy + (frame**2).sum()
        if energy > 1:
            segments.append((i, energy))
    return segments


@program(draw(5), draw(5, seed=1) * 30, torch.full((5,), 0.01))
def automatic_gain(signal: Tensor) -> tuple[Tensor, float]:
    gain = 1.0
    out = torch.empty_like(signal)
    for i, value in enumerate(signal):
        out[i] = value * gain
        level = out[i].abs().item()
        if level > 1.0:
            gain *= 0.5
        elif level < 0.1:
            gain *= 1.1
    return out, gain


@program(floats(1.0, 5.0, 2.0), floats(1.0, 1.0, 1.0), floats(9.0, 8.0, 1.0), floats(2.0, 1.0, 3.0))
def median_of_three(x: Tensor) -> Tensor:
    a, b, c = x
    if a < b < c or c < b < a:
        return b
    if b < a < c or c < a < b:
        return a
    return c


@program(draw(4), draw(4, seed=1) * 4, torch.zeros(4))
def quantise_with_error_feedback(x: Tensor) -> Tensor:
    error = torch.tensor(0.0)
    out = []
    for value in x:
        corrected = value + error
        level = 1.0 if corrected >= 0.5 else (-1.0 if corrected <= -0.5 else 0.0)
        error = corrected - level
        out.append(corrected - error)
    return torch.stack(out)
