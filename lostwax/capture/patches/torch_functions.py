"""Functions of torch that do what a capture needs while it runs: compiling gives the function
itself, assertions on data are left to the running program, and seeds to who runs it.

torch's own wrappers of control flow would compile themselves before they call the operator; while a
capture runs they call it at once, and the tracer meets it. Must not import what compiles.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._higher_order_ops import utils as torch_wrappers


@contextmanager
def answered() -> Iterator[None]:
    """Inside, some of torch's functions do what a capture needs.

    Their code is exchanged, not they: who holds such a function calls what it should, and the
    tables that torch keeps of its functions stay right. What was compiled before runs as written:
    `torch.compiler.set_stance("force_eager")`, in fewer steps.
    """
    before = [(function, function.__code__) for function, _ in _ANSWERS]
    compiler: Any = sys.modules.get("torch._dynamo.eval_frame")  # nothing is compiled without it
    stance = None if compiler is None else compiler._stance
    try:
        for function, answer in _ANSWERS:
            function.__code__ = answer.__code__
        if compiler is not None:
            compiler._stance = compiler.DynamoStance("force_eager")
        yield
    finally:
        for function, code in before:
            function.__code__ = code
        if compiler is not None:
            compiler._stance = stance


# They run among the names of the module that they stand in for: each imports what it needs.


def _called(fn: Any, args: Any, kwargs: Any = None) -> Any:
    """A control-flow operator that torch would compile first: so it reaches the tracer."""
    return fn(*args, **(kwargs or {}))


def _as_it_is(model: Any = None, **options: Any) -> Any:
    """`torch.compile` gives the function itself."""
    return model if model is not None else lambda function: function


def _asserted(condition: Any, message: str) -> None:
    """`torch._assert`: of data it is a step of the program."""
    import torch

    if isinstance(condition, torch.Tensor):
        torch.ops.aten._assert_async.msg(condition, message)
    elif isinstance(condition, torch.SymBool):
        torch._check(condition, lambda: message)
    else:
        assert condition, message


def _seeded(seed: Any) -> None:
    """`torch.manual_seed`."""
    from lostwax.capture.refusals import refuse_generator

    refuse_generator()


def _asked_for_seed() -> None:
    """`torch.seed` and `torch.initial_seed`."""
    from lostwax.capture.refusals import refuse_generator

    refuse_generator()


def _other_default(d: Any) -> None:
    """`torch.set_default_dtype`: the operators of a program have no other default than its caller
    has."""
    import torch

    from lostwax.capture.refusals import refuse_default

    if d is not torch.get_default_dtype():
        refuse_default(d)


def _linearized(func: Any, *primals: Any) -> Any:
    """`torch.func.linearize` traces by itself."""
    from lostwax.capture.refusals import refuse_linearize

    refuse_linearize()


def _told_causal(mask: Any, is_causal: Any = None, size: Any = None) -> bool:
    """A hint that lets eager leave a mask away; without it the mask is used, and computes the same.
    To find out would need the mask's data."""
    return is_causal is True


def _put_back(new_state: Any) -> None:
    """`torch.set_rng_state`, which `fork_rng` ends with. A checkpoint that is computed once more
    may call it: nothing is drawn while capturing."""
    import sys

    import torch

    from lostwax.capture.refusals import refuse_generator

    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__") == "torch.utils.checkpoint":
            torch.default_generator.set_state(new_state)
            return
    refuse_generator()


_ANSWERS: list[tuple[Any, Any]] = [
    (function, answer)
    for function, answer in (
        (torch.compile, _as_it_is),
        (torch._assert, _asserted),
        (torch.random.manual_seed, _seeded),
        (torch.random.seed, _asked_for_seed),
        (torch.random.initial_seed, _asked_for_seed),
        (torch.set_default_dtype, _other_default),
        (torch.func.linearize, _linearized),
        (torch.nn.modules.transformer._detect_is_causal_mask, _told_causal),
        (torch.random.set_rng_state, _put_back),
        (getattr(torch_wrappers, "_hop_compile_and_call", None), _called),
    )
    if function is not None
]
