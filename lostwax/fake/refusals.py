"""The errors of a tensor without data: it refuses its data, another thread, another class."""

from __future__ import annotations

from typing import Any, NoReturn

from lostwax.errors import CaptureError, UnsupportedFakeError
from lostwax.location import Location

RETIRED = -1
"""The thread of fakes that must not be used any more: they stood in a module that was captured."""


def refuse_use(thread: int) -> NoReturn:
    """Refuse the use of a fake that belongs to another thread's capture, or to one that is over."""
    if thread != RETIRED:
        refuse_thread()
    raise CaptureError.here(
        "a tensor is used that stood in for a parameter or buffer while its module was exported, "
        "and the export is over",
        why="it has no data, and is no part of the module any more: it was read from the module "
        "while that was exported, by another thread or by forward, and kept",
        instead="read it from the module again; and neither read nor change a module in one "
        "thread while another exports it",
    )


def refuse_thread() -> NoReturn:
    """Refuse the use of a fake that belongs to another thread's capture."""
    raise CaptureError.here(
        "a tensor of a capture that runs in another thread is used in this one",
        why="while a module is exported, its parameters and buffers have no data",
        instead="neither read nor change a module in one thread while another exports it (to call "
        "it is to wait until that is done); and where a forward hands work to other threads, "
        "compute in the thread that calls it",
    )


def refuse(fake: Any, what: str, instead: str) -> NoReturn:
    raise UnsupportedFakeError.here(
        f"{what} needs the data of {fake!r}, and a fake tensor has none",
        instead=f"{instead}",
    )


def other_class_error(name: str, where: Location | str) -> UnsupportedFakeError:
    """The error where a fake would become a tensor of a user's class."""
    return UnsupportedFakeError(
        f"a tensor becomes one of the class {name}, and a tensor without data cannot.\n"
        f"  at {where}\n"
        "  why: while capturing, tensors are of a class of their own, which stands for their data\n"
        "  instead: compute with plain tensors, and keep what belongs to them beside them; or let "
        f"{name} be a wrapper (torch.Tensor._make_wrapper_subclass) with __torch_dispatch__"
    )
