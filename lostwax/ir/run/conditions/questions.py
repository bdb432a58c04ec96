"""What the original's Python asked of its tensors beside sizes and dtypes, and of torch's modes
(`torch.is_grad_enabled()`). The answers are baked into a program, so a call is refused if an answer
would be another.

What was one tensor at capture must be one in each call. All else is checked only if it was asked,
also whether two tensors are one, `x is y`. Must not know how a capture finds it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lostwax.errors import InputValueError
from lostwax.fake import FakeTensor
from lostwax.ir.data import Assumption, Program, Ref
from lostwax.ir.run.conditions.answers import (
    GRADIENTS,
    OFFSET,
    ONE,
    STRIDES,
    VALUE,
    VISIBLE_STRIDES,
    answer,
    is_mode,
    mode_answer,
)
from lostwax.ir.run.leaves import Leaf
from lostwax.ir.signature import InputKind
from lostwax.ops.registry import has_trait
from lostwax.ops.traits import Trait

AssumptionCheck = Callable[[Sequence[Any], Sequence[Any]], None]
"""A check of the state and of the user's inputs of a call."""


def assumption_check(program: Program, leaves: Sequence[Leaf]) -> AssumptionCheck | None:
    """Make a check of a call; None if there is nothing to check. `leaves` say what the user's
    inputs must be."""
    specs = program.graph_signature.input_specs
    names = [s.target for s in specs if s.kind is not InputKind.USER_INPUT]
    state = {str(name): i for i, name in enumerate(names) if name is not None}
    assumed = _make_checks(program.assumptions or (), leaves, state)
    return _join_checks([*assumed, *_layout_checks(program)])


def _join_checks(parts: Sequence[AssumptionCheck]) -> AssumptionCheck | None:
    if not parts:
        return None

    def check(state: Sequence[Any], inputs: Sequence[Any]) -> None:
        for part in parts:
            part(state, inputs)

    return check


# ---------------------------------------------------------------------------------- which are one


@dataclass(frozen=True)
class _CallTensor:
    """A tensor of a call, and how errors name it."""

    is_state: bool
    index: int
    path: str

    def of(self, state: Sequence[Any], inputs: Sequence[Any]) -> Any:
        return (state if self.is_state else inputs)[self.index]

    @property
    def text(self) -> str:
        return f"the module's own {self.path}" if self.is_state else self.path


def _find_tensor(ref: Ref, leaves: Sequence[Leaf], state: Mapping[str, int]) -> _CallTensor | None:
    """Find a tensor of a call; None if it is state that the program no longer has."""
    if isinstance(ref, int):
        return _CallTensor(False, ref, leaves[ref].path)
    return _CallTensor(True, state[ref], ref) if ref in state else None


def _must_be_one(first: _CallTensor, other: _CallTensor) -> AssumptionCheck:
    def check(state: Sequence[Any], inputs: Sequence[Any]) -> None:
        if first.of(state, inputs) is not other.of(state, inputs):
            fix = "one tensor for both"
            if first.is_state:
                fix = f"that one, module.{first.path}"
            raise InputValueError(
                f"{first.text} and {other.text} were one tensor at capture, and are two here\n"
                f"  why: the original may ask whether they are one, `a is b`, and would go another "
                f"way\n"
                f"  fix: pass {fix}; or capture it again, with a tensor of its own for "
                f"{other.path}",
                other.path,
            )

    return check


def _must_be_apart(question: Assumption, first: _CallTensor, other: _CallTensor) -> AssumptionCheck:
    def check(state: Sequence[Any], inputs: Sequence[Any]) -> None:
        both = first.of(state, inputs), other.of(state, inputs)
        _ask_again(question, both)
        if both[0] is both[1]:
            path = other.path
            raise InputValueError(
                f"{first.text} and {other.text} are one tensor here, and were two at capture, "
                f"where the original asks it, `a is b`\n  at {question.where}\n"
                f"  fix: pass {path}.clone(), or {path}.view_as({path}) if they are to share "
                "memory; or capture it again, with one tensor for both",
                path,
            )

    return check


# ----------------------------------------------------------------------------------- what was asked


def _must_be_the_mode(question: Assumption) -> AssumptionCheck:
    what, wanted = question.what, question.answer

    def check(state: Sequence[Any], inputs: Sequence[Any]) -> None:
        found = mode_answer(what)
        fake = next((each for each in (*state, *inputs) if type(each) is FakeTensor), None)
        if fake is not None:
            fake.fake_mode.observer.note_question_at(question.where, what, found=found)
        if found != wanted:
            raise InputValueError(
                f"{what} is {found} here, and was {wanted} at capture, where the original asks it\n"
                f"  at {question.where}\n"
                "  fix: call the program in the modes that it was captured in; or capture it again "
                "in those of the call",
                "",
            )

    return check


