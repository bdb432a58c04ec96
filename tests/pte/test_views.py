"""Views in the runtime: chains of them are one strided copy, or none."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import lostwax
from lostwax import Dim
from lostwax.errors import LoweringError
from tests.pte.runtime import Runtime, assert_close


def list_kernels(buffer: bytes) -> list[str]:
    return re.findall(r" = (?:aten::)?([\w:.]+)\(", lostwax.pte.dump(buffer))


def lower(function: Any, *inputs: Any, shapes: Any = None) -> bytes:
    program = lostwax.export(function, inputs, dynamic_shapes=shapes)
    buffer: bytes = program.to_edge().to_executable().buffer
    return buffer


CHAINS = {
    "two that undo each other": (lambda x: x.transpose(0, 1).transpose(0, 1) + 1, ["add.out"]),
    "sizes of one": (lambda x: x.unsqueeze(1).permute(1, 0, 3, 2).squeeze(0) + 1, None),
    "heads": (
        lambda x: x.view(3, 4, 2, 6).transpose(1, 2).expand(3, 2, 4, 6).reshape(6, 4, 6) + 1,
        ["as_strided_copy.out", "add.out"],
    ),
    "parts": (
        lambda x: [p.unflatten(2, (2, 2)).transpose(1, 2) + 1 for p in x.split(4, 2)],
        ["as_strided_copy.out", "as_strided_copy.out", "as_strided_copy.out", *["add.out"] * 3],
    ),
    "a part of the same": (lambda x: x[:, :, :] * 2, ["mul.out"]),
    "turned, then cut": (lambda x: x.permute(2, 0, 1)[1:9:3, 0].t() + 1, None),
    "sizes that do not fit strides": (lambda x: x.permute(2, 0, 1).reshape(4, -1).t() + 1, None),
    "read twice": (lambda x: (x.mT + 1, x.mT.reshape(-1)), None),
    "windows": (lambda x: [x.unfold(1, 2, 2), x.unfold(-1, 5, 3), x.sum().unfold(0, 1, 1)], None),
    "the last": (lambda x: x[..., -1].t(), ["as_strided_copy.out"]),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_of_views(name: str) -> None:
    function, kernels = CHAINS[name]
    x = torch.randn(3, 4, 12)
    buffer = lower(function, x)
    assert_close(Runtime(buffer)(x), tree_leaves(function(x)))
    if kernels is not None:
        assert sorted(list_kernels(buffer)) == sorted(kernels)


def see_in_many_ways(x: Any) -> Any:
    y, (q, k, v) = x.permute(1, 0, 2), x.split(4, 2)
    seen = (
        y,
        y.transpose(1, 2),
        x.unsqueeze(0).expand(3, -1, -1, -1).permute(1, 2, 0, 3),
        q.permute(2, 0, 1),
        k.transpose(0, 1).reshape(-1, 4),
        v.reshape(v.shape[0] * v.shape[1], 2, 2).transpose(0, 1),
        x[:, :, 1::3],
        x[..., -1].t(),
        x.view(-1, 12)[:, 3:7],
    )
    return [part + 1 for part in seen]


def test_views_of_sizes_that_vary() -> None:
    shapes = ({0: Dim("n", max=9), 1: Dim("m", max=9)},)
    runtime = Runtime(lower(see_in_many_ways, torch.randn(3, 4, 12), shapes=shapes))
    for n, m in ((3, 4), (9, 9), (1, 1), (0, 3), (3, 0), (5, 1)):
        x = torch.randn(n, m, 12)
        assert_close(runtime(x), see_in_many_ways(x))


def test_views_of_every_dtype() -> None:
    for dtype in (torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float64):
        x = torch.randint(0, 2, (3, 4)).to(dtype)
        for got in Runtime(lower(lambda x: x.t()[1:], x))(x):
            assert torch.equal(got, x.t()[1:])


class State(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(4, 6))

    def forward(self, x: Any) -> Any:
        view = self.kept.t()
        old = view.reshape(3, 8)
        self.kept.add_(x)
        return view[1:] + 1, old, old.t() * 2, self.kept.t() * 1


def test_what_is_seen_of_state_before_and_after_a_write() -> None:
    module = State()
    runtime = Runtime(lower(State(), torch.ones(4, 6)))
    for i in range(3):
        x = torch.full((4, 6), float(i))
        assert_close(runtime(x), module(x))


def test_a_view_of_a_constant_is_a_constant() -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.randn(9, 4, 6)
            self.weight = nn.Parameter(whole[2:5])  # does not begin where its memory does

        def forward(self, x: Any) -> Any:
            return x @ self.weight.transpose(1, 2)

    module, x = Module(), torch.randn(3, 5, 6)
    buffer = lower(module, x)
    assert list_kernels(buffer) == ["bmm.out"]
    assert_close(Runtime(buffer)(x), [module(x)])


def test_a_view_is_written_on_each_side_of_a_branch() -> None:
    def choose(x: Any, which: Any) -> Any:
        y = x.t()

        def change(y: Any) -> Any:
            return y.contiguous() * 2 + y.t().reshape(6, 4)

        def keep(y: Any) -> Any:
            return y.t().reshape(6, 4) - 1

        return torch.cond(which.sum() > 0, change, keep, (y,)) + y

    runtime = Runtime(lower(choose, torch.randn(4, 6), torch.ones(1)))
    for which in (torch.ones(1), -torch.ones(1)):
        x = torch.randn(4, 6)
        y, plain = x.t(), x.t().t().reshape(6, 4)
        assert_close(runtime(x, which), [(y * 2 + plain if which > 0 else plain - 1) + y])


def test_a_row_is_multiplied_with_a_matrix_as_it_lies() -> None:
    def attend(q: Any, k: Any) -> Any:
        return q @ k.transpose(-1, -2) + 1, q @ k[:, :, :3].transpose(-1, -2), q @ q.mT

    inputs = torch.randn(2, 4, 1, 5), torch.randn(2, 4, 7, 5)
    buffer = lower(attend, *inputs)
    assert list_kernels(buffer).count("as_strided_copy.out") == 1  # the part of the keys
    assert_close(Runtime(buffer)(*inputs), attend(*inputs))


def test_softmax_by_its_parts() -> None:
    x = 30 * torch.randn(3, 4, 7)
    x[0, 0] = -torch.inf
    x[0, 1, 3] = torch.nan
    x[0, 2, 5] = torch.inf
    x[1] += 1e30
    x[2, :, 3:] = -torch.inf
    buffer = lower(lambda x: x.softmax(-1), x)
    assert "_softmax.out" not in list_kernels(buffer)
    assert_close(Runtime(buffer)(x), [x.softmax(-1)])
    # Of nothing there is no maximum: `amax` would end the process.
    varied = lower(lambda x: x.softmax(-1), x, shapes=({0: Dim("n", max=5)},))
    assert_close(Runtime(varied)(x[:0]), [x[:0]])


def test_a_square_is_a_product() -> None:
    x = torch.randn(4)
    buffer = lower(lambda x: (x**2, x**3), x)
    assert sorted(list_kernels(buffer)) == ["mul.out", "pow.Tensor_Scalar_out"]
    assert_close(Runtime(buffer)(x), [x**2, x**3])


def test_dimensions_that_are_broadcast_alike_are_one() -> None:
    def compute(x: Any, scale: Any, mask: Any) -> Any:
        return (
            x * scale,
            x + mask,
            mask - x,
            x / scale.squeeze(0),
            x * x,
            scale * mask,
            x[:1, :1, 0, 0] * x[0, 0, 0, :1],
        )

    inputs = torch.randn(2, 3, 4, 5), torch.rand(1, 3, 1, 1) + 1, torch.randn(4, 5)
    buffer = lower(compute, *inputs)
    listing = lostwax.pte.dump(buffer)
    assert "f32[2, 3, 20]" in listing  # by a scale of each channel
    assert "f32[6, 20]" in listing  # by a mask for all
    assert_close(Runtime(buffer)(*inputs), compute(*inputs))


IMAGE = torch.randn(2, 8, 6, 6)
LAID_OUT = {
    "split": (lambda norm, x: norm(x.split(4, 1)[1]), IMAGE),
    "chunk, twice": (lambda norm, x: sum(norm(part) for part in x.chunk(2, 1)), IMAGE),
    "the best": (lambda norm, x: norm(x.transpose(1, 3).topk(4, 1)[0]), torch.randn(2, 6, 6, 8)),
    "channels last": (
        lambda norm, x: norm(x),
        IMAGE[:, :4].contiguous(memory_format=torch.channels_last),
    ),
    "every second channel": (lambda norm, x: norm(x), IMAGE[:, ::2]),
    "turned": (lambda norm, x: norm(x), IMAGE[:, :4].contiguous().transpose(2, 3)),
    "repeated": (lambda norm, x: norm(x), torch.randn(1, 4, 1, 6).expand(2, 4, 6, 6)),
    "a branch": (
        lambda norm, x: norm(torch.cond(x.sum() > 0, lambda x: x.mT + 0, lambda x: x.mT * 2, (x,))),
        IMAGE[:, :4].contiguous(),
    ),
}


@pytest.mark.parametrize(("function", "x"), LAID_OUT.values(), ids=LAID_OUT)
def test_a_group_norm_takes_what_lies_otherwise(function: Any, x: torch.Tensor) -> None:
    """torch's kernel asks for one layout; an Edge program has no other."""

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.GroupNorm(2, 4)

        def forward(self, x: torch.Tensor) -> Any:
            return function(self.norm, x)

    module = Norm().eval()
    buffer = lower(module, x)
    with torch.no_grad():
        assert_close(lostwax.pte.run(buffer, (x,)), [module(x)])


