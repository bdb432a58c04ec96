"""Fake tensors as the document on them describes, used as a user would."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

from lostwax import FakeTensorProp
from lostwax.errors import (
    DataDependentError,
    MissingFakeRuleError,
    MixedModeError,
    NonFakeInputError,
    UnsupportedFakeError,
)
from lostwax.fake import (
    FakeTensor,
    FakeTensorMode,
    detect_fake_mode,
    unset_fake_temporarily,
)
from lostwax.fake.symbolic.node import unwrap, wrap
from lostwax.sym import ShapeEnv, decide, minimum
from tests.fresh import run_python


@pytest.fixture
def mode() -> FakeTensorMode:
    return FakeTensorMode()


def aliased(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.fake_storage is b.fake_storage  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------- the document


def test_the_documents_example(mode: FakeTensorMode) -> None:
    x = torch.randn(20)
    converter = mode.fake_tensor_converter
    fake_x = converter.from_real_tensor(mode, x)
    with mode:
        fake_y = fake_x * 2
        fake_z = torch.empty(20)
    assert all(isinstance(t, FakeTensor) for t in (fake_x, fake_y, fake_z))
    assert fake_y.shape == (20,)
    assert fake_z.dtype == torch.float32


def test_operators_on_fakes_work_outside_the_mode(mode: FakeTensorMode) -> None:
    x = mode.from_tensor(torch.randn(3, 4))
    assert isinstance(x @ x.t(), FakeTensor)
    assert (x @ x.t()).shape == (3, 3)


def test_metadata_mutation_of_a_real_tensor_is_refused(mode: FakeTensorMode) -> None:
    real = torch.randn(3, 4)
    with mode, pytest.raises(NonFakeInputError, match=r"a real tensor of size \(3, 4\)") as error:
        real.t_()
    assert real.shape == (3, 4)
    assert "test_mode.py" in str(error.value)
    assert "mode.from_tensor(x)" in str(error.value)
    assert "allow_non_fake_inputs=True" in str(error.value)


def test_allow_non_fake_inputs_converts() -> None:
    linear = nn.Linear(4, 5)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        out = linear(torch.empty(7, 4))
    assert out.shape == (7, 5)
    assert not isinstance(linear.weight, FakeTensor)


def test_unset_fake_temporarily(mode: FakeTensorMode) -> None:
    with mode:
        with unset_fake_temporarily():
            real = torch.ones(3) + 1
        fake = torch.ones(3)
    assert real.tolist() == [2, 2, 2]
    assert isinstance(fake, FakeTensor)


def test_detect_fake_mode(mode: FakeTensorMode) -> None:
    x = mode.from_tensor(torch.ones(2))
    assert detect_fake_mode([1, {"a": x}]) is mode
    assert detect_fake_mode([1]) is None
    with mode:
        assert detect_fake_mode() is mode
    other = FakeTensorMode().from_tensor(torch.ones(2))
    with pytest.raises(MixedModeError):
        detect_fake_mode([x, other])


def test_modes_nest_and_restore(mode: FakeTensorMode) -> None:
    inner = FakeTensorMode()
    with mode:
        with inner:
            a = torch.empty(1)
            with inner:
                b = torch.empty(1)
        c = torch.empty(1)
    assert a.fake_mode is inner
    assert b.fake_mode is inner
    assert c.fake_mode is mode
    assert not isinstance(torch.empty(1), FakeTensor)


def test_mode_is_left_after_an_error(mode: FakeTensorMode) -> None:
    with pytest.raises(RuntimeError), mode:
        torch.empty(2, 3) @ torch.empty(2, 3)
    assert not isinstance(torch.empty(1), FakeTensor)
    assert torch.tensor([1.0]).tolist() == [1.0]


def test_fakes_of_two_modes_do_not_mix(mode: FakeTensorMode) -> None:
    other = FakeTensorMode().from_tensor(torch.ones(2))
    with pytest.raises(MixedModeError, match="another FakeTensorMode"):
        mode.from_tensor(torch.ones(2)) + other


def test_fake_of_a_fake(mode: FakeTensorMode) -> None:
    x = mode.from_tensor(torch.ones(2, 3).t())
    assert mode.from_tensor(x) is x
    other = FakeTensorMode()
    y = other.from_tensor(x)
    assert y is not x
    assert y.fake_mode is other
    assert y.stride() == (1, 3)
    assert other.from_tensor(x) is y


# ------------------------------------------------------------------------------------ the converter


def test_same_tensor_same_fake(mode: FakeTensorMode) -> None:
    x = torch.randn(3)
    assert mode.from_tensor(x) is mode.from_tensor(x)


def test_aliasing_tensors_give_aliasing_fakes(mode: FakeTensorMode) -> None:
    x = torch.randn(4, 4)
    a, b, c = (mode.from_tensor(t) for t in (x, x[1:], torch.randn(4)))
    assert aliased(a, b)
    assert not aliased(a, c)
    assert b.storage_offset() == 4


def test_converter_keeps_grad_leafness_strides_and_class(mode: FakeTensorMode) -> None:
    p = nn.Parameter(torch.randn(2, 3))
    p.grad = torch.ones(2, 3)
    fake = mode.from_tensor(p)
    assert isinstance(fake, nn.Parameter)
    assert fake.requires_grad
    assert fake.is_leaf
    assert isinstance(fake.grad, FakeTensor)
    y = torch.randn(2, 3, requires_grad=True) * 2
    fake = mode.from_tensor(y)
    assert fake.requires_grad
    assert not fake.is_leaf
    z = torch.randn(4, 6).t()[::2]
    assert mode.from_tensor(z).stride() == z.stride()
    assert mode.from_tensor(z).storage_offset() == z.storage_offset()
    frozen = nn.Parameter(torch.randn(2), requires_grad=False)
    assert isinstance(mode.from_tensor(frozen), nn.Parameter)
    assert not mode.from_tensor(frozen).requires_grad


def test_converter_does_not_keep_tensors_alive(mode: FakeTensorMode) -> None:
    x = torch.randn(3)
    mode.from_tensor(x)
    watch = weakref.ref(x)
    del x
    gc.collect()
    assert watch() is None


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: torch.eye(3).to_sparse(), "sparse"),
        (lambda: torch.nested.nested_tensor([torch.ones(2)]), "nested"),
    ],
)
def test_unsupported_layouts_are_refused(mode: FakeTensorMode, make: object, what: str) -> None:
    with pytest.raises(UnsupportedFakeError, match=what):
        mode.from_tensor(make())  # type: ignore[operator]


# ------------------------------------------------------------------------------------ views, writes


def test_views_share_storage_and_writes_are_counted(mode: FakeTensorMode) -> None:
    x = mode.from_tensor(torch.zeros(4, 4))
    row = x[1]
    assert aliased(x, row)
    assert row.storage_offset() == 4
    row.add_(1)
    assert x.fake_storage.version == 1
    assert not aliased(x, x.clone())


def test_metadata_mutation_spares_earlier_records(mode: FakeTensorMode) -> None:
    x = mode.from_tensor(torch.zeros(2, 3))
    before = x.snapshot()
    with mode:
        assert x.t_() is x
        assert x.shape == (3, 2)
        assert x.stride() == (1, 3)
        x.unsqueeze_(0)
        assert x.shape == (1, 3, 2)
        x.squeeze_()
        assert x.shape == (3, 2)
        y = torch.empty(3)
        y.resize_(2, 5)
    assert before.shape == (2, 3)
    assert before.stride() == (3, 1)
    assert y.shape == (2, 5)


def test_in_place_errors_are_torchs(mode: FakeTensorMode) -> None:
    with mode:
        with pytest.raises(
            RuntimeError,
            match=r"output with shape \[2\] doesn't match the broadcast shape \[2, 2\]",
        ):
            torch.empty(2).add_(torch.empty(2, 2))
        with pytest.raises(
            RuntimeError, match="result type Float can't be cast to the desired output type Long"
        ):
            torch.empty(2, dtype=torch.int64).add_(torch.empty(2))


def test_out_arguments(mode: FakeTensorMode) -> None:
    with mode:
        out = torch.empty(2, 3)
        assert torch.add(torch.empty(2, 3), 1, out=out) is out
        empty = torch.empty(0)
        torch.mm(torch.empty(2, 3), torch.empty(3, 5), out=empty)
        assert empty.shape == (2, 5)
        torch.arange(7, out=empty.resize_(0))
        assert empty.shape == (7,)


def test_data_assignment(mode: FakeTensorMode) -> None:
    with mode:
        x = torch.empty(2, requires_grad=True)
        x.data = torch.empty(5)
    assert x.shape == (5,)
    assert x.fake_type.size == (5,)


# ------------------------------------------------------------------------------------------ devices


def test_a_cuda_fake_needs_no_cuda(mode: FakeTensorMode) -> None:
    with mode:
        x = torch.empty(2, 3, device="cuda")
        assert x.device == torch.device("cuda:0")
        assert x.is_cuda
        assert (x @ x.t()).device.type == "cuda"
        assert torch.zeros_like(x).device.type == "cuda"
        assert x.cpu().device.type == "cpu"
        assert torch.empty(3).to("cuda").device == torch.device("cuda:0")
        assert torch.empty(3).cuda().is_cuda
        assert torch.tensor([1.0], device="cuda").is_cuda
        assert nn.Linear(3, 4).to("cuda").weight.is_cuda
        assert nn.Linear(3, 4, device="cuda")(x).is_cuda


def test_tied_parameters_stay_tied_when_moved(mode: FakeTensorMode) -> None:
    with mode:
        net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        net[1].weight = net[0].weight
        net.to("cuda")
    assert net[0].weight is net[1].weight
    assert net[0].weight.is_cuda


def test_cpu_scalars_follow_the_other_device(mode: FakeTensorMode) -> None:
    with mode:
        x = torch.empty(2, device="cuda")
        assert (x * torch.tensor(2.0)).is_cuda
        assert (torch.tensor(2.0) + x).is_cuda


def test_devices_do_not_mix(mode: FakeTensorMode) -> None:
    with (
        mode,
        pytest.raises(
            RuntimeError,
            match="Expected all tensors to be on the same device, "
            "but found at least two devices, cuda:0 and cpu!",
        ),
    ):
        torch.empty(2, device="cuda") + torch.empty(2)


def test_backward_on_a_device_that_is_not_there(mode: FakeTensorMode) -> None:
    with mode:
        layer = nn.Linear(3, 4, device="cuda")
        layer(torch.empty(2, 3, device="cuda")).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.device.type == "cuda"


# ------------------------------------------------------------------------------- constants and data


def test_tiny_constants_are_known(mode: FakeTensorMode) -> None:
    with mode:
        assert torch.tensor(3).item() == 3
        assert (torch.tensor(3) * 2 + 1).item() == 7
        assert torch.tensor([1, 2, 3]).tolist() == [1, 2, 3]
        assert int(torch.tensor([4, 5])[1]) == 5
        assert bool(torch.tensor(True))


def test_a_written_constant_is_no_longer_known(mode: FakeTensorMode) -> None:
    with mode:
        x = torch.tensor([1, 2])
        view = x[0]
        x.add_(torch.empty(2, dtype=torch.int64))
        with pytest.raises(DataDependentError):
            view.item()


def test_item_without_shape_env_is_refused_with_the_users_line(mode: FakeTensorMode) -> None:
    x = mode.from_tensor(torch.ones(()))
    with pytest.raises(DataDependentError, match="item") as error:
        x.item()
    assert "test_mode.py" in str(error.value)
    assert "shape_env=ShapeEnv()" in str(error.value)


def test_asking_twice_gives_the_same_symbol() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.ones(4, dtype=torch.int64), static_shapes=True)
    with mode:
        assert x.nonzero().shape[0].node is x.nonzero().shape[0].node
        assert x[0].item().node is not x[1].item().node
        y = x.sum()
        first = y.item()
        assert first.node is y.item().node
        y.add_(1)
        assert first.node is not y.item().node


def test_data_dependent_operators_give_bounded_sizes() -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    x = mode.from_tensor(torch.ones(3, 4), static_shapes=True)
    with mode:
        sizes = {
            "nonzero": x.nonzero().shape[0],
            "masked_select": x.masked_select(x > 0).shape[0],
            "mask": x[x > 0].shape[0],
            "unique": torch.unique(x).shape[0],
        }
        repeated = torch.repeat_interleave(torch.ones(3, dtype=torch.int64)).shape[0]
    for name, size in sizes.items():
        low, high = env.bounds(unwrap(size))
        assert low in (0, 1), name
        assert high == 12, name
    assert env.bounds(unwrap(repeated))[0] == 0


@pytest.mark.parametrize(
    "call", [lambda x: x.numpy(), lambda x: x.data_ptr(), lambda x: __import__("numpy").asarray(x)]
)
def test_what_needs_memory_is_refused(mode: FakeTensorMode, call: object) -> None:
    with pytest.raises(UnsupportedFakeError, match="a fake tensor has none"):
        call(mode.from_tensor(torch.ones(2)))  # type: ignore[operator]


# --------------------------------------------------------------------------------- custom operators


@torch.library.custom_op("lostwax_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("lostwax_test::keep_positive", mutates_args=())
def keep_positive(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].clone()


@keep_positive.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


@torch.library.custom_op("lostwax_test::mystery", mutates_args=())
def mystery(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x * scale


def test_register_fake_is_used(mode: FakeTensorMode) -> None:
    assert twice(mode.from_tensor(torch.ones(2, 3))).shape == (2, 3)


def test_register_fake_with_a_dynamic_size(mode: FakeTensorMode) -> None:
    symbolic = FakeTensorMode(shape_env=ShapeEnv())
    out = keep_positive(symbolic.from_tensor(torch.ones(5), static_shapes=True))
    assert isinstance(out.shape[0], torch.SymInt)
    with pytest.raises(DataDependentError, match="asks for a dynamic size"):
        keep_positive(mode.from_tensor(torch.ones(5)))


def test_an_operator_without_fake_kernel_is_named(mode: FakeTensorMode) -> None:
    with pytest.raises(MissingFakeRuleError, match="lostwax_test::mystery") as error:
        mystery(mode.from_tensor(torch.ones(2)), 2.0)
    assert '@torch.library.register_fake("lostwax_test::mystery")' in str(error.value)
    assert "def mystery_fake(x, scale):" in str(error.value)
    assert "test_mode.py" in str(error.value)


# ----------------------------------------------------------------------------- subclasses of others


class Tagged(torch.Tensor):
    """A foreign wrapper subclass that unwraps itself and calls the operator again."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Tagged:
        out = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        out.inner = inner
        return out

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        plain = [a.inner if isinstance(a, Tagged) else a for a in args]
        return cls(func(*plain, **(kwargs or {})))


