"""What users put on tensors, `mask.is_causal = True`, where data decide which tensor it is, or what
is put on it: as in eager, or refused with the line that asks."""

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
EXAMPLES = (X, -X, X / 10)
Program = Callable[[Any, Any], Any]


class Weights(nn.Module):
    """`w` and `v` are two weights, of which `w` is marked."""

    def __init__(self, body: Program) -> None:
        super().__init__()
        self.body = body
        self.w, self.v = nn.Parameter(torch.ones(3)), nn.Parameter(torch.full((3,), 2.0))
        self.register_buffer("b", torch.ones(3))
        self.w.scale, self.w._own, self.b.scale = 5.0, 3.0, 4.0  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Any:
        return self.body(self, x)


def _put_on_two(m: Any, x: Any) -> Any:
    if x.sum() > 0:
        t = x * 2
        t.scale = 7
    else:
        t = x * 3
        t.scale = 3
    return t * t.scale


def _put_on_one(m: Any, x: Any) -> Any:
    t = x * 2
    if x.sum() > 0:
        t = x * 3
        t.scale = 7
    return t * getattr(t, "scale", 1)


def _put_on_what_was_there(m: Any, x: Any) -> Any:
    t = x * 2
    t.scale, t.is_causal = 4, True
    if x.sum() > 0:
        t.scale = t.scale + 1
        del t.is_causal
    return t * t.scale + (2 if hasattr(t, "is_causal") else 3)


def _chosen(m: Any, x: Any) -> Any:
    a, b = x * 2, x * 3
    a.scale, b.scale = 7, 3
    y = a if x.sum() > 0 else b
    return y * y.scale


def _none_or_a_number(m: Any, x: Any) -> Any:
    y = x * 1
    y.k = None
    if x.sum() > 0:
        y.k = 3
    return y if y.k is None else y * y.k


def _copied(m: Any, x: Any) -> Any:
    y = x * 1
    y.k, y.all = 3, [x + 1]
    z = deepcopy(y)
    y.all.append(x)
    w = z if x.sum() > 0 else y + 1
    return w * getattr(w, "k", 1) + len(z.all) - len(y.all)


def _asked_by_dict(m: Any, x: Any) -> Any:
    a, b = x * 2, x * 3
    a.marked = True
    y = a if x.sum() > 0 else b
    return y + ("marked" in vars(y)) + 2 * ("marked" in y.__dict__)


def _hides_a_method(m: Any, x: Any) -> Any:
    if x.sum() > 0:
        y = x * 2
        y.mode = "a"
    else:
        y = x * 3
        y.mode = "b"
    return y * 7 if y.mode == "a" else y * 5


def _chosen_weight(m: Any, x: Any) -> Any:
    w = m.w if x.sum() > 0 else m.v
    return w * x * getattr(w, "scale", 1.0) + getattr(w, "_own", 0.0)


def _of_weights(m: Any, x: Any) -> Any:
    return x * m.w._own + hasattr(m.v, "_own")


def _swapped(m: Any, x: Any) -> Any:
    a, b = x * 2, x * 3
    a.n, b.n = 1, 2
    if x.sum() > 0:
        a, b = b, a
    return a * a.n - b * b.n


def _returned_numbers(m: Any, x: Any) -> Any:
    def make() -> Any:
        y = x * 2 if x.sum() > 0 else x * 3
        if x.sum() > 0:
            y.k, y.f, y.mask, y.meta, y.is_new = 2, 0.5, x > 0, {"n": 2}, True
        else:
            y.k, y.f, y.mask, y.meta, y.is_new = 3, 1.5, x < -1, {"n": 7}, False
        return y

    y = make()
    z = y + 1 if y.is_new else y - 1
    return z * y.k + y.f * y.mask + y.meta["n"]


def _returned_early(m: Any, x: Any) -> Any:
    def make() -> Any:
        if x.sum() > 0:
            y = x * 2
            y.scale = 7
            return y
        y = x * 3
        y.scale = 5
        return y

    y = make()
    return y * y.scale


def _picked(m: Any, x: Any) -> Any:
    xs = [x * 2, x * 3]
    xs[0].s, xs[1].s = 2, 3
    y = xs[(x.sum() > 0).long()]
    return y * y.s


def _counted_in_a_loop(m: Any, x: Any) -> Any:
    t, s = x.abs() + 1, x.abs() + 1
    t.n = 1
    while s.sum() < 100:
        s = s * 2
        t.n = t.n + 1
    return t * t.n


