"""Python's `if`, `while`, `for`, `break`, `continue` and early returns on data, against eager."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax.errors import CaptureError, DataDependentError
from tests.fresh import run_python

INPUTS = [torch.ones(3), -torch.ones(3), torch.full((3,), 3.0), torch.full((3,), 9.0)]


def one_or_the_other(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x + 1
    else:
        y = x * 2
    return y


def early_returns(x: Tensor) -> Tensor:
    if x.sum() > 5:
        return x + 1
    z = x.cos()
    if z.sum() > 1:
        return z
    return z - 1


def numbers_and_lists(x: Tensor) -> Tensor:
    out = []
    if x.sum() > 0:
        out.append(x)
        n = 1
    else:
        out.append(x + 1)
        n = 2
    return out[0] * n


def words_decide_later(x: Tensor) -> Tensor:
    kind = "a" if x.ndim == 2 else "b"
    if x.sum() > 0:
        kind = "c"
    if kind == "c":
        return x + 1
    return x - 1


def writes_in_place(x: Tensor) -> Tensor:
    x = x.clone()
    if x.sum() > 0:
        x.add_(1)
    else:
        x[0] = 5
    return x


def a_loop_is_left(x: Tensor) -> Tensor:
    for _ in range(5):
        if x.sum() > 10:
            break
        x = x + 1
    else:
        x = x * 7
    return x


def a_loop_returns(x: Tensor) -> Tensor:
    for i in range(4):
        if x.sum() > 10:
            return x * 100
        if x.sum() < -2:
            x = x + 5
            continue
        x = x + i
    return x


def repeats(x: Tensor) -> tuple[Tensor, int]:
    i = 0
    while x.sum() < 100:
        x = x + 3
        i += 1
    return x, i


def counts(x: Tensor) -> Tensor:
    s = torch.zeros(3)
    for i in range(x.sum().abs().to(torch.int64)):
        s = s + i
    return s


def until_it_breaks(x: Tensor) -> Tensor:
    while True:
        x = x + 1
        if x.sum() > 20:
            break
    return x


def converges(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    last = [x, x]
    error: Any = float("inf")
    while error > 1e-3:
        new = x.cos()
        error = (new - x).abs().max()
        x = new
        last[0] = x
    return x, error, last[0]


def under_no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        if x.sum() > 0:
            return x * 3
    return x - 3


def many_exits(x: Tensor) -> Tensor:
    if x[0] > 8:
        return x + 1
    if x[0] > 7:
        return x + 2
    if x[0] > 6:
        return x + 3
    if x[0] > 5:
        return x + 4
    if x[0] > 4:
        return x + 5
    if x[0] > 3:
        return x + 6
    if x[0] > 2:
        return x + 7
    if x[0] > 1:
        return x + 8
    if x[0] > 0:
        return x + 9
    if x[0] > -2:
        return x + 10
    return x


def may_not_run_once(x: Tensor) -> Tensor:
    start = x.clone()
    y = start
    while y.sum() < 5:
        y = y + 1
    y.mul_(2)
    return y + start


def names_like_those_of_hooks(x: Tensor) -> tuple[Tensor, ...]:
    value, values, choice, loop, over, error, test, result = x, [x, x], x, x, x, x, x, x
    if x.sum() > 0:
        value, values, choice, loop = x + 1, [x + 2, x], x + 3, x + 4
    else:
        over, error, test, result = x + 5, x + 6, x + 7, x + 8
    while value.sum() < 8:
        value, error = value + values[0].abs() + 1, error + 1
        values[0], values[1] = values[1], values[0]
    return value, values[0], choice, loop, over, error, test, result


def a_ternary(x: Tensor) -> Tensor:
    return x.clone() + (x * 2 if x.sum() > 4 else x.cos())


def words_of_a_ternary(x: Tensor) -> Tensor:
    kind = "a" if x.sum() > 0 else "b"
    return x + (1 if kind == "a" else 2)


def both_and_either(x: Tensor) -> Tensor:
    if (x.sum() > 0 and x[0] < 5) or not x[1] > -2:
        return x + 1
    return x - 1


def a_chain(x: Tensor) -> Tensor:
    if 0 < x.sum() < 10 and x.ndim == 1:
        return x + 1
    return x - 1


def tolerance_and_count(x: Tensor) -> Any:
    err, i, tol = x.abs().max(), 0, 0.5
    while err > tol and i < 3:
        x, i = x / 2, i + 1
        err = x.abs().max()
    return x, i


def until_not(x: Tensor) -> Any:
    n = 0
    while not (x.sum() > 20 or n >= 5):
        x, n = x + 1, n + 1
    return x, n


def questions_of_all(x: Tensor) -> Tensor:
    found = any(t > 2 for t in x)
    signs = [t > 0 for t in x]
    positive = all(signs)
    return x + (1 if found else 2) + (4 if not positive else 8)


def the_largest(x: Tensor) -> Tensor:
    best = x[0]
    for t in x[1:]:
        best = max(best, t * 2)
    return best - min(x[0], x[1] - 1)


def elements_by_sign(x: Tensor) -> Any:
    return {i: [t + 1 if t > 0 else t - 1 for t in (y, -y)] for i, y in enumerate(x)}


def numbers_of_tensors(x: Tensor) -> Tensor:
    flag, n = bool(x.sum() > 0), int(x.sum())
    return x + int(flag) + n + float(x[0])


def some_truth(x: Tensor) -> Tensor:
    y = x.sum() > 0 or x[0] < -5
    return x + y


def changed_where_it_lies(x: Tensor) -> Tensor:
    parts = [x.clone(), x]
    parts[0 if x.ndim else 1] += 1 if x.sum() > 0 else 2
    return parts[0] + parts[1]


def sizes_in_lists(x: Tensor) -> Tensor:
    y = x[x > 0]
    if list(y.shape) == [x.shape[0]] or y.shape != (len(y),):
        return x * 2
    if len(y) in (0, 1):
        return x - 1
    return x + 1 if (len(y), 3) not in [(2, 4), (2, 3)] and [y.shape] == [(len(y),)] else x * 3


def writes_in_a_loop(x: Tensor) -> tuple[Tensor, ...]:
    steps = torch.zeros((), dtype=torch.int64)
    alias, table = steps, x.clone()
    rows = table[1:]
    while x.sum() < 10:
        x = x + 1
        steps += 1
        table[0] = table[0] + alias
        rows.mul_(2)
    return x, steps, alias, table, rows + table.sum()


def numbers_and_data_end_it(x: Tensor) -> tuple[Tensor, int]:
    n = 0
    while n < 6:
        if x.sum() > 15:
            break
        if x.sum() > 12:
            return x, -n
        x = x + 1
        n += 1
    return x, n


def truths_of_numbers(x: Tensor) -> tuple[Tensor, bool]:
    n = x.sum().abs().to(torch.int64).item()
    is_small = False
    if x.sum() > 0:
        is_small = n < 4
    else:
        is_small = n != 3
    while n:
        n -= 1
        x = x + n
    return x, is_small


def floats_are_numbers(x: Tensor) -> tuple[Tensor, float, float]:
    rate, same = 0.1, 0.5
    for _ in range(3):
        if x.sum() > 10:
            rate, same = rate / 2, 0.5
        x = x + rate
    if rate < 0.05:
        x = x * 2
    return x * rate, rate, same


def floats_go_through_loops(x: Tensor) -> tuple[Tensor, list[float]]:
    error, rates = float("inf"), [0.5, 1.0]
    while error > 1e-2:
        new = x.cos() * rates[1]
        error = (new - x).abs().max().item()
        rates[0] = rates[0] * 0.9
        if error < 0.1:
            rates[1] = rates[1] - 0.01 * rates[0]
        x = new
    return x, [error, *rates]


def leaves_loops_over_tensors(x: Tensor) -> tuple[Tensor, int]:
    total, n = torch.zeros(()), 0
    for value in x:
        if total > 5:
            break
        total = total + value
    for i, (value, other) in enumerate(zip(x, [1, 2, 3], strict=True), start=1):
        if value > 5 - other:
            n = i
            break
    return total, n


PROGRAMS = [
    one_or_the_other, early_returns, numbers_and_lists, words_decide_later, writes_in_place,
    a_loop_is_left, a_loop_returns, repeats, counts, until_it_breaks, converges, under_no_grad,
    many_exits, names_like_those_of_hooks, a_ternary, words_of_a_ternary, both_and_either, a_chain,
    tolerance_and_count, until_not, questions_of_all, the_largest, elements_by_sign,
    numbers_of_tensors, some_truth, changed_where_it_lies, sizes_in_lists,
    writes_in_a_loop, numbers_and_data_end_it,
    truths_of_numbers, floats_are_numbers, floats_go_through_loops, leaves_loops_over_tensors,
]  # fmt: skip


@pytest.mark.parametrize("function", PROGRAMS)
def test_it_does_what_eager_does(function: Any) -> None:
    run = lostwax.export(function, (INPUTS[0],)).module()
    for each in INPUTS:
        torch.testing.assert_close(run(each), function(each))


def test_sizes_in_lists_are_compared_as_python_does() -> None:
    run = lostwax.export(sizes_in_lists, (INPUTS[0],)).module()
    for signs in ([1, 1, 1], [1, 1, -1], [-1, 1, -1], [-1, -1, -1]):
        x = torch.tensor(signs).float()
        torch.testing.assert_close(run(x), sizes_in_lists(x))


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(()))
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.n = self.n + 1
            x = self.linear(x)
        else:
            self.n += 2
        return x + self.n


def test_buffers_are_kept_whichever_way_it_goes() -> None:
    module = Counts()
    run = lostwax.export(module, (INPUTS[0],)).module()
    for each in (*INPUTS, *INPUTS):
        torch.testing.assert_close(run(each), module(each))


class CountsInPython(nn.Module):
    def __init__(self, n: float) -> None:
        super().__init__()
        self.n = n

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.n += 1
        return x + self.n


@pytest.mark.parametrize("start", [0, 0.5])
def test_a_number_that_data_decide_and_the_next_call_finds_is_refused(start: float) -> None:
    with pytest.raises(CaptureError, match="data decide what is left in n, a number") as error:
        lostwax.export(CountsInPython(start), (INPUTS[0],))
    assert "if x.sum() > 0" in str(error.value)
    assert "register_buffer" in str(error.value)


def test_a_dimension_may_vary() -> None:
    dims = {"x": {0: lostwax.Dim("n")}}
    run = lostwax.export(early_returns, (torch.ones(3),), dynamic_shapes=dims).module()
    for n in (1, 2, 6):
        for each in (torch.ones(n), -torch.ones(n)):
            torch.testing.assert_close(run(each), early_returns(each))


def test_the_functions_are_as_they_were() -> None:
    code = early_returns.__code__
    lostwax.export(early_returns, (INPUTS[0],))
    assert early_returns.__code__ is code


def test_a_side_that_raises_becomes_an_assertion() -> None:
    def checked(x: Tensor) -> Tensor:
        if x.sum() > 5:
            for each in (1, 2):
                if each == 2:
                    raise ValueError(f"too much: {len(x)}")
        return x + 1

    run = lostwax.export(checked, (INPUTS[0],)).module()
    torch.testing.assert_close(run(INPUTS[0]), checked(INPUTS[0]))
    with pytest.raises(RuntimeError, match="too much: 3"):
        run(INPUTS[3])


def test_files_keep_it(tmp_path: Any) -> None:
    for function in (
        *(a_loop_returns, repeats, converges, numbers_and_data_end_it),
        *(floats_are_numbers, floats_go_through_loops),
    ):
        file = tmp_path / "program.pt2"
        lostwax.save(lostwax.export(function, (INPUTS[0],)), file)
        run, peer = lostwax.load(file).module(), torch.export.load(file).module()
        for each in INPUTS:
            torch.testing.assert_close(run(each), function(each))
            torch.testing.assert_close(peer(each), function(each))


# --------------------------------------------------------------------------------------- refusals


def raises_in_a_loop(x: Tensor) -> Tensor:
    while x.sum() < 100:
        x = x * 2
        if x.shape[0] == 3:
            raise ValueError("no")
    return x


def grows(x: Tensor) -> list[Tensor]:
    found = [x]
    while x.sum() < 100:
        x = x + 1
        found.append(x)
    return found


def fills_an_array(x: Tensor) -> Tensor:
    found = np.zeros(2)
    if x.sum() > 0:
        found[0] = 1
    return x + float(found.sum())


def filters(x: Tensor) -> Any:
    return [t for t in x if t > 0]


def asks_by_writing(x: Tensor) -> Tensor:
    n = torch.zeros(())
    while n.add_(1) < x.sum():
        x = x - 1
    return x + n


def goes_on_with_an_iterator(x: Tensor) -> Tensor:
    items = enumerate([1, 2, 3])
    for _, value in items:
        if x.sum() > value:
            break
    return x + sum(value for _, value in items)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (asks_by_writing, "the condition of a loop on data changes something"),
        (goes_on_with_an_iterator, "a loop over an iterator is left where data say so"),
        (raises_in_a_loop, "a loop on data raises ValueError: no"),
        (grows, "the module returns a list to which a loop appends"),
        (
            fills_an_array,
            "the True side of an `if` on data changes found, and that cannot be undone",
        ),
        (may_not_run_once, "a tensor is written to, and `while y.sum.. < 5:`, if it does not run"),
        (filters, "the module returns a list to which a loop appends"),
    ],
)
def test_what_cannot_be_one_program_is_refused_with_its_line(function: Any, text: str) -> None:
    with pytest.raises(CaptureError, match=text) as error:
        lostwax.export(function, (INPUTS[0],))
    assert "test_flow.py:" in str(error.value)
    assert "instead:" in str(error.value)


def test_it_can_be_refused_altogether() -> None:
    with pytest.raises(DataDependentError, match="cannot decide"):
        lostwax.export(early_returns, (INPUTS[0],), control_flow="refuse")
    with pytest.raises(ValueError, match='takes "capture", "sizes" or "refuse"'):
        lostwax.export(early_returns, (INPUTS[0],), control_flow="both")  # type: ignore[arg-type]


TABLE: dict[str, Any] = {"deep": [{"calls": 1}]}


def test_each_capture_finds_what_the_first_one_found() -> None:
    def counts_deep_inside(x: Tensor) -> Tensor:
        TABLE["deep"][0]["calls"] += 1
        y = x * TABLE["deep"][0]["calls"]
        return y if x.sum() > 0 else x

    with pytest.warns(UserWarning, match=r"sets TABLE\['deep'\]\[0\]\['calls'\], .* from 1 to 2"):
        program = lostwax.export(counts_deep_inside, (INPUTS[0],)).module()
    assert TABLE == {"deep": [{"calls": 1}]}
    for each in (INPUTS[0], -INPUTS[0]):
        TABLE["deep"][0]["calls"] = 1
        torch.testing.assert_close(program(each), counts_deep_inside(each))
    TABLE["deep"][0]["calls"] = 1


def test_which_tensor_it_is_depends_on_data() -> None:
    def changed(x: torch.Tensor) -> torch.Tensor:
        y = x
        if x.sum() > 0:
            y = x * 2
        return y + 1 if y is not x else y

    def found(x: torch.Tensor) -> torch.Tensor:
        a, b = x + 1, x + 2
        c = a if x.sum() > 0 else b
        return x * 2 if any(c is each for each in (a, b)) else x

    def told(x: torch.Tensor) -> torch.Tensor:
        y, is_new = x, False
        if x.sum() > 0:
            y, is_new = x * 2, True
        other = y
        return y + 1 if is_new and other is y and y is not None and y is not x.shape else y

    for call in (changed, found, told):
        program = lostwax.export(call, (torch.ones(2),)).module()
        for x in (torch.ones(2), -torch.ones(2)):
            torch.testing.assert_close(program(x), call(x))


class _Failing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is not None:
            raise KeyError("over it")


def test_an_exception_that_is_raised_over_the_question() -> None:
    def leave(x: Tensor) -> Tensor:
        try:
            y = x * 2 if x.sum() > 0 else x
        finally:
            y = y + 1
        return y

    def handle(x: Tensor) -> Tensor:
        try:
            y = x * 2 if x.sum() > 0 else x
        except Exception as error:
            raise KeyError("over it") from error
        return y

    def end(x: Tensor) -> Tensor:
        with _Failing():
            y = x * 2 if x.sum() > 0 else x
        return y + 1

    for call in (leave, handle, end):
        program = lostwax.export(call, (INPUTS[0],)).module()
        for x in INPUTS:
            torch.testing.assert_close(program(x), call(x))
        with pytest.raises(DataDependentError):
            lostwax.export(call, (INPUTS[0],), control_flow="refuse")


def test_a_file_that_has_changed_is_not_the_source(tmp_path: Path) -> None:
    """The program would compute with what is in the file now, not with what runs."""
    text = "def forward(x):\n    if x.sum() > 0:\n        return x * {}\n    return x\n"
    file, old, new = tmp_path / "changed.py", dict[str, Any](), dict[str, Any]()
    file.write_text(text.format(2))
    exec(compile(file.read_text(), str(file), "exec"), old)
    file.write_text(text.format(3))
    with pytest.raises(DataDependentError) as caught:
        lostwax.export(old["forward"], (torch.ones(2),))
    assert "its source is not the one that runs" in str(caught.value.__notes__)
    exec(compile(file.read_text(), str(file), "exec"), new)
    with pytest.raises(DataDependentError):
        lostwax.export(old["forward"], (torch.ones(2),))
    program = lostwax.export(new["forward"], (torch.ones(2),)).module()
    assert program(torch.ones(2)).equal(torch.full((2,), 3.0))


def test_statements_may_share_lines(tmp_path: Path) -> None:
    """Only those that matter are compiled again: cut out of the file by their lines."""
    text = """# -*- coding: utf-8 -*-
