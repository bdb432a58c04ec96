"""A Swin-T (Liu et al., 2021): attention within windows; every second block shifts the windows by
half, so that neighbours meet. Sides are multiples of the window at every stage."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    image: int = 224
    patch: int = 4
    width: int = 96
    depths: tuple[int, ...] = (2, 2, 6, 2)
    heads: tuple[int, ...] = (3, 6, 12, 24)
    window: int = 7
    classes: int = 1000


def to_windows(x: Tensor, window: int) -> Tensor:
    """[batch, height, width, channels] to [windows, window * window, channels]."""
    batch, height, width, channels = x.shape
    x = x.view(batch, height // window, window, width // window, window, channels)
    return x.transpose(2, 3).reshape(-1, window * window, channels)


def from_windows(x: Tensor, window: int, height: int, width: int) -> Tensor:
    channels = x.shape[-1]
    x = x.view(-1, height // window, width // window, window, window, channels)
    return x.transpose(2, 3).reshape(-1, height, width, channels)


def relative_positions(window: int) -> Tensor:
    """For each pair of cells in a window, the index of its offset in the table of biases."""
    cells = torch.cartesian_prod(torch.arange(window), torch.arange(window))
    offsets = cells[:, None] - cells[None] + window - 1
    return offsets[..., 0] * (2 * window - 1) + offsets[..., 1]


def shift_mask(side: int, window: int, shift: int) -> Tensor:
    """[windows, cells, cells]: -100 between cells that are neighbours by the cyclic shift alone."""
    edges = torch.tensor([side - window, side - shift])
    band = torch.bucketize(torch.arange(side), edges, right=True)
    region = (3 * band[:, None] + band[None])[None, :, :, None]
    cells = to_windows(region, window).squeeze(-1)
    return torch.where(cells[:, None] == cells[:, :, None], 0.0, -100.0)


class WindowAttention(nn.Module):
    index: Tensor

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.bias = nn.Parameter(0.02 * torch.randn((2 * window - 1) ** 2, heads))
        self.register_buffer("index", relative_positions(window), persistent=False)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        windows, cells, width = x.shape
        qkv = self.qkv(x).reshape(windows, cells, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q * (width // self.heads) ** -0.5) @ k.transpose(-2, -1)
        scores = scores + self.bias[self.index].permute(2, 0, 1)
        if mask is not None:
            per_image = scores.view(-1, mask.shape[0], self.heads, cells, cells)
            scores = (per_image + mask[:, None]).view(-1, self.heads, cells, cells)
        y = torch.softmax(scores, dim=-1) @ v
        return self.out(y.transpose(1, 2).reshape(windows, cells, width))


class Block(nn.Module):
    mask: Tensor | None

    def __init__(self, width: int, heads: int, side: int, window: int, shifted: bool) -> None:
        super().__init__()
        self.window = min(window, side)
        self.shift = self.window // 2 if shifted and side > window else 0
        self.norm1 = nn.LayerNorm(width)
        self.attention = WindowAttention(width, heads, self.window)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        mask = shift_mask(side, self.window, self.shift) if self.shift else None
        self.register_buffer("mask", mask, persistent=False)

    def attend(self, x: Tensor) -> Tensor:
        _, height, width, _ = x.shape
        if self.shift:
            x = torch.roll(x, (-self.shift, -self.shift), dims=(1, 2))
        x = self.attention(to_windows(x, self.window), self.mask)
        x = from_windows(x, self.window, height, width)
        return torch.roll(x, (self.shift, self.shift), dims=(1, 2)) if self.shift else x

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Merge(nn.Module):
    """Four neighbours become one cell of twice the channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduce = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        corners = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return self.reduce(self.norm(torch.cat(corners, dim=-1)))


class Swin(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, side = config.width, config.image // config.patch
        self.patch = nn.Conv2d(3, width, config.patch, stride=config.patch)
        self.first_norm = nn.LayerNorm(width)
        layers: list[nn.Module] = []
        for stage, (depth, heads) in enumerate(zip(config.depths, config.heads, strict=True)):
            if stage > 0:
                layers.append(Merge(width))
                width, side = 2 * width, side // 2
            layers += [
                Block(width, heads, side, config.window, shifted=block % 2 == 1)
                for block in range(depth)
            ]
        self.layers = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, config.classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.first_norm(self.patch(image).permute(0, 2, 3, 1))
        return self.head(self.norm(self.layers(x)).mean(dim=(1, 2)))


def full() -> Swin:
    return Swin(Config())


def tiny() -> Swin:
    return Swin(
        Config(image=32, patch=2, width=16, depths=(2, 2), heads=(2, 4), window=4, classes=10)
    )


def full_inputs() -> tuple[Tensor, ...]:
    return (torch.randn(2, 3, 224, 224),)


def tiny_inputs() -> tuple[Tensor, ...]:
    return (torch.randn(2, 3, 32, 32),)
