"""Single operators in the runtime, beside eager execution."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

import lostwax
from tests.pte.runtime import Runtime, assert_close

EXPRESSIONS = """
x.t() @ y
torch.where(x > 0, x, y * 2)
x.std(-1)
x.var(0)
x.norm()
torch.stack([x, y], 1)
x.flip(0)
x.roll(1, 0)
x[:, 1:3]
x[::2]
x.chunk(2, 1)[1]
torch.einsum('ij,kj->ik', x, y)
x.cumsum(0)
x.max(1)
x.amax(1)
x.clamp(-1, 1)
x.int() + y.long()
x / 3
2 / x.abs().clamp(min=0.1)
x ** 2
x.topk(2)
F.layer_norm(x, (6,))
x.mean()
x.sum()
x.prod(1)
x.logsumexp(1)
F.softplus(x)
F.elu(x)
F.mish(x)
torch.tril(x)
x.expand(2, *x.shape)
x.unsqueeze(0).repeat(2, 1, 1)
torch.arange(x.shape[0])
torch.zeros_like(x)
torch.full((3,), 2.0)
x.round()
torch.minimum(x, y)
x.any()
x.eq(0).all()
torch.outer(x[0], y[0])
x.gather(1, torch.zeros(2, 1, dtype=torch.int64))
x.masked_fill(x > 0, 0.0)
F.pad(x, (1, 1))
F.one_hot(x.argmax(1), 6)
x.half().float()
x.double().sum()
torch.linspace(0, 1, 5) + x[0, 0]
x.to(torch.int32) * 2.5
(x > 0) & (y > 0)
((x * 5).int() // 2, (x * 5).int() % 3, (x * 5).int() % (y * 9).int().clamp(-5, -1))
x[torch.tensor([1, 0])]
x[:, torch.tensor([0, 2])]
(x.sum().cumsum(0), x.sum().softmax(0), x.sum().max(0), x.sum().sum(0), x.mean().amax(0, True))
x.sum().expand(2, 2)
(x.int().add(1.5), x.int() * 2.5, x.int() > 0.5, x.int() ** 0.5, x.int().clamp(0.5), 1.5 - x.int())
F.normalize(x.sum(), dim=0)
(x.sort()[0], x.sort(0, descending=True).values, x.quantile(0.3))
F.avg_pool3d(x.repeat(1, 20).view(2, 2, 3, 4, 5), 2, stride=1)
F.avg_pool3d(x.repeat(1, 20).view(2, 2, 3, 4, 5), (1, 2, 3), padding=(0, 1, 1))
F.max_pool3d(x.repeat(1, 20).view(2, 2, 3, 4, 5), 2, padding=1)
F.max_pool3d(x.repeat(1, 20).view(4, 3, 4, 5), (2, 1, 2), stride=1)
F.adaptive_avg_pool3d(x.repeat(1, 20).view(2, 2, 3, 4, 5), (1, 2, 5))
""".strip().splitlines()


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_operator_runs_as_in_eager(expression: str) -> None:
    code = compile(expression, "expression", "eval")

    def compute(x: Any, y: Any) -> Any:
        return eval(code, {"torch": torch, "F": F, "x": x, "y": y})

    inputs = torch.randn(2, 6), torch.randn(2, 6)
    runtime = Runtime(lostwax.export(compute, inputs).to_edge().to_executable().buffer)
    wanted = compute(*inputs)
    for _ in range(2):  # the second time, memory holds what the first has left there
        assert_close(runtime(*inputs), tree_leaves(wanted))


def test_a_kernel_that_adds_to_its_result_gets_zeros() -> None:
    def differentiate(x: Any) -> Any:
        y, where = torch.ops.aten.max_pool2d_with_indices(x, [2, 2], [1, 1])
        back = torch.ops.aten.max_pool2d_with_indices_backward
        return back(torch.ones_like(y), x, [2, 2], [1, 1], [0, 0], [1, 1], False, where)

    x = torch.randn(1, 2, 4, 4)
    runtime = Runtime(lostwax.export(differentiate, (x,)).to_edge().to_executable().buffer)
    for _ in range(2):
        assert_close(runtime(x), [differentiate(x)])


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: F.pad(x, (1, -1)),
        lambda x: F.pad(x, (-2, -1, 0, 3), value=2.0),
        lambda x: F.pad(x, (-1, 2, 1, -2)),
    ],
)
def test_a_border_may_be_taken_away(compute: Any) -> None:
    x = torch.randn(4, 6)
    runtime = Runtime(lostwax.export(compute, (x,)).to_edge().to_executable().buffer)
    assert_close(runtime(x), [compute(x)])


def test_the_truth_of_an_element_is_a_number() -> None:
    program = lostwax.export(lambda x: ((x[0] > 0).item(), x * 2), (torch.ones(2),))
    runtime = Runtime(program.to_edge().to_executable().buffer)
    for x in (torch.ones(2), -torch.ones(2)):
        assert runtime(x)[0] is bool(x[0] > 0)


def test_a_view_of_too_many_dimensions_is_refused() -> None:
    program = lostwax.export(lambda x: x.view([1] * 16 + [2]), (torch.ones(2),))
    with pytest.raises(lostwax.errors.LoweringError, match="17 dimensions"):
        program.to_edge().to_executable()


class NormOfViews(torch.nn.Module):
    """A convolution and its batch norm; their weights are kept in other sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = torch.nn.Parameter(torch.randn(6, 36))
        self.scale = torch.nn.Parameter(torch.randn(1, 6, 1, 1))
        self.norm = torch.nn.BatchNorm2d(6)
        torch.nn.init.normal_(self.norm.running_mean)  # type: ignore[arg-type]
        self.eval()

    def forward(self, x: torch.Tensor) -> Any:
        weight = self.matrix.view(6, 4, 3, 3)
        folded = self.norm(F.conv2d(x, weight, self.scale.view(6)))
        mean, var = self.norm.running_mean, self.norm.running_var
        apart = F.batch_norm(x.repeat(1, 2, 1, 1)[:, :6], mean, var, self.scale.view(6))
        return folded, apart


def test_a_norm_is_folded_with_weights_that_are_views() -> None:
    module, x = NormOfViews(), torch.randn(2, 4, 5, 5)
    runtime = Runtime(lostwax.export(module, (x,)).to_edge().to_executable().buffer)
    assert_close(runtime(x), module(x))


F16, I32 = torch.float16, torch.int32
INDEX = torch.tensor([[0, 1, 1]], dtype=I32)
MIXED = """
F.layer_norm(x, (4,), torch.ones(4) * 2, torch.ones(4))
torch.native_layer_norm(x, (4,), torch.ones(4), torch.zeros(4), 1e-5)
F.group_norm(x.unsqueeze(-1), 2, torch.ones(4) * 3, torch.zeros(4))
F.batch_norm(x, torch.ones(4), torch.ones(4) * 2)
F.batch_norm(x, None, None, training=True)
x.sum().item() * 2
x.cumsum(0)
torch.addmm(x[:, :3], x, x.t())
x.var(0)
torch.arange(0, 3, dtype=x.dtype) + x[:, 0]
x.gather(1, INDEX)
x.scatter(1, INDEX, 1.0)
x.scatter(1, INDEX, x)
x.scatter_add(1, INDEX, x)
""".strip().splitlines()


@pytest.mark.parametrize("dtype", [F16, torch.bfloat16])
@pytest.mark.parametrize("expression", MIXED)
def test_half_precision_and_short_indices_where_a_kernel_has_them_not(
    expression: str, dtype: torch.dtype
) -> None:
    """Kernels refused them when the method ran: floats beside halves, indices of 32 bits."""
    code = compile(expression, "expression", "eval")
    names = {"torch": torch, "F": F, "INDEX": INDEX}

    def compute(x: Any) -> Any:
        return eval(code, {**names, "x": x})

    x = torch.randn(3, 4).to(dtype)
    runtime = Runtime(lostwax.export(compute, (x,)).to_edge().to_executable().buffer)
    wanted = tree_leaves(compute(x))
    for found, eager in zip(runtime(x), wanted, strict=True):
        if isinstance(eager, torch.Tensor):
            assert found.dtype is eager.dtype
            step = torch.finfo(eager.dtype).eps
            torch.testing.assert_close(found, eager, rtol=4 * step, atol=4 * step)
        else:
            assert found == pytest.approx(eager)
