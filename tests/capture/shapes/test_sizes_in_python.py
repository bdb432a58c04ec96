"""Sizes in the user's own Python: floats made of them, keys, strides, lengths. What eager does at
every size, or a guard that says where the program holds.
"""

from __future__ import annotations

import math
import re
from math import sqrt as root
from typing import Any

import pytest
import torch
from torch import divide

from lostwax import Dim, capture, export, refine_dynamic_shapes_from_suggested_fixes
from lostwax.errors import (
    CaptureError,
    ConstraintViolationError,
    DataDependentError,
    DynamicShapesError,
    InputValueError,
)

SIZES = (0, 1, 2, 3, 5, 8, 13, 40)


def at_all_sizes(function: Any, program: Any, sizes: Any = SIZES) -> set[int]:
    """The sizes at which the program runs, and does what eager does; it refuses the others."""
    module, taken = program.module(), set()
    for size in sizes:
        x = torch.randn(size, 3)
        try:
            got = module(x)
        except (InputValueError, ZeroDivisionError):
            continue
        taken.add(size)
        torch.testing.assert_close(got, function(x), rtol=0, atol=0)
    return taken


FLOATS = [
    (lambda x: x[: int(x.shape[0] * 0.3)], "x.shape[0] >= 10 and x.shape[0] <= 13", 10, 13),
    (lambda x: x * 2 if x.shape[0] ** 0.5 > 3 else x, "x.shape[0] >= 10", 10, None),
    (lambda x: x * 2 if x.shape[0] * 0.3 < 3.5 else x, "x.shape[0] <= 11", None, 11),
    (lambda x: x * 2 if (x.shape[0] + 1) ** 0.5 <= 4 else x, "x.shape[0] <= 15", None, 15),
]


@pytest.mark.parametrize(("function", "condition", "lo", "hi"), FLOATS)
def test_a_question_to_a_float_of_a_size_is_a_range_of_the_size(function, condition, lo, hi):
    example = (torch.randn(10, 3),)
    program = export(function, example, dynamic_shapes={"x": {0: Dim.AUTO}})
    assert [g.predicate for g in program.guards] == [condition]
    assert list(map(str, program.range_constraints)) == ["s0"]
    expected = {s for s in SIZES if (lo or 0) <= s <= (hi or 100)}
    assert at_all_sizes(function, program) == expected


@pytest.mark.parametrize(("function", "condition", "lo", "hi"), FLOATS)
def test_a_dim_that_a_float_narrows_is_told_with_a_fix(function, condition, lo, hi):
    example, shapes = (torch.randn(10, 3),), {"x": {0: Dim("n")}}
    with pytest.raises(ConstraintViolationError) as caught:
        export(function, example, dynamic_shapes=shapes)
    assert f"the program is right only where {condition}, which is not so at n = " in str(
        caught.value
    )
    shapes = refine_dynamic_shapes_from_suggested_fixes(caught.value, shapes)
    assert repr(shapes["x"][0]) == repr(Dim("n", min=lo, max=hi))
    assert at_all_sizes(function, export(function, example, dynamic_shapes=shapes))


def test_a_constraint_that_divides_is_checked_after_what_it_divides_by():
    def double(x):
        return x * 2

    shapes = {"x": {0: Dim("n"), 1: Dim("k")}}
    program = export(
        double, (torch.randn(4, 3),), dynamic_shapes=shapes, constraints=["n % k == 1"]
    )
    with pytest.raises(InputValueError, match=r"x\.shape\[1\] != 0"):
        program.module()(torch.randn(4, 0))


