"""What a module's functions keep in objects and classes that they name is put back, and told of."""

from __future__ import annotations

import copy
import warnings
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import lostwax

pytestmark = pytest.mark.core


class Registry:
    last: Any = None
    count = 0
    every: ClassVar[list[Any]] = []

    @classmethod
    def put(cls, value: Tensor) -> None:
        cls.last = value


class Slots:
    __slots__ = ("last",)


CONTEXT, SLOTS = SimpleNamespace(last=None, state=Registry()), Slots()


class InClass(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        Registry.last = x * 2
        return x + 1


class ByMethod(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        Registry.put(x * 2)
        return x + 1


class InObject(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        CONTEXT.last = x * 2
        return x + 1


class InSlot(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        SLOTS.last = x * 2
        return x + 1


class InList(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        Registry.every.append(x * 2)
        return x + 1


class Deeper(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        CONTEXT.state.new = x * 2
        return x + 1


class OfFunction(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        see.last = x * 2  # type: ignore[attr-defined]
        return x + 1


class Counting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        Registry.count += 1
        return x * Registry.count


def see() -> Any:
    """All that these modules keep."""
    registry = {k: v for k, v in vars(Registry).items() if k in ("last", "count", "every")}
    held = vars(CONTEXT.state), getattr(SLOTS, "last", None), vars(see)
    return copy.copy((registry, [*Registry.every], CONTEXT.last, *map(copy.copy, held)))


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (InClass, "keeps a tensor in Registry.last, a global of test_global_objects.py"),
        (ByMethod, "keeps a tensor in Registry.last, a global of"),
        (InObject, "keeps a tensor in CONTEXT.last, a global of"),
        (InSlot, "keeps a tensor in SLOTS.last, a global of"),
        (InList, "keeps a tensor in Registry.every, a global of"),
        (Deeper, "keeps a tensor in CONTEXT.state.new, a global of"),
        (OfFunction, "keeps a tensor in see.last, a global of"),
        (Counting, "sets Registry.count, a global of test_global_objects.py, from 0 to 1 ("),
    ],
)
def test_what_is_kept_in_objects_is_put_back_and_told_of(module, said):
    before, wanted = see(), 1.0 if module is Counting else 2.0
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        program = lostwax.export(module(), (torch.ones(2),))
    assert [said in str(each.message) for each in told] == [True]
    assert see() == before
    assert torch.equal(program.module()(torch.ones(2)), torch.full((2,), wanted))


def make_keeper() -> Any:
    context = SimpleNamespace(last=None)

    def keep(x: Tensor) -> Tensor:
        context.last = x * 2
        return x + 1

    return context, keep


@pytest.mark.parametrize(
    ("is_called", "said"),
    [
        (True, "in context.last, which make_keeper.<locals>.keep is closed over;"),
        (False, "in the attribute closure['context'].last, at"),
    ],
)
def test_what_functions_are_closed_over_is_told_of_once(is_called, said):
    context, keep = make_keeper()
    HELPERS["keep"] = keep
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        lostwax.export((lambda x: HELPERS["keep"](x)) if is_called else keep, (torch.ones(2),))
    assert [said in str(each.message) for each in told] == [True]
    assert context.last is None


HELPERS: dict[str, Any] = {}


def test_a_captured_module_that_keeps_such_a_tensor_runs_itself():
    captured = lostwax.capture(InObject())
    try:
        for n in (1.0, 2.0):
            captured(torch.full((2,), n))
            assert CONTEXT.last.tolist() == [2 * n, 2 * n]
    finally:
        CONTEXT.last = None


class Lazy:
    table: Any = None

    def find(self, x: Tensor) -> int:
        if self.table is None:
            self.table = {"rank": x.dim()}
        return int(self.table["rank"])


LAZY = Lazy()


def test_other_changes_of_objects_are_put_back_without_a_word():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = lostwax.export(lambda x: x * LAZY.find(x), (torch.ones(2),))
    assert LAZY.table is None
    assert program.module()(torch.ones(2)).tolist() == [1, 1]
