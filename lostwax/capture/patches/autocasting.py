"""`torch.autocast` while a capture runs: the tracer notes that it is on, and it is on for devices
that this machine does not have, too.

Where there is no CUDA, torch makes of `torch.autocast("cuda")` one that is off, with a warning, and
does not keep what was asked for. One that is made while a program with tensors on CUDA is captured
is as on a GPU. Of one that was made before (around the export, a decorator) it is not known what it
was to be: it is refused where the program computes on such a device. Must not cast anything.
"""

from __future__ import annotations

from typing import Any

import torch

from lostwax.capture.patches.swap import CodeSwap, NameSwap, stand_for
from lostwax.capture.threads import is_capturing, running
from lostwax.capture.trace.tracer import Tracer
from lostwax.errors import CaptureError
from lostwax.fake import autocast
from lostwax.location import user_location

_Autocast: Any = torch.amp.autocast_mode.autocast
_not_available: Any = torch.cuda.amp.common.amp_definitely_not_available


def _is_amp_absent(plain: Any) -> bool:
    """`amp_definitely_not_available()`: a capture computes nothing, and needs no device. Where it
    has nothing to do with CUDA, it is as in eager."""
    device = running[-1].absent_device
    return False if device is not None and device.type == "cuda" else plain()


def _takes_bfloat16(plain: Any, *args: Any, **kwargs: Any) -> bool:
    """`torch.cuda.is_bf16_supported()`."""
    return True if _is_cuda_absent() else plain(*args, **kwargs)


def _note_made(plain: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    plain(self, *args, **kwargs)
    wanted = kwargs.get("enabled", args[2] if len(args) > 2 else True)
    if bool(wanted) is self._enabled:  # else torch has switched it off
        running[-1].autocasts.made.add(self)


def _note_entered(plain: Any, self: Any) -> Any:
    is_off = self.device == "cuda" and not self._enabled
    if is_off and self not in running[-1].autocasts.made and _is_cuda_absent():
        running[-1].autocasts.unsure = running[-1].autocasts.unsure or user_location()
    return plain(self)


def _is_cuda_absent() -> bool:
    """Does torch switch autocast for CUDA off on this machine?"""
    return not torch.cuda.is_available()


def check(tracer: Tracer, around: bool) -> None:
    """Refuse what torch may have switched off; `around`: is there an autocast around the export?"""
    where = tracer.autocasts.unsure
    device = tracer.absent_device
    if device is None or device.type != "cuda" or not _is_cuda_absent():
        return
    if where is None and (not around or autocast.find_enabled()):
        return
    place = "around the export" if where is None else "here"
    raise CaptureError(
        f"nobody knows whether the torch.autocast {place} was to be on, and the program computes "
        f"on cuda.\n  at {where or user_location()}\n"
        '  why: where there is no CUDA, torch switches torch.autocast("cuda") off when it is made\n'
        '  instead: say it in forward, `with torch.autocast("cuda", dtype):`, of a module or with '
        "inputs on cuda, which is captured as on a GPU; or export on a machine with CUDA"
    )


def _make_telling(function: Any) -> Any:
    """A function that switches autocast on or off, and tells the tracer."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_capturing():
            running[-1].casting = True
        return function(*args, **kwargs)

    return stand_for(function, call)


CODE_SWAPS = [
    CodeSwap(_not_available, _is_amp_absent),
    CodeSwap(torch.cuda.is_bf16_supported, _takes_bfloat16),
    CodeSwap(_Autocast.__init__, _note_made),
    CodeSwap(_Autocast.__enter__, _note_entered),
]
_SWITCHES = [name for name in dir(torch) if name.startswith("set_autocast") and "enabled" in name]
NAME_SWAPS = [
    NameSwap(torch, name, _make_telling(getattr(torch, name)))
    for name in _SWITCHES
    if "cache" not in name
]
