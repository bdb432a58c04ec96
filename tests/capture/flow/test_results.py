"""What a module returns may be one thing or another: the program returns which it is, and what
rebuilds its results makes of them what eager returns, of the same classes and dtypes."""

from __future__ import annotations

from copy import deepcopy
from io import BytesIO
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

import lostwax
from lostwax.errors import CaptureError, DataDependentError, InputTypeError
from tests.capture.flow.results import PROGRAMS, Record, exits_that_somebody_keeps

INPUTS = [
    torch.tensor(each)
    for each in ([1.0, 2, 3], [-1.0, -2, 1], [0.0, 0, 0], [3.0, -1, 9], [0.0, float("nan"), 5])
]


def call(run: Any, x: Tensor) -> Any:
    x = x.clone()
    result = run(x)
    return deepcopy(pytree.tree_map_only(Tensor, Tensor.detach, (result, x)))


def assert_same(got: Any, want: Any) -> None:
    leaves, spec = pytree.tree_flatten(got)
    others, other_spec = pytree.tree_flatten(want)
    assert spec == other_spec
    for one, other in zip(leaves, others, strict=True):
        assert type(one) is type(other)
        if isinstance(one, Tensor):
            torch.testing.assert_close(one, other, equal_nan=True, rtol=0, atol=0)
        else:
            assert one == other or one != one


@pytest.mark.parametrize("example", [0, 1])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_it_is_what_eager_returns(program: Any, example: int) -> None:
    eager = program() if isinstance(program, type) else program
    exported = lostwax.export(deepcopy(eager), (INPUTS[example].clone(),))
    for run in (exported.module(), exported.run_decompositions().module()):
        eager = program() if isinstance(program, type) else program
        for x in INPUTS:
            assert_same(call(run, x), call(eager, x))


def best(x: Tensor) -> Any:
    found = None
    for each in x:
        if each > 0:
            found = each
    return x + 1, found


def test_files_keep_it() -> None:
    exported, file = lostwax.export(best, (INPUTS[0],)), BytesIO()
    with pytest.warns(UserWarning, match="knows none before `import lostwax.ir.pytree`"):
        lostwax.save(exported, file)
    file.seek(0)
    loaded = lostwax.load(file)
    file.seek(0)
    for each in (loaded, lostwax.unflatten(exported), torch.export.load(file)):
        run = each if isinstance(each, nn.Module) else each.module()
        for x in INPUTS:
            assert_same(call(run, x), call(best, x))


def test_gradients_go_through_what_it_is() -> None:
    def make() -> Any:
        torch.manual_seed(0)
        layer = nn.Linear(3, 3)

        class Either(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = layer

            def forward(self, x: Tensor) -> Any:
                h = self.layer(x)
                return (h, None) if x.sum() > 0 else h.sum()

        return Either()

    eager = make()
    run = lostwax.export(make(), (INPUTS[0],)).module()
    for x in INPUTS[:4]:
        for each in (eager, run):
            each.zero_grad()
            result = each(x)
            (result[0] if isinstance(result, tuple) else result).sum().backward()
        got, want = ([p.grad for p in each.parameters()] for each in (run, eager))
        torch.testing.assert_close(got, want)


def test_what_no_program_returns_is_refused_there_too() -> None:
    with pytest.raises(InputTypeError, match=r"the result.option0 is of type .*Record"):
        lostwax.export(lambda_of(Record), (INPUTS[0],))


def lambda_of(make: Any) -> Any:
    def returns_an_object(x: Tensor) -> Any:
        return make(x) if x.sum() > 0 else x

    return returns_an_object


def test_such_a_program_is_not_captured_again() -> None:
    module = lostwax.export(best, (INPUTS[0],)).module()
    with pytest.raises(DataDependentError, match="one thing or another, and it is captured again"):
        lostwax.export(module, (INPUTS[0],))


def test_exits_that_somebody_else_keeps_stay_what_they_are() -> None:
    with pytest.raises(CaptureError, match="kept has 1 elements"):
        lostwax.export(exits_that_somebody_keeps, (INPUTS[0],))
