"""The words for sizes that vary: Dim and its arithmetic, hints, marks."""

from __future__ import annotations

import gc

import pytest
import torch

from lostwax import Dim, dims, mark_dynamic
from lostwax.capture.shapes.dims import (
    Auto,
    DerivedDim,
    Dynamic,
    Static,
    adopt_dim,
    mark_static,
    maybe_mark_dynamic,
)
from lostwax.capture.shapes.marks import MARKS, marks_of
from lostwax.errors import DynamicShapesError


def test_a_dim_has_a_name_and_a_range():
    batch = Dim("batch", min=2, max=8)
    assert (batch.__name__, batch.min, batch.max) == ("batch", 2, 8)
    assert repr(batch) == "Dim('batch', min=2, max=8)"
    assert str(batch) == "batch"
    assert (Dim("n").min, Dim("n").max) == (0, None)
    assert repr(Dim("n", max=3)) == "Dim('n', max=3)"
    assert Dim("one", min=4, max=4).max == 4


def test_dims_are_equal_by_name_and_range():
    assert Dim("a", min=1) == Dim("a", min=1)
    assert Dim("a", min=1) != Dim("a")
    assert Dim("a") != Dim("b")
    assert len({Dim("a"), Dim("a"), Dim("a", max=3)}) == 2


@pytest.mark.parametrize("names", [("a b",), ("a", "b"), ("a, b",)])
def test_dims_makes_several(names):
    assert dims(*names, min=1, max=9) == (Dim("a", min=1, max=9), Dim("b", min=1, max=9))


def test_arithmetic_gives_derived_dims():
    d = Dim("d", min=1, max=4)
    assert 2 * (d + 1) == DerivedDim(d, 2, 2)
    assert 16 * d - 1 == DerivedDim(d, 16, -1)
    assert (3 * (2 * d + 1) - 3).root is d
    assert 1 * d is d
    assert d + 1 - 1 is d
    assert [str(x) for x in (d + 1, 1 + d, d * 2, 2 * d - 3)] == [
        "d + 1",
        "d + 1",
        "2*d",
        "2*d - 3",
    ]
    assert (2 * d + 1).__name__ == "2*d + 1"
    assert ((2 * d + 1).min, (2 * d + 1).max) == (3, 9)
    assert (Dim("e") - 1).min == 0  # no size is negative


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda d: d * Dim("e"), r"\(d\)\*e: a dim cannot be declared by a relation of two dims"),
        (lambda d: d + Dim("e"), r"d \+ e: .* a relation of two dims"),
        (lambda d: d / 2, r"\(d\)/2: .* quotients"),
        (lambda d: d // 2, "quotients"),
        (lambda d: d % 2, r"\(d\) % 2: .* remainders"),
        (lambda d: d**2, r"\(d\)\*\*2: .* powers"),
        (lambda d: 8 - d, "sizes that shrink"),
        (lambda d: -d, "sizes that shrink"),
        (lambda d: d * 0, "sizes that shrink"),
        (lambda d: d * 1.5, r"1\.5, which is no int"),
        (lambda d: d + True, "True, which is no int"),
    ],
)
def test_other_arithmetic_says_what_can_be_written(make, text):
    with pytest.raises(DynamicShapesError, match=text) as error:
        make(Dim("d"))
    assert "dim + 1, 2*dim or 16*dim - 1" in str(error.value)
    assert 'constraints=["h == w"' in str(error.value)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Dim("my batch"), r'not \'my batch\'\n  instead: Dim\("my_batch"\)'),
        (lambda: Dim("2d"), r'instead: Dim\("dim_2d"\)'),
        (lambda: Dim(3), "must be a Python identifier, not 3"),
        (lambda: Dim("d", min=5, max=3), "no size is at least 5 and at most 3"),
        (lambda: Dim("d", min=-1), "never negative"),
        (lambda: Dim("d", max=2.5), "max must be an int or None, not 2.5"),
        (lambda: Dim.AUTO(min=5, max=3), r"Dim.AUTO\(min=5, max=3\): no size"),
        (lambda: Dim.AUTO(min=5)(max=8), r"has its range already\n  instead: Dim.AUTO\(max=8\)"),
        (lambda: Dim.STATIC(min=5), "Dim.STATIC has no range"),
    ],
)
def test_wrong_declarations(make, text):
    with pytest.raises(DynamicShapesError, match=text):
        make()


def test_hints():
    assert Auto() == Dim.AUTO
    assert Dim.DYNAMIC(min=2, max=8) == Dynamic(2, 8)
    assert Dim.AUTO(max=8) == Auto(None, 8)
    assert [repr(h) for h in (Dim.AUTO, Dim.DYNAMIC(min=2), Dim.STATIC)] == [
        "Dim.AUTO",
        "Dim.DYNAMIC(min=2)",
        "Dim.STATIC",
    ]


def test_marks_leave_the_tensor_as_it_was():
    x = torch.zeros(2, 3, 4)
    before = dict(x.__dict__)
    mark_dynamic(x, 0, min=1, max=8)
    mark_dynamic(x, (1, -1))
    assert x.__dict__ == before
    assert marks_of(x) == {0: Dynamic(1, 8), 1: Dynamic(), 2: Dynamic()}
    maybe_mark_dynamic(x, 1)
    mark_static(x, 2)
    assert marks_of(x) == {0: Dynamic(1, 8), 1: Auto(), 2: Static()}
    mark_static(x)
    assert set(marks_of(x).values()) == {Static()}
    with pytest.raises(DynamicShapesError, match=r"has 3 dimension\(s\), there is no dimension 3"):
        mark_dynamic(x, 3)
    with pytest.raises(DynamicShapesError, match="only tensors can be marked, not a int"):
        mark_dynamic(3, 0)


def test_marks_die_with_their_tensor_and_are_not_those_of_an_equal_one():
    x, y = torch.zeros(2), torch.zeros(2)
    mark_dynamic(x, 0)
    assert marks_of(y) == {}
    gc.collect()  # what other tests have left
    count = len(MARKS)
    del x
    gc.collect()
    assert len(MARKS) == count - 1


def test_dims_of_torch_are_understood():
    theirs = torch.export.Dim("d", min=1, max=4)
    assert adopt_dim(theirs) == Dim("d", min=1, max=4)
    assert adopt_dim(torch.export.Dim("e")) == Dim("e")
    assert adopt_dim(2 * theirs - 1) == 2 * Dim("d", min=1, max=4) - 1
    assert adopt_dim(torch.export.Dim.AUTO) == Dim.AUTO
    assert adopt_dim(torch.export.Dim.DYNAMIC(max=9)) == Dim.DYNAMIC(max=9)
    assert adopt_dim(torch.export.Dim.STATIC) == Dim.STATIC
    assert adopt_dim(3) == 3
