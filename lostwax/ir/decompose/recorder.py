"""Recorder: a FakeTensorMode that notes what a decomposition does to fakes.

A light tracer for functions of a few operators: no modules, no state, no provenance. Operators of
its table are expanded where they are met, until only others are left. Writes inside a decomposition
become new values. Must not write to what it is given, nor build nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from lostwax.errors import LostwaxError
from lostwax.fake import fallback
from lostwax.fake.mode import FakeTensorMode
from lostwax.fake.symbolic.node import unwrap, wrap
from lostwax.fake.tensor import FakeTensor, new_fake, set_type
from lostwax.fake.write import (
    check_fits,
    factory_options,
    mark_written,
    with_defaults,
    written_arguments,
)
from lostwax.identity import ByIdentity
from lostwax.ops.registry import Operator, aten, functional_twin, operator
from lostwax.ops.traits import Trait
from lostwax.sym import ShapeEnv
from lostwax.types import TensorType, contiguous_strides

_SYMBOLIC = (torch.SymInt, torch.SymBool, torch.SymFloat)
Decomposition = Callable[..., Any]


class CannotExpand(LostwaxError):
    """This call cannot be taken apart in the way that was tried."""


class Composite:
    """The decomposition of an operator that torch itself takes apart (`linear`)."""

    def __init__(self, overload: OpOverload) -> None:
        self.overload = overload

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.overload.decompose(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Composite({self.overload})"


class Value:
    """One tensor of an expansion: an input of it, or an output of a call."""

    __slots__ = ("call", "index", "memory", "type")

    def __init__(
        self, call: Call | None, index: int | None, type: TensorType, memory: Value | None = None
    ) -> None:
        self.call = call
        """None: an input."""
        self.index = index
        """Which of several outputs; None: the only one."""
        self.type = type
        self.memory = memory
        """The value whose memory this one shows; None: its own."""


class Call:
    """One operator call. Tensors among the arguments are values, symbolic numbers expressions."""

    __slots__ = ("args", "kwargs", "outputs", "result", "target")

    def __init__(self, target: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.target = target
        self.args = args
        self.kwargs = kwargs
        self.outputs: list[Value] = []
        self.result: Any = None
        """What it returned, with a value in each tensor's place."""


class _View(NamedTuple):
    func: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    position: int | None


class _Root:
    """A storage's content: its present value, and how often it was written."""

    __slots__ = ("is_input", "value", "version")

    def __init__(self, value: Value, is_input: bool) -> None:
        self.value = value
        self.version = 0
        self.is_input = is_input


class _Slot:
    """What a fake knows of itself; kept in `fake.tracked`."""

    __slots__ = ("base", "root", "seen", "value", "view")

    def __init__(
        self, value: Value, root: _Root, base: _Slot | None = None, view: _View | None = None
    ) -> None:
        self.value = value
        self.root = root
        self.base = base
        self.view = view
        self.seen = root.version


