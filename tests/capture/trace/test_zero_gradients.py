"""What a write takes the place of: to autograd a zero gradient, not none."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lostwax import Dim
from lostwax.capture import export
from lostwax.passes import NoOps


class With(nn.Module):
    """A forward of two parameters and an input."""

    def __init__(self, forward: Callable[[Tensor, Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.w, self.v = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(4, 3))
        self.of = forward

    def forward(self, x: Tensor) -> Any:
        return self.of(self.w, self.v, x)


def seen(module: nn.Module, x: Tensor) -> list[Any]:
    """The result, and the gradients of the parameters; None is no gradient."""
    torch.manual_seed(0)
    out = module(x)
    grads = None
    if out.requires_grad:
        grads = torch.autograd.grad(out.sum(), list(module.parameters()), allow_unused=True)
    return [out.detach(), out.stride(), out.requires_grad, grads]


def written(write: Callable[[Tensor, Tensor, Tensor], Any]) -> Callable[..., Tensor]:
    def forward(w: Tensor, v: Tensor, x: Tensor) -> Tensor:
        y = w * 1
        write(y, v, x)
        return y

    return forward


def _detached(y: Tensor, v: Tensor, x: Tensor) -> Tensor:
    z = y.detach()
    z.mul_(v)
    z.copy_(x)
    return z


def _seen_before(w: Tensor, v: Tensor, x: Tensor) -> Tensor:
    y = w * 1
    view = y.t()
    y.fill_(2.0)
    return view


WRITES: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "copy": lambda y, v, x: y.copy_(x),
    "copy of a row": lambda y, v, x: y.copy_(x[0]),
    "copy of whole numbers": lambda y, v, x: y.copy_(x.int()),
    "copy of another parameter": lambda y, v, x: y.copy_(v),
    "zero": lambda y, v, x: y.zero_(),
    "fill": lambda y, v, x: y.fill_(2),
    "fill with a tensor": lambda y, v, x: y.fill_(x.sum()),
    "ellipsis": lambda y, v, x: y.__setitem__(..., 2.0),
    "slice": lambda y, v, x: y.__setitem__(slice(None), x),
    "a longer view": lambda y, v, x: y.__setitem__(None, x),
    "another shape": lambda y, v, x: y.view(3, 4).copy_(x.view(3, 4)),
    "transposed": lambda y, v, x: y.t().copy_(x.t()),
    "both halves": lambda y, v, x: (y[:2].zero_(), y[2:].copy_(x[2:])),
    "a slice of all": lambda y, v, x: y[0:4].copy_(x),
    "random": lambda y, v, x: y.normal_(),
    "coins": lambda y, v, x: y.bernoulli_(0.5),
    "from a range": lambda y, v, x: y.random_(0, 5),
    "a list": lambda y, v, x: torch._foreach_zero_([y]),
    "twice": lambda y, v, x: y.copy_(v).copy_(x),
    "unseen": lambda y, v, x: y.detach().copy_(x),
}
FORWARDS = {name: written(write) for name, write in WRITES.items()} | {
    "a view made before": _seen_before,
    "a detached tensor": lambda w, v, x: _detached(w * 1, v, x),
    "zeros_like": lambda w, v, x: torch.zeros_like(w * 1).copy_(x),
    "read after it": lambda w, v, x: (w * 1).copy_(x).exp(),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_a_tensor_that_is_overwritten_whole_has_zero_gradients(name: str) -> None:
    module, x = With(FORWARDS[name]), torch.randn(4, 3)
    program = export(module, (x,))
    expected = seen(deepcopy(module), x)
    for each in (program, program.run_decompositions(), NoOps()(program)):
        torch.testing.assert_close(seen(each.module(), x), expected)


def test_sizes_that_vary() -> None:
    class Rows(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            y.copy_(x)
            return y

    module = Rows(3, 3)
    program = export(module, (torch.randn(4, 3),), dynamic_shapes=({0: Dim("n", min=0)},))
    for n in (0, 1, 7):
        x = torch.randn(n, 3)
        torch.testing.assert_close(seen(program.module(), x), seen(deepcopy(module), x))


def test_without_gradients_a_write_costs_nothing() -> None:
    def forward(w: Tensor, v: Tensor, x: Tensor) -> Tensor:
        y = x * 2
        y.copy_(x)
        z = torch.empty_like(w * x)
        z.copy_(x)
        return y + z.zero_()

    names = {str(n.target) for n in export(With(forward), (torch.randn(4, 3),)).graph.nodes}
    assert "aten.where.self" not in names
    with torch.no_grad():
        program = export(With(FORWARDS["copy"]), (torch.randn(4, 3),))
    assert "aten.where.self" not in {str(n.target) for n in program.graph.nodes}


@pytest.mark.parametrize(
    "make",
    [
        torch.zeros_like,
        torch.rand_like,
        lambda t: torch.full_like(t, 1),
        lambda t: t.new_zeros(3),
        lambda t: t.new_empty(3),
        torch.special.bessel_j0,
        torch.special.airy_ai,
        lambda t: torch.linspace(t[0, 0], 1, 3),
        lambda t: torch.logspace(0, t[0, 0], 3),
        lambda t: t[:, :2].clone().view(torch.float64),
        lambda t: torch.linalg.lu(t)[0],
        lambda t: torch.linalg.lu(t)[1],
        lambda t: torch.linalg.lstsq(t, t, driver="gelsd")[3],
        lambda t: torch.native_layer_norm(t, (3,), None, None, 1e-5)[1],
        lambda t: t.detach().requires_grad_(),
        lambda t: t * 1,
        torch.floor,
        lambda t: torch.fill(t, 2),
    ],
)
def test_whether_a_tensor_made_from_another_requires_a_gradient(
    make: Callable[[Tensor], Tensor],
) -> None:
    def forward(w: Tensor, v: Tensor, x: Tensor) -> Tensor:
        return x + (1 if make(w * 1).requires_grad else 2)

    module, x = With(forward), torch.randn(4, 3)
    torch.testing.assert_close(export(module, (x,)).module()(x), module(x))


def test_a_parameter_without_a_gradient_takes_that_of_what_is_written() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.still = nn.Parameter(torch.zeros(3), requires_grad=False)
            self.w = nn.Parameter(torch.randn(3))

        def forward(self, x: Tensor) -> Any:
            self.still.copy_(self.w * x)
            return self.still * 2

    def two_calls(module: Any) -> list[Any]:
        out = [module(torch.ones(3)), module(torch.ones(3) * 2)]
        grads = torch.autograd.grad(out[1].sum(), module.w)
        return [out, module.still.requires_grad, module.still.is_leaf, grads]

    module = Net()
    program = export(module, (torch.ones(3),))
    expected = two_calls(deepcopy(module))
    torch.testing.assert_close(two_calls(program.module()), expected)


def test_what_is_written_under_no_grad_is_not_a_part_of_the_gradient() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.still = nn.Parameter(torch.zeros(3), requires_grad=False)
            self.w = nn.Parameter(torch.randn(3))

        def forward(self, x: Tensor) -> Any:
            with torch.no_grad():
                self.still.copy_(self.w * x)
                self.w.mul_(2)
            return self.still * x

    module = Net()
    ours = export(module, (torch.ones(3),)).module()
    for each in (module, ours):
        assert not each(torch.ones(3)).requires_grad
        assert not each.still.requires_grad


def test_removing_what_changes_nothing_keeps_gradients() -> None:
    forward = written(lambda y, v, x: y[0:4].copy_(x))
    module, x = With(lambda *given: forward(*given) * 2), torch.randn(4, 3)
    program = NoOps()(export(module, (x,)))
    torch.testing.assert_close(seen(program.module(), x), seen(deepcopy(module), x))
    module.requires_grad_(False)
    names = {str(n.target) for n in NoOps()(export(module, (x,))).graph.nodes}
    assert "aten.slice_scatter.default" not in names


@pytest.mark.parametrize("as_exported", [True, False])
def test_a_matrix_to_the_power_of_nothing(as_exported: bool) -> None:
    """Eager writes the identity into a copy of the matrix: a zero gradient."""
    module, x = With(lambda w, v, x: torch.matrix_power(w[:3], 0) @ v.t()), torch.randn(4, 3)
    program = export(module, (x,))
    module_of_it = (program if as_exported else program.run_decompositions()).module()
    got = seen(module_of_it, x)
    assert got[2]
    assert got[3][0] is not None
    torch.testing.assert_close(got, seen(deepcopy(module), x))
