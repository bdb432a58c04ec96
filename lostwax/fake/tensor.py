"""FakeTensor: a tensor with sizes, strides, dtype and device, a storage identity, and no data.

It is a wrapper subclass: torch's C++ sees ordinary metadata, every operator arrives at
`__torch_dispatch__`. The truth about a fake is its immutable `fake_type`; the C++ side mirrors it.
A metadata mutation replaces both. Must not evaluate operators itself: that is the mode's business.

A mode sees operators, and nothing else. But Python also asks tensors for their strides, whether
they require a gradient, or of what class they are, and what it does next depends on the answer; and
it sets attributes and copies tensors without an operator. Fakes report that to the `Observer` of
their mode.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from operator import attrgetter
from threading import get_ident
from typing import Any, Protocol

import torch

from lostwax.classes import SYMBOLIC
from lostwax.fake.asked_tensor import (
    ObservedTensor,
    is_marked,
    read_attributes,
    select_attributes,
)
from lostwax.fake.devices import concrete_device, mark_device
from lostwax.fake.refusals import other_class_error, refuse, refuse_use
from lostwax.fake.storage import FakeStorage
from lostwax.fake.symbolic.classes import is_text_read
from lostwax.fake.symbolic.indexing import getitem, setitem
from lostwax.fake.symbolic.layout import is_never_contiguous
from lostwax.fake.symbolic.node import wrap
from lostwax.location import PASSING_ON, Location, user_location
from lostwax.sym import ShapeEnv
from lostwax.types import Sizes, TensorType

PASSING_ON.add(__file__)
_make_wrapper: Any = torch.Tensor._make_wrapper_subclass
_function_modes: Any = torch._C._len_torch_function_stack
_CPU = torch.device("cpu")
_copied: Any = torch.Tensor._make_subclass
_WithoutDispatch: Any = torch._C._DisableTorchDispatch
_STRIDED = torch.strided


class Observer:
    """One who takes note of nothing, and leaves everything to torch."""

    def note_question(self, fake: FakeTensor, what: str) -> None:
        """Python asks a fake something that an operator does not answer: `"stride()"`,
        `"requires_grad"`, `"class"`. Who asks is told by `location.asking_frame`."""

    def make_address(self, address: int) -> int:
        """Where an object lies, as Python is to have it."""
        return address

    def note_missing(self, fake: FakeTensor, name: str) -> None:
        """Python asks a fake for an attribute that it has not got; with no name, for all that it
        has."""

    def note_put(self, fake: FakeTensor, name: str) -> None:
        """Python puts an attribute on a fake, or takes it away: where that is watched."""

    def note_question_at(
        self,
        where: Location | str,
        what: str,
        fakes: Sequence[FakeTensor] = (),
        *,
        is_joint: bool = False,
        found: Any = None,
    ) -> None:
        """A program that runs on fakes asks what its original asked at this line. `is_joint`: it
        asks not the fakes, but what is computed from all of them. A question to torch itself
        (`"torch.is_grad_enabled()"`) has no fakes, but what was found."""

    def note_layout_choice(self, source: FakeTensor, out: FakeTensor, what: str) -> None:
        """By the strides of `source`, `out` shares memory with it, or does not."""

    def has_gradient(self, fake: FakeTensor) -> bool:
        """Does a gradient reach it that autograd does not know of?"""
        return False

    def note_assignment(self, fake: FakeTensor, name: str, value: Any) -> None:
        """`x.requires_grad = value` or `x.grad = value` is about to be done."""

    def note_new_data(self, fake: FakeTensor, other: FakeTensor, before: Any, tracked: Any) -> None:
        """`x.data = y` was done: x was of the type `before`, and this was tracked of it."""

    def hook_gradient(self, fake: FakeTensor, hook: Callable[[Any], Any]) -> Any:
        """`x.register_hook(hook)` is to be done."""
        return torch.Tensor.register_hook(fake, hook)  # type: ignore[no-untyped-call]

    def deep_copy(self, fake: FakeTensor) -> FakeTensor | None:
        """`copy.deepcopy(x)` is to be done. None: a fake copies itself."""
        return None

    def assumes_true(self, fake: FakeTensor) -> bool:
        """Is `bool(x)` a check that holds, unless the arguments of the call are bad?"""
        return False


class Originals(Protocol):
    """A mode's memory of the real tensors that its fakes stand for."""

    def note_copy(self, fake: FakeTensor, copy: FakeTensor) -> None: ...


