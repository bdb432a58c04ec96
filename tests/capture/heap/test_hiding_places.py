"""Places where Python can keep something that a walk over attributes does not come by."""

from __future__ import annotations

import cProfile
import gc
import hashlib
import io
import random
import weakref
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax.capture.attempt import SizeBranches
from lostwax.capture.heap.places import Places
from lostwax.errors import LostwaxError, StrictError
from lostwax.identity import Seen

X = torch.ones(2)


class Rolled(random.Random):
    n = 0


class Noted(io.StringIO):
    n = 0


class Marked(np.ndarray):
    n = 0


class Bound(partial):  # type: ignore[type-arg]
    n = 0


PART, SUBCLASS = partial(len), Bound(len)
CACHED: Any = cache(len)
HOLDERS: dict[str, Any] = {
    "a partial": PART,
    "its subclass": SUBCLASS,
    "a cached function": CACHED,
    "a generator": Rolled(0),
    "a file in memory": Noted(),
    "an array": np.zeros(2).view(Marked),
}
held: Any = None


@pytest.mark.parametrize("name", HOLDERS)
def test_attributes_of_what_is_more_are_seen(name: str) -> None:
    global held
    held = HOLDERS[name]
    held.n = 0

    def sets(x: Tensor) -> Tensor:
        if x.sum() > 0:
            held.n = 1
        else:
            held.n = 2
        return x * held.n

    with pytest.raises(LostwaxError, match="data decide what is left in n"):
        lostwax.export(sets, (X,))
    assert held.n == 0


def keeps(x: Tensor) -> Tensor:
    CACHED.last = x * 2
    return x + 1


def test_no_fake_stays_on_a_cached_function() -> None:
    CACHED.last = None
    with pytest.warns(UserWarning, match=r"CACHED\.last"):
        lostwax.export(keeps, (X,))
    assert CACHED.last is None


class Stubborn(list[Any]):
    """Its methods are not to be called by others."""

    def __setitem__(self, *_: Any) -> None:
        raise TypeError("not so")


class StubbornSet(set[Any]):
    def update(self, *_: Any) -> None:
        raise TypeError("not so")


@pytest.mark.parametrize("make", [Stubborn, StubbornSet])
def test_containers_of_the_users_are_put_back_without_their_methods(make: Any) -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.log = nn.Linear(2, 2), make()

        def forward(self, x: Tensor) -> Tensor:
            getattr(self.log, "append" if make is Stubborn else "add")(1)
            return self.linear(x)  # type: ignore[no-any-return]

    module = Module()
    with pytest.warns(UserWarning, match="log"):
        lostwax.export(module, (X,))
    assert type(module.linear.weight) is nn.Parameter
    assert not module.log


TABLE = {(i, i + 1): i for i in range(30_000)}
STATE = {"n": 0}


def of_many(x: Tensor) -> Tensor:
    if x.sum() > 0:
        STATE["n"] = 1
    else:
        STATE["n"] = 2
    return x * STATE["n"] + len(TABLE) * 0


def test_many_objects_are_looked_at() -> None:
    with pytest.raises(LostwaxError, match="data decide what is left in n"):
        lostwax.export(of_many, (X,))


def test_of_more_than_are_looked_at_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lostwax.capture.heap.places.MOST_OBJECTS", 1000)
    with pytest.raises(LostwaxError, match="changes one of more than 1,000 objects"):
        lostwax.export(of_many, (X,))


def set_asserting(value: int) -> int:
    global held
    held = value
    assert held == value  # which pytest writes with functions of its own
    return held


def test_what_asserts_leads_to_no_part_of_pytest() -> None:
    """Which has more objects than all else here. What the function itself does is seen."""
    assert any(name.startswith("@") for name in set_asserting.__code__.co_names)
    places = Places(Seen())
    places.begin(set_asserting)
    assert places.functions == [set_asserting]
    assert places.find_change({}) is None
    set_asserting(7)
    assert places.find_change({}) is not None


def test_no_model_is_kept_alive() -> None:
    def export_one() -> weakref.ref[nn.Module]:
        module = nn.Linear(2, 2)
        lostwax.export(lambda x: module(x), (X,))
        return weakref.ref(module)

    models = [export_one() for _ in range(3)]
    gc.collect()
    assert not any(each() for each in models)


HASH = hashlib.sha256()


def opens_a_file(x: Tensor) -> Tensor:
    assert HASH.name
    open(f"{Path(__file__).parent}/never_made", "w")  # noqa: SIM115
    return x + 1


