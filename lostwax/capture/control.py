"""Control-flow operators of the user (`torch.cond`, `while_loop`, `map`, `scan`): refused for now.
Assertions on data are left to the running program.

torch's own wrappers would compile themselves before they call the operator; while a capture runs
they call it at once, and the tracer meets it. Must not import what compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch._higher_order_ops import utils as torch_wrappers

from lostwax.errors import NotYetError
from lostwax.location import user_location

_NAMES = {"cond": "torch.cond", "map_impl": "map", "invoke_subgraph": "a nested compile region"}
_INSTEAD = {
    "cond": "compute both and choose, torch.where(predicate, a, b); or export each branch alone",
    "while_loop": "a Python loop with a fixed number of steps, which is unrolled",
    "map_impl": "torch.vmap, or a Python loop over x.unbind(0), which is unrolled",
    "scan": "a Python loop over x.unbind(0), which is unrolled",
    "flex_attention": "F.scaled_dot_product_attention with a mask",
    "associative_scan": "a Python loop over x.unbind(0), which is unrolled, or torch.cumsum",
}


def refuse(operator: Any) -> NoReturn:
    """A higher-order operator met the tracer."""
    name = operator._name
    raise NotYetError(
        f"{_NAMES.get(name, name)} in a program to be captured",
        _INSTEAD.get(name, "call the functions themselves"),
        why="operators that take functions come with a later version",
        where=str(user_location()),
    )


@contextmanager
def uncompiled() -> Iterator[None]:
    """Inside, `torch.compile` gives the function itself; so control-flow operators called by the
    user reach the tracer, and not the compiler that torch wraps them in."""
    before = [(owner, name, getattr(owner, name, None)) for owner, name, _ in _REPLACED]
    for owner, name, replacement in _REPLACED:
        setattr(owner, name, replacement)
    try:
        yield
    finally:
        for owner, name, original in before:
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


def _called(fn: Callable[..., Any], args: Any, kwargs: Any = None) -> Any:
    return fn(*args, **(kwargs or {}))


def _as_it_is(model: Any = None, **options: Any) -> Any:
    return model if model is not None else _as_it_is


def _asserted(condition: Any, message: str) -> None:
    """`torch._assert`: of data it is a step of the program."""
    if isinstance(condition, torch.Tensor):
        torch.ops.aten._assert_async.msg(condition, message)
    elif isinstance(condition, torch.SymBool):
        torch._check(condition, lambda: message)
    else:
        assert condition, message


_REPLACED: tuple[tuple[Any, str, Any], ...] = (
    (torch, "compile", _as_it_is),
    (torch, "_assert", _asserted),
    (torch_wrappers, "_hop_compile_and_call", _called),
)
