"""FakeTensor: a tensor with sizes, strides, dtype and device, a storage identity, and no data.

It is a wrapper subclass: torch's C++ sees ordinary metadata, every operator arrives at
`__torch_dispatch__`. The truth about a fake is its immutable `fake_type`; the C++ side mirrors it.
A metadata mutation replaces both. Must not evaluate operators itself: that is the mode's business.
"""

from __future__ import annotations

import sys
from operator import attrgetter
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn, Self

import torch

from lostwax.branches import way_on
from lostwax.errors import CaptureError, UnsupportedFakeError
from lostwax.fake.symbolic.indexing import getitem, setitem
from lostwax.fake.symbolic.layout import is_never_contiguous
from lostwax.fake.symbolic.node import decide_put_off, wrap
from lostwax.location import PASSING_ON, Location, asking_frame, user_location
from lostwax.sym import Size
from lostwax.types import Sizes, TensorType, product, visible_strides

if TYPE_CHECKING:
    from lostwax.fake.mode import FakeTensorMode

UNSURE_STRIDE = "stride() of what is not row-major"
"""There a stride may be another one when a size is 0."""
LAYOUT_QUESTIONS = frozenset((UNSURE_STRIDE, "stride()", "storage_offset()", "is_contiguous()"))
"""Questions that are answered by how a tensor lies in memory."""
PASSING_ON.add(__file__)
_make_wrapper: Any = torch.Tensor._make_wrapper_subclass
_function_modes: Any = torch._C._len_torch_function_stack
_CPU = torch.device("cpu")
_copied: Any = torch.Tensor._make_subclass
_WithoutDispatch: Any = torch._C._DisableTorchDispatch
_META = torch.device("meta")
_STRIDED = torch.strided
_RECURRENT = torch.nn.modules.rnn.__file__
_own_requires_grad: Any = torch._C.TensorBase.requires_grad
_own_is_leaf: Any = torch._C.TensorBase.is_leaf
_own_grad_fn: Any = torch._C.TensorBase.grad_fn
_own_grad: Any = torch._C.TensorBase.grad
_own_version: Any = torch._C.TensorBase._version
_own_base: Any = torch._C.TensorBase._base


class FakeStorage:
    """The memory a family of views shares: an identity, a size, and a count of the writes to it."""

    __slots__ = ("__weakref__", "_first", "_nbytes", "version")

    def __init__(self, first: TensorType, nbytes: Size | None = None) -> None:
        self._first = first
        self._nbytes = nbytes
        self.version = 0

    @property
    def first(self) -> TensorType:
        """The type it was made for."""
        return self._first

    @property
    def device(self) -> torch.device:
        return self._first.device

    @property
    def nbytes(self) -> Size:
        """Its size; counted when asked, since it is made for every new tensor."""
        if self._nbytes is None:
            self._nbytes = _extent(self._first)
        return self._nbytes

    def __repr__(self) -> str:
        return f"FakeStorage({self.nbytes} bytes, {self.device})"


def is_marked(tensor: torch.Tensor) -> bool:
    """Does autograd know that it requires a gradient? What C++ says, at its speed."""
    return _own_requires_grad.__get__(tensor)  # type: ignore[no-any-return]


def is_marked_leaf(tensor: torch.Tensor) -> bool:
    """Was it said to require a gradient, and not made of others that do?"""
    return _own_requires_grad.__get__(tensor) and _own_is_leaf.__get__(tensor)  # type: ignore[no-any-return]


