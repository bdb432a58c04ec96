"""Programs that differentiate inside their forward: results, and the gradients of those."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from lostwax.capture import export
from lostwax.capture.trace.tracer import Tracer
from lostwax.errors import CaptureError
from tests.capture.trace.test_gradients import (
    Clamped,
    InPlace,
    Product,
    Reversed,
    Rounded,
    Scaled,
    Sorted,
    With,
    same,
    targets,
)

Forward = Callable[[Tensor, Tensor], Any]


def inner(forward: Forward, create_graph: bool = True) -> Forward:
    """What the gradient of a forward is used for."""

    def outer(w: Tensor, x: Tensor) -> Any:
        y = forward(w, x)
        (g,) = torch.autograd.grad((y**2).sum(), w, create_graph=create_graph)
        return (g * x, y) if create_graph else g * x * w

    return outer


class Straight(torch.autograd.Function):
    """Saves its argument and its result; in the form that `torch.func` takes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, rounded = ctx.saved_tensors
        return grad * x * rounded * 3


def _in_place(w: Tensor, x: Tensor) -> Tensor:
    y = x * w
    return InPlace.apply(y) * y


def _sorted(w: Tensor, x: Tensor) -> Tensor:
    values, _, total, number = Sorted.apply(w * x)
    return values * total * number


FUNCTIONS: dict[str, Forward] = {
    "reversal": lambda w, x: Reversed.apply(w * x, 0.3) * x * w,
    "straight through": lambda w, x: Rounded.apply(w * x * 5) * w,
    "a mask": lambda w, x: Clamped.apply(w * x, -0.5, 0.5) * w,
    "the new form": lambda w, x: Product.apply(w, x),
    "a saved result": lambda w, x: Straight.apply(w * x * 3),
    "several outputs": _sorted,
    "in place": _in_place,
    "a closure": lambda w, x: Scaled.of(w * 2)(x * w),
    "one in another": lambda w, x: Rounded.apply(Reversed.apply(Rounded.apply(w * 3) * w, 2.0)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_keep_their_backward(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = same(inner(FUNCTIONS[name]), 3, 4)
        same(inner(FUNCTIONS[name], create_graph=False), 3, 4)
    assert "with_gradient" in targets(program)


def _hooked(w: Tensor, x: Tensor) -> Tensor:
    y = (w * x).exp()
    y.register_hook(lambda grad: grad * 2)
    return y * w


def _packed(w: Tensor, x: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
        return (w * x).exp()


SAVED: dict[str, Forward] = {
    "a result": lambda w, x: (w * x).exp(),
    "results of results": lambda w, x: torch.softmax(torch.sigmoid(w * x) * w, -1).sqrt(),
    "a result in place": lambda w, x: (w * x).tanh_().mul(w).sigmoid_(),
    "hooks": _hooked,
    "packed": _packed,
    "a checkpoint": lambda w, x: checkpoint(
        lambda a, b: (a * b).exp().tanh(), w, x, use_reentrant=False
    ),
    "a checkpoint that draws": lambda w, x: checkpoint(
        lambda a, b: torch.dropout((a * b).exp(), 0.5, True), w, x, use_reentrant=False
    ),
    "a leaf of its own": lambda w, x: w.detach().requires_grad_().exp() * w.exp(),
}


@pytest.mark.parametrize("name", SAVED)
def test_what_autograd_saves_keeps_its_gradient(name: str) -> None:
    same(inner(SAVED[name]), 3, 4)


def test_a_checkpoint_is_not_computed_again() -> None:
    program = same(inner(SAVED["a checkpoint that draws"]), 3, 4)
    assert sum("bernoulli" in target for target in targets(program)) == 1


_func = torch.func
TRANSFORMS: dict[str, Forward] = {
    "grad": lambda w, x: _func.grad(lambda v: Straight.apply(v * x * 3).sum())(w),
    "grad of grad": lambda w, x: _func.grad(
        lambda u: _func.grad(lambda v: Straight.apply(v * v * x).sum())(u).sum()
    )(w),
    "vmap": lambda w, x: _func.vmap(lambda a, b: Straight.apply(a * b * 3))(w, x),
    "vjp": lambda w, x: _func.vjp(lambda v: Straight.apply(v * x * 3), w)[1](x)[0],
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_functions(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(TRANSFORMS[name], 3, 4)


class Forwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2


def test_a_function_without_backward_is_told() -> None:
    module: nn.Module = With(lambda w, x: Forwards.apply(w * x), 3, 4)
    with pytest.warns(UserWarning, match=r"Forwards has no backward[\s\S]*test_inner_gradients.py"):
        export(module, (torch.ones(3, 4),))


def test_dual_numbers_are_refused_and_the_way_out_works() -> None:
    def tangent(x: torch.Tensor) -> Any:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(forward_ad.make_dual(x, x).tanh()).tangent

    x = torch.randn(3)
    with pytest.raises(CaptureError, match=r"dual numbers .* cannot be captured") as caught:
        export(tangent, (x,))
    assert "test_inner_gradients.py" in str(caught.value)
    assert "instead: torch.func.jvp(function, (x,), (tangent,))" in str(caught.value)
    ours = export(lambda x: torch.func.jvp(torch.tanh, (x,), (x,))[1], (x,)).module()
    torch.testing.assert_close(ours(x), tangent(x))


@pytest.mark.parametrize(
    "primal", [lambda x: x[1], lambda x: x[1:].view(-1), lambda x: x.t()[1:], lambda x: x[:, 1::2]]
)
def test_primals_that_begin_somewhere_in_their_memory(primal) -> None:
    def forward(x):
        start = primal(x)
        return torch.func.jvp(lambda y: y.flatten().sin().sum(), (start,), (start * 2,))

    x = torch.arange(8.0).view(2, 4)
    ours = export(forward, (x,)).module()
    for given in (x, x.cos()):
        torch.testing.assert_close(ours(given), forward(given))
    batched = export(torch.vmap(forward), (torch.stack([x, x + 1]),)).module()
    several = torch.stack([x.sin(), x.cos()])
    torch.testing.assert_close(batched(several), torch.vmap(forward)(several))


def test_errors_of_the_users_own_are_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what autograd could not do is captured once more, whatever another error says."""
    tracked: list[bool] = []

    class Noted(Tracer):
        def __init__(self, *args: Any, **options: Any) -> None:
            tracked.append(options["tracked"])
            super().__init__(*args, **options)

    def forward(x: Tensor) -> Tensor:
        raise RuntimeError("this model does not require gradients")

    monkeypatch.setattr(sys.modules["lostwax.capture.export"], "Tracer", Noted)
    with pytest.raises(RuntimeError, match="this model does not"):
        export(forward, (torch.ones(2),))
    assert tracked == [False]
