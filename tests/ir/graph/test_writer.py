"""Graphs that are written by hand must be as FX would have built them; and nobody else writes
them."""

from __future__ import annotations

import ast
import operator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.immutable_collections import immutable_list

import lostwax
from lostwax.ir.graph.copying import copy_graph
from lostwax.ir.graph.writer import GraphWriter, base_name, graph_border, insert_node

aten = torch.ops.aten
PACKAGE = Path(lostwax.__file__).parent
ARGUMENTS: tuple[tuple[Any, tuple[Any, ...], dict[str, Any]], ...] = (
    (aten.relu.default, (0,), {}),
    (aten.add.Tensor, (1, 0), {}),
    (aten.cat.default, ([0, 1, 0], 1), {}),
    (aten.add.Tensor, (1, 2), {"alpha": 3}),
    (operator.getitem, (3, 0), {}),
)
"""Calls; the first numbers of each stand for the nodes before it."""


def _by_fx() -> fx.Graph:
    graph = fx.Graph()
    nodes = [graph.placeholder("x")]
    for target, args, kwargs in ARGUMENTS:
        nodes.append(graph.call_function(target, *_filled(nodes, args), kwargs))
    graph.output((nodes[-1],))
    return graph


def _filled(nodes: list[fx.Node], args: tuple[Any, ...]) -> tuple[Any]:
    listed = isinstance(args[0], list)
    first = immutable_list([nodes[i] for i in args[0]]) if listed else nodes[args[0]]
    return ((first, nodes[args[1]] if args[1:] and not listed else 1),) if args[1:] else ((first,),)


def _by_hand(is_ready: bool) -> fx.Graph:
    writer = GraphWriter()
    nodes = writer.append_placeholders(["x"])
    for (target, args, kwargs), like in zip(ARGUMENTS, list(_by_fx().nodes)[1:], strict=False):
        (given,) = _filled(nodes, args)
        if is_ready and not kwargs:
            flat = [*given[0], *given[1:]] if isinstance(given[0], list) else given
            read = [a for a in flat if isinstance(a, fx.Node)]
            node = writer.append_ready("call_function", like.name, target, given, read)
        else:
            node = writer.append("call_function", like.name, target, given, kwargs)
        nodes.append(node)
    writer.append("output", "output", "output", ((nodes[-1],),), {})
    return writer.finish()


def _described(graph: fx.Graph) -> list[Any]:
    def names(nodes: Any) -> list[str]:
        return [n.name for n in nodes]

    table = [
        names(graph.find_nodes(op=n.op, target=n.target if n.op == "call_function" else None))
        for n in graph.nodes
    ]
    rows = [
        (n.op, n.name, n.target, str(n.args), str(n.kwargs), names(n.all_input_nodes),
         names(n.users), n.type)
        for n in graph.nodes
    ]  # fmt: skip
    return [rows, table, len(graph.nodes), names(reversed(graph.nodes))]


@pytest.mark.parametrize("make", [lambda: _by_hand(False), lambda: _by_hand(True)])
def test_a_written_graph_is_as_fx_builds_it(make: Any) -> None:
    graph = make()
    assert _described(graph) == _described(_by_fx())
    graph.lint()
    more = graph.call_function(aten.relu.default, (next(iter(graph.nodes)),))
    assert more.name == "relu_default_1"  # the graph knows which names are taken


def test_a_copy_is_as_the_original() -> None:
    graph = _by_fx()
    copy, nodes = copy_graph(graph)
    assert _described(copy) == _described(graph)
    assert list(nodes) == list(graph.nodes)
    assert list(nodes.values()) == list(copy.nodes)
    copy.erase_node(next(n for n in reversed(copy.nodes)))
    assert _described(graph) == _described(_by_fx())


def test_an_inserted_node_has_its_name_and_place() -> None:
    graph = _by_fx()
    graph.erase_node(next(n for n in reversed(graph.nodes)))
    with graph.inserting_after(graph_border(graph)):
        node = insert_node(graph, "placeholder", "output", "output", (), {})
    assert next(iter(graph.nodes)) is node
    assert node.name == "output"
    assert node in graph.find_nodes(op="placeholder")
    graph.lint()


def test_names_are_free_and_shadow_nothing() -> None:
    writer = GraphWriter()
    assert list(map(writer.free_name, ("sum", "self", "x"))) == ["sum", "self_1", "x"]
    writer.reserve_builtins()
    writer.reserve(["y", "x_1"])
    names = [writer.free_name(base) for base in ("x", "x", "sum", "abs", "y", "max", "max")]
    assert names == ["x_2", "x_3", "sum_1", "abs_1", "y_1", "max_1", "max_2"]
    nodes = writer.append_placeholders(["x", "z", "z"])
    assert [n.name for n in nodes] == ["x_4", "z", "z_1"]


def test_nodes_are_called_as_their_operators() -> None:
    assert base_name(aten.mm.default) == "mm"
    assert base_name(operator.getitem) == "getitem"
    assert base_name(lambda x: x) == "node"
    assert base_name(object()) == "node"


# ------------------------------------------------------------------------------ there is one writer

PRIVATE = frozenset(
    (
        "_args", "_base_count", "_erased", "_find_nodes_lookup_table", "_graph_namespace",
        "_input_nodes", "_insert", "_kwargs", "_len", "_obj_to_name", "_prepend", "_root",
        "_used_names", "_Namespace", "_NodeBase", "_NodeIter", "_repr_fn", "_sort_key",
        "_remove_from_list", "_update_args_kwargs", "_rename", "_owning_module", "_owners",
    )
)  # fmt: skip
"""What FX has for itself. (Our own classes reach names of theirs by `self`.)"""


def reaching(path: Path) -> list[str]:
    """Where a file reaches for what is FX's own."""
    return [
        f"{path.name}:{node.lineno} {ast.unparse(node)}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and (
            (node.attr in PRIVATE and ast.unparse(node.value) != "self")
            or ast.unparse(node) in ("fx.Node.__new__", "Node.__new__", "torch.fx.Node.__new__")
        )
    ]


def test_only_the_writer_knows_how_fx_keeps_its_nodes() -> None:
    writer = PACKAGE / "ir" / "graph" / "writer.py"
    assert len(reaching(writer)) > 10
    assert [at for p in PACKAGE.rglob("*.py") if p != writer for at in reaching(p)] == []
