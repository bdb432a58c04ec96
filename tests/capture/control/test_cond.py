"""`torch.cond` in programs, beside plain Python, on inputs that take every path."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lostwax import Dim
from tests.capture.control.compare import Small, agree, exported

UP = torch.arange(12.0).view(4, 3) / 7 + 0.1
DOWN = -UP
LONG = torch.arange(18.0).view(6, 3) / 7 + 0.1
SHORT = torch.arange(3.0).view(1, 3) + 0.5
ROWS = [{0: Dim("rows")}]


def closures(self: Any, x: Any) -> Any:
    y = x.sin()
    return torch.cond(x.sum() > 0, lambda x: self.linear(x) + y, lambda x: x - self.total, (x,))


def without_operands(self: Any, x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda: x.sin(), lambda: x.cos())


def nested(self: Any, x: Any) -> Any:
    def inner(x: Any) -> Any:
        return torch.cond(x.max() > 1, lambda x: self.linear(x), lambda x: x * 2, (x,))

    return torch.cond(x.sum() > 0, inner, lambda x: x + 1, (x,))


def nested_twice(self: Any, x: Any) -> Any:
    y = x + 1

    def inner(z: Any) -> Any:
        return torch.cond(z.max() > 1, lambda: y * z, lambda: y - z)

    def middle(x: Any) -> Any:
        w = x * 2
        return torch.cond(x.min() > 0.2, lambda: w + y, lambda: inner(w))

    return torch.cond(x.sum() > 0, middle, lambda x: x + y, (x,)) + y


def writes_buffer(self: Any, x: Any) -> Any:
    def true(x: Any) -> Any:
        self.total.add_(x.sum(0))
        self.count += 1
        return x + self.total

    return torch.cond(x.sum() > 0, true, lambda x: x.clone(), (x,)) + self.total


def both_write(self: Any, x: Any) -> Any:
    def true(x: Any) -> Any:
        self.total.add_(x.sum(0))
        return x.sin()

    def false(x: Any) -> Any:
        self.total.mul_(2).sub_(1)
        self.count.add_(1)
        return x.cos()

    before = self.total * 1
    return torch.cond(x.sum() > 0, true, false, (x,)) + self.total, before


def replaces_buffer(self: Any, x: Any) -> Any:
    before = self.total

    def true(x: Any) -> Any:
        self.total = self.total + x.sum(0)
        return x + self.total

    y = torch.cond(x.sum() > 0, true, lambda x: x + 1, (x,))
    return y + self.total + before


def writes_view(self: Any, x: Any) -> Any:
    y = x + 1
    part = y[1:]

    def true() -> Any:
        part[0].mul_(3)
        return part.sum()

    z = torch.cond(x.sum() > 0, true, lambda: part.max())
    return y, part, z


def writes_input(self: Any, x: Any) -> Any:
    y = x[0]

    def true(x: Any) -> Any:
        x.add_(1)
        return y * 2

    return torch.cond(x.sum() > 0, true, lambda x: y * 3, (x,)), y.clone()


def nested_write(self: Any, x: Any) -> Any:
    def inner() -> Any:
        self.total += 1
        return x.sin()

    def true() -> Any:
        out = torch.cond(x.max() > 1, inner, lambda: x.cos())
        return out + self.total

    return torch.cond(x.sum() > 0, true, lambda: x * 2) + self.total


def stale_view(self: Any, x: Any) -> Any:
    y = x.clone()
    part = y[:2]
    y.add_(1)
    z = torch.cond(x.sum() > 0, lambda: part * 2, lambda: part * 3)
    return z, part * 1, y


def returns_operand(self: Any, x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x, lambda x: x.view(-1).view(4, 3), (x,)) + 1


def returns_twice(self: Any, x: Any) -> Any:
    def twice(x: Any) -> Any:
        y = x.sin()
        return y, y, y[1:]

    return torch.cond(x.sum() > 0, twice, lambda x: (x, x + 1, x[1:]), (x,))


def structures(self: Any, x: Any) -> Any:
    def true(pair: Any, named: Any) -> Any:
        return {"sum": pair[0] + pair[1], "rest": [named["x"], 3, None]}

    def false(pair: Any, named: Any) -> Any:
        return {"sum": pair[0] * pair[1], "rest": [named["x"] + 1, 3, None]}

    y = torch.cond(x.sum() > 0, true, false, ((x, x + 1), {"x": x}))
    return y["sum"], y["rest"][0], y["rest"][1]


def layouts(self: Any, x: Any) -> Any:
    y = torch.cond(x.sum() > 0, lambda x: x.sin().t(), lambda x: x.t().cos(), (x,))
    return y, y.reshape(-1)


def parts(self: Any, x: Any) -> Any:
    y = torch.cond(x.sum() > 0, lambda x: x.sin()[1:], lambda x: x.cos()[1:], (x,))
    return y.view(-1), y.as_strided((2,), (1,))


def no_gradient(self: Any, x: Any) -> Any:
    def true(x: Any) -> Any:
        with torch.no_grad():
            y = self.linear(x)
        return y + x

    return torch.cond(x.sum() > 0, true, lambda x: x.detach() * x, (x,))


def outside_no_gradient(self: Any, x: Any) -> Any:
    with torch.no_grad():
        y = torch.cond(x.sum() > 0, lambda x: self.linear(x), lambda x: x * 2, (x,))
    return y * x


def literal(self: Any, x: Any) -> Any:
    def true(x: Any) -> Any:
        n = torch.tensor([1.0, 2.0, 3.0])
        n += 1
        return x * n

    return torch.cond(x.sum() > 0, true, lambda x: x - torch.tensor(2.0), (x,))


def buffer_predicate(self: Any, x: Any) -> Any:
    self.count += 1
    return torch.cond(self.count > 1, lambda x: x.sin(), lambda x: x.cos(), (x,))


def integer_result(self: Any, x: Any) -> Any:
    y, n = torch.cond(x.sum() > 0, lambda x: (x.sin(), 2), lambda x: (x.cos(), 3), (x,))
    return y * n


def two_in_a_row(self: Any, x: Any) -> Any:
    y = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
    return torch.cond(y.sum() > 2, lambda y: y + x, lambda y: y - x, (y,))


def raw(self: Any, x: Any) -> Any:
    (y,) = torch.ops.higher_order.cond(x.sum() > 0, lambda x: (x.sin(),), lambda x: (x + 1,), (x,))
    return y


def one_element(self: Any, x: Any) -> Any:
    return torch.cond(x.sum().view(1, 1) > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


def scalar_data(self: Any, x: Any) -> Any:
    def true(x: Any) -> Any:
        n = x.sum().item()
        return x * n

    return torch.cond(x.sum() > 0, true, lambda x: x * 2, (x,))


STATIC = [
    closures, without_operands, nested, nested_twice, writes_buffer, both_write, replaces_buffer,
    writes_view, writes_input, nested_write, stale_view, returns_operand, returns_twice, structures,
    layouts, parts, no_gradient, outside_no_gradient, literal, buffer_predicate, integer_result,
    two_in_a_row, raw, one_element, scalar_data,
]  # fmt: skip


@pytest.mark.parametrize("program", STATIC, ids=lambda f: f.__name__)
def test_as_python(program: Any) -> None:
    agree(program, (UP,), (DOWN,), (UP * 0.01,), (UP + 2,), (DOWN,))


DIFFERENTIABLE = [
    closures, without_operands, nested, nested_twice, returns_operand, structures, layouts,
    two_in_a_row, raw, no_gradient, outside_no_gradient,
]  # fmt: skip


@pytest.mark.parametrize("program", DIFFERENTIABLE, ids=lambda f: f.__name__)
def test_gradients(program: Any) -> None:
    agree(program, (UP,), (DOWN,), (UP * 0.01,), gradients=True)


# ---------------------------------------------------------------------------------- sizes that vary


def size_decides(self: Any, x: Any) -> Any:
    return torch.cond(x.shape[0] > 2, lambda x: x.sin(), lambda x: x.cos(), (x,))


def known_inside(self: Any, x: Any) -> Any:
    def short(x: Any) -> Any:
        return torch.cat([x, x.new_zeros(4 - x.shape[0], 3)])

    return torch.cond(x.shape[0] >= 4, lambda x: x[:4].clone(), short, (x,))


def sizes_read(self: Any, x: Any) -> Any:
    n = x.shape[0]
    return torch.cond(x.sum() > 0, lambda x: x.view(n * 3), lambda x: x.reshape(-1) * n, (x,)).view(
        n, 3
    )


def size_of_nothing_given(self: Any, x: Any) -> Any:
    n = x.shape[0]
    y = x.sum()
    return torch.cond(y > 0, lambda y: y + n, lambda y: y * (n + 1), (y,))


def sizes_differ(self: Any, x: Any) -> Any:
    y = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x[:1].cos(), (x,))
    return y, y.sum(0), y * 2


def data_size(self: Any, x: Any) -> Any:
    y = torch.cond(x.sum() > 0, lambda x: x[x > 0.5], lambda x: x.view(-1), (x,))
    return y.sin(), y.shape[0]


def nested_sizes(self: Any, x: Any) -> Any:
    n = x.shape[0]

    def inner(y: Any) -> Any:
        return torch.cond(n > 3, lambda: y + n, lambda: y * n)

    return torch.cond(x.sum() > 0, inner, lambda y: y - n, (x.sum(0),))


DYNAMIC = [
    closures, nested_twice, writes_view, stale_view, size_decides, known_inside, sizes_read,
    size_of_nothing_given, sizes_differ, data_size, nested_sizes,
]  # fmt: skip


@pytest.mark.parametrize("program", DYNAMIC, ids=lambda f: f.__name__)
def test_varying_sizes(program: Any) -> None:
    least = 2 if program in (writes_view, stale_view) else 1
    inputs = [(x,) for x in (UP, DOWN, LONG, -LONG, SHORT, -SHORT) if x.shape[0] >= least]
    agree(program, *inputs, dynamic=[{0: Dim("rows", min=least)}])


@pytest.mark.parametrize("example", [LONG, SHORT])
def test_the_example_need_not_take_the_branch(example: Any) -> None:
    inputs = [(x,) for x in (example, UP, LONG, SHORT)]
    agree(known_inside, *inputs, dynamic=ROWS)


def test_a_python_constant_takes_one_branch() -> None:
    def program(self: Any, x: Any) -> Any:
        return torch.cond(x.shape[0] > 2, lambda x: x.sin(), lambda x: x.cos(), (x,))

    with pytest.warns(UserWarning, match="Pred is a Python constant"):
        found = exported(program, (UP,))
    assert [str(n.target) for n in found.graph.nodes if n.op == "call_function"] == [
        "aten.sin.default"
    ]


def test_the_module_is_as_before() -> None:
    module = Small(replaces_buffer)
    from lostwax.capture import export

    before = dict(module.named_buffers())
    export(module, (UP,))
    assert all(b is before[name] for name, b in module.named_buffers())


def pair_of_one_size(self: Any, x: Any) -> Any:
    a, b, c = torch.cond(
        x.sum() > 0,
        lambda x: (x[:2] * 1, x[:2].sin(), x[0] * 1),
        lambda x: (x * 2, x.cos(), x[1] * 1),
        (x,),
    )
    return a + b, c


def test_sizes_that_differ_alike_are_one_size() -> None:
    program = agree(pair_of_one_size, (UP,), (DOWN,))
    assert "_assert_scalar" not in str(program.graph)


def places(self: Any, x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x.nonzero(), lambda x: (x[:2] < 0).nonzero(), (x,))


def columns(self: Any, x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x[:, x[0] > 0].t(), lambda x: x[:, :1].t() * 1, (x,))


def rows_of_columns(self: Any, x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x[:2].t() * 1, lambda x: x.t() * 2, (x,))


def images(self: Any, x: Any) -> Any:
    """Channels last, of other heights."""
    x = x.expand(2, 5, 4, 3).contiguous(memory_format=torch.channels_last)
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x[:, :, :3] * 1, (x,)) + 1


@pytest.mark.parametrize("program", [places, columns, rows_of_columns, images])
def test_sizes_that_differ_in_other_layouts(program: Any) -> None:
    agree(program, (UP,), (DOWN,), (UP * 0,))
