"""Devices that need not be there: what C++ is told of them, and what it means when it names one.

To C++ every fake that is not on the CPU is on `meta`, so that no driver is asked. Whatever C++
makes for such a fake by itself (a number that is written into a slice, `arange` inside of a
composite operator) it asks for on the same `meta`: the number of that tells which device is meant,
and `meta` without a number is what the user says. Must not know of tensors.
"""

from __future__ import annotations

from typing import Any

import torch

_marks: dict[torch.device, torch.device] = {}
_meant: dict[torch.device, torch.device] = {}


def mark_device(device: torch.device) -> torch.device:
    """What C++ is told of a device that need not be there."""
    mark = _marks.get(device)
    if mark is None:
        if device.type == "meta":
            mark = device
        else:
            mark = torch.device("meta", len(_meant) + 1)
            _meant[mark] = device
        _marks[device] = mark
    return mark


def public_device_of(kwargs: dict[str, Any]) -> None:
    """Let a call that comes from C++ name the device that is meant."""
    device = kwargs["device"]
    if device is not None and device.type == "meta":
        kwargs["device"] = _meant.get(device, device)


def concrete_device(value: Any) -> Any:
    """The device that is meant; `cuda` → `cuda:0`: the current one, also of a driver that does not
    exist."""
    if isinstance(value, str):
        try:
            value = torch.device(value)
        except RuntimeError:
            return value
    if not isinstance(value, torch.device):
        return value
    if value.index is None and value.type not in ("cpu", "meta"):
        return torch.device(value.type, _current_index(value.type))
    return _meant.get(value, value)


def _current_index(kind: str) -> int:
    """Of the device that torch would take; 0 where there is no driver to ask."""
    is_there = kind == "cuda" and torch.cuda.is_initialized()
    return torch.cuda.current_device() if is_there else 0
