"""Python's operators on `torch.SymInt`, `SymFloat` and `SymBool` around our nodes, against Python's
own numbers: at the example, and wherever else the guards hold. Then what torch asks of a node, and
what must not happen to foreign nodes."""

from __future__ import annotations

import copy
import itertools
import math
import operator
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from lostwax.errors import DataDependentError
from lostwax.fake.symbolic.node import BoolNode, FloatNode, IntNode, install, unwrap, wrap
from lostwax.sym import BoolExpr, Expr, ShapeEnv, evaluate
from lostwax.sym.numbers.real import Real, complete_values, evaluate_real, unbacked_real
from lostwax.torch_version import TORCH
from tests.fresh import run_python

GRID = [-9, -8, -7, -3, -2, -1, 0, 1, 2, 3, 5, 7, 8, 9, 10, 16]
ERRORS = (ZeroDivisionError, ValueError, OverflowError)


class World:
    """An environment with symbols a, b, ...; each result can be read at any values of them."""

    def __init__(self, *hints: int, lo: int | None = None) -> None:
        self.env = ShapeEnv()
        self.exprs = [self.env.symbol(n, hint=h, lo=lo) for n, h in zip("abc", hints, strict=False)]
        self.symbols = [next(iter(e.symbols())) for e in self.exprs]
        self.faces = [wrap(e) for e in self.exprs]

    def read(self, value: Any, *values: int) -> Any:
        """A result, or a tuple of them, where the symbols have these values."""
        if isinstance(value, tuple):
            return tuple(self.read(v, *values) for v in value)
        value = unwrap(value)
        if not isinstance(value, (Expr, BoolExpr, Real)):
            return value
        given = complete_values(dict(zip(self.symbols, values, strict=True)), value.symbols())
        if isinstance(value, Real):
            return evaluate_real(value, given)
        found = evaluate(value, given)
        return bool(found) if isinstance(value, BoolExpr) else found

    def accepts(self, *values: int) -> bool:
        """Do the guards hold there?"""
        for guard in self.env.guards:
            given = complete_values(
                dict(zip(self.symbols, values, strict=True)), guard.cond.symbols()
            )
            if not evaluate(guard.cond, given):
                return False
        return True

    @property
    def guards(self) -> list[str]:
        return [str(g.cond) for g in self.env.guards]


def same(a: Any, b: Any) -> bool:
    return a == b and type(a) is type(b)


def outcome(function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except ERRORS as error:
        return type(error)


def check_unary(function: Any, hints: list[int] = GRID) -> None:
    for hint in hints:
        world = World(hint)
        result = function(world.faces[0])
        assert same(world.read(result, hint), function(hint)), (hint, result)
        for value in filter(world.accepts, GRID):
            assert same(world.read(result, value), function(value)), (hint, value, result)


def check_binary(function: Any, left: bool, right: bool, hints: list[int], grid: list[int]) -> None:
    """`left`, `right`: is that operand symbolic?"""
    for a, b in itertools.product(hints, grid):
        world = World(a, b)
        args = [f if s else v for f, s, v in zip(world.faces, (left, right), (a, b), strict=True)]
        result, expected = outcome(function, *args), outcome(function, a, b)
        if isinstance(expected, type):
            assert result is expected, (a, b)
            continue
        assert same(world.read(result, a, b), expected), (a, b, result)
        for x, y in itertools.product(grid if left else [a], grid if right else [b]):
            if world.accepts(x, y):
                wanted = outcome(function, x, y)
                assert same(world.read(result, x, y), wanted), ((a, b), (x, y), result)


SIDES = [(True, False), (False, True), (True, True)]
BINARY = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.floordiv,
    operator.mod,
    divmod,
    operator.truediv,
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
    operator.and_,
    operator.or_,
    operator.xor,
    torch.sym_max,
    torch.sym_min,
    max,
    min,
]


@pytest.mark.parametrize("sides", SIDES, ids=["sym-int", "int-sym", "sym-sym"])
@pytest.mark.parametrize("function", BINARY, ids=lambda f: f.__name__)
def test_binary_operator_of_integers(function, sides):
    check_binary(function, *sides, hints=[-7, 0, 1, 8], grid=[-8, -3, -1, 0, 1, 2, 5, 9])


