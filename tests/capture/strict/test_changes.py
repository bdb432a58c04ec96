"""Rules 1 and 2 of strict: what the call makes is its own; what was there before is left as it was,
or refused with path, old and new value, and line."""

from __future__ import annotations

import collections
import contextvars
import functools
import inspect
import io
import itertools
import logging
import random
import re
import sys
import threading
import types
import warnings
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lostwax import Dim, export
from lostwax.errors import CaptureError, StrictError
from tests.capture.small import Of

X = torch.randn(3, 4)
COUNT = 0
TABLE: dict[str, Any] = {"n": 1, "deep": [{"k": 1}]}
VARIABLE = contextvars.ContextVar("VARIABLE", default=0)
THIS = sys.modules[__name__]


class Counter:
    n = 0

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self.count -= 1


class Slotted:
    __slots__ = ("a",)

    def __init__(self) -> None:
        self.a = 1


COUNTER, SLOTTED = Counter(), Slotted()


def refuse(module: Any, *args: Any, **kwargs: Any) -> str:
    """The error's text."""
    with pytest.raises(StrictError) as caught:
        export(module, args or (X,), strict=True, **kwargs)
    return str(caught.value)


def check_refused(module: Any, told: str, line: str = "", args: tuple[Any, ...] = (X,)) -> None:
    """It is refused with this change; the line is the one with this mark in this file."""
    text = refuse(module, *args)
    assert told in text, text
    if line:
        number = next(
            i for i, each in enumerate(inspect.getsource(THIS).splitlines(), 1) if line in each
        )
        assert f"test_changes.py:{number} in" in text, text
    assert "why: " in text


def check_accepted(module: Any, *args: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = export(module, args or (X,), strict=True)
    torch.testing.assert_close(program.module()(*(args or (X,))), module(*(args or (X,))))


# ------------------------------------------------------------------------------ what is accepted


def test_what_the_call_makes_is_its_own() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        with Counter():
            seen: dict[str, Any] = {"n": []}
            seen["n"].append(x.sin())
            n = 0

            def count() -> None:
                nonlocal n
                n += 1

            count()
            return seen["n"][0] + x.cos() + n

    check_accepted(Of(forward))


def test_what_is_put_back_has_not_changed() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        with self.held, COUNTER:
            self.n = 12345
            TABLE["n"], before = 2, TABLE["n"]
            self.seen.append(1)
            x = x * self.n * TABLE["n"] * len(self.seen) * COUNTER.count
            self.seen.pop()
            TABLE["n"] = before
            self.n = int("1000")  # another object, the same number
            return x

    check_accepted(Of(forward, held=Counter(), n=int("1000"), seen=[]))


def test_registered_state_is_written_by_the_program() -> None:
    class Norm(nn.Module):
        count: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.register_buffer("count", torch.zeros(()))
            self.register_buffer("total", torch.zeros(4))
            self.total: Tensor

        def forward(self, x: Tensor) -> Tensor:
            self.count = self.count + 1
            self.total += x.sum(0)
            return self.norm(x) + self.count

    program = export(Norm().train(), (X,), strict=True)
    written = set(program.graph_signature.buffers_to_mutate.values())
    assert {"count", "total", "norm.running_mean", "norm.num_batches_tracked"} <= written


@functools.lru_cache
def double(n: int) -> int:
    return 2 * n


def test_a_cache_of_numbers_is_no_change() -> None:
    check_accepted(Of(lambda self, x: x + double(x.shape[0])))


def test_printing_logging_and_warning_are_no_change(capsys: Any) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        print("printed")
        logging.getLogger("tests.strict").warning("logged %d", 3)
        return x + 1

    export(Of(forward), (X,), strict=True)
    assert "printed" in capsys.readouterr().out

    def warning(self: Any, x: Tensor) -> Tensor:
        warnings.warn("warned", stacklevel=1)
        return x + 1

    with pytest.warns(UserWarning, match="warned"):
        export(Of(warning), (X,), strict=True)


def test_modules_of_torch() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    models = [nn.LSTM(4, 3), nn.GRU(4, 3, bidirectional=True), nn.MultiheadAttention(4, 2)]
    for model in (nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), models[0]):
        check_accepted(model.eval(), torch.randn(2, 3, 4))
    check_accepted(models[2], *[torch.randn(2, 3, 4)] * 3)
    check_accepted(nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)))


