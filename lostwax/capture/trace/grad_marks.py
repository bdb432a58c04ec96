"""What a call does to gradients themselves: `x.grad = y`, `x.requires_grad_()`.

On tensors of its own it may. On what the caller holds it may not: a program leaves no gradients
behind, and its inputs require them or not as they come. Must not record steps.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import repeat
from types import FunctionType
from typing import Any, NamedTuple, NoReturn, cast

import torch

from lostwax.capture.aliasing.attributes import MergedAttributes, list_attributes
from lostwax.capture.attempt import Attempt, Retry
from lostwax.capture.heap.holders import MISSING
from lostwax.capture.python.assignments import line_that_sets
from lostwax.capture.state.unkept_changes import warn_of_change
from lostwax.capture.trace.gradient_reach import (
    find_joins,
    finds_gradient,
    gradient_sources,
    is_differentiable,
    reaches_own_leaf,
)
from lostwax.errors import CaptureError
from lostwax.fake.asked_tensor import is_marked, is_marked_leaf
from lostwax.fake.tensor import FakeTensor
from lostwax.identity import ByIdentity
from lostwax.ir.trace.log import Value
from lostwax.location import Location
from lostwax.types import TensorType


class Holding(NamedTuple):
    """Something that the program is given, and the caller holds."""

    kind: str
    name: str
    tensor: Any
    fake: Any


class CaptureGradients:
    """What one capture knows of gradients, and does to them."""

    __slots__ = (
        "differentiable", "enabled", "given", "has_leaves", "made", "stay_inside", "users",
        "written_without_autograd",
    )  # fmt: skip

    def __init__(self) -> None:
        self.differentiable = False
        """Does anything that the program is given need a gradient?"""
        self.enabled = False
        """Are gradients switched on? Then something may need one in another call."""
        self.stay_inside = False
        """The program is not differentiated: detaching changes nothing."""
        self.users = set[Value]()
        """What the user passes."""
        self.written_without_autograd = set[Value]()
        """What came without a gradient, and was written to where autograd does not see it: one with
        a gradient would have kept that."""
        self.has_leaves = False
        """Has the program marked tensors of its own as requiring gradients?"""
        self.made: list[FakeTensor] = []
        """What factories made: C++ marks some of them (`torch.ones(3, requires_grad=True)`)."""
        self.given: ByIdentity[FakeTensor, Location] = ByIdentity()
        """Where tensors were given a gradient."""

    def note_requires_grad(self, fake: FakeTensor, value: bool) -> None:
        """`x.requires_grad = value`, which is new."""
        if value:
            check_own(
                fake,
                "which requires no gradient, is told otherwise",
                "x = x.detach().requires_grad_(), which is another tensor; or call "
                "x.requires_grad_() before exporting, and before a run",
            )
        else:
            check_own(
                fake,
                "which requires a gradient, is told otherwise",
                "x = x.detach(), which is another tensor; or call x.requires_grad_(False) before "
                "exporting",
            )
        if not value and not is_marked_leaf(fake):
            raise CaptureError.here(
                f"requires_grad = False of {fake!r}, which is computed with gradients: only "
                "leaves can be told so",
                instead="x = x.detach()",
            )
        self.has_leaves = True

    def forget(self, leaf: Any) -> None:
        """Nothing is computed from this tensor, whether it requires a gradient or not."""
        self.made = [each for each in self.made if each is not leaf]

    def has_own_leaves(self) -> bool:
        """Are there such tensors, now that the call is over?"""
        return self.has_leaves or any(map(is_marked, self.made))

    def check(self, given: Iterable[Holding]) -> None:
        """Has something that the caller holds another gradient than before?"""
        for kind, name, tensor, fake in given:
            if isinstance(fake, FakeTensor) and _has_new_gradient(tensor, fake):
                _refuse_gradient(f"{kind} {name}", fake, self.given.get(fake))


def refuse_replaced(what: str) -> NoReturn:
    raise CaptureError(
        f"{what} is replaced by another leaf, which has gradients of its own, or none.\n"
        "  why: gradients would belong to a tensor that the program has not got\n"
        "  instead: write into it, with torch.no_grad(): self.x.copy_(...)"
    )


def check_data(before: TensorType, now: TensorType) -> None:
    """What has a gradient keeps its size and dtype: the gradient has them, too."""
    if (before.size, before.dtype) != (now.size, now.dtype):
        raise CaptureError.here(
            f"a tensor of size {tuple(before.size)} and {before.dtype}, which has a gradient, is "
            f"given data of size {tuple(now.size)} and {now.dtype}",
            why="its gradient would have to change its size, too",
            instead="use the other tensor itself, y.detach()",
        )


def check_own(fake: FakeTensor, what: str, instead: str) -> None:
    """What the caller holds requires a gradient, or none, as it comes: no program changes that."""
    root = fake.tracked.root
    if root.kind and fake.tracked is root:
        raise CaptureError.here(
            f"{root.kind} {root.name}, {what}",
            why="the caller's tensor would have to change; a program takes its inputs as they come",
            instead=f"{instead}",
        )


def _has_new_gradient(tensor: torch.Tensor, fake: FakeTensor) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of the question where it is no leaf
        before, grad = tensor.grad, cast(Any, fake.grad)
    if grad is None or before is None:
        return grad is not before
    return bool(grad.fake_storage.version) or grad.tracked is not None


def _refuse_gradient(what: str, fake: FakeTensor, at: Location | None) -> NoReturn:
    does = "loses its gradient (x.grad = None or zero_grad())"
    if fake.grad is not None:
        does = "is given a gradient (backward() or x.grad = ...)"
    where = "" if at is None else f"\n  at {at}"
    raise CaptureError(
        f"{what} {does}.{where}\n"
        "  why: a program returns what it computes, and leaves no gradients behind\n"
        "  instead: torch.autograd.grad(loss, x), which returns them; or call "
        "backward() on a copy, x = x.detach().requires_grad_()"
    )


def check_attributes(
    given: Iterable[Holding], joined: MergedAttributes, ran: Sequence[FunctionType]
) -> None:
    """What is put on a tensor of the caller's would have to stay there: on state for the next call,
    which may read it. `joined` knows what is put on one on one side of an `if` alone, `ran` are
    the user's functions that ran."""
    for kind, name, tensor, fake in given:
        if not isinstance(fake, FakeTensor):
            continue
        found = [*list_attributes(fake), *zip(joined.find_names(fake), repeat(MISSING))]
        for attribute, value in found:
            if vars(tensor).get(attribute, fake) is value:
                continue
            what = f"{kind} {name} is given the attribute {attribute}"
            if kind == "the input":
                warn_of_change(f"{what}; the program leaves nothing on its inputs.")
                continue
            line = line_that_sets(attribute, ran)
            at = "" if line is None else f"\n  at {line}"
            raise CaptureError(
                f"{what}.{at}\n"
                "  why: the program has no such state, the next run would not find it\n"
                f'  instead: register a buffer, self.register_buffer("{attribute}", ...), and '
                "write to it; or keep it in a variable"
            )


