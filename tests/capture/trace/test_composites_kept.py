"""`keep="composite"`: programs have the operators that torch.export's have, and are functional all
the same; they compute what eager computes, in every way that programs of the default do."""

from __future__ import annotations

import copy
import io
import re
from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lostwax
from examples.models import MODELS
from lostwax import Dim, export, interop
from lostwax.errors import CaptureError
from tests.capture.compare import exported
from tests.capture.small import Of, targets

COMPOSITE = "composite"


def count_targets(graph_module: torch.fx.GraphModule) -> Counter[str]:
    """How often a program calls each operator, in its functional form. Torch's notes of a tensor's
    type before each cast do not count."""
    nodes = [n for n in graph_module.graph.nodes if n.op == "call_function"]
    names = [re.sub(r"(aten\.\w+[a-z0-9])_\.", r"\1.", str(n.target)) for n in nodes]
    return Counter(n for n in names if n != "aten._assert_tensor_metadata.default")


def compare_with_torch(module: nn.Module, args: tuple[Any, ...]) -> Any:
    theirs = torch.export.export(copy.deepcopy(module), args)
    theirs.graph.eliminate_dead_code()
    program = export(module, args, keep=COMPOSITE)
    assert count_targets(program.graph_module) == count_targets(theirs.graph_module)
    return program


