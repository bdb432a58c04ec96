"""What one side of an `if` on data changes and no attribute shows: what C keeps in an object, an
object's class, a function's defaults, torch's settings. It is refused; what only reads is not."""

from __future__ import annotations

import contextvars
import ctypes
import datetime
import decimal
import functools
import hashlib
import hmac
import io
import itertools
import logging
import mmap
import operator
import queue
import re
import socket
import struct
import sys
import tempfile
import threading
import types
import weakref
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.parsers.expat import ParserCreate

import numpy as np
import pytest
import torch
from torch import nn

from lostwax import export
from lostwax.errors import CaptureError

Act = Callable[[Any], Any]


class Numbers:
    factor = 2.0


class Others:
    factor = 3.0


class Derived(queue.SimpleQueue):
    """A class of Python's on one of C's."""


class Value(ctypes.Structure):
    _fields_ = (("number", ctypes.c_int),)


def scale(x: Any, by: float = 2.0, *, more: float = 1.0) -> Any:
    return x * by * more


class Choosing(nn.Module):
    """Does something on one side."""

    def __init__(self, held: Any, act: Act, ask: Callable[[Any], Any] = lambda held: 1) -> None:
        super().__init__()
        self.held, self.act, self.ask = held, act, ask
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> Any:
        y = x * 1
        if x.sum() > 0:
            self.act(self.held)
            y = x * 2
        return y * self.w * self.ask(self.held)


def count() -> Any:
    numbers = [0]

    def next_one() -> int:
        numbers[0] += 1
        return numbers[0]

    return iter(next_one, 100)


def a_file() -> Any:
    file = tempfile.TemporaryFile("w+")  # noqa: SIM115
    file.write("1\n2\n3\n")
    file.seek(0)
    return file


def raw_file() -> Any:
    return Path(__file__).open("rb", buffering=0)


def set_class(held: Any) -> None:
    held.__class__ = Others


def set_defaults(_: Any) -> None:
    scale.__defaults__ = (5.0,)


def make_function() -> Any:
    return lambda: 2.0


def set_code(function: Any) -> None:
    function.__code__ = (lambda: 3.0).__code__


def set_keywords(_: Any) -> None:
    assert scale.__kwdefaults__ is not None
    scale.__kwdefaults__ = {"more": 5.0}


def set_precision(held: Any) -> None:
    held.prec = 3


def set_number(held: Any) -> None:
    held.number = 7


def a_code() -> Any:
    return hmac.new(b"k", digestmod="md5")


def a_socket() -> Any:
    one, other = socket.socketpair()
    other.close()
    return one


def fill(held: Any) -> None:
    held[0] = 7


EFFECTS: dict[str, tuple[Callable[[], Any], Act, Callable[[Any], Any]]] = {
    "put": (queue.SimpleQueue, lambda q: q.put(1), lambda q: q.qsize()),
    "put by a map": (queue.SimpleQueue, lambda q: [*map(q.put, [1])], lambda q: q.qsize()),
    "put to a class of the user's": (Derived, lambda q: q.put(1), lambda q: q.qsize()),
    "acquire": (threading.Lock, lambda lock: lock.acquire(False), lambda lock: lock.locked()),
    "acquire again": (threading.RLock, lambda lock: lock.acquire(False), lambda _: 1),
    "set": (threading.Event, lambda event: event.set(), lambda event: event.is_set()),
    "count down": (lambda: threading.Semaphore(3), lambda s: s.acquire(False), lambda s: s._value),
    "write": (a_file, lambda file: file.write("1"), lambda file: file.tell()),
    "print": (a_file, lambda file: print(1, file=file), lambda file: 1),
    "read": (a_file, lambda file: file.readline(), lambda file: float(file.readline())),
    "next line": (a_file, next, lambda file: 1),
    "read past buffers": (raw_file, lambda file: file.read(1), lambda file: file.tell()),
    "ctypes": (lambda: (ctypes.c_int * 3)(), fill, lambda held: held[0]),
    "a structure": (Value, set_number, lambda held: held.number),
    "mmap": (lambda: mmap.mmap(-1, 16), fill, lambda held: held[0]),
    "compress": (zlib.compressobj, lambda z: z.compress(b"1"), lambda _: 1),
    "hash": (hashlib.sha256, lambda h: h.update(b"1"), lambda h: h.digest()[0]),
    "hash with a key": (a_code, lambda h: h.update(b"1"), lambda h: h.digest()[0]),
    "hash of another kind": (hashlib.blake2b, lambda h: h.update(b"1"), lambda h: h.digest()[0]),
    "send": (a_socket, lambda s: s.send(b"1"), lambda s: 1),
    "parse": (ParserCreate, lambda p: p.Parse("<a>"), lambda p: p.CurrentByteIndex),
    "a context": (decimal.Context, set_precision, lambda held: held.prec),
    "seed": (torch.Generator, lambda g: g.manual_seed(3), lambda g: g.initial_seed()),
    "a callable": (count, next, next),
    "cycle": (lambda: itertools.cycle([1, 2]), next, next),
    "a variable of a context": (
        lambda: contextvars.ContextVar("held", default=1),
        lambda held: held.set(5),
        lambda held: held.get(),
    ),
    "acquire by a condition": (threading.Condition, lambda c: c.acquire(False), lambda _: 1),
    "a class": (Numbers, set_class, lambda held: held.factor),
    "defaults": (lambda: None, set_defaults, lambda _: scale(1)),
    "its code": (make_function, set_code, lambda held: held()),
    "keyword defaults": (lambda: None, set_keywords, lambda _: scale(1)),
    "gradients": (lambda: None, lambda _: torch.set_grad_enabled(False), lambda _: 1),
}