def check_results(outputs: Iterable[Any], given: Container[int]) -> None:
    """A leaf that is returned would have to require gradients for the caller, too; `given` are the
    ids of the tensors that are his."""
    for output in outputs:
        if isinstance(output, FakeTensor) and is_marked_leaf(output) and id(output) not in given:
            raise CaptureError(
                f"{output!r} is returned, and was told to require gradients in the program.\n"
                "  why: what a program returns requires gradients only where its inputs do\n"
                "  instead: return x.detach(), and let the caller say requires_grad_()"
            )


class NeedsAutograd(Retry):
    """The program differentiates inside, or has leaves of its own, and autograd has not seen what
    is computed from them: it is captured again so that autograd sees it."""

    def amend(self, attempt: Attempt) -> Attempt:
        return attempt._replace(tracked=True)


def keep_own_leaves(
    results: Iterable[tuple[Any, str]],
    value_of: Callable[[FakeTensor], Value],
    with_leaf: Callable[[Value], Value],
) -> None:
    """A result may require gradients only because `forward` marked a tensor of its own: in the
    program a constant takes the place of that leaf, which no code outside can reach, either.
    Autograd has seen the operators, and knows which results require gradients."""
    for result, path in results:
        if not isinstance(result, FakeTensor):
            continue
        if not is_marked(result):
            _check_joined(value_of(result), path)
            continue
        if _reaches_given(value_of(result)):
            continue
        root = result.tracked.root
        if not root.kind:
            root.write(with_leaf(root.value))
        if not _reaches_given(value_of(result)):
            raise CaptureError(
                f"{path} requires gradients only because of a tensor that the module itself tells "
                "to require them (requires_grad_()).\n"
                "  why: nobody outside can reach that tensor, and the result shares its memory "
                "with what the caller holds, which the program would have to mark\n"
                "  instead: return x.detach(), or export under torch.no_grad()"
            )


def _reaches_given(value: Value) -> bool:
    """Does a gradient of this value, whichever way a call goes, reach what the program is given,
    and is no literal?"""
    sources = gradient_sources(value, grad=True)
    if not any(is_marked(each.fake) and not each.is_literal for each in sources):
        return False
    return not find_joins(value) or finds_gradient(value) is True


def _check_joined(value: Value, path: str) -> None:
    """Autograd does not see through branches and loops: a result of theirs may require gradients
    because of a leaf of the program's own."""
    joins = [each.step for each in find_joins(value) if each.step is not None]
    if joins and finds_gradient(value) is not True and reaches_own_leaf(value):
        raise CaptureError(
            f"{path} is computed by a branch or a loop on data, of a tensor that the module itself "
            "tells to require gradients (requires_grad_()).\n"
            f"  at {joins[0].place.location()}\n"
            "  why: whether the result requires gradients would depend on the way, and nobody "
            "outside can reach that tensor\n"
            "  instead: return x.detach(), or export under torch.no_grad()"
        )


def check_next_gradient(what: str, left: Value) -> None:
    """State that is left with a gradient has one in the next call: there a write that autograd does
    not see keeps it, and here, where it had none, there was none to keep."""
    if is_differentiable(left) and finds_gradient(left) is not False:
        raise CaptureError(
            f"{what} is written to where autograd does not see it (x.data, no_grad), and is left "
            "with a gradient of what else is written to it.\n"
            "  why: the next call would start with that gradient, this one did not: the program "
            "would lose it\n"
            "  instead: write values alone, x.copy_(y.detach()); or export under torch.no_grad()"
        )