def test_foreign_subclasses_go_first(mode: FakeTensorMode) -> None:
    x = mode.from_tensor(torch.ones(2))
    with mode:
        out = Tagged(x) + x
    assert type(out) is Tagged
    assert isinstance(out.inner, FakeTensor)


def test_other_modes_see_operators_on_fakes(mode: FakeTensorMode) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with mode:
        x = torch.empty(4, 8)
        with FlopCounterMode(display=False) as counter:
            x @ x.t()
    assert counter.get_total_flops() == 2 * 4 * 8 * 4


# ----------------------------------------------------------------------------- modules and autograd


def test_backward_gives_fake_grads(mode: FakeTensorMode) -> None:
    with mode:
        net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 1))
        net(torch.empty(5, 3)).sum().backward()
    for p in net.parameters():
        assert isinstance(p.grad, FakeTensor)
        assert p.grad.shape == p.shape


def test_deepcopy_of_a_module_on_fakes(mode: FakeTensorMode) -> None:
    with mode:
        net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    net[0].tied = net[0].weight
    for active in (False, True):
        if active:
            with mode:
                twin = copy.deepcopy(net)
        else:
            twin = copy.deepcopy(net)
        assert twin[0].weight is not net[0].weight
        assert twin[0].weight is twin[0].tied
        assert isinstance(twin[0].weight, nn.Parameter)
        assert isinstance(twin[1].running_mean, FakeTensor)
        assert not aliased(twin[0].weight, net[0].weight)