def _written_after(m: Any, x: Any) -> Any:
    a, b = x * 2, x * 3
    y = a if x.sum() > 0 else b
    y.n = 2
    return a * getattr(a, "n", 1) + b


def _nobody_asks(m: Any, x: Any) -> Any:
    def make() -> Any:
        y = x * 2 if x.sum() > 0 else m.w * 2
        if x.sum() > 0:
            y.tag = "positive"
        return y

    y = make()
    while y.sum() < 100:
        y = y.abs() * 2 + 1
        y.tag = "larger"
    return y + 1


def _set_on_what_a_function_makes(m: Any, x: Any) -> Any:
    def make() -> Any:
        return x * 2 if x.sum() > 0 else x * 3

    y = make()
    y.scale = 3
    return y * y.scale


def _counted(m: Any, x: Any) -> Any:
    y = x * 2
    y.n = 1
    y.add_(1)
    return x + len(vars(y)) if y[0] > 0 else x - len(vars(y))


def _set_to_what_it_is(m: Any, x: Any) -> Any:
    a, b = x * 2, x * 3
    a.n = b.n = 2

    def pick() -> Any:
        return a if x.sum() > 0 else b

    y = pick()
    y.n = 2
    return y * y.n + a * a.n


def _copied_buffer(m: Any, x: Any) -> Any:
    if x.sum() > 0:
        x = x + 1
    return x * deepcopy(m.b).scale + ("scale" in dir(m.w)) + ("_own" in vars(m.w))


CAPTURED: list[Program] = [
    _put_on_two, _put_on_one, _put_on_what_was_there, _chosen, _none_or_a_number, _asked_by_dict,
    _hides_a_method, _copied, _chosen_weight, _of_weights, _swapped, _returned_numbers,
    _returned_early, _picked, _counted_in_a_loop, _written_after, _nobody_asks,
    _set_on_what_a_function_makes, _set_to_what_it_is, _copied_buffer, _counted,
]  # fmt: skip


@pytest.mark.parametrize("body", CAPTURED)
def test_it_is_as_in_eager(body: Program) -> None:
    module = Weights(body)
    run = export(module, (EXAMPLES[0],)).module()
    for x in EXAMPLES:
        torch.testing.assert_close(run(x.clone()), module(x.clone()))


def test_a_strict_export_has_it_too() -> None:
    module = Weights(_put_on_two)
    run = export(module, (X,), strict=True).module()
    for x in EXAMPLES:
        torch.testing.assert_close(run(x), module(x))


def _of_another_function(m: Any, x: Any) -> Any:
    a, b = x * 2, x * 3
    a.marked = True

    def pick() -> Any:
        return a if x.sum() > 0 else b

    return x + 1 if getattr(pick(), "marked", False) else x  # asks


def _lost_in_a_loop(m: Any, x: Any) -> Any:
    t = x.abs() + 1
    t.n = 3
    while t.sum() < 100:
        t = t * 2
    return t * getattr(t, "n", 5)  # asks


def _put_on_in_a_loop(m: Any, x: Any) -> Any:
    t = x.abs() + 1
    while t.sum() < 100:
        t = t * 2
        t.n = 3
    return t * getattr(t, "n", 5)  # asks


def _handed_on(m: Any, x: Any) -> Any:
    t = x.abs() + 1
    t.n = 0
    while t.sum() < 100:
        n = t.n  # asks
        t = t * 2
        t.n = n + 1
    return t


def _all_of_it(m: Any, x: Any) -> Any:
    def make() -> Any:
        y = x * 2
        if x.sum() > 0:
            y.tag = "positive"
        return y

    return x + len(vars(make()))  # asks


def _choose(c: Any, a: Any, b: Any) -> Any:
    return a if c else b


def _given_more(m: Any, x: Any) -> Any:
    a = x * 2

    def mark() -> None:
        if x.sum() > 0:
            a.n = "a"

    def mark_again() -> None:
        if x[0] > 0:
            a.other = 2

    mark()
    mark_again()
    return x * 2 if getattr(a, "n", "") == "a" else x  # asks


def _chosen_twice(m: Any, x: Any) -> Any:
    a = x * 2
    a.n = 3
    y = _choose(x[0] > 0, _choose(x.sum() > 0, a, x * 3), x * 4)
    return y * getattr(y, "n", 1)  # asks


