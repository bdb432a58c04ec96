"""`while_loop`, `map`, `scan` and `associative_scan` in programs, beside plain Python."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._higher_order_ops as operators
import torch.utils._pytree as pytree

from lostwax import Dim, export
from tests.capture.control.compare import agree

X = torch.arange(12.0).view(4, 3) / 7 + 0.1
LONG = torch.arange(18.0).view(6, 3) / 9 - 0.7
ONE = torch.tensor([[0.3, -0.2, 0.5]])
ROWS = [{0: Dim("rows", min=1)}]


# --------------------------------------------------------------------------------------- while_loop


def count_up(self: Any, x: Any) -> Any:
    def body(i: Any, y: Any) -> Any:
        return i + 1, self.linear(y)

    return operators.while_loop(lambda i, y: i < 3, body, (torch.zeros(()), x))


def until_large(self: Any, x: Any) -> Any:
    return operators.while_loop(lambda y: y.sum() < 20, lambda y: (y * 2 + 0.5,), (x,))


def never(self: Any, x: Any) -> Any:
    return operators.while_loop(lambda y: y.sum() < -100, lambda y: (y * 2,), (x,))


def whole_numbers(self: Any, x: Any) -> Any:
    return operators.while_loop(lambda i, y: i < 5, lambda i, y: (i + 2, y + i), (0, x))


def number_after(self: Any, x: Any) -> Any:
    n, y = operators.while_loop(lambda i, y: y.sum() < 9, lambda i, y: (i + 1, y + 1), (0, x))
    return y * n, n


def nested_structure(self: Any, x: Any) -> Any:
    def body(pair: Any, named: Any) -> Any:
        return (pair[0] + 1, pair[1] * named["factor"]), {"factor": named["factor"] + 1}

    start = ((torch.zeros(()), x), {"factor": torch.ones(())})
    return operators.while_loop(lambda pair, named: pair[0] < 3, body, start)


def loop_writes(self: Any, x: Any) -> Any:
    def body(i: Any, y: Any) -> Any:
        self.total.add_(y.sum(0))
        self.count += 1
        return i + 1, y + self.total

    out = operators.while_loop(lambda i, y: i < 3, body, (torch.zeros(()), x))
    return out, self.total * 2


def loop_replaces(self: Any, x: Any) -> Any:
    def body(y: Any) -> Any:
        self.total = self.total + y.sum(0)
        return (y + 1,)

    return operators.while_loop(lambda y: self.total.sum() < 9, body, (x,)), self.total


def loop_writes_view(self: Any, x: Any) -> Any:
    seen = torch.zeros(4, 3)
    row = seen[1]

    def body(i: Any, y: Any) -> Any:
        row.add_(y[0])
        return i + 1, y + seen.sum()

    out = operators.while_loop(lambda i, y: i < 3, body, (torch.zeros(()), x))
    return out, seen, row


def loop_in_loop(self: Any, x: Any) -> Any:
    def inner(j: Any, z: Any) -> Any:
        return j + 1, z + j

    def body(i: Any, y: Any) -> Any:
        _, z = operators.while_loop(lambda j, z: j < i, inner, (torch.zeros(()), y))
        return i + 1, z * 0.5

    return operators.while_loop(lambda i, y: i < 3, body, (torch.zeros(()), x))


def cond_in_loop(self: Any, x: Any) -> Any:
    def body(i: Any, y: Any) -> Any:
        y = torch.cond(y.sum() > 2, lambda y: y - 1, lambda y: self.linear(y) + i, (y,))
        return i + 1, y

    return operators.while_loop(lambda i, y: i < 4, body, (torch.zeros(()), x))


def loop_in_cond(self: Any, x: Any) -> Any:
    def true(x: Any) -> Any:
        (y,) = operators.while_loop(lambda y: y.sum() < 50, lambda y: (y * 2,), (x,))
        return y

    return torch.cond(x.sum() > 0, true, lambda x: x - 1, (x,))


def swaps(self: Any, x: Any) -> Any:
    def body(i: Any, a: Any, b: Any) -> Any:
        return i + 1, b, a

    return operators.while_loop(lambda i, a, b: i < 3, body, (torch.zeros(()), x, x * 2))


def strided_start(self: Any, x: Any) -> Any:
    start = x[1:].t()
    return operators.while_loop(lambda y: y.sum() < 30, lambda y: (y * 2,), (start,))


def raw_while(self: Any, x: Any) -> Any:
    operator = torch.ops.higher_order.while_loop
    return operator(lambda y, z: y.sum() < 9, lambda y, z: (y + z,), (x,), (x * x + 1,))


def literal_in_loop(self: Any, x: Any) -> Any:
    def body(i: Any, y: Any) -> Any:
        one = torch.tensor(1.0)
        one += i
        return i + 1, y + one

    return operators.while_loop(lambda i, y: i < 3, body, (torch.zeros(()), x))


WHILE = [
    count_up, until_large, never, whole_numbers, number_after, nested_structure, loop_writes,
    loop_replaces, loop_writes_view, loop_in_loop, cond_in_loop, loop_in_cond, swaps, strided_start,
    raw_while, literal_in_loop,
]  # fmt: skip


@pytest.mark.parametrize("program", WHILE, ids=lambda f: f.__name__)
def test_while_as_python(program: Any) -> None:
    with torch.no_grad():
        agree(program, (X,), (X * 0.1,), (-X + 3,), (X + 9,))


def _three_turns(self: Any, x: Any, step: Any, start: Any) -> Any:
    turn = torch.zeros((), dtype=torch.int64)
    return operators.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, step(y)), (turn, start))[1]


CLOSURES = {
    "the input": lambda self, x: _three_turns(self, x, lambda y: y * x, torch.ones(4, 3)),
    "the input, also handed on": lambda self, x: _three_turns(self, x, lambda y: y * x + x, x),
    "what is computed": lambda self, x: _three_turns(self, x, lambda y: y * x.sin() + x.exp(), x),
    "parameters": lambda self, x: _three_turns(self, x, self.linear, self.linear(x)),
    "a buffer": lambda self, x: _three_turns(self, x, lambda y: y * (self.total + 2), x),
    "what is detached": lambda self, x: _three_turns(self, x, lambda y: y * x.detach(), x),
    "a loop in a loop": lambda self, x: _three_turns(
        self, x, lambda y: _three_turns(self, x, lambda z: z * x + y, y), x
    ),
    "a branch in a loop": lambda self, x: _three_turns(
        self, x, lambda y: torch.cond(y.sum() > 1, lambda: y * x, lambda: y - x * x, ()), x
    ),
}


@pytest.mark.parametrize("program", CLOSURES.values(), ids=CLOSURES)
def test_gradients_reach_what_a_loop_closes_over(program: Any) -> None:
    """Python's own loop is the truth: torch 2.13 differentiates `while_loop` wrongly there, x ** 3
    as x * x."""
    agree(program, (X,), (X * -0.4,), gradients=True)


RETURNED: dict[str, tuple[Any, Any]] = {
    "a dict": (lambda y: {"y": y["y"] * 2, "z": y["z"] + 1}, lambda x: {"y": x, "z": x + 1}),
    "one tensor": (lambda y: y * 2, lambda x: x),
    "a list": (lambda y: [y * 2], lambda x: x),
    "tuples in a tuple": (lambda y: ((y * 2,),), lambda x: x),
}


@pytest.mark.parametrize(("step", "start"), RETURNED.values(), ids=RETURNED)
def test_while_loop_returns_what_its_body_does(step: Any, start: Any) -> None:
    """As torch's does (it takes seconds), which compares what is handed on flat."""

    def program(x: torch.Tensor) -> Any:
        return operators.while_loop(
            lambda y: pytree.tree_leaves(y)[0].sum() < 20, step, (start(x),)
        )

    expected = step(start(X))
    while pytree.tree_leaves(expected)[0].sum() < 20:
        expected = step(pytree.tree_unflatten(pytree.tree_leaves(expected), _spec_of(start(X))))
    found = export(program, (X,)).module()(X)
    assert pytree.tree_structure(found) == pytree.tree_structure(expected)
    torch.testing.assert_close(found, expected)


