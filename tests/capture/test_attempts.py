"""Each kind of restart goes through the one loop of `capture/attempt.py`: what the next attempt has
otherwise, how many captures it takes, and that the user's code cannot catch what stops one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax import Dim
from lostwax.capture.attempt import Attempt
from lostwax.errors import CaptureError, ConstraintViolationError

driver = importlib.import_module("lostwax.capture.export")
X = torch.arange(6.0).reshape(2, 3) - 2
ROWS = {"dynamic_shapes": ({0: Dim("rows", min=2, max=64)},)}
SIZES = {**ROWS, "control_flow": "sizes"}


def differentiates(x: Tensor) -> Tensor:
    y = x.detach().requires_grad_()
    return torch.autograd.grad((y**2).sum(), y)[0]


def marks_its_own(x: Tensor) -> Tensor:
    return x * torch.ones(3, requires_grad=True)


def branches(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x + 1
    return x - 1


def differentiates_and_branches(x: Tensor) -> Tensor:
    y = differentiates(x)
    if x.sum() > 0:
        return y + 1
    return y - 1


def has_sides_that_differ(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x[0]
    else:
        y = x
    return y.sum()


def appends(x: Tensor) -> Tensor:
    rows = []
    while x.sum() < 20:
        x = x + 1
        rows.append(x)
    return torch.stack(rows)


def picks(x: Tensor) -> Tensor:
    return [x + i for i in range(12)][int(x.argmax())]


def asks_its_size(x: Tensor) -> Tensor:
    if x.shape[0] > 3:
        return x + 1
    return x - 1


def returns_other_types(x: Tensor) -> Any:
    return {1} if x.shape[0] > 3 else x + 1


KINDS: list[tuple[Callable[..., Any], dict[str, Any], list[str], int]] = [
    (torch.sin, {}, [], 1),
    (torch.sin, {"strict": True}, [], 2),
    (differentiates, {}, ["tracked"], 2),
    (differentiates, {"strict": True}, ["tracked"], 3),
    (marks_its_own, {}, ["tracked"], 2),
    (branches, {}, ["plans"], 2),
    (branches, {"strict": True}, ["plans"], 3),
    (differentiates_and_branches, {}, ["tracked", "plans"], 3),
    (has_sides_that_differ, {}, ["plans", "plans"], 3),
    (appends, {}, ["plans", "plans"], 3),
    (picks, {}, ["plans", "plans", "plans"], 4),
    (asks_its_size, SIZES, ["plans"], 2),
]


class Record:
    """The attempts that the loop has made, and those that were captured."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.made: list[Attempt] = []
        self.captured: list[Attempt] = []
        make, init = driver._make_attempt, driver.Capture.__init__

        def note_made(request: Any, attempt: Attempt) -> Any:
            self.made.append(attempt)
            return make(request, attempt)

        def note_captured(capture: Any, request: Any, attempt: Attempt) -> None:
            self.captured.append(attempt)
            init(capture, request, attempt)

        patch.setattr(driver, "_make_attempt", note_made)
        patch.setattr(driver.Capture, "__init__", note_captured)

    def list_changes(self) -> list[str]:
        """What each attempt has otherwise than the one before."""
        pairs = zip(self.made, self.made[1:], strict=False)
        return [",".join(_differing(*pair)) for pair in pairs]

    def list_looks(self) -> list[str]:
        """What is otherwise in captures whose programs are only compared."""
        looks = [each for each in self.captured if each not in self.made]
        return [",".join(_differing(self.made[-1], each)) for each in looks]


def _differing(one: Attempt, other: Attempt) -> list[str]:
    names = [name for name in Attempt._fields if name != "asked"]  # a log, in each of them
    return [name for name in names if getattr(one, name) != getattr(other, name)]


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Record:
    return Record(monkeypatch)


@pytest.mark.parametrize(("function", "given", "changes", "captures"), KINDS)
def test_the_next_attempt(
    record: Record,
    function: Callable[..., Any],
    given: dict[str, Any],
    changes: list[str],
    captures: int,
) -> None:
    program = lostwax.export(function, (X,), **given)
    assert record.list_changes() == changes
    assert len(record.captured) == captures
    assert record.list_looks() == []
    for x in (X,) if "dynamic_shapes" not in given else (X, X[:1].repeat(5, 1)):
        torch.testing.assert_close(program.module()(x), function(x))


