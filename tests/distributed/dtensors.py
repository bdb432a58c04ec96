"""What the processes run: modules that take and return DTensors, eager and exported, compared on
each rank; and programs put on another mesh."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import lostwax
from lostwax import Dim
from lostwax.errors import (
    DynamicShapesError,
    InputValueError,
    LoadError,
)
from tests.distributed.ranks import reload, run_cases
from tests.distributed.sharded import MLP, WIDTH

SHARD, WHOLE = Shard(0), Replicate()


class Case(NamedTuple):
    make: Callable[[DeviceMesh], Callable[..., Any]]
    inputs: Callable[[DeviceMesh, int], tuple[Any, ...]]
    """Of a mesh, and of a size that each rank has."""
    dynamic: Callable[[int], Any] | None = None
    """Of as many ranks."""
    sizes: tuple[int, ...] = (3,)
    """The first is that of the capture."""


def draw(*size: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size)))


def cut(mesh: DeviceMesh, tensor: Tensor, *placements: Any) -> Any:
    return distribute_tensor(tensor, mesh, placements)


def rows(mesh: DeviceMesh, n: int) -> tuple[Any, ...]:
    return (cut(mesh, draw(mesh.size() * n, WIDTH), SHARD),)


def plain(mesh: DeviceMesh, n: int) -> tuple[Any, ...]:
    return (draw(mesh.size() * n, WIDTH),)


def columns(mesh: DeviceMesh, n: int) -> tuple[Any, ...]:
    return (cut(mesh, draw(n, mesh.size() * 2), Shard(1)),)


def both(mesh: DeviceMesh, n: int) -> tuple[Any, ...]:
    size = mesh.size() * n, WIDTH
    return cut(mesh, draw(*size), SHARD), cut(mesh, draw(*size) + 1, WHOLE)


def uneven(mesh: DeviceMesh, n: int) -> tuple[Any, ...]:
    return (cut(mesh, draw(mesh.size() * n + 1, WIDTH), SHARD),)


def parts(ranks: int) -> Any:
    return ({0: ranks * Dim("part", min=1)},)


def any_rows(ranks: int) -> Any:
    return ({0: Dim.DYNAMIC},)


def two(ranks: int) -> Any:
    part = Dim("part", min=1)
    return ({0: ranks * part}, {0: ranks * part})


def pointwise(mesh: DeviceMesh) -> Any:
    return lambda x, y: {"sum": x * 2 + y, "more": [x.relu(), y - 1]}


def reduced(mesh: DeviceMesh) -> Any:
    """A sum that waits, the same one made, and the input itself."""
    return lambda x: (x.sum(0), x.sum(0).redistribute(placements=[WHOLE]), x)


def turned(mesh: DeviceMesh) -> Any:
    return lambda x: (x.t(), x.t().contiguous(), x.transpose(0, 1) + 1)


def written(mesh: DeviceMesh) -> Any:
    def write(x: Any) -> Any:
        x.mul_(2)
        return x + 1

    return write


def gathered(mesh: DeviceMesh) -> Any:
    return lambda x: (x.full_tensor(), x.to_local() * 2)


def distributed(mesh: DeviceMesh) -> Any:
    return lambda x: DTensor.from_local(x * 2, mesh, [SHARD], run_check=False)


def doubled(mesh: DeviceMesh) -> Any:
    """One DTensor twice."""
    return lambda x, y: (x + y, x is y)


def twice(mesh: DeviceMesh, n: int) -> tuple[Any, ...]:
    return rows(mesh, n) * 2


def make_whole_mlp(mesh: DeviceMesh) -> nn.Module:
    """From DTensor to DTensor."""
    plan: dict[str, Any] = {
        "up": ColwiseParallel(input_layouts=SHARD, use_local_output=False),
        "down": RowwiseParallel(output_layouts=SHARD, use_local_output=False),
    }
    torch.manual_seed(0)
    return parallelize_module(MLP(), mesh, plan).eval()


class Counts(nn.Module):
    """State that is a DTensor and is written, and returned."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.register_buffer("seen", cut(mesh, torch.zeros(mesh.size() * 2), SHARD))
        self.seen: Any

    def forward(self, x: Any) -> Any:
        self.seen += 1
        return x * self.seen, self.seen


