"""What two processes run: modules with collectives, eager and exported, compared on each rank.

Each case exports, runs the program, the program taken apart, and the program saved and loaded, and
compares what it returns and writes with what the module itself does.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.utils._pytree as pytree
from torch import Tensor, nn

import lostwax
from lostwax.ops.registry import has_trait
from lostwax.ops.traits import Trait
from tests.distributed.ranks import reload, run_cases

raw = torch.ops._c10d_functional


class Case(NamedTuple):
    function: Callable[..., Any]
    inputs: Callable[[int], tuple[Any, ...]]
    """By rank."""
    count: int = 1
    """How many collectives the program has."""
    dynamic: Any = None
    others: tuple[Callable[[int], tuple[Any, ...]], ...] = ()
    """More inputs, which only the program's ranges allow."""


CASES: dict[str, Case] = {}


def case(
    inputs: Callable[[int], tuple[Any, ...]],
    count: int = 1,
    dynamic: Any = None,
    others: tuple[Callable[[int], tuple[Any, ...]], ...] = (),
) -> Callable[[Any], Any]:
    def add(function: Any) -> Any:
        made = function() if isinstance(function, type) else function
        CASES[function.__name__] = Case(made, inputs, count, dynamic, others)
        return function

    return add


def two_by_three(rank: int) -> tuple[Tensor, ...]:
    return (torch.arange(6.0).reshape(2, 3) * (rank + 1),)


