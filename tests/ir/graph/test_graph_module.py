"""Modules of graphs that are made fast are what FX makes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from lostwax.ir.graph.graph_module import ReadableModule, make_graph_module


def make_graph() -> fx.Graph:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.add, (x, 1)))
    return graph


def make_both() -> tuple[fx.GraphModule, fx.GraphModule]:
    return make_graph_module({}, make_graph()), ReadableModule({}, make_graph())


def test_it_is_what_fx_makes() -> None:
    ours, theirs = make_both()
    assert vars(ours).keys() == vars(theirs).keys()
    kinds = [{name: type(value) for name, value in vars(m).items()} for m in (ours, theirs)]
    assert kinds[0] == kinds[1]
    named = [(type(m).__name__, type(m).__qualname__, type(m).__module__) for m in (ours, theirs)]
    assert named[0] == named[1]
    assert type(ours).__mro__[1:] == type(theirs).__mro__[1:]
    assert ours.graph.owning_module is ours
    assert ours.code == theirs.code
    assert str(ours) == str(theirs)


def test_each_has_its_own() -> None:
    """A class, on which its function is, and containers: a hook of one is no hook of another."""
    one, other = make_graph_module({}, make_graph()), make_graph_module({}, fx.Graph())
    assert type(one) is not type(other)
    for name, value in vars(one).items():
        if hasattr(value, "clear"):
            assert value is not vars(other)[name]
    _LazyGraphModule.force_recompile(one)
    one.register_forward_hook(lambda module, args, out: out * 2)
    x = torch.ones(2)
    torch.testing.assert_close(one(x), x * 4)
    assert other.forward.__func__ is _LazyGraphModule._lazy_forward


def test_children_copies_and_pickles() -> None:
    child = make_graph_module({}, make_graph())
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_module("child", (x,)))
    whole: Any = make_graph_module({"child": child}, graph)
    assert whole.child is child
    x = torch.ones(2)
    for module in (whole, copy.deepcopy(whole), pickle.loads(pickle.dumps(whole))):
        torch.testing.assert_close(module(x), x + 1)
    whole.graph = make_graph()
    torch.testing.assert_close(whole(x), x + 1)