def test_functions_methods_and_dims() -> None:
    linear = nn.Linear(4, 2)
    check_accepted(lambda x: linear(x) * 2)
    check_accepted(functools.partial(torch.add, alpha=2), X, X)
    rows = Dim("rows")
    program = export(
        lambda x: linear(x) * x.shape[0], (X,), dynamic_shapes=({0: rows},), strict=True
    )
    assert program.module()(torch.ones(7, 4)).shape == (7, 2)


def test_control_flow_on_data() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        if x.sum() > 0:
            y = x + 1
        else:
            y = x * 2
        while y.sum() < 10:
            y = y + 1
        return y

    module = Of(forward)
    program = export(module, (X,), strict=True)
    for x in (X.abs(), -X.abs()):
        torch.testing.assert_close(program.module()(x), module(x))


# ------------------------------------------------------------------------------- what is refused


def _count(self: Any, x: Tensor) -> Tensor:
    self.n += 1  # mark: attribute
    return x * self.n


def test_an_attribute() -> None:
    text = refuse(Of(_count, n=0))
    assert "  self.n: 0 -> 1\n    at " in text
    assert "instead: keep it in a buffer" in text
    check_refused(Of(_count, n=0), "self.n: 0 -> 1", "mark: attribute")


def test_an_attribute_of_a_module_deep_inside() -> None:
    inner = nn.Sequential(nn.Linear(4, 4), nn.ModuleDict({"part": Of(_count, n=5)})["part"])
    check_refused(nn.Sequential(inner, nn.ReLU()), "self[0][1].n: 5 -> 6", "mark: attribute")


def test_the_state_is_put_back() -> None:
    module = Of(_count, n=0)
    refuse(module)
    assert module.n == 0  # type: ignore[comparison-overlap]


def test_before_a_branch_on_data() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.n += 1  # mark: before a branch
        if x.sum() > 0:
            x = x + self.n
        return x

    check_refused(Of(forward, n=0), "self.n: 0 -> 1", "mark: before a branch")


def _set_global(self: Any, x: Tensor) -> Tensor:
    global COUNT
    COUNT += 1  # mark: global
    return x


def _set_item(self: Any, x: Tensor) -> Tensor:
    TABLE["n"] += 1  # mark: item
    return x


def _set_deep(self: Any, x: Tensor) -> Tensor:
    found = TABLE["deep"]
    found[0]["k"] = "other"  # mark: deep
    return x


def _add_key(self: Any, x: Tensor) -> Tensor:
    TABLE["new"] = x.shape[0]  # mark: key
    return x


def _set_class(self: Any, x: Tensor) -> Tensor:
    Counter.n += 1  # mark: class
    return x


def _set_own_class(self: Any, x: Tensor) -> Tensor:
    type(self).calls = 1  # mark: own class
    return x


def _set_object(self: Any, x: Tensor) -> Tensor:
    COUNTER.count = 7  # mark: object
    return x


def _set_slot(self: Any, x: Tensor) -> Tensor:
    SLOTTED.a = 2  # mark: slot
    return x


def _set_module(self: Any, x: Tensor) -> Tensor:
    THIS.COUNT = 9  # mark: python module
    return x


def _set_function(self: Any, x: Tensor) -> Tensor:
    double.asked = 9  # type: ignore[attr-defined]  # mark: function
    return x


def _set_context(self: Any, x: Tensor) -> Tensor:
    VARIABLE.set(3)  # mark: context
    return x


CASES = [
    (_set_global, "COUNT, a global of test_changes.py: 0 -> 1", "mark: global"),
    (_set_item, "TABLE['n'], a global of test_changes.py: 1 -> 2", "mark: item"),
    (_set_deep, "TABLE['deep'][0]['k'], a global of test_changes.py: 1 -> 'other'", "mark: deep"),
    (_add_key, "TABLE['new'], a global of test_changes.py: nothing -> 3", "mark: key"),
    (_set_class, "Counter.n, a global of test_changes.py: 0 -> 1", "mark: class"),
    (_set_own_class, "Of.calls: nothing -> 1", "mark: own class"),
    (_set_object, "COUNTER.count, a global of test_changes.py: 0 -> 7", "mark: object"),
    (_set_slot, "SLOTTED.a, a global of test_changes.py: 1 -> 2", "mark: slot"),
    (_set_module, "COUNT: 0 -> 9", "mark: python module"),
    (_set_context, "VARIABLE, a global of test_changes.py: 0 -> 3", "mark: context"),
]