def counted(mesh: DeviceMesh, n: int) -> tuple[Any, ...]:
    return (cut(mesh, draw(mesh.size() * 2), SHARD),)


CASES = {
    "pointwise": Case(pointwise, both, two, (3, 1, 5)),
    "fixed": Case(pointwise, both),
    "reduced": Case(reduced, rows, any_rows, (3, 2, 5)),
    "turned": Case(turned, rows, parts, (3, 2, 5)),
    "written": Case(written, rows, any_rows, (3, 1, 4)),
    "gathered": Case(gathered, rows, parts, (3, 1, 4)),
    "columns": Case(
        pointwise, lambda m, n: columns(m, n) * 2, lambda r: ({0: Dim("n")},) * 2, (3, 1, 5)
    ),
    "distributed": Case(distributed, plain, any_rows, (3, 1, 4)),
    "doubled": Case(doubled, twice, lambda r: (parts(r)[0],) * 2, (3, 4)),
    "uneven": Case(reduced, uneven),
    "mlp": Case(make_whole_mlp, rows, parts, (3, 2, 5)),
    "fixed_mlp": Case(make_whole_mlp, rows),
    "counts": Case(Counts, counted),
}


def check(case: Case, mesh: DeviceMesh) -> None:
    dynamic = None if case.dynamic is None else case.dynamic(mesh.size())
    with torch.no_grad():
        given = case.inputs(mesh, case.sizes[0])
        program = lostwax.export(case.make(mesh), given, dynamic_shapes=dynamic)
        again = lostwax.export(program.module(), given, dynamic_shapes=dynamic)
        assert again.settings.sharding[2:] == program.settings.sharding[2:]
        loaded = reload(program)
        assert loaded.settings == program.settings
        for each in (program, program.run_decompositions(), loaded, again):
            compare(each.module(), case, mesh)


def compare(module: nn.Module, case: Case, mesh: DeviceMesh) -> None:
    original = case.make(mesh)
    for n in case.sizes:
        mine, yours = case.inputs(mesh, n), case.inputs(mesh, n)
        assert_same((module(*mine), mine), (original(*yours), yours))


def assert_same(found: Any, wanted: Any) -> None:
    ours, spec = pytree.tree_flatten(found)
    theirs, other = pytree.tree_flatten(wanted)
    assert spec == other
    for a, b in zip(ours, theirs, strict=True):
        assert type(a) is type(b)
        if isinstance(a, DTensor):
            assert a.placements == b.placements
            assert a.device_mesh == b.device_mesh
            assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
            a, b = a.to_local(), b.to_local()
        torch.testing.assert_close(a, b) if isinstance(a, Tensor) else None
        assert isinstance(a, Tensor) or a == b


def check_refused_calls(mesh: DeviceMesh) -> None:
    """What is passed must be cut as at capture; a shard alone will do."""
    ranks = mesh.size()
    (x,) = rows(mesh, 3)
    with torch.no_grad():
        module = lostwax.export(lambda x: x * 2, (x,), dynamic_shapes=parts(ranks)).module()
        assert_same(module(x.to_local()), x * 2)
        with pytest.raises(InputValueError, match=r"\[Replicate\(\)\], and was one of \[Shard\(0"):
            module(x.redistribute(placements=[WHOLE]))
        with pytest.raises(InputValueError, match="shards that are not alike"):
            module(*uneven(mesh, 3))
        other = init_device_mesh("cpu", (1, ranks))
        with pytest.raises(InputValueError, match=r"x is a DTensor of \[Replicate\(\), Shard\(0"):
            module(cut(other, draw(ranks * 3, WIDTH), WHOLE, SHARD))
        of_plain = lostwax.export(distributed(mesh), (x.to_local(),)).module()
        with pytest.raises(InputValueError, match="was a plain tensor at capture"):
            of_plain(cut(mesh, draw(3, WIDTH), WHOLE))


