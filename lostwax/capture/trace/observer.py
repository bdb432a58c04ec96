"""What a capture learns from Python beside the operators it calls: questions, layouts, gradients.

Fakes tell it, and it takes note of what a call of the program must check, refuses what a program
cannot do, or does it as steps. Must not record steps itself: the tracer does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lostwax.capture.aliasing.sharing import refuse_merged
from lostwax.capture.trace.grad_marks import check_data
from lostwax.capture.trace.gradient_reach import find_joins, find_unseen, finds_gradient
from lostwax.capture.trace.gradient_steps import (
    DETACHED,
    keep_gradient_of,
    may_have_gradient,
    wants_gradient,
)
from lostwax.capture.trace.python_questions import OF_GRADIENTS, QuestionLog
from lostwax.fake.asked_tensor import (
    IDENTITY,
    LAYOUT_QUESTIONS,
    is_marked,
    read_attributes,
    read_gradient,
)
from lostwax.fake.symbolic.objects import Address
from lostwax.fake.tensor import FakeTensor, Observer
from lostwax.ir.run.conditions.answers import (
    GRADIENTS,
    LAYOUTS,
    ONE,
    STRIDES,
    is_mode,
    mode_answer,
)
from lostwax.ir.trace.log import Value
from lostwax.ir.trace.views import track_view
from lostwax.location import (
    PASSING_ON,
    Location,
    asking_frame,
    is_asked_by_user,
    user_location,
)
from lostwax.ops.registry import has_trait
from lostwax.ops.traits import Trait
from lostwax.types import TensorType

if TYPE_CHECKING:
    from lostwax.capture.trace.tracer import Tracer

PASSING_ON.add(__file__)
_OF_OBJECTS = (IDENTITY, "class", "is_leaf", "untyped_storage().nbytes()")
"""Questions that two tensors with the same elements answer differently."""


class CaptureObserver(Observer):
    """What the fakes of one tracer report to it."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self.questions = QuestionLog()
        self.mode_before: Callable[[str], Any] = mode_answer
        """What torch has answered before the capture."""
        self.hook: Callable[[FakeTensor, Callable[[Any], Any]], Any] = super().hook_gradient
        """What records a hook on a tensor's gradient."""
        self.is_over = False
        """What fakes are asked matters until the capture is over."""

    # ---------------------------------------------------------------------------------- questions

    def note_question(self, fake: FakeTensor, what: str) -> None:
        fake.check_thread()
        if what in LAYOUT_QUESTIONS:
            # What torch asks counts, too; but strides of dimensions of size 1 do not matter to it.
            self.note_layout(fake, what, "stride" in what and is_asked_by_user())
        elif self._is_noting() and fake.tracked is not None and is_asked_by_user():
            if what in _OF_OBJECTS:
                self._tracer.sharing.check_one(what, fake.tracked.root)
            if what in OF_GRADIENTS:
                self.has_gradient(fake)  # which refuses it, if it depends on the way
            if what == IDENTITY:
                self.questions.note_object(fake, user_location())
            else:
                self._note(fake, what, user_location())
        elif what == IDENTITY and self._is_noting() and fake.tracked is not None:
            self._tracer.sharing.check_one(what, fake.tracked.root)
            self.questions.note_distinguished(fake, user_location())

    def note_missing(self, fake: FakeTensor, name: str) -> None:
        if name or is_asked_by_user():
            self._tracer.sharing.attributes.check_read(fake, name)

    def note_put(self, fake: FakeTensor, name: str) -> None:
        self._tracer.sharing.attributes.check_put(fake, name)

    def make_address(self, address: int) -> int:
        self._tracer.addresses.add(address)
        return Address(address)

    def note_question_at(
        self,
        where: Location | str,
        what: str,
        fakes: Sequence[FakeTensor] = (),
        *,
        is_joint: bool = False,
        found: Any = None,
    ) -> None:
        known = [fake for fake in fakes if fake.tracked is not None]
        if what in LAYOUTS:
            for fake in known:
                self.note_layout(fake, what, what == STRIDES)
        elif not self._is_noting():
            return
        elif is_mode(what):
            # What the module has switched itself is no matter: it does so in every call.
            if found == self.mode_before(what):
                self.questions.note_mode(what, found, where)
        elif what == ONE:
            if len(known) == 2:
                self.questions.note_pair(known[0], known[1], where)
        elif is_joint and known:
            self.questions.note_joint([*map(self._tracer.value_of, known)], where, what)
        else:
            for fake in known:
                self._note(fake, what, where)

    def _is_noting(self) -> bool:
        return self._tracer.is_recording and not self.is_over

    def _note(self, fake: FakeTensor, what: str, where: Location | str) -> None:
        real = self._tracer.fake_tensor_converter.find_real(fake)
        self.questions.note(fake, what, self._tracer.value_of, real, where)

    def note_gradients(self, values: Sequence[Value]) -> None:
        """What is recorded relies on it that no gradient reaches these."""
        if not self.is_over:
            self.questions.note_joint(values, user_location(), GRADIENTS)

    def assumes_true(self, fake: FakeTensor) -> bool:
        """`torch.distributions` asks so whether its arguments are valid: the program asserts it."""
        step = fake.tracked.value.step if fake.tracked is not None else None
        if step is None or not has_trait(step.target, Trait.ASKS_ALL):
            return step is not None and has_trait(step.target, Trait.CHECKS_ALL)
        return asking_frame().f_globals.get("__name__") == _CONSTRAINTS

    # ------------------------------------------------------------------------------------ layouts

    def note_layout(self, fake: FakeTensor, what: str, exact: bool) -> None:
        """The layout of a fake has decided something. `exact`: also that of dimensions of size
        1."""
        if self._tracer.is_recording and fake.tracked is not None:
            self._tracer.layout_assumptions.note(fake.tracked.root, what, exact=exact)

    def note_layout_choice(self, source: FakeTensor, out: FakeTensor, what: str) -> None:
        tracer = self._tracer
        if tracer.is_recording and source.tracked is not None and out.tracked is not None:
            roots = (source.tracked.root, out.tracked.root)
            name = f"a write to the result of {what}"
            note = tracer.layout_assumptions.note(roots[0], name, roots[1], tracer.position)
            if source.fake_type.is_symbolic:
                tracer.maybe_views.add(source, out, tracer.moment, what, note.where)

    # ------------------------------------------------------------------- gradients, data and copies

    def has_gradient(self, fake: FakeTensor) -> bool:
        fake.check_thread()
        tracer, has_leaves = self._tracer, self._tracer.gradients.has_own_leaves()
        if self.is_over or not (tracer.gradients.differentiable or has_leaves):
            return False
        if fake.tracked is None or (tracer.tracked and not self._is_unseen(fake)):
            return False
        found = finds_gradient(tracer.value_of(fake), has_leaves)
        if found is None and is_asked_by_user():
            joins = [each.fake.tracked.root for each in find_joins(tracer.value_of(fake))]
            sites = tracer.sharing.merge_site_of
            raise refuse_merged(
                next((sites[each] for each in joins if each in sites), None),
                "requires_grad was asked for, of a tensor that a branch or a loop on data computes",
                why="it requires a gradient on one way, and none on another; a program has one "
                "answer",
                instead="keep in a variable which way was gone, is_new = True, and ask that; or "
                "do not ask",
            )
        return bool(found)

    def _is_unseen(self, fake: FakeTensor) -> bool:
        """Autograd sees what the program computes: is it what a branch or a loop computes?"""
        return is_asked_by_user() and bool(find_unseen(self._tracer.value_of(fake)))

    def note_assignment(self, fake: FakeTensor, name: str, value: Any) -> None:
        tracer = self._tracer
        if not tracer.is_recording or fake.tracked is None:
            return
        tracer.composites.check_single(fake)
        if name == "grad":
            is_new = value is not read_gradient(fake)
            tracer.gradients.given[fake] = user_location()
        elif is_new := (is_marked(fake) or self.has_gradient(fake)) is not value:
            tracer.gradients.note_requires_grad(fake, value)
        if is_new and tracer.scope is not None:
            tracer.scope.check_own_marks(fake)

    def note_new_data(
        self, fake: FakeTensor, other: FakeTensor, before: TensorType, tracked: Any
    ) -> None:
        """It has the memory of the other, and the gradient that it had."""
        tracer = self._tracer
        if tracer.is_recording:
            tracer.composites.check_single(fake)
            if tracer.scope is not None:
                tracer.scope.check_own(tracked)
        if tracer.tracked or not (tracer.is_recording and tracer.gradients.enabled):
            return
        old, new = tracer.read(tracked), tracer.value_of(other)
        history = old if wants_gradient(tracer, old) else None
        if history is None and not may_have_gradient(tracer, new):
            return
        value = tracer.take_view(new, DETACHED)
        if history is not None:
            check_data(before, other.fake_type)
            value = keep_gradient_of(tracer, history, value)
        track_view(fake, value, other.tracked, DETACHED._replace(history=history))

    def hook_gradient(self, fake: FakeTensor, hook: Callable[[Any], Any]) -> Any:
        return self.hook(fake, hook)

    def deep_copy(self, fake: FakeTensor) -> FakeTensor | None:
        """A copy is a step of the program."""
        if not self._tracer.entered or fake.tracked is None:
            return None
        copy: FakeTensor = fake.detach().clone()  # type: ignore[assignment]
        attributes = self._tracer.sharing.attributes
        attributes.note(read_attributes(copy), (), attributes.find_names(fake))
        return copy.requires_grad_(is_marked(fake))


_CONSTRAINTS = "torch.distributions.constraints"
