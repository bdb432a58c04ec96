"""Views of state that a module keeps beside it: `self.v = self.a.view(2, 3)`, `self.w.data`.

Such a tensor is no parameter and no buffer, and no constant either: it changes with the state that
it shows. It enters a capture as a view of that state. What is no view of one state tensor, or would
be another one after the call, is refused. Must not record steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from lostwax.errors import CaptureError
from lostwax.ir.trace.views import Root, Tracked, View
from lostwax.location import Location
from lostwax.memory import lies_within, overlap, span
from lostwax.ops.registry import aten
from lostwax.types import TensorType

State = tuple[Root, torch.Tensor]


def find_shown_state(tensor: torch.Tensor, t: TensorType, state: Sequence[State]) -> State | None:
    """The state that a tensor shows; None if it only lies in the same storage. `state`: what there
    is in that storage."""
    meeting = [each for each in state if overlap(t, each[0].type)]
    if not meeting:
        return None
    # Of several, the one whose gradient it has comes first.
    for each in sorted(meeting, key=lambda each: not is_derived(tensor, each[1])):
        whole = each[0].type
        if whole == t:
            return each
        if whole.dtype is t.dtype and whole.is_dense and lies_within(t, whole):
            return each
    return refuse(meeting[0][0], tensor, "it shows more than that, or has another dtype")


def views_of_state(t: TensorType, root: Root) -> list[View]:
    """The views that lead from a state tensor to a tensor of this type in its memory."""
    whole = root.type
    if whole == t:
        return []
    found: list[View] = []
    if not whole.is_contiguous:  # as it lies in memory
        strides: Any = whole.stride
        order = sorted(range(whole.ndim), key=lambda d: -strides[d])
        found.append(_view(aten.permute.default, order))
    found.append(_view(aten.view.default, [whole.numel()]))
    (start, end), first = span(t), whole.offset
    if end - start != whole.numel():
        found.append(_view(aten.slice.Tensor, 0, start - first, end - first))
    if t.is_contiguous:
        found.append(_view(aten.view.default, list(t.size)))
    else:
        found.append(_view(aten.as_strided.default, list(t.size), list(t.stride)))
    return found


def refuse(root: Root, tensor: torch.Tensor, why: str) -> NoReturn:
    raise CaptureError.here(
        f"a tensor of size {tuple(tensor.shape)}, which is no parameter and no buffer, shares "
        f"memory with {root.kind} {root.name}",
        why=f"{why}",
        instead=f"take the view where it is used, in forward, of self.{root.name}; or keep a copy "
        "(x.clone()) that does not change with it",
    )


def is_derived(tensor: torch.Tensor, state: torch.Tensor) -> bool:
    """Is it a view of the state to autograd, too? Not if it was detached."""
    base = tensor._base
    return base is not None and (base is state or base is state._base)


def check_gradient(
    tensor: torch.Tensor, state: torch.Tensor, root: Root, is_derived: bool, is_tracked: bool
) -> None:
    """Its gradient must be that of the state. `is_tracked`: the program differentiates itself."""
    if not tensor.requires_grad or not torch.is_grad_enabled():
        return
    if not state.requires_grad:
        refuse(root, tensor, "it requires gradients, as the state did once, and does not now")
    if not is_derived:
        refuse(root, tensor, "it has a gradient of its own, which is not that of the state")
    if is_tracked:
        refuse(root, tensor, "the program differentiates, and the view was made outside of it")


def check_history(root: Root, tensor: torch.Tensor, shown: Tracked) -> None:
    """To autograd a detached tensor is one of its own: what is written to one that is kept, and has
    a gradient, is its history in the next call."""
    if any(each.view is not None and each.view.history is not None for each in shown.way()):
        raise CaptureError.here(
            f"a value that has a gradient is written to a tensor of size {tuple(tensor.shape)}, "
            f"which is kept from before the call and is detached from {root.kind} {root.name}",
            why="autograd would go through this write in later calls, too, and a program keeps no "
            "such history",
            instead="write under torch.no_grad(), or write the value's detach()",
        )


def check_registered(state: Sequence[tuple[str, str, torch.Tensor]]) -> None:
    """State that is a view of other state, with its gradient: a program has a gradient of its own
    for each. `state`: kinds, names, and the tensors."""
    for kind, name, tensor in state if torch.is_grad_enabled() else ():
        for other_kind, other, whole in state if tensor.grad_fn is not None else ():
            if whole is not tensor and whole.requires_grad and is_derived(tensor, whole):
                raise CaptureError(
                    f"{kind} {name} is a view of {other_kind} {other}, and has its gradient.\n"
                    "  why: in a program each has a gradient of its own\n"
                    f"  instead: take the view in forward, of self.{other}; or register it without "
                    "the gradient, x.detach(); or export under torch.no_grad()"
                )


def refuse_inside(root: Root, tensor: torch.Tensor) -> NoReturn:
    refuse(root, tensor, "it is read in a backward alone, where a program takes no views of state")


def refuse_replaced(root: Root) -> NoReturn:
    raise CaptureError(
        f"{root.kind} {root.name} is replaced by another tensor, and the program reads a view of "
        "it that was made before the call, or the tensor itself from elsewhere: a list or another "
        "attribute that holds it.\n"
        "  why: there is still the tensor that was there at first, and a program keeps only the "
        "new one\n"
        f"  instead: write into it, self.{root.name}.copy_(...); or take the view in forward, of "
        f"self.{root.name} itself"
    )


def refuse_old_shown(root: Root) -> NoReturn:
    raise CaptureError(
        f"{root.kind} {root.name} is written in place, and then replaced by another tensor that "
        "is also an input, a result, a constant or other state.\n"
        "  why: in the next call the write in place changes that one, too, wherever it is kept; a "
        "program only keeps the new value\n"
        f"  instead: do one of both, self.{root.name}.copy_(...) or self.{root.name} = ...; or "
        "return, or assign, a copy (x.clone())"
    )


def refuse_tied(
    kind: str, name: str, other: str, line: Location | None, asked: Location | str | None
) -> NoReturn:
    """`asked`: where the code distinguishes them, if that is why."""
    at = "" if line is None else f"\n  at {line}"
    why = "where they are, what is written to one later shows in the other; a program keeps two"
    instead = f"clone it, self.{name} = x.clone(), or return x.clone(); or write into it, "
    instead += f"self.{name}.copy_(x)"
    if asked is not None:
        why = "a program keeps two, and where they are one, the next call would find one at "
        why += str(asked)
        instead += "; or keep in a buffer which way was gone, and ask that"
    raise CaptureError(
        f"data decide whether the {kind} {name} and {other} are one tensor when the call is over."
        f"{at}\n  why: {why}\n  instead: {instead}"
    )


def refuse_memory_shown(root: Root) -> NoReturn:
    raise CaptureError(
        f"{root.kind} {root.name} gets another memory, self.{root.name}.data = ..., and is itself "
        "a result.\n"
        "  why: in the next call the result of this one would get that memory, too; what a "
        "program returns keeps its own\n"
        f"  instead: return self.{root.name}.clone(); or write into it, "
        f"self.{root.name}.copy_(...)"
    )


def refuse_old_memory_shown(root: Root) -> NoReturn:
    raise CaptureError(
        f"{root.kind} {root.name} gets another memory, self.{root.name}.data = ..., and a result "
        "shows the memory that it had before.\n"
        "  why: that may be seen elsewhere, too, in what an earlier call has returned; what a "
        "program returns has its own\n"
        f"  instead: return a copy (x.clone()); or write into it, self.{root.name}.copy_(...)"
    )


def _view(func: Any, *args: Any) -> View:
    return View(func, args, {}, None)
