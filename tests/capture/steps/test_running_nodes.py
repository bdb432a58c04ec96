"""What the nodes of a graph know stays when its module is exported again, as with torch.export."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.traceback import annotate

import lostwax


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.scale = torch.ones(3)
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x):
        self.count.add_(1)
        x = self.linear(x) * self.scale
        with annotate({"stage": 1}):
            x = torch.relu(x)
        return x + self.count


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x):
        return self.block(x).sum() + torch.tensor(2.0)


class Around(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) * 3


ARGS = (torch.randn(2, 3),)
KEPT = ("stack_trace", "nn_module_stack", "source_fn_stack", "custom")


@pytest.fixture(scope="module")
def program() -> Any:
    return lostwax.export(Net(), ARGS)


def read_meta(program: Any, keys: tuple[str, ...] = KEPT) -> dict[str, Any]:
    """What nodes say of where they come from. A clone at the end is the write of a buffer."""
    nodes = [n for n in program.graph.nodes if n.op == "call_function"]
    return {
        n.name: {k: n.meta[k] for k in keys if k in n.meta}
        for n in nodes
        if not n.name.startswith("clone")
    }


def test_what_nodes_know_stays(program: Any) -> None:
    again = lostwax.export(program.module(), ARGS)
    assert read_meta(again) == read_meta(program)
    assert read_meta(again)["relu"]["custom"] == {"stage": 1}
    assert list(again.constants) == list(program.constants) == ["block.scale", "lifted_tensor_0"]
    third = lostwax.export(again.module(), ARGS)
    assert read_meta(third) == read_meta(program)


@pytest.mark.filterwarnings("ignore")
def test_as_torch_keeps_it(program: Any) -> None:
    """torch's own program, exported again by it and by us."""
    first = torch.export.export(Net(), ARGS)
    theirs, ours = torch.export.export(first.module(), ARGS), lostwax.export(first.module(), ARGS)

    def read(program: Any) -> set[Any]:
        """Lines, with the modules that they run in and what is noted at them."""
        return {
            (
                node.meta["stack_trace"].strip(),
                tuple(node.meta["nn_module_stack"].values()),
                node.meta.get("custom", {}).get("stage"),
            )
            for node in program.graph.nodes
            if node.op == "call_function" and node.meta["stack_trace"]
        }

    assert read(ours) == read(theirs) == read(first)
    assert "block.scale" in theirs.constants
    assert len(read(lostwax.export(Net(), ARGS))) == len(read(first))


def test_inside_of_another_module(program: Any) -> None:
    again = lostwax.export(Around(program.module()), ARGS)
    meta = read_meta(again)
    assert meta["relu"]["nn_module_stack"] == {
        "": ("", f"{__name__}.Around"),
        "inner": ("inner", f"{__name__}.Net"),
        "inner.block": ("inner.block", f"{__name__}.Block"),
    }
    lines = [line.strip() for line in meta["relu"]["stack_trace"].splitlines()[1::2]]
    assert lines[0] == "return self.inner(x) * 3"
    assert lines[-1] == "x = torch.relu(x)"
    assert list(again.constants) == ["inner.block.scale", "inner.lifted_tensor_0"]
    nested = lostwax.unflatten(again)
    assert isinstance(nested.get_submodule("inner.block.linear"), nn.Module)
    torch.testing.assert_close(nested(*ARGS), again.module()(*ARGS))


def test_an_edited_module(program: Any) -> None:
    module = program.module()
    (relu,) = (n for n in module.graph.nodes if n.name == "relu")
    relu.target = torch.ops.aten.sigmoid.default
    relu.meta["custom"] = {"stage": 2}
    module.recompile()
    again = lostwax.export(module, ARGS)
    meta = read_meta(again)
    assert meta["sigmoid"] == {**read_meta(program)["relu"], "custom": {"stage": 2}}


def test_branches_of_control_flow() -> None:
    class Branching(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    def read_branches(program: Any) -> list[Any]:
        children = [c for c in program.graph_module.children() if hasattr(c, "graph")]
        return [
            n.meta["stack_trace"] for c in children for n in c.graph.nodes if "sin" in n.name
            or "cos" in n.name
        ]  # fmt: skip

    first = lostwax.export(Branching(), ARGS)
    again = lostwax.export(first.module(), ARGS)
    found = read_branches(first)
    assert len(found) == 2
    assert all("x.sin()" in trace for trace in found)
    assert read_branches(again) == found


def test_annotations_stay_in_files_and_decompositions(program: Any, tmp_path: Any) -> None:
    lostwax.save(program, tmp_path / "net.pt2")
    loaded = lostwax.load(tmp_path / "net.pt2")
    assert read_meta(loaded)["relu"]["custom"] == {"stage": 1}
    assert read_meta(program.run_decompositions())["relu"]["custom"] == {"stage": 1}
