"""The cyclic garbage collector: paused while a program is captured or rewritten, and asked for the
functions that there are.

It would walk all of torch's objects several times and find nothing, since what is made is kept.
Must leave the collector as the user has set it up.
"""

from __future__ import annotations

import builtins
import gc
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any
from weakref import WeakSet

_MOST = 300_000
"""At most so many objects are counted as old between two full collections: those of them that die
wait that long."""


def pause(to_undo: Callable[[Callable[[], None]], object]) -> None:
    """Collect nothing from here on, until the function that `to_undo` is given is called."""
    if gc.isenabled():
        to_undo(_resume)
        gc.disable()


def list_functions(file: str) -> list[FunctionType]:
    """All functions with code from a file. A process may have millions of objects: as long as
    nothing is collected, only those are looked at that were made since the last look."""
    known = _known.get(file)
    found = None if known is None else _find_newer(known)
    if known is None or found is None:
        _known.clear()  # the others are as old
        found = find_functions(file)
        known = _known[file] = WeakSet()
    known.update(select_functions(found, file))
    return [*known]


def select_functions(objects: Iterable[Any], file: str) -> Iterator[FunctionType]:
    for each in objects:
        if type(each) is FunctionType and each.__code__.co_filename == file:
            yield each


_known: dict[str, WeakSet[FunctionType]] = {}
"""The functions of files. Each set is as old as the look at all objects."""


def _find_newer(than: Any) -> list[Any] | None:
    """What was made since an object was; None if there was a collection since, or a freeze."""
    young = gc.get_objects(generation=0)  # the oldest first
    for place in reversed(range(len(young))):
        if young[place] is than:
            return young[place:]
    return None


def find_functions(file: str) -> list[FunctionType]:
    """All functions with code from a file. (The tests have a faster one: `tests/isolation.py`.)"""
    return [*select_functions(find_holders(), file)]


def find_holders() -> list[Any]:
    """All functions that there are, with those that a `gc.freeze` has taken out of sight; among
    what else holds Python's builtins.

    A function holds its builtins, and the collector finds in one pass who holds these: to look at
    each object here takes three times as long. (One that was made with builtins of its own is not
    among them: `exec` can do that.)
    """
    is_frozen = gc.get_freeze_count() > _OF_PYTHON
    if is_frozen:
        gc.unfreeze()
    found = gc.get_referrers(vars(builtins))
    if is_frozen:
        gc.freeze()
    return found


_OF_PYTHON = 2000
"""Python 3.12 begins with some hundreds of frozen objects, none of which are the user's: to freeze
again for them would freeze everything."""


def _resume() -> None:
    if not gc.isenabled():
        _settle()
        gc.enable()


def _settle() -> None:
    """Count what was made as old, as if it had been looked at twice.

    Else the first allocation after the pause would walk all of it: a tenth of an export's time. A
    freeze and its opposite join the young generations to the oldest one without a walk. The
    collector does not count such objects when it decides on a full collection, hence `_MOST`.
    """
    global _settled, _full, _frozen
    if _frozen:
        return
    full = gc.get_stats()[2]["collections"]
    if full != _full:
        _full, _settled = full, 0
    young = gc.get_count()[0]
    if _settled <= _MOST:
        _frozen = gc.get_freeze_count() > 0  # it counts them one by one: asked once
        if _frozen:
            return
        _settled += young
        gc.freeze()
        gc.unfreeze()


_settled = 0
_full = 0
_frozen = False
"""Did the user freeze objects of their own? They must not thaw."""
