"""Tensors that a call leaves in its module: caches are computed in each run of the program, what
nothing reads is left out, everything else is refused."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lostwax import Dim, export
from lostwax.errors import CaptureError

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Model(nn.Module):
    """Keeps something, as `forward` says, in a block that it calls twice."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.block = Block(forward)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.block(x))


class Block(nn.Module):
    def __init__(self, forward: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.linspace(0, 1, 4))
        self.register_buffer("index", torch.tensor([3, 2, 1, 0]))
        self.norm = nn.BatchNorm1d(4)
        self.cache: dict[str, Tensor] = {}
        self.none: Any = None
        self.rows = torch.zeros(1)
        self.size: Any = None
        self.counts = np.zeros(1)
        self.partial = partial(dict, {"n": 0})
        self.function = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def in_a_dict(self: Any, x: Tensor) -> Tensor:
    """As timm's LeViT does."""
    if str(x.device) not in self.cache:
        self.cache[str(x.device)] = self.w[self.index]
    return x + self.cache[str(x.device)]


def in_an_attribute(self: Any, x: Tensor) -> Tensor:
    if self.none is None:
        self.none = torch.tensor([1.0, 2.0, 3.0, 4.0]).mul_(2)
    return x * self.none + torch.tensor(3.0)


def by_its_shape(self: Any, x: Tensor) -> Tensor:
    """As timm's ConViT does."""
    n = x.shape[0]
    if self.rows is None or self.rows.shape[0] != n:
        self.rows = torch.zeros(n, 2)
        self.rows[:, 1] = torch.arange(n)
    return x + self.rows.sum(1, keepdim=True)


def by_a_number(self: Any, x: Tensor) -> Tensor:
    if self.size != x.shape[0]:
        self.size = x.shape[0]
        self.none = torch.arange(self.size).unsqueeze(1)
    return x * self.none


def by_a_tuple(self: Any, x: Tensor) -> Tensor:
    if self.size != (x.shape[0], 4):
        self.size = (x.shape[0], 4)
        self.none = torch.ones(x.shape[0], 4).cumsum(0)
    return x * self.none


def in_a_new_container(self: Any, x: Tensor) -> Tensor:
    if self.none is None or self.none["both"][0].shape[0] != x.shape[0]:
        n = torch.arange(x.shape[0]).unsqueeze(1)
        self.none = {"both": (n.cos(), [n.sin()])}
    return x * self.none["both"][0] + self.none["both"][1][0]


def a_new_buffer(self: Any, x: Tensor) -> Tensor:
    if not hasattr(self, "made"):
        self.register_buffer("made", self.w.cumsum(0), persistent=False)
    return x - self.made


def each_time(self: Any, x: Tensor) -> Tensor:
    self.none = self.w * 2
    return x * self.none


def beside_random_numbers(self: Any, x: Tensor) -> Tensor:
    if self.none is None:
        self.none = self.w.exp()
    return torch.dropout(x, 0.5, train=True) * self.none


def beside_numbers_of_data(self: Any, x: Tensor) -> Tensor:
    """One number is that of the last call, the other is made anew."""
    if self.none is None:
        self.none = self.w.exp()
    count, new = int(self.norm.num_batches_tracked), int((x > 0).sum())
    y = F.pad(x, (0, 0, new, count))
    part = y.sum(0) if y.shape[0] * 2 - count > 14 else y[new:].sum(0) + torch.ones(new, 4).sum(0)
    return x + part * self.none


CACHES = [
    in_a_dict, in_an_attribute, by_its_shape, by_a_number, by_a_tuple,
    in_a_new_container, a_new_buffer, each_time, beside_random_numbers,
    beside_numbers_of_data,
]  # fmt: skip


