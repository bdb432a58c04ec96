"""`program.module()` is a GraphModule: its graph is read and edited as torch's is, its inputs stay
checked, and until somebody asks there is no such graph."""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import lostwax
from lostwax import Dim, export
from lostwax.errors import InputValueError

aten = torch.ops.aten


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.register_buffer("count", torch.zeros(1))
        self.shift = torch.ones(4)

    def forward(self, x: Tensor, *, more: dict[str, Tensor]) -> dict[str, Tensor]:
        self.count.add_(1)
        y = torch.relu(self.linear(x)) + self.shift + more["y"]
        return {"y": y, "count": self.count + 0}


X, MORE = torch.randn(2, 3), {"y": torch.ones(4)}


@pytest.fixture(scope="module")
def program() -> Any:
    torch.manual_seed(0)
    return export(Net(), (X,), {"more": MORE}, dynamic_shapes={"x": {0: Dim("n")}, "more": None})


def replace_relu(module: fx.GraphModule) -> None:
    for node in module.graph.find_nodes(op="call_function", target=aten.relu.default):
        node.target = aten.neg.default
    module.recompile()


def test_constants_are_attributes_and_may_be_replaced(program: Any) -> None:
    module, edited = program.module(), program.module()
    assert torch.equal(module.shift, torch.ones(4))
    replace_relu(edited)
    for each in (program.module(), module, edited):  # before its graph was asked for, and after
        before = each(X, more=MORE)["y"]
        each.shift = torch.full((4,), 3.0)
        assert torch.allclose(each(X, more=MORE)["y"], before + 2)
        assert torch.allclose(copy.deepcopy(each)(X, more=MORE)["y"], before + 2)
        assert [n.target for n in each.graph.nodes if n.op == "get_attr"][-1] == "shift"
    assert torch.equal(program.constants["shift"], torch.ones(4))
    del edited.shift
    assert not hasattr(edited, "shift")


def test_threads_that_ask_for_the_graph_get_one(program: Any) -> None:
    for _ in range(3):
        module = program.module()
        together = threading.Barrier(4)

        def ask(_: int) -> Any:
            together.wait()  # noqa: B023
            return module.graph, module.code  # noqa: B023

        with ThreadPoolExecutor(4) as pool:
            assert len({id(graph) for graph, _ in pool.map(ask, range(4))}) == 1


def test_it_is_made_when_asked_for(program: Any) -> None:
    module = program.module()
    assert isinstance(module, fx.GraphModule)
    module(X, more=MORE)
    assert "_graph" not in vars(module)
    weight = module.get_parameter("linear.weight")
    assert weight.data_ptr() == program.state_dict["linear.weight"].data_ptr()
    assert list(module.state_dict()) == ["count", "linear.weight", "linear.bias"]
    targets = [str(n.target) for n in module.graph.nodes if n.op == "get_attr"]
    assert targets == ["linear.weight", "linear.bias", "count", "shift"]
    assert [n.name for n in module.graph.nodes if n.op == "placeholder"] == ["x", "more_y"]
    assert "self.linear.weight" in module.code
    assert "aten.relu.default" in module.print_readable(print_output=False)
    torchs = torch._subclasses.FakeTensor  # its tools look for these
    assert all(isinstance(n.meta["val"], torchs) for n in module.graph.nodes if "val" in n.meta)
    module.meta["mine"] = 1
    module.graph.lint()


def test_every_node_has_a_value_whatever_its_name() -> None:
    """FX calls `input` otherwise in a copy, since Python has a function of that name."""
    for shapes in (None, {"input": {0: Dim("n")}}):
        made = export(nn.Linear(3, 4), (X,), dynamic_shapes=shapes).module()
        assert all("val" in n.meta for n in made.graph.nodes if n.op != "output")