def _chosen_weight_twice(m: Any, x: Any) -> Any:
    y = _choose(x[0] > 0, _choose(x.sum() > 0, m.w, m.v), x * 4)
    return y * getattr(y, "_own", 1)  # asks


def _chosen_before_a_loop(m: Any, x: Any) -> Any:
    a = x.abs()
    a.n = 3
    y = _choose(x.sum() > 0, a, a + 1)
    while y.sum() < 10:
        y = y * 2 + 1
    return y * getattr(y, "n", 1)  # asks


def _copied_after(m: Any, x: Any) -> Any:
    a = x * 2
    a.n = 3
    y = deepcopy(_choose(x.sum() > 0, a, x * 3))
    return y * getattr(y, "n", 1)  # asks


def _by_dir(m: Any, x: Any) -> Any:
    a = x * 2
    a.n = 3
    return x + ("n" in dir(_choose(x.sum() > 0, a, x * 3)))  # asks


def _set_in_its_dict(m: Any, x: Any) -> Any:
    a = x * 2
    vars(_choose(x.sum() > 0, a, x * 3))["n"] = 4  # asks
    return x * getattr(a, "n", 1)


ASKED: list[Program] = [
    _of_another_function, _lost_in_a_loop, _put_on_in_a_loop, _handed_on, _all_of_it, _given_more,
    _chosen_twice, _chosen_weight_twice, _chosen_before_a_loop, _copied_after, _by_dir,
    _set_in_its_dict,
]  # fmt: skip


@pytest.mark.parametrize("body", ASKED)
def test_what_data_decide_is_refused_where_it_is_asked_for(body: Program) -> None:
    pattern = (
        r"(n|_own|marked|the attributes) of a tensor was asked for, and data decide what is on it"
        r"\.\n  at .*test_attributes\.py.*# asks\n[\s\S]*instead: keep it in a variable"
    )
    with pytest.raises(CaptureError, match=pattern):
        export(Weights(body), (X,))


def _set_later(m: Any, x: Any) -> Any:
    a = x * 2

    def pick() -> Any:
        return a if x.sum() > 0 else x * 3

    y = pick()
    y.n = 5
    return a * getattr(a, "n", 1)


def _set_later_on_the_other(m: Any, x: Any) -> Any:
    a = x * 2

    def pick() -> Any:
        return a if x.sum() > 0 else x * 3

    y = pick()
    a.n = 5
    return y * getattr(y, "n", 1)


def _set_on_one_side(m: Any, x: Any) -> Any:
    a = x * 2
    a.n = 1
    y = _choose(x.sum() > 0, a, x * 3)
    if x[0] > 0:
        y.n = 5
    return a * a.n


def _set_on_both_sides(m: Any, x: Any) -> Any:
    a = x * 2
    y = _choose(x.sum() > 0, a, x * 3)
    if x[0] > 0:
        y.n = 5
    else:
        y.n = 5
    return a * getattr(a, "n", 1)


def _set_when_chosen_twice(m: Any, x: Any) -> Any:
    a = x * 2

    def pick() -> Any:
        if x.sum() > 0:
            return a if x[0] > 0 else x * 3
        return x * 4

    y = pick()
    y.n = 5
    return a * getattr(a, "n", 1)


def _set_after_a_loop(m: Any, x: Any) -> Any:
    a = x.abs()

    def grow() -> Any:
        t = a
        while t.sum() < 3:
            t = t * 2 + 1
        return t

    y = grow()
    y.n = 5
    return a * getattr(a, "n", 1)


def _set_for_a_while(m: Any, x: Any) -> Any:
    a, b = x * 2, x * 3
    a.n = b.n = 1
    y = _choose(x.sum() > 0, a, b)
    y.n = 5
    z = x * a.n
    y.n = 1
    return z


def _deleted_for_a_while(m: Any, x: Any) -> Any:
    a, b = x * 2, x * 3
    a.n = b.n = 7
    y = _choose(x.sum() > 0, a, b)
    del a.n
    z = x * getattr(y, "n", 1)
    a.n = 7
    return z


def _on_what_may_be_a_weight(m: Any, x: Any) -> Any:
    y = _choose(x.sum() > 0, x * 2, m.w)
    if x[0] > 0:
        y.n = 5
    return y + 1


def _on_a_weight(m: Any, x: Any) -> Any:
    if x.sum() > 0:
        m.w.n = 1
    return x * m.w