@pytest.mark.parametrize("forward", CACHES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("varies", [False, True], ids=["static", "dynamic"])
def test_a_cache_is_computed_in_each_run(forward: Any, varies: bool) -> None:
    model = Model(forward).eval()
    before = held(model)
    rows = ({0: Dim("rows", min=2)},) if varies else None
    program = export(model, (X,), dynamic_shapes=rows, preserve_module_call_signature=["block"])
    assert str(held(model)) == str(before)
    module = program.module()
    for n in (3, 5, 3) if varies else (3, 3):  # the model's cache is filled, and made again
        x = torch.randn(n, 4)
        torch.manual_seed(0)
        expected = model(x)
        torch.manual_seed(0)
        torch.testing.assert_close(module(x), expected, rtol=0, atol=0)
    calls = [entry.fqn for entry in program.module_call_graph if entry.signature]
    assert calls == ["", "block", "block@1"]
    names = [n.meta["nn_module_stack"] for n in program.graph.nodes if n.op == "call_function"]
    assert {key for stack in names for key in stack} <= {"", "block", "block@1"}


def held(model: Any) -> list[Any]:
    return [deepcopy({**vars(m), **m._buffers}) for m in model.modules()]


def test_gradients_reach_what_a_cache_is_made_of() -> None:
    model = Model(in_a_dict).eval()
    program = export(model, (X,))
    module = program.module()
    module(X).square().sum().backward()
    model(X).square().sum().backward()
    torch.testing.assert_close(module.block.w.grad, model.block.w.grad)
    module.block.w.data.zero_()  # a program never reads a cache that is out of date
    torch.testing.assert_close(module(X), X)


# ---------------------------------------------------------------------------------- what is refused


def counted(self: Any, x: Tensor) -> Tensor:
    self.cache["k"] = self.cache.get("k", torch.zeros(4)) + 1
    return x + self.cache["k"]


def at_the_second_call(self: Any, x: Tensor) -> Tensor:
    if self.none is None:
        self.none = self.w * 2
        return x + 0
    return x + self.none


def in_a_new_list(self: Any, x: Tensor) -> Tensor:
    if self.none is None:
        self.none = [(self.w * 2,)]
        return x + 0
    return x + self.none[0][0]


def a_constant(self: Any, x: Tensor) -> Tensor:
    if self.none is None:
        self.none = self.rows
        return x + 0
    return x + self.none


def state(self: Any, x: Tensor) -> Tensor:
    if self.none is None:
        self.none = self.index
        return x + 0
    return x + self.none


def of_the_input(self: Any, x: Tensor) -> Tensor:
    if self.none is None:
        self.none = x.mean(0)
    return x - self.none


def random(self: Any, x: Tensor) -> Tensor:
    if self.none is None:
        self.none = torch.rand(4)
    return x + self.none


def returned(self: Any, x: Tensor) -> Tensor:
    if self.none is None:
        self.none = self.w * 2
    return self.none


def written_to(self: Any, x: Tensor) -> Tensor:
    if self.none is None:
        self.none = self.w * 2
        return x + self.w * 2
    return x + self.none.mul_(1)


def beside_state(self: Any, x: Tensor) -> Tensor:
    if self.none is None:
        self.none = self.w * 2
    return self.norm.train()(x) + self.none


def with_a_count(self: Any, x: Tensor) -> Tensor:
    self.size = (self.size or 0) + 1
    return in_a_dict(self, x)


def with_a_count_in_an_array(self: Any, x: Tensor) -> Tensor:
    self.counts[0] += 1
    return in_a_dict(self, x)


def with_a_count_in_a_partial(self: Any, x: Tensor) -> Tensor:
    self.partial.args[0]["n"] += 1
    return in_a_dict(self, x)


def of_other_numbers(self: Any, x: Tensor) -> Tensor:
    n = int((x > 0).sum()) if self.none is None else int((x < 0).sum())
    self.none = self.w.exp()
    return F.pad(x, (0, 0, n, 0))


def less_random(self: Any, x: Tensor) -> Tensor:
    if self.none is None:
        self.none = self.w * 2
        torch.rand(3)
    return torch.dropout(x, 0.5, train=True) + self.none


def fails(self: Any, x: Tensor) -> Tensor:
    if self.none is not None:
        raise KeyError("on purpose")
    self.none = self.w * 2
    return x


def other_gradients(self: Any, x: Tensor) -> Tensor:
    if self.none is None:
        self.none = self.w * 2
        return x + self.none.exp()
    with torch.no_grad():
        return x + self.none.exp()


REFUSED = [
    (counted, "the next call computes something else"),
    (at_the_second_call, "the next call computes something else"),
    (in_a_new_list, "the next call computes something else"),
    (a_constant, "the next call computes something else"),
    (state, "the next call computes something else"),
    (of_the_input, "it depends on the input x"),
    (random, "it depends on aten.rand.default, which is another one in each run"),
    (returned, "it is also returned, and who gets it may write to it"),
    (written_to, "the next call writes to it"),
    (beside_state, "the program also writes to inputs or other state"),
    (with_a_count, "the next call leaves something else"),
    (with_a_count_in_an_array, "the next call leaves something else"),
    (with_a_count_in_a_partial, "the next call leaves something else"),
    (of_other_numbers, "the next call computes something else"),
    (less_random, "the next call computes something else"),
    (fails, "the next call fails: 'on purpose'"),
    (other_gradients, "the next call computes something else"),
]


@pytest.mark.parametrize(("forward", "reason"), REFUSED, ids=lambda f: getattr(f, "__name__", ""))
def test_what_is_no_cache_is_refused(forward: Any, reason: str) -> None:
    block = Block(forward).eval()
    before = held(block)
    with pytest.raises(CaptureError, match="the module keeps a tensor in the attribute") as error:
        export(block, (X,))
    assert f"it is not taken for a cache: {reason}" in str(error.value)
    assert str(held(block)) == str(before)


# ----------------------------------------------------------------------------- what nothing reads


def a_loss(self: Any, x: Tensor) -> Tensor:
    self.none = x.square().mean()
    return x + self.w


def maps(self: Any, x: Tensor) -> Tensor:
    found = (x * self.w).softmax(-1)
    self.cache["map"], self.cache["last"] = (found, found.mT), x
    return found * 2


def a_result(self: Any, x: Tensor) -> Tensor:
    self.none = x * self.w
    return self.none


def beside_a_cache(self: Any, x: Tensor) -> Tensor:
    if self.size is None:
        self.size = self.w * 2
    self.none = torch.rand(()) * x
    return x + self.size


class Scale(torch.autograd.Function):
    """Its backward multiplies by the factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.exp()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.factor, None


def beside_own_gradients(self: Any, x: Tensor) -> Tensor:
    """As RecurrentGemma does without its cache: state is taken away before it is read."""
    self.none = None
    y = Scale.apply(x * self.w, 2.0)
    self.none = y.sum() if self.none is None else y.sum() + self.none
    return y + 1


def beside_branches(self: Any, x: Tensor) -> Tensor:
    self.none = x.mean()

    def nested(y: Tensor) -> Tensor:
        return torch.cond(y.sum() > 1, lambda z: z + x, lambda z: z * 2, (y,))

    return torch.cond(x.sum() > 0, nested, lambda y: y * self.w, (x,)) + 1


def beside_branches_of_sizes(self: Any, x: Tensor) -> Tensor:
    self.none = x.mean()
    return torch.cond(x.sum() > 0, lambda y: y / y.shape[0], lambda y: y[:1] + y, (x,)) + 1


def beside_loops_on_data(self: Any, x: Tensor) -> Tensor:
    total = torch.zeros(4)
    for i in range(x.abs().sum().long().item() % 5):
        total = total * 0.5 + x[0] * i
    self.none = total
    return x + total


def beside_sizes_in_data(self: Any, x: Tensor) -> Tensor:
    positive = x[x > 0]
    self.none = positive.sum()
    return x + positive.sum() * positive.shape[0]


UNREAD = [
    a_loss, maps, a_result, beside_a_cache, beside_own_gradients, beside_branches,
    beside_branches_of_sizes, beside_loops_on_data, beside_sizes_in_data,
]  # fmt: skip


@pytest.mark.parametrize("forward", UNREAD)
def test_what_nothing_reads_is_left_out_with_a_warning(forward: Any) -> None:
    block = Block(forward).eval()
    before = held(block)
    where = "cache" if forward is maps else "none"
    text = rf"a tensor in the attribute {where}.*, at .*test_caches.py:\d+ in {forward.__name__}: "
    with pytest.warns(UserWarning, match=text):
        program = export(block, (X,), dynamic_shapes=({0: Dim("rows")},))
    assert str(held(block)) == str(before)
    for rows in (1, 2, 7):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(program.module()(x), Block(forward).eval()(x))


def read_by_the_next(self: Any, x: Tensor) -> Tensor:
    before, self.none = self.none, x.mean()
    return x + 0 if before is None else x + before


def read_in_a_branch(self: Any, x: Tensor) -> Tensor:
    before, self.none = self.none, x.mean()
    return x * 2 if before is not None and before > 0 else x * 3


def read_by_its_size(self: Any, x: Tensor) -> Tensor:
    before, self.none = self.none, x.mean(1)
    return x * 2 if before is not None and before.shape[0] > 3 else x * 3


def seen_to_be_there(self: Any, x: Tensor) -> Tensor:
    before, self.none = self.none, x.mean()
    return x * 2 if before is not None else x * 3


def passed_on(self: Any, x: Tensor) -> Tensor:
    self.size, self.none = self.none, x.mean()
    return x * 2


def filled_once(self: Any, x: Tensor) -> Tensor:
    if self.none is None:
        self.none = x.mean()
    return x * 2


def seen_by_a_backward(self: Any, x: Tensor) -> Tensor:
    before, self.none = self.none, x.mean()
    return Scale.apply(x * self.w, 2.0 if before is None else 3.0)


def read_by_a_backward(self: Any, x: Tensor) -> Tensor:
    before, self.none = self.none, x.mean()
    return Scale.apply(x * self.w, 1.0 if before is None else before)


def seen_by_a_branch(self: Any, x: Tensor) -> Tensor:
    before, self.none = self.none, x.mean()
    factor = 2 if before is None else 3
    return torch.cond(x.sum() > 0, lambda y: y * factor, lambda y: y * 1, (x,))


def seen_by_an_inner_branch(self: Any, x: Tensor) -> Tensor:
    """The graphs differ in which of their inputs they read."""
    before, self.none = self.none, x.mean()

    def nested(y: Tensor) -> Tensor:
        both = (y, x) if before is None else (x, y)
        return torch.cond(y.sum() > 1, lambda a, b: a - b, lambda a, b: a + b, both)

    return torch.cond(x.sum() > 0, nested, lambda y: y * 1, (x * 2,))


def random_in_a_branch(self: Any, x: Tensor) -> Tensor:
    """Nothing reads what is drawn, but the generator moves."""
    before, self.none = self.none, x.mean()
    if before is None:
        torch.cond(x.sum() > 0, lambda y: torch.rand_like(y), lambda y: y * 1, (x,))
    return torch.dropout(x, 0.5, train=True)


def another_number_in_the_next(self: Any, x: Tensor) -> Tensor:
    before, self.none = self.none, x.mean()
    numbers = x.sum().long().item(), x.mean().long().item()
    return x + numbers[before is None]


def another_loop_in_the_next(self: Any, x: Tensor) -> Tensor:
    before, self.none = self.none, x.mean()
    total = torch.zeros(())
    for i in range(x.abs().sum().long().item()):
        for j in range(x.abs().mean().long().item() + 2):
            total = total * 0.5 + (i if before is None else j)
    return x + total


@pytest.mark.parametrize(
    "forward",
    [
        another_number_in_the_next,
        another_loop_in_the_next,
        read_by_the_next,
        read_in_a_branch,
        read_by_its_size,
        seen_to_be_there,
        passed_on,
        filled_once,
        seen_by_a_backward,
        read_by_a_backward,
        seen_by_a_branch,
        seen_by_an_inner_branch,
        random_in_a_branch,
    ],
)
@pytest.mark.parametrize("shapes", [None, ({0: Dim("rows")},)])
def test_what_the_next_call_reads_is_refused(forward: Any, shapes: Any) -> None:
    reason = r"it depends on the input x, and the next call [\s\S]*register_buffer"
    with pytest.raises(CaptureError, match=reason):
        export(Block(forward), (torch.randn(5, 4),), dynamic_shapes=shapes)


# ------------------------------------------------------------------------------------ other sizes


def first_size(self: Any, x: Tensor) -> Tensor:
    if self.none is None:
        self.none = torch.arange(x.shape[0]).sum()
    return x + self.none


def first_number(self: Any, x: Tensor) -> Tensor:
    if self.none is None:
        self.size, self.none = x.shape[0], self.w * 2
    return x * self.size + self.none


def largest_size(self: Any, x: Tensor) -> Tensor:
    if self.rows.shape[0] < x.shape[0]:
        self.rows = torch.arange(x.shape[0])
    return x + self.rows[: x.shape[0], None]


@pytest.mark.parametrize("forward", [first_size, first_number, largest_size])
def test_caches_that_may_be_of_another_size_are_refused(forward: Any) -> None:
    """Of one size they are caches. Where it varies, the next call may find one that is too old."""
    export(Block(forward), (X,))
    with pytest.raises(CaptureError, match="it is not taken for a cache: the next call"):
        export(Block(forward), (X,), dynamic_shapes=({0: Dim("rows", min=2)},))


def test_called_once_before_it_is_a_constant() -> None:
    """As the error says."""
    block = Block(returned)
    with pytest.raises(CaptureError, match=r"call the module once under torch.no_grad\(\)"):
        export(block, (X,))
    with torch.no_grad():
        block(X)
    program = export(block, (X,))
    assert list(program.constants) == ["none"]
    torch.testing.assert_close(program.module()(X), block(X))


def test_a_cache_that_was_filled_with_gradients() -> None:
    """Its gradients reach parameters behind the program's back."""
    block = Block(in_a_dict)
    block(X)
    with pytest.raises(CaptureError, match=r"size \(4,\), .* was computed with gradients") as error:
        export(block, (X,))
    assert "in in_a_dict: return x + self.cache[str(x.device)]" in str(error.value)
    with torch.no_grad():
        program = export(block, (X,))
    assert torch.equal(program.module()(X), block(X))
    assert all(constant.is_leaf for constant in program.constants.values())
    block.cache.clear()
    assert not export(block, (X,)).constants
