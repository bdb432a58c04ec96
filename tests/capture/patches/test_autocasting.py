"""Autocast is captured: in forward and around the export, on the CPU and on devices that are not
there, for the operators that a program calls and for those that others are taken apart into."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lostwax import Dim, capture, export, load, save, unflatten
from lostwax.errors import CaptureError, SettingsError
from lostwax.fake import FakeTensorMode
from lostwax.passes import ConstantFolding
from tests.capture.patches.autocast_lists import BF16, EXPECTED, F32, Lists
from tests.capture.small import Of, same

X = torch.randn(2, 3, 4)


def cast(forward: Callable[..., Any], **modules: nn.Module) -> nn.Module:
    def inside(self: Any, x: Tensor) -> Any:
        with torch.autocast("cpu", BF16):
            return forward(self, x)

    return Of(inside, **modules)


def _attended(self: Any, x: Tensor) -> Tensor:
    return self.a(x, x, x)[0]  # type: ignore[no-any-return]


CASES: dict[str, tuple[Callable[..., Any], dict[str, nn.Module]]] = {
    "linear": (lambda self, x: self.a(self.a(x)), {"a": nn.Linear(4, 4)}),
    "gru": (lambda self, x: self.a(x)[0], {"a": nn.GRU(4, 5)}),
    "rnn": (lambda self, x: self.a(x)[0], {"a": nn.RNN(4, 5, nonlinearity="relu")}),
    "cell": (lambda self, x: self.a(x[0]), {"a": nn.LSTMCell(4, 5)}),
    "einsum": (lambda self, x: torch.einsum("abc,dbc->ad", x, x), {}),
    "tensordot": (lambda self, x: torch.tensordot(x, x, dims=([1], [1])), {}),
    "multi_dot": (lambda self, x: torch.linalg.multi_dot([x[0], x[0].t(), x[0]]), {}),
    "bilinear": (lambda self, x: self.a(x, x), {"a": nn.Bilinear(4, 4, 3)}),
    "pinv": (lambda self, x: torch.linalg.pinv(x), {}),
    "attention": (_attended, {"a": nn.MultiheadAttention(4, 2)}),
    "convolution": (lambda self, x: self.a(x), {"a": nn.Conv1d(3, 3, 3, padding="same")}),
    "norm": (lambda self, x: self.b(self.a(x)), {"a": nn.Linear(4, 4), "b": nn.LayerNorm(4)}),
    "loss": (lambda self, x: nn.functional.mse_loss(self.a(x), x), {"a": nn.Linear(4, 4)}),
}


@pytest.mark.parametrize("name", CASES)
def test_what_operators_are_taken_apart_into_is_cast(name: str) -> None:
    forward, modules = CASES[name]
    same(cast(forward, **modules), X)


def test_inside_of_a_program_that_differentiates() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(torch.einsum("abc,dbc->ad", x, x).sum(), x)[0]

    same(cast(forward), X)


class Product(torch.autograd.Function):
    """With a backward of its own, which runs under the autocast of its forward."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x @ y

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        return grad @ y.mT, x.mT @ grad


GRADIENTS: dict[str, Callable[..., Any]] = {
    "function": lambda self, x: Product.apply(self.a(x), x.mT),
    "checkpoint": lambda self, x: checkpoint(self.a, x, use_reentrant=False),
    "vmap": lambda self, x: torch.vmap(lambda y: y @ self.a.weight)(x),
    "einsum": lambda self, x: torch.einsum("abc,dbc->ad", x, self.a(x)),
}


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("dims", [None, ({0: Dim("n")},)], ids=["static", "dynamic"])
def test_gradients(name: str, dims: Any) -> None:
    module, x = cast(GRADIENTS[name], a=nn.Linear(4, 4)), X.clone().requires_grad_()
    ours = export(module, (x,), dynamic_shapes=dims).module()
    found = []
    for each in (ours, module):
        out = each(x)
        found.append((out, torch.autograd.grad(out.float().sum(), x)))
    torch.testing.assert_close(*found)


# ------------------------------------------------------------------------ operators of the user's


