"""Operators in onnxruntime against eager: small programs, and samples of torch's `op_db`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import lostwax
from lostwax import Dim
from tests.onnx.operator_programs import CASES, SIZED, X
from tests.onnx.running import OPSETS, Session, compare
from tests.onnx.sampling import Verdict, judge
from tests.ops.decomposing import samples
from tests.whole import sampled

EVERY = [(name, opset) for name in CASES for opset in OPSETS]


@pytest.mark.parametrize(
    ("name", "opset"), sampled([(name, (18, 23, 26)[i % 3]) for i, name in enumerate(CASES)], EVERY)
)
def test_operator(name: str, opset: int) -> None:
    function, args = CASES[name]
    compare(
        Session(lostwax.export(function, args), opset),
        function,
        args,
        tol=2e-3 if "half" in name else 1e-5,
    )


@pytest.mark.parametrize("name", SIZED)
@pytest.mark.parametrize("opset", sampled((23,), OPSETS))
def test_sizes_that_vary(name: str, opset: int) -> None:
    function, args = SIZED[name]
    shapes = ({0: Dim("rows", min=2)},)
    session = Session(lostwax.export(function, args, dynamic_shapes=shapes), opset)
    for rows in (2, 3, 7):
        compare(session, function, (torch.randn(rows, 3, 4),))


def test_a_batch_of_none() -> None:
    """A size of 0 is a size as any other: no `-1` that would then be ambiguous."""

    def f(x: Tensor) -> Any:
        n = x.shape[0]
        return (
            x.reshape(n, 2, 6),
            x.flatten(1) @ torch.ones(12, 2),
            x.transpose(1, 2).reshape(n * 4, 3),
        )

    session = Session(lostwax.export(f, (X,), dynamic_shapes=({0: Dim("rows")},)))
    compare(session, f, (torch.randn(0, 3, 4),))
    compare(session, f, (X,))


def test_one_shape_serves_all_that_need_it() -> None:
    def f(x: Tensor) -> Any:
        n = x.shape[0]
        return [torch.zeros(n * 3, i) for i in range(1, 4)], x.reshape(n, 12), x.reshape(n, 2, 6)

    session = Session(lostwax.export(f, (X,), dynamic_shapes=({0: Dim("rows")},)))
    assert session.nodes.count("Shape") == 1
    assert session.nodes.count("Mul") == 1


NAMES = sampled(
    ["addmm", "index_put", "scatter_reduce.amax", "nn.functional.pad.constant", "cumsum"], []
)


@pytest.mark.parametrize("name", NAMES)
def test_samples_of_torch(name: str) -> None:
    found = [(call, judge(call, 23)) for call in samples([name], 6)]
    assert [each for each in found if each[1].verdict in (Verdict.DIFFERS, Verdict.RAISES)] == []
    assert any(each[1].verdict is Verdict.EQUAL for each in found)