@pytest.mark.parametrize(("forward", "told", "line"), CASES, ids=[f.__name__ for f, *_ in CASES])
def test_what_functions_name(forward: Any, told: str, line: str) -> None:
    check_refused(Of(forward), told, line)
    assert (COUNT, TABLE, Counter.n) == (0, {"n": 1, "deep": [{"k": 1}]}, 0)
    assert (COUNTER.count, SLOTTED.a, VARIABLE.get()) == (0, 1, 0)


def test_a_variable_of_the_function_around() -> None:
    n, seen = 0, [1]

    def forward(self: Any, x: Tensor) -> Tensor:
        nonlocal n
        n += 1  # mark: closure
        return x

    def listing(self: Any, x: Tensor) -> Tensor:
        seen.append(x)  # mark: closure list
        return x

    check_refused(Of(forward), "forward is closed over: 0 -> 1", "mark: closure")
    check_refused(Of(listing), "over: [1] -> [1, a tensor f32[3, 4]]", "mark: closure list")
    assert (n, seen) == (0, [1])


def test_containers_in_attributes() -> None:
    def change(what: str) -> Any:
        names: dict[str, Any] = {}
        exec(f"def forward(self, x):\n    {what}\n    return x + 1", names)
        return types.FunctionType(names["forward"].__code__, globals())

    for held, what, told in [
        ([1], "self.held.append(2)", "self.held: [1] -> [1, 2]"),
        ([2, 1], "self.held.sort()", "self.held: [2, 1] -> [1, 2]"),
        ({"a": 1}, "self.held['a'] = 2", "self.held['a']: 1 -> 2"),
        ({"a": 1}, "self.held.pop('a')", "self.held['a']: 1 -> nothing"),
        ({1}, "self.held.add(2)", "self.held: {1} -> {1, 2}"),
        (collections.deque([1]), "self.held.append(2)", "self.held: [1] -> [1, 2]"),
        (types.SimpleNamespace(a=1), "self.held.a = 2", "self.held.a: 1 -> 2"),
        ([Counter()], "self.held[0].count = 2", "self.held[0].count: 0 -> 2"),
        (np.zeros(2), "self.held[0] = 1", "self.held: a ndarray -> other content"),
        (bytearray(b"a"), "self.held[0] = 1", "self.held: a bytearray -> other content"),
        (itertools.count(), "next(self.held)", "self.held: a count -> further on"),
        (random.Random(0), "self.held.random()", "self.held: a Random -> drawn from"),
        (np.random.default_rng(0), "self.held.random()", "self.held: a Generator -> drawn from"),
        (None, "self.held = torch.relu", "self.held: None -> relu"),
        (torch.relu, "self.held = torch.tanh", "self.held: relu -> tanh"),
        ((1,), "self.held = (1, 2)", "self.held: (1) -> (1, 2)"),
        (1, "del self.held", "self.held: 1 -> nothing"),
        (1, "self.other = 1", "self.other: nothing -> 1"),
        (1, "self.held = 1.0", "self.held: 1 -> 1.0"),
        (0.0, "self.held = -0.0", "self.held: 0.0 -> -0.0"),
    ]:
        check_refused(Of(change(what), held=held), told)


def _change_all(self: Any, x: Tensor) -> Tensor:
    """Changes what is in its attribute, whatever that is."""
    held = self.held
    match held:
        case collections.OrderedDict():
            held.move_to_end("a")
        case dict():
            held["a"] = held.pop("a")
        case weakref.WeakKeyDictionary():
            held[COUNTER] = 1
        case weakref.ref():
            held().count += 1
        case io.StringIO():
            held.write("more")
        case np.ndarray():
            held[0]["k"] = 1
        case threading.local():
            held.n = 2
        case tuple():
            held[0][0].append(1)
        case types.FunctionType():
            held.calls = 1
        case _:
            held(1)
    return x


class Bound:
    def __init__(self) -> None:
        self.seen: list[int] = []

    def note(self, number: int) -> None:
        self.seen.append(number)


def keep(number: int) -> int:
    return number


LOCAL = threading.local()
LOCAL.n = 1
HELD: list[tuple[Any, str]] = [
    (collections.OrderedDict(a=1, b=2), "self.held: the order ['a', 'b'] -> the order ['b', 'a']"),
    ({"a": 1, "b": 2}, "self.held: the order ['a', 'b'] -> the order ['b', 'a']"),
    (weakref.WeakKeyDictionary(), "self.held[a ReferenceType]: nothing -> 1"),
    (weakref.ref(COUNTER), "COUNTER.count, a global of test_changes.py: 0 -> 1"),
    (io.StringIO("some"), "self.held: a StringIO -> other content"),
    (np.array([{}], dtype=object), "['k']: nothing -> 1"),
    (LOCAL, "self.held.n: 1 -> 2"),
    ((([],),), "self.held[0][0]: [] -> [1]"),
    (keep, "keep.calls: nothing -> 1"),
    (Bound().note, "self.held.__self__.seen: [] -> [1]"),
    ([].append, "self.held.__self__: [] -> [1]"),
    (functools.partial(Bound.note, Bound()), "self.held.args[0].seen: [] -> [1]"),
]


