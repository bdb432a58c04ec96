"""What a call changes anywhere that its functions lead to: no tensor of a capture stays there, and
what the next call would read is told of, and refused beside a buffer that is kept."""

from __future__ import annotations

import contextvars
import functools
import hashlib
import io
import queue
import re
import struct
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import Partial, Shard
from torch.nn.attention import SDPBackend

import lostwax
from lostwax.capture.heap import hidden
from lostwax.errors import CaptureError, StrictError

X = torch.tensor([1.0, 2.0])


class Node:
    count = 0

    def __init__(self, depth: int = 0) -> None:
        self.inner = Node(depth - 1) if depth else None
        self.last: Any = None


class Registry:
    table: Any = {"x": {"y": []}}  # noqa: RUF012


def _make_closure() -> tuple[Any, Callable[[Tensor], None]]:
    store: dict[str, Any] = {"a": {"b": []}}
    return store, lambda x: store["a"]["b"].append(x)


def _by_default(x: Tensor, store: dict[str, Any] = {"a": {"b": []}}) -> None:  # noqa: B006
    store["a"]["b"].append(x)


CACHE: dict[str, Any] = {"a": {"b": {"c": []}}}
DEEP, KEY, SPACE, ERROR = Node(5), Node(), SimpleNamespace(), ValueError("x")
INSIDE: tuple[dict[str, list[Any]]] = ({"k": []},)
PART, LOCAL, WEAK = (
    functools.partial(len, []),
    threading.local(),
    weakref.WeakKeyDictionary[Any, Any](),
)
OBJECTS, VARIABLE = (
    np.array([None, 1], dtype=object),
    contextvars.ContextVar[Any]("v", default=None),
)
UNSET = contextvars.ContextVar[Any]("unset")
CLOSED, CLOSURE = _make_closure()
WORD = "a"


def _sets_word(x: Tensor) -> int:
    global WORD
    WORD += "b"
    return len(WORD)


