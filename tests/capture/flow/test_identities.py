"""`one is other`, of numbers that data or sizes decide, and members of an `IntEnum` that data
choose, beside eager."""
# ruff: noqa: B009, E712, F632, F841

from __future__ import annotations

import builtins
import functools
import inspect
import math
import operator
import warnings
import weakref
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax import Dim
from lostwax.errors import CaptureError, ConstraintViolationError, DataDependentError
from tests.capture.flow.identities import (
    CALL,
    HELD,
    IS_TRUE,
    OF_SIZES,
    PROGRAMS,
    Counting,
    Held,
    Mode,
    by_held_functions,
    is_set,
)

INPUTS = [
    torch.tensor(each, dtype=torch.float32)
    for each in ([1, 2], [-1, -2], [5, -1], [-5, 1], [0, 0], [3, 3])
]


@pytest.mark.parametrize("function", PROGRAMS)
def test_data_decide(function: Any) -> None:
    program = lostwax.export(function, (INPUTS[0],))
    program.validate()
    run = program.module()
    for each in INPUTS:
        torch.testing.assert_close(run(each), function(each))


def test_two_modules_and_their_state(tmp_path: Any) -> None:
    for strict in (False, True):
        program, module = lostwax.export(Counting(), (INPUTS[0],), strict=strict), Counting()
        lostwax.save(program, tmp_path / "program.pt2")
        run = lostwax.load(tmp_path / "program.pt2").module()
        for each in INPUTS:
            torch.testing.assert_close(run(each), module(each))
        torch.testing.assert_close(run.count, module.count)


@pytest.mark.parametrize("function", OF_SIZES)
def test_sizes_decide(function: Any) -> None:
    dims = ({0: Dim("n", min=2)},)
    x = torch.ones(4)
    run = lostwax.export(function, (x,), dynamic_shapes=dims, control_flow="sizes").module()
    for n in (4, 2, 3, 5, 300):
        torch.testing.assert_close(run(torch.ones(n)), function(torch.ones(n)))


def test_without_branches_on_sizes_the_example_answers() -> None:
    def forward(x: Tensor) -> Tensor:
        return x + 1 if (x.shape[0] > 3) is True else x - 1

    def elsewhere(x: Tensor) -> Tensor:
        return x + 1 if is_set(x.shape[0] > 3) else x - 1

    for function in (forward, elsewhere):
        with pytest.raises(ConstraintViolationError, match="min=4"):
            lostwax.export(function, (torch.ones(4),), dynamic_shapes=({0: Dim("n")},))
        dims = ({0: Dim("n", min=4)},)
        for how in ("capture", "refuse"):
            program = lostwax.export(
                function, (torch.ones(4),), dynamic_shapes=dims, control_flow=how
            )
            assert program.module()(torch.ones(9))[0] == 2


def test_refused_where_control_flow_is() -> None:
    def forward(x: Tensor) -> bool:
        return is_set((x.sum() > 0).item())

    with pytest.raises(DataDependentError, match="return flag is True"):
        lostwax.export(forward, (INPUTS[0],), control_flow="refuse")


def two_sizes(x: Tensor) -> bool:
    return x.shape[0] is (x + 1).shape[0]


def large(x: Tensor) -> bool:
    return int(x[0]) is 1000


def of_floats(x: Tensor) -> bool:
    return x[0].item() is math.inf


