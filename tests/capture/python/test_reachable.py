"""Which of the user's functions a capture reads: those that a call reaches by what is bound now,
not at an earlier capture, and each function of its own, also where several share their code."""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import is_grad_enabled, nn

from lostwax import export
from lostwax.cache import CACHES, empty_caches
from lostwax.capture.heap.functions import reachable_functions

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
    assert asking_the_class in reachable_functions([cls.forward], None)
    code_of(cls(), torch.randn(3, 3))


def test_a_function_that_wraps_itself_is_read_once() -> None:
    looped = wrap(plain)
    looped.__wrapped__ = looped
    assert list(reachable_functions([looped], None)).count(looped) == 1


def test_a_variable_that_an_inner_function_sets_is_put_back() -> None:
    total: Any = None

    def add(x: torch.Tensor) -> torch.Tensor:
        def inner() -> torch.Tensor:
            nonlocal total
            total = x * 2
            return total  # type: ignore[no-any-return]

        return inner()

    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return add(x)

    with pytest.warns(UserWarning, match="keeps a tensor in total"):
        export(Net(), (torch.ones(2),))
    assert total is None


def count_outlines() -> int:
    return CACHES["bytecode.outline"].state().misses


def count_entries() -> int:
    return CACHES["capture.heap.reach.entries"].state().misses


def test_each_code_that_runs_is_read_once() -> None:
    """Several classes with one base, exported several times: as many readings as functions that
    run, and none of the others."""

    class Base(nn.Module):
        def helper(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        def unused(self, x: torch.Tensor) -> torch.Tensor:
            return called(x)

    class Left(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.helper(x) + sum(y for y in (x, x))

    class Right(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.helper(x) - 1

    x = torch.ones(2, 3)
    empty_caches()  # another test may have come by these functions
    export(nn.Linear(3, 3), (x,))
    codes, entries = count_outlines(), count_entries()
    inner = sum(type(each).__name__ == "code" for each in Left.forward.__code__.co_consts)
    for layers in ([Left(), Right()], [Right(), Left()], [Left()]):
        export(nn.Sequential(*layers), (x,))
        assert (count_outlines() - codes, count_entries() - entries) == (3 + inner, 4)


def test_nothing_of_torch_is_read() -> None:
    x = torch.ones(2, 3)
    codes, entries = count_outlines(), count_entries()
    export(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.GELU()), (x,))
    assert (count_outlines(), count_entries()) == (codes, entries)


class Held(nn.Module):
    """Reads a global that something else may come to be."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if DATA is None else x + 1


class Data:
    pass


DATA: Any = None


def test_a_program_does_not_keep_alive_what_was_read() -> None:
    global DATA
    DATA = Data()
    program = export(Held(), (torch.ones(2),))
    seen = weakref.ref(DATA)
    DATA = None
    gc.collect()
    assert seen() is None
    program.validate()


def hide(value: Any) -> Any:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return value(x)  # type: ignore[no-any-return]

    return inner


@pytest.mark.filterwarnings("ignore:the module sets COUNT")
@pytest.mark.parametrize("way", ["code", "cell", "default", "module", "new name", "method"])
def test_every_way_to_bind_it_anew_is_seen(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "COUNT", 0)
    home = types.ModuleType("home")
    home.called = plain  # type: ignore[attr-defined]
    through = hide(plain)

    def default(x: torch.Tensor, f: Any = plain) -> torch.Tensor:
        return f(x)  # type: ignore[no-any-return]

    exec("def new(x):\n    return later(x) if 'later' in globals() else x", names := {})
    new = FunctionType(names["new"].__code__.replace(co_filename=__file__), names)

    class Net(nn.Module):
        def helper(self, x: torch.Tensor) -> torch.Tensor:
            return x

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return home.called(through(default(new(self.helper(x)))))  # type: ignore[no-any-return]

    x = torch.ones(2)
    export(Net(), (x,))
    if way == "code":
        through.__code__ = hide(counting).__code__
        through.__closure__[0].cell_contents = counting
    elif way == "cell":
        through.__closure__[0].cell_contents = counting
    elif way == "default":
        default.__defaults__ = (counting,)
    elif way == "module":
        home.called = counting  # type: ignore[attr-defined]
    elif way == "new name":
        names["later"] = counting
    else:
        Net.helper = lambda self, x: counting(x)  # type: ignore[method-assign]
    assert COUNT == 0
    export(Net(), (x,))
    assert COUNT == 0, way