@pytest.mark.parametrize("sides", SIDES, ids=["sym-int", "int-sym", "sym-sym"])
@pytest.mark.parametrize("function", [operator.lshift, operator.rshift, operator.pow])
def test_shifts_and_powers(function, sides):
    check_binary(function, *sides, hints=[-3, 0, 5], grid=[0, 1, 2, 3, 4])


def test_shift_by_a_negative_number():
    for function in (operator.lshift, operator.rshift):
        with pytest.raises(ValueError, match="negative shift"):
            function(World(3).faces[0], -1)


def test_a_negative_exponent_gives_a_float():
    world = World(4, -1)
    a, b = world.faces
    assert world.read(a**-1, 4, -1) == 0.25
    assert world.read(a**-1, 5, -1) == 0.2
    assert world.read(a**b, 4, -1) == 0.25
    assert not world.accepts(4, 1)


UNARY = {
    "neg": operator.neg,
    "pos": operator.pos,
    "abs": abs,
    "invert": operator.invert,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
    "round to tens": lambda n: round(n, -1),
    "round to digits": lambda n: round(n, 2),
    "truth": lambda n: 1 if n else 2,
    "int": int,
    "index": operator.index,
    "float": torch.sym_float,
    "half": lambda n: n / 2,
    "range": lambda n: len(range(n)),
    "bool of comparison": lambda n: bool(n > 3),
    "sum": lambda n: sum([n, 1, n]),
    "prod": lambda n: math.prod([n, 3, n]),
    "sorted": lambda n: sorted([n, 3, 0])[0] * 1,
    "add bool": lambda n: n + True,
    "mask": lambda n: (n + 7) & ~7,
    "bit_length": lambda n: n.bit_length(),
    "odd mask": lambda n: n & 0b1011010,
    "chained": lambda n: (n * 3 + 1) // 4 % 5 - n,
    "isinstance float": lambda n: n * 1.0,
    "as_integer_ratio": lambda n: n.as_integer_ratio()[0],
}


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_integer(name):
    check_unary(UNARY[name])


FLOATS = {
    "times a half": lambda n: n * 0.5,
    "half of it": lambda n: 0.5 * n,
    "quarter": lambda n: n / 4,
    "third": lambda n: n / 3,
    "third doubled": lambda n: n / 3 * 2.0,
    "tenths": lambda n: n * 0.1,
    "ceil half": lambda n: math.ceil(n / 2),
    "floor half": lambda n: math.floor(n * 0.5),
    "trunc half": lambda n: math.trunc(n * 0.5),
    "round half": lambda n: round(n / 2),
    "round quarter": lambda n: round(n * 0.25),
    "sym_int": lambda n: torch.sym_int(n / 2),
    "ceil third": lambda n: math.ceil(n / 3),
    "floor third": lambda n: math.floor(n / 3),
    "round third": lambda n: round(n / 3),
    "trunc third": lambda n: math.trunc(n / 3),
    "trunc tenths": lambda n: math.trunc(n * 0.7),
    "floor tenths": lambda n: math.floor(n * 0.7),
    "round tenths": lambda n: round(n * 0.3),
    "round to 2": lambda n: round(n / 3, 2),
    "sum of floats": lambda n: n * 0.5 + n * 0.25 - 1.5,
    "negative": lambda n: -(n * 0.5),
    "product": lambda n: n * 0.5 * n,
    "square": lambda n: (n * 0.5) ** 2,
    "abs": lambda n: abs(n / 2),
    "float floordiv": lambda n: n * 0.5 // 1.5,
    "int floordiv float": lambda n: n // 2.0,
    "float mod": lambda n: n * 0.5 % 1.5,
    "mod": lambda n: n % 2.5,
    "rmod": lambda n: 7.5 % (n * n + 1),
    "divmod": lambda n: divmod(n * 0.5, 2.0),
    "long constant": lambda n: n * 9007199254740994.0 + 3.0,
    "third and half": lambda n: n / 3 + n * 0.5,
    "third against a long constant": lambda n: bool(n / 3 == 1 / 3),
    "twice": lambda n: math.floor(n * 2.0),
    "is_integer": lambda n: bool((n * 0.5).is_integer()),
    "compare": lambda n: bool(n * 0.5 > 1.25),
    "compare int": lambda n: bool(n > 2.5),
    "compare with tenths": lambda n: bool(n * 0.1 < 0.3),
    "compare third": lambda n: bool(n / 3 >= 1.0),
    "equal": lambda n: bool(n / 2 == 1.5),
    "unequal": lambda n: bool(n / 2 != 1.5),
    "infinity": lambda n: bool(n < math.inf),
    "nan": lambda n: bool(n * 0.5 == math.nan),
    "truth": lambda n: 1 if n * 0.5 else 2,
    "max": lambda n: torch.sym_max(n * 0.5, 1.25),
    "min": lambda n: torch.sym_min(n * 0.5, 3),
    "sqrt": lambda n: torch.sym_sqrt(n * n),
    "floor of sqrt": lambda n: math.floor(torch.sym_sqrt(n * n)),
    "sin": lambda n: torch._sym_sin(n),
    "float()": lambda n: float(n / 2),
    "int()": lambda n: int(n * 0.5),
    "reflected sub": lambda n: 1.5 - n * 0.5,
    "reflected div": lambda n: 6.0 / (n * n + 1),
    "hash": lambda n: hash(n * 0.5),
    "by powers": lambda n: n / 3 / 4.0,
    "pow half": lambda n: (n * n) ** 0.5,
    "numpy": lambda n: n * np.float32(0.5),
    "scaled": lambda n: math.ceil(n * 1.5) + math.floor(n * 0.75),
}