@pytest.mark.parametrize("function", [two_sizes, large, of_floats])
def test_of_other_numbers_nobody_knows(function: Any) -> None:
    with pytest.raises(CaptureError, match=r"(ints|floats) that depend .* to be one object") as e:
        lostwax.export(function, (torch.ones(4),), dynamic_shapes=({0: Dim("n", min=2)},))
    assert f"test_identities.py:{function.__code__.co_firstlineno + 1} in " in str(e.value)
    assert "from -5 to 256; of others, and of floats" in str(e.value)
    assert "instead: compare the numbers, n == m" in str(e.value)


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        ("bool", lambda x: x * (2 if id(bool(x.sum() > 0)) == id(True) else 3)),
        ("bool", lambda x: x * len({*map(id, [(x[0] > 0).item(), True])})),
        ("bool", lambda x: x * sorted([bool(x[0] > 0), True], key=id)[0]),
        ("bool", lambda x: x * (builtins.id(bool(x[0] > 0)) == id(True))),
        ("bool", lambda x: x * (ADDRESS(bool(x[0] > 0)) == id(True))),
        ("int", lambda x: x * (2 if id(int(x[0])) in {id(1)} else 3)),
        ("float", lambda x: x * (id(x[0].item()) == id(x[1].item()))),
        ("int", lambda x: x * (id(x.shape[0]) == id(4))),
    ],
)
def test_where_an_unknown_number_lies_nobody_knows(kind: str, function: Any) -> None:
    with pytest.raises(CaptureError, match=rf"id\(\) is asked of a value of type {kind}, ") as e:
        lostwax.export(function, (torch.ones(4),), dynamic_shapes=({0: Dim("n", min=2)},))
    assert f"test_identities.py:{function.__code__.co_firstlineno} in " in str(e.value)
    assert "which of Python's objects it is depends on the number" in str(e.value)
    assert "instead: compare the numbers, n == m, or ask `flag is True`" in str(e.value)


ADDRESS = functools.partial(id)


EQUALS_TWO, AND = (2).__eq__, True.__and__
EQUALS = functools.partial(int.__eq__, 2)


class Kept(nn.Module):
    two = (2).__eq__

    def __init__(self, held: bool) -> None:
        super().__init__()
        self.held, self.kept = held, [{"two": ((2).__eq__,)}]

    def forward(self, x: Tensor) -> Tensor:
        method = self.kept[0]["two"][0] if self.held else self.two
        return x + (1 if method(int(x.sum())) == True else 2)


OF_METHODS: list[tuple[str, Any]] = [
    ("int.__eq__", lambda x: x + (1 if EQUALS_TWO(int(x.sum())) == True else 2)),
    ("int.__eq__", lambda x: x + (1 if EQUALS(int(x.sum())) == True else 2)),
    ("int.__eq__", lambda x: x * {True: 2, False: 3}.get(EQUALS_TWO(x.shape[0]), 4)),
    ("int.__eq__", lambda x, two=(2).__eq__: x * [two(int(x.sum()))].count(True)),
    ("int.__eq__", lambda x: x * (getattr(2, "__eq__")(int(x[0])) in (True,))),
    ("int.__eq__", lambda x: x + (1 if any(map(EQUALS_TWO, x.shape)) else 2)),
    ("int.__eq__", lambda x: x + len([*filter(EQUALS_TWO, x.shape)])),
    ("int.__eq__", lambda x: x + (1 if EQUALS_TWO(x.shape[0]) is True else 2)),
    ("int.__eq__", Kept(held=True)),
    ("int.__eq__", Kept(held=False)),
    ("bool.__and__", lambda x: x * (AND(bool(x.sum() > 0)) == True)),
    ("bool.__xor__", lambda x: x * (True.__xor__(bool(x.sum() > 0)) == True)),
    ("Fraction.__eq__", lambda x: x * (Fraction(2).__eq__(int(x.sum())) == True)),
    ("int.__eq__", lambda x: x + (1 if (2).__eq__(int(x.sum())) else 2)),
    ("int.__eq__", lambda x: x + (1 if int.__eq__(2, int(x.sum())) else 2)),
    ("int.__eq__", lambda x: x + sum(map((2).__eq__, [3, int(x.sum())]))),
    ("int.__eq__", lambda x: x + (1 if Mode.UP.__eq__(int(x.sum())) else 2)),
    ("int.__eq__", lambda x: x + (1 if True.__eq__(bool(x.sum() > 0)) else 2)),
    ("int.__eq__", lambda x: x + (1 if eval("(2).__eq__(n)", {"n": int(x[0])}) else 2)),
    ("int.__lt__", lambda x: [x * 2 for i in range(3) if i.__lt__(x.shape[0])]),
    ("int.__ge__", lambda x: [*filter(lambda n: not (4).__ge__(n), [int(x.sum())])]),
    ("float.__ne__", lambda x: x + (1 if (2.5).__ne__(x[0].item()) else 2)),
    ("int.__add__", lambda x: (2).__add__(x.shape[0])),
    ("int.__rsub__", lambda x: int.__rsub__(int(x[0]), 3)),
    ("complex.__eq__", lambda x: x + (1 if (2 + 0j).__eq__(int(x[0])) else 2)),
]


