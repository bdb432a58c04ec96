"""The provided passes: each against eager execution, with fixed and with dynamic sizes."""

from __future__ import annotations

import copy
import math
import operator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lostwax
from examples.models import MODELS
from lostwax.errors import PassError
from lostwax.fake.tensor import new_fake
from lostwax.passes import (
    CommonSubexpressions,
    ConstantFolding,
    ConvertDtype,
    DeadCode,
    Decompose,
    FoldBatchNorm,
    FxPass,
    MoveToDevice,
    NoOps,
    Pipeline,
    ReplacePattern,
    RuntimeAssertions,
    UnusedState,
)
from tests.ir.build import Builder

aten = torch.ops.aten
BATCH = ({0: lostwax.Dim("batch")},)


def calls(program):
    return [n.name for n in program.graph.nodes if n.op == "call_function"]


def same(after, model, *batches):
    """The program computes what the module does, call after call, as state is written."""
    module, eager = after.module(), copy.deepcopy(model)
    for args in batches:
        torch.manual_seed(0)
        wanted = eager(*args)
        torch.manual_seed(0)
        torch.testing.assert_close(module(*args), wanted)
    for name, value in eager.named_buffers():
        if name in after.graph_signature.buffers:
            torch.testing.assert_close(module.get_buffer(name), value)


def function(f, **buffers):
    """A module of a function; its tensors are buffers."""

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            for name, value in buffers.items():
                if isinstance(value, nn.Parameter):
                    self.register_parameter(name, value)
                else:
                    self.register_buffer(name, value)

        def forward(self, *args):
            return f(self, *args)

    return Module()


# ----------------------------------------------------------------------------------- dead code


def test_dead_code_goes_and_what_acts_stays():
    def f(self, x):
        torch.rand(2)
        self.count += 1
        return x + torch.rand(3)

    model = function(f, count=torch.zeros(()))
    program = lostwax.export(model, (torch.ones(3),))

    def add_dead(module):
        (x,) = (n for n in module.graph.nodes if n.name == "args_0")
        with module.graph.inserting_before(module.graph.output_node()):
            node = module.graph.call_function(aten.sin.default, (x,))
            module.graph.call_function(aten.cos.default, (node,))

    after = Pipeline((add_dead, DeadCode()))(program)
    assert calls(after) == calls(program)
    assert sum("rand" in name for name in calls(after)) == 2
    same(after, model, (torch.ones(3),), (torch.ones(3),))


# --------------------------------------------------------------------------------------- no-ops


def no_ops(x):
    y = x.sin()
    z = y.expand(y.shape)[:].view(y.shape).permute(0, 1).clone()
    w = (z.to(torch.float32, copy=True) * 1 - 0).repeat(1, 1)
    return torch.cat([w]).cos()


@pytest.mark.parametrize("shapes", [None, BATCH], ids=["static", "dynamic"])
def test_no_ops_go(shapes):
    program = lostwax.export(no_ops, (torch.randn(3, 4),), dynamic_shapes=shapes)
    after = Pipeline((NoOps(), DeadCode()))(program)
    assert calls(after) == ["sin", "cos"]
    for n in (3,) if shapes is None else (3, 1, 0, 5):
        x = torch.randn(n, 4)
        torch.testing.assert_close(after.module()(x), no_ops(x))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.t().clone(),  # other strides
        lambda x: x.detach().sin(),  # stops gradients
        lambda x: x[:, ::2] * 1.5,
        lambda x: x.to(torch.float64),
        lambda x: (x.to(torch.complex64) * float("inf")) * 1,  # of which the imaginary part is nan
        lambda x: (x - 0.5) + 0,  # may turn -0.0 into 0.0
    ],
)
def test_what_changes_something_stays(f):
    program = lostwax.export(f, (torch.ones(4, 4),))
    assert calls(Pipeline((NoOps(),))(program)) == calls(program)


def test_memory_is_not_shared_where_it_was_not():
    def f(self, x):
        y = x.sin()
        return x.clone(), y, y.clone(), self.w.clone(), x[:], x.cos().clone()

    model = function(f, w=torch.ones(2))
    x = torch.ones(3)
    program = lostwax.export(model, (x,))
    module = Pipeline((NoOps(), DeadCode()))(program).module()
    results = module(x)
    owners = [t.untyped_storage().data_ptr() for t in (x, module.w, *results)]
    assert len(set(owners)) == len(owners) - 1  # x[:] is a view of x
    assert results[4] is not x
    assert calls(Pipeline((NoOps(),))(program))[-1] == "cos"  # a copy of what nobody else sees


