"""Export leaves the user's module and torch as they were, also when it fails."""

from __future__ import annotations

import copy
import functools
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import nn

from lostwax.capture import export
from lostwax.fake import FakeTensor
from tests.capture.small import X


def everything(module: nn.Module) -> Any:
    return [
        (
            name,
            sorted(m.__dict__),
            {k: id(v) for k, v in m.__dict__.items() if not isinstance(v, (dict, list, set))},
            [(k, id(v), v._version, v.clone()) for k, v in m._parameters.items() if v is not None],
            [(k, id(v), v._version, v.clone()) for k, v in m._buffers.items() if v is not None],
            copy.deepcopy([m.__dict__.get(k) for k in ("history", "nested", "last")]),
        )
        for name, m in module.named_modules()
    ]


def _registers_a_hook(module: Any) -> None:
    module.inner.register_forward_hook(lambda *_: None)


def _adds_a_child(module: Any) -> None:
    module.inner.child = nn.Identity()


def _renames(module: Any) -> None:
    module.second = module.__dict__.pop("first")


def _replaces_hooks(module: Any) -> None:
    module._forward_hooks = {0: lambda *_: None}


def _fills_what_was_empty(module: Any) -> None:
    module.seen.add(3)
    module.notes["a"] = 1


CHANGES = [_registers_a_hook, _adds_a_child, _renames, _replaces_hooks, _fills_what_was_empty]


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_module_does_to_itself_is_taken_back(change: Callable[[Any], None]) -> None:
    class Restless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.seen: set[int] = set()
            self.notes: dict[str, int] = {}
            self.first = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.inner(x)
            change(self)
            return x

    module = Restless()
    before = [str(m.__dict__) for m in module.modules()]
    export(module, (X,))
    assert [str(m.__dict__) for m in module.modules()] == before


@pytest.mark.parametrize("holder", [frozenset, tuple, lambda of: MappingProxyType({0: of[0]})])
def test_what_is_in_something_that_cannot_change_is_put_back(holder: Callable[[Any], Any]) -> None:
    class Notes:
        def __init__(self) -> None:
            self.lines = [1]

    class Holding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = holder([notes])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for each in self.held.values() if isinstance(self.held, Mapping) else self.held:
                each.lines.append(2)
            return x + 1

    notes = Notes()
    with pytest.warns(UserWarning, match="held"):
        export(Holding(), (X,))
    assert notes.lines == [1]


@pytest.mark.parametrize("fails", [False, True])
def test_the_module_is_untouched(fails: bool) -> None:
    class Busy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.register_buffer("count", torch.zeros(()))
            self.calls = 0
            self.history: list[int] = [1]
            self.nested = {"a": [1, {2}]}
            self.last = deque([1], maxlen=2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.history.append(2)
            self.nested["a"].append(3)
            self.nested["a"][1].add(3)
            self.last.append(2)
            self.count = self.count + 1
            self.norm.weight.data.mul_(1)
            x = self.norm(x)
            if fails:
                raise KeyError("on purpose")
            return x

    module = Busy()
    before, state = everything(module), torch.get_rng_state()
    if fails:
        with pytest.raises(KeyError):
            export(module, (X,))
    else:
        export(module, (X,))
    assert str(everything(module)) == str(before)
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.compiler.is_exporting()
    assert not torch.compiler.is_compiling()
    assert not isinstance(torch.empty(1), FakeTensor)
    assert nn.Module.__call__.__qualname__ == "Module._wrapped_call_impl"
    for function in (torch.compile, torch._assert, torch.manual_seed, torch.seed):
        assert Path(function.__code__.co_filename).is_relative_to(Path(torch.__file__).parent)
    assert torch.autograd.Function.apply.__module__ in ("torch.autograd.function", None)  # C++
    assert torch.backends.mha.get_fastpath_enabled()


def test_captures_of_several_threads_wait_for_each_other() -> None:
    def patched() -> list[Any]:
        functional = nn.functional
        classes = (torch.autograd.Function.__dict__["apply"], nn.TransformerEncoder.forward)
        return [functional.conv2d, torch.layer_norm, torch.tensor, *classes]

    module, found = nn.Sequential(*[nn.Linear(4, 4) for _ in range(30)]), []
    before, functions = everything(module), patched()

    def work() -> None:
        found.extend(export(module, (X,)) for _ in range(5))

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    assert all(a is b for a, b in zip(patched(), functions, strict=True))
    assert str(everything(module)) == str(before)
    for program in found:
        torch.testing.assert_close(program.module()(X), module(X))


@functools.lru_cache
def positions(n: int) -> torch.Tensor:
    return torch.arange(n).float()


TABLES: dict[Any, Any] = {}
SEEN: list[Any] = []
SCALE: Any = None


def table(n: int) -> torch.Tensor:
    global SCALE
    if SCALE is None:
        SCALE = torch.ones(n)
    if n not in TABLES:
        TABLES[n] = torch.ones(n)
    return TABLES[n] * SCALE


class Caching(nn.Module):
    @staticmethod
    @functools.cache
    def shifts(n: int) -> torch.Tensor:
        return torch.zeros(n) + 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        SEEN.append(x)
        return x + positions(4) + self.shifts(4) + table(4)


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_in_caches_outside_of_the_module(fails: bool) -> None:
    held = TABLES["held"] = torch.ones(1)
    module, x = nn.Sequential(Caching()), torch.randn(2, 4)
    function = lambda x: module(x)[9] if fails else module(x)  # noqa: E731
    for mod in (module, function):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            if fails and mod is function:
                with pytest.raises(IndexError):
                    export(mod, (x,))
            else:
                torch.testing.assert_close(export(mod, (x,)).module()(x), x + positions(4) + 2)
        texts = " ".join(str(w.message) for w in told)
        for name in ("TABLES", "SEEN", "SCALE"):
            assert f"keeps a tensor in {name}, a global of test_snapshot.py" in texts
        assert not SEEN
        assert SCALE is None
        assert TABLES.keys() == {"held"}
        assert TABLES["held"] is held
        assert type(positions(4)) is type(Caching.shifts(4)) is torch.Tensor
        positions.cache_clear()
        Caching.shifts.cache_clear()


LAYER = nn.Linear(3, 3)


def _makes_a_layer(x: torch.Tensor) -> torch.Tensor:
    global LAYER
    LAYER = nn.Linear(3, 3)
    return LAYER(x)


@pytest.mark.filterwarnings("ignore:the module keeps a tensor")
def test_no_module_of_fakes_is_left_in_a_global() -> None:
    before = LAYER
    export(_makes_a_layer, (torch.randn(2, 3),))
    assert LAYER is before


class Unbound:
    """A proxy that stands for nothing yet: its `__dict__` is that of what it stands for."""

    @property
    def __dict__(self) -> Any:
        raise AttributeError("nothing is bound")


class Shut:
    """Shows no attribute."""

    def __getattribute__(self, name: str) -> Any:
        raise AttributeError(name)


@pytest.mark.parametrize("strict", [False, True])
def test_objects_that_hide_their_attributes(strict: bool) -> None:
    class Holding(nn.Module):
        held = (Unbound(), Shut())

        def __init__(self) -> None:
            super().__init__()
            self.also = [Unbound(), Shut()]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + len(self.also) if self.held else x

    assert export(Holding(), (X,), strict=strict).module()(X).equal(X + 2)
