"""The inputs of a program, which are the module's state and the user's inputs: makes a fake for
each tensor, and finds out what became of it when the call is over.

Must not know of graphs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter, is_
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lostwax.bytecode import outline
from lostwax.capture.aliasing import state_views
from lostwax.capture.aliasing.storage import check_layout
from lostwax.capture.attempt import Attempt
from lostwax.capture.python.assignments import line_that_sets
from lostwax.capture.state.module_state import ModuleState, StateSlot, check_replacement_type
from lostwax.capture.state.unkept_changes import note_change
from lostwax.capture.trace.grad_marks import Holding, check_attributes, refuse_replaced
from lostwax.capture.trace.python_questions import QuestionLog
from lostwax.capture.trace.tracer import Tracer
from lostwax.fake.asked_tensor import is_marked_leaf, read_attributes
from lostwax.fake.storage import FakeStorage
from lostwax.fake.symbolic.node import wrap
from lostwax.fake.tensor import FakeTensor
from lostwax.ir.data import Assumption, Ref
from lostwax.ir.graph.numbers import SymbolOrigin
from lostwax.ir.run.conditions.answers import ONE
from lostwax.ir.signature import StateWrite
from lostwax.ir.trace.log import Value, new_value
from lostwax.ir.trace.views import Root

if TYPE_CHECKING:
    from lostwax.capture.shapes.symbols import Symbols


class ReplacedState(NamedTuple):
    """State that the call replaced: its root at the start, its fake, and the tensor in its place
    now. That is the same fake if only its memory was replaced (`x.data = y`)."""

    root: Root
    fake: FakeTensor
    held: FakeTensor


class CaptureInputs:
    """The inputs of one capture, in order."""

    def __init__(self, tracer: Tracer, state: ModuleState) -> None:
        self.tracer = tracer
        self.initial: dict[int, Value] = {}
        """The first value of each input, by the id of its fake or symbolic number."""
        self._roots: dict[int, Root] = {}
        self._shared: dict[FakeStorage, Root] = {}
        """The first input in each storage."""
        self._parameters = state.parameters
        tensors = [slot.tensor for slot in state.slots]
        entered = self._enter_state(tensors, [slot.name for slot in state.slots])
        self.slots = list(zip(state.slots, entered, strict=True))
        tracer.outside.state_in = self.state_in
        tracer.outside.given_roots = self._roots
        self.fakes = dict(zip(map(id, tensors), entered, strict=True))
        """The fakes of the state, by the real tensor's id."""
        self.is_differentiable = any(tensor.requires_grad for tensor in tensors)
        self.leaves: list[Any] = []
        self.doubles: dict[int, Ref] = {}
        """The leaves that are also state, or an earlier leaf: the name of that state, or the index
        of that leaf."""
        self.call_leaves: list[Any] = []
        """What the module is called with in place of the user's leaves."""
        self.names: list[str] = []

    def enter_call(
        self, leaves: list[Any], names: list[str], symbols: Symbols | None, attempt: Attempt
    ) -> None:
        """Add the leaves of the user's call."""
        values = symbols.values if symbols else [None] * len(leaves)
        self.leaves, self.names = leaves, names
        if not attempt.apart:
            self._find_doubles(leaves)
        if attempt.joined:
            first, second = attempt.joined
            assert isinstance(second, int)  # state comes first
            self.doubles[second] = first
        for i, (leaf, name, value) in enumerate(zip(leaves, names, values, strict=True)):
            again = self.doubles.get(i)
            if again is None:
                entered = self._enter_leaf(leaf, name, value)
            elif isinstance(again, str):
                entered = next(fake for slot, fake in self.slots if slot.name == again)
            else:
                entered = self.call_leaves[again]
            self.call_leaves.append(entered)
        self.is_differentiable |= any(
            isinstance(t, torch.Tensor) and t.requires_grad for t in leaves
        )
        for symbol, source in symbols.sources.items() if symbols else ():
            value = self.initial[id(self.call_leaves[source.leaf])]
            self.tracer.origins[symbol] = SymbolOrigin(
                value, source.dim, source.scale, source.offset
            )

    def add_input(self, fake: FakeTensor, name: str) -> None:
        """Add an input as if the user had passed it."""
        self.call_leaves.append(self._enter_fake(fake, "the input", name))
        self.names.append(name)

    def _find_doubles(self, leaves: list[Any]) -> None:
        """Find tensors that are passed several times: they become one fake, since Python may ask
        whether they are one (`x is y`)."""
        first: dict[int, int] = {}
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                if id(leaf) in self.fakes:
                    self.doubles[i] = next(s.name for s, _ in self.slots if s.tensor is leaf)
                elif first.setdefault(id(leaf), i) != i:
                    self.doubles[i] = first[id(leaf)]

    def own_inputs(self) -> Iterator[tuple[int, str, Any]]:
        """The user's inputs that are neither state nor an earlier input: index, name, and what the
        module is called with."""
        for i, (name, user) in enumerate(zip(self.names, self.call_leaves, strict=True)):
            if i not in self.doubles:
                yield i, name, user

    def state_in(self, storage: FakeStorage) -> list[tuple[Root, torch.Tensor]]:
        """The state that was in a storage at the start."""
        if storage not in self._shared:
            return []
        memory = self.tracer.fake_tensor_converter.find_kept_storage
        return [
            (self._roots[id(fake)], slot.tensor)
            for slot, fake in self.slots
            if memory(slot.tensor) is storage
        ]

    def named_tensors(self) -> dict[Value, str]:
        """The tensors that the user passes, with their names."""
        own = self.own_inputs()
        return {self.initial[id(x)]: name for _, name, x in own if isinstance(x, FakeTensor)}

    def state_values(self) -> dict[Value, StateSlot]:
        """The parameters and buffers, as they are at the start."""
        return {self.initial[id(fake)]: slot for slot, fake in self.slots}

    def list_assumptions(
        self, questions: QuestionLog, grad: bool, constants: list[str]
    ) -> Iterator[Assumption]:
        """What a call of the program must check about its inputs. `grad`: are gradients enabled?
        `constants`: their names."""
        groups: dict[Ref, list[Ref]] = {}
        for i, first in self.doubles.items():
            groups.setdefault(first, [first]).append(i)
        yield from (Assumption(ONE, tuple(group), True) for group in groups.values())
        if not questions:
            return
        refs: dict[int, tuple[Ref, Any]] = {}
        for slot, fake in self.slots:
            refs[id(fake)] = slot.name, slot.tensor
        for i, _, user in self.own_inputs():
            if isinstance(user, FakeTensor) and i < len(self.leaves):
                refs[id(user)] = i, self.leaves[i]
        values = {self.initial[key]: ref for key, (ref, _) in refs.items()}
        for name, (tensor, value) in zip(constants, self.tracer.outside.constants, strict=True):
            refs[id(value.fake)] = name, tensor
        yield from questions.list_assumptions(refs, values, grad)

    def for_each_slot(self, parameter: str, buffer: str) -> list[str]:
        return _repeat_by_kind(parameter, buffer, self._parameters, len(self.slots))

    def check_gradients(self, ran: Sequence[FunctionType]) -> None:
        """Refuse changes to the gradients and attributes of tensors that the caller holds; `ran`
        are the user's functions that ran."""
        tracer = self.tracer
        tensors = [fake for fake in self.call_leaves if isinstance(fake, FakeTensor)]
        has_attributes = bool(tracer.sharing.attributes) or any(
            map(read_attributes, chain(self.fakes.values(), tensors))
        )
        if tracer.tracked or tracer.gradients.given or has_attributes:
            users = zip(self.names, self.leaves, self.call_leaves, strict=False)
            held = [Holding("the input", *each) for each in users]
            for slot, fake in self.slots:
                held.append(Holding(f"the {slot.kind}", slot.name, slot.tensor, fake))
            tracer.gradients.check(held)
            check_attributes(held, tracer.sharing.attributes, ran)

    # ------------------------------------------------------------------------------------ entering

    def _enter_leaf(self, leaf: Any, name: str, value: Any) -> Any:
        """What the module is called with in place of a leaf; `value` is symbolic, or None."""
        if isinstance(leaf, torch.Tensor):
            return self._enter_tensor(leaf, name, value)
        if value is None:
            return leaf
        number = wrap(value)
        self.initial[id(number)] = new_value(None, None, None, number)
        return number

    def _enter_tensor(
        self, tensor: torch.Tensor, name: str, sizes: tuple[Any, ...] | None
    ) -> FakeTensor:
        """The fake for a tensor of the user's."""
        tracer = self.tracer
        if sizes is None:
            fake = tracer.fake_tensor_converter.keep(tracer, tensor)
        else:
            fake = tracer.from_tensor(tensor, static_shapes=True, sizes=sizes, source=name)
            tracer.fake_tensor_converter.lend(tensor, fake)
        return self._enter_fake(fake, "the input", name)

    def _enter_state(self, tensors: list[torch.Tensor], names: list[str]) -> list[FakeTensor]:
        """Does what `_enter_fake` does for all of the state at once: there may be many tensors."""
        tracer = self.tracer
        keep = tracer.fake_tensor_converter.keep
        fakes = [keep(tracer, tensor) for tensor in tensors]
        kinds = _repeat_by_kind("the parameter", "the buffer", self._parameters, len(tensors))
        storages = [fake.fake_storage for fake in fakes]
        if len(set(storages)) != len(fakes):  # some share memory
            state_views.check_registered(list(zip(kinds, names, tensors, strict=True)))
            return list(map(self._enter_fake, fakes, kinds, names))
        roots, ids = tracer.add_inputs(fakes, kinds, names), list(map(id, fakes))
        self._roots = dict(zip(ids, roots, strict=True))
        self.initial = dict(zip(ids, tracer.region.inputs, strict=True))
        self._shared = dict(zip(storages, roots, strict=True))
        return fakes

    def _enter_fake(self, fake: FakeTensor, kind: str, name: str) -> FakeTensor:
        """Make a fake an input of the program."""
        if fake.tracked is not None:
            fake = fake.snapshot()
        root = self._roots[id(fake)] = self.tracer.add_input(fake, kind, name)
        self.initial[id(fake)] = root.value
        first = self._shared.setdefault(fake.fake_storage, root)
        if first is not root:
            first.others = root.others = True
        return fake

    # ------------------------------------------------------------------------------------- leaving

    def written_state(
        self, reassigned: Mapping[str, torch.Tensor], grad: bool
    ) -> Iterator[tuple[StateSlot, Value, StateWrite]]:
        """The parameters and buffers that have another value now, and how they got it. In the
        places of `reassigned` there are other tensors. `grad`: are gradients enabled?"""
        written: list[tuple[str, torch.Tensor]] = []
        for slot, fake in self.slots if reassigned or self._is_state_written() else ():
            again = reassigned.get(slot.name)
            if again is None:
                new = self._final_value(fake)
            else:
                new = self._replacement_value(slot, fake, again, grad)
            if new is not None:
                written += [(f"the {slot.kind} {slot.name}", slot.tensor)] if again is None else []
                yield slot, new, self._write_kind(fake, again)
        if written:
            self._check_foreign_views(written)

    def _check_foreign_views(self, written: list[tuple[str, torch.Tensor]]) -> None:
        from lostwax.capture.aliasing.foreign_views import check_foreign_views

        tracer, python = self.tracer, self.tracer.python
        others = [(f"the {slot.kind} {slot.name}", slot.tensor) for slot, _ in self.slots]
        others += [(f"a tensor of size {tuple(t.shape)}", t) for t, _ in tracer.outside.constants]
        names = {name for each in python.reach.functions for name in outline(each.__code__).names}
        check_foreign_views(written, others, python.modules, names)

    def written_inputs(self) -> Iterator[tuple[str, Value]]:
        """The user's tensors that have another value now, by name."""
        for _, name, fake in self.own_inputs():
            if isinstance(fake, FakeTensor):
                new = self._final_value(fake)
                if new is not None:
                    yield name, new

    def _is_state_written(self) -> bool:
        """Has any state changed? The loops run in C: there may be hundreds of tensors."""
        fakes = [fake for _, fake in self.slots]
        roots = [self._roots[id(fake)] for fake in fakes]
        return (
            any(map(_VERSION, roots))
            or not all(map(is_, map(_TRACKED, fakes), roots))
            or not all(map(is_, map(_FAKE_TYPE, fakes), map(_TYPE, roots)))
        )

    def _replacement_value(
        self, slot: StateSlot, fake: FakeTensor, again: torch.Tensor, grad: bool
    ) -> Value | None:
        held = self.tracer.adopt(again)
        is_new = id(held) not in self.initial
        if grad and is_new and (is_marked_leaf(held) or is_marked_leaf(fake)):
            refuse_replaced(f"the {slot.kind} {slot.name}")
        root = self._roots[id(fake)]
        check_replacement_type(slot, root.type, held.fake_type)
        if held.tracked.root is root and held.fake_type == root.type:  # another name for all of it
            return root.value if root.version else None
        return self.tracer.lay_out(self.initial[id(fake)], self.tracer.value_of(held))

    def _write_kind(self, fake: FakeTensor, again: torch.Tensor | None) -> StateWrite:
        held = fake if again is None else self.tracer.adopt(again)
        root = self._roots[id(fake)]
        if held.tracked.root is root and held.fake_type == root.type:
            return StateWrite.INTO
        return StateWrite.MEMORY if again is None else StateWrite.TENSOR

    def find_replaced(self, reassigned: Mapping[str, torch.Tensor]) -> list[ReplacedState]:
        """The state in whose place there is now another tensor, or other memory."""
        if not reassigned and not self._is_state_written():
            return []
        found = []
        for slot, fake in self.slots:
            root, again = self._roots[id(fake)], reassigned.get(slot.name)
            held = fake if again is None else self.tracer.adopt(again)
            if held.tracked.root is not root or held.fake_type != root.type:
                found.append(ReplacedState(root, fake, held))
        return found

    def is_view_of_state(self, tensor: torch.Tensor) -> bool:
        """Is a real tensor a view of state, and not the state itself?"""
        kind = self.tracer.adopt(tensor).tracked.root.kind
        return kind in ("the parameter", "the buffer") and id(tensor) not in self.fakes

    def find_renamed(self, reassigned: Mapping[str, torch.Tensor]) -> Iterator[str]:
        """The state in whose place there is now another tensor of the same memory and type."""
        for slot, fake in self.slots if reassigned else ():
            again, root = reassigned.get(slot.name), self._roots[id(fake)]
            held = fake if again is None else self.tracer.adopt(again)
            if held is not fake and held.tracked.root is root and held.fake_type == root.type:
                yield f"the {slot.kind} {slot.name}"

    def check_replaced(self, replaced: list[ReplacedState], outputs: list[Any]) -> None:
        """Refuse replaced state if the old tensor or memory is still visible, for instance in the
        results (`outputs`): a program keeps only the new one."""
        if not replaced:
            return
        results = [self.tracer.adopt(out) for out in outputs if isinstance(out, torch.Tensor)]
        shown = {id(result.tracked.root) for result in results}
        states = {id(self._roots[id(fake)]) for _, fake in self.slots}
        is_state_shown = not shown.isdisjoint(states | {id(r.held.tracked.root) for r in replaced})
        for root, fake, held in replaced:
            if self._is_read_elsewhere(root, fake, held):
                state_views.refuse_replaced(root)
            if held is fake and any(result is fake for result in results):
                state_views.refuse_memory_shown(root)
            if held is fake and id(root) in shown:
                state_views.refuse_old_memory_shown(root)
            new = held.tracked.root
            is_outside = new.kind and not new.value.is_literal
            is_seen = is_state_shown if id(new) in states else id(new) in shown or is_outside
            has_changed = root.version or (held is not fake and fake.tracked.root is not root)
            if has_changed and is_seen:
                state_views.refuse_old_shown(root)
            if has_changed:  # whoever holds the old tensor, or a view of it, would see the write
                note_change(f"{root.kind} {root.name} is written in place, and then replaced")

    def check_ties(
        self,
        reassigned: Mapping[str, torch.Tensor],
        outputs: list[Any],
        ran: Sequence[FunctionType],
    ) -> None:
        """Refuse state of which data decide whether it is one tensor with something else when the
        call is over, if the next call would write to one, and so to the other, or tells the two
        apart (`self.a is self.b`). `ran` are the user's functions that ran."""
        tracer, ties = self.tracer, self.tracer.sharing.ties
        if not ties:
            return
        now = [tracer.adopt(reassigned.get(slot.name, fake)) for slot, fake in self.slots]
        results = [tracer.adopt(out) for out in outputs if isinstance(out, torch.Tensor)]
        held = [
            (slot, tensor.tracked.root) for (slot, _), tensor in zip(self.slots, now, strict=True)
        ]
        first = [self._roots[id(fake)] for _, fake in self.slots]
        written = {slot for (slot, _), root in zip(held, first, strict=True) if root.version}
        groups = ties.group(zip(first, (root for _, root in held), strict=True))
        given = {
            self._roots[id(fake)] for _, _, fake in self.own_inputs() if id(fake) in self._roots
        }
        find_distinguished = tracer.observer.questions.find_distinguished
        for (slot, root), group in zip(held, map(groups.__getitem__, first), strict=True):
            for what, is_seen in self._find_tied(slot, root, held, results, written):
                others = given if what == _RESULT else group  # which may be passed in again
                asked = None if is_seen else find_distinguished(group, others, ties.list_shown)
                if is_seen or asked is not None:
                    line = line_that_sets(slot.name.rpartition(".")[2], ran)
                    state_views.refuse_tied(slot.kind, slot.name, what, line, asked)
                note_change(f"the {slot.kind} {slot.name} may become one tensor with {what}")

    def _find_tied(
        self,
        slot: StateSlot,
        root: Root,
        held: Sequence[tuple[StateSlot, Root]],
        results: Sequence[FakeTensor],
        written: Collection[StateSlot],
    ) -> Iterator[tuple[str, bool]]:
        """What may share memory with state that has this root, and whether it may be written to."""
        ties, is_written = self.tracer.sharing.ties, slot in written
        for each in ties.list_shown(root) if root in ties else ():
            if each.kind in ("the input", "the constant"):
                yield f"{each.kind} {each.name}", is_written or each.kind == "the input"
        for other, its in held if root in ties else ():
            if other is not slot and ties.may_be_one(root, its):
                is_seen = is_written or other in written or other.kind == "parameter"
                yield f"the {other.kind} {other.name}", is_seen
        for result in results:
            its = result.tracked.root
            if its is not root and (root in ties or its in ties) and ties.may_be_one(root, its):
                yield _RESULT, is_written

    def _is_read_elsewhere(self, root: Root, fake: FakeTensor, held: FakeTensor) -> bool:
        """Does the program read replaced state through a view from before the call, or from another
        place that holds it? If only its memory is replaced, other places still hold the same."""
        itself = None if held is not fake else fake
        return any(
            root is read and (itself is None or self.fakes.get(id(tensor)) is not itself)
            for tensor, read in self.tracer.outside.state_views
        )

    def _final_value(self, fake: FakeTensor) -> Value | None:
        """An input's value when the call is over; None if it is still the first."""
        root = self._roots[id(fake)]
        if fake.fake_type is not root.type:
            check_layout(root, fake.fake_type)
        if fake.tracked.root is not root:  # `x.data = y`
            return self.tracer.lay_out(self.initial[id(fake)], self.tracer.value_of(fake))
        return root.value if root.version else None


def _repeat_by_kind(parameter: str, buffer: str, parameters: int, count: int) -> list[str]:
    return [parameter] * parameters + [buffer] * (count - parameters)


_RESULT = "a result"
_VERSION, _TRACKED = attrgetter("version"), attrgetter("tracked")
_FAKE_TYPE, _TYPE = attrgetter("fake_type"), attrgetter("type")
