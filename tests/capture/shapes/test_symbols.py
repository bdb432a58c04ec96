"""Sizes and numbers that vary: symbols at the interface, guards, assertions, data in sizes."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import nn

from lostwax import Dim, FakeTensorMode, export
from lostwax.errors import ConstraintViolationError, DataDependentError, InputValueError

AUTO = Dim.AUTO


def same(program, function, *calls) -> None:
    """The program gives what the function gives, for each of these calls."""
    program.validate()
    module = program.module()
    for args in calls:
        torch.testing.assert_close(module(*args), function(*args))


def targets(program) -> list[object]:
    return [n.target for n in program.graph.nodes if n.op == "call_function"]


# ------------------------------------------------------------------------------------ the seeds


def test_one_dim_in_two_inputs() -> None:
    class M(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branch1 = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
            self.branch2 = nn.Sequential(nn.Linear(128, 64), nn.ReLU())
            self.buffer = torch.ones(32)

        def forward(self, x1, x2):
            return self.branch1(x1) + self.buffer, self.branch2(x2)

    batch, module = Dim("batch"), M()
    shapes = {"x1": {0: batch}, "x2": {0: batch}}
    texts = []
    for n in (1, 2, 7, 10):
        program = export(module, (torch.randn(n, 64), torch.randn(n, 128)), dynamic_shapes=shapes)
        texts.append(str(program))
    assert len(set(texts)) == 1
    assert 'x1: "f32[batch, 64]", x2: "f32[batch, 128]"' in texts[0]
    ((symbol, limits),) = program.range_constraints.items()
    assert str(symbol) == "batch"
    assert symbol.is_Symbol
    assert (limits.lower, limits.upper) == (0, float("inf"))
    same(program, module, *((torch.randn(n, 64), torch.randn(n, 128)) for n in (0, 1, 2, 5)))
    with pytest.raises(InputValueError, match=r"x2.shape\[0\] is 4, but must be x1.shape\[0\] = 3"):
        program.module()(torch.randn(3, 64), torch.randn(4, 128))


def test_derived_dims_have_computed_ranges() -> None:
    dimx = Dim("dimx", min=3, max=6)

    def f(x, y):
        return x + y[1:]

    program = export(f, (torch.randn(5), torch.randn(6)), dynamic_shapes={0: dimx, 1: dimx + 1})
    assert 'x: "f32[dimx]", y: "f32[dimx + 1]"' in str(program)
    found = {str(s): (r.lower, r.upper) for s, r in program.range_constraints.items()}
    assert found == {"dimx": (3, 6), "dimx + 1": (4, 7)}
    same(program, f, (torch.randn(3), torch.randn(4)), (torch.randn(6), torch.randn(7)))
    with pytest.raises(InputValueError, match=r"x.shape\[0\] is 7, but the program holds for 3 <="):
        program.module()(torch.randn(7), torch.randn(8))


def test_a_dim_that_stands_only_in_derived_sizes() -> None:
    half = Dim("half")

    def f(x):
        return x.view(-1, 2) + x.shape[0] // 2, x.new_zeros(x.shape[0] // 2)

    program = export(f, (torch.randn(6),), dynamic_shapes={"x": {0: 2 * half}})
    assert not program.guards
    same(program, f, *((torch.randn(n),) for n in (0, 2, 10)))
    with pytest.raises(InputValueError, match=r"x.shape\[0\] is 5, but must be 2\*half"):
        program.module()(torch.randn(5))


# ------------------------------------------------------------------------------- guards and ranges


def branch(x):
    return x + 1 if x.shape[0] > 5 else x - 1


def test_a_branch_guards() -> None:
    program = export(branch, (torch.randn(10),), dynamic_shapes={"x": {0: AUTO}})
    (guard,) = program.guards
    assert guard.predicate == "x.shape[0] >= 6"
    assert "if x.shape[0] > 5" in guard.where.text
    same(program, branch, (torch.randn(6),), (torch.randn(100),))
    with pytest.raises(InputValueError) as error:
        program.module()(torch.randn(3))
    text = str(error.value)
    assert "the program was captured under the condition x.shape[0] >= 6" in text
    assert "here x.shape[0] = 3" in text
    assert "return x + 1 if x.shape[0] > 5 else x - 1" in text
    torch.testing.assert_close(program.module(check_guards=False)(torch.ones(3)), torch.ones(3) + 1)


def test_a_branch_breaks_a_declared_range() -> None:
    with pytest.raises(ConstraintViolationError) as error:
        export(branch, (torch.randn(10),), dynamic_shapes={"x": {0: Dim("n")}})
    assert "x.shape[0] >= 6" in str(error.value)
    assert "min=6" in str(error.value)
    fixed = export(branch, (torch.randn(10),), dynamic_shapes={"x": {0: Dim("n", min=6)}})
    assert not fixed.guards


def test_what_eager_demands_too_is_a_check_of_the_program() -> None:
    def f(x):
        return x[4]

    program = export(f, (torch.randn(8),), dynamic_shapes={"x": {0: Dim("n")}})
    assert [g.predicate for g in program.guards] == ["x.shape[0] >= 5"]
    same(program, f, (torch.randn(5),))
    stated = {"x": {0: Dim("n", min=2)}}
    with pytest.raises(ConstraintViolationError, match="min=5"):
        export(f, (torch.randn(8),), dynamic_shapes=stated)


def test_two_dims_that_must_be_equal() -> None:
    calls = (torch.randn(4), torch.randn(4))
    with pytest.raises(ConstraintViolationError, match=r"b = a|a = b"):
        export(operator.add, calls, dynamic_shapes=({0: Dim("a")}, {0: Dim("b")}))
    program = export(lambda x, y: x + y, calls, dynamic_shapes=({0: AUTO}, {0: AUTO}))
    assert 'y: "f32[s0]"' in str(program)
    same(program, operator.add, (torch.randn(9), torch.randn(9)))
    with pytest.raises(InputValueError, match=r"x.shape"):
        program.module()(torch.randn(3), torch.randn(5))


def test_a_guard_on_a_size_that_later_turned_out_equal_to_another() -> None:
    def f(x, y):
        z = y + 1 if y.shape[0] > 2 else y
        return x + z

    program = export(f, (torch.ones(4), torch.ones(4)), dynamic_shapes=({0: AUTO}, {0: AUTO}))
    same(program, f, (torch.ones(3), torch.ones(3)))
    with pytest.raises(InputValueError, match=r"y.shape\[0\] >= 3"):
        program.module()(torch.ones(2), torch.ones(2))


def test_a_loop_over_a_size_fixes_it() -> None:
    def f(x):
        for i in range(x.shape[0]):
            x = x + i
        return x

    program = export(f, (torch.ones(3),), dynamic_shapes={"x": {0: AUTO}})
    assert 'x: "f32[3]"' in str(program)
    with pytest.raises(InputValueError, match=r"a concrete integer was needed.*\n.*range"):
        program.module()(torch.ones(4))


def test_constraints_are_known_to_the_trace_and_checked() -> None:
    def f(x):
        return x.view(-1, 8) if x.shape[0] % 8 == 0 else x

    shapes = {"x": {0: Dim("seq")}}
    program = export(f, (torch.ones(16),), dynamic_shapes=shapes, constraints=["seq % 8 == 0"])
    same(program, f, (torch.ones(8),), (torch.ones(0),))
    with pytest.raises(InputValueError, match="seq % 8 == 0"):
        program.module()(torch.ones(12))


def test_relations_between_two_dims() -> None:
    def f(x, y):
        return x[: y.shape[0]] + y if y.shape[0] <= x.shape[0] else x

    shapes = ({0: Dim("n")}, {0: Dim("k")})
    args = (torch.ones(5), torch.ones(3))
    program = export(f, args, dynamic_shapes=shapes, constraints=["k <= n"])
    same(program, f, (torch.ones(7), torch.ones(7)), (torch.ones(7), torch.ones(1)))
    with pytest.raises(InputValueError, match="k <= n"):
        program.module()(torch.ones(2), torch.ones(4))


# ------------------------------------------------------------------------------------------ inputs


def test_numbers_that_vary() -> None:
    def f(x, n, t):
        return x * n, x * t, n + 3, t * 2, x.new_zeros(n)

    program = export(
        f, (torch.ones(2), 4, 0.5), dynamic_shapes={"n": Dim.DYNAMIC, "t": Dim.DYNAMIC}
    )
    same(program, f, (torch.randn(2), 7, 1.5), (torch.randn(2), 0, -2.0))
    with pytest.raises(InputValueError, match=r"n is the float 4.0"):
        program.module()(torch.ones(2), 4.0, 0.5)
    with pytest.raises(InputValueError, match="t is the int 1"):
        program.module()(torch.ones(2), 4, 1)
    with pytest.raises(InputValueError, match="n >= 0"):
        program.module()(torch.ones(2), -1, 0.5)


def test_a_float_that_varies_decides_nothing() -> None:
    with pytest.raises(DataDependentError, match="the input t"):
        export(
            lambda x, t: x if t > 0 else -x,
            (torch.ones(2), 0.5),
            dynamic_shapes={"t": AUTO},
            control_flow="refuse",
        )


def test_one_tensor_as_two_inputs_of_different_sizes() -> None:
    x = torch.ones(4, 3)

    def f(a, b):
        return a.sum(0) + b.sum(0)

    program = export(f, (x, x), dynamic_shapes=({0: AUTO}, {0: AUTO}))
    same(program, f, (torch.randn(2, 3), torch.randn(5, 3)))


def test_inputs_without_data() -> None:
    with FakeTensorMode():
        x = torch.empty(4, 3)
    program = export(lambda x: x * 2, (x,), dynamic_shapes={"x": {0: AUTO, 1: AUTO}})
    same(program, lambda x: x * 2, (torch.randn(5, 7),))


def test_inputs_that_are_not_dense() -> None:
    def f(a):
        return a * 2 + a.reshape(-1).sum()

    program = export(f, (torch.randn(4, 10)[:, :5],), dynamic_shapes={"a": {0: AUTO, 1: AUTO}})
    same(program, f, (torch.randn(3, 7)[:, :2],), (torch.randn(3, 7),), (torch.randn(7, 3).t(),))


# ----------------------------------------------------------------------------------------- numbers


def test_sizes_are_computed_once_and_in_canonical_form() -> None:
    def f(x):
        n = x.shape[0]
        return x.new_zeros(2 * n + 1), x.new_ones(1 + n + n), x.view(n * 3)

    program = export(f, (torch.ones(4, 3),), dynamic_shapes={"x": {0: AUTO}})
    found = targets(program)
    assert found.count(torch.ops.aten.sym_size.int) == 1
    assert found.count(operator.mul) == 2
    assert found.count(operator.add) == 1
    same(program, f, (torch.ones(7, 3),), (torch.ones(0, 3),))


def test_floats_made_of_sizes() -> None:
    def f(x):
        return x.new_zeros(torch.sym_int(x.shape[0] * 0.3) + 1), x * (x.shape[0] ** 0.5)

    program = export(f, (torch.ones(9),), dynamic_shapes={"x": {0: AUTO}})
    same(program, f, *((torch.ones(n),) for n in (0, 1, 3, 10, 101)))


def test_a_branch_on_an_inexact_float_of_two_sizes_is_asserted() -> None:
    def f(x):
        return x + 1 if torch.sym_int(x.shape[0] * 0.3 + x.shape[1] * 0.1) > 2 else x

    program = export(f, (torch.ones(20, 1),), dynamic_shapes={"x": (AUTO, AUTO)})
    same(program, f, (torch.ones(10, 1),), (torch.ones(0, 31),))
    with pytest.raises(RuntimeError, match=r"is required at .*sym_int"):
        program.module()(torch.ones(9, 2))


# -------------------------------------------------------------------------------------------- data


def test_sizes_from_data() -> None:
    def f(a, n):
        k = n.item()
        found = a.nonzero()
        return torch.zeros(k), a[:k], a[a > 0] * 2, found.shape[0] + 1, a[found[:, 0]]

    program = export(f, (torch.randn(5), torch.tensor(3)), dynamic_shapes=({0: AUTO}, None))
    calls = [(torch.randn(n), torch.tensor(k)) for n, k in ((7, 0), (0, 2), (4, 4), (1, 9))]
    same(program, f, *calls)
    with pytest.raises(RuntimeError, match=r"u0 >= 0 is required at .*return torch.zeros\(k\)"):
        program.module()(torch.randn(3), torch.tensor(-1))


def test_split_sizes_from_data_are_checked_as_given() -> None:
    def f(a, n):
        return a.split(n.tolist())

    program = export(f, (torch.randn(5), torch.tensor([3, 2])))
    same(program, f, (torch.randn(5), torch.tensor([5, 0])))
    with pytest.raises(RuntimeError, match="u0 \\+ u1 == 5 is required"):
        program.module()(torch.randn(5), torch.tensor([4, 4]))


def test_repeats_and_indices_from_data() -> None:
    def f(a, n, i):
        return a.repeat_interleave(n), a[i.item()]

    program = export(f, (torch.randn(3), torch.tensor([3, 2, 1]), torch.tensor(2)))
    same(program, f, (torch.randn(3), torch.tensor([0, 0, 4]), torch.tensor(-3)))
    with pytest.raises(RuntimeError, match=r"u1 <= 2 is required|u0 <= 2 is required"):
        program.module()(torch.randn(3), torch.tensor([0, 0, 4]), torch.tensor(3))


def test_what_is_checked_is_known() -> None:
    def f(a, n):
        k = n.item()
        torch._check(k > 2)
        torch._check(k < 10)
        return a + 1 if k > 1 else a

    program = export(f, (torch.randn(3), torch.tensor(5)))
    same(program, f, (torch.randn(3), torch.tensor(9)))
    with pytest.raises(RuntimeError, match=r"u0 >= 3 is required at .*torch._check\(k > 2\)"):
        program.module()(torch.randn(3), torch.tensor(2))


def test_a_branch_on_data_is_refused() -> None:
    def f(a, n):
        return a + 1 if n.item() > 2 else a

    with pytest.raises(DataDependentError) as error:
        export(f, (torch.randn(3), torch.tensor(5)), control_flow="refuse")
    text = str(error.value)
    assert "item() at tests/capture/shapes/test_symbols.py" in text
    assert "return a + 1 if n.item() > 2 else a" in text
    assert "torch._check(u0 >= 3)" in text


@pytest.mark.parametrize(
    ("size", "wrap", "others"),
    [
        ((3, 3, 3), False, [(5, 5, 5), (0, 0, 0), (1, 1, 1)]),
        ((2, 2, 2, 2), False, [(3, 3, 3, 3)]),
        ((7, 2), True, [(3, 4), (9, 1), (4, 3), (0, 2), (5, 5)]),
    ],
)
def test_diagonals_are_filled_at_every_size(size, wrap, others):
    def function(x):
        return x.fill_diagonal_(7, wrap) * 2

    spec = (dict.fromkeys(range(len(size)), Dim.AUTO),)
    module = export(function, (torch.randn(size),), dynamic_shapes=spec).module()
    for other in (size, *others):
        x = torch.randn(other)
        again = x.clone()
        assert torch.equal(module(x), function(again))
        assert torch.equal(x, again)


def test_what_may_be_the_tensor_itself_is_changed_in_place():
    def function(x):
        y = x.contiguous()  # where a size is 1, it is x
        y.t_()
        return y * 2

    spec = ({0: AUTO, 1: AUTO},)
    module = export(function, (torch.randn(3, 4).t(),), dynamic_shapes=spec).module()
    for size in ((5, 2), (3, 4)):
        x = torch.randn(size).t()
        assert torch.equal(module(x), function(x))
    with pytest.raises(InputValueError, match=r"x\.shape\[1\] != 1"):
        module(torch.randn(1, 4).t())
    copied = export(
        lambda x: x.reshape(-1).unsqueeze_(0), (torch.randn(3, 4).t(),), dynamic_shapes=spec
    )
    assert not copied.guards
