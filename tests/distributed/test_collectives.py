"""Programs with collectives: equal to the module on every rank, and refused where no program can
hold what a module does. What two processes run stands in `collectives.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import lostwax
from lostwax import interop
from lostwax.ir.data import Group
from lostwax.ops.registry import has_trait
from lostwax.ops.traits import Trait
from tests.distributed import collectives
from tests.distributed.collectives import CASES, FAILURE, GRADIENTS
from tests.distributed.ranks import run_ranks


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    assert collectives.__spec__ is not None
    return run_ranks(collectives.__spec__.name, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", [*CASES, *GRADIENTS, FAILURE])
def test_two_processes(name: str, told: list[dict[str, str]]) -> None:
    for rank, found in enumerate(told):
        assert not found[name], f"rank {rank}: {found[name]}"


# ------------------------------------------------------------------------------------- one process


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = tmp_path_factory.mktemp("group") / "store"
    limit = timedelta(seconds=20)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=0, world_size=1, timeout=limit
    )
    yield
    dist.destroy_process_group()


pytestmark = pytest.mark.usefixtures("group")
raw = torch.ops._c10d_functional
x = torch.arange(9.0).reshape(3, 3)


def reduced(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y + 1


REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "barrier": (lambda x: dist.barrier(), "leave it out"),
    "recv": (lambda x: dist.recv(x, 0), "dist.broadcast"),
    "reduce": (lambda x: dist.reduce(x, 0), "dist.all_reduce instead of reduce"),
    "gather": (lambda x: dist.gather(x, [x.clone()]), "dist.all_gather instead of gather"),
    "scatter": (lambda x: dist.scatter(x, [x.clone()]), "dist.broadcast"),
    "gaps": (lambda x: dist.all_reduce(x[:, 1]), "contiguous"),
    "transposed": (lambda x: dist.all_to_all_single(torch.empty_like(x), x.t()), "contiguous"),
    "factor": (lambda x: dist.all_reduce(x, dist._make_nccl_premul_sum(2.0)), "sum, avg"),
    "group": (lambda x: raw.all_reduce(x, "sum", dist.group.WORLD), "group.group_name"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    function, advice = REFUSED[name]

    def refused(x: Tensor) -> Tensor:
        function(x)
        return x + 1

    with pytest.raises((lostwax.errors.CaptureError, TypeError), match=advice):
        lostwax.export(refused, (x,))


def test_torch_loads_the_file(tmp_path: Path) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return reduced(self.linear(x))

    layer, file = Layer(), tmp_path / "reduced.pt2"
    with torch.no_grad():
        program = lostwax.export(layer, (x,), dynamic_shapes=({0: lostwax.Dim.DYNAMIC},))
        lostwax.save(program, file)
        loaded = torch.export.load(file)
        for rows in (3, 5):
            given = torch.randn(rows, 3)
            assert torch.equal(loaded.module()(given), layer(given))
            assert torch.equal(loaded.run_decompositions().module()(given), layer(given))
            assert torch.equal(interop.to_torch(program).module()(given), layer(given))
    (node,) = loaded.graph.find_nodes(op="call_function", target=raw.all_reduce.default)
    assert node.args[1:] == ("sum", "0")


def test_without_a_process_group() -> None:
    program = lostwax.export(reduced, (x,))
    assert program.settings is not None
    assert program.settings.groups == (Group("0", 1),)
    program.settings = program.settings._replace(groups=(Group("there is none", 1),))
    with pytest.raises(lostwax.errors.SettingsError, match="init_process_group"):
        program.module()(x)


def test_passes_keep_collectives() -> None:
    def talks(x: Tensor) -> Tensor:
        for _ in range(2):
            raw.wait_tensor(raw.all_reduce(x, "sum", "0"))
        return x + 1

    program = lostwax.export(talks, (x,))
    names = [n.name for n in program.graph.nodes if n.op == "call_function"]
    assert names == ["all_reduce", "wait_tensor", "all_reduce_1", "wait_tensor_1", "add"]
    again = program.run_decompositions()
    assert [n.name for n in again.graph.nodes if n.op == "call_function"] == names


def test_what_names_a_group_is_a_collective() -> None:
    """Also those of symmetric memory, and a user's own: none is dropped or merged."""
    import torch.distributed._symmetric_memory

    for name in ("one_shot_all_reduce", "fused_all_gather_matmul", "two_shot_all_reduce_"):
        assert has_trait(getattr(torch.ops.symm_mem, name).default, Trait.COMMUNICATES), name
    with torch.library._scoped_library("talking", "FRAGMENT") as library:
        library.define("total(Tensor x, str group_name) -> Tensor")
        library.impl("total", lambda x, group_name: x.clone(), "CompositeExplicitAutograd")
        total: Any = torch.ops.talking.total

        def talks(x: Tensor) -> Tensor:
            total(x, "0")
            return total(x, "0") + total(x, "0")

        with torch.no_grad():
            program = lostwax.export(talks, (x,)).run_decompositions()
        nodes = program.graph.find_nodes(op="call_function", target=total.default)
        assert len(nodes) == 3
        assert program.settings is not None
        assert program.settings.groups == (Group("0", 1),)


def test_executorch_has_no_collectives() -> None:
    program = lostwax.export(reduced, (x,))
    with pytest.raises(lostwax.errors.LoweringError, match="one process"):
        lostwax.to_edge(program).to_executable()
