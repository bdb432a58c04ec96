"""What Python asks of an object beside its value: the class of a number that only the program
knows, and which tensor it is, or whether it has a gradient, where data decide."""

from __future__ import annotations

import itertools
import numbers
from functools import singledispatch
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lostwax import Dim, export
from lostwax.errors import CaptureError, StrictError

X = torch.tensor([1.0, 2.0, 3.0])
TURNS = [torch.tensor(n) for n in (3, 0, -1)]


@singledispatch
def count_kind(n: Any) -> int:
    return 0


@count_kind.register
def _(n: int) -> int:
    return 5


def of_items(x: Tensor, t: Tensor) -> Any:
    n, b, f = t.item(), (t > 0).item(), x.sum().item()
    kinds = [isinstance(n, int), isinstance(b, bool), isinstance(f, float), isinstance(f, int)]
    more = [isinstance(n, numbers.Integral), type(n) is int, type(f) in (int, float)]
    match n:
        case int():
            x = x + 1
    return (
        x + {int: 1, float: 2}[type(n)] + count_kind(n) * count_kind(n + 1),
        kinds,
        more,
        n.__class__ is int,
    )


def of_merged(x: Tensor, t: Tensor) -> Any:
    n, f = (x.shape[0] + 1, 2.0) if t > 0 else (2, 3.0)
    if isinstance(n, int) and type(f) == float:  # noqa: E721
        return x + n
    return x * 2


@pytest.mark.parametrize("function", [of_items, of_merged])
def test_a_number_of_the_program_is_of_pythons_class(function: Any) -> None:
    run = export(function, (X, TURNS[0])).module()
    for t in TURNS:
        torch.testing.assert_close(run(X, t), function(X, t))


def test_a_size_is_an_int_to_the_program_alone() -> None:
    def forward(x: Tensor) -> Any:
        n = x.shape[0]
        size = (n, 2) if isinstance(n, int) else n
        return x.new_zeros(size), isinstance(n, torch.SymInt)

    program = export(forward, (X,), dynamic_shapes=({0: Dim("n", min=2)},))
    assert program.module()(torch.ones(5))[0].shape == (5, 2)
    (size,) = next(iter(program.graph.nodes)).meta["val"].shape
    assert not isinstance(size, int)
    assert isinstance(size, torch.SymInt)


NUMBERS = itertools.count()


def test_an_iterator_from_outside_beside_a_branch() -> None:
    def forward(x: Tensor, t: Tensor) -> Any:
        y = x + 1 if t > 0 else x
        return y + next(NUMBERS)

    with pytest.raises(StrictError, match=r"NUMBERS, a global of .*a count -> further on"):
        export(forward, (X, TURNS[0]), strict=True)
    with pytest.warns(UserWarning, match="takes a value from NUMBERS"):
        export(forward, (X, TURNS[0]))


# --------------------------------------------------------------------------------- which tensor


def _is_first(y: Tensor, a: Tensor) -> bool:
    return y is a