def check_refused_exports(mesh: DeviceMesh) -> None:
    ranks = mesh.size()
    (x,), (odd,) = rows(mesh, 3), uneven(mesh, 3)
    with torch.no_grad():
        with pytest.raises(DynamicShapesError, match=rf'declare {ranks} \* Dim\("n_part"\)'):
            lostwax.export(lambda x: x * 2, (x,), dynamic_shapes=({0: Dim("n")},))
        with pytest.raises(DynamicShapesError, match="not alike; then no size of it may vary"):
            lostwax.export(lambda x: x * 2, (odd,), dynamic_shapes=({0: Dim.DYNAMIC},))


def check_meshes(mesh: DeviceMesh) -> None:
    """A file runs on another mesh of the same shape, and on no other."""
    ranks = mesh.size()
    case = CASES["mlp"]
    with torch.no_grad():
        module = case.make(mesh)
        program = lostwax.export(module, case.inputs(mesh, 3), dynamic_shapes=parts(ranks))
        file = io.BytesIO()
        lostwax.save(program, file)

        def load(mesh: DeviceMesh) -> Any:
            file.seek(0)
            return lostwax.load(file, mesh=mesh)

        second = DeviceMesh.from_group(
            dist.new_group(list(range(ranks))), "cpu", mesh_dim_names=("tp",)
        )
        loaded = load(second)
        (named,) = loaded.settings.groups
        assert named.name == second.get_group().group_name
        assert named.name != mesh.get_group().group_name
        for n in (3, 5):
            (x,) = case.inputs(second, n)
            found = loaded.module()(x)
            assert found.device_mesh is second
            wanted = module(*case.inputs(mesh, n))
            torch.testing.assert_close(found.to_local(), wanted.to_local())
        with pytest.raises(LoadError, match=rf"captured on a mesh of {ranks} cpu ranks"):
            load(init_device_mesh("cpu", (1, ranks)))
        whole = init_device_mesh("cpu", (1, ranks), mesh_dim_names=("dp", "tp"))
        assert load(whole).settings.sharding.meshes[0].shape == (ranks,)


def check_two_dims(mesh: DeviceMesh) -> None:
    """A mesh of two dimensions."""
    ranks = mesh.size()
    grid = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("a", "b"))

    def multiply(x: Any, y: Any) -> Any:
        return x @ y, x * 2, (x @ y).redistribute(placements=[WHOLE, WHOLE])

    def make(n: int) -> tuple[Any, ...]:
        x = cut(grid, draw(2 * n, 4), Shard(0), WHOLE)
        return x, cut(grid, draw(4, 6 * (ranks // 2)), WHOLE, Shard(1))

    case = Case(lambda mesh: multiply, lambda mesh, n: make(n), None, (3, 2, 5))
    with torch.no_grad():
        dims = ({0: 2 * Dim("half", min=2)}, None)
        program = lostwax.export(multiply, make(3), dynamic_shapes=dims)
        for each in (program, reload(program)):
            compare(each.module(), case, grid)


def check_waiting(mesh: DeviceMesh) -> None:
    """A sum that waits is passed."""

    def finish(x: Any) -> Any:
        return x.redistribute(placements=[WHOLE])

    x = DTensor.from_local(draw(2, 3), mesh, [Partial()], run_check=False)
    with torch.no_grad():
        program = lostwax.export(finish, (x,))
        assert_same(reload(program).module()(x), finish(x))


def make_cases(rank: int) -> dict[str, Callable[[], None]]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    runs = {name: partial(check, each, mesh) for name, each in CASES.items()}
    return {**runs, **{name: partial(each, mesh) for name, each in MORE.items()}}


MORE: dict[str, Callable[[DeviceMesh], None]] = {
    "refused calls": check_refused_calls,
    "refused exports": check_refused_exports,
    "meshes": check_meshes,
    "two dims": check_two_dims,
    "waiting": check_waiting,
}


if __name__ == "__main__":
    run_cases(make_cases)
