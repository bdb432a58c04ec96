"""U-Net (Ronneberger et al., 2015) with padding: each level down halves the image, each level up
joins what the same level saw on the way down. Height and width are multiples of 2 ** levels."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def two_convs(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class Up(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.convs = two_convs(2 * width, width)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return self.convs(torch.cat([skip, self.up(x)], dim=1))


class UNet(nn.Module):
    def __init__(self, width: int, levels: int, classes: int) -> None:
        super().__init__()
        self.first = two_convs(3, width)
        self.pool = nn.MaxPool2d(2)
        self.downs = nn.ModuleList(
            two_convs(width << level, width << level + 1) for level in range(levels)
        )
        self.ups = nn.ModuleList(Up(width << level) for level in reversed(range(levels)))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        skips = []
        for down in self.downs:
            skips.append(x)
            x = down(self.pool(x))
        for up in self.ups:
            x = up(x, skips.pop())
        return self.head(x)


def full() -> UNet:
    return UNet(width=64, levels=4, classes=2)


def tiny() -> UNet:
    return UNet(width=4, levels=2, classes=2)


def full_inputs() -> tuple[Tensor, ...]:
    return (torch.randn(2, 3, 256, 256),)


def tiny_inputs() -> tuple[Tensor, ...]:
    return (torch.randn(2, 3, 16, 16),)
