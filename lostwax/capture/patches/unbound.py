"""What the user's Python asks of a tensor by way of the class: `torch.Tensor.stride(x)`,
`torch.Tensor.requires_grad.__get__(x)`; and by way of torch: `torch.is_inference(x)`.

`x.stride()` is the method of the fake, which tells the tracer; `torch.Tensor.stride` is a function
of C, which does not. Where the user's functions name such a thing, `torch.Tensor` shows another to
them, in the capturing thread alone, which goes the way of the method. (Not always: a class that was
changed a thousand times is slow for good in some Pythons.) Must not change what others see.
"""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any

import torch

from lostwax import bytecode as code_names
from lostwax.capture.heap.functions import ReadFunction
from lostwax.capture.heap.reach import Reach
from lostwax.capture.patches.swap import NameSwap, set_all, stand_for
from lostwax.capture.threads import is_capturing
from lostwax.fake.asked_tensor import ObservedTensor
from lostwax.fake.tensor import FakeTensor
from lostwax.location import PASSING_ON, is_user_code
from lostwax.undo.undo import Undo

_Tensor: Any = torch.Tensor
PASSING_ON.add(__file__)


class _UnboundMethod:
    """Stands in `torch.Tensor` for a method of it, and is the method to all but the user."""

    def __init__(self, name: str) -> None:
        self.original = getattr(_Tensor, name)
        self.asking = self._make_asking(name)

    def __get__(self, tensor: Any, cls: Any = None) -> Any:
        if tensor is not None:
            return self.original.__get__(tensor, cls)
        # The caller is the code that names the class; a fake uses `torch.Tensor.data` itself.
        is_asking = is_capturing() and is_user_code(sys._getframe(1).f_code)
        return self.asking if is_asking else self.original

    def _make_asking(self, name: str) -> Any:
        return _make_fake_call(name, self.original)


class _TorchProperty(_UnboundMethod):
    """Stands for a property."""

    def __set__(self, tensor: Any, value: Any) -> None:
        self.original.__set__(tensor, value)

    def __delete__(self, tensor: Any) -> None:
        self.original.__delete__(tensor)

    def _make_asking(self, name: str) -> Any:
        return _PropertyByFake(name, self.original)


def _make_fake_call(name: str, original: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        is_fake = bool(args) and type(args[0]) is FakeTensor
        return (getattr(FakeTensor, name) if is_fake else original)(*args, **kwargs)

    return stand_for(original, call)


class _PropertyByFake:
    def __init__(self, name: str, original: Any) -> None:
        self._name, self._original = name, original

    def __get__(self, tensor: Any, cls: Any = None) -> Any:
        is_fake = type(tensor) is FakeTensor
        found = getattr(FakeTensor, self._name) if is_fake else self._original
        return found.__get__(tensor, cls)

    def __set__(self, tensor: Any, value: Any) -> None:
        is_fake = type(tensor) is FakeTensor
        (getattr(FakeTensor, self._name) if is_fake else self._original).__set__(tensor, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _stand_in(name: str) -> _UnboundMethod:
    return (_TorchProperty if hasattr(getattr(_Tensor, name), "__set__") else _UnboundMethod)(name)


_NAMES = [
    name
    for name, value in {**vars(ObservedTensor), **vars(FakeTensor)}.items()
    if not name.startswith("__") and name != "_is_param" and hasattr(_Tensor, name)
    and isinstance(value, (property, FunctionType))
]  # fmt: skip
"""What fakes answer otherwise than tensors."""
_STAND_INS = list(map(_stand_in, _NAMES))
_OWN = [vars(_Tensor).get(name) for name in _NAMES]
"""Some are of `torch.Tensor` itself, most of its base."""
NAME_SWAPS = [
    NameSwap(torch, name, _make_fake_call(name, getattr(torch, name)))
    for name in ("is_inference", "is_conj", "is_neg")
]


def show(reach: Reach, undo: Undo) -> None:
    """From here on functions ask fakes."""
    shown = list[ReadFunction]()

    def look(found: ReadFunction) -> None:
        if not shown and _names_asked(found):
            shown.append(found)
            undo.add(_put_back)
            set_all([_Tensor] * len(_NAMES), _NAMES, _STAND_INS)

    reach.add_look(look)


def _put_back() -> None:
    for name, own in zip(_NAMES, _OWN, strict=True):
        if own is not None:
            setattr(_Tensor, name, own)
        elif name in vars(_Tensor):
            delattr(_Tensor, name)


def _names_asked(found: ReadFunction) -> bool:
    """Does a function have `torch.Tensor` and such a name in it?"""
    words = map(code_names.words, found.code.codes)
    return _names_tensor(found) and not all(map(_ASKED.isdisjoint, words))


def _names_tensor(found: ReadFunction) -> bool:
    """May it have the class from a global, the function around, or from torch?"""
    function, code, named, classes, _ = found
    if any("Tensor" in code_names.words(each) for each in code.codes):
        return True
    if type(_Tensor) not in classes:
        return False
    closure = [value for _, value in code_names.closure_variables(function)]
    return any(value is _Tensor for value in (*named.values(), *closure))


_ASKED = frozenset(_NAMES)
