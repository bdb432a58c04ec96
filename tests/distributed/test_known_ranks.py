"""Ranks that get the program of another one: it is the one that a capture of their own gives. And
what makes them different: what a module is made of, what it reads of the rank, and where else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import (
    DTensor,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional

import lostwax
from lostwax.capture.sharded import ranks
from lostwax.capture.sharded.known_ranks import KnownRanks
from lostwax.ir.diff import find_change
from tests.distributed.sharded import MLP, Llama, make_llama, tokens, vectors

WORLD = 4


class Captures:
    """Counts the captures."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._monkeypatch, self._export = monkeypatch, lostwax.export
        monkeypatch.setattr(ranks, "export", self._capture)

    def _capture(self, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        return self._export(*args, **kwargs)

    def check(
        self, make: Callable[[Any], nn.Module], args: Any, mesh: Any = None, **options: Any
    ) -> int:
        """How many captures it took; the programs are those of one for each rank."""
        self.count, mesh = 0, mesh or {"tp": WORLD}
        programs = lostwax.export_ranks(make, args, mesh=mesh, **options)
        count = self.count
        with self._monkeypatch.context() as patch:
            patch.setattr(KnownRanks, "find_or_capture", lambda self, module, export: export())
            wanted = lostwax.export_ranks(make, args, mesh=mesh, **options)
        assert programs.groups == wanted.groups
        for a, b in zip(programs, wanted, strict=True):
            assert find_change(a, b) is None
            assert a.settings == b.settings
            assert a.constants.keys() == b.constants.keys()
            assert {n: t.shape for n, t in a.state_dict.items()} == {
                n: t.shape for n, t in b.state_dict.items()
            }
        return count


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Captures:
    return Captures(monkeypatch)


def make_halves(mesh: Any) -> Any:
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    return parallelize_module(MLP(), mesh, plan)


def make_sequence(mesh: Any) -> Any:
    model = nn.Sequential(nn.LayerNorm(8), MLP())
    plan = {
        "0": SequenceParallel(),
        "1.up": ColwiseParallel(input_layouts=Shard(1)),
        "1.down": RowwiseParallel(output_layouts=Shard(1)),
    }
    return parallelize_module(model, mesh, plan)


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_one_capture(captures: Captures, is_dynamic: bool) -> None:
    shapes: Any = {"dynamic_shapes": ({0: lostwax.Dim.DYNAMIC},)} if is_dynamic else {}
    assert captures.check(make_halves, (vectors(3)(),), **shapes) == 1
    assert captures.check(make_llama, (tokens(2, 4)(),), mesh={"tp": 2}, **shapes) == 1


def test_a_symbol_that_fails(captures: Captures) -> None:
    """Ten words on four ranks: where the last has fewer, torch asks which it is."""
    assert captures.check(make_llama, (tokens(2, 4)(),)) == WORLD + 1


def test_numbers_of_the_rank() -> None:
    """Of an embedding that is cut by rows each rank has other words."""
    found = lostwax.export_ranks(make_llama, (tokens(2, 4)(),), mesh={"tp": 2})
    numbers = [
        [node.args[1] for node in program.graph.nodes if node.name in ("lt", "ge", "sub")]
        for program in found
    ]
    assert numbers == [[0, 5, 0], [5, 10, 5]]
    assert all(type(n) is int for each in numbers for n in each)


def test_each_rank_has_its_own_state() -> None:
    def make(mesh: Any) -> Any:
        torch.manual_seed(dist.get_rank())
        model = make_halves(mesh)
        model.register_buffer("shift", torch.full((8,), float(dist.get_rank())), persistent=False)
        return model

    found = lostwax.export_ranks(make, (vectors(3)(),), mesh={"tp": 2})
    assert found.groups == [[0, 1]]
    a, b = found
    assert not torch.equal(a.state_dict["up.weight._local_tensor"],
                           b.state_dict["up.weight._local_tensor"])  # fmt: skip
    assert [float(each.constants["shift"][0]) for each in found] == [0, 1]


def test_sequences(captures: Captures) -> None:
    assert captures.check(make_sequence, (torch.randn(2, 8, 8),)) == 1


def test_losses_and_whole_tensors(captures: Captures) -> None:
    """Words that are cut over ranks in a loss, and a whole tensor that each rank cuts for itself:
    the numbers of the rank are in the program."""

    class Loss(nn.Module):
        def __init__(self, mesh: Any) -> None:
            super().__init__()
            plan: Any = {"out": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
            self.model = nn.ModuleDict({"out": nn.Linear(8, 12)})
            parallelize_module(self.model, mesh, plan)

        def forward(self, x: Tensor, labels: Tensor) -> Any:
            with loss_parallel():
                return functional.cross_entropy(self.model["out"](x), labels)

    class Cut(nn.Module):
        def __init__(self, mesh: Any) -> None:
            super().__init__()
            self.mesh, self.inner = mesh, make_halves(mesh)

        def forward(self, x: Tensor) -> Any:
            whole = DTensor.from_local(self.inner(x), self.mesh, [Replicate()])
            return whole.redistribute(placements=[Shard(1)]).to_local() * 2

    args = torch.randn(4, 8), torch.randint(0, 12, (4,))
    assert captures.check(Loss, args) == 1
    assert captures.check(Cut, (vectors(3)(),)) == WORLD + 1  # takes its part from a list


# -------------------------------------------------------------------------- what makes a difference


class Reads(nn.Module):
    """Reads its rank in forward."""

    def __init__(self, mesh: Any, read: Callable[[Any], Any]) -> None:
        super().__init__()
        self.inner, self.mesh, self.read = make_halves(mesh), mesh, read

    def forward(self, x: Tensor) -> Any:
        return self.inner(x) * (self.read(self.mesh) + 1)


READS: dict[str, Callable[[Any], Any]] = {
    "get_rank": lambda mesh: dist.get_rank(),
    "the group": lambda mesh: mesh.get_group().rank(),
    "local rank": lambda mesh: mesh.get_local_rank(),
    "coordinate": lambda mesh: mesh.get_coordinate()[0],
    "unpacked": lambda mesh: next(iter(mesh.get_coordinate())),
    "compared": lambda mesh: int(mesh.get_coordinate() == (0,)),
    "mesh's rank": lambda mesh: mesh.get_rank(),
    "symbol": lambda mesh: mesh._sym_get_coordinate(0),
    "branch": lambda mesh: 5 if mesh._sym_get_coordinate(0) > 1 else 7,
    "index": lambda mesh: [3, 5, 8, 9][mesh._sym_get_coordinate(0)],
    "size": lambda mesh: torch.zeros(mesh._sym_get_coordinate(0) + 1).sum() + 1,
    "in a list": lambda mesh: torch.full((8,), mesh._sym_get_coordinate(0) * 3),
    "as a tensor": lambda mesh: torch.tensor(mesh._sym_get_coordinate(0)),
    "as a float": lambda mesh: float(mesh._sym_get_coordinate(0)),
    "real": lambda mesh: mesh._sym_get_coordinate(0) * 0.5,
}


@pytest.mark.parametrize("kind", READS)
def test_a_rank_that_is_read(captures: Captures, kind: str) -> None:
    assert captures.check(lambda mesh: Reads(mesh, READS[kind]), (vectors(3)(),)) == WORLD


def test_a_hook_that_reads_it(captures: Captures) -> None:
    def make(mesh: Any) -> Any:
        model = make_halves(mesh)
        model.register_forward_hook(lambda module, args, out: out + dist.get_rank())
        return model

    assert captures.check(make, (vectors(3)(),)) == WORLD


class Scaled(nn.Module):
    def __init__(self, mesh: Any, scale: Any) -> None:
        super().__init__()
        self.inner, self.scale = make_halves(mesh), scale

    def forward(self, x: Tensor) -> Any:
        scale = self.scale() if callable(self.scale) else self.scale
        return self.inner(x) * (scale["a"] if isinstance(scale, dict) else scale)


def _close_over(n: int) -> Callable[[], int]:
    return lambda: n


def _give_default(n: int) -> Callable[[], int]:
    def given(n: int = n) -> int:
        return n

    return given


class Box:
    def __init__(self, n: Any) -> None:
        self.n = n

    def __call__(self) -> Any:
        return self.n


class Slotted:
    __slots__ = ("n",)

    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self) -> int:
        return self.n


BUILT: dict[str, Callable[[], Any]] = {
    "number": lambda: dist.get_rank() + 1,
    "float": lambda: dist.get_rank() + 0.5,
    "dict": lambda: {"a": dist.get_rank() + 2},
    "closure": lambda: _close_over(dist.get_rank() + 2),
    "object": lambda: Box(dist.get_rank() + 2),
    "slots": lambda: Slotted(dist.get_rank() + 2),
    "constant": lambda: torch.full((8,), dist.get_rank() + 2.0),
    "held constant": lambda: Box(torch.full((8,), dist.get_rank() + 2.0)),
    "default": lambda: _give_default(dist.get_rank() + 2),
}


@pytest.mark.parametrize("kind", BUILT)
def test_modules_that_are_built_otherwise(captures: Captures, kind: str) -> None:
    assert captures.check(lambda mesh: Scaled(mesh, BUILT[kind]()), (vectors(3)(),)) == WORLD


GLOBAL = 0
SHARED = {"a": 0}


def _read_global() -> int:
    return GLOBAL + SHARED["a"] + 1


def test_what_building_changes_elsewhere(captures: Captures) -> None:
    """Globals, attributes of classes, and the styles that hooks share."""

    def set_global(mesh: Any) -> Any:
        global GLOBAL
        GLOBAL = dist.get_rank()
        return Scaled(mesh, _read_global)

    def write_shared(mesh: Any) -> Any:
        SHARED["a"] = dist.get_rank()
        return Scaled(mesh, _read_global)

    def set_class(mesh: Any) -> Any:
        Box.extra = dist.get_rank()  # type: ignore[attr-defined]
        return Scaled(mesh, _read_class)

    style = ColwiseParallel()

    def change_style(mesh: Any) -> Any:
        last = dist.get_rank() == WORLD - 1
        style.output_layouts = (Replicate() if last else Shard(-1),)
        down = {} if last else {"down": RowwiseParallel()}
        return parallelize_module(MLP(), mesh, {"up": style, **down})

    def pass_to_torch(mesh: Any) -> Any:
        SHARED["a"] = dist.get_rank()
        return distribute_module(MLP(), mesh, input_fn=_add_global, output_fn=_make_local)

    for make in (set_global, write_shared, set_class, pass_to_torch):
        assert captures.check(make, (vectors(3)(),)) == WORLD
    assert captures.check(change_style, (vectors(3)(),)) == 2


def _add_global(module: Any, inputs: Any, mesh: Any) -> Any:
    return (DTensor.from_local(inputs[0] + _read_global(), mesh, [Replicate()]),)


def _make_local(module: Any, result: Any, mesh: Any) -> Any:
    return result.to_local()


def _read_class() -> int:
    return Box.extra + 1  # type: ignore[attr-defined, no-any-return]


def test_layers_and_shards_of_other_sizes(captures: Captures) -> None:
    def make_deep(mesh: Any) -> Any:
        return nn.Sequential(*[make_halves(mesh) for _ in range(1 + dist.get_rank() % 2)])

    class Uneven(nn.Module):
        def __init__(self, mesh: Any, rows: int) -> None:
            super().__init__()
            self.table: Any = nn.Parameter(
                distribute_tensor(torch.randn(rows, 8), mesh, [Shard(0)])
            )

        def forward(self, x: Tensor) -> Any:
            return functional.linear(x, self.table.full_tensor())

    assert captures.check(make_deep, (vectors(3)(),)) == 2
    assert captures.check(lambda mesh: Uneven(mesh, 10), (vectors(3)(),)) == 2  # 3, 3, 3, 1
    assert captures.check(lambda mesh: Uneven(mesh, 12), (vectors(3)(),)) == 1


def test_meshes_of_two_dimensions_and_other_groups(captures: Captures) -> None:
    def make(mesh: Any) -> Any:
        return make_halves(mesh["tp"])

    def make_group(mesh: Any) -> Any:
        dist.new_group([0, 1])
        return make_halves(mesh)

    assert captures.check(make, (vectors(3)(),), mesh={"dp": 2, "tp": 2}) == WORLD
    assert captures.check(make_group, (vectors(3)(),)) == 3  # two are in no other group


def test_tied_weights(captures: Captures) -> None:
    def make(mesh: Any) -> Any:
        model: Any = Llama()
        if dist.get_rank() != 1:
            model.out.weight = model.words.weight
        return model

    assert captures.check(make, (tokens(2, 4)(),)) == 2
