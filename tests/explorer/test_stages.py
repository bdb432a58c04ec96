"""The data of a page says what the program says."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import lostwax
from lostwax.backends import XnnpackPartitioner
from lostwax.explorer.graph import KINDS
from lostwax.ir.text import call_text, type_text
from lostwax.passes import DeadCode, Journal, NoOps
from tests.explorer.programs import lowered, net


def rows(data: Any, at: int = 0) -> list[dict[str, Any]]:
    """The nodes of a program of the page, with texts in place of numbers."""
    columns, texts = data["programs"][at]["columns"], data["strings"]
    found = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for row in found:
        row["kind"] = KINDS[row["kind"]]
        for name in ("target", "type", "call", "note"):
            row[name] = texts[row[name]]
    return found


def row(data: Any, name: str, at: int = 0) -> dict[str, Any]:
    return next(r for r in rows(data, at) if r["name"] == name)


def modules(data: Any, number: int, at: int = 0) -> list[tuple[str, str]]:
    """The modules around a node, the outermost first."""
    found: list[tuple[str, str]] = []
    while number >= 0:
        number, path, kind = data["programs"][at]["modules"][number]
        found.insert(0, (data["strings"][path], data["strings"][kind].rpartition(".")[2]))
    return found


@pytest.fixture(scope="module")
def data() -> Any:
    """As a browser reads it."""
    return json.loads(json.dumps(lostwax.explore(net(), lower=True).data))


def test_nodes_are_those_of_the_graph(data):
    nodes = list(net().graph.nodes)
    found = rows(data)
    assert [r["name"] for r in found[: len(nodes)]] == [n.name for n in nodes]
    for node, each in zip(nodes, found, strict=False):
        assert [found[i]["name"] for i in each["inputs"]] == [n.name for n in node.all_input_nodes]
        assert each["graph"] == 0
        if node.op == "call_function":
            assert each["call"] == call_text(node)
            assert each["type"] in (
                type_text(node.meta["val"]),
                f"({type_text(node.meta['val'][0])})"
                if isinstance(node.meta["val"], tuple)
                else "",
            )


def test_kinds_and_weights(data):
    assert row(data, "x")["kind"] == "input"
    weight = row(data, "p_blocks_3_first_weight")
    assert (weight["kind"], weight["note"]) == ("parameter", "blocks.3.first.weight")
    assert (weight["type"], weight["bytes"]) == ("f32[8, 8]", 256)
    assert row(data, "cond")["kind"] == "control"
    assert row(data, "output")["kind"] == "output"


def test_modules_are_a_tree(data):
    silu = row(data, "silu_3")
    assert modules(data, silu["module"]) == [
        ("", "Net"), ("blocks.1", "Block"), ("blocks.1.act", "SiLU"),
    ]  # fmt: skip


def test_bodies_of_control_flow_belong_to_their_call(data):
    names = [r["name"] for r in rows(data)]
    graphs = data["programs"][0]["graphs"]
    bodies = [(g["name"], names[g["owner"]], g["kind"]) for g in graphs[1:]]
    assert bodies == [("true_graph_0", "cond", "body"), ("false_graph_0", "cond", "body")]
    assert [r["graph"] for r in rows(data) if r["name"] in ("sin", "cos")] == [1, 2]


def test_ranges_of_sizes(data):
    (symbol,) = data["programs"][0]["symbols"]
    assert (symbol["lo"], symbol["hi"], symbol["example"]) == (1, 9, 2)
    assert (symbol["name"], symbol["declared"], symbol["place"]) == ("batch", None, "x.shape[0]")
    assert row(data, "silu")["type"] == "f32[batch, 8]"
    assert [s["name"] for program in data["programs"] for s in program["symbols"]] == ["batch"] * 3


def test_source_lines_have_the_text_around_them(data):
    source = data["source"]
    frames = [source["frames"][f] for f in source["stacks"][row(data, "add")["stack"]]]
    file, line, function, code = frames[-1]
    assert source["files"][file]["path"].endswith("tests/explorer/programs.py")
    assert function == "forward"
    lines = source["files"][file]["lines"]
    assert (
        lines[str(line)].strip()
        == code
        == "return self.act(self.second(self.act(self.first(x)))) + x"
    )
    assert lines[str(line - 1)].strip() == "def forward(self, x: Any) -> Any:"


def test_source_can_be_left_out():
    page = lostwax.explore(net(), source=False)
    assert all(file["lines"] == {} for file in page.data["source"]["files"])


def test_stages_are_linked(data):
    assert data["stages"] == ["ATen", "core ATen", "Edge"]
    aten, core = rows(data, 0), rows(data, 1)
    links = data["programs"][1]["links"]
    made = [
        r["name"] for r, origin in zip(core, links, strict=True) if aten[origin]["name"] == "silu_3"
    ]
    assert made == ["sigmoid_3", "mul_3"]
    texts = data["strings"]
    (origin,) = data["programs"][1]["origins"][row(data, "mul_3", 1)["origin"]]
    assert [texts[t] for t in origin] == ["silu_3", "torch.ops.aten.silu.default"]
    assert [core[i]["name"] for i in data["programs"][2]["links"]][-1] == core[-1]["name"]
    assert all(i >= 0 for i in links)


def test_a_name_that_is_another_nodes_is_no_link():
    """`mul` of the later stage is made of `silu`; the earlier stage has another `mul`."""

    def f(x: Any) -> Any:
        return torch.nn.functional.silu(x) * 3

    program = lostwax.export(f, (torch.randn(2),))
    page = lostwax.explore([program, program.run_decompositions()]).data
    before, after = rows(page, 0), rows(page, 1)
    pairs = {
        (r["name"], before[origin]["name"])
        for r, origin in zip(after, page["programs"][1]["links"], strict=True)
    }
    assert {("sigmoid", "silu"), ("mul_1", "silu"), ("mul", "mul")} <= pairs or {
        ("sigmoid", "silu"), ("mul", "silu"), ("mul_1", "mul"),
    } <= pairs  # fmt: skip


def test_memory_of_a_program_counts_what_is_alive():
    def f(x: Any) -> Any:
        a = x + 1  # 40 bytes, as x
        b = a.view(2, 5)  # a's memory
        c = torch.cat([b, b])  # 80 bytes
        return c.sum()

    program = lostwax.export(f, (torch.randn(10),))
    page = lostwax.explore(program).data
    memory = page["programs"][0]["memory"]
    names = [r["name"] for r in rows(page)]
    lives = {
        names[at]: (names[memory["steps"][first]], names[memory["steps"][last]], size)
        for at, first, last, _, size in memory["blocks"]
    }
    assert lives == {
        "x": ("add", "add", 40),  # what is given is there from the first step
        "add": ("add", "cat", 40),
        "cat": ("cat", "sum_1", 80),
        "sum_1": ("sum_1", "output", 4),
    }


def test_weights_are_no_steps(data):
    memory = data["programs"][0]["memory"]
    kinds = {rows(data)[at]["kind"] for at in memory["steps"]}
    assert kinds <= {"operator", "control", "item", "size", "output"}
    assert memory["weights"] > 0


def test_memory_of_an_executable_is_its_plan():
    executable = lowered()[1].to_executable()
    page = lostwax.explore(executable).data
    memory = page["programs"][0]["memory"]
    assert memory["kind"] == "plan"
    assert memory["arena"] <= executable.arena_sizes["forward"]
    blocks = memory["blocks"]
    assert len(blocks) >= 3
    for i, (_, first, last, offset, size) in enumerate(blocks):
        for _, begin, end, other, length in blocks[:i]:
            apart = begin > last or end < first
            assert apart or offset >= other + length or other >= offset + size


def test_kernels_of_an_executable():
    page = lostwax.explore(lowered()[1].to_executable()).data
    kernels = page["programs"][0]["kernels"]
    names = [r["name"] for r in rows(page)]
    assert {names[at]: found for at, found in kernels.items()}["erf"] == ["aten::erf.out"]


def test_delegates_in_branches():
    class Branches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return torch.cond(x.sum() > 0, lambda x: self.inner(x), lambda x: x.erf(), (x,))

    program = lostwax.export(Branches().eval(), (torch.randn(2, 4),))
    page = lostwax.explore(program.to_edge().to_backend(XnnpackPartitioner())).data
    assert page["stages"] == ["Xnnpack"]
    graphs = page["programs"][0]["graphs"]
    found = rows(page)
    around = [graphs[found[g["owner"]]["graph"]] for g in graphs if g["kind"] == "delegate"]
    (branch,) = [g for g in around if g["kind"] == "body"]
    assert (branch["name"], found[branch["owner"]]["name"]) == ("true_graph_0", "cond")


def test_delegates_and_what_was_not_taken():
    page = lostwax.explore(lowered()[2]).data
    (program,) = page["programs"]
    assert page["stages"] == ["Xnnpack"]
    delegates = [g for g in program["graphs"] if g["kind"] == "delegate"]
    assert [d["backend"] for d in delegates] == ["XnnpackBackend"] * 2
    assert all(d["bytes"] > 0 for d in delegates)
    names = [r["name"] for r in rows(page)]
    assert [names[d["owner"]] for d in delegates] == [
        "executorch_call_delegate", "executorch_call_delegate_1",
    ]  # fmt: skip
    assert row(page, "erf")["note"] == "XNNPACK has no aten::erf"
    assert {
        r["graph"] for r in rows(page) if "linear" in r["target"] or "addmm" in r["target"]
    } == {1, 2}


def test_several_stages_of_a_lowered_program():
    program, edge, delegated = lowered()
    page = lostwax.explore([program, edge, delegated, delegated.to_executable()]).data
    assert page["stages"] == ["ATen", "Edge", "Xnnpack", "executable"]
    for at in (1, 2, 3):
        pairs = zip(rows(page, at), page["programs"][at]["links"], strict=True)
        (origin,) = [o for r, o in pairs if r["name"] == "erf" and r["kind"] == "operator"]
        assert rows(page, at - 1)[origin]["name"] == "erf"


def test_a_journal_is_a_row_of_stages():
    journal = Journal()
    lostwax.Pipeline((NoOps(), DeadCode()))(net(), journal=journal)
    assert lostwax.explore(journal).data["stages"] == ["before", "NoOps", "DeadCode"]


def test_a_pt2_file_shows_what_its_program_shows(tmp_path, data):
    lostwax.save(net(), tmp_path / "net.pt2")
    page = lostwax.explore(tmp_path / "net.pt2").data
    assert page["title"] == "net.pt2"
    drop = ("stack", "module")
    mine, others = (
        [{k: v for k, v in r.items() if k not in drop} for r in rows(d)] for d in (page, data)
    )
    assert mine == others
    assert modules(page, row(page, "silu_3")["module"]) == modules(
        data, row(data, "silu_3")["module"]
    )


def test_a_file_of_several_programs_has_methods(tmp_path):
    lostwax.save({"a": lowered()[0], "b": net()}, tmp_path / "two.pt2")
    page = lostwax.explore(str(tmp_path / "two.pt2")).data
    assert page["methods"] == ["a", "b"]
    assert [p["method"] for p in page["programs"]] == ["a", "b"]


def test_a_pte_file_is_its_instructions(tmp_path):
    executable = lowered()[2].to_executable()
    executable.save(tmp_path / "x.pte")
    page = lostwax.explore(tmp_path / "x.pte").data
    found = rows(page)
    assert [r["kind"] for r in found] == ["input", "delegate", "operator", "delegate", "output"]
    assert [r["target"] for r in found[1:4]] == [
        "XnnpackBackend",
        "aten::erf.out",
        "XnnpackBackend",
    ]
    assert [r["inputs"] for r in found] == [[], [0], [1], [2], [3]]
    assert found[2]["type"] == "f32[2, 4]"
    plan = lostwax.explore(executable).data["programs"][0]["memory"]
    assert sorted(b[3:] for b in page["programs"][0]["memory"]["blocks"]) == sorted(
        b[3:] for b in plan["blocks"]
    )


def test_a_size_that_a_file_may_have_fixed_has_no_bound_of_its_own(tmp_path):
    """A file does not say which sizes of a tensor vary."""
    batch = {0: lostwax.Dim("batch", max=9)}
    program = lostwax.export(torch.nn.ReLU(), (torch.randn(2, 3),), dynamic_shapes=(batch,))
    program.to_edge().to_executable().save(tmp_path / "x.pte")
    page = lostwax.explore(tmp_path / "x.pte").data
    assert {r["type"] for r in rows(page)} == {"f32[9, 3] at most", ""}


class _Attention(torch.nn.Module):
    """Half of its operators are views, which are no instructions."""

    def __init__(self) -> None:
        super().__init__()
        self.each = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Any) -> Any:
        q, k, v = (f(x).view(2, 3, 2, 4).transpose(1, 2) for f in self.each[:3])
        scores = (q @ k.transpose(-2, -1)).softmax(-1)
        mixed = (scores @ v).transpose(1, 2).reshape(2, 3, 8)
        return (self.each[3](mixed) + x).flatten(), mixed.view(6, 8)


@pytest.mark.parametrize("partitioners", [[], [XnnpackPartitioner()]], ids=["plain", "xnnpack"])
def test_no_instruction_of_a_pte_file_stands_alone(partitioners, tmp_path):
    program = lostwax.export(_Attention().eval(), (torch.randn(2, 3, 8),))
    edge = program.to_edge()
    for each in partitioners:
        edge = edge.to_backend(each)
    edge.to_executable().save(tmp_path / "x.pte")
    found = rows(lostwax.explore(tmp_path / "x.pte").data)
    left, reached = [len(found) - 1], set[int]()
    while left:
        at = left.pop()
        left += [i for i in found[at]["inputs"] if i not in reached]
        reached.add(at)
    assert reached == set(range(len(found))), "all lead from the input to the result"
    joins = [len(r["inputs"]) for r in found if r["target"] in ("aten::bmm.out", "aten::add.out")]
    assert joins == ([] if partitioners else [2, 2, 2])


@pytest.mark.parametrize("given", [torch.nn.Linear(2, 2), {"a": 1}, 3])
def test_what_is_no_program_is_refused(given):
    with pytest.raises(TypeError, match=r"takes a program, .*\n  why: .*\n  instead: export it"):
        lostwax.explore(given)


def test_nothing_is_refused():
    with pytest.raises(TypeError, match="empty"):
        lostwax.explore([])
