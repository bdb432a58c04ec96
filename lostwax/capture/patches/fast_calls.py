"""Functions that the layers of a model call hundreds of times: while a capture runs, a call that is
known already goes to the tracer directly.

On its way through C++ such a call is read into C++'s types, dispatched, and handed back to Python:
for a convolution that is a third of what it costs. Only what C++ would hand to this tracer
unchanged is answered here; all else, and each first call, goes to the function itself. Must not
know what operators do (`single_step_composites.py`).
"""

from __future__ import annotations

from types import BuiltinFunctionType
from typing import Any

import torch
from torch._ops import OpOverload

from lostwax.capture.patches.swap import NameSwap, stand_for
from lostwax.capture.threads import is_capturing, running
from lostwax.capture.trace import single_step_composites
from lostwax.fake.tensor import FakeTensor
from lostwax.ops.registry import aten, operator

_functional = torch.nn.functional
_KNOWN: list[tuple[Any, str, OpOverload]] = [
    (_functional, "conv1d", aten.conv1d.default),
    (_functional, "conv2d", aten.conv2d.default),
    (_functional, "conv3d", aten.conv3d.default),
    (torch, "batch_norm", aten.batch_norm.default),
    (torch, "layer_norm", aten.layer_norm.default),
    (torch, "group_norm", aten.group_norm.default),
]
"""As `torch.nn` finds them."""


def _make_fast_call(function: Any, overload: OpOverload) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs or not args or type(args[0]) is not FakeTensor or not is_capturing():
            return function(*args, **kwargs)
        tracer = running[-1]
        if not tracer.sees_all():
            return function(*args)
        return single_step_composites.record_direct(tracer, operator(overload), args, function)

    return stand_for(function, call)


NAME_SWAPS = [
    NameSwap(where, name, _make_fast_call(function, overload))
    for where, name, overload in _KNOWN
    if isinstance(function := getattr(where, name), BuiltinFunctionType)  # torch's own
]