def _spec_of(value: Any) -> Any:
    return pytree.tree_structure(value)


def by_size(self: Any, x: Any) -> Any:
    return operators.while_loop(lambda i, y: i < x.shape[0], lambda i, y: (i + 1, y + x[i]), (0, x))


def sizes_in_loop(self: Any, x: Any) -> Any:
    n = x.shape[0]

    def body(i: Any, y: Any) -> Any:
        return i + 1, y.view(3 * n).flip(0).view(n, 3) * n

    return operators.while_loop(lambda i, y: i < n, body, (torch.zeros(()), x))


@pytest.mark.parametrize("program", [count_up, by_size, sizes_in_loop, cond_in_loop])
def test_while_of_varying_sizes(program: Any) -> None:
    with torch.no_grad():
        agree(program, (X,), (LONG,), (ONE,), dynamic=ROWS)


# ---------------------------------------------------------------------------------------------- map


def map_rows(self: Any, x: Any) -> Any:
    return operators.map(lambda row, y: (self.linear(row) + y, row.sum()), x, x[0])


def map_nested(self: Any, x: Any) -> Any:
    def body(row: Any) -> Any:
        return {"a": row["x"] * row["y"][0], "b": [row["y"][0].cos()]}

    return operators.map(body, {"x": x, "y": [x + 1]})


def map_closure(self: Any, x: Any) -> Any:
    y = x.sum(0)
    return operators.map(lambda row: row * y + self.total, x)


def map_in_map(self: Any, x: Any) -> Any:
    return operators.map(lambda row: operators.map(lambda e: e * row.sum() + 1, row), x)


def map_of_cond(self: Any, x: Any) -> Any:
    def body(row: Any) -> Any:
        return torch.cond(row.sum() > 1, lambda r: r.sin(), lambda r: r.cos(), (row,))

    return operators.map(body, x)


def map_returns_row(self: Any, x: Any) -> Any:
    return operators.map(lambda row: (row, row), x)


