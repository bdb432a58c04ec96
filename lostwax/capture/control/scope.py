"""A function of the user's that is recorded into a region of its own.

It may read everything outside, and write to it: what it reads is found afterwards (`lifting.py`),
and what it writes is put back when the region ends, so that the operator can carry it out. What it
assumes of sizes holds inside alone. Must not know what the region is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree

from lostwax.capture.control.side_effects import ReplacedBuffer, SideEffects
from lostwax.capture.heap.recomputed import EndedRegion
from lostwax.capture.trace.tracer import Tracer
from lostwax.errors import CaptureError
from lostwax.fake.symbolic.node import unwrap
from lostwax.fake.tensor import FakeTensor, set_type
from lostwax.ir.graph.effects import has_effect
from lostwax.ir.trace.log import InnerGraph, Region, Step, Value
from lostwax.ir.trace.strided_copy import copy_like
from lostwax.ir.trace.views import Root, Tracked, memory_of
from lostwax.ops.registry import aten
from lostwax.sym import BoolExpr, Condition, Expr, Guard, Size, eq, known
from lostwax.sym.numbers.real import Real
from lostwax.types import Sizes, TensorType, contiguous_strides


class TrackedState(NamedTuple):
    """What was known of a tensor before a region changed it."""

    value: Value
    seen: int
    view: Any
    version: int


_NEVER = -1
"""The version at which a view was right that was not taken yet."""


class Scope:
    """A region while it is recorded."""

    def __init__(self, tracer: Tracer, what: str) -> None:
        self.tracer = tracer
        self.what = what
        """What it is to the user: "the true branch of torch.cond"."""
        self.region = Region()
        self.outer = tracer.region
        self.around = tracer.scope
        self.position: int = tracer.position
        """How many steps the program had before."""
        self.literals: set[Root] = set()
        """Tensor literals of the region: each run makes them again."""
        self.writes: dict[Root, Value] = {}
        """The tensors from outside to which it writes, with their last values."""
        self.guards: list[Guard] = []
        self._learned: Sequence[BoolExpr] = ()
        """What is known of sizes inside alone, when it ends."""
        self.steps: set[Step] = set()
        self.made: set[Root] = set()
        """The tensors among those that it returns which it has made."""
        self.numbers: set[Any] = set()
        """The numbers that it reads off tensors, which may be from outside."""
        self.symbols = 0
        """How many symbols there were before."""
        self._before: dict[Tracked, TrackedState] = {}

    def keep(self, tracked: Tracked) -> None:
        """The region is about to change what is known of a tensor."""
        if tracked not in self._before:
            version = tracked.version if isinstance(tracked, Root) else 0
            state = TrackedState(tracked.value, tracked.seen, tracked.view, version)
            self._before[tracked] = state

    def keep_views(self, tracked: Tracked) -> None:
        """The region has come by a tensor from before it, and taken it as a view: after the region,
        that is to be taken again."""
        for each in tracked.way()[1:]:
            if each not in self._before:
                self._before[each] = TrackedState(each.value, _NEVER, each.view, 0)

    @contextmanager
    def record(self, facts: Sequence[BoolExpr] = ()) -> Iterator[None]:
        """Inside, steps go into the region, and the facts are known."""
        tracer, env = self.tracer, self.tracer.shape_env
        self.symbols = len(env.symbols)
        tracer.region, tracer.scope = self.region, self
        self._forget_casts()
        try:
            with self._knowing(facts):
                yield
        finally:
            self._forget_casts()
            tracer.region, tracer.scope = self.outer, self.around
            self._close(env.symbols[self.symbols :])

    @contextmanager
    def _knowing(self, facts: Sequence[BoolExpr]) -> Iterator[None]:
        """Inside, these facts are known; what is found by them, and guards, are the region's."""
        tracer, env = self.tracer, self.tracer.shape_env
        answered, tracer.answered = tracer.answered, []
        asked, tracer.asked_by_cpp = tracer.asked_by_cpp, []
        try:
            if not (env.symbols or facts):  # nothing is known that could become known better
                before = len(env.guards)
                yield
                self.guards += env.guards[before:]
                del env.guards[before:]
            else:
                with env.trial() as guards:
                    known_before = len(env.facts.told)
                    for fact in facts:
                        env.absorb(fact)
                    yield
                    self._learned = env.facts.told[known_before:]
                self.guards += guards
        finally:
            for answers, question in tracer.answered:
                answers.pop(question, None)
            tracer.answered = answered
            for fake, type_before in reversed(tracer.asked_by_cpp):
                set_type(fake, type_before)
            if asked is not None:  # the facts of that region were known now
                asked += tracer.asked_by_cpp
            tracer.asked_by_cpp = asked

    def proves(self, condition: Condition) -> bool:
        """Does it hold wherever the region has run to its end?"""
        if known(condition) is not None:
            return known(condition) is True
        env = self.tracer.shape_env
        with env.trial():
            try:
                for fact in self._learned:
                    env.absorb(fact)
                return known(condition) is True
            except ZeroDivisionError:  # it is of a number that the other side alone has
                return False

    def check_own(self, tracked: Tracked) -> None:
        """Refuse a change of what a tensor from outside is: of its sizes, or its memory."""
        if not self._is_own(tracked.root, tracked.root.value, set(self.region.steps)):
            raise CaptureError.here(
                f"{self.what} gives other sizes, strides or data to a tensor from outside",
                why="whether it does is known only when the program runs",
                instead="use the operator that returns a view or a new tensor, and return that",
            )

    def check_own_history(self, tracked: Tracked) -> None:
        """Refuse a write to a detached tensor from outside, which gives it a gradient."""
        if not self._is_own(tracked, tracked.value, set(self.region.steps)):
            raise CaptureError.here(
                f"{self.what} writes to a detached tensor from outside",
                why="it would get a gradient of its own there, or not, which is known only when "
                "the program runs",
                instead="write to the tensor itself, or under torch.no_grad(); or return the "
                "new value",
            )

    def check_own_marks(self, fake: FakeTensor) -> None:
        """Refuse a mark `requires_grad` that is set on a tensor from outside, or a gradient."""
        if not self._is_own(fake.tracked, fake.tracked.value, set(self.region.steps)):
            raise CaptureError.here(
                f"{self.what} tells a tensor from outside to require gradients, or not to, or "
                "leaves a gradient on it",
                why="whether it does is known only when the program runs",
                instead="make a tensor there, y = x.detach().requires_grad_(); and use "
                "torch.autograd.grad(loss, y), which returns the gradients",
            )

    @contextmanager
    def resume(self) -> Iterator[None]:
        """Inside, steps go into the region once more, and what was known when it ended is known."""
        tracer = self.tracer
        before = tracer.region, tracer.scope
        tracer.region, tracer.scope = self.region, self
        try:
            with self._knowing(self._learned):
                yield
        finally:
            tracer.region, tracer.scope = before
            self._close(())

    def return_new(self, values: Sequence[Any], like: Sequence[Any] = ()) -> list[Any]:
        """What the region returns for these values: each tensor is new, and shares memory neither
        with another one nor with what is outside. `like`: the types in whose layouts they are to
        lie."""
        tracer = self.tracer
        taken: set[Value] = set()
        found: list[Any] = []
        with self.resume():
            for value, t in zip_longest(values, like):
                if not isinstance(value, Value) or value.type is None:
                    found.append(value)
                    continue
                owner = memory_of(value)
                if owner.step not in self.steps or owner in taken or value.type.offset != 0:
                    value = tracer.value_of(
                        tracer.evaluate(aten.clone.default, (tracer.temporary(value),), {})
                    )
                assert value.type is not None
                if t is not None:
                    t = _lay_out_like(value.type, t)
                if t is not None and not are_equal(value.type.stride, t.stride):
                    value = tracer.value_of(copy_like(tracer, tracer.temporary(value), t))
                taken.add(memory_of(value))
                found.append(value)
        return found

    def is_given(self, root: Root) -> bool:
        """Is it an input of this region, or of one around it?"""
        before = self._before.get(root)
        value = root.value if before is None else before.value
        is_own = any(value is each for each in self.region.inputs)
        return is_own or (self.around is not None and self.around.is_given(root))

    def find_root(self, tensor: torch.Tensor) -> Root:
        """Whose memory a tensor shows; it is in `made`, if the region has made it."""
        root: Root = self.tracer.adopt(tensor).tracked.root
        before = self._before.get(root)
        step = (root.value if before is None else before.value).step
        if (step is not None and step in self.region.steps) or root in self.literals:
            self.made.add(root)
        return root

    def collect_writes(self) -> None:
        """Note what the region has written, before it ends."""
        own = set(self.region.steps)
        for tracked, before in self._before.items():
            is_written = isinstance(tracked, Root) and tracked.version != before.version
            if is_written and not self._is_own(tracked, before.value, own):
                self.writes[tracked] = tracked.value  # type: ignore[index]

    def as_region(self) -> EndedRegion:
        return EndedRegion(self.what, self._has_written, self._share_constant)

    def _has_written(self, tensor: torch.Tensor) -> bool:
        return self.tracer.adopt(tensor).tracked.root in self.writes

    def _share_constant(self, tensor: torch.Tensor) -> bool:
        """Is a tensor made of numbers alone, and not written to? From here on nobody may do
        that."""
        fake = self.tracer.adopt(tensor)
        root = fake.tracked.root
        if root.version or fake.requires_grad or not is_constant(self.tracer.value_of(fake)):
            return False
        self.tracer.sharing.maybe_shared.setdefault(root, self.what)
        return True

    def _is_own(self, tracked: Tracked, value: Value, own: set[Step]) -> bool:
        """Was it made in the region?"""
        return value.step in own or tracked in self.literals or value in self.region.inputs

    def _close(self, symbols: Sequence[Any]) -> None:
        """The region is over: what it has changed outside is as it was."""
        tracer = self.tracer
        own = self.steps = set(self.region.steps)
        for tracked, before in self._before.items():
            tracked.value, tracked.seen, tracked.view = before[:3]
            if isinstance(tracked, Root):
                tracked.version = before.version
        for step in own:
            tracer.regions.ended[step] = self.what
        for value in self.region.inputs:
            tracer.regions.ended[value] = self.what
        for symbol in [*symbols, *self.numbers]:
            tracer.regions.ended[symbol] = self.what
        for source, origin in tracer.origins.items():
            if origin.value.step in own:
                tracer.regions.ended[source] = self.what

    def _forget_casts(self) -> None:
        """Autocast keeps the casts of parameters, which are steps of one region."""
        if self.tracer.casting:
            torch.clear_autocast_cache()