ONE = [1,
       2]; import math as m; TWO = 2
é = m.pi; \\
from math import floor


def decorate(function): return function
@decorate
# between
@decorate
def forward(x):
    'a' '''
global text'''
    if x.sum() > m.floor(0.5): return x * é
    y = 2; return x * floor(ONE[1]) * (y if x.sum() < -5 else TWO + 1)
"""
    file, names = tmp_path / "sharing.py", dict[str, Any]()
    file.write_text(text)
    exec(compile(text, str(file), "exec"), names)
    program = lostwax.export(names["forward"], (torch.ones(2),)).module()
    for x in (torch.ones(2), -torch.ones(2), torch.full((2,), -9.0)):
        torch.testing.assert_close(program(x), names["forward"](x))


COLLECTORS = {
    "what is frozen is not seen": "gc.collect(), gc.freeze()",
    # Python 3.12 begins with frozen objects: to thaw and freeze would freeze all that is there.
    "Python has frozen some": "gc.get_freeze_count, gc.freeze = lambda: 375, sys.exit",
}


@pytest.mark.parametrize("what", COLLECTORS)
def test_functions_that_the_collector_does_not_see(what: str) -> None:
    """In a process of its own: in this one all functions are frozen, and known (isolation.py)."""
    code = f"""
import gc, sys
import torch
import lostwax
from tests.capture.flow.test_flow import ask_once
{COLLECTORS[what]}
before = gc.get_freeze_count()
program = lostwax.export(ask_once, (torch.ones(2),)).module()
assert gc.get_freeze_count() >= before > 300
assert program(-torch.ones(2)).equal(torch.ones(2))
"""
    run_python(code, ignore_warnings=True)


def ask_once(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x * 2
    return -x


def test_a_tensor_that_a_loop_makes_longer() -> None:
    def doubled(x: Tensor) -> Tensor:
        while x.sum() < 100:
            x = torch.cat([x, x])
        return x

    run = lostwax.export(doubled, (torch.ones(2),)).module()
    for x in (torch.ones(2), torch.tensor([90.0, 1.0]), torch.tensor([200.0, 1.0])):
        torch.testing.assert_close(run(x), doubled(x))
