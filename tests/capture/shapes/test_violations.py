"""A declared dimension that the program does not hold for: what the error says, and that its fix,
applied, works."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from lostwax import (
    AdditionalInputs,
    Dim,
    ShapesCollection,
    dims,
    export,
    refine_dynamic_shapes_from_suggested_fixes,
)
from lostwax.errors import ConstraintViolationError, DynamicShapesError, InputValueError

B, S = dims("batch seq")


def ones(*size):
    return torch.ones(size)


# The programs. Each asks something of its sizes.


def loop(x):
    for i in range(x.shape[0]):
        x = x + i
    return x


def turns(x, n):
    for i in range(n):
        x = x + i
    return x


def blocks(x):
    return x.reshape(-1, 8, x.shape[1])


def add(x, y):
    return x + y


def shifted(x, y):
    return x + y[1:]


def doubled(x, y):
    return torch.cat([x, x]) * y


def large(x):
    return x + 1 if x.shape[0] >= 4 else x - 1


def small(x):
    return x + 1 if x.shape[0] < 40 else x - 1


def odd(x):
    return x + 1 if x.shape[0] % 8 == 3 else x - 1


def ordered(x, y):
    return x if x.shape[0] <= y.shape[0] else y


def together(x, y):
    return torch.cat([x, y]) + ones(33, 2)


def not_seven(x):
    return x + 1 if x.shape[0] != 7 else x - 1


def fixed_together(x, y):
    return x + y + ones(8)


def halved_twice(x):
    half = x[: x.shape[0] // 2]
    quarter = half[: half.shape[0] // 2]
    return torch.cat([torch.cat([quarter, quarter]) + half] * 2) + x


def chained(x, y, z):
    if x.shape[0] >= 5 and x.shape[0] <= 36 and y.shape[0] % 3 == 0:
        return x + y[1:] + z[3:]
    return x


def quarters(x, y):
    return x.reshape(4, -1) + y.reshape(2, 2, -1).reshape(4, -1)


def several(x, y):
    y = x.reshape(-1, 8, 2).sum(1) + y.reshape(-1, 1) if x.shape[0] >= 16 else y
    return y + 1 if y.shape[0] < 100 else y


@dataclass
class Case:
    program: Any
    args: tuple[Any, ...]
    shapes: Any
    fixes: list[str]
    works: tuple[tuple[Any, ...], ...] = ()  # other inputs that the fixed program takes
    fails: tuple[Any, ...] = ()  # inputs that it was not to promise
    needs: list[str] = field(default_factory=list)


CASES = {
    "constant": Case(
        loop,
        (ones(3, 2),),
        {"x": {0: B}},
        ["batch = 3  # always"],
        fails=(ones(4, 2),),
    ),
    "constant without a name": Case(
        loop,
        (ones(3, 2),),
        {"x": {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}},
        ["x: {0: None}  # 3"],
        works=((ones(3, 5),),),
        fails=(ones(4, 2),),
    ),
    "constant number": Case(
        turns,
        (ones(3), 2),
        {"x": {0: B}, "n": Dim.DYNAMIC},
        ["n: None  # 2"],
        works=((ones(5), 2),),
        fails=(ones(3), 3),
    ),
    "equality": Case(
        add,
        (ones(4, 2), ones(4, 2)),
        {"x": {0: B}, "y": {0: S}},
        ["seq = batch  # one Dim for both"],
        works=((ones(1, 2), ones(1, 2)), (ones(0, 2), ones(0, 2))),
        fails=(ones(4, 2), ones(5, 2)),
    ),
    "derived": Case(
        shifted,
        (ones(4), ones(5)),
        {"x": {0: B}, "y": {0: S}},
        ["seq = batch + 1"],
        works=((ones(1), ones(2)), (ones(0), ones(1))),
        fails=(ones(4), ones(6)),
    ),
    "multiple": Case(
        doubled,
        (ones(4), ones(8)),
        ({0: B}, {0: S}),
        ["seq = 2*batch"],
        works=((ones(1), ones(2)), (ones(7), ones(14))),
        fails=(ones(4), ones(7)),
    ),
    "divisible": Case(
        blocks,
        (ones(16, 2),),
        {"x": {0: B, 1: S}},
        ['_batch = Dim("_batch")', "batch = 8*_batch"],
        works=((ones(8, 1),), (ones(0, 3),)),
        fails=(ones(12, 2),),
    ),
    "divisible with a rest": Case(
        odd,
        (ones(11, 2),),
        [{0: Dim("batch", max=64)}],
        ['_batch = Dim("_batch", max=7)', "batch = 8*_batch + 3"],
        works=((ones(3, 2),), (ones(59, 2),)),
        fails=(ones(12, 2),),
    ),
    "min": Case(
        large,
        (ones(5, 2),),
        {"x": (B, S)},
        ['batch = Dim("batch", min=4)'],
        works=((ones(4, 0),), (ones(99, 1),)),
        fails=(ones(3, 2),),
    ),
    "max": Case(
        small,
        (ones(5, 2),),
        "batch",
        ['batch = Dim("batch", max=39)'],
        works=((ones(39, 2),), (ones(0, 2),)),
        fails=(ones(40, 2),),
    ),
    "max of a derived dim": Case(
        small,
        (ones(6, 2),),
        {"x": {0: 2 * B}},
        ['batch = Dim("batch", max=19)'],
        works=((ones(38, 2),), (ones(0, 2),)),
        fails=(ones(40, 2),),
    ),
    "order": Case(
        ordered,
        (ones(4, 2), ones(5, 2)),
        {"*": {0: B}, "y": {0: S}},
        ['constraints=["batch <= seq"]'],
        works=((ones(3, 2), ones(3, 2)),),
        fails=(ones(3, 2), ones(2, 2)),
    ),
    "sum": Case(
        together,
        (ones(16, 2), ones(17, 2)),
        {"x": {0: B}, "y": {0: S}},
        ['constraints=["batch + seq == 33"]'],
        works=((ones(0, 2), ones(33, 2)),),
        fails=(ones(3, 2), ones(3, 2)),
    ),
    "not one size": Case(
        not_seven,
        (ones(4, 2),),
        {"x": {0: B}},
        ['constraints=["batch != 7"]'],
        works=((ones(6, 2),), (ones(8, 2),)),
        fails=(ones(7, 2),),
    ),
    "two constants": Case(
        fixed_together,
        (ones(8), ones(8)),
        {"x": {0: B}, "y": {0: S}},
        ["batch = 8  # always", "seq = 8  # always"],
        fails=(ones(9), ones(9)),
    ),
    "gaps in the range": Case(
        halved_twice,
        (ones(8),),
        {"x": {0: B}},
        ['_batch = Dim("_batch")', "batch = 4*_batch"],
        works=((ones(4),), (ones(0),)),
        fails=(ones(6),),
    ),
    "chained": Case(
        chained,
        (ones(11), ones(12), ones(14)),
        {"x": (Dim("dx"),), "y": (Dim("dy"),), "z": (Dim("dz"),)},
        ['_dy = Dim("_dy", min=2, max=12)', "dy = 3*_dy", "dx = 3*_dy - 1", "dz = dx + 3"],
        works=((ones(8), ones(9), ones(11)),),
        fails=(ones(9), ones(10), ones(12)),
    ),
    "tied, then a part": Case(
        lambda x, y, z: x + y + z[2:],
        (ones(4), ones(4), ones(6)),
        {"x": (Dim("a"),), "y": (Dim("b"),), "z": (Dim("c"),)},
        ["b = a  # one Dim for both", "c = a + 2"],
        works=((ones(0), ones(0), ones(2)), (ones(7), ones(7), ones(9))),
        fails=(ones(4), ones(4), ones(7)),
    ),
    "a part, then two that are tied": Case(
        lambda x, y, z: z[2:] + y + x,
        (ones(4), ones(4), ones(6)),
        {"x": (Dim("a"),), "y": (Dim("b"),), "z": (Dim("c"),)},
        ["b = a  # one Dim for both", "c = b + 2"],
        works=((ones(0), ones(0), ones(2)), (ones(7), ones(7), ones(9))),
        fails=(ones(4), ones(5), ones(6)),
    ),
    "parts of four": Case(
        lambda x, y, z, w: (z[2:] + w[1:], y[:-1] + z[2:], x + y),
        (ones(5), ones(5), ones(6), ones(5)),
        {"x": (Dim("a"),), "y": (Dim("b"),), "z": (Dim("c"),), "w": (Dim("d"),)},
        ["b = a  # one Dim for both", "c = b + 1", "d = c - 1"],
        works=((ones(8), ones(8), ones(9), ones(8)),),
        fails=(ones(5), ones(5), ones(6), ones(6)),
    ),
    "divisible together": Case(
        quarters,
        (ones(8), ones(8)),
        {"x": {0: B}, "y": {0: S}},
        ['_batch = Dim("_batch")', "batch = 4*_batch", "seq = 4*_batch"],
        works=((ones(4), ones(4)), (ones(0), ones(0))),
        fails=(ones(4), ones(8)),
    ),
    "several at once": Case(
        several,
        (ones(24, 2), ones(3)),
        {"x": {0: B}, "y": {0: S}},
        ['seq = Dim("seq", min=2, max=99)', "batch = 8*seq"],
        works=((ones(16, 2), ones(2)),),
        fails=(ones(24, 2), ones(2)),
    ),
}


@pytest.fixture(scope="module")
def errors():
    found = {}
    for name, case in CASES.items():
        with pytest.raises(ConstraintViolationError) as error:
            export(case.program, case.args, dynamic_shapes=case.shapes)
        found[name] = error.value
    return found


def suggested(error):
    lines = str(error).split("Suggested fixes:\n")[1].splitlines()
    return [line.strip() for line in lines]


@pytest.mark.parametrize("name", CASES)
def test_the_fix_is_code_to_paste(name, errors):
    assert suggested(errors[name]) == CASES[name].fixes


@pytest.mark.parametrize("name", CASES)
def test_the_fix_works(name, errors):
    case, error = CASES[name], errors[name]
    shapes = refine_dynamic_shapes_from_suggested_fixes(error, case.shapes)
    program = export(
        case.program, case.args, dynamic_shapes=shapes, constraints=error.constraints
    ).module()
    for args in (case.args, *case.works):
        torch.testing.assert_close(program(*args), case.program(*args))
    if case.fails:
        with pytest.raises(ValueError, match=r"shape|size|n is the int 3"):
            program(*case.fails)


@pytest.mark.parametrize("name", CASES)
def test_the_text_of_the_error_is_enough_where_dims_have_names(name, errors):
    case, error = CASES[name], errors[name]
    if name in ("constant without a name", "constant number"):
        with pytest.raises(DynamicShapesError, match="pass the error itself"):
            refine_dynamic_shapes_from_suggested_fixes(str(error), case.shapes)
        return
    from_text = refine_dynamic_shapes_from_suggested_fixes(str(error), case.shapes)
    assert from_text == refine_dynamic_shapes_from_suggested_fixes(error, case.shapes)


@pytest.mark.parametrize("name", CASES)
def test_the_spec_that_the_error_carries_works_too(name, errors):
    case, error = CASES[name], errors[name]
    export(
        case.program, case.args, dynamic_shapes=error.dynamic_shapes, constraints=error.constraints
    )


def test_the_whole_story():
    with pytest.raises(ConstraintViolationError) as error:
        export(blocks, (ones(16, 2),), dynamic_shapes={"x": {0: B}})
    lines = error.value.args[0].splitlines()
    assert lines[0] == (
        'a declared dimension cannot vary as declared; declare _batch = Dim("_batch"); '
        "batch = 8*_batch"
    )
    assert lines[1] == "  batch, declared Dim('batch'): x.shape[0] is batch (16 in the example)"
    assert "right only where x.shape[0] % 8 == 0, which is not so at batch = 17" in lines[2]
    assert lines[3].strip() == "because aten.reshape.default requires it"
    assert "test_violations.py" in lines[4]
    assert lines[4].endswith("in blocks: return x.reshape(-1, 8, x.shape[1])")


def test_a_loop_over_a_size_is_explained(errors):
    assert "at tests/capture/shapes/test_violations.py" in str(errors["constant"])
    assert "a loop over a size is unrolled, one turn each" in str(errors["constant"])
    other = '      or export(..., control_flow="sizes"), which lets sizes decide\n'
    assert other in str(errors["constant"])


def test_what_lets_sizes_decide_is_said_where_it_may_help() -> None:
    def ask(x: torch.Tensor) -> torch.Tensor:
        return torch.arange(len(x))

    def refuse(**options: Any) -> str:
        with pytest.raises(ConstraintViolationError) as error:
            export(lambda x: ask(x) + x.view(12), (ones(12),), **options)
        return str(error.value)

    varying = {"dynamic_shapes": ({0: Dim("n")},)}
    assert "which lets sizes decide" in refuse(**varying)
    assert "which lets sizes decide" not in refuse(**varying, control_flow="sizes")
    program = export(ask, (ones(12),), **varying, control_flow="sizes")
    assert program.module()(ones(5)).tolist() == [0, 1, 2, 3, 4]


def test_all_dims_are_told_at_once(errors):
    text = errors["several at once"].args[0]
    assert text.startswith("2 declared dims cannot vary as declared; declare ")
    assert "  batch, declared" in text
    assert "  seq, declared" in text


def test_sizes_without_a_dim_may_be_related_and_narrowed():
    every = Dim.DYNAMIC
    args = (ones(16, 2), ones(17, 2))
    program = export(together, args, dynamic_shapes={"x": {0: every}, "y": {0: every}})
    assert [g.predicate for g in program.guards] == ["x.shape[0] + y.shape[0] == 33"]
    program = export(large, (ones(5, 2),), dynamic_shapes={"x": (every, every)})
    assert [g.predicate for g in program.guards] == ["x.shape[0] >= 4"]
    program = export(add, (ones(4), ones(4)), dynamic_shapes={"x": {0: B}, "y": {0: every}})
    assert torch.equal(program.module()(ones(3), ones(3)), ones(3) + 1)


def test_a_size_that_gives_way_does_not_hide_that_a_dim_is_lost():
    def through(x, y):
        return loop(y) + x

    def summed(x, y, z):
        return x + y + z

    with pytest.raises(ConstraintViolationError) as error:
        export(through, (ones(3), ones(3)), dynamic_shapes={"x": {0: B}, "y": {0: Dim.AUTO}})
    assert "batch = 3  # always" in suggested(error.value)
    shapes = refine_dynamic_shapes_from_suggested_fixes(
        error.value, {"x": {0: B}, "y": {0: Dim.AUTO}}
    )
    assert shapes == {"x": {0: 3}, "y": {0: Dim.AUTO}}
    export(through, (ones(3), ones(3)), dynamic_shapes=shapes)

    shapes = {"x": {0: B}, "y": {0: Dim.AUTO}, "z": {0: S}}
    with pytest.raises(ConstraintViolationError) as error:
        export(summed, (ones(3), ones(3), ones(3)), dynamic_shapes=shapes)
    assert suggested(error.value) == ["seq = batch  # one Dim for both"]


def test_constraints_outlive_the_names_in_them():
    def blocks_of_16(x, y):
        return x.reshape(-1, 16).sum(1) + (y if y.shape[0] < x.shape[0] else y * 2)

    args, shapes = (ones(32), ones(2)), {"x": {0: B}, "y": {0: S}}
    stated = ["batch % 8 == 0", "seq >= 1", "seq <= batch"]
    with pytest.raises(ConstraintViolationError) as error:
        export(blocks_of_16, args, dynamic_shapes=shapes, constraints=stated)
    fixed, constraints = error.value.dynamic_shapes, error.value.constraints
    assert fixed == {"x": (16 * Dim("seq", min=1),), "y": (Dim("seq", min=1),)}
    assert constraints == ["seq >= 1", "x.shape[0] % 8 == 0", "seq <= x.shape[0]"]
    program = export(blocks_of_16, args, dynamic_shapes=fixed, constraints=constraints)
    x, y = ones(48), ones(3)
    torch.testing.assert_close(program.module()(x, y), blocks_of_16(x, y))


@pytest.mark.parametrize(
    ("dim", "constraints"),
    [
        (Dim("a", min=4, max=4), []),
        (Dim("a", max=4), ["a >= 4"]),
        (Dim.AUTO(min=4, max=4), []),
        (Dim.AUTO(max=4), ["x.shape[0] >= 4"]),
    ],
)
def test_a_range_of_one_size_is_that_size(dim, constraints):
    program = export(
        lambda x: x + torch.zeros(x.shape[0], 1),
        (ones(4, 1),),
        dynamic_shapes={"x": {0: dim}},
        constraints=constraints,
    )
    assert program.module()(ones(4, 1)).shape == (4, 1)
    for size in (3, 5):
        with pytest.raises(InputValueError, match=rf"x.shape\[0\].* {size}"):
            program.module()(ones(size, 1))


def test_refining_what_was_not_written_by_hand():
    x, y = ones(4, 2), ones(4, 2)
    shapes = ShapesCollection()
    shapes[x], shapes[y] = {0: B}, {0: S}
    with pytest.raises(ConstraintViolationError) as error:
        export(add, (x, y), dynamic_shapes=shapes)
    refined = refine_dynamic_shapes_from_suggested_fixes(error.value, shapes)
    assert refined == {"x": (B, Dim.STATIC), "y": (B, Dim.STATIC)}
    inputs = AdditionalInputs()
    inputs.add((ones(4, 2),))
    with pytest.raises(ConstraintViolationError) as error:
        export(loop, (ones(3, 2),), dynamic_shapes=inputs)
    refined = refine_dynamic_shapes_from_suggested_fixes(error.value, inputs)
    assert refined == {"x": (None, Dim.STATIC)}


def test_refining_with_a_text_that_suggests_nothing():
    with pytest.raises(DynamicShapesError, match=r"has no line 'Suggested fixes:'"):
        refine_dynamic_shapes_from_suggested_fixes("something else", {})
    with pytest.raises(DynamicShapesError, match="not a suggested fix: 'batch == 3'"):
        refine_dynamic_shapes_from_suggested_fixes("Suggested fixes:\n  batch == 3", {})
    with pytest.raises(DynamicShapesError, match="names other, which dynamic_shapes does not have"):
        refine_dynamic_shapes_from_suggested_fixes(
            "Suggested fixes:\n  batch = other", {"x": {0: B}}
        )


def test_the_texts_of_torch_are_understood_too():
    text = "Suggested fixes:\n  dx = Dim('dx', min=3, max=6)\n  dy = dx + 1\n  dz = 4\n"
    dx, dy, dz = dims("dx", "dy", "dz")
    refined = refine_dynamic_shapes_from_suggested_fixes(text, {"x": (dx, dy), "y": {0: 2 * dz}})
    narrowed = Dim("dx", min=3, max=6)
    assert refined == {"x": (narrowed, narrowed + 1), "y": {0: 8}}


def test_a_list_of_numbers_as_long_as_a_size_names_arange():
    def positions(x):
        return x + torch.tensor(list(range(x.shape[0])))

    with pytest.raises(ConstraintViolationError, match=r"write torch\.arange\(n\)"):
        export(positions, (torch.zeros(4),), dynamic_shapes={"x": {0: Dim("n")}})


def test_a_size_of_another_input_that_was_forgotten():
    def masked(x, mask):
        return x * mask

    inputs = torch.randn(2, 7), torch.ones(2, 7)
    with pytest.raises(ConstraintViolationError) as error:
        export(masked, inputs, dynamic_shapes={"x": {1: Dim("len")}, "mask": None})
    head = str(error.value).splitlines()[0]
    assert head.endswith("cannot vary as declared; in dynamic_shapes, write mask: {1: len}")
    assert suggested(error.value) == ["mask: {1: len}  # one Dim for both"]
    assert "      or, if it never varies: len = 7\n" in str(error.value)


@pytest.mark.parametrize(
    ("shapes", "head", "fixes"),
    [
        (
            {"x": {0: B, 1: S}, "mask": None},
            "mask: {0: batch, 1: seq}",
            ["mask: {0: batch}  # one Dim for both", "mask: {1: seq}  # one Dim for both"],
        ),
        (
            {"x": {0: B, 1: S}, "mask": {0: B}},
            "mask: {1: seq}",
            ["mask: {1: seq}  # one Dim for both"],
        ),
        (
            {"x": {1: 2 * S + 1}, "mask": None},
            "mask: {1: 2*seq + 1}",
            ["mask: {1: 2*seq + 1}"],
        ),
        (
            {"x": {1: Dim.DYNAMIC}, "mask": None},
            "mask: {1: Dim.DYNAMIC}",
            ["mask: {1: Dim.DYNAMIC}"],
        ),
    ],
)
def test_what_was_forgotten_is_what_is_to_be_written(shapes, head, fixes):
    def masked(x, mask):
        return x * mask

    inputs = torch.randn(2, 7), torch.ones(2, 7)
    with pytest.raises(ConstraintViolationError) as error:
        export(masked, inputs, dynamic_shapes=shapes)
    assert f"in dynamic_shapes, write {head}" in str(error.value).splitlines()[0]
    assert suggested(error.value) == fixes
    refined = refine_dynamic_shapes_from_suggested_fixes(error.value, shapes)
    program = export(masked, inputs, dynamic_shapes=refined).module()
    assert program(torch.ones(2, 9), torch.ones(2, 9)).shape == (2, 9)


def test_a_forgotten_size_that_was_none_is_given_up_at_the_second_try():
    def seven(x, mask):
        return x * torch.ones(7) + mask.sum()

    inputs, shapes = (torch.randn(2, 7), torch.ones(2, 7)), {"x": {1: S}, "mask": None}
    with pytest.raises(ConstraintViolationError) as error:
        export(seven, inputs, dynamic_shapes=shapes)
    shapes = refine_dynamic_shapes_from_suggested_fixes(error.value, shapes)
    with pytest.raises(ConstraintViolationError) as error:
        export(seven, inputs, dynamic_shapes=shapes)
    assert suggested(error.value) == ["seq = 7  # always"]
    shapes = refine_dynamic_shapes_from_suggested_fixes(error.value, shapes)
    assert export(seven, inputs, dynamic_shapes=shapes).module()(*inputs).shape == (2, 7)


def test_a_size_that_nothing_was_forgotten_for():
    def fixed(x):
        return x * torch.ones(7)

    with pytest.raises(ConstraintViolationError) as error:
        export(fixed, (torch.randn(2, 7),), dynamic_shapes={"x": {1: Dim("len")}})
    assert suggested(error.value) == ["len = 7  # always"]
