"""Functions of control flow that change what stays in Python: each is refused, with its line.

A capture runs both branches, eager runs one: what a program did afterwards would be another thing.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch._higher_order_ops as operators
from torch import nn

from lostwax.capture import export
from lostwax.errors import CaptureError
from tests.capture.control import side_effects_elsewhere as elsewhere
from tests.capture.control.compare import Small, agree

X = torch.arange(12.0).view(4, 3) / 7 + 0.1

ARRAY = np.zeros(3)
OBJECTS = np.array([None, None], dtype=object)
NUMBERS = array("i", [0, 0])
BYTES = bytearray(2)
TOTAL = 0
VARIABLE: ContextVar[int] = ContextVar("variable", default=0)
LOCAL = threading.local()
LOCAL.n = 0
COUNTS: defaultdict[str, int] = defaultdict(int)
NESTED = {"inner": SimpleNamespace(values=[0])}
HELPER = nn.Linear(3, 3)


class Meta(type):
    made = 0


class WithMeta(metaclass=Meta):
    pass


class Registry:
    seen: ClassVar[set[int]] = set()
    cache: ClassVar[dict[str, list[int]]] = {"a": []}

    @classmethod
    def note(cls, n: int) -> None:
        cls.seen.add(n)


def count_calls(function: Callable[..., Any]) -> Callable[..., Any]:
    calls = [0]

    @functools.wraps(function)
    def counted(*args: Any) -> Any:
        calls[0] += 1
        return function(*args)

    return counted


@count_calls
def double(x: Any) -> Any:
    return x * 2


def write_array(self: Any, x: Any) -> Any:
    ARRAY[0] += 1
    return x + 1


def write_object_array(self: Any, x: Any) -> Any:
    OBJECTS[1] = object()
    return x + 1


def write_view_of_array(self: Any, x: Any) -> Any:
    ARRAY[1:].fill(len(ARRAY) * 2 + float(ARRAY[2]))
    return x + 1


def write_numbers(self: Any, x: Any) -> Any:
    NUMBERS[1] += 1
    return x + 1


def write_bytes(self: Any, x: Any) -> Any:
    BYTES.append(1)
    return x + 1


def set_variable(self: Any, x: Any) -> Any:
    VARIABLE.set(VARIABLE.get() + 1)
    return x + 1


def set_by_globals(self: Any, x: Any) -> Any:
    globals()["TOTAL"] += 1
    return x + TOTAL


def set_local(self: Any, x: Any) -> Any:
    LOCAL.n += 1
    return x + 1


def set_environment(self: Any, x: Any) -> Any:
    os.environ["LOSTWAX_BRANCH"] = os.environ.get("LOSTWAX_BRANCH", "") + "x"
    return x + 1


def set_in_python_module(self: Any, x: Any) -> Any:
    elsewhere.flag += 1
    return x + 1


def set_in_python_module_by_name(self: Any, x: Any) -> Any:
    name = "flag"
    setattr(elsewhere, name, getattr(elsewhere, name) + 1)
    return x + 1


def append_in_python_module(self: Any, x: Any) -> Any:
    elsewhere.seen.append(1)
    return x + 1


def set_in_metaclass(self: Any, x: Any) -> Any:
    type(WithMeta).made += 1  # type: ignore[attr-defined]
    return x + 1


def set_on_argument(self: Any, x: Any) -> Any:
    x.calls = getattr(x, "calls", 0) + 1
    return x + 1


def set_on_buffer(self: Any, x: Any) -> Any:
    self.total.calls = getattr(self.total, "calls", 0) + 1
    return x + 1


def add_in_class(self: Any, x: Any) -> Any:
    Registry.note(len(Registry.seen))
    return x + 1


def append_in_class(self: Any, x: Any) -> Any:
    Registry.cache["a"].append(1)
    return x + 1


def count_by_subscript(self: Any, x: Any) -> Any:
    return x + COUNTS["new" * (len(COUNTS) + 1)]


def change_deep(self: Any, x: Any) -> Any:
    NESTED["inner"].values[0] += 1
    return x + 1


def call_decorated(self: Any, x: Any) -> Any:
    return double(x)


def set_on_module_outside(self: Any, x: Any) -> Any:
    HELPER.calls = getattr(HELPER, "calls", 0) + 1
    return x + 1


def set_other_number(self: Any, x: Any) -> Any:
    self.scale = float(self.scale)  # it is equal, and of another class
    return x * self.scale


def write_held_array(self: Any, x: Any) -> Any:
    self.table[0] += 1
    return x + 1


def write_array_in_held_list(self: Any, x: Any) -> Any:
    self.tables[0][0] += 1
    return x + 1


def call_weak(self: Any, x: Any) -> Any:
    self.weak().calls = 1
    return x + 1


CHANGES: list[tuple[Callable[..., Any], str, str]] = [
    (write_array, "ARRAY", "ARRAY[0] += 1"),
    (write_object_array, "OBJECTS", "OBJECTS[1] = object()"),
    (write_view_of_array, "ARRAY", "ARRAY[1:].fill"),
    (write_numbers, "NUMBERS", "NUMBERS[1] += 1"),
    (write_bytes, "BYTES", "BYTES.append(1)"),
    (set_variable, "VARIABLE", "VARIABLE.set("),
    (set_by_globals, "set_by_globals", ""),
    (set_local, "LOCAL", "LOCAL.n += 1"),
    (set_environment, "environ", 'os.environ["LOSTWAX_BRANCH"] ='),
    (set_in_python_module, "flag of tests.capture.control", "elsewhere.flag += 1"),
    (set_in_python_module_by_name, "flag of tests.capture.control", ""),
    (append_in_python_module, "seen", "elsewhere.seen.append(1)"),
    (set_in_metaclass, "WithMeta", "type(WithMeta).made += 1"),
    (set_on_argument, "calls, an attribute of a tensor", "x.calls ="),
    (set_on_buffer, "calls, an attribute of a tensor", "self.total.calls ="),
    (add_in_class, "seen", ""),
    (append_in_class, "cache", 'Registry.cache["a"].append(1)'),
    (count_by_subscript, "COUNTS", ""),
    (change_deep, "values", "NESTED["),
    (call_decorated, "calls", ""),
    (set_on_module_outside, "HELPER", "HELPER.calls ="),
    (set_other_number, "scale", "self.scale ="),
    (write_held_array, "table", "self.table[0] += 1"),
    (write_array_in_held_list, "something that a module holds", ""),
    (call_weak, "calls", "self.weak().calls"),
]


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """A refused export leaves it as the branch did."""
    yield
    os.environ.pop("LOSTWAX_BRANCH", None)


def in_branch(change: Callable[..., Any]) -> Callable[..., Any]:
    def program(self: Any, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: change(self, x), lambda x: x - 1, (x,))

    return program


def in_second_branch(change: Callable[..., Any]) -> Callable[..., Any]:
    def program(self: Any, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x - 1, functools.partial(change, self), (x,))

    return program


def in_body(change: Callable[..., Any]) -> Callable[..., Any]:
    def program(self: Any, x: Any) -> Any:
        return operators.map(lambda row: change(self, row), x)

    return program


def make_module(program: Callable[..., Any]) -> nn.Module:
    module: Any = Small(program)
    module.scale, module.table, module.tables = 2, np.zeros(2), [np.zeros(2)]
    module.weak = weakref.ref(module.linear)
    return module  # type: ignore[no-any-return]


def line(function: Callable[..., Any], text: str) -> str:
    with open(__file__) as source:
        lines = source.read().splitlines()
    start = function.__code__.co_firstlineno - 1
    number = next(i for i, each in enumerate(lines[start:], start + 1) if text in each)
    return f"tests/capture/control/test_side_effects.py:{number} "


@pytest.mark.parametrize("where", [in_branch, in_second_branch, in_body])
@pytest.mark.parametrize(
    ("change", "name", "code"), CHANGES, ids=lambda v: getattr(v, "__name__", "")
)
def test_what_stays_in_python_is_refused(
    where: Any, change: Callable[..., Any], name: str, code: str
) -> None:
    with pytest.raises(CaptureError, match=f"changes {name}.*, which is not its own") as error:
        export(make_module(where(change)), (X,))
    assert "instead: return the value" in str(error.value)
    if code:
        assert line(change, code) in str(error.value)


def read_all(x: Any) -> Any:
    """Reads everything that the functions above change."""
    sums = ARRAY.sum() * 0 + NUMBERS[0] * 0 + BYTES[0] + VARIABLE.get() * 0 + LOCAL.n * 0
    found = [WithMeta, Registry, elsewhere.flag, os.environ.get("HOME"), NESTED["inner"].values]
    return HELPER(x) * (len(found) + sums)


def test_reading_is_no_change() -> None:
    def program(self: Any, x: Any) -> Any:
        elsewhere.seen.clear()
        y = torch.cond(x.sum() > 0, read_all, lambda x: x - 1, (x,))
        elsewhere.seen.append(1)  # outside
        x.note = Counter("a")
        ARRAY[0] += 1
        return torch.cond(y.sum() > 0, lambda x: x + len(x.note), read_all, (x,))

    with pytest.warns(UserWarning, match="the attribute note"):
        agree(program, (X,), (-X,))


def test_what_a_function_makes_is_its_own() -> None:
    def branch(x: Any) -> Any:
        table, seen, counts = np.zeros(2), [1], Counter("ab")
        table[0], counts["a"] = 3, 5
        seen.append(2)
        y = x + table.sum()
        y.calls = 1
        return y * len(seen) + counts["a"]

    def program(self: Any, x: Any) -> Any:
        return torch.cond(x.sum() > 0, branch, lambda x: x - 1, (x,))

    agree(program, (X,), (-X,))


def test_a_change_between_is_no_change_of_a_branch() -> None:
    """A branch that sets back what was set outside, just before, is no lesser change."""

    def program(self: Any, x: Any) -> Any:
        x = torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: self.linear(x), (x,))
        self.mode = "b"

        def true(x: Any) -> Any:
            self.mode = "a"
            return x * 2

        return torch.cond(x.sum() > 0, true, lambda x: x - 1, (x,))

    module: Any = Small(program)
    module.mode = "a"
    with pytest.raises(CaptureError, match="changes mode, which is not its own"):
        export(module, (X,))


def test_a_branch_that_the_other_undoes() -> None:
    def program(self: Any, x: Any) -> Any:
        def true(x: Any) -> Any:
            self.linear.kind = "a"
            return x * 2

        def false(x: Any) -> Any:
            self.linear.kind = "b"
            return x * 3

        return torch.cond(x.sum() > 0, true, false, (x,))

    module: Any = Small(program)
    module.linear.kind = "b"
    with pytest.raises(CaptureError, match=r"the true branch of torch.cond changes kind"):
        export(module, (X,))


def test_layers_alone_are_looked_at_too() -> None:
    """A function that reaches nothing but a layer of torch's changes that."""

    def change(layer: Any) -> None:
        layer.register_forward_hook(lambda module, args, out: out * 2)

    for change_layer in (change, lambda layer: layer.train(not layer.training)):

        def program(self: Any, x: Any, change_layer: Any = change_layer) -> Any:
            def true(x: Any, layer: Any = self.linear) -> Any:
                change_layer(layer)
                return x + 1

            return torch.cond(x.sum() > 0, true, lambda x: x - 1, (x,))

        with pytest.raises(CaptureError, match=r"changes \w+, which is not its own"):
            export(Small(program), (X,))
