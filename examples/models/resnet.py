"""ResNet-50 (He et al., 2015): bottleneck blocks, batch norm, stride in the 3x3 convolution."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    """1x1 down, 3x3, 1x1 up to four times the width, added to the shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.reduce = conv_norm(inputs, width, 1)
        self.conv = conv_norm(width, width, 3, stride)
        self.expand = conv_norm(width, outputs, 1)
        self.relu = nn.ReLU(inplace=True)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else conv_norm(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.reduce(x))
        y = self.relu(self.conv(y))
        return self.relu(self.expand(y) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, depths: tuple[int, ...], width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            conv_norm(3, width, 7, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        blocks: list[nn.Module] = []
        inputs = width
        for stage, depth in enumerate(depths):
            for block in range(depth):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(Bottleneck(inputs, width << stage, stride))
                inputs = 4 * width << stage
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x))
        return self.head(torch.flatten(self.pool(x), 1))


def full() -> ResNet:
    return ResNet(depths=(3, 4, 6, 3), width=64, classes=1000)


def tiny() -> ResNet:
    return ResNet(depths=(1, 1), width=8, classes=10)


def full_inputs() -> tuple[Tensor, ...]:
    return (torch.randn(4, 3, 224, 224),)


def tiny_inputs() -> tuple[Tensor, ...]:
    return (torch.randn(2, 3, 32, 32),)
