"""The function that calls an operator: `+` or `torch.add` for `aten.add.Tensor`.

Such a function reads its arguments in C++, and costs half of what the operator's own object costs:
in a loop of small steps that is most of the time. It is taken where it is seen to call just this
operator with just these arguments. Must not evaluate anything.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import TorchDispatchMode

from lostwax.fake import FakeTensor

_functions: Any = torch._C._VariableFunctions
_OPERATORS: dict[str, Any] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "neg", "matmul")},
    **{name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
    **{f"__{name}__": getattr(operator, name) for name in ("lshift", "rshift")},
    "div": operator.truediv,
}
"""Python's own operators, which are quicker still."""


def find_plain_function(node: Node) -> Any:
    """Find the function that does the same as this call of an operator; None if there is none."""
    target = node.target
    if not isinstance(target, OpOverload) or target.namespace != "aten" or node.kwargs:
        return None
    name = target._schema.name.partition("::")[2]
    args = map_aggregate(node.args, _make_sample)
    own = getattr(_functions, name, None)
    if own is not getattr(torch, name, None):  # another one has the name by which torch.fx calls it
        own = None
    for function in (_OPERATORS.get(name), own):
        if getattr(function, "__module__", None) is None:  # none, or torch.fx cannot name it
            continue
        if _calls(function, target, args):
            return function
    return None


def _make_sample(value: Any) -> Any:
    """A small tensor of the same dtype and rank for a node; a number is any number."""
    if not isinstance(value, Node):
        return value
    recorded = value.meta.get("val")
    if isinstance(recorded, FakeTensor):
        return torch.empty((0,) * recorded.ndim, dtype=recorded.dtype)
    if isinstance(recorded, torch.SymFloat):
        return 1.0
    return True if isinstance(recorded, torch.SymBool) else 1


class _Heard(Exception):
    """The first operator that was called."""

    def __init__(self, target: Any, args: Any, kwargs: Any) -> None:
        super().__init__()
        self.target, self.args, self.kwargs = target, args, kwargs


class _OperatorListener(TorchDispatchMode):
    """Hears which operator is called, and ends the call."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _Heard(func, args, kwargs)


def _calls(function: Any, target: OpOverload, args: Any) -> bool:
    """Does the function call this operator, with these arguments?"""
    try:
        with torch.no_grad(), _OperatorListener():  # type: ignore[no-untyped-call]
            function(*args)
    except _Heard as heard:
        return heard.target is target and not heard.kwargs and _are_same(heard.args, args)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return False
    return False


def _are_same(a: Any, b: Any) -> bool:
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(_are_same, a, b))
    return a is b or (a.__class__ is b.__class__ and not isinstance(a, torch.Tensor) and a == b)
