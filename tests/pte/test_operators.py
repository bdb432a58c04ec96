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
