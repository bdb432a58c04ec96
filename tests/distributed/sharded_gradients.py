"""What the processes run: forward and backward of modules with sharded parameters in one program,
compared with eager on each rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, distribute_module

import lostwax
from lostwax import Dim
from lostwax.errors import CaptureError, JointError
from tests.distributed.dtensors import assert_same, make_whole_mlp, parts, rows
from tests.distributed.ranks import reload, run_cases
from tests.distributed.sharded import (
    LLAMA,
    OPEN,
    WIDTH,
    make_llama,
    make_mlp,
    make_sequence_parallel,
    make_tied,
    tokens,
    vectors,
)


class Loss(nn.Module):
    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return (self.module(x) ** 2).mean()


class Case(NamedTuple):
    make: Callable[[DeviceMesh], nn.Module]
    inputs: Callable[[DeviceMesh], Any]
    others: tuple[Callable[[DeviceMesh], Any], ...] = ()
    dynamic: Callable[[int], Any] | None = None


def given(make: Callable[[], Tensor]) -> Callable[[DeviceMesh], Tensor]:
    return lambda mesh: make()


def with_gradient(mesh: DeviceMesh) -> Tensor:
    return vectors(3)().requires_grad_()


def cut_with_gradient(mesh: DeviceMesh) -> Any:
    return rows(mesh, 3)[0].requires_grad_()


def make_whole(mesh: DeviceMesh) -> nn.Module:
    """All is replicated, and the batch is cut: gradients are sums that wait."""
    return distribute_module(nn.Linear(WIDTH, WIDTH), mesh)


def make_part(mesh: DeviceMesh) -> nn.Module:
    """Some parameters are frozen."""
    module = make_mlp(mesh)
    module.get_parameter("up.bias").requires_grad_(False)
    return module


EVEN = LLAMA[0], *LLAMA[1]
CASES = {
    "mlp": Case(make_mlp, with_gradient, (given(vectors(1)), given(vectors(5))),
                lambda ranks: ({0: Dim.DYNAMIC},)),
    "part": Case(make_part, with_gradient),
    "whole_mlp": Case(make_whole_mlp, cut_with_gradient, (lambda m: rows(m, 2)[0],), parts),
    "replicated": Case(make_whole, cut_with_gradient),
    "llama": Case(make_llama, given(EVEN[0]), tuple(map(given, EVEN[1:])), lambda ranks: OPEN),
    "sequence_parallel": Case(make_sequence_parallel, given(tokens(2, 4))),
    "tied": Case(make_tied, given(tokens(2, 3))),
}  # fmt: skip


def check(case: Case, mesh: DeviceMesh) -> None:
    torch.manual_seed(0)
    module = Loss(case.make(mesh))
    dynamic = None if case.dynamic is None else case.dynamic(mesh.size())
    program = lostwax.export_joint(module, (case.inputs(mesh),), dynamic_shapes=dynamic)
    for each in (program, program.run_decompositions(), reload(program)):
        for inputs in (case.inputs, *case.others):
            compare(each.module(), module, inputs(mesh), inputs(mesh))


def compare(program: nn.Module, module: nn.Module, mine: Any, yours: Any) -> None:
    yours.requires_grad_() if yours.is_floating_point() else None
    wanted = module(yours)
    module.zero_grad()
    wanted.backward()
    found = program(mine)
    assert_same(found.result, wanted.detach())
    named = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    assert found.gradients.keys() == named.keys()
    for name, gradient in named.items():
        assert_same(found.gradients[name], gradient)
    for gradient in found.input_gradients.values():
        assert_same(gradient, yours.grad)


def check_training(mesh: DeviceMesh) -> None:
    """Steps of a program's module and of the original come to the same weights."""
    torch.manual_seed(0)
    module = Loss(make_mlp(mesh))
    program = reload(lostwax.export_joint(module, (vectors(4)(),))).module()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        module(vectors(4)()).backward()
        optimizer.step()
        found = program(vectors(4)()).gradients
        with torch.no_grad():
            for name, gradient in found.items():
                program.get_parameter(f"{name}._local_tensor").sub_(gradient.to_local(), alpha=0.1)
    for name, parameter in module.named_parameters():
        shard: Any = parameter
        ours = program.get_parameter(f"{name}._local_tensor")
        torch.testing.assert_close(ours, shard.to_local())


def check_refused(mesh: DeviceMesh) -> None:
    """Where a program has no backward, gradients of DTensors are refused: they are no derivatives
    of what it computes."""
    module = make_mlp(mesh)
    with pytest.raises(CaptureError, match=r"requires gradients(.|\n)*export_joint"):
        lostwax.export(module, (vectors(3)(),))
    module.requires_grad_(False)
    with pytest.raises(CaptureError, match=r"gradients flow through(.|\n)*export_joint"):
        lostwax.export(module, (with_gradient(mesh),))
    (x,) = rows(mesh, 3)
    with pytest.raises(CaptureError, match=r"DTensor that requires gradients(.|\n)*export_joint"):
        lostwax.export(lambda x: x * 2, (x.requires_grad_(),))
    with pytest.raises(JointError, match=r"a result is a DTensor"):
        lostwax.export_joint(lambda x: x * 2, (x,), tangents=True)
    # without gradients all is well, with and without no_grad
    program = lostwax.export(module, (vectors(3)(),))
    assert_same(program.module()(vectors(3)()), module(vectors(3)()).clone())
    assert isinstance(x, DTensor)


MORE: dict[str, Callable[[DeviceMesh], None]] = {
    "training": check_training,
    "refused": check_refused,
}


def make_cases(rank: int) -> dict[str, Callable[[], None]]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    runs = {name: partial(check, each, mesh) for name, each in CASES.items()}
    return {**runs, **{name: partial(each, mesh) for name, each in MORE.items()}}


if __name__ == "__main__":
    run_cases(make_cases)
