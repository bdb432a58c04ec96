"""Answers of type rules about symbolic types that outlive their capture.

In a shared answer, the positions of symbols stand for the symbols. It is kept in the world of the
environment that it was found in (`sym/world.py`), and restored with the symbols of any other
environment in that world. Must not keep what cost a guard, nor use keys that only one mode has.
"""

from __future__ import annotations

from typing import Any, Protocol

from lostwax.cache import Cache
from lostwax.fake.tensor import FakeMode
from lostwax.sym import Expr
from lostwax.sym.world import PolynomialForm, World, form
from lostwax.types import TensorType

Question = tuple[Any, ...]


class LocalType:
    """Stands in keys for a type that cannot be shared with other captures."""

    __slots__ = ()


class SharedType:
    """A symbolic type with positions instead of symbols. Equal ones are the same object, which
    stands in keys for all types of this form."""

    __slots__ = ("fixed", "parts")

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self.parts = parts
        self.fixed = not any(n.__class__ is PolynomialForm for n in parts[1])
        """Are all strides ints?"""


_SHARED_TYPES = Cache[tuple[Any, ...], SharedType](__name__, "kinds", 50_000)
SHAREABLE: set[type] = {bool, int}
"""Classes, besides types, of which shared answers may consist: they hold no symbols."""


def share_type(t: TensorType) -> SharedType | LocalType:
    """What types that differ only in their symbols have in common."""
    size, stride, offset = shared_keys(t.size), shared_keys(t.stride), shared_key(t.offset)
    if not _is_shareable((size, stride, offset)):
        return LocalType()
    parts = (size, stride, offset, t.dtype, t.device, t.layout)
    return _SHARED_TYPES.table.get(parts) or _SHARED_TYPES.keep(parts, SharedType(parts))


def _make_type(mode: CachingMode, kind: SharedType) -> TensorType:
    """A type of this form with the symbols of a mode."""
    exprs = mode.shape_env.exprs_by_form  # type: ignore[union-attr]
    size, stride, offset, dtype, device, layout = kind.parts
    if not kind.fixed:
        stride = tuple([n if n.__class__ is int else exprs[n] for n in stride])
    size = tuple([n if n.__class__ is int else exprs[n] for n in size])
    offset = offset if offset.__class__ is int else exprs[offset]
    made = mode.answers.types[kind] = TensorType(size, dtype, device, stride, offset, layout)
    made.mark = kind
    return made


def shared_key(number: Any) -> Any:
    """A key that is valid across captures: an int, or a form over the positions of symbols. If
    there is none, the expression itself."""
    return number if number.__class__ is not Expr else number.form or form(number) or number


def shared_keys(numbers: tuple[Any, ...]) -> tuple[Any, ...]:
    """The keys of several numbers."""
    return tuple([n if n.__class__ is int else shared_key(n) for n in numbers])


def _is_shareable(key: Question) -> bool:
    """Is every part of a question valid across captures?"""
    classes = set(map(type, key))
    if Expr in classes or LocalType in classes:
        return False
    return tuple not in classes or all(_is_shareable(k) for k in key if k.__class__ is tuple)


def keep_answer(world: World, key: Question, answer: Any) -> None:
    """Keep this answer for later captures, if it can be shared."""
    kept = _share_answer(answer) if _is_shareable(key) else None
    if kept is not None:
        world.keep(key, kept)


def _share_answer(answer: Any) -> Any:
    cls = answer.__class__
    if cls is TensorType:
        if answer.token is not None:
            return answer
        found = answer.mark
        # What is known of the layout now holds there, too.
        return (found, answer._contiguous, answer._dense) if found.__class__ is SharedType else None
    if cls is tuple or cls is list:
        parts = [_share_answer(a) for a in answer]
        return None if None in parts else (cls, parts)
    return answer if cls in SHAREABLE else None


class CachingMode(FakeMode, Protocol):
    """A mode that keeps answers of type rules."""

    answers: ModeAnswers


class ModeAnswers(dict[Question, Any]):
    """A mode's answers. A missing one is looked up among the shared ones; None if none is there."""

    __slots__ = ("_mode", "types")

    def __init__(self, mode: CachingMode) -> None:
        self._mode = mode
        self.types: dict[Any, TensorType] = {}
        """The one object for all equal symbolic types of the mode, by the type's own key or by its
        `SharedType`."""

    def __missing__(self, key: Question) -> Any:
        env = self._mode.shape_env
        world = None if env is None else env.facts.world
        kept = None if world is None else world.find(key)
        if kept is None:
            return None
        answer = self[key] = _restore_answer(self._mode, kept)
        return answer


def _restore_answer(mode: CachingMode, kept: Any) -> Any:
    if kept.__class__ is not tuple:
        return kept
    what = kept[0]
    if what.__class__ is SharedType:
        t = mode.answers.types.get(what)
        if t is None:
            t = _make_type(mode, what)
        if t._contiguous is None:
            t._contiguous = kept[1]
        if t._dense is None:
            t._dense = kept[2]
        return t
    return what([_restore_answer(mode, part) for part in kept[1]])
