"""What Python asks of a fake without an operator: its device, gradients, class, layout, data.

The answers are those that the tensor would give that the fake stands for. The observer of the mode
is told, as what Python does next may hang on them; what needs data is refused. Must not evaluate
operators, nor make fakes.
"""

from __future__ import annotations

import sys
from threading import get_ident
from typing import Any, NoReturn, Self

import torch

from lostwax.branches import RAISES, only_nonraising_answer
from lostwax.errors import UnsupportedFakeError
from lostwax.fake.refusals import refuse, refuse_use
from lostwax.fake.storage import FakeStorage
from lostwax.fake.symbolic.classes import is_text_read
from lostwax.fake.symbolic.node import decide_deferred, wrap
from lostwax.location import PASSING_ON, asking_frame, user_location
from lostwax.types import TensorType, visible_strides

PASSING_ON.add(__file__)
UNSURE_STRIDE = "stride() of what is not row-major"
"""There a stride may be another one when a size is 0."""
IDENTITY = "which object it is"
"""`id(x)`, and what dicts and sets ask."""
ATTRIBUTES = "all attributes"
"""`vars(x)`, `dir(x)`."""
LAYOUT_QUESTIONS = frozenset((UNSURE_STRIDE, "stride()", "storage_offset()", "is_contiguous()"))
"""Questions that are answered by how a tensor lies in memory."""
_RECURRENT = torch.nn.modules.rnn.__file__
_own_requires_grad: Any = torch._C.TensorBase.requires_grad
_own_is_leaf: Any = torch._C.TensorBase.is_leaf
_own_grad_fn: Any = torch._C.TensorBase.grad_fn
_own_grad: Any = torch._C.TensorBase.grad
_own_attributes: Any = vars(torch.Tensor)["__dict__"]
Held = dict[str, Any]
"""What Python keeps on a tensor, beside slots."""


def read_attributes(tensor: torch.Tensor) -> Held:
    """What Python keeps on a tensor, whatever its class shows as `__dict__`."""
    return _own_attributes.__get__(tensor)  # type: ignore[no-any-return]


def select_attributes(held: Held) -> list[tuple[str, Any]]:
    """What is the users' of that."""
    return [each for each in held.items() if each[0] not in INTERNAL_ATTRIBUTES]


def is_user_attribute(name: str) -> bool:
    """Is it no attribute of which lostwax or torch makes use?"""
    return name not in INTERNAL_ATTRIBUTES and name not in _IN_SLOTS


def is_of_the_class(name: str) -> bool:
    """Has every tensor it? What a user puts onto one under such a name hides it."""
    return any(name in vars(each) for each in torch.Tensor.__mro__)


INTERNAL_ATTRIBUTES = frozenset(
    (
        *("memo", "constant_version", "_is_param", "_is_parameter", "_is_buffer", "persistent"),
        # torch's C++ keeps the sizes that it asked a class for on the tensor
        *("_sizes_capsule", "_sizes_capsule_len", "_strides_capsule", "_strides_capsule_len"),
        *("_sym_sizes_capsule", "_sym_sizes_capsule_len"),
        *("_sym_strides_capsule", "_sym_strides_capsule_len"),
    )
)


_IN_SLOTS = frozenset(("constant", "fake_mode", "fake_storage", "fake_type", "tracked"))


def is_marked(tensor: torch.Tensor) -> bool:
    """Does autograd know that it requires a gradient? What C++ says, at its speed."""
    return _own_requires_grad.__get__(tensor)  # type: ignore[no-any-return]


def is_marked_leaf(tensor: torch.Tensor) -> bool:
    """Was it said to require a gradient, and not made of others that do?"""
    return _own_requires_grad.__get__(tensor) and _own_is_leaf.__get__(tensor)  # type: ignore[no-any-return]


def read_gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    """What is in `tensor.grad` of a leaf, without asking for it: torch warns of other tensors."""
    return _own_grad.__get__(tensor) if _own_is_leaf.__get__(tensor) else None


