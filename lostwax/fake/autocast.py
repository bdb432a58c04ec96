"""Autocast: torch's own kernels decide which operators compute in a lower precision.

C++ casts before an operator reaches the mode, but only on the CPU, since to C++ a fake of another
device is on `meta`; and only operators that the program calls, not those into which the mode takes
them apart. For all others, torch's autocast kernel is called here, with stand-ins that tell it the
device. So no list of operators is needed. Must not cast anything itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch._ops import OpOverload

from lostwax.cache import cached, cached_by_identity
from lostwax.classes import list_nested
from lostwax.errors import UnsupportedFakeError
from lostwax.fake import fallback
from lostwax.fake.asked_tensor import is_marked_leaf
from lostwax.fake.symbolic.node import wrap
from lostwax.fake.tensor import FakeTensor
from lostwax.identity import ByIdentity, Seen
from lostwax.location import Location
from lostwax.ops.registry import operator
from lostwax.ops.traits import Trait
from lostwax.sym import Expr

if TYPE_CHECKING:
    from lostwax.fake.mode import FakeTensorMode

Run = Callable[[OpOverload, Any, dict[str, Any]], Any]

_C: Any = torch._C
DEVICES: tuple[str, ...] = tuple(_C._autocast_supported_devices())
"""The types of devices that have autocast, whether they are available or not."""
CASTABLE = (torch.float32, torch.float16, torch.bfloat16)
"""The dtypes that autocast casts; it leaves float64 alone."""
_KEYS = _C.DispatchKey.__members__
_AUTOGRAD = (_C.DispatchKey.AutogradFunctionality, _C.DispatchKey.ADInplaceOrView)
_AsOnEntry: Any = _C._RestorePythonTLSSnapshot
_is_any_enabled: Any = _C._is_any_autocast_enabled
_META = torch.device("meta")
_DEVICE_ASKED = torch.ops.prim.device.default


without_autocast: Any = _C._DisableAutocast
"""A context in which autocast is off for every device, for what is not the user's computation."""


