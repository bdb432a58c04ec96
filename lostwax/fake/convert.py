"""Makes fakes of real tensors: one tensor gives one fake, aliasing tensors give aliasing fakes.

Keeps leaf-ness, `requires_grad`, strides and being a Parameter; never copies data and never keeps a
real tensor alive. Must not decide which sizes are dynamic: the caller says so.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lostwax.classes import TENSORS
from lostwax.errors import UnsupportedFakeError
from lostwax.fake.storage import FakeStorage
from lostwax.fake.symbolic.node import unwrap
from lostwax.fake.tensor import FakeMode, FakeTensor, new_fake
from lostwax.identity import ByIdentity
from lostwax.sym import ShapeEnv, Size, learn
from lostwax.types import (
    Sizes,
    TensorType,
    channels_last_strides,
    contiguous_strides,
    known_concrete,
    unique,
)


class FakeTensorConverter:
    """The memory of one mode: which real tensor and storage became which fake."""

    def __init__(self) -> None:
        self._fakes: dict[int, tuple[weakref.ref[torch.Tensor], FakeTensor]] = {}
        self._storages: dict[int, tuple[StorageWeakRef, weakref.ref[FakeStorage]]] = {}
        self._sweep_at = 256
        self._kept: dict[int, tuple[torch.Tensor, FakeTensor]] = {}
        self._kept_storages: dict[int, tuple[Any, FakeStorage]] = {}
        self._originals: ByIdentity[torch.Tensor, torch.Tensor] = ByIdentity()
        """Of copies."""
        """By the address of the real storage, which is kept alive: `x.data = y` could free it."""

    def keep(self, mode: FakeMode, tensor: torch.Tensor) -> FakeTensor:
        """The fake of a tensor, with its own sizes. The tensor is kept alive until `forget`, which
        is cheaper than a weak reference."""
        key = id(tensor)
        if key in self._kept:
            return self._kept[key][1]
        cls = tensor.__class__
        if cls not in TENSORS:
            return self.from_real_tensor(mode, tensor, static_shapes=True)
        try:
            real = tensor.untyped_storage()
            t = known_concrete(
                tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device
            )
        except RuntimeError:  # it has no storage, or no sizes
            check_supported(tensor)
            raise
        if t is None:
            check_supported(tensor)
            t = unique(_make_type(tensor, tuple(tensor.shape), tensor.stride()))
        memory = real._cdata
        kept = self._kept_storages.get(memory)
        if kept is None:
            made = self._known_storage(memory) if self._storages else None
            kept = (real, FakeStorage(t, real.nbytes()) if made is None else made)
            self._kept_storages[memory] = kept
        storage = kept[1]
        gradient = tensor.requires_grad
        if (not gradient or tensor.is_leaf) and tensor.grad is None:
            fake = new_fake(mode, t, storage, gradient)
            if cls is _Parameter:
                fake._is_param = True
        else:
            fake = self._make(mode, tensor, t, storage)
        self._kept[key] = (tensor, fake)
        return fake

    def lend(self, tensor: torch.Tensor, fake: FakeTensor) -> None:
        """Make this the fake of a tensor, which is kept alive until `forget`."""
        self._kept[id(tensor)] = (tensor, fake)

    def find_fake(self, tensor: torch.Tensor) -> FakeTensor | None:
        """The fake that a tensor has already."""
        kept = self._kept.get(id(tensor))
        if kept is not None:
            return kept[1]
        found = self._fakes.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None

    def find_kept_storage(self, tensor: torch.Tensor) -> FakeStorage | None:
        """The fake storage of a tensor that is kept."""
        known = self._kept_storages.get(tensor.untyped_storage()._cdata)
        return None if known is None else known[1]

    def find_real(self, fake: torch.Tensor) -> torch.Tensor | None:
        """The tensor that a fake was kept for."""
        return next((real for real, kept in self._kept.values() if kept is fake), None)

    def find_original(self, fake: torch.Tensor) -> torch.Tensor:
        """The fake of a real tensor of which it is a copy; else itself."""
        found = self._originals.get(fake)
        return fake if found is None else found

    def note_copy(self, fake: torch.Tensor, copy: torch.Tensor) -> None:
        """It has on it what is on the tensor that the fake, or what that is a copy of, stands
        for."""
        original = self.find_original(fake)
        if self.find_real(original) is not None:
            self._originals[copy] = original

    def forget(self) -> None:
        """Let go of the tensors that were kept; their fakes are not found any more."""
        self._kept, self._kept_storages = {}, {}
        self._originals.clear()

    def from_real_tensor(
        self,
        mode: FakeMode,
        tensor: torch.Tensor,
        *,
        static_shapes: bool | None = None,
        sizes: tuple[Any, ...] | None = None,
        source: str | None = None,
        memoize: bool = True,
    ) -> FakeTensor:
        """The fake of this tensor, made on the first call."""
        if isinstance(tensor, FakeTensor):
            return tensor if tensor.fake_mode is mode else self._of_fake(mode, tensor, sizes)
        kept = self._kept.get(id(tensor)) if sizes is None else None
        if kept is not None:
            return kept[1]
        known = self._fakes.get(id(tensor)) if sizes is None else None
        if known is not None and known[0]() is tensor:
            return known[1]
        check_supported(tensor)
        if tensor.__class__ not in TENSORS:
            if mode.takes_wrappers and is_traceable_wrapper_subclass(tensor):
                return self._of_wrapper(mode, tensor)
            _check_class(tensor)
        env = None if static_shapes else mode.shape_env
        t = _type_of(tensor, env, sizes, source, mode.shape_env)
        fake = self._make(mode, tensor, t, self._storage(tensor, t))
        if memoize:
            self._remember(tensor, fake)
        return fake

    def _remember(self, tensor: torch.Tensor, fake: FakeTensor) -> None:
        key, fakes = id(tensor), self._fakes
        fakes[key] = (weakref.ref(tensor, lambda _: fakes.pop(key, None)), fake)

    def _make(
        self, mode: FakeMode, tensor: torch.Tensor, t: TensorType, storage: FakeStorage
    ) -> FakeTensor:
        fake = new_fake(mode, t, storage, tensor.requires_grad)
        leaf = tensor.is_leaf
        if not leaf:
            with torch.enable_grad():
                fake = _make_result(fake, [new_fake(mode, t, storage)])
        if tensor.__class__ is not torch.Tensor:
            _mark_class(fake, tensor)
        if leaf and tensor.grad is not None:
            fake.grad = self.from_real_tensor(mode, tensor.grad, static_shapes=True)
        return fake

    def _storage(self, tensor: torch.Tensor, t: TensorType) -> FakeStorage:
        if tensor.__class__ in TENSORS:
            real = tensor.untyped_storage()
        else:
            with torch._C._DisableTorchDispatch():
                real = tensor.untyped_storage()
        kept = self._kept_storages.get(real._cdata)
        known = self._known_storage(real._cdata) if kept is None else kept[1]
        if known is not None:
            return known
        storage = FakeStorage(t, real.nbytes())
        self._storages[real._cdata] = (StorageWeakRef(real), weakref.ref(storage))
        if len(self._storages) >= self._sweep_at:  # entries of freed storages must not pile up
            self._storages = {k: v for k, v in self._storages.items() if not v[0].expired()}
            self._sweep_at = max(256, 2 * len(self._storages))
        return storage

    def _known_storage(self, memory: int) -> FakeStorage | None:
        known = self._storages.get(memory)
        return None if known is None or known[0].expired() else known[1]()

    def _of_fake(
        self, mode: FakeMode, fake: FakeTensor, sizes: tuple[Any, ...] | None = None
    ) -> FakeTensor:
        """A fake of another mode's fake, of the same type. Symbolic sizes become those given, or
        the example's."""
        known = self._fakes.get(id(fake)) if sizes is None else None
        if known is not None and known[0]() is fake:
            return known[1]
        t = fake.fake_type.at_example()
        if t is None:
            raise UnsupportedFakeError(
                f"{fake!r} has a size without an example value; no fake can be made of it"
            )
        if sizes is not None:
            t = _resize(t, sizes, mode.shape_env)
        copy = new_fake(mode, t, FakeStorage(t, fake.fake_storage.nbytes), fake.requires_grad)
        if getattr(fake, "_is_param", False):
            copy._is_param = True
        self._remember(fake, copy)
        return copy

    def _of_wrapper(self, mode: FakeMode, tensor: Any) -> Any:
        """A subclass that tells what it wraps keeps its class, and wraps fakes."""
        names, context = tensor.__tensor_flatten__()
        inner = {n: self.from_real_tensor(mode, getattr(tensor, n)) for n in names}
        return type(tensor).__tensor_unflatten__(inner, context, tensor.size(), tensor.stride())


