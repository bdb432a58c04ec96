"""The functions that stand for operators inside of loops call just these operators."""

from __future__ import annotations

import operator

import pytest
import torch

from lostwax.ir.run.plain_functions import find_plain_function
from tests.ir.build import Builder

aten = torch.ops.aten


def found(target, *args, **kwargs):
    b = Builder()
    given = [b.input(f"x{i}", a) if isinstance(a, torch.Tensor) else a for i, a in enumerate(args)]
    node = b.graph.call_function(target, tuple(given), kwargs)
    return find_plain_function(node)


X = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("target", "args", "wanted"),
    [
        (aten.add.Tensor, (X, 1), operator.add),
        (aten.add.Tensor, (X, X), operator.add),
        (aten.div.Tensor, (X, 2.0), operator.truediv),
        (aten.lt.Scalar, (X, 1), operator.lt),
        (aten.sum.default, (X,), torch.sum),
        (aten.sum.dim_IntList, (X, [1], True), torch.sum),
        (aten.tanh.default, (X,), torch.tanh),
        (aten.mm.default, (X, X), torch.mm),
        (aten.cat.default, ([X, X], 1), torch.cat),
        (aten.__lshift__.Scalar, (X.int(), 2), operator.lshift),
        (aten.__rshift__.Tensor, (X.int(), X.int()), operator.rshift),
    ],
)
def test_a_function_that_does_the_same(target, args, wanted):
    function = found(target, *args)
    assert function is wanted
    if target is not aten.mm.default:
        torch.testing.assert_close(function(*args), target(*args))


@pytest.mark.parametrize(
    ("target", "args", "kwargs"),
    [
        (aten.add.Scalar, (X, 1), {}),  # the function would call another overload
        (aten.rsub.Scalar, (1, X), {}),
        (aten.add.Tensor, (X, X), {"alpha": 2}),  # arguments by name
        (aten.linear.default, (X, X), {}),  # torch takes it apart first
        (aten.view.default, (X, [6]), {}),  # there is none
        (operator.add, (1, 2), {}),  # no operator
        (aten.unique_dim.default, (X, 0), {}),  # a function that torch.fx cannot name
        (aten.block_diag.default, ([X, X],), {}),  # torch.block_diag(X, X) is another function
        (aten.unique_consecutive.default, (X,), {}),  # torch.unique_consecutive returns one tensor
    ],
)
def test_no_function(target, args, kwargs):
    assert found(target, *args, **kwargs) is None
