"""Values as texts that are the same in every process: what a program was captured from is compared
by them.

An object that has no such text raises `NoTextError`. Must not call anything of the user's.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from enum import Enum
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodWrapperType,
    ModuleType,
    UnionType,
    WrapperDescriptorType,
)
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from lostwax.cache import PerClass, cached_by_identity
from lostwax.capture.heap.edges import CLASSES, HOLDERS
from lostwax.capture.heap.hidden import OPAQUE_BASE, is_value

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""In the text of an object that says no more than where it lies."""


class NoTextError(Exception):
    """Raised with what has no text that is the same in every process."""


def spell(value: Any) -> str:
    """The text of a value: of a function what it computes, of a class or module its name, of a
    number the number. Of an object that holds others it is only of which class it is."""
    write = _WRITERS[type(value)]
    if write is None:
        raise NoTextError(f"a {type(value).__qualname__}")
    return write(value)


def spell_plain(value: Any) -> str:
    """The text of a number or word, or of a tuple or list of such; also of a dtype and its like."""
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}({','.join(map(spell_plain, value))})"
    return f"{type(value).__name__} {value!r}"


def spell_class(cls: type) -> str:
    """The names of a class and of its bases: what is in them is looked at elsewhere."""
    if cls in _COMMON:
        return cls.__qualname__
    return " ".join([f"{each.__module__}.{each.__qualname__}" for each in cls.__mro__])


_COMMON = frozenset((OrderedDict, dict, list, set, tuple, torch.Tensor, torch.nn.Parameter))


@cached_by_identity(50_000)
def digest_code(code: CodeType) -> str:
    """What a code object computes, and where it stands: a program names its lines."""
    found = hashlib.blake2b(digest_size=16)
    for each in _list_parts(code):
        found.update(repr(each).encode())
    return found.hexdigest()


def _list_parts(code: CodeType) -> Iterable[Any]:
    yield code.co_code, code.co_exceptiontable, code.co_flags, code.co_linetable
    yield code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    yield code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    yield code.co_filename, code.co_firstlineno, code.co_qualname
    for each in code.co_consts:
        yield digest_code(each) if isinstance(each, CodeType) else _spell_constant(each)


def _spell_constant(value: Any) -> str:
    if isinstance(value, frozenset):
        return f"frozenset {sorted(map(_spell_constant, value))}"
    if isinstance(value, tuple):
        return f"({','.join(map(_spell_constant, value))})"
    return f"{type(value).__name__} {value!r}"


def _spell_function(value: FunctionType) -> str:
    return f"function {value.__module__} {digest_code(value.__code__)}"


def _spell_builtin(value: Any) -> str:
    owner = value.__self__
    where = owner.__name__ if isinstance(owner, (ModuleType, type)) else type(owner).__qualname__
    return f"builtin {value.__module__} {where} {value.__qualname__}"


def _spell_descriptor(value: Any) -> str:
    return f"descriptor {spell_class(value.__objclass__)} {value.__name__}"


def _spell_repr(value: Any) -> str:
    text = f"{type(value).__qualname__} {value!r}"
    if ADDRESS.search(text):
        raise NoTextError(f"a {type(value).__qualname__}")
    return text


def _spell_member(value: Enum) -> str:
    return f"{spell_class(type(value))} member {value.name}"


def _spell_logger(value: logging.Logger) -> str:
    return f"logger {value.name} {value.getEffectiveLevel()} {value.disabled}"


def _spell_kind(value: Any) -> str:
    return spell_class(type(value))


def _spell_hashable(value: Any) -> str:
    if not is_value(value):
        raise NoTextError(f"a {type(value).__qualname__}")
    return _spell_repr(value)


_KNOWN: dict[Any, Callable[[Any], str]] = {
    FunctionType: _spell_function,
    CodeType: lambda value: f"code {digest_code(value)}",
    type: lambda value: f"class {spell_class(value)}",
    ModuleType: lambda value: f"module {value.__name__}",
    BuiltinFunctionType: _spell_builtin,
    MethodWrapperType: _spell_builtin,
    **dict.fromkeys(
        (
            ClassMethodDescriptorType, GetSetDescriptorType, MemberDescriptorType,
            MethodDescriptorType, WrapperDescriptorType,
        ),
        _spell_descriptor,
    ),
    Enum: _spell_member,
    logging.Logger: _spell_logger,
    **dict.fromkeys(
        (
            int, float, complex, str, bytes, type(None), type(...), slice, range,
            torch.dtype, torch.device, torch.layout, torch.memory_format, UnionType,
            OpOverload, OpOverloadPacket, HigherOrderOperator,
        ),
        _spell_repr,
    ),
    **dict.fromkeys((MappingProxyType, ContextVar, frozenset), _spell_kind),
}  # fmt: skip
"""How objects of a class are told, its subclasses' too. What is in those of the last line is looked
at by itself."""


def _find_writer(cls: type) -> Callable[[Any], str] | None:
    known = next((_KNOWN[each] for each in cls.__mro__ if each in _KNOWN), None)
    if known is not None:
        return known
    if cls is object or cls.__module__ in ("typing", "_abc"):
        return _spell_kind if cls.__module__ != "typing" else _spell_repr
    if HOLDERS[cls]:
        return _spell_kind
    return _spell_hashable if OPAQUE_BASE[cls] and not CLASSES[cls] else None


_WRITERS = PerClass(__name__, "writers", _find_writer)
