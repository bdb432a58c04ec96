"""What is known of one operator: how it is written, and when it is not.

Must not know which operators there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from lostwax.backends.xnnpack.writer import PartWriter


class ProgramFacts:
    """What is known of a program before its parts are: which nodes are constants. `state` has the
    values of its own constants."""

    def __init__(self, constants: set[Node], state: Mapping[Node, torch.Tensor]) -> None:
        self.constants = constants
        self.values: dict[Node, Any] = dict(state)
        self.reasons: dict[Node, str] = {}
        """Why calls that several belong to are not taken, as far as it was asked."""

    def is_constant(self, value: object) -> bool:
        return isinstance(value, Node) and value in self.constants

    def compute(self, node: Node) -> torch.Tensor:
        """The value of a constant."""
        if node not in self.values:
            for each in node.all_input_nodes:
                self.compute(each)
            args, kwargs = map_arg((node.args, node.kwargs), self.values.__getitem__)
            self.values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        found: torch.Tensor = self.values[node]
        return found


def take_all(node: Node, facts: ProgramFacts) -> str:
    """Every call that XNNPACK's dtypes and sizes allow is taken."""
    return ""


@dataclass(frozen=True)
class OperatorEntry:
    """An operator: `write` writes a call of it, `explain` says why one is not taken, "" if it is.
    A `lazy` one is written when it is read: it may turn out to be nothing. One of `any_constants`
    takes such as are not of float32. One that is `quantized` has integers, and looks after them;
    one of `any_values` is part of another call, and nothing is asked of its values. One with
    `windows` fails when a batch is empty."""

    write: Callable[[PartWriter, Node], None]
    explain: Callable[[Node, ProgramFacts], str] = take_all
    lazy: bool = False
    any_constants: bool = False
    quantized: bool = False
    any_values: bool = False
    windows: bool = False


Operators = Mapping[str, OperatorEntry]
