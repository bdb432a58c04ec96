"""What gives another value each time it is asked, what functions keep in caches, and what is held
in places that are looked into last: an export tells of it, and `lostwax.capture` does in each call
what eager does."""

from __future__ import annotations

import enum
import functools
import importlib
import itertools
import random
import sys
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax import export

X = torch.ones(2)


class Holds(nn.Module):
    """Multiplies by what a function finds in it."""

    def __init__(self, held: Any, read: Callable[[Any], float]) -> None:
        super().__init__()
        self.held = held
        self.read = read

    def forward(self, x: Tensor) -> Tensor:
        return x * self.read(self.held)


def counting() -> Iterator[int]:
    i = 0
    while True:
        i += 1
        yield i


ITERATORS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "count": (itertools.count, next),
    "generator": (counting, lambda it: next(it)),
    "in a dict": (lambda: {"a": iter([1, 2, 3, 4])}, lambda held: next(held["a"])),
    "zip": (lambda: zip([1, 2, 3, 4], "abcd", strict=True), lambda it: next(it)[0]),
    "cycle": (lambda: itertools.cycle([1, 2, 3]), lambda it: next(it)),
    "map": (lambda: map(abs, [-1, -2, -3]), lambda it: next(it)),
}
GENERATORS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "random": (lambda: random.Random(0), lambda it: it.random()),
    "default_rng": (lambda: [np.random.default_rng(0)], lambda it: float(it[0].random())),
    "RandomState": (lambda: np.random.RandomState(0), lambda it: float(it.rand())),
}


@pytest.mark.parametrize("name", [*ITERATORS, *GENERATORS])
def test_an_export_tells_of_what_it_takes(name: str) -> None:
    make, take = (ITERATORS | GENERATORS)[name]
    net = Holds(make(), take)
    with pytest.warns(UserWarning, match=r"takes a value from its attribute held"):
        program = export(net, (X,))
    first = Holds(make(), take)(X)
    torch.testing.assert_close(program.module()(X), first)
    if name in GENERATORS:  # they stand where they stood
        torch.testing.assert_close(net(X), first)


