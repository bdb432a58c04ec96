"""Modes of autograd inside of forward: what is answered, stopped and computed is as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lostwax.capture import export
from lostwax.errors import UnsupportedFakeError
from tests.capture.small import Of, X, same, targets


def gradients(module: nn.Module, *args: Any) -> list[torch.Tensor | None]:
    for p in module.parameters():
        p.grad = None
    out = module(*args)
    (out if isinstance(out, torch.Tensor) else out[0]).sum().backward()
    return [p.grad for p in module.parameters()]


def same_gradients(module: nn.Module, *args: Any) -> Any:
    program = same(module, *args)
    ours = program.module()
    torch.testing.assert_close(gradients(ours, *args), gradients(module, *args))
    return program


def test_the_program_is_differentiable() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 2))
    same_gradients(net, X)


def test_questions_about_gradients_are_answered_as_in_eager() -> None:
    def forward(self: Any, x: torch.Tensor) -> Any:
        y = self.linear(x)
        with torch.no_grad():
            stopped = self.linear(x)
        y[0] = 1
        z = torch.view_as_complex(torch.stack([y, y], -1))
        asked = [x, y, y.view(-1), z, stopped, y.detach(), y > 0, self.linear.weight]
        return [t.requires_grad for t in asked], [t.is_leaf for t in asked]

    module = Of(forward, linear=nn.Linear(4, 4))
    same(module, X)
    same(module, X.clone().requires_grad_())
    with torch.no_grad():
        same(module, X)


def test_what_is_left_of_a_gradient_is_refused() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.retain_grad()
        return y

    with pytest.raises(UnsupportedFakeError, match=r"retain_grad\(\)[\s\S]*instead"):
        export(Of(forward), (X.clone().requires_grad_(),))


def test_the_grad_mode_is_put_back() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        torch.set_grad_enabled(False)
        return x * self.weight

    export(Of(forward, weight=nn.Parameter(torch.ones(4))), (X,))
    assert torch.is_grad_enabled()


def test_no_grad_regions_stop_gradients() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        with torch.no_grad():
            z = self.b(y) * 2
            with torch.enable_grad():
                w = self.a(x)
        return y * z + w + self.b(x).detach()

    same_gradients(Of(forward, a=nn.Linear(4, 4), b=nn.Linear(4, 4)), X)


def test_a_function_that_differentiates_inside() -> None:
    def inner(self: Any, x: torch.Tensor) -> torch.Tensor:
        v = x.clone().requires_grad_()
        (g,) = torch.autograd.grad((self.a(v) ** 2).sum(), v)
        return g + x

    same(Of(inner, a=nn.Linear(4, 4)), X)
    same(Of(lambda self, x: torch.func.grad(lambda v: (v.sin() ** 2).sum())(x)), X)


def test_checkpoint_autocast_and_inference_mode() -> None:
    for reentrant in (False, True):
        forward = Of(lambda self, x, r=reentrant: checkpoint(self.a, x * 2, use_reentrant=r))
        forward.a = nn.Linear(4, 4)
        same_gradients(forward, X.clone().requires_grad_())

    def cast(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.a(x)

    assert "aten._to_copy" in targets(same(Of(cast, a=nn.Linear(4, 4)), X))

    def inference(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return self.a(x).t().reshape(-1)

    same(Of(inference, a=nn.Linear(4, 4)), X)
    assert torch.autograd.Function.apply.__module__ in ("torch.autograd.function", None)  # C++
