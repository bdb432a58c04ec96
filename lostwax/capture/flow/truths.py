"""Whether a value is true, where data decide: as a tensor or a symbolic truth to compute with.

Must not record regions.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from enum import Enum, EnumMeta
from inspect import CO_OPTIMIZED, getattr_static
from types import FrameType, FunctionType, MemberDescriptorType
from typing import Any

import torch

from lostwax.capture import threads
from lostwax.capture.python.one_of import OneOf, equals_option
from lostwax.classes import SYMBOLIC, StandsFor
from lostwax.fake.symbolic.node import unwrap
from lostwax.fake.tensor import FakeTensor
from lostwax.location import PASSING_ON
from lostwax.sym import BoolExpr, Expr, known
from lostwax.sym.numbers.real import Real

PASSING_ON.add(__file__)
KEPT, UNSET = object(), object()
"""Of a variable: it is to stay as it is; it is to be unset."""


class OpenLength(StandsFor):
    """Something of which it may not be known how many elements it has."""

    __slots__ = ()

    def count_elements(self) -> Any:
        """How many it has, a symbolic number where it is one."""
        raise NotImplementedError


def find_undecided(value: Any) -> Any:
    """What to choose by, if the truth of a value depends on data; else None."""
    if isinstance(value, OpenLength):
        value = value.count_elements() > 0
    if isinstance(value, torch.SymBool):
        condition = unwrap(value)
        if not isinstance(condition, BoolExpr) or known(condition) is not None:
            return None
        return value if condition.hint is None or _is_kept(condition) else None
    if isinstance(value, (torch.SymInt, torch.SymFloat)) and is_open_number(value):
        return find_undecided(value != 0)
    if (
        type(value) is FakeTensor
        and value.known_constant() is None
        and value.fake_type.numel() == 1
    ):
        if value.fake_mode.observer.assumes_true(value):
            return None
        truth = value if value.dtype is torch.bool else value != 0
        return truth.reshape(()) if truth.ndim else truth
    return None


def is_open_number(number: Any) -> bool:
    """Does a number depend on data?"""
    if isinstance(number, SYMBOLIC):
        value = unwrap(number)
        is_symbolic = isinstance(value, (Expr, BoolExpr, Real))
        return is_symbolic and (value.hint is None or _is_kept(value))
    return type(number) is FakeTensor and number.known_constant() is None and number.numel() == 1


def _is_kept(value: Expr | BoolExpr | Real) -> bool:
    """Is it about a declared size, and does the user want both ways?"""
    splits = threads.running[-1].splits
    return splits is not None and splits.keeps(value)


def read_truth(value: Any) -> Any:
    """The truth of a value: True or False, or what to choose by."""
    found = find_undecided(value)
    return bool(value) if found is None else found


def find_known(value: Any) -> Any:
    """A value; True or False, if that is certain here of a symbolic truth."""
    certain = known(unwrap(value)) if isinstance(value, torch.SymBool) else None
    return value if certain is None else certain


def negate(value: Any) -> Any:
    found = find_undecided(value)
    if found is None:
        return not value
    return torch.logical_not(found) if isinstance(found, torch.Tensor) else torch.sym_not(found)


def is_of_data(holds: Any) -> bool:
    """Do data decide a comparison of numbers?"""
    condition = unwrap(holds) if isinstance(holds, torch.SymBool) else holds
    return isinstance(condition, BoolExpr) and condition.unbacked and known(condition) is None


def take_number(truth: Any) -> Any:
    """A truth as Python has it: no tensor."""
    return truth.item() if isinstance(truth, torch.Tensor) else truth


def combine(one: Any, other: Any, is_and: bool) -> Any:
    """`one and other`, or `one or other`, of two truths."""
    for known_one, rest in ((one, other), (other, one)):
        if isinstance(known_one, bool):
            return rest if known_one is is_and else known_one
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        join = torch.logical_and if is_and else torch.logical_or
        return join(make_tensor(one), make_tensor(other))
    return one & other if is_and else one | other


def compare(one: Any, other: Any) -> Any:
    """`one == other`. Of lists and tuples it is made of the truths of their elements: Python's own
    comparison wants to know each of them."""
    if OneOf in (type(one), type(other)):
        return equals_option(one, other)
    if not _are_sequences(one, other):
        return one == other
    return take_number(_compare_elements(one, other))


def compare_unequal(one: Any, other: Any) -> Any:
    """`one != other`."""
    if OneOf in (type(one), type(other)):
        return take_number(negate(equals_option(one, other)))
    return negate(compare(one, other)) if _are_sequences(one, other) else one != other


def _are_sequences(one: Any, other: Any) -> bool:
    """Are both lists, or both tuples, that are compared as Python's own are?"""
    return any(
        isinstance(one, kind)
        and isinstance(other, kind)
        and type(one).__eq__ is type(other).__eq__ is kind.__eq__
        for kind in (list, tuple)
    )


