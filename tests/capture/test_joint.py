"""`export_joint`: one graph of forward and backward, against eager autograd."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from examples.models import MODELS
from lostwax import Dim, OutputKind, export, export_joint, unflatten
from lostwax.errors import CaptureError, JointError
from tests.capture.small import Of

X = torch.randn(4, 3)
Y = torch.randn(4, 3)


def compare(module: Any, *args: Any, loss: Any = None, close: float = 1e-5, **kwargs: Any) -> Any:
    """Export; loss, gradients and buffers must be those of eager."""
    program = export_joint(module, args, kwargs, loss=loss)
    program.validate()
    made, eager = program.module(), deepcopy(module)
    leaves = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
    for seed in range(2):
        torch.manual_seed(seed)
        got = made(*args, **kwargs)
        torch.manual_seed(seed)
        want = eager(*leaves, **kwargs)
        value = want if loss is None else loss(want)
        assert not got.result[1].requires_grad if loss else not got.result.requires_grad
        torch.testing.assert_close(got.result if loss is None else got.result[1], value)
        value.backward()
        if isinstance(module, nn.Module):
            named = dict(eager.named_parameters())
            expected = {k: p.grad for k, p in named.items() if p.grad is not None}
            assert got.gradients.keys() == expected.keys()
            for key, gradient in got.gradients.items():
                torch.testing.assert_close(
                    gradient, expected[key], rtol=1e-4, atol=close, msg=f"{key}, run {seed}"
                )
            eager.zero_grad()
            for key, buffer in made.named_buffers():
                torch.testing.assert_close(buffer, eager.get_buffer(key))
        wanted = {i: a.grad for i, a in enumerate(leaves) if a.grad is not None}
        for gradient, expected_one in zip(
            got.input_gradients.values(), wanted.values(), strict=True
        ):
            torch.testing.assert_close(gradient, expected_one)
        for leaf in leaves:
            leaf.grad = None
    return program


def square(result: Any) -> Tensor:
    return sum(t.float().pow(2).mean() for t in tree_leaves(result))  # type: ignore[return-value]


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    torch.manual_seed(0)
    program = compare(MODELS[name].tiny(), *MODELS[name].tiny_inputs(), loss=square)
    assert not [n for n in program.graph.nodes if "mkldnn" in str(n.target)]
    without = [
        n.name for n in program.graph.nodes if n.op == "call_function" and not n.meta["stack_trace"]
    ]
    assert without == ["ones_like"]  # each derivative stands on the line of what it differentiates


def test_the_signature() -> None:
    net = Of(
        lambda self, x, y: F.mse_loss(self.frozen(self.norm(self.lin(x))), y),
        lin=nn.Linear(3, 3),
        norm=nn.BatchNorm1d(3),
        frozen=nn.Linear(3, 3).requires_grad_(False),
    )
    x = X.clone().requires_grad_()
    program = compare(net, x, Y)
    signature = program.graph_signature
    backward = signature.backward_signature
    assert list(backward.gradients_to_parameters.values()) == [
        "lin.weight", "lin.bias", "norm.weight", "norm.bias",
    ]  # fmt: skip
    assert list(backward.gradients_to_user_inputs.values()) == [signature.user_inputs[0]]
    assert backward.loss_output == signature.user_outputs[0]
    kinds = [s.kind for s in signature.output_specs]
    assert kinds[:4] == [*[OutputKind.BUFFER_MUTATION] * 3, OutputKind.LOSS_OUTPUT]
    names = {n.name: n for n in program.graph.nodes}
    last = names[next(iter(backward.gradients_to_parameters))]
    assert "code: lambda self, x, y" in str(last.meta["stack_trace"]).replace("    ", "code: ")
    assert all(n.grad is None for n in net.parameters())


def test_tied_unused_and_shared_gradients() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight
            self.unused = nn.Linear(2, 2)
            self.a, self.b = (nn.Parameter(torch.zeros(5)) for _ in range(2))

        def forward(self, i: Tensor) -> Tensor:
            return F.cross_entropy(self.head(self.embed(i)) + self.a + self.b, i)

    program = compare(Tied(), torch.tensor([1, 4, 2]))
    gradients = program.graph_signature.backward_signature.gradients_to_parameters
    assert sorted(gradients.values()) == ["a", "b", "embed.weight"]  # one each, whatever node it is


def test_transforms_of_real_numbers() -> None:
    net = Of(lambda self, x: torch.fft.hfft(self.lin(x)).square().sum(), lin=nn.Linear(3, 3))
    compare(net, X.clone().requires_grad_())


def test_a_loss_among_the_results() -> None:
    def forward(self: Any, x: Tensor, y: Tensor) -> dict[str, Any]:
        out = self.lin(x)
        return {"out": out, "n": 3, "loss": F.mse_loss(out, y)}

    net = Of(forward, lin=nn.Linear(3, 3))
    program = export_joint(net, (X, Y), loss_index=2)
    got = program.module()(X, Y)
    assert list(got.result) == ["out", "n", "loss"]
    torch.testing.assert_close(got.result["loss"], F.mse_loss(net.lin(X), Y))
    want = torch.autograd.grad(F.mse_loss(net.lin(X), Y), list(net.parameters()))
    torch.testing.assert_close(list(got.gradients.values()), list(want))


def test_incoming_gradients() -> None:
    def forward(self: Any, x: Tensor, k: int) -> Any:
        y = self.lin(x)
        return y.t(), (y.sum(0) * k, x.detach(), k)

    net = Of(forward, lin=nn.Linear(3, 2))
    x = X.clone().requires_grad_()
    program = export_joint(net, (x, 3), tangents=True, dynamic_shapes=None)
    program.validate()
    assert program.graph_signature.backward_signature.loss_output == ""
    tangents = (torch.randn(4, 2).t(), torch.ones(()).expand(2))  # in any layout
    got = program.module()(x, 3, tangents=tangents)
    a, (b, _, _) = net(x, 3)
    torch.testing.assert_close(got.result[1][0], b)
    want = torch.autograd.grad((a, b), [*net.parameters(), x], tangents)
    given = [*got.gradients.values(), *got.input_gradients.values()]
    torch.testing.assert_close(given, list(want))
    example = program.example_inputs[1]["tangents"]
    assert [tuple(t.shape) for t in example] == [(2, 4), (2,)]
    program.module()(*program.example_inputs[0], **program.example_inputs[1])


def test_dynamic_sizes() -> None:
    net = Of(lambda self, x, y: F.mse_loss(self.lin(x), y), lin=nn.Linear(3, 3))
    n = Dim("n", max=64)
    program = export_joint(net, (X, Y), dynamic_shapes=({0: n}, {0: n}))
    vjp = export_joint(net.lin, (X,), tangents=True, dynamic_shapes=({0: n},))
    for size in (4, 1, 9):
        x, y, t = torch.randn(size, 3), torch.randn(size, 3), torch.randn(size, 3)
        want = torch.autograd.grad(F.mse_loss(net.lin(x), y), list(net.parameters()))
        torch.testing.assert_close(list(program.module()(x, y).gradients.values()), list(want))
        want = torch.autograd.grad(net.lin(x), list(net.parameters()), t)
        got = vjp.module()(x, tangents=(t,)).gradients
        torch.testing.assert_close(list(got.values()), list(want))


def test_writes_views_randomness_and_regions() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.lin(x)
        y[:, 0].mul_(2)
        F.silu(y, inplace=True)
        with torch.no_grad():
            scale = y.abs().mean()
        y = F.dropout(y.view(-1), 0.5) * scale + y.detach().view(-1)
        return (y * checkpoint(self.tail, y, use_reentrant=False)).sum() + checkpoint(
            self.tail, y, use_reentrant=True
        ).sum()

    compare(Of(forward, lin=nn.Linear(3, 3), tail=nn.Tanh()), X)


class Twice(torch.autograd.Function):
    """A backward that is not the derivative of its forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 7 + ctx.saved_tensors[0]