@pytest.mark.parametrize(("held", "told"), HELD, ids=[type(held).__name__ for held, _ in HELD])
def test_what_leads_to_objects(held: Any, told: str) -> None:
    check_refused(Of(_change_all, held=held), told)
    check_refused(Of(_change_all, held=held), told)  # it was put back


def test_functions_in_objects() -> None:
    """A capture puts stand-ins of its own there; the user's are seen."""

    def forward(self: Any, x: Tensor) -> Tensor:
        COUNTER.act = torch.tanh  # type: ignore[attr-defined]
        return x

    COUNTER.act = torch.relu  # type: ignore[attr-defined]
    try:
        check_refused(Of(forward), "COUNTER.act, a global of test_changes.py: relu -> tanh")
    finally:
        del COUNTER.act  # type: ignore[attr-defined]


def test_containers_of_the_caller() -> None:
    def forward(self: Any, x: Tensor, held: Any) -> Tensor:
        held["y"] = x + 1  # mark: argument
        return x

    told = "held['y']: nothing -> a tensor f32[3, 4]"
    check_refused(Of(forward), told, "mark: argument", (X, {"z": X}))


def test_attributes_of_tensors() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        x.scale = 3  # type: ignore[attr-defined]  # mark: tensor
        return x + 1

    check_refused(Of(forward), "x.scale: nothing -> 3", "mark: tensor")


def test_hooks() -> None:
    calls: list[int] = []
    module = nn.Sequential(nn.Linear(4, 4))
    module[0].register_forward_hook(lambda *_: calls.append(1))  # mark: hook
    check_refused(module, "is closed over: [] -> [1]", "mark: hook")

    def forward(self: Any, x: Tensor) -> Tensor:
        self.part.register_forward_hook(print)
        return self.part(x)

    assert "_forward_hooks" in refuse(Of(forward, part=nn.Linear(4, 4)))


@functools.lru_cache
def make_table(n: int) -> Tensor:
    return torch.arange(n)


def test_caches_of_tensors() -> None:
    def attribute(self: Any, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.arange(4)  # mark: cache
        return x + self.table

    check_refused(Of(attribute, table=None), "self.table: None -> a tensor i64[4]", "mark: cache")
    export(Of(attribute, table=None), (X,))  # which shows that it is a cache
    check_accepted(Of(attribute, table=torch.arange(4)))
    told = "the cache of make_table: 0 results -> 1 result, with tensors or objects among them"
    check_refused(Of(lambda self, x: x + make_table(4)), told)
    assert make_table.cache_info().currsize == 0


def test_all_changes_are_told() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.n, self.m = 1, 2
        TABLE["n"] = 5
        return x

    text = refuse(Of(forward, n=0, m=0))
    assert len(re.findall(r" -> ", text)) == 3


def test_the_last_line_that_counts() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.n = 3
        self.n = 0
        x = x + 1
        self.n = 4  # mark: last
        return x

    check_refused(Of(forward, n=0), "self.n: 0 -> 4", "mark: last")


def test_lines_under_a_debugger() -> None:
    """Who watches lines keeps doing so; the line is guessed then."""

    def watch(*_: Any) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        check_refused(Of(_count, n=0), "self.n: 0 -> 1", "mark: attribute")
        assert sys.gettrace() is watch
    finally:
        sys.settrace(before)


def test_other_threads_see_no_difference() -> None:
    """They call the same function meanwhile, and nothing is refused to them."""
    go, done, found = threading.Event(), threading.Event(), list[Any]()

    class Waiting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            go.set()
            done.wait(10)
            return x + 1

    def other() -> None:
        go.wait(10)
        found.append((sys.getprofile(), sys.gettrace(), random.random() < 2))
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    export(Waiting(), (X,), strict=True)
    thread.join()
    assert found == [(None, None, True)]
    assert sys.getprofile() is None


def test_the_default_warns() -> None:
    with pytest.warns(UserWarning, match=r"sets its attribute n, which was 0, to 1"):
        export(Of(_count, n=0), (X,))


def test_strict_errors_are_capture_errors() -> None:
    assert issubclass(StrictError, CaptureError)
