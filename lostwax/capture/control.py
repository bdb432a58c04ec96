"""Control-flow operators of the user (`torch.cond`, `while_loop`, `map`, `scan`): refused for now.
Assertions on data are left to the running program, and seeds to who runs it.

torch's own wrappers would compile themselves before they call the operator; while a capture runs
they call it at once, and the tracer meets it. Must not import what compiles.
"""

from __future__ import annotations

import ctypes
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
import torch
from torch._higher_order_ops import utils as torch_wrappers

from lostwax.errors import CaptureError, NotYetError
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


def refuse_generator() -> NoReturn:
    """A seed or a generator inside the program."""
    raise CaptureError(
        "a program has no random generator of its own, and seeds none.\n"
        f"  at {user_location()}\n"
        "  why: random operators draw from the generator of who runs it\n"
        "  instead: call torch.manual_seed outside, or pass the random numbers as an input"
    )


def refuse_linearize() -> NoReturn:
    raise NotYetError(
        "torch.func.linearize in a program to be captured",
        "torch.func.jvp(f, primals, tangents), which computes both at once",
        why="it traces the function by itself",
        where=str(user_location()),
    )


def refuse_default(dtype: torch.dtype) -> NoReturn:
    """Another default dtype inside the program."""
    raise CaptureError(
        f"torch.set_default_dtype({dtype}) in a program to be captured.\n  at {user_location()}\n"
        "  why: it would hold for the capture, and not for the program when it runs\n"
        f"  instead: say it where tensors are made, torch.ones(n, dtype={dtype})"
    )


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


@contextmanager
def own_random_numbers() -> Iterator[None]:
    """Python's and numpy's generators are put back; numbers that the module draws from them are
    told of."""
    python, array = random.getstate(), _numpy_state()
    try:
        yield
    finally:
        drawn = [] if random.getstate() == python else ["random"]
        if _numpy_state() != array:
            drawn.append("numpy.random")
            ctypes.memmove(_numpy_address(), array, len(array))
        if drawn:
            random.setstate(python)
            warnings.warn(
                f"the module draws from Python's {' and '.join(drawn)}; the number is baked into "
                "the program. torch.rand would be drawn anew in each run.",
                stacklevel=2,
            )


def _numpy_state() -> bytes:
    """The state of numpy's own generator as it lies in memory: `get_state` takes as long as ten
    operators."""
    address = _numpy_address()
    return ctypes.string_at(address, _MT19937_BYTES) if address else b""


def _numpy_address() -> int:
    """Where it lies; 0: it is of another kind, which somebody has chosen."""
    numpy_random: Any = np.random
    generator = numpy_random.get_bit_generator()
    return generator.ctypes.state_address if type(generator) is np.random.MT19937 else 0


_MT19937_BYTES = 4 * 624 + 4  # the key, and the position in it


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
    from lostwax.capture.control import refuse_generator

    refuse_generator()


def _asked_for_seed() -> None:
    """`torch.seed` and `torch.initial_seed`."""
    from lostwax.capture.control import refuse_generator

    refuse_generator()


def _other_default(d: Any) -> None:
    """`torch.set_default_dtype`: the operators of a program have no other default than its caller
    has."""
    import torch

    from lostwax.capture.control import refuse_default

    if d is not torch.get_default_dtype():
        refuse_default(d)


def _linearized(func: Any, *primals: Any) -> Any:
    """`torch.func.linearize` traces by itself."""
    from lostwax.capture.control import refuse_linearize

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

    from lostwax.capture.control import refuse_generator

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
