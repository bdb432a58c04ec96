"""The dtypes of a call of an Edge operator, beside the operator's rows.

Must not know of programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.fx import Node

from lostwax.dialects.edge_operators import EdgeOperator
from lostwax.fake.tensor import FakeTensor


def is_apart(node: Node, operator: EdgeOperator) -> bool:
    """Are the dtypes of a call legal, and such as the runtime's kernel does not take?"""
    return operator.rows is not None and operator.rows.is_apart(dict(list_dtypes(node, operator)))


def list_dtypes(node: Node, operator: EdgeOperator) -> Iterable[tuple[str, torch.dtype]]:
    """The dtypes of the tensors that a call is given and returns, by name; a list is judged by its
    first tensor."""
    schema = operator._schema
    names = [a.name for a in schema.arguments]
    given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    for argument in schema.arguments:
        if argument.allowed_types is not None:
            dtype = _dtype_of(given.get(argument.name))
            if dtype is not None:
                yield argument.name, dtype
    value: Any = node.meta.get("val")
    values: Sequence[Any] = value if len(schema.returns) > 1 else [value]
    for returned, part in zip(schema.returns, values, strict=False):
        dtype = _dtype_of(part)
        if dtype is not None and returned.allowed_types is not None:
            yield returned.name, dtype


def _dtype_of(value: Any) -> torch.dtype | None:
    if isinstance(value, Node):
        value = value.meta.get("val")
    if isinstance(value, (tuple, list)):
        return next((d for d in map(_dtype_of, value) if d is not None), None)
    return value.dtype if isinstance(value, FakeTensor) else None
