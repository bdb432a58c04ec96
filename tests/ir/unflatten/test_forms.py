"""A module that computes other things in other calls: `n`, `n@1`, beside torch.export's."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.export
from torch import Tensor, nn

import lostwax

X = torch.randn(2, 3)


class Part(nn.Module):
    """Has a parameter, a buffer that it writes and a submodule; a constant says what it does."""

    def __init__(self, writes: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))
        self.register_buffer("calls", torch.zeros(()))
        self.lin = nn.Linear(3, 3)
        self.writes = writes

    def forward(self, x: Tensor, add: float) -> Tensor:
        if self.writes:
            self.calls.add_(add)
        return self.lin(x + add) * self.weight + self.calls


class Calls(nn.Module):
    def __init__(self, constants: tuple[float, ...], writes: bool = False) -> None:
        super().__init__()
        self.n = Part(writes)
        self.constants = constants

    def forward(self, x: Tensor) -> Tensor:
        for each in self.constants:
            x = self.n(x, each)
        return x


class Around(nn.Module):
    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.ModuleList(inner)

    def forward(self, x: Tensor) -> Tensor:
        for each in self.inner:
            x = each(x)
        return x


def unflatten(side: Any, module: nn.Module, **options: Any) -> Any:
    return side.unflatten(side.export(deepcopy(module), (X,), **options))


def called(module: Any) -> list[str]:
    return [str(n.target) for n in module.graph.nodes if n.op == "call_module"]


def paths(module: nn.Module) -> list[str]:
    return sorted(path for path, _ in module.named_modules(remove_duplicate=False))


CONSTANTS = [(1, 2), (1, 1, 2), (1, 2, 1, 2), (1, 2, 2, 1), (1, 1), (1, 2, 3)]


@pytest.mark.parametrize("constants", CONSTANTS)
def test_forms_have_the_names_that_torch_gives_them(constants: tuple[float, ...]) -> None:
    module = Calls(constants)
    ours, theirs = (unflatten(side, module) for side in (lostwax, torch.export))
    assert called(ours) == called(theirs)
    assert paths(ours) == paths(theirs)
    torch.testing.assert_close(ours(X), module(X))


def test_forms_inside_of_modules() -> None:
    module = Around(Calls((1, 2)), nn.Tanh(), Calls((1, 1)))
    ours, theirs = (unflatten(side, module) for side in (lostwax, torch.export))
    assert paths(ours) == paths(theirs)
    torch.testing.assert_close(ours(X), module(X))
    block = ours.inner[0]
    torch.testing.assert_close(block(X), module.inner[0](X))
    assert block.n.type_name() == getattr(block, "n@1").type_name() != None  # noqa: E711


@pytest.mark.parametrize("constants", [(1, 2), (1, 2, 1, 2), (1, 1)])
def test_forms_share_their_state(constants: tuple[float, ...]) -> None:
    module = Calls(constants, writes=True)
    made = unflatten(lostwax, module)
    for form in (made, deepcopy(made), deepcopy(made).to(torch.float64)):
        eager = deepcopy(module).to(form.n.weight.dtype)
        x = X.to(form.n.weight.dtype)
        for _ in range(3):
            torch.testing.assert_close(form(x), eager(x))
        assert form.n.calls == eager.n.calls
        other = getattr(form, "n@1", form.n)
        assert (other is form.n) == (len(set(constants)) == 1)
        assert other.weight is form.n.weight
        assert other.calls is form.n.calls
        assert other.lin is form.n.lin
        assert len(list(form.parameters())) == 3


def test_a_state_dict_is_the_original_s() -> None:
    module, other = Calls((1, 2)), Calls((1, 2))
    made = unflatten(lostwax, module)
    assert list(made.state_dict()) == list(module.state_dict())
    for assign in (False, True):
        copy = deepcopy(made)
        copy.load_state_dict(deepcopy(other.state_dict()), assign=assign)
        torch.testing.assert_close(copy(X), other(X))
        assert getattr(copy, "n@1").weight is copy.n.weight
    with pytest.raises(RuntimeError, match=r"Missing key\(s\) in state_dict: \"n.weight\"\. $"):
        made.load_state_dict({k: v for k, v in other.state_dict().items() if k != "n.weight"})
    made.n = nn.Identity()  # then the other form alone has it
    named = [name.replace("n", "n@1", 1) for name in module.state_dict()]
    assert list(made.state_dict()) == named
    made.load_state_dict(made.state_dict())


class Same(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 3


@pytest.mark.parametrize("side", [lostwax, torch.export])
def test_forms_are_exchanged(side: Any) -> None:
    module = Calls((1, 2, 1, 2))
    made = unflatten(side, module)
    part, triple = module.n, Same()
    made.n = triple
    x = X
    for add in (1, 2, 1, 2):
        x = triple(x) if add == 1 else part(x, add)
    torch.testing.assert_close(made(X), x)
    made.set_submodule("n@1", triple)
    torch.testing.assert_close(made(X), X * 81)
    made = unflatten(side, module)
    made.n, other = getattr(made, "n@1"), made.n
    setattr(made, "n@1", other)
    module.constants = (2, 1, 2, 1)
    torch.testing.assert_close(made(X), module(X))


@pytest.mark.parametrize("side", [lostwax, torch.export])
def test_a_kept_signature_makes_it_one_module(side: Any) -> None:
    module = Calls((1, 2, 1))
    made = unflatten(side, module, preserve_module_call_signature=("n",))
    assert not hasattr(made, "n@1")
    module.n = made.n = Part()
    torch.testing.assert_close(made(X), module(X))


def test_hooks_are_of_one_form() -> None:
    made = unflatten(lostwax, Calls((1, 2, 1)))
    seen: list[str] = []
    made.n.register_forward_hook(lambda *_: seen.append("n"))
    getattr(made, "n@1").register_forward_hook(lambda *_: seen.append("n@1"))
    made(X)
    assert seen == ["n", "n@1", "n"]


def test_forms_are_exported_again() -> None:
    module = Calls((1, 2), writes=True)
    again = lostwax.export(unflatten(lostwax, module), (X,)).module()
    for _ in range(2):
        torch.testing.assert_close(again(X), module(X))
