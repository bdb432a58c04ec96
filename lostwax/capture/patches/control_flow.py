"""Control-flow operators as users call them: they are recorded before torch compiles or dispatches
anything.

Both the functions (`torch.cond`) and the calls of the operators themselves
(`torch.ops.higher_order.cond`) come here. Must not record: `control/` does.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._higher_order_ops.associative_scan import AssociativeScanOp, associative_scan
from torch._higher_order_ops.cond import CondOp
from torch._higher_order_ops.flex_attention import FlexAttentionHOP
from torch._higher_order_ops.invoke_subgraph import invoke_subgraph_placeholder
from torch._higher_order_ops.map import MapImpl
from torch._higher_order_ops.scan import ScanOp
from torch._higher_order_ops.while_loop import WhileLoopOp, while_loop

from lostwax.capture.patches.swap import CodeSwap
from lostwax.capture.threads import running
from lostwax.torch_version import SWITCHES


def _cond(plain: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.cond`."""
    from lostwax.capture.control.cond import call_cond

    return call_cond(running[-1], *args, **kwargs)


def _cond_operator(plain: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.ops.higher_order.cond`."""
    from lostwax.capture.control.cond import record_cond

    return record_cond(running[-1], *args, **kwargs)


def _flex_attention(plain: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.ops.higher_order.flex_attention`, which `flex_attention` calls."""
    from lostwax.capture.control.flex_attention import attend

    return attend(running[-1], *args, **kwargs)


def _compile_region(plain: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.compiler.nested_compile_region`: what is in the region is part of the program."""
    return function(*args, **kwargs)


def _while_loop(plain: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch._higher_order_ops.while_loop`."""
    from lostwax.capture.control.while_loop import call_while

    return call_while(running[-1], *args, **kwargs)


def _while_operator(plain: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.ops.higher_order.while_loop`."""
    from lostwax.capture.control.while_loop import record_while

    return record_while(running[-1], *args, **kwargs)


def _map_operator(plain: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.ops.higher_order.map_impl`, which `map` calls."""
    from lostwax.capture.control.rows import record_map

    return record_map(running[-1], *args, **kwargs)


def _scan_operator(plain: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.ops.higher_order.scan`, which `scan` calls."""
    from lostwax.capture.control.rows import record_scan

    return record_scan(running[-1], *args, **kwargs)


def _record_scan(tracer: Any, *args: Any) -> Any:
    """A `scan` of the house's own: a recurrent layer."""
    from lostwax.capture.control.rows import record_scan

    return record_scan(tracer, *args)


HIGHER_ORDER = {"scan": _record_scan}


def _switch_operator(plain: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.ops.higher_order.switch`, which `torch.switch` calls."""
    from lostwax.capture.control.switch import record_switch

    return record_switch(running[-1], *args, **kwargs)


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


def _associative_operator(plain: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.ops.higher_order.associative_scan`, which `associative_scan` calls for functions that
    compute each element alone."""
    from lostwax.capture.control.rows import record_associative_scan

    return record_associative_scan(running[-1], *args, **kwargs)


CODE_SWAPS = [
    CodeSwap(torch.cond, _cond),
    CodeSwap(CondOp.__call__, _cond_operator),
    CodeSwap(FlexAttentionHOP.__call__, _flex_attention),
    CodeSwap(invoke_subgraph_placeholder, _compile_region),
    CodeSwap(while_loop, _while_loop),
    CodeSwap(WhileLoopOp.__call__, _while_operator),
    CodeSwap(MapImpl.__call__, _map_operator),
    CodeSwap(ScanOp.__call__, _scan_operator),
    CodeSwap(associative_scan, _associative_scan),
    CodeSwap(AssociativeScanOp.__call__, _associative_operator),
    *(CodeSwap(operator.__call__, _switch_operator) for operator in SWITCHES),
]