def test_memory_is_seen_through_a_gradient_of_its_own():
    def f(self, x):
        y = torch.zeros_like(x)
        z = x * self.w
        z.data = y.clone()
        return z, y

    program = lostwax.export(function(f, w=nn.Parameter(torch.ones(3))), (torch.ones(3),))
    assert any("with_gradient" in name for name in calls(program))
    z, y = Pipeline((NoOps(),))(program).module()(torch.ones(3))
    assert z.data_ptr() != y.data_ptr()


def test_a_written_buffer_and_its_copy():
    def f(self, x):
        old = self.state.clone()
        self.state.copy_(x)
        return old, self.state.clone()

    model = function(f, state=torch.zeros(3))
    program = lostwax.export(model, (torch.ones(3),))
    after = Pipeline((NoOps(), CommonSubexpressions(), DeadCode()))(program)
    same(after, model, (torch.ones(3),), (torch.full((3,), 2.0),))
    module = after.module()
    old, new = module(torch.ones(3))
    module(torch.zeros(3))
    assert (old.sum(), new.sum()) == (0, 3)


# ------------------------------------------------------------------------------ constant folding


class Tables(nn.Module):
    """Computes with tables that are the same at each call."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.randn(4))
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        self.seen += 1
        angles = torch.arange(4).float().cos()
        noise = torch.rand(4) * 0
        weight = self.linear.weight * self.scale.exp()[:, None]
        return F.linear(x, weight, self.linear.bias) + angles + self.seen.sqrt() + noise


@pytest.mark.parametrize("shapes", [None, BATCH], ids=["static", "dynamic"])
def test_constants_are_folded(shapes):
    model = Tables()
    program = lostwax.export(model, (torch.randn(3, 4),), dynamic_shapes=shapes)
    after = Pipeline((ConstantFolding(), UnusedState()))(program)
    left = calls(after)
    assert not any(n.startswith(("arange", "cos", "exp", "mul_1")) for n in left)
    assert {"rand", "sqrt"} <= set(left)
    assert set(after.state_dict) == {"linear.bias", "seen"}
    assert "linear.weight" in program.state_dict
    same(after, model, *((torch.randn(n, 4),) for n in ((3, 3) if shapes is None else (3, 1, 7))))


def test_limits_of_folding():
    model = Tables()
    program = lostwax.export(model, (torch.randn(3, 4),))
    kept = calls(ConstantFolding(limit=16)(program))
    assert "exp" not in kept
    assert any(n.startswith("mul") for n in kept)  # 64 bytes
    assert "exp" in calls(ConstantFolding(parameters=False)(program))
    big = lostwax.export(lambda x: x + torch.zeros(1000, 1000).sum(), (torch.ones(()),))
    assert ConstantFolding()(big).constants == {}
    assert len(ConstantFolding(growth=2**23)(big).constants) == 1


def test_what_is_returned_is_not_folded():
    def f(self, x):
        return self.w * 2, (self.w * 3).view(2, 2), x + self.w * 4

    program = lostwax.export(function(f, w=torch.ones(4)), (torch.ones(4),))
    after = ConstantFolding()(program)
    assert calls(after) == ["mul", "mul_1", "view", "add"]
    first, second = after.module()(torch.ones(4))[:2]
    first.zero_()
    second.zero_()
    assert after.module()(torch.ones(4))[0].sum() == 8


def test_state_that_shares_memory_with_what_is_written_is_not_folded():
    whole, b = torch.zeros(4), Builder()
    parts = [b.buffer("whole", whole), b.buffer("part", whole[:2])]
    x = b.input("x", torch.ones(2))
    b.write(parts[0], b.call(aten.add.Tensor, parts[0], 1))
    program = b.program(b.call(aten.add.Tensor, x, b.call(aten.mul.Tensor, parts[1], 2)))
    module = ConstantFolding()(program).module()
    assert [module(torch.ones(2))[0].item() for _ in range(3)] == [1, 3, 5]


def test_nothing_is_folded_without_data():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2))
        program = lostwax.export(lambda x: model(x) + model[0].bias * 2, (torch.ones(1, 2),))
    assert calls(ConstantFolding()(program)) == calls(program)


# ---------------------------------------------------------------------------------- batch norm


def randomised(model):
    """Statistics and weights that are not those of a new norm."""
    torch.manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            if module.affine:
                module.weight.data.normal_()
                module.bias.data.normal_()
    return model.eval()


@pytest.mark.parametrize(
    ("layers", "size"),
    [
        ((nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), (2, 3, 6, 6)),
        ((nn.Conv2d(4, 8, 3, groups=2, bias=False), nn.BatchNorm2d(8)), (2, 4, 6, 6)),
        ((nn.ConvTranspose2d(4, 6, 3, groups=2), nn.BatchNorm2d(6)), (2, 4, 6, 6)),
        ((nn.Conv1d(3, 4, 2), nn.BatchNorm1d(4, affine=False)), (2, 3, 6)),
        ((nn.Conv3d(2, 3, 2, bias=False), nn.BatchNorm3d(3)), (1, 2, 4, 4, 4)),
        ((nn.Linear(5, 4), nn.BatchNorm1d(4)), (3, 5)),
        ((nn.Linear(5, 4, bias=False), nn.BatchNorm1d(4)), (3, 5)),
        ((nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4)), (2, 3, 6, 6)),
    ],
    ids=lambda v: "" if isinstance(v[0], int) else "-".join(type(m).__name__ for m in v),
)
def test_batch_norms_are_folded(layers, size):
    model = randomised(nn.Sequential(*layers))
    for shapes in (None, BATCH):
        program = lostwax.export(model, (torch.randn(size),), dynamic_shapes=shapes)
        after = Pipeline((FoldBatchNorm(), DeadCode(), UnusedState()))(program)
        assert not any("batch_norm" in name for name in calls(after))
        assert set(after.state_dict) == {"0.weight", "0.bias"}
        assert all(isinstance(p, nn.Parameter) for p in after.parameters())
        same(after, model, (torch.randn(size),))
    before = copy.deepcopy(model).state_dict()
    assert all(torch.equal(v, program.state_dict[k]) for k, v in before.items())


@pytest.mark.parametrize("bias", [True, False])
def test_norms_are_folded_into_operators_that_were_kept_whole(bias):
    """As in programs of torch.export."""
    layers = nn.Conv2d(4, 6, 3, groups=2, bias=bias), nn.BatchNorm2d(6)
    model = randomised(nn.Sequential(*layers, nn.ConvTranspose2d(6, 4, 2, groups=2, bias=bias)))
    model.append(randomised(nn.BatchNorm2d(4)))
    x = torch.randn(2, 4, 6, 6)
    keep = (aten.conv2d.default, aten.conv_transpose2d.input)
    program = lostwax.export(model, (x,), keep=keep)
    after = Pipeline((FoldBatchNorm(), UnusedState()))(program)
    assert [n.target for n in after.graph.nodes if n.op == "call_function"] == list(keep)
    same(after, model, (x,))


def test_norms_in_training_and_shared_results_stay():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

        def forward(self, x):
            y = self.conv(x)
            return y + self.bn(y)

    for model in (randomised(Residual()), nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))):
        program = lostwax.export(model, (torch.randn(2, 3, 4, 4),))
        assert calls(FoldBatchNorm()(program)) == calls(program)


def test_a_weight_that_others_read_stays():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
            self.tied = nn.Conv2d(3, 3, 1, bias=False)
            self.tied.weight = self.conv.weight

        def forward(self, x):
            return self.bn(self.conv(x)) + self.tied(x)

    model = randomised(Tied())
    program = lostwax.export(model, (torch.randn(2, 3, 4, 4),))
    after = Pipeline((FoldBatchNorm(), UnusedState()))(program)
    assert after.state_dict["conv.weight"] is model.conv.weight
    assert after.state_dict["tied.weight"] is model.conv.weight
    assert "conv.weight_folded" in after.state_dict
    same(after, model, (torch.randn(2, 3, 4, 4),))


def test_a_tied_weight_that_is_an_input_twice():
    """As in programs of torch.export."""
    b, weight = Builder(), nn.Parameter(torch.randn(2, 2))
    tied = [b.parameter(name, weight) for name in ("a", "b")]
    mean, var = b.buffer("mean", torch.randn(2)), b.buffer("var", torch.rand(2) + 1)
    x = b.input("x", torch.randn(3, 2))
    y, z = (b.call(aten.mm.default, x, w) for w in tied)
    norm = aten._native_batch_norm_legit_no_training.default
    y = b.item(b.call(norm, y, None, None, mean, var, 0.1, 1e-5), 0)
    program = b.program((y, z))
    after = FoldBatchNorm()(program)
    assert not any("batch_norm" in name for name in calls(after))
    given = torch.randn(3, 2)
    torch.testing.assert_close(after.module()(given), program.module()(given))


# --------------------------------------------------------------------------------- unused state


def test_unused_state_goes_under_all_its_names():
    class Partial(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
            self.c.weight = self.b.weight
            self.register_buffer("seen", torch.zeros(2))
            self.register_buffer("other", torch.zeros(2), persistent=False)

        def forward(self, x, y):
            self.seen.copy_(x[0])
            return self.a(x)

    model, args = Partial(), (torch.ones(3, 2), torch.ones(1))
    program = lostwax.export(model, args)
    after = UnusedState()(program)
    assert set(after.state_dict) == {"a.weight", "a.bias", "seen"}
    assert after.constants == {}
    assert after.graph_signature.user_inputs == ("x", "y")
    same(after, model, args)


# --------------------------------------------------------------------------------------- device


class Placed(nn.Module):
    """Names devices, ties weights, has a constant and a buffer that it writes."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)
        self.two.weight = self.one.weight
        whole = torch.arange(6.0)
        self.register_buffer("whole", whole)
        self.register_buffer("part", whole[3:])
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        self.seen += 1
        y = self.two(self.one(x)) + torch.arange(3, device="cpu") + torch.tensor([1.0, 2.0, 3.0])
        return y + torch.zeros(3) + self.part * self.whole[:3] + self.seen