def is_entered() -> bool:
    """Are we inside `with torch.autocast(...)`? The answer is right even inside a dispatch, which
    switches autocast off."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting() > 0


def find_enabled() -> tuple[str, ...]:
    """The types of devices for which autocast is on."""
    return tuple(filter(torch.is_autocast_enabled, DEVICES)) if _is_any_enabled() else ()


def find_enabled_on_entry() -> tuple[str, ...]:
    """The types of devices for which it was on before a dispatch switched it off."""
    with _AsOnEntry():
        return find_enabled()


@contextmanager
def enabled_as_on_entry() -> Iterator[None]:
    """Inside, it is as it was before a dispatch switched it off."""
    with ExitStack() as stack:
        for device in find_enabled_on_entry():
            stack.enter_context(torch.autocast(device, torch.get_autocast_dtype(device)))
        yield


def dispatch(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, call: Run) -> Any:
    """Evaluate an operator that C++ hands to the mode, by `call`, with the casts of autocast."""
    around = mode.casts
    if around is not None:  # it is a part of another operator
        return evaluate_part(mode, func, args, kwargs, call)
    on = find_enabled_on_entry()
    if not on:
        return call(func, args, kwargs)
    # On the CPU, C++ has already cast the arguments if it has an autocast kernel.
    is_cast = "cpu" in on and "cpu" in _devices(args, kwargs) and _kernel(func, "cpu") is not None
    try:
        mode.casts = () if is_cast else on
        return evaluate_part(mode, func, args, kwargs, call)
    finally:
        mode.casts = None


def evaluate_part(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, call: Run) -> Any:
    """Evaluate an operator into which another one is taken apart."""
    around = mode.casts
    if not around:
        return call(func, args, kwargs)
    there = _devices(args, kwargs)
    if Trait.PARTS_ARE_CAST in operator(func).traits:
        return mode.reenter(_find_parts(func), args, kwargs)
    for device in around:
        kernel = _kernel(func, device) if device in there else None
        if kernel is not None:
            try:
                mode.casts = tuple(each for each in around if each != device)
                return _run_kernel(mode, kernel, args, kwargs, call)
            finally:
                mode.casts = around
    whole = mode.higher_order.get("wrap_with_autocast")
    if whole and not there.isdisjoint(around) and _may_cast_inside(func, args, kwargs):
        return whole(mode, func, args, kwargs, call)
    return call(func, args, kwargs)


def is_cast(func: Any, devices: Iterable[str]) -> bool:
    """Does autocast of one of these devices have a say in this operator?"""
    if not isinstance(func, OpOverload) or Trait.PARTS_ARE_CAST in operator(func).traits:
        return True
    return any(_kernel(func, device) is not None for device in devices)


_OF_TORCH = ("aten", "prims", "prim", "profiler", "_c10d_functional", "quantized_decomposed")
_PARTS = _C.DispatchKey.CompositeExplicitAutogradNonFunctional


@cached_by_identity(20_000)
def _find_parts(func: OpOverload) -> Callable[..., Any]:
    return partial(func._op_dk, _PARTS)


def _may_cast_inside(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> bool:
    """Is it a custom operator that a program calls as a whole, whose kernel may depend on
    autocast?"""
    if func.namespace in _OF_TORCH or fallback.is_composite(func):
        return False
    given = (t.fake_type.dtype for t in list_nested((*args, *kwargs.values()), FakeTensor))
    return any(dtype in CASTABLE for dtype in given)


def _devices(args: Any, kwargs: dict[str, Any]) -> set[str]:
    return {t.fake_type.device.type for t in list_nested((*args, *kwargs.values()), FakeTensor)}


def _kernel(func: OpOverload, device: str) -> Callable[..., Any] | None:
    """The autocast kernel of this operator. Only those of ATen are cached: a user may register one
    for a custom operator later."""
    return _known_kernel(func, device) if func.namespace == "aten" else _find_kernel(func, device)


def _find_kernel(func: OpOverload, device: str) -> Callable[..., Any] | None:
    name = _key(device)
    if not _C._dispatch_has_kernel_for_dispatch_key(func.name(), name):
        return None
    if name not in _KEYS:
        raise UnsupportedFakeError.here(
            f"torch.autocast({device!r}) around {func} cannot be followed: torch does not show "
            f"its kernels for {device} to Python",
            instead="cast with x.to(dtype)",
        )
    key = _KEYS[name]
    return lambda *args, **kwargs: func._op_dk(key, *args, **kwargs)


_known_kernel = cached(1000)(_find_kernel)


def _key(device: str) -> str:
    is_own = device == _C._get_privateuse1_backend_name()
    return "AutocastPrivateUse1" if is_own else f"Autocast{device.upper()}"


def _run_kernel(
    mode: FakeTensorMode,
    kernel: Callable[..., Any],
    args: Any,
    kwargs: dict[str, Any],
    call: Run,
) -> Any:
    def show(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return make_stand_in(mode, mode.adopt(value))
        if isinstance(value, Expr):
            return wrap(value)
        return [show(v) for v in value] if isinstance(value, (list, tuple)) else value

    off = [_C._dispatch_tls_is_dispatch_key_excluded(key) for key in _AUTOGRAD]
    stand_ins = mode.stand_ins
    before, stand_ins.call = stand_ins.call, call
    try:
        for key in _AUTOGRAD:  # or C++ would take the stand-ins' operators apart
            _C._dispatch_tls_set_dispatch_key_excluded(key, True)
        out = kernel(*map(show, args), **{k: show(v) for k, v in kwargs.items()})
    finally:
        stand_ins.call = before
        for key, was in zip(_AUTOGRAD, off, strict=True):
            _C._dispatch_tls_set_dispatch_key_excluded(key, was)
    return _to_fakes(out)


class _AutocastStandIn(torch.Tensor):
    """What torch's autocast kernels get instead of a fake: a tensor that has the fake's device."""

    __slots__ = ("fake",)
    fake: FakeTensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        mode = cast("FakeTensorMode", next(list_nested(args, _AutocastStandIn)).fake.fake_mode)
        if func is _DEVICE_ASKED:
            return args[0].fake.fake_type.device
        given = {k: _to_fakes(v) for k, v in (kwargs or {}).items()}
        call = mode.stand_ins.call
        assert call is not None
        return _replace(mode, call(func, _to_fakes(args), given))


class MadeAutocasts:
    """The objects of `torch.autocast` that were made in one capture."""

    __slots__ = ("made", "unsure")

    def __init__(self) -> None:
        self.made = Seen()
        self.unsure: Location | None = None
        """The line where another one was entered, which torch may have switched off."""


class ParameterStandIns(ByIdentity[FakeTensor, _AutocastStandIn]):
    """The stand-ins of one mode's parameters. While a kernel of torch runs, `call` evaluates the
    operators that it calls on stand-ins."""

    __slots__ = ("call",)

    def __init__(self) -> None:
        super().__init__()
        self.call: Run | None = None


def make_stand_in(mode: FakeTensorMode, fake: FakeTensor) -> _AutocastStandIn:
    """The stand-in of a fake. A parameter keeps its own, since torch caches its cast."""
    is_kept = is_marked_leaf(fake)
    found = mode.stand_ins.get(fake) if is_kept else None
    if found is None:
        found = torch.Tensor._make_wrapper_subclass(
            _AutocastStandIn, (), dtype=fake.fake_type.dtype, device=_META, dispatch_device=True,
            requires_grad=is_kept,
        )  # fmt: skip
        found.fake = fake
        if is_kept:
            mode.stand_ins[fake] = found
    return found


def _replace(mode: FakeTensorMode, out: Any) -> Any:
    if isinstance(out, FakeTensor):
        return make_stand_in(mode, out)
    return type(out)([_replace(mode, o) for o in out]) if isinstance(out, (list, tuple)) else out


def _to_fakes(value: Any) -> Any:
    if isinstance(value, _AutocastStandIn):
        return value.fake
    return type(value)([_to_fakes(v) for v in value]) if isinstance(value, (list, tuple)) else value
