"""`check`: a program that does what its module does is found right, one that does not is shown."""

from __future__ import annotations

from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from examples.models import MODELS
from lostwax import Dim, check, export, load, save
from lostwax.errors import CheckError
from lostwax.passes import ConvertDtype

X = torch.randn(4, 3)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.last = nn.Sequential(nn.ReLU(), nn.Linear(3, 2))

    def forward(self, x: Tensor, i: Tensor, *, scale: float = 2.0) -> dict[str, Tensor]:
        y = self.norm(self.first(x))
        y.mul_(scale)
        return {"y": self.last(y), "picked": y[i]}


PICKED = torch.tensor([0, 3, 1])
SHAPES = {"x": {0: Dim("n", min=4, max=300)}, "i": {0: Dim("m", max=100)}}


@pytest.fixture(scope="module")
def net() -> Net:
    return Net()


@pytest.fixture(scope="module")
def program(net: Net) -> Any:
    return export(net, (X, PICKED), dynamic_shapes=SHAPES)


def changed(program: Any, name: str, change: Any) -> Any:
    """The program with a node changed: what a wrong pass would do."""
    wrong = deepcopy(program)
    node = next(n for n in wrong.graph.nodes if n.name == name)
    change(node)
    wrong.graph_module.recompile()
    return wrong


def test_a_right_program(net: Net, program: Any) -> None:
    before = deepcopy(net.state_dict())
    result = check(program, net)
    assert result.ok, result.report
    assert result.agreed[0] == "the example"
    assert result.agreed[1] == "x.shape[0] = 4, i.shape[0] = 0"
    assert "x.shape[0] = 257, i.shape[0] = 100" in result.report
    assert len(result.agreed) == 9
    assert net.state_dict().keys() == before.keys()
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    result.raise_on_difference()


