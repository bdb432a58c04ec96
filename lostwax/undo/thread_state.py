"""What torch keeps for each thread and a capture changes: modes, dispatch keys, whether gradients
are recorded. It is taken before the capture and put back after it, whatever happens in between.

Leaving a mode or a `with` block does the same as long as nobody interrupts it, but an interrupt
(Ctrl-C) may come between the acquisition of a guard and the block that would release it. Must not
change anything that is as it was.
"""

from __future__ import annotations

from operator import is_
from typing import Any, NamedTuple

import torch

from lostwax.cache import cached
from lostwax.undo.autocast_depth import read_autocast_depth, set_autocast_depth

_C: Any = torch._C
_functorch: Any = _C._functorch
_AUTOCAST: tuple[str, ...] = tuple(_C._autocast_supported_devices())


class ThreadState(NamedTuple):
    """What torch keeps for the thread that has called `take_state`."""

    included: Any
    excluded: Any
    """Dispatch keys."""
    modes: list[Any]
    function_modes: list[Any]
    function_state: Any
    transforms: int
    grad: bool
    lifts_cpu_only: bool
    autocast: list[Any]
    autocast_depth: int


def take_state() -> ThreadState:
    return ThreadState(
        _C._dispatch_tls_local_include_set(),
        _C._dispatch_tls_local_exclude_set(),
        _modes(),
        _function_modes(),
        _C._get_torch_function_state(),
        _functorch.get_dynamic_layer_stack_depth(),
        torch.is_grad_enabled(),
        _C._only_lift_cpu_tensors(),
        _autocast(),
        read_autocast_depth(),
    )


def put_back(before: ThreadState) -> None:
    """Put the state back. An interrupt may cut this short; then it is called again."""
    _functorch.pop_dynamic_layer_stack_and_undo_to_depth(before.transforms)
    if not _are_same(_modes(), before.modes):
        _set_modes(before.modes)
    if not _are_same(_function_modes(), before.function_modes):
        _set_function_modes(before.function_modes)
    if _C._get_torch_function_state() != before.function_state:
        _C._set_torch_function_state(before.function_state)
    _C._set_only_lift_cpu_tensors(before.lifts_cpu_only)
    if _autocast() != before.autocast:
        _set_autocast(before.autocast)
    set_autocast_depth(before.autocast_depth)
    _set_keys(before)
    _C._set_grad_enabled(before.grad)


def _are_same(now: list[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(map(is_, now, before))


def _modes() -> list[Any]:
    return list(map(_C._get_dispatch_stack_at, range(_C._len_torch_dispatch_stack())))


def _set_modes(wanted: list[Any]) -> None:
    for mode in reversed(_modes()):
        _C._pop_torch_dispatch_stack(getattr(mode, "_mode_key", None))
    for mode in wanted:
        _C._push_on_torch_dispatch_stack(mode)


def _function_modes() -> list[Any]:
    return list(map(_C._get_function_stack_at, range(_C._len_torch_function_stack())))


def _set_function_modes(wanted: list[Any]) -> None:
    while _C._len_torch_function_stack():
        _C._pop_torch_function_stack()
    for mode in wanted:
        _C._push_on_torch_function_stack(mode)


def _autocast() -> list[Any]:
    """The dtypes to which autocast casts. Whether it is on is a dispatch key."""
    return [*map(torch.get_autocast_dtype, _AUTOCAST), torch.is_autocast_cache_enabled()]


def _set_autocast(wanted: list[Any]) -> None:
    for device, dtype in zip(_AUTOCAST, wanted, strict=False):
        torch.set_autocast_dtype(device, dtype)
    torch.set_autocast_cache_enabled(wanted[-1])


def _set_keys(before: ThreadState) -> None:
    included, excluded = before.included, before.excluded
    for may_be_any in (False, True):  # one key may bring others along
        now = _C._dispatch_tls_local_include_set(), _C._dispatch_tls_local_exclude_set()
        if now == (included, excluded):
            return
        bits = [each.raw_repr() for each in (*now, included, excluded)]
        for key in _list_keys() if may_be_any else _find_differing(*bits):
            if _C._dispatch_tls_is_dispatch_key_included(key) != included.has(key):
                _C._dispatch_tls_set_dispatch_key_included(key, included.has(key))
            if _C._dispatch_tls_is_dispatch_key_excluded(key) != excluded.has(key):
                _C._dispatch_tls_set_dispatch_key_excluded(key, excluded.has(key))


@cached(100)
def _find_differing(*sets: int) -> list[Any]:
    """The keys in which two pairs of sets may differ. There are 140 keys; a few differ. A set has a
    bit for each kind of key, and bits for the devices that some kinds are for."""
    now_in, now_out, included, excluded = sets
    kinds = _C.DispatchKeySet.from_raw_repr(now_in ^ included | now_out ^ excluded | _DEVICES)
    return [*filter(kinds.has, _list_keys())]


_DEVICES = (1 << 16) - 1


@cached()
def _list_keys() -> tuple[Any, ...]:
    return tuple(_C.DispatchKey.__members__.values())
