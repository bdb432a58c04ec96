"""Passes reach into sub-graphs, and leave what a program computes as it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import fx

from lostwax import passes
from lostwax.ir.graph.copying import copy_module
from lostwax.ir.graph.lookup import all_nodes, graph_modules
from lostwax.ir.rules.verify import verify
from tests.control_programs import cases, program, run_reference

aten = torch.ops.aten
PASSES = [
    passes.CommonSubexpressions(),
    passes.ConstantFolding(),
    passes.NoOps(),
    passes.DeadCode(),
    passes.UnusedState(),
    passes.RuntimeAssertions(),
]


def compare(p, name, **tolerance):
    assert verify(p) == []
    module = p.module()
    for args in (cases()[name].args, *cases()[name].others):
        torch.testing.assert_close(module(*args), run_reference(name, args), **tolerance)


@pytest.mark.parametrize("name", cases())
def test_every_pass_leaves_what_is_computed(name):
    for p in (program(name), program(name).run_decompositions()):
        for each in PASSES:
            compare(each(p), name)
        compare(passes.Pipeline(tuple(PASSES))(p), name)


@pytest.mark.parametrize("name", cases())
def test_a_conversion_reaches_into_sub_graphs(name):
    converted = passes.ConvertDtype(torch.float64)(program(name))
    compare(converted, name, rtol=1e-5, atol=1e-5)
    bodies = list(graph_modules(converted.graph_module))[1:]
    assert bodies
    for graph in (m.graph for m in bodies):
        border = [*graph.find_nodes(op="placeholder"), *graph.output_node().all_input_nodes]
        values = [n.meta["val"] for n in border]
        assert not any(isinstance(v, torch.Tensor) and v.dtype is torch.float32 for v in values)


def test_a_conversion_keeps_operators_in_sub_graphs():
    keep = (aten.sin.default,)
    converted = passes.ConvertDtype(torch.float64, keep=keep)(program("cond"))
    compare(converted, "cond", rtol=1e-5, atol=1e-5)
    (sin,) = (n for n in all_nodes(converted.graph_module) if n.target is aten.sin.default)
    assert sin.meta["val"].dtype is torch.float32


def test_a_program_moves_with_its_sub_graphs():
    moved = passes.move_to_device_pass(program("cond closure"), "meta")
    values = [n.meta.get("val") for n in all_nodes(moved.graph_module)]
    assert {v.device.type for v in values if isinstance(v, torch.Tensor)} == {"meta"}
    assert verify(moved) == []


def test_what_is_computed_twice_in_a_branch_is_computed_once():
    def count(p):
        return sum(n.target is aten.exp.default for n in all_nodes(p.graph_module))

    before = program("cond twice")
    assert (count(before), count(passes.CommonSubexpressions()(before))) == (2, 1)


def test_constants_are_folded_inside_of_loops_and_branches():
    folded = passes.ConstantFolding()(program("constants"))
    compare(folded, "constants")
    computed = [n.target for n in all_nodes(folded.graph_module) if n.op == "call_function"]
    assert aten.exp.default not in computed
    shapes = [tuple(value.shape) for value in folded.constants.values()]
    assert shapes == [(3,), (3,)]


def test_a_sub_graph_of_two_calls_is_not_folded():
    whole = program("constants")
    p = replace(whole, graph_module=copy_module(whole.graph_module)[0])
    call = next(n for n in p.graph.nodes if n.name == "cond")
    call.args = (call.args[0], call.args[2], call.args[2], call.args[3])
    p.graph_module.recompile()
    folded = passes.ConstantFolding()(p)
    assert verify(folded) == []
    assert not folded.constants


def test_types_are_carried_through_sub_graphs():
    """A pass changes what a sub-graph returns; the call and its readers have the new type."""

    def widen(module: fx.GraphModule) -> None:
        for each in (module.true_graph_0, module.false_graph_0):
            output = each.graph.output_node()
            (result,) = output.args[0]
            with each.graph.inserting_before(output):
                wide = each.graph.call_function(aten._to_copy.default, (result,))
                wide.kwargs = {"dtype": torch.float64}
            output.args = ((wide,),)

    def narrow(module: fx.GraphModule) -> None:
        output = module.graph.output_node()
        (result,) = output.args[0]
        with module.graph.inserting_before(output):
            back = module.graph.call_function(aten._to_copy.default, (result,))
            back.kwargs = {"dtype": torch.float32}
        output.args = ((back,),)

    def edit(module: fx.GraphModule) -> None:
        widen(module)
        narrow(module)

    edited = passes.FxPass(edit)(program("cond"))
    compare(edited, "cond")
    item = next(n for n in edited.graph.nodes if n.name == "getitem")
    assert item.meta["val"].dtype is torch.float64


def test_types_of_operands_reach_sub_graphs():
    def edit(module: fx.GraphModule) -> None:
        call = next(n for n in module.graph.nodes if n.name == "cond")
        (x,) = call.args[3]
        with module.graph.inserting_before(call):
            wide = module.graph.call_function(aten._to_copy.default, (x,))
            wide.kwargs = {"dtype": torch.float64}
        call.args = (*call.args[:3], [wide])
        (result,) = module.graph.output_node().args[0]
        with module.graph.inserting_before(module.graph.output_node()):
            back = module.graph.call_function(aten._to_copy.default, (result,))
            back.kwargs = {"dtype": torch.float32}
        module.graph.output_node().args = ((back,),)

    edited = passes.FxPass(edit)(program("cond"))
    compare(edited, "cond", rtol=1e-5, atol=1e-5)
    graph = edited.graph_module.true_graph_0.graph
    assert {n.meta["val"].dtype for n in graph.nodes if n.op != "output"} == {torch.float64}