@pytest.mark.parametrize(("name", "function"), OF_METHODS)
def test_a_method_of_a_plain_number_knows_no_other(name: str, function: Any) -> None:
    with pytest.raises(CaptureError, match=rf"{name} is called with a value of type ") as e:
        lostwax.export(function, (torch.ones(4),), dynamic_shapes=({0: Dim("n", min=2)},))
    line = getattr(function, "forward", function).__code__.co_firstlineno
    line += 2 * isinstance(function, nn.Module)
    assert f"test_identities.py:{line} in " in str(e.value)
    assert "why: a method of Python's own numbers takes plain numbers alone" in str(e.value)
    assert "instead: write the operator, 2 == n, or operator.eq(2, n)" in str(e.value)


FOUND_OTHERWISE: list[Any] = [
    lambda x: x + (1 if getattr(2, "__eq__")(x.shape[0]) else 2),
    lambda x: x + (1 if operator.methodcaller("__lt__", x.shape[0])(2) else 2),
    lambda x: x + (1 if operator.attrgetter("__eq__")(2)(int(x.sum())) else 2),
    lambda x: x + (1 if vars(int)["__eq__"](2, x.shape[0]) else 2),
    lambda x: x + (0 if not vars(int)["__eq__"](2, x.shape[0]) else 2),
    lambda x: x + (1 if vars(int)["__eq__"](2, x.shape[0]) is True else 2),
    lambda x: x + (1 if any(map(operator.attrgetter("__eq__")(2), x.shape)) else 2),
    lambda x: _ignore(lambda: x + (1 if vars(int)["__eq__"](2, x.shape[0]) else 2)),
    lambda x: _ignore(lambda: x + (1 if operator.attrgetter("__eq__")(2)(int(x[0])) else 2)),
    lambda x: x + (1 if operator.attrgetter("__eq__")(2)(x.shape[0]) == True else 2),
    lambda x: x + (1 if operator.methodcaller("__eq__", int(x[0]))(2) == True else 2),
    lambda x: x + (1 if operator.methodcaller(EQUAL, x.shape[0])(2) in (True,) else 2),
    lambda x: x + (1 if vars(int)["__eq__"](2, x.shape[0]) == True else 2),
    lambda x: x + {True: 1}.get(int.__dict__["__eq__"](*(2, x.shape[0])), 2),
    lambda x: x + (1 if inspect.getattr_static(2.0, "__lt__")(2.0, int(x[0])) == 1 else 2),
    lambda x: x + len(str(object.__getattribute__(2, "__eq__")(x.shape[0]))),
    lambda x: x + (1 if [*map(vars(int)["__eq__"], [2], x.shape)] == [True] else 2),
    lambda x: x + (1 if all(getattr(1, k)(x.shape[0]) == 1 for k in ("__le__", "__lt__")) else 2),
    lambda x: x + (1 if (lambda m: m(x.shape[0]) == 1)(operator.attrgetter("__eq__")(2)) else 2),
    lambda x: x + (1 if functools.reduce(getattr, [EQUAL], 2)(x.shape[0]) == 1 else 2),
    lambda x: x + (1 if FIND(2)(int(x[0])) == 1 else 2),
    lambda x: x + operator.attrgetter("__radd__")(2)(x.shape[0]) * 0,
]
EQUAL, FIND = "__eq__", operator.attrgetter("__eq__")