def _compare_elements(one: Any, other: Any) -> Any:
    if len(one) != len(other):
        return False
    found: Any = True
    for a, b in zip(one, other, strict=True):
        found = combine(found, _is_same(a, b), is_and=True)
        if found is False:
            break
    return found


def _is_same(one: Any, other: Any) -> Any:
    """The truth by which Python takes two elements for the same."""
    return one is other or read_truth(compare(one, other))


def find_in(one: Any, values: Any) -> Any:
    """`one in values`, of a list or a tuple likewise."""
    contains = getattr(type(values), "__contains__", None)
    if isinstance(contains, FunctionType):
        return take_number(read_truth(contains(values, one)))
    if contains not in (list.__contains__, tuple.__contains__) and not _has_keys(one, values):
        return one in values
    found: Any = False
    for each in values:
        found = combine(found, _is_same(each, one), is_and=False)
        if found is True:
            break
    return take_number(found)


def _has_keys(one: Any, values: Any) -> bool:
    """Is a number that data decide looked for among keys, which are compared by what they are?"""
    is_number = isinstance(one, (torch.SymInt, torch.SymFloat)) and is_open_number(one)
    kinds: tuple[Any, ...] = (dict, set, frozenset, type({}.keys()))
    contains = [kind.__contains__ for kind in kinds]
    is_plain = getattr(type(values), "__contains__", None) in contains
    return is_number and is_plain and all(isinstance(each, KEYS) for each in values)


KEYS = (int, float, str, bytes, type(None))


def make_tensor(truth: Any) -> torch.Tensor:
    return truth if isinstance(truth, torch.Tensor) else torch.full((), truth)


def are_read_quietly(frame: FrameType, reads: Sequence[Sequence[str]]) -> bool:
    """Are these names, and attributes of them, read, compared and asked for their truth without
    running anything of the user's?"""
    known = ChainMap(frame.f_locals, frame.f_globals, frame.f_builtins)
    for name, *attributes in reads:
        found = known.get(name, _NOT_THERE)
        for each in attributes:
            found = _read_attribute(found, each)
        if not _is_asked_quietly(found):
            return False
    return True


def _read_attribute(of: Any, name: str) -> Any:
    """What is there without asking anybody."""
    if isinstance(of, torch.Tensor):
        is_own = getattr_static(torch.Tensor, name, None) is not None
        return vars(of).get(name, None if is_own else _NOT_THERE)
    found = getattr_static(of, name, _NOT_THERE)
    if found is _NOT_THERE and isinstance(of, torch.nn.Module):
        own = (vars(of).get(each, {}) for each in ("_parameters", "_buffers", "_modules"))
        return next((each[name] for each in own if name in each), _NOT_THERE)
    if isinstance(found, MemberDescriptorType):
        return getattr(of, name, _NOT_THERE)
    if isinstance(of, Enum) and name in ("name", "value"):
        return getattr(of, f"_{name}_")
    if isinstance(of, EnumMeta) and name in of.__members__:
        return of.__members__[name]
    return _NOT_THERE if hasattr(type(found), "__get__") else found


def _is_asked_quietly(value: Any) -> bool:
    kind = type(value)
    if kind in _ATOMS or isinstance(value, (torch.Tensor, *SYMBOLIC)):
        return True
    if kind in (list, tuple, dict, torch.Size):
        return all(type(each) in _ATOMS for each in value)
    own = [getattr(kind, name, None) is getattr(object, name, None) for name in _ASKED]
    return value is not _NOT_THERE and all(own)


_NOT_THERE = object()
_ATOMS = frozenset((type(None), bool, int, float, complex, str, bytes))
_ASKED = ("__bool__", "__len__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
"""What is called when something is compared, or asked for its truth."""


def drop_copies(frame: FrameType) -> None:
    """Let a function that runs be the only one that holds its variables. (Before Python 3.13 who
    has asked for them leaves copies.)"""
    variables = frame.f_locals
    if type(variables) is dict and frame.f_code.co_flags & CO_OPTIMIZED:
        variables.clear()


class Joint:
    """`a and b`, or `a or b`, where `b` is computed in any case: `a` is in a variable, into which
    the code puts `b`. It stands where an `if` would (`choice.py`)."""

    is_symbolic = False

    def __init__(self, frame: FrameType, name: str, truth: Any, is_and: bool) -> None:
        self._frame, self._name, self._truth = frame, name, truth
        self.side = is_and

    def end(self) -> bool:
        """The side has ended: all is done."""
        other = self._frame.f_locals[self._name]
        self._found = combine(self._truth, other, is_and=self.side)
        drop_copies(self._frame)
        return True

    def give(self, name: str) -> Any:
        return self._found