def rows(n: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda rank: (torch.arange(3.0 * n).reshape(n, 3) - 5 * rank,)


ROWS: dict[str, Any] = {"dynamic": ({0: lostwax.Dim.DYNAMIC},), "others": (rows(8), rows(2))}


# ------------------------------------------------------------------------------- what dist calls


@case(two_by_three)
def all_reduce(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y + 1


@case(two_by_three)
def all_reduce_an_input(x: Tensor) -> None:
    dist.all_reduce(x)


@case(two_by_three, 4)
def reductions(x: Tensor) -> list[Tensor]:
    out = []
    for op in (dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT, dist.ReduceOp.SUM):
        y = x.clone()
        dist.all_reduce(y, op)
        out.append(y)
    return out


@case(two_by_three)
def all_reduce_a_view(x: Tensor) -> Tensor:
    y = x * 1
    dist.all_reduce(y[1])
    return y


@case(two_by_three)
def all_reduce_a_transpose(x: Tensor) -> Tensor:
    y = x.t() * 1
    dist.all_reduce(y)
    return y


@case(two_by_three)
class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.total: Tensor

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.total += x.sum(0)
            dist.all_reduce(self.total)
        return x - self.total


@case(two_by_three)
def broadcast(x: Tensor) -> Tensor:
    y = x + 1
    dist.broadcast(y, src=1)
    return y


@case(two_by_three)
def all_gather(x: Tensor) -> Tensor:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return torch.cat(parts, 1)


@case(two_by_three)
def all_gather_into_tensor(x: Tensor) -> Tensor:
    joined = x.new_empty(4, 3)
    dist.all_gather_into_tensor(joined, x)
    return joined


@case(lambda rank: (torch.tensor(3.0 + rank),))
def all_gather_a_number(x: Tensor) -> list[Tensor]:
    parts = [torch.zeros(()) for _ in range(2)]
    dist.all_gather(parts, x)
    return parts


@case(two_by_three)
def reduce_scatter_tensor(x: Tensor) -> Tensor:
    out = x.new_empty(1, 3)
    dist.reduce_scatter_tensor(out, x)
    return out * 2


@case(two_by_three)
def reduce_scatter(x: Tensor) -> Tensor:
    out = x.new_empty(3)
    dist.reduce_scatter(out, list(x.unbind()))
    return out


@case(two_by_three)
def all_to_all_single(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x)
    return out


@case(lambda rank: (torch.arange(3.0) + 10 * rank,))
def all_to_all_of_pieces(x: Tensor) -> Tensor:
    rank = dist.get_rank()
    sent, got = ([1, 2], [1, 2]) if rank == 0 else ([2, 1], [2, 1])
    out = x.new_empty(3)
    dist.all_to_all_single(out, x, got, sent)
    return out


@case(two_by_three, 2)
def asynchronous(x: Tensor) -> tuple[Tensor, Tensor]:
    y, z = x + 1, x + 2
    first = dist.all_reduce(y, async_op=True)
    second = dist.all_reduce(z, async_op=True)
    first.wait()
    second.wait()
    return y * 2, z


@case(two_by_three, 1)
def coalesced(x: Tensor) -> tuple[Tensor, Tensor]:
    y, z = x + 1, x[0] * 2
    with dist._coalescing_manager():
        dist.all_reduce(y)
        dist.all_reduce(z)
    return y, z


# ------------------------------------------------------------------------- functional collectives


@case(two_by_three)
def functional_all_reduce(x: Tensor) -> Tensor:
    return functional.all_reduce(x, "sum", dist.group.WORLD) + 1


@case(two_by_three)
def functional_all_gather(x: Tensor) -> Tensor:
    return functional.all_gather_tensor(x, 1, dist.group.WORLD)


@case(two_by_three)
def functional_reduce_scatter(x: Tensor) -> Tensor:
    return functional.reduce_scatter_tensor(x, "avg", 0, dist.group.WORLD)


@case(two_by_three)
def functional_all_to_all(x: Tensor) -> Tensor:
    return functional.all_to_all_single(x, None, None, dist.group.WORLD)


@case(two_by_three)
def functional_in_place(x: Tensor) -> Tensor:
    y = x + 1
    raw.all_reduce_(y, "sum", "0")
    raw.wait_tensor(y)
    return y


@case(two_by_three)
def waited_for_twice(x: Tensor) -> Tensor:
    y = raw.all_reduce(x, "sum", "0")
    first, second = raw.wait_tensor(y), raw.wait_tensor(y)
    first += 1
    return second * 2


# -------------------------------------------------------------------------------- what must stay


@case(two_by_three, 2)
def unread(x: Tensor) -> Tensor:
    functional.all_reduce(x, "sum", dist.group.WORLD)
    y = x * 1
    dist.all_reduce(y)
    return x + 1


@case(two_by_three, 2)
def twice_the_same(x: Tensor) -> Tensor:
    a = functional.all_reduce(x, "sum", dist.group.WORLD)
    b = functional.all_reduce(x, "sum", dist.group.WORLD)
    return a + b


@case(two_by_three, 3)
def in_order(x: Tensor) -> Tensor:
    dist.broadcast(y := x + 1, 0)
    dist.all_reduce(z := x * 2)
    dist.broadcast(x, 1)
    return x + y * z


@case(lambda rank: (torch.zeros(()),))
class OfConstants(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("given", torch.arange(4.0))
        self.given: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return functional.all_reduce(self.given * 2, "sum", dist.group.WORLD) + x


# ---------------------------------------------------------------------------------- sizes and data


@case(rows(4), **ROWS)
def varying_rows(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y


@case(rows(4), 2, **ROWS)
def varying_gather(x: Tensor) -> tuple[Tensor, Tensor]:
    parts = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(parts, x)
    return parts[0] - parts[1], functional.all_gather_tensor(x, 0, dist.group.WORLD)


@case(rows(4), 2, **ROWS)
def varying_scatter(x: Tensor) -> tuple[Tensor, Tensor]:
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x)
    return out, functional.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD)


@case(
    lambda rank: (torch.ones(2, 3) * rank, torch.tensor(True)),
    others=(lambda rank: (torch.ones(2, 3) * rank, torch.tensor(False)),),
)
def under_an_if(x: Tensor, shared: Tensor) -> Tensor:
    y = x * 2
    if shared:
        dist.all_reduce(y)
        y = y + 1
    return y


@case(
    lambda rank: (torch.ones(2, 3) * rank, torch.tensor(3)),
    others=(lambda rank: (torch.ones(2, 3) * rank, torch.tensor(0)),),
)
def in_a_loop(x: Tensor, turns: Tensor) -> Tensor:
    while turns > 0:
        x = functional.all_reduce(x, "sum", dist.group.WORLD) + 1
        turns = turns - 1
    return x


# --------------------------------------------------------------------------------------- gradients


class WithGradient(NamedTuple):
    function: Callable[..., Tensor]
    count: int
    """How many collectives forward and backward have in one program."""


def functional_gradient(x: Tensor) -> Tensor:
    return (functional.all_reduce(x * x, "sum", dist.group.WORLD) * x).sum()


def gathered_gradient(x: Tensor) -> Tensor:
    y = functional.all_gather_tensor(x * x, 0, dist.group.WORLD)
    z = functional.reduce_scatter_tensor(y * y, "sum", 0, dist.group.WORLD)
    return (z * x).sum()


def exchanged_gradient(x: Tensor) -> Tensor:
    y = functional.all_to_all_single_autograd(x * x, None, None, dist.group.WORLD)
    return (y * x * x).sum()


def written_gradient(x: Tensor) -> Tensor:
    """Autograd is not told what `dist.all_reduce` writes."""
    y = x * 2
    dist.all_reduce(y)
    return (y + x).sum()


class Reduce(torch.autograd.Function):
    """As tensor parallelism was written before DTensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


def own_gradient(x: Tensor) -> Tensor:
    return (Reduce.apply(x * x) * x).sum()  # type: ignore[no-untyped-call]


GRADIENTS = {
    "functional_gradient": WithGradient(functional_gradient, 2),
    "gathered_gradient": WithGradient(gathered_gradient, 4),
    "exchanged_gradient": WithGradient(exchanged_gradient, 2),
    "written_gradient": WithGradient(written_gradient, 1),
    "own_gradient": WithGradient(own_gradient, 1),
}


def check_gradient(case: WithGradient, rank: int) -> None:
    def make() -> Tensor:
        return two_by_three(rank)[0].requires_grad_()

    x = make()
    wanted = case.function(x)
    wanted.backward()
    program = lostwax.export(case.function, (make(),))
    for each in (program, program.run_decompositions()):
        given = make()
        found = each.module()(given)
        found.backward()
        assert_equal((found, given.grad), (wanted, x.grad))
    joint = lostwax.export_joint(case.function, (make(),), loss_index=0)
    assert count_collectives(joint) == case.count, joint.graph
    found, *_, gradient = pytree.tree_leaves(joint.module()(make()))
    assert_equal((found, gradient), (wanted, x.grad))


# ------------------------------------------------------------------------------------------ groups


@case(two_by_three, 2)
def of_groups(x: Tensor) -> Tensor:
    """One of both ranks in another order of creation, one of this rank alone."""
    y, z = x * 2, x * 3
    dist.all_reduce(y, group=BOTH)
    dist.all_reduce(z, group=ALONE)
    return y - z


BOTH: Any = None
ALONE: Any = None


# ----------------------------------------------------------------------------------------- the runs


def count_collectives(program: Any) -> int:
    modules = [m for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    nodes = [node for module in modules for node in module.graph.nodes]
    return sum(has_trait(node.target, Trait.COMMUNICATES) for node in nodes)


def run(function: Any, inputs: tuple[Any, ...]) -> Any:
    """What it returns, and what it has left in its inputs and buffers."""
    given = deepcopy(inputs)
    out = function(*given)
    state = dict(function.named_buffers()) if isinstance(function, nn.Module) else {}
    return out, given, {name: b.clone() for name, b in state.items()}


def check(case: Case, rank: int) -> None:
    module = case.function
    program = lostwax.export(
        deepcopy(module) if isinstance(module, nn.Module) else module,
        case.inputs(rank),
        dynamic_shapes=case.dynamic,
    )
    if rank == 0:  # nothing is sent: others need not export, too
        lostwax.export(program.module(), case.inputs(rank), dynamic_shapes=case.dynamic)
    assert count_collectives(program) == case.count, program.graph
    taken_apart = program.run_decompositions()
    assert count_collectives(taken_apart) == case.count, taken_apart.graph
    loaded = reload(program)
    assert count_collectives(loaded) == case.count, loaded.graph
    for inputs in (case.inputs, *case.others):
        wanted = run(deepcopy(module) if isinstance(module, nn.Module) else module, inputs(rank))
        for each in (program, taken_apart, loaded):
            found = run(each.module(), inputs(rank))
            assert_equal(found[:2], wanted[:2])
            assert_equal(list(found[2].values()), list(wanted[2].values()))


def assert_equal(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def check_failure(brief: Any, rank: int) -> None:
    """The other rank does not come: an error by the time limit of the group, and no hang."""

    def meets(x: Tensor) -> Tensor:
        dist.all_reduce(y := x * 2, group=brief)
        return y

    program = lostwax.export(meets, two_by_three(rank))
    if rank == 0:
        began = monotonic()
        with pytest.raises(RuntimeError, match=r"[Tt]imed out|timeout"):
            program.module()(*two_by_three(rank))
        assert monotonic() - began < 15
    dist.barrier()  # until then the other one is there, but elsewhere


FAILURE = "a rank that does not come"


def make_cases(rank: int) -> dict[str, Callable[[], None]]:
    global BOTH, ALONE
    BOTH = dist.new_group([0, 1])
    alone = [dist.new_group([each]) for each in range(dist.get_world_size())]
    ALONE = alone[rank]
    brief = dist.new_group([0, 1], timeout=timedelta(seconds=2))
    runs = {name: partial(check, each, rank) for name, each in CASES.items()}
    gradients = {name: partial(check_gradient, each, rank) for name, each in GRADIENTS.items()}
    return {**runs, **gradients, FAILURE: partial(check_failure, brief, rank)}


if __name__ == "__main__":
    run_cases(make_cases)