def _lay_out_like(own: TensorType, t: TensorType) -> TensorType:
    """A type with the layout of another, whose sizes may be numbers that are known only after the
    operator: then that is contiguous, and this one is so in its own sizes."""
    if are_equal(own.size, t.size):
        return t
    return t.replace(size=own.size, stride=contiguous_strides(own.size))


def are_equal(a: Sizes, b: Sizes) -> bool:
    """Are the sizes known to be equal, one by one?"""
    return a == b or all(known(eq(m, n)) is True for m, n in zip(a, b, strict=True))


def find_order(s: TensorType, t: TensorType) -> list[int] | None:
    """The dimensions from the innermost on, if both tensors lie densely in that order; the order of
    dimensions of size 1 does not matter."""
    order, left = list[int](), [*range(s.ndim)]
    expected: tuple[Size, Size] = (1, 1)
    while left:
        next_one = [d for d in reversed(left) if _is_next_in_memory(s, d, expected[0])]
        both = [d for d in next_one if _is_next_in_memory(t, d, expected[1])]
        if not both:
            return None
        order.append(both[0])
        left.remove(both[0])
        m, n = s.size[both[0]], t.size[both[0]]
        expected = expected[0] * (1 if m == 0 else m), expected[1] * (1 if n == 0 else n)
    return order


