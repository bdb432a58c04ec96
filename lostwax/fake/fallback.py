"""Evaluates operators without a type rule: by the user's `register_fake`, by a decomposition, or by
torch's own meta kernel, in this order.

This is slow next to a rule (hundreds of microseconds) and meant for the long tail. Must not be
needed for operators that real models use often.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch._decomp as decomp
import torch.utils._pytree as pytree
from torch._library.custom_ops import OPDEFS as custom_operators
from torch._library.simple_registry import singleton as custom_registry
from torch._ops import OpOverload

from lostwax.cache import cached, cached_by_identity
from lostwax.errors import (
    CaptureError,
    DataDependentError,
    LostwaxError,
    MissingFakeRuleError,
    UnsupportedFakeError,
)
from lostwax.fake.devices import concrete_device
from lostwax.fake.symbolic.node import unwrap, wrap
from lostwax.fake.tensor import FakeTensor, new_fake, set_type
from lostwax.location import user_location
from lostwax.ops.registry import Operator
from lostwax.ops.shapes import common_device
from lostwax.sym import specialize
from lostwax.types import TensorType

if TYPE_CHECKING:
    from lostwax.fake.mode import FakeTensorMode

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


def evaluate(mode: FakeTensorMode, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """Evaluate a call of an operator that has no rule."""
    func = record.overload
    args, kwargs = _map(args, mode.adopt), {k: _map(v, mode.adopt) for k, v in kwargs.items()}
    kernel = mode.kernels.get(func) or user_kernel(func)
    if kernel is not None:
        with mode.give_context(_FakeContext(mode, func)):
            out = mode.reenter(kernel, args, kwargs)
        _check_returned(func, out)
        return out
    if is_composite(func):
        return run_cpp_parts(mode, func, args, kwargs)
    if func._schema.name in custom_operators:
        if not func._schema.returns:
            return None
        raise _missing_rule_error(func)
    _refuse_layouts(func)
    decompose = torch_decompositions().get(func)
    if decompose is not None:
        return mode.reenter(decompose, args, kwargs)
    return _run_on_meta(mode, record, args, kwargs)


# ---------------------------------------------------------------------- the user's own fake kernels


def user_kernel(func: OpOverload) -> Callable[..., Any] | None:
    """What `torch.library.register_fake` registered for this operator."""
    name = func._schema.name
    definition = custom_operators.get(name)
    if definition is not None and definition._abstract_fn is None:
        return None  # torch has registered a kernel that only raises
    kernel: Callable[..., Any] | None = custom_registry.find(name).fake_impl.kernel
    return kernel


class _FakeContext:
    """What `torch.library.get_ctx()` returns to a user's fake kernel."""

    def __init__(self, mode: FakeTensorMode, func: OpOverload) -> None:
        self._env, self._name = mode.shape_env, func._schema.name

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> Any:
        """A size that only the data know, at least `min`."""
        if self._env is None:
            raise DataDependentError.here(
                f"the fake kernel of {self._name} asks for a dynamic size, and this "
                "FakeTensorMode has no ShapeEnv",
                instead="build the mode with FakeTensorMode(shape_env=ShapeEnv())",
            )
        if min < 0:
            raise ValueError(f"new_dynamic_size(min={min}): a size cannot be negative")
        origin = f"{self._name} at {user_location()}"
        return wrap(self._env.unbacked(lo=min, hi=max, origin=origin))

    create_unbacked_symint = new_dynamic_size


def _check_returned(func: OpOverload, out: Any) -> None:
    """Refuse results of a fake kernel that do not fit the schema: C++ would crash on them."""
    returns = [r.type for r in func._schema.returns]
    is_one = len(returns) == 1
    given = (out,) if is_one else out
    is_listed = isinstance(given, (tuple, list)) and len(given) == len(returns)
    if not returns or (is_listed and all(map(_has_type, returns, given))):
        return
    said = ", ".join(map(str, returns))
    raise CaptureError.here(
        f"the fake kernel of {func._schema.name} returns {_describe(out)}, and the operator "
        f"{said if is_one else f'({said})'}",
        instead=f'return that from the function under register_fake("{func._schema.name}")',
    )


def _has_type(kind: Any, value: Any) -> bool:
    """Has the value this type of a schema? Only tensors and lists of tensors are checked."""
    if isinstance(kind, torch.TensorType):
        return isinstance(value, torch.Tensor)
    if isinstance(kind, torch.ListType) and isinstance(kind.getElementType(), torch.TensorType):
        return isinstance(value, (list, tuple)) and all(isinstance(v, torch.Tensor) for v in value)
    return not isinstance(value, torch.Tensor) or isinstance(kind, torch.OptionalType)