KEPT = [
    lambda x: x * math.sqrt(x.shape[0]),
    lambda x: x.new_zeros(math.floor(math.sqrt(x.shape[0]))),
    lambda x: x + torch.tensor(x.shape[0]),
    lambda x: torch.tensor([x.shape, (1, 2)]),
    lambda x: torch.tensor([x.shape[0] / 3, x.shape[0]], dtype=torch.float64),
    lambda x: torch.as_tensor([x.shape[0] > 2, True]),
    lambda x: torch.linspace(-1, 1, steps=x.shape[0]),
    lambda x: torch.linspace(0.5, x.shape[0] - 0.5, x.shape[0] + 1, dtype=torch.float64),
    lambda x: x.new_zeros(x.stride(0), x.mT.stride(-1)),
    lambda x: x.new_zeros(max(x.shape), min(*x.shape)),
    lambda x: x[: min(x.shape[1], 4, len(x.shape))] * max(n + 1 for n in x.shape),
    lambda x: x.new_zeros(LARGEST["of"](x.shape[0], 5)) + min([x.shape[0]], default=3),
    lambda x: max(x.shape, key=lambda n: 0) * x + max([], default=1) + max(0.5, 1),
    lambda x: x * math.pow(x.shape[0], 0.5) + root(x.shape[0]),
    lambda x: x * math.pow(2, x.shape[0]) - math.pow(x.shape[1] / 2, 2),
    lambda x: x.new_zeros(torch.div(x.shape[0], 2, rounding_mode="trunc")),
    lambda x: x.new_zeros(torch.div(x.shape[0] + 3, 2, rounding_mode="floor"), torch.add(7, 2)),
    lambda x: [combine(a, b) for a in (7, x.shape[0], x.shape[0] * 0.3) for b in (2, -0.5)
               for combine in (torch.add, torch.sub, torch.mul, torch.true_divide, divide)],
    lambda x: [torch.add(True, x.shape[0], alpha=2), torch.sub(input=x.shape[0], other=3),
               torch.floor_divide(-x.shape[0], 2), torch.mul(2, x), torch.div(-7, 2)],
    lambda x: x * torch.tensor(x.shape[0]).item() + torch.tensor(x.shape[0]).add_(1).item(),
]  # fmt: skip
LARGEST = {"of": max}


@pytest.mark.parametrize("function", KEPT)
def test_a_size_stays_a_size(function):
    shapes = {"x": {0: Dim("n"), 1: Dim("k")}}
    program = export(function, (torch.randn(4, 3),), dynamic_shapes=shapes)
    assert at_all_sizes(function, program) == set(SIZES)
    for size in ((4, 0), (0, 0), (1, 1), (2, 5)):
        x = torch.randn(size)
        torch.testing.assert_close(program.module()(x), function(x), rtol=0, atol=0)


def test_the_larger_of_two_sizes_needs_no_guard():
    def function(x, y):
        lengths = (x > 0).nonzero().shape[0], (y > 0).nonzero().shape[0]
        both = x[: min(len(x.shape), x.shape[0], y.shape[0])]
        return x.new_ones(max(x.shape[0], y.shape[0])), both, x.new_ones(max(lengths))

    shapes = ({0: Dim("n")}, {0: Dim("m")})
    program = export(function, (torch.randn(4), torch.randn(5)), dynamic_shapes=shapes)
    assert not program.guards
    for n, m in ((4, 5), (5, 4), (3, 3), (0, 7), (9, 1)):
        args = torch.randn(n), torch.randn(m)
        torch.testing.assert_close(program.module()(*args), function(*args))


def test_a_stride_that_is_another_one_of_what_is_empty():
    def function(x):
        return x.new_zeros(x.stride(1))

    shapes = {"x": {0: Dim("n"), 1: Dim("k")}}
    module = export(function, (torch.randn(3, 4).t(),), dynamic_shapes=shapes).module()
    for size in ((3, 4), (1, 1), (5, 2)):
        x = torch.randn(size).t()
        torch.testing.assert_close(module(x), function(x), rtol=0, atol=0)
    with pytest.raises(RuntimeError, match=r"must have strides[\s\S]*what is not row-major"):
        module(torch.randn(3, 0).t())


@pytest.mark.parametrize(
    "function",
    [
        lambda x: {5: x + 1, 3: x + 2}.get(x.shape[0], x),
        lambda x: x * 2 if x.shape[0] in {3, 5} else x,
        lambda x: {tuple(x.shape): x + 1}.get((5, 3), x),
    ],
)
def test_a_size_as_a_key_is_the_example_s(function):
    shapes = {"x": {0: Dim.AUTO}}
    for size in (5, 8):
        program = export(function, (torch.randn(size, 3),), dynamic_shapes=shapes)
        assert at_all_sizes(function, program) == {size}


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (lambda x: x * len(x), "write x.shape[0]"),
        (lambda x: x.new_zeros(x.shape.numel()), "write x.numel()"),
        (lambda x: x * float(x.shape[0]), "torch.sym_float(n)"),
        (lambda x: x[: int(x.shape[0] * 0.3)], "math.floor(n * 0.3)"),
        (lambda x: [row * 2 for row in x], "compute on the whole tensor"),
        (lambda x: torch.stack([x] * x.shape[0]), "use expand() or repeat()"),
    ],
)
def test_what_needs_a_plain_number_is_told_with_another_way(function, advice):
    with pytest.raises(ConstraintViolationError, match=re.escape(advice)):
        export(function, (torch.randn(4, 3),), dynamic_shapes={"x": {0: Dim("n")}})