def test_the_backward_of_a_function_is_the_users(recwarn: Any) -> None:
    compare(Of(lambda self, x: Twice.apply(self.lin(x)).sum(), lin=nn.Linear(3, 3)), X)
    assert not [w for w in recwarn if "backward is not part" in str(w.message)]


@torch.library.custom_op("joint_test::cube", mutates_args=())
def cube(x: Tensor) -> Tensor:
    return x**3


cube.register_fake(torch.empty_like)
cube.register_autograd(
    lambda ctx, g: g * 3 * ctx.saved_tensors[0] ** 2,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


def test_layers_with_ways_of_their_own() -> None:
    """Custom operators, recurrent layers, statistics that C++ writes."""
    program = compare(Of(lambda self, x: cube(self.lin(x)).sum(), lin=nn.Linear(3, 3)), X)
    assert "joint_test.cube.default" in [str(n.target) for n in program.graph.nodes]
    image = torch.randn(2, 3, 4)
    norm = nn.InstanceNorm1d(3, affine=True, track_running_stats=True)
    compare(Of(lambda self, x: self.norm(x).pow(2).mean(), norm=norm), image)
    for layer in (nn.LSTM(3, 2, bidirectional=True), nn.GRU(3, 2)):
        program = compare(Of(lambda self, x: self.layer(x)[0].sum(), layer=layer), image.mT)
        assert not [n for n in program.graph.nodes if "mkldnn" in str(n.target)]
    with pytest.raises(CaptureError, match="over a length that varies has no derivative"):
        export_joint(nn.GRU(3, 2), (image.mT,), loss_index=0, dynamic_shapes=({0: Dim("length")},))


def test_functions_and_passes() -> None:
    x = X.clone().requires_grad_()
    program = export_joint(lambda x: (x**3).sum(), (x,))
    torch.testing.assert_close(program.module()(x).input_gradients["x"], 3 * X**2)
    program = export_joint(lambda input: input["a"].sum(), ({"a": x},))
    assert list(program.module()({"a": x}).input_gradients) == ["input['a']"]
    net = Of(lambda self, x: self.lin(x).relu().sum(), lin=nn.Linear(3, 3))
    joint = export_joint(net, (X,))
    (made, whole) = unflatten(joint)(X), joint.module()(X)
    torch.testing.assert_close(made, whole)
    core = joint.run_decompositions()
    torch.testing.assert_close(core.module()(X), whole)


def test_nothing_of_the_users_changes() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Flatten(0))
    before = deepcopy(net.state_dict())
    with torch.no_grad():  # gradients are what it is about
        program = export_joint(net, (X,), loss=lambda r: r.mean())
    assert program.graph_signature.backward_signature.gradients_to_parameters
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert all(p.grad is None and p.grad_fn is None for p in net.parameters())
    assert export(net, (X,)).graph_signature.backward_signature is None


