"""`lostwax.capture` notices whatever a capture would read: a module that has changed is captured
again, and `explain()` says why; what has not is not."""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax.capture.surroundings.world import Surroundings
from lostwax.errors import LostwaxError

X = torch.linspace(-1, 1, 6).view(2, 3)
SCALE = 2.0
TABLE = {"a": [1.0]}
HIDDEN = {"a": 1.0}
SHOWN = MappingProxyType(HIDDEN)
OF_CONTEXT = ContextVar("OF_CONTEXT", default=1.0)
SETTINGS = ModuleType("settings")
SETTINGS.factor = 3.0  # type: ignore[attr-defined]
SETTINGS.shift = 0.0  # type: ignore[attr-defined]


class Options:
    shared = 2.0

    def __init__(self) -> None:
        self.own = [1.0]

    def apply(self, x: Tensor) -> Tensor:
        return x * self.own[0] * self.shared + SETTINGS.shift


OPTIONS = Options()


def helper(x: Tensor) -> Tensor:
    x = x * SHOWN["a"] * OF_CONTEXT.get() * float(os.environ.get("LOSTWAX_TEST", "1"))
    return x * SCALE * TABLE["a"][0] * SETTINGS.factor * helper.own  # type: ignore[attr-defined]


helper.own = 1.0  # type: ignore[attr-defined]


class Negated(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return -super().forward(input)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.layers = nn.ModuleList([nn.Linear(3, 3)])
        self.dropout = nn.Dropout(0.5)
        self.unregistered = [nn.Linear(3, 3)]
        self.scale, self.kept = 2, {"k": [1.0]}
        self.constant, self.array = torch.ones(3), np.ones(1)
        self.activation, self.options = torch.tanh, OPTIONS
        self.record = SimpleNamespace(shift=0.0)
        self.bound = partial(torch.mul, other=2.0)
        self.numbers, self.local = bytearray(b"\x02"), threading.local()
        self.local.shift = 0.0

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x) * self.scale * self.kept["k"][0] + self.constant
        for layer in (*self.layers, *self.unregistered):
            y = layer(y)
        y = self.activation(self.dropout(y)) + self.record.shift + float(self.array[0])
        y = torch.relu(y) * self.numbers[0] + self.local.shift
        return self.options.apply(helper(y)) + self.bound(x)


def set_global(net: Net) -> None:
    global SCALE
    SCALE = 7.0


def write(tensor: Callable[[Net], Tensor]) -> Callable[[Net], Any]:
    def change(net: Net) -> None:
        with torch.no_grad():
            tensor(net).add_(1)

    return change


def put(get: Callable[[Net], Any], key: Any, value: Any) -> Callable[[Net], Any]:
    return lambda net: get(net).__setitem__(key, value)


def replace_by_a_buffer(net: Net) -> None:
    bias = net.linear.bias.detach() + 1
    del net.linear.bias
    net.linear.register_buffer("bias", bias)


