"""What control flow cannot be: each refusal has the lines, the reason, and a way out that works."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._higher_order_ops as operators
from torch import nn

from lostwax import Dim, export_joint
from lostwax.capture import export
from lostwax.errors import CaptureError
from tests.capture.control.compare import Small, agree, exported

X = torch.arange(12.0).view(4, 3) / 7 + 0.1


def line(function: Callable[..., Any], text: str) -> str:
    """Where a text stands in the source of this file."""
    with open(__file__) as source:
        lines = source.read().splitlines()
    start = function.__code__.co_firstlineno - 1
    number = next(i for i, each in enumerate(lines[start:], start + 1) if text in each)
    return f"tests/capture/control/test_errors.py:{number} "


# --------------------------------------------------------------------------- branches that disagree


def dtypes(self: Any, x: Any) -> Any:
    def true(x: Any) -> Any:
        return x.sin()

    def false(x: Any) -> Any:
        return x.to(torch.float64)

    return torch.cond(x.sum() > 0, true, false, (x,))


def ranks(self: Any, x: Any) -> Any:
    def true(x: Any) -> Any:
        return x.sin()

    def false(x: Any) -> Any:
        return x.cos()[0]

    return torch.cond(x.sum() > 0, true, false, (x,))


@pytest.mark.parametrize(
    ("program", "shown", "lines", "fix"),
    [
        (
            dtypes,
            ["float32[4, 3]", "float64[4, 3]"],
            ["x.sin()", "x.to(torch.float64)"],
            "y.to(x.dtype)",
        ),
        (ranks, ["float32[4, 3]", "float32[3]"], ["x.sin()", "x.cos()[0]"], "y.unsqueeze(0)"),
    ],
    ids=["dtypes", "ranks"],
)
def test_branches_disagree(program: Any, shown: Any, lines: Any, fix: str) -> None:
    with pytest.raises(CaptureError, match=r"the branches of torch.cond do not agree") as error:
        exported(program, (X,))
    text = str(error.value)
    for type_shown, code in zip(shown, lines, strict=True):
        assert type_shown in text
        assert line(program, f"return {code}") in text
    assert line(program, "return torch.cond(") in text
    assert fix in text


def transposed(x: Any, fix: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda x: fix(x.sin().t()), lambda x: x.t().contiguous(), (x,))


def part(x: Any, fix: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda x: fix(x[:, :2]), lambda x: x[:, :2] * 2, (x,))


def part_of_places(x: Any, fix: Any) -> Any:
    def true(x: Any) -> Any:
        return fix(x.nonzero())

    return torch.cond(x.sum() > 0, true, lambda x: fix((x < 0).nonzero()[:1]), (x,))


@pytest.mark.parametrize(
    ("program", "strides"),
    [(transposed, ("1, 3", "4, 1")), (part, ("3, 1", "2, 1")), (part_of_places, ("1, u", "1, u"))],
)
def test_layouts_disagree_and_the_fix(program: Any, strides: Any) -> None:
    """How the result lies in memory would depend on data: eager's strides are those of one."""
    with pytest.raises(CaptureError, match=r"the branches of torch.cond do not agree") as error:
        exported(lambda self, x: program(x, lambda y: y), (X,))
    assert all(f"with strides [{each}" in str(error.value) for each in strides)
    assert "instead: let both lie alike in memory, y.contiguous()" in str(error.value)
    assert line(program, "return torch.cond(") in str(error.value)
    agree(lambda self, x: program(x, lambda y: y.contiguous()), (X,), (-X,))


def test_structures_disagree() -> None:
    def program(self: Any, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: (x, x + 1), lambda x: [x, x + 1], (x,))

    with pytest.raises(CaptureError) as error:
        exported(program, (X,))
    assert "the true branch returns (…, …)\n    the false branch returns […, …]" in str(error.value)
    assert line(program, "return torch.cond(") in str(error.value)


def test_numbers_disagree_and_the_fix() -> None:
    def program(self: Any, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: (x + 1, 0.5), lambda x: (x - 1, 1.5), (x,))

    with pytest.raises(CaptureError, match=r"in the result\[1\]") as error:
        exported(program, (X,))
    assert "the true branch returns 0.5" in str(error.value)
    assert "instead: return tensors, torch.full((), number)" in str(error.value)

    def fixed(self: Any, x: Any) -> Any:
        return torch.cond(
            x.sum() > 0,
            lambda x: (x + 1, torch.full((), 0.5)),
            lambda x: (x - 1, torch.full((), 1.5)),
            (x,),
        )

    agree(fixed, (X,), (-X,))