@pytest.mark.parametrize("location", ["meta", torch.device("meta"), {"cpu": "meta"}])
def test_all_of_a_program_moves(location):
    model, x = Placed(), torch.randn(2, 3)
    program = lostwax.export(model, (x,), dynamic_shapes=BATCH)
    text = str(program)
    after = lostwax.move_to_device_pass(program, location)
    meta = torch.device("meta")
    assert {t.device for t in (*after.state_dict.values(), *after.constants.values())} == {meta}
    assert isinstance(after.state_dict["one.weight"], nn.Parameter)
    assert after.state_dict["one.weight"] is after.state_dict["two.weight"]
    assert {
        n.meta["val"].device for n in after.graph.nodes if hasattr(n.meta["val"], "device")
    } == {meta}
    named = [n.kwargs["device"] for n in after.graph.nodes if "device" in n.kwargs]
    assert named
    assert set(named) == {meta}
    assert after.example_inputs[0][0].device == meta
    result = after.module()(torch.empty(5, 3, device="meta"))
    assert (result.shape, result.device) == ((5, 3), meta)
    assert str(program) == text
    assert program.state_dict["one.weight"].device == torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a device that is not here is needed")
def test_a_device_that_is_not_here_is_refused():
    program = lostwax.export(nn.Linear(2, 2), (torch.ones(1, 2),))
    with pytest.raises(PassError, match="nothing can be moved to cuda here: "):
        lostwax.move_to_device_pass(program, "cuda")


