"""`lostwax.capture` keeps nothing alive that is only referred to weakly: the module itself runs
where that may go at any time. What the module holds itself may be referred to, too."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax

X = torch.ones(2)


class Owner:
    factor = 2.0


class Counting(nn.Module):
    def __init__(self, held: Any, count: Callable[[Any], float]) -> None:
        super().__init__()
        self.held, self.count = held, count

    def forward(self, x: Tensor) -> Tensor:
        return x * self.count(self.held)


def _of_reference(held: Any) -> float:
    return 0 if held() is None else held().factor


def _of_proxy(held: Any) -> float:
    try:
        return float(held.factor)
    except ReferenceError:
        return 0


WEAK: dict[str, tuple[Callable[[Owner], Any], Callable[[Any], float]]] = {
    "reference": (weakref.ref, _of_reference),
    "proxy": (weakref.proxy, _of_proxy),
    "set": (lambda owner: weakref.WeakSet([owner]), len),
    "values": (lambda owner: weakref.WeakValueDictionary(a=owner), len),
    "keys": (lambda owner: weakref.WeakKeyDictionary({owner: 1}), len),
}


@pytest.mark.parametrize("kind", WEAK)
def test_what_is_referred_to_weakly_goes_when_its_owners_do(kind: str) -> None:
    refer, count = WEAK[kind]
    owner = Owner()
    gone = weakref.ref(owner)
    module = Counting(refer(owner), count)
    ours = lostwax.capture(module)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            torch.testing.assert_close(ours(X), module(X))
    assert len(told) == 1
    assert "refers weakly to a Owner, which may go at any time" in str(told[0].message)
    del owner
    assert gone() is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            torch.testing.assert_close(ours(X), torch.zeros(2))


def test_what_the_module_holds_itself_is_captured() -> None:
    class Part(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * self.parent().factor

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part, self.factor = Part(), 2.0
            self.part.parent = weakref.ref(self)

        def forward(self, x: Tensor) -> Tensor:
            return self.part(x)

    module = Whole()
    ours = lostwax.capture(module)
    for factor in (2.0, 3.0):
        module.factor = factor
        for _ in range(2):
            torch.testing.assert_close(ours(X), X * factor)
    assert len(ours.programs) == 2


def test_recurrent_layers_refer_to_their_weights() -> None:
    module = nn.LSTM(3, 4)
    ours, x = lostwax.capture(module), torch.ones(2, 1, 3)
    torch.testing.assert_close(ours(x)[0], module(x)[0])
    assert len(ours.programs) == 1
