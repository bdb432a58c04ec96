"""Branches, loops and sizes that data decide, in onnxruntime: every path that the calls take."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import lostwax
from lostwax import Dim
from tests.control_programs import cases, program, run_reference
from tests.onnx.running import Session, compare
from tests.whole import sampled

FEW = ["cond nested", "cond unbacked", "while number", "while cond", "map pair", "scan reverse"]
FEW += ["associative pair", "regions"]


@pytest.mark.parametrize("name", sampled([n for n in FEW if n in cases()], list(cases())))
def test_operators_of_control_flow(name: str) -> None:
    case = cases()[name]
    session = Session(program(name), 18)
    for call in (case.args, *case.others):
        compare(session, lambda *args: run_reference(name, args), call)


def collatz(n: Tensor) -> tuple[Tensor, Tensor]:
    steps = torch.tensor(0)
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps = steps + 1
    return n, steps


def keep_positive(x: Tensor) -> tuple[Tensor, Tensor]:
    rows = (x.sum(1) > 0).nonzero()[:, 0]
    kept = x[rows]
    return kept, kept.reshape(-1, 2).sum(1)


def suppress(boxes: Tensor, scores: Tensor) -> Tensor:
    order = scores.argsort(descending=True)
    boxes = boxes[order]
    kept = torch.ones(boxes.shape[0], dtype=torch.bool)
    for i in range(boxes.shape[0]):
        if kept[i]:
            near = (boxes - boxes[i]).abs().sum(1) < 1
            near[: i + 1] = False
            kept = kept & ~near
    return order[kept]


def grow(x: Tensor) -> Tensor:
    while x.sum() < 10:
        x = torch.cat([x, x.mean()[None] + 1])
    return x


def swap(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    while x.sum() < 20:
        x, y = y + 1, x
    return x, y


def sized_turns(x: Tensor) -> Tensor:
    n = x.shape[0]
    total = x.sum()
    while total > n:
        total = total / 2
        n = n + 1
    return total * n


VECTOR: Any = ({0: Dim("n")},)
PROGRAMS: dict[str, tuple[Any, Any, list[tuple[Tensor, ...]]]] = {
    "collatz": (collatz, None, [(torch.tensor(n),) for n in (6, 1, 27)]),
    "rows that data choose": (
        keep_positive,
        VECTOR,
        [(torch.randn(n, 4, generator=torch.Generator().manual_seed(n)),) for n in (5, 1, 9)]
        + [(-torch.ones(3, 4),)],
    ),
    "boxes": (
        suppress,
        None,
        [
            (torch.tensor([[0.0], [0.5], [3.0], [3.2]]), torch.tensor(s))
            for s in ([1.0, 2, 3, 4], [4.0, 1, 2, 3])
        ],
    ),
    "growing": (grow, None, [(torch.tensor([1.0, 2.0]),), (torch.tensor([20.0, 2.0]),)]),
    "swapped": (swap, None, [(torch.ones(2), torch.zeros(2)), (torch.ones(2) * 30, torch.ones(2))]),
    "numbers": (
        sized_turns,
        VECTOR,
        [(torch.ones(3) * 5,), (torch.ones(2),), (torch.ones(6) * 9,)],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("opset", sampled((23,), (18, 26)))
def test_python_control_flow(name: str, opset: int) -> None:
    function, shapes, calls = PROGRAMS[name]
    session = Session(lostwax.export(function, calls[0], dynamic_shapes=shapes), opset)
    for call in calls:
        compare(session, function, call)