KEEPS: dict[str, tuple[Callable[[Tensor], Any], Callable[[], Any], str]] = {
    "a dict in a dict": (
        lambda x: CACHE["a"]["b"]["c"].append(x),
        lambda: CACHE["a"]["b"]["c"],
        "CACHE['a']['b']['c']",
    ),
    "an object in objects": (
        lambda x: setattr(DEEP.inner.inner.inner, "last", x),  # type: ignore[union-attr]
        lambda: DEEP.inner.inner.inner.last,  # type: ignore[union-attr]
        "DEEP.inner.inner.inner.last",
    ),
    "a new attribute": (lambda x: setattr(SPACE, "new", x), lambda: vars(SPACE), "SPACE.new"),
    "an exception": (lambda x: setattr(ERROR, "tensor", x), lambda: vars(ERROR), "ERROR.tensor"),
    "a tuple": (lambda x: INSIDE[0]["k"].append(x), lambda: INSIDE[0]["k"], "INSIDE[0]['k']"),
    "a partial": (lambda x: PART.args[0].append(x), lambda: PART.args[0], "PART.args[0]"),
    "a thread's": (lambda x: setattr(LOCAL, "a", x), lambda: vars(LOCAL), "LOCAL.a"),
    "a weak dict": (lambda x: WEAK.__setitem__(KEY, x), lambda: dict(WEAK), "WEAK"),
    "an array": (lambda x: OBJECTS.__setitem__(0, x), lambda: OBJECTS[0], "OBJECTS"),
    "a context": (lambda x: VARIABLE.set(x), VARIABLE.get, "VARIABLE"),
    "a context before": (lambda x: UNSET.set(x), lambda: UNSET.get("nothing"), "UNSET"),
    "a closure": (lambda x: CLOSURE(x), lambda: CLOSED["a"]["b"], "store['a']['b'], which"),
    "a class": (
        lambda x: Registry.table["x"]["y"].append(x),
        lambda: Registry.table["x"]["y"],
        "Registry.table",
    ),
    "a default": (
        lambda x: _by_default(x),
        lambda: _by_default.__defaults__,
        "store['a']['b'], which an argument",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KEEPS)
def test_no_tensor_of_a_capture_stays(name: str) -> None:
    keep, see, said = KEEPS[name]

    def function(x: Tensor) -> Tensor:
        keep(x * 2)
        return x + 1

    before = repr(see())
    with pytest.warns(UserWarning, match=re.escape(f"the module keeps a tensor in {said}")):
        program = lostwax.export(function, (X,))
    assert repr(see()) == before
    assert program.module()(X).tolist() == [2.0, 3.0]


def test_nor_on_an_exception_that_a_module_holds() -> None:
    class Holding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.error: Any = ValueError("x")

        def forward(self, x: Tensor) -> Tensor:
            self.error.tensor = x * 2
            return x + 1

    module = Holding()
    with pytest.warns(UserWarning, match=r"keeps a tensor in its attribute error\.tensor;"):
        lostwax.export(module, (X,))
    assert vars(module.error) == {}


def test_numbers_in_a_context_are_told_of_and_forgotten() -> None:
    def function(x: Tensor) -> Tensor:
        UNSET.set(3)
        return x * UNSET.get()

    with pytest.warns(UserWarning, match=r"sets UNSET, a global of test_reached.py, from nothing"):
        program = lostwax.export(function, (X,))
    assert UNSET.get("nothing") == "nothing"
    assert torch.equal(program.module()(X), X * 3)


def test_words_are_told_of_and_put_back() -> None:
    said = r"sets WORD, a global of test_reached.py, from 'a' to 'ab' \("
    with pytest.warns(UserWarning, match=said):
        program = lostwax.export(lambda x: x * _sets_word(x), (X,))
    assert WORD == "a"
    assert program.module()(X).tolist() == [2.0, 4.0]


def test_a_deep_nesting_is_opened() -> None:
    """No walk calls itself."""
    deep: list[Any] = []
    inner = deep
    for _ in range(5000):
        inner.append([])
        inner = inner[0]

    def function(x: Tensor) -> Tensor:
        inner.append(x * 2)
        return x + len(deep)

    with pytest.raises(CaptureError, match="keeps a tensor in the attribute closure"):
        lostwax.export(function, (X,))
    assert inner == []


# ------------------------------------------------------------------------------- beside a buffer


def _queue(s: Any) -> float:
    s.put(1)
    return float(s.qsize())


def _context(s: Any) -> float:
    s.set(s.get() + 1)
    return float(s.get())


def _semaphore(s: Any) -> float:
    s.acquire()
    return float(s._value)


def _file(s: Any) -> float:
    s.write("a")
    return float(s.tell())


def _local(s: Any) -> float:
    s.a = getattr(s, "a", 0) + 1
    return float(s.a)


def _partial(s: Any) -> float:
    s.args[0].append(1)
    return float(len(s.args[0]))


def _partial_itself(s: Any) -> float:
    s.__setstate__((s.func, (s.args[0] + 1,), {}, None))
    return float(s.args[0])


def _optimizer(s: Any) -> float:
    s.param_groups[0]["lr"] += 1.0
    return float(s.param_groups[0]["lr"])


def _right_to_write(s: Any) -> float:
    was = s.flags.writeable
    s.flags.writeable = False
    return 1.0 if was else 2.0


def _kept_by_class(s: Any) -> float:
    s.lines.append(1)
    return float(len(s.lines))


def _number_of_class(s: Any) -> float:
    type(s).count += 1
    return float(s.count)


def _event(s: Any) -> float:
    was = s.is_set()
    s.set()
    return 1.0 if was else 2.0


def _hash(s: Any) -> float:
    s.update(b"a")
    return float(s.digest()[0])


def _store(s: Any) -> float:
    return float(s.add("calls", 1))


def _of_class(s: Any) -> float:
    s.count += 1
    return float(s.count)


def _tuples(s: Any) -> float:
    s.append((1, 2))
    return float(len(s))


def _lists(s: Any) -> float:
    s["a"] = [*s.get("a", ()), object()]
    return float(len(s["a"]))


HIDING: list[tuple[Callable[[], Any], Callable[[Any], float]]] = [
    (queue.SimpleQueue, _queue),
    (lambda: contextvars.ContextVar("v", default=1), _context),
    (lambda: threading.Semaphore(9), _semaphore),
    (io.StringIO, _file),
    (threading.local, _local),
    (lambda: functools.partial(len, []), _partial),
    (threading.Event, _event),
    (hashlib.md5, _hash),
    (torch.distributed.HashStore, _store),
    (Node, _of_class),
    (list, _tuples),
    (dict, _lists),
]
SEEN: list[tuple[Callable[[], Any], Callable[[Any], float], Callable[[Any], Any]]] = [
    (lambda: functools.partial(len, 1), _partial_itself, lambda s: s.args),
    (lambda: torch.optim.SGD([torch.ones(2)], 0.5), _optimizer, lambda s: s.param_groups[0]["lr"]),
    (lambda: np.ones(2), _right_to_write, lambda s: s.flags.writeable),
    (lambda: type("Log", (), {"lines": []})(), _kept_by_class, lambda s: s.lines),
    (lambda: type("Log", (list,), {"lines": []})(), _kept_by_class, lambda s: s.lines),
    (lambda: type("Log", (tuple,), {"lines": []})(), _kept_by_class, lambda s: s.lines),
    (
        lambda: type("Log", (functools.partial,), {"lines": []})(len),
        _kept_by_class,
        lambda s: s.lines,
    ),
    (lambda: type("Log", (), {"count": 3})(), _number_of_class, lambda s: s.count),
]
HIDING += [(make, ask) for make, ask, _ in SEEN]
held: Any = None


class Counting(nn.Module):
    n: Tensor

    def __init__(self, ask: Callable[[Any], float], own: Any) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(()))
        self.ask, self.own = ask, own

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        return x * self.ask(held if self.own is None else self.own)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_global", [False, True])
@pytest.mark.parametrize(("make", "ask"), HIDING, ids=[ask.__name__ for _, ask in HIDING])
def test_what_the_next_call_reads_is_refused(make: Any, ask: Any, is_global: bool) -> None:
    global held
    held = make()
    eager = Counting(ask, None if is_global else held)
    assert not torch.equal(eager(X), eager(X))  # the truth
    held = make()
    module = Counting(ask, None if is_global else held)
    with pytest.raises(CaptureError, match="and a later call is another program"):
        lostwax.export(module, (X,))


