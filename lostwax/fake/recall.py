"""Answers about symbolic types that outlive their capture: told by the places of symbols.

An answer is kept in the world of the environment that it was found in (`sym/world.py`), and made
again of the symbols of another one in the same world. Must not keep what cost a guard, nor look for
anything by what only one mode knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lostwax.sym import Expr
from lostwax.sym.world import World, form
from lostwax.types import TensorType

if TYPE_CHECKING:
    from lostwax.fake.mode import FakeTensorMode

Question = tuple[Any, ...]


class Local:
    """What stands in a key for a type that other captures cannot have."""

    __slots__ = ()


class Kind:
    """A symbolic type, told by the places of symbols. Equal ones are the same object, and stand in
    keys for the types that are such."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self.parts = parts


_KINDS: dict[tuple[Any, ...], Kind] = {}
_MOST = 50_000
TIMELESS: set[type] = set()
"""Classes of other things that answers are made of: they know of no symbols."""


def kind(t: TensorType) -> Kind | Local:
    """What equal types have in common."""
    size, stride, offset = _told(t.size), _told(t.stride), _told((t.offset,))
    if size is None or stride is None or offset is None:
        return Local()
    parts = (size, stride, offset, t.dtype, t.device, t.layout)
    found = _KINDS.get(parts)
    if found is None:
        if len(_KINDS) >= _MOST:
            _KINDS.clear()
        found = _KINDS[parts] = Kind(parts)
    return found


def _told(numbers: tuple[Any, ...]) -> tuple[Any, ...] | None:
    told = tuple([n if n.__class__ is int else form(n) for n in numbers])
    return None if None in told else told


def _instance(mode: FakeTensorMode, kind: Kind) -> TensorType:
    """The one type of this kind in a mode."""
    found = mode.marks.get(kind)
    if found is None:
        formed = mode.shape_env.formed  # type: ignore[union-attr]
        size, stride, (offset,), dtype, device, layout = kind.parts
        found = TensorType(
            tuple([n if n.__class__ is int else formed[n] for n in size]),
            dtype,
            device,
            tuple([n if n.__class__ is int else formed[n] for n in stride]),
            offset if offset.__class__ is int else formed[offset],
            layout,
        )
        found.mark = kind
        found = mode.marks[kind] = mode.marks.setdefault(found.key(), found)
    return found  # type: ignore[no-any-return]


def timeless(key: Question) -> Question | None:
    """A question in words that other captures have; None: it has no such words."""
    told: list[Any] = []
    for part in key:
        cls = part.__class__
        if cls is Expr:
            part = form(part)
            if part is None:
                return None
        elif cls is tuple:
            part = timeless(part)
            if part is None:
                return None
        elif cls is Local:
            return None
        told.append(part)
    return tuple(told)


def keep(world: World, key: Question, answer: Any) -> None:
    """Let captures to come have this answer, if they can."""
    told, remembered = timeless(key), _kept(answer)
    if told is not None and remembered is not None:
        world.keep(told, remembered)


def _kept(answer: Any) -> Any:
    cls = answer.__class__
    if cls is TensorType:
        if answer.token is not None:
            return answer
        found = answer.mark
        # what is known of the layout now is known there
        return (found, answer._contiguous, answer._dense) if found.__class__ is Kind else None
    if cls is tuple or cls is list:
        parts = [_kept(a) for a in answer]
        return None if None in parts else (cls, parts)
    return answer if cls in TIMELESS else None


def recalled(mode: FakeTensorMode, world: World, key: Question) -> Any:
    """The answer that another capture got to this question in this world."""
    told = timeless(key)
    found = None if told is None else world.found.get(told)
    return None if found is None else _again(mode, found)


def _again(mode: FakeTensorMode, kept: Any) -> Any:
    if kept.__class__ is not tuple:
        return kept
    what = kept[0]
    if what.__class__ is Kind:
        t = _instance(mode, what)
        if t._contiguous is None:
            t._contiguous = kept[1]
        if t._dense is None:
            t._dense = kept[2]
        return t
    return what([_again(mode, part) for part in kept[1]])