@pytest.mark.parametrize("name", [*ITERATORS, *GENERATORS])
def test_nothing_is_told_where_nothing_is_taken(name: str) -> None:
    make, _ = (ITERATORS | GENERATORS)[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export(Holds(make(), lambda held: 2.0), (X,))


@pytest.mark.parametrize("name", [*ITERATORS, *GENERATORS])
def test_captured_calls_take_what_eager_takes(name: str) -> None:
    make, take = (ITERATORS | GENERATORS)[name]
    eager, captured = Holds(make(), take), lostwax.capture(Holds(make(), take))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            torch.testing.assert_close(captured(X), eager(X))
    assert len(told) == (1 if name in ITERATORS else 0)
    assert "the module itself runs" in captured.explain()
    assert captured.programs == []


def test_generators_that_are_not_drawn_from_are_no_matter() -> None:
    net = Holds(random.Random(0), lambda held: 2.0)
    captured = lostwax.capture(net)
    captured(X)
    net.held.random()
    captured(X)
    assert [each.calls for each in captured.variants] == [2]


NUMBERS = itertools.count()
OWN = random.Random(0)
TIMES = 0


def from_globals(x: Tensor) -> Tensor:
    return x * next(NUMBERS)


def from_own(x: Tensor) -> Tensor:
    return x * OWN.random()


def counts(x: Tensor) -> Tensor:
    global TIMES
    TIMES += 1
    return x * TIMES


def draws(x: Tensor) -> Tensor:
    return x * random.random()


@pytest.mark.filterwarnings("ignore:lostwax.capture runs the module itself")
@pytest.mark.parametrize("function", [from_globals, from_own, counts, draws])
def test_what_is_not_in_a_module(function: Callable[[Tensor], Tensor]) -> None:
    global NUMBERS, TIMES

    def calls(function: Callable[[Tensor], Tensor]) -> list[Tensor]:
        global NUMBERS, TIMES
        NUMBERS, TIMES = itertools.count(), 0
        OWN.seed(0)
        random.seed(0)
        return [function(X) for _ in range(4)]

    torch.testing.assert_close(calls(lostwax.capture(function)), calls(function))
    with pytest.warns(UserWarning, match=r"baked into the program|computes with what it was"):
        export(function, (X,))


# ------------------------------------------------------------------------------- where things are


class Box:
    def __init__(self) -> None:
        self.value = 2.0


class Kind(enum.Enum):
    A = 1


class Descriptor:
    def __init__(self, box: Box) -> None:
        self.box = box

    def __get__(self, owner: Any, cls: Any = None) -> float:
        return self.box.value


def described(box: Box) -> Any:
    return type("Described", (), {"value": Descriptor(box)})()


def module_with(box: Box) -> ModuleType:
    module = ModuleType("lostwax_test_module")
    vars(module)["box"] = box
    sys.modules["lostwax_test_module"] = module
    return module


def kept_in_kind(box: Box) -> Kind:
    Kind.A.box = box  # type: ignore[attr-defined]
    return Kind.A


def kept_as_global(box: Box) -> None:
    globals()["KEPT"] = box


def imports(held: Any) -> float:
    import lostwax_test_module

    return lostwax_test_module.box.value


def imports_from(held: Any) -> float:
    from lostwax_test_module import box

    return box.value


def wrapped(box: Box) -> Any:
    def plain() -> float:
        return 1.0

    @functools.wraps(plain)
    def wrapper() -> float:
        return plain() * box.value

    return wrapper


def dispatched(box: Box) -> Any:
    return functools.singledispatch(lambda value: box.value)


PLACES: dict[str, tuple[Callable[[Box], Any], Callable[[Any], Any]]] = {
    "a module in a list": (lambda box: [module_with(box)], lambda held: held[0].box.value),
    "a module": (module_with, lambda held: held.box.value),
    "a module by getattr": (module_with, lambda held: getattr(held, "b" + "ox").value),
    "an import": (module_with, imports),
    "an import of a name": (module_with, imports_from),
    "an import by a function": (
        module_with, lambda held: __import__("lostwax_test_module").box.value,
    ),
    "importlib": (
        module_with, lambda held: importlib.import_module("lostwax_test_module").box.value,
    ),
    "sys.modules": (module_with, lambda held: sys.modules["lostwax_test_module"].box.value),
    "a weak reference": (weakref.ref, lambda held: held().value),
    "a weak proxy": (weakref.proxy, lambda held: held.value),
    "weak values": (lambda b: weakref.WeakValueDictionary(a=b), lambda held: held["a"].value),
    "weak keys": (lambda b: weakref.WeakKeyDictionary({b: 1}), lambda h: next(iter(h)).value),
    "a weak set": (lambda b: weakref.WeakSet([b]), lambda held: sum(b.value for b in held)),
    "a view": (lambda box: vars(box).values(), sum),
    "a view of items": (lambda box: vars(box).items(), lambda held: dict(held)["value"]),
    "a method of C": (lambda box: vars(box).get, lambda held: held("value")),
    "a frozenset": (lambda box: frozenset([box]), lambda held: sum(b.value for b in held)),
    "an enum": (kept_in_kind, lambda held: held.box.value),
    "a descriptor": (described, lambda held: held.value),
    "a wrapper": (wrapped, lambda held: held()),
    "singledispatch": (dispatched, lambda held: held(1)),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_a_change_is_seen_in(place: str) -> None:
    put, read = PLACES[place]
    box = Box()
    net = Holds(put(box), read)
    captured = lostwax.capture(net)
    for value in (2.0, 2.0, 3.0, 3.0):
        box.value = value
        torch.testing.assert_close(captured(X), X * value)
    if "weak" in place:  # nothing that is looked at holds the box: it may die at any time
        assert not captured.variants
    else:
        assert captured.variants[-1].calls >= 2, captured.explain()


@pytest.mark.filterwarnings("ignore:lostwax.capture runs the module itself")
@pytest.mark.parametrize("read", [lambda _: globals()["KEPT"].value, lambda _: eval("KEPT").value])
def test_a_change_is_seen_of_any_global(read: Callable[[Any], float]) -> None:
    box = Box()
    kept_as_global(box)
    captured = lostwax.capture(Holds(None, read))
    for value in (2.0, 2.0, 3.0):
        box.value = value
        torch.testing.assert_close(captured(X), X * value)


def test_a_change_is_seen_among_many() -> None:
    net = nn.Module()
    net.layers = nn.ModuleList([nn.Dropout(0.5) for _ in range(2000)])  # type: ignore[assignment]
    net.forward = lambda x: x * net.layers[5].p  # type: ignore[index, union-attr]
    captured = lostwax.capture(net)
    torch.testing.assert_close(captured(X), X * 0.5)
    net.layers[5].p = 0.25  # type: ignore[index, union-attr]
    torch.testing.assert_close(captured(X), X * 0.25)


def test_more_than_can_be_looked_at_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lostwax.capture.surroundings.look.MOST_OBJECTS", 50)
    boxes = [Box() for _ in range(100)]
    captured = lostwax.capture(Holds(boxes, lambda held: held[99].value))
    with pytest.warns(UserWarning, match="more than 50 things to look at"):
        torch.testing.assert_close(captured(X), X * 2)
    boxes[99].value = 3.0
    torch.testing.assert_close(captured(X), X * 3)


# ------------------------------------------------------------------------------------------ caches

FACTOR = 1.0


@functools.lru_cache
def some(n: int) -> float:
    return n * FACTOR


@functools.lru_cache(maxsize=None)  # noqa: UP033
def every(n: int) -> tuple[float, ...]:
    return (n * FACTOR,)


@functools.cache
def table(n: int) -> Tensor:
    return torch.full((2,), n * FACTOR)


class Method(nn.Module):
    @functools.lru_cache  # noqa: B019
    def scale(self) -> float:
        return FACTOR

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale()


READING: dict[str, tuple[Any, Callable[[], Any]]] = {
    "bounded": (some, lambda: Holds(2, lambda n: some(n))),
    "unbounded": (every, lambda: Holds(2, lambda n: every(n)[0])),
    "of tensors": (table, lambda: Holds(2, lambda n: table(n))),  # type: ignore[arg-type, return-value]
    "of a method": (Method.scale, Method),
    "in an attribute": (some, lambda: Holds(some, lambda f: f(2))),
}


@pytest.mark.parametrize("name", READING)
def test_what_is_in_a_cache_is_found_there(name: str) -> None:
    function, make = READING[name]

    def calls(is_captured: bool) -> list[Tensor]:
        global FACTOR
        function.cache_clear()
        net = make()
        called = lostwax.capture(net) if is_captured else net
        found = []
        for factor, clear in ((1.0, False), (2.0, False), (3.0, True), (3.0, False), (4.0, True)):
            FACTOR = factor
            if clear:
                function.cache_clear()
            found += [called(X).clone() for _ in range(2)]
        return found

    torch.testing.assert_close(calls(True), calls(False))


def test_other_entries_of_a_cache_are_no_matter() -> None:
    some.cache_clear()
    captured = lostwax.capture(Holds(2, lambda n: some(n)))
    captured(X)
    for i in range(5, 9):
        some(i)
        captured(X)
    assert [each.calls for each in captured.variants] == [5]


def test_an_export_leaves_globals_as_they_were() -> None:
    global TIMES
    TIMES = 5
    with pytest.warns(UserWarning, match="sets TIMES, a global"):
        export(counts, (X,))
    assert TIMES == 5


# ----------------------------------------------------------------- what no call of the module reads


NUMBERS = itertools.count()


class Lazy(OrderedDict[str, float]):
    """As libraries have them: no copy, and what is asked for is loaded then."""

    def __init__(self, content: dict[str, float], loads: bool) -> None:
        super().__init__(content)

    def __getitem__(self, key: str) -> float:
        raise AssertionError("loaded")

    values = items = __getitem__  # type: ignore[assignment]


class Published(nn.Module):
    """A model with more methods than a call needs, as those of libraries are."""

    kinds = Lazy({"a": 2.0}, loads=True)
    doubles = False

    def forward(self, x: Tensor) -> Tensor:
        return self.twice(x) if self.doubles else x + dict.__getitem__(self.kinds, "a")

    def twice(self, x: Tensor) -> Tensor:
        return x * next(NUMBERS) + 1

    def upload(self) -> int:
        return next(NUMBERS)


def test_what_no_call_of_the_module_reads_is_no_matter(recwarn: pytest.WarningsRecorder) -> None:
    model = Published()
    captured = lostwax.capture(model)
    x = torch.ones(2)
    assert torch.equal(captured(x), x + 2)  # here it is seen what runs
    assert len(captured.programs) == 1
    assert torch.equal(captured(x), x + 2)
    assert captured.variants[0].calls == 2
    assert not recwarn.list

    dict.__setitem__(model.kinds, "a", 3.0)
    try:
        assert torch.equal(captured(x), x + 3)
    finally:
        dict.__setitem__(model.kinds, "a", 2.0)
    assert torch.equal(captured(x), x + 2)

    model.doubles = True  # and now a function runs that did not run before
    first = next(NUMBERS)
    with pytest.warns(UserWarning, match="runs the module itself: .* is a count"):
        results = [captured(x) for _ in range(3)]
    assert [float(each[0]) for each in results] == [first + 2, first + 3, first + 4]


def test_who_else_looks_at_calls_is_let() -> None:
    calls: list[str] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        calls.append(event)

    model = Published()
    captured = lostwax.capture(model)
    try:
        sys.setprofile(profile)
        with pytest.warns(UserWarning, match="runs the module itself"):
            captured(torch.ones(2))
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert calls
    assert not captured.programs