def test_zeros_of_other_signs_disagree() -> None:
    def program(self: Any, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: (x + 1, 0.0), lambda x: (x - 1, -0.0), (x,))

    with pytest.raises(CaptureError, match=r"in the result\[1\]"):
        exported(program, (X,))


# --------------------------------------------------------------------------------------- predicates


@pytest.mark.parametrize(
    ("predicate", "text"),
    [
        (lambda x: x.sum(), "a tensor of torch.float32.*compare it"),
        (lambda x: x > 0, r"a tensor of size \(4, 3\).*\(x > 0\).any\(\)"),
        (lambda x: None, "None, of class NoneType.*dtype bool"),
        (lambda x: "yes", "'yes', of class str"),
    ],
)
def test_a_predicate_is_one_boolean(predicate: Any, text: str) -> None:
    def program(self: Any, x: Any) -> Any:
        return torch.cond(predicate(x), torch.sin, torch.cos, (x,))

    with pytest.raises(CaptureError, match=f"(?s)the predicate of torch.cond is {text}") as error:
        exported(program, (X,))
    assert line(program, "return torch.cond(") in str(error.value)


# ------------------------------------------------------------------- what functions leave in Python


def counts(self: Any, x: Any) -> Any:
    def true(x: Any) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        return x * self.calls

    return torch.cond(x.sum() > 0, true, lambda x: x.cos(), (x,))


def appends(self: Any, x: Any) -> Any:
    seen: list[Any] = []

    def true(x: Any) -> Any:
        seen.append(x.sin())
        return x + 1

    y = torch.cond(x.sum() > 0, true, lambda x: x - 1, (x,))
    return y, seen


def sets_variable(self: Any, x: Any) -> Any:
    n = 0

    def body(i: Any, y: Any) -> Any:
        nonlocal n
        n += 1
        return i + 1, y * n

    return operators.while_loop(lambda i, y: i < 3, body, (torch.zeros(()), x))


def sets_item(self: Any, x: Any) -> Any:
    found: dict[str, Any] = {}

    def body(row: Any) -> Any:
        found["row"] = row
        return row * 2

    return operators.map(body, x)


TOTAL = [0]


def changes_global(self: Any, x: Any) -> Any:
    def true(x: Any) -> Any:
        TOTAL[0] += 1
        return x + TOTAL[0]

    return torch.cond(x.sum() > 0, true, lambda x: x - 1, (x,))


class Counter:
    def __init__(self) -> None:
        self.n = 0


def changes_object(self: Any, x: Any) -> Any:
    counter = Counter()

    def true(x: Any) -> Any:
        counter.n += 1
        return x + counter.n

    return torch.cond(x.sum() > 0, true, lambda x: x - 1, (x,))


COUNTER = Counter()


def changes_global_object(self: Any, x: Any) -> Any:
    def true(x: Any) -> Any:
        COUNTER.n += 1
        return x + COUNTER.n

    return torch.cond(x.sum() > 0, true, lambda x: x - 1, (x,))


class Shared:
    n = 0

    @classmethod
    def count(cls) -> int:
        cls.n += 1
        return cls.n


def changes_class(self: Any, x: Any) -> Any:
    def true(x: Any) -> Any:
        return x + Shared.count()

    return torch.cond(x.sum() > 0, true, lambda x: x - 1, (x,))


def takes_from_iterator(self: Any, x: Any) -> Any:
    numbers = iter([1, 2, 3])
    y = torch.cond(x.sum() > 0, lambda x: x + next(numbers), lambda x: x - 1, (x,))
    return y + next(numbers)


NUMBERS = itertools.count()


def takes_from_global_iterator(self: Any, x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x + next(NUMBERS), lambda x: x - 1, (x,))


def hooks(self: Any, x: Any) -> Any:
    def true(x: Any) -> Any:
        self.linear.register_forward_hook(lambda module, args, out: out * 2)
        return x + 1

    return self.linear(torch.cond(x.sum() > 0, true, lambda x: x - 1, (x,)))


def changes_deep(self: Any, x: Any) -> Any:
    found = {"a": ([0],)}

    def add() -> None:
        found["a"][0][0] += 1

    run = {"add": add}

    def true(x: Any) -> Any:
        run["add"]()
        return x + 1

    return torch.cond(x.sum() > 0, true, lambda x: x - 1, (x,))


def changes_default(self: Any, x: Any) -> Any:
    total = [0]

    def true(x: Any, given: Any = total) -> Any:
        given[0] += 1
        return x + 1

    return torch.cond(x.sum() > 0, true, lambda x: x - 1, (x,)) + total[0]


