"""What the processes run: the stages of programs, each in a process of its own, under the schedules
of `torch.distributed.pipelining`, beside eager in one piece."""

from __future__ import annotations

import io
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional as F

import lostwax
from lostwax.ir.stages.split import Stages
from sweep.libraries import import_torchvision
from tests.distributed.ranks import reload, run_cases

BATCH, PARTS = 8, 4
CPU = torch.device("cpu")
OPEN = ({0: lostwax.Dim.DYNAMIC},)


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x
        for layer in self.layers:
            x = torch.relu(layer(x)) + first  # all stages need what came in
        return x


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.norm(self.conv(x)))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(4)])
        self.head = nn.Linear(3, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        out: torch.Tensor = self.head(x.mean((2, 3)))
        return out


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        import_torchvision()
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = {"hidden_size": 16, "intermediate_size": 24, "vocab_size": 32}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4}
        self.whole = LlamaForCausalLM(LlamaConfig(**sizes, **heads))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.whole(input_ids=tokens, use_cache=False).logits
        return logits


class Sorting(nn.Module):
    """Has statistics in both stages, and the second one needs indices of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 4)
        self.norm1, self.norm2 = nn.BatchNorm1d(5), nn.BatchNorm1d(5)
        self.linear = nn.Linear(4, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        order = tokens.argsort(-1)[..., None].expand(-1, -1, 4)
        y = self.norm2(self.linear(self.norm1(self.words(tokens))))
        return torch.gather(y, 1, order)


Inputs = Callable[[], torch.Tensor]
MODELS: dict[str, tuple[Callable[[], nn.Module], Inputs, str]] = {
    "mlp": (MLP, lambda: torch.randn(BATCH, 6), "layers"),
    "resnet": (lambda: ResNet().eval(), lambda: torch.randn(BATCH, 3, 5, 5), "layers"),
    "llama": (Llama, lambda: torch.randint(0, 32, (BATCH, 7)), "whole.model.layers"),
}


def cut(name: str) -> tuple[nn.Module, torch.Tensor, Stages]:
    """A model, its inputs, and as many stages as there are processes: the same in each."""
    torch.manual_seed(0)
    make, inputs, layers = MODELS[name]
    module, x = make(), inputs()
    program = lostwax.export(module, (x[:2],), dynamic_shapes=OPEN)
    world = dist.get_world_size()
    at = [f"{layers}.{4 // world * i}" for i in range(1, world)]
    return module, x, lostwax.split(program, at=at)


def check_forward(name: str, rank: int) -> None:
    module, x, stages = cut(name)
    stage = PipelineStage(reload(stages[rank]).module(), rank, len(stages), CPU)
    schedule = ScheduleGPipe(stage, PARTS)
    with torch.no_grad():
        for given in (x, x.flip(0)):
            found = schedule.step(given) if rank == 0 else schedule.step()
            if rank + 1 == len(stages):
                torch.testing.assert_close(found, module(given))


def check_backward(name: str, rank: int) -> None:
    module, x, stages = cut(name)
    with torch.no_grad():
        target = torch.randn_like(module(x))
    part = stages[rank].module()
    stage = PipelineStage(part, rank, len(stages), CPU)
    schedule = Schedule1F1B(stage, PARTS, loss_fn=F.mse_loss)
    losses: list[Any] = []
    if rank == 0:
        schedule.step(x)
    elif rank + 1 == len(stages):
        schedule.step(target=target, losses=losses)
    else:
        schedule.step()
    loss = F.mse_loss(module(x), target)
    loss.backward()
    if losses:
        torch.testing.assert_close(torch.stack(losses).mean(), loss)
    wanted = dict(module.named_parameters())
    assert dict(part.named_parameters())
    for key, parameter in part.named_parameters():
        torch.testing.assert_close(
            parameter.grad, wanted[key].grad, msg=lambda m, k=key: f"{k}: {m}"
        )


def find_stage_args(stages: Stages, values: Any) -> list[dict[str, Any]]:
    """What `PipelineStage` is told of each stage: found by a call of all of them, on copies."""
    found = []
    for stage in stages:
        returned = deepcopy(stage.module())(*values)
        returned = returned if isinstance(returned, tuple) else (returned,)
        sides = {"input_args": values, "output_args": returned}
        found.append({name: tuple(map(describe, side)) for name, side in sides.items()})
        values = returned
    return found


def describe(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("meta").requires_grad_(tensor.requires_grad)


def check_told(rank: int) -> None:
    """Statistics and indices: the stages are told what they get, and not run to find it out."""
    if rank > 1:
        return
    torch.manual_seed(0)
    module, tokens = Sorting(), torch.randint(0, 9, (BATCH, 5))
    target = torch.randn(BATCH, 5, 4)
    program = lostwax.export(deepcopy(module), (tokens[:2],), dynamic_shapes=OPEN)
    stages = lostwax.split(program, at=["linear"])
    told, part = find_stage_args(stages, (tokens[:2],)), stages[rank].module()
    stage = PipelineStage(part, rank, 2, CPU, group=PAIR, **told[rank])
    schedule, losses = Schedule1F1B(stage, PARTS, loss_fn=F.mse_loss), list[Any]()
    if rank:
        schedule.step(target=target, losses=losses)
    else:
        schedule.step(tokens)
    pairs = zip(tokens.chunk(PARTS), target.chunk(PARTS), strict=True)
    wanted = [F.mse_loss(module(x), y) for x, y in pairs]
    (sum(wanted) / PARTS).backward()  # type: ignore[union-attr]
    if rank:
        torch.testing.assert_close(losses, wanted)
    for name, parameter in part.named_parameters():
        torch.testing.assert_close(parameter.grad, module.get_parameter(name).grad)
    for name, buffer in part.named_buffers():
        torch.testing.assert_close(buffer, module.get_buffer(name))


def check_file(rank: int) -> None:
    """Each process loads its own file."""
    module, _, stages = cut("mlp")
    file = io.BytesIO()
    lostwax.save(stages[rank], file)
    file.seek(0)
    assert set(lostwax.load(file).state_dict) < set(module.state_dict())


PAIR: Any = None
"""Two of the processes."""


def make_cases(rank: int) -> dict[str, Callable[[], None]]:
    global PAIR
    if dist.is_initialized():
        PAIR = dist.new_group([0, 1])
    return {
        **{f"forward of {name}": partial(check_forward, name, rank) for name in MODELS},
        **{f"backward of {name}": partial(check_backward, name, rank) for name in MODELS},
        "statistics and indices": partial(check_told, rank),
        "file": partial(check_file, rank),
    }


CASES = list(make_cases(0))

if __name__ == "__main__":
    run_cases(make_cases)
