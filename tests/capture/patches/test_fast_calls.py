"""Known calls that go to the tracer directly: only where nothing of the user's comes before it."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lostwax import Dim, FakeTensorMode, export
from lostwax.cache import empty_caches
from lostwax.capture.patches import fast_calls
from lostwax.capture.trace import single_step_composites
from lostwax.capture.trace.record import record_known_view
from lostwax.errors import CaptureError, MixedModeError
from tests.capture.small import Of, same

X = torch.randn(2, 3, 6, 6)
FUNCTIONS: ContextVar[Any] = ContextVar("FUNCTIONS")
HELD = Context()  # an export does not look into it
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

    original = single_step_composites.record_direct
    monkeypatch.setattr(single_step_composites, "record_direct", noted)
    return found


def test_known_calls_are_recorded_directly(direct: list[Any]) -> None:
    program = same(Layers(), X)
    assert direct == [torch.ops.aten.conv2d.default] * 3
    nodes = [n for n in program.graph.nodes if n.op == "call_function"]
    assert [n.name for n in nodes] == ["convolution", "convolution_1", "convolution_2"]
    for i, node in enumerate(nodes):
        assert list(node.meta["nn_module_stack"]) == ["", f"layers.{i}"]
        assert "layer(x)" in node.meta["stack_trace"] or "layers[2](x)" in node.meta["stack_trace"]


def test_a_first_call_is_remembered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By whoever was called, not by the operator that C++ makes of the call, too."""
    found: list[Any] = []

    def noted(tracer: Any, asked: Any, *rest: Any) -> Any:
        found.append(asked[0])
        return original(tracer, asked, *rest)

    original = single_step_composites._call_and_remember
    monkeypatch.setattr(single_step_composites, "_call_and_remember", noted)
    empty_caches()
    export(Layers(), (X,))
    assert len(found) == 1


def test_functions_are_put_back() -> None:
    before = [getattr(where, name) for where, name, _ in fast_calls.NAME_SWAPS]
    export(Layers(), (X,))
    with pytest.raises(CaptureError):
        export(lambda x: nn.functional.conv2d(x, X).resize_(1), (X,))
    assert [getattr(where, name) for where, name, _ in fast_calls.NAME_SWAPS] == before


def test_a_function_that_forward_puts_back_is_the_one_that_was_there() -> None:
    def forward(x: Tensor) -> Tensor:
        held, torch.tensor = torch.tensor, lambda value: held(value) * 3
        try:
            return x * torch.tensor(2.0)
        finally:
            torch.tensor = held

    before = torch.tensor
    torch.testing.assert_close(export(forward, (X,)).module()(X), X * 6)
    assert vars(torch)["tensor"] is before


def test_a_function_of_the_users_in_its_place_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    convolve = nn.functional.conv2d
    monkeypatch.setattr(nn.functional, "conv2d", lambda *args: convolve(*args) * 2)
    model = nn.Sequential(*[nn.Conv2d(3, 3, 1) for _ in range(3)])
    torch.testing.assert_close(export(model, (X,)).module()(X), model(X))


def test_a_function_that_is_held_works_after_the_capture() -> None:
    def forward(x: Tensor) -> Tensor:
        HELD.run(FUNCTIONS.set, (nn.functional.conv2d, math.sqrt))
        return x

    export(forward, (X,))
    conv, root = HELD[FUNCTIONS]
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


# -------------------------------------------------------------------------------------------- views


@pytest.fixture
def views(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each view that may be recorded directly, whether it was."""
    found: list[bool] = []

    def noted(*args: Any) -> Any:
        out = record_known_view(*args)
        found.append(out is not None)
        return out

    file = record_known_view.__code__.co_filename  # it is not among the user's frames
    noted.__code__ = noted.__code__.replace(co_filename=file)
    monkeypatch.setattr("lostwax.capture.trace.tracer.record_known_view", noted)
    return found


def twice(x: Tensor) -> Tensor:
    a = x.view(x.size(0), -1, 6)
    return a.view(X.shape[1:].numel() // 36 * 18, -1).view([x.size(0), 108]) * a.view(-1, 108)


def test_known_views_are_recorded_directly(views: list[bool]) -> None:
    spec = ({0: Dim("batch", min=1)},)
    texts = set()
    for dynamic in (None, spec):
        for _ in range(2):
            views.clear()
            program = export(Of(lambda self, x: twice(x)), (X,), dynamic_shapes=dynamic)
            nodes = [n for n in program.graph.nodes if n.op == "call_function"]
            texts.add((dynamic is None, str(program.graph), nodes[1].meta["stack_trace"]))
            torch.testing.assert_close(program.module()(X), twice(X))
        assert views == [dynamic is None, True, True, True]  # an input is new to the rules
    assert len(texts) == 2
    assert all("twice" in trace for _, _, trace in texts)


class Listening(TorchFunctionMode):
    heard = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Listening.heard += getattr(func, "__name__", "") == "view"
        return func(*args, **(kwargs or {}))


def test_what_stands_around_sees_views(views: list[bool]) -> None:
    def forward(x: Tensor) -> Tensor:
        with Listening():
            return x.view(-1)

    for _ in range(2):
        with pytest.warns(UserWarning, match=r"sets Listening.heard, .* from 0 to 1"):
            export(forward, (X,))
    assert not views


def test_other_forms_of_a_view() -> None:
    def forward(x: Tensor) -> tuple[Tensor, ...]:
        y = x.clone()
        shown = y.view(-1)
        shown.mul_(2)
        return x.view(torch.int32), y.view(size=(6, 36)), y.view((6, 36)), y.view(torch.Size([216]))

    for _ in range(2):
        torch.testing.assert_close(export(forward, (X,)).module()(X), forward(X))


@pytest.mark.parametrize("size", [(5, -1), (-1, -1), ("a",), (None,), (1.5,), ()])
def test_a_view_that_is_wrong_is_refused_as_ever(size: Any) -> None:
    with pytest.raises((RuntimeError, TypeError)) as eager:
        X.view(*size)
    with pytest.raises(type(eager.value)) as ours:
        export(lambda x: x.view(*size), (X,))
    assert str(ours.value)[:40] == str(eager.value)[:40]


def test_a_fake_of_another_capture_is_not_viewed_by_its_own() -> None:
    def forward(x: Tensor) -> Tensor:
        x.view(-1)
        try:  # not `pytest.raises`: what a capture runs is looked at, here all of pytest
            export(lambda y: y + x.view(-1).sum(), (X,))
        except MixedModeError as error:
            if "another" in str(error):
                return x.view(-1)
        raise AssertionError("it was viewed")

    for _ in range(2):
        export(forward, (X,))
