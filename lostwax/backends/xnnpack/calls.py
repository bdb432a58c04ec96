"""Reads calls of a graph: arguments by name, sizes, constants; what operators have in common.

Must not write payloads.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch.fx import Node

from lostwax.fake.tensor import FakeTensor
from lostwax.ops.dialect_operator import overload_of
from lostwax.sym import Expr, Size

Sizes = tuple[Size, ...]


def read_arguments(node: Node) -> Any:
    """The arguments of a call by name, defaults filled in."""
    arguments = overload_of(node.target)._schema.arguments
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
    given = dict(zip((a.name for a in arguments), node.args, strict=False))
    return SimpleNamespace(**{**defaults, **given, **node.kwargs})


def type_of(node: Node) -> Any:
    """The type of a node's tensor; of several, that of the first."""
    value = node.meta["val"]
    return (value[0] if isinstance(value, (tuple, list)) else value).fake_type


def size_of(node: Node) -> Sizes:
    size: Sizes = type_of(node).size
    return size


def is_static(*sizes: Size) -> bool:
    return all(s.__class__ is int for s in sizes)


def count_dynamic(sizes: Sequence[Size]) -> int:
    return sum(not is_static(s) for s in sizes)


def bound_of(size: Size) -> int | None:
    """The greatest that a size may be; None if there is no bound."""
    if isinstance(size, Expr):
        return size.env.bounds(size).hi
    return int(size)


def list_pair(value: Any) -> list[int]:
    """One number for two dimensions, or two."""
    listed = list(value) if isinstance(value, (list, tuple)) else [value]
    return listed * 2 if len(listed) == 1 else listed


def list_tensors(node: Node, but: Container[Node] = ()) -> list[Any]:
    """The values of a call's tensors: those that it is given, but for some, and those that it
    returns and somebody reads."""
    values = [n.meta.get("val") for n in node.all_input_nodes if n not in but]
    made = node.meta.get("val")
    if isinstance(made, (tuple, list)):
        made = [made[int(u.args[1])] for u in node.users if len(u.args) > 1]  # type: ignore[arg-type]
        values += made
    else:
        values.append(made)
    return [v for v in values if isinstance(v, FakeTensor)]


def find_clamp(node: Node) -> tuple[float, float] | None:
    """The limits that a call keeps its argument in; None if it does something else."""
    name = node.target.name() if hasattr(node.target, "name") else ""
    if name == "aten::relu":
        return 0.0, math.inf
    if name not in ("aten::hardtanh", "aten::clamp"):
        return None
    given = read_arguments(node)
    low, high = (
        (given.min_val, given.max_val) if name == "aten::hardtanh" else (given.min, given.max)
    )
    if any(isinstance(v, Node) for v in (low, high)):
        return None
    return (
        -math.inf if low is None else float(low),
        math.inf if high is None else float(high),
    )


def is_float(value: Any) -> bool:
    return isinstance(value, FakeTensor) and value.dtype is torch.float32
