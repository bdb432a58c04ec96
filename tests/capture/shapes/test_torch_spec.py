"""The specs of torch 2.15: what they say, ours does; where torch is wrong with them, ours is not.

torch 2.13 has the classes already, and its export does not take them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import nn

import lostwax
from lostwax import Dim, draft_export, export, export_joint
from lostwax.capture.shapes.violations import refine_dynamic_shapes_from_suggested_fixes
from lostwax.errors import ConstraintViolationError, DynamicShapesError, LostwaxError

specs = pytest.importorskip(
    "torch.fx.experimental.dynamic_spec", reason="ShapesSpec is of torch 2.13 and later"
)
exports = pytest.mark.skipif(
    not hasattr(specs, "dynamic_spec"), reason="torch's export takes these specs since 2.15"
)
IntVar, ShapeVar, ShapesSpec = specs.IntVar, specs.ShapeVar, specs.ShapesSpec
ParamsSpec, TensorSpec = specs.ParamsSpec, specs.TensorSpec

B, C = ShapeVar("B"), ShapeVar("C")
ROWS = TensorSpec([B, None])


def rows(n):
    return torch.randn(n, 3)


def check(program, function, *calls):
    for call in calls:
        torch.testing.assert_close(program.module()(*call), function(*call))


def check_refused(program, *calls):
    for call in calls:
        with pytest.raises(LostwaxError):
            program.module()(*call)


def double(x):
    return x * 2


def total(*tensors):
    return sum(tensor.sum() for tensor in tensors)


# ----------------------------------------------------------------------------------- what they say


def test_the_example_of_torchs_documentation():
    batch = ShapeVar("batch", min=2, max=128)
    params = ParamsSpec({"x": TensorSpec([batch, 3]), "y": TensorSpec([batch * 2, 3])})
    spec = ShapesSpec(params=params, assumptions=[batch % 2 == 0])

    def function(x, y):
        return total(x, y)

    program = export(function, (rows(8), rows(16)), dynamic_shapes=spec)
    check(program, function, (rows(4), rows(8)), (rows(128), rows(256)))
    check_refused(program, (rows(3), rows(6)), (rows(4), rows(9)), (rows(130), rows(260)))


@pytest.mark.parametrize("wrap", [ShapesSpec, ParamsSpec, dict])
def test_each_form_of_a_spec(wrap):
    program = export(double, (rows(4),), dynamic_shapes=wrap({"x": ROWS}))
    check(program, double, (rows(0),), (rows(1),), (rows(7),))


def test_an_empty_spec_fixes_every_size():
    program = export(double, (rows(4),), dynamic_shapes=ShapesSpec())
    check_refused(program, (rows(5),))


@pytest.fixture
def decorated():
    class Decorated(nn.Module):
        @specs.dynamic_spec(ShapesSpec({"x": ROWS}, assumptions=[B % 2 == 0]))
        def forward(self, x, k=1):
            return x * 2 * k

    return Decorated()


@exports
@pytest.mark.parametrize("bind", [lambda f: f, lambda f: partial(f.forward, k=3)])
def test_a_decorated_forward_is_read(decorated, bind):
    function = bind(decorated)
    program = export(function, (rows(4),))
    check(program, function, (rows(6),))
    check_refused(program, (rows(3),))


@exports
def test_a_decorated_function_is_read_by_export_joint():
    @specs.dynamic_spec({"x": ROWS})
    def loss(x, w):
        return (x * w).sum()

    weight = torch.ones(3, requires_grad=True)
    program = export_joint(loss, (rows(4), weight))
    x = rows(6)
    *_, gradients = program.module()(x, weight)
    torch.testing.assert_close(gradients["w"], x.sum(0))


@exports
def test_two_declarations_are_refused(decorated):
    with pytest.raises(DynamicShapesError, match="decorated with @dynamic_spec"):
        export(decorated, (rows(4),), dynamic_shapes={"x": {0: Dim("n")}})


def test_an_int_may_be_negative():
    n = IntVar("n", max=10)

    def function(x, n, m):
        return x * n + m

    spec = ParamsSpec({"x": ROWS, "n": n, "m": n})
    program = export(function, (rows(4), -3, -3), dynamic_shapes=spec)
    check(program, function, (rows(2), 7, 7), (rows(2), -70, -70))
    check_refused(program, (rows(2), 7, 8), (rows(2), 11, 11))


def test_an_int_that_depends_on_a_size_may_be_negative():
    def function(x, n):
        return x * n

    spec = ParamsSpec({"x": ROWS, "n": 2 * B - 7})
    program = export(function, (rows(4), 1), dynamic_shapes=spec)
    check(program, function, (rows(1), -5))
    check_refused(program, (rows(1), -4))


def test_derived_sizes_that_no_dim_can_state():
    def function(x, y, z):
        return x.reshape(-1) + y, z[: x.shape[0] // 2]

    spec = ParamsSpec(
        {"x": TensorSpec([B, C]), "y": TensorSpec([B * C]), "z": TensorSpec([10 - B])}
    )
    call = (torch.randn(4, 3), torch.randn(12), torch.randn(6))
    program = export(function, call, dynamic_shapes=spec)
    check(program, function, (torch.randn(2, 5), torch.randn(10), torch.randn(8)))
    check_refused(program, (torch.randn(2, 5), torch.randn(9), torch.randn(8)))
    check_refused(program, (torch.randn(2, 5), torch.randn(10), torch.randn(9)))


def test_assumptions():
    def function(x, y):
        return x + y[: x.shape[0]]

    assumed = [B <= C, (B % 2 == 0) | (C > 10), torch.sym_max(B, C) <= 20, B == B]
    spec = ShapesSpec({"x": ROWS, "y": TensorSpec([C, None])}, assumptions=assumed)
    program = export(function, (rows(4), rows(5)), dynamic_shapes=spec)
    check(program, function, (rows(6), rows(8)), (rows(5), rows(11)))
    check_refused(program, (rows(6), rows(4)), (rows(5), rows(8)), (rows(6), rows(21)))


@pytest.mark.parametrize("name", [None, "B"])
def test_variables_of_one_name_are_several(name):
    def function(x, y):
        return total(x, y)

    spec = ParamsSpec(
        {key: TensorSpec([ShapeVar(name), None]) for key in ("x", "y")},
    )
    program = export(function, (rows(4), rows(4)), dynamic_shapes=spec)
    check(program, function, (rows(5), rows(8)))


@dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor


def test_containers():
    lostwax.register_dataclass(Pair)

    def function(x, *rest, **more):
        return total(x[0], x[1]["a"], rest[1].left, rest[1].right, more["k"])

    spec = ParamsSpec(
        {
            "x": specs.SeqSpec([ROWS, specs.DictSpec({"a": ROWS})]),
            "*args": [None, specs.ObjectSpec({"right": ROWS})],
            "**kwargs": {"k": TensorSpec([B])},
        }
    )

    def call(n):
        args = ([rows(n), {"a": rows(n)}], rows(2), Pair(rows(2), rows(n)))
        return args, {"k": torch.randn(n)}

    program = export(function, *call(4), dynamic_shapes=spec)
    args, kwargs = call(6)
    torch.testing.assert_close(program.module()(*args, **kwargs), function(*args, **kwargs))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"x": TensorSpec([B])}, "x has 2 dimension"),
        ({"x": TensorSpec([B, 4])}, "x.shape.1. is 3 in the example, but 4 was written"),
        ({"y": ROWS}, "'y' is not an argument of this call"),
        ({"x": specs.SeqSpec([B, None])}, "x is a tensor"),
        ({"x": ROWS, "pair": ROWS}, "pair is a container .* takes a SeqSpec"),
        ({"pair": specs.SeqSpec([None, None, ROWS])}, "pair has no 2"),
        ({"pair": specs.DictSpec({"a": ROWS})}, "takes a SeqSpec"),
        ({"x": TensorSpec([B * 2, None])}, "depends on B, which no argument is declared to be"),
        ({"x": TensorSpec([ShapeVar("B", min=5), None])}, "is at least 5"),
        ({"*args": [ROWS]}, "1 entries for 0 argument"),
        ({"flag": IntVar("n")}, "flag is a bool"),
    ],
)
def test_what_does_not_fit_the_call_is_refused(spec, said):
    def function(x, pair, flag):
        return x + pair[0]

    call = (rows(4), [rows(4), rows(4)], True)
    with pytest.raises(DynamicShapesError, match=said):
        export(function, call, dynamic_shapes=ParamsSpec(spec))


@pytest.mark.parametrize(
    ("assumed", "said"),
    [
        (B % 3 == 0, "is not true of the example"),
        (C > B, "depends on C"),
        (torch.sym_float(B) * 1.5 < 2.5, "no relation of integers"),
        (B != B, "is not true of the example"),
    ],
)
def test_assumptions_that_cannot_hold_are_refused(assumed, said):
    spec = ShapesSpec({"x": ROWS}, assumptions=[assumed])
    with pytest.raises(DynamicShapesError, match=said):
        export(double, (rows(4),), dynamic_shapes=spec)


# ---------------------------------------------------------------------------------- torch is wrong


def torchs(function, args, spec):
    """The program of torch itself."""

    class Module(nn.Module):
        forward = staticmethod(function)

    return torch.export.export(Module(), args, dynamic_shapes=ParamsSpec(spec)).module()


def squeeze_and_ask(x):
    y = x.squeeze(0)
    return y * 100 if y.dim() == 1 else y + 1


@exports
def test_squeeze_of_a_size_that_may_be_1_is_refused():
    """torch's program is silently wrong at 1."""
    one = rows(1)
    assert not torch.equal(
        torchs(squeeze_and_ask, (rows(4),), {"x": ROWS})(one), squeeze_and_ask(one)
    )
    with pytest.raises(ConstraintViolationError, match=r"B != 1"):
        export(squeeze_and_ask, (rows(4),), dynamic_shapes=ParamsSpec({"x": ROWS}))
    several = TensorSpec([ShapeVar("B", min=2), None])
    program = export(squeeze_and_ask, (rows(4),), dynamic_shapes=ParamsSpec({"x": several}))
    check(program, squeeze_and_ask, (rows(2),))
    check_refused(program, (one,))


