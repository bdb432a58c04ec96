"""What the observer of a mode is told of its fakes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from lostwax.fake.mode import FakeTensorMode
from lostwax.fake.tensor import FakeTensor, Observer


class Diary(Observer):
    """Writes all of it down."""

    def __init__(self) -> None:
        self.pages: list[Any] = []

    def note_question(self, fake: FakeTensor, what: str) -> None:
        self.pages.append(what)

    def note_layout_choice(self, source: FakeTensor, out: FakeTensor, what: str) -> None:
        self.pages.append(what)

    def note_assignment(self, fake: FakeTensor, name: str, value: Any) -> None:
        self.pages.append((name, value))

    def note_new_data(self, fake: FakeTensor, other: FakeTensor, before: Any, tracked: Any) -> None:
        self.pages.append(before)

    def deep_copy(self, fake: FakeTensor) -> FakeTensor | None:
        self.pages.append("copy")
        return None


def observed(x: torch.Tensor) -> tuple[Any, list[Any]]:
    mode, diary = FakeTensorMode(), Diary()
    mode.observer = diary
    return mode.from_tensor(x), diary.pages


EVENTS: dict[str, tuple[Any, Any]] = {
    "a question": (lambda x: x.requires_grad, "requires_grad"),
    "one about a class": (lambda x: isinstance(x, nn.Parameter), "class"),
    "one about the layout": (lambda x: x.stride(), "stride()"),
    "a layout that decides": (lambda x: x.contiguous(), "contiguous()"),
    "a mark": (lambda x: x.requires_grad_(), ("requires_grad", True)),
    "a gradient": (lambda x: setattr(x, "grad", None), ("grad", None)),
    "a copy": (copy.deepcopy, "copy"),
}


@pytest.mark.parametrize("name", EVENTS)
def test_an_observer_is_told(name: str) -> None:
    do, page = EVENTS[name]
    x, pages = observed(torch.ones(2, 3))
    do(x)
    assert pages == [page]


def test_what_a_fake_shows_of_itself_is_not_asked() -> None:
    x, pages = observed(torch.ones(2, 3, requires_grad=True))
    assert "requires_grad=True" in repr(x)
    assert pages == []


def test_modes_have_no_observer_but_their_own() -> None:
    x, pages = observed(torch.ones(2))
    other = FakeTensorMode().from_tensor(torch.ones(2))
    assert not other.requires_grad
    assert pages == []
    assert x.fake_mode.observer is not other.fake_mode.observer
