"""A step of a greedy decoder with a cache, in the ExecuTorch runtime and in eager.

    python -m bench.decode [--rows 2048] [--steps 20]

Each layer writes one row into its caches of keys and values and attends to all of them. The tokens
of both must be the same. Exits with 1 if they are not.
"""

from __future__ import annotations

import argparse
import copy
import sys
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import lostwax
from bench.clock import processor_seconds

WIDTH, HEADS, LAYERS, WORDS = 256, 8, 4, 1000


class Layer(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.norm, self.project = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        wide = 4 * WIDTH
        parts = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, wide), nn.GELU(), nn.Linear(wide, WIDTH)
        self.mix = nn.Sequential(*parts)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, HEADS, rows, WIDTH // HEADS))

    def forward(self, x: Any, at: Any, mask: Any) -> Any:
        parts = self.project(self.norm(x)).split(WIDTH, -1)
        query, key, value = (t.view(1, 1, HEADS, WIDTH // HEADS).transpose(1, 2) for t in parts)
        self.keys.index_copy_(2, at, key)
        self.values.index_copy_(2, at, value)
        seen = F.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).reshape(1, 1, WIDTH))
        return x + self.mix(x)


class Decoder(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer(rows) for _ in range(LAYERS))

    def forward(self, token: Any, at: Any) -> Any:
        x, mask = self.embed(token), (torch.arange(self.rows) <= at)[None, None, None]
        for layer in self.layers:
            x = layer(x, at, mask)
        return (x @ self.embed.weight.t()).argmax(-1)


def decode(step: Any, count: int) -> list[int]:
    token, found = torch.tensor([[1]]), []
    for i in range(count):
        token = step(token, torch.tensor([i]))
        found.append(int(token))
    return found


@torch.no_grad()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    from executorch.extension.pybindings import portable_lib

    torch.set_num_threads(1)
    portable_lib._unsafe_reset_threadpool(1)
    torch.manual_seed(0)
    model = Decoder(given.rows).eval()
    example = torch.tensor([[1]]), torch.tensor([0])
    executable = lostwax.export(copy.deepcopy(model), example).to_edge().to_executable()
    loaded = portable_lib._load_for_executorch_from_buffer(executable.buffer)
    steps = {"runtime": lambda *inputs: loaded.forward(inputs)[0], "eager": model}
    tokens = {name: decode(step, given.steps) for name, step in steps.items()}
    for name, step in steps.items():
        seconds = min(processor_seconds(lambda s=step: decode(s, given.steps)) for _ in range(3))
        print(f"{name:<8} {1e3 * seconds / given.steps:8.2f} ms for a token")
    print(f"arena    {executable.arena_sizes['forward'] / 1e6:8.2f} MB")
    is_same = tokens["runtime"] == tokens["eager"]
    print("the same tokens" if is_same else f"other tokens: {tokens}")
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
