"""Functions that the layers of a model call hundreds of times: while a capture runs, a call that is
known already goes to the tracer directly.

On its way through C++ such a call is read into C++'s types, dispatched, and handed back to Python:
for a convolution that is a third of what it costs. Only what C++ would hand to this tracer
unchanged is answered here; all else, and each first call, goes to the function itself. Must not
know what operators do (`one_for_one.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import OpOverload

from lostwax.capture import one_for_one
from lostwax.capture.tracer import Tracer
from lostwax.fake.tensor import FakeTensor
from lostwax.ops.registry import aten, operator

_functional = torch.nn.functional
_FUNCTIONS: list[tuple[Any, str, OpOverload]] = [
    (_functional, "conv1d", aten.conv1d.default),
    (_functional, "conv2d", aten.conv2d.default),
    (_functional, "conv3d", aten.conv3d.default),
    (torch, "batch_norm", aten.batch_norm.default),
    (torch, "layer_norm", aten.layer_norm.default),
    (torch, "group_norm", aten.group_norm.default),
]
"""As `torch.nn` finds them."""


@contextmanager
def taken(tracer: Tracer) -> Iterator[None]:
    """Inside, known calls go to the tracer."""
    before = [(where, name, getattr(where, name)) for where, name, _ in _FUNCTIONS]
    try:
        for (where, name, overload), (_, _, function) in zip(_FUNCTIONS, before, strict=True):
            setattr(where, name, _answering(tracer, function, overload))
        yield
    finally:
        for where, name, function in before:
            setattr(where, name, function)


def _answering(tracer: Tracer, function: Callable[..., Any], overload: OpOverload) -> Any:
    record = operator(overload)

    def called(*args: Any, **kwargs: Any) -> Any:
        if kwargs or not args or args[0].__class__ is not FakeTensor or not _sees_all(tracer):
            return function(*args, **kwargs)
        if tracer.keep and overload in tracer.keep:
            return function(*args)
        return one_for_one.direct(tracer, record, args, function)

    called.__name__ = function.__name__
    called.stands_for = function  # type: ignore[attr-defined]
    return called


def _sees_all(tracer: Tracer) -> bool:
    """Would C++ hand a call to this tracer as it is, to be recorded? Not where something of the
    user's comes before it: modes, transforms, autocast."""
    if not tracer.takes_known_calls or _dispatch_modes() != 1:  # the tracer is one
        return False
    return not (_function_modes() or _autocast()) and _transform() is None


_function_modes: Any = torch._C._len_torch_function_stack
_dispatch_modes: Any = torch._C._len_torch_dispatch_stack
_autocast: Any = torch._C._is_any_autocast_enabled
_transform: Any = torch._C._functorch.peek_interpreter_stack
