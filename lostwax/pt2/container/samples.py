"""The example inputs of an archive, which torch pickles: read by a machine of our own that knows
tensors, numbers, texts and plain containers, and can make nothing else.

What uses any other class, or is not a pickle at all, is left unread: a program does not need its
example. No code is called that a file names.
"""

from __future__ import annotations

import pickletools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lostwax.errors import LoadError
from lostwax.pt2.container.archive import Archive
from lostwax.pt2.limits import MAX_DIMS, MAX_SIZE

_STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "BFloat16Storage": torch.bfloat16,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
}


class _UnreadableError(Exception):
    """Not one of the few things that are read."""


@dataclass(frozen=True)
class _PickledName:
    """What stands for a function or class that the pickle names."""

    make: Callable[..., Any]


@dataclass(frozen=True)
class _StorageType:
    dtype: torch.dtype


@dataclass(frozen=True)
class _PickledStorage:
    flat: torch.Tensor


def read_samples(data: memoryview) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The example call; None if there is none, or if it holds more than plain data."""
    try:
        inner = Archive(data)
        order = inner.read("byteorder", 16) if "byteorder" in inner else b"little"
        if order != b"little":
            return None
        found = _Machine(inner).run(inner.read("data.pkl"))
    except (LoadError, _UnreadableError, ValueError, KeyError, IndexError, TypeError):
        return None
    except (RuntimeError, AttributeError, OverflowError, RecursionError):
        return None
    if not isinstance(found, tuple) or len(found) != 2:
        return None
    args, kwargs = found
    named = isinstance(kwargs, dict) and all(isinstance(k, str) for k in kwargs)
    return (args, kwargs) if isinstance(args, tuple) and named else None


class _Machine:
    """Runs the few instructions that a pickle of plain data consists of."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, _PickledStorage] = {}

    def run(self, data: bytes) -> Any:
        push = self.stack.append
        for code, argument, _ in pickletools.genops(data):
            name = code.name
            if name in _PUSH:
                push(argument)
            elif name in _CONSTANTS:
                push(_CONSTANTS[name]())
            elif name == "STOP":
                return self.stack.pop()
            elif name in ("PROTO", "FRAME"):
                continue
            else:
                step = _STEPS.get(name)
                if step is None:
                    raise _UnreadableError(name)
                step(self, argument)
        raise _UnreadableError("it has no end")

    def above_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def tuple_of(self, count: int) -> None:
        items = tuple(self.stack[-count:])
        if len(items) != count:
            raise _UnreadableError("a tuple of too few")
        del self.stack[-count:]
        self.stack.append(items)

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if target.__class__ is not list:
            raise _UnreadableError("only lists are appended to")
        target.extend(items)

    def update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if target.__class__ not in (dict, OrderedDict):
            raise _UnreadableError("only dicts have items")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, (str, int, float, bool, type(None))):
                raise _UnreadableError("a key that is no text or number")
            target[key] = value

    def global_(self, named: str) -> None:
        module, _, name = named.partition(" ")
        if module == "torch" and name in _STORAGES:
            self.stack.append(_StorageType(_STORAGES[name]))
        elif named == "torch.storage UntypedStorage":
            self.stack.append(_StorageType(torch.uint8))
        elif module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            self.stack.append(getattr(torch, name))
        elif named in _MAKERS:
            self.stack.append(_PickledName(_MAKERS[named]))
        else:
            raise _UnreadableError(named)

    def reduce(self) -> None:
        args = self.stack.pop()
        maker = self.stack.pop()
        if not isinstance(maker, _PickledName) or not isinstance(args, tuple):
            raise _UnreadableError("a call of something else")
        self.stack.append(maker.make(*args))

    def persistent(self) -> None:
        kind, of, key, place, _ = self.stack.pop()
        if kind != "storage" or not isinstance(of, _StorageType) or not isinstance(key, str):
            raise _UnreadableError("a reference to something else than a storage")
        if key not in self.storages:
            flat = self._flat(f"data/{key}", of.dtype)
            self.storages[key] = _PickledStorage(flat if place == "cpu" else _put(flat, place))
        self.stack.append(self.storages[key])

    def _flat(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        buffer, offset, size = self.archive.window(name)
        count = size // dtype.itemsize
        if count == 0:
            return torch.empty(0, dtype=dtype)
        data = bytearray(memoryview(buffer)[offset : offset + count * dtype.itemsize])
        return torch.frombuffer(data, dtype=dtype)


def _tensor(
    storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, _: Any, meta: Any = None
) -> torch.Tensor:
    numbers = (offset, *size, *stride)
    if not isinstance(storage, _PickledStorage) or len(size) != len(stride) or len(size) > MAX_DIMS:
        raise _UnreadableError("a tensor without a storage")
    if not all(n.__class__ is int and 0 <= n <= MAX_SIZE for n in numbers):
        raise _UnreadableError("a tensor of impossible sizes")
    last = offset + sum((s - 1) * st for s, st in zip(size, stride, strict=True))
    if 0 not in size and last >= storage.flat.numel():
        raise _UnreadableError("a tensor beyond its storage")
    made = torch.as_strided(storage.flat, size, stride, offset if 0 not in size else 0)
    for name, value in (meta or {}).items():
        if name not in _LAZILY or value is not True:
            raise _UnreadableError("a tensor with a state of its own")
        made = _LAZILY[name](made)
    return made.requires_grad_() if requires_grad is True else made


def _tensor_of_bytes(
    storage: Any, offset: Any, size: Any, stride: Any, grad: Any, hooks: Any, dtype: Any, *meta: Any
) -> torch.Tensor:
    """A tensor of a dtype that has no storage of its own in pickles."""
    if not isinstance(storage, _PickledStorage) or not isinstance(dtype, torch.dtype):
        raise _UnreadableError("a tensor without a storage or a dtype")
    whole = storage.flat.numel() // dtype.itemsize * dtype.itemsize
    flat = _PickledStorage(storage.flat[:whole].view(dtype))
    return _tensor(flat, offset, size, stride, grad, hooks, *meta)


# what is computed when the tensor is read: its memory holds the values before that
_LAZILY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "conj": torch.conj,
    "neg": torch._neg_view,
}