LIN = nn.Linear(3, 3)
PAIR, SUM = Of(lambda self, x: (x, 3)), Of(lambda self, x: x.sum())
APART, PASSED = Of(lambda self, x: x.sum(), a=LIN), Of(lambda self, x: x, a=LIN)


@pytest.mark.parametrize(
    ("module", "options", "text"),
    [
        (LIN, {}, r"the loss is f32\[4, 3\], but a loss is one real number.*\n  instead: loss="),
        (PAIR, {}, r"returns 2 values: which is the loss\?\n  0: result\[0\], f32"),
        (LIN, {"loss_index": 2}, r"loss_index=2, but the module returns 1 values:\n  0: result, f"),
        (LIN, {"loss": lambda r: 3}, "the loss is 3, but"),
        (LIN, {"loss_index": 0, "tangents": True}, "exclude each other"),
        (SUM, {}, "no parameter and no input requires a gradient\n  instead"),
        (APART, {}, "the loss does not depend on anything that requires"),
        (PASSED, {"tangents": True}, "no result depends on anything that requires"),
    ],
)
def test_refusals(module: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(JointError, match=text):
        export_joint(module, (X,), **options)


def test_an_argument_of_that_name_is_refused() -> None:
    with pytest.raises(JointError, match="an argument 'tangents' of its own"):
        export_joint(lambda tangents: tangents, (), {"tangents": X}, tangents=True)


@pytest.mark.parametrize("keep", ["composite", [torch.ops.aten.linear.default]])
def test_composites_are_not_kept(keep: Any) -> None:
    with pytest.raises(JointError, match=r"(?s)keeps no composite.*instead: leave keep= out"):
        export_joint(nn.Linear(3, 3), (X,), loss=square, keep=keep)