@pytest.mark.parametrize("name", ["resnet50", "gpt2", "lstm"])
def test_models(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = MODELS[name].tiny().eval(), MODELS[name].tiny_inputs()
    named = {n: Dim(n, max=16) for dims in MODELS[name].dynamic for n in dims.values()}
    shapes = tuple({d: named[n] for d, n in dims.items()} for dims in MODELS[name].dynamic)
    program = export(model, inputs, dynamic_shapes=shapes)
    result = check(program, model, draws=3)
    assert result, result.report
    assert len(result.agreed) == 4


def test_the_first_node_is_named_and_the_counterexample_runs(net: Net, program: Any) -> None:
    def other_factor(node: Any) -> None:
        node.args = (node.args[0], 2.5)

    wrong = changed(program, "mul", other_factor)
    result = check(wrong, net)
    assert not result.ok
    (found,) = result.differences
    assert found.case == "the example"
    assert found.what.startswith("the result['y']: Tensor-likes are not close!")
    where = "tests/checking/test_check.py"
    assert found.node.startswith(f"mul = torch.ops.aten.mul.Tensor\n    at {where}:")
    assert "in forward, code: y.mul_(scale)" in found.node
    with pytest.raises(CheckError, match="the first node that differs: mul"):
        result.raise_on_difference()
    with pytest.raises(AssertionError, match="not close"):
        exec(found.counterexample, {"program": wrong, "module": net})
    exec(found.counterexample, {"program": program, "module": net})


@pytest.mark.parametrize("metadata", ["lines", "full"])
def test_the_first_node_of_a_file_is_named_in_another_folder(
    net: Net, program: Any, metadata: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has the folders of where it was saved: relative to the working directory there, or
    (in the whole traces) another machine's."""

    def change(node: Any) -> None:
        node.args = (node.args[0], 3.0)
        if metadata == "full":
            for each in node.graph.nodes:
                trace = each.meta.get("stack_trace") or ""
                each.meta["stack_trace"] = trace.replace('File "/', 'File "/elsewhere/')

    file = tmp_path / "wrong.pt2"
    save(changed(program, "mul", change), file, metadata=metadata)
    monkeypatch.chdir(tmp_path)
    (found,) = check(load(file), net).differences
    assert found.node.startswith("mul = torch.ops.aten.mul.Tensor")
    assert "test_check.py" in found.node


def test_a_node_of_another_operator_is_named() -> None:
    """The module calls nothing that it could be compared with by name."""
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.BatchNorm1d(3), nn.Linear(3, 3)).eval()
    program = export(net, (X,))

    def gelu(node: Any) -> None:
        node.target = torch.ops.aten.gelu.default

    (found,) = check(changed(program, "relu", gelu), net).differences
    assert found.node.startswith("relu = torch.ops.aten.gelu.default")
    assert found.node.endswith("its value is none of those that the module computes there")


@pytest.mark.parametrize("right", [True, False])
def test_a_wrong_decomposition_is_found(right: bool) -> None:
    """Its nodes have no names in the module; the last of them should give what `silu` gave."""

    def f(x: Tensor) -> Tensor:
        y = x * 2
        y = nn.functional.silu(y)
        return y.exp()

    silu = (lambda x: x * x.sigmoid()) if right else (lambda x: 2 * (x * x.sigmoid()))
    program = export(f, (X,)).run_decompositions({torch.ops.aten.silu.default: silu})
    result = check(program, f)
    assert result.ok is right
    for found in result.differences:
        assert found.node.startswith("mul_2 = torch.ops.aten.mul.Tensor")
        assert "y = nn.functional.silu(y)" in found.node


def test_a_branch_on_a_size_that_was_lost() -> None:
    """At the example all is well; another size shows it."""

    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.relu() if len(x) < 20 else x + 1

    class Even(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.relu()

    program = export(Even(), (X,), dynamic_shapes={"x": {0: Dim("n", max=64)}})
    result = check(program, Odd())
    (found,) = result.differences
    assert found.case == "x.shape[0] = 32"
    assert "leaves[0] = torch.randn((32, 3)," in found.counterexample
    assert "the example" in result.agreed
    assert "x.shape[0] = 0" in result.agreed
    with pytest.raises(AssertionError):
        exec(found.counterexample, {"program": program, "module": Odd()})


def test_guards_are_respected_and_refusals_are_told() -> None:
    class Halves(nn.Module):
        def forward(self, x: Tensor, n: int) -> Tensor:
            assert n > 1
            return x.view(2, -1) * n

    shapes = {"x": {0: Dim.AUTO}, "n": Dim.AUTO}
    program = export(Halves(), (X[:, 0].clone(), 5), dynamic_shapes=shapes)
    result = check(program, Halves(), draws=12)
    assert result.ok, result.report
    assert len(result.agreed) == 13
    assert all(int(c.split(",")[0].split("=")[1]) % 2 == 0 for c in result.agreed[1:])
    result = check(program, Halves(), inputs=[(torch.randn(6), 3), (torch.randn(3), 3)])
    assert result.agreed == ("inputs[0]",)
    assert result.refused[0].startswith("inputs[1]: ")
    result = check(program, Halves(), inputs=[(torch.randn(3), 3)])
    assert not result.ok
    with pytest.raises(
        CheckError, match=r"^\[LW0504\] nothing was compared\nthe program refuses: inputs\[0\]"
    ):
        result.raise_on_difference()


OTHERS = [torch.eye(2).to_sparse(), torch.ones(2, device="meta")]


def test_a_function_that_reaches_tensors_of_every_kind() -> None:
    def add(x: Tensor) -> Tensor:
        return x + len(OTHERS)

    assert check(export(add, (X,)), add).ok


def test_inputs_that_are_no_arguments_are_refused(net: Net, program: Any) -> None:
    for inputs in (X, [X]):
        with pytest.raises(
            CheckError, match=r"instead: check\(program, module, inputs=\[\(x, y\)\]\)"
        ):
            check(program, net, inputs=inputs)


def test_buffers_that_nobody_writes_may_be_of_another_type(net: Net) -> None:
    still = deepcopy(net).eval()
    program = ConvertDtype(torch.float64)(export(still, (X, PICKED)))
    result = check(program, still, rtol=1e-4, atol=1e-4)
    assert result, result.report


def test_writes_are_compared() -> None:
    class Counts(nn.Module):
        def __init__(self, step: int = 1) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))
            self.step = step

        def forward(self, x: Tensor) -> Tensor:
            self.count += self.step
            return x * 2

    class Writes(nn.Module):
        def __init__(self, by: float) -> None:
            super().__init__()
            self.by = by

        def forward(self, x: Tensor) -> Tensor:
            x.add_(self.by)
            return x.shape[0] * torch.ones(1)

    program = export(Counts(), (X,))
    for module in (Counts(2), Counts(2).forward):
        (found,) = check(program, module).differences
        assert found.what.startswith("the buffer count afterwards: ")
        assert "code: self.count += self.step" in found.node
        with pytest.raises(AssertionError, match="not close"):
            exec(found.counterexample, {"program": program, "module": module})
    program = export(Writes(1.0), (X,))
    (found,) = check(program, Writes(2.0)).differences
    assert found.what.startswith("the arguments afterwards, (args, kwargs)[0][0]: ")
    for module in (Writes(2.0), Writes(1.0)):
        with pytest.raises(AssertionError) if module.by == 2.0 else nullcontext():
            exec(found.counterexample, {"program": program, "module": module})


