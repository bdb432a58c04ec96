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
from lostwax.errors import LostwaxError, StrictError

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
    monkeypatch.setattr("lostwax.capture.heap.places._MOST", 1000)
    with pytest.raises(LostwaxError, match="changes one of more than 1,000 objects"):
        lostwax.export(of_many, (X,))


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