@torch.library.custom_op("lostwax_test::product", mutates_args=())
def product(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Its kernel has a product that autocast casts, and asks for autocast."""
    return x @ y.mT, x.relu() + torch.is_autocast_enabled(x.device.type)


def _differentiate(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    x, y = ctx.saved_tensors
    return grad.to(x.dtype) @ y, grad.to(x.dtype).mT @ x


product.register_fake(lambda x, y: (x @ y.mT, x.relu()))
product.register_autograd(
    _differentiate, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
)


def _repeat(self: Any, x: Tensor) -> Any:
    return [product(x, x)[0] for _ in range(3)]


def _choose(self: Any, x: Tensor) -> Any:
    return product(x, x)[1] if x.sum() > 0 else x.sin()


def _switch_off(self: Any, x: Tensor) -> Any:
    with torch.autocast("cpu", enabled=False):
        return product(x, x)


def _cast_to_half(self: Any, x: Tensor) -> Any:
    with torch.autocast("cpu", torch.float16):
        return product(x, x)


WHOLE: list[Callable[..., Any]] = [
    lambda self, x: product(x, x),
    lambda self, x: product(self.a(x).float(), x.flip(0)),
    lambda self, x: product(x, x)[0].add_(1)[:, 1:],
    lambda self, x: torch.cond(x.sum() > 0, lambda x: product(x, x)[1], torch.sin, (x,)),
    _repeat,
    _choose,
    _switch_off,
    _cast_to_half,
]


@pytest.mark.parametrize("forward", WHOLE)
@pytest.mark.parametrize("dims", [None, ({0: Dim("n")},)], ids=["static", "dynamic"])
def test_an_operator_of_the_users_is_called_under_autocast(
    forward: Any, dims: Any, tmp_path: Path
) -> None:
    module = cast(forward, a=nn.Linear(4, 4))
    program = export(module, (X,), dynamic_shapes=dims)
    save(program, tmp_path / "program.pt2")
    again = export(program.module(), (X,))
    for each in (program, program.run_decompositions(), load(tmp_path / "program.pt2"), again):
        ours = each.module()
        for x in (X, -X):  # the second call is not compared with the fake kernel any more
            torch.testing.assert_close(ours(x), module(x), rtol=0, atol=0)


def test_so_it_is_when_torch_reads_the_file(tmp_path: Path) -> None:
    module = cast(lambda self, x: product(x, x))
    save(export(module, (X,)), tmp_path / "program.pt2")
    theirs = torch.export.load(tmp_path / "program.pt2").module()
    torch.testing.assert_close(theirs(X), module(X), rtol=0, atol=0)


def test_gradients_of_an_operator_of_the_users() -> None:
    module = cast(lambda self, x: product(self.a(x).float(), x), a=nn.Linear(4, 4))
    ours, found = export(module, (X,)).module(), []
    for each in (ours, module):
        x = X.clone().requires_grad_()
        each.zero_grad()
        each(x)[0].float().square().sum().backward()
        found.append([x.grad, *(p.grad for p in each.parameters())])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_an_operator_on_a_device_that_is_not_there() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        with torch.autocast("cuda", BF16):
            return product(x, x)

    program = export(*on_cuda(lambda: Of(forward), (2, 4)))
    assert dtypes(program) == [BF16, F32]
    (node,) = program.graph.find_nodes(
        op="call_function", target=torch.ops.higher_order.wrap_with_autocast
    )
    assert node.args[:4] == ("cuda", BF16, True, True)


@torch.library.custom_op("lostwax_test::multiply_in_place", mutates_args=("x",))
def multiply_in_place(x: Tensor) -> None:
    x.copy_(x @ x)


@torch.library.custom_op("lostwax_test::find_products", mutates_args=())
def find_products(x: Tensor) -> Tensor:
    return (x @ x).nonzero()


@find_products.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size(), 2, dtype=torch.int64)


@pytest.mark.parametrize("operator", [multiply_in_place, find_products])
def test_one_that_writes_or_has_sizes_of_data_says_what_it_does(operator: Any) -> None:
    def forward(self: Any, x: Tensor) -> Any:
        x = x.clone()
        return operator(x), x

    module, x = cast(forward), torch.randn(4, 4)
    name = operator._qualname
    with pytest.raises(CaptureError) as e:
        export(module, (x,))
    text = str(e.value)
    assert f"{name} is called under torch.autocast, and does not say what it does" in text
    assert "test_autocasting.py" in text
    assert "returns new tensors, of sizes that do not depend on data" in text
    assert f'torch.library.register_autocast("{name}"' in text
    export(module, (x.double(),))  # which autocast does not cast


def test_one_that_says_what_it_does_is_cast() -> None:
    @torch.library.custom_op("lostwax_test::saying", mutates_args=())
    def saying(x: Tensor) -> Tensor:
        return x @ x.mT

    saying.register_fake(lambda x: x @ x.mT)
    saying.register_autocast("cpu", BF16)
    module = cast(lambda self, x: saying(x))
    same(module, X)
    assert not export(module, (X,)).graph.find_nodes(op="get_attr")


# -------------------------------------------------------------------- a device that is not there


def on_cuda(module: Callable[[], nn.Module], *sizes: tuple[int, ...]) -> tuple[nn.Module, Any]:
    with FakeTensorMode():
        return module().to("cuda"), tuple(torch.empty(s, device="cuda") for s in sizes)


def dtypes(program: Any) -> list[torch.dtype]:
    (output,) = program.graph.find_nodes(op="output")
    return [node.meta["val"].dtype for node in output.args[0]]


def test_a_device_that_is_not_there() -> None:
    module, args = on_cuda(Lists, (2, 3, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch would tell that there is no CUDA
        program = export(module, args)
    assert dtypes(program) == EXPECTED
    casts = [n for n in program.graph.nodes if n.target is torch.ops.aten._to_copy.default]
    weights = [n for n in casts if n.args[0].name == "p_linear_weight"]
    assert len(weights) == 1  # as torch keeps what a parameter was cast to


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_are_cast_as_a_whole_there(layer: Any) -> None:
    """cuDNN's kernels take all of it in the lower precision, which there is float16 always."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = layer(4, 5, num_layers=2, bidirectional=True)

        def forward(self, x: Tensor) -> Any:
            with torch.autocast("cuda", BF16):
                return self.a(x)

    assert set(dtypes(export(*on_cuda(Layer, (2, 3, 4))))) == {torch.float16}


def test_what_torch_bans_is_refused() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        with torch.autocast("cuda"):
            return nn.functional.binary_cross_entropy(x, x)

    with pytest.raises(RuntimeError, match="unsafe to autocast"):
        export(*on_cuda(lambda: Of(forward), (2, 3)))


@pytest.mark.filterwarnings("ignore:CUDA is not available")
@pytest.mark.skipif(torch.cuda.is_available(), reason="torch switches it off only without CUDA")
def test_what_torch_has_switched_off_is_refused() -> None:
    module, args = on_cuda(lambda: nn.Linear(4, 4), (2, 4))
    with (
        torch.autocast("cuda", BF16),
        pytest.raises(
            CaptureError, match=r"around the export[\s\S]*test_autocasting.py[\s\S]*inst"
        ),
    ):
        export(module, args)

    class Decorated(nn.Linear):
        @torch.autocast("cuda", BF16)
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    with pytest.raises(CaptureError, match="nobody knows"):
        export(*on_cuda(lambda: Decorated(4, 4), (2, 4)))
    export(Decorated(4, 4), (torch.ones(2, 4),))  # on the CPU it is off in eager, too


@pytest.mark.filterwarnings("ignore:CUDA is not available")
@pytest.mark.skipif(torch.cuda.is_available(), reason="torch switches it off only without CUDA")
def test_what_is_not_on_that_device_is_asked_as_in_eager() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        with torch.autocast("cuda", BF16):
            return self.a(x), torch.is_autocast_enabled("cuda")

    same(Of(forward, a=nn.Linear(4, 4)), X)

    def later(self: Any, x: Tensor) -> Any:
        with torch.autocast("cuda", BF16):
            y = torch.ones(4, 4, device="cuda")
            return y @ y

    with pytest.raises(CaptureError, match=r"nobody knows[\s\S]*test_autocasting.py"):
        export(Of(later), (X,))


# ------------------------------------------------------------------------- around export and call


def test_around_the_export() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), torch.randn(2, 4)
    with torch.autocast("cpu", BF16):
        program = export(model, (x,))
        ours = program.module()
        torch.testing.assert_close(ours(x), model(x))
        torch.testing.assert_close(unflatten(program)(x), model(x))
    assert ours(x).dtype is BF16  # as it was captured