def _ignore(call: Any) -> Any:
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("ignore")
        return call()


@pytest.mark.parametrize("function", FOUND_OTHERWISE)
def test_what_such_a_method_answers_is_no_truth(function: Any) -> None:
    before = [*warnings.filters]
    with pytest.raises(CaptureError, match="__ is called with a value of type int, which") as e:
        lostwax.export(function, (torch.ones(4),), dynamic_shapes=({0: Dim("n", min=2)},))
    assert f"test_identities.py:{function.__code__.co_firstlineno} in " in str(e.value)
    assert "instead: write the operator, 2 == n, or operator.eq(2, n)" in str(e.value)
    assert warnings.filters == before


def test_a_method_whose_name_is_computed_gives_no_truth() -> None:
    def forward(x: Tensor) -> Tensor:
        return x + (1 if _ignore(lambda: not getattr(2, "__{}__".format("eq"))(x.shape[0])) else 2)

    with pytest.raises(CaptureError, match="the truth of NotImplemented is asked") as e:
        lostwax.export(forward, (torch.ones(4),), dynamic_shapes=({0: Dim("n", min=2)},))
    assert "instead: write the operator, 2 == n, or operator.eq(2, n)" in str(e.value)


def test_of_plain_numbers_methods_answer_as_ever() -> None:
    def forward(x: Tensor) -> Any:
        n = int(x.sum())
        known = [(2).__eq__(2), int.__lt__(1, 2), [*map((2.0).__ge__, (1, 3))], "a".__eq__("b")]
        known += [
            getattr(2, "__eq__")("a") is NotImplemented,
            operator.methodcaller("__eq__", 2)(2),
            FIND(2)(2),
        ]
        known += [EQUALS_TWO(2), EQUALS(3), AND(False), EQUALS_TWO.__name__, getattr(2, "real")]
        return n.__eq__(2), n.__add__(1), (1, 2).__eq__((1, 3)), known

    run = lostwax.export(forward, (INPUTS[0],)).module()
    for each in INPUTS:
        assert str(run(each)) == str(forward(each))


ADDRESSES: list[Any] = [
    lambda x, y: x * id(y),
    lambda x, y: x * (id(y) % 7),
    lambda x, y: x + hash(y),
    lambda x, y: x * float(id(y)),
    lambda x, y: x - (-id(ADDRESSES)),
    lambda x, y: torch.full((3,), builtins.id(y)),
    lambda x, y: x * 2 if id(y) % 2 else x * 3,
    lambda x, y: x * id(y) if x.sum() > 0 else x,
    lambda x, y: torch.stack([x + ADDRESS(y) for _ in range(int(x[0]))]),
    lambda x, y: x * y.__hash__(),
    lambda x, y: x * (object.__hash__(y) % 7),
    lambda x, y: x * (getattr(y, "__hash__")() % 7),
    lambda x, y: x * (operator.methodcaller("__hash__")(y) % 7),
    lambda x, y: x * (operator.attrgetter("__hash__")(y)() % 7),
    lambda x, y: x * sum(map(id, [y])),
    lambda x, y: x * (hash((1, (y,))) % 7),
    lambda x, y: x * (hash(weakref.ref(y)) % 7),
    lambda x, y: x * torch.tensor([id(y), 2, 3]),
    lambda x, y: (x, id(y)),
]


@pytest.mark.parametrize("function", ADDRESSES)
def test_where_an_object_lies_is_no_number_of_a_program(function: Any) -> None:
    with pytest.raises(CaptureError, match=r"would compute with id\(\) or hash\(\)") as e:
        lostwax.export(function, (torch.ones(3), torch.ones(3)))
    line = f"test_identities.py:{function.__code__.co_firstlineno} in <lambda>"
    assert (line in str(e.value)) is (function is not ADDRESSES[-1])
    assert "why: it says where the object lies in memory" in str(e.value)
    assert "instead: give each object a number of your own" in str(e.value)


