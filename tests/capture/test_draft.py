"""`draft_export` on custom operators: without fake kernels, and with schemas that are not true."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax.errors import MissingFakeRuleError

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])


def write(x: Tensor) -> Tensor:
    x.add_(1)
    return x.clone()


KERNELS: dict[str, Any] = {
    # name: schema, what it does, its fake
    "twice": ("(Tensor x) -> Tensor", lambda x: torch.cat([x, x]), None),
    "positive": ("(Tensor x) -> Tensor", lambda x: x[x > 0], None),
    "turned": ("(Tensor x) -> Tensor", lambda x: x.t().contiguous().t() * 2, None),
    "pair": ("(Tensor x) -> (Tensor, Tensor)", lambda x: (x + 1, x.sum(0).long()), None),
    "listed": ("(Tensor x) -> Tensor[]", lambda x: [x + 1, x.sum(0)], None),
    "number": ("(Tensor x) -> int", lambda x: int(x.sum()), None),
    "varies": ("(Tensor x, int n) -> Tensor", lambda x, n: x.new_ones([2] * n), None),
    "fill": ("(Tensor(a!) x) -> Tensor", lambda x: x.fill_(3).sum(0), None),
    "writes": ("(Tensor x) -> Tensor", write, torch.empty_like),
    "aliases": ("(Tensor x) -> Tensor", lambda x: x.view(-1), lambda x: x.new_empty(x.numel())),
    "itself": ("(Tensor x) -> Tensor", lambda x: x, torch.empty_like),
    "double": ("(Tensor x) -> Tensor", lambda x: x.double(), torch.empty_like),
    "fails": ("(Tensor x) -> Tensor", lambda x: [][1], torch.empty_like),
    "honest": ("(Tensor x) -> Tensor", lambda x: x + 1, torch.empty_like),
    "nans": ("(Tensor x) -> Tensor", lambda x: x / 0 * 0, torch.empty_like),
}


@pytest.fixture(autouse=True, scope="module")
def operators() -> Iterator[Any]:
    with torch.library._scoped_library("drafts", "FRAGMENT") as lib:
        for name, (schema, kernel, fake) in KERNELS.items():
            lib.define(f"{name}{schema}")
            lib.impl(name, kernel, "CPU")
            if fake is not None:
                lib.impl(name, fake, "Meta")
        yield torch.ops.drafts


def draft(function: Any, *args: Any, **options: Any) -> Any:
    class Module(nn.Module):
        def forward(self, *given: Any) -> Any:
            return function(torch.ops.drafts, *given)

    made = Module()
    before = [each.clone() for each in args]
    program = lostwax.draft_export(made, args, **options)
    assert all(map(torch.equal, before, args))
    return program, made


UNKNOWN: dict[str, Any] = {
    "twice": lambda ops, x: ops.twice(x) + 1,
    "meets the input": lambda ops, x: ops.twice(x)[: x.shape[0]] + x,
    "size from data": lambda ops, x: ops.positive(x) * 2,
    "strides": lambda ops, x: ops.turned(x) + 1,
    "several results": lambda ops, x: ops.pair(x),
    "a list": lambda ops, x: ops.listed(x),
    "two calls": lambda ops, x: ops.twice(ops.twice(x) * 2),
    "two operators": lambda ops, x: ops.positive(ops.twice(x)),
    "writes as it says": lambda ops, x: (ops.fill(y := x * 1), y),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("case", UNKNOWN)
def test_an_operator_without_a_fake_kernel_is_reported(case: str, dynamic: bool) -> None:
    options = {"dynamic_shapes": ({0: lostwax.Dim("n")},)} if dynamic else {}
    program, module = draft(UNKNOWN[case], X, **options)
    report = program._report
    assert not report.successful()
    assert {type(error) for error in report.failures} == {MissingFakeRuleError}
    assert 'instead: register one,\n    @torch.library.register_fake("drafts::' in str(report)
    assert f"{__file__.rpartition('/')[2]}:" in str(report)
    file = io.BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    for run in (program.module(), lostwax.load(file).module()):
        for x in (X, -X + 1, *([torch.randn(5, 3)] if dynamic else [])):
            torch.testing.assert_close(run(x.clone()), module(x.clone()))


def test_an_export_still_refuses_it() -> None:
    with pytest.raises(MissingFakeRuleError):
        lostwax.export(lambda x: torch.ops.drafts.twice(x), (X,))


REFUSED: dict[str, Any] = {
    "a number": lambda ops, x: x + ops.number(x),
    "results of two kinds": lambda ops, x: ops.varies(x, 1).sum() + ops.varies(x, 2).sum(),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_stand_in_is_refused(case: str) -> None:
    with pytest.raises(MissingFakeRuleError):
        draft(REFUSED[case], X)


FALSE = {
    "writes": ["writes to its argument x, and its schema does not", 'mutates_args=("x",)'],
    "aliases": ["returns memory of its argument x, and by its schema does not", "x.clone()"],
    "itself": ["returns memory of its argument x, and by its schema does not", "x.clone()"],
    "double": ["returns float64[2, 3], and its fake kernel says float32[2, 3]", "return that"],
    "fails": ["raises in eager, IndexError: list index out of range", "let it return in eager"],
}


@pytest.mark.parametrize("name", FALSE)
def test_an_operator_that_does_other_things_than_it_says_is_reported(name: str) -> None:
    program, _ = draft(lambda ops, x: getattr(ops, name)(x * 2), X)
    report = program._report
    assert not report.successful()
    (fault,) = report.operators
    assert fault.operator == f"drafts::{name}"
    assert str(fault).startswith(f"drafts::{name} {FALSE[name][0]}\n  at ")
    assert FALSE[name][1] in fault.instead
    assert "test_draft.py:" in str(fault)
    assert "getattr(ops, name)(x * 2)" in str(fault)
    assert "the program takes these at their word, and may be wrong" in str(report)


@pytest.mark.parametrize("name", ["honest", "nans"])
def test_an_operator_that_keeps_its_word_is_not_reported(name: str) -> None:
    program, module = draft(lambda ops, x: getattr(ops, name)(x * 2), X)
    assert program._report.successful()
    assert program._report.operators == []
    torch.testing.assert_close(program.module()(X), module(X), equal_nan=True)


def test_a_draft_without_custom_operators_calls_nothing() -> None:
    calls = []

    class Module(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(type(x))
            return x + 1

    lostwax.draft_export(Module(), (X,))
    assert Tensor not in calls


def test_both_kinds_of_corrections_in_one_draft() -> None:
    n = lostwax.Dim("n")
    program, module = draft(
        lambda ops, x: ops.twice(x) + x.view(2, 3).sum(), X, dynamic_shapes=({0: n},)
    )
    kinds = [type(error).__name__ for error in program._report.failures]
    assert sorted(kinds) == ["ConstraintViolationError", "MissingFakeRuleError"]
    torch.testing.assert_close(program.module()(X), module(X))
