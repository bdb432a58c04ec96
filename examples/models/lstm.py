"""A sentence classifier on `nn.LSTM`: embedding, two bidirectional layers, the mean over time."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LSTMClassifier(nn.Module):
    def __init__(self, vocabulary: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.embedding(tokens))
        return self.head(outputs.mean(dim=1))


def full() -> LSTMClassifier:
    return LSTMClassifier(vocabulary=20_000, width=512, layers=2, classes=5)


def tiny() -> LSTMClassifier:
    return LSTMClassifier(vocabulary=100, width=16, layers=2, classes=3)


def full_inputs() -> tuple[Tensor, ...]:
    return (torch.randint(0, 20_000, (8, 64)),)


def tiny_inputs() -> tuple[Tensor, ...]:
    return (torch.randint(0, 100, (2, 6)),)
