"""What a program has of its module (parameters, buffers, constants); what no module may keep."""

from __future__ import annotations

import copy
import re
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from lostwax.capture import export
from lostwax.errors import CaptureError
from lostwax.fake import FakeTensorMode
from tests.capture.small import Of, X, inputs, same, targets


def test_tied_parameters_are_one_input() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x))

    module = Tied()
    program = same(module, X)
    assert inputs(program) == ["p_a_weight", "x"]
    assert program.state_dict["a.weight"] is program.state_dict["b.weight"]
    ours = program.module()
    assert set(ours.state_dict()) == set(module.state_dict())


def test_state_is_in_the_order_of_the_original() -> None:
    """Also where modules have buffers only, and where tensors go by two names."""
    first = nn.Linear(4, 4)
    net = nn.Sequential(first, nn.BatchNorm1d(4, affine=False), nn.Linear(4, 4), first)
    program = export(net.eval(), (X,))
    assert list(program.state_dict) == list(net.state_dict())
    assert list(program.module().state_dict()) == list(net.state_dict())


def test_tied_parameters_can_be_moved_to_meta() -> None:
    first = nn.Linear(4, 4)
    module = export(nn.Sequential(first, first), (X,)).module().to("meta")
    assert module(X.to("meta")).is_meta


@pytest.mark.parametrize("training", [False, True])
def test_the_mode_at_capture_stays(training: bool) -> None:
    """As a mark on the module, and in what it computes; who asks for the other one is told."""
    program = export(nn.Sequential(nn.BatchNorm1d(4)).train(training), (X,))
    for module in (program.module(), copy.deepcopy(program.run_decompositions().module())):
        assert [m.training for m in module.modules()] == [training] * 2
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            module.train(training)
        way = r"eval\(\) does not.*in training mode" if training else r"train\(\) .*evaluation mode"
        with pytest.warns(UserWarning, match=way) as told:
            module.eval() if training else module.train()
        assert told[0].filename == __file__
        assert module.training is not training
    module = export(lambda x: x + 1, (X,)).module()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module.eval().train()


def test_shared_submodules_lists_hooks_and_parametrizations() -> None:
    layer = nn.Linear(4, 4)
    same(nn.Sequential(layer, nn.ReLU(), layer), X)
    same(Of(lambda self, x: x @ self.held[0], held=[nn.Parameter(torch.randn(4, 4))]), X)
    hooked = nn.Linear(4, 4)
    hooked.register_forward_hook(lambda module, args, out: out * 2)
    hooked.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    program = export(hooked, (X,))
    torch.testing.assert_close(program.module()(X), hooked(X))
    normed = torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    program = export(normed, (X,))
    torch.testing.assert_close(program.module()(X), normed(X))