class FakeTensor(torch.Tensor):
    """A tensor without data: made by `FakeTensorMode.from_tensor`, or by operators on others."""

    # What every fake has, in slots: most never need a dictionary.
    __slots__ = ("_is_parameter", "constant", "fake_mode", "fake_storage", "fake_type", "tracked")

    fake_type: TensorType
    fake_storage: FakeStorage
    fake_mode: FakeTensorMode
    constant: torch.Tensor | None
    """The real value of a tiny constant; trusted only while the storage is unwritten."""
    constant_version: int
    memo: Any = None
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
            refuse_use(mode)
        return mode.__torch_dispatch__(func, types, args, kwargs)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The modelled device; the C++ side of a non-CPU fake is `meta`, so that no driver is
        needed."""
        return self.fake_type.device

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return self.fake_type.device.type == "cuda"

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return self.fake_type.device.type == "cpu"

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        return self.fake_type.device.type == "meta"

    @property
    def data(self) -> torch.Tensor:
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
        self.constant = other.known_constant()
        if self.constant is not None:
            self.constant_version = other.constant_version
        if tracked is not None and other.tracked is not None:
            self.fake_mode.observer.data_assigned(self, other, before, tracked)

    # What Python may ask of a tensor, beside its type: where the user's does, a tracer takes note.

    @property
    def requires_grad(self) -> bool:
        """Also where autograd does not see the operators, and a tracer knows better."""
        self.fake_mode.observer.asked(self, "requires_grad")
        return self._requires_grad()

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.check_thread()
        self.fake_mode.observer.assigning(self, "requires_grad", value)
        _own_requires_grad.__set__(self, value)

    def _requires_grad(self) -> bool:
        return _own_requires_grad.__get__(self) or self.fake_mode.observer.has_gradient(self)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        self.requires_grad = requires_grad
        return self

    @property
    def grad(self) -> torch.Tensor | None:
        self.fake_mode.observer.asked(self, "grad is None")
        return _own_grad.__get__(self)  # type: ignore[no-any-return]

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        self.check_thread()
        self.fake_mode.observer.assigning(self, "grad", value)
        _own_grad.__set__(self, value)

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    @property
    def grad_fn(self) -> Any:  # type: ignore[override]
        """Where autograd does not see the operators there is none to show."""
        self.fake_mode.observer.asked(self, "grad_fn is None")
        found = _own_grad_fn.__get__(self)
        if found is None and not is_marked(self) and self.fake_mode.observer.has_gradient(self):
            raise UnsupportedFakeError(
                f"grad_fn of {self!r} was asked for, and a capture keeps no graph for backward.\n"
                f"  at {user_location()}\n"
                "  instead: to know whether it has a gradient, x.requires_grad and x.is_leaf"
            )
        return found

    @property
    def is_leaf(self) -> bool:  # type: ignore[override]
        self.fake_mode.observer.asked(self, "is_leaf")
        if not _own_is_leaf.__get__(self):
            return False
        return _own_requires_grad.__get__(self) or not self._requires_grad()

    @property
    def _version(self) -> int:  # type: ignore[override]
        self.fake_mode.observer.asked(self, "_version")
        return _own_version.__get__(self)  # type: ignore[no-any-return]

    @property
    def _base(self) -> torch.Tensor | None:  # type: ignore[override]
        self.fake_mode.observer.asked(self, "_base is None")
        return _own_base.__get__(self)  # type: ignore[no-any-return]

    @property
    def _is_param(self) -> bool:
        """`isinstance(x, nn.Parameter)` asks it."""
        self.fake_mode.observer.asked(self, "class")
        return getattr(self, "_is_parameter", False)

    @_is_param.setter
    def _is_param(self, value: bool) -> None:
        self._is_parameter = value

    def is_inference(self) -> bool:
        self.fake_mode.observer.asked(self, "is_inference()")
        given = self._real_one()
        return super().is_inference() if given is None else given.is_inference()

    def is_conj(self) -> bool:
        self.fake_mode.observer.asked(self, "is_conj()")
        given = self._real_one()
        return super().is_conj() if given is None else given.is_conj()

    def is_neg(self) -> bool:
        self.fake_mode.observer.asked(self, "is_neg()")
        given = self._real_one()
        return super().is_neg() if given is None else given.is_neg()

    def _is_view(self) -> bool:
        self.fake_mode.observer.asked(self, "_is_view()")
        given = self._real_one()
        return super()._is_view() if given is None else given._is_view()

    def untyped_storage(self) -> Any:
        self.fake_mode.observer.asked(self, "untyped_storage().nbytes()")
        return super().untyped_storage()

    def __getattr__(self, name: str) -> Any:
        """What a user has put on the real tensor."""
        if not name.startswith("_"):
            self.fake_mode.observer.asked(self, f"attribute {name}")
            real = self._real_one()
            if real is not None and name in vars(real):
                return vars(real)[name]
        raise AttributeError(f"'Tensor' object has no attribute {name!r}")

    def _real_one(self) -> torch.Tensor | None:
        """The tensor that it stands for, if it is one that a program is given."""
        return self.fake_mode.fake_tensor_converter.real_one(self)

    def get_device(self) -> int:
        index = self.fake_type.device.index
        return -1 if index is None else index

    def stride(self, *args: Any, **kwargs: Any) -> Any:
        t = self.fake_type
        if not t.is_symbolic:
            self.fake_mode.observer.asked(self, "stride()")
            return super().stride(*args, **kwargs)
        strides = visible_strides(t, self.fake_storage.first)
        self.fake_mode.observer.asked(self, UNSURE_STRIDE if strides is t.stride else "stride()")
        return _strides(tuple(map(wrap, strides)), *args, **kwargs)

    def storage_offset(self) -> Any:
        self.fake_mode.observer.asked(self, "storage_offset()")
        return super().storage_offset()

    def is_contiguous(self, *args: Any, **kwargs: Any) -> bool:
        self.fake_mode.observer.asked(self, "is_contiguous()")
        return super().is_contiguous(*args, **kwargs)

    def view(self, *size: Any, **kwargs: Any) -> Any:
        """What a tracer knows need not go through C++, which reads the sizes one by one."""
        return super().view(*size, **kwargs) if kwargs else self.fake_mode.view(self, size)

    def contiguous(self, *args: Any, **kwargs: Any) -> Any:
        out: Any = None
        t = self.fake_type
        if t.mark is not None and not (args or kwargs or _function_modes()):
            out = self._contiguous(t)
        if out is None:
            out = super().contiguous(*args, **kwargs)
        self.fake_mode.observer.layout_decided(self, out, "contiguous()")
        return out

    def _contiguous(self, t: TensorType) -> Any:
        """Where sizes are symbolic, without the questions that C++ would ask of each of them; None:
        it must ask."""
        if t.is_contiguous:
            return self
        if is_never_contiguous(t.size, t.stride):
            return torch.ops.aten.contiguous.default(self)
        return None

    def retain_grad(self) -> None:
        self.check_thread()
        if self._requires_grad() and not is_marked(self):
            raise UnsupportedFakeError(
                f"retain_grad() of {self!r}, which the program only computes.\n"
                f"  at {user_location()}\n"
                "  why: a program leaves no gradients behind in its values\n"
                "  instead: call it on what the program returns, or not while exporting: "
                "if not torch.compiler.is_exporting()"
            )
        super().retain_grad()

    def register_hook(self, hook: Any) -> Any:
        self.check_thread()
        return self.fake_mode.observer.hook_gradient(self, hook)

    def detach(self) -> torch.Tensor:
        """Another thread may ask for it (`state_dict()` of a module that is being exported), and be
        kept waiting by C++ until the capture is over: so it is refused here, at once."""
        self.check_thread()
        return super().detach()

    def check_thread(self) -> None:
        """No other thread than that of a capture uses its tensors; and none what stood in."""
        thread = self.fake_mode.thread
        if thread and thread != get_ident():
            refuse_use(self.fake_mode)

    def known_constant(self) -> torch.Tensor | None:
        """The real value, if this is a tiny constant that nobody has written to."""
        if self.constant is not None and self.constant_version == self.fake_storage.version:
            return self.constant
        return None

    def snapshot(self) -> FakeTensor:
        """The same type and storage in another object: what a record keeps, safe from `t_()`."""
        return new_fake(self.fake_mode, self.fake_type, self.fake_storage, is_marked(self))

    def __getitem__(self, index: Any) -> Any:
        return getitem(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        setitem(self, index, value)

    # -------------------------------------------------------------- what C++ would do with the data

    def __bool__(self) -> bool:
        if self.fake_mode.observer.takes_for_true(self):
            torch._check(self.item())
            return True
        t = self.fake_type
        if t.ndim or self.known_constant() is not None:
            return super().__bool__()
        truth = self if t.dtype is torch.bool else self != 0
        asking = asking_frame()
        answer = way_on(asking)
        if answer is None:
            return bool(torch.Tensor.__bool__(truth))
        if self.fake_mode.shape_env is not None:
            decide_put_off(self.fake_mode.shape_env, asking)
            asserted = truth.item()
            torch._check(asserted if answer else torch.sym_not(asserted))
        return answer

    def as_subclass(self, cls: Any) -> Any:
        if cls is not torch.Tensor and not issubclass(cls, FakeTensor):
            raise other_class(cls.__name__, user_location())
        return super().as_subclass(cls)

    def __len__(self) -> int:
        if self.fake_type.ndim == 0:
            raise TypeError(
                f"len() of a 0-d tensor\n  at {user_location()}\n"
                "  instead: if this is torch.tensor([a, b]) of computed values, torch.stack([a, b])"
            )
        return int(super().__len__())  # type: ignore[no-untyped-call]

    def tolist(self) -> Any:
        if self.fake_type.ndim == 0:
            return self.item()
        return [self.select(0, i).tolist() for i in range(len(self))]

    def numpy(self, *, force: bool = False) -> NoReturn:
        refuse(
            self,
            "numpy()",
            "keep the computation in torch, or convert after running the real program",
        )

    def __array__(self, dtype: Any = None) -> NoReturn:
        refuse(self, "conversion to a numpy array", "keep the computation in torch")

    def data_ptr(self) -> int:
        # nn.LSTM asks whether its weights alias, and leaves their memory alone if they do.
        if asking_frame().f_code.co_filename != _RECURRENT:
            instead = "a fake has no memory; compare `fake_storage` to ask for aliasing"
            if "triton" in sys.modules and _is_launched():
                instead = "call the kernel in a function under @torch.library.triton_op"
            refuse(self, "data_ptr()", instead)
        return 0

    def storage(self) -> NoReturn:
        refuse(self, "storage()", "`untyped_storage()` knows its size; compute with operators")

    def pin_memory(self, device: Any = None) -> NoReturn:
        refuse(self, "pin_memory()", "pin what a program is given, before the call")

    def apply_(self, *args: Any) -> NoReturn:
        refuse(self, "calling Python for each element", "compute with operators")

    map_ = map2_ = apply_  # type: ignore[assignment]

    def __dlpack__(self, *args: Any, **kwargs: Any) -> NoReturn:
        refuse(self, "handing memory to another library", "keep the computation in torch")

    def __format__(self, form: str) -> str:
        if form:
            refuse(self, f"text in the form {form!r}", "leave the form out, or the text")
        return repr(self)

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As `Tensor.to`; a device without an index gets index 0, since no driver can be asked."""
        args = tuple(concrete_device(a) for a in args)
        if "device" in kwargs:
            kwargs["device"] = concrete_device(kwargs["device"])
        out: Any = super().to(*args, **kwargs)
        if "memory_format" in kwargs:
            self.fake_mode.observer.layout_decided(self, out, "to(memory_format=...)")
        return out  # type: ignore[no-any-return]

    def cuda(self, device: Any = None, *args: Any, **kwargs: Any) -> torch.Tensor:
        where = torch.device("cuda", device) if isinstance(device, int) else device or "cuda"
        return super().to(concrete_device(where), *args, **kwargs)

    def new_tensor(self, data: Any, **options: Any) -> torch.Tensor:  # type: ignore[override]
        """C++ reads plain numbers here; of others a capture's `torch.tensor` makes one."""
        if not has_symbol(data):
            return super().new_tensor(data, **options)
        given = {name: value for name, value in options.items() if value is not None}
        return torch.tensor(data, **{"dtype": self.dtype, "device": self.device, **given})

    def __deepcopy__(self, memo: dict[int, Any]) -> FakeTensor:
        self.check_thread()
        done = memo.get(id(self))
        if done is None:
            done = self.fake_mode.observer.deep_copy(self)
            if done is not None:
                memo[id(self)] = done
        if done is None:
            storage = memo.get(id(self.fake_storage))
            if storage is None:
                old = self.fake_storage
                storage = memo[id(old)] = FakeStorage(self.fake_type, old.nbytes)
            done = new_fake(
                self.fake_mode, self.fake_type, storage, requires_grad=self._requires_grad()
            )
            for mark in ("_is_parameter", "_is_buffer"):
                if getattr(self, mark, False):
                    setattr(done, mark, True)
            memo[id(self)] = done
        return done

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse(self, "pickling", "save the real tensor, or the program that lostwax exported")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
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
    if value.__class__ in _SYMBOLIC:
        return True
    return isinstance(value, (list, tuple)) and any(map(has_symbol, value))