def test_where_an_object_lies_may_be_looked_up_compared_and_shown() -> None:
    def forward(x: Tensor, y: Tensor) -> Any:
        known = [{id(x): 2, id(y): 3}[id(y)], id(x) == id(y), id(y) in {id(x)}, hash(3)]
        known += [len(f"{id(y):x}") > 3, type(id(y)) is int, isinstance(hash(y), int)]
        known += [{x: 2, y: 3}[y], {(x, 1): 4}[x, 1], y in {x, y}, hash((1, 2)) == hash((1, 2))]
        return x * {hash(x): 2}.get(hash(y), 9), known

    args = torch.ones(3), torch.ones(3)
    assert str(lostwax.export(forward, args).module()(*args)) == str(forward(*args))


def of_its_class(s: Any) -> Any:
    return isinstance(s, Tensor)


def by_a_pattern(s: Any) -> Any:
    match s:
        case int():
            return False
        case _:
            return True


def by_what_is_computed(s: Any) -> Any:
    return isinstance(s * 2 + 1, (list, Tensor))


CLASSES: list[Any] = [
    of_its_class,
    by_a_pattern,
    by_what_is_computed,
    lambda s: type(s) is Tensor,
    lambda s: torch.is_tensor(s),
    lambda s: hasattr(s, "shape"),
    lambda s: getattr(s, "ndim", 1) == 0,
    lambda s: s.__class__ is Tensor,
    lambda s: s is not 0,
    lambda s: not isinstance({"s": s}["s"], (int, float)),
]


@pytest.mark.parametrize("ask", CLASSES)
def test_of_what_class_a_number_is_that_becomes_a_tensor(ask: Any) -> None:
    def forward(x: Tensor, n: Tensor) -> Any:
        s, found = 0, []
        for _ in range(int(n)):
            x = x + 1 if ask(s) else x + 2
            s = s + x
            found.append(x)
        return x, len(found)

    def with_a_first_turn(x: Tensor) -> Tensor:
        s = 0
        while x < 3:
            x = x + 1 if ask(s) else x + 2
            s = s + x
        return x

    run = lostwax.export(with_a_first_turn, (torch.tensor(1.0),)).module()
    for x in (torch.tensor(-2.0), torch.tensor(5.0)):
        assert run(x) == with_a_first_turn(x)
    with pytest.raises(CaptureError, match="is asked of what class s is, or a value") as e:
        lostwax.export(forward, (torch.tensor(1.0), torch.tensor(2)))
    assert "test_identities.py:" in str(e.value)
    assert "a number in the first turn of a loop on data, and a tensor later" in str(e.value)
    assert "instead: let it be a tensor from the beginning, s = torch.zeros(...)" in str(e.value)


def test_what_is_a_tensor_in_every_turn_may_be_asked() -> None:
    def forward(x: Tensor) -> Any:
        s = 0
        while x < 3:
            s = s + x
            x = x + 1 if of_its_class(s) and type(x) is Tensor else x + 2
            x = x + (0.5 if s > 3 else 0.25)
        return x

    run = lostwax.export(forward, (torch.tensor(1.0),)).module()
    for each in (1.0, -3.0, 2.5, 5.0):
        torch.testing.assert_close(run(torch.tensor(each)), forward(torch.tensor(each)))


MADE: dict[str, Any] = {}
exec("def is_true(flag): return flag is True", MADE)
TEXT = compile("flag is True", "<text>", "eval")


def by_eval(x: Tensor) -> Any:
    flag = bool(x.sum() > 0)
    return x + (1 if eval("flag is True") else 2)


def by_a_code(x: Tensor) -> Any:
    flag = bool(x.sum() > 0)
    return x + (1 if eval(TEXT) else 2 * flag)


