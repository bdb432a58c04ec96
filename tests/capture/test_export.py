"""`export` as a user meets it: inputs, state, names, metadata, what is kept, what is refused."""

from __future__ import annotations

import copy
import dataclasses
import math
import random
import re
import subprocess
import sys
from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from functorch.experimental.control_flow import map as control_flow_map
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

from lostwax.capture import export
from lostwax.errors import (
    CaptureError,
    DataDependentError,
    InputStructureError,
    MissingFakeRuleError,
    NotYetError,
    UnsupportedFakeError,
)
from lostwax.fake import FakeTensor, FakeTensorMode
from lostwax.ir import register_dataclass
from tests.capture.compare import exported


def Of(forward: Any, **state: Any) -> nn.Module:
    """A module made of a function and some state."""
    module = type("Of", (nn.Module,), {"forward": forward})()
    for name, value in state.items():
        setattr(module, name, value)
    return module


def same(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Export, run beside eager, compare; the program."""
    program = export(module, args, kwargs)
    program.validate()
    eager, ours = copy.deepcopy(module), program.module()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        want = eager(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        got = ours(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    torch.testing.assert_close(got, want)
    return program


def targets(program: Any) -> list[str]:
    nodes = program.graph.nodes
    return [str(n.target).removesuffix(".default") for n in nodes if n.op == "call_function"]


def inputs(program: Any) -> list[str]:
    return [n.name for n in program.graph.nodes if n.op == "placeholder"]


X = torch.randn(3, 4)


# ------------------------------------------------------------------------------------ the documents


def test_the_first_program_of_the_document() -> None:
    class Mod(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            a = torch.sin(x)
            b = torch.cos(y)
            return a + b

    program = same(Mod(), torch.randn(10, 10), torch.randn(10, 10))
    assert targets(program) == ["aten.sin", "aten.cos", "aten.add.Tensor"]
    assert inputs(program) == ["x", "y"]
    text = str(program)
    assert 'sin: "f32[10, 10]" = torch.ops.aten.sin.default(x)' in text
    assert "code: a = torch.sin(x)" in text
    assert "Range constraints: {}" in text


def test_the_convolution_of_the_document() -> None:
    class M(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 16, 3, padding=1)
            self.relu = nn.ReLU()
            self.maxpool = nn.MaxPool2d(3)

        def forward(self, x: torch.Tensor, *, constant: Any = None) -> torch.Tensor:
            a = self.conv(x)
            a.add_(constant)
            return self.maxpool(self.relu(a))

    program = same(M(), torch.randn(1, 3, 16, 16), constant=torch.ones(1, 16, 16, 16))
    assert inputs(program) == ["p_conv_weight", "p_conv_bias", "x", "constant"]
    assert targets(program) == [
        "aten.convolution", "aten.add.Tensor", "aten.relu", "aten.max_pool2d_with_indices",
        "<built-in function getitem>",
    ]  # fmt: skip
    signature = program.graph_signature
    assert signature.inputs_to_parameters == {
        "p_conv_weight": "conv.weight",
        "p_conv_bias": "conv.bias",
    }
    assert list(signature.user_inputs) == ["x", "constant"]
    assert list(signature.user_outputs) == ["getitem"]


def test_python_numbers_are_baked_in() -> None:
    def forward(self: Any, x: torch.Tensor, const: int, times: int) -> torch.Tensor:
        for _ in range(times):
            x = x + const
        return x

    program = same(Of(forward), X, 1, 3)
    assert targets(program) == ["aten.add.Tensor"] * 3
    with pytest.raises(ValueError, match=r"2.*3"):
        program.module()(X, 1, 2)


def test_a_single_tensor_is_a_call_with_one_argument() -> None:
    program = export(Of(lambda self, x: x + 10), torch.randn(5))
    assert targets(program) == ["aten.add.Tensor"]


def test_a_context_manager_of_the_users() -> None:
    class Counting:
        count = 0

        def __enter__(self) -> None:
            self.count += 1

        def __exit__(self, *error: object) -> None:
            self.count -= 1

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        with Counting():
            return x.sin() + x.cos()

    same(Of(forward), X)


# --------------------------------------------------------------------------------------------- what


def test_functions_and_methods() -> None:
    module = nn.Linear(4, 2)
    module.scaled = lambda x: x  # type: ignore[assignment]

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x)

    two = Two()
    program = export(two.encode, (X,))
    assert inputs(program) == ["p_linear_weight", "p_linear_bias", "x"]
    torch.testing.assert_close(program.module()(X), two.encode(X))
    program = export(lambda x, y: x * y, (X, X))
    assert inputs(program) == ["x", "y"]
    torch.testing.assert_close(program.module()(X, X + 1), X * (X + 1))


def test_what_comes_later_says_so() -> None:
    for option in ({"strict": True},):
        with pytest.raises(NotYetError, match=f"{next(iter(option))}.* is not supported yet"):
            export(Of(lambda self, x: x), (X,), **option)


def test_bad_calls() -> None:
    with pytest.raises(TypeError, match=r"for one argument write \(x,\)"):
        export(Of(lambda self, x: x), 3)
    with pytest.raises(TypeError, match="not int"):
        export(3, (X,))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the input x is of type object"):
        export(Of(lambda self, x: x), (object(),))


# ------------------------------------------------------------------------------------------- inputs

Point = namedtuple("Point", "a b")


@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor
    name: str = "pair"


register_dataclass(Pair)


def test_pytrees_in_and_out() -> None:
    def forward(self: Any, tree: Any, *rest: Any, point: Any, none: Any = None) -> Any:
        out = OrderedDict(sum=tree["a"][0] + rest[0], point=Point(point.b, point.a))
        return out, [tree["b"], None, 3], (rest[1],)

    tree = {"a": [X, 2], "b": (X + 1,)}
    program = same(Of(forward), tree, X, X * 2, point=Point(X, X - 1))
    names = inputs(program)
    assert names == ["tree_a_0", "tree_a_1", "tree_b_0", "rest_0", "rest_1", "point_a", "point_b"]


def test_dataclasses() -> None:
    program = export(Of(lambda self, p: Pair(p.right, p.left * 2)), (Pair(X, X + 1),))
    assert inputs(program)[:2] == ["p_left", "p_right"]
    out = program.module()(Pair(X, X + 1))
    assert isinstance(out, Pair)
    torch.testing.assert_close(out.right, X * 2)


def test_a_class_registered_without_names_for_its_children() -> None:
    class Held:
        def __init__(self, value: torch.Tensor, factor: int) -> None:
            self.value, self.factor = value, factor

    pytree.register_pytree_node(
        Held, lambda h: ([h.value], h.factor), lambda children, factor: Held(*children, factor)
    )
    program = export(Of(lambda self, h: Held(h.value * h.factor, 3)), (Held(X, 2),))
    assert inputs(program) == ["h_0"]
    out = program.module()(Held(X, 2))
    torch.testing.assert_close(out.value, X * 2)
    with pytest.raises(InputStructureError, match="h is another kind of Held: 3, at capture 2"):
        program.module()(Held(X, 3))


def test_leaf_types() -> None:
    def forward(self: Any, x: Any, dtype: Any, device: Any, layout: Any, mf: Any, text: str) -> Any:
        assert text == "go"
        return x.to(dtype=dtype, device=device, memory_format=mf)

    same(
        Of(forward), X, torch.float64, torch.device("cpu"), torch.strided,
        torch.preserve_format, "go",
    )  # fmt: skip


def test_the_same_tensor_twice() -> None:
    program = export(Of(lambda self, x, y: x + y), (X, X))
    torch.testing.assert_close(program.module()(X, X), X + X)


# -------------------------------------------------------------------------------------------- state


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


def everything(module: nn.Module) -> Any:
    return [
        (
            name,
            sorted(m.__dict__),
            {k: id(v) for k, v in m.__dict__.items() if not isinstance(v, (dict, list, set))},
            [(k, id(v), v._version, v.clone()) for k, v in m._parameters.items() if v is not None],
            [(k, id(v), v._version, v.clone()) for k, v in m._buffers.items() if v is not None],
            copy.deepcopy([m.__dict__.get(k) for k in ("history", "nested", "last")]),
        )
        for name, m in module.named_modules()
    ]


def _registers_a_hook(module: Any) -> None:
    module.inner.register_forward_hook(lambda *_: None)


def _adds_a_child(module: Any) -> None:
    module.inner.child = nn.Identity()


def _renames(module: Any) -> None:
    module.second = module.__dict__.pop("first")


def _replaces_hooks(module: Any) -> None:
    module._forward_hooks = {0: lambda *_: None}


def _fills_what_was_empty(module: Any) -> None:
    module.seen.add(3)
    module.notes["a"] = 1


CHANGES = [_registers_a_hook, _adds_a_child, _renames, _replaces_hooks, _fills_what_was_empty]


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_module_does_to_itself_is_taken_back(change: Callable[[Any], None]) -> None:
    class Restless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.seen: set[int] = set()
            self.notes: dict[str, int] = {}
            self.first = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.inner(x)
            change(self)
            return x

    module = Restless()
    before = [str(m.__dict__) for m in module.modules()]
    export(module, (X,))
    assert [str(m.__dict__) for m in module.modules()] == before


@pytest.mark.parametrize("fails", [False, True])
def test_the_module_is_untouched(fails: bool) -> None:
    class Busy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.register_buffer("count", torch.zeros(()))
            self.calls = 0
            self.history: list[int] = [1]
            self.nested = {"a": [1, {2}]}
            self.last = deque([1], maxlen=2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.history.append(2)
            self.nested["a"].append(3)
            self.nested["a"][1].add(3)
            self.last.append(2)
            self.count = self.count + 1
            self.norm.weight.data.mul_(1)
            x = self.norm(x)
            if fails:
                raise KeyError("on purpose")
            return x

    module = Busy()
    before, state = everything(module), torch.get_rng_state()
    if fails:
        with pytest.raises(KeyError):
            export(module, (X,))
    else:
        export(module, (X,))
    assert str(everything(module)) == str(before)
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.compiler.is_exporting()
    assert not torch.compiler.is_compiling()
    assert not isinstance(torch.empty(1), FakeTensor)
    assert nn.Module.__call__.__qualname__ == "Module._wrapped_call_impl"
    for function in (torch.compile, torch._assert, torch.manual_seed, torch.seed):
        assert "lostwax" not in function.__code__.co_filename
    assert torch.autograd.Function.apply.__module__ == "torch.autograd.function"
    assert torch.backends.mha.get_fastpath_enabled()


def _new_attribute(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.cache = x * 2
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
    self.caches["k"] = x + 1
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
    assert re.search(r'at File ".*test_export.py", line \d+, in _', str(error.value))
    assert (module.none, module.seen, module.caches) == (None, [], {})
    assert module.deep == [{"k": []}]


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


# ---------------------------------------------------------------------------------------- gradients


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
    assert torch.autograd.Function.apply.__module__ == "torch.autograd.function"


# ---------------------------------------------------------------------------------------- operators


def test_random_operators_stay() -> None:
    program = same(Of(lambda self, x: x + torch.rand(4) * torch.randn_like(x)), X)
    assert {"aten.rand", "aten.randn_like"} <= set(targets(program))
    dropped = export(Of(lambda self, x: F.dropout(x, 0.5, training=True)), (X,)).module()
    assert not torch.equal(dropped(X), dropped(X))


def test_random_numbers_are_drawn_in_the_order_of_memory() -> None:
    same(Of(lambda self, x: F.dropout(x.t(), 0.5) + torch.empty(3, 4).t().uniform_()), X)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True)
    same(layer, torch.randn(2, 5, 4))


def test_keep_leaves_composites_whole() -> None:
    aten = torch.ops.aten
    net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    program = export(net, (X,), keep=[aten.linear.default, aten.layer_norm.default])
    assert targets(program) == ["aten.linear", "aten.layer_norm", "aten.linear"]
    torch.testing.assert_close(program.module()(X), net(X))
    q = torch.randn(2, 2, 5, 8)
    program = export(
        Of(lambda self, q: F.scaled_dot_product_attention(q, q, q)), (q,),
        keep=[aten.scaled_dot_product_attention.default],
    )  # fmt: skip
    assert targets(program) == ["aten.scaled_dot_product_attention"]
    program = export(nn.Conv2d(3, 4, 3), (torch.randn(1, 3, 8, 8),), keep=[aten.conv2d.default])
    assert targets(program) == ["aten.conv2d"]


def test_what_writes_unseen_is_not_kept() -> None:
    keep = [torch.ops.aten.batch_norm.default]
    norm = nn.BatchNorm1d(4)
    with pytest.raises(CaptureError, match=r"cannot be kept[\s\S]*training[\s\S]*eval\(\)"):
        export(norm, (X,), keep=keep)
    assert targets(export(norm.eval(), (X,), keep=keep)) == ["aten.batch_norm"]
    aten = torch.ops.aten
    module = nn.InstanceNorm1d(4, track_running_stats=True)
    with pytest.raises(CaptureError, match=r"aten\.instance_norm\.default cannot be kept"):
        export(module, (torch.ones(2, 4, 3),), keep=[aten.instance_norm.default])
    for wrong in ([aten.linear], ["linear"], aten.linear.default):
        with pytest.raises(TypeError, match=r"keep= takes a list[\s\S]*linear\.default"):
            export(nn.Linear(4, 4), (X,), keep=wrong)


def test_unread_operators_are_left_out() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        _ = x.cos() @ x.t()
        return x.sin()

    assert targets(same(Of(forward), X)) == ["aten.sin"]


@torch.library.custom_op("lostwax_test::scaled", mutates_args=())
def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
    return x * by


@scaled.register_fake
def _(x: torch.Tensor, by: float) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("lostwax_test::unknown", mutates_args=())
def unknown(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@torch.library.custom_op("lostwax_test::bump", mutates_args={"x"})
def bump(x: torch.Tensor, by: torch.Tensor) -> None:
    x.add_(by)


@torch.library.custom_op("lostwax_test::told", mutates_args=())
def told(x: torch.Tensor) -> None:
    pass


@torch.library.custom_op("lostwax_test::halve", mutates_args={"x", "more"})
def halve(x: torch.Tensor, more: list[torch.Tensor], factor: float = 0.5) -> torch.Tensor:
    for each in (x, *more):
        each.mul_(factor)
    return x.sum()


@halve.register_fake
def _(x: torch.Tensor, more: list[torch.Tensor], factor: float = 0.5) -> torch.Tensor:
    return x.new_empty(())


def _writes(self: Any, x: torch.Tensor) -> Any:
    bump(x, x * 2)
    y = x * 3
    bump(y[0], x[1])
    total = halve(self.state, [x[1:], y])
    return y, total, self.state * 1


def test_custom_operators_that_write_are_functional() -> None:
    module = nn.Module()
    module.register_buffer("state", torch.ones(4))
    module.forward = _writes.__get__(module)  # type: ignore[method-assign]
    program = exported(module, X.clone())
    program.validate()
    assert targets(program).count("auto_functionalized") == 3
    assert "aten.clone" not in targets(program)
    again = export(program.module(), (X.clone(),))
    ours, eager = X.clone(), X.clone()
    torch.testing.assert_close(again.module()(ours), copy.deepcopy(module)(eager))
    torch.testing.assert_close(ours, eager)


def test_custom_operators_that_see_their_writes_are_refused() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        bump(x[:2], x[:2].t())
        return x

    text = r"writes to memory that its arguments x and by share[\s\S]*test_export.py[\s\S]*clone"
    with pytest.raises(CaptureError, match=text):
        export(forward, (torch.ones(4, 2),))

    def apart(x: torch.Tensor) -> torch.Tensor:
        bump(x[:2], x[2:])
        return x * 1

    same(Of(lambda self, x: apart(x.clone())), torch.ones(4, 2))


def test_a_custom_operator_that_returns_nothing_needs_no_fake_kernel() -> None:
    program = export(lambda x: (told(x), x + 1)[1], (X,))
    torch.testing.assert_close(program.module()(X), X + 1)


def test_measuring_is_no_part_of_a_program() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.profiler.record_function("part"):
            return x + 1

    assert targets(same(Of(forward), X)) == ["aten.add.Tensor"]


def test_distributions_check_their_arguments_when_the_program_runs() -> None:
    def forward(self: Any, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        return torch.distributions.Normal(mean, std).rsample()

    program = same(Of(forward), X, X.abs() + 1)
    with pytest.raises(RuntimeError, match=r"is required at .*test_export.py:\d+ in forward"):
        program.module()(X, -X.abs() - 1)


def test_random_numbers_of_python_are_told_of_and_put_back() -> None:
    for draw in (random.random, np.random.rand):
        before, array = random.getstate(), np.random.get_state()[1].copy()
        with pytest.warns(UserWarning, match=r"random; the number is baked into"):
            export(lambda x, draw=draw: x * float(draw()), (X,))
        assert random.getstate() == before
        assert (np.random.get_state()[1] == array).all()


def test_literals_that_are_returned_are_new_in_each_run() -> None:
    def forward(self: Any, x: torch.Tensor) -> Any:
        literal = torch.tensor([1.0, 2.0])
        return literal, literal[1:], x

    module = export(Of(forward), (X,)).module()
    whole, part, _ = module(X)
    whole.add_(1)
    assert part.tolist() == [3.0]
    assert module(X)[0].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, z: z.conj().imag,
        lambda self, z: z[1:].conj()[1:].real + z.conj().conj().imag[2:],
        lambda self, z: torch.view_as_real(z.conj().resolve_conj()),
        lambda self, z: z.clone().conj().imag.mul_(2),
    ],
)
def test_conjugates_that_torch_has_not_computed_yet(forward: Any) -> None:
    same(Of(forward), torch.randn(4, dtype=torch.complex64))


def test_seeds_and_generators_are_refused() -> None:
    before = torch.get_rng_state()
    for forward in (
        lambda x: (torch.manual_seed(3), x)[1],
        lambda x: (torch.set_rng_state(torch.get_rng_state()), x)[1],
        lambda x: torch.rand(3, generator=torch.Generator().manual_seed(1)) + x,
    ):
        with pytest.raises(CaptureError, match=r"no random generator[\s\S]*test_export.py"):
            export(forward, (torch.ones(3),))
    assert torch.equal(before, torch.get_rng_state())


def test_names_that_python_has_and_names_that_collide() -> None:
    def forward(input: torch.Tensor, d: Any) -> torch.Tensor:
        input.add_(1)
        d["a"]["b"].mul_(2)
        return input + d["a_b"]

    args = (X.clone(), {"a_b": X + 1, "a": {"b": X + 2}})
    program = export(forward, copy.deepcopy(args))
    program.validate()
    ours, eager = copy.deepcopy(args), copy.deepcopy(args)
    torch.testing.assert_close(program.module()(*ours), forward(*eager))
    torch.testing.assert_close(ours, eager)
    assert inputs(program)[0] == "input"


def test_arguments_named_as_the_generated_code_speaks() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("lifted_tensor_0", torch.ones(4))

        def forward(this, self, slice, device, c_lifted_tensor_0):
            return (
                self
                + slice * device
                - c_lifted_tensor_0
                + torch.full((4,), 2.0)
                * (torch.tensor([1.0, 2.0, 3.0, 4.0]) + this.lifted_tensor_0)
            )

    args = (X, X + 1, X + 2, X + 3)
    program = export(Odd(), args)
    program.validate()
    torch.testing.assert_close(program.module()(*args), Odd()(*args))
    torch.testing.assert_close(export(program.module(), args).module()(*args), Odd()(*args))


def test_custom_operators_are_single_nodes() -> None:
    program = same(Of(lambda self, x: scaled(x + 1, 2.0)), X)
    assert targets(program) == ["aten.add.Tensor", "lostwax_test.scaled"]
    with pytest.raises(MissingFakeRuleError, match="lostwax_test::unknown") as error:
        export(Of(lambda self, x: unknown(x)), (X,))
    assert "test_export.py" in str(error.value)


# ----------------------------------------------------------------------------------------- refusals


def branch(self: Any, x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x
    return -x


@pytest.mark.parametrize(
    "forward",
    [branch, lambda self, x: x if x.sum().item() > 3 else -x, lambda self, x: x.numpy()],
)
def test_data_dependent_python_is_refused_with_the_line(forward: Any) -> None:
    with pytest.raises((DataDependentError, RuntimeError)) as error:
        export(Of(forward), (X,))
    assert "test_export.py" in str(error.value)


def _loop(self: Any, x: torch.Tensor) -> Any:
    return while_loop(lambda v: v.sum() < 9, lambda v: (v + 1,), (x,))


CONTROL: dict[str, tuple[Any, str]] = {
    "torch.cond": (
        lambda self, x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
        r"torch.where\(predicate, a, b\)",
    ),
    "while_loop": (_loop, "fixed number of steps"),
    "map": (lambda self, x: control_flow_map(torch.sin, x), "torch.vmap"),
    "scan": (
        lambda self, x: scan(lambda carry, row: (carry + row, carry * row), x[0], x),
        r"x.unbind\(0\)",
    ),
    "cond": (
        lambda self, x: torch.ops.higher_order.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
        "torch.where",
    ),
}


@pytest.mark.parametrize("name", CONTROL)
def test_control_flow_is_refused_with_the_line(name: str) -> None:
    forward, instead = CONTROL[name]
    with pytest.raises(NotYetError, match=rf"{name} in a program.*not supported yet") as error:
        export(Of(forward, layer=nn.Linear(4, 4)), (X,))
    message = str(error.value)
    assert "test_export.py" in message
    assert "why: operators that take functions come with a later version" in message
    assert re.search(f"until then: .*{instead}", message)
    assert torch.compile.__module__ == "torch"


def test_torch_compile_is_looked_through() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.compile(torch.sin)(x) + torch.compile(fullgraph=True)(torch.cos)(x)

    assert targets(export(Of(forward), (X,))) == ["aten.sin", "aten.cos", "aten.add.Tensor"]


def test_a_result_that_is_no_pytree_is_refused() -> None:
    with pytest.raises(TypeError, match="the result 1 is of type object"):
        export(Of(lambda self, x: (x, object())), (X,))


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: x.apply_(lambda v: v + 1),
        lambda self, x: x.map_(x, lambda a, b: a + b),
        lambda self, x: torch.from_dlpack(x),
        lambda self, x: f"{x.sum():.2f}",
    ],
)
def test_what_would_read_memory_is_refused(forward: Any) -> None:
    with pytest.raises(UnsupportedFakeError, match=r"needs the data of[\s\S]*at test_export.py"):
        export(Of(forward), (X,))


def test_scalar_tensors_are_computed_by_the_program() -> None:
    program = same(Of(lambda self, x: torch.ops.aten.scalar_tensor(2.0) + x), X)
    assert targets(program) == ["aten.scalar_tensor", "aten.add.Tensor"]


def test_classes_that_decide_what_operators_do_are_refused() -> None:
    class Logged(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return super().__torch_function__(func, types, args, kwargs or {})

    wrapped = TwoTensor(X, X)
    for value in (wrapped, X.as_subclass(Logged)):
        name = type(value).__name__
        with pytest.raises(UnsupportedFakeError, match=rf"class .*{name} cannot[\s\S]*instead"):
            export(Of(lambda self, x: x + 1), (value,))
    with pytest.raises(UnsupportedFakeError, match="class TwoTensor cannot"):
        export(Of(lambda self, x: x + wrapped), (X,))
    with pytest.raises(UnsupportedFakeError, match="deals with quantized tensors"):
        export(lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), (X,))


def test_sparse_inputs_are_refused() -> None:
    with pytest.raises(RuntimeError, match="strided"):
        export(Of(lambda self, x: x), (torch.eye(3).to_sparse(),))


# ----------------------------------------------------------------------------------------- metadata


def test_metadata_of_nodes() -> None:
    net = nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.ReLU())
    program = export(net, (X,))
    addmm = next(n for n in program.graph.nodes if n.name == "addmm")
    assert isinstance(addmm.meta["val"], FakeTensor)
    assert tuple(addmm.meta["val"].shape) == (3, 4)
    assert list(addmm.meta["nn_module_stack"].values()) == [
        ("", "torch.nn.modules.container.Sequential"),
        ("0", "torch.nn.modules.container.Sequential"),
        ("0.0", "torch.nn.modules.linear.Linear"),
    ]
    assert addmm.meta["source_fn_stack"][-1][1] is nn.Linear
    relu = next(n for n in program.graph.nodes if n.name == "relu")
    assert relu.meta["source_fn_stack"][-1][1] is nn.ReLU

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return helper(x)

    program = export(Of(forward), (X,))
    trace = next(n for n in program.graph.nodes if n.op == "call_function").meta["stack_trace"]
    lines = trace.splitlines()
    assert 'test_export.py", line' in lines[-2]
    assert lines[-1].strip() == "return x.sin()"
    assert any("return helper(x)" in line for line in lines)


def helper(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


def test_a_mask_is_used_whether_it_is_causal_or_not() -> None:
    model = nn.Transformer(4, 2, 1, 1, 8, batch_first=True).eval()
    x, causal = torch.randn(2, 5, 4), nn.Transformer.generate_square_subsequent_mask(5)
    program = export(model, (x, x), {"tgt_mask": causal}).module()
    for mask in (causal, causal.t(), torch.zeros(5, 5)):
        torch.testing.assert_close(program(x, x, tgt_mask=mask), model(x, x, tgt_mask=mask))


def test_the_truth_of_a_number_is_refused_with_a_way_out() -> None:
    text = r"cannot decide[\s\S]*test_export.py[\s\S]*torch\.where\(condition, a, b\)"
    with pytest.raises(DataDependentError, match=text):
        export(lambda x: x if x[0, 0] else -x, (X,))
    same(Of(lambda self, x: x if torch.tensor(2.0) else -x), X)


def test_deep_copies_are_copies() -> None:
    def forward(self: Any, batch: Any) -> Any:
        mine = copy.deepcopy(batch)
        mine["x"].add_(1)
        return mine, batch["x"] * 2

    same(Of(forward), {"x": X, "n": 3})


def test_a_literal_of_computed_values_is_refused_with_a_way_out() -> None:
    with pytest.raises(TypeError, match=r"test_export.py[\s\S]*torch.stack"):
        export(lambda x: torch.tensor([x.sum(), x.mean()]), (X,))


def test_the_function_that_the_user_called_is_the_source_of_its_parts() -> None:
    program = export(lambda x, w: F.linear(x, w), (X, X))
    for node in program.graph.nodes:
        if node.op == "call_function":
            assert node.meta["source_fn_stack"] == [("linear", F.linear)]


def test_names_that_files_cannot_have() -> None:
    program = export(lambda größe, x: größe + x, (X, X))
    assert inputs(program) == ["gr__e", "x"]
    program.module()(größe=X, x=X)


def test_capturing_says_that_it_is_exporting() -> None:
    seen = []

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.compiler.is_exporting())
        return x

    export(Of(forward), (X,))
    assert seen == [True]


def test_programs_are_reproducible() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    assert str(export(net, (X,))) == str(export(net, (X,)))


def test_the_exported_module_exports_again() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    first = export(net, (X,))
    second = export(first.module(), (X,))
    assert targets(first) == targets(second)


def test_no_peer_is_imported() -> None:
    code = (
        "import sys, torch; from lostwax.capture import export\n"
        "export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))\n"
        "assert 'torch._dynamo' not in sys.modules, 'dynamo'\n"
        "assert 'sympy' not in sys.modules, 'sympy'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_checks_on_data_are_asserted_at_run_time() -> None:
    def sized(x: torch.Tensor) -> torch.Tensor:
        n = x.sum().item()
        torch._check(n >= 2)
        torch._check(n <= 20)
        return torch.zeros(n, 3)

    program = export(sized, (torch.tensor([1, 2, 3]),))
    program.validate()
    module = program.module()
    assert module(torch.tensor([2, 2, 3])).shape == (7, 3)
    for data in ([0, 1, 0], [20, 20, 20]):
        with pytest.raises(RuntimeError, match=r"u0 .= \d+ is required at test_export.py"):
            module(torch.tensor(data))


NUMBERS: dict[str, Any] = {
    "a factor": lambda x, y: x * y.item(),
    "a fill": lambda x, y: torch.full((2,), y.item()) + x.clone().fill_(y.item()).sum(),
    "arithmetic": lambda x, y: x * (y.item() * 2 + 1) / (y.item() - 0.25) - y.item() ** 2,
    "an option": lambda x, y: torch.add(x, x, alpha=y.item()).clamp(-y.item(), y.item()),
    "functions": lambda x, y: x * torch._sym_sqrt(y.item()) + torch._sym_sin(-y.item()),
    "extrema": lambda x, y: x * torch.sym_max(y.item(), 3.0) + torch.sym_min(y.item(), 1.0),
    "rounded": lambda x, y: x * round(y.item()) + round(y.item(), 1) + math.floor(y.item()),
    "a size": lambda x, y: torch.ones(math.ceil(y.item())),
    "of an int": lambda x, y: x * (y.int().item() / 2) + float(x.numel()),
    "both": lambda x, y: x * (y.item() + y.int().item()),
    "a truth": lambda x, y: (x * (y > 1).item(), torch.full((2,), (y > 1).item())),
    "compared": lambda x, y: (x * (y.item() < 3), y.item() == 2.5, y.item() != 2.5),
    "chosen": lambda x, y: x * torch.sym_ite(y.item() > 1, 2, 3),
    "results": lambda x, y: (y.item(), y.item() * 2, (y > 1).item(), y.int().item()),
    "a list": lambda x, y: sum(x.tolist()) * x,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_out_of_tensors(name: str) -> None:
    function = NUMBERS[name]
    x = torch.randn(3)
    program = export(function, (x, torch.tensor(2.5)))
    program.validate()
    assert str(program)
    for value in (2.5, 4.25, 0.75):
        y = torch.tensor(value)
        torch.testing.assert_close(program.module()(x, y), function(x, y))


def test_checks_on_floats_are_asserted_at_run_time() -> None:
    def scaled_by(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch._check(y.item() * 2 <= 10.0)
        return x / y.item()

    module = export(scaled_by, (X, torch.tensor(2.5))).module()
    torch.testing.assert_close(module(X, torch.tensor(4.0)), X / 4)
    with pytest.raises(RuntimeError, match=r"required at test_export.py:\d+ in scaled_by"):
        module(X, torch.tensor(6.0))


def test_a_float_that_python_needs_is_refused_with_the_line() -> None:
    with pytest.raises(DataDependentError, match=r"asked at test_export.py:\d+ in <lambda>"):
        export(lambda x, y: x * math.frexp(y.item())[0], (X, torch.tensor(2.5)))


def test_a_single_truth_is_a_mask() -> None:
    def both(x: torch.Tensor, keep: torch.Tensor) -> Any:
        y = x.clone()
        y[keep] = 7.0
        return x[keep], y

    module = export(both, (X, torch.tensor(True))).module()
    for truth in (True, False):
        keep = torch.tensor(truth)
        torch.testing.assert_close(module(X, keep), both(X, keep))


def test_a_single_integer_is_an_index() -> None:
    def at(x: torch.Tensor, i: torch.Tensor) -> Any:
        torch._assert((i < 2**40).all(), "too far")
        y = x.clone()
        y[i] = 0
        return x[i], x[:, i], x[i, torch.tensor([0, 1])], y

    module = export(at, (X, torch.tensor(1))).module()
    for number in (0, 2, -1):
        i = torch.tensor(number)
        torch.testing.assert_close(module(X, i), at(X, i))
    with pytest.raises(RuntimeError, match=r"required at test_export.py"):
        module(X, torch.tensor(-9))


def test_slices_to_a_place_that_data_know() -> None:
    module = export(lambda x, i: (x[:i], x[i:]), (X, torch.tensor(1))).module()
    for number in (0, 2, 3):
        torch.testing.assert_close(module(X, torch.tensor(number)), (X[:number], X[number:]))