CHANGES: list[tuple[Callable[[Net], Any], str]] = [
    (lambda net: setattr(net, "scale", 3), r"self\.scale was 2, is 3"),
    (put(lambda net: net.kept["k"], 0, 4.0), r"self\.kept\['k'\]\[0\] was 1\.0, is 4\.0"),
    (lambda net: setattr(net.record, "shift", 1.0), r"self\.record\.shift was 0\.0, is 1\.0"),
    (lambda net: net.layers.append(nn.Linear(3, 3)), "self.layers, a module, has other submodules"),
    (
        put(lambda net: net.layers, 0, nn.Identity()),
        "self.layers.0, a module, was a Linear, is a I",
    ),
    (lambda net: setattr(net.linear, "bias", None), "self.linear.bias was a Parameter, is None"),
    (replace_by_a_buffer, "self.linear.bias is one of the buffers now"),
    (
        lambda net: net.linear.register_forward_hook(lambda module, args, out: out * 2),
        r"self\.linear\._forward_hooks\[\d+\] is new, a function",
    ),
    (lambda net: setattr(net.dropout, "p", 0.1), r"self\.dropout\.p was 0\.5, is 0\.1"),
    (lambda net: net.train(), "training was False, is True"),
    (lambda net: net.requires_grad_(False), "requires gradients otherwise"),
    (lambda net: setattr(net, "activation", torch.relu), "self.activation is another object now"),
    (lambda net: setattr(net, "constant", torch.zeros(3)), "self.constant is another object now"),
    (write(lambda net: net.constant), "self.constant was written to"),
    (put(lambda net: net.array, 0, 9.0), "self.array was"),
    (
        put(lambda net: net.unregistered, 0, nn.Linear(3, 3)),
        r"self\.unregistered\[0\]\.\w+ is anot",
    ),
    (lambda net: setattr(net, "bound", partial(torch.mul, other=4.0)), r"self\.bound\.keywords"),
    (lambda net: setattr(net, "forward", lambda x: x * 9), "self.forward is new, a function"),
    (set_global, "SCALE, a global of test_world.py, was 2.0, is 7.0"),
    (put(lambda net: TABLE["a"], 0, 5.0), r"TABLE\['a'\]\[0\], a global of test_world\.py, was 1"),
    (put(lambda net: vars(SETTINGS), "factor", 4.0), "factor, a global of .* was 3.0, is 4.0"),
    (put(lambda net: vars(SETTINGS), "shift", 4.0), "shift, a global of .* was 0.0, is 4.0"),
    (put(lambda net: OPTIONS.own, 0, 2.0), r"\.own\[0\].* was 1\.0, is 2\.0"),
    (lambda net: setattr(Options, "shared", 3.0), r"Options\.shared was 2\.0, is 3\.0"),
    (lambda net: setattr(Options, "apply", lambda self, x: x), "Options.apply is another object"),
    (
        lambda net: setattr(net.linear, "__class__", Negated),
        "self.linear, a module, is of another class",
    ),
    (lambda net: setattr(helper, "own", 2.0), r"helper\.own was 1\.0, is 2\.0"),
    (put(lambda net: net.numbers, 0, 3), "self.numbers, its bytes, was"),
    (lambda net: setattr(net.local, "shift", 1.0), r"self\.local\.shift was 0\.0, is 1\.0"),
    (put(lambda net: HIDDEN, "a", 2.0), r"SHOWN\['a'\].* was 1\.0, is 2\.0"),
    (lambda net: OF_CONTEXT.set(2.0), r"OF_CONTEXT\.get\(\).* was 1\.0, is 2\.0"),
    (put(lambda net: os.environ, "LOSTWAX_TEST", "2"), r"os\.environ\._data\[.* is new"),
    (lambda net: setattr(torch, "relu", torch.neg), "torch.relu is another object now"),
    (
        lambda net: setattr(nn.Linear, "forward", lambda self, x: x * 2),
        "the forward of Linear is another object now",
    ),
]


@pytest.fixture
def _as_before() -> Any:
    global SCALE
    apply, relu, forward = Options.apply, torch.relu, nn.Linear.forward
    yield
    SETTINGS.shift = 0.0  # type: ignore[attr-defined]
    helper.own, HIDDEN["a"] = 1.0, 1.0  # type: ignore[attr-defined]
    OF_CONTEXT.set(1.0)
    os.environ.pop("LOSTWAX_TEST", None)
    torch.relu = relu
    nn.Linear.forward = forward  # type: ignore[method-assign]
    SCALE, TABLE["a"][0], SETTINGS.factor = 2.0, 1.0, 3.0  # type: ignore[attr-defined]
    OPTIONS.own[0], Options.shared = 1.0, 2.0
    Options.apply = apply  # type: ignore[method-assign]


@pytest.mark.usefixtures("_as_before")
@pytest.mark.parametrize(("change", "reason"), CHANGES)
def test_what_has_changed_is_captured_again(change: Callable[[Net], Any], reason: str) -> None:
    net = Net().eval()
    captured = lostwax.capture(net)
    for count in (1, 2):
        for _ in range(2):
            torch.manual_seed(0)
            got = captured(X)
            torch.manual_seed(0)
            want = net(X)
            torch.testing.assert_close(got, want)
            assert got.requires_grad is want.requires_grad
            assert len(captured.programs) == count
        if count == 1:
            change(net)
    assert re.search(reason, captured.variants[-1].why[0]), captured.variants[-1].why[0]


def test_what_is_equal_is_not_captured_again() -> None:
    net = Net().eval()
    captured = lostwax.capture(net)
    captured(X)
    net.scale, net.kept = int("2"), {"k": [float("1.0")]}
    net.linear.weight = nn.Parameter(torch.randn(3, 3))
    net.layers[0] = nn.Linear(3, 3).eval()
    net.options, net.record = OPTIONS, SimpleNamespace(shift=0.0)
    torch.testing.assert_close(captured(X), net(X))
    with torch.no_grad():
        net.linear.weight.mul_(2)
    torch.testing.assert_close(captured(X), net(X))
    assert len(captured.programs) == 1


