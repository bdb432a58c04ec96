"""Parts of lists, of tuples and of modules, `values[:n]`, whose length data decide: what goes over
them, and what asks for more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax.errors import LostwaxError

INPUTS = [torch.tensor([each]) for each in (1.0, 3.0, 0.0, 7.0, -2.0)]


def count(x: Tensor) -> int:
    return int(x.sum().abs())


class Layers(nn.Module):
    def __init__(self, act: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(1, 1) for _ in range(4))
        self.chain = nn.Sequential(*self.layers)
        self.act = act

    def forward(self, x: Tensor) -> Any:
        return self.act(self, x)


def goes_over_it_twice(self: Any, x: Tensor) -> Tensor:
    part = self.layers[: count(x)]
    for layer in part:
        x = layer(x)
    for layer in part:
        x = layer(x) + 1
    return x


def goes_over_a_chain(self: Any, x: Tensor) -> Tensor:
    for layer in self.chain[: count(x)]:
        x = layer(x)
    return x


def of_a_tuple(self: Any, x: Tensor) -> Tensor:
    return x * sum((1, 2, 3)[: count(x)])


def of_words(self: Any, x: Tensor) -> Tensor:
    for word in ["a", "b", "c"][: count(x)]:
        x = x * 2 + (word == "b")
    return x


def asks_its_class(self: Any, x: Tensor) -> Tensor:
    n = count(x)
    found = self.layers[:n], self.chain[:n], (1, 2)[:n], ["a", "b"][:n]
    kinds = nn.ModuleList, nn.Sequential, tuple, list
    are_so = [type(part) is kind for part, kind in zip(found, kinds, strict=True)]
    others = [isinstance(part, nn.Module) for part in found]
    return x * 2 if all(are_so) and others == [True, True, False, False] else x * 3


@pytest.mark.parametrize(
    "act", [goes_over_it_twice, goes_over_a_chain, of_a_tuple, of_words, asks_its_class]
)
def test_what_goes_over_it_equals_eager(act: Any) -> None:
    module = Layers(act)
    for example in INPUTS[:2]:
        run = lostwax.export(module, (example,)).module()
        for x in INPUTS:
            torch.testing.assert_close(run(x), module(x))


MORE = {
    "length": lambda self, x: x * len(self.layers[: count(x)]),
    "element": lambda self, x: self.layers[: count(x)][0](x),
    "call": lambda self, x: self.chain[: count(x)](x),
    "attribute": lambda self, x: x * len(list(self.layers[: count(x)].parameters())),
    "comparison": lambda self, x: x * 2 if self.layers[: count(x)] == self.layers else x,
    "truth": lambda self, x: x * 2 if self.layers[: count(x)] else x,
    "sum": lambda self, x: x * len(["a"] + ["a", "b"][: count(x)]),  # noqa: RUF005
}


@pytest.mark.parametrize("name", MORE)
def test_who_asks_for_more_is_refused(name: str) -> None:
    told = "data decide how long a part of a .* is, of which more is asked than its elements"
    with pytest.raises(LostwaxError, match=told) as caught:
        lostwax.export(Layers(MORE[name]), (INPUTS[1],))
    assert "test_parts.py:" in str(caught.value)
    assert "instead: go over it, for x in values[:n]" in str(caught.value)


def test_a_tuple_of_tensors_is_not_cut() -> None:
    """Who joins them wants a tuple of tensors, and nothing else."""
    with pytest.raises(LostwaxError, match="a concrete integer is needed"):
        lostwax.export(lambda x: torch.cat((x, x + 1)[: count(x)]), (INPUTS[0],))