def test_structures_errors_and_functions() -> None:
    def one(x: Tensor) -> Any:
        return x + 1, 3

    def other(x: Tensor) -> Any:
        return [x + 1, 3]

    def raises(x: Tensor) -> Any:
        raise ValueError("no")

    program = export(one, (X,))
    assert check(program, one)
    (found,) = check(program, other).differences
    assert found.what == "the result is (f32[4, 3], 3) instead of [f32[4, 3], 3]"
    (found,) = check(program, raises).differences
    assert found.what == "the program does not; the module raises ValueError: no"
    (found,) = check(program, lambda x: (x + 1, 4)).differences
    assert found.what == "the result[1]: it is 3 instead of 4"
    program.example_inputs = None
    with pytest.raises(CheckError, match=r"no example inputs.*\n  instead: check\("):
        check(program, one)


def test_random_numbers_are_the_same_for_both() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    state = torch.get_rng_state()
    assert check(export(net, (X,)), net)
    assert torch.equal(state, torch.get_rng_state())


# ------------------------------------------------------------------------------------ copies


@torch.library.custom_op("lostwax_check::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Holds(nn.Module):
    """Holds an object that may have no copy."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.inner = nn.ReLU()
        self.inner.held = held

    def forward(self, x: Tensor) -> Tensor:
        held = self.inner.held
        return self.inner(held(x) if callable(held) else x)


def test_a_custom_operator_in_the_module_is_no_state() -> None:
    module = Holds(twice)
    assert check(export(module, (X,)), module)


def test_a_notebook_shows_the_report() -> None:
    result = check(export(Holds(None), (X,)), Holds(None))
    assert f">{result}</pre>" in result._repr_html_()


def test_an_object_that_has_no_copy_is_named() -> None:
    module = Holds(i for i in ())
    program = export(module, (X,))
    with pytest.raises(CheckError, match=r"its inner\.held is a generator"):
        check(program, module)


CALLS = {"n": 0}


def _counts(x: torch.Tensor) -> torch.Tensor:
    CALLS["n"] += 1
    return x * CALLS["n"]


class Counts(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _counts(x)


@pytest.mark.filterwarnings("ignore:the module sets CALLS")
@pytest.mark.parametrize("make", [lambda: _counts, Counts], ids=["function", "module"])
def test_what_functions_keep_outside_of_modules_is_put_back(make: Any) -> None:
    function = make()
    program = export(function, (torch.ones(2),))
    assert check(program, function, inputs=[(torch.ones(2),), (torch.zeros(2),)] * 2)
    assert CALLS == {"n": 0}


def test_a_function_that_calls_a_module_with_state_leaves_it() -> None:
    norm = nn.BatchNorm1d(2)
    function = lambda x: norm(x) * 2  # noqa: E731
    program = export(function, (torch.randn(4, 2),))
    assert check(program, function)
    assert norm.num_batches_tracked == 0
    assert torch.equal(norm.running_mean, torch.zeros(2))  # type: ignore[arg-type]