@pytest.mark.parametrize("name", FLOATS)
def test_floats_of_one_integer(name):
    def plain(n):
        with np.errstate(all="ignore"):
            result = FLOATS[name](n)
        return float(result) if isinstance(result, np.floating) else result

    check_unary(plain, hints=[-7, 0, 1, 3, 8])


@pytest.mark.parametrize("function", [operator.truediv, operator.floordiv, math.ceil, math.floor])
def test_quotients_of_two_sizes(function):
    def quotient(a, b):
        return (
            function(a / b) if function in (math.ceil, math.floor) else function(a * 0.5, b * 0.5)
        )

    check_binary(quotient, True, True, hints=[-7, 5, 8], grid=[-8, -3, -1, 0, 1, 2, 5, 9])


def test_exact_floats_need_no_guard_and_no_symbol():
    world = World(7, lo=0)
    (s,) = world.faces
    assert str(math.ceil(s / 2)) == "s - s//2".replace("s", "a")
    assert str(math.floor(s * 2.0)) == "2*a"
    assert str(math.trunc(s * 0.5)) == "a//2"
    assert world.guards == []
    assert len(world.env.symbols) == 1


def test_an_inexact_float_makes_one_symbol_that_keeps_its_bounds():
    world = World(7, lo=0)
    (s,) = world.faces
    first, again = math.trunc(s * 0.3), math.trunc(s * 0.3)
    assert first is again
    assert bool(first >= 0)
    assert world.guards == []
    assert len(world.env.symbols) == 2


