"""State, constants and submodules of a user may be called as something of our own classes is."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import lostwax

NAMES = [
    "_running", "_constants", "graph", "bodies", "graph_signature", "module_call_graph",
    "range_constraints", "flat_args_adapter", "_program", "_casts", "_convention", "_rebuild",
    "_overlap", "_idle", "_keep", "_marked", "print_readable",
]  # fmt: skip


class Named(nn.Module):
    def __init__(self, name: str, value: Any) -> None:
        super().__init__()
        self.name = name
        if isinstance(value, nn.Module):
            self.add_module(name, value)
        elif isinstance(value, nn.Parameter):
            self.register_parameter(name, value)
        elif value.dim() == 2:
            setattr(self, name, value)
        else:
            self.register_buffer(name, value)

    def forward(self, x):
        held = getattr(self, self.name)
        if isinstance(held, nn.Module):
            return held(x)
        if held.dim() == 1 and not isinstance(held, nn.Parameter):
            held.add_(1)
        elif held.dim() == 0:
            held = held * 2
            setattr(self, self.name, held)
        return x * held


class Inner(Named):
    """The same, one level down."""

    def __init__(self, name: str, value: Any) -> None:
        super().__init__("inner", Named(name, value))


def held() -> dict[str, Any]:
    return {
        "parameter": nn.Parameter(torch.randn(3)),
        "buffer": torch.randn(3),
        "replaced buffer": torch.randn(()),
        "constant": torch.randn(3, 3),
        "module": nn.Linear(3, 3),
    }


@pytest.mark.parametrize("kind", held())
@pytest.mark.parametrize("cls", [Named, Inner])
def test_names_of_ours(cls: type[Named], kind: str) -> None:
    x = torch.randn(3, 3)
    for name in NAMES:
        module = cls(name, held()[kind])
        program = lostwax.export(module, (x,))
        want = copy.deepcopy(module)
        results = [want(x), want(x)]
        captured = lostwax.capture(copy.deepcopy(module))
        torch.testing.assert_close([captured(x), captured(x)], results)
        for way in (program.module(), lostwax.unflatten(program)):
            assert list(way.state_dict()) == list(module.state_dict())
            copied = copy.deepcopy(way)
            torch.testing.assert_close([way(x), way(x)], results)
            torch.testing.assert_close([copied(x), copied(x)], results)
            if kind not in ("constant", "replaced buffer"):
                assert way.to(torch.float64)(x.double()).dtype is torch.float64


def test_a_constant_can_be_exchanged() -> None:
    module = lostwax.unflatten(lostwax.export(Named("graph", torch.ones(3, 3)), (torch.ones(3),)))
    assert module.bodies
    module = lostwax.unflatten(lostwax.export(Named("weights", torch.ones(3, 3)), (torch.ones(3),)))
    torch.testing.assert_close(module.weights, torch.ones(3, 3))
    module.weights = torch.zeros(3, 3)
    assert not module(torch.ones(3)).any()


def test_constants_without_a_name_keep_off_the_names_of_modules() -> None:
    module = Named("lifted_tensor_0", nn.Linear(3, 3))
    forward = module.forward
    module.forward = lambda x: forward(x) + torch.tensor([1.0, 2.0, 3.0])
    program = lostwax.export(module, (torch.ones(3),))
    assert set(program.constants) == {"lifted_tensor_1"}
    torch.testing.assert_close(lostwax.unflatten(program)(torch.ones(3)), module(torch.ones(3)))


class Takes(nn.Module):
    def forward(self, x, module, path, alone, hooks, args, kwargs):
        return x + module + path + alone + hooks + args + kwargs


class Calls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Takes()

    def forward(self, x, **kwargs):
        return self.inner(x, **kwargs)


def test_arguments_of_names_of_ours() -> None:
    names = ("module", "path", "alone", "hooks", "args", "kwargs")
    given = {name: torch.tensor(float(i)) for i, name in enumerate(names)}
    x = torch.ones(2)
    for module in (Takes(), Calls()):
        program = lostwax.export(module, (x,), given)
        for way in (program.module(), lostwax.unflatten(program), lostwax.capture(module)):
            torch.testing.assert_close(way(x, **given), module(x, **given))

    def function(self, x):
        return self + x

    captured = lostwax.capture(function)
    torch.testing.assert_close(captured(self=x, x=x), x + x)


def test_the_module_of_a_program_is_captured_with_names_of_ours() -> None:
    class Replacing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._constants = nn.ModuleDict({"_running": nn.BatchNorm1d(3)})
            self.register_buffer("h", torch.zeros(3))

        def forward(self, x):
            self.h = self.h + 1
            return self._constants["_running"](x) + self.h

    x = torch.randn(4, 3)
    eager = Replacing()
    again = lostwax.export(lostwax.export(Replacing(), (x,)).module(), (x,)).module()
    for _ in range(2):
        torch.testing.assert_close(again(x), eager(x))