def raw_map(self: Any, x: Any) -> Any:
    return torch.ops.higher_order.map_impl(lambda row, y: (row * y,), [x], [x[0]])


def map_columns(self: Any, x: Any) -> Any:
    return operators.map(lambda column: column.sin(), x.t())


def map_strided(self: Any, x: Any) -> Any:
    return operators.map(lambda row: row.as_strided((2,), (1,)) * 2, x)


# --------------------------------------------------------------------------------------------- scan


def sum_up(self: Any, x: Any) -> Any:
    return operators.scan(lambda c, row: (c + row, c * row), torch.zeros(3), x)


def recurrent(self: Any, x: Any) -> Any:
    def step(h: Any, row: Any) -> Any:
        h = torch.tanh(self.linear(row) + h)
        return h, h.clone()

    return operators.scan(step, x[0] * 0, x)


def backwards(self: Any, x: Any) -> Any:
    return operators.scan(lambda c, row: (c + row, c * row), torch.zeros(3), x, reverse=True)


def along_columns(self: Any, x: Any) -> Any:
    def step(c: Any, column: Any) -> Any:
        return c + column.sum(), (c * column.sum()).view(1, 1).expand(2, 1)

    return operators.scan(step, torch.zeros(()), x, dim=1)


def scan_nested(self: Any, x: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        a, b = carry
        new = (a + row["x"], [b[0] * 2 + row["y"]])
        return new, {"first": a * b[0], "rest": (row["x"],)}

    return operators.scan(step, (x[0], [x[1]]), {"x": x, "y": x.cos()})


def scan_writes(self: Any, x: Any) -> Any:
    def step(c: Any, row: Any) -> Any:
        self.total += row
        return c + self.total, c * 2

    return operators.scan(step, x[0] * 0, x), self.total * 1


def scan_of_cond(self: Any, x: Any) -> Any:
    def step(c: Any, row: Any) -> Any:
        new = torch.cond(c.sum() > 1, lambda: c - row, lambda: c + self.linear(row))
        return new, new * 2

    return operators.scan(step, x[0], x)


def selective(self: Any, x: Any) -> Any:
    """As Mamba: a state that decays by what the row says."""
    decay, gain = torch.sigmoid(x), x.tanh()

    def step(h: Any, row: Any) -> Any:
        a, b, row_x = row
        h = h * a + b * row_x
        return h, (h * row_x).sum()

    return operators.scan(step, torch.zeros(3), (decay, gain, x))


def detached_carry(self: Any, x: Any) -> Any:
    return operators.scan(lambda c, row: (c.detach() * 2 + row, c * row), x[0], x)


def raw_scan(self: Any, x: Any) -> Any:
    operator = torch.ops.higher_order.scan
    return operator(lambda c, row, y: [c + row, c * y], [x[0]], [x], (x[1],))


def products(self: Any, x: Any) -> Any:
    return operators.associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic")


def products_backwards(self: Any, x: Any) -> Any:
    return operators.associative_scan(
        lambda a, b: a * b, x, 0, reverse=True, combine_mode="generic"
    )


def linear_recurrence(self: Any, x: Any) -> Any:
    def combine(one: Any, other: Any) -> Any:
        return one[0] * other[0], other[0] * one[1] + other[1]

    return operators.associative_scan(combine, (x.sin(), x), 0, combine_mode="generic")


OVER_ROWS = [
    map_rows, map_nested, map_closure, map_in_map, map_of_cond, map_returns_row, raw_map,
    sum_up, recurrent, backwards, scan_nested, scan_writes, scan_of_cond, selective, detached_carry,
    raw_scan, products, products_backwards, linear_recurrence,
]  # fmt: skip


@pytest.mark.parametrize(
    "program", [*OVER_ROWS, map_columns, map_strided, along_columns], ids=lambda f: f.__name__
)
def test_rows_as_python(program: Any) -> None:
    with torch.no_grad():
        agree(program, (X,), (X * -0.4,), (X + 1,))


FIRST_TWO = (map_rows, scan_nested, raw_scan)


@pytest.mark.parametrize("program", OVER_ROWS, ids=lambda f: f.__name__)
def test_rows_of_varying_length(program: Any) -> None:
    least = 2 if program in FIRST_TWO else 1
    inputs = [(x,) for x in (X, LONG, ONE) if x.shape[0] >= least]
    with torch.no_grad():
        agree(program, *inputs, dynamic=[{0: Dim("rows", min=least)}])


DIFFERENTIABLE = [
    map_rows, map_nested, map_closure, sum_up, recurrent, backwards, scan_nested, selective,
    detached_carry, products, linear_recurrence,
]  # fmt: skip


@pytest.mark.parametrize("program", DIFFERENTIABLE, ids=lambda f: f.__name__)
def test_gradients(program: Any) -> None:
    agree(program, (X,), (X * -0.4,), gradients=True)


def differences(self: Any, x: Any) -> Any:
    return operators.associative_scan(lambda a, b: a / (a - b), x, 0, combine_mode="generic")


def test_gradients_where_a_row_with_itself_has_none() -> None:
    agree(differences, (X,), (ONE,), dynamic=[{0: Dim("rows", min=1)}], gradients=True)
