"""The functions that nodes call, as text: `torch.ops.aten.add.Tensor`, `_operator.mul`.

A name is looked up among operators that are registered and in a table of arithmetic functions.
Nothing is imported but what torch itself keeps apart, and no attribute of anything else is read.
"""

from __future__ import annotations

import importlib
import keyword
import math
import operator
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket, _OpNamespace

from lostwax.cache import cached, cached_by_identity
from lostwax.dialects.edge_operators import (
    DIM_ORDER,
    EdgeOperator,
    dim_order_library,
    edge_operator,
)
from lostwax.errors import LoadError, SaveError
from lostwax.ops.dialect_operator import overload_of
from lostwax.sym.numbers.real import MATH

_OPERATORS = (
    *("eq", "ne", "le", "ge", "lt", "gt", "neg", "pos", "mul", "add", "sub", "floordiv", "mod"),
    *("pow", "truediv", "and_", "or_", "lshift", "rshift", "getitem", "not_", "abs"),
)
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f"_operator.{name}": getattr(operator, name) for name in _OPERATORS},
    "math.trunc": math.trunc,
    "math.ceil": math.ceil,
    "math.floor": math.floor,
    "math.sqrt": math.sqrt,
    "builtins.round": round,
    **{f"torch.sym_{n}": getattr(torch, f"sym_{n}") for n in ("int", "float", "ite", "sum")},
    **{f"torch.sym_{n}": getattr(torch, f"sym_{n}") for n in ("max", "min", "not")},
    **{f"torch._sym_{name}": getattr(torch, f"_sym_{name}") for name in MATH},
}
_KEPT_APART = {"quantized_decomposed": "torch.ao.quantization.fx._decomposed"}
"""Operators of torch's own that it registers when a module of its own is imported."""
_NAMES = {id(function): name for name, function in _FUNCTIONS.items()}

# Names of the arguments of functions that have no schema.
_ARGUMENTS = {"math.trunc": ("x",), "torch.sym_ite": ("b", "t", "f")}


@cached(20_000)
def target_named(name: str) -> Any:
    """The function of this name; a `LoadError` that says what to import if there is none."""
    function = _FUNCTIONS.get(name)
    if function is not None:
        return function
    parts = name.split(".")
    if parts[:3] == _EDGE:
        return _edge_operator(name, parts[3:])
    if parts[:2] != ["torch", "ops"] or not all(part.isidentifier() for part in parts):
        raise _not_callable(name)
    if parts[2] in _KEPT_APART:
        with suppress(ImportError):
            importlib.import_module(_KEPT_APART[parts[2]])
    found = _operator(parts[2:])
    if found is None:
        raise LoadError(
            f"the operator {name} is not registered in this process\n"
            "  fix: import the library that registers it, then load again"
        )
    return found


_EDGE = ["lostwax", "ops", "edge"]


def _edge_operator(name: str, parts: list[str]) -> EdgeOperator:
    if len(parts) == 3 and parts[0] == DIM_ORDER:
        parts = [dim_order_library().name, *parts[1:]]
    found = _operator(parts) if all(part.isidentifier() for part in parts) else None
    if not isinstance(found, OpOverload):
        raise LoadError(
            f"the operator {name} is not registered in this process\n"
            "  fix: import the library that registers it, then load again"
        )
    return edge_operator(found)


def check_callable(function: Any) -> None:
    """Refuse a Python function that a program may not call."""
    if id(function) not in _NAMES:
        raise _not_callable(f"{function.__module__}.{getattr(function, '__name__', function)}")


def _not_callable(name: str) -> LoadError:
    fix = "\n  fix: ep.run_decompositions() in torch.export first, which resolves vmap"
    return LoadError(
        f"{name!r} is not a function that a program may call: neither an operator nor arithmetic "
        f"on numbers{fix if name.startswith('torch._functorch.') else ''}"
    )


def _operator(parts: list[str]) -> OpOverload | HigherOrderOperator | None:
    if len(parts) == 2 and parts[0] == "higher_order":
        found: Any = getattr(torch.ops.higher_order, parts[1], None)
        return found if isinstance(found, HigherOrderOperator) else None
    if len(parts) != 3 or parts[0] == "higher_order" or parts[0].startswith("__"):
        return None
    space, packet, overload = parts
    # Asked of the registry by text first: a name that is not there leaves no trace in torch.ops.
    if overload not in _overloads(f"{space}::{packet}"):
        return None
    namespace = getattr(torch.ops, space, None)
    found = getattr(namespace, packet, None) if isinstance(namespace, _OpNamespace) else None
    found = getattr(found, overload, None) if isinstance(found, OpOverloadPacket) else None
    return found if isinstance(found, OpOverload) else None


def _overloads(name: str) -> list[str]:
    schemas = torch._C._jit_get_schemas_for_operator(name)
    return [schema.overload_name or "default" for schema in schemas]


def name_of(target: Any) -> str:
    """The name of a function in files; a `SaveError` if it has none there."""
    if isinstance(target, OpOverload):
        return f"torch.ops.{target}"
    if isinstance(target, EdgeOperator):
        return f"lostwax.ops.{target}"
    if isinstance(target, HigherOrderOperator):
        return f"torch.ops.{target.namespace}.{target.name()}"
    name = _NAMES.get(id(target))
    if name is None:
        raise SaveError(f"the function {target!r} has no name in .pt2 files")
    return name


@cached_by_identity(20_000)
def unspeakable(overload: OpOverload) -> tuple[int, Any] | None:
    """The argument that Python cannot give by name, since it is called `from`: its position and
    default. torch's reader wants it written out."""
    for i, argument in enumerate(overload._schema.arguments):
        if keyword.iskeyword(argument.name) and argument.has_default_value():
            return i, argument.default_value
    return None


class Callee(NamedTuple):
    """What a node calls, as its arguments have to be read."""

    target: Any
    is_higher_order: bool
    names: tuple[str, ...] | None = None
    """Of the arguments; None without a schema."""
    unspeakable: tuple[int, Any] | None = None
    returns_one: bool = False
    """One value, or one list?"""


@cached_by_identity(20_000)
def describe_callee(target: Any) -> Callee:
    """Asked once of each function: schemas are slow to read."""
    overload, is_higher_order = overload_of(target), isinstance(target, HigherOrderOperator)
    if not isinstance(overload, OpOverload):
        return Callee(target, is_higher_order)
    names = tuple(a.name for a in overload._schema.arguments)
    returns_one = len(overload._schema.returns) == 1
    return Callee(target, is_higher_order, names, unspeakable(overload), returns_one)


@cached(1000)
def argument_names(name: str) -> tuple[str, ...]:
    """The names that files give the arguments of a function without a schema."""
    return _ARGUMENTS.get(name, ("a", "b"))
