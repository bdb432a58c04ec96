"""Aliasing while recording: the user's program writes and views, the recorded one only computes.

Every tensor of the trace belongs to a *root* (the tensor whose storage it views) and knows the
chain of views that leads from the root to it. A write computes a new value of the written tensor
and scatters it back through the chain into a new value of the root; other views of that root are
made anew when next read. Must not decide types: rules do; must not build nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from lostwax.capture.steps import Value
from lostwax.errors import CaptureError
from lostwax.fake.tensor import FakeTensor
from lostwax.location import user_location
from lostwax.ops.registry import aten, operator
from lostwax.types import TensorType


class View(NamedTuple):
    """One link from a tensor to a view of it."""

    func: OpOverload
    args: tuple[Any, ...]
    """The arguments after the viewed tensor."""
    kwargs: dict[str, Any]
    position: int | None
    """Which of several outputs (`split`)."""


class Root:
    """A storage's functional content: its present value, and how often it was written."""

    __slots__ = ("kind", "name", "others", "type", "value", "version")

    def __init__(self, value: Value, type: TensorType) -> None:
        self.value = value
        self.type = type
        self.version = 0
        self.others = False
        """Another input shares this memory without being a view we know."""
        self.kind = ""
        """What it is to the user, for a message: "" for what the program makes itself."""
        self.name = ""


class Tracked:
    """What a fake of the trace knows of itself; kept in `fake.tracked`."""

    __slots__ = ("chain", "root", "seen", "value")

    def __init__(
        self, value: Value, root: Root, chain: tuple[View, ...] = (), seen: int = 0
    ) -> None:
        self.value = value
        self.root = root
        self.chain = chain
        self.seen = seen
        """The root's version at which `value` was right."""


Record = Callable[[OpOverload, tuple[Any, ...], dict[str, Any], Any], Value]


def track(fake: FakeTensor, value: Value) -> Tracked:
    """A new tensor: its own root."""
    tracked = Tracked(value, Root(value, fake.type))
    fake.tracked = tracked
    return tracked


def track_view(fake: FakeTensor, value: Value, base: Tracked, view: View) -> None:
    fake.tracked = Tracked(value, base.root, (*base.chain, view), base.root.version)


def read(tracked: Tracked, again: Callable[[Value, View], Value]) -> Value:
    """The present value of a tensor; a view whose root was written since is made anew by "
    "`again`."""
    root = tracked.root
    if tracked.seen != root.version:
        value = root.value
        for view in tracked.chain:
            value = again(value, view)
        tracked.value, tracked.seen = value, root.version
    return tracked.value


def written(
    tracked: Tracked,
    new: Value,
    again: Callable[[Value, View], Value],
    scatter: Callable[[Value, Value, View], Value],
) -> None:
    """The tensor has a new value: so have its root and, when next read, the root's other views."""
    root = tracked.root
    check_writable(root)
    bases = [root.value]
    for view in tracked.chain[:-1]:
        bases.append(again(bases[-1], view))
    value = new
    for view, base in zip(reversed(tracked.chain), reversed(bases), strict=False):
        value = scatter(base, value, view)
    root.value = value
    root.version += 1
    tracked.value, tracked.seen = new, root.version


def check_writable(root: Root) -> None:
    if root.others:
        raise CaptureError(
            f"{root.kind} {root.name} is written to, and shares memory with another input.\n"
            f"  at {user_location()}\n"
            "  why: the program could not show the write through the other one\n"
            "  instead: pass a copy (x.clone()) of one of them"
        )
    if root.kind == "the constant":
        raise CaptureError(
            f"{root.kind} {root.name} is written to, and is no state of the module.\n"
            f"  at {user_location()}\n"
            "  why: the write would be lost between two runs of the program\n"
            "  instead: register it, self.register_buffer(...), or write to a copy (x.clone())"
        )


REFUSED = {
    aten.set_.source_Storage: "set_",
    aten.set_.source_Storage_storage_offset: "set_",
    aten.set_.source_Tensor: "set_",
    aten.set_.source_Tensor_storage_offset: "set_",
    aten.set_.default: "set_",
    aten.resize_.default: "resize_",
    aten.resize_as_.default: "resize_as_",
}


def refuse(func: OpOverload) -> None:
    """Operators that exchange a tensor's memory: no value of the program could stand for it."""
    name = REFUSED[func]
    raise CaptureError(
        f"{name} cannot be captured.\n  at {user_location()}\n"
        "  why: it changes which memory a tensor has, and a functional program has no memory\n"
        "  instead: make a new tensor of the size you need (torch.empty, x.reshape, F.pad)"
    )


def metadata_view(func: OpOverload) -> OpOverload:
    """The view that an in-place change of metadata amounts to: `t_` → `t`."""
    name = func._schema.name.partition("::")[2].removesuffix("_")
    packet = getattr(torch.ops.aten, name)
    overload = func._schema.overload_name or "default"
    return getattr(packet, overload)  # type: ignore[no-any-return]


def inverse(view: View) -> Callable[..., Any]:
    found = operator(view.func).view_inverse
    if found is None:
        raise CaptureError(
            f"a write through {view.func} cannot be captured: nothing says how it reaches the "
            f"viewed tensor.\n  at {user_location()}\n  instead: write to a copy (x.clone())"
        )
    return found
