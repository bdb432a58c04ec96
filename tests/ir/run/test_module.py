"""A program as a module: it runs, writes, trains, moves and copies as the original would."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from lostwax.capture import export
from lostwax.errors import InputStructureError, InputValueError, NotCallableError
from lostwax.fake import FakeTensor, FakeTensorMode
from lostwax.fake.symbolic.node import wrap
from lostwax.ir.run.conditions.overlap import overlap_check
from lostwax.ir.unflatten.unflatten import unflatten
from lostwax.passes import ConvertDtype
from tests.ir.build import Builder

aten = torch.ops.aten


def linear_program():
    """y = x @ w.T + b, scaled by a constant and a buffer that is only read."""
    torch.manual_seed(0)
    b = Builder()
    w = b.parameter("layer.weight", nn.Parameter(torch.randn(2, 3)))
    bias = b.parameter("layer.bias", nn.Parameter(torch.randn(2)))
    scale = b.buffer("scale", torch.tensor([2.0, 3.0]))
    shift = b.buffer("shift", torch.tensor([1.0, 1.0]), persistent=False)
    k = b.constant("k", torch.tensor([0.5, 0.5]))
    x = b.input("x", torch.zeros(4, 3))
    y = b.call(aten.addmm.default, bias, x, b.call(aten.t.default, w))
    y = b.call(aten.mul.Tensor, y, scale)
    y = b.call(aten.add.Tensor, y, shift)
    return b.program([b.call(aten.mul.Tensor, y, k)])


def linear_reference(p, x):
    s = {**p.state_dict, **p.constants}
    y = nn.functional.linear(x, s["layer.weight"], s["layer.bias"]) * s["scale"]
    return (y + s["shift"]) * s["k"]


def counting_program():
    """buf += 1; x *= buf; returns the new buffer, x, a view of x and the old sum."""
    b = Builder()
    buf = b.buffer("count", torch.zeros(3))
    x = b.input("x", torch.zeros(2, 3))
    new = b.call(aten.add.Tensor, buf, 1)
    total = b.call(aten.sum.default, x)
    scaled = b.call(aten.mul.Tensor, x, new)
    b.write(buf, new)
    b.write(x, scaled)
    row = b.call(aten.select.int, b.call(aten.t.default, scaled), 1, 0)
    return b.program((new, scaled, row, total))


# ------------------------------------------------------------------------------------------ running


def test_it_computes():
    p = linear_program()
    p.validate()
    x = torch.randn(4, 3)
    (y,) = p.module()(x)
    torch.testing.assert_close(y, linear_reference(p, x))


def test_a_program_itself_is_not_called():
    with pytest.raises(NotCallableError, match=r"call program.module\(\)"):
        linear_program()(torch.zeros(4, 3))


def test_names_are_the_originals():
    m = linear_program().module()
    assert list(m.state_dict()) == ["scale", "layer.weight", "layer.bias"]
    assert [n for n, _ in m.named_parameters()] == ["layer.weight", "layer.bias"]
    assert [n for n, _ in m.named_buffers()] == ["scale", "shift"]
    assert "shift" in m._non_persistent_buffers_set
    assert m.layer.weight.shape == (2, 3)


def test_programs_list_their_state():
    p = linear_program()
    assert [n for n, _ in p.named_parameters()] == ["layer.weight", "layer.bias"]
    assert [n for n, _ in p.named_buffers()] == ["scale", "shift"]
    assert [t is p.state_dict[n] for n, t in p.named_parameters()] == [True, True]
    assert next(iter(p.parameters())) is p.state_dict["layer.weight"]
    assert all(map(torch.equal, p.buffers(), p.module().buffers()))
    assert p.tensor_constants is p.constants
    assert p.call_spec.in_spec.num_leaves == p.call_spec.out_spec.num_leaves == 1


def test_forward_has_the_originals_signature():
    b = Builder()
    x, n = b.input("x", torch.zeros(2)), b.input("n", 3)
    mask = b.input("mask", torch.zeros(2))
    y = b.call(aten.mul.Tensor, b.call(aten.add.Tensor, x, mask), 3)
    m = b.program(y, (x, n), {"mask": mask}, ["x", "n", "mask"]).module()
    assert str(inspect.signature(m.forward)) == "(x, n, *, mask)"
    one = torch.ones(2)
    for result in (m(one, 3, mask=one), m(mask=one, n=3, x=one), m(one, mask=one, n=3)):
        assert result.tolist() == [6.0, 6.0]
    with pytest.raises(InputValueError, match="n is the int 4"):
        m(one, 4, mask=one)
    with pytest.raises(InputStructureError, match="mask is missing"):
        m(one, 3)


def test_results_are_put_together_and_constants_among_them_kept():
    b = Builder()
    x = b.input("x", torch.zeros(2))
    y = b.call(aten.neg.default, x)
    m = b.program({"y": (y, None), "x": [x], "n": 3, "t": torch.float16}).module()
    one = torch.ones(2)
    out = m(one)
    assert out["x"][0] is one
    assert (out["y"][1], out["n"], out["t"]) == (None, 3, torch.float16)
    assert list(out) == ["y", "x", "n", "t"]


def test_hooks_run():
    m = linear_program().module()
    seen = []
    m.register_forward_hook(lambda module, args, out: seen.append(len(out)))
    m(torch.zeros(4, 3))
    assert seen == [1]


# ----------------------------------------------------------------------------------------- training


def test_gradients_flow_into_the_modules_own_parameters():
    p = linear_program()
    m = p.module()
    x = torch.randn(4, 3, requires_grad=True)
    m(x)[0].square().sum().backward()
    x2 = x.detach().clone().requires_grad_()
    linear_reference(p, x2).square().sum().backward()
    torch.testing.assert_close(m.layer.weight.grad, p.state_dict["layer.weight"].grad)
    torch.testing.assert_close(m.layer.bias.grad, p.state_dict["layer.bias"].grad)
    torch.testing.assert_close(x.grad, x2.grad)


def test_an_optimizer_trains_it():
    m = linear_program().module().train()
    optimizer = torch.optim.SGD(m.parameters(), lr=0.01)
    x = torch.randn(4, 3)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = m(x)[0].square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_requires_grad_is_kept():
    b = Builder()
    w = b.parameter("w", nn.Parameter(torch.ones(2), requires_grad=False))
    m = b.program(b.call(aten.neg.default, w)).module()
    assert not m.w.requires_grad


def test_parameters_made_in_inference_mode():
    with torch.inference_mode():
        given = nn.Parameter(torch.ones(2))
    b = Builder()
    m = b.program(b.call(aten.neg.default, b.parameter("w", given))).module()
    with torch.inference_mode():
        assert m().tolist() == [-1.0, -1.0]
    assert m.w.is_inference()


def test_hooks_of_parameters_change_gradients_as_ever():
    given = nn.Parameter(torch.ones(2))
    given.register_hook(lambda grad: grad * 3)
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    b = Builder()
    w, f = b.parameter("w", given), b.parameter("f", frozen)
    m = b.program(b.call(aten.mul.Tensor, w, f)).module()
    m().sum().backward()
    assert m.w.grad.tolist() == [3.0, 3.0]
    assert given.grad is None


def test_batch_norm_in_training_mode():
    """Autograd keeps the statistics for the gradient, and they are written after: as the original
    does, without a complaint."""
    torch.manual_seed(0)
    original = nn.BatchNorm1d(3)
    b = Builder()
    w, bias = b.parameter("weight", original.weight), b.parameter("bias", original.bias)
    mean, var = (b.buffer(n, getattr(original, n)) for n in ("running_mean", "running_var"))
    x = b.input("x", torch.zeros(4, 3))
    norm = b.call(
        aten._native_batch_norm_legit_functional.default, x, w, bias, mean, var, True, 0.1, 1e-5
    )
    y, new_mean, new_var = b.item(norm, 0), b.item(norm, 3), b.item(norm, 4)
    b.write(mean, new_mean)
    b.write(var, new_var)
    p = b.program(y)
    p.validate()
    m = p.module()
    before = original.running_mean.clone()
    x = torch.randn(4, 3)
    for _ in range(3):
        m.zero_grad()
        m(x).square().mean().backward()
    assert torch.equal(original.running_mean, before)
    for _ in range(3):
        original.zero_grad()
        original(x).square().mean().backward()
    torch.testing.assert_close(m.running_mean, original.running_mean)
    torch.testing.assert_close(m.running_var, original.running_var)
    torch.testing.assert_close(m.weight.grad, original.weight.grad)


def test_what_is_written_was_kept_for_the_gradient():
    """x.mul_(w) in the original: the gradient of w needs the x of before."""
    b = Builder()
    w = b.parameter("w", nn.Parameter(torch.tensor([2.0, 3.0])))
    x = b.input("x", torch.zeros(2))
    y = b.call(aten.mul.Tensor, x, w)
    b.write(x, y)
    m = b.program(y).module()
    given = torch.tensor([5.0, 7.0])
    out = m(given)
    assert out is given
    out.sum().backward()
    assert m.w.grad.tolist() == [5.0, 7.0]
    assert out.tolist() == [10.0, 21.0]


# ------------------------------------------------------------------------------- writes and sharing


def test_what_is_read_shares_memory_what_is_written_is_copied():
    p = linear_program()
    m = p.module()
    assert m.layer.weight.data_ptr() == p.state_dict["layer.weight"].data_ptr()
    assert m.layer.weight is not p.state_dict["layer.weight"]
    assert m.scale.data_ptr() == p.state_dict["scale"].data_ptr()
    assert m.shift.data_ptr() == p.constants["shift"].data_ptr()
    p = counting_program()
    assert p.module().count.data_ptr() != p.state_dict["count"].data_ptr()


def test_writes_go_to_this_module_and_to_the_arguments_only():
    p = counting_program()
    p.validate()
    first, second = p.module(), p.module()
    for n in (1.0, 2.0):
        x = torch.ones(2, 3)
        first(x)
        assert x.tolist() == [[n] * 3] * 2
        assert first.count.tolist() == [n] * 3
    assert second.count.tolist() == p.state_dict["count"].tolist() == [0.0] * 3
    assert first.state_dict()["count"].tolist() == [2.0] * 3


@pytest.mark.parametrize("grad", [False, True])
def test_results_share_memory_as_in_the_original(grad):
    m = counting_program().module()
    x = torch.ones(2, 3)
    with torch.set_grad_enabled(grad):
        count, scaled, row, total = m(x)
    assert scaled is x
    assert count is m.count
    assert row.data_ptr() == x.data_ptr()
    assert row.stride() == (1,)
    assert total.item() == 6
    x.fill_(9)
    assert row.tolist() == [9.0] * 3


def test_a_view_of_many_is_made_again():
    b = Builder()
    x = b.input("x", torch.zeros(4))
    y = b.call(aten.add.Tensor, x, 1)
    b.write(x, y)
    parts = b.call(aten.split.Tensor, y, 2)
    m = b.program(b.item(parts, 1)).module()
    given = torch.zeros(4)
    part = m(given)
    assert part.data_ptr() == given[2:].data_ptr()
    assert part.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("grad", [False, True])
def test_what_is_returned_of_before_the_write_is_of_before(grad):
    b = Builder()
    buf = b.buffer("buf", torch.zeros(2, 2))
    new = b.call(aten.add.Tensor, buf, 1)
    b.write(buf, new)
    m = b.program((buf, buf, b.call(aten.t.default, buf))).module()
    with torch.set_grad_enabled(grad):
        old, again, turned = m()
    assert old.sum() == turned.sum() == 0
    assert old is again
    assert m.buf.sum() == 4
    assert turned.stride() == (1, 2)


@pytest.mark.parametrize("grad", [False, True])
def test_two_buffers_can_change_places(grad):
    b = Builder()
    one, two = b.buffer("one", torch.zeros(2)), b.buffer("two", torch.ones(2))
    b.write(one, two)
    b.write(two, one)
    m = b.program(()).module()
    with torch.set_grad_enabled(grad):
        m()
    assert (m.one.tolist(), m.two.tolist()) == ([1.0, 1.0], [0.0, 0.0])


def test_a_write_of_itself_is_none():
    b = Builder()
    buf = b.buffer("buf", torch.zeros(2))
    b.write(buf, buf)
    m = b.program(buf).module()
    before = m.buf._version
    assert m() is m.buf
    assert m.buf._version == before


def test_one_value_written_to_two_buffers():
    b = Builder()
    one, two = b.buffer("one", torch.zeros(2)), b.buffer("two", torch.ones(2))
    new = b.call(aten.add.Tensor, one, two)
    b.write(one, new)
    b.write(two, new)
    m = b.program(()).module()
    m()
    m()
    assert (m.one.tolist(), m.two.tolist()) == ([2.0, 2.0], [2.0, 2.0])


def test_a_parameter_can_be_written():
    b = Builder()
    w = b.parameter("w", nn.Parameter(torch.ones(2)))
    x = b.input("x", torch.zeros(2))
    y = b.call(aten.mul.Tensor, w, x)
    b.write(w, b.call(aten.detach.default, b.call(aten.mul.Tensor, w, 0.5)))
    p = b.program(y)
    m = p.module()
    m(torch.tensor([2.0, 3.0])).sum().backward()
    assert m.w.tolist() == [0.5, 0.5]
    assert m.w.grad.tolist() == [2.0, 3.0]
    assert m.w.is_leaf
    assert p.state_dict["w"].tolist() == [1.0, 1.0]


def test_tied_state_stays_tied():
    shared = nn.Parameter(torch.ones(2))
    b = Builder()
    first, second = b.parameter("a.w", shared), b.parameter("b.w", shared)
    m = b.program(b.call(aten.add.Tensor, first, second)).module()
    assert m.a.w is m.b.w
    assert list(m.state_dict()) == ["a.w", "b.w"]


def test_buffers_that_share_memory_are_copied_together():
    base = torch.zeros(4)
    b = Builder()
    whole, part = b.buffer("whole", base), b.buffer("part", base[1:3])
    b.write(part, b.call(aten.add.Tensor, part, 1))
    p = b.program(whole)
    m = p.module()
    m()
    assert m.whole.tolist() == [0.0, 1.0, 1.0, 0.0]
    assert base.tolist() == [0.0] * 4


def test_state_without_a_placeholder_is_there():
    p = linear_program()
    p.state_dict["unused.weight"] = nn.Parameter(torch.ones(1))
    assert "unused.weight" in p.module().state_dict()


# -------------------------------------------------------------------------------- shared arguments


def written_input_program():
    b = Builder()
    x, y = b.input("x", torch.zeros(3)), b.input("y", torch.zeros(3))
    b.write(x, b.call(aten.add.Tensor, x, 1))
    return b.program(b.call(aten.mul.Tensor, y, 2))


def test_arguments_that_overlap_are_refused_if_one_is_written():
    m = written_input_program().module()
    base = torch.zeros(6)
    with pytest.raises(InputValueError) as error:
        m(base[:3], base[2:5])
    assert error.value.args[0] == (
        "x and y overlap in memory; the program writes to one of them, and at capture they did "
        "not\n  fix: pass a clone of one of them, or capture again with such arguments"
    )
    assert base.tolist() == [0.0] * 6
    with pytest.raises(InputValueError, match="overlap in memory"):
        m(base[:3], base[:3])
    m(base[:3], base[3:])  # beside each other
    m(base[::2], base[1::2])  # interleaved
    m(base[:3], torch.zeros(3))
    last = base.view(torch.int8)[20:23]  # of another dtype: places are counted in bytes
    with pytest.raises(InputValueError, match="overlap in memory"):
        overlap_check([torch.zeros(6), torch.zeros(3)], ["x", "y"], {0})([base, last])


def test_one_tensor_in_two_places_at_capture_must_be_one_again():
    b = Builder()
    one = torch.ones(3)
    x, y = b.input("x", one), b.input("y", one)
    assert x.meta["val"] is y.meta["val"]
    m = b.program(b.call(aten.add.Tensor, x, x)).module()
    assert m(one, one).tolist() == [2.0] * 3
    with pytest.raises(InputValueError, match="x and y were one tensor, or shared memory"):
        m(one, torch.zeros(3))


# ---------------------------------------------------------------------------- moving, copying, cast


def test_a_cast_leaves_the_program_alone_and_changes_what_is_expected():
    p = linear_program()
    p.constants["k"] = p.constants["k"].double()  # plain attributes are not cast by `.to()`
    m = p.module().to(torch.float64)
    assert p.state_dict["layer.weight"].dtype is torch.float32
    (y,) = m(torch.randn(4, 3, dtype=torch.float64))
    assert y.dtype is torch.float64
    with pytest.raises(InputValueError, match=r"x is of torch.float32, but .* for torch.float64"):
        m(torch.randn(4, 3))
    (y,) = m.float()(torch.randn(4, 3))
    assert y.shape == (4, 2)
    (y,) = p.module()(torch.randn(4, 3))


def test_a_moved_module_names_the_new_device_in_its_graph():
    b = Builder()
    w = b.parameter("w", nn.Parameter(torch.ones(3)))
    k = b.constant("k", torch.ones(3))
    x = b.input("x", torch.zeros(3))
    full = b.call(aten.full.default, [3], 2.0, device=torch.device("cpu"))
    y = b.call(aten.add.Tensor, b.call(aten.mul.Tensor, x, w), b.call(aten.add.Tensor, full, k))
    p = b.program(y)
    m = p.module().to("meta")
    assert m(torch.zeros(3, device="meta")).device.type == "meta"
    assert p.module()(torch.zeros(3)).tolist() == [3.0] * 3
    assert p.constants["k"].device.type == "cpu"


def test_writes_survive_a_move():
    m = counting_program().module().to("meta")
    count, *_ = m(torch.ones(2, 3, device="meta"))
    assert count is m.count
    assert count.device.type == "meta"


def test_a_copy_is_another_module():
    m = counting_program().module()
    m(torch.ones(2, 3))
    twin = copy.deepcopy(m)
    twin(torch.ones(2, 3))
    assert m.count.tolist() == [1.0] * 3
    assert twin.count.tolist() == [2.0] * 3
    assert str(inspect.signature(twin.forward)) == str(inspect.signature(m.forward))
    twin.double()
    m(torch.ones(2, 3))


def test_copies_of_programs_keep_all_names():
    """FX renames what is called as Python calls something, `input`."""
    program = export(nn.Linear(2, 2), (torch.ones(1, 2),))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = copy.deepcopy(program)
    other.validate()
    assert str(other) == str(program)
    other.state_dict["weight"].data.zero_()
    assert program.state_dict["weight"].abs().sum() > 0
    assert copy.copy(program).graph is program.graph


def test_pickles_are_refused_with_the_way_to_save():
    program = export(nn.Linear(2, 2), (torch.ones(1, 2),))
    for what in (program, program.module()):
        with pytest.raises(pickle.PicklingError, match=r"lostwax\.save\(program, path\)"):
            pickle.dumps(what)


def test_state_can_be_loaded():
    m = linear_program().module()
    state = {n: torch.zeros_like(t) for n, t in m.state_dict().items()}
    m.load_state_dict(copy.deepcopy(state))
    assert m(torch.randn(4, 3))[0].tolist() == [[0.5, 0.5]] * 4
    m = linear_program().module()
    m.load_state_dict(state, assign=True)
    assert m(torch.randn(4, 3))[0].tolist() == [[0.5, 0.5]] * 4


def test_a_parametrization_put_on_afterwards_is_used():
    class Zero(nn.Module):
        def forward(self, w):
            return w * 0

    m = linear_program().module()
    before = m(torch.ones(4, 3))[0]
    parametrize.register_parametrization(m.layer, "weight", Zero())
    after = m(torch.ones(4, 3))[0]
    assert not torch.equal(before, after)
    assert torch.equal(after[0], after[1])


def test_a_replaced_submodule_is_used():
    m = linear_program().module()
    m.layer = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    expected = (m.layer(x) * m.scale + m.shift) * 0.5
    torch.testing.assert_close(m(x)[0], expected)


def test_it_runs_on_fakes():
    p = linear_program()
    m = p.module()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        (y,) = m(torch.empty(4, 3))
    assert isinstance(y, FakeTensor)
    assert y.shape == (4, 2)


def test_state_without_data():
    mode = FakeTensorMode()
    b = Builder()
    with mode:
        weight, count = nn.Parameter(torch.empty(3)), torch.empty(3)
    w, c = b.parameter("w", weight), b.buffer("c", count)
    x = b.input("x", torch.zeros(3))
    b.write(c, b.call(aten.add.Tensor, c, 1))
    m = b.program(b.call(aten.mul.Tensor, x, w)).module()
    assert isinstance(m.w, FakeTensor)
    assert m.c.fake_storage is not count.fake_storage
    m.load_state_dict({"w": torch.full((3,), 2.0), "c": torch.zeros(3)}, assign=True)
    assert m(torch.ones(3)).tolist() == [2.0] * 3
    assert m.c.tolist() == [1.0] * 3


# ------------------------------------------------------------------------------------ dynamic sizes


def test_ranges_and_guards_are_checked_unless_asked_not_to():
    b = Builder()
    s = b.env.symbol(hint=4)
    x = b.input("x", torch.zeros(4, 3), sizes=(wrap(s), 3))
    b.env.decide(s > 2)
    p = b.program(b.call(aten.neg.default, x), ranges={"s0": (0, 8)})
    p.validate()
    assert len(p.guards) == 1
    m = p.module()
    assert m(torch.ones(8, 3)).shape == (8, 3)
    with pytest.raises(InputValueError, match=r"x.shape\[0\] is 9, but .* 0 <= x.shape\[0\] <= 8"):
        m(torch.ones(9, 3))
    with pytest.raises(InputValueError, match=r"under the condition x.shape\[0\] >= 3"):
        m(torch.ones(2, 3))
    free = p.module(check_guards=False)
    assert free(torch.ones(9, 3)).shape == (9, 3)
    with pytest.raises(InputValueError, match=r"x.shape\[1\] is 4"):
        free(torch.ones(9, 4))


def test_ranges_of_torch_are_understood():
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges

    b = Builder()
    x = b.input("x", torch.zeros(4), sizes=(wrap(b.env.symbol(hint=4)),))
    p = b.program(b.call(aten.neg.default, x), ranges={"s0": ValueRanges(3, int_oo)})
    m = p.module()
    m(torch.ones(100))
    with pytest.raises(InputValueError, match=r"3 <= x.shape\[0\]\n"):
        m(torch.ones(2))


class Counts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("shift", torch.zeros(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        y.add_(2)
        return x + y + self.shift


def test_state_that_is_passed_to_its_own_module() -> None:
    module = export(Counts(), (torch.ones(3), torch.ones(3))).module()
    module(torch.ones(3), torch.ones(3))
    module(module.shift.view(3), torch.ones(3))  # neither is written to
    module(module.shift, torch.ones(3))
    for args, text in (
        ((module.count, torch.ones(3)), "x shares memory with the module's own count"),
        ((module.count.view(3), torch.ones(3)), "x shares"),
        ((torch.ones(3), module.shift), "y shares memory with the module's own shift"),
    ):
        with pytest.raises(InputValueError, match=rf"{text}[\s\S]*fix: pass .\.clone\(\)"):
            module(*args)
    torch.testing.assert_close(module.count, torch.full((3,), 3.0))


def _fill_first(x: torch.Tensor) -> torch.Tensor:
    x[..., 0] = 5
    return x * 1


@pytest.mark.parametrize(
    "repeating",
    [
        lambda: torch.zeros(1).expand(4),
        lambda: torch.zeros(5).as_strided((2, 4), (1, 1)),
        lambda: torch.zeros(3, 1).expand(3, 4),
        lambda: torch.zeros(9).as_strided((2, 2, 3), (3, 1, 2)),
    ],
)
def test_a_tensor_that_overlaps_itself_is_not_written_to(repeating: Any) -> None:
    """Eager writes to all that lies there; the program, captured with one that does not overlap,
    would write each element on its own."""
    given = repeating()
    ours = export(_fill_first, (torch.zeros(given.shape),)).module()
    text = r"^\[LW0402\] x has elements that share memory .*writes to it[\s\S]*fix: pass x\.clone\("
    with pytest.raises(InputValueError, match=text):
        ours(given)
    assert not given.any()
    apart = repeating().clone(memory_format=torch.contiguous_format)
    torch.testing.assert_close(ours(apart), _fill_first(apart.clone()))
    only_read = export(lambda x: x * 2, (torch.zeros(given.shape),)).module()
    torch.testing.assert_close(only_read(given), given * 2)


def test_layouts_that_do_not_overlap_are_written_to() -> None:
    ours = export(_fill_first, (torch.zeros(2, 3),)).module()
    for x in (torch.zeros(3, 2).t(), torch.zeros(4, 6)[::2, ::2], torch.zeros(2, 3, 4)[..., 1]):
        want = _fill_first(x.clone())
        torch.testing.assert_close(ours(x), want)
    ours = export(_fill_first, (torch.zeros(1, 3),)).module()
    x = torch.zeros(6).as_strided((1, 3), (0, 2))
    torch.testing.assert_close(ours(x), torch.tensor([[5.0, 0, 0]]))


def test_a_buffer_that_overlaps_itself_is_not_written_to() -> None:
    ours = export(Counts(), (torch.ones(3), torch.ones(3))).module()
    ours.count = torch.zeros(1).expand(3)
    with pytest.raises(InputValueError, match="the module's own count has elements that share"):
        ours(torch.ones(3), torch.ones(3))


def test_a_written_input_that_requires_gradients_is_told_from_the_example() -> None:
    def forward(x):
        x.detach().add_(1)
        return x * 2

    module = export(forward, (torch.ones(3),)).module()
    with pytest.raises(
        InputValueError, match=r"(?s)x requires gradient.*an example that requires gradients"
    ):
        module(torch.ones(3, requires_grad=True))


# --------------------------------------------------------------------------------- in another dtype


class Typed(nn.Module):
    """Types that are asked of tensors, and literals that meet state."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.rnn = nn.LSTM(4, 4, batch_first=True)
        self.linear = nn.Linear(4, 4)

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        h = self.rnn(self.linear(self.embedding(i)))[0]
        chosen = torch.nn.functional.one_hot(i % 4, 4).to(h.dtype) @ self.linear.weight
        eye = torch.tensor([[1.0, 0, 0, 0]] * 4).to(h.dtype)
        angles = torch.arange(4, dtype=torch.float32).cos().to(h.dtype)
        h = (h + chosen + torch.zeros(4, dtype=h.dtype)) @ eye @ angles.diag()
        return h.masked_fill(h > 0, torch.finfo(h.dtype).min).softmax(-1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_converted_modules_compute_as_the_original(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, i = Typed().eval(), torch.tensor([[1, 2, 3], [4, 5, 6]])
    program = export(model, (i,))
    converted = copy.deepcopy(model).to(dtype)
    want = converted(i)
    tolerances = {"rtol": 0.05, "atol": 0.05} if dtype is torch.bfloat16 else {}
    for made in (program.module(), unflatten(program)):
        got = made.to(dtype)(i)
        assert got.dtype is dtype
        torch.testing.assert_close(got, want, **tolerances)
        torch.testing.assert_close(made.to(torch.float32)(i), model(i), rtol=0.05, atol=0.05)
    again = export(program.module().to(dtype), (i,)).module()
    torch.testing.assert_close(again(i), want, **tolerances)


def test_ranges_stay_as_exact_as_they_are() -> None:
    """In bfloat16 there is no 257."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (torch.arange(300, dtype=torch.float32) % 2 * self.scale).to(x.dtype) + x * 0

    x = torch.randn(300)
    module = export(Positions(), (x,)).module().to(torch.bfloat16)
    want = Positions().to(torch.bfloat16)(x.bfloat16())
    torch.testing.assert_close(module(x.bfloat16()).to(want.dtype), want)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_largest_number_becomes_the_largest(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(x > 0, torch.finfo(x.dtype).min)

    x = torch.randn(8)
    program = ConvertDtype(dtype, inputs="convert", outputs="convert")(export(f, (x,)))
    torch.testing.assert_close(program.module()(x.to(dtype)), f(x.to(dtype)))
