"""What the user's Python asks of torch itself: `torch.is_grad_enabled()` and its like.

The answer is torch's own, and is baked into the program: the tracer takes note, so that a call in
another mode is not answered wrongly. A function of C has no code to exchange: it is shown by torch
itself, and stood in for wherever else the user's functions have it (`held.py`). Must not change an
answer.
"""

from __future__ import annotations

from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch

from lostwax.capture.patches.swap import CodeSwap, NameSwap, stand_for
from lostwax.capture.threads import call_outside, is_capturing, running
from lostwax.capture.trace.tracer import Tracer
from lostwax.ir.run.conditions.answers import FLAGS, MODES, is_mode, mode_answer
from lostwax.location import PASSING_ON, is_asked_by_user, user_location

PASSING_ON.add(__file__)


def _note(name: str, args: tuple[Any, ...], found: Any) -> None:
    if is_capturing() and is_asked_by_user():
        _note_answer(_OLD.get(name) or f"torch.{name}({', '.join(map(repr, args))})", found)


def _note_answer(what: str, found: Any) -> None:
    kept = found if type(found) in (bool, int, str) else str(found)
    if is_mode(what):
        running[-1].observer.note_question_at(user_location(), what, found=kept)


def _make_noting(name: str, function: Any) -> Any:
    """A function of C, whose answers are noted."""

    def call(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        _note(name, (*args, *kwargs.values()), found)
        return found

    return stand_for(function, call)


def _note_call(name: str, plain: Any) -> Any:
    found = plain()
    _note(name, (), found)
    return found


def _note_flag(plain: Any, prop: Any, owner: Any, cls: Any = None) -> Any:
    """`torch.backends.cudnn.benchmark`, as a property of the module."""
    found = plain(prop, owner, cls)
    if is_asked_by_user():
        name = next((n for c in type(owner).__mro__ for n, p in vars(c).items() if p is prop), "")
        _note_answer(f"{owner.__name__}.{name}", found)
    return found


def _make_noting_getter(where: str) -> Any:
    """What stands in for a `__getattr__`, or for a function or a property of that name."""

    def answer(plain: Any, *args: Any) -> Any:
        found = plain(*args)
        if is_asked_by_user():
            _note_answer(f"{where}{args[-1]}" if where.endswith(".") else where, found)
        return found

    return answer


_OLD = {
    "is_autocast_cpu_enabled": "torch.is_autocast_enabled('cpu')",
    "get_autocast_cpu_dtype": "torch.get_autocast_dtype('cpu')",
    "get_autocast_gpu_dtype": "torch.get_autocast_dtype('cuda')",
}
"""Functions that torch warns of, and what is asked in their place."""
_FUNCTIONS: dict[str, Any] = {name: getattr(torch, name) for name in (*MODES, *_OLD)}
NAME_SWAPS = [
    NameSwap(torch, name, _make_noting(name, function))
    for name, function in _FUNCTIONS.items()
    if isinstance(function, BuiltinFunctionType)
]
CODE_SWAPS = [
    CodeSwap(function, partial(_note_call, name))
    for name, function in _FUNCTIONS.items()
    if isinstance(function, FunctionType)
]
_cuda: Any = torch.backends.cuda
CODE_SWAPS += [
    CodeSwap(torch.backends.ContextProp.__get__, _note_flag),
    CodeSwap(
        type(vars(type(torch.backends.quantized))["engine"]).__get__,
        _make_noting_getter("torch.backends.quantized.engine"),
    ),
    CodeSwap(_cuda.cuBLASModule.__getattr__, _make_noting_getter("torch.backends.cuda.matmul.")),
    *(
        CodeSwap(getattr(_cuda, name), _make_noting_getter(f"torch.backends.cuda.{name}()"))
        for name in [flag.split(".")[-1][:-2] for flag in sorted(FLAGS) if flag.endswith("()")]
        if hasattr(_cuda, name)
    ),
    CodeSwap(
        type(torch.utils.deterministic).fill_uninitialized_memory.fget,  # type: ignore[attr-defined]
        _make_noting_getter("torch.utils.deterministic.fill_uninitialized_memory"),
    ),
]
STAND_INS: dict[Any, Any] = {_FUNCTIONS[each.name]: each.function for each in NAME_SWAPS}


def begin(tracer: Tracer) -> None:
    """From here on this tracer takes note of what functions ask."""
    tracer.observer.mode_before = partial(call_outside, mode_answer)
