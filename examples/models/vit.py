"""ViT-B/16 (Dosovitskiy et al., 2020): patches as tokens, a class token, pre-norm encoder."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    image: int = 224
    patch: int = 16
    width: int = 768
    depth: int = 12
    heads: int = 12
    classes: int = 1000


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, patches = config.width, (config.image // config.patch) ** 2
        self.patch = nn.Conv2d(3, width, config.patch, stride=config.patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, patches + 1, width))
        self.blocks = nn.Sequential(*(Block(width, config.heads) for _ in range(config.depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, config.classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], dim=1)
        x = self.norm(self.blocks(x + self.position))
        return self.head(x[:, 0])


def full() -> ViT:
    return ViT(Config())


def tiny() -> ViT:
    return ViT(Config(image=32, patch=8, width=32, depth=2, heads=4, classes=10))


def full_inputs() -> tuple[Tensor, ...]:
    return (torch.randn(4, 3, 224, 224),)


def tiny_inputs() -> tuple[Tensor, ...]:
    return (torch.randn(2, 3, 32, 32),)