@pytest.mark.parametrize("name", MODELS)
def test_bundled_models_have_the_operators_of_torch(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = MODELS[name].tiny().eval(), MODELS[name].tiny_inputs()
    program = compare_with_torch(model, inputs)
    program.validate()
    want = model(*inputs)
    torch.testing.assert_close(program.module()(*inputs), want)
    core = program.run_decompositions()
    assert not any(n.target in lostwax.default_decompositions() for n in core.graph.nodes)
    torch.testing.assert_close(core.module()(*inputs), want)


@pytest.mark.parametrize("name", ["vit", "llama", "efficientnet"])
def test_dynamic_sizes_files_and_torch(name: str) -> None:
    torch.manual_seed(0)
    example = MODELS[name]
    model, inputs = example.tiny().eval(), example.tiny_inputs()
    dims: dict[str, Any] = {}
    shapes = tuple(
        {at: dims.setdefault(dim, Dim(dim)) for at, dim in each.items()} for each in example.dynamic
    )
    program = export(model, inputs, dynamic_shapes=shapes, keep=COMPOSITE)
    kept = set(count_targets(program.graph_module))
    assert "aten.linear.default" in kept
    file = io.BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    theirs = torch.export.load(file)
    assert {str(n.target) for n in theirs.graph.nodes if n.op == "call_function"} >= kept
    file.seek(0)
    more = [
        torch.cat([x, x[:1]]) if 0 in dims else x for x, dims in zip(inputs, shapes, strict=True)
    ]
    want = model(*more)
    for module in (
        program.module(),
        lostwax.load(file).module(),
        theirs.module(),
        interop.to_torch(program).module(),
        program.run_decompositions().module(),
    ):
        torch.testing.assert_close(module(*more), want)


def test_batch_norm_in_training_writes_its_statistics() -> None:
    """torch keeps `batch_norm` and hides the write; a functional program shows it."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten()
    )
    program = exported(model, torch.randn(2, 3, 5, 5), keep=COMPOSITE)
    kept = targets(program)
    assert "aten.conv2d" in kept
    assert "aten.flatten.using_ints" in kept
    assert "aten._native_batch_norm_legit_functional" in kept
    assert set(program.graph_signature.buffers_to_mutate.values()) == {
        "1.running_mean", "1.running_var", "1.num_batches_tracked",
    }  # fmt: skip
    assert "aten.batch_norm" in targets(
        export(model.eval(), (torch.ones(2, 3, 5, 5),), keep=COMPOSITE)
    )


def test_gradients() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    x = torch.randn(2, 3, 8)
    program = export(model, (x,), keep=COMPOSITE)
    assert "aten.linear" in targets(program)
    got = program.module()
    for each in (model, got):
        each(x).square().sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(got.get_parameter(name).grad, parameter.grad)


def views(self: Any, x: Tensor) -> Any:
    halves = x.movedim(0, 1).tensor_split(2)
    halves[1].mul_(2)
    rows = x.reshape(2, -1)
    rows[0].add_(1)
    same = F.dropout(x.to(torch.float32), 0.5, False)
    same.sub_(1)
    x.clip_(-1, 1)
    return rows, halves[0], same * 1, F.relu6(x.flatten(), inplace=True)


def constants(self: Any, x: Tensor) -> Any:
    return self.constant.flatten().reshape(3, 2) + x.sum(), self.constant.to(torch.float64)


def in_place(self: Any, x: Tensor) -> Any:
    y = x.clone()
    y.multiply_(2).subtract_(1).square_()
    F.dropout(y, 0.5, True, inplace=True)
    return F.selu(y, inplace=True).true_divide_(2)


def numbers(self: Any, x: Tensor) -> Any:
    return (
        torch.broadcast_tensors(x, x[0])[1] * x.sum().item() + torch.meshgrid(x[0], x[1])[0].sum()
    )


def complex_views(self: Any, x: Tensor) -> Any:
    z = torch.complex(x, x + 1).conj()
    return z.real, z.mH.imag, torch.view_as_real(z.resolve_conj())


@pytest.mark.parametrize("forward", [views, constants, in_place, numbers, complex_views])
def test_programs_stay_functional_and_right(forward: Any) -> None:
    module = Of(forward)
    module.constant = torch.randn(2, 3)
    program = exported(module, torch.randn(4, 4), keep=COMPOSITE)
    program.validate()
    assert not any(re.search(r"[a-z0-9]_(\.|$)", name) for name in targets(program))


def test_a_constant_is_not_written_through_a_kept_view() -> None:
    constant = torch.ones(2, 3)
    with pytest.raises(CaptureError, match="is written to, and is no state of the module"):
        export(lambda x: constant.view_as(x).add_(x), (torch.ones(2, 3),), keep=COMPOSITE)
    assert torch.equal(constant, torch.ones(2, 3))


def test_a_write_through_a_kept_view_of_varying_sizes() -> None:
    def forward(x: Tensor) -> Tensor:
        x.movedim(0, 1).unflatten(0, (3, 1))[1].add_(1)
        return x * 2

    x = torch.randn(4, 3, 2)
    program = export(forward, (x.clone(),), dynamic_shapes=({0: Dim("n")},), keep=COMPOSITE)
    for n in (1, 2, 5):
        y = torch.randn(n, 3, 2)
        theirs = y.clone()
        torch.testing.assert_close(program.module()(y), forward(theirs))
        torch.testing.assert_close(y, theirs)


def test_what_is_one_tensor_in_eager_is_not_changed_as_two() -> None:
    def forward(x: Tensor) -> Tensor:
        y = x.to(torch.float32)
        y.unsqueeze_(0)
        return x * 2

    with pytest.raises(CaptureError, match=r"aten\.to\.dtype has returned[\s\S]*one tensor"):
        export(forward, (torch.ones(3),), keep=COMPOSITE)


@pytest.mark.parametrize("dynamic", [False, True])
def test_autocast(dynamic: bool) -> None:
    """Operators that autocast casts are kept, after the casts; what it casts inside of an operator
    is seen, too."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

        def forward(self, x: Tensor) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                y = self.norm(self.linear(x).flatten(1).reshape(-1, 4))
                return y, torch.einsum("ab,cb->ac", x[0], y)

    net, x = Net(), torch.randn(3, 2, 4)
    shapes = ({0: Dim("n")},) if dynamic else None
    program = export(net, (x,), dynamic_shapes=shapes, keep=COMPOSITE)
    kept = targets(program)
    assert {"aten.linear", "aten.layer_norm", "aten.flatten.using_ints"} <= set(kept)
    assert "aten.einsum" not in kept
    for y in (x, torch.randn(5, 2, 4)) if dynamic else (x,):
        for module in (program.module(), program.run_decompositions().module()):
            for got, want in zip(module(y), net(y), strict=True):
                torch.testing.assert_close(got, want)


def test_recurrent_layers_of_any_length() -> None:
    torch.manual_seed(0)
    model = nn.LSTM(3, 4, num_layers=2, batch_first=True)
    x = torch.randn(2, 5, 3)
    program = export(model, (x,), dynamic_shapes=({1: Dim("length")},), keep=COMPOSITE)
    assert "aten.lstm.input" in targets(program)
    for module in (program.module(), program.run_decompositions().module()):
        for length in (1, 5, 7):
            y = torch.randn(2, length, 3)
            torch.testing.assert_close(module(y), model(y))


def test_attention_whose_mask_has_a_gradient_lies_as_in_eager() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.randn(4, 6, 6))

        def forward(self, x: Tensor) -> Tensor:
            q = x.transpose(1, 2)
            out = F.scaled_dot_product_attention(q, q, q, attn_mask=self.bias * 2)
            return out.transpose(1, 2).contiguous().view(2, 6, -1)

    net, x = Net(), torch.randn(2, 6, 4, 8)
    for _ in range(2):  # the second call is known
        module = export(net, (x,), keep=COMPOSITE).module()
        torch.testing.assert_close(module(x), net(x))
        with torch.no_grad():
            torch.testing.assert_close(module(x), net(x))


def test_composite_operators_of_the_users() -> None:
    with torch.library._scoped_library("kept_tests", "FRAGMENT") as library:
        for name in ("twice", "grow"):
            library.define(f"{name}(Tensor x) -> Tensor")
        library.impl("twice", lambda x: F.linear(x, x) * 2, "CompositeImplicitAutograd")
        library.impl("grow", lambda x: x.add_(1) * 2, "CompositeImplicitAutograd")
        program = export(torch.ops.kept_tests.twice, (torch.ones(3, 3),), keep=COMPOSITE)
        assert targets(program) == ["kept_tests.twice"]
        assert "aten.mm" in targets(program.run_decompositions())
        with pytest.raises(CaptureError, match=r"kept_tests\.grow\.default writes to an argument"):
            export(torch.ops.kept_tests.grow, (torch.ones(3),), keep=COMPOSITE)


def test_what_differentiates_inside_is_taken_apart() -> None:
    linear = nn.Linear(3, 3)

    def forward(self: Any, x: Tensor) -> Tensor:
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            (grad,) = torch.autograd.grad(F.gelu(self.linear(y)).sum(), y)
        return self.linear(grad)

    exported(Of(forward, linear=linear), torch.randn(2, 3), keep=COMPOSITE)
