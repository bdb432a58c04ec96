"""Control-flow operators as users call them: they are recorded before torch compiles or dispatches
anything.

Both the functions (`torch.cond`) and the calls of the operators themselves
(`torch.ops.higher_order.cond`) come here. Must not record: `control/` does.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._higher_order_ops.associative_scan import AssociativeScanOp, associative_scan
from torch._higher_order_ops.cond import CondOp
from torch._higher_order_ops.executorch_call_delegate import ExecutorchCallDelegate
from torch._higher_order_ops.flex_attention import FlexAttentionHOP
from torch._higher_order_ops.invoke_subgraph import invoke_subgraph_placeholder
from torch._higher_order_ops.map import MapImpl
from torch._higher_order_ops.scan import ScanOp
from torch._higher_order_ops.while_loop import WhileLoopOp, while_loop

from lostwax.capture.patches.swap import CodeSwap
from lostwax.capture.threads import running
from lostwax.torch_version import SWITCHES

_CONTROL = "lostwax.capture.control"


def _hand_to(module: str, name: str, skipped: int = 0) -> Callable[..., Any]:
    """Answers a call by a function of `control/`, which is loaded then; it does not take the first
    `skipped` arguments."""

    def answer(plain: Any, *args: Any, **kwargs: Any) -> Any:
        record = getattr(import_module(f"{_CONTROL}.{module}"), name)
        return record(running[-1], *args[skipped:], **kwargs)

    return answer


def _hand_operator_to(module: str, name: str) -> Callable[..., Any]:
    """The same of `operator.__call__`."""
    return _hand_to(module, name, 1)


def _compile_region(plain: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.compiler.nested_compile_region`: what is in the region is part of the program."""
    return function(*args, **kwargs)


def _associative_scan(
    plain: Any,
    combine_fn: Any,
    xs: Any,
    dim: int,
    reverse: bool = False,
    combine_mode: str = "pointwise",
) -> Any:
    """`torch._higher_order_ops.associative_scan`. For any function torch takes it apart, by halves
    of a length that it must know."""
    leaves, structure = pytree.tree_flatten(xs)
    varies = any(
        isinstance(x, torch.Tensor) and x.dim() > dim and isinstance(x.shape[dim], torch.SymInt)
        for x in leaves
    )
    if combine_mode != "generic" or not varies:
        return plain(combine_fn, xs, dim, reverse, combine_mode)
    from lostwax.capture.control.rows import scan_rows

    rows = [leaf.movedim(dim, 0) for leaf in leaves]
    rows = [row.flip([0]) for row in rows] if reverse else rows
    out = scan_rows(running[-1], combine_fn, rows, structure)
    out = [each.flip([0]) for each in out] if reverse else out
    return pytree.tree_unflatten([each.movedim(0, dim) for each in out], structure)


def _record_by(module: str, name: str) -> Callable[..., Any]:
    """Records by a function of `control/`, which is loaded then."""

    def record(*args: Any) -> Any:
        return getattr(import_module(f"{_CONTROL}.{module}"), name)(*args)

    return record


HIGHER_ORDER = {
    "scan": _record_by("rows", "record_scan"),  # a recurrent layer
    "wrap_with_autocast": _record_by("autocast", "record_under_autocast"),  # a custom operator
}
CODE_SWAPS = [
    CodeSwap(torch.cond, _hand_to("cond", "call_cond")),
    CodeSwap(ExecutorchCallDelegate.__call__, _hand_operator_to("delegate", "record_delegate")),
    CodeSwap(CondOp.__call__, _hand_operator_to("cond", "record_cond")),
    CodeSwap(FlexAttentionHOP.__call__, _hand_operator_to("flex_attention", "attend")),
    CodeSwap(invoke_subgraph_placeholder, _compile_region),
    CodeSwap(while_loop, _hand_to("while_loop", "call_while")),
    CodeSwap(WhileLoopOp.__call__, _hand_operator_to("while_loop", "record_while")),
    CodeSwap(MapImpl.__call__, _hand_operator_to("rows", "record_map")),
    CodeSwap(ScanOp.__call__, _hand_operator_to("rows", "record_scan")),
    CodeSwap(associative_scan, _associative_scan),
    # what `associative_scan` calls for functions that compute each element alone
    CodeSwap(AssociativeScanOp.__call__, _hand_operator_to("rows", "record_associative_scan")),
    *(
        CodeSwap(operator.__call__, _hand_operator_to("switch", "record_switch"))
        for operator in SWITCHES
    ),
]
