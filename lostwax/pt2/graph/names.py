"""Names for nodes and sub-graphs of a program that is read, and what calls of sub-graphs take.

Must not read files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from lostwax.ir.graph.control import LISTS, TUPLES
from lostwax.ir.graph.writer import SPOKEN


def choose_name(name: str, taken: set[str]) -> str:
    """A name for a node that generated code can use, like this one and not yet taken."""
    free = f"{name}_" if name in SPOKEN else name
    while free in taken:
        free += "_"
    taken.add(free)
    return free


def name_of_attribute(name: str) -> str:
    """A name under which a module can hold a sub-graph."""
    return f"{name}_graph" if name in ATTRIBUTES else name


ATTRIBUTES = frozenset((*dir(fx.GraphModule), *vars(torch.nn.Module())))
"""What a module has already."""


def restore_sequences(name: str, args: list[Any], children: Mapping[str, fx.GraphModule]) -> None:
    """Make tuples and lists of what a call takes and its body returns, as a capture has them: files
    do not tell them apart."""
    for place in TUPLES.get(name, ()):
        if place < len(args) and isinstance(args[place], list):
            args[place] = tuple(args[place])
    body = children.get(str(args[0].target)) if args and name in LISTS else None
    if body is not None:
        output = body.graph.output_node()
        if isinstance(output.args[0], tuple):
            output.args = (list(output.args[0]),)
