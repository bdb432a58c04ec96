"""Large integers in objects, and whether a capture reads them.

A hash of a text is another number in each process, and objects keep such hashes (transformers, of
the options for generation). A number that nothing has read decides nothing, so that it need not be
equal in another process. Must not be asked of what is no plain attribute.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from lostwax import bytecode
from lostwax.capture.surroundings.look import StateLook
from lostwax.capture.surroundings.world import Surroundings
from lostwax.capture.surroundings.world_entry import WorldEntry
from lostwax.undo.undo import Undo

_LEAST = 1 << 32
_ALL = frozenset(("__dict__", "__getstate__", "__reduce__", "__reduce_ex__"))
"""Attributes by which all others can be read."""


def is_large(entry: WorldEntry) -> bool:
    return entry.kind == "value" and type(entry.held) is int and abs(entry.held) >= _LEAST


class UnreadNumbers:
    """The large integers to which modules lead, with the classes of the objects that have them."""

    def __init__(self, subject: Any) -> None:
        self._found: dict[str, tuple[type, str]] = {}
        """By path: a class, and the name of the attribute."""
        self._read: set[str] = set()
        entries = StateLook(subject, frozenset()).entries
        for path, entry in entries.items():
            owner, _, name = path.rpartition(".")
            if is_large(entry) and owner in entries and _has(entries[owner].held, name):
                self._found[path] = type(entries[owner].held), name

    def watch(self, undo: Undo) -> None:
        """Note from now on which are read."""
        for cls in {cls for cls, _ in self._found.values()}:
            undo.add(partial(_put_back, cls, vars(cls).get("__getattribute__")))
            type.__setattr__(cls, "__getattribute__", self._noting(cls))

    def _noting(self, cls: Any) -> Callable[[Any, str], Any]:
        note, plain = self._read.add, cls.__getattribute__

        def read(this: Any, name: str) -> Any:
            note(name)
            return plain(this, name)

        return read

    def list_paths(self, world: Surroundings) -> frozenset[str]:
        """The paths of those that nothing has read; what code that ran names, it may have."""
        read = set(self._read)
        if not _ALL.isdisjoint(read):
            return frozenset()
        for function in world.functions:
            for code in bytecode.nested_codes(function.__code__):
                read.update(bytecode.words(code))
        return frozenset(path for path, (_, name) in self._found.items() if name not in read)


def _has(owner: Any, name: str) -> bool:
    """Is it an attribute of an object of a plain class in Python, which can be watched?"""
    cls = type(owner)
    if isinstance(owner, nn.Module) or type(cls) not in (type, ABCMeta):
        return False
    has_dict = bool(cls.__flags__ & _HEAP_TYPE) and cls.__dictoffset__ != 0
    return has_dict and name in object.__getattribute__(owner, "__dict__")


_HEAP_TYPE = 1 << 9


def _put_back(cls: type, before: Any) -> None:
    if before is not None:
        type.__setattr__(cls, "__getattribute__", before)
    elif "__getattribute__" in vars(cls):
        type.__delattr__(cls, "__getattribute__")
