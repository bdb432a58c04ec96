"""Which of the user's functions a capture reads: those that a call reaches by what is bound now,
not at an earlier capture, and each function of its own, also where several share their code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import is_grad_enabled, nn

from lostwax import export
from lostwax.capture.python.reachable import reachable_functions, user_functions

COUNT = 0


def plain(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def counting(x: torch.Tensor) -> torch.Tensor:
    global COUNT
    COUNT += 1
    return x + 2


def asking_the_class(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if type(x) is torch.Tensor else x * 3


def asking_the_class_tensor(x: torch.Tensor) -> torch.Tensor:
    return x * torch.Tensor.stride(x)[0]


def asking_a_mode(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if is_grad_enabled() else x


called: Callable[[torch.Tensor], torch.Tensor] = plain


class Calls(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return called(x)


def code_of(mod: Any, x: torch.Tensor) -> tuple[list[str], list[str]]:
    program = export(mod, (x,))
    torch.testing.assert_close(program.module()(x), mod(x))
    return [str(node.target) for node in program.graph.nodes], [str(g) for g in program.guards]


@pytest.mark.filterwarnings("ignore:the module sets COUNT")
@pytest.mark.parametrize(
    "again", [counting, asking_the_class, asking_the_class_tensor, asking_a_mode]
)
@pytest.mark.parametrize("as_method", [False, True])
def test_what_is_defined_again_is_read_again(
    again: Any, as_method: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fresh(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return called(x)

    x = torch.randn(3, 3)
    code_of(Calls(), x)
    if as_method:
        monkeypatch.setattr(Calls, "forward", lambda self, x: again(x))
    else:
        monkeypatch.setitem(globals(), "called", again)
    monkeypatch.setitem(globals(), "COUNT", 0)
    export(Calls(), (x,))
    assert COUNT == 0
    found = code_of(Calls(), x)
    monkeypatch.setitem(globals(), "called", again)
    assert found == code_of(Fresh(), x)


def wrap(function: Any) -> Any:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return function(x)  # type: ignore[no-any-return]

    return inner


FIRST, SECOND = wrap(asking_the_class), wrap(torch.relu)


class Both(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return FIRST(x) + SECOND(x)  # type: ignore[no-any-return]


class Other(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return SECOND(x) + FIRST(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("cls", [Both, Other])
def test_functions_that_share_their_code_are_read_each(cls: Any) -> None:
    assert asking_the_class in user_functions(cls(), [cls()])
    code_of(cls(), torch.randn(3, 3))


def test_a_function_that_wraps_itself_is_read_once() -> None:
    looped = wrap(plain)
    looped.__wrapped__ = looped
    assert list(reachable_functions([looped])).count(looped) == 1
