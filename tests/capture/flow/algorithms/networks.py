"""Networks whose depth or way depends on what they see."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.capture.flow.algorithms.program import draw, program


@program(draw(2, 4), draw(2, 4, seed=1) * 10, torch.zeros(2, 4))
class EarlyExit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.exits = nn.ModuleList(nn.Linear(4, 2) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        for depth, (layer, leave) in enumerate(zip(self.layers, self.exits)):
            x = torch.relu(layer(x))
            logits = leave(x)
            confidence = logits.softmax(dim=-1).amax(dim=-1).min()
            if confidence > 0.6:
                return logits, depth
        return logits, depth


@program(draw(4), draw(4, seed=1) * 10, -torch.ones(4) * 3)
class AdaptiveComputation(nn.Module):
    """ACT: the same cell again, until it has halted."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 4)
        self.halt = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, int]:
        state = torch.zeros(1, 4)
        output = torch.zeros(1, 4)
        halted = torch.zeros(())
        steps = 0
        while halted < 0.99 and steps < 10:
            state = self.cell(x[None], state)
            p = torch.sigmoid(self.halt(state)).squeeze()
            if halted + p > 0.99:
                p = 1 - halted
            output = output + p * state
            halted = halted + p
            steps += 1
        return output, halted, steps


@program(draw(3, 4), draw(3, 4, seed=2) * 4, torch.zeros(3, 4))
class MixtureOfExperts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        choice = self.gate(x).argmax(dim=-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            mask = choice == i
            if mask.any():
                out[mask] = expert(x[mask])
        return out


@program(draw(3, 4), draw(3, 4, seed=2) * 4, torch.zeros(3, 4))
class TokenByTokenExperts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 2)
        self.experts = nn.ModuleList([nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())])

    def forward(self, x: Tensor) -> Tensor:
        outputs = []
        for token in x:
            scores = self.gate(token)
            if scores[0] > scores[1]:
                outputs.append(self.experts[0](token))
            else:
                outputs.append(self.experts[1](token))
        return torch.stack(outputs)


@program(draw(3, 4), draw(3, 4, seed=2) * 4, torch.zeros(3, 4))
class ExpertsByIndex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 2)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        index = self.gate(x.mean(dim=0)).argmax().item()
        return self.experts[index](x)


@program(draw(2, 4), draw(2, 4, seed=1) * 10, torch.zeros(2, 4), torch.full((2, 4), float("nan")))
class DeepEquilibrium(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.outer = nn.Linear(4, 4)
        with torch.no_grad():
            self.inner.weight.mul_(0.5)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.zeros_like(x)
        injected = self.outer(x)
        for _ in range(20):
            new = torch.tanh(self.inner(z) + injected)
            if (new - z).norm() / (new.norm() + 1e-6) < 1e-3:
                return new
            z = new
        return z


@program(draw(6).sign(), -torch.ones(6), torch.ones(6))
class Hopfield(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        pattern = torch.tensor([[1.0, -1, 1, -1, 1, -1], [1, 1, 1, -1, -1, -1]])
        self.register_buffer("weights", pattern.T @ pattern / 6)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        sweeps = torch.tensor(0)
        changed = True
        while changed:
            old = state
            state = torch.where(self.weights @ state >= 0, 1.0, -1.0)
            sweeps += 1
            changed = not torch.equal(state, old) and sweeps < 10
        return state, sweeps


@program(draw(3, 4), draw(3, 4, seed=1) * 8, torch.zeros(3, 4))
class IterativeRefinement(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.update = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        estimate = torch.zeros_like(x)
        history = []
        for _ in range(4):
            delta = self.update(torch.cat([x, estimate], dim=-1))
            history.append(delta.norm())
            if delta.norm() < 1.5:
                delta = delta * 0.1
            estimate = estimate + delta
        return estimate, history


@program(draw(2, 4), draw(2, 4, seed=1) * 3, torch.zeros(2, 4))
class SkipsLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.router = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if self.should_skip(x):
                continue
            x = x + F.gelu(layer(x))
        return x

    def should_skip(self, x: Tensor) -> bool:
        return bool(self.router(x).mean() > 0.0)


@program(draw(5, 4), draw(5, 4, seed=1) * 4, torch.zeros(5, 4))
class RecurrentUntilStop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 4)
        self.stop = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        h, c = torch.zeros(1, 4), torch.zeros(1, 4)
        n = 0
        for row in x:
            h, c = self.cell(row[None], (h, c))
            n += 1
            if torch.sigmoid(self.stop(h)).item() > 0.5:
                break
        return h, n


@program(draw(2, 6, 4), draw(2, 6, 4, seed=1) * 4, torch.zeros(2, 6, 4))
class WindowedAttention(nn.Module):
    """Windows are read from the last one on, until most of the weight is found."""

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        query = x[:, -1]
        total = torch.zeros(2, 4)
        norm = torch.zeros(2, 1)
        windows = 0
        for start in range(4, -1, -2):
            keys = x[:, start : start + 2]
            scores = torch.einsum("bd,bkd->bk", query, keys).exp()
            total = total + torch.einsum("bk,bkd->bd", scores, keys)
            norm = norm + scores.sum(dim=-1, keepdim=True)
            windows += 1
            if (scores.sum(dim=-1, keepdim=True) / norm).max() < 0.2:
                break
        return total / norm, windows


@program(draw(4, 3), draw(4, 3, seed=1) + 2, -torch.ones(4, 3))
class DropoutByThreshold(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("dropped", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        scale = x.abs().mean()
        if scale > 1:
            keep = x.abs() > scale * 0.5
            self.dropped += (~keep).sum()
            x = torch.where(keep, x, torch.zeros_like(x)) / keep.float().mean()
        return x


@program(draw(2, 4), draw(2, 4, seed=1) * 100, torch.full((2, 4), float("nan")))
class NormalisesIfNeeded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if torch.isnan(x).any() or torch.isinf(x).any():
            x = torch.nan_to_num(x)
        if not (x.abs() <= 3).all():
            x = F.layer_norm(x, (4,))
        return x * 2 if x.mean() >= 0 else x / 2


@program(draw(3, 4), draw(3, 4, seed=1) * 6, torch.zeros(3, 4))
class RoutesBySign(nn.Module):
    """A decision tree with linear leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.decide = nn.ModuleList(nn.Linear(4, 1) for _ in range(3))
        self.leaves = nn.ModuleList(nn.Linear(4, 2) for _ in range(4))

    def descend(self, row: Tensor, node: int) -> Tensor:
        if node >= 3:
            return self.leaves[node - 3](row)
        if self.decide[node](row) > 0:
            return self.descend(row, 2 * node + 1)
        return self.descend(row, 2 * node + 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.descend(row, 0) for row in x])


@program(draw(4), draw(4), draw(4, seed=3) * 5, torch.zeros(4))
class CachesItsAnswer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(4))
        self.register_buffer("answer", torch.zeros(4))
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if (x - self.last).abs().max() < 0.1:
            return self.answer.clone()
        answer = self.linear(x)
        self.last.copy_(x)
        self.answer.copy_(answer)
        return answer