def test_inference_mode_and_no_grad(mode: FakeTensorMode) -> None:
    with mode, torch.inference_mode():
        x = torch.empty(2, 3)
        assert nn.Linear(3, 4)(x).shape == (2, 4)
        assert x.reshape(6).shape == (6,)
        assert torch.empty(4, 5).t().reshape(-1).shape == (20,)
    normal = mode.from_tensor(torch.ones(2, 3))
    with mode, torch.inference_mode():
        assert normal.view(6).shape == (6,)
        assert normal.t().is_inference() is False


def test_gradients_switched_on_inside_a_mode_entered_without(mode: FakeTensorMode) -> None:
    with torch.no_grad(), mode:
        layer = nn.Linear(3, 4)
        assert not layer(torch.empty(2, 3)).requires_grad
        with torch.enable_grad():
            out = torch.relu(layer(torch.empty(2, 3)))
            assert out.requires_grad
            out.sum().backward()
    assert isinstance(layer.weight.grad, FakeTensor)


def test_fake_tensor_prop(mode: FakeTensorMode) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x)
            y.t_()
            return torch.relu(y)

    graph_module = torch.fx.symbolic_trace(Net())
    out = FakeTensorProp(graph_module, mode).propagate(torch.randn(2, 3))
    assert out.shape == (4, 2)
    shapes = {
        n.name: tuple(n.meta["val"].shape) for n in graph_module.graph.nodes if n.op != "output"
    }
    assert shapes["linear"] == (2, 4)
    assert shapes["relu"] == (4, 2)
    again = FakeTensorProp(graph_module, mode).propagate_dont_convert_inputs(
        mode.from_tensor(torch.randn(7, 3))
    )
    assert again.shape == (4, 7)
    assert FakeTensorProp(graph_module).propagate(torch.randn(1, 3)).shape == (4, 1)