_STRIDED, _Parameter = torch.strided, torch.nn.Parameter


class AutogradResult(torch.autograd.Function):
    """Makes autograd take a fake for a computed result: neither a leaf nor a view of one."""

    @staticmethod
    def forward(ctx: Any, leaf: FakeTensor, made: list[FakeTensor]) -> FakeTensor:
        return made[0]

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, None


# The original `apply`, even while a tracer replaces that of `Function`.
_make_result: Any = super(torch.autograd.Function, AutogradResult).apply


def _mark_class(fake: Any, tensor: torch.Tensor) -> None:
    """`isinstance(fake, nn.Parameter)` and its like hold of a fake as of the real tensor."""
    if isinstance(tensor, torch.nn.Parameter):
        fake._is_param = True
    elif isinstance(tensor, torch.nn.Buffer):
        fake._is_buffer, fake.persistent = True, getattr(tensor, "persistent", True)


def _check_class(tensor: torch.Tensor) -> None:
    """Refuse a subclass that decides itself what operators do: a fake would not do so."""
    cls = type(tensor)
    if is_lazy(tensor):
        raise UnsupportedFakeError.here(
            "a lazy module's parameter has no size before the first call",
            instead="call the module once before: module(*args)",
        )
    if cls.__module__.startswith("torch._subclasses.") or issubclass(cls, torch.nn.Buffer):
        return
    function = getattr(cls.__torch_function__, "__func__", cls.__torch_function__)
    if cls.__torch_dispatch__ is torch.Tensor.__torch_dispatch__ and function in _FUNCTIONS:
        return
    raise UnsupportedFakeError.here(
        f"a tensor of class {cls.__qualname__} cannot be made fake: the class decides itself what "
        "operators do",
        instead="pass the tensors it is made of",
    )


