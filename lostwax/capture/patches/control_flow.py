"""Control-flow operators as users call them: they are recorded before torch compiles or dispatches
anything.

Both the functions (`torch.cond`) and the calls of the operators themselves
(`torch.ops.higher_order.cond`) come here. Must not record: `control/` does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._higher_order_ops.cond import CondOp
from torch._higher_order_ops.flex_attention import FlexAttentionHOP
from torch._higher_order_ops.invoke_subgraph import invoke_subgraph_placeholder

from lostwax.capture.patches.swap import CodeSwap
from lostwax.capture.threads import running


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


CODE_SWAPS = [
    CodeSwap(torch.cond, _cond),
    CodeSwap(CondOp.__call__, _cond_operator),
    CodeSwap(FlexAttentionHOP.__call__, _flex_attention),
    CodeSwap(invoke_subgraph_placeholder, _compile_region),
]