class Recorder(FakeTensorMode):
    """Records the calls of decompositions. `table` says which operators are taken apart."""

    portable = True

    def __init__(self, table: Mapping[OpOverload, Decomposition], env: ShapeEnv) -> None:
        super().__init__(allow_non_fake_inputs=True, shape_env=env)
        self.shape_env: ShapeEnv = env
        self.table = table
        self.calls: list[Call] = []
        self.is_recording = True
        self._open: list[tuple[Any, ...]] = []
        self._constants = ByIdentity[torch.Tensor, FakeTensor]()

    def input(self, type: TensorType) -> FakeTensor:
        """A tensor that the decomposition is given."""
        fake = new_fake(self, type)
        value = Value(None, None, type)
        fake.tracked = _Slot(value, _Root(value, True))
        return fake

    def start(self) -> None:
        """A new recording."""
        self.calls = []
        self._open.clear()
        self._constants.clear()

    def adopt(self, tensor: torch.Tensor) -> FakeTensor:
        """A real tensor inside a decomposition is a constant of it: made by a call."""
        if isinstance(tensor, FakeTensor) or not self.is_recording:
            return super().adopt(tensor)
        if tensor not in self._constants:
            self._constants[tensor] = self._constant(tensor)
        return self._constants[tensor]

    def _constant(self, tensor: torch.Tensor) -> FakeTensor:
        if tensor.numel() != 1:
            raise CannotExpand(f"it needs a constant of size {tuple(tensor.shape)}")
        options = {"dtype": tensor.dtype, "device": tensor.device}
        fill = (list(tensor.shape), tensor.item())
        return self.evaluate(aten.full.default, fill, options)  # type: ignore[no-any-return]

    # ------------------------------------------------------------------------------------ operators

    def evaluate(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """Expand or record."""
        if not self.is_recording:
            return super().evaluate(func, args, kwargs)
        decomposition = self.table.get(func)
        if decomposition is not None:
            return self._expanded(func, decomposition, args, kwargs)
        return self.plain(func, args, kwargs)

    def _expanded(
        self, func: OpOverload, decomposition: Decomposition, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        before = len(self.calls)
        try:
            return self.expand(func, decomposition, args, kwargs)
        except (CannotExpand, NotImplementedError):
            del self.calls[before:]
            return self.plain(func, args, kwargs)

    def expand(
        self, func: OpOverload, decomposition: Decomposition, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """What the decomposition returns for this call; the calls it makes are recorded."""
        types, named = self.types(args, kwargs)
        key = (func, repr(types), repr(named))
        if key in self._open:
            raise CannotExpand(f"the decomposition of {func} comes back to it")
        self._open.append(key)
        try:
            if isinstance(decomposition, Composite):
                return self._apart(func, args, kwargs)
            args, kwargs = wrap_all(args), {k: wrap_all(v) for k, v in kwargs.items()}
            return self.reentered(decomposition, args, kwargs)
        finally:
            self._open.pop()

    def _apart(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """A composite operator by its parts, which come back here one by one."""
        record = operator(func)
        if record.parts is not None:
            return super().evaluate(func, args, kwargs)
        with fallback.without_mkldnn():
            if Trait.RECURRENT in record.traits:
                return self.reentered(func.decompose, args, kwargs)
            return fallback.evaluate(self, record, args, kwargs)

    def plain(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """Record the call as it is, whatever the table says."""
        record = operator(func)
        as_aten = getattr(func, "impl_aten", None) if func.namespace == "prims" else None
        if as_aten is not None:
            return self.reentered(as_aten, args, kwargs)
        if Trait.LITERAL in record.traits:
            return self.adopt(args[0])
        if record.evaluation is not None and record.rule is None:
            return self._evaluated(func, args, kwargs)
        if record.writes:
            return self._write(record, args, kwargs)
        if record.kind == "view":
            return self._view(record, args, kwargs)
        return self._functional(record, args, kwargs)

    def _functional(self, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
        symbols = len(self.shape_env.symbols) if record.data_dependent else 0
        with self.silent():
            out = super().evaluate(record.overload, args, kwargs)
        if record.data_dependent and len(self.shape_env.symbols) != symbols:
            raise CannotExpand(f"the size of what {record.overload} returns depends on data")
        if isinstance(out, _SYMBOLIC):
            if record.traits.isdisjoint((Trait.READS_TYPE, Trait.READS_LAYOUT)):
                raise CannotExpand(f"{record.overload} asks for data")
            return out
        call = self._call(record.overload, args, kwargs)
        call.result = self._output(call, out, None)
        return out

    def _view(self, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
        func = record.overload
        base = self.adopt(args[0] if args else kwargs[record.argument_names[0]])
        with self.silent():
            out = super().evaluate(func, args, kwargs)
        is_other = Trait.NOT_ITS_BASE in record.traits
        if not is_other and type(out) is FakeTensor and out.fake_type == base.fake_type:
            out.tracked = base.tracked  # the same, under another name
            return out
        call = self._call(func, args, kwargs)
        memory = call.args[0] if call.args else call.kwargs[record.argument_names[0]]
        outputs = [out] if type(out) is FakeTensor else out
        for i, fake in enumerate(outputs):
            position = None if type(out) is FakeTensor else i
            value = Value(call, position, fake.fake_type, memory.memory or memory)
            call.outputs.append(value)
            view = _View(func, tuple(args[1:]), kwargs, position)
            fake.tracked = _Slot(value, base.tracked.root, base.tracked, view)
        call.result = call.outputs[0] if type(out) is FakeTensor else list(call.outputs)
        return out

    def _evaluated(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        with self.silent():
            out = super().evaluate(func, args, kwargs)
        if isinstance(out, _SYMBOLIC):
            raise CannotExpand(f"{func} asks for data")
        return out

    @contextmanager
    def silent(self) -> Iterator[None]:
        before, self.is_recording = self.is_recording, False
        try:
            yield
        finally:
            self.is_recording = before

    # ------------------------------------------------------------------------------------ recording

    def _call(self, target: OpOverload, args: Any, kwargs: dict[str, Any]) -> Call:
        call = Call(
            target,
            tuple([self.operand(a) for a in args]),
            {k: self.operand(v) for k, v in kwargs.items()},
        )
        self.calls.append(call)
        return call

    def _output(self, call: Call, out: Any, index: int | None) -> Any:
        if type(out) is FakeTensor:
            value = Value(call, index, out.fake_type)
            out.tracked = _Slot(value, _Root(value, False))
            call.outputs.append(value)
            return value
        if isinstance(out, (list, tuple)):
            return type(out)([self._output(call, o, i) for i, o in enumerate(out)])
        return out

    def operand(self, value: Any) -> Any:
        """An argument as a call keeps it."""
        if isinstance(value, torch.Tensor):
            return self.value_of(self.adopt(value))
        if isinstance(value, (list, tuple)):
            return [self.operand(v) for v in value]
        return unwrap(value) if isinstance(value, _SYMBOLIC) else value

    def value_of(self, fake: FakeTensor) -> Value:
        """The present value of a tensor; a view whose base was written since is made anew."""
        return self._read(fake.tracked)

    def _read(self, slot: _Slot) -> Value:
        if slot.seen != slot.root.version:
            if slot.base is None or slot.view is None:
                slot.value = slot.root.value
            else:
                slot.value = self._again(self._read(slot.base), slot.view)
            slot.seen = slot.root.version
        return slot.value

    def _again(self, base: Value, view: _View) -> Value:
        out = self.evaluate(view.func, (self._standing(base), *view.args), view.kwargs)
        return self.value_of(out if view.position is None else out[view.position])

    def _standing(self, value: Value) -> FakeTensor:
        """A fake that stands for a value."""
        fake = new_fake(self, value.type)
        fake.tracked = _Slot(value, _Root(value, False))
        return fake

    # --------------------------------------------------------------------------------------- writes

    def _write(self, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
        if record.changes_metadata:
            return self._metadata(record, args, kwargs)
        if record.twin is None:
            raise CannotExpand(f"{record.overload} writes, and has no functional form")
        if record.kind == "out":
            return self._out(record, args, kwargs)
        if Trait.COPIES_INTO in record.traits:
            return self._copied_into(*args)
        targets = [self.adopt(t) for t in flat(written_arguments(record, args, kwargs))]
        given = with_defaults(record, args, kwargs)
        results = flat([self.evaluate(record.twin, args, given)])
        own = len(record.results) if record.kind == "mixed" else 0
        for target, new in zip(targets, results[own:], strict=True):
            check_fits(target.fake_type, new.fake_type)
            self._assign(target, new)
        if record.kind == "mixed":
            return results[0] if own == 1 else tuple(results[:own])
        if not record.results:
            return None
        return targets[0] if len(record.results) == 1 else tuple(targets)

    def _copied_into(self, target: torch.Tensor, source: torch.Tensor, _: Any = None) -> FakeTensor:
        """`target.copy_(source)`: the source as a tensor of its own; `aten.copy` has no
        derivative."""
        taken, given = self.adopt(target), self.adopt(source)
        if given.fake_type.dtype is taken.fake_type.dtype:
            given = self.evaluate(aten.clone.default, (given,), {})
        self._assign(taken, given)
        return taken

    def _metadata(self, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
        target = self.adopt(args[0])
        view = functional_twin(record.overload)
        if view is None or target.tracked.root.is_input:
            raise CannotExpand(f"{record.overload} changes an argument")
        seen = self.evaluate(view, args, kwargs)
        set_type(target, seen.fake_type)
        target.tracked = seen.tracked
        return target

    def _out(self, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
        outs = [self.adopt(o) for o in flat([kwargs[name] for name in record.out_names])]
        inputs = {k: v for k, v in kwargs.items() if k not in record.out_names}
        inputs.update(factory_options(record, outs[0], args, inputs))
        results = flat([self.evaluate(record.twin, args, inputs)])  # type: ignore[arg-type]
        for target, new in zip(outs, results, strict=True):
            check_fits(target.fake_type, new.fake_type)
            self._assign(target, new)
        return outs[0] if len(outs) == 1 else tuple(outs)

    def _assign(self, target: FakeTensor, new: FakeTensor) -> None:
        """`target` takes the value of `new`."""
        slot: _Slot = target.tracked
        if slot.root.is_input:
            raise CannotExpand("it writes to its argument")
        value = self._cast(self.value_of(target), self.value_of(new), slot.base is None)
        version = slot.root.version + 1
        each = slot
        while each.base is not None and each.view is not None:
            # a view of another layout than the new value's is taken again when it is read
            is_such = each.value.type.stride == value.type.stride
            base = self._read(each.base)
            each.value, each.seen = (value, version) if is_such else (each.value, -1)
            value = self._scattered(base, value, each.view)
            each = each.base
        each.value, each.seen = value, version
        slot.root.value, slot.root.version = value, version
        mark_written([target])

    def _cast(self, before: Value, value: Value, is_laid_out: bool = True) -> Value:
        """The value in dtype, size and layout of the one it replaces."""
        like = before.type
        if like == value.type:
            return value
        fake = self._standing(value)
        if value.type.dtype is not like.dtype:
            fake = self.evaluate(aten._to_copy.default, (fake,), {"dtype": like.dtype})
        if fake.fake_type.size != like.size:
            fake = self.evaluate(aten.expand.default, (fake, list(map(wrap, like.size))), {})
        if is_laid_out and fake.fake_type.stride != like.stride:
            is_plain = like.stride == contiguous_strides(like.size)
            form = torch.contiguous_format if is_plain else torch.preserve_format
            fake = self.evaluate(aten.clone.default, (fake,), {"memory_format": form})
        if is_laid_out and fake.fake_type.stride != like.stride:
            fake = self._laid_out(fake, before)
        return self.value_of(fake)

    def _laid_out(self, fake: FakeTensor, before: Value) -> Any:
        """Copied into the order of the strides; with gaps into the memory itself, which has no
        derivative."""
        like = before.type
        if all(isinstance(s, int) for s in like.stride):
            order = sorted(range(like.ndim), key=lambda d: -int(like.stride[d]))
            back = [order.index(d) for d in range(like.ndim)]
            strides = contiguous_strides(tuple(like.size[d] for d in order))
            if tuple(strides[i] for i in back) == tuple(like.stride):
                ordered = self.evaluate(aten.permute.default, (fake, order), {})
                plain = {"memory_format": torch.contiguous_format}
                copy = self.evaluate(aten.clone.default, (ordered,), plain)
                return self.evaluate(aten.permute.default, (copy, back), {})
        return self.evaluate(aten.copy.default, (self._standing(before), fake), {})

    def _scattered(self, base: Value, new: Value, view: _View) -> Value:
        inverse = operator(view.func).view_inverse
        if inverse is None:
            raise CannotExpand(f"a write through {view.func}")
        position = () if view.position is None else (view.position,)
        fakes = (self._standing(base), self._standing(new), *position, *map(wrap_all, view.args))
        return self._cast(base, self.value_of(self.reentered(inverse, fakes, view.kwargs)))


def wrap_all(value: Any) -> Any:
    """Expressions as torch's symbolic numbers, in lists too."""
    if isinstance(value, (list, tuple)):
        return type(value)([wrap_all(v) for v in value])
    return wrap(value)


def flat(values: Any) -> list[Any]:
    out: list[Any] = []
    for v in values:
        out.extend(flat(v)) if isinstance(v, (list, tuple)) else out.append(v)
    return out