def test_no_dynamo_is_imported() -> None:
    code = (
        "import sys, torch; from lostwax.fake import FakeTensorMode\n"
        "with FakeTensorMode():\n    torch.relu(torch.empty(2, 3) @ torch.empty(3, 2)).sum()\n"
        "assert 'torch._dynamo' not in sys.modules, 'dynamo'"
    )
    run_python(code)


class Two(torch.Tensor):
    """A wrapper subclass that says what it wraps."""

    @staticmethod
    def __new__(cls, a: torch.Tensor, b: torch.Tensor) -> Two:
        out = torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype)
        out.a, out.b = a, b
        return out

    def __tensor_flatten__(self):  # type: ignore[no-untyped-def]
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):  # type: ignore[no-untyped-def]
        return Two(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        halves = [[getattr(x, h) if isinstance(x, Two) else x for x in args] for h in "ab"]
        return Two(*(func(*half, **(kwargs or {})) for half in halves))


def test_a_subclass_that_says_what_it_wraps_keeps_its_class(mode: FakeTensorMode) -> None:
    fake = mode.from_tensor(Two(torch.ones(2, 3), torch.zeros(2, 3)))
    assert type(fake) is Two
    assert isinstance(fake.a, FakeTensor)
    with mode:
        out = fake + 1
    assert type(out) is Two
    assert out.b.shape == (2, 3)


def test_tensor_type_is_torchs(mode: FakeTensorMode) -> None:
    x = mode.from_tensor(torch.ones(2))
    assert x.type() == "torch.FloatTensor"
    assert x.type(torch.float64).dtype is torch.float64


def test_what_was_found_in_a_trial_does_not_outlive_what_was_assumed_there():
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    n = env.symbol(hint=7)
    x = mode.from_tensor(torch.randn(7, 2), sizes=(wrap(n), None))

    def head():
        with mode, torch.no_grad():
            return (x + 1)[:4].fake_type.size[0]

    with env.trial() as guards:
        assert decide(n >= 4)
        assert head() == 4
    assert len(guards) == 1
    size = head()
    assert not env.guards
    assert str(size) == str(minimum(n, 4))