CONDITIONS = {
    "and": lambda n: (n > 2) & (n < 8),
    "or": lambda n: (n < 2) | (n > 5),
    "not": lambda n: torch.sym_not(n > 2),
    "equal": lambda n: (n > 2) == (n > 5),
    "and True": lambda n: (n > 2) & True,
    "rand": lambda n: True & (n > 2),
    "or False": lambda n: False | (n > 2),
    "plus": lambda n: (n > 2) + 1,
    "minus": lambda n: 3 - (n > 2),
    "times": lambda n: (n > 2) * 5,
    "sum": lambda n: (n > 2) + (n == 3),
    "int plus": lambda n: n + (n > 2),
    "ite": lambda n: torch.sym_ite(n > 2, n * 1, n + 5),
    "nested ite": lambda n: torch.sym_ite((n > 2) | (n == 0), n * n, -n),
    "float": lambda n: torch.sym_float(n > 2),
    "int": lambda n: int(n > 2),
    "hash": lambda n: hash(n > 2),
    "ite of floats": lambda n: torch.sym_ite(n > 2, n * 0.5, n / 4),
    "ne": lambda n: torch.sym_ite(n != 3, n + 0, n + 1),
    "negative": lambda n: (-(n > 2), +(n > 2), abs(n > 2)),
    "inverted": lambda n: ~((n > 2) + 0) + (n > 2),
    "xor": lambda n: (n > 2) ^ (n > 5),
    "rxor": lambda n: True ^ (n > 2),
    "bits": lambda n: ((n > 2) & 3) + ((n > 2) | 4) + ((n > 2) ^ 6),
    "shifted": lambda n: ((n > 2) << 2) + ((n > 2) >> 1),
    "less": lambda n: (n > 2) < (n > 5),
    "at least": lambda n: (n > 2) >= 1,
    "unlike": lambda n: (n > 2) != (n > 5),
    "unlike a number": lambda n: (n > 2) != 1,
    "quotient": lambda n: (n > 2) / 4 + (n > 2) // 1,
    "remainder": lambda n: divmod(n > 2, 2),
    "squared": lambda n: (n > 2) ** 2,
    "rounded": lambda n: round(n > 2) + math.floor(n > 2) + math.trunc(n > 2),
    "of a list": lambda n: [4, 5][n > 2],
    "a float": lambda n: float(n > 2),
    "parts": lambda n: (n > 2).real + (n > 2).imag + (n > 2).numerator + (n > 2).denominator,
    "parts of an integer": lambda n: (n.real, n.imag, n.numerator, n.denominator),
    "parts of a float": lambda n: ((n / 2).real, (n / 2).imag),
    "digits": lambda n: (n.bit_count(), n.bit_length(), (n / 2).hex()),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_conditions(name):
    def as_python(n):
        result = CONDITIONS[name](n)
        return bool(result) if isinstance(result, np.bool_) else result

    check_unary(as_python, hints=[-3, 0, 2, 3, 9])


def test_conditions_and_choices_leave_no_guard():
    world = World(7)
    (a,) = world.faces
    torch.sym_ite((a > 2) & (a < 9), a * 1, a + 5) + (a > 3)
    torch.sym_max(a, 3) + abs(a)
    assert str(a & 12) != str(a)
    assert world.guards == []


def test_sym_sum():
    world = World(7, 4)
    a, b = world.faces
    several = [torch.sym_sum(a, b, 3)] if TORCH >= (2, 12) else []
    for total in (torch.sym_sum([a, b, 3]), *several):
        assert world.read(total, 7, 4) == 14
        assert world.read(total, 1, 2) == 6


# ------------------------------------------------------------------------------- wrapping


def test_the_same_expression_has_the_same_face():
    world = World(7, 4)
    (e, f), (a, b) = world.exprs, world.faces
    assert wrap(e) is a
    assert a + b is wrap(e + f)
    assert (a > b) is wrap(e > f)
    assert a * 0.5 is a / 2
    assert isinstance(a, torch.SymInt)
    assert isinstance(a.node, IntNode)
    assert not isinstance(a, int)
    assert isinstance((a > b).node, BoolNode)
    assert isinstance((a / b).node, FloatNode)


def test_unwrap_is_the_inverse_and_knows_todays_facts():
    world = World(7, 4)
    (e, f), (a, b) = world.exprs, world.faces
    assert unwrap(a + b) is e + f
    assert unwrap(a > b) is (e > f)
    half = a / 2
    assert isinstance(unwrap(half), Real)
    torch._check(a == 7)
    assert unwrap(half) == 3.5
    assert unwrap(a) == 7
    assert type(unwrap(a)) is int
    assert unwrap(a * 0.5) == 3.5
    assert type(a / 2) is float
    assert a + 1 == 8
    assert type(a + 1) is int


@pytest.mark.parametrize("value", [3, 2.5, True, None, "text", torch.float32])
def test_plain_values_are_left_alone(value):
    assert wrap(value) is value
    assert unwrap(value) is value


def test_text():
    world = World(7, 4)
    a, b = world.faces
    assert f"{a + 2 * b}" == "a + 2*b"
    assert str(a > 3) == "a >= 4"
    assert repr(a / 2) == "a/2"
    assert str(a / 3 * 0.3) == "(a/3) * 0.3"
    assert world.guards == []
    assert f"{a:03d}" == "007"
    assert world.guards == ["a == 7"]


def test_a_key_is_the_example_s_number():
    world = World(7)
    (a,) = world.faces
    assert hash(a) == hash(7)
    assert {7: "here"}[a] == "here"
    assert world.guards == ["a == 7"]


def test_copies_and_pickles():
    (a,) = World(7).faces
    for value in (a, a > 3, a / 2):
        assert copy.deepcopy(value).node is value.node
        assert copy.copy(value).node is value.node
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(value)


def test_what_is_no_number_gets_its_turn():
    (a,) = World(7).faces
    assert (a == None) is False  # noqa: E711
    assert (a == "a") is False
    assert a != (1, 2)
    with pytest.raises(TypeError):
        a + "x"
    with pytest.raises(TypeError):
        a * 0.5 & 1
    assert [1, 2, 3] * World(2).faces[0] == [1, 2, 3, 1, 2, 3]


def test_numpy_integers_and_enumerations():
    world = World(7)
    (a,) = world.faces
    assert str(a + np.int64(2)) == "a + 2"
    assert bool(a > np.int32(3))


def test_two_environments_do_not_mix():
    (a,), (b,) = World(7).faces, World(4).faces
    with pytest.raises(ValueError, match="another ShapeEnv"):
        a + b


# ----------------------------------------------------------- what torch asks of a node


def test_a_node_answers_as_the_protocol_wants():
    world = World(7)
    node = world.faces[0].node
    assert node.is_int() is True
    assert node.is_float() is node.is_bool() is node.is_nested_int() is node.has_hint() is False
    assert node.maybe_as_int() is None
    assert node.wrap_int(3).maybe_as_int() == 3
    assert node.clone() is node
    assert node.add(node.wrap_int(1)) is (world.faces[0] + 1).node
    assert node.hint == node._hint == 7
    torch._check(world.faces[0] == 7)
    assert node.maybe_as_int() == 7
    assert node.is_constant()


def test_nodes_divide_as_cpp_does():
    for a, b in itertools.product([-7, -6, 5, 6], [-3, 2, 4]):
        world = World(a, b)
        m, n = (f.node for f in world.faces)
        assert m.floordiv(n).hint == int(a / b)
        assert m.mod(n).hint == math.fmod(a, b)
        assert m.floordiv(n.wrap_int(b)).hint == int(a / b)


@pytest.mark.parametrize(
    ("method", "answer", "kind"),
    [
        ("guard_bool", True, "branch"),
        ("expect_true", True, "check"),
        ("guard_or_false", True, "branch"),  # the example says otherwise, so it must be guarded
        ("guard_or_true", True, None),
        ("statically_known_true", False, None),
    ],
)
def test_the_five_kinds_of_questions(method, answer, kind):
    world = World(7, lo=0)
    condition = (world.faces[0] > 3).node
    assert getattr(condition, method)("/pytorch/aten/src/ATen/Some.h", 12) is answer
    assert [(str(g.cond), g.kind, g.asked_by) for g in world.env.guards] == (
        [] if kind is None else [("a >= 4", kind, "Some.h:12")]
    )
    for proven in ((world.faces[0] >= 0), (world.faces[0] + 1 > 0)):
        assert proven is True or getattr(proven.node, method)("f", 1) is True
    assert len(world.env.guards) == (kind is not None)


@pytest.mark.parametrize("number", [0, 1])
def test_sizes_0_and_1_are_not_special(number):
    world = World(number, lo=0)
    condition = (world.faces[0] == number).node
    assert condition.guard_or_false("Contiguity.h", 45) is False
    assert world.guards == []
    assert condition.guard_bool("SymInt.h", 1) is True
    assert world.guards == [f"a == {number}"]


def test_a_violated_requirement():
    world = World(7)
    assert (world.faces[0] > 9).node.expect_true("f", 1) is False
    with pytest.raises(RuntimeError, match="at most 3"):
        torch._check(world.faces[0] <= 3, lambda: "at most 3")
    with pytest.raises(IndexError):
        torch._check_index(world.faces[0] <= 3)
    with pytest.raises(RuntimeError, match="which is False for the example"):
        torch._check(world.faces[0] <= 3)
    assert world.guards == ["a <= 9", "a >= 4"]  # who catches what is raised relies on it


def test_guard_int_specialises_and_says_who_asked():
    world = World(7)
    assert (world.faces[0] * 2).node.guard_int("/x/python_arg_parser.h", 648) == 14
    (guard,) = world.env.guards
    assert str(guard.cond) == "a == 7"
    assert guard.kind == "specialize"
    assert guard.asked_by == "python_arg_parser.h:648"
    assert guard.where.file == __file__


def test_unbacked():
    env = ShapeEnv()
    u = wrap(env.unbacked(lo=0, origin="nonzero"))
    assert str(u * 2 + 1) == "2*u0 + 1"
    assert bool(u + 1 > 0)
    for question in (lambda: bool(u > 3), lambda: int(u), lambda: range(u), lambda: float(u / 3)):
        with pytest.raises(DataDependentError, match="nonzero"):
            question()
    assert (u == 1).node.guard_or_false("f", 1) is False
    assert (u != 1).node.guard_or_true("f", 1) is True
    assert env.guards == []
    torch._check(u > 3)
    assert bool(u > 2)
    assert [(str(g.cond), g.kind) for g in env.guards] == [("u0 >= 4", "assert")]


def test_unbacked_floats():
    env = ShapeEnv()
    x = wrap(unbacked_real(env, "item"))
    assert isinstance(x, torch.SymFloat)
    assert str(x * 2 + 1) == "(f0 * 2.0) + 1.0"
    for question in (lambda: bool(x > 3), lambda: int(x), lambda: float(x), lambda: 1 if x else 2):
        with pytest.raises(DataDependentError, match=r"item|f0"):
            question()
    torch._check(x > 3)
    assert bool(x > 3)
    assert wrap(unbacked_real(env, "item")) is not x


def test_check_is_size():
    env = ShapeEnv()
    u = wrap(env.unbacked(origin="item"))
    torch._check_is_size(u, max=9)
    assert env.bounds(unwrap(u)) == (0, 9)


# ------------------------------------------------------------------------ torch's Python helpers


def test_helpers_of_symbolic_shapes():
    from torch.fx.experimental import symbolic_shapes as shapes

    world = World(7, 4, lo=0)
    a, b = world.faces
    assert shapes.guard_or_false(a == 1) is False
    assert shapes.guard_or_true(a != 1) is True
    assert shapes.statically_known_true(a + b >= 0) is True
    assert shapes.statically_known_true(a > 3) is False
    assert shapes.statically_known_false(a < 0) is True
    assert shapes.sym_eq((a, b), (a, b)) is True
    assert not shapes.is_concrete_int(a)
    assert not shapes.has_static_value(a)
    if TORCH >= (2, 12):
        assert shapes.optimization_hint(a + b) == 11
        assert not shapes.has_guarding_hint(a)
    assert {str(s) for s in shapes.free_symbols([a * b, a // 2])} == {"a", "b"}
    assert not shapes.free_unbacked_symbols(a)
    assert world.guards == []
    assert shapes.guard_bool(a > 3) is True
    assert shapes.expect_true(b > 2) is True
    assert shapes.guard_int(b) == 4
    assert shapes.is_concrete_int(b)
    assert shapes.has_static_value(b)
    assert world.guards == ["a >= 4", "b >= 3", "b == 4"]


def test_unbacked_names_are_recognised_by_torch():
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, guard_or_false

    u = wrap(ShapeEnv().unbacked(lo=0))
    assert {str(s) for s in free_unbacked_symbols(u * 2)} == {"u0"}
    assert guard_or_false(u == 3) is False


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: (a + 7) // 8 * b - a % 5,
        lambda a, b: torch.sym_max(a, b) - torch.sym_min(a * 2, 9),
        lambda a, b: (a > b) | (a * b == 12),
        lambda a, b: (a != 3) & (b <= a // 2),
    ],
)
def test_sympy_means_the_same(make):
    world = World(7, 4, lo=0)
    result = make(*world.faces)
    expr = result.node.expr
    by_name = {str(s): s for s in expr.free_symbols}
    for x, y in itertools.product([0, 1, 3, 7, 12], [0, 1, 4, 12]):
        there = expr.subs({by_name[n]: v for n, v in (("a", x), ("b", y)) if n in by_name})
        assert there == world.read(result, x, y)


def test_torch_refs_run_on_our_sizes():
    prims_common = torch._prims_common
    world = World(7, 4, lo=0)
    a, b = world.faces
    assert prims_common.is_same_shape((a, b), (a, b))
    assert prims_common.make_contiguous_strides_for((a, b, 3))[1] == 3
    assert world.guards == []


# --------------------------------------------------------------------------------- foreign nodes


@pytest.fixture
def foreign():
    """Two SymInts of torch's own ShapeEnv."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic
    from torch.fx.experimental.symbolic_shapes import ShapeEnv as Peer

    install()
    env = Peer()

    def make(name: str, hint: int) -> Any:
        source = ConstantSource(name)
        symbol = env.create_symbol(hint, source, dynamic_dim=DimDynamic.DYNAMIC)
        return env.create_symintnode(symbol, hint=hint, source=source)

    return make("x", 7), make("y", 4)


def test_foreign_nodes_keep_torchs_operators(foreign):
    x, y = foreign
    cases = [
        (x + y, 11),
        (1 + x, 8),
        (x - 9, -2),
        (9 - x, 2),
        (x * y, 28),
        (x // y, 1),
        (x % y, 3),
        (-x, -7),
        (x**2, 49),
        (2**y, 16),
        (abs(-x), 7),
        (x / 2, 3.5),
        (x * 0.5, 3.5),
        (14 / x, 2.0),
        (torch.sym_max(x, y), 7),
        (torch.sym_sum([x, y]), 11),
        (x << 1, 14),
        (x & 3, 3),
    ]
    for result, value in cases:
        assert result.node.hint == value
    assert bool(x > y)
    assert not bool(x == y)
    assert bool((x > y) & (y > 2))
    assert math.ceil(x / 2).node.hint == 4
    assert torch.sym_ite(x > y, x, y).node.hint == 7
    assert torch.sym_not(x > y).node.hint is False
    assert round(x) is x
    torch._check(x > 3)
    torch._check_with(RuntimeError, y > 3, lambda: "")
    with pytest.raises(RuntimeError, match="no"):
        torch._check(x > 30, lambda: "no")
    assert (x == "text") is False
    assert unwrap(x) is x
    for function in (lambda: divmod(x, 2), lambda: ~x):
        with pytest.raises(TypeError):
            function()
    with pytest.raises(TypeError):
        f"{x:03d}"
    assert int(y) == 4


def test_foreign_and_our_nodes_do_not_mix(foreign):
    (a,) = World(3).faces
    with pytest.raises(TypeError, match="another symbolic engine"):
        a + foreign[0]


def test_checks_of_plain_conditions_are_as_before():
    install()
    torch._check(True)
    with pytest.raises(ValueError, match="text"):
        torch._check_value(False, lambda: "text")
    with pytest.raises(RuntimeError, match="Expected cond to be True, but got False"):
        torch._check(False)
    with pytest.raises(TypeError, match="Tensor"):
        torch._check(torch.tensor(True))
    with pytest.raises(TypeError, match="callable"):
        torch._check(False, "text")


# ------------------------------------------------------------------------------------- imports

_SCRIPT = """
import sys, math, torch
before = set(sys.modules)
from lostwax.sym import ShapeEnv
from lostwax.fake.symbolic.node import wrap
env = ShapeEnv()
s = wrap(env.symbol("s", hint=7))
torch._check(s > 3)
torch._check(s < 100, lambda: "large")
torch._check_is_size(s)
math.ceil(s / 2), torch.sym_max(s, 3), torch.sym_sqrt(s), s * 0.5 > 1
torch.sym_ite(s > 5, s, s + 1)
assert [str(g.cond) for g in env.guards] == ["s >= 4", "s <= 99"], env.guards
new = {m for m in set(sys.modules) - before if m.split(".")[0] == "sympy" or "symbolic_shapes" in m
       or m.startswith(("torch._dynamo", "torch.export"))}
assert not new, sorted(new)[:9]
"""


def test_no_sympy_behind_check():
    run_python(_SCRIPT)