def pick(t: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return a if t > 0 else b


def by_id(a: Tensor, b: Tensor, y: Tensor) -> Any:
    return id(y) == id(a)


def by_key(a: Tensor, b: Tensor, y: Tensor) -> Any:
    return {a: 1.0, b: 2.0}.get(y, 7.0)


def by_set(a: Tensor, b: Tensor, y: Tensor) -> Any:
    return y in {a}


def by_memory(a: Tensor, b: Tensor, y: Tensor) -> Any:
    return y.untyped_storage()._cdata == a.untyped_storage()._cdata


def by_write(a: Tensor, b: Tensor, y: Tensor) -> Any:
    y.add_(1)
    b.mul_(2)
    return a * 2 - b


@pytest.mark.parametrize("ask", [_is_first, by_id, by_key, by_set, by_write])
def test_which_tensor_it_is_where_data_decide(ask: Any) -> None:
    """The two ways go on apart."""

    def forward(x: Tensor, t: Tensor) -> Any:
        a, b = x + 1, x * 2
        y = a if t > 0 else b
        return y + (ask(y, a) if ask is _is_first else ask(a, b, y))

    run = export(forward, (X, TURNS[0])).module()
    for t in TURNS:
        torch.testing.assert_close(run(X, t), forward(X, t))


@pytest.mark.parametrize("ask", [_is_first, by_id, by_key, by_set, by_memory])
def test_which_tensor_a_function_returns_is_refused_where_data_decide(ask: Any) -> None:
    def forward(x: Tensor, t: Tensor) -> Any:
        a, b = x + 1, x * 2
        y = pick(t, a, b)
        return y + (ask(y, a) if ask is _is_first else ask(a, b, y))

    with pytest.raises(CaptureError, match=r"as it is\.\n  at .*test_objects.py"):
        export(forward, (X, TURNS[0]))


def test_other_objects_may_be_asked() -> None:
    def forward(x: Tensor, t: Tensor) -> Any:
        a, b = x + 1, x * 2
        y = a + 1 if t > 0 else b + 1
        return y + _is_first(a, a) + _is_first(b, a) + {a: 1.0, b: 2.0}[b] + (id(x) == id(a))

    run = export(forward, (X, TURNS[0])).module()
    for t in TURNS:
        torch.testing.assert_close(run(X, t), forward(X, t))


def test_what_a_loop_hands_on_is_no_certain_object() -> None:
    def forward(x: Tensor, t: Tensor) -> Any:
        h = first = torch.zeros(3)
        while t > 0:
            h = h + 5 if h is first else h + x
            t = t - 1
        return h

    with pytest.raises(CaptureError, match=r"hands on one as it is"):
        export(forward, (X, TURNS[0]))


# ------------------------------------------------------------------------------------- gradients


class Asking(nn.Module):
    def __init__(self, compute: Any) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))
        self.compute = compute

    def forward(self, x: Tensor, t: Tensor) -> Any:
        y = self.compute(self, x, t)
        return y + 1 if y.requires_grad else y * 3


class AskingAtOnce(Asking):
    def forward(self, x: Tensor, t: Tensor) -> Any:
        y = x * self.w if t > 0 else x * 2
        y = y + 1
        return (y + 1 if y.requires_grad else y * 3), y.is_leaf


def on_both(self: Any, x: Tensor, t: Tensor) -> Any:
    return x * self.w if t > 0 else x + self.w


def on_none(self: Any, x: Tensor, t: Tensor) -> Any:
    return x * self.w.detach() if t > 0 else x * 2


def in_each_turn(self: Any, x: Tensor, t: Tensor) -> Any:
    z = x * self.w
    while t > 0:
        z = z + x
        t = t - 1
    return z


def on_one(self: Any, x: Tensor, t: Tensor) -> Any:
    y = x * self.w if t > 0 else x * 2
    return y + 1


def detached_on_one(self: Any, x: Tensor, t: Tensor) -> Any:
    y = x * self.w
    return y if t > 0 else y.detach()


def after_a_turn(self: Any, x: Tensor, t: Tensor) -> Any:
    while t > 0:
        x = x * self.w
        t = t - 1
    return x


@pytest.mark.parametrize("compute", [on_both, on_none, in_each_turn, None])
def test_it_is_known_whether_there_is_a_gradient(compute: Any) -> None:
    module = Asking(compute) if compute else AskingAtOnce(None)
    run = export(module, (X, TURNS[0])).module()
    for t in TURNS:
        torch.testing.assert_close(run(X, t), module(X, t))


@pytest.mark.parametrize("compute", [on_one, detached_on_one, after_a_turn])
def test_whether_there_is_a_gradient_is_refused_where_data_decide(compute: Any) -> None:
    with pytest.raises(CaptureError, match=r"requires_grad was asked for.*\n  at .*test_objects"):
        export(Asking(compute), (X, TURNS[0]))


def test_the_class_of_a_parameter_where_data_decide() -> None:
    class Choosing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor, t: Tensor) -> Any:
            y = self.w if t > 0 else self.w * 2
            return x + y if isinstance(y, nn.Parameter) else x * y

    module = Choosing()
    run = export(module, (X, TURNS[0])).module()
    for t in TURNS:
        torch.testing.assert_close(run(X, t), module(X, t))


WEIGHT = nn.Parameter(torch.ones(3))


def test_a_parameter_from_outside_has_a_gradient() -> None:
    def forward(x: Tensor) -> Any:
        y = x * WEIGHT
        return y + 1 if y.requires_grad else y * 3

    torch.testing.assert_close(export(forward, (X,)).module()(X), forward(X))