def _is_next_in_memory(t: TensorType, d: int, stride: Size) -> bool:
    return any(known(eq(a, b)) is True for a, b in ((t.stride[d], stride), (t.size[d], 1)))


def lay_out(sizes: Sequence[Size], order: Sequence[int]) -> tuple[Size, ...]:
    """The strides of a tensor that lies densely in this order."""
    outward = contiguous_strides([sizes[d] for d in reversed(order)])
    found = dict(zip(reversed(order), outward, strict=True))
    return tuple(found[d] for d in range(len(sizes)))


def is_constant(value: Value) -> bool:
    """Is it computed of numbers alone, and the same in each run?"""
    left, seen = list[Any]([value]), set[Value]()
    while left:
        part = left.pop()
        if isinstance(part, (list, tuple)):
            left += part
        elif isinstance(part, (Expr, BoolExpr, Real, InnerGraph)):
            return False
        elif isinstance(part, Value) and part not in seen:
            seen.add(part)
            step = part.step
            if not part.is_literal and (step is None or has_effect(step.target)):
                return False
            left += () if step is None else (*step.args, *step.kwargs.values())
    return True


class RecordedFunction(NamedTuple):
    """A function that was recorded."""

    scope: Scope
    leaves: list[Any]
    """What it returns, flat: values, numbers as expressions, others as they are."""
    structure: pytree.TreeSpec
    buffers: list[ReplacedBuffer]
    roots: list[Root | None]
    """Whose memory the leaves show, and then the buffers' new tensors; None: their own."""

    def note_ways(self, results: Sequence[Any]) -> None:
        """If the operator goes this way, its results are, in eager, what the function returns."""
        for root, result in zip(self.roots, results, strict=False):
            if root is not None and isinstance(result, FakeTensor):
                self.scope.tracer.sharing.ties.note(result.tracked.root, self.scope, root)

    def note_sharing(self, results: Sequence[Any]) -> None:
        """Results are new tensors; in eager those share memory that the function returns as it
        got them. So neither of them may be written to from now on."""
        for i, (root, result) in enumerate(zip(self.roots, results, strict=False)):
            others = [r for k, r in enumerate(self.roots) if r is not None and k != i]
            if root is None or not isinstance(result, FakeTensor):
                continue
            tracer = self.scope.tracer
            if tracer.maybe_views:
                tracer.maybe_views.note_passed_on(root, result.tracked.root, result.tracked.value)
            tracer.layout_assumptions.note_passed_on(root, result.tracked.root)
            shared = tracer.sharing.maybe_shared
            if root not in self.scope.made or root in others or root in shared:
                shared[result.tracked.root] = shared[root] = self.scope.what


