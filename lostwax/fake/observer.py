"""Observer: who is told what Python does with fakes beside calling operators.

A mode sees operators, and nothing else. But Python also asks tensors for their strides, whether
they require a gradient, or of what class they are, and what it does next hangs on the answer; and
it sets attributes and copies tensors without an operator. Fakes tell the observer of their mode.
Must not know who observes, or why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from lostwax.location import Location

if TYPE_CHECKING:
    from lostwax.fake.tensor import FakeTensor


class Observer:
    """One who takes note of nothing, and leaves everything to torch."""

    def note_question(self, fake: FakeTensor, what: str) -> None:
        """Python asks a fake something that an operator does not answer: `"stride()"`,
        `"requires_grad"`, `"class"`. Who asks is told by `location.asking_frame`."""

    def note_missing(self, fake: FakeTensor, name: str) -> None:
        """Python asks a fake for an attribute that it has not got; with no name, for all that it
        has."""

    def note_put(self, fake: FakeTensor, name: str) -> None:
        """Python puts an attribute on a fake, or takes it away: where that is watched."""

    def note_question_at(
        self,
        where: Location | str,
        what: str,
        fakes: Sequence[FakeTensor] = (),
        *,
        is_joint: bool = False,
        found: Any = None,
    ) -> None:
        """A program that runs on fakes asks what its original asked at this line. `is_joint`: it
        asks not the fakes, but what is computed from all of them. A question to torch itself
        (`"torch.is_grad_enabled()"`) has no fakes, but what was found."""

    def note_layout_choice(self, source: FakeTensor, out: FakeTensor, what: str) -> None:
        """By the strides of `source`, `out` shares memory with it, or does not."""

    def has_gradient(self, fake: FakeTensor) -> bool:
        """Does a gradient reach it that autograd does not know of?"""
        return False

    def note_assignment(self, fake: FakeTensor, name: str, value: Any) -> None:
        """`x.requires_grad = value` or `x.grad = value` is about to be done."""

    def note_new_data(self, fake: FakeTensor, other: FakeTensor, before: Any, tracked: Any) -> None:
        """`x.data = y` was done: x was of the type `before`, and this was tracked of it."""

    def hook_gradient(self, fake: FakeTensor, hook: Callable[[Any], Any]) -> Any:
        """`x.register_hook(hook)` is to be done."""
        return torch.Tensor.register_hook(fake, hook)  # type: ignore[no-untyped-call]

    def deep_copy(self, fake: FakeTensor) -> FakeTensor | None:
        """`copy.deepcopy(x)` is to be done. None: a fake copies itself."""
        return None

    def assumes_true(self, fake: FakeTensor) -> bool:
        """Is `bool(x)` a check that holds, unless the arguments of the call are bad?"""
        return False
