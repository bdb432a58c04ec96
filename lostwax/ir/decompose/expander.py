"""Expander: a Recorder of what decompositions do to fakes.

When a decomposition calls an operator of the table, that is expanded too, until only others are
left. A decomposition may write to what it makes, not to its arguments. Must not build nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch._ops import OpOverload

from lostwax.classes import SYMBOLIC
from lostwax.errors import LostwaxError
from lostwax.fake import fallback
from lostwax.fake.symbolic.node import wrap
from lostwax.fake.tensor import FakeTensor, new_fake
from lostwax.identity import ByIdentity
from lostwax.ir.trace import writes
from lostwax.ir.trace.log import Region, Step, Value, values_of
from lostwax.ir.trace.recorder import Recorder
from lostwax.ir.trace.views import Tracked, make_root, track_views
from lostwax.ops.registry import Operator, aten, functional_twin, operator
from lostwax.ops.traits import Trait
from lostwax.sym import ShapeEnv
from lostwax.types import TensorType

Decomposition = Callable[..., Any]


class CannotExpand(LostwaxError):
    """This call cannot be taken apart in the way that was tried. Users meet it in others' texts."""

    code = ""


class Composite:
    """The decomposition of an operator that torch itself takes apart (`linear`)."""

    def __init__(self, overload: OpOverload) -> None:
        self.overload = overload

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.overload.decompose(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Composite({self.overload})"


class Expander(Recorder):
    """Records the calls of decompositions. `table` says which operators are taken apart."""

    def __init__(self, table: Mapping[OpOverload, Decomposition], env: ShapeEnv) -> None:
        super().__init__(env)
        self.table = table
        self._open: list[tuple[Any, ...]] = []
        self._constants = ByIdentity[torch.Tensor, FakeTensor]()

    def make_input(self, type: TensorType) -> FakeTensor:
        """Make a fake for a tensor argument of the decomposition."""
        fake = new_fake(self, type)
        make_root(fake, None, None, "the argument")
        return fake

    def start(self) -> None:
        """Start a new recording."""
        self.region = Region()
        self._open.clear()
        self._constants.clear()

    def refuse(self, what: str, instead: str) -> NoReturn:
        raise CannotExpand(what)

    def adopt(self, tensor: torch.Tensor) -> FakeTensor:
        """A real tensor inside a decomposition is a constant of it: record a call that makes it."""
        if isinstance(tensor, FakeTensor) or not self.is_recording:
            return super().adopt(tensor)
        if tensor not in self._constants:
            self._constants[tensor] = self._make_constant(tensor)
        return self._constants[tensor]

    def _make_constant(self, tensor: torch.Tensor) -> FakeTensor:
        if tensor.numel() != 1:
            raise CannotExpand(f"it needs a constant of size {tuple(tensor.shape)}")
        options = {"dtype": tensor.dtype, "device": tensor.device}
        fill = (list(tensor.shape), tensor.item())
        return self.evaluate(aten.full.default, fill, options)  # type: ignore[no-any-return]

    # ------------------------------------------------------------------------------------ operators

    def evaluate(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """Expand the call, or record it."""
        if not self.is_recording:
            return super().evaluate(func, args, kwargs)
        decomposition = self.table.get(func)
        if decomposition is not None:
            return self._try_expand(func, decomposition, args, kwargs)
        return self.record_plain(func, args, kwargs)

    def _try_expand(
        self, func: OpOverload, decomposition: Decomposition, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        before = len(self.region.steps)
        try:
            return self.expand(func, decomposition, args, kwargs)
        except (CannotExpand, NotImplementedError):
            del self.region.steps[before:]
            return self.record_plain(func, args, kwargs)

    def expand(
        self, func: OpOverload, decomposition: Decomposition, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Run the decomposition for this call and record the calls it makes; return its result."""
        types, named = self.types(args, kwargs)
        key = (func, repr(types), repr(named))
        if key in self._open:
            raise CannotExpand(f"the decomposition of {func} comes back to it")
        self._open.append(key)
        try:
            if isinstance(decomposition, Composite):
                return self._take_apart(func, args, kwargs)
            args, kwargs = wrap_all(args), {k: wrap_all(v) for k, v in kwargs.items()}
            return self.reenter(decomposition, args, kwargs)
        finally:
            self._open.pop()

    def _take_apart(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a composite operator; its parts come back here one by one."""
        record = operator(func)
        if record.parts is not None:
            return super().evaluate(func, args, kwargs)
        with fallback.without_mkldnn():
            if Trait.RECURRENT in record.traits:
                return self.reenter(func.decompose, args, kwargs)
            return fallback.evaluate(self, record, args, kwargs)

    def record_plain(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """Record the call as it is, whatever the table says."""
        record = operator(func)
        as_aten = getattr(func, "impl_aten", None) if func.namespace == "prims" else None
        if as_aten is not None:
            return self.reenter(as_aten, args, kwargs)
        if Trait.LITERAL in record.traits:
            return self.adopt(args[0])
        if record.evaluation is not None and record.rule is None:
            return self._evaluate_directly(func, args, kwargs)
        if record.writes:
            return self._record_write(record, args, kwargs)
        if record.kind == "view":
            return self._record_view(record, args, kwargs)
        return self._record_functional(record, args, kwargs)

    def _record_functional(self, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
        symbols = len(self.shape_env.symbols) if record.data_dependent else 0
        with self.pause_recording():
            out = self.compute(record.overload, args, kwargs)
        if record.data_dependent and len(self.shape_env.symbols) != symbols:
            raise CannotExpand(f"the size of what {record.overload} returns depends on data")
        if isinstance(out, SYMBOLIC):
            if record.traits.isdisjoint((Trait.READS_TYPE, Trait.READS_LAYOUT)):
                raise CannotExpand(f"{record.overload} asks for data")
            return out
        return self.set_results(self.add_step(record.overload, args, kwargs), out)

    def set_results(self, step: Step, out: Any) -> Any:
        super().set_results(step, out)
        _let_go_of_fakes(step)
        return out

    def _record_view(self, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
        func = record.overload
        if not args:
            kwargs = dict(kwargs)
            args = (kwargs.pop(record.argument_names[0]),)
        base = self.adopt(args[0])
        with self.pause_recording():
            out = self.compute(func, args, kwargs)
        is_other = Trait.NOT_ITS_BASE in record.traits
        if not is_other and type(out) is FakeTensor and out.fake_type == base.fake_type:
            out.tracked = base.tracked  # the view is its base
            return out
        step = self.add_step(func, args, kwargs)
        track_views(step, base.tracked, args, kwargs, out)
        _let_go_of_fakes(step)
        return out

    def _evaluate_directly(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        with self.pause_recording():
            out = self.compute(func, args, kwargs)
        if isinstance(out, SYMBOLIC):
            raise CannotExpand(f"{func} asks for data")
        return out

    # --------------------------------------------------------------------------------------- writes

    def _record_write(self, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
        if record.changes_metadata:
            return self._record_metadata(record, args, kwargs)
        if record.twin is None:
            raise CannotExpand(f"{record.overload} writes, and has no functional form")
        if Trait.COPIES_INTO in record.traits:
            return writes.copy_into(self, self.adopt(args[0]), args[1])
        return writes.record_write(self, record, args, kwargs)

    def _record_metadata(self, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
        target = self.adopt(args[0])
        view = functional_twin(record.overload)
        if view is None or target.tracked.root.kind:
            raise CannotExpand(f"{record.overload} changes an argument")
        self.become(target, self.evaluate(view, args, kwargs))
        return target

    def assign(self, tracked: Tracked, new: Value) -> None:
        if tracked.root.kind:
            raise CannotExpand("it writes to its argument")
        super().assign(tracked, new)


def wrap_all(value: Any) -> Any:
    """Turn expressions into torch's symbolic numbers, in lists too."""
    if isinstance(value, (list, tuple)):
        return type(value)([wrap_all(v) for v in value])
    return wrap(value)


def _let_go_of_fakes(step: Step) -> None:
    """C++ detaches what a factory returns if somebody else holds it, and a factory may return a
    view (`empty_like` is a permuted `empty`): the values of a step do not hold their fakes."""
    for value in values_of(step.result):
        value.fake = None
