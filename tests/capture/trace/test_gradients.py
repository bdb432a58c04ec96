"""The exported module gives the original's gradients: to parameters and to inputs."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, nn

from lostwax import Dim
from lostwax.capture import export
from lostwax.errors import CaptureError
from lostwax.ir.graph.gradient import remove_gradients
from lostwax.ir.program import ExportedProgram


class With(nn.Module):
    """A forward of a parameter and an input."""

    def __init__(self, forward: Callable[[Tensor, Tensor], Any], *size: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(*size))
        self.of = forward

    def forward(self, x: Tensor) -> Any:
        return self.of(self.w, x)


def seen(module: nn.Module, x: Tensor) -> list[Any]:
    """Results with their strides, and all gradients; no gradient counts as zeros."""
    x = x.detach().clone().requires_grad_()
    torch.manual_seed(0)
    out = module(x)
    results = list(out) if isinstance(out, (tuple, list)) else [out]
    weights = (torch.arange(r.numel()).view(r.shape) + 1.0 for r in results)
    pairs = zip(results, weights, strict=True)
    leaves = [*module.parameters(), x]
    sums = [(r * w).sum() for r, w in pairs if r.requires_grad]
    grads = torch.autograd.grad(sum(sums), leaves, allow_unused=True) if sums else []
    zeros = [torch.zeros_like(p) if g is None else g for p, g in zip(leaves, grads, strict=False)]
    return [[r.detach() for r in results], [r.stride() for r in results], zeros]


def same(forward: Callable[[Tensor, Tensor], Any], *size: int) -> ExportedProgram:
    """Export, and compare with eager; the program."""
    module, x = With(forward, *size), torch.randn(*size)
    program = export(module, (x.clone().requires_grad_(),))
    program.validate()
    torch.testing.assert_close(seen(program.module(), x), seen(deepcopy(module), x))
    return program


def targets(program: ExportedProgram) -> list[str]:
    nodes = program.graph.nodes
    return [str(n.target).removesuffix(".default") for n in nodes if n.op == "call_function"]


# ------------------------------------------------------------------------------------------- writes


def _into(make: Callable[[], Tensor]) -> Callable[[Tensor, Tensor], Any]:
    """A tensor of some layout takes what is computed, and is written again."""

    def forward(w: Tensor, x: Tensor) -> Any:
        y = make()
        y.copy_(w * x)
        z = y * 2
        y[0] = x[1]
        return y, z

    return forward


def _add_to_part(w: Tensor, x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 1:] += w[:, 1:]
    return y


def _other_dtype(w: Tensor, x: Tensor) -> Any:
    wide = torch.zeros(2, 3, 4, dtype=torch.float64).copy_(w * x)
    whole = torch.zeros(3, 4, dtype=torch.int64).copy_(w * 10)
    truth = torch.zeros(3, 4, dtype=torch.bool)
    truth[1] = w[1]
    return wide, whole * x, truth * x


def _read_without_gradients(w: Tensor, x: Tensor) -> Tensor:
    y = x * w
    first = y[0]
    y.mul_(w)
    with torch.no_grad():
        _ = first.sum()
    return first * x


def _copy_stays_apart(w: Tensor, x: Tensor) -> Any:
    source = x * w
    y = torch.empty_like(x)
    y.view(-1).copy_(source.view(-1))
    return y.add_(1), source


def _by_places(w: Tensor, x: Tensor) -> Any:
    y = w * x
    y.as_strided((3,), (5,), 0).mul_(3)
    z = (w * x).t()
    z.fill_diagonal_(2.0)
    z.as_strided((2, 2), (1, 4), 1).add_(x[:2, :2])
    return y, z


def _complex_parts(w: Tensor, x: Tensor) -> Any:
    y = torch.complex(w, x) * 2
    y[0] = y[1].conj()
    y[:, 1:3] *= 3
    y[..., -1].add_(1)
    return y.real, y.imag


WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "row-major": _into(lambda: torch.empty(3, 4)),
    "turned": _into(lambda: torch.empty(4, 3).t()),
    "with gaps": _into(lambda: torch.empty_strided((3, 4), (9, 2))),
    "a part": _into(lambda: torch.zeros(3, 8)[:, ::2]),
    "another dtype": _other_dtype,
    "in place through a slice": _add_to_part,
    "a view read without gradients": _read_without_gradients,
    "a copy": _copy_stays_apart,
    "by places in memory": _by_places,
    "parts of complex numbers": _complex_parts,
}


@pytest.mark.parametrize("forward", WRITES.values(), ids=WRITES)
def test_writes(forward: Callable[[Tensor, Tensor], Any]) -> None:
    assert "aten.copy" not in targets(same(forward, 3, 4))


def test_channels_last_is_kept() -> None:
    def forward(w: Tensor, x: Tensor) -> Tensor:
        y = (w * x).to(memory_format=torch.channels_last)
        y[:, 0] = x[:, 1]
        return y

    same(forward, 2, 3, 4, 5)


def _turned_by_places(w: Tensor, x: Tensor) -> Tensor:
    y = (w * x).t().clone()
    y.as_strided((2, 2), (1, 4), 1).add_(x[:2, :2])
    return y


def _gaps_by_places(w: Tensor, x: Tensor) -> Any:
    y = torch.empty_strided((3, 4), (9, 2))
    y.copy_(w[:3] * x[:3])
    y.as_strided((2, 2), (9, 4), 2).mul_(x[0, 0])
    return y, y * w[:3]


def _rows_by_places(w: Tensor, x: Tensor) -> Tensor:
    y = w * x
    y.as_strided((x.shape[0], 2), (4, 2), 1).copy_(w[:, :2])
    return y * x


PLACES = {"turned": _turned_by_places, "gaps": _gaps_by_places, "rows": _rows_by_places}


@pytest.mark.parametrize("name", PLACES)
def test_places_in_memory_of_sizes_that_vary(name: str) -> None:
    module = With(lambda w, x: PLACES[name](w[: x.shape[0]], x), 4, 4)
    x = torch.randn(4, 4)
    program = export(module, (x.clone().requires_grad_(),), dynamic_shapes=({0: Dim("n", min=3)},))
    for n in (4, 3):
        torch.testing.assert_close(seen(program.module(), x[:n]), seen(module, x[:n]))


def test_places_beside_a_view_have_no_gradient() -> None:
    def forward(w: Tensor, x: Tensor) -> Tensor:
        return (w * x)[0].as_strided((2,), (4,), 0)

    with pytest.raises(CaptureError, match="it shows elements that its argument does not"):
        export(With(forward, 3, 4), (torch.ones(3, 4),))
    with torch.no_grad():
        export(With(forward, 3, 4), (torch.ones(3, 4),))


def test_random_numbers_stop_gradients() -> None:
    def forward(w: Tensor, x: Tensor) -> Any:
        y, z, v = w * x, w * x, w * x
        y.bernoulli_(0.5)
        z.normal_()
        v[0].uniform_()
        return y + x, z + x, v

    same(forward, 3, 4)


# ----------------------------------------------------------- writes that autograd is not to see


def _clipped(w: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        w.clamp_(-0.1, 0.1)
    return w * w * x


def _overwritten(w: Tensor, x: Tensor) -> Tensor:
    y = w * x
    y.detach()[1] = 7.0
    with torch.no_grad():
        y[0].fill_(3.0)
    return y * 2


def _counted(w: Tensor, x: Tensor) -> Tensor:
    count = torch.zeros(4)
    with torch.no_grad():
        count += x[0]
    return w * x * count


def _detached_and_written(w: Tensor, x: Tensor) -> Tensor:
    y = (x * 2).detach()
    y += w
    y[0] *= w[1]
    return y * 3


def _detached_without_gradients(w: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = (x * 2).view(4, 3).detach()
    y += w.view(4, 3)
    return y * 3


UNSEEN: dict[str, tuple[Callable[[Tensor, Tensor], Any], int]] = {
    "a parameter": (_clipped, 1),
    "a part": (_overwritten, 2),
    "what has no gradient": (_counted, 0),
    "a gradient that begins there": (_detached_and_written, 0),
    "the same, without gradients before": (_detached_without_gradients, 0),
}


def test_views_of_storage_without_gradients() -> None:
    def forward(w: Tensor, x: Tensor) -> Any:
        y = x * w
        with torch.no_grad():
            quiet = y.as_strided((2, 2), (1, 2), 1)
            row = y.view(-1)
        return quiet * w[0, 0], row.as_strided((2, 2), (1, 2)) * w[0, 0], y.as_strided((2,), (1,))

    same(forward, 3, 4)


def test_writes_to_a_detached_input() -> None:
    """Its memory is the input's, its gradient is its own."""

    def forward(x: Tensor, w: Tensor) -> Any:
        d = x.detach()
        d[0] *= w
        return d, d * x, x + 1

    def run(module: Callable[..., Any]) -> list[Any]:
        x, w = torch.ones(2, 3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
        d, *results = module(x, w)
        assert d.data_ptr() == x.data_ptr()
        weighted = [(r * torch.arange(6.0).view(2, 3)).sum() for r in (d, *results)]
        grads = torch.autograd.grad(sum(weighted), (x, w))
        return [d.detach(), *results, x.detach(), *grads]

    args = (torch.zeros(2, 3, requires_grad=True), torch.zeros(3, requires_grad=True))
    torch.testing.assert_close(run(export(forward, args).module()), run(forward))


def test_an_input_that_was_computed() -> None:
    def forward(y: Tensor) -> Tensor:
        y.mul_(5)
        y.detach().mul_(2)
        return y * 3

    def run(module: Callable[..., Any]) -> list[Any]:
        x = torch.linspace(-1, 1, 5, requires_grad=True)
        y = x * 2
        z = module(y)
        return [y, z, *torch.autograd.grad((y + z * y.detach()).sum(), x)]

    made = torch.zeros(5, requires_grad=True) * 1
    torch.testing.assert_close(run(export(forward, (made,)).module()), run(forward))


@pytest.mark.parametrize("name", UNSEEN)
def test_unseen_writes(name: str) -> None:
    forward, count = UNSEEN[name]
    assert targets(same(forward, 3, 4)).count("with_gradient") == count


def _binarized(w: Tensor, x: Tensor) -> Tensor:
    w.data = w.data.sign() * 0.5
    return w * x


def _of_a_view(w: Tensor, x: Tensor) -> Tensor:
    rows = w.view(-1)
    w.data = w.data * 2
    return rows.sum() + w * x


def _detached(w: Tensor, x: Tensor) -> Tensor:
    made = torch.zeros(2, 3)
    made.data = w * 3
    return made * x


def _shared(w: Tensor, x: Tensor) -> Tensor:
    made, other = x * 2, (w * 3).detach()
    made.data = other
    other.add_(1)
    with torch.no_grad():
        made.mul_(3)
    return made * x + other


@pytest.mark.parametrize("forward", [_binarized, _of_a_view, _detached, _shared])
def test_other_data_leave_the_gradient(forward: Callable[[Tensor, Tensor], Any]) -> None:
    same(forward, 2, 3)


def test_other_data_of_another_size_are_refused() -> None:
    def forward(w: Tensor, x: Tensor) -> Tensor:
        made = x * 2
        made.data = w[0].detach()
        return made

    text = r"given data of size \(3,\)[\s\S]*at tests/capture/trace/test_gradients.py:"
    with pytest.raises(CaptureError, match=text):
        same(forward, 2, 3)


@pytest.mark.parametrize("inplace", [False, True])
def test_noise_that_is_drawn_has_the_gradient(inplace: bool) -> None:
    """torch's own derivative of `rrelu_with_noise_functional` reads memory that nobody wrote."""
    same(lambda w, x: F.rrelu(w * x, training=True, inplace=inplace), 3, 4)
    same(lambda w, x: F.rrelu(w * x, training=False, inplace=inplace), 3, 4)


def test_embeddings_of_bounded_norm() -> None:
    table = nn.Embedding(5, 3, max_norm=0.5)
    x = torch.tensor([1, 3, 1])
    ours = export(table, (x,)).module()
    for module in (ours, table):
        module(x).pow(2).sum().backward()
    torch.testing.assert_close(ours.weight, table.weight)
    torch.testing.assert_close(ours.weight.grad, table.weight.grad)


# ------------------------------------------------------------------------ functions with a backward


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, by: float) -> Tensor:
        ctx.by = by
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return -ctx.by * grad, None