@pytest.mark.parametrize(
    ("program", "name", "code"),
    [
        (changes_deep, "found", ""),
        (changes_default, "given", ""),
        (changes_global_object, "COUNTER", ""),
        (changes_class, "Shared", ""),
        (takes_from_iterator, "numbers", ""),
        (takes_from_global_iterator, "NUMBERS", ""),
        (hooks, "something that a module holds", ""),
        (counts, "calls", "self.calls = getattr"),
        (appends, "seen", "seen.append(x.sin())"),
        (sets_variable, "n", "n += 1"),
        (sets_item, "found", 'found["row"] = row'),
        (changes_global, "TOTAL", "TOTAL[0] += 1"),
        (changes_object, "counter", ""),
    ],
)
def test_side_effects_are_refused(program: Any, name: str, code: str) -> None:
    module = Small(program)
    with pytest.raises(CaptureError, match=f"changes {name}, which is not its own") as error:
        export(module, (X,))
    assert not hasattr(module, "calls")
    assert TOTAL == [0]
    if code:
        assert line(program, code) in str(error.value)


def test_what_a_branch_raises_is_not_caught_outside() -> None:
    def true(x: Any) -> Any:
        raise ValueError("no")

    def program(self: Any, x: Any) -> Any:
        try:
            return torch.cond(x.sum() > 0, true, lambda x: x - 1, (x,))
        except ValueError:
            return x * 2

    with pytest.raises(CaptureError, match=r"the true branch of torch.cond raises ValueError"):
        exported(program, (X,))


def test_what_cpp_keeps_of_a_branch_is_refused() -> None:
    def program(self: Any, x: Any) -> Any:
        kept = torch.futures.Future[Any]()

        def true(x: Any) -> Any:
            kept.set_result(x.sin())
            return x + 1

        return torch.cond(x.sum() > 0, true, lambda x: x - 1, (x,)) + kept.wait()

    with pytest.raises(CaptureError, match=r"changes kept \(or calls a method of it, which may\)"):
        exported(program, (X,))


def test_a_tensor_of_a_branch_is_used_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """What loggers keep is not looked into; a branch's tensors are known all the same."""
    monkeypatch.setattr(logging.root, "kept", None, raising=False)

    def program(self: Any, x: Any) -> Any:
        def true(x: Any) -> Any:
            y = x.sin()
            logging.root.kept = y  # type: ignore[attr-defined]
            return y + 1

        y = torch.cond(x.sum() > 0, true, lambda x: x - 1, (x,))
        return y + logging.root.kept

    with pytest.raises(CaptureError, match=r"a tensor of the true branch of torch.cond") as error:
        exported(program, (X,))
    assert line(program, "return y + logging.root.kept") in str(error.value)
    assert line(program, "y = x.sin()") in str(error.value)


def _written_after(self: Any, x: Any, write: Any, copy: bool) -> Any:
    y = x + 1

    def true(y: Any) -> Any:
        return (y.clone() if copy else y,)

    (z,) = torch.ops.higher_order.cond(x.sum() > 0, true, lambda y: (y.sin(),), (y,))
    write(y, z)
    return y, z


@pytest.mark.parametrize("write", [lambda y, z: y.add_(1), lambda y, z: z.add_(1)])
def test_what_a_branch_returns_as_it_is_may_not_be_written_to(write: Any) -> None:
    """Eager returns that tensor itself: a write to one would show in the other."""
    with pytest.raises(CaptureError, match=r"the true branch of torch.cond returns it as it is"):
        exported(lambda self, x: _written_after(self, x, write, False), (X,))
    agree(lambda self, x: _written_after(self, x, write, True), (X,), (-X,))


# -------------------------------------------------------------------------------------------- loops


def carried_dtype(self: Any, x: Any) -> Any:
    def body(i: Any, y: Any) -> Any:
        return i + 1, y.double()

    return operators.while_loop(lambda i, y: i < 3, body, (torch.zeros(()), x))


def carried_size(self: Any, x: Any) -> Any:
    return operators.scan(lambda c, row: (c + row, row.sum()), x[0, :1], x)


@pytest.mark.parametrize(
    ("program", "was", "now", "code"),
    [
        (carried_dtype, "float32[4, 3]", "float64[4, 3]", "return i + 1, y.double()"),
        (carried_size, "float32[1]", "float32[3]", "lambda c, row"),
    ],
)
def test_what_is_handed_on_changes(program: Any, was: str, now: str, code: str) -> None:
    with pytest.raises(CaptureError, match="hands on, changes") as error:
        exported(program, (X,))
    assert f"the body gets {was}, and returns {now}, from {line(program, code)}" in str(error.value)
    assert line(program, "return operators.") in str(error.value)