def test_a_branch_on_a_size_that_the_example_decides(record: Record) -> None:
    with pytest.raises(ConstraintViolationError, match="both ways were not kept"):
        lostwax.export(returns_other_types, (X,), **SIZES)
    assert record.list_changes() == ["plans", "plans", "plans", "plans", "settled"]


def test_declarations_that_do_not_hold(record: Record) -> None:
    def forward(x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x + 1
        return x.reshape(2, 3)

    lostwax.draft_export(forward, (X,), **ROWS)
    assert record.list_changes() == ["plans", "spec"]
    record.made.clear()
    lostwax.report(forward, (X,), **ROWS)
    assert record.list_changes() == ["plans", "spec,plans", "plans"]


def adds(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def asks_whether_one(x: Tensor, y: Tensor) -> Tensor:
    return x + y if x is y else y + x


@pytest.mark.parametrize(
    ("function", "args", "looks"),
    [
        (adds, (X, X), ["apart"]),
        (asks_whether_one, (X, X.clone()), ["joined"]),
    ],
)
def test_tensors_that_are_one_or_several(
    record: Record, function: Any, args: Any, looks: list[str]
) -> None:
    lostwax.export(function, args)
    assert record.list_changes() == []
    assert record.list_looks() == looks


def test_tensors_that_need_not_agree(record: Record) -> None:
    rows = {0: Dim("rows", min=1, max=64)}
    lostwax.export(lambda x, y: (x + 1, y + 1), (X, X), dynamic_shapes=(rows, rows))
    assert record.list_looks() == ["apart", "apart,agreed"]


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(()))
        self.count = 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.total += 1
        return branches(x) + self.total


@pytest.mark.filterwarnings("ignore")
def test_the_next_call(record: Record) -> None:
    lostwax.export(Counts(), (X,))
    assert record.list_changes() == ["plans"]
    assert record.list_looks() == []
    assert len(record.captured) == 5  # one stopped, the program, three of later calls


# ---------------------------------------------------------------- what the user's code cannot catch


def falls_back(x: Tensor) -> Tensor:
    try:
        return torch.autograd.grad((x**2).sum(), x)[0]
    except RuntimeError:
        return x * 0


def falls_back_from_all(x: Tensor) -> Tensor:
    try:
        return torch.autograd.grad((x**2).sum(), x)[0]
    except:  # noqa: E722
        return x * 0


def raises_another(x: Tensor) -> Tensor:
    try:
        return torch.autograd.grad((x**2).sum(), x)[0]
    except BaseException:
        raise ValueError("mine") from None


def falls_back_rightly(x: Tensor) -> Tensor:
    try:
        return torch.autograd.grad((x.detach() ** 2).sum(), x)[0]
    except RuntimeError:
        return x * 0


def falls_back_from_sides(x: Tensor) -> Any:
    try:
        y: Any = x
        if x.sum() > 0:
            y = {1}
    except:  # noqa: E722
        y = x * 3
    return y


@pytest.mark.parametrize(
    "function",
    [
        falls_back,
        falls_back_from_all,
        raises_another,
        falls_back_rightly,
    ],
)
def test_what_stops_an_attempt_is_not_for_the_user_to_catch(function: Any) -> None:
    x = X.clone().requires_grad_()
    program = lostwax.export(function, (x,))
    for each in (x, (-X).requires_grad_()):
        torch.testing.assert_close(program.module()(each), function(each))


def test_sides_that_differ_are_refused_where_all_is_caught() -> None:
    with pytest.raises(CaptureError, match="the two sides of an `if` on data do not agree: y is"):
        lostwax.export(falls_back_from_sides, (X,))


def test_an_export_within_a_module_restarts_alone(record: Record) -> None:
    def forward(x: Tensor) -> Tensor:
        lostwax.export(marks_its_own, (torch.ones(3),))
        return x + 1

    lostwax.export(forward, (X,))
    assert [each.tracked for each in record.made] == [False, False, True]


def test_a_refusal_after_attempts_has_no_other_cause(record: Record) -> None:
    def forward(x: Tensor) -> Any:
        return x + 1 if x.sum() > 0 else {1}

    with pytest.raises(CaptureError, match="do not agree") as raised:
        lostwax.export(forward, (X,))
    assert raised.value.__cause__ is None