def test_a_branch_on_data_is_told_as_it_would_be_stated():
    def between(x, k):
        n = x.nonzero().shape[0]
        return x * 2 if (n == 3) | (n == 4) else x

    def above(x, k):
        return x * 2 if k > 1 else x

    example, shapes = (torch.randn(5), 2.5), (None, Dim.DYNAMIC)
    with pytest.raises(DataDependentError) as caught:
        export(between, example, dynamic_shapes=shapes, control_flow="refuse")
    text = "torch._check((u0 == 3) | (u0 == 4)) or torch._check((u0 != 3) & (u0 != 4))"
    assert text in str(caught.value)
    with pytest.raises(DataDependentError) as caught:
        export(above, example, dynamic_shapes=shapes, control_flow="refuse")
    assert "torch._check(f0 > 1.0) or torch._check(torch.sym_not(f0 > 1.0))" in str(caught.value)
    assert "torch.where(condition, a, b)" in str(caught.value)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[x > 0][:1] + torch.arange(4),
        lambda x: x[x > 0][:1].expand(4),
        lambda x: x[x > 0][:1].squeeze(0),
        lambda x: torch.zeros(4).copy_(x[x > 0][:1]),
        lambda x: torch.zeros(9).index_put((torch.tensor([1, 2]),), x[x > 0][:1]),
    ],
)
def test_one_row_or_none_broadcasts_as_one(function):
    program = export(function, (torch.randn(5),))
    x = torch.tensor([-1.0, 2.0, -3.0, 4.0, 5.0])
    torch.testing.assert_close(program.module()(x), function(x))
    with pytest.raises(RuntimeError, match="is required at"):
        program.module()(-torch.ones(5))


def state_it(x):
    found = x.nonzero()
    torch._check(found.shape[0] != 1)
    return found.squeeze()


@pytest.mark.parametrize(
    ("function", "instead"),
    [
        (lambda x: x.nonzero().squeeze(), lambda x: x.nonzero().squeeze(-1)),
        (lambda x: x[x > 0].squeeze(), lambda x: x[x > 0]),
        (lambda x: x[x > 0].squeeze(0).sum(), lambda x: x[x > 0].sum()),
        (lambda x: x.nonzero().squeeze((0, 1)), state_it),
    ],
)
def test_squeeze_of_a_size_that_data_decide(function, instead):
    x = torch.tensor([-1.0, 2.0, 0.0, 4.0])
    text = r"squeeze\(\) of the size u0[\s\S]*_in_python.py[\s\S]*instead: .*squeeze\(-1\).*_check"
    with pytest.raises(DataDependentError, match=text):
        export(function, (x,))
    run = export(instead, (x,)).module()
    for each in (x, -x, torch.zeros(4), torch.tensor([0.0, 3.0, 2.0, 0.0])):
        torch.testing.assert_close(run(each), instead(each))


def asked_on_a_side(x):
    if x.sum() > 0:
        return x * 2 if x.shape[0] > 3 else x * 3
    return x


def asked_in_a_loop(x):
    while x.sum() > 10:
        x = x / 2 if x.shape[0] % 2 else x / 3
    return x


