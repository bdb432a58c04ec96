"""Small models of the kinds that are run on devices, each with inputs of a given size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from lostwax import Dim


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.down = nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Any) -> Any:
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(y)) + self.down(x))


class Inverted(nn.Module):
    """A block of MobileNet: wide, by channel, narrow."""

    def __init__(self, width: int) -> None:
        super().__init__()
        wide = 3 * width
        self.net = nn.Sequential(
            *(nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()),
            *(nn.Conv2d(wide, wide, 3, 1, 1, groups=wide, bias=False), nn.BatchNorm2d(wide)),
            *(nn.Hardswish(), nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width)),
        )

    def forward(self, x: Any) -> Any:
        return x + self.net(x)


class Convolutions(nn.Module):
    """A small net for images, with all kinds of convolutions and pools."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(3, 6, 5, 2, 2), nn.SiLU(), Residual(6, 8, 2), nn.MaxPool2d(3, 1, 1)),
            *(Inverted(8), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=2)),
        )
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.norm = nn.GroupNorm(2, 4)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        y = self.body(x)
        up = self.norm(self.up(y))
        small = F.interpolate(x, size=(4, 4), mode="bilinear")
        logits = self.head(F.dropout(F.adaptive_avg_pool2d(y, 1).flatten(1), training=False))
        return logits.softmax(-1), torch.cat([up, up * 2], 1), F.avg_pool2d(x, 2), small


class Signals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 6, 3, padding=2, dilation=2, groups=3)
        self.norm = nn.BatchNorm1d(6)
        self.lstm = nn.LSTM(6, 4, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(8, 4, batch_first=True)

    def forward(self, x: Any) -> Any:
        y = F.relu(self.norm(self.conv(x)))
        z, (hidden, _) = self.lstm(F.max_pool1d(y, 2).transpose(1, 2))
        return self.gru(z)[0][:, -1], hidden, F.avg_pool1d(y, 2)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=True)
        self.cross = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, tokens: Any) -> Any:
        length = tokens.shape[1]
        x = self.layer(self.embed(tokens) + torch.arange(length).unsqueeze(-1) / 10)
        q = x.view(x.shape[0], length, 2, 8).transpose(1, 2)
        a = F.scaled_dot_product_attention(q, q, q, is_causal=True)
        return self.cross(x, x, x)[0], a.transpose(1, 2).reshape(x.shape), x.mean(1).argmax(-1)


class Decoder(nn.Module):
    """Attends to what it was given before, which it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, 8, 4))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))
        self.project = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        self.keys.index_copy_(1, self.position, self.project(x))
        seen = torch.arange(8) <= self.position
        scores = (x @ self.keys.transpose(1, 2)).masked_fill(~seen, float("-inf"))
        self.position.add_(1)
        return scores.softmax(-1) @ self.keys


class Case(NamedTuple):
    module: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[torch.Tensor, ...]]
    dynamic: Any = None


BATCH = ({0: Dim("batch", max=6)},)
CASES = {
    "convolutions": Case(Convolutions, lambda n: (torch.randn(n, 3, 16, 16),), BATCH),
    "signals": Case(Signals, lambda n: (torch.randn(n, 3, 10),), BATCH),
    "attention": Case(
        Attention, lambda n: (torch.randint(0, 50, (2, n)),), ({1: Dim("length", max=6)},)
    ),
    "decoder": Case(Decoder, lambda n: (torch.randn(1, 1, 4),)),
}


def make_module(case: Case) -> nn.Module:
    """The model in evaluation, with statistics that are not those of a new one."""
    torch.manual_seed(0)
    module = case.module().eval()
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 1.5)
    return module
