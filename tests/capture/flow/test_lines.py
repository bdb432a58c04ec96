"""Operators of control flow have the line of the `if`, `while` or `for` that they come from."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lostwax


def chooses(x: Tensor) -> Tensor:
    if x.sum() > 0:  # here
        x = x + 1
        x = x * 2
    else:
        x = x - 1
    return x


def chooses_of_three(x: Tensor) -> Tensor:
    if x.sum() > 9:  # here
        return x + 1
    elif x.sum() > 0:  # here
        return x * 2
    return x - 1


def chooses_in_several_lines(x: Tensor) -> Tensor:
    if (  # here
        x.sum()
        > 0
    ):  # fmt: skip
        x = x + 1
    return x


def chooses_an_expression(x: Tensor) -> Tensor:
    y = x + 1 if x.sum() > 0 else x  # here
    return y * 2


def repeats(x: Tensor) -> Tensor:
    while x.sum() < 100:  # here
        x = x + 1
        x = x * 2
    return x


def repeats_and_leaves(x: Tensor) -> Tensor:
    while x.sum() < 100:  # here
        x = x + 1
        if x.max() > 50:  # here
            break
    return x


def counts(x: Tensor) -> Tensor:
    for i in range(int(x.sum())):  # here
        x = x + i
    return x


def appends(x: Tensor) -> Tensor:
    found = []
    for i in range(int(x.sum())):  # here
        y = x + i
        found.append(y)
    return torch.stack(found)


def matches(x: Tensor) -> Tensor:
    match int(x.sum()):
        case 6:  # here
            x = x + 1
        case _:
            x = x * 2
    return x


PROGRAMS = [
    chooses, chooses_of_three, chooses_in_several_lines, chooses_an_expression, repeats,
    repeats_and_leaves, counts, appends, matches,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_the_line(program: Callable[..., Any]) -> None:
    lines, first = inspect.getsourcelines(program)
    marked = {first + i for i, line in enumerate(lines) if line.rstrip().endswith("# here")}
    found = set(_list_lines(lostwax.export(program, (torch.tensor([1.0, 2, 3]),)).graph_module))
    assert found == marked


def _list_lines(module: torch.fx.GraphModule) -> list[int]:
    """The lines of operators that run graphs, also of those in these graphs."""
    found = []
    for graph_module in module.modules():
        for node in graph_module.graph.nodes:  # type: ignore[union-attr]
            if any(each.op == "get_attr" for each in node.all_input_nodes):
                frame, _ = node.meta["stack_trace"].rstrip().splitlines()[-2:]
                found.append(int(frame.split("line ")[1].split(",")[0]))
    return found
