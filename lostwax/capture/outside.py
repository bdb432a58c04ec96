"""What the user's functions keep outside of modules: caches of `functools`, globals, containers in
globals. A capture leaves none of its tensors there: eager code would find them.

Which these are is found by reading the code of the modules' classes and of the functions that they
name, once for each. Must not follow what is found only while running.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from torch import nn

from lostwax.capture import names
from lostwax.capture.holders import items
from lostwax.capture.per_class import PerClass
from lostwax.capture.reachable import CACHED, methods, plain, reached
from lostwax.fake.tensor import FakeTensor


class Written(NamedTuple):
    """A global that the user's code sets, or whose content it changes."""

    names: dict[str, Any]
    """The globals of its module."""
    name: str


Keeper = Any
"""A `Written`, or a cache of `functools.lru_cache`."""


@contextmanager
def left_as_it_was(mod: Any, modules: Iterable[nn.Module]) -> Iterator[None]:
    """Inside, functions may keep tensors outside of the modules; afterwards they are gone."""
    keepers = _keepers(mod, modules)
    before = [(each, _look(each)) for each in keepers]
    try:
        yield
    finally:
        for each, seen in before:
            _put_back(each, seen)


def _look(keeper: Keeper) -> Any:
    if not isinstance(keeper, Written):
        return keeper.cache_info().misses
    value = keeper.names.get(keeper.name)
    return value, items(value) if type(value) in _CONTAINERS else None


def _put_back(keeper: Keeper, before: Any) -> None:
    if not isinstance(keeper, Written):
        if keeper.cache_info().misses != before:  # what it has computed now has no data
            keeper.cache_clear()
        return
    value, content = before
    now = keeper.names.get(keeper.name)
    if now is not value and _holds_fakes(now):
        keeper.names[keeper.name] = value
    elif content is None or now is not value or not _holds_fakes(now):
        return
    else:
        _fill(now, content)
    file = Path(keeper.names.get("__file__") or "<unknown>").name
    warnings.warn(
        f"the module keeps a tensor in {keeper.name}, a global of {file}; a program leaves nothing "
        f"there, and {keeper.name} is as it was before the export.",
        stacklevel=2,
    )


def _holds_fakes(value: Any, depth: int = 2) -> bool:
    if value.__class__ is FakeTensor:
        return True
    if isinstance(value, nn.Module):  # that the call has made
        state = (*value.parameters(), *value.buffers())
        return any(each.__class__ is FakeTensor for each in state)
    if depth == 0 or type(value) not in (*_CONTAINERS, tuple):
        return False
    return any(_holds_fakes(each, depth - 1) for _, each in items(value))


def _fill(container: Any, content: list[tuple[Any, Any]]) -> None:
    container.clear()
    if isinstance(container, (list, deque)):
        container.extend(each for _, each in content)
    else:
        container.update(content if isinstance(container, dict) else [each for _, each in content])


_CONTAINERS = frozenset((list, dict, set, OrderedDict, defaultdict, deque))


# ------------------------------------------------------------------------------- reading the code


def _keepers(mod: Any, modules: Iterable[nn.Module]) -> list[Keeper]:
    found: dict[int, Keeper] = {}
    for cls in {*map(type, modules)}:
        for each in _OF_CLASSES[cls]:
            found[id(each)] = each
    if not isinstance(mod, nn.Module):
        found |= {id(each): each for each in _reading([plain(mod)])}
    return list(found.values())


_OF_CLASSES = PerClass(lambda cls: tuple(_reading(methods(cls))))


def _reading(functions: Iterable[Any]) -> Iterator[Keeper]:
    """What these functions, and those that they name, keep something in."""
    for function in reached(functions):
        if isinstance(function, CACHED):
            yield function
        else:
            for part in names.codes(function.__code__):
                yield from _written(part, function.__globals__)


def _written(code: CodeType, known: dict[str, Any]) -> Iterator[Written]:
    stores = names.globals_set(code)
    yield from (_one(known, name) for name in stores)
    containers = [n for n in code.co_names if type(known.get(n)) in _CONTAINERS and n not in stores]
    if containers and (names.sets_items(code) or not _CHANGING.isdisjoint(code.co_names)):
        yield from (_one(known, name) for name in containers)


def _one(known: dict[str, Any], name: str) -> Written:
    return _WRITTEN.setdefault((id(known), name), Written(known, name))


_WRITTEN: dict[tuple[int, str], Written] = {}
_CHANGING = frozenset(("append", "add", "update", "setdefault", "insert", "extend", "appendleft"))
