"""Recorder: a FakeTensorMode that records what it evaluates, as a program without memory.

What runs may view and write; what is recorded only computes. A write computes a new value of the
written tensor and scatters it back, view by view, into a new value of the root; the root's other
views are taken again when they are next read. Capture and decomposition say which operators are
recorded, and how. Must not decide types: rules do; must not build nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from lostwax.classes import PLAIN, SYMBOLIC
from lostwax.fake import rule_cache, shared_rule_cache
from lostwax.fake.mode import FakeTensorMode
from lostwax.fake.symbolic.node import unwrap
from lostwax.fake.tensor import FakeTensor, new_fake, set_type
from lostwax.fake.write import mark_written
from lostwax.ir.trace.log import Region, Step, Value, new_number, new_value, share_list
from lostwax.ir.trace.strided_copy import copy_like
from lostwax.ir.trace.views import Tracked, View, make_root, track
from lostwax.ops.registry import aten, operator
from lostwax.ops.shapes import are_same_sizes
from lostwax.sym import Expr, ShapeEnv


class Recorder(FakeTensorMode):
    """Records operators into a region."""

    portable = True

    def __init__(self, env: ShapeEnv) -> None:
        super().__init__(allow_non_fake_inputs=True, shape_env=env)
        self.shape_env: ShapeEnv = env
        self.region = Region()
        self.is_recording = True
        self._numbers: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}

    compute = FakeTensorMode.evaluate
    """What the call returns, without recording anything."""

    @contextmanager
    def pause_recording(self) -> Iterator[None]:
        before, self.is_recording = self.is_recording, False
        try:
            yield
        finally:
            self.is_recording = before

    def refuse(self, what: str, instead: str) -> NoReturn:
        """Raise: this cannot be recorded."""
        raise NotImplementedError(what)

    def can_compute(self, number: Expr) -> bool:
        """Does the program know what this number is made of?"""
        return True

    # -------------------------------------------------------------------------------- steps

    def add_step(self, target: Any, args: Any, kwargs: dict[str, Any]) -> Step:
        """Append a step; the caller sets its result."""
        operands = []
        for a in args:  # `operand`, with what is most common inlined
            if type(a) is FakeTensor:
                tracked = a.tracked
                is_new = tracked is not None and tracked.seen == tracked.root.version
                operands.append(tracked.value if is_new else self.value_of(a))
            else:
                operands.append(a if type(a) in PLAIN else self.operand(a))
        named = {k: self.operand(v) for k, v in kwargs.items()} if kwargs else {}
        return self.append_step(target, operands, named)

    def append_step(self, target: Any, operands: list[Any], kwargs: dict[str, Any]) -> Step:
        """Append a step whose arguments are operands already."""
        step = Step()
        step.target = target
        step.args = tuple(operands)
        step.kwargs = kwargs
        step.place = step.tensors = step.result = None
        step.grad = False
        self.region.steps.append(step)
        return step

    def operand(self, value: Any) -> Any:
        """An argument as the log keeps it: tensors as values, symbolic numbers as expressions."""
        cls = type(value)  # torch's classes are slow to be asked by isinstance
        if cls in PLAIN or cls is Expr or cls is torch.device:
            return value
        if cls is FakeTensor or isinstance(value, FakeTensor):
            return self.value_of(value)
        if isinstance(value, (list, tuple)):
            numbers = rule_cache.sizes(value)
            if numbers is None:
                return [self.operand(v) for v in value]
            return self.numbers(numbers)[0]
        if cls in SYMBOLIC:
            return unwrap(value)
        if isinstance(value, torch.Tensor):
            return self.value_of(self.adopt(value))
        return value

    def numbers(self, numbers: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """The one object that stands for these integers in the log, and what stands for them in a
        key."""
        found = self._numbers.get(numbers)
        if found is None:
            plain = share_list(numbers)
            found = self._numbers[numbers] = (
                (numbers, shared_rule_cache.shared_keys(numbers))
                if plain is None
                else (plain, numbers)
            )
        return found

    def set_results(self, step: Step, out: Any) -> Any:
        """Give a step its outputs; each tensor among them becomes a new root."""
        step.result = self._output(step, out, None)
        return out

    def _output(self, step: Step, out: Any, index: Any) -> Any:
        if type(out) is FakeTensor:
            return make_root(out, step, index).value
        if isinstance(out, (list, tuple)):
            places = [i if index is None else (index, i) for i in range(len(out))]
            return type(out)([self._output(step, *at) for at in zip(out, places, strict=True)])
        return self.note_number(step, out, index) if isinstance(out, SYMBOLIC) else out

    def note_number(self, step: Step, out: Any, index: Any) -> Value:
        """The value of a number that a step gives."""
        return new_number(step, index, out)

    # -------------------------------------------------------------------------------- views

    def value_of(self, fake: FakeTensor) -> Value:
        """The present value of a tensor."""
        tracked: Tracked | None = fake.tracked
        if tracked is None:
            self.refuse(
                f"{fake!r} was made before the capture and is neither an input nor state",
                "pass it as an input, or register it as a buffer; so a gradient (x.grad), which is "
                "no part of a program, of an input or of state",
            )
        return tracked.value if tracked.seen == tracked.root.version else self.read(tracked)

    def read(self, tracked: Tracked) -> Value:
        """The present value of a tensor; a view whose root was written since is taken again."""
        version = tracked.root.version
        if tracked.seen != version:
            for each in tracked.way():
                if each.seen != version:
                    self.renew_view(each)
        return tracked.value

    def renew_view(self, tracked: Tracked) -> None:
        """Take a view again, of the present value of its base."""
        assert tracked.base is not None, "a root is always new"
        assert tracked.view is not None
        tracked.value = self.take_view(tracked.base.value, tracked.view)
        tracked.seen = tracked.root.version

    def take_view(self, base: Value, view: View) -> Value:
        """The same view of another value of the base."""
        args = (self.temporary(base), *view.args)
        with self.pause_recording():
            out = self.compute(view.func, args, view.kwargs)
        step = self.add_step(view.func, args, view.kwargs)
        step.grad = view.grad  # as when it was made: here it is only read
        if view.position is None:
            step.result = value = new_value(step, None, out.fake_type, out)
            return value
        step.result = values = [new_value(step, i, o.fake_type, o) for i, o in enumerate(out)]
        return values[view.position]

    def temporary(self, value: Value) -> FakeTensor:
        """A fake that stands for a value, aliasing nothing."""
        assert value.type is not None
        fake = new_fake(self, value.type)
        track(fake, value)
        return fake

    # ------------------------------------------------------------------------------- writes

    def write(self, target: FakeTensor, new: FakeTensor) -> None:
        """`target` takes the value of `new`."""
        dtype = target.fake_type.dtype
        if new.fake_type.dtype is not dtype:
            new = self.evaluate(aten._to_copy.default, (new,), {"dtype": dtype})
        self.assign(target.tracked, self.value_of(new))
        mark_written([target])

    def assign(self, tracked: Tracked, new: Value) -> None:
        """The tensor has a new value: so have its root and, when next read, the root's views."""
        if tracked.base is not None:
            self.read(tracked.base)
        while tracked.base is not None and tracked.view is not None:
            new = self.scatter(tracked.base, new, tracked.view)
            tracked = tracked.base
        tracked.root.write(self.lay_out(tracked.value, new))

    def scatter(self, base: Tracked, new: Value, view: View) -> Value:
        """The base with a new value of this view of it."""
        inverse = operator(view.func).view_inverse
        if inverse is None:
            self.refuse(
                f"a write through {view.func} cannot be captured: nothing says how it reaches the "
                "viewed tensor",
                "write to a copy (x.clone())",
            )
        position = () if view.position is None else (view.position,)
        fakes = (self.temporary(base.value), self.temporary(new))
        args = (*fakes, *position, *map(self.wrap, view.args))
        return self.value_of(self.reenter(inverse, args, view.kwargs))

    def lay_out(self, like: Value, value: Value) -> Value:
        """The value in the layout of the one it replaces: later views count on its strides."""
        if like.type is None or value.type is None:
            return value
        if are_same_sizes(like.type.stride, value.type.stride):
            return value
        return self.value_of(copy_like(self, self.temporary(value), like.type))

    def become(self, target: FakeTensor, new: FakeTensor) -> None:
        """From now on `target` is `new`, in the dtype that it has."""
        if new.fake_type.dtype is not target.fake_type.dtype:
            new = self.evaluate(aten._to_copy.default, (new,), {"dtype": target.fake_type.dtype})
        set_type(target, new.fake_type, new.fake_storage)
        target.take_constant(new)
        target.tracked = new.tracked