_FUNCTIONS = (
    torch.Tensor.__torch_function__.__func__,  # type: ignore[attr-defined]
    torch._C._disabled_torch_function_impl,
)


def check_supported(tensor: torch.Tensor) -> None:
    """Refuse what has no sizes-and-strides description."""
    what = None
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise UnsupportedFakeError.here(
            "a branch or a loop on data reads a tensor of torch.vmap or torch.func",
            why="it is recorded as an operator, for which these transforms have no rule here",
            instead="ask before the transform, or compute both and choose, torch.where(c, a, b)",
        )
    if tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested:
        return
    if tensor.layout is not torch.strided:
        what = f"a tensor of layout {tensor.layout}"
    elif tensor.is_quantized:
        what = "a quantized tensor"
    elif tensor.is_nested:
        what = "a nested tensor"
    if what is not None:
        raise UnsupportedFakeError.here(
            f"{what} cannot be made fake: lostwax models strided tensors only",
            instead="convert it to a dense strided tensor first",
        )


def _type_of(
    tensor: torch.Tensor,
    env: ShapeEnv | None,
    sizes: tuple[Any, ...] | None,
    source: str | None,
    strides_in: ShapeEnv | None,
) -> TensorType:
    real = tuple(tensor.shape)
    if sizes is None and env is None:
        return unique(_make_type(tensor, real, tensor.stride()))
    size: Sizes = real
    if sizes is not None:
        size = _read_sizes(sizes, real)
    elif env is not None:
        names = [None if source is None else f"{source}.shape[{i}]" for i in range(len(real))]
        size = tuple(env.symbol(hint=r, source=n) for r, n in zip(real, names, strict=True))
    stride = tuple(tensor.stride())
    if size == real:
        return _make_type(tensor, real, stride)
    return _make_type(tensor, size, symbolic_strides(size, real, stride, strides_in, source))


def _read_sizes(sizes: tuple[Any, ...], real: tuple[int, ...]) -> Sizes:
    """The sizes that the caller gives; None is the tensor's own."""
    if len(sizes) != len(real):
        raise ValueError(f"sizes has {len(sizes)} entries for a tensor of {len(real)} dimensions")
    return tuple(r if s is None else unwrap(s) for s, r in zip(sizes, real, strict=True))


def _resize(t: TensorType, sizes: tuple[Any, ...], env: ShapeEnv | None) -> TensorType:
    """The type with other sizes and the strides that follow from them."""
    real: Any = t.size
    stride: Any = t.stride
    size = _read_sizes(sizes, real)
    strides = symbolic_strides(size, real, stride, env)
    return t.replace(size=size, stride=contiguous_strides(size) if strides is None else strides)


def type_of(tensor: torch.Tensor) -> TensorType:
    """The type of a strided tensor, real or fake."""
    if isinstance(tensor, FakeTensor):
        return tensor.fake_type
    return _make_type(tensor, tuple(tensor.shape), tensor.stride())


def _make_type(tensor: torch.Tensor, size: Sizes, stride: Sizes | None) -> TensorType:
    return TensorType(size, tensor.dtype, tensor.device, stride, int(tensor.storage_offset()))


def symbolic_strides(
    size: Sizes,
    real: tuple[int, ...],
    stride: tuple[int, ...],
    env: ShapeEnv | None,
    source: str | None = None,
) -> Sizes | None:
    """The strides of a tensor whose sizes became symbols. Where the layout is dense, in any order,
    they are products of sizes. A stride that does not follow from sizes becomes a symbol of its
    own, of which only its place in the order is known."""
    if stride == contiguous_strides(real):
        return None
    if len(real) in (4, 5) and stride == channels_last_strides(real):
        return channels_last_strides(size)  # if sizes are 1 the order is open; this one is likely
    out: list[Size] = list(stride)
    step: Size = 1
    before: Size = 1
    step_real = 1
    for d in sorted(range(len(real)), key=lambda d: (stride[d], real[d])):
        if stride[d] == 0:
            continue
        if stride[d] == step_real:
            out[d] = step
        elif step.__class__ is not int and env is not None:
            name = None if source is None else f"{source}.stride({d})"
            out[d] = env.symbol(hint=stride[d], lo=1, source=name)
            learn(out[d] >= before)
        before, step, step_real = out[d], out[d] * size[d], stride[d] * real[d]
    return tuple(out)
