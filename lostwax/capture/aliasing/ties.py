"""Tensors that are one in eager, where data decide so, and two in a program.

What comes out of a branch or a loop is a new tensor. In eager it is what the function returns, and
that may be a tensor from outside. Two such tensors are one if both are the same on one of the ways
that a call can go; after `a, b = b, a` on one side they never are. Must not decide what follows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import product
from typing import Any

from lostwax.ir.trace.views import Root


class Ties:
    """Which tensors of one capture are the same object in eager, by the way a call takes."""

    def __init__(self) -> None:
        self._ways: dict[Root, dict[Any, list[Root]]] = {}
        """What each is, by the way; in the order in which they are made."""
        self._order: dict[Root, int] = {}
        self._younger: dict[Root, Collection[Root]] = {}
        """Of what a loop hands on: what is made in the same turn."""

    def note(self, result: Root, way: Any, root: Root) -> None:
        """If a call goes this way, the result is `root`."""
        self._order.setdefault(result, len(self._order))
        shown = self._ways.setdefault(result, {}).setdefault(way, [])
        if root not in shown:
            shown.append(root)

    def note_handed_on(self, root: Root, younger: Collection[Root]) -> None:
        self._younger[root] = younger

    def __bool__(self) -> bool:
        return bool(self._ways)

    def __contains__(self, root: Root) -> bool:
        return root in self._ways

    def list_shown(self, root: Root) -> Iterator[Root]:
        """All tensors that it may be in eager."""
        seen, left = {root}, [root]
        while left:
            at = left.pop()
            yield at
            for shown in self._ways.get(at, {}).values():
                left += [each for each in shown if each not in seen]
                seen.update(shown)

    def group(self, held: Iterable[tuple[Root, Root]]) -> dict[Root, set[Root]]:
        """What may be one in some later call. `held`: what is in each place at first, and when the
        call is over."""
        found: dict[Root, set[Root]] = {}
        for first, last in held:
            shown = {first, *self.list_shown(last)}
            whole = shown.union(*(found.get(each, ()) for each in shown))
            found |= dict.fromkeys(whole, whole)
        return found

    def may_be_one(self, one: Root, other: Root) -> bool:
        """Is there a way through the program on which the two are the same tensor?"""
        return self._meet(one, other, set())

    def _meet(self, one: Root, other: Root, seen: set[tuple[Root, Root]]) -> bool:
        if one is other:
            return True
        if self._order.get(one, -1) < self._order.get(other, -1):
            one, other = other, one
        is_apart = other in self._younger.get(one, ()) or one in self._younger.get(other, ())
        if is_apart or (one, other) in seen:
            return False
        seen.add((one, other))
        along = self._ways.get(other, {})
        return any(
            self._meet(a, b, seen)
            for way, shown in self._ways.get(one, {}).items()
            for a, b in product(shown, along.get(way, [other]))
        )