def _describe(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_describe, value))})"
    return "Tensor" if isinstance(value, torch.Tensor) else type(value).__name__


# ----------------------------------------------------------------------------------- decompositions


@cached_by_identity(20_000)
def is_composite(func: OpOverload) -> bool:
    # This asks C++: torch's Python also counts decompositions that it has beside kernels.
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def run_cpp_parts(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
    """Evaluate a composite operator as torch's C++ takes it apart."""
    return run_or_specialize(mode, partial(func._op_dk, _COMPOSITE), args, kwargs)


def run_or_specialize(
    mode: FakeTensorMode, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]
) -> Any:
    """Run C++ that takes a composite operator apart. If it cannot deal with symbolic sizes (it
    reads plain ones, or takes no size for 1 unless it must be), run it again on the example's
    sizes, which costs a guard."""
    if mode.asked_by_cpp is not None:
        for value in pytree.tree_leaves((args, kwargs)):
            if isinstance(value, FakeTensor):
                value.note_asked_by_cpp()
    try:
        return mode.reenter(function, args, kwargs)
    except LostwaxError:
        raise
    except RuntimeError:
        if not _has_symbolic(args) and not _has_symbolic(kwargs.values()):
            raise
    args, kwargs = _specialize(args), {k: _specialize(v) for k, v in kwargs.items()}
    return mode.reenter(function, args, kwargs)


def _has_symbolic(values: Iterable[Any]) -> bool:
    return any(
        v.fake_type.is_symbolic
        if isinstance(v, FakeTensor)
        else isinstance(v, torch.SymInt) or (isinstance(v, (list, tuple)) and _has_symbolic(v))
        for v in values
    )


def _specialize(value: Any) -> Any:
    if isinstance(value, torch.SymInt):
        return specialize(unwrap(value))
    if isinstance(value, (list, tuple)):
        return type(value)([_specialize(v) for v in value])
    if isinstance(value, FakeTensor) and value.fake_type.is_symbolic:
        t = value.fake_type
        size, stride = tuple(map(specialize, t.size)), tuple(map(specialize, t.stride))
        set_type(value, t.replace(size=size, stride=stride, offset=specialize(t.offset)))
    return value


@contextmanager
def without_mkldnn() -> Iterator[None]:
    """A context in which composite operators use no kernel that only some processors have."""
    # Not by `torch.backends.mkldnn.flags`, which sets more, and warns about it.
    before = torch._C._get_mkldnn_enabled()
    _set_mkldnn(False)
    try:
        yield
    finally:
        _set_mkldnn(before)


_set_mkldnn: Any = torch._C._set_mkldnn_enabled  # the original: a capture watches who else calls it


@cached()
def torch_decompositions() -> dict[Any, Callable[..., Any]]:
    """torch's table of decompositions, for the long tail."""
    table: dict[Any, Callable[..., Any]] = decomp.decomposition_table
    return table


# ------------------------------------------------------------------------------------- meta kernels


