"""FakeTensorMode: evaluates every operator on types instead of data.

One dispatch mode. The fast path is: look the operator up, replace tensors by their types, call its
rule, wrap the result. What a result is to its arguments (new, a view, the written argument) stands
in the operator's record. Writes are in `write.py`, questions to the data in `data.py`, operators
without a rule in `fallback.py`. Must not record or trace: a tracer calls `evaluate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Any, cast

import torch
import torch._library.fake_impl as torch_fake_impl
from torch import is_grad_enabled, is_inference_mode_enabled
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from lostwax.cache import Cache, cached_by_identity
from lostwax.classes import LISTS, PLAIN, SYMBOLIC
from lostwax.errors import MixedModeError, NonFakeInputError, UnsupportedFakeError
from lostwax.fake import autocast, data, fallback, rule_cache, shared_rule_cache
from lostwax.fake.asked_tensor import is_marked
from lostwax.fake.composite import index
from lostwax.fake.convert import FakeTensorConverter
from lostwax.fake.devices import concrete_device, public_device_of
from lostwax.fake.refusals import RETIRED
from lostwax.fake.storage import FakeStorage
from lostwax.fake.symbolic.node import unwrap, wrap
from lostwax.fake.tensor import FakeTensor, Observer, new_fake
from lostwax.fake.write import write
from lostwax.ops.registry import FAMILIES, Operator, Ways, choose, operator
from lostwax.ops.traits import Trait
from lostwax.sym import BoolExpr, Expr, ShapeEnv
from lostwax.types import TensorType

FAMILIES.add(index.FAMILIES)  # how composite operators are taken apart

_FAKE = torch._C._TorchDispatchModeKey.FAKE

_AUTOGRAD = (torch._C.DispatchKey.AutogradFunctionality, torch._C.DispatchKey.ADInplaceOrView)
_is_off: Any = torch._C._dispatch_tls_is_dispatch_key_excluded
_switch_off: Any = torch._C._dispatch_tls_set_dispatch_key_excluded


def _include(key: Any) -> Any:
    return torch._C._SetExcludeDispatchKeyGuard(key, False)


Strategy = Callable[["FakeTensorMode", Operator, Any, dict[str, Any]], Any]


class FakeTensorMode(TorchDispatchMode):
    """Under this mode operators run on fakes: all but the data is right, nothing is computed.

        mode = FakeTensorMode()
        x = mode.from_tensor(real)
        with mode:
            y = torch.relu(x) @ torch.empty(3, 4)

    `allow_non_fake_inputs`: real tensors that meet an operator are converted; otherwise that is an
    error. `shape_env`: where symbolic sizes live; without one, sizes are ints and data-dependent
    operators are refused.
    """

    takes_wrappers = True
    """A tensor subclass that says what it wraps keeps its class, around fakes."""

    thread = 0
    """The thread that captures with this mode, while it does: no other evaluates anything. Or that
    of no thread, `RETIRED`."""

    observer = Observer()
    """Who is told what Python asks of the fakes, and does to them, beside calling operators."""

    portable = False
    """Take composite operators apart into operators that every device has, instead of those that
    eager's dispatch picks on this one; what is computed is the same."""

    kernels: Mapping[OpOverload, Callable[..., Any]] = MappingProxyType({})
    """Fake kernels in the place of those that operators have, or have not."""

    def __init__(
        self, *, allow_non_fake_inputs: bool = False, shape_env: ShapeEnv | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.allow_non_fake_inputs = allow_non_fake_inputs
        self.shape_env = shape_env
        self.answered: list[tuple[dict[Any, Any], Any]] | None = None
        """The answers about data that hold in a part of the program alone; they are forgotten where
        it ends. None: all of them last."""
        self.asked_by_cpp: list[tuple[FakeTensor, TensorType]] | None = None
        """The tensors of which C++ may have kept what holds in a part of the program alone; None:
        it holds everywhere."""
        self.fake_tensor_converter = FakeTensorConverter()
        # The slot torch keeps for fake modes: in it `device="cuda"` needs no driver, and other
        # modes see operators first.
        self._mode_key = _FAKE
        self.entered: list[tuple[Any, bool, list[bool]] | None] = []
        self._in_autograd = False
        self.higher_order: Mapping[str, Callable[..., Any]] = {}
        """How operators that take functions are recorded, by their names; for recorders."""
        self.saw_constant = False
        self.known_limit = data.CONSTANT_LIMIT
        """So many elements of a constant are known at most."""
        self.absent_device: torch.device | None = None
        self.templates: dict[int, Any] | None = None
        """For each symbolic type, by identity, a tensor to copy; None: no copies, as autograd would
        take note of them."""
        self.answers = shared_rule_cache.ModeAnswers(self)
        """Those of type rules about symbolic types."""
        self.casts: tuple[str, ...] | None = None
        """While an operator is taken apart: the types of devices with autocast. None: no operator
        is."""
        self.stand_ins = autocast.ParameterStandIns()
        rule_cache.clear_if_settings_changed()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would import torch._dynamo at the first operator

    @classmethod
    def is_infra_mode(cls) -> bool:
        """torch asks: it is no mode of a user's."""
        return True

    def __enter__(self) -> FakeTensorMode:
        outer = torch._C._get_dispatch_mode(_FAKE)
        is_active = outer is self
        if is_active:
            self.entered.append(None)
            return self
        # No guards of C++ are held here: one that an interrupt leaves behind would put back, when
        # it dies, what was before it. And not torch's own `__enter__`, which sets flags that all
        # threads see.
        lifted, off = torch._C._only_lift_cpu_tensors(), list(map(_is_off, _AUTOGRAD))
        self.entered.append((outer, lifted, off))
        if outer is not None:
            torch._C._unset_dispatch_mode(_FAKE)
        torch._C._set_only_lift_cpu_tensors(True)
        torch._C._set_dispatch_mode(self)
        if self.shape_env is not None:
            # Operators come here before autograd's layers, and before C++ takes composite ones
            # apart, which asks questions (`numel == 0`?) that would cost guards. Autograd has its
            # turn after. Without symbols there is no such cost, and other modes see the parts.
            for key in _AUTOGRAD:
                _switch_off(key, True)
        return self

    def __exit__(self, *error: Any) -> None:
        state = self.entered.pop()
        if state is None:
            return
        outer, lifted, off = state
        for key, before in zip(_AUTOGRAD, off, strict=True):
            _switch_off(key, before)
        torch._C._unset_dispatch_mode(_FAKE)
        torch._C._set_only_lift_cpu_tensors(lifted)
        if outer is not None:
            torch._C._set_dispatch_mode(outer)

    def from_tensor(
        self,
        tensor: torch.Tensor,
        *,
        static_shapes: bool | None = None,
        sizes: tuple[Any, ...] | None = None,
        source: str | None = None,
    ) -> FakeTensor:
        """The fake of a real tensor; the same tensor gives the same fake.

        With a `shape_env`, each size becomes a symbol unless `static_shapes`; `sizes` gives them
        one by one (an int or a SymInt, or None for the tensor's own). `source` names the tensor in
        guards.
        """
        return self.fake_tensor_converter.from_real_tensor(
            self, tensor, static_shapes=static_shapes, sizes=sizes, source=source
        )

    # ------------------------------------------------------------------------- evaluating operators

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for t in types:
            if t is not FakeTensor and fallback.is_foreign(t):
                return fallback.leave_to_class(self, func, args, kwargs or {})
        if kwargs and "device" in kwargs:
            public_device_of(kwargs)
        if autocast.is_entered() and func.__class__ is OpOverload:
            return autocast.dispatch(self, func, args, kwargs or {}, self._evaluate_any)
        return self._evaluate_any(func, args, kwargs or {})

    def _evaluate_any(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        if is_grad_enabled():
            return self._evaluate_tracked(func, args, kwargs)
        return self.evaluate(func, args, kwargs)

    def _evaluate_tracked(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """Evaluate; if gradients are on, by way of autograd, which records and comes back here."""
        below = self.shape_env is not None and self.entered
        if self._in_autograd or not is_grad_enabled() or not below:
            return self.evaluate(func, args, kwargs)
        record = operator(func)
        if record.parts is not None or record.evaluation is not None or _is_composite_out(func):
            # its parts are tracked; or there is no gradient
            return self.evaluate(func, args, kwargs)
        typed = record.kind == "functional" and record.rule is not None
        if typed and not (_require_grad(args) or _require_grad(kwargs.values())):
            return self.evaluate(func, args, kwargs)  # autograd has nothing to record
        if record.rule is None and fallback.is_composite(func):
            return self.in_autograd(fallback.run_or_specialize, self, func, args, kwargs)
        return self.in_autograd(self.reenter, func, args, kwargs)

    def track_foreign(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """Leave a call to the class of an argument; if gradients are on, by way of autograd, which
        sees the whole tensors."""
        if self._in_autograd or not is_grad_enabled() or not self.entered:
            return NotImplemented
        return self.in_autograd(self.reenter, func, args, kwargs)

    def in_autograd(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call something whose operators go by way of autograd."""
        before, self._in_autograd = self._in_autograd, True
        try:
            with _include(_AUTOGRAD[0]), _include(_AUTOGRAD[1]):
                return function(*args)
        finally:
            self._in_autograd = before

    def evaluate(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """What this call returns, as fakes: the whole of fake execution, for dispatchers and
        tracers alike."""
        plan = _PLANS.get(id(func)) or self.plan(func)
        return plan[0](self, plan[1], args, kwargs)

    @staticmethod
    def plan(func: OpOverload) -> tuple[Strategy, Operator]:
        """How calls of this overload are evaluated, and what is known of it."""
        plan = _PLANS.get(id(func))
        if plan is None:
            plan = _CACHE.keep(id(func), _plan(func))
        return plan

    def view(self, fake: FakeTensor, size: tuple[Any, ...]) -> Any:
        """`fake.view(*size)`."""
        return torch.Tensor.view(fake, *size)

    def give_context(self, context: Any) -> AbstractContextManager[None]:
        """Inside, `torch.library.get_ctx()` gives a fake kernel this context."""
        return torch_fake_impl.set_ctx_getter(lambda: context)

    @contextmanager
    def pause_recording(self) -> Iterator[None]:
        """Inside, evaluating leaves no trace: a mode that records does not."""
        yield

    def call(self, func: OpOverload, *args: Any, **kwargs: Any) -> Any:
        """An operator called from inside the evaluation of a composite: a tracer records it."""
        if self.casts:
            return autocast.evaluate_part(self, func, args, kwargs, self._call_part)
        return self._call_part(func, args, kwargs)

    def _call_part(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        if is_grad_enabled():  # by way of C++, which knows symbolic numbers, not expressions
            args, kwargs = self.wrap(args), {k: self.wrap(v) for k, v in kwargs.items()}
            return self._evaluate_tracked(func, args, kwargs)
        return self.evaluate(func, args, kwargs)

    def reenter(self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Run torch code whose operators come back to this mode, from inside a dispatch (where it
        is off)."""
        outer = torch._C._get_dispatch_mode(_FAKE)
        try:
            if outer is not None:
                torch._C._unset_dispatch_mode(_FAKE)
            torch._C._set_dispatch_mode(self)  # not `with self`: that costs forty times as much
            return function(*args, **kwargs)
        finally:
            # Also where an interrupt comes in between: C++ puts the mode back that it took away
            # for this dispatch, and does not survive it if there is one.
            try:
                torch._C._unset_dispatch_mode(_FAKE)
            finally:
                if outer is not None:
                    torch._C._set_dispatch_mode(outer)

    def types(self, args: Any, kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """A call's arguments as rules take them: tensors as their types, symbolic numbers as
        expressions."""
        self.saw_constant = False
        types: list[Any] = []
        for value in args:  # `_argument`, with what is most common inlined
            cls = type(value)
            if cls is FakeTensor and value.fake_mode is self and value.constant is None:
                types.append(value.fake_type)
            elif cls in PLAIN:
                types.append(value)
            else:
                types.append(self._argument(value))
        return types, {k: self._argument(v) for k, v in kwargs.items()} if kwargs else kwargs

    def _argument(self, value: Any) -> Any:
        cls = type(value)
        if cls is FakeTensor:
            if value.fake_mode is not self:
                self._refuse_mixed(value)
            if value.constant is not None:
                self.saw_constant = True
            return value.fake_type
        if cls in PLAIN:
            return value
        if cls in LISTS:
            return [self._argument(v) for v in value]
        if cls in SYMBOLIC:
            return unwrap(value)
        if cls is torch.device:
            return concrete_device(value)
        if isinstance(value, torch.Tensor):
            return self.adopt(value).fake_type
        return value

    def adopt(self, tensor: torch.Tensor) -> FakeTensor:
        """A tensor argument as a fake of this mode; real ones only where the mode allows them."""
        if type(tensor) is FakeTensor:
            if tensor.fake_mode is not self:
                self._refuse_mixed(tensor)
            return tensor
        if not self.allow_non_fake_inputs and not isinstance(tensor, FakeTensor):
            raise NonFakeInputError.here(
                f"a real tensor of size {tuple(tensor.shape)} met an operator under a "
                "FakeTensorMode",
                instead="convert it first, mode.from_tensor(x), or build the mode with "
                "allow_non_fake_inputs=True",
            )
        return self.from_tensor(tensor, static_shapes=True)

    def wrap(self, out: Any) -> Any:
        """A rule's answer as fakes and torch's symbolic numbers."""
        cls = out.__class__
        if cls is TensorType:
            return new_fake(self, out)
        if cls is tuple or cls is list:
            wrapped = [
                new_fake(self, o) if o.__class__ is TensorType else self.wrap(o) for o in out
            ]
            return wrapped if cls is list else tuple(wrapped)
        return wrap(out) if cls is Expr or cls is BoolExpr else out

    def _refuse_mixed(self, value: Any) -> None:
        value.check_thread()
        raise MixedModeError.here(
            f"{value!r} belongs to another FakeTensorMode than the one evaluating this operator",
            instead="make all fakes under one mode; mode.from_tensor(other) makes a fake of a fake",
        )


def retire(tensors: Iterable[torch.Tensor]) -> None:
    """From here on every operator on these fakes is refused."""
    for fake in tensors:
        if type(fake) is FakeTensor:
            fake.fake_mode = _OVER


_OVER = FakeTensorMode()
_OVER.thread = RETIRED


def functional(mode: FakeTensorMode, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """A result with memory of its own, by the operator's rule."""
    key = rule_cache.question(mode, record, args, kwargs)
    out = rule_cache.find_answer(mode, key)
    if out is not None:
        return new_fake(mode, out) if out.__class__ is TensorType else mode.wrap(out)
    types, named = mode.types(args, kwargs)
    constant = mode.saw_constant
    out = rule_cache.ask_rule(mode, key, record.rule, types, named)
    fake = new_fake(mode, out) if out.__class__ is TensorType else mode.wrap(out)
    if constant:
        data.propagate_constants(record, args, kwargs, fake)
    return fake


def _ask_again(mode: FakeTensorMode, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """As `functional`, but the rule is asked each time."""
    types, named = mode.types(args, kwargs)
    return mode.wrap(record.rule(*types, **named))  # type: ignore[misc]


def _taken_apart(mode: FakeTensorMode, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    return record.parts(mode, *args, **kwargs)  # type: ignore[misc]


def _view(mode: FakeTensorMode, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    constant = False
    key = rule_cache.question(mode, record, args, kwargs)
    out = rule_cache.find_answer(mode, key)
    if out is None:
        types, named = mode.types(args, kwargs)
        constant = mode.saw_constant
        out = rule_cache.ask_rule(mode, key, record.rule, types, named)
    base = args[0] if args else kwargs[record.argument_names[0]]
    base = base if type(base) is FakeTensor else mode.adopt(base)
    # In inference mode a view of a normal tensor is a normal tensor, else torch cannot track its
    # version.
    if is_inference_mode_enabled() and not _is_inference(base):
        with torch.inference_mode(False):
            fake = _make_views(mode, out, base.fake_storage)
    else:
        fake = _make_views(mode, out, base.fake_storage)
    if constant:
        data.propagate_constants(record, args, kwargs, fake)
    return fake


_is_inference: Any = torch.Tensor.is_inference  # without the tracer's answer


def _make_views(mode: FakeTensorMode, out: Any, storage: FakeStorage) -> Any:
    if out.__class__ is TensorType:
        return new_fake(mode, out, storage)
    return [new_fake(mode, o, storage) for o in out]


def _require_grad(values: Iterable[Any]) -> bool:
    for v in values:
        if isinstance(v, torch.Tensor):
            if is_marked(v):
                return True
        elif type(v) in LISTS and _require_grad(v):
            return True
    return False


@cached_by_identity(20_000)
def _is_composite_out(func: OpOverload) -> bool:
    """`matmul.out` and its like: C++ would ask whether tensors share storage; fakes have none."""
    return operator(func).kind == "out" and fallback.is_composite(func)


# By identity: torch hashes its overloads in Python; the record keeps them alive.
_CACHE = Cache[int, tuple[Strategy, Operator]](__name__, "plans", 20_000)
_PLANS = _CACHE.table


def _plan(func: Any) -> tuple[Strategy, Any]:
    """How calls of this overload are evaluated; chosen once."""
    if isinstance(func, HigherOrderOperator):
        return _launch, func
    record = operator(func)
    return record.evaluation or choose(record, _STRATEGIES), record


_STRATEGIES: Ways[Strategy] = (
    (lambda record: record.parts is not None, _taken_apart),
    (Trait.SHARES_STORAGE, _view),
    (lambda record: record.writes, write),
    # All that follow ask the rule.
    (lambda record: record.rule is None, fallback.evaluate),
    (lambda record: record.data_dependent, data.evaluate),
    (Trait.RULE_READS_SETTINGS, _ask_again),
    (lambda record: record.kind == "view", _view),
    (lambda record: True, functional),
)
"""The first whose condition holds is taken."""


def _launch(mode: FakeTensorMode, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """A Triton kernel, in the fake kernel of a user's operator: it changes no tensor's type."""
    if func._name != "triton_kernel_wrapper_mutation":
        raise UnsupportedFakeError.here(
            f"{func._name} takes functions, and fake tensors cannot run those",
            instead="call the functions themselves",
        )


def detect_fake_mode(*trees: Any) -> FakeTensorMode | None:
    """The one FakeTensorMode of the tensors in `trees`, or else the active one; None if there is
    neither."""
    found: FakeTensorMode | None = None
    for leaf in torch.utils._pytree.tree_leaves(trees):
        if isinstance(leaf, FakeTensor):
            if found is not None and leaf.fake_mode is not found:
                raise MixedModeError("the inputs are fakes of two different FakeTensorModes")
            found = cast(FakeTensorMode, leaf.fake_mode)
    active = torch._C._get_dispatch_mode(_FAKE)
    if found is None and isinstance(active, FakeTensorMode):
        return active
    return found


@contextmanager
def unset_fake_temporarily() -> Iterator[TorchDispatchMode | None]:
    """Inside, no fake mode is active: tensors made and computed here are real."""
    active = torch._C._unset_dispatch_mode(_FAKE)
    lifted = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(False)
    try:
        yield active
    finally:
        torch._C._set_only_lift_cpu_tensors(lifted)
        if active is not None:
            torch._C._set_dispatch_mode(active)
