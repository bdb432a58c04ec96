"""Small models that other people's consumers of exported programs take, with sizes to call them
at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import lostwax
from lostwax import Dim
from lostwax.interop import to_torch


class Branch(nn.Module):
    """Which side of a `cond` is taken depends on data."""

    def __init__(self) -> None:
        super().__init__()
        self.plus, self.minus = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.plus(x).relu(), lambda x: self.minus(x), (x,))


class Decoder(nn.Module):
    """A transformer of one layer over tokens, with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, 16), nn.Embedding(32, 16)
        self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        q, k, v = (
            part.unflatten(-1, (2, 8)).transpose(1, 2)
            for part in self.qkv(self.first(x)).chunk(3, dim=-1)
        )
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        x = x + self.down(nn.functional.gelu(self.up(self.second(x))))
        return x @ self.tokens.weight.t()


@dataclass(frozen=True)
class Case:
    """A model, what makes a call of given sizes, and the sizes that may vary."""

    make: Callable[[], nn.Module]
    call: Callable[..., tuple[Tensor, ...]]
    dynamic: Any
    sizes: tuple[tuple[int, ...], ...]
    """Of the example, and of other calls."""


def make_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 3))


def make_convnet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 8, 3, groups=2), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(8, 4),
    )


BATCH = Dim("batch", min=1, max=16)
CASES = {
    "mlp": Case(make_mlp, lambda b: (torch.randn(b, 6),), {0: BATCH}, ((3,), (1,), (7,))),
    "convnet": Case(
        make_convnet, lambda b: (torch.randn(b, 3, 12, 12),), {0: BATCH}, ((3,), (1,), (7,))
    ),
    "transformer": Case(
        Decoder,
        lambda b, n: (torch.randint(20, (b, n)),),
        {0: BATCH, 1: Dim("length", min=1, max=32)},
        ((2, 5), (2, 1), (2, 32), (1, 5), (3, 1), (4, 32)),
    ),
    "cond": Case(Branch, lambda b: (torch.randn(b, 6),), {0: BATCH}, ((3,), (1,), (7,))),
}


FORMS: dict[str, dict[str, Any]] = {
    "static": {},
    "dynamic": {"dynamic": True},
    "composite": {"dynamic": True, "keep": "composite"},
}


def export(case: Case, *, dynamic: bool = False, keep: Any = ()) -> tuple[nn.Module, Any]:
    """The module, and its program as torch's own."""
    torch.manual_seed(0)
    module = case.make().eval()
    shapes = (case.dynamic,) if dynamic else None
    args = case.call(*case.sizes[0])
    return module, to_torch(lostwax.export(module, args, dynamic_shapes=shapes, keep=keep))


def make_calls(case: Case, form: str) -> list[tuple[Tensor, ...]]:
    """The calls to compare; numbers with both signs, so that both sides of a branch are taken."""
    sizes = case.sizes[:1] if form == "static" else case.sizes
    calls = [case.call(*each) for each in sizes]
    return calls + [(-x,) for (x,) in calls if x.is_floating_point()]