@pytest.fixture(autouse=True)
def _put_back() -> Any:
    yield
    torch.set_grad_enabled(True)
    scale.__defaults__, scale.__kwdefaults__ = (2.0,), {"more": 1.0}


@pytest.mark.parametrize(("held", "act", "ask"), EFFECTS.values(), ids=EFFECTS)
def test_what_one_side_changes_is_refused(held: Any, act: Act, ask: Any) -> None:
    with pytest.raises(CaptureError) as error:
        export(Choosing(held(), act, ask), (torch.ones(3),))
    assert "at tests/capture/flow/test_hidden_state.py" in str(error.value)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    "name", ["acquire", "read", "ctypes", "a callable", "defaults", "a class", "hash"]
)
def test_what_a_branch_of_cond_changes_is_refused(name: str) -> None:
    held, act, ask = EFFECTS[name]

    class Branch(Choosing):
        def forward(self, x: torch.Tensor) -> Any:
            def double(x: torch.Tensor) -> torch.Tensor:
                self.act(self.held)
                return x * 2

            return torch.cond(x.sum() > 0, double, lambda x: x + 1, (x,)) * self.ask(self.held)

    with pytest.raises(CaptureError, match="which is not its own"):
        export(Branch(held(), act, ask), (torch.ones(3),))


@pytest.mark.parametrize("name", ["acquire", "read", "ctypes", "a class", "gradients", "hash"])
def test_what_a_loop_changes_is_refused(name: str) -> None:
    held, act, ask = EFFECTS[name]

    class Turns(Choosing):
        def forward(self, x: torch.Tensor) -> Any:
            while x.sum() < 10:
                self.act(self.held)
                x = x * 2
            return x * self.w

    with pytest.raises(CaptureError):
        export(Turns(held(), act, ask), (torch.ones(3),))


def test_the_text_says_what() -> None:
    with pytest.raises(CaptureError) as error:
        export(Choosing(None, EFFECTS["gradients"][1]), (torch.ones(3),))
    assert "the True side of an `if` on data changes a setting of torch's" in str(error.value)
    assert "if x.sum() > 0:" in str(error.value)
    assert "instead: change it before the `if`" in str(error.value)


def hold(lock: Any) -> None:
    with lock:
        pass


def compute_without(_: Any) -> None:
    with torch.no_grad():
        torch.ones(3).sum()


HARMLESS: dict[str, tuple[Any, Act]] = {
    "a lock is held": (threading.Lock(), hold),
    "a condition is told of": (threading.Condition(), hold),
    "a pattern": (re.compile("a+"), lambda p: p.match("aa").group()),
    "a getter": (operator.itemgetter(0), lambda get: get([1])),
    "a partial": (functools.partial(scale, by=3.0), lambda f: f(1)),
    "a logger": (logging.getLogger("hidden"), lambda log: log.info("%s", 1)),
    "a warning": (logging.getLogger("hidden"), lambda log: log.debug("no")),
    "numpy": (np.ones(3), lambda a: np.add.reduce(a) + a.sum()),
    "a date": (datetime.datetime(2020, 1, 1), lambda d: (d.isoformat(), hash(d))),
    "a struct": (struct.Struct("f"), lambda s: s.pack(1.0)),
    "printing": (None, lambda _: print(end="")),
    "writing to the terminal": (sys.stderr, lambda f: f.write("")),
    "a proxy": (types.MappingProxyType({"a": 1}), lambda d: d["a"] + d.get("b", 2)),
    "a view of a dict": ({"a": 1}.items(), len),
    "a queue that is asked": (queue.SimpleQueue(), lambda q: q.qsize()),
    "an event that is asked": (threading.Event(), lambda event: event.is_set()),
    "iterators that nobody asks": ([iter(range(3)), *itertools.tee(iter(range(3)))], len),
    "its own hash": (None, lambda _: hashlib.md5(b"a").update(b"b")),
    "a hash that nobody asks": (hashlib.md5(b"a"), repr),
    "its own queue": (None, lambda _: queue.SimpleQueue().put(1)),
    "its own file": (None, lambda _: io.StringIO().write("a")),
    "its own iterator": (None, lambda _: next(iter([1]))),
    "its own class": (None, lambda _: set_class(Numbers())),
    "no gradients meanwhile": (None, compute_without),
}