def test_what_is_as_it_was_finds_its_program_again() -> None:
    net = Net().eval()
    captured = lostwax.capture(net)
    for scale in (2, 3, 2, 3, 2):
        net.scale = scale
        torch.testing.assert_close(captured(X), net(X))
    assert [variant.calls for variant in captured.variants] == [3, 2]


def test_functions_with_what_they_are_closed_over() -> None:
    def make() -> tuple[Any, Any, Any]:
        factor, kept = 3.0, {"a": [1.0]}

        def function(
            x: Tensor,
            shift: list[float] = [0.0],  # noqa: B006
            *,
            times: float = 1.0,
        ) -> Tensor:
            return x * factor * kept["a"][0] * times + shift[0]

        def change(value: float) -> None:
            nonlocal factor
            factor = value

        return function, change, kept

    function, change, kept = make()
    captured = lostwax.capture(function)
    for act in (
        lambda: None,
        lambda: change(5.0),
        lambda: kept["a"].__setitem__(0, 2.0),
        lambda: function.__defaults__[0].__setitem__(0, 1.0),
        lambda: function.__kwdefaults__.update(times=2.0),
    ):
        act()
        torch.testing.assert_close(captured(X), function(X))
    text = captured.explain()
    assert "factor, in the closure of test_functions" in text
    assert "function, was 3.0, is 5.0" in text
    assert len(captured.programs) == 5


NET = nn.Linear(3, 3)


def test_a_module_that_a_function_names() -> None:
    global NET

    def function(x: Tensor) -> Tensor:
        return NET(x)

    captured = lostwax.capture(function)
    torch.testing.assert_close(captured(X), function(X))
    NET = nn.Linear(3, 3)
    torch.testing.assert_close(captured(X), function(X))
    NET.bias = None  # type: ignore[assignment]
    torch.testing.assert_close(captured(X), function(X))
    assert len(captured.programs) == 3
    assert "the module NET is another object now" in captured.explain()


def test_layouts_and_identities_of_inputs() -> None:
    captured = lostwax.capture(lambda x: x * x.stride(0))
    for x in (X, X.t().contiguous().t(), X):
        torch.testing.assert_close(captured(x), x * x.stride(0))
    assert len(captured.programs) == 2
    assert "must have strides (3, 1), as at capture" in captured.explain()
    captured = lostwax.capture(lambda x, y: x * 2 if x is y else x * 3)
    for call in ((X, X), (X, X.clone()), (X, X)):
        torch.testing.assert_close(captured(*call), X * (2 if call[0] is call[1] else 3))
    assert len(captured.programs) == 2


class Laid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.arange(6.0).view(3, 2).t())
        self.other = torch.arange(6.0).view(2, 3)

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        numel = self.other.numel()
        asked = self.state.float().is_contiguous(), self.other.stride(), self.state.stride(0)
        return x * (2 if asked[0] else 3) + self.other.sum(), asked, numel


def test_layouts_of_state() -> None:
    net = Laid()
    captured = lostwax.capture(net)
    for state in (net.state, torch.ones(2, 3), torch.ones(3, 2).t(), torch.zeros(2, 3)):
        net.state = state
        torch.testing.assert_close(captured(X), net(X))
    assert len(captured.programs) == 2
    assert "the module's own state: stride() is (3, 1) here" in captured.explain()


def test_state_that_is_no_longer_one_tensor() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("first", torch.zeros(3))
            self.register_buffer("second", self.first)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.second

    net = Tied()
    captured = lostwax.capture(net)
    captured(X)
    net.first = torch.ones(3)
    torch.testing.assert_close(captured(X), net(X))
    assert "self.second was one tensor with self.first, is one with self.second" in (
        captured.explain()
    )
    net.second = net.first
    torch.testing.assert_close(captured(X), net(X))
    assert len(captured.programs) == 2


