"""ExportDB, torch's own collection of things that users write: each exports and matches eager.

At the sizes of its example; those that declare dynamic sizes also at others.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn
from torch._export.db.case import ExportCase
from torch._export.db.examples import all_examples

from lostwax import Dim
from lostwax.capture import export
from lostwax.errors import InputValueError

CASES: dict[str, ExportCase] = all_examples()

DYNAMIC = {"dynamic_shape_round", "scalar_output"}
"""These declare dynamic sizes."""

TWO_INPUTS = {"cond_operands"}
"""So does this, for two inputs: one size decides."""


def _bits(module: nn.Module) -> dict[str, Any]:
    return deepcopy(dict(module.state_dict()))


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@pytest.mark.filterwarnings("ignore:Pred is a Python constant")
@pytest.mark.parametrize("name", sorted(CASES))
def test_case(name: str) -> None:
    case = CASES[name]
    before = _bits(case.model)
    program = export(case.model, *deepcopy((case.example_args, case.example_kwargs)))
    program.validate()
    torch.testing.assert_close(_bits(case.model), before)
    args, kwargs = deepcopy((case.example_args, case.example_kwargs))
    again, again_kwargs = deepcopy((case.example_args, case.example_kwargs))
    want = deepcopy(case.model)(*args, **kwargs)
    got = program.module()(*again, **again_kwargs)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(_tensors(again), _tensors(args))
    assert type(got) is type(want)


@pytest.mark.parametrize("name", sorted(DYNAMIC))
def test_dynamic_sizes(name: str) -> None:
    case = CASES[name]
    program = export(case.model, case.example_args, dynamic_shapes=case.dynamic_shapes)
    assert not program.guards
    (example,) = case.example_args
    (dim,) = case.dynamic_shapes["x"]
    for size in (0, 1, 2, 5, 8, 101):
        shape = list(example.shape)
        shape[dim] = size
        x = torch.randn(shape)
        torch.testing.assert_close(program.module()(x), case.model(x))


@pytest.mark.parametrize("name", sorted(TWO_INPUTS))
def test_a_size_decides(name: str) -> None:
    case = CASES[name]
    program = export(case.model, case.example_args, dynamic_shapes=case.dynamic_shapes)
    assert not program.guards
    module = program.module()
    for size in (1, 2, 3, 8):
        x, y = torch.randn(size, 2), torch.randn(2)
        torch.testing.assert_close(module(x, y), x + y if size > 2 else x - y)


@pytest.mark.parametrize("name", sorted(n for n in CASES if n.startswith("dynamic_shape_")))
def test_all_sizes_may_vary(name: str) -> None:
    """Each case about dynamic shapes, declared or not: at every size as eager, or a condition that
    names the input."""
    case = CASES[name]
    spec = tuple(dict.fromkeys(range(x.dim()), Dim.AUTO) for x in case.example_args)
    program = export(case.model, case.example_args, dynamic_shapes=spec)
    program.validate()
    module, same = program.module(), 0
    for size in (0, 1, 2, 3, 7, 10):
        args = tuple(torch.randn([size] * x.dim()) for x in case.example_args)
        try:
            want = deepcopy(case.model)(*deepcopy(args))
        except (RuntimeError, AssertionError, IndexError):
            continue
        try:
            got = module(*args)
        except InputValueError:
            continue
        torch.testing.assert_close(got, want)
        same += 1
    assert same >= 1


def test_the_lists_are_right() -> None:
    assert len(CASES) >= 36
    assert {name for name, case in CASES.items() if case.dynamic_shapes} == DYNAMIC | TWO_INPUTS