def _is_on(kind: str) -> Any:
    return property(lambda self: self.fake_type.device.type == kind)


def _ask(name: str, what: str) -> Any:
    """An attribute of tensors that a fake has, too: the observer is told who reads it."""
    own = getattr(torch.Tensor, name)

    def read(self: ObservedTensor) -> Any:
        self.fake_mode.observer.note_question(self, what)
        return own.__get__(self)

    return property(read)


def _ask_method(name: str, what: str) -> Any:
    """The same of a method."""
    own = getattr(torch.Tensor, name)

    def call(self: ObservedTensor, *args: Any, **kwargs: Any) -> Any:
        self.fake_mode.observer.note_question(self, what)
        return own(self, *args, **kwargs)

    return call


def _ask_real(name: str) -> Any:
    """The same of a method that the tensor answers which the fake stands for, if there is one."""
    own = getattr(torch.Tensor, name)

    def call(self: ObservedTensor) -> Any:
        self.fake_mode.observer.note_question(self, f"{name}()")
        real = self._find_real()
        return own(self if real is None else real)

    return call


_STAY_IN_TORCH = "keep the computation in torch, or convert after running the real program"


def _make_refusal(what: str, instead: str) -> Any:
    """A method that needs the data."""

    def call(self: ObservedTensor, *args: Any, **kwargs: Any) -> NoReturn:
        refuse(self, what, instead)

    return call


