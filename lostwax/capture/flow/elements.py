"""Elements of lists, modules and dicts that data pick (`rewriting/picks.py`). Must not record
regions.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable
from itertools import takewhile
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from lostwax.capture.flow.retry import PickNeedsMoreElements
from lostwax.capture.flow.rewriting.picks import Pick
from lostwax.capture.flow.truths import (
    KEYS,
    combine,
    find_in,
    is_open_number,
    make_tensor,
    negate,
    take_number,
)
from lostwax.errors import CaptureError
from lostwax.location import PASSING_ON

PASSING_ON.add(__file__)
_MOST = 128
_LISTS = (list, tuple, nn.ModuleList, nn.Sequential, nn.ParameterList)
_DICTS = (dict, nn.ModuleDict, nn.ParameterDict)


class IndexedByData(NamedTuple):
    """Those of which data pick one."""

    values: Any
    """What has them: a list, a dict, or a module like these; or an object with attributes."""
    key: str | None
    """The key or name, with a gap for the number."""
    are_attributes: bool

    def exclude(self, index: Any) -> Any:
        """Is there no element with this index? False, if data do not decide it, or if it is not
        known which elements there are."""
        count = self._count(index)
        if not count:
            return self._exclude_key(index) if self._is_by_key(index) else False
        index = _as_number(index)
        least = -count if self._is_list else 0
        return combine(index < least, index >= count, is_and=False)

    def _exclude_key(self, index: Any) -> Any:
        key = take_number(_as_number(index))
        known = {int(k) for k in self.values if isinstance(k, (int, float)) and k == k // 1}
        if known and max(known) - min(known) < len(known):  # a range, of which more is known
            return combine(key < min(known), key > max(known), is_and=False)
        return negate(find_in(key, self.values))

    def miss(self) -> Exception:
        """What Python raises where there is none. (For an attribute a stand-in: of the error itself
        it would be asked whether a `hasattr` around it waits for it.)"""
        is_index = self._is_list or self.are_attributes
        error: Any = (IndexError if is_index else KeyError)("there is no such element")
        error.stands_for = (AttributeError,) if self.are_attributes else ()
        return error  # type: ignore[no-any-return]

    def find_place(self, index: Any, pick: Pick, frame: FrameType) -> Any:
        """Which element it is, as a number from 0 on; None, if data do not decide it, or if it is
        not known which elements there are."""
        count = self._count(index)
        if not count:
            return self.find_key(index, pick, frame, 0) if self._is_by_key(index) else None
        _check_count(count, pick, frame)
        index = _as_number(index)
        # A number of its own, whose value can be stated: that of `n % 3` cannot.
        if self._is_list or not isinstance(index, torch.Tensor):
            number = index if isinstance(index, torch.Tensor) else torch.full((), index)
            index = torch.remainder(number, count)
        return _read_place(index.reshape(()), count)

    def find_key(self, key: Any, pick: Pick, frame: FrameType, others: int = 1) -> Any:
        """The same for a dict, by its keys: one more than there are if it has none like this."""
        if not self._is_by_key(key):
            return None
        count = len(self.values)
        _check_count(count + others, pick, frame)
        number, place = make_tensor(_as_number(key)), torch.full((), count)
        for i, each in enumerate(self.values):
            if isinstance(each, (int, float)) and each == each // 1:
                place = torch.where(number == int(each), i, place)
        return _read_place(place, count + others)

    def spell(self, index: Any, place: Any) -> Any:
        """What Python is to look for: the key or the number, where it is known."""
        if place is None:
            return index
        return [*self.values][int(place)] if self._has_keys else int(place)

    def _is_by_key(self, key: Any) -> bool:
        """Do data decide which key of a dict is meant?"""
        is_number = isinstance(key, (torch.SymInt, torch.SymBool)) and is_open_number(key)
        return is_number and self._has_keys

    @property
    def _has_keys(self) -> bool:
        """Is it a dict whose keys are compared by what they are, and do these stand alone?"""
        is_dict = _is_read_as(self.values, (OrderedDict, dict), ("__iter__", "get", "values"))
        is_dict = is_dict and not hasattr(self.values, "__missing__")
        is_plain = is_dict and self.key is None and not self.are_attributes
        return is_plain and all(isinstance(each, KEYS) for each in self.values)

    def _count(self, index: Any) -> int:
        """How many elements there are, if they are numbered from 0 on and data pick one."""
        if not _is_index(index, self.key):
            return 0
        if self.are_attributes:
            assert self.key is not None
            if hasattr(type(self.values), "__getattr__") and not isinstance(self.values, nn.Module):
                return 0
            return _count_found(hasattr(self.values, self.key.format(n)) for n in range(_MOST + 1))
        if self.key is None:
            return len(self.values) if self._is_list else 0
        if not _is_read_as(self.values, _DICTS) or hasattr(self.values, "__missing__"):
            return 0
        names = [self.key.format(n) for n in range(len(self.values))]
        count = _count_found(name in self.values for name in names)
        return 0 if self._has_more(self.key, {*names[:count]}) else count

    def _has_more(self, gap: str, known: set[str]) -> bool:
        """Has it elements that an index might find, beside those that are numbered from 0 on?"""
        before, _, after = gap.format("\0").partition("\0")
        return any(
            isinstance(each, str)
            and each not in known
            and re.fullmatch(re.escape(before) + "-?[0-9]+" + re.escape(after), each)
            for each in self.values
        )

    @property
    def _is_list(self) -> bool:
        return _is_read_as(self.values, _LISTS)


def _read_place(place: Any, count: int) -> Any:
    """A number that is less than this."""
    found = place.item()
    torch._check(found >= 0)
    torch._check(found < count)
    return found


def _check_count(count: int, pick: Pick, frame: FrameType) -> None:
    if count > _MOST:
        raise CaptureError.here(
            f"data pick one of {count} elements",
            why=f"the statement would be in the program once for each; {_MOST} are the most",
            instead="pick a row of one tensor, torch.stack(tensors)[i]",
        )
    if count > pick.most:
        raise PickNeedsMoreElements(frame, pick._replace(most=count))


def _is_read_as(values: Any, kinds: tuple[type, ...], more: tuple[str, ...] = ()) -> bool:
    """Is it one of these, or of a class of the user's that gives its elements as they do?"""
    own = [kind for kind in kinds if isinstance(values, kind)]
    methods = ("__getitem__", "__len__", "__contains__", *more)
    return bool(own) and all(
        getattr(type(values), name, None) is getattr(own[0], name, None) for name in methods
    )


def _count_found(found: Iterable[bool]) -> int:
    return sum(1 for _ in takewhile(bool, found))


def _is_index(index: Any, key: str | None) -> bool:
    """Do data decide it, and does Python take it for an integer, or in a key write one?"""
    if not is_open_number(index) or isinstance(index, torch.SymFloat):
        return False
    if not isinstance(index, torch.Tensor):
        return key is None or isinstance(index, torch.SymInt)
    if index.is_floating_point() or index.is_complex():
        return False
    return key is None or (index.ndim == 0 and index.dtype is not torch.bool)


def _as_number(index: Any) -> Any:
    """An index, which may be a truth, as a number."""
    is_truth = isinstance(index, torch.SymBool) or getattr(index, "dtype", None) is torch.bool
    return make_tensor(index).long() if is_truth else index
