"""What a program cannot show of memory, and is refused; and views that speak of a whole storage.

A program knows values: writes that it could not show to the caller, and changes of what a tensor
is, are refused with the user's line. `as_strided` becomes a view of the tensor that owns the
memory. Must not record.
"""

from __future__ import annotations

from typing import Any, NoReturn

from torch._ops import OpOverload

from lostwax.errors import CaptureError
from lostwax.ir.trace.log import Value
from lostwax.ir.trace.views import Root, Tracked, walk_views
from lostwax.memory import lies_within, shows_all
from lostwax.ops.registry import functional_twin, has_trait
from lostwax.ops.traits import Trait
from lostwax.sym import Size, current
from lostwax.types import TensorType


def check_writable(root: Root) -> None:
    if root.others:
        raise CaptureError.here(
            f"{root.kind} {root.name} is written to, and shares memory with another input",
            why="the program could not show the write through the other one",
            instead="pass a copy (x.clone()) of one of them",
        )
    if root.kind == "the constant":
        raise CaptureError.here(
            f"{root.kind} {root.name} is written to, and is no state of the module",
            why="the write would be lost between two runs of the program",
            instead="register it, self.register_buffer(...), or write to a copy (x.clone())",
        )


def check_metadata(tracked: Tracked) -> None:
    """A constant belongs to the user: it must look the same after the run. And a tensor that is
    two inputs would have to change in both."""
    if tracked.base is None and (tracked.root.kind == "the constant" or tracked.root.others):
        raise CaptureError.here(
            f"{tracked.root.kind} {tracked.root.name} gets other sizes or strides in place",
            why="the change would be lost between two runs of the program",
            instead="use the operator that returns a view, x.t() instead of x.t_()",
        )


def check_layout(root: Root, now: TensorType) -> None:
    """What the caller handed in must have its dtype, sizes and strides when the program is over."""
    before = root.type
    if (now.dtype, now.device) != (before.dtype, before.device):
        raise CaptureError(
            f"{root.kind} {root.name} leaves the program as {now.dtype} on {now.device}; it came "
            f"as {before.dtype} on {before.device}.\n"
            "  why: a program writes values into its inputs and buffers, it does not change what "
            "they are\n"
            "  instead: give it data of its own dtype and device, x.data = y.to(x)"
        )
    if (now.size, now.stride) == (before.size, before.stride):
        return
    # Sizes may have been fixed since, in one of them.
    if any(map(_differ, (*now.size, *now.stride), (*before.size, *before.stride))) or (
        now.ndim != before.ndim
    ):
        raise CaptureError(
            f"{root.kind} {root.name} leaves the program with size {tuple(now.size)} and strides "
            f"{tuple(now.stride)}; it came with size {tuple(before.size)} and strides "
            f"{tuple(before.stride)}.\n"
            "  why: a program writes values into its inputs and buffers, not sizes\n"
            "  instead: use the operator that returns a view, x.t() instead of x.t_()"
        )


def _differ(a: Size, b: Size) -> bool:
    return current(a) != current(b)


def is_conjugated(value: Value) -> bool:
    """Is it a view that conjugates what it shows?"""
    steps = [each.step for each in walk_views(value) if each.step is not None]
    return sum(has_trait(step.target, Trait.CONJUGATES) for step in steps) % 2 == 1


# ------------------------------------------------------------------------------- views of storage


def strided_base(tracked: Tracked) -> Tracked:
    """Where `as_strided` starts: it reads the storage, whatever its argument shows of it; that of a
    detached tensor, if all of it was detached."""
    while tracked.base is not None and tracked.view is not None:
        if has_trait(tracked.view.func, Trait.OTHER_ELEMENTS):
            break
        is_detached = has_trait(tracked.view.func, Trait.DETACHES)
        if is_detached and shows_all(tracked.type, tracked.root.type):
            break
        tracked = tracked.base
    return tracked


def stops_gradient(tracked: Tracked, base: Tracked, seen: TensorType) -> bool:
    """Does one of the views between a base and this view of it stop gradients?"""
    while tracked is not base:
        assert tracked.base is not None
        assert tracked.view is not None
        if has_trait(tracked.view.func, Trait.STOPS_GRADIENT):
            if tracked.view.history is not None:
                _refuse_strided(seen, "a part of the memory has a gradient of its own")
            return True
        tracked = tracked.base
    return False


def are_made_with_gradients(tracked: Tracked, base: Tracked) -> bool:
    """Were all views between a base and this view of it made while gradients were switched on?"""
    while tracked is not base and tracked.base is not None and tracked.view is not None:
        if not tracked.view.grad:
            return False
        tracked = tracked.base
    return True


def strided_arguments(base: TensorType, seen: TensorType, is_row: bool) -> tuple[Any, ...]:
    """The arguments of `as_strided` that make the view `seen` of a tensor of type `base`, wherever
    in its memory that starts. `is_row`: that is not known."""
    if base.offset == 0 and not is_row:
        arguments: tuple[Any, ...] = (list(seen.size), list(seen.stride), seen.offset)
    elif base.offset == seen.offset:
        arguments = (list(seen.size), list(seen.stride))
    else:
        _refuse_strided(seen, "the tensor starts in the middle of its memory")
    if not (base.is_symbolic or seen.is_symbolic or lies_within(seen, base)):
        _refuse_strided(seen, "it reaches elements that are not the tensor's own")
    return arguments


def shows_others(given: Tracked, seen: TensorType) -> bool:
    """Does `as_strided` show elements beside those of its argument?"""
    if given.type.is_symbolic or seen.is_symbolic or shows_all(given.type, given.root.type):
        return False
    return not lies_within(seen, given.type)


def refuse_others(seen: TensorType) -> NoReturn:
    """To autograd they have no gradient; of a view of the storage they would have one."""
    _refuse_strided(seen, "it shows elements that its argument does not: they have no gradient")


def _refuse_strided(seen: TensorType, why: str) -> NoReturn:
    raise CaptureError.here(
        f"as_strided({tuple(seen.size)}, {tuple(seen.stride)}, {seen.offset}) cannot be captured",
        why=f"{why}; a program knows values, not memory",
        instead="slice the tensor that owns the memory, or copy first (x.clone())",
    )


# ---------------------------------------------------------------------------- changes of metadata


def metadata_view(func: OpOverload) -> OpOverload:
    """The view that an in-place change of metadata amounts to: `t_` → `t`."""
    found = functional_twin(func)
    assert found is not None, f"no view does what {func} does in place"
    return found
