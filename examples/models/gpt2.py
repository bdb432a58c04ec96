"""GPT-2 small (Radford et al., 2019): learned positions, pre-norm decoder, the output layer tied
to the embedding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    vocabulary: int = 50257
    longest: int = 1024
    width: int = 768
    depth: int = 12
    heads: int = 12


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            part.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).contiguous().view(batch, tokens, width))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        hidden = F.gelu(self.up(self.norm2(x)), approximate="tanh")
        return x + self.dropout(self.down(hidden))


class GPT2(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocabulary, config.width)
        self.position = nn.Embedding(config.longest, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        nn.init.normal_(self.token.weight, std=0.02)
        self.head.weight = self.token.weight

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def full() -> GPT2:
    return GPT2(Config())


def tiny() -> GPT2:
    return GPT2(Config(vocabulary=100, longest=64, width=32, depth=2, heads=4))


def full_inputs() -> tuple[Tensor, ...]:
    return (torch.randint(0, 50257, (2, 128)),)


def tiny_inputs() -> tuple[Tensor, ...]:
    return (torch.randint(0, 100, (2, 16)),)