def test_what_writes_its_state_is_compared_and_not_watched() -> None:
    """Objects of C++ that are copied by what they write, as an enum of torch's, or how a tensor is
    cut: to count the calls of their methods took half of the time of a sharded module's export."""
    values = [Shard(1), Partial(), SDPBackend.MATH, torch.distributed.ReduceOp.MAX]
    assert all(hidden.OPAQUE_BASE[type(each)] for each in values)

    class Held(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert sys.getprofile() is None
            return x * values[0].dim + len(values)

    program = lostwax.export(Held(), (X,))
    assert torch.equal(program.module()(X), X + 4)


def test_a_group_of_processes_may_be_asked_for_its_size() -> None:
    group = torch.distributed.ProcessGroup(1, 4)

    def share(x: Tensor) -> Tensor:
        return x / group.size() if x.sum() > 0 else x - group.rank()

    module = lostwax.export(share, (X,)).module()
    assert torch.equal(module(X), X / 4)
    assert torch.equal(module(-X), -X - 1)


@pytest.mark.parametrize("is_keyword", [False, True])
def test_so_is_a_default_that_grows(is_keyword: bool) -> None:
    class Positional(Counting):
        def forward(self, x: Tensor, h: list[int] = []) -> Tensor:  # noqa: B006
            self.n += 1
            h.append(1)
            return x * len(h)

    class Keyword(Counting):
        def forward(self, x: Tensor, *, h: list[int] = []) -> Tensor:  # type: ignore[override] # noqa: B006
            self.n += 1
            h.append(1)
            return x * len(h)

    module = (Keyword if is_keyword else Positional)(_queue, 0)
    said = r"sets h\[0\], which an argument of .* is by default, from nothing to 1"
    with pytest.warns(UserWarning, match=said), pytest.raises(CaptureError, match=said):
        lostwax.export(module, (X,))
    function: Any = type(module).forward
    assert (function.__defaults__, function.__kwdefaults__) == (
        (None, {"h": []}) if is_keyword else (([],), None)
    )


def test_what_the_next_call_does_not_read_is_not() -> None:
    class Logging(Counting):
        def forward(self, x: Tensor) -> Tensor:
            self.n += 1
            self.own.put(1)
            return x * self.n

    eager, module = (Logging(_queue, queue.SimpleQueue()) for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = lostwax.export(module, (X,)).module()
    for _ in range(3):
        torch.testing.assert_close(program(X), eager(X))


# ------------------------------------------------------------------------------- a side changes it


class Deciding(nn.Module):
    def __init__(self, own: Any, change: Callable[[Any, int], Any]) -> None:
        super().__init__()
        self.own, self.change = own, change

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.change(self.own, 2)
        else:
            self.change(self.own, 3)
        return x + 1


@pytest.mark.parametrize(
    ("own", "change"),
    [
        (staticmethod(len), lambda own, n: setattr(own, "tag", n)),
        (struct.Struct("i"), lambda own, n: own.__init__("i" * n)),
        (functools.partial(len, []), lambda own, n: own.args[0].append(n)),
    ],
    ids=["staticmethod", "struct", "partial"],
)
def test_a_side_on_data_that_changes_it_is_refused(own: Any, change: Any) -> None:
    with pytest.raises(CaptureError, match=r"data decide what|cannot be undone"):
        lostwax.export(Deciding(own, change), (X,))


@pytest.mark.parametrize("is_global", [True, False])
@pytest.mark.parametrize(("make", "ask", "see"), SEEN)
def test_it_is_as_it_was_after_an_export(make: Any, ask: Any, see: Any, is_global: bool) -> None:
    global held
    held = make()
    module = Counting(lambda s: ask(s) * 0, None if is_global else held)
    before = repr(see(held))
    with pytest.warns(UserWarning, match="the module (sets|changes) "):
        lostwax.export(module, (X,))
    assert repr(see(held)) == before
    with pytest.raises(StrictError):
        lostwax.export(lambda x: x * ask(held), (X,), strict=True)
    assert repr(see(held)) == before
