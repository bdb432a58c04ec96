"""BERT-base (Devlin et al., 2018): token, position and segment embeddings, post-norm encoder with a
padding mask, pooled classification head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    vocabulary: int = 30522
    width: int = 768
    depth: int = 12
    heads: int = 12
    longest: int = 512
    classes: int = 2


class Embeddings(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocabulary, config.width, padding_idx=0)
        self.position = nn.Embedding(config.longest, config.width)
        self.segment = nn.Embedding(2, config.width)
        self.norm = nn.LayerNorm(config.width, eps=1e-12)
        self.dropout = nn.Dropout(0.1)

    def forward(self, tokens: Tensor, segments: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.word(tokens) + self.position(positions) + self.segment(segments)
        return self.dropout(self.norm(x))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        return x.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (self.split(project(x)) for project in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.norm1 = nn.LayerNorm(width, eps=1e-12)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norm1(x + self.dropout(self.attention(x, mask)))
        return self.norm2(x + self.dropout(self.down(F.gelu(self.up(x)))))


class Bert(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config.width, config.heads) for _ in range(config.depth))
        self.pooler = nn.Linear(config.width, config.width)
        self.head = nn.Linear(config.width, config.classes)

    def forward(self, tokens: Tensor, segments: Tensor, attend: Tensor) -> Tensor:
        """`attend` is true where a token is a word and false where it is padding."""
        x = self.embeddings(tokens, segments)
        mask = torch.zeros_like(attend, dtype=x.dtype).masked_fill(~attend, -1e9)[:, None, None]
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(torch.tanh(self.pooler(x[:, 0])))


def full() -> Bert:
    return Bert(Config())


def tiny() -> Bert:
    return Bert(Config(vocabulary=100, width=32, depth=2, heads=4, longest=64))


def _inputs(vocabulary: int, batch: int, tokens: int) -> tuple[Tensor, ...]:
    words = torch.randint(1, vocabulary, (batch, tokens))
    attend = torch.ones(batch, tokens, dtype=torch.bool)
    attend[0, tokens // 2 :] = False
    return words, torch.zeros_like(words), attend


def full_inputs() -> tuple[Tensor, ...]:
    return _inputs(30522, batch=4, tokens=128)


def tiny_inputs() -> tuple[Tensor, ...]:
    return _inputs(100, batch=2, tokens=16)