def test_a_program_moved_to_where_it_is():
    model, x = Placed(), torch.randn(2, 3)
    program = lostwax.export(model, (x,))
    after = MoveToDevice("cpu")(program)
    state = after.state_dict
    assert state["part"].untyped_storage().data_ptr() == state["whole"].untyped_storage().data_ptr()
    same(after, model, (x,), (x,))
    elsewhere = MoveToDevice({"cuda": "meta"})(program)
    assert str(elsewhere) == str(program)


# ---------------------------------------------------------------------------------------- dtype


class Mixed(nn.Module):
    """Floats of several makes, and integers."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("index", torch.tensor([1, 0, 3, 2]))

    def forward(self, x):
        self.seen += x.mean(0)
        y = self.norm(self.linear(x)[:, self.index])
        z = y + torch.arange(4, dtype=torch.float32) + torch.ones(4)
        z = z.masked_fill(z > 100, torch.finfo(torch.float32).min)
        return z.softmax(-1), self.index / 2, x


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shapes", [None, BATCH], ids=["static", "dynamic"])
def test_conversion_computes_what_a_converted_module_does(dtype, shapes):
    model, x = Mixed(), torch.randn(3, 4)
    program = lostwax.export(model, (x,), dynamic_shapes=shapes)
    eager = copy.deepcopy(model).to(dtype)
    after = ConvertDtype(dtype, inputs="convert", outputs="convert")(program)
    assert torch.float32 not in {
        n.meta["val"].dtype
        for n in after.graph.nodes
        if isinstance(n.meta.get("val"), torch.Tensor) and n.name != "div"
    }
    module = after.module()
    for n in (3,) if shapes is None else (3, 1, 6):
        x = torch.randn(n, 4, dtype=dtype)
        result, half, same_x = module(x)
        assert same_x is x
        assert result.dtype == half.dtype == dtype
        torch.testing.assert_close(result, eager(x)[0].to(dtype), atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(module.seen, eager.seen)
    assert after.example_inputs[0][0].dtype == dtype
    assert program.state_dict["linear.weight"].dtype == torch.float32


def test_conversion_behind_an_unchanged_border():
    model, x = Mixed(), torch.randn(3, 4)
    program = lostwax.export(model, (x,))
    after = ConvertDtype(torch.bfloat16)(program)
    module = after.module()
    result, half, same_x = module(x)
    assert same_x is x
    assert result.dtype == half.dtype == torch.float32
    torch.testing.assert_close(half, model.index / 2)
    torch.testing.assert_close(result, model(x)[0], atol=3e-2, rtol=3e-2)
    assert module.linear.weight.dtype == module.seen.dtype == torch.bfloat16


def test_operators_that_keep_their_type():
    model, x = Mixed(), torch.randn(3, 4)
    program = lostwax.export(model, (x,))
    keep = (aten.native_layer_norm.default,)
    after = ConvertDtype(torch.bfloat16, keep=keep)(program)
    (norm,) = [n for n in after.graph.nodes if n.target in keep]
    assert all(n.meta["val"].dtype == torch.float32 for n in norm.all_input_nodes)
    torch.testing.assert_close(after.module()(x)[0], model(x)[0], atol=3e-2, rtol=3e-2)


def test_a_written_input_keeps_its_type():
    def f(x):
        x.mul_(2)
        return x.sum()

    x = torch.ones(3)
    after = ConvertDtype(torch.bfloat16)(lostwax.export(f, (x.clone(),)))
    after.module()(x)
    assert x.tolist() == [2, 2, 2]


def test_conversions_that_are_refused():
    program = lostwax.export(lambda x: x.view(torch.int32) + 1, (torch.ones(3),))
    with pytest.raises(PassError, match=r"'view' reads the bits of torch.float32"):
        ConvertDtype(torch.bfloat16)(program)
    with pytest.raises(PassError, match=r"torch.int8 is not a floating-point type"):
        ConvertDtype(torch.int8)(program)
    with pytest.raises(PassError, match=r"inputs is 'keep' or 'convert', not True"):
        ConvertDtype(torch.bfloat16, inputs=True)(program)
    program = lostwax.export(lambda x: torch.fft.rfft(x).abs(), (torch.ones(4),))
    with pytest.raises(PassError, match=r"instead: compute it in torch.float32, keep=\(torch.ops"):
        ConvertDtype(torch.bfloat16)(program)


# -------------------------------------------------------------------------------------- pattern


def add_relu(x, y):
    return aten.relu.default(aten.add.Tensor(x, y))


def clamped(x, y):
    return aten.clamp_min.default(aten.add.Tensor(y, x), 0)


@pytest.mark.parametrize("shapes", [None, BATCH], ids=["static", "dynamic"])
def test_patterns_are_replaced(shapes):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            y = torch.relu(self.linear(x) + x)
            return torch.relu(y.sin() + y), torch.relu(x)

    model = Model()
    program = lostwax.export(model, (torch.randn(3, 4),), dynamic_shapes=shapes)
    after = ReplacePattern(add_relu, clamped)(program)
    assert [n for n in calls(after) if "relu" in n] == ["relu_2"]
    new = [n for n in after.graph.nodes if n.target is aten.clamp_min.default]
    old = [n for n in program.graph.nodes if n.target is aten.relu.default]
    assert len(new) == 2
    for was, node in zip(old, new, strict=False):
        assert node.meta["val"].fake_type == was.meta["val"].fake_type
        for one in (node, node.args[0]):
            assert one.meta["stack_trace"] == was.meta["stack_trace"]
            assert one.meta["nn_module_stack"] == was.meta["nn_module_stack"]
    assert after.graph_signature.user_outputs[0] == new[1].name
    same(after, model, *((torch.randn(n, 4),) for n in ((3,) if shapes is None else (3, 1))))


def test_a_replacement_with_other_arguments_is_refused():
    program = lostwax.export(lambda x: torch.relu(x), (torch.ones(3),))
    with pytest.raises(PassError, match="the pattern takes 1 arguments, its replacement 2"):
        ReplacePattern(lambda x: aten.relu.default(x), add_relu)(program)


def test_filters_and_literals():
    program = lostwax.export(lambda x: (x * 2).sin() + (x * 3).sin(), (torch.ones(3),))

    def pattern(x):
        return aten.sin.default(aten.mul.Tensor(x, 2))

    def replacement(x):
        return aten.cos.default(x)

    def never(match, graph, pattern_graph):
        return False

    assert "cos_default" in calls(ReplacePattern(pattern, replacement)(program))
    both = calls(ReplacePattern(pattern, replacement, ignore_literals=True)(program))
    assert sum("cos" in n for n in both) == 2
    assert calls(ReplacePattern(pattern, replacement, (never,))(program)) == calls(program)


def test_a_replacement_of_another_type_retypes_what_follows():
    program = lostwax.export(lambda x: torch.relu(x).sum(0) + 1, (torch.ones(3, 4),))
    after = ReplacePattern(lambda x: aten.relu.default(x), lambda x: aten.gt.Scalar(x, 0))(program)
    types = {n.name: n.meta["val"].dtype for n in after.graph.nodes if n.op == "call_function"}
    assert list(types.values()) == [torch.bool, torch.int64, torch.int64]


# ----------------------------------------------------------------------------------- assertions


def assert_refused(unchecked, *cases):
    """Each is (n, m, text): vectors of n and m are refused with this text."""
    for n, m, text in cases:
        with pytest.raises(RuntimeError, match=text):
            unchecked(torch.ones(n), torch.ones(m))


def test_what_is_demanded_of_sizes_is_asserted_by_the_graph():
    def f(x, y):
        return x.view(-1, 3) + 1 if x.shape[0] > 3 else x, y

    shapes = {"x": {0: lostwax.Dim.AUTO}, "y": {0: lostwax.Dim("n", min=2, max=8)}}
    program = lostwax.export(f, (torch.ones(6), torch.ones(2)), dynamic_shapes=shapes)
    after = Pipeline((RuntimeAssertions(), CommonSubexpressions(), DeadCode()))(program)
    unchecked = after.module(check_guards=False)
    for n, m in ((6, 2), (9, 8)):
        torch.testing.assert_close(
            unchecked(torch.ones(n), torch.ones(m)), f(torch.ones(n), torch.ones(m))
        )
    assert_refused(
        unchecked,
        (3, 2, r"x.shape\[0\] >= "),
        (7, 2, r"x.shape\[0\] % 3 == 0 is required: aten.view.default requires it"),
        (6, 1, r"y.shape\[0\] >= 2 is required: the program holds for such sizes only"),
        (6, 9, r"y.shape\[0\] <= 8 is required"),
    )
    with pytest.raises(lostwax.errors.InputValueError):
        after.module()(torch.ones(7), torch.ones(2))
    assert len(after.guards) == len(program.guards)


def test_sizes_that_must_be_equal_are_asserted():
    n = lostwax.Dim("n", max=10)
    program = lostwax.export(
        lambda x, y, z: x.sum() + y.sum() + z.sum(),
        (torch.ones(3), torch.ones(3), torch.ones(4)),
        dynamic_shapes=({0: n}, {0: n}, {0: n + 1}),
    )
    unchecked = RuntimeAssertions()(program).graph_module
    assert unchecked(torch.ones(5), torch.ones(5), torch.ones(6)) == (16,)
    with pytest.raises(RuntimeError, match=r"y.shape\[0\] must be x.shape\[0\]"):
        unchecked(torch.ones(5), torch.ones(4), torch.ones(6))
    with pytest.raises(RuntimeError, match=r"z.shape\[0\] must be x.shape\[0\] \+ 1"):
        unchecked(torch.ones(5), torch.ones(5), torch.ones(5))


def test_sizes_that_are_computed_from_a_number_are_asserted():
    """Nothing but `2 * h` and `k + 3` gives the two numbers."""
    h, k = lostwax.Dim("h", min=1, max=20), lostwax.Dim("k", min=0, max=5)
    program = lostwax.export(
        lambda x, y: (x.view(-1, 2) * 2, y + 1),
        (torch.ones(6), torch.ones(4)),
        dynamic_shapes=({0: 2 * h}, {0: k + 3}),
    )
    unchecked = RuntimeAssertions()(program).graph_module
    assert unchecked(torch.ones(8), torch.ones(3))[0].shape == (4, 2)
    assert_refused(
        unchecked,
        (7, 4, r"x.shape\[0\] must be 2\*\(x.shape\[0\] // 2\)"),
        (42, 4, r"x.shape\[0\] // 2 <= 20 is required"),
        (0, 4, r"x.shape\[0\] // 2 >= 1 is required"),
        (8, 2, r"y.shape\[0\] - 3 >= 0 is required"),
        (8, 9, r"y.shape\[0\] - 3 <= 5 is required"),
    )


def test_a_program_of_fixed_sizes_has_nothing_to_assert():
    program = lostwax.export(lambda x: x + 1, (torch.ones(3),))
    assert calls(RuntimeAssertions()(program)) == calls(program)


# ------------------------------------------------------------------------------------ edge cases


def all_passes():
    return Pipeline(
        (
            NoOps(),
            CommonSubexpressions(),
            ConstantFolding(),
            FoldBatchNorm(),
            DeadCode(),
            UnusedState(),
        )
    )


@pytest.mark.parametrize(
    "f",
    [
        lambda self, x: None,
        lambda self, x: (),
        lambda self, x: (x, x, 3, "text"),
        lambda self, x: (self.w, self.w, self.w.view(-1)),
        lambda self, x: (x.view(-1), x.view(-1), x.sin(), x.sin()),
        lambda self, x: self.n.add_(1),
        lambda self, x: (self.n.add_(1).view(1), x.add_(1), self.n + 1),
    ],
    ids=["none", "empty", "inputs", "state", "views", "written", "writes"],
)
def test_outputs_of_every_kind(f):
    model = function(f, w=nn.Parameter(torch.ones(2, 2)), n=torch.zeros(()))
    program = lostwax.export(model, (torch.ones(2, 2),))
    after = all_passes()(program)
    module, plain = after.module(), program.module()
    for _ in range(2):
        given = [torch.ones(2, 2), torch.ones(2, 2)]
        wanted, got = plain(given[0]), module(given[1])
        if wanted is not None:
            torch.testing.assert_close(tensors(got), tensors(wanted))
        torch.testing.assert_close(given[1], given[0])
        state = [n for n in ("w", "n") if n in after.state_dict]
        assert shares(got, given[1], module, state) == shares(wanted, given[0], plain, state)
    before, now = program.graph_signature, after.graph_signature
    assert [s.kind for s in now.output_specs] == [s.kind for s in before.output_specs]
    assert now.user_inputs == before.user_inputs


def tensors(results):
    leaves = torch.utils._pytree.tree_leaves(results)
    return [t for t in leaves if isinstance(t, torch.Tensor)]


def shares(results, given, module, state):
    """Which of the results, the input and the state are one object, or lie in one memory."""
    leaves = [*tensors(results), given, *(getattr(module, name) for name in state)]
    return [
        (a is b, a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr())
        for i, a in enumerate(leaves)
        for b in leaves[:i]
    ]


def test_gradients_are_the_same():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    x = torch.randn(5, 3)
    program = lostwax.export(lambda x: model(x.clone()) + model(x).detach(), (x,))
    after = Pipeline((NoOps(), CommonSubexpressions(), DeadCode(), Decompose()))(program)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    for p, given in zip((program, after), inputs, strict=True):
        p.module()(given).pow(2).sum().backward()
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad)


def test_decomposition_is_a_pass():
    model = nn.Sequential(nn.Linear(3, 4), nn.SiLU(), nn.LayerNorm(4))
    program = lostwax.export(model, (torch.randn(2, 3),))
    wants_core = FxPass(lambda module: None, name="wants_core", requires=("core-aten",))
    after = Pipeline((Decompose(), wants_core))(program)
    same(after, model, (torch.randn(2, 3),))
    with pytest.raises(PassError, match=r"'wants_core' requires 'core-aten' .*'t': aten.t.default"):
        wants_core(program)


@pytest.mark.parametrize("name", ["resnet50", "llama"])
def test_models_with_dynamic_sizes(name):
    example = MODELS[name]
    model, inputs = example.tiny().eval(), example.tiny_inputs()
    dims = {n: lostwax.Dim(n, max=16) for d in example.dynamic for n in d.values()}
    shapes = tuple({i: dims[n] for i, n in d.items()} for d in example.dynamic)
    program = lostwax.export(model, inputs, dynamic_shapes=shapes)
    after = Pipeline((all_passes(), RuntimeAssertions(), Decompose()))(program)
    assert len(after.graph.nodes) < len(program.graph.nodes)
    for size in (1, 5):
        given = [torch.cat([x] * size) for x in inputs]
        torch.testing.assert_close(after.module()(*given), model(*given), rtol=1e-4, atol=1e-4)


def test_modules_are_still_there():
    """Calls of preserved modules follow what passes do to the nodes they speak of."""

    class Inner(nn.Module):
        def forward(self, x, y):
            return x[:] + y, (x * 1).view(x.shape)

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.linear = Inner(), nn.Linear(3, 3)

        def forward(self, x):
            y, z = self.inner(self.linear(x), x.clone())
            return y * z

    model, x = Outer(), torch.randn(2, 3)
    program = lostwax.export(model, (x,), preserve_module_call_signature=("inner",))
    after = all_passes()(program)
    assert len(calls(after)) < len(calls(program))
    after.validate()
    assert [e.fqn for e in after.module_call_graph if e.signature] == ["", "inner"]
    torch.testing.assert_close(lostwax.unflatten(after)(x), model(x))


def test_sub_graphs_are_copied_and_cleaned():
    whole = Builder()

    def branch(double):
        b = Builder()
        b.mode = whole.mode
        x = b.input("x", torch.ones(3))
        value = b.call(aten.mul.Tensor, x, 2) if double else b.call(aten.clone.default, x)
        b.call(aten.sin.default, x)
        twice = b.call(
            aten.add.Tensor, b.call(aten.cos.default, value), b.call(aten.cos.default, value)
        )
        return b.program((twice,)).graph_module, twice.meta["val"].fake_type

    (yes, t), (no, _) = branch(True), branch(False)
    b = whole
    flag, x = b.input("flag", torch.tensor(True)), b.input("x", torch.ones(3))
    b.root.yes, b.root.no = yes, no
    b.graph.owning_module = b.root
    graphs = [b.graph.get_attr("yes"), b.graph.get_attr("no")]
    node = b.graph.call_function(torch.ops.higher_order.cond, (flag, *graphs, (x,)))
    where = {"stack_trace": "", "nn_module_stack": {}, "source_fn_stack": []}
    node.meta.update(val=(new_fake(b.mode, t),), **where)
    first = b.graph.call_function(operator.getitem, (node, 0))
    first.meta.update(val=new_fake(b.mode, t), **where)
    program = b.program((first,))
    program.validate()
    before = str(program)
    after = Pipeline((NoOps(), CommonSubexpressions(), DeadCode(), MoveToDevice("cpu")))(program)
    assert str(program) == before
    names = [n.name for n in after.graph_module.no.graph.nodes]
    assert names == ["x", "cos_default", "add_tensor", "output"]
    for truth, value in ((True, 2.0), (False, 1.0)):
        (result,) = after.module()(torch.tensor(truth), torch.ones(3))
        torch.testing.assert_close(result, torch.full((3,), 2 * math.cos(value)))


def test_what_is_trained_is_not_constant():
    model, x = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4).eval()), torch.randn(5, 3)
    model.forward = lambda x: model[1](model[0](x)) * model[0].weight.exp().sum()
    program = lostwax.export_joint(model, (x,), loss=lambda y: y.pow(2).mean())
    after = all_passes()(program)
    assert after.constants == program.constants
    torch.testing.assert_close(after.module()(x), program.module()(x))
    assert after.graph_signature.backward_signature is not None