class ObservedTensor(torch.Tensor):
    """A tensor without data, as Python sees it."""

    __slots__ = ()

    fake_type: TensorType
    fake_storage: FakeStorage
    fake_mode: Any
    constant: torch.Tensor | None
    """The real value of a tiny constant; trusted only while the storage is unwritten."""
    constant_version: int

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The modelled device; the C++ side of a non-CPU fake is `meta`, so that no driver is
        needed."""
        return self.fake_type.device

    is_cuda = _is_on("cuda")
    is_cpu = _is_on("cpu")
    is_meta = _is_on("meta")

    def get_device(self) -> int:
        index = self.fake_type.device.index
        return -1 if index is None else index

    # ------------------------------------------------------------------------------------ gradients

    @property
    def requires_grad(self) -> bool:
        """Also where autograd does not see the operators, and a tracer knows better."""
        self.fake_mode.observer.note_question(self, "requires_grad")
        return self._requires_grad()

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.check_thread()
        self.fake_mode.observer.note_assignment(self, "requires_grad", value)
        _own_requires_grad.__set__(self, value)

    def _requires_grad(self) -> bool:
        return is_marked(self) or bool(self.fake_mode.observer.has_gradient(self))

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        self.requires_grad = requires_grad
        return self

    @property
    def grad(self) -> torch.Tensor | None:
        self.fake_mode.observer.note_question(self, "grad is None")
        return _own_grad.__get__(self)  # type: ignore[no-any-return]

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        self.check_thread()
        self.fake_mode.observer.note_assignment(self, "grad", value)
        _own_grad.__set__(self, value)

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    @property
    def grad_fn(self) -> Any:  # type: ignore[override]
        """Where autograd does not see the operators there is none to show."""
        self.fake_mode.observer.note_question(self, "grad_fn is None")
        found = _own_grad_fn.__get__(self)
        if found is None and not is_marked(self) and self.fake_mode.observer.has_gradient(self):
            raise UnsupportedFakeError.here(
                f"grad_fn of {self!r} was asked for, and a capture keeps no graph for backward",
                instead="to know whether it has a gradient, x.requires_grad and x.is_leaf",
            )
        return found

    @property
    def is_leaf(self) -> bool:  # type: ignore[override]
        self.fake_mode.observer.note_question(self, "is_leaf")
        if not _own_is_leaf.__get__(self):
            return False
        return _own_requires_grad.__get__(self) or not self._requires_grad()

    def retain_grad(self) -> None:
        self.check_thread()
        if self._requires_grad() and not is_marked(self):
            raise UnsupportedFakeError.here(
                f"retain_grad() of {self!r}, which the program only computes",
                why="a program leaves no gradients behind in its values",
                instead="call it on what the program returns, or not while exporting: if not "
                "torch.compiler.is_exporting()",
            )
        super().retain_grad()

    def register_hook(self, hook: Any) -> Any:
        self.check_thread()
        return self.fake_mode.observer.hook_gradient(self, hook)

    # ----------------------------------------------------------------------------------- what it is

    _version = _ask("_version", "_version")
    _base = _ask("_base", "_base is None")
    untyped_storage = _ask_method("untyped_storage", "untyped_storage().nbytes()")
    is_inference = _ask_real("is_inference")
    is_conj = _ask_real("is_conj")
    is_neg = _ask_real("is_neg")
    _is_view = _ask_real("_is_view")

    def __hash__(self) -> int:
        self.fake_mode.observer.note_question(self, IDENTITY)
        address: int = self.fake_mode.observer.make_address(id(self))
        return address

    @property
    def _is_param(self) -> bool:
        """`isinstance(x, nn.Parameter)` asks it."""
        self.fake_mode.observer.note_question(self, "class")
        return getattr(self, "_is_parameter", False)

    @_is_param.setter
    def _is_param(self, value: bool) -> None:
        self._is_parameter = value

    def __getattr__(self, name: str) -> Any:
        """What a user has put on the real tensor."""
        if not name.startswith("__") and name not in INTERNAL_ATTRIBUTES:
            self.fake_mode.observer.note_missing(self, name)
            held = self._read_real(f"attribute {name}")
            if name in held:
                return held[name]
        raise AttributeError(f"'Tensor' object has no attribute {name!r}")

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        """What a user has put on the fake, or on the real tensor. (lostwax reads it by
        `read_attributes`.)"""
        self.fake_mode.observer.note_missing(self, "")
        own = read_attributes(self)
        for name, value in select_attributes(self._read_real(ATTRIBUTES)):
            own.setdefault(name, value)
        return own

    def _read_real(self, what: str) -> Held:
        """What is on the tensor that it, or what it is a copy of, stands for; `what` of it is
        asked."""
        original = self.fake_mode.fake_tensor_converter.find_original(self)
        self.fake_mode.observer.note_question(original, what)
        real = original._find_real()
        return {} if real is None else vars(real)

    def __dir__(self) -> list[str]:
        self.fake_mode.observer.note_missing(self, "")
        self._read_real(ATTRIBUTES)
        return super().__dir__()  # type: ignore[no-untyped-call,no-any-return]

    def _find_real(self) -> torch.Tensor | None:
        """The tensor that it stands for, if it is one that a program is given."""
        return self.fake_mode.fake_tensor_converter.find_real(self)  # type: ignore[no-any-return]

    # --------------------------------------------------------------------------------------- layout

    def stride(self, *args: Any, **kwargs: Any) -> Any:
        t = self.fake_type
        if not t.is_symbolic:
            self.fake_mode.observer.note_question(self, "stride()")
            return super().stride(*args, **kwargs)
        strides = visible_strides(t, self.fake_storage.first)
        self.fake_mode.observer.note_question(
            self, UNSURE_STRIDE if strides is t.stride else "stride()"
        )
        return _strides(tuple(map(wrap, strides)), *args, **kwargs)

    def numel(self) -> int:
        """C++ keeps the number that it has once computed: inside of a branch, where a size is known
        to be 1, it is another one."""
        t = self.fake_type
        return wrap(t.numel()) if t.is_symbolic else super().numel()

    nelement = numel

    def storage_offset(self) -> Any:
        self.fake_mode.observer.note_question(self, "storage_offset()")
        return wrap(self.fake_type.offset)

    def is_contiguous(self, *args: Any, **kwargs: Any) -> bool:
        self.fake_mode.observer.note_question(self, "is_contiguous()")
        self.note_asked_by_cpp()
        return super().is_contiguous(*args, **kwargs)

    def note_asked_by_cpp(self) -> None:
        """C++ keeps what it finds out of a tensor: where a region ends, it is to forget that."""
        asked = self.fake_mode.asked_by_cpp
        if asked is not None and self.fake_type.is_symbolic:
            asked.append((self, self.fake_type))

    # ------------------------------------------------------------------------------------- who asks

    def check_thread(self) -> None:
        """No other thread than that of a capture uses its tensors; and none what stood in."""
        thread = self.fake_mode.thread
        if thread and thread != get_ident():
            refuse_use(thread)

    # ----------------------------------------------------------------------------------------- data

    def known_constant(self) -> torch.Tensor | None:
        """The real value, if this is a tiny constant that nobody has written to."""
        if self.constant is not None and self.constant_version == self.fake_storage.version:
            return self.constant
        return None

    def __bool__(self) -> bool:
        if self.fake_mode.observer.assumes_true(self):
            torch._check(self.item())
            return True
        t = self.fake_type
        if t.ndim or self.known_constant() is not None:
            return super().__bool__()
        truth = self if t.dtype is torch.bool else self != 0
        asking = asking_frame()
        answer = only_nonraising_answer(asking)
        if answer is None:
            return bool(torch.Tensor.__bool__(truth))
        if self.fake_mode.shape_env is not None:
            decide_deferred(self.fake_mode.shape_env, asking)
            asserted = truth.item()
            torch._check(asserted if answer else torch.sym_not(asserted), lambda: RAISES)
        return answer

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

    def numpy(self, *, force: bool = False) -> Any:
        known = self._find_known_array(force)
        if known is None:
            refuse(self, "numpy()", _STAY_IN_TORCH)
        return known

    def __array__(self, dtype: Any = None) -> Any:
        known = self._find_known_array(False)
        if known is None:
            refuse(self, "conversion to a numpy array", _STAY_IN_TORCH)
        return known if dtype is None else known.astype(dtype, copy=False)

    def _find_known_array(self, force: bool) -> Any:
        """The elements as an array, if they are known. It cannot be written: the tensor would not
        see that."""
        known = self.known_constant()
        has_gradient = self.is_floating_point() and self.requires_grad
        if known is None or not (force or (self.is_cpu and not has_gradient)):
            return None
        with torch._C._DisableTorchDispatch():
            array = known.numpy(force=True).copy()
        array.flags.writeable = False
        return array

    storage = _make_refusal(
        "storage()", "`untyped_storage()` knows its size; compute with operators"
    )
    pin_memory = _make_refusal("pin_memory()", "pin what a program is given, before the call")
    apply_ = _make_refusal("calling Python for each element", "compute with operators")
    map_ = map2_ = apply_
    __dlpack__ = _make_refusal("handing memory to another library", "keep the computation in torch")
    __reduce_ex__ = _make_refusal(
        "pickling", "save the real tensor, or the program that lostwax exported"
    )

    def data_ptr(self) -> int:
        # nn.LSTM asks whether its weights alias, and leaves their memory alone if they do.
        if asking_frame().f_code.co_filename != _RECURRENT:
            instead = "a fake has no memory; compare `fake_storage` to ask for aliasing"
            if "triton" in sys.modules and _is_launched():
                instead = "call the kernel in a function under @torch.library.triton_op"
            refuse(self, "data_ptr()", instead)
        return 0

    def __format__(self, form: str) -> str:
        if form:
            refuse(self, f"text in the form {form!r}", "leave the form out, or the text")
        if not is_text_read(sys._getframe(1)):
            return repr(self)
        if self.ndim or self.is_complex():
            self.refuse_text()
        kind = bool if self.dtype is torch.bool else float if self.is_floating_point() else int
        return format(kind(self.item()))

    def refuse_text(self) -> NoReturn:
        """Refuse a text that decides something."""
        refuse(self, "its text", "decide by what operators compute of it")


def _is_launched() -> bool:
    """Is it Triton that asks, who launches a kernel?"""
    frame: Any = sys._getframe()
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith("triton."):
        frame = frame.f_back
    return frame is not None


def _strides(strides: tuple[Any, ...], dim: int | None = None) -> Any:
    return strides if dim is None else strides[dim]