def by_builtins(x: Tensor) -> Any:
    return x + (1 if builtins.eval("f is not True", {"f": bool(x.sum() > 0)}) else 2)


def by_exec(x: Tensor) -> Any:
    found: dict[str, Any] = {}
    exec("match flag:\n case True: n = 1\n case _: n = 2", {"flag": bool(x.sum() > 0)}, found)
    return x + found["n"]


def by_what_exec_has_made(x: Tensor) -> Any:
    return x + (1 if MADE["is_true"](bool(x.sum() > 0)) else 2)


def by_what_it_makes(x: Tensor) -> Any:
    known: dict[str, Any] = {}
    exec("class Flag:\n def holds(self, flag): return flag is True", known)
    return x + (1 if known["Flag"]().holds(bool(x.sum() > 0)) else 2)


def by_a_lambda(x: Tensor) -> Any:
    return x + (1 if eval("lambda flag: flag is True")(bool(x.sum() > 0)) else 2)


@pytest.mark.parametrize(
    "function",
    [
        by_eval,
        by_a_code,
        by_builtins,
        by_exec,
        by_what_exec_has_made,
        by_what_it_makes,
        by_a_lambda,
    ],
)
def test_what_a_text_asks_is_refused_where_it_is_run(function: Any) -> None:
    with pytest.raises(DataDependentError, match=rf"test_identities.py:\d+ in {function.__name__}"):
        lostwax.export(function, (INPUTS[0],))


def test_texts_that_ask_nothing_run_as_they_are() -> None:
    factor = 3

    def forward(x: Tensor) -> Any:
        n, own, outside = int(x.sum()), {}, {"x": x}
        exec("factor = 4")  # changes nothing here
        exec("import math\ny = x * math.pi", outside, own)
        exec("def twice(z: missing = 2): return z * 2", own)
        found = [eval("type(n) is int"), eval("  1 + n"), eval(b"factor"), eval("[i for i in [n]]")]
        return [own["y"], own["twice"](x), *found, eval("x", outside), factor, len(outside)]

    run = lostwax.export(forward, (INPUTS[0],)).module()
    for each in INPUTS:
        torch.testing.assert_close(run(each), forward(each))
    assert not {"eval", "exec", "type"} & globals().keys()


def test_what_holds_functions_is_as_it_was() -> None:
    def all_held() -> list[Any]:
        inside = [vars(Held)["is_other"].__func__, IS_TRUE.func, CALL.args[0], HELD.compare]
        return [*vars(Held).values(), *inside]

    before = all_held()
    lostwax.export(by_held_functions, (INPUTS[0],), strict=True)
    assert all(map(operator.is_, all_held(), before))
    assert not hasattr(HELD, "unset")


def test_of_others_they_are_never_the_object() -> None:
    def forward(x: Tensor) -> Any:
        n, f = int(x[0]), x[1].item()
        known = x.shape[0]
        torch._check(n < 900)
        return n is x, n is None, n is Mode.UP, n is True, f is 3, n is 1000, known is -1

    dims = ({0: Dim("n", min=2)},)
    program = lostwax.export(forward, (INPUTS[0],), dynamic_shapes=dims)
    assert program.module()(INPUTS[0]) == (False,) * 7


@pytest.mark.parametrize("function", [is_set, lambda flag: flag is True])
def test_functions_are_as_they_were(function: Any) -> None:
    code = function.__code__
    lostwax.export(lambda x: x + function((x > 0).item()), (torch.ones(()),))
    assert function.__code__ is code


@functools.cache
def make_once() -> Any:
    def choose(x: Tensor) -> Tensor:
        flag = bool(x.sum() > 0)
        return x + 1 if flag is True else x - 1

    return choose


def test_a_function_that_an_earlier_capture_has_made() -> None:
    def forward(x: Tensor) -> Any:
        return make_once()(x)

    for _ in range(2):
        run = lostwax.export(forward, (INPUTS[0],)).module()
        for each in INPUTS:
            torch.testing.assert_close(run(each), forward(each))
