"""What surrounds training: schedules, clipping, scaling, stopping."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tests.capture.flow.algorithms.program import draw, floats, ints, number, program


@program(number(0), number(5), number(50), number(200))
def warmup_and_cosine(step: Tensor) -> Tensor:
    warmup, total = 10, 100
    if step < warmup:
        return (step + 1) / warmup
    if step >= total:
        return torch.tensor(0.0)
    progress = (step - warmup) / (total - warmup)
    return 0.5 * (1 + torch.cos(math.pi * progress))


@program(number(0), number(35), number(99))
def step_decay(epoch: Tensor) -> tuple[Tensor, int]:
    rate = torch.tensor(1.0)
    milestones = [30, 60, 90]
    passed = 0
    for milestone in milestones:
        if epoch < milestone:
            break
        rate = rate * 0.1
        passed += 1
    return rate, passed


@program((draw(3), draw(2)), (draw(3) * 50, draw(2)), (torch.zeros(3), torch.zeros(2)))
def clip_gradients(a: Tensor, b: Tensor) -> tuple[list[Tensor], Tensor]:
    grads = [a.clone(), b.clone()]
    norm = torch.sqrt(sum((g**2).sum() for g in grads))
    if norm > 1.0:
        for g in grads:
            g.mul_(1.0 / (norm + 1e-6))
    return grads, norm


@program(floats(1.0, 0.9, 0.95, 0.96), floats(1.0, 0.5, 0.2, 0.1), floats(1.0, 2.0, 3.0, 4.0))
def early_stopping(losses: Tensor) -> tuple[Tensor, int]:
    best, bad, stopped = torch.tensor(math.inf), 0, -1
    for epoch, loss in enumerate(losses):
        if loss < best:
            best, bad = loss, 0
        else:
            bad += 1
        if bad >= 2:
            stopped = epoch
            break
    return best, stopped


@program(draw(3), torch.full((3,), math.inf), torch.zeros(3), torch.ones(3))
class LossScaler(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(1024.0))
        self.register_buffer("good", torch.tensor(0))

    def forward(self, grads: Tensor) -> Tensor:
        if not torch.isfinite(grads).all():
            self.scale *= 0.5
            self.good.zero_()
            return torch.zeros_like(grads)
        self.good += 1
        if self.good >= 2:
            self.scale *= 2.0
            self.good.zero_()
        return grads / self.scale


@program((draw(3), draw(3, seed=1)), (torch.zeros(3), torch.zeros(3)), (draw(3), draw(3) * 40))
def huber(prediction: Tensor, target: Tensor) -> Tensor:
    total = torch.tensor(0.0)
    for p, t in zip(prediction, target):
        error = (p - t).abs()
        if error <= 1.0:
            total = total + 0.5 * error**2
        else:
            total = total + error - 0.5
    return total / len(prediction)


@program((draw(2, 4), ints(1, 2)), (draw(2, 4) * 9, ints(-100, 3)), (draw(2, 4), ints(-100, -100)))
def cross_entropy_ignoring(logits: Tensor, target: Tensor) -> Tensor:
    losses, count = torch.tensor(0.0), 0
    for row, label in zip(logits, target):
        if label == -100:
            continue
        losses = losses - row.log_softmax(dim=0)[label]
        count += 1
    if count == 0:
        return losses
    return losses / count


@program((draw(3), number(1.0)), (draw(3) * 0.001, number(1.0)), (draw(3) * 30, number(5.0)))
def adaptive_learning_rate(grad: Tensor, previous: Tensor) -> tuple[Tensor, float]:
    rate = 0.1
    norm = grad.norm()
    if norm > 2 * previous:
        rate /= 2
    elif norm < 0.5 * previous:
        rate *= 1.05
    return -rate * grad, rate


@program(draw(4), draw(4, seed=4) * 9, torch.zeros(4))
class ExponentialAverage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("started", torch.tensor(False))

    def forward(self, x: Tensor) -> Tensor:
        if self.started:
            self.average.mul_(0.9).add_(x, alpha=0.1)
        else:
            self.average.copy_(x)
            self.started.fill_(True)
        return self.average.clone()


@program(
    (draw(4, 3), ints(0, 1, 2, 0)),
    (draw(4, 3) * 9, ints(1, 1, 1, 1)),
    (torch.zeros(4, 3), ints(2, 2, 2, 2)),
)
def hard_examples(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    hard = losses > losses.mean()
    if not hard.any():
        hard = torch.ones_like(hard)
    return losses[hard].mean(), hard.sum()


@program(draw(3), torch.tensor([math.nan, 1.0, 2.0]), torch.full((3,), 1e30))
def checked_loss(losses: Tensor) -> Tensor:
    for i, loss in enumerate(losses):
        assert not torch.isnan(loss), f"loss {i} is not a number"
    total = losses.sum()
    if total > 1e6:
        raise RuntimeError("the loss explodes")
    return total


@program((number(0.2), draw(3)), (number(0.9), draw(3)), (number(0.5), draw(3)))
def stochastic_depth(uniform: Tensor, x: Tensor, rate: float = 0.5) -> Tensor:
    return x / (1 - rate) if uniform >= rate else torch.zeros_like(x)
