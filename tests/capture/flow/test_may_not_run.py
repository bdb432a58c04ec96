"""Loops of which data decide whether they run at all: what they leave then is what eager leaves."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
import torch
from torch import Tensor

import lostwax
from tests.capture.flow.test_appending import _differentiate as differentiate

Program = Callable[[Tensor, Tensor], Any]
PROGRAMS: list[Program] = []


def program(function: Program) -> Program:
    PROGRAMS.append(function)
    return function


# ------------------------------------------------------------------- another layout before the loop


@program
def appends_beside_a_part(x: Tensor, n: Tensor) -> Any:
    found, part = [x], x[:, :2]
    for t in range(int(n)):
        found.append(x * t)
        part = part * 2
    return torch.stack(found), part


@program
def appends_beside_a_part_of_any_width(x: Tensor, n: Tensor) -> Any:
    found, part = [x], x[:, : max(min(int(n), 3), 0)]
    for t in range(int(n) + 1):
        part = part * 2
        found.append(x + t + part.flatten().shape[0])
    return torch.stack(found), part


@program
def a_side_turns_it(x: Tensor, n: Tensor) -> Any:
    x = x[:, :3]
    y = x.t() if n > 1 else x * 2
    return y + 1


@program
def a_side_turns_what_is_written_to(x: Tensor, n: Tensor) -> Any:
    x = x[:, :3]
    y = x.t() if n > 1 else x * 2
    y.reshape(-1).add_(1)  # of the one side a copy, of the other a view
    return y


# ------------------------------------------------------------------ of another kind before the loop


@program
def the_best_of_none(x: Tensor, n: Tensor) -> Any:
    best = None
    for t in range(int(n)):
        s = x[t % 3].sum()
        if best is None or s > best:
            best = s
    return torch.zeros(()) if best is None else best


@program
def adds_to_a_number(x: Tensor, n: Tensor) -> Any:
    total: Any = 0
    i = 0
    while i < n:
        i += 1
        if i % 2 == 0:
            continue
        total = total + x * i
    return x + total


@program
def adds_to_a_float(x: Tensor, n: Tensor) -> Any:
    total: Any = 0.0
    for t in range(int(n)):
        total = total + x[0, 0] * t
    return x + total


@program
def left_early_or_not(x: Tensor, n: Tensor) -> Any:
    i, out = 0, None
    while i < n:
        out = x * i if out is None else out + x
        i += 1
        if out.sum() > 50:
            break
    else:
        i = i + 100
    return (x if out is None else out), i


@program
def with_two_conditions(x: Tensor, n: Tensor) -> Any:
    i, total = 0, None
    while i < n and (x * i).sum() < 100:
        total = x if total is None else total + x
        i += 1
    return x if total is None else total * 2


@program
def in_each_turn_of_another(x: Tensor, n: Tensor) -> Any:
    y = x
    for _ in range(int(n)):
        total: Any = 0
        for t in range(int(n) - 1):
            total = total + x * t
        y = y + total
    return y


@program
def a_text(x: Tensor, n: Tensor) -> Any:
    mode = "none"
    for _ in range(int(n)):
        mode, x = "some", x + 1
    return x if mode == "none" else x * 2


# ---------------------------------------------------------------------------- set in the loop alone


@program
def the_last_if_there_is_one(x: Tensor, n: Tensor) -> Any:
    k = int(n)
    for t in range(k):
        last = x * t
    return last if k > 0 else x


@program
def the_last_of_a_while(x: Tensor, n: Tensor) -> Any:
    i = n
    while i > 0:
        i = i - 1
        last = x * i
    return last if n > 0 else x


@program
def the_last_with_an_else(x: Tensor, n: Tensor) -> Any:
    k = 0
    for t in range(int(n)):
        last = x * t
        if last.sum() > 40:
            break
    else:
        k = 7
    return x + last if n > 0 else x, k


@program
def the_last_in_any_case(x: Tensor, n: Tensor) -> Any:
    for t in range(int(n)):
        last = x * t
    return last  # eager raises, if there is none


@program
def appends_with_an_else(x: Tensor, n: Tensor) -> Any:
    found, k = [x], 0
    for t in range(int(n)):
        found.append(x * t)
    else:
        k = 7
    return torch.stack(found), k


X = torch.arange(12.0).view(3, 4) - 3


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_it_leaves_what_eager_leaves(function: Program) -> None:
    run = lostwax.export(function, (X, torch.tensor(2))).module()
    for n in (2, 0, 1, 3, 5, -1):
        x, own = X.clone().requires_grad_(), X.clone().requires_grad_()
        try:
            wanted = function(x * 1, torch.tensor(n))
        except UnboundLocalError:
            with pytest.raises(RuntimeError, match="UnboundLocalError"):
                run(own * 1, torch.tensor(n))
            continue
        found = run(own * 1, torch.tensor(n))
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(differentiate(found, own), differentiate(wanted, x))


def test_the_first_turn_is_drawn_as_often_as_in_eager() -> None:
    def draws(x: Tensor) -> Any:
        found = None
        while torch.rand(()) > 0.4:
            found = x if found is None else found + torch.rand(3)
        return x if found is None else found * 2

    run = lostwax.export(draws, (torch.ones(3),)).module()
    for seed in range(8):
        torch.manual_seed(seed)
        wanted = draws(torch.ones(3)), torch.rand(())
        torch.manual_seed(seed)
        torch.testing.assert_close((run(torch.ones(3)), torch.rand(())), wanted)


def test_it_is_kept_in_files_and_captured_again() -> None:
    program = lostwax.export(the_best_of_none, (X, torch.tensor(2)), strict=True)
    file = BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    again = lostwax.export(program.module(), program.example_inputs[0])
    for each in (lostwax.load(file), again, program.run_decompositions()):
        for n in (0, 5):
            call = X, torch.tensor(n)
            torch.testing.assert_close(each.module()(*call), the_best_of_none(*call))


# ------------------------------------------------------------- who asks how a tensor lies in memory


def asks_after_an_if(x: Tensor, n: Tensor) -> Any:
    x = x[:, :3]
    y = x.t() if n > 1 else x * 2
    return (y + 1) * (y + 1).stride(0)


def asks_in_the_first_turn(x: Tensor, n: Tensor) -> Any:
    part, i = x[:, 1:], 0
    while i < n:
        x = x + part.stride(0)
        part, i = part * 2, i + 1
    return x


def asks_for_its_place(x: Tensor, n: Tensor) -> Any:
    y = x[1:] if n > 1 else x[:2]
    return y * y.storage_offset()


def takes_it_by_its_place(x: Tensor, n: Tensor) -> Any:
    y, i = x[1:], 0
    while i < n:
        y, i = y * 2, i + 1
    return y.as_strided((2,), (1,))


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (asks_after_an_if, r"stride\(\) .* in `y = x.t"),
        (asks_in_the_first_turn, r"stride\(\) .* in `while i < n:`"),
        (asks_for_its_place, r"storage_offset\(\) .* in `y = x"),
        (takes_it_by_its_place, "as_strided .* in `while i < n:`"),
    ],
)
def test_a_layout_that_data_decide_is_not_told(function: Program, what: str) -> None:
    with pytest.raises(lostwax.errors.CaptureError, match=what) as e:
        lostwax.export(function, (X, torch.tensor(2)))
    assert "asks how a tensor lies in memory, and data decide that" in str(e.value)
    assert f"in {function.__name__}: " in str(e.value)
    assert "x.contiguous()" in str(e.value)


# ------------------------------------------------ operators whose name is another function in torch


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.block_diag(x, x),
        lambda x: torch.unique_consecutive(x.flatten() // 2),
        lambda x: torch.atleast_3d(x, x[0])[1],
        lambda x: torch.cartesian_prod(x[0], x[1]),
        lambda x: torch.meshgrid(x[0], x[1], indexing="ij")[0],
        lambda x: torch.broadcast_tensors(x, x[0])[1],
        lambda x: torch.linalg.multi_dot([x, x.t(), x]),
        lambda x: torch.einsum("ij,kj,kl->il", x, x, x),
        lambda x: torch.cdist(x, x),
        lambda x: torch.norm(x, dim=1),
        lambda x: torch.split(x, 2)[0],
    ],
)
def test_a_side_calls_the_operator(function: Callable[[Tensor], Tensor]) -> None:
    def choose(x: Tensor) -> Tensor:
        return function(x) if x.sum() > 0 else function(x) * 2

    run = lostwax.export(choose, (X,)).module()
    for x in (X, -X, X + 1):
        torch.testing.assert_close(run(x), choose(x))
