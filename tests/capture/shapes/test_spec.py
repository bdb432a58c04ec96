"""Every way of writing dynamic_shapes, and every way of getting it wrong."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch.utils import _pytree

from lostwax import (
    AdditionalInputs,
    Dim,
    ShapesCollection,
    dims,
    export,
    mark_dynamic,
    register_dataclass,
)
from lostwax.capture.shapes.collect import IntWrapper
from lostwax.capture.shapes.spec import resolve_spec
from lostwax.errors import DynamicShapesError
from lostwax.sym import ShapeEnv, show

B, S = dims("batch seq")
X, Y = torch.zeros(4, 6), torch.zeros(4, 8)
STATIC = Dim.STATIC
ROW = (B, STATIC)  # the batch varies, the second dimension does not

Pair = namedtuple("Pair", "left right")


@dataclass
class Inputs:
    ids: torch.Tensor
    mask: torch.Tensor | None = None


class Box:
    def __init__(self, *held):
        self.held = held


@pytest.fixture(scope="module", autouse=True)
def registered():
    register_dataclass(Inputs)
    _pytree.register_pytree_node(Box, lambda b: (list(b.held), None), lambda c, _: Box(*c))
    yield
    _pytree._deregister_pytree_node(Box)


def two(x, y): ...
def variadic(x, *rest, k=None, **extra): ...
def one(x): ...


def leaves(given, function, args, kwargs=None):
    return resolve_spec(given, function, args, kwargs).leaves


@pytest.mark.parametrize(
    "given",
    [
        {"x": {0: B}, "y": {0: B}},
        {"x": {-2: B}, "y": {0: B, 1: None}},
        {"x": (B, None), "y": [B, 8]},
        ({0: B}, {0: B}),
        [{0: B}, {0: B, 1: Dim.STATIC}],
        {0: {0: B}, 1: {0: B}},
        "batch",
        {"*": {0: B}},
        {"x": {0: B}, "*": {0: B, 5: S}},
        {"x": {0: "batch"}, "y": ("batch", None)},
        {"x": {0: torch.export.Dim("batch")}, "y": {0: B}},
    ],
)
def test_many_ways_to_say_the_same(given):
    assert leaves(given, two, (X, Y)) == [ROW, ROW]
    assert leaves(given, two, (X,), {"y": Y}) == [ROW, ROW]


def test_a_name_alone_means_the_dim_of_that_name():
    bounded = Dim("batch", min=2)
    given = {"x": {0: "batch"}, "y": {0: bounded}}
    assert leaves(given, two, (X, Y)) == [(bounded, STATIC), (bounded, STATIC)]


@pytest.mark.parametrize("given", [None, {}, (), [], (None, None), {"x": None}, {"y": (4, 8)}])
def test_nothing_varies(given):
    spec = resolve_spec(given, two, (X, Y))
    assert spec.leaves == [None, None]
    assert not spec


def test_what_is_not_named_is_static():
    assert leaves({"y": {0: B}}, two, (X, Y)) == [None, ROW]
    assert leaves(({0: B},), two, (X, Y)) == [ROW, None]
    assert leaves({"x": {"b": {0: B}}}, one, ({"a": X, "b": Y},)) == [None, ROW]


def test_hints_for_a_whole_tensor_tree_or_call():
    auto = (Dim.AUTO, Dim.AUTO)
    assert leaves({"x": Dim.AUTO}, two, (X, Y)) == [auto, None]
    assert leaves({"x": Dim.AUTO}, two, ([X, "mean", 3], Y)) == [auto, None, None, None]
    assert leaves(Dim.AUTO, two, (X, Y)) == [auto, auto]
    assert leaves({"x": {0: Dim.DYNAMIC(min=2)}}, one, (X,)) == [(Dim.DYNAMIC(min=2), STATIC)]


def test_a_dim_alone_is_enough_for_one_dimension():
    """The seeds write `dynamic_shapes={0: dimx, 1: dimy}` for two vectors."""
    d = Dim("dimx", min=3, max=6)
    spec = resolve_spec({0: d, 1: d + 1}, two, (torch.zeros(5), torch.zeros(6)))
    assert spec.leaves == [(d,), (d + 1,)]
    assert (
        spec.named_dims["dimx"].value,
        spec.named_dims["dimx"].min,
        spec.named_dims["dimx"].max,
    ) == (5, 3, 6)


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        ([X, {"k": Y}], [{0: B}, {"k": {0: B}}]),
        ([X, {"k": Y}], ({0: B}, {"k": (B, None)})),
        ([X, {"k": Y}], {0: {0: B}, -1: {"k": {0: B}}}),
        ([X, {"k": Y}], {"*": {0: B}}),
        (OrderedDict(a=X, b=Y), {"b": {0: B}, "a": {0: B}}),
        (Pair(X, Y), Pair({0: B}, {0: B})),
        (Pair(X, Y), ({0: B}, {0: B})),
        (Pair(X, Y), {"left": {0: B}, "right": {0: B}}),
        (Inputs(X, Y), Inputs({0: B}, {0: B})),
        (Inputs(X, Y), [{0: B}, {0: B}]),
        (Inputs(X, Y), {"ids": {0: B}, "mask": {0: B}}),
        (Box(X, Y), [{0: B}, {0: B}]),
        (Box(X, Y), Box({0: B}, {0: B})),
        (Box(X, [Y]), [{0: B}, [{0: B}]]),
    ],
)
def test_containers_are_mirrored(argument, given):
    assert leaves({"x": given}, one, (argument,)) == [ROW, ROW]
    assert leaves((given,), one, (argument,)) == [ROW, ROW]


def test_a_field_that_is_none_takes_no_place():
    assert leaves({"x": Inputs({0: B}, None)}, one, (Inputs(X),)) == [ROW]


def test_an_explicit_none_is_not_a_matter_of_the_wildcard():
    nested = {"a": X, "b": [Y], "n": 3, "s": torch.zeros(())}
    assert leaves({"*": {0: B}}, one, (nested,)) == [ROW, ROW, None, None]
    assert leaves({"y": None, "*": {0: B}}, two, (X, Y)) == [ROW, None]
    assert leaves({"x": {"b": None, "*": {0: B}}}, one, (nested,)) == [ROW, None, None, None]


@pytest.mark.parametrize(
    "given",
    [
        {"x": {0: B}, "rest": ({0: B}, None), "extra": {"m": {0: B}}},
        {"x": {0: B}, "rest": {0: {0: B}}, "m": {0: B}},
        {"x": {0: B}, "rest_0": {0: B}, "m": {0: B}},
        ({0: B}, ({0: B}, None), None, {"m": {0: B}}),
        ({0: B}, {0: B}, None, None, {0: B}),
    ],
)
def test_arguments_that_go_into_args_and_kwargs(given):
    args, kwargs = (X, Y, X), {"m": Y, "k": X}
    assert leaves(given, variadic, args, kwargs) == [ROW, ROW, None, ROW, None]


def test_a_tuple_follows_the_signature_not_the_order_of_kwargs():
    def three(a, b, c): ...

    assert leaves((None, {0: B}, None), three, (X,), {"c": X, "b": Y}) == [None, None, ROW]


def test_numbers_vary_too():
    def scaled(x, n, f): ...

    given = {"n": Dim.DYNAMIC, "f": Dim.AUTO}
    assert leaves(given, scaled, (X, 3, 0.5)) == [None, Dim.DYNAMIC, Dim.AUTO]
    spec = resolve_spec({"x": {0: B}, "n": B}, scaled, (X, 4, 0.5))
    assert spec.leaves == [ROW, B, None]
    assert [place.path for place, _ in spec.named_dims["batch"].places] == ["x.shape[0]", "n"]
    assert leaves({"n": 3, "f": None}, scaled, (X, 3, 0.5)) == [None, None, None]
    with pytest.raises(DynamicShapesError, match=r"n is 3 in the example, but 4 was written"):
        leaves({"n": 4}, scaled, (X, 3, 0.5))
    with pytest.raises(DynamicShapesError, match=r"f is a float; batch is a name for integers"):
        leaves({"f": B}, scaled, (X, 3, 0.5))
    with pytest.raises(DynamicShapesError, match=r"n is -3 in the example, outside of .*min=0"):
        leaves({"n": Dim.DYNAMIC(min=0)}, scaled, (X, -3, 0.5))


def test_roots_know_their_places_and_that_no_size_is_negative():
    spec = resolve_spec({"x": (16 * B - 12, None), "y": {1: 2 * S}}, two, (X, Y))
    batch, seq = spec.named_dims["batch"], spec.named_dims["seq"]
    assert (batch.value, batch.min, seq.value, seq.min) == (1, 1, 4, 0)
    ((place, entry),) = batch.places
    assert (place.leaf, place.dim, place.path, place.value) == (0, 0, "x.shape[0]", 4)
    assert entry == 16 * B - 12


def test_marks_are_for_what_the_spec_leaves_open():
    x = torch.zeros(4, 6)
    mark_dynamic(x, [0, 1], max=10)
    dynamic = Dim.DYNAMIC(max=10)
    assert leaves(None, one, (x,)) == [(dynamic, dynamic)]
    assert leaves({"x": {0: B}}, one, (x,)) == [(B, dynamic)]
    assert leaves({"x": (B, None)}, one, (x,)) == [(B, STATIC)]
    assert leaves({"x": {1: Dim.STATIC}}, one, (x,)) == [(dynamic, STATIC)]


# --------------------------------------------------------------------------------- collections


def test_shapes_by_tensor():
    shapes = ShapesCollection()
    shapes[X] = (B, Dim.AUTO)
    shapes[Y][0] = B
    args = ([X, {"y": Y}],)
    assert shapes.dynamic_shapes(one, args) == {"x": [(B, Dim.AUTO), {"y": {0: B}}]}
    assert leaves(shapes, one, args) == [(B, Dim.AUTO), ROW]
    assert len(shapes) == 2
    shapes[X] = (B, Dim.AUTO)
    with pytest.raises(DynamicShapesError, match="two different shapes for one tensor"):
        shapes[X] = {0: B}
    with pytest.raises(DynamicShapesError, match=r"1 of its tensors are not in the arguments"):
        shapes.dynamic_shapes(one, (X,))
    with pytest.raises(DynamicShapesError, match="indexed by a tensor or an IntWrapper, not a int"):
        shapes[3] = Dim.DYNAMIC


def test_shapes_of_ints_by_wrapper():
    wrapped = [X, IntWrapper(3), IntWrapper(3)]
    shapes = ShapesCollection()
    shapes[wrapped[2]] = Dim.DYNAMIC
    given = shapes.dynamic_shapes(one, (wrapped,))
    assert given == {"x": [None, None, Dim.DYNAMIC]}
    assert leaves(given, one, ([X, 3, 3],)) == [None, None, Dim.DYNAMIC]


def test_shapes_of_variadic_calls_have_the_form_of_torch():
    shapes = ShapesCollection()
    shapes[Y] = {0: B}
    args, kwargs = (X, Y), {"m": Box(X, 3)}
    ours = shapes.dynamic_shapes(variadic, args, kwargs)
    assert ours == {"x": None, "rest": ({0: B},), "extra": {"m": [None, None]}}
    peer = torch.export.ShapesCollection()
    peer[Y] = {0: B}
    assert peer.dynamic_shapes(variadic, args, kwargs) == ours


def test_collections_of_torch_are_understood():
    shapes = torch.export.ShapesCollection()
    shapes[X] = {0: torch.export.Dim("batch")}
    assert leaves(shapes, one, ([X, Y],)) == [ROW, None]
    inputs = torch.export.AdditionalInputs()
    inputs.add((X[:2], Y))
    assert leaves(inputs, two, (X, Y)) == [(Dim.DYNAMIC, STATIC), None]


def test_what_differs_among_calls_varies():
    inputs = AdditionalInputs()
    inputs.add((torch.zeros(5, 6), {"n": 3, "f": 0.5, "s": "a", "t": Y}))
    inputs.add((torch.zeros(4, 6), {"n": 4, "f": 0.7, "s": "a", "t": Y}))
    args = (X, {"n": 3, "f": 0.5, "s": "a", "t": Y})
    dynamic = Dim.DYNAMIC
    assert inputs.dynamic_shapes(two, args) == {
        "x": (dynamic, None),
        "y": {"n": dynamic, "f": dynamic, "s": None, "t": None},
    }
    assert leaves(inputs, two, args) == [(dynamic, STATIC), dynamic, dynamic, None, None]


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ((X, "max"), r"y has different values \('mean', 'max'\), and that cannot vary"),
        ((X, None), r"y is of different types \(str, NoneType\)"),
        ((X[0], "mean"), r"x differs in dtype or number of dimensions \(f32\[4, 6\], f32\[6\]\)"),
        (([X], "mean"), r"call 0 has another structure than the example\n  example: \(f32"),
    ],
)
def test_calls_that_differ_too_much(other, text):
    inputs = AdditionalInputs()
    inputs.add(other)
    with pytest.raises(DynamicShapesError, match=text):
        inputs.dynamic_shapes(two, (X, "mean"))


def test_calls_are_verified_by_running_them():
    class Program:
        def module(self):
            def run(x):
                x.add_(1)
                if x.shape[0] > 5:
                    raise ValueError("x.shape[0] <= 5 is violated")

            return run

    inputs, small = AdditionalInputs(), torch.zeros(3)
    inputs.add((small,))
    inputs.verify(Program())
    assert small.sum() == 0  # the program wrote to a copy
    inputs.add((torch.zeros(6),))
    with pytest.raises(DynamicShapesError, match=r"call 1, \(f32\[6\]\)\n  ValueError: x.shape"):
        inputs.verify(Program())


def test_export_checks_that_the_program_takes_the_added_calls():
    def branch(x):
        return x + 1 if x.shape[0] > 3 else x - 1

    inputs = AdditionalInputs()
    inputs.add((torch.zeros(9),))
    program = export(branch, (torch.zeros(4),), dynamic_shapes=inputs)
    inputs.verify(program)
    inputs.add((torch.zeros(2),))
    with pytest.raises(DynamicShapesError, match=r"call 1, \(f32\[2\]\)\n[\s\S]*x.shape\[0\] >= 4"):
        export(branch, (torch.zeros(4),), dynamic_shapes=inputs)


# --------------------------------------------------------------------------------- constraints


def test_constraints_become_conditions():
    texts = ["batch % 2 == 0", "x.shape[1] <= 2*batch", "y.shape[1] == 2*batch"]
    spec = resolve_spec({"x": {0: B}, "y": {1: Dim.AUTO}}, two, (X, Y), constraints=texts)
    assert [c.names for c in spec.constraints] == [
        ("batch",),
        ("batch",),
        ("y.shape[1]", "batch"),
    ]
    env = ShapeEnv()
    names = {
        "batch": env.symbol("b", hint=4),
        "x.shape[0]": env.symbol("other", hint=4),
        "y.shape[1]": env.symbol("w", hint=8),
    }
    conditions = [show(c.condition(names)) for c in spec.constraints]
    assert conditions == ["b % 2 == 0", "b >= 3", "2*b == w"]


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        ("batch % 3 == 0", r'"batch % 3 == 0" is not true of the example \(batch = 4\)'),
        ("batch == x.shape[1]", r"not true of the example \(batch = 4, x.shape\[1\] = 6\)"),
        ("bath >= 2", r"unknown name 'bath'[\s\S]*names that can be used: batch, "),
        ("batch + 1", r'"batch \+ 1" is a number, not a relation'),
        ("batch =< 3", r"constraints: "),
        (3, r"expected texts, not 3"),
        ("__import__('os').system('true')", r"unknown function '__import__'"),
    ],
)
def test_wrong_constraints(constraint, text):
    with pytest.raises(DynamicShapesError, match=text):
        resolve_spec({"x": {0: B}}, one, (X,), constraints=[constraint])


# -------------------------------------------------------------------------------- wrong specs


@pytest.mark.parametrize(
    ("given", "args", "path", "text"),
    [
        (
            {"xs": {0: B}},
            (X, Y),
            "",
            r"'xs' is not an argument of this call \(did you mean 'x'\?\); its arguments are x, y",
        ),
        ({2: {0: B}}, (X, Y), "", r"2 is not an argument"),
        (({0: B}, None, None), (X, Y), "", r"3 entries for 2 argument\(s\) \(x, y\)"),
        (3, (X, Y), "", r"expected a dict by argument name, .* not 3"),
        ({"x": {0: B}, 0: {1: S}}, (X, Y), "x", "described twice"),
        ({"x": {2: B}}, (X, Y), "x", r"x has 2 dimension\(s\) \(4, 6\): there is no dimension 2"),
        ({"x": {-3: B}}, (X, Y), "x", r"there is no dimension -3"),
        ({"x": {0: B, -2: B}}, (X, Y), "x", r"has dimension 0 described twice"),
        ({"x": {"0": B}}, (X, Y), "x", r"must have its dimensions as keys, not '0'"),
        ({"x": (B,)}, (X, Y), "x", r"x has 2 dimension\(s\) \(4, 6\), but 1 entries"),
        ({"x": B}, (X, Y), "x", r"Dim\('batch'\) does not say which of them"),
        ({"x": 4.5}, (X, Y), "x", r"4.5 says nothing of its dimensions"),
        ({"x": {0: [B]}}, (X, Y), "x.shape[0]", r"takes a Dim, .* not \[Dim\('batch'\)\]"),
        ({"x": {0: True}}, (X, Y), "x.shape[0]", r"takes a Dim, .* not True"),
        ({"x": {1: 7}}, (X, Y), "x.shape[1]", r"x.shape\[1\] is 6 in the example, but 7 was"),
        (
            {"x": {0: Dim.AUTO(min=-1)}},
            (X, Y),
            "x.shape[0]",
            r"x.shape\[0\] is a size and never negative",
        ),
        (
            {"x": {0: Dim.AUTO(min=8)}},
            (X, Y),
            "x.shape[0]",
            r"x.shape\[0\] is 4 in the example, outside of Dim.AUTO\(min=8\)",
        ),
        ({"y": {0: B}}, (X, "mean"), "y", r"y is a str in the example call: only sizes"),
        ({"y": {0: B}}, (X, None), "y", r"y is None in the example call"),
        ({"y": B}, (X, True), "y", r"y is a bool in the example call"),
        ({"x": [{0: B}]}, ([X, Y], Y), "x", r"x is a list with 2 element\(s\).* but 1 were"),
        ({"x": {0: B}}, ([X], Y), "x[0]", r"x\[0\] is a tensor with 2 dimension\(s\)"),
        ({"x": {"k": [{"a": None}]}}, ({"k": [X]}, Y), "x['k'][0]", r"not 'a'"),
        ({"x": [{0: B}]}, ({"k": X}, Y), "x", r"x is a dict in the example call, but \[\{0:"),
        ({"x": {"idz": None}}, ({"ids": X}, Y), "x", r"without 'idz' \(did you mean 'ids'\?\)"),
        ({"x": {"left": {0: B}, "up": 3}}, (Pair(X, Y), Y), "x", r"is a Pair .* without 'up'"),
        (
            {"x": {0: B}, "y": {1: B}},
            (X, Y),
            "y.shape[1]",
            r"x.shape\[0\] is 4, y.shape\[1\] is 8, both are Dim batch",
        ),
        (
            {"x": {0: B}, "y": {0: B + 1}},
            (X, Y),
            "y.shape[0]",
            r"declared as batch and batch \+ 1: batch would be 4 and 3",
        ),
        (
            {"y": {1: 3 * B}},
            (X, Y),
            "y.shape[1]",
            r"y.shape\[1\] = 8 is not 3\*batch for any integer batch\n.*size 6, 9",
        ),
        (
            {"x": {0: Dim("q", max=3)}},
            (X, Y),
            "x.shape[0]",
            r"x.shape\[0\] is 4 in the example, but Dim\('q', max=3\) is at most 3\n"
            r'  instead: q = Dim\("q", max=4\)',
        ),
        (
            {"x": {0: 2 * Dim("q", min=3)}},
            (X, Y),
            "x.shape[0]",
            r"is 4 in the example, so q is 2, but Dim\('q', min=3\) is at least 3",
        ),
        (
            {"x": {0: B}, "y": {0: Dim("batch", min=2)}},
            (X, Y),
            "y.shape[0]",
            r"batch is Dim\('batch'\) at x.shape\[0\], but Dim\('batch', min=2\) at y.shape\[0\]",
        ),
    ],
)
def test_wrong_specs(given, args, path, text):
    with pytest.raises(DynamicShapesError, match=text) as error:
        resolve_spec(given, two, args)
    assert error.value.path == path
    assert "\n  instead: " in str(error.value)


@pytest.mark.parametrize(
    "given",
    [
        {"x": [{0: B}]},
        {"x": {"k": [{0: B}]}},
        {"x": {"k": [None, {0: [B]}]}},
        {"x": {"k": [None, (B,)]}},
        {"x": {"j": None}},
        ({0: B}, None, None),
        {"y": {"k": {0: B}}},
    ],
    ids=repr,
)
def test_another_nesting_is_shown_beside_that_of_the_call(given):
    with pytest.raises(DynamicShapesError) as error:
        resolve_spec(given, two, ({"k": [X, Y]}, Y))
    _, call, spec, instead = str(error.value).splitlines()
    assert call == "  the call:       {'x': {'k': [f32[4, 6], f32[4, 8]]}, 'y': f32[4, 8]}"
    assert spec == f"  dynamic_shapes: {given!r}"
    assert instead.startswith("  instead: ")


def test_a_spec_for_what_is_inside_the_only_argument():
    with pytest.raises(DynamicShapesError, match=r"'ids' is a key inside x") as error:
        resolve_spec({"ids": {0: B}}, one, ({"ids": X},))
    assert """instead: dynamic_shapes={'x': {'ids': {0: Dim("batch")}}}""" in str(error.value)
    with pytest.raises(DynamicShapesError, match=r"2 entries for 1 argument") as error:
        resolve_spec((B, None), one, (X,))
    assert "instead: dynamic_shapes=((Dim('batch'), None),)" in str(error.value)


def test_the_code_that_an_error_suggests_works():
    args = ({"k": [X, Y]}, Y)
    with pytest.raises(DynamicShapesError) as error:
        resolve_spec({"x": {"k": [{7: B}, None]}}, two, args)
    code = str(error.value).split("instead: dynamic_shapes=")[1]
    assert leaves(eval(code, {"Dim": Dim}), two, args) == [ROW, None, None]