@exports
def test_expand_of_a_size_that_may_be_1_is_refused():
    """torch's program refuses its own example."""

    def function(x):
        return x.expand(5, 3) * 2

    with pytest.raises((RuntimeError, AssertionError)):
        torchs(function, (rows(1),), {"x": ROWS})(rows(1))
    with pytest.raises(ConstraintViolationError, match="B = 1"):
        export(function, (rows(1),), dynamic_shapes=ParamsSpec({"x": ROWS}))


@exports
def test_two_variables_that_must_be_equal_are_refused():
    """torch's program silently asks for it, and eager broadcasts."""

    def function(x, y):
        return x + y

    spec = {"x": ROWS, "y": TensorSpec([C, None])}
    with pytest.raises((RuntimeError, AssertionError)):
        torchs(function, (rows(4), rows(4)), spec)(rows(1), rows(4))
    with pytest.raises(ConstraintViolationError, match="C = B"):
        export(function, (rows(4), rows(4)), dynamic_shapes=ParamsSpec(spec))


def branch(x):
    return x * 2 if x.shape[0] > 3 else x - 1


def test_a_branch_on_a_size_is_decided_by_what_is_declared():
    """torch refuses every branch that the ranges do not decide; ours says what to declare."""
    with pytest.raises(ConstraintViolationError, match="min=4"):
        export(branch, (rows(4),), dynamic_shapes=ParamsSpec({"x": ROWS}))
    spec = ShapesSpec({"x": ROWS}, assumptions=[B >= 4])
    program = export(branch, (rows(5),), dynamic_shapes=spec)
    check(program, branch, (rows(4),))
    check_refused(program, (rows(3),))


def test_a_branch_on_an_int_is_refused_with_its_range():
    def function(x, n):
        return x * n if n < 0 else x

    spec = ParamsSpec({"n": IntVar("n")})
    with pytest.raises(ConstraintViolationError, match=r'n = IntVar\("n", max=-1\)') as caught:
        export(function, (rows(4), -3), dynamic_shapes=spec)
    refined = refine_dynamic_shapes_from_suggested_fixes(caught.value, spec)
    program = export(function, (rows(4), -3), dynamic_shapes=refined)
    check(program, function, (rows(4), -5))
    check_refused(program, (rows(4), 5))


def test_draft_export_corrects_a_spec():
    program = draft_export(branch, (rows(4),), dynamic_shapes=ParamsSpec({"x": ROWS}))
    check(program, branch, (rows(7),))
    check_refused(program, (rows(3),))


@exports
def test_draft_export_leaves_a_decorated_function_as_it_is():
    with pytest.raises(ConstraintViolationError, match="min=4"):
        draft_export(specs.dynamic_spec({"x": ROWS})(lambda x: branch(x)), (rows(4),))