class Lengths(nn.Module):
    def __init__(self, bound: int | None) -> None:
        super().__init__()
        self.bound = bound

    def forward(self, lengths: torch.Tensor) -> torch.Tensor:
        longest = lengths.max().item()
        if self.bound is not None:
            torch._check(longest <= self.bound)
        return torch.arange(longest)[None] < lengths[:, None]


def test_a_range_up_to_the_greatest_length_needs_a_bound() -> None:
    lengths = torch.tensor([3, 5])
    runtime = Runtime(lower(Lengths(16), lengths))
    for given in (lengths, torch.tensor([1, 2]), torch.tensor([16, 0])):
        assert_close(runtime(given), [Lengths(None)(given)])
    with pytest.raises(LoweringError, match="the size u0 has no upper bound") as error:
        lower(Lengths(None), lengths)
    assert "torch._check(n <= ...) for the number u0, which depends on data" in str(error.value)
    assert re.search(r"comes from item\(\) at .*longest = lengths\.max\(\)\.item", str(error.value))
    assert re.search(r"at .* in forward, code: return torch\.arange\(longest\)", str(error.value))


def counts_up_to(x: torch.Tensor) -> Any:
    k = int(x.max()) + 1
    torch._check(k <= 16)
    return torch.arange(k), torch.zeros(k + 1, 2)


def stacks_up_to(x: torch.Tensor) -> Any:
    n, found, h = int(x.max()), [], x
    torch._check(n <= 16)
    for i in range(n):
        h = h + i
        found.append(h)
    return h, torch.stack([x, *found]), torch.stack(found) if found else x[None]


@pytest.mark.parametrize("function", [counts_up_to, stacks_up_to])
def test_a_size_from_data_with_a_bound_runs(function: Any) -> None:
    runtime = Runtime(lower(function, torch.tensor([3, 5])))
    for given in ([3, 5], [1, 2], [0, 15], [0, 0]):
        assert_close(runtime(torch.tensor(given)), [*function(torch.tensor(given))])