def test_around_the_call() -> None:
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    program = export(model, (x,))
    for ours in (program.module(), unflatten(program), program.run_decompositions().module()):
        with (
            torch.autocast("cpu", BF16),
            pytest.raises(SettingsError, match=r"autocast\('cpu', torch.bfloat16\) is on"),
        ):
            ours(x)
        with torch.autocast("cpu", enabled=False):
            torch.testing.assert_close(ours(x), model(x))


def test_around_what_is_done_to_a_program() -> None:
    """Decompositions and passes compute for the program, not for who calls them."""

    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.constant = torch.randn(3, 3)

        def forward(self, *args: Tensor) -> Any:
            return torch.baddbmm(*args), self.constant @ self.constant

    model = Folded()
    args = (torch.randn(2, 3, 3), torch.randn(2, 3, 4), torch.randn(2, 4, 3))
    program = export(model, args)
    with torch.autocast("cpu", BF16):
        changed = [program.run_decompositions(), ConstantFolding()(program)]
    for each in changed:
        torch.testing.assert_close(each.module()(*args), model(*args))


def test_where_nothing_can_be_cast_autocast_does_not_matter() -> None:
    model, x = nn.Linear(4, 4).double(), torch.randn(2, 4, dtype=torch.float64)
    ours = export(model, (x,)).module()
    with torch.autocast("cpu", BF16):
        torch.testing.assert_close(ours(x), model(x))


def test_a_region_without_it_stays_so_under_the_same_autocast() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        with torch.autocast("cpu", enabled=False):
            y = self.a(x)
        return y, self.a(x)

    model, x = Of(forward, a=nn.Linear(4, 4)), torch.randn(2, 4)
    with torch.autocast("cpu", BF16):
        ours = export(model, (x,)).module()
        assert [t.dtype for t in ours(x)] == [t.dtype for t in model(x)] == [F32, BF16]


def test_captured_calls_follow_it() -> None:
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    ours = capture(model)
    assert ours(x).dtype is F32
    with torch.autocast("cpu", BF16):
        assert ours(x).dtype is BF16
    assert ours(x).dtype is F32
    assert len(ours.programs) == 2


def test_switched_on_by_hand() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        torch.set_autocast_enabled("cpu", True)
        try:
            return torch.einsum("ab,cb->ac", x, x)
        finally:
            torch.set_autocast_enabled("cpu", False)

    same(Of(forward), torch.randn(2, 4))
