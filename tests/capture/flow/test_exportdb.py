"""ExportDB where data may decide: each case exported once, and run on data that it was not
exported with; and its cases of `torch.cond` as users would write them, with Python's own `if`.

`tests/capture/test_exportdb.py` has all cases at the example, and at other sizes.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch._export.db.case import ExportCase, SupportLevel
from torch._export.db.examples import all_examples

import lostwax

CASES: dict[str, ExportCase] = all_examples()

TORCH_REFUSES = {"dynamic_shape_round": "torch's symbols have no round(); ours has"}
"""What torch.export does not do, by its own list, and why ours does."""

FIXED = {"assume_constant_result": "the case says itself that a number it reads is constant"}
"""What is right for the example's data alone, and why."""


def _draw(leaf: Any, seed: int) -> Any:
    """Other data of the same kind; integers are within the bounds that the cases check, or just
    beyond them."""
    if not isinstance(leaf, Tensor):
        return leaf
    generator = torch.Generator().manual_seed(seed)
    if leaf.dtype is torch.bool:
        return torch.tensor(seed % 2 == 0)
    if not leaf.is_floating_point():
        return torch.tensor([0, 3, 5, 7][seed % 4])
    return torch.randn(leaf.shape, generator=generator)


def _run(module: Any, args: Any, kwargs: Any) -> Any:
    """What it gives and leaves in its arguments, or nothing if it raises."""
    try:
        got = module(*args, **kwargs)
    except (RuntimeError, AssertionError):
        return None, []
    return got, [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]


@pytest.mark.filterwarnings("ignore:Pred is a Python constant", "ignore:the input x is given")
@pytest.mark.parametrize("name", sorted(CASES.keys() - FIXED.keys()))
def test_a_case_with_other_data(name: str) -> None:
    case = CASES[name]
    example = case.example_args, case.example_kwargs
    run = lostwax.export(case.model, *deepcopy(example)).module()
    for seed in range(4):
        drawn = pytree.tree_map(lambda leaf, seed=seed: _draw(leaf, seed), example)
        got = _run(run, *deepcopy(drawn))
        torch.testing.assert_close(got, _run(deepcopy(case.model), *deepcopy(drawn)))


def test_the_lists_are_right() -> None:
    assert len(CASES) >= 36
    refused = {n for n, c in CASES.items() if c.support_level is not SupportLevel.SUPPORTED}
    refused -= {"unsupported_operator"}  # a case of torch 2.11
    assert refused == TORCH_REFUSES.keys()
    assert CASES.keys() > FIXED.keys()


# ------------------------------------------------------ the cases of torch.cond, in plain Python


class Inner(nn.Module):
    def foo(self, x: Tensor) -> Tensor:
        return x.cos()

    def forward(self, x: Tensor) -> Tensor:
        return self.foo(x)


class BranchClassMethod(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.subm = Inner()

    def bar(self, x: Tensor) -> Tensor:
        return x.sin()

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() <= 2:
            return self.subm(x)  # type: ignore[no-any-return]
        return self.bar(x)


def branch_nested_function(x: Tensor) -> Tensor:
    def true_fn(x: Tensor) -> Tensor:
        def inner_true_fn(y: Tensor) -> Tensor:
            return x + y

        return inner_true_fn(x)

    def false_fn(x: Tensor) -> Tensor:
        def inner_false_fn(y: Tensor) -> Tensor:
            return x - y

        return inner_false_fn(x)

    branch = true_fn if x.numel() > 100 else false_fn
    if x.sum() < 1:
        branch = true_fn
    return branch(x)


def branch_nonlocal_variables(x: Tensor) -> Tensor:
    my_tensor_var = x + 100
    my_primitive_var = 3.14

    def true_fn(y: Tensor) -> Tensor:
        nonlocal my_tensor_var, my_primitive_var
        my_tensor_var = my_tensor_var + 1
        return y + my_tensor_var + my_primitive_var

    def false_fn(y: Tensor) -> Tensor:
        return y - my_tensor_var - my_primitive_var

    if x.sum() > 0:
        y = true_fn(x)
    else:
        y = false_fn(x)
    return y * my_tensor_var


def closed_over_variable(x: Tensor) -> Tensor:
    def choose(val: Tensor) -> Tensor:
        if val.sum() > 3:
            return x * 2
        return x - 2

    return choose(x + 1)


def operands(x: Tensor) -> Tensor:
    y = x.flip(0)
    if x[0] > 2:
        z = x + y
    else:
        z = x - y
    return z


def predicate(x: Tensor) -> Tensor:
    if x.dim() > 0 and x[0] > 0:
        return x.cos()
    return x.sin()


def value_is_constrained(x: Tensor) -> Tensor:
    a = x[0].abs().to(torch.int64).item()
    if a > 5:
        raise ValueError("too large")
    if a < 2:
        return x.sin()
    return x.cos()


def lists_are_unpacked(x: Tensor) -> Tensor:
    args = [x, x[0], x[1]]
    if x.sum() > 0:
        args = [x * 2, x[1], x[0]]
    first, *rest = args
    return first + rest[0] - rest[1] * 2


PLAIN = [
    BranchClassMethod(), branch_nested_function, branch_nonlocal_variables, closed_over_variable,
    operands, predicate, value_is_constrained, lists_are_unpacked,
]  # fmt: skip
INPUTS = [
    torch.tensor(each)
    for each in ([3.0, 1.0, 2.0], [-3.0, 1.0, -2.0], [0.5, 0.25, 0.0], [5.0, -9.0, 1.0])
]


@pytest.mark.parametrize(
    "program", PLAIN, ids=lambda p: getattr(p, "__name__", "BranchClassMethod")
)
def test_in_plain_python(program: Any) -> None:
    run = lostwax.export(program, (INPUTS[0],)).module()
    for each in INPUTS:
        torch.testing.assert_close(run(each), program(each))