def _on_a_weight_in_any_case(m: Any, x: Any) -> Any:
    m.w.n = 1
    return x * 2 if x.sum() > 0 else x * m.w


MASK: Any = torch.ones(3)
MASK.n = 4


def _on_a_global(m: Any, x: Any) -> Any:
    if x.sum() > 0:
        MASK.n = 5
    return x * MASK.n


def _hidden_in_a_loop(m: Any, x: Any) -> Any:
    t = x.abs() + 1
    t.mode = "a"
    while t.sum() < 100:
        t = t * 2
    return t


def _new_in_a_loop(m: Any, x: Any) -> Any:
    t, s = x.abs() + 1, x.abs() + 1
    while s.sum() < 100:
        s = s * 2
        t.n = 1
    return t


def _hidden_on_one_side(m: Any, x: Any) -> Any:
    def make() -> Any:
        y = x * 2 if x.sum() > 0 else x * 3
        if x.sum() > 0:
            y.mode = "a"
        return y

    return x * 2 if make().mode == "a" else x


def _appended(m: Any, x: Any) -> Any:
    outs, t = [], x.abs() + 1
    while t.sum() < 100:
        t = t * 2
        y = t + 1
        y.n = 2
        outs.append(y)
    return torch.stack(outs) * outs[0].n


def _set_by_object(m: Any, x: Any) -> Any:
    a, b = x * 2, x * 3
    object.__setattr__(_choose(x.sum() > 0, a, b), "n", 5)  # by object
    return x + getattr(a, "n", 0)


def _set_by_the_class(m: Any, x: Any) -> Any:
    a, b = x * 2, x * 3
    torch.Tensor.__setattr__(_choose(x.sum() > 0, a, b), "n", 5)  # by object
    return x + getattr(a, "n", 0)


def _deleted_by_object(m: Any, x: Any) -> Any:
    a, b = x * 2, x * 3
    a.n = b.n = 1
    object.__delattr__(_choose(x.sum() > 0, a, b), "n")  # by object
    return x + getattr(a, "n", 0)


BY_OBJECT = r"n is set on a tensor, and data decide which tensor it is\.\n  at .*# by object"
SET: list[tuple[Program, str]] = [
    *[(each, BY_OBJECT) for each in (_set_by_object, _set_by_the_class, _deleted_by_object)],
    (_set_later, r"n is set on a tensor, and data decide which tensor it is\.\n  at .*: y\.n = 5"),
    (_set_later_on_the_other, r"n is set on a tensor, and data decide which .*\n  at .*: a\.n = 5"),
    (_set_on_one_side, r"n is set on a tensor, and data decide which .*\n  at .*: y\.n = 5"),
    (_set_on_both_sides, r"n is set on a tensor, and data decide which .*\n  at .*: y\.n = 5"),
    (_set_when_chosen_twice, r"n is set on a tensor, and data decide .*\n  at .*: y\.n = 5"),
    (_set_after_a_loop, r"n is set on a tensor, and data decide which .*\n  at .*: y\.n = 5"),
    (_set_for_a_while, r"n is set on a tensor, and data decide which .*\n  at .*: y\.n = 5"),
    (_deleted_for_a_while, r"n is set on a tensor, and data decide which .*\n  at .*: del a\.n"),
    (_on_what_may_be_a_weight, r"n is set on a tensor, and data decide .*\n  at .*: y\.n = 5"),
    (_on_a_weight, r"put on a tensor that is there before the call, n\.\n  at .*: if x\.sum"),
    (_on_a_global, r"put on a tensor that is there before the call, n\.\n  at .*: if x\.sum"),
    (_on_a_weight_in_any_case, r"parameter w is given the attribute n\.\n  at .*: m\.w\.n = 1"),
    (_hidden_in_a_loop, r"in a loop on data mode is put on a tensor\.\n  at .*: while"),
    (_new_in_a_loop, r"in a loop on data n of (t|a tensor) is set or deleted\.\n  at .*: while"),
    (_hidden_on_one_side, r"mode is 'a' on the True side, and not set on the False side\.\n  at "),
    (_appended, r"a tensor is in outs on which there is an attribute\.\n  at .*: while"),
]


@pytest.mark.parametrize(("body", "pattern"), SET)
def test_what_would_have_to_be_on_another_tensor_is_refused(body: Program, pattern: str) -> None:
    with pytest.raises(CaptureError, match=pattern):
        export(Weights(body), (X,))