def to_contiguous(start: Any, fix: Any) -> Any:
    return operators.while_loop(lambda y: y.sum() < 30, lambda y: ((y * 2).contiguous(),), (start,))


def to_transposed(start: Any, fix: Any) -> Any:
    def step(c: Any, row: Any) -> Any:
        return fix(c.t() * 2), c.sum()

    return operators.scan(step, start, torch.ones(3, 1))


@pytest.mark.parametrize(
    ("loop", "start", "text"),
    [
        (
            to_contiguous,
            lambda x: x[1:].t(),
            r"the body gets strides \[1, 3\], and returns \[3, 1\]",
        ),
        (to_transposed, lambda x: x[1:], r"the body gets strides \[3, 1\], and returns \[1, 3\]"),
        (to_contiguous, lambda x: x[:, 1], r"a part of a larger tensor.* strides are \(3,\)"),
        (to_contiguous, lambda x: x[:1].expand(2, 3), r"repeats elements.* strides are \(0, 1\)"),
    ],
)
def test_the_layout_of_what_is_handed_on_changes(loop: Any, start: Any, text: str) -> None:
    """Eager's strides would depend on the number of iterations."""
    with pytest.raises(CaptureError, match=text) as error:
        exported(lambda self, x: loop(start(x), lambda y: y), (X,))
    assert line(loop, "return operators.") in str(error.value)
    assert "instead: begin with x.contiguous()" in str(error.value)
    agree(lambda self, x: loop(start(x).contiguous(), lambda y: y.contiguous()), (X,), (X * 9,))


def test_a_loop_returns_as_many_values_as_it_is_handed() -> None:
    def program(self: Any, x: Any) -> Any:
        return operators.while_loop(lambda y, z: y.sum() < 3, lambda y, z: (y + z,), (x, x + 1))

    with pytest.raises(CaptureError, match="is handed 2 values, and returns 1") as error:
        exported(program, (X,))
    assert line(program, "return operators.") in str(error.value)


def test_writes_to_what_is_handed_on() -> None:
    def program(self: Any, x: Any) -> Any:
        def body(y: Any) -> Any:
            y.add_(1)
            return (y,)

        return operators.while_loop(lambda y: y.sum() < 30, body, (x,))

    with pytest.raises(CaptureError, match="writes to a value that it is handed") as error:
        exported(program, (X,))
    assert line(program, "y.add_(1)") in str(error.value)

    def fixed(self: Any, x: Any) -> Any:
        def body(y: Any) -> Any:
            y = y.clone()
            y.add_(1)
            return (y,)

        return operators.while_loop(lambda y: y.sum() < 30, body, (x,))

    agree(fixed, (X,), (X + 9,))


def over_its_rows(x: Any, given: Any) -> Any:
    def step(total: Any, row: Any) -> Any:
        x[1:].add_(row)
        return total + row, row * 1

    return operators.scan(step, torch.zeros(3), given)


def from_its_row(x: Any, given: Any) -> Any:
    def step(total: Any, row: Any) -> Any:
        x[0].add_(row)
        return total + row, row * 1

    return operators.scan(step, given[0], torch.ones(2, 3))


def from_it(x: Any, given: Any) -> Any:
    def body(y: Any) -> Any:
        x.add_(1)
        return (y + 1,)

    return operators.while_loop(lambda y: y.sum() < 30, body, (given,))


@pytest.mark.parametrize("loop", [over_its_rows, from_its_row, from_it])
def test_writes_to_what_the_loop_is_given(loop: Any) -> None:
    with pytest.raises(CaptureError, match=r"writes to a tensor that .* is given, too") as error:
        exported(lambda self, x: loop(x, x), (X,))
    assert line(loop, ".add_(") in str(error.value)
    agree(lambda self, x: (loop(x, x.clone()), x * 2), (X,))


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (lambda y: y.sum(), r"a tensor of torch.float32 and size \[\]"),
        (lambda y: y > 0, r"a tensor of torch.bool and size \[4, 3\]"),
        (lambda y: 3, "3"),
    ],
)
def test_the_condition_is_one_boolean(result: Any, text: str) -> None:
    def program(self: Any, x: Any) -> Any:
        return operators.while_loop(result, lambda y: (y + 1,), (x,))

    with pytest.raises(CaptureError, match=f"the condition of while_loop returns {text}") as error:
        exported(program, (X,))
    assert line(program, "return operators.") in str(error.value)