def _parameter(tensor: torch.Tensor, requires_grad: Any, *_: Any) -> nn.Parameter:
    if not isinstance(tensor, torch.Tensor):
        raise _UnreadableError("a parameter that is no tensor")
    return nn.Parameter(tensor.detach(), requires_grad is True)


def _put(flat: torch.Tensor, place: Any) -> torch.Tensor:
    """The same on the device that it was on, if that is here."""
    try:
        return flat.to(place) if isinstance(place, str) and place != "meta" else flat
    except (RuntimeError, AssertionError, ImportError):
        return flat


def _device(kind: Any, index: Any = None) -> torch.device:
    if kind not in ("cpu", "cuda", "meta", "mps", "xpu"):
        raise _UnreadableError(kind)
    return torch.device(kind) if index is None else torch.device(kind, int(index))


def _make_ordered_dict(*args: Any) -> OrderedDict[Any, Any]:
    if args:
        raise _UnreadableError("an OrderedDict made of something")
    return OrderedDict()


_MAKERS: dict[str, Callable[..., Any]] = {
    "torch._utils _rebuild_tensor_v2": _tensor,
    "torch._utils _rebuild_tensor_v3": _tensor_of_bytes,
    "torch._utils _rebuild_parameter": _parameter,
    "collections OrderedDict": _make_ordered_dict,
    "torch device": _device,
    "torch Size": lambda sizes: torch.Size([int(s) for s in sizes]),
}

_PUSH = frozenset(
    (
        *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"),
        "BINUNICODE8",
    )
)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
}
_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": lambda m, _: m.marks.append(len(m.stack)),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.above_mark())),
    "TUPLE1": lambda m, _: m.tuple_of(1),
    "TUPLE2": lambda m, _: m.tuple_of(2),
    "TUPLE3": lambda m, _: m.tuple_of(3),
    "APPEND": lambda m, _: m.extend([m.stack.pop()]),
    "APPENDS": lambda m, _: m.extend(m.above_mark()),
    "SETITEM": lambda m, _: m.update([m.stack.pop(-2), m.stack.pop()]),
    "SETITEMS": lambda m, _: m.update(m.above_mark()),
    "BINPUT": lambda m, i: m.memo.__setitem__(i, m.stack[-1]),
    "LONG_BINPUT": lambda m, i: m.memo.__setitem__(i, m.stack[-1]),
    "BINGET": lambda m, i: m.stack.append(m.memo[i]),
    "LONG_BINGET": lambda m, i: m.stack.append(m.memo[i]),
    "GLOBAL": lambda m, named: m.global_(named),
    "REDUCE": lambda m, _: m.reduce(),
    "BINPERSID": lambda m, _: m.persistent(),
}