class Rounded(torch.autograd.Function):
    """Straight through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.contiguous().view(-1).view(grad.shape)


class Clamped(torch.autograd.Function):
    """Saves a mask and writes in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward((x < low) | (x > high))
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (mask,) = ctx.saved_tensors
        grad = grad.clone()
        grad[mask] = 0.5
        return grad, None, None


class Product(torch.autograd.Function):
    """Two arguments, the new form of the context, an output that is saved."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, scale: float = 2.0) -> Tensor:
        return (a * b).exp() * scale

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        a, b, ctx.scale = inputs
        ctx.save_for_backward(a, b, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        a, b, out = ctx.saved_tensors
        return grad * b * out, grad * a * out * 3 if ctx.needs_input_grad[1] else None, None


class Sorted(torch.autograd.Function):
    """Several outputs, one without a gradient, one that is no tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        values, places = x.sort(-1)
        ctx.mark_non_differentiable(places)
        ctx.places, ctx.size = places, x.shape
        return values, places, values.sum() * 2, 7

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor, total: Tensor, __: None) -> Tensor:
        return grad.new_zeros(ctx.size).scatter(-1, ctx.places, grad + total)


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 10


def _in_place(w: Tensor, x: Tensor) -> Any:
    y = x * w
    z = InPlace.apply(y)
    return y + 1, z * 2