class FakeMode(Protocol):
    """What a fake asks of its mode, the `FakeTensorMode`."""

    thread: int
    takes_wrappers: bool
    templates: dict[int, Any] | None
    asked_by_cpp: list[tuple[FakeTensor, TensorType]] | None
    absent_device: torch.device | None

    @property
    def observer(self) -> Observer: ...
    @property
    def shape_env(self) -> ShapeEnv | None: ...
    @property
    def fake_tensor_converter(self) -> Originals: ...
    def view(self, fake: FakeTensor, size: tuple[Any, ...]) -> Any: ...
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = ..., kwargs: dict[str, Any] | None = ...
    ) -> Any: ...


class FakeTensor(ObservedTensor):
    """A tensor without data: made by `FakeTensorMode.from_tensor`, or by operators on others."""

    # What every fake has, in slots: most never need a dictionary.
    # And what users see in it is theirs.
    __slots__ = (
        *("_is_parameter", "constant", "constant_version", "fake_mode", "fake_storage"),
        *("fake_type", "memo", "tracked"),
    )

    fake_mode: FakeMode
    memo: Any
    """Answers to data-dependent questions, so that asking twice gives the same symbol; or None."""
    tracked: Any
    """What a tracer knows of this tensor."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    __class__: Any = property(attrgetter("shown_class"))
    """What `x.__class__` shows; `type(x)` is this class, always. All of it is C: torch and Python
    ask for it all the time."""
    shown_class: Any
    """This class; where a capture has it so, what answers the user's Python."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        mode = find_mode((args, kwargs))
        if mode.thread and mode.thread != get_ident():
            refuse_use(mode.thread)
        return mode.__torch_dispatch__(func, types, args, kwargs)

    @property
    def data(self) -> torch.Tensor:
        """The tensor without its history of gradients."""
        return self.detach()

    @data.setter
    def data(self, other: torch.Tensor) -> None:
        """`x.data = y`: C++ takes over y's metadata without a dispatch; so does the type."""
        if not isinstance(other, FakeTensor):
            refuse(self, "assigning a real tensor to `data`", "assign a fake: mode.from_tensor(x)")
        self.check_thread()
        before, tracked = self.fake_type, self.tracked
        _set_data(self, other)
        self.fake_type, self.fake_storage = other.fake_type, other.fake_storage
        self.tracked = other.tracked
        self.take_constant(other)
        if tracked is not None and other.tracked is not None:
            self.fake_mode.observer.note_new_data(self, other, before, tracked)

    def take_constant(self, other: FakeTensor) -> None:
        """Know the value that is known of the other, whose memory this one shows now."""
        self.constant = other.known_constant()
        if self.constant is not None:
            self.constant_version = other.constant_version

    def view(self, *size: Any, **kwargs: Any) -> Any:
        return super().view(*size, **kwargs) if kwargs else self.fake_mode.view(self, size)

    def contiguous(self, *args: Any, **kwargs: Any) -> Any:
        out: Any = None
        t = self.fake_type
        if t.mark is not None and not (args or kwargs or _function_modes()):
            out = self._contiguous(t)
        if out is None:
            self.note_asked_by_cpp()
            out = super().contiguous(*args, **kwargs)
        self.fake_mode.observer.note_layout_choice(self, out, "contiguous()")
        return out

    def _contiguous(self, t: TensorType) -> Any:
        """Where sizes are symbolic, without the questions that C++ would ask of each of them; None:
        it must ask."""
        if t.is_contiguous:
            return self
        if is_never_contiguous(t.size, t.stride):
            return torch.ops.aten.contiguous.default(self)
        return None

    def detach(self) -> torch.Tensor:
        """Another thread may ask for it (`state_dict()` of a module that is being exported), and be
        kept waiting by C++ until the capture is over: so it is refused here, at once."""
        self.check_thread()
        return super().detach()

    def snapshot(self) -> FakeTensor:
        """The same type and storage in another object: what a record keeps, safe from `t_()`."""
        return new_fake(self.fake_mode, self.fake_type, self.fake_storage, is_marked(self))

    def __getitem__(self, index: Any) -> Any:
        return getitem(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        setitem(self, index, value)

    def as_subclass(self, cls: Any) -> Any:
        if cls is not torch.Tensor and not issubclass(cls, FakeTensor):
            raise other_class_error(cls.__name__, user_location())
        return super().as_subclass(cls)

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As `Tensor.to`; a device without an index gets index 0, since no driver can be asked, and
        another tensor's is the one that it is said to be on."""
        if args and isinstance(args[0], torch.Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        elif isinstance(other := kwargs.get("other"), torch.Tensor):
            del kwargs["other"]
            kwargs |= {"device": other.device, "dtype": other.dtype}
        args = tuple(concrete_device(a) for a in args)
        if "device" in kwargs:
            kwargs["device"] = concrete_device(kwargs["device"])
        out: Any = super().to(*args, **kwargs)
        if "memory_format" in kwargs:
            self.fake_mode.observer.note_layout_choice(self, out, "to(memory_format=...)")
        return out  # type: ignore[no-any-return]

    def cuda(self, device: Any = None, *args: Any, **kwargs: Any) -> torch.Tensor:
        where = torch.device("cuda", device) if isinstance(device, int) else device or "cuda"
        return super().to(concrete_device(where), *args, **kwargs)

    def new_tensor(self, data: Any, **options: Any) -> torch.Tensor:  # type: ignore[override]
        """C++ reads plain numbers here, for a tensor that it thinks to be on the CPU; of others a
        capture's `torch.tensor` makes one."""
        if self.fake_type.device == _CPU and not has_symbol(data):
            return super().new_tensor(data, **options)
        given = {name: value for name, value in options.items() if value is not None}
        return torch.tensor(data, **{"dtype": self.dtype, "device": self.device, **given})

    def __deepcopy__(self, memo: dict[int, Any]) -> FakeTensor:
        self.check_thread()
        done = memo.get(id(self))
        if done is not None:
            return done  # type: ignore[no-any-return]
        done = self.fake_mode.observer.deep_copy(self)
        if done is None:
            old = self.fake_storage
            storage = memo.get(id(old))
            if storage is None:
                storage = memo[id(old)] = FakeStorage(self.fake_type, old.nbytes)
            done = new_fake(
                self.fake_mode, self.fake_type, storage, requires_grad=self._requires_grad()
            )
            for mark in ("_is_parameter", "_is_buffer"):
                if getattr(self, mark, False):
                    setattr(done, mark, True)
        memo[id(self)] = done
        if not getattr(self, "_is_parameter", False):  # whose own copies have nothing on them
            own = dict(select_attributes(read_attributes(self)))
            read_attributes(done).update(deepcopy(own, memo))
            self.fake_mode.fake_tensor_converter.note_copy(self, done)
        return done

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        if is_text_read(sys._getframe(1)):
            self.refuse_text()
        t = self.fake_type
        sizes = ", ".join(map(str, t.size))
        parts = [f"size=({sizes}{',' if t.ndim == 1 else ''})", f"dtype={t.dtype}"]
        if t.device != _CPU:
            parts.append(f"device='{t.device}'")
        if self._requires_grad():
            parts.append("requires_grad=True")
        return f"FakeTensor({', '.join(parts)})"


FakeTensor.shown_class = FakeTensor


def has_symbol(value: Any) -> bool:
    """Is it a symbolic number, or is one in these lists?"""
    if type(value) in SYMBOLIC:
        return True
    return isinstance(value, (list, tuple)) and any(map(has_symbol, value))


def new_fake(
    mode: FakeMode,
    t: TensorType,
    storage: FakeStorage | None = None,
    requires_grad: bool = False,
) -> FakeTensor:
    """Make a fake of this type; without a storage it gets one of its own."""
    device = t.device
    if device != _CPU:
        device = _absent(mode, device)
    if t.token is None and (t.mark or (mode.shape_env is not None and t.is_symbolic)):
        template = mode.templates.get(id(t)) if mode.templates and not requires_grad else None
        if template is None:
            fake = _new_symbolic(mode, t, device, requires_grad)
        else:
            guard = _WithoutDispatch()  # `with` would cost more
            try:
                fake = _copied(FakeTensor, template)
            finally:
                del guard  # not left to the traceback of an interrupt: it would die too late
    else:
        # size, strides, offset, memory format, dtype, layout, device, pin memory, requires grad;
        # by position, since names would cost a quarter of the call
        fake = _make_wrapper(
            FakeTensor,
            t.size,
            t.stride,
            t.offset,
            None,
            t.dtype,
            _STRIDED,
            device,
            False,
            requires_grad,
        )
    fake.fake_type = t
    fake.fake_mode = mode
    fake.fake_storage = storage or FakeStorage(t)
    fake.constant = fake.memo = fake.tracked = None
    return fake  # type: ignore[no-any-return]


def _absent(mode: FakeMode, device: torch.device) -> torch.device:
    """What C++ is told of a device that need not be there."""
    if device.type != "meta":
        mode.absent_device = device
    torch._has_compatible_shallow_copy_type = _alike
    return mark_device(device)


def _new_symbolic(mode: FakeMode, t: TensorType, device: torch.device, requires_grad: bool) -> Any:
    """Handing symbols to C++ costs several times what the rest does: of a type that comes again, a
    tensor is kept that nobody sees, and others are copies of it, which C++ makes by itself. (Not of
    one that is made in a branch: C++ takes a size that is constant there for a number.)"""
    env = mode.shape_env
    if mode.templates is None or requires_grad or env is None or env.facts.copied_at is not None:
        return _of_symbols(t, device, requires_grad)
    template = mode.templates[id(t)] = _of_symbols(t, device, False)
    template.fake_type = t  # and keep that one
    with _WithoutDispatch():
        return _copied(FakeTensor, template)


def _of_symbols(t: TensorType, device: torch.device, requires_grad: bool) -> Any:
    # As above; the last is the size of the storage: else C++ multiplies symbols to find one, at
    # three times the cost. A tensor without dimensions may be given where C++ takes a number: it is
    # not told of an offset that it would stumble over.
    return _make_wrapper(
        FakeTensor,
        _wrap_all(t.size),
        _wrap_all(t.stride),
        wrap(t.offset) if t.size else 0,
        None,
        t.dtype,
        _STRIDED,
        device,
        False,
        requires_grad,
        None,
        False,
        False,
        None,
        0,
    )


def _wrap_all(numbers: Sizes) -> list[Any]:
    return [n if n.__class__ is int else wrap(n) for n in numbers]


def set_type(fake: FakeTensor, t: TensorType, storage: FakeStorage | None = None) -> None:
    """Change a fake's metadata in place (`t_`, `resize_`); records that hold snapshots do not
    notice."""
    _set_data(fake, new_fake(fake.fake_mode, t, storage or fake.fake_storage))
    fake.fake_type = t
    fake.constant = None  # it has the sizes of before
    if storage is not None:
        fake.fake_storage = storage


def _set_data(fake: FakeTensor, other: FakeTensor) -> None:
    # Below autograd the question whether they are alike comes to the mode.
    key = torch._C.DispatchKey.AutogradFunctionality
    with (
        torch._C.DisableTorchFunctionSubclass(),
        torch._C._SetExcludeDispatchKeyGuard(key, True),
    ):
        torch.Tensor.data.__set__(fake, other)  # type: ignore[attr-defined]


def _alike(input: Any, from_: Any) -> bool:
    """Can `input.data = from_` be? `nn.Module.to` asks, to keep tied parameters tied. For two fakes
    it can, also where C++ thinks of one on the CPU and one on `meta`. (The names are torch's:
    dynamo compares signatures.)"""
    if isinstance(input, FakeTensor) and isinstance(from_, FakeTensor):
        return True
    return _alike_by_torch(input, from_)  # type: ignore[no-any-return]


_alike_by_torch: Any = torch._has_compatible_shallow_copy_type


def find_mode(tree: Any) -> FakeMode:
    """The mode of the first fake in a tree of call arguments."""
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, FakeTensor):
            return node.fake_mode
        if isinstance(node, (tuple, list)):
            stack.extend(reversed(node))
        elif isinstance(node, dict):
            stack.extend(node.values())
    raise AssertionError("a FakeTensor was dispatched on, but is not among the arguments")


def storage_key(t: torch.Tensor) -> int:
    """Return a number that is equal for tensors that share memory."""
    if isinstance(t, FakeTensor):
        return id(t.fake_storage)
    if t.layout is not torch.strided:
        return id(t)
    return int(t.untyped_storage()._cdata)