def test_an_edited_graph_runs_and_checks_its_inputs(program: Any) -> None:
    module, other = program.module(), program.module()
    want = module(X, more=MORE)
    replace_relu(module)
    got = module(X, more=MORE)
    assert got["count"] == want["count"] + 1 == module.count
    base = torch.relu(module.linear.weight @ X.T).T.shape
    assert got["y"].shape == base
    linear = torch.nn.functional.linear(X, module.linear.weight, module.linear.bias)
    torch.testing.assert_close(got["y"], 2 - linear)
    with pytest.raises(InputValueError, match=r"x\.shape\[1\] is 4"):
        module(torch.randn(2, 4), more=MORE)
    assert module(torch.randn(7, 3), more=MORE)["y"].shape == (7, 4)
    torch.testing.assert_close(other(X, more=MORE), want)  # and so does the program


def test_copies_and_graph_modules_made_of_it(program: Any) -> None:
    module = program.module()
    replace_relu(module)
    twin = copy.deepcopy(module)
    made = fx.GraphModule(module, copy.deepcopy(module.graph))
    want = module(X, more=MORE)
    torch.testing.assert_close(twin(X, more=MORE), want)
    assert twin.count is not module.count
    assert twin.graph.owning_module is twin
    assert made(X, more=MORE)["count"] == 2  # it has the module's buffer
    untouched = copy.deepcopy(program.module())
    assert "_graph" not in vars(untouched)
    assert not torch.equal(untouched(X, more=MORE)["y"], want["y"])


def test_another_graph(program: Any) -> None:
    module = program.module()
    graph = copy.deepcopy(module.graph)
    for node in graph.find_nodes(op="call_function", target=aten.relu.default):
        node.target = aten.neg.default
    module.graph = graph
    edited = program.module()
    replace_relu(edited)
    torch.testing.assert_close(module(X, more=MORE), edited(X, more=MORE))


@pytest.mark.parametrize("edits", [False, True])
def test_conversion(program: Any, edits: bool) -> None:
    module = program.module()
    assert module.graph is not None
    if edits:
        replace_relu(module)
    more = {"y": MORE["y"].double()}
    module.double()
    assert module(X.double(), more=more)["y"].dtype is torch.float64
    with pytest.raises(InputValueError):
        module(X, more=MORE)


def test_state_that_is_replaced_and_control_flow() -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(3))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            before = self.last
            self.last = torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))
            return before, self.last + 1

    x = torch.ones(3)
    program = export(Keeps(), (x,))
    module = program.module()
    module.recompile()
    plain = program.module()
    for value in (x, -x, x * 3):
        torch.testing.assert_close(module(value), plain(value))


def test_it_is_compiled_and_exported_again(program: Any) -> None:
    for edits in (False, True):
        module = program.module()
        if edits:
            replace_relu(module)
        compiled = torch.compile(copy.deepcopy(module), backend="eager")
        again = export(copy.deepcopy(module), (X,), {"more": MORE}).module()
        want = module(X, more=MORE)
        torch.testing.assert_close(compiled(X, more=MORE), want)
        torch.testing.assert_close(again(X, more=MORE), want)


def test_values_are_known_to_torch_beside_real_weights() -> None:
    """So AOTInductor computes (`torch._inductor.aot_compile(program.module(), …)`): with a fake,
    which is a node's value, and a weight that is none."""
    module = export(nn.Linear(3, 4), (X,)).module()
    module_input = next(n for n in module.graph.nodes if n.op == "placeholder")
    value = module_input.meta["val"]
    with value.fake_mode:
        made = aten.mm.default(value, module.get_parameter("weight").t())
    assert made.shape == (2, 4)


def test_modules_that_share_state() -> None:
    model = Net()
    programs = {"a": export(model, (X,), {"more": MORE}), "b": export(model, (X,), {"more": MORE})}
    made: Any = lostwax.modules(programs)
    replace_relu(made["a"])
    assert [made[k](X, more=MORE)["count"].item() for k in "abab"] == [1, 2, 3, 4]


def test_state_that_is_called_like_a_method() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.graph = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.graph(x)

    module, x = export(Odd(), (torch.ones(1, 2),)).module(), torch.ones(1, 2)
    assert module(x).shape == (1, 2)
    assert module.graph.weight is module.get_parameter("graph.weight")
    assert "(graph)" in str(module)
    with pytest.raises(AttributeError, match=r"graph\.weight is called like GraphModule\.graph"):
        module.meta  # noqa: B018