def test_strict_sees_files_beside_a_hash() -> None:
    with pytest.raises(StrictError, match="never_made"):
        lostwax.export(opens_a_file, (X,), strict=True)
    assert not (Path(__file__).parent / "never_made").exists()


def hashes(x: Tensor) -> Tensor:
    return x + 1 if x.sum() > 0 else x - len(HASH.name)


def test_beside_a_profiler_of_c() -> None:
    with cProfile.Profile():
        program = lostwax.export(hashes, (X,))
    torch.testing.assert_close(program.module()(X), X + 1)


def test_a_settled_branch_takes_none_of_the_next_attempt_with_it() -> None:
    first = SizeBranches()
    first.last_tried.append(("file", 1))
    assert first.settle(("file", 2)).last_tried == []


class Slotted(nn.Module):
    """A module may have slots beside its attributes."""

    __slots__ = ("kept", "n", "words")
    n: Any
    kept: Any
    words: list[int]

    def __init__(self) -> None:
        super().__init__()
        self.n, self.words, self.kept = 1, [0], None


def decides(self: Any, x: Tensor) -> Tensor:
    if x.sum() > 0:
        self.n = 2
    else:
        self.n = 3
    return x * self.n  # type: ignore[no-any-return]


def appends(self: Any, x: Tensor) -> Tensor:
    self.words.append(1)
    return x * len(self.words)


def keeps_in_slot(self: Any, x: Tensor) -> Tensor:
    self.kept = x * 2
    return x + 1


def counts_up(self: Any, x: Tensor) -> Tensor:
    self.n += 1
    return x * self.n  # type: ignore[no-any-return]


SLOTS: dict[str, tuple[Any, str]] = {
    "a branch": (decides, "data decide what is left in n"),
    "a list in one": (appends, r"self.words: \[0\] -> \[0, 1\]"),
    "a tensor": (keeps_in_slot, "self.kept: None -> a tensor"),
    "a number": (counts_up, "self.n: 1 -> 2"),
}


@pytest.mark.parametrize("name", SLOTS)
def test_slots_of_modules_are_seen(name: str) -> None:
    forward, text = SLOTS[name]
    module = type("Module", (Slotted,), {"forward": forward})()
    with pytest.raises(LostwaxError, match=text):
        lostwax.export(module, (X,), strict=True)
    assert (module.n, module.words, module.kept) == (1, [0], None)


def test_a_number_in_a_slot_is_told_of_and_put_back() -> None:
    module = type("Module", (Slotted,), {"forward": counts_up})()
    with pytest.warns(UserWarning, match="sets its attribute n, which was 1, to 2"):
        lostwax.export(module, (X,))
    assert module.n == 1


def test_a_slot_that_has_changed_is_another_program() -> None:
    module: Any = type("Module", (Slotted,), {"forward": lambda self, x: x * self.n})()
    captured = lostwax.capture(module)
    assert captured(X).equal(X)
    module.n = 5
    assert captured(X).equal(X * 5)


class Listed(nn.Module, dict):  # type: ignore[type-arg]
    """A module may be a container, too."""

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self["n"] = 2
        else:
            self["n"] = 3
        return x * self["n"]


def test_a_module_that_is_a_container_is_opened() -> None:
    module = Listed()
    module["n"] = 1
    with pytest.raises(LostwaxError, match="data decide what is left in"):
        lostwax.export(module, (X,))
    assert module["n"] == 1


LONG = [float(i) for i in range(300)]  # more than the small numbers, of which Python has one each


def reads_long(x: Tensor) -> Tensor:
    return x * LONG[299] if x.sum() > 0 else x + LONG[2]


def loops_by_long(x: Tensor) -> Tensor:
    while x.sum() < 10:
        x = x + LONG[1]
    return x


@pytest.mark.parametrize("function", [reads_long, loops_by_long])
def test_a_long_list_that_is_read_has_not_changed(function: Any) -> None:
    program = lostwax.export(function, (X,)).module()
    for x in (X, -X):
        torch.testing.assert_close(program(x), function(x))


def changes_long(x: Tensor) -> Tensor:
    LONG[290] = 1.0
    return x + LONG[290]


def test_a_long_list_that_has_changed() -> None:
    with pytest.raises(StrictError, match="LONG, a global of"):
        lostwax.export(changes_long, (X,), strict=True)
    assert LONG[290] == 290.0