def _run_on_meta(mode: FakeTensorMode, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run the operator on tensors of the `meta` device with the same sizes, and read the result's
    types."""
    func = record.overload
    twins: dict[FakeTensor, torch.Tensor] = {}

    def to_meta(fake: FakeTensor) -> torch.Tensor:
        if fake not in twins:
            twins[fake] = _meta_tensor(fake.fake_type)
        return twins[fake]

    meta_args = _map(args, to_meta)
    meta_kwargs = {k: _map(v, to_meta) for k, v in kwargs.items()}
    device = concrete_device(kwargs.get("device"))
    if device is not None:
        meta_kwargs["device"] = torch.device("meta")
    try:
        with torch.no_grad():
            out = func(*meta_args, **meta_kwargs)
    except NotImplementedError as error:
        raise _missing_rule_error(func) from error
    if device is None:
        device = common_device([f.fake_type for f in twins]) if twins else torch.device("cpu")
    for fake, twin in twins.items():
        _follow_mutation(fake, twin)
    return _to_fakes(mode, record, args, kwargs, out, {id(m): f for f, m in twins.items()}, device)


def _meta_tensor(t: TensorType) -> torch.Tensor:
    size, stride = tuple(wrap(s) for s in t.size), tuple(wrap(s) for s in t.stride)
    return torch.empty_strided(size, stride, dtype=t.dtype, device="meta")


def _follow_mutation(fake: FakeTensor, twin: torch.Tensor) -> None:
    """The kernel may have changed sizes in place (`resize_`)."""
    size = tuple(unwrap(s) for s in twin.shape)
    if len(size) != fake.fake_type.ndim or (
        size != fake.fake_type.size and not fake.fake_type.is_symbolic
    ):
        set_type(fake, _type_of(twin, fake.fake_type.device))


def _type_of(meta: torch.Tensor, device: torch.device) -> TensorType:
    size = tuple(unwrap(s) for s in meta.shape)
    stride = tuple(unwrap(s) for s in meta.stride())
    return TensorType(size, meta.dtype, device, stride, unwrap(meta.storage_offset()), meta.layout)


def _to_fakes(
    mode: FakeTensorMode,
    record: Operator,
    args: Any,
    kwargs: dict[str, Any],
    out: Any,
    origins: dict[int, FakeTensor],
    device: torch.device,
) -> Any:
    def convert(value: Any, at: int) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(convert(v, at) for v in value)
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in origins:
            return origins[id(value)]
        viewed = record.results[at].argument if at < len(record.results) else None
        storage = None
        if viewed is not None:
            position = record.argument_names.index(viewed)
            source = args[position] if position < len(args) else kwargs.get(viewed)
            storage = source.fake_storage if isinstance(source, FakeTensor) else None
        return new_fake(mode, _type_of(value, device), storage)

    if isinstance(out, tuple):
        return tuple(convert(v, i) for i, v in enumerate(out))
    return convert(out, 0)


def _refuse_layouts(func: OpOverload) -> None:
    """Nested and sparse tensors have no sizes and strides that a type could hold."""
    namespace, _, name = func._schema.name.partition("::")
    if namespace == "quantized":
        raise UnsupportedFakeError.here(
            f"{func._schema.name} works on quantized tensors and packed weights, which programs "
            "cannot have",
            instead="export the module as it was before it was quantized",
        )
    if func._schema.name in ("aten::set", "aten::set_"):
        raise UnsupportedFakeError.here(
            "the storage of a tensor needs its data, and a fake tensor has none",
            instead="compute with the tensor, not with its storage",
        )
    for kind, instead in _LAYOUTS.items():
        named = kind in name and kind != "mkldnn"  # most of those take and give dense tensors
        if namespace == "aten" and (named or _BY_NAME.get(name) == kind):
            raise UnsupportedFakeError.here(
                f"{name} deals with {kind} tensors, which cannot be fake, and programs cannot have",
                instead=f"{instead}",
            )


_LAYOUTS = {
    "nested": "a padded tensor with a mask of what is padding",
    "sparse": "a dense tensor, or indices and values as two tensors",
    "mkldnn": "a dense tensor; who runs the program chooses its kernels",
    "quantized": "integers with their scale as tensors, or torch.fake_quantize_per_tensor_affine",
}


_BY_NAME = {
    "quantize_per_tensor": "quantized",
    "quantize_per_tensor_dynamic": "quantized",
    "quantize_per_channel": "quantized",
    "dequantize": "quantized",
    "to_mkldnn": "mkldnn",
}


def _missing_rule_error(func: OpOverload) -> MissingFakeRuleError:
    name = func._schema.name
    arguments = ", ".join(a.name for a in func._schema.arguments)
    function = name.partition("::")[2]
    returned = ", ".join(_EXAMPLES.get(str(r.type), "...") for r in func._schema.returns)
    error = MissingFakeRuleError(
        f"nothing is known of what {name} returns: it has no fake kernel, no decomposition and no "
        f"meta kernel.\n"
        f"  at {user_location()}\n  instead: register one,\n"
        f'    @torch.library.register_fake("{name}")\n    def {function}_fake({arguments}):\n'
        f"        return {returned}{_ABOUT_TENSORS if 'empty_like' in returned else ''}"
    )
    error.operator = func
    return error


_EXAMPLES = {
    "Tensor": "torch.empty_like(...)",
    "List[Tensor]": "[torch.empty_like(...)]",
    "int": "torch.library.get_ctx().new_dynamic_size()",
}
_ABOUT_TENSORS = "  # a tensor of the result's size, dtype and device"


# ------------------------------------------------------------------------------------ small matters


@cached(1000)
def is_foreign(cls: Any) -> bool:
    """A tensor subclass that handles operators itself."""
    if issubclass(cls, (FakeTensor, torch.nn.Parameter)):
        return False
    return cls is not torch.Tensor and cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def leave_to_class(mode: FakeTensorMode, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """A tensor of a class that handles operators itself gets its chance first. It sees the parts of
    composite operators, as in eager, where C++ takes these apart before."""
    if mode.shape_env is None or func.__class__ is not OpOverload:
        return NotImplemented
    if not is_composite(func):
        return mode.track_foreign(func, args, kwargs)
    return mode.reenter(partial(func._op_dk, _COMPOSITE), args, kwargs)


def _map(value: Any, convert: Callable[[Any], Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return convert(value)
    if isinstance(value, (list, tuple)):
        return type(value)([_map(v, convert) for v in value])
    return value