def test_state_that_shares_memory_since() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("first", torch.ones(3))
            self.register_buffer("second", torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            self.first.mul_(2)
            return x + self.second

    net = Two()
    captured = lostwax.capture(net)
    torch.testing.assert_close(captured(X), X + 1)
    net.second.data = net.first.data
    with pytest.raises(LostwaxError, match="first is written to, and shares memory"):
        captured(X)


def test_what_is_another_in_each_thread() -> None:
    local = threading.local()
    local.scale = 2.0
    captured = lostwax.capture(lambda x: x * local.scale)
    torch.testing.assert_close(captured(X), X * 2)
    results: list[Tensor] = []

    def other() -> None:
        local.scale = 3.0
        results.append(captured(X))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    torch.testing.assert_close(results, [X * 3])
    torch.testing.assert_close(captured(X), X * 2)


def test_tensors_that_get_other_memory() -> None:
    net = Laid()
    captured = lostwax.capture(net)
    for other in (net.other, torch.ones(2, 3), torch.ones(3, 2).t(), torch.ones(2, 4)):
        net.other.data = other
        torch.testing.assert_close(captured(X), net(X))
    assert "self.other was written to, or has another type or memory now" in captured.explain()


def test_inputs_that_require_gradients() -> None:
    captured = lostwax.capture(lambda x: x.detach() * x * (2 if x.requires_grad else 3))
    captured(X)
    x = X.clone().requires_grad_()
    captured(x).sum().backward()
    torch.testing.assert_close(x.grad, X * 2)
    assert len(captured.programs) == 2


def test_state_that_a_program_puts_in_place_is_no_change() -> None:
    class Filter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("h", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.h = self.h * 0.5 + x.sum(0)
            return self.h

    ours, eager = Filter(), Filter()
    captured = lostwax.capture(ours)
    got, want = [captured(X) for _ in range(3)], [eager(X) for _ in range(3)]
    torch.testing.assert_close(got, want)
    assert len(captured.programs) == 1


def test_a_world_is_the_same_without_a_change() -> None:
    net = Net()
    world = Surroundings(net)
    assert world.is_unchanged()
    assert Surroundings(net).difference(world) == ""
    del net.kept["k"]
    assert not world.is_unchanged()
    assert "self.kept['k'] is gone" in Surroundings(net).difference(world)


class Reads(nn.Module):
    """What is made of a thing that it holds."""

    def __init__(self, held: Any, read: Callable[[Any], float]) -> None:
        super().__init__()
        self.held, self.read = held, read

    def forward(self, x: Tensor) -> Tensor:
        return x * self.read(self.held)


class Kind(type):
    factor = 2.0


def other_code(function: Any) -> None:
    function.__code__ = (lambda: 3.0).__code__


def again(table: dict[str, float]) -> None:
    table["a"] = table.pop("a")


READ: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "the order of a dictionary": (
        lambda: {"a": 1.0, "b": 2.0}, lambda held: next(iter(held.values())), again,
    ),
    "the order of an OrderedDict": (
        lambda: OrderedDict(a=1.0, b=2.0),
        lambda held: next(iter(held.values())),
        lambda held: held.move_to_end("a"),
    ),
    "the order of objects": (
        lambda: {Options: 1.0, Net: 2.0},
        lambda held: next(iter(held.values())),
        lambda held: held.__setitem__(Options, held.pop(Options)),
    ),
    "an attribute of a metaclass": (
        lambda: Kind("Made", (), {}),
        lambda held: held.factor,
        lambda held: setattr(Kind, "factor", Kind.factor + 1),
    ),
    "the code of a function": (lambda: lambda: 2.0, lambda held: held(), other_code),
    "data that is written past the count": (
        lambda: torch.tensor([1, 2]),
        lambda held: sum(held.tolist()),
        lambda held: held.data.add_(1),
    ),
    "data that numpy writes": (
        lambda: torch.tensor([1.0, 2.0]),
        lambda held: float(held.numpy()[0]),
        lambda held: held.numpy().__setitem__(0, 5.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_a_change_is_noticed_of(name: str) -> None:
    make, read, change = READ[name]
    net = Reads(make(), read)
    captured = lostwax.capture(net)
    before = net(X)
    torch.testing.assert_close(captured(X), before)
    change(net.held)
    assert not torch.equal(net(X), before)
    for _ in range(2):
        torch.testing.assert_close(captured(X), net(X))
    assert [each.calls for each in captured.variants] == [1, 2]


def test_the_order_of_parameters() -> None:
    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            return x * next(iter(self.parameters()))

    net = First()
    captured = lostwax.capture(net)
    torch.testing.assert_close(captured(X), X)
    first = net.a
    del net.a
    net.a = first
    torch.testing.assert_close(captured(X), X * 0)
    assert "self._parameters, its keys, are in another order" in captured.explain()


def test_large_tensors_whose_data_may_be_read_are_not_captured() -> None:
    captured = lostwax.capture(Reads(torch.ones(300_000), lambda held: held.tolist()[7]))
    with pytest.warns(UserWarning, match=r"self\.held is a large tensor, and its data may be read"):
        torch.testing.assert_close(captured(X), X)
    captured.wrapped.held.data[7] = 5.0
    torch.testing.assert_close(captured(X), X * 5)
