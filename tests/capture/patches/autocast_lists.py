"""A module with one operator of each of torch's lists for autocast on CUDA, and the dtypes that it
gives there."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BF16 = torch.bfloat16


class Lists(nn.Module):
    """One operator of each of torch's lists."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.conv = nn.Linear(4, 4), nn.LayerNorm(4), nn.Conv1d(3, 3, 2)

    def forward(self, x: Tensor) -> list[Tensor]:
        with torch.autocast("cuda", BF16):
            low = self.linear(x)
            wide = self.norm(low)
            with torch.autocast("cuda", enabled=False):
                off = self.linear(wide)
            return [
                low,
                wide,
                off,
                self.conv(wide),
                torch.einsum("abc,dbc->ad", wide, wide),
                low.softmax(-1),
                low.sum(0),
                low.pow(2),
                torch.cat([low, wide]),
                torch.addcmul(low, wide, low),
                low + 1,
                torch.nn.functional.scaled_dot_product_attention(wide, wide, wide),
            ]


F32 = torch.float32
EXPECTED = [BF16, F32, F32, BF16, BF16, F32, F32, F32, F32, F32, BF16, BF16]
"""As on a GPU (tests/gpu runs the same there)."""
