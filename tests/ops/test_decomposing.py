"""Every operator of torch's `op_db` lands in core ATen, or in the list of those that stay whole,
and computes what eager computes. Here its first sample; `python -m tests.ops.decomposing` runs all.

What is delicate is computed with no more error than by torch's own decompositions, against the same
in float64.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lostwax import Dim, export
from lostwax.ops import registry
from tests.ops.conformance import operators
from tests.ops.decomposing import Verdict, judged, samples


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


REFUSED = {
    "allclose": "it returns a bool that data decide",
    "equal": "it returns a bool that data decide",
    "istft": "it looks at data, whether its window is empty somewhere",
    "nn.functional.one_hot": "without `num_classes` its size depends on data",
    "resize_": "it changes how an input lies in memory",
    "resize_as_": "it changes how an input lies in memory",
    "to_sparse": "no program has sparse tensors",
}
"""What export refuses, and so nothing decomposes."""


@pytest.mark.parametrize("name", operators())
def test_an_operator_in_core_aten(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call = next(samples([name], 1), None)
        if call is None:
            return
        outcome = judged(call)
    fine = (Verdict.EQUAL, Verdict.REFUSED if name in REFUSED else Verdict.SKIPPED)
    assert outcome.verdict in fine, f"{call}: {outcome.detail}"


def spread(*size: int) -> Tensor:
    """Numbers of many magnitudes."""
    torch.manual_seed(0)
    return torch.randn(size) * torch.logspace(-3, 1.7, size[-1])


INFINITE = torch.tensor([[1.0, -torch.inf, 3.0], [-torch.inf] * 3, [torch.inf, 1.0, 2.0]])
HEADS = tuple(spread(1, 2, 16, 32) for _ in range(3))
SEEN = torch.ones(16, 16, dtype=torch.bool).tril(-1)
"""Which keys a query sees: the first sees none."""

Case = tuple[Callable[..., Any], tuple[Tensor, ...]]
DELICATE: dict[str, Case] = {
    "softmax": (lambda x: F.softmax(x, -1), (spread(8, 64),)),
    "log_softmax": (lambda x: F.log_softmax(x, -1), (spread(8, 64),)),
    "logsumexp": (lambda x: x.logsumexp(-1), (spread(8, 64) * 20,)),
    "softmax of infinities": (lambda x: F.softmax(x, -1), (INFINITE,)),
    "logsumexp of infinities": (lambda x: x.logsumexp(-1), (INFINITE,)),
    "logsigmoid": (F.logsigmoid, (spread(8, 64),)),
    "softplus": (F.softplus, (spread(8, 64),)),
    "mish": (F.mish, (spread(8, 64),)),
    "silu": (F.silu, (spread(8, 64),)),
    "gelu": (F.gelu, (spread(8, 64),)),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), (spread(8, 64),)),
    "gelu of the tail": (F.gelu, (torch.linspace(-14, -3, 64),)),
    "norm 2": (lambda x: torch.linalg.vector_norm(x, dim=-1), (spread(8, 64),)),
    "norm 3": (lambda x: torch.linalg.vector_norm(x, 3, dim=-1), (spread(8, 64),)),
    "normalize": (lambda x: F.normalize(x, dim=-1), (spread(8, 64),)),
    "layer_norm": (lambda x: F.layer_norm(x, (64,)), (spread(8, 64) + 100,)),
    "rms_norm": (lambda x: F.rms_norm(x, (64,)), (spread(8, 64),)),
    "group_norm": (lambda x: F.group_norm(x, 4), (spread(2, 8, 64) + 100,)),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), (spread(8, 64) + 100,)),
    "var": (lambda x: x.var(-1), (spread(8, 64) + 1000,)),
    "std": (lambda x: x.std(-1), (spread(8, 64) + 1000,)),
    "var_mean": (lambda x: torch.var_mean(x, -1), (spread(8, 64) + 1000,)),
    "attention": (F.scaled_dot_product_attention, HEADS),
    "causal": (lambda *x: F.scaled_dot_product_attention(*x, is_causal=True), HEADS),
    "masked": (F.scaled_dot_product_attention, (*HEADS, SEEN)),
    "cross_entropy": (F.cross_entropy, (spread(8, 64), torch.arange(8))),
}


class All(torch.nn.Module):
    """All cases in one program: exporting is what takes time."""

    def forward(self, *inputs: Tensor) -> Any:
        left, results = list(inputs), {}
        for name, (function, given) in DELICATE.items():
            results[name] = function(*left[: len(given)])
            del left[: len(given)]
        return results


Results = tuple[dict[str, Any], dict[str, Any], dict[str, Any], torch.dtype]


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def results(request: Any) -> Results:
    """What ours computes, what torch's, and both in float64."""
    dtype = request.param
    given = [x for _, inputs in DELICATE.values() for x in inputs]
    inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in given)
    exact = [x.double() if x.is_floating_point() else x for x in inputs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = export(All(), inputs).run_decompositions().module()
        theirs = torch.export.export(All(), inputs).run_decompositions().module()
    return ours(*inputs), theirs(*inputs), All()(*exact), dtype


def error(computed: Any, exact: Any) -> float:
    """The largest relative error; infinite, where only one of the two is finite."""
    leaves = (torch.utils._pytree.tree_leaves(x) for x in (computed, exact))
    return max(_error(a.double(), b) for a, b in zip(*leaves, strict=True))


def _error(a: Tensor, b: Tensor) -> float:
    difference = (a - b).abs() / (b.abs() + 1e-6)
    equal = (a == b) | (a.isnan() & b.isnan())
    return float(difference.nan_to_num(torch.inf).where(~equal, torch.zeros(())).max())


@pytest.mark.parametrize("name", DELICATE)
def test_no_less_accurate_than_torch(name: str, results: Results) -> None:
    *computed, dtype = results
    ours, theirs, exact = (r[name] for r in computed)
    rounding = 2 * torch.finfo(dtype).eps
    assert error(ours, exact) <= max(1.05 * error(theirs, exact), rounding)


@pytest.mark.parametrize("function", [F.silu, F.mish, F.softplus, F.hardswish, torch.std])
def test_half_precision_is_rounded_once(function: Callable[[Tensor], Tensor]) -> None:
    x = spread(4, 64).bfloat16()
    core = export(function, (x,)).run_decompositions()
    torch.testing.assert_close(core.module()(x), function(x), rtol=0.008, atol=0)


class Kernel(torch.nn.Module):
    """The CPU's fused attention by its name: its result, and the sums for its gradient."""

    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Any:
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return kernel(q, k, v, 0.0, self.is_causal, attn_mask=mask)


@pytest.mark.parametrize("how", ["plain", "causal", "masked", "half", "one head"])
def test_fused_attention_by_its_name(how: str) -> None:
    kernel, batch = Kernel(how == "causal"), Dim("batch")
    mask = spread(5, 7)
    mask[2] = -torch.inf  # a row that sees nothing

    def inputs(n: int) -> tuple[Tensor, ...]:
        q, k, v = spread(n, 4, 5, 8), spread(n, 4, 7, 8), spread(n, 4, 7, 8) + 1
        if how == "one head":
            k, v = k[:, :1], v[:, :1]
        given = tuple(x.half() if how == "half" else x for x in (q, k, v))
        return (*given, mask) if how == "masked" else given

    shapes = ({0: batch}, {0: batch}, {0: batch}, *([None] if how == "masked" else []))
    core = export(kernel, inputs(2), dynamic_shapes=shapes).run_decompositions()
    left = [n.target for n in core.graph.nodes if n.op == "call_function"]
    assert not any("flash" in str(target) for target in left)
    tolerance = 2e-3 if how == "half" else 2e-5
    for n in (1, 2, 3):
        got, want = core.module()(*inputs(n)), kernel(*inputs(n))
        torch.testing.assert_close(got, tuple(want), rtol=tolerance, atol=tolerance)


def test_decompositions_of_our_own_are_of_operators_that_are_not_core() -> None:
    ours = registry.overloads_with_decompositions()
    assert ours
    assert all(torch.Tag.core not in op.tags for op in ours)