def test_hooks_that_forward_sets_and_calls_of_ones_own() -> None:
    class Twice(nn.Linear):
        def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
            return self.forward(*args, **kwargs) * 2

    class Hooking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.twice = nn.Linear(4, 4), Twice(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.twice(self.layer(x))
            handle = self.layer.register_forward_hook(lambda module, args, out: out * 3)
            x = self.layer(x)
            handle.remove()
            return self.layer(x)

    module = Hooking()
    torch.testing.assert_close(export(module, (X,)).module()(X), module(X))
    globally = nn.modules.module.register_module_forward_hook(lambda module, args, out: out + 1)
    try:
        hooked = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        expected, program = hooked(X), export(hooked, (X,))
    finally:
        globally.remove()
    torch.testing.assert_close(program.module()(X), expected)


def test_constants_and_buffers_are_named() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain = torch.ones(4)
            self.register_buffer("kept", torch.ones(4))
            self.register_buffer("passing", torch.ones(4), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.plain + self.kept - self.passing + torch.tensor([1.0, 2, 3, 4])

    program = same(Net(), X)
    assert inputs(program) == ["b_kept", "b_passing", "c_plain", "c_lifted_tensor_0", "x"]
    assert list(program.state_dict) == ["kept"]
    assert set(program.constants) == {"passing", "plain", "lifted_tensor_0"}


def test_a_module_on_meta_and_fakes_as_inputs() -> None:
    with torch.device("meta"):
        module = nn.Linear(4, 2)
    mode = FakeTensorMode()
    fake = mode.from_tensor(X)
    program = export(nn.Linear(4, 2), (fake,))
    assert targets(program) == ["aten.t", "aten.addmm"]
    program = export(module, (torch.empty(3, 4, device="meta"),))
    assert program.state_dict["weight"].is_meta


def _new_attribute(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.cache = x * 2 + getattr(self, "cache", 0)
    return x


def _known_attribute(self: Any, x: torch.Tensor) -> torch.Tensor:
    if self.none is None:
        self.none = x * 2
    return x


def _in_a_list(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.seen.append(x.sum())
    return x


def _deep_in_a_list(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.deep[0]["k"].append(x + 1)
    return x


def _in_a_dict(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.caches["k"] = x + self.caches.get("k", 1)
    return x


def _new_buffer(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.register_buffer("made", x * 2)
    return x


def _buffer_that_was_none(self: Any, x: torch.Tensor) -> torch.Tensor:
    if self.empty is None:
        self.empty = x * 2
    return x


@pytest.mark.parametrize(
    ("forward", "name"),
    [
        (_new_attribute, "cache"),
        (_new_buffer, "made"),
        (_buffer_that_was_none, "empty"),
        (_known_attribute, "none"),
        (_in_a_list, "seen"),
        (_deep_in_a_list, "deep"),
        (_in_a_dict, "caches"),
    ],
)
def test_a_tensor_kept_in_a_plain_attribute_is_refused(forward: Any, name: str) -> None:
    module = Of(forward, none=None, seen=[], caches={}, deep=[{"k": []}])
    module.register_buffer("empty", None)
    with pytest.raises(CaptureError, match=f"keeps a tensor in the attribute {name}") as error:
        export(module, (X,))
    assert f'self.register_buffer("{name}", ...)' in str(error.value)
    assert re.search(r"at .*test_module_state.py:\d+ in _", str(error.value))
    assert (module.none, module.seen, module.caches) == (None, [], {})
    assert module.deep == [{"k": []}]


def test_what_is_taken_away_again_may_be_kept_meanwhile() -> None:
    class Noting(nn.Module):
        def __init__(self, is_polite: bool) -> None:
            super().__init__()
            self.linear, self.is_polite = nn.Linear(4, 4), is_polite
            self.seen: dict[str, Any] = {}
            self.loss: Any = None
            self.linear.register_forward_hook(self.note)

        def note(self, module: nn.Module, args: Any, out: Any) -> None:
            self.seen["out"] = out

        def forward(self, x: torch.Tensor) -> Any:
            self.loss = self.linear(x).pow(2).mean()
            out = self.seen["out"] * 2 + self.loss
            if self.is_polite:
                del self.seen["out"]
                self.loss = None
            return out

    with pytest.warns(UserWarning, match=r"keeps a tensor in the attribute (seen|loss)"):
        export(Noting(False), (X,))
    same(Noting(True), X)


class Box:
    """An object that is no module."""

    def __init__(self) -> None:
        self.total: Any = torch.zeros(4)
        self.calls = 0


def test_a_tensor_kept_in_a_plain_object_is_refused() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.box = Box()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.box.total = self.box.total + x.sum(0)
            return x + self.box.total

    module = Net()
    before = module.box.total
    with pytest.raises(CaptureError, match=r"keeps a tensor in the attribute box\.total\.\n  at "):
        export(module, (X,))
    assert module.box.total is before


def test_a_number_in_a_plain_object_is_told_of_and_put_back() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.box = Box()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.box.calls += 1
            return x * self.box.calls

    module = Net()
    with pytest.warns(UserWarning, match=r"its attribute box\.calls, which was 0, to 1"):
        export(module, (X,))
    assert module.box.calls == 0


def test_an_attribute_that_is_made_anew_in_each_run() -> None:
    """As `weight_norm` did before parametrizations."""
    module = nn.utils.spectral_norm(nn.Linear(4, 4)).eval()
    program = export(module, (X,))
    torch.testing.assert_close(program.module()(X), module(X))

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.mean = self.mean * 0.9 + x.mean(0)
        return x - self.mean

    with pytest.raises(CaptureError, match="keeps a tensor in the attribute mean"):
        export(Of(forward, mean=torch.zeros(4)), (X,))


def test_gradients_left_behind_are_refused() -> None:
    def backward(self: Any, x: torch.Tensor) -> torch.Tensor:
        loss = (self.weight * x).sum()
        loss.backward()
        return loss + self.weight.grad.sum()

    module = Of(backward, weight=nn.Parameter(torch.ones(4)))
    with pytest.raises(
        CaptureError, match=r"parameter weight is given a gradient[\s\S]*autograd.grad"
    ):
        export(module, (X,))
    assert module.weight.grad is None

    def on_a_copy(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        (x**2).sum().backward()
        return x.grad

    same(Of(on_a_copy), X)


def test_a_number_that_the_module_counts_is_told_of() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls

    module = Of(forward, calls=1)
    with pytest.warns(UserWarning, match="sets its attribute calls, which was 1, to 2"):
        export(module, (X,))
    assert module.calls == 1
