"""What two processes run: modules after `parallelize_module`, eager and exported, compared on each
rank."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional

import lostwax
from lostwax import Dim
from lostwax.errors import SettingsError
from tests.distributed.ranks import reload, run_cases

WIDTH, HEADS, WORDS = 8, 4, 10


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """As of Llama: the heads that this rank has, with rotary embeddings and a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        split = (batch, length, -1, WIDTH // HEADS)
        q, k, v = (w(x).view(split).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        q, k = turn(q), turn(k)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).reshape(batch, length, -1))  # type: ignore[no-any-return]


def turn(x: Tensor) -> Tensor:
    angle = torch.arange(x.shape[2], device=x.device)[:, None] * 1.0
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(WIDTH, 16, bias=False), nn.Linear(WIDTH, 16, bias=False)
        self.w2 = nn.Linear(16, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.feed = Attention(), Gated()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))  # type: ignore[no-any-return]


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.RMSNorm(WIDTH)
        self.out = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))  # type: ignore[no-any-return]


PARTS: dict[str, Any] = {
    "attention.wq": ColwiseParallel(),
    "attention.wk": ColwiseParallel(),
    "attention.wv": ColwiseParallel(),
    "attention.wo": RowwiseParallel(),
    "feed.w1": ColwiseParallel(),
    "feed.w2": RowwiseParallel(),
    "feed.w3": ColwiseParallel(),
}


def make_llama(mesh: DeviceMesh) -> nn.Module:
    """Plain tensor parallelism: activations between the layers are whole."""
    model: Any = Llama()
    plan = {
        "words": RowwiseParallel(input_layouts=Replicate()),
        "out": ColwiseParallel(output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, plan)
    for block in model.blocks:
        parallelize_module(block, mesh, PARTS)
    return model  # type: ignore[no-any-return]


def make_sequence_parallel(mesh: DeviceMesh) -> nn.Module:
    """Activations between the layers are sharded by length."""
    model: Any = Llama()
    plan: dict[str, Any] = {
        "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "out": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, plan)
    gather = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    between = {
        "norm1": SequenceParallel(),
        "attention": gather,
        "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
        "norm2": SequenceParallel(),
        "feed": gather,
        "feed.w2": RowwiseParallel(output_layouts=Shard(1)),
    }
    for block in model.blocks:
        parallelize_module(block, mesh, {**PARTS, **between})
    return model  # type: ignore[no-any-return]


def make_mlp(mesh: DeviceMesh) -> nn.Module:
    return parallelize_module(MLP(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


class Tied(nn.Module):
    """One weight in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.out = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.words(tokens))  # type: ignore[no-any-return]


def make_tied(mesh: DeviceMesh) -> nn.Module:
    module = Tied()
    plan = {
        "words": RowwiseParallel(input_layouts=Replicate()),
        "out": ColwiseParallel(output_layouts=Replicate()),
    }
    parallelize_module(module, mesh, plan)
    module.out.weight = module.words.weight
    return module


class Case(NamedTuple):
    make: Callable[[DeviceMesh], nn.Module]
    inputs: Callable[[], Tensor]
    others: tuple[Callable[[], Tensor], ...]
    dynamic: Any


def vectors(*size: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*size, WIDTH, generator=torch.Generator().manual_seed(sum(size)))


def tokens(*size: int) -> Callable[[], Tensor]:
    made = torch.Generator
    return lambda: torch.randint(WORDS, size, generator=made().manual_seed(sum(size)))


OPEN = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},)
LLAMA = tokens(2, 4), (tokens(3, 8), tokens(1, 12))
CASES = {
    "mlp": Case(make_mlp, vectors(3), (vectors(1), vectors(5)), ({0: Dim.DYNAMIC},)),
    "mlp_of_a_sequence": Case(make_mlp, vectors(2, 3), (vectors(4, 1),), OPEN),
    "fixed_mlp": Case(make_mlp, vectors(3), (), None),
    "llama": Case(make_llama, *LLAMA, OPEN),
    "fixed_llama": Case(make_llama, tokens(2, 4), (), None),
    "sequence_parallel": Case(make_sequence_parallel, *LLAMA, "even"),
    "fixed_sequence_parallel": Case(make_sequence_parallel, tokens(2, 4), (), None),
    "tied": Case(make_tied, tokens(2, 3), (tokens(4, 5),), OPEN),
}


def check(case: Case, mesh: DeviceMesh) -> None:
    torch.manual_seed(0)
    dynamic = case.dynamic
    if dynamic == "even":  # each rank has a part of the length
        dynamic = ({0: Dim.DYNAMIC, 1: mesh.size() * Dim("part", min=1)},)
    module = case.make(mesh).eval()
    with torch.no_grad():
        program = lostwax.export(module, (case.inputs(),), dynamic_shapes=dynamic)
        for each in (program, program.run_decompositions(), reload(program)):
            for inputs in (case.inputs, *case.others):
                wanted = module(inputs())
                torch.testing.assert_close(each.module()(inputs()), wanted.clone())


def check_rank(mesh: DeviceMesh, rank: int) -> None:
    """A file that another rank has written is refused; so is one for more ranks."""
    with torch.no_grad():
        program = lostwax.export(make_mlp(mesh), (vectors(3)(),))
    files: list[Any] = [None] * dist.get_world_size()
    mine = io.BytesIO()
    lostwax.save(program, mine)
    dist.all_gather_object(files, mine.getvalue())
    next_rank = (rank + 1) % dist.get_world_size()
    other = lostwax.load(io.BytesIO(files[next_rank]))
    with pytest.raises(SettingsError, match=f"shards of rank {next_rank} .* this is rank {rank}"):
        other.module()(vectors(3)())
    loaded = reload(program)
    assert loaded.settings == program.settings
    (group,) = loaded.settings.groups
    loaded.settings = loaded.settings._replace(groups=(group._replace(size=9),))
    with pytest.raises(SettingsError, match="ranks, and had 9"):
        loaded.module()(vectors(3)())


def make_cases(rank: int) -> dict[str, Callable[[], None]]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    runs = {name: partial(check, each, mesh) for name, each in CASES.items()}
    return {**runs, OF_RANK: partial(check_rank, mesh, rank)}


OF_RANK = "a file of another rank"


if __name__ == "__main__":
    run_cases(make_cases)