def _without_gradients(w: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = Rounded.apply(x * w)
    return y * x


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "reversal": lambda w, x: Reversed.apply(w * x, 0.3) * x,
    "straight through": lambda w, x: Rounded.apply(w * x).sum(0) * 2,
    "a mask": lambda w, x: Clamped.apply(w * x, -0.5, 0.5) * 2,
    "the new form": lambda w, x: Product.apply(w, x) + Product.apply(x, x, 3.0),
    "several outputs": lambda w, x: (lambda v, i, t, n: (v * t * n, i * x))(*Sorted.apply(w * x)),
    "in place": _in_place,
    "no_grad": _without_gradients,
    "one in another": lambda w, x: Rounded.apply(Reversed.apply(Rounded.apply(w) * x, 2.0)),
    "a closure": lambda w, x: Scaled.of(w)(x),
}


class Scaled:
    """A function made in the program, whose backward reads a tensor it was not given."""

    @staticmethod
    def of(w: Tensor) -> Any:
        class Times(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x * w

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> Tensor:
                return grad * w.abs()

        return Times.apply


def _hooked(w: Tensor, x: Tensor) -> Any:
    y = w * x
    y.register_hook(lambda grad: grad * 0.1)
    z = y * 2
    z.register_hook(lambda grad: None)
    return y[0] + z, y


def _returned(w: Tensor, x: Tensor) -> Any:
    """The function returns a view of its argument: a write to one shows in the other."""
    y = x.detach().clone()
    z = Reversed.apply(y, 2.0)
    with torch.no_grad():
        y.mul_(3)
    z.add_(1)
    return y * w, z * x, Same.apply(w) * x


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 5


FUNCTIONS["hooks"] = _hooked
FUNCTIONS["a view of an argument"] = _returned


def test_hooks_that_cannot_be_captured_are_refused() -> None:
    def late(w: Tensor, x: Tensor) -> Tensor:
        y = w * x
        z = y + 1
        y.register_hook(lambda grad: grad * 2)
        return y * z

    x = torch.ones(3, 4)
    with pytest.raises(CaptureError, match=r"or was used before[\s\S]*test_gradients.py"):
        export(With(late, 3, 4), (x,))
    layer = nn.Linear(4, 4)
    layer.register_full_backward_hook(lambda module, inner, outer: None)
    with pytest.raises(CaptureError, match="the Linear has backward hooks"):
        export(nn.Sequential(layer), (x,))
    with torch.no_grad():
        export(With(late, 3, 4), (x,))
        export(nn.Sequential(layer), (x,))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    program = same(FUNCTIONS[name], 3, 4)
    assert ("with_gradient" in targets(program)) == (name != "no_grad")
    text = str(program)
    assert ("torch.ops.higher_order.with_gradient(" in text) == (name != "no_grad")
    x = torch.randn(3, 4)
    state = [*program.state_dict.values(), *program.constants.values()]
    results = torch.fx.Interpreter(program.graph_module).run(*state, x)
    torch.testing.assert_close(results[0], pytree.tree_leaves(program.module()(x))[0])


def test_a_function_is_differentiated_twice() -> None:
    def gradient(module: nn.Module) -> Tensor:
        x = torch.full((3, 4), 0.3, requires_grad=True)
        (g,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
        (again,) = torch.autograd.grad((g**2).sum(), x)
        return again

    module = With(lambda w, x: Product.apply(x, w), 3, 4)
    ours = export(module, (torch.zeros(3, 4),)).module()
    torch.testing.assert_close(gradient(ours), gradient(module))


def test_a_function_without_need_of_gradients_is_a_part_of_the_graph() -> None:
    for grad in (True, False):
        module = With(lambda w, x: Rounded.apply(w * x), 3, 4).requires_grad_(not grad)
        with torch.set_grad_enabled(grad):
            program = export(module, (torch.ones(3, 4),))
        assert targets(program) == ["aten.mul.Tensor", "aten.round"]


def test_a_function_exports_again() -> None:
    module = With(lambda w, x: Clamped.apply(w * x, -0.5, 0.5), 3, 4)
    x = torch.randn(3, 4)
    program = export(export(module, (x,)).module(), (x,))
    torch.testing.assert_close(seen(program.module(), x), seen(module, x))


def test_gradients_can_be_dropped() -> None:
    program = export(With(FUNCTIONS["several outputs"], 3, 4), (torch.randn(3, 4),))
    assert remove_gradients(program.graph)
    program.graph_module.recompile()
    program.validate()
    assert "with_gradient" not in targets(program)
    assert not remove_gradients(program.graph)


class Curious(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return (lambda: grad if grad.sum().item() > 0 else -grad)()


def test_a_backward_that_cannot_be_captured_is_refused() -> None:
    module, x = With(lambda w, x: Curious.apply(w * x), 3, 4), torch.ones(3, 4)
    with pytest.raises(CaptureError, match=r"Curious.backward cannot be captured") as error:
        export(module, (x,), control_flow="refuse")
    assert "at tests/capture/trace/test_gradients.py" in str(error.value)
    assert "instead: if no gradients are needed, export under torch.no_grad()" in str(error.value)
    with torch.no_grad():
        export(module, (x,))


def test_a_write_that_autograd_does_not_see_leaves_state_without_a_gradient() -> None:
    class Moving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.mean.data.copy_(x.mean(0))
            return x * 2 - self.mean

    x = torch.randn(4, 3, requires_grad=True)
    ours, eager = export(Moving(), (x,)).module(), Moving()
    for module in (ours, eager):
        for _ in range(2):  # a graph that is kept would be gone through twice
            module(x).sum().backward()
        assert not module.mean.requires_grad
    torch.testing.assert_close(ours.mean, eager.mean)


class Masked(torch.autograd.Function):
    """Skips what is not needed, by operators' masks, too, and forgets what it has used."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.held = [x, w]
        return torch.conv1d(x, w)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, w = ctx.held
        del ctx.held
        mask = [*ctx.needs_input_grad, False]
        into_x, into_w, _ = torch.ops.aten.convolution_backward(
            grad, x, w, None, [1], [0], [1], False, [0], 1, mask
        )
        return into_x, into_w * 2 if ctx.needs_input_grad[1] else None


class Dependent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return grad * w, grad * x * (2 if ctx.needs_input_grad[0] else 3)


@pytest.mark.parametrize("needs", [False, True])
def test_a_backward_may_skip_what_is_not_needed(needs: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(2, 3, 2))

        def forward(self, x: Tensor) -> Any:
            return Masked.apply(x, self.w)

    model, x = Model(), torch.randn(4, 3, 5)
    program = export(model, (x,)).module()
    x.requires_grad_(needs)
    leaves = (x,) if needs else ()
    ours = torch.autograd.grad(program(x).sum(), (program.w, *leaves))
    theirs = torch.autograd.grad(model(x).sum(), (model.w, *leaves))
    torch.testing.assert_close(ours, theirs)


def test_a_gradient_that_hangs_on_others_needs_is_refused() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(3))

        def forward(self, x: Tensor) -> Any:
            return Dependent.apply(x, self.w)

    with pytest.raises(CaptureError, match=r"argument 1 gets hangs on .*needs_input_grad"):
        export(Model(), (torch.randn(3),))


# -------------------------------------------------------------- functions whose `apply` is held


class Tripled(torch.autograd.Function):
    """Its gradient is not that of what it computes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 30


class Stretched(torch.autograd.Function):
    """As above, in two parts, with an argument that is left out."""

    @staticmethod
    def forward(x: Tensor, by: float = 2.0) -> Tensor:
        return x * by

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.by = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.by * 10, None


tripled, stretched = Tripled.apply, Stretched.apply


def test_functions_that_are_held() -> None:
    """Since torch 2.15 `apply` is C++, which no capture can exchange where somebody holds it."""

    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            y = tripled(x * self.w) + Tripled.apply(self.w)
            return stretched(tripled(y)) * stretched(self.w, 4.0) + stretched(self.w)

    module = Held()
    ours = export(module, (torch.ones(3),)).module()
    found = []
    for each in (module, ours):
        x = torch.arange(3.0, requires_grad=True)
        out = each(x)
        found.append([out, *torch.autograd.grad(out.sum(), [x, each.w])])
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    assert "__getattribute__" not in type(torch.autograd.Function).__dict__