def _make_checks(
    assumptions: Sequence[Assumption], leaves: Sequence[Leaf], state: Mapping[str, int]
) -> Iterator[AssumptionCheck]:
    for question in assumptions:
        if is_mode(question.what):
            yield _must_be_the_mode(question)
            continue
        if question.what == VALUE:
            from lostwax.ir.run.conditions.values import must_have_value  # few programs have one

            (index,) = question.of
            assert isinstance(index, int)
            yield must_have_value(leaves[index].path, index, str(question.answer))
            continue
        of = [_find_tensor(ref, leaves, state) for ref in question.of]
        there = [each for each in of if each is not None]
        if question.what == ONE and question.answer:
            for other in there[1:]:
                yield _must_be_one(there[0], other)
        elif question.what == ONE:
            if len(there) == 2:
                yield _must_be_apart(question, *there)
        elif question.computed:
            if len(there) == len(of):  # what a pass took away cannot change
                yield _must_need_gradient(question, there)
        elif there:
            yield _must_answer(question, there[0])


def _must_answer(question: Assumption, named: _CallTensor) -> AssumptionCheck:
    what, wanted, index, is_state = question.what, question.answer, named.index, named.is_state

    def check(state: Sequence[Any], inputs: Sequence[Any]) -> None:
        tensor = (state if is_state else inputs)[index]
        found = answer(what, tensor)
        _ask_again(question, (tensor,))
        if found != wanted:
            raise InputValueError(
                f"{named.text}: {what} is {found} here, and was {wanted} at capture, where the "
                f"original asks it\n  at {question.where}\n"
                f"  fix: {_fix(question, named)}capture it again with such a tensor",
                named.path,
            )

    return check


def _ask_again(question: Assumption, tensors: Sequence[Any]) -> None:
    """If the program is being captured, tell that capture of the question: the answer is baked into
    the new program, too."""
    fakes = [tensor for tensor in tensors if type(tensor) is FakeTensor]
    if fakes:
        tell = fakes[0].fake_mode.observer.note_question_at
        tell(question.where, question.what, fakes, is_joint=question.computed)


def _layout_checks(program: Program) -> Iterator[AssumptionCheck]:
    """Yield checks that tell a capture of the program which layouts it relies on: those that its
    graph asserts (on fakes C++ answers that, which the capture cannot see), and those of its views,
    if copies must not replace them."""
    nodes = program.graph.nodes
    placeholders = [node for node in nodes if node.op == "placeholder"]
    for i, node in enumerate(placeholders):
        asked = [user for user in node.users if has_trait(user.target, Trait.READS_LAYOUT)]
        if asked:
            dims = [user.args[1] for user in asked if len(user.args) > 1]
            yield _ask_layout_again(i, dims, len(dims) < len(asked))
    if not program.reads_views and any(
        has_trait(node.target, Trait.NEEDS_STRIDES) for node in nodes
    ):
        yield _ask_layouts_again


def _ask_layout_again(index: int, dims: Sequence[Any], offset: bool) -> AssumptionCheck:
    def check(state: Sequence[Any], inputs: Sequence[Any]) -> None:
        count = len(state)
        tensor = state[index] if index < count else inputs[index - count]
        if type(tensor) is FakeTensor:
            exact = any(tensor.fake_type.size[d] == 1 for d in dims)
            asked = [STRIDES if exact else VISIBLE_STRIDES, *([OFFSET] if offset else ())]
            for what in asked:
                tensor.fake_mode.observer.note_question_at("", what, [tensor])

    return check


def _ask_layouts_again(state: Sequence[Any], inputs: Sequence[Any]) -> None:
    for tensor in inputs:
        if type(tensor) is FakeTensor:
            tensor.fake_mode.observer.note_question_at("", VISIBLE_STRIDES, [tensor])


def _fix(question: Assumption, named: _CallTensor) -> str:
    if question.what == "requires_grad" and question.answer is False and not named.is_state:
        return f"pass {named.path}.detach(), or "
    if question.what == "requires_grad" and named.is_state:
        return f"module.{named.path}.requires_grad_({question.answer}), or "
    return ""


def _must_need_gradient(question: Assumption, of: Sequence[_CallTensor]) -> AssumptionCheck:
    def check(state: Sequence[Any], inputs: Sequence[Any]) -> None:
        tensors = [each.of(state, inputs) for each in of]
        found = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        _ask_again(question, tensors)
        if found is not question.answer:
            does, did = ("requires", "none") if found else ("requires no", "one")
            names = ", ".join(each.text for each in of[:3]) + ", ..." * (len(of) > 3)
            if question.what == GRADIENTS:
                raise InputValueError(
                    f"what is computed from {names} {does} gradient here, and required {did} at "
                    "capture; here the original goes a way of its own with gradients: a write that "
                    "autograd does not see, a backward or a kernel for them\n"
                    f"  at {question.where}\n"
                    "  fix: export with an example that requires gradients; or pass "
                    f"{of[0].path}.detach()",
                    of[0].path,
                )
            raise InputValueError(
                f"what is computed from {names} {does} gradient here, and required {did} at "
                f"capture, where the original asks it\n  at {question.where}\n"
                "  fix: call it with gradients switched on or off (torch.no_grad()), and with "
                "tensors that require them, as at capture; or capture it again so",
                of[0].path if of else "",
            )

    return check