def test_the_condition_writes_nothing() -> None:
    def program(self: Any, x: Any) -> Any:
        def condition(y: Any) -> Any:
            self.total.add_(1)
            return self.total.sum() < 9

        return operators.while_loop(condition, lambda y: (y + 1,), (x,))

    with pytest.raises(CaptureError, match="the condition of while_loop writes") as error:
        exported(program, (X,))
    assert line(program, "self.total.add_(1)") in str(error.value)


def test_map_writes_nothing() -> None:
    def program(self: Any, x: Any) -> Any:
        def body(row: Any) -> Any:
            self.total.add_(row)
            return row * 2

        return operators.map(body, x)

    with pytest.raises(CaptureError, match="the body of map writes to a tensor") as error:
        exported(program, (X,))
    assert line(program, "self.total.add_(row)") in str(error.value)
    assert "instead: scan" in str(error.value)


def test_rows_of_sizes_that_depend_on_data() -> None:
    def program(self: Any, x: Any) -> Any:
        return operators.map(lambda row: row[row > 0], x)

    with pytest.raises(CaptureError, match="whose size depends on data") as error:
        exported(program, (X,))
    assert line(program, "return operators.") in str(error.value)


# ------------------------------------------------------------------------------ sizes and gradients


def test_guards_of_a_branch_do_not_leak() -> None:
    def program(self: Any, x: Any) -> Any:
        return torch.cond(
            x.sum() > 0, lambda x: x.view(2, -1).sum(0).sum(), lambda x: x.sum() * 2, (x,)
        )

    odd = torch.randn(5, 3).abs()
    found = exported(program, (X,), [{0: Dim("rows")}])
    assert not found.guards
    module = found.module()
    torch.testing.assert_close(module(-odd), -odd.sum() * 2)
    torch.testing.assert_close(module(X), X.view(2, -1).sum(0).sum())
    with pytest.raises(RuntimeError, match=r"test_errors.py"):
        module(odd)


def test_a_number_of_a_branch_is_used_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "kept", None, raising=False)

    def program(self: Any, x: Any) -> Any:
        def true(x: Any) -> Any:
            logging.root.kept = x.sum().item()  # type: ignore[attr-defined]
            return x + 1

        y = torch.cond(x.sum() > 0, true, lambda x: x - 1, (x,))
        return y * logging.root.kept

    with pytest.raises(CaptureError, match=r"a number of the true branch of torch.cond"):
        exported(program, (X,))


def test_gradients_are_enabled_inside_alone() -> None:
    def true(x: Any) -> Any:
        with torch.enable_grad():
            return x.sin()

    def program(self: Any, x: Any) -> Any:
        with torch.no_grad():
            return torch.cond(x.sum() > 0, true, lambda x: x * 2, (x,))

    with pytest.raises(CaptureError, match="enables gradients, which are disabled") as error:
        exported(program, (X.clone().requires_grad_(),))
    assert line(true, "return x.sin()") in str(error.value)

    def fixed(self: Any, x: Any) -> Any:
        return torch.cond(x.sum() > 0, true, lambda x: double(x), (x,))

    @torch.no_grad()
    def double(x: Any) -> Any:
        return x * 2

    agree(fixed, (X,), (X + 1,), gradients=True)


def test_a_joint_program_refuses_with_the_line() -> None:
    def program(self: Any, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: self.linear(x), lambda x: x * 2, (x,)).sum()

    with pytest.raises(CaptureError, match="a program that computes gradients itself") as error:
        export_joint(Small(program), (X,))
    assert line(program, "return torch.cond(") in str(error.value)


def test_preserved_modules_in_a_branch_are_refused() -> None:
    def program(self: Any, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: self.linear(x), lambda x: x * 2, (x,))

    with pytest.raises(CaptureError, match=r"linear.*inside of the true branch of torch.cond"):
        export(Small(program), (X,), preserve_module_call_signature=("linear",))


def test_a_list_made_again_is_no_side_effect() -> None:
    class Module(nn.Module):
        def __init__(self, more: int) -> None:
            super().__init__()
            self.more = more
            self.layers, self.counts = [torch.sin, torch.cos], [0]

        def forward(self, x: Any) -> Any:
            def true(x: Any) -> Any:
                self.layers = list(self.layers)
                self.counts = [*self.counts, *[0] * self.more]
                return self.layers[0](x)

            return torch.cond(x.sum() > 0, true, lambda x: x * 2, (x,))

    x = torch.rand(4, 3)
    torch.testing.assert_close(export(Module(0), (x,)).module()(-x), -x * 2)
    with pytest.raises(CaptureError, match="changes counts"):
        export(Module(1), (x,))
