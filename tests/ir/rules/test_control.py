"""Each rule of calls that run sub-graphs is broken once, at least, and says so."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import fx

from lostwax.fake.tensor import new_fake
from lostwax.ir.graph.copying import copy_module
from lostwax.ir.program import ExportedProgram
from lostwax.ir.rules.control import CONTROL_RULES
from lostwax.ir.rules.verify import verify
from tests.control_programs import both_programs, cases, program

aten = torch.ops.aten


def copy_of(name: str) -> ExportedProgram:
    """A program that may be broken."""
    whole = program(name)
    return replace(whole, graph_module=copy_module(whole.graph_module)[0])


@pytest.mark.parametrize("name", cases())
def test_whole_programs_break_no_rule(name):
    for p in both_programs(name):
        assert verify(p) == []


def call_of(p: ExportedProgram) -> fx.Node:
    """The first call that runs sub-graphs."""
    return next(
        n for n in p.graph.nodes if "higher_order" in str(getattr(n.target, "namespace", ""))
    )


def graph_of(p: ExportedProgram, place: int) -> fx.Graph:
    """The sub-graph that is the argument in this place of the first call."""
    return getattr(p.graph_module, call_of(p).args[place].target).graph


def set_argument(node: fx.Node, place: int, value: Any) -> None:
    node.args = (*node.args[:place], value, *node.args[place + 1 :])


def retyped(node: fx.Node, **changes: Any) -> Any:
    """What is recorded for a node, with another dtype or size."""
    t = node.meta["val"].fake_type.replace(**changes)
    if "size" in changes:
        t = t.replace(stride=torch.empty(changes["size"]).stride())
    return new_fake(node.meta["val"].fake_mode, t)


def returned(graph: fx.Graph, index: int = 0) -> fx.Node:
    return graph.output_node().args[0][index]


def set_type(graph: fx.Graph, index: int, **changes: Any) -> None:
    """Return a new node of another type from a sub-graph."""
    old = returned(graph, index)
    with graph.inserting_before(graph.output_node()):
        new = graph.call_function(aten.clone.default, (old,))
    new.meta = {**old.meta, "val": retyped(old, **changes)}
    new.meta.setdefault("stack_trace", "")
    new.meta.setdefault("nn_module_stack", {})
    new.meta.setdefault("source_fn_stack", [])
    results = list(graph.output_node().args[0])
    results[index] = new
    graph.output_node().args = (tuple(results),)


def in_itself(p):
    p.graph_module.true_graph_0.add_module("again", p.graph_module)
    graph = p.graph_module.true_graph_0.graph
    with graph.inserting_before(graph.output_node()):
        graph.get_attr("again")


def used_as_value(p):
    call = call_of(p)
    with p.graph.inserting_after(call):
        made = p.graph.call_function(operator.add, (call.args[1], 1))
    made.meta = {**call.meta, "val": 1}


def no_list(p):
    set_argument(call_of(p), 3, call_of(p).args[3][0])


def too_few_arguments(p):
    call_of(p).args = call_of(p).args[:3]


def no_sub_graph(p):
    set_argument(call_of(p), 1, call_of(p).args[0])


def rows_of_a_scalar(p):
    x = next(iter(p.graph.nodes))
    with p.graph.inserting_before(call_of(p)):
        total = p.graph.call_function(aten.sum.default, (x,))
    total.meta = {**call_of(p).meta, "val": retyped(x, size=())}
    set_argument(call_of(p), 1, [total])


def over_nothing(p):
    set_argument(call_of(p), 2, [])


def predicate_of_two(p):
    x = next(iter(p.graph.nodes))
    set_argument(call_of(p), 0, x)


def condition_of_integers(p):
    graph = graph_of(p, 0)
    graph.output_node().args = (next(iter(graph.nodes)),)


def condition_in_a_tuple(p):
    output = graph_of(p, 0).output_node()
    output.args = ((output.args[0],),)


def operand_too_many(p):
    call = call_of(p)
    set_argument(call, 3, [*call.args[3], call.args[3][0]])


def input_of_another_dtype(p):
    x = next(iter(graph_of(p, 1).nodes))
    x.meta["val"] = retyped(x, dtype=torch.float64)


def input_of_another_size(p):
    x = next(iter(graph_of(p, 2).nodes))
    x.meta["val"] = retyped(x, size=(5, 4))


def input_of_another_rank(p):
    x = next(iter(graph_of(p, 0).nodes))
    x.meta["val"] = retyped(x, size=(5, 3))


def branches_of_two_dtypes(p):
    set_type(graph_of(p, 1), 0, dtype=torch.float64)


def branches_of_two_ranks(p):
    set_type(graph_of(p, 2), 0, size=(5, 3, 1))


def branches_of_two_counts(p):
    output = graph_of(p, 2).output_node()
    output.args = ((*output.args[0], output.args[0][0]),)


def branch_of_one_value(p):
    output = graph_of(p, 1).output_node()
    output.args = (output.args[0][0],)


def value_of_another_size(p):
    item = next(iter(call_of(p).users))
    value = retyped(item, size=(5, 4))
    call_of(p).meta["val"] = (value,)
    item.meta["val"] = value


def value_of_no_tuple(p):
    item = next(iter(call_of(p).users))
    call_of(p).meta["val"] = item.meta["val"]
    p.graph.output_node().args = ((call_of(p),),)
    p.graph.erase_node(item)


def carried_of_another_size(p):
    set_type(graph_of(p, 1), 1, size=(3, 3))


def carried_of_another_dtype(p):
    set_type(graph_of(p, 0), 0, dtype=torch.float64)


def carried_number(p):
    graph = graph_of(p, 1)
    graph.output_node().args = ((1, returned(graph, 1)),)


def rows_of_another_size(p):
    set_type(graph_of(p, 0), 0, size=(4,))


def combined_of_another_size(p):
    set_type(graph_of(p, 0), 0, size=(2,))


BROKEN: list[tuple[str, Callable[[ExportedProgram], None], str, str]] = [
    ("cond", in_itself, "nesting", "the sub-graph contains the graph that reads it"),
    ("cond", used_as_value, "sub-graph uses", "it reads the sub-graph 'true_graph_0', and is no"),
    ("cond", no_list, "sub-graph calls", "cond does not take such arguments"),
    ("cond", too_few_arguments, "sub-graph calls", "cond does not take such arguments"),
    ("cond", no_sub_graph, "sub-graph calls", "its true branch is gt, which reads no sub-graph"),
    ("map pair", rows_of_a_scalar, "sub-graph calls", "goes over the rows of f32[], which has no"),
    ("scan", over_nothing, "sub-graph calls", "there is nothing that it goes over"),
    ("cond", predicate_of_two, "predicates", "its predicate is f32[5, 3], not one truth value"),
    ("while", condition_of_integers, "predicates", "its condition returns i64[], not one truth"),
    ("while", condition_in_a_tuple, "predicates", "its condition returns (b8[]), not one truth"),
    ("cond", operand_too_many, "operands", "its true branch has 1 input, and is given 2"),
    (
        *("cond", input_of_another_dtype, "operands"),
        "the input 'x' of its true branch is f64[5, 3], and is given f32[5, 3]",
    ),
    ("cond", input_of_another_size, "operands", "branch is f32[5, 4], and is given f32[5, 3]"),
    ("map pair", input_of_another_rank, "operands", "body is f32[5, 3], and is given f32[3]"),
    (
        *("cond", branches_of_two_dtypes, "sub-graph results"),
        "value 0 of its true branch is f64[5, 3], of its false branch f32[5, 3]",
    ),
    ("cond", branches_of_two_ranks, "sub-graph results", "of its false branch f32[5, 3, 1]"),
    ("cond", branches_of_two_counts, "sub-graph results", "has 1 value, its false branch 2"),
    ("cond", branch_of_one_value, "sub-graph results", "branch returns f32[5, 3], not a tuple"),
    (
        *("cond", value_of_another_size, "sub-graph results"),
        "value 0 of meta['val'] is f32[5, 4], of its true branch f32[5, 3]",
    ),
    ("cond", value_of_no_tuple, "sub-graph results", "f32[5, 3], and cond returns a tuple"),
    (
        *("while", carried_of_another_size, "sub-graph results"),
        "value 1 of its body is f32[3, 3], of what it carries f32[2, 3]",
    ),
    ("while", carried_number, "sub-graph results", "value 0 of its body is 1, of what it carries"),
    (
        *("scan", carried_of_another_dtype, "sub-graph results"),
        "value 0 of its body is f64[3], of what it carries f32[3]",
    ),
    (
        *("map pair", rows_of_another_size, "sub-graph results"),
        "value 0 of meta['val'] is f32[3], of its body f32[4]",
    ),
    (
        *("associative", combined_of_another_size, "sub-graph results"),
        "value 0 of its body is f32[2], of a row of what it goes over f32[3]",
    ),
]


@pytest.mark.parametrize(("name", "broken", "rule", "text"), BROKEN)
def test_a_broken_rule_is_named_with_its_node(name, broken, rule, text):
    p = copy_of(name)
    broken(p)
    first = verify(p)[0]
    assert first.rule == rule
    assert text in first.text


def test_every_rule_is_broken_above():
    assert {rule for rule, _, _ in CONTROL_RULES} == {rule for _, _, rule, _ in BROKEN}


def test_sizes_of_branches_may_differ_where_the_call_has_a_symbol():
    p = program("cond unbacked")
    sizes = [returned(graph_of(p, i)).meta["val"].shape[0] for i in (1, 2)]
    assert sizes == [2, 3]
    assert verify(p) == []


def test_the_rules_hold_inside_of_sub_graphs():
    p = copy_of("cond nested")
    inner = graph_of(p, 1)
    call = next(n for n in inner.nodes if n.name == "cond")
    set_argument(call, 3, call.args[3][:1])
    (first, *_) = verify(p)
    assert (first.rule, first.node) == ("operands", "true_graph_0.cond")
