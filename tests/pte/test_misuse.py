"""What users and passes get wrong: clear errors, and no process that ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import lostwax
from lostwax.errors import LoadError, LostwaxError, LoweringError, PassError, VerificationError
from tests.pte.runtime import Runtime

edge = lostwax.ops.edge
X = torch.randn(3, 4)


@pytest.fixture(scope="module")
def program() -> Any:
    return lostwax.export(torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU()), (X,))


@pytest.mark.parametrize(
    "value",
    [
        *(2**70, -(2**63) - 1, "a\0b", "\ud800", [[1]], [1, 1j], 1j, b"x"),
        *(torch.ones(2, device="meta"), torch.ones(2).to_sparse(), torch.ones([1] * 17)),
        torch.ones(2).to(torch.float8_e4m3fn),
    ],
)
def test_constants_that_an_executable_cannot_hold(program: Any, value: Any) -> None:
    manager = lostwax.to_edge(program, constant_methods={"value": value})
    with pytest.raises(LoweringError, match="'value'"):
        manager.to_executable()


def test_constants_that_are_views_of_conjugates_are_written_as_seen(program: Any) -> None:
    value = torch.tensor([1 + 2j]).conj()
    manager = lostwax.to_edge(program, constant_methods={"value": value})
    assert Runtime(manager.to_executable().buffer)(method="value")[0].tolist() == [1 - 2j]


@pytest.mark.parametrize(
    "use",
    [
        lambda p: lostwax.to_edge({1: p}),
        lambda p: lostwax.to_edge(p, constant_methods={"a b": 1}),
        lambda p: lostwax.to_edge(p, constant_methods={1: 1}),
        lambda p: lostwax.to_edge(p, constant_methods=[1]),
        lambda p: lostwax.to_edge(p, config={}),
        lambda p: p.to_edge().to_executable({"weights_beside": True}),
        lambda p: p.to_edge().to_executable(lostwax.ExecutableConfig(shared_state="total")),
        lambda p: p.to_edge().to_executable(lostwax.ExecutableConfig(unread_state="total")),
        lambda p: p.to_edge().transform(None),
        lambda p: p.to_edge().transform({"forward": 3}),
    ],
)
def test_arguments_of_another_kind_are_refused(program: Any, use: Callable[[Any], Any]) -> None:
    with pytest.raises((LoweringError, PassError)):
        use(program)


@pytest.mark.parametrize(
    "value",
    [
        *(X.double(), X[0], X[:2], X.t(), X.to("meta"), X.to_sparse(), X.numpy(), None, 3),
    ],
)
def test_inputs_that_a_method_does_not_take(program: Any, value: Any) -> None:
    buffer = program.to_edge().to_executable().buffer
    with pytest.raises(LoadError, match="input 0 is"):
        lostwax.pte.run(buffer, [value])


def find_relu(module: Any) -> Any:
    return next(n for n in module.graph.nodes if n.target is edge.aten.relu.default)


def lay_out_by_columns(module: Any) -> None:
    node = find_relu(module)
    node.target, node.kwargs = edge.dim_order_ops._clone_dim_order.default, {"dim_order": [1, 0]}


def leave_an_argument_out(module: Any) -> None:
    node = find_relu(module)
    node.target, node.args = edge.aten.hardtanh.default, (node.args[0], 0.0, None)


@pytest.mark.parametrize("change", [lay_out_by_columns, leave_an_argument_out])
def test_passes_that_make_what_kernels_do_not_take(program: Any, change: Any) -> None:
    with pytest.raises((VerificationError, LoweringError)) as caught:
        program.to_edge().transform([change]).to_executable()
    assert "relu" in str(caught.value)


@pytest.mark.parametrize(
    ("compute", "dtype"),
    [
        (lambda x: x.float(), torch.uint16),
        (lambda x: x.to(torch.uint32), torch.int64),
        (lambda x: torch.log_softmax(x, 0), torch.float64),
    ],
)
def test_dtypes_that_kernels_refuse_are_refused_before(compute: Any, dtype: torch.dtype) -> None:
    x = torch.tensor([1, 2, 3]).to(dtype)
    with pytest.raises(LostwaxError, match=r"uint|float64"):
        lostwax.export(compute, (x,)).to_edge().to_executable()


def test_a_size_above_its_bound_is_refused() -> None:
    rows = lostwax.Dim("rows", max=8)
    program = lostwax.export(lambda x: x * 2, (torch.ones(3, 5),), dynamic_shapes=({0: rows},))
    loaded = lostwax.pte.load_runtime(program.to_edge().to_executable().buffer)
    assert loaded.run([torch.ones(8, 5)])[0].shape == (8, 5)
    with pytest.raises(LoadError, match=r"and \[10, 2\] \(cpu\); .* and at most \[8, 5\]"):
        loaded.run([torch.ones(10, 2)])


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ModuleNotFoundError("No module named 'executorch'"), "is not installed"),
        (
            ImportError("undefined symbol: f"),
            r"does not load: undefined symbol: f\n  why: its wheel",
        ),
    ],
)
def test_a_runtime_that_does_not_load(
    program: Any, error: Exception, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> Any:
        raise error

    buffer = program.to_edge().to_executable().buffer
    monkeypatch.setattr(lostwax.pte.runtime, "import_module", fail)
    with pytest.raises(LoadError, match=text):
        lostwax.pte.load_runtime(buffer)
