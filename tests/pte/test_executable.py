"""Programs lowered to `.pte` files and run by the real runtime, beside eager execution."""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from lostwax import Dim
from lostwax.errors import LoweringError, SaveError
from tests.pte.runtime import Runtime, assert_close


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 2, bias=False)
        )

    def forward(self, x: Any) -> Any:
        return self.layers(x) * 2 + 1


def run_beside_eager(module: Any, example: tuple[Any, ...], *others: Any, **options: Any) -> Any:
    """Lower the module and compare it with eager for the example and for other inputs."""
    executable = lostwax.export(module, example, **options).to_edge().to_executable()
    runtime = Runtime(executable.buffer)
    for inputs in (example, *others):
        with torch.no_grad():
            eager = module(*inputs)
        assert_close(runtime(*inputs), eager if isinstance(eager, tuple) else (eager,))
    return executable


def test_mlp() -> None:
    executable = run_beside_eager(Mlp(), (torch.randn(3, 4),), (torch.randn(3, 4),))
    assert executable.methods == {"forward"}


def test_mlp_of_any_batch() -> None:
    sizes = [(torch.randn(n, 4),) for n in (1, 16, 5)]
    dynamic = ({0: Dim("batch", max=16)},)
    run_beside_eager(Mlp(), (torch.randn(3, 4),), *sizes, dynamic_shapes=dynamic)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor([3.0, 4.0]))
        self.register_buffer("last", torch.zeros(2))

    def forward(self, x: Any) -> Any:
        before = self.count.clone()
        self.count.add_(x)
        self.last.copy_(before)
        return self.count * 2, before, self.last + 0


def test_state_lives_from_call_to_call() -> None:
    module = Counter()
    runtime = Runtime(lostwax.export(module, (torch.ones(2),)).to_edge().to_executable().buffer)
    for i in range(3):
        x = torch.randn(2) + i
        assert_close(runtime(x), module(x))


class Swap(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.tensor([1.0]))
        self.register_buffer("b", torch.tensor([2.0]))

    def forward(self, x: Any) -> Any:
        old = self.a.clone()
        self.a.copy_(self.b)
        self.b.copy_(old)
        return x + self.a * 10


def test_state_that_is_exchanged() -> None:
    module = Swap()
    runtime = Runtime(lostwax.export(module, (torch.ones(1),)).to_edge().to_executable().buffer)
    for _ in range(3):
        assert_close(runtime(torch.ones(1)), (module(torch.ones(1)),))


def test_several_methods_and_constants() -> None:
    first = lostwax.export(nn.Linear(3, 2), (torch.ones(1, 3),))
    second = lostwax.export(nn.ReLU(), (torch.ones(4),))
    constants = {"size": 42, "table": torch.arange(3), "ends": [2, 7], "name": "é", "none": ()}
    edge = lostwax.to_edge({"encode": first, "clip": second}, constant_methods=constants)
    assert edge.methods == {"encode", "clip"}
    assert edge.config_methods == set(constants)
    runtime = Runtime(edge.to_executable().buffer)
    assert_close(runtime(torch.ones(1, 3), method="encode"), [first.module()(torch.ones(1, 3))])
    assert_close(runtime(-torch.ones(4), method="clip"), [torch.zeros(4)])
    assert runtime(method="size") == [42]
    assert runtime(method="ends") == [2, 7]  # a list is several results
    assert runtime(method="name") == ["é"]
    assert runtime(method="none") == []
    assert_close(runtime(method="table"), [torch.arange(3)])


def test_a_size_without_a_bound_is_refused() -> None:
    program = lostwax.export(Mlp(), (torch.randn(3, 4),), dynamic_shapes=({0: Dim("batch")},))
    with pytest.raises(LoweringError, match=r"no upper bound.*[\s\S]*Dim\(name, max=\.\.\.\)"):
        program.to_edge().to_executable()


class Guarded(nn.Module):
    def forward(self, x: Any, n: Any) -> Any:
        torch._check(x.shape[0] <= 8)
        if x.shape[0] % 2 == 0:
            x = x * 2
        count = n.item()
        torch._check(count >= 1)
        torch._check(count <= 5)
        return x, torch.ones(count)


def test_conditions_that_the_runtime_does_not_check_are_told() -> None:
    inputs = (torch.ones(4), torch.tensor(3))
    program = lostwax.export(Guarded(), inputs, dynamic_shapes=({0: Dim.DYNAMIC}, None))
    edge = program.to_edge()
    with pytest.warns(UserWarning, match="does not check") as told:
        edge.to_executable()
    (warning,) = told
    text = str(warning.message)
    assert "x.shape[0] % 2 == 0  at" in text
    assert ">= 1 is required at" in text
    assert "<= 5 is required at" in text
    assert text.count("test_executable.py:") >= 3
    assert warning.filename == __file__


def test_a_program_that_asks_for_the_strides_of_its_input() -> None:
    def scale(x: Any) -> Any:
        return x * x.stride(0) if x.is_contiguous() else x

    with pytest.warns(UserWarning, match=r"the input x must have strides \(4, 1\)"):
        run_beside_eager(scale, (torch.randn(3, 4),))


def test_nothing_is_told_where_all_is_checked() -> None:
    rows = ({0: Dim("rows", max=8)},)
    edge = lostwax.export(Mlp(), (torch.randn(3, 4),), dynamic_shapes=rows).to_edge()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        edge.to_executable()


def test_a_write_to_an_input_is_refused() -> None:
    def add_one(x: Any) -> Any:
        return x.add_(1) * 2

    program = lostwax.export(add_one, (torch.ones(2),))
    with pytest.raises(LoweringError, match="writes to its input 'x'") as error:
        program.to_edge().to_executable()
    assert "test_executable.py" in str(error.value)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Any, monkeypatch: Any) -> None:
    executable = lostwax.export(nn.ReLU(), (torch.ones(2),)).to_edge().to_executable()
    path = tmp_path / "relu.pte"
    path.write_bytes(b"before")
    with pytest.raises(SaveError, match=r"\.pte"):
        executable.save(tmp_path / "relu.bin")

    def fail(*_: Any) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="full"):
            executable.save(path)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]
    executable.save(path)
    assert path.read_bytes() == executable.buffer


@pytest.mark.parametrize(("times", "more"), [(2, 0), (3, 1)])
def test_a_dimension_may_be_a_multiple_of_what_is_computed_with(times: int, more: int) -> None:
    half = lostwax.Dim("half", min=1, max=4)
    size = times * half + more

    def compute(x: torch.Tensor) -> torch.Tensor:
        return x[more:].reshape(-1, times, 3).sum(1)

    example = torch.randn(2 * times + more, 3)
    program = lostwax.export(compute, (example,), dynamic_shapes=({0: size},))
    runtime = Runtime(program.to_edge().to_executable().buffer)
    for n in (2, 1, 4, 3):
        x = torch.randn(n * times + more, 3)
        assert_close(runtime(x), [compute(x)])
