"""A Llama-style decoder: RMS norm, rotary positions, grouped-query attention, SwiGLU.

`full` has sixteen layers; `LLAMA_7B` and `LLAMA_70B` have the dimensions of decoders of 7 and 70
billion parameters and are meant to be built without data, on the `meta` device or under a
FakeTensorMode.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    vocabulary: int
    width: int
    depth: int
    heads: int
    kv_heads: int
    hidden: int
    longest: int = 4096
    theta: float = 500_000.0

    @property
    def head_width(self) -> int:
        return self.width // self.heads


LLAMA_16 = Config(32_000, width=1024, depth=16, heads=16, kv_heads=4, hidden=2816)
LLAMA_7B = Config(32_000, width=4096, depth=32, heads=32, kv_heads=32, hidden=11_008)
LLAMA_70B = Config(128_256, width=8192, depth=80, heads=64, kv_heads=8, hidden=28_672)
LLAMA_TINY = Config(100, width=32, depth=2, heads=4, kv_heads=2, hidden=64, longest=64)


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return wide.type_as(x) * self.weight


def rotary_tables(config: Config) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every angle, [position, head width], both halves alike."""
    steps = torch.arange(0, config.head_width, 2, dtype=torch.float32) / config.head_width
    angles = torch.outer(torch.arange(config.longest).float(), config.theta**-steps)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin


def repeat_heads(x: Tensor, times: int) -> Tensor:
    """[batch, kv heads, tokens, width] with every head standing `times` times."""
    batch, heads, tokens, width = x.shape
    return (
        x[:, :, None]
        .expand(batch, heads, times, tokens, width)
        .reshape(batch, heads * times, tokens, width)
    )


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.kv_heads
        self.groups = config.heads // config.kv_heads
        kv_width = config.kv_heads * config.head_width
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key = nn.Linear(config.width, kv_width, bias=False)
        self.value = nn.Linear(config.width, kv_width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def split(self, x: Tensor, heads: int) -> Tensor:
        batch, tokens, width = x.shape
        return x.view(batch, tokens, heads, width // heads).transpose(1, 2)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q = rotate(self.split(self.query(x), self.heads), cos, sin)
        k = rotate(self.split(self.key(x), self.kv_heads), cos, sin)
        v = self.split(self.value(x), self.kv_heads)
        k, v = repeat_heads(k, self.groups), repeat_heads(v, self.groups)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class SwiGLU(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm1 = RMSNorm(config.width)
        self.attention = Attention(config)
        self.norm2 = RMSNorm(config.width)
        self.mlp = SwiGLU(config.width, config.hidden)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = RMSNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        cos, sin = rotary_tables(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def full() -> Llama:
    return Llama(LLAMA_16)


def tiny() -> Llama:
    return Llama(LLAMA_TINY)


def full_inputs() -> tuple[Tensor, ...]:
    return (torch.randint(0, LLAMA_16.vocabulary, (4, 128)),)


def tiny_inputs() -> tuple[Tensor, ...]:
    return (torch.randint(0, LLAMA_TINY.vocabulary, (2, 16)),)
