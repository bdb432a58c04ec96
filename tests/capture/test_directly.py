"""Known calls that go to the tracer directly: only where nothing of the user's comes before it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lostwax import FakeTensorMode, export
from lostwax.capture import directly, one_for_one
from lostwax.errors import CaptureError
from tests.capture.small import same

X = torch.randn(2, 3, 6, 6)
HELD: list[Any] = []
"""Left by a capture; a list of its own would be put back."""


class Layers(nn.Module):
    """Three alike: the first is taken apart, what follows is known. `around` is what stands around
    the last."""

    def __init__(self, around: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(3, 3, 1) for _ in range(3)])
        self.around = around

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:2]:
            x = layer(x)
        if self.around is None:
            return self.layers[2](x)
        with self.around():
            return self.layers[2](x)


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls that were recorded directly."""
    found: list[Any] = []

    def noted(tracer: Any, record: Any, args: Any, function: Any) -> Any:
        found.append(record.overload)
        return original(tracer, record, args, function)

    original = one_for_one.direct
    monkeypatch.setattr(one_for_one, "direct", noted)
    return found


def test_known_calls_are_recorded_directly(direct: list[Any]) -> None:
    program = same(Layers(), X)
    assert direct == [torch.ops.aten.conv2d.default] * 3
    nodes = [n for n in program.graph.nodes if n.op == "call_function"]
    assert [n.name for n in nodes] == ["convolution", "convolution_1", "convolution_2"]
    for i, node in enumerate(nodes):
        assert list(node.meta["nn_module_stack"]) == ["", f"layers.{i}"]
        assert "layer(x)" in node.meta["stack_trace"] or "layers[2](x)" in node.meta["stack_trace"]


def test_functions_are_put_back() -> None:
    before = [getattr(where, name) for where, name, _ in directly.EXCHANGES]
    export(Layers(), (X,))
    with pytest.raises(CaptureError):
        export(lambda x: nn.functional.conv2d(x, X).resize_(1), (X,))
    assert [getattr(where, name) for where, name, _ in directly.EXCHANGES] == before


def test_a_function_that_is_held_works_after_the_capture() -> None:
    def forward(x: Tensor) -> Tensor:
        HELD[:] = nn.functional.conv2d, math.sqrt
        return x

    export(forward, (X,))
    conv, root = HELD
    weight = torch.randn(3, 3, 1, 1)
    torch.testing.assert_close(conv(X, weight), nn.functional.conv2d(X, weight))
    with FakeTensorMode() as mode:
        assert conv(mode.from_tensor(X), mode.from_tensor(weight)).shape == X.shape
    assert root(4.0) == 2


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out * 2 if getattr(func, "__name__", "") == "conv2d" else out


class Tripling(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out * 3 if "conv" in str(func) else out


@pytest.mark.parametrize("around", [Doubling, Tripling, lambda: torch.autocast("cpu")])
def test_what_stands_around_comes_first(around: Callable[[], Any], direct: list[Any]) -> None:
    program = same(Layers(around), X)
    assert len(direct) == 2
    assert sum(n.op == "call_function" for n in program.graph.nodes) > 3


def test_gradients_are_switched_off_as_the_program_says() -> None:
    model, x = Layers(torch.no_grad), X.clone().requires_grad_()
    ours = export(model, (x,)).module()
    assert not ours(x).requires_grad
    assert not model(x).requires_grad


def test_transforms_see_their_calls() -> None:
    class Mapped(Layers):
        def forward(self, x: Tensor) -> Tensor:
            y = self.layers[0](self.layers[1](x))
            each = torch.vmap(lambda one: self.layers[2](one))(torch.stack([x, y]))
            slope = torch.func.grad(lambda z: self.layers[2](z).sin().sum())(x)
            return each.sum(0) + slope

    same(Mapped(), X)


def test_other_forms_of_a_call() -> None:
    weight, bias = torch.randn(3, 3, 3, 3), torch.randn(3)

    def forward(x: Tensor) -> Tensor:
        conv = nn.functional.conv2d
        for _ in range(2):
            x = conv(x, weight, bias, 1, 1)
            x = conv(x, weight, bias=bias, padding=1)
            x = conv(x, weight, bias, (1, 1), "same", 1, 1)
            x = conv(input=x, weight=weight, stride=1, padding=1)
            x = torch.layer_norm(x, (6, 6)) + torch.layer_norm(x, [6])
        return torch.group_norm(x, 3)

    torch.testing.assert_close(export(forward, (X,)).module()(X), forward(X))


def test_a_call_that_is_wrong_is_refused_as_ever() -> None:
    def forward(x: Tensor, right: Tensor, wrong: Tensor) -> Tensor:
        conv = nn.functional.conv2d
        return conv(conv(conv(x, right), right), wrong)

    args = (X, torch.randn(3, 3, 1, 1), torch.randn(3, 4, 1, 1))
    with pytest.raises(RuntimeError, match="to have 4 channels, but got 3 channels instead"):
        forward(*args)
    with pytest.raises(RuntimeError, match="to have 4 channels, but got 3 channels instead"):
        export(forward, args)
