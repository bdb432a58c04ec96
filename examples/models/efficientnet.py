"""An EfficientNet-B0 (Tan and Le, 2019): inverted residuals with depthwise convolutions, squeeze
and excitation, SiLU."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class Stage(NamedTuple):
    """`depth` blocks of `width` channels; the first has the stride."""

    expansion: int
    width: int
    depth: int
    kernel: int
    stride: int


B0 = (
    Stage(1, 16, 1, 3, 1),
    Stage(6, 24, 2, 3, 2),
    Stage(6, 40, 2, 5, 2),
    Stage(6, 80, 3, 3, 2),
    Stage(6, 112, 3, 5, 1),
    Stage(6, 192, 4, 5, 2),
    Stage(6, 320, 1, 3, 1),
)


def conv_norm(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    conv = nn.Conv2d(
        inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False
    )
    return nn.Sequential(conv, nn.BatchNorm2d(outputs, eps=1e-3))


class SqueezeExcite(nn.Module):
    """Scales every channel by what the mean over the image says of it."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.silu = nn.SiLU(inplace=True)
        self.excite = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.excite(self.silu(self.squeeze(self.pool(x)))))


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, stage: Stage, stride: int) -> None:
        super().__init__()
        hidden = stage.expansion * inputs
        layers: list[nn.Module] = []
        if stage.expansion > 1:
            layers += [conv_norm(inputs, hidden, 1), nn.SiLU(inplace=True)]
        layers += [
            conv_norm(hidden, hidden, stage.kernel, stride, groups=hidden),
            nn.SiLU(inplace=True),
            SqueezeExcite(hidden, max(1, inputs // 4)),
            conv_norm(hidden, stage.width, 1),
        ]
        self.layers = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == stage.width

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.residual else self.layers(x)


class EfficientNet(nn.Module):
    def __init__(self, stages: tuple[Stage, ...], stem: int, head: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [conv_norm(3, stem, 3, stride=2), nn.SiLU(inplace=True)]
        inputs = stem
        for stage in stages:
            for block in range(stage.depth):
                stride = stage.stride if block == 0 else 1
                layers.append(InvertedResidual(inputs, stage, stride))
                inputs = stage.width
        layers += [conv_norm(inputs, head, 1), nn.SiLU(inplace=True)]
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.2, inplace=True)
        self.head = nn.Linear(head, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.flatten(self.pool(self.features(x)), 1)
        return self.head(self.dropout(x))


def full() -> EfficientNet:
    return EfficientNet(B0, stem=32, head=1280, classes=1000)


def tiny() -> EfficientNet:
    stages = (Stage(1, 8, 1, 3, 1), Stage(4, 12, 2, 5, 2))
    return EfficientNet(stages, stem=8, head=32, classes=10)


def full_inputs() -> tuple[Tensor, ...]:
    return (torch.randn(4, 3, 224, 224),)


def tiny_inputs() -> tuple[Tensor, ...]:
    return (torch.randn(2, 3, 32, 32),)
