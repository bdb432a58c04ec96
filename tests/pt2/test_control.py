"""Programs with control flow in files and as torch's own: written by either, read by either."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree

import lostwax
from lostwax.errors import LoadError
from lostwax.interop import from_torch, to_torch
from lostwax.ir.rules.verify import verify
from lostwax.pt2.graph.decode import decode
from lostwax.pt2.graph.encode import encode
from tests.control_programs import (
    Unary,
    both_programs,
    cases,
    cond,
    peer_names,
    peer_program,
    program,
    run_reference,
    torch_program,
)

pytestmark = pytest.mark.filterwarnings("ignore")
NAMES = list(cases())


def compare(module: Any, name: str) -> None:
    for args in (cases()[name].args, *cases()[name].others):
        torch.testing.assert_close(module(*args), run_reference(name, args))


def saved(p: Any) -> io.BytesIO:
    file = io.BytesIO()
    (lostwax.save if isinstance(p, lostwax.ExportedProgram) else torch.export.save)(p, file)
    return io.BytesIO(file.getvalue())


@pytest.mark.parametrize("name", NAMES)
def test_our_files_are_read_by_us(name: str) -> None:
    for p in (*both_programs(name), program(name).run_decompositions()):
        loaded = lostwax.load(saved(p))
        assert str(loaded) == str(p)
        assert verify(loaded) == []
        compare(loaded.module(), name)


@pytest.mark.parametrize("name", NAMES)
def test_our_files_are_read_by_torch(name: str) -> None:
    compare(torch.export.load(saved(program(name))).module(), name)


@pytest.mark.parametrize("name", ["cond closure", "while cond", "map", "scan", "associative pair"])
def test_our_core_aten_files_are_read_by_torch(name: str) -> None:
    compare(torch.export.load(saved(program(name).run_decompositions())).module(), name)


@pytest.mark.parametrize("name", peer_names())
def test_files_of_torch_are_read_by_us(name: str) -> None:
    loaded = lostwax.load(saved(torch_program(name)))
    assert verify(loaded) == []
    compare(loaded.module(), name)


@pytest.mark.parametrize("name", NAMES)
def test_to_torch_and_back(name: str) -> None:
    theirs = to_torch(program(name))
    theirs.validate()
    compare(theirs.module(), name)
    compare(from_torch(theirs).module(), name)


@pytest.mark.parametrize("name", ["cond closure", "while closure", "map", "scan closure"])
def test_torch_decomposes_ours(name: str) -> None:
    compare(to_torch(program(name)).run_decompositions().module(), name)


def test_sizes_stand_among_operands() -> None:
    """A list of numbers and tensors has the form that torch writes: names."""
    graph = encode(peer_program("cond size operand"))["graph_module"]["graph"]
    node = next(n for n in graph["nodes"] if n["target"].endswith(".cond"))
    assert node["inputs"][-1]["arg"] == {"as_tensors": [{"name": "sym_size_int_1"}, {"name": "x"}]}


def test_numbers_among_operands_are_read_by_torch_and_are_no_nodes_of_ours() -> None:
    """torch itself cannot save such a program: a file has no form for a number beside tensors."""
    p = program("while number")
    theirs = torch.export.load(saved(p))
    assert next(n for n in theirs.graph.nodes if n.name == "number").args == (0, 0)
    assert "number" not in {n.name for n in lostwax.load(saved(p)).graph.nodes}


@pytest.mark.parametrize("bad", ["text", None, [1], True])
def test_a_number_that_is_none_is_refused(bad: Any) -> None:
    tree, _ = records("while number")
    tree["lostwax"]["numbers"]["main"]["number"] = bad
    with pytest.raises(LoadError, match="our own record of 'number' is damaged"):
        read("while number", tree)


def test_what_torch_has_loaded_it_can_save_again() -> None:
    """Methods of tensors, in the metadata of nodes, have names that torch leaves as they are."""
    theirs = torch.export.load(saved(program("cond size operand")))
    compare(torch.export.load(saved(theirs)).module(), "cond size operand")


def test_what_two_calls_share_is_one_graph_again() -> None:
    p = program("regions")
    read = [n for n in p.graph.nodes if n.op == "get_attr"]
    assert len(read) == 2
    assert len({n.target for n in read}) == 1
    assert len(dict(p.graph_module.named_children())) == 1


class Tenfold(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 10


def test_a_backward_inside_of_a_branch_is_ours_alone() -> None:
    def branch(m, x):
        return cond(x.sum() > 0, lambda x: Tenfold.apply(x), lambda x: x + 1, (x,))

    x = torch.ones(3, requires_grad=True)
    p = lostwax.export(Unary(branch), (x,))
    lostwax.load(saved(p)).module()(x).sum().backward()
    assert x.grad.tolist() == [10, 10, 10]
    for theirs in (torch.export.load(saved(p)), to_torch(p)):
        modules = [m for m in theirs.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
        targets = {str(n.target) for m in modules for n in m.graph.nodes}
        assert "with_gradient" not in targets
        assert theirs.module()(x.detach()).tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("cond nested", "If"), ("while closure", "Loop"), ("scan closure", "Scan")],
)
def test_onnx(name: str, kind: str) -> None:
    from onnx.reference import ReferenceEvaluator

    made = torch.onnx.export(to_torch(program(name)), dynamo=True, verbose=False)
    assert kind in {node.op_type for node in made.model.graph}
    evaluator = ReferenceEvaluator(made.model_proto)
    names = [given.name for given in made.model_proto.graph.input]
    for args in (cases()[name].args, *cases()[name].others):
        given = {n: a.numpy() for n, a in zip(names, args, strict=True)}
        found = [torch.from_numpy(a.copy()) for a in evaluator.run(None, given)]
        wanted = [t.detach() for t in pytree.tree_leaves(run_reference(name, args))]
        torch.testing.assert_close(found, wanted)


# ---------------------------------------------------------------------------------- hostile records


def records(name: str) -> tuple[Any, Any]:
    """The records of a program, to be damaged, and those of its first call with sub-graphs."""
    p = program(name)
    tree = json.loads(json.dumps(encode(p)))
    nodes = tree["graph_module"]["graph"]["nodes"]
    return tree, next(n for n in nodes if "higher_order" in n["target"])


def read(name: str, tree: Any) -> Any:
    p = program(name)
    return decode(tree, dict(p.state_dict), dict(p.constants), "damaged")


def graph_argument(node: Any, place: int) -> Any:
    return node["inputs"][place]["arg"]["as_graph"]


@pytest.mark.parametrize("bad", ["a b", "x;import os", "", "1", None, 7, "__class__.x"])
def test_a_name_that_is_none_is_refused(bad: Any) -> None:
    tree, node = records("cond")
    graph_argument(node, 1)["name"] = bad
    with pytest.raises(LoadError):
        read("cond", tree)


@pytest.mark.parametrize("taken", ["forward", "graph", "training", "_modules", "class", "self"])
def test_a_name_that_is_taken_is_made_another(taken: str) -> None:
    tree, node = records("cond")
    graph_argument(node, 1)["name"] = taken
    compare(read("cond", tree).module(), "cond")


def test_two_graphs_of_one_name_stay_two() -> None:
    tree, node = records("cond")
    graph_argument(node, 2)["name"] = graph_argument(node, 1)["name"]
    compare(read("cond", tree).module(), "cond")


def test_a_sub_graph_does_not_see_the_values_around_it() -> None:
    tree, node = records("cond")
    inner = graph_argument(node, 1)["graph"]
    inner["nodes"][0]["inputs"][0]["arg"] = {"as_tensor": {"name": "gt"}}
    with pytest.raises(LoadError, match="'gt' is used, and nothing before defines it"):
        read("cond", tree)


def test_a_call_that_does_not_fit_its_sub_graphs_is_read_and_not_valid() -> None:
    tree, node = records("cond")
    node["inputs"][-1]["arg"] = {"as_tensors": []}
    assert verify(read("cond", tree))[0].rule == "operands"