@pytest.mark.parametrize("function", [asked_on_a_side, asked_in_a_loop])
def test_sizes_that_are_asked_in_a_branch_on_data(function):
    x, sizes = torch.ones(5), ({0: Dim("n", min=1)},)
    text = (
        rf"x\.shape\[0\].* is asked in a branch on data, or in a loop[\s\S]*in {function.__name__}"
        r'[\s\S]*why: the example[\s\S]*instead: export\(\.\.\., control_flow="sizes"\)'
    )
    with pytest.raises(CaptureError, match=text):
        export(function, (x,), dynamic_shapes=sizes)
    run = export(function, (x,), dynamic_shapes=sizes, control_flow="sizes").module()
    for n in (1, 2, 3, 4, 5, 8):
        for scale in (9, -1):
            torch.testing.assert_close(run(torch.ones(n) * scale), function(torch.ones(n) * scale))
    fixed = export(function, (x,)).module()  # nothing is declared
    torch.testing.assert_close(fixed(x * 9), function(x * 9))


def squeezed_on_a_side(x):
    if x.sum() > 0:
        return x.squeeze().sum()
    return x.sum()


def squeezed_in_a_loop_on_a_side(x):
    y = x.sum()
    if x.shape[0] > 2:
        y = y + 1
    if y > 0:
        for _ in range(2):
            y = y + [row.squeeze() for row in (x, x * 2)][1].mean()
    return y


@pytest.mark.parametrize("function", [squeezed_on_a_side, squeezed_in_a_loop_on_a_side])
def test_a_size_that_cannot_be_kept_in_a_branch_on_data_is_refused(function):
    """There is no program that is refused when it is called."""
    x, sizes = torch.ones(5, 1), ({0: Dim("n", min=1)},)
    text = (
        r"x\.shape\[0\] != 1 is asked in a branch on data[\s\S]*at .*_in_python.py:.*squeeze"
        r"[\s\S]*instead: ask before the branch.*squeeze\(\), name the dimension; or declare"
    )
    with pytest.raises(CaptureError, match=text):
        export(function, (x,), dynamic_shapes=sizes, control_flow="sizes")
    several = ({0: Dim("n", min=2)},)
    run = export(function, (x,), dynamic_shapes=several, control_flow="sizes").module()
    for n in (2, 3, 7):
        for scale in (1, -1):
            given = torch.ones(n, 1) * scale
            torch.testing.assert_close(run(given), function(given))


def test_small_mistakes_in_a_spec_are_told():
    x = torch.randn(4)

    def double(x, k=0):
        return x * 2

    with pytest.raises(DynamicShapesError, match=r"an int or None, not 4\.0"):
        export(double, (x,), dynamic_shapes={"x": {0: 4.0}})
    with pytest.raises(DynamicShapesError, match=r'instead: Dim\("dim_for"\)'):
        Dim("for")
    with pytest.raises(DynamicShapesError, match=r"instead: Dim\.DYNAMIC for k"):
        export(double, (x, -2), dynamic_shapes={"k": Dim("k")})
    with pytest.raises(DynamicShapesError, match=r"None .*, False or True, not 'yes'"):
        capture(double, dynamic="yes")


def test_what_a_check_says_is_in_the_error():
    def few(x, k):
        torch._check(x.shape[0] < 9, lambda: f"no more than 8 rows, got {x.shape[0]:d}")
        n = k.item()
        torch._check(n >= 0, lambda: "k is a count")
        torch._check(k.float().item() < 7.5)
        return x * n

    shapes = {"x": {0: Dim("n")}}
    module = export(few, (torch.randn(4), torch.tensor(2)), dynamic_shapes=shapes).module()
    torch.testing.assert_close(module(torch.ones(8), torch.tensor(3)), 3 * torch.ones(8))
    with pytest.raises(InputValueError, match="because the program checks it: no more than 8 rows"):
        module(torch.ones(9), torch.tensor(3))
    with pytest.raises(RuntimeError, match=r"u0 >= 0 is required at .*\n  because k is a count"):
        module(torch.ones(8), torch.tensor(-3))
    with pytest.raises(RuntimeError, match=r"f0 < 7.5 is required at "):
        module(torch.ones(8), torch.tensor(8))


def test_strides_that_vary_are_refused_by_name():
    def write(x):
        rows = x.transpose(0, -1).flatten()
        x.add_(1)
        return rows

    gapped = torch.randn(4, 6)[:, :3]
    with pytest.raises(CaptureError, match=r"needs x\.stride\(0\).*\n.*has gaps") as caught:
        export(write, (gapped,), dynamic_shapes={"x": {0: Dim.AUTO, 1: Dim.AUTO}})
    assert "x.contiguous()" in str(caught.value)