_SYMBOLIC = frozenset((torch.SymInt, torch.SymFloat, torch.SymBool))


def _is_launched() -> bool:
    """Is it Triton that asks, who launches a kernel?"""
    frame: Any = sys._getframe()
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith("triton."):
        frame = frame.f_back
    return frame is not None


def _strides(strides: tuple[Any, ...], dim: int | None = None) -> Any:
    return strides if dim is None else strides[dim]


def new_fake(
    mode: FakeTensorMode,
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
    fake.constant = fake.tracked = None
    return fake  # type: ignore[no-any-return]


def _absent(mode: FakeTensorMode, device: torch.device) -> torch.device:
    """What C++ is told of a device that need not be there."""
    if device.type != "meta":
        mode.absent_device = device
    torch._has_compatible_shallow_copy_type = _alike
    return _META


def _new_symbolic(
    mode: FakeTensorMode, t: TensorType, device: torch.device, requires_grad: bool
) -> Any:
    """Handing symbols to C++ costs several times what the rest does: of a type that comes again, a
    tensor is kept that nobody sees, and others are copies of it, which C++ makes by itself."""
    if mode.templates is None or requires_grad:
        return _of_symbols(t, device, requires_grad)
    template = mode.templates[id(t)] = _of_symbols(t, device, False)
    template.fake_type = t  # and keep that one
    with _WithoutDispatch():
        return _copied(FakeTensor, template)


def _of_symbols(t: TensorType, device: torch.device, requires_grad: bool) -> Any:
    # As above; the last is the size of the storage: else C++ multiplies symbols to find one, at
    # three times the cost.
    return _make_wrapper(
        FakeTensor,
        _wrapped(t.size),
        _wrapped(t.stride),
        wrap(t.offset),
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


def _wrapped(numbers: Sizes) -> list[Any]:
    return [n if n.__class__ is int else wrap(n) for n in numbers]


def _extent(t: TensorType) -> Size:
    """Bytes from the first to the last element of a new tensor."""
    if t._contiguous:
        return product(t.size) * t.dtype.itemsize
    last: Size = 1
    for s, st in zip(t.size, t.stride, strict=True):
        if s.__class__ is int and s == 0:
            return 0
        last = last + (s - 1) * st
    return last * t.dtype.itemsize


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


def find_mode(tree: Any) -> FakeTensorMode:
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


def concrete_device(value: Any) -> Any:
    """`cuda` → `cuda:0`: the current device, also of a driver that does not exist."""
    if isinstance(value, str):
        try:
            value = torch.device(value)
        except RuntimeError:
            return value
    if (
        isinstance(value, torch.device)
        and value.index is None
        and value.type not in ("cpu", "meta")
    ):
        return torch.device(value.type, _current_index(value.type))
    return value


def _current_index(kind: str) -> int:
    """Of the device that torch would take; 0 where there is no driver to ask."""
    is_there = kind == "cuda" and torch.cuda.is_initialized()
    return torch.cuda.current_device() if is_there else 0


RETIRED = -1
"""The thread of tensors that nobody uses any more: they stood in a module that was captured."""


def refuse_use(mode: FakeTensorMode) -> NoReturn:
    """Of a fake that another thread captures with, or that has stood in a module."""
    if mode.thread != RETIRED:
        refuse_thread()
    raise CaptureError(
        "a tensor is used that stood in for a parameter or buffer while its module was exported, "
        f"and the export is over.\n  at {user_location()}\n"
        "  why: it has no data, and is no part of the module any more: it was read from the module "
        "while that was exported, by another thread or by forward, and kept\n"
        "  instead: read it from the module again; and neither read nor change a module in one "
        "thread while another exports it"
    )


def refuse_thread() -> NoReturn:
    """A fake of a capture that runs in another thread."""
    raise CaptureError(
        "a tensor of a capture that runs in another thread is used in this one.\n"
        f"  at {user_location()}\n"
        "  why: while a module is exported, its parameters and buffers have no data\n"
        "  instead: neither read nor change a module in one thread while another exports it (to "
        "call it is to wait until that is done); and where a forward hands work to other threads, "
        "compute in the thread that calls it"
    )


def refuse(fake: FakeTensor, what: str, instead: str) -> NoReturn:
    raise UnsupportedFakeError(
        f"{what} needs the data of {fake!r}, and a fake tensor has none.\n"
        f"  at {user_location()}\n  instead: {instead}"
    )


def other_class(name: str, where: Location | str) -> UnsupportedFakeError:
    """A fake is to become a tensor of a class of the user's."""
    return UnsupportedFakeError(
        f"a tensor becomes one of the class {name}, and a tensor without data cannot.\n"
        f"  at {where}\n"
        "  why: while capturing, tensors are of a class of their own, which stands for their data\n"
        "  instead: compute with plain tensors, and keep what belongs to them beside them; or let "
        f"{name} be a wrapper (torch.Tensor._make_wrapper_subclass) with __torch_dispatch__"
    )