@pytest.mark.parametrize(("held", "act"), HARMLESS.values(), ids=HARMLESS)
def test_what_only_reads_is_captured(held: Any, act: Act) -> None:
    module = Choosing(held, act)
    run = export(module, (torch.ones(3),)).module()
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(run(x), module(x))


def test_of_a_hash_it_is_only_known_that_it_was_called() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        known = hashlib.md5(b"a")
        return x + len(known.digest()) if x.sum() > 0 else x

    text = r"changes known \(or calls a method of it, which may\), and that cannot be undone"
    for strict in (False, True):
        with pytest.raises(CaptureError, match=text):
            export(forward, (torch.ones(3),), strict=strict)
        assert sys.getprofile() is None


def average(m: Any, x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        with torch.no_grad():
            m.w.mul_(0.5)
            m.mean.add_(m.w)
    return x * m.mean


def repeat(m: Any, x: torch.Tensor) -> torch.Tensor:
    n = torch.zeros(())
    while n < x.abs().sum():
        with torch.no_grad():
            m.mean.add_(m.w)
        n = n + 1
    return x * m.mean


@pytest.mark.parametrize("forward", [average, repeat])
def test_buffers_may_be_written_without_gradients(forward: Any) -> None:
    class Averaging(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> Any:
            return forward(self, x)

    eager, run = Averaging(), export(Averaging(), (torch.ones(3),)).module()
    for x in (torch.ones(3), -torch.ones(3), torch.ones(3)):
        torch.testing.assert_close(run(x), eager(x))
        assert run(x).requires_grad is eager(x).requires_grad


# ------------------------------------------------------------------------------------ what ends


class Ending:
    """Notes its end."""

    def __init__(self, log: list[int]) -> None:
        self.log = log

    def __del__(self) -> None:
        self.log.append(1)


def drop_one(x: torch.Tensor, held: Any) -> None:
    if x.sum() > 0:
        held = None  # noqa: F841


def drop_in_loop(x: torch.Tensor, held: Any) -> None:
    while x.sum() < 4:
        held = None  # noqa: F841
        x = x + 1


def take_from_list(x: torch.Tensor, held: Any) -> None:
    kept = [held, 1]
    held = None
    if x.sum() > 0:
        kept[0] = 2


def ask_weakly(x: torch.Tensor) -> Any:
    held = Numbers()
    seen = weakref.ref(held)
    if x.sum() > 0:
        held = None  # type: ignore[assignment]
    return x * (2 if seen() is None else 3)


def leave_generator(x: torch.Tensor) -> Any:
    log: list[int] = []

    def steps() -> Any:
        try:
            yield 1
        finally:
            log.append(1)

    held = steps()
    next(held)
    if x.sum() > 0:
        held = None
    return x + len(log)


def _let_end(drop: Any) -> Any:
    def call(x: torch.Tensor) -> Any:
        log: list[int] = []
        drop(x, Ending(log))
        return x + len(log)

    return call


@pytest.mark.parametrize(
    "call",
    [*map(_let_end, (drop_one, drop_in_loop, take_from_list)), ask_weakly, leave_generator],
)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_an_object_that_one_side_ends_is_refused(call: Any, sign: float) -> None:
    with pytest.raises(CaptureError, match="the object that was there ends"):
        export(call, (torch.ones(3) * sign,))


def test_what_a_function_holds_ends_with_it() -> None:
    def branch(x: torch.Tensor, log: list[int]) -> torch.Tensor:
        _held = Ending(log)
        return x * 2 if x.sum() > 0 else x * 3

    def loop(x: torch.Tensor, log: list[int]) -> torch.Tensor:
        _held = Ending(log)
        while x.sum() < 4:
            x = x + 1
        return x

    def call(x: torch.Tensor) -> torch.Tensor:
        log: list[int] = []
        y = branch(x, log) + 10 * len(log)
        return loop(y, log) + 100 * len(log)

    program = export(call, (torch.ones(3),))
    for sign in (1.0, -1.0):
        x = torch.ones(3) * sign
        torch.testing.assert_close(program.module()(x), call(x))


def test_objects_that_others_hold_may_be_exchanged() -> None:
    one, other = Numbers(), Numbers()
    other.factor = 5.0
    seen = weakref.ref(one)

    def call(x: torch.Tensor) -> torch.Tensor:
        chosen = one
        if x.sum() > 0:
            chosen = other
        return x * chosen.factor + seen().factor  # type: ignore[union-attr]

    program = export(call, (torch.ones(3),))
    for sign in (1.0, -1.0):
        x = torch.ones(3) * sign
        torch.testing.assert_close(program.module()(x), call(x))


class Noticing:
    """Whoever asks it leaves a trace."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.plain = 3

    def _note(self, *other: Any) -> bool:
        self.asked.append(1)
        return True

    @functools.cached_property
    def once(self) -> bool:
        return self._note()

    def __getattr__(self, name: str) -> bool:
        if name != "made_up":
            raise AttributeError(name)
        return self._note()

    __bool__ = __eq__ = __gt__ = _note  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    "ask",
    [
        lambda total, it: total > 0 and it.once,
        lambda total, it: total > 0 and it,
        lambda total, it: total > 0 and it == 1,
        lambda total, it: total > 0 or it.made_up,
        lambda total, it: 0 < total < it,
    ],
    ids=["property", "truth", "equality", "attribute", "order"],
)
def test_the_second_of_two_conditions_is_asked_only_where_eager_asks_it(ask: Any) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        it = Noticing()
        if ask(x.sum(), it):
            x = x + 1
        return x + len(it.asked)

    with pytest.raises(CaptureError, match=r"do not agree: (asked has|it\[.once)"):
        export(call, (torch.ones(3),))


def test_no_condition_after_the_first_is_asked_unless_those_before_it_hold() -> None:
    """The second was computed in any case, and what came after it with it."""

    def call(x: torch.Tensor) -> torch.Tensor:
        numbers = [1]
        if x.sum() > 0 and len(numbers) and x.ndim == 1 and numbers.append(2) is None:
            x = x + 1
        return x + len(numbers)

    program = export(call, (torch.ones(3),))
    for sign in (1.0, -1.0):
        x = torch.ones(3) * sign
        torch.testing.assert_close(program.module()(x), call(x))


def test_a_second_condition_that_nobody_notices_needs_no_branch() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        it = Noticing()
        kind = types.SimpleNamespace(name="sum")
        if x.sum() > 0 and it.plain == 3 and kind.name == "sum" and x.ndim == 1:
            x = x + 1
        return x

    program = export(call, (torch.ones(3),))
    for sign in (1.0, -1.0):
        x = torch.ones(3) * sign
        torch.testing.assert_close(program.module()(x), call(x))
    assert sum(str(node.target) == "cond" for node in program.graph.nodes) == 1


def after_an_if(x: torch.Tensor, log: list[int]) -> torch.Tensor:
    held = Ending(log)
    if x.sum() > 0:
        x = x + 1
    del held
    return x


def after_a_loop(x: torch.Tensor, log: list[int]) -> torch.Tensor:
    held: Any = Ending(log)
    while x.sum() < 5:
        x = x + 1
    held = None  # noqa: F841
    return x


def after_two_conditions(x: torch.Tensor, log: list[int]) -> torch.Tensor:
    held: Any = Ending(log)
    if x.sum() > 0 and x.ndim == 1:
        x = x + 1
    held = None  # noqa: F841
    return x


def in_each_turn(x: torch.Tensor, log: list[int]) -> Any:
    best = None
    for each in x:
        held: Any = Ending(log)
        if each > 0:
            best = each
    held = None  # noqa: F841
    return x if best is None else x + best


def after_a_search(x: torch.Tensor, log: list[int]) -> Any:
    held: Any = Ending(log)
    found = next((each for each in x if each > 0), None)
    held = None  # noqa: F841
    return x if found is None else x + found


def by_a_weak_reference(x: torch.Tensor, log: list[int]) -> Any:
    held: Any = Ending(log)
    seen = weakref.ref(held)
    x = x + 1 if x.sum() > 0 else x
    held = None
    return x + (seen() is None)


@pytest.mark.parametrize(
    "call",
    [
        after_an_if,
        after_a_loop,
        after_two_conditions,
        in_each_turn,
        after_a_search,
        by_a_weak_reference,
    ],
    ids=lambda each: each.__name__,
)
def test_what_a_function_drops_after_a_choice_ends_there(call: Any) -> None:
    """The choice's own look at its variables held it until the function ended."""

    def count(x: torch.Tensor) -> torch.Tensor:
        log: list[int] = []
        return call(x, log) + 10 * len(log)

    program = export(count, (torch.ones(3),))
    for sign in (1.0, -1.0):
        x = torch.ones(3) * sign
        torch.testing.assert_close(program.module()(x), count(x))
