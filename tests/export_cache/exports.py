"""Exports with a cache and without one, compared; and modules for them."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lostwax
from lostwax import export
from lostwax.export_cache.cache import ExportCache
from lostwax.pt2.graph.encode import encode


def describe(program: lostwax.ExportedProgram) -> Any:
    """All that files say of a program, and more: the keys of each node's `meta`, and which tensors
    it is bound to."""
    nodes = [
        (n.name, n.op, str(n.target), sorted(n.meta), str(n.meta.get("nn_module_stack")))
        for n in program.graph.nodes
    ]
    state = {name: id(t) for name, t in program.state_dict.items()}
    root = program.root_signature
    marks = program.training, program.settings, program.reads_views, str(root.signature)
    example = [id(x) for x in torch.utils._pytree.tree_leaves(program.example_inputs)]
    return str(program), nodes, state, sorted(program.constants), marks, example, encode(program)


def captures(kept: ExportCache, *call: Any, **options: Any) -> bool:
    """Does an export capture? Its program is in any case what an export without a cache gives."""
    before, made = kept.hits, []
    for context in (kept, nullcontext()):
        with context:
            made.append(describe(export(*call, **options)))
    assert made[0] == made[1]
    return kept.hits == before


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))
        self.n = 3
        self.sizes = [1, 2]
        self.table = torch.arange(4.0)

    def forward(self, x):
        self.count += 1
        return self.linear(x) * self.n + sum(self.sizes) + helper(x) + self.table


FACTOR = 2.0


def helper(x):
    return x.relu() * FACTOR + torch.tensor([1.0, 2.0, 3.0, 4.0])


class Config:
    def __init__(self) -> None:
        self.scale, self.act, self.names = 2.0, "relu", {"a": 1, "b": [1, 2]}


class Small(nn.Module):
    KIND = 1

    def __init__(self, config: Config | None = None) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("passing", torch.ones(4), persistent=False)
        self.drop = nn.Dropout(0.5)
        self.config = config or Config()
        self.kept = torch.ones(4)
        self.call = lambda x: x

    def forward(self, x):
        config = self.config
        y = getattr(torch, config.act)(self.a(x)) * config.scale + config.names["b"][1]
        y = self.drop(self.step(self.b(y))) + self.kept * self.passing
        return self.call(y) * self.KIND

    def step(self, x):
        return x + 1


X = torch.randn(2, 4)


def add(x, y, n=1):
    return x + y * n


def entries(kept: ExportCache) -> list[Path]:
    return sorted(kept._folder.path.rglob("*.entry"))