def record_function(
    tracer: Tracer,
    what: str,
    function: Callable[..., Any],
    make_args: Callable[[Scope], Sequence[Any]],
    facts: Sequence[BoolExpr] = (),
    check: Callable[[Scope, list[Any]], None] = lambda *_: None,
    effects: SideEffects | None = None,
) -> RecordedFunction:
    """Run a function into a region of its own, with arguments that are made there, and let `check`
    look at what it returns while all that it knows of sizes is known. `effects` is for several that
    are recorded one after the other."""
    scope = Scope(tracer, what)
    effects = effects or SideEffects(tracer, [function])
    with scope.record(facts):
        try:
            args = make_args(scope)
            effects.take_arguments(args)
            leaves, structure = pytree.tree_flatten(function(*args))
        except Exception as error:
            tracer.regions.raised = what, error
            raise
        finally:
            replaced = effects.take_buffers()
        scope.collect_writes()
        effects.check(scope.as_region())
        values = [_log(tracer, leaf) for leaf in leaves]
        buffers = [each._replace(value=_log(tracer, each.tensor)) for each in replaced]
        returned = [*leaves, *[each.tensor for each in replaced]]
        roots = [scope.find_root(x) if isinstance(x, torch.Tensor) else None for x in returned]
        check(scope, values)
    return RecordedFunction(scope, values, structure, buffers, roots)


def _log(tracer: Tracer, leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return tracer.value_of(tracer.adopt(leaf))
    return unwrap(leaf)
