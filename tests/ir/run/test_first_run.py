"""Custom operators whose fake kernels do not say what the operators return."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax import Dim
from lostwax.errors import WrongFakeError

pytestmark = pytest.mark.core

FAKES: dict[str, Any] = {
    "good": lambda x: x.new_empty(x.shape[1], x.shape[0]),
    "size": torch.empty_like,
    "dtype": lambda x: x.new_empty(x.shape[1], x.shape[0], dtype=torch.float64),
    "rank": lambda x: x.new_empty(x.shape[1] * x.shape[0]),
    "data": lambda x: x.new_empty(torch.library.get_ctx().new_dynamic_size(), x.shape[0]),
}
for _name, _fake in FAKES.items():

    @torch.library.custom_op(f"lostwax_first_run::{_name}", mutates_args=())
    def turn(x: Tensor) -> Tensor:
        return x.t().clone()

    turn.register_fake(_fake)


class Turning(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        return getattr(torch.ops.lostwax_first_run, self.name)(x) * 2


X = torch.randn(3, 4)
DIMS = ({0: Dim("n"), 1: Dim("m")},)


def export(name: str, dynamic_shapes: Any = None) -> lostwax.ExportedProgram:
    return lostwax.export(Turning(name), (X,), dynamic_shapes=dynamic_shapes)


@pytest.mark.parametrize("dims", [None, DIMS], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    ("name", "said"),
    [("size", "float32[3, 4]"), ("dtype", "float64[4, 3]"), ("rank", "float32[12]")],
)
def test_a_wrong_fake_kernel_is_named_at_the_first_run(name, said, dims):
    module = export(name, dims).module()
    for _ in range(2):  # not only once
        with pytest.raises(WrongFakeError) as caught:
            module(X)
    text = str(caught.value)
    assert f"lostwax_first_run::{name} returns float32[4, 3], and its fake kernel says" in text
    if dims is None:
        assert said in text
    assert "test_first_run.py" in text
    assert f'torch.library.register_fake("lostwax_first_run::{name}")' in text


def test_a_square_hides_a_wrong_size_until_it_is_told_of():
    program = lostwax.export(Turning("size"), (torch.randn(3, 3),), dynamic_shapes=DIMS)
    program.module()(torch.randn(3, 3))
    with pytest.raises(WrongFakeError):
        program.module()(X)


@pytest.mark.parametrize("dims", [None, DIMS], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", ["good", "data"])
def test_right_ones_run(name, dims):
    module = export(name, dims).module()
    for _ in range(2):
        assert torch.equal(module(X), X.t() * 2)


def test_check_names_the_operator():
    result = lostwax.check(export("size"), Turning("size"))
    assert not result.ok
    assert "the operator lostwax_first_run::size returns float32[4, 3]" in result.report


def test_a_module_that_is_exported_again_has_not_run():
    module = export("size").module()
    lostwax.export(module, (X,))
    with pytest.raises(WrongFakeError):
        module(X)


def test_only_the_first_run_compares():
    module = export("good", DIMS).module()
    forward = module._runner.forward.args[0]
    assert [*forward._nodes] == [torch.ops.lostwax_first_run.good.default]
    module(X)
    assert forward._nodes == {}


@torch.library.custom_op("lostwax_first_run::add_to", mutates_args=("x",))
def add_to(x: Tensor, y: Tensor) -> None:
    x.add_(y)


@add_to.register_fake
def _add_to_fake(x: Tensor, y: Tensor) -> None:
    return None


class Writing(nn.Module):
    def forward(self, x: Tensor, is_turned: Tensor) -> Tensor:
        y = x.clone()
        torch.ops.lostwax_first_run.add_to(y, x)
        turn_y, copy_y = torch.ops.lostwax_first_run.good, torch.clone
        return torch.cond(is_turned, turn_y, copy_y, (y,)) + y


@pytest.mark.parametrize("is_turned", [True, False])
def test_operators_that_write_and_operators_in_branches(is_turned):
    square, choice = torch.randn(3, 3), torch.tensor(is_turned)
    module = lostwax.export(Writing(), (square, choice)).module()
    for _ in range(2):
        want = (square * 2).t() if is_turned else square * 2
        assert torch.equal(module(square, choice), want + square * 2)


@torch.library.custom_op("lostwax_first_run::count_up", mutates_args=("x",))
def count_up(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.add_(1)
    return y.clone(), y[:1].clone()


@count_up.register_fake
def _count_up_fake(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(y), torch.empty_like(y)


def test_an_operator_that_writes_is_compared():
    def count(x: Tensor) -> Any:
        y = x.clone()
        return *torch.ops.lostwax_first_run.count_up(y, x), y

    with pytest.raises(WrongFakeError, match=r"returns float32\[3, 4\] and float32\[1, 4\]"):
        lostwax.export(count, (X,)).module()(X)


def test_an_operator_in_a_branch_is_compared_when_it_runs():
    def choose(x: Tensor, is_turned: Tensor) -> Tensor:
        return torch.cond(is_turned, torch.ops.lostwax_first_run.size, torch.clone, (x,))

    module = lostwax.export(choose, (X, torch.tensor(True))).module()
    assert torch.equal(module(X, torch.tensor(False)), X)
    with pytest.raises(WrongFakeError):
        module(X, torch.tensor(True))


@torch.library.custom_op("lostwax_first_run::find", mutates_args=())
def find(x: Tensor) -> Tensor:
    return x.flatten().nonzero().flatten()


@find.register_fake
def _find_fake(x: Tensor) -> Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size(max=5), dtype=torch.int64)


def test_a_size_in_data_is_held_to_its_range():
    program = lostwax.export(torch.ops.lostwax_first_run.find.default, (X,))
    assert program.module()(torch.eye(3, 4)).tolist() == [0, 5, 10]
    with pytest.raises(WrongFakeError, match=r"returns int64\[12\], .* says int64\[0 to 5\]"):
        program.module()(torch.ones(3, 4))
