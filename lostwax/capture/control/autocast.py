"""`wrap_with_autocast`: a custom operator that is called under autocast.

The casts of autocast are steps of the program, which runs without it. But what a custom operator
calls is inside of its kernel: so this one is called under autocast in each run. Must not cast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.utils._pytree as pytree
from torch._ops import OpOverload

from lostwax.capture.control.lifting import Lifting
from lostwax.capture.control.outputs import new_results
from lostwax.capture.control.scope import Scope
from lostwax.capture.trace.tracer import Tracer
from lostwax.errors import CaptureError
from lostwax.fake.autocast import find_enabled_on_entry
from lostwax.ops.registry import operator


def record_under_autocast(
    tracer: Tracer, func: OpOverload, args: Any, kwargs: Any, call: Callable[..., Any]
) -> Any:
    """Record a call of the operator, by `call`, into a graph of its own, which is run so."""
    if not tracer.is_recording:
        return call(func, args, kwargs)
    name, on = func._schema.name, find_enabled_on_entry()
    if len(on) > 1 or operator(func).kind != "functional":
        _refuse(name)
    scope = Scope(tracer, name)
    with scope.record():
        leaves, structure = pytree.tree_flatten(call(func, args, kwargs))
        if not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
            _refuse(name)
        values = [tracer.value_of(tracer.adopt(leaf)) for leaf in leaves]
    if len(tracer.shape_env.symbols) > scope.symbols:
        _refuse(name)
    lifting = Lifting(tracer, ())
    lifting.read(scope, values)
    lifting.check_gradients(f"{name} under torch.autocast")
    body = lifting.make_graph("autocast_graph", scope, values)
    autocast = (on[0], torch.get_autocast_dtype(on[0]), True, torch.is_autocast_cache_enabled())
    step = tracer.append_step(
        torch.ops.higher_order.wrap_with_autocast, [*autocast, body, *lifting.operands], {}
    )
    results = new_results(tracer, step, [value.type for value in values])
    return pytree.tree_unflatten(results, structure)


def _refuse(name: str) -> NoReturn:
    raise CaptureError.here(
        f"{name} is called under torch.autocast, and does not say what it does there",
        why="its kernel may call operators that autocast casts; a program can call it so if "
        "autocast is on for one type of device alone, and it returns new tensors, of sizes that "
        "do not depend on data",
        instead=f'say it, torch.library.register_autocast("{name}", device_type, dtype): its '
        "arguments are cast; or call it inside of torch.autocast(device_type, enabled=False)",
    )
