"""Control-flow operators as users call them: they are recorded before torch compiles or dispatches
anything.

Both the functions (`torch.cond`) and the calls of the operators themselves
(`torch.ops.higher_order.cond`) come here. Must not record: `control/` does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._higher_order_ops.cond import CondOp

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


CODE_SWAPS = [
    CodeSwap(torch.cond, _cond),
    CodeSwap(CondOp.__call__, _cond_operator),
]
