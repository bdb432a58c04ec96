"""State that is one tensor with something else after the call, where data decide so: a write in the
next call would show in both, and `a is b` would be true. Refused; but for what no call writes to,
nor tells apart, and what is only swapped."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lostwax import export
from lostwax.errors import CaptureError

X = torch.tensor([1.0, 2.0, 3.0])
CALLS = (X, -X, X * 5, X, -X / 2)
Program = Callable[[Any, Any], Any]


class Keeping(nn.Module):
    def __init__(self, body: Program) -> None:
        super().__init__()
        self.body = body
        for i, name in enumerate(("a", "b", "c")):
            self.register_buffer(name, torch.full((3,), float(i)))
        self.register_buffer("rows", torch.zeros(2, 3))
        self.w, self.table = nn.Parameter(torch.ones(3)), torch.ones(3)

    def forward(self, x: Tensor) -> Any:
        return self.body(self, x)


def _best(m: Any, x: Any) -> Any:
    m.b.add_(x)
    if x.sum() > 0:
        m.a = m.b
    return m.a * 1


def _written_afterwards(m: Any, x: Any) -> Any:
    if x.sum() > 0:
        m.a = m.b
    m.b += x
    return m.a * 1


def _written_through_the_new(m: Any, x: Any) -> Any:
    m.a.mul_(2)
    if x.sum() > 0:
        m.a = m.b
    return m.a + m.b


def _by_a_variable(m: Any, x: Any) -> Any:
    m.b += x
    y = m.b if x.sum() > 0 else x * 2
    m.a = y
    return m.a * 1


def _inside(m: Any, x: Any) -> Any:
    m.b += x
    if x.sum() > 0:
        m.a = m.b if x.sum() > 10 else x * 2
    return m.a * 1


def _view(m: Any, x: Any) -> Any:
    m.rows += x
    if x.sum() > 0:
        m.a = m.rows[0]
    return m.a * 1


def _both_new(m: Any, x: Any) -> Any:
    m.b.add_(x)
    if x.sum() > 0:
        m.a = m.b = x * 2
    return m.a * 1


def _in_a_loop(m: Any, x: Any) -> Any:
    m.b += x
    n = x.sum()
    while n > 0:
        m.a = m.b
        n = n - 4
    return m.a * 1


def _if_a_loop_does_not_run(m: Any, x: Any) -> Any:
    m.b += 1
    y = m.b
    while y.sum() > 9:
        y = y / 2
    m.a = y
    return m.a * 1


def _by_an_operator(m: Any, x: Any) -> Any:
    m.b += x

    def keep(x: Any) -> Any:
        m.a = m.b
        return x * 1

    return torch.cond(x.sum() > 0, keep, lambda x: x * 2, (x,)) + m.a


TIED: list[tuple[Program, str]] = [
    (_best, "buffer a and the buffer b"),
    (_written_afterwards, "buffer a and the buffer b"),
    (_written_through_the_new, "buffer a and the buffer b"),
    (_by_a_variable, "buffer a and the buffer b"),
    (_inside, "buffer a and the buffer b"),
    (_view, "buffer a and the buffer rows"),
    (_both_new, "buffer a and the buffer b"),
    (_in_a_loop, "buffer a and the buffer b"),
    (_if_a_loop_does_not_run, "buffer a and the buffer b"),
    (_by_an_operator, "buffer a and the buffer b"),
]


def _argument(m: Any, x: Any) -> Any:
    if x.sum() > 0:
        m.a = x
    return m.a * 1


def _weight(m: Any, x: Any) -> Any:
    if x.sum() > 0:
        m.a = m.w.detach()
    return m.a * 1


def _constant(m: Any, x: Any) -> Any:
    m.a += 1
    if x.sum() > 0:
        m.a = m.table
    return x * 1


def _result(m: Any, x: Any) -> Any:
    m.a += 1
    y = x * 2
    if x.sum() > 0:
        m.a = y
    return y


def _state_as_a_result(m: Any, x: Any) -> Any:
    m.a += 1  # written
    return m.a if x.sum() > 0 else x * 2


TIED += [
    (_argument, "buffer a and the input x"),
    (_weight, "buffer a and the parameter w"),
    (_constant, "buffer a and the constant of size"),
    (_result, "buffer a and a result"),
    (_state_as_a_result, "buffer a and a result"),
]


@pytest.mark.parametrize(("body", "which"), TIED)
def test_state_that_data_tie_is_refused(body: Program, which: str) -> None:
    pattern = (
        rf"data decide whether the {which}.* are one tensor when the call is over\.\n"
        r"  at .*test_ties\.py.*m\.a\b[\s\S]*instead: clone it, self\.a = x\.clone\(\)"
    )
    with pytest.raises(CaptureError, match=pattern):
        export(Keeping(body), (X,))


def _asked(ask: Program, *, ties: Program | None = None) -> Program:
    """What asks, and then ties."""

    def body(m: Any, x: Any) -> Any:
        found = ask(m, x)
        if ties is not None:
            ties(m, x)
        elif x.sum() > 0:
            m.a = m.b
        return x * found

    return body


def _asked_afterwards(m: Any, x: Any) -> Any:
    if x.sum() > 0:
        m.a = m.b
    return x * (m.a is m.b)


def _asked_in_the_condition(m: Any, x: Any) -> Any:
    if x.sum() < 0 or m.a is m.b:
        m.a = m.b
        m.c = x * 2
    return m.c * 1


def _over_two_calls(m: Any, x: Any) -> None:
    if x.sum() > 5:
        m.c = m.a
    if x.sum() < 0:
        m.a = m.b


def _swaps_what_is_tied(m: Any, x: Any) -> None:
    if x.sum() > 5:
        m.a, m.b = m.b, m.a
    if x.sum() < 0:
        m.c = m.b


def _loop(m: Any, x: Any) -> None:
    n = x.sum()
    while n > 0:
        m.a = m.b
        n = n - 4


def _tie_to_table(m: Any, x: Any) -> None:
    if x.sum() > 0:
        m.a = m.table


TOLD_APART: list[tuple[Program, str]] = [
    (_asked_afterwards, r"x \* \(m\.a is m\.b\)"),
    (_asked_in_the_condition, r"if x\.sum\(\) < 0 or m\.a is m\.b:"),
    (_asked(lambda m, x: m.a is m.b), r"m\.a is m\.b"),
    (_asked(lambda m, x: m.a is not m.b), r"m\.a is not m\.b"),
    (_asked(lambda m, x: any(b is m.b for b in (m.a, m.c))), r"b is m\.b"),
    (_asked(lambda m, x: id(m.a) == id(m.b)), r"id\(m\.a\)"),
    (_asked(lambda m, x: len({m.a, m.b})), r"\{m\.a, m\.b\}"),
    (_asked(lambda m, x: {m.a: 2}.get(m.b, 3)), r"\{m\.a: 2\}"),
    (_asked(lambda m, x: len([*m.buffers()])), r"m\.buffers\(\)"),
    (_asked(lambda m, x: m.a is m.b, ties=_loop), r"m\.a is m\.b"),
    (_asked(lambda m, x: m.a is m.table, ties=_tie_to_table), r"m\.a is m\.table"),
    (_asked(lambda m, x: m.c is m.b, ties=_over_two_calls), r"m\.c is m\.b"),
    (_asked(lambda m, x: m.c is m.a, ties=_swaps_what_is_tied), r"m\.c is m\.a"),
]


@pytest.mark.parametrize(("body", "line"), TOLD_APART)
def test_state_that_data_tie_and_the_call_tells_apart_is_refused(body: Program, line: str) -> None:
    pattern = (
        r"data decide whether the buffer [abc] and the (buffer|constant) .* are one tensor when "
        r"the call is over\.\n"
        r"  at .*test_ties\.py.*\n  why: a program keeps two, and where they are one, the next "
        rf"call would find one at .*test_ties\.py.*{line}.*\n"
        r"  instead: clone it.*; or keep in a buffer which way was gone, and ask that"
    )
    with pytest.raises(CaptureError, match=pattern):
        export(Keeping(body), (X,))


def _buffers_of_what_is_tied_for_a_while(m: Any, x: Any) -> Any:
    if x.sum() > 0:
        m.a = m.b
    count = len([*m.buffers()])
    m.a = x * 2
    return x * count


def _cloned(m: Any, x: Any) -> Any:
    m.b.add_(x)
    if x.sum() > 0:
        m.a = m.b.clone()
    return m.a * 1


def _only_replaced(m: Any, x: Any) -> Any:
    m.b = x * 2
    if x.sum() > 0:
        m.a = m.b
    return m.a * 1


def _swapped(m: Any, x: Any) -> Any:
    m.a += x
    if x.sum() > 0:
        m.a, m.b = m.b, m.a
    if x.sum() > 10:
        m.a, m.b = m.b, m.a
    return m.a + 2 * m.b


def _rotated(m: Any, x: Any) -> Any:
    m.a += x
    if x.sum() > 0:
        m.a, m.b, m.c = m.b, m.c, m.a
    return m.a + 2 * m.b


def _swapped_in_a_loop(m: Any, x: Any) -> Any:
    m.a += 1
    n = x.sum()
    while n > 0:
        m.a, m.b = m.b, m.a
        n = n - 4
    return m.a + 2 * m.b


def _shifted_in_a_loop(m: Any, x: Any) -> Any:
    m.b += 1
    n = x.sum()
    while n > 0:
        m.a, m.b = m.b, m.b + 1
        n = n - 4
    return m.a + 2 * m.b


def _copied(m: Any, x: Any) -> Any:
    m.b += x
    if x.sum() > 0:
        m.a.copy_(m.b)
    return m.a * 1


def _flipped(m: Any, x: Any) -> Any:
    m.b += x
    if x.sum() > 0:
        m.a = m.b.flip(0)
    return m.a * 1


def _table(m: Any, x: Any) -> Any:
    if x.sum() > 0:
        m.a = m.table
    return m.a * 1


def _also_returned(m: Any, x: Any) -> Any:
    y = x * 2
    if x.sum() > 0:
        m.a = y
    return y + m.a, y


APART: list[Program] = [
    _cloned, _only_replaced, _swapped, _rotated, _swapped_in_a_loop, _shifted_in_a_loop, _copied,
    _flipped, _table, _also_returned, _buffers_of_what_is_tied_for_a_while,
    _asked(lambda m, x: m.a is m.c), _asked(lambda m, x: m.a is m.table),
    _asked(lambda m, x: m.a is m.b, ties=_swapped), _asked(lambda m, x: m.a is None),
]  # fmt: skip


@pytest.mark.parametrize("body", APART)
def test_state_that_stays_apart(body: Program) -> None:
    module = Keeping(body)
    run = export(deepcopy(module), (CALLS[0],)).module()
    results: tuple[list[Any], list[Any]] = ([], [])
    for x in CALLS:
        for each, found in zip((module, run), results, strict=True):
            found.append(each(x.clone()))
        torch.testing.assert_close(*results)  # also what earlier calls have returned
        for name, tensor in module.named_buffers():
            torch.testing.assert_close(run.get_buffer(name), tensor)
