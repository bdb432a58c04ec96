"""Loops: `while_loop`, `map`, `scan`. Their bodies are recorded once, for any iteration.

What an iteration hands to the next one is an input of the body, of a type that every iteration
keeps; an integer is a number of which nothing is known. If the body writes to tensors from outside,
they are handed on, too: then it is recorded again, with these as its inputs. Must not know how many
iterations there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from lostwax.capture.control.lifting import Lifting, line_of
from lostwax.capture.control.loose_sizes import LoopCarriedSizes
from lostwax.capture.control.scope import (
    RecordedFunction,
    Scope,
    are_equal,
    find_order,
    record_function,
)
from lostwax.capture.control.side_effects import ReplacedBuffer
from lostwax.capture.trace.tracer import Tracer
from lostwax.errors import CaptureError
from lostwax.fake.symbolic.node import unwrap, wrap
from lostwax.fake.tensor import FakeTensor, new_fake
from lostwax.ir.graph.numbers import SymbolOrigin
from lostwax.ir.trace.log import Value, new_value
from lostwax.ir.trace.views import IN_LOOP, Root, make_root
from lostwax.location import user_location
from lostwax.ops.registry import aten
from lostwax.sym import BoolExpr, Expr, eq
from lostwax.types import TensorType, contiguous_strides

_Base: Any = torch._C.TensorBase
_require_gradient = _Base.requires_grad.__set__


class Slot(NamedTuple):
    """Something that the body is given."""

    given: Any
    """What the first iteration gets: a value, or a number."""
    inside: Value
    """What it is in the body."""
    object: Any
    """The fake or number that stands for it there."""
    start: Root | None = None
    """Whose memory the first iteration gets, or of whose memory it gets a row."""
    root: Root | None = None
    """The tensor from outside that it is, if the body writes to one."""
    buffer: ReplacedBuffer | None = None
    """The buffer that it is, if the body replaces one."""

    @property
    def type(self) -> TensorType | None:
        return self.inside.type


class Carried(NamedTuple):
    """Something that iterations hand on."""

    name: str
    slot: Slot
    is_truth: bool = False
    """It is True or False, and handed on as 1 or 0."""
    held: tuple[type, ...] = ()
    """It is a number, of one of these classes, that is handed on as a tensor."""
    replaces: bool = False
    """It is a tensor, and stands for a number before the first turn."""

    def show(self, found: Any) -> Any:
        """What the body has, or what is there after the loop, in its place."""
        if self.is_truth:
            return wrap(eq(unwrap(found), 1))
        return found.item() if self.held else found


class Loop:
    """One call of such an operator."""

    def __init__(self, tracer: Tracer, what: str, is_pythons: bool = False) -> None:
        """`is_pythons`: it is no operator of torch's, which would refuse to begin with what lies
        otherwise in memory than what its body returns; then it begins with a copy."""
        self.tracer = tracer
        self.what = what
        self.where = user_location()
        self.carried: list[Slot] = []
        """What an iteration hands to the next one."""
        self.slices: list[Slot] = []
        """What each iteration gets of the tensors that the loop goes over."""
        self.rest: list[Slot] = []
        """The tensors and buffers that are handed on because the body writes to them."""
        self._sizes = LoopCarriedSizes(tracer.shape_env, what)
        self._names: Sequence[str] = ()
        self._moved: dict[Value, bool] = {}
        """What lies elsewhere in memory than the tensor that the loop begins with in eager, and
        whether it has other strides."""
        self._given: dict[Value, FakeTensor] = {}
        """The tensors that the loop begins with."""
        self._is_pythons = is_pythons
        self._turned: list[int] = []
        """Where the body hands on contiguous tensors, and is handed others."""

    # -------------------------------------------------------------------------------------- inputs

    def pass_to_next_iteration(
        self, leaf: Any, limits: tuple[int | None, int | None] = (None, None)
    ) -> Slot:
        """The body gets this at first, and then what it returns for it. `limits` are those of a
        number."""
        if isinstance(leaf, torch.Tensor):
            fake = self._lay_out(self.tracer.adopt(leaf))
            start = self.tracer.adopt(leaf).tracked.root
            slot = self._new_tensor(self.tracer.value_of(fake), fake.fake_type, start=start)
            self._given[slot.given] = fake
        elif type(leaf) in (int, torch.SymInt):  # a class of its own would be lost
            slot = self._new_number(unwrap(leaf), *limits)
        else:
            raise CaptureError.here(
                f"{self.what} is to hand on {leaf!r}, of class {type(leaf).__name__}",
                why="from one iteration to the next go tensors and integers",
                instead="make it a tensor, torch.tensor(value); or, if no iteration changes it, "
                "let the functions close over it",
            )
        self.carried.append(slot)
        return slot

    def check_starts(self, leaves: Sequence[Any], names: Sequence[str]) -> None:
        """Refuse what no body can return as it lies in memory: a part of a larger tensor."""
        for leaf, name in zip(leaves, names, strict=True):
            if isinstance(leaf, torch.Tensor) and not self.tracer.adopt(leaf).fake_type.is_dense:
                raise CaptureError.here(
                    f"{name}, which {self.what} hands on, is a part of a larger tensor, or repeats "
                    f"elements: its strides are {tuple(leaf.stride())}",
                    why="what the body returns lies otherwise in memory: how the result lies would "
                    "depend on the number of iterations",
                    instead="begin with x.contiguous()",
                )

    def take_rows(self, leaf: torch.Tensor) -> Slot:
        """The body gets one row of this after the other."""
        fake = self.tracer.adopt(leaf)
        t = fake.fake_type
        row = TensorType(t.size[1:], t.dtype, t.device, t.stride[1:])
        slot = self._new_tensor(self.tracer.value_of(fake), row, start=fake.tracked.root)
        self.slices.append(slot)
        return slot

    def _lay_out(self, fake: FakeTensor, is_contiguous: bool = False) -> FakeTensor:
        """A tensor that lies in memory as those will that the body returns."""
        t = fake.fake_type
        if t.is_dense and t.offset == 0 and not is_contiguous:
            return fake
        is_kept = t.is_dense and not is_contiguous
        options = {"memory_format": torch.preserve_format if is_kept else torch.contiguous_format}
        with self.tracer.assume_grad(True):  # it is only moved
            moved: FakeTensor = self.tracer.evaluate(aten.clone.default, (fake,), options)
        self._moved[self.tracer.value_of(moved)] = not is_kept
        return moved

    def _new_tensor(self, given: Value, t: TensorType, **of: Any) -> Slot:
        t = t.replace(offset=0) if t.offset != 0 else t
        fake = new_fake(self.tracer, t)
        can_have_gradient = t.dtype.is_floating_point or t.dtype.is_complex
        if self.tracer.gradients.differentiable and can_have_gradient:
            _require_gradient(fake, True)
        root = make_root(fake, None, None, IN_LOOP, "value")
        self._note_moved(given, root.value)
        return Slot(given, root.value, fake, **of)

    def _note_moved(self, given: Any, value: Value) -> None:
        """In eager this lies as what the loop begins with, or follows that."""
        if given in self._moved:
            layouts = self.tracer.layout_assumptions
            layouts.note_decided_by_data(value, self.what, self._moved[given])

    def _new_number(self, given: Any, lo: int | None, hi: int | None) -> Slot:
        origin = f"a number that {self.what} hands on"
        symbol = self.tracer.shape_env.unbacked(lo=lo, hi=hi, origin=origin)
        number = wrap(symbol)
        inside = new_value(None, None, None, number)
        (atom,) = symbol.symbols()
        self.tracer.origins[atom] = SymbolOrigin(inside, None)
        return Slot(given, inside, number)

    @property
    def inputs(self) -> list[Slot]:
        """What the body is given, in the order of its inputs."""
        return [*self.carried, *self.rest, *self.slices]

    # ---------------------------------------------------------------------------------- recording

    def record(
        self,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        facts: Sequence[BoolExpr] = (),
        check: Callable[[Scope, list[Any]], None] = lambda *_: None,
    ) -> RecordedFunction:
        """Record a function of the loop."""
        what = f"{name} of {self.what}"

        def prepare(scope: Scope) -> Sequence[Any]:
            self.enter(scope)
            return args

        def finish(scope: Scope, leaves: list[Any]) -> None:
            self.check_unwritten(what)
            check(scope, leaves)

        return record_function(self.tracer, what, function, prepare, facts, finish)

    def enter(self, scope: Scope) -> None:
        """The region of a function begins: it is given what is handed on."""
        for slot in self.inputs:
            scope.region.inputs.append(slot.inside)
            self.tracer.regions.ended.pop(slot.inside, None)  # it was an input of another one, too
        for slot in self.rest:
            if slot.root is not None:
                scope.keep(slot.root)
                slot.root.write(slot.inside)
            elif slot.buffer is not None:
                slot.buffer.buffers[slot.buffer.name] = slot.object

    def record_body(
        self,
        function: Callable[..., Any],
        more: Sequence[Any] = (),
        check: Callable[[Scope, list[Any]], None] = lambda *_: None,
    ) -> RecordedFunction:
        """Record the body, which is given what is handed on, rows, and then `more`; and again until
        all that it writes to is handed on, and of each size."""
        while True:
            args = [slot.object for slot in (*self.carried, *self.slices)]
            body = self.record("the body", function, (*args, *more), (), check)
            if not self.is_changed_by(body):
                return body

    def is_changed_by(self, body: RecordedFunction) -> bool:
        """Does the body show that it has to be given something else?"""
        new = self.find_new(body)
        self.rest += new
        return self.open_sizes() or bool(new)

    def find_new(self, body: RecordedFunction) -> list[Slot]:
        """What the body writes to, or replaces, and is not handed on yet."""
        tracer, found = self.tracer, list[Slot]()
        for root in body.scope.writes:
            if all(slot.root is not root for slot in self.rest):
                self._check_not_given(root, body.scope.writes[root])
                value = root.value
                assert value.type is not None
                found.append(self._new_tensor(value, value.type, root=root))
        for each in body.buffers:
            if not any(slot.buffer and slot.buffer.is_same_place(each) for slot in self.rest):
                fake = tracer.adopt(each.buffers[each.name])
                value = tracer.value_of(self._lay_out(fake))
                assert value.type is not None
                found.append(self._new_tensor(value, value.type, buffer=each))
        return found

    def check_unwritten(self, what: str) -> None:
        """Refuse writes to what an iteration is given."""
        for slots, which in ((self.carried, "a value that it is handed"), (self.slices, "a row")):
            for slot in slots:
                if isinstance(slot.object, FakeTensor) and slot.object.tracked.root.version:
                    raise CaptureError(
                        f"{what} writes to {which}.\n"
                        f"  at {line_of(slot.object.tracked.root.value.step) or self.where}\n"
                        "  why: in the first iteration that would change the tensor outside of the "
                        "loop\n  instead: write to a copy (x.clone()), or compute a new tensor"
                    )

    def check_apart(self, body: RecordedFunction) -> None:
        """Refuse what is handed on twice: as a value, and because the body writes to it."""
        for slot in self.rest:
            if slot.root is not None:
                self._check_not_given(slot.root, body.scope.writes[slot.root])

    def _check_not_given(self, root: Root, written: Value) -> None:
        """Refuse a write to a tensor from outside which an iteration is given, too: it would be two
        values in the body, and is one tensor in eager."""
        if any(slot.start is root for slot in (*self.carried, *self.slices)):
            raise CaptureError(
                f"the body of {self.what} writes to a tensor that {self.what} is given, too.\n"
                f"  at {line_of(written.step) or self.where}\n"
                "  why: it would change what an iteration is handed, or the rows to come\n"
                f"  instead: give {self.what} a copy (x.clone()), or compute a new tensor"
            )

    def check_pure(self, f: RecordedFunction, name: str, why: str, instead: str) -> None:
        """Refuse a function that writes to something from outside."""
        kept = [slot.inside for slot in self.rest]
        values = [*f.scope.writes.values(), *[each.value for each in f.buffers]]
        for value in values:
            if not any(value is each for each in kept):
                raise CaptureError(
                    f"{name} of {self.what} writes to a tensor from outside.\n"
                    f"  at {line_of(value.step) or self.where}\n  why: {why}\n"
                    f"  instead: {instead}"
                )

    # ------------------------------------------------------------------------------------- results

    def check_carried(self, leaves: Sequence[Any], names: Sequence[str]) -> None:
        """Refuse a body that returns something else than it is handed; called while it records.
        Sizes may be others: see `open_sizes`."""
        self._names = names
        self._sizes.compare([(s.type, leaf) for s, leaf in zip(self.carried, leaves, strict=True)])
        self._turned = []
        for i, (slot, leaf) in enumerate(zip(self.carried, leaves, strict=True)):
            self._check_kept(i, slot, leaf, names[i])

    def _check_kept(self, i: int, slot: Slot, leaf: Any, name: str) -> None:
        t = slot.type
        if t is None:
            if type(leaf) not in (int, Expr):
                raise self._change(name, "an integer", leaf)
            return
        if not isinstance(leaf, Value) or leaf.type is None:
            raise self._change(name, describe_type(t), leaf)
        new = leaf.type
        if (t.dtype, t.device, t.ndim) != (new.dtype, new.device, new.ndim):
            raise self._change(name, describe_type(t), leaf)
        is_resized = not are_equal(t.size, new.size)
        if (is_resized and not (t.is_contiguous and new.is_contiguous)) or (
            not are_equal(t.stride, new.stride) and find_order(t, new) is None
        ):
            if is_resized or not (new.is_contiguous and self._is_pythons):
                raise self._layouts_differ(name, t, leaf)
            self._turned.append(i)

    def open_sizes(self) -> bool:
        """Does the body return other sizes than it is handed? Then these are numbers that each turn
        reads off what it is handed, and the body has to be recorded again. So it has where what it
        returns is contiguous, and what it is handed is not: then it begins with a copy."""
        for i in self._turned:
            slot = self.carried[i]
            moved = self._lay_out(self._given[slot.given], is_contiguous=True)
            value = self.tracer.value_of(moved)
            self.carried[i] = self._new_tensor(value, moved.fake_type, start=slot.start)
        found = self._sizes.take_changed([slot.type for slot in self.carried])
        for i, t in found.items():
            slot = self.carried[i]
            self.carried[i] = self._new_tensor(slot.given, t, start=slot.start)
        return bool(found or self._turned)

    def find_result_types(self) -> list[TensorType | None]:
        """The types of what is handed on, after the loop; None for numbers."""
        types = [slot.type for slot in (*self.carried, *self.rest)]
        return self._sizes.make_result_types(types)

    def check_first_iteration(self, body: RecordedFunction) -> None:
        """Refuse a body that the first turn could not run: `h = h + x` needs one size of h."""
        refuted = self._sizes.find_refuted(body)
        for slot, leaf, name in zip(self.carried, body.leaves, self._names, strict=False):
            if slot.type is not None and refuted.intersection(slot.type.size):
                raise self._change(name, describe_type(slot.given.type), leaf)

    def _change(self, name: str, was: str, leaf: Any) -> CaptureError:
        is_tensor = isinstance(leaf, Value) and leaf.type is not None
        now = describe_type(leaf.type) if is_tensor else repr(leaf)
        where = line_of(leaf.step) if isinstance(leaf, Value) else None
        return CaptureError(
            f"{name}, which {self.what} hands on, changes: the body gets {was}, and returns {now}"
            f"{'' if where is None else f', from {where}'}.\n  at {self.where}\n"
            "  why: the body is one graph, for every iteration\n"
            "  instead: return the type and size that it was given, y.to(x.dtype), "
            "y.expand_as(x); or begin with that type"
        )

    def _layouts_differ(self, name: str, t: TensorType, leaf: Value) -> CaptureError:
        assert leaf.type is not None
        was, now = (f"[{', '.join(map(str, each.stride))}]" for each in (t, leaf.type))
        return CaptureError(
            f"{name}, which {self.what} hands on, lies otherwise in memory: the body gets strides "
            f"{was}, and returns {now}, from {line_of(leaf.step)}.\n  at {self.where}\n"
            "  why: how the result lies would depend on the number of iterations\n"
            "  instead: begin with x.contiguous(), and return y.contiguous()"
        )

    def find_values_after(self, body: RecordedFunction) -> list[Value]:
        """What the body leaves in what is handed on because it writes to it."""
        found: list[Value] = []
        for slot in self.rest:
            if slot.root is not None:
                found.append(body.scope.writes[slot.root])
            else:
                assert slot.buffer is not None
                (own,) = filter(slot.buffer.is_same_place, body.buffers)
                found.append(own.value)
        return found

    def lift(
        self, also: Sequence[Any], *functions: tuple[RecordedFunction, Sequence[Any]]
    ) -> Lifting:
        """What these functions read, with what they return; `also` are other arguments that the
        user gives them."""
        slots, tracer = self.inputs, self.tracer
        given = [tracer.value_of(tracer.adopt(x)) for x in also if isinstance(x, torch.Tensor)]
        operands = [*[slot.given for slot in slots], *given]
        lifting = Lifting(tracer, operands, [slot.inside for slot in slots])
        for f, returned in functions:
            lifting.read(f.scope, returned)
        lifting.check_gradients(self.what)
        return lifting

    def find_additional(self, lifting: Lifting) -> list[Any]:
        return lifting.operands[len(self.inputs) :]

    def return_carried(self, results: Sequence[Any]) -> None:
        """After the loop: what it has written to has the values of the last iteration."""
        for symbol in self._sizes.symbols:
            self.tracer.regions.ended[symbol] = f"the body of {self.what}"
        for slot in self.carried:
            if slot.type is None:
                (symbol,) = unwrap(slot.object).symbols()
                self.tracer.regions.ended[symbol] = f"the body of {self.what}"
        for slot, new in zip(self.rest, results, strict=True):
            if slot.root is not None:
                self.tracer.replace_value(slot.root, self.tracer.value_of(new))
            elif slot.buffer is not None:
                slot.buffer.buffers[slot.buffer.name] = new

    def note_starts(self, results: Sequence[Any]) -> None:
        """If the body never runs, the results are, in eager, the tensors that the loop began
        with."""
        shared = self.tracer.sharing.maybe_shared
        for slot, result in zip(self.carried, results, strict=True):
            if slot.start is not None:
                what = f"{self.what}, if it does not run once,"
                shared[slot.start] = shared[result.tracked.root] = what

    def note_sharing(
        self,
        body: RecordedFunction,
        results: Sequence[Any],
        kept: Sequence[tuple[Root, Any]] = (),
    ) -> None:
        """As `RecordedFunction.note_sharing`: what the body hands on as it got it is, in eager,
        what the loop began with. `kept`: whose memory results show in eager, beside their own."""
        self._note_handed(body.roots)
        self._note_ways(body, results)
        for slot, result in zip(self.carried, results, strict=False):
            if self._moved and slot.type is not None:
                self._note_moved(slot.given, self.tracer.value_of(result))
        roots = [*body.roots, *[root for root, _ in kept]]
        for i, root in enumerate(roots):
            for slot in self.carried:
                if root is not None and slot.start is not None and slot.object.tracked is root:
                    roots[i] = slot.start
        shared = self.tracer.sharing.maybe_shared
        for slot in self.carried:
            if slot.start is not None and slot.object.tracked.root in shared:
                shared[slot.start] = f"the body of {self.what}"
        of_buffers = [each.buffers[each.name] for each in body.buffers]
        found = [*results, *of_buffers, *[result for _, result in kept]]
        body._replace(roots=roots).note_sharing(found)

    def _note_ways(self, body: RecordedFunction, results: Sequence[Any]) -> None:
        """What is handed on is in eager what the loop began with, or what the turn before hands
        on; so is what is there after the loop."""
        ties = self.tracer.sharing.ties
        inside = [slot.object for slot in self.carried]
        for each in (inside, [*results, *[b.buffers[b.name] for b in body.buffers]]):
            body.note_ways(each)
            for slot, found in zip(self.carried, each, strict=False):
                if slot.start is not None and isinstance(found, FakeTensor):
                    ties.note(found.tracked.root, self, slot.start)
        for slot in self.carried:
            if isinstance(slot.object, FakeTensor):
                ties.note_handed_on(slot.object.tracked.root, body.scope.made)

    def _note_handed(self, roots: Sequence[Root | None]) -> None:
        """In eager the first iteration has what the loop began with, and the next one what this one
        hands on."""
        maybe_views = self.tracer.maybe_views
        for slot, handed in zip((*self.carried, *self.slices), roots, strict=False):
            for root in (slot.start, handed if slot in self.carried else None):
                if maybe_views and root is not None and slot.type is not None:
                    maybe_views.note_passed_on(root, slot.object.tracked.root, slot.inside)


def describe_type(t: TensorType) -> str:
    device = "" if t.device.type == "cpu" else f" on {t.device}"
    sizes = ", ".join(map(str, t.size))
    return f"{str(t.dtype).removeprefix('torch.')}[{sizes}]{device}"


def stack_type(row: TensorType, length: Any) -> TensorType:
    """The type of as many rows as the loop has iterations."""
    size = (length, *row.size)
    return TensorType(size, row.dtype, row.device, contiguous_strides(size))
