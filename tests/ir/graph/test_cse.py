"""Common subexpressions: merged where nobody can tell, and only there."""

from __future__ import annotations

import torch

import lostwax
from lostwax.ir.graph.cse import share
from tests.ir.build import Builder

aten = torch.ops.aten


def names(graph):
    return [n.name for n in graph.nodes if n.op == "call_function"]


def shared(function, *args):
    """The calls that are left, and how many went; the result must still be eager's."""
    program = lostwax.export(function, args)
    graph, count = program.graph, share(program.graph)
    program.validate()
    torch.manual_seed(0)
    wanted = function(*args)
    torch.manual_seed(0)
    program.graph_module.recompile()
    torch.testing.assert_close(program.module()(*args), wanted, rtol=0, atol=0)
    return names(graph), count


def test_chains_are_merged_and_the_first_keeps_its_name():
    left, count = shared(lambda x: x.sin().sum() + x.sin().sum() * x.sin().mean(), torch.ones(3))
    assert (left, count) == (["sin", "sum_1", "mean", "mul", "add"], 3)


def test_arguments_that_python_takes_for_equal_are_not():
    left, count = shared(
        lambda x: (
            (x * 1).sum() + (x * 1.0).sum() + (x / 0.0).atan().sum() + (x / -0.0).atan().sum()
        ),
        torch.ones(3, dtype=torch.int64),
    )
    assert count == 0
    assert len(left) == 13


def test_random_numbers_are_drawn_as_often_as_before():
    left, count = shared(lambda x: torch.rand_like(x) + torch.rand_like(x), torch.ones(3))
    assert (left, count) == (["rand_like", "rand_like_1", "add"], 0)


def test_results_stay_apart():
    def function(x):
        return x.sin(), x.sin(), x.sin().view(-1), x.sin() + 1

    program = lostwax.export(function, (torch.ones(2, 2),))
    assert share(program.graph) == 1  # the one that only `+ 1` reads
    a, b, c, _ = program.module()(torch.ones(2, 2))
    assert len({t.untyped_storage().data_ptr() for t in (a, b, c)}) == 3


def test_a_result_does_not_become_the_buffer():
    class Counts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.zeros(()))

        def forward(self):
            result = self.n + 1
            self.n.add_(1)
            return result

    program = lostwax.export(Counts(), ())
    assert share(program.graph) == 0
    module = program.module()
    first, second = module(), module()
    assert (first.item(), second.item()) == (1, 2)


def test_values_of_unknown_size_keep_their_symbols():
    b = Builder()
    x = b.input("x", torch.ones(3))
    first = b.call(aten.nonzero.default, x)
    x.meta["val"].memo = None  # forgotten: asked again, the answer is another symbol
    second = b.call(aten.nonzero.default, x)
    program = b.program((b.call(aten.sin.default, first), b.call(aten.sin.default, second)))
    assert share(program.graph) == 0


def test_a_graph_that_writes_is_left_alone():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    before = graph.call_function(aten.sin.default, (x,))
    graph.call_function(aten.add_.Tensor, (x, 1))
    after = graph.call_function(aten.sin.default, (x,))
    graph.output((graph.call_function(aten.sub.Tensor, (before, after)),))
    assert share(graph) == 0
