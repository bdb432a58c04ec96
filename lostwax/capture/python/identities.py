"""What Python does with our objects without calling them, in the user's functions: a copy of a
function's code that asks us.

A number that is not known is another object than the one that it stands for, `flag is True`; and of
two tensors data may decide whether they are one. So in the copy the comparison is `(one, other) in
ASKED`. `x is None` stays as it is. A method of C's does not know our classes: `(2).__eq__(n)` is
`METHODS[2].__eq__(n)` in the copy, and one that is kept somewhere asks, too (`held.py`); in code
that has such a name as a text (`vars(int)["__eq__"]`), what calls give is looked at; found in other
ways, its answer is refused if its truth is asked (`watch_truths`). So are methods of lists,
`list.copy(found)`, which C would answer by what lies in a list of ours: where data decide control
flow, for their names are in much code. `case int():` is answered by
`one in MATCHED`. And if C raises a TypeError over one of our numbers, the handler would run for all
data: each handler begins with `error in CAUGHT`. The bytes are exchanged, and not the source
(`flow/rewriting`): that would have to be read and compiled, for functions most of which do none of
this. Must not know what the answer is for.
"""

from __future__ import annotations

import dis
import operator
import sys
import warnings
from collections import deque
from collections.abc import Iterator
from functools import partial
from numbers import Number
from operator import attrgetter, is_not, methodcaller
from types import (
    CodeType,
    GenericAlias,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import Any

from torch import Tensor

from lostwax.bytecode import find_units, read_argument
from lostwax.bytecode.copies import Replacement, put_in, write_instruction
from lostwax.capture import threads
from lostwax.capture.python.one_of import OneOf, is_option
from lostwax.classes import SHOWN, SYMBOLIC, StandsFor, show_class
from lostwax.errors import CaptureError
from lostwax.fake.symbolic.objects import is_same_symbolic_object
from lostwax.fake.tensor import FakeTensor
from lostwax.location import PASSING_ON
from lostwax.undo.undo import Undo

PASSING_ON.add(__file__)
_SYMBOLIC: frozenset[type] = frozenset(SYMBOLIC)


def is_same(one: Any, other: Any) -> Any:
    """`one is other`: a truth, symbolic where data or sizes decide it. Refused for tensors, if it
    is so on one side of an `if` only."""
    if type(one) in _SYMBOLIC or type(other) in _SYMBOLIC:
        return is_same_symbolic_object(one, other) if threads.is_capturing() else one is other
    if type(one) is OneOf or type(other) is OneOf:
        return is_option(one, other)
    for each in (one, other):
        if issubclass(type(each), StandsFor) and type(each).is_unknown:
            raise each.refuse()
    for tensor, number in ((one, other), (other, one)):
        if type(number) in (bool, int, float):
            check_class(tensor)
            if tensor is NotImplemented and threads.is_capturing():
                raise _refuse_truth()
    are_two = one is not other and isinstance(one, Tensor) and isinstance(other, Tensor)
    if are_two and FakeTensor in (type(one), type(other)) and threads.is_capturing():
        threads.running[-1].check_apart(one, other)
    if one is type or other is type:  # something else may stand for it
        return getattr(one, "stands_for", one) is getattr(other, "stands_for", other)
    return one is other


def check_class(value: Any) -> None:
    """Refuse the question of what class it is, if data decide that."""
    if type(value) is FakeTensor and threads.is_capturing():
        threads.running[-1].check_class(value)


class _Asked:
    def __contains__(self, pair: tuple[Any, Any]) -> Any:
        return is_same(*pair)  # Python makes a truth of it


class _Matched:
    def __contains__(self, value: Any) -> bool:
        check_class(value)
        return False


class _Caught:
    is_put_in = True
    """To who reads handlers (`handlers.py`)."""

    def __contains__(self, error: BaseException) -> bool:
        if isinstance(error, TypeError) and threads.is_capturing():
            threads.running[-1].check_caught(error)
        return False


class _WithMethods:
    """What has methods; something else, if C's would be called for what it does not know."""

    def __init__(self, kinds: tuple[type, ...]) -> None:
        self._kinds = kinds

    def __getitem__(self, owner: Any) -> Any:
        own = type(owner)
        kind = owner if issubclass(own, type) else own
        if own is GenericAlias or own.__module__ == "typing":  # `list[int].copy`
            kind = getattr(owner, "__origin__", own)
        if not isinstance(kind, type):
            return owner
        is_number = issubclass(kind, Number)
        if is_number or any(owner is each for each in self._kinds):
            return _Owner(owner)
        return _OwnerOfList(owner) if issubclass(kind, _LISTS) else owner


class _Owner:
    """Has the methods of a number, or of a class."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def __getattribute__(self, name: str) -> Any:
        return partial(_call_method, getattr(object.__getattribute__(self, "_owner"), name))


class _OwnerOfList(_Owner):
    """Has the methods of a list."""

    def __getattribute__(self, name: str) -> Any:
        found = getattr(object.__getattribute__(self, "_owner"), name)
        return make_asking(found) if is_of_c(found) else found


def _call_method(method: Any, /, *args: Any, **options: Any) -> Any:
    """`object.__setattr__(tensor, …)` goes the way of `setattr`, and `object.__hash__` that of
    `hash`. A method of a plain number would return NotImplemented, which is true."""
    if not args or not threads.is_capturing():
        return method(*args, **options)
    if _find_class(method) in _LISTS:
        return _call_of_list(method, *args, **options)
    if type(method) in _FINDERS:
        name, *given = method.__reduce__()[1]
    else:
        name, given = method.__qualname__, [*args]
        if method.__name__ in _OF_OBJECTS and type(args[0]) is FakeTensor:
            method = getattr(FakeTensor, method.__name__)
    asked = [SHOWN[type(each)] for each in given if type(each) in _SYMBOLIC]
    is_refused = asked and getattr(method, "__objclass__", None) in _NUMBERS
    answer = NotImplemented if is_refused else method(*args, **options)
    if asked and answer is NotImplemented:
        raise CaptureError.here(
            f"{name} is called with a value of type {asked[0].__name__}, which "
            "depends on data or on a size",
            why="a method of Python's own numbers takes plain numbers alone",
            instead="write the operator, 2 == n, or operator.eq(2, n)",
        )
    return answer


def _call_of_list(method: Any, /, *args: Any, **options: Any) -> Any:
    """A list of ours answers itself; one of Python's asks it, where C would look into it."""
    is_bound, name = type(method) is MethodWrapperType, method.__name__
    given = (method.__self__, *args) if is_bound else args
    if not any(issubclass(type(each), StandsFor) for each in given):
        return method(*args, **options)
    if not issubclass(show_class(given[0]), _find_class(method)):
        return method(object())  # which raises
    if issubclass(type(given[0]), StandsFor):
        return getattr(given[0], name)(*given[1:], **options)
    return getattr(operator, name)(*given) if name in _LOOKING_IN else method(*args, **options)


class _MethodOfC(StandsFor):
    """What is called in the place of a method."""

    __slots__ = ("stands_for",)

    def __init__(self, method: Any) -> None:
        self.stands_for = method

    def _lw_class(self) -> type:
        return type(self.stands_for)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return ANSWERS[_call_method(self.stands_for, *args, **options)]

    def __get__(self, value: Any, cls: Any = None) -> Any:
        binds = value is not None and hasattr(self.stands_for, "__get__")
        return MethodType(self, value) if binds else self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stands_for, name)

    def __repr__(self) -> str:
        return repr(self.stands_for)

    def __eq__(self, other: Any) -> bool:
        return self.stands_for == getattr(other, "stands_for", other)  # type: ignore[no-any-return]

    def __hash__(self) -> int:
        return hash(self.stands_for)

    def __reduce__(self) -> Any:
        return self.stands_for.__reduce__()


def make_asking(method: Any) -> Any:
    """What to call in the place of a method of C's, `list.copy`, or of one that is kept somewhere;
    if it is of no number or list in particular, always the same."""
    return _ASKING.get(method) or _MethodOfC(method)


class _Answers:
    """What a call or a lookup gives, where the code has the name of a method as a text."""

    def __getitem__(self, answer: Any) -> Any:
        return make_asking(answer) if is_of_c(answer) else answer


def is_of_c(value: Any) -> bool:
    """Is it a method of Python's own numbers and lists, or does it look for one
    (`attrgetter("__eq__")`)?"""
    if type(value) in _FINDERS:
        return names_method(value.__reduce__()[1])
    return type(value) in METHOD_KINDS and _find_class(value) in _KNOWN


def _find_class(method: Any) -> Any:
    return getattr(method, "__objclass__", None)


class _AskedTruth:
    """Sees each DeprecationWarning of Python's. One of them is that the truth of NotImplemented is
    asked: so a method of C's answers that is found in any other way than by its name in the code,
    `getattr(2, "__eq__")(n)`."""

    def match(self, text: str) -> bool:
        if text.startswith("NotImplemented should not be used") and threads.is_capturing():
            raise _refuse_truth()
        return False


def _refuse_truth() -> CaptureError:
    return CaptureError.here(
        "the truth of NotImplemented is asked",
        why="a method of Python's own numbers takes plain numbers alone, and answers so if it is "
        "given one that depends on data or on a size",
        instead="write the operator, 2 == n, or operator.eq(2, n)",
    )


def watch_truths(undo: Undo) -> None:
    """From here on, refuse what asks for the truth of NotImplemented. Whoever changes the filters
    tells of it (`with warnings.catch_warnings()`): then ours is put first again."""
    known: Any = warnings
    row = ("ignore", _AskedTruth(), DeprecationWarning, None, 0)
    before, tell = known.filters, known._filters_mutated

    def put_back() -> None:
        known._filters_mutated = tell
        for each in (before, known.filters):
            each[:] = [other for other in each if other is not row]

    def put_first() -> None:
        known.filters[:] = [row, *(each for each in known.filters if each is not row)]
        tell()

    undo.add(put_back)
    known._filters_mutated = put_first
    put_first()


_NUMBERS, _LISTS = (int, float, complex, bool), (list, deque)
_KNOWN = frozenset((*_NUMBERS, *_LISTS))
_FINDERS = (attrgetter, methodcaller)
_UNBOUND = (WrapperDescriptorType, MethodDescriptorType)
METHOD_KINDS = (MethodWrapperType, *_UNBOUND, *_FINDERS)
_OF_OBJECTS = frozenset(("__setattr__", "__delattr__", "__hash__"))
_COMPARISONS = frozenset(("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"))
_OPERATORS = frozenset(name for name in vars(int) if name[:2] == "__" and not hasattr(object, name))
_NUMBERS_NAMES = _COMPARISONS | _OPERATORS
_METHOD_NAMES = _OF_OBJECTS | _NUMBERS_NAMES
_LOOKING_IN = _COMPARISONS | {"__add__"}
"""By these a list looks into another one."""
_ASKING = {
    method: _MethodOfC(method)
    for cls in _KNOWN
    for method in vars(cls).values()
    if type(method) in _UNBOUND
}
_OF_LISTS = frozenset(
    name
    for cls in _LISTS
    for name, method in vars(cls).items()
    if type(method) in METHOD_KINDS and not hasattr(object, name)
)
ASKED, ANSWERS, CAUGHT, MATCHED = _Asked(), _Answers(), _Caught(), _Matched()
METHODS, CALLED_METHODS = _WithMethods(()), _WithMethods(Tensor.__mro__)
"""Whose methods are only named, `map((2).__eq__, …)`; and whose are called at once."""
_PUT_IN = (ASKED, ANSWERS, CAUGHT, MATCHED, METHODS, CALLED_METHODS)


def ask_identities(code: CodeType, finds: bool = False, has_lists: bool = False) -> CodeType:
    """The code, and those of the functions in it, with questions for comparisons of objects, calls
    of methods of numbers, and handlers; itself if there is none of these that can matter. `finds`:
    code around it, or a global, has the name of a method as a text. `has_lists`: methods of lists
    ask, too."""
    constants, names = code.co_consts, _METHOD_NAMES | _OF_LISTS if has_lists else _METHOD_NAMES
    finds = finds or any(names_method(each, has_lists) for each in constants)
    if CodeType in map(type, constants):
        inner = tuple(
            [ask_identities(c, finds, has_lists) if type(c) is CodeType else c for c in constants]
        )
        if any(map(is_not, inner, constants)):
            code, constants = code.replace(co_consts=inner), inner
    written = code.co_code
    asked, answers, caught, matched, *methods = (
        write_instruction(_LOAD_CONST, len(constants) + i) for i in range(len(_PUT_IN))
    )
    new = dict[int, Replacement]()
    for at in _find(written, _COMPARING):
        if _may_matter(written, at, constants):
            ask = _IN[:1] + written[2 * at + 1 : 2 * at + 2] + _IN[2:]  # `in`, or `not in`
            new[at] = Replacement(at + 1, _TUPLE + asked + ask)
    if code.co_exceptiontable:
        users = (at for at in _find(written, _BEGINNING) if not _is_ours(written, at, constants))
        for at in users:
            new[at] = Replacement(
                at + 1, written[2 * at : 2 * at + 2] + _TOP + caught + _IN + _DROP
            )
    for at in _find(written, _MATCHING):
        ask = _THIRD + matched + _IN + _DROP
        new[at] = Replacement(at + 1, ask + written[2 * at : 2 * at + 2])
    if not names.isdisjoint(code.co_names):
        for at in _find(written, _LOADING):
            start, name, is_called = _read_name(written, at)
            if code.co_names[name] in names:
                ask = methods[is_called] + _SWAP + _ITEM
                new[start] = Replacement(at + 1, ask + written[2 * start : 2 * at + 2])
    if finds:
        for at in _find(written, _ANSWERING):
            end = at + 1
            while written[2 * end : 2 * end + 1] == _KEPT:
                end += 1
            new[at] = Replacement(end, written[2 * at : 2 * end] + answers + _SWAP + _ITEM)
    if not new:
        return code
    grown = code.replace(co_consts=(*constants, *_PUT_IN), co_stacksize=code.co_stacksize + 2)
    return put_in(grown, new)


def names_method(constant: Any, has_lists: bool = False) -> bool:
    """Is it a text by which a method of a number may be found, or has it one? `has_lists`: or one
    of a list."""
    if type(constant) is tuple:
        return any(names_method(each, has_lists) for each in constant)
    names = _NUMBERS_NAMES | _OF_LISTS if has_lists else _NUMBERS_NAMES
    return type(constant) is str and constant in names


def _find(written: bytes, marks: bytes) -> Iterator[int]:
    return find_units(written[::2].translate(marks), 1)


def _may_matter(written: bytes, at: int, constants: tuple[Any, ...]) -> bool:
    """Is it no comparison with a constant that is no number? (`x is None`.)"""
    if written[2 * at - 2] != _LOAD_CONST:
        return True
    return type(constants[read_argument(written, at - 1)[1]]) in (bool, int, float)


def _is_ours(written: bytes, at: int, constants: tuple[Any, ...]) -> bool:
    """Is it a handler that hooks have put in (`flow/rewriting`)?"""
    while written[2 * at + 2] == dis.EXTENDED_ARG:
        at += 1
    is_constant = written[2 * at + 2] == _LOAD_CONST
    loaded = constants[read_argument(written, at + 1)[1]] if is_constant else None
    return type(loaded).__module__.startswith("lostwax.")


def _read_name(written: bytes, at: int) -> tuple[int, int, bool]:
    """Where an instruction begins that loads an attribute; which name it is; whether it is called
    as a method."""
    start, argument = read_argument(written, at)
    if sys.version_info < (3, 12):
        return start, argument, written[2 * at] == _LOAD_METHOD
    return start, argument >> 1, bool(argument & 1)


def _cut(example: Any, index: int) -> bytes:
    """What Python makes of an operator of two arguments: the instruction that is the last but so
    many, and what it keeps behind it."""
    found = [*dis.get_instructions(example)]
    end = found[index + 1].offset
    return example.__code__.co_code[found[index].offset : end]  # type: ignore[no-any-return]


def _mark(*names: str) -> bytes:
    codes = [dis.opmap[name] for name in names if name in dis.opmap]
    return bytes(each in codes for each in range(256))


_LOAD_CONST, _LOAD_METHOD = dis.opmap["LOAD_CONST"], dis.opmap.get("LOAD_METHOD", -1)
_TUPLE, _TOP, _THIRD = (
    write_instruction(dis.opmap[name], of)
    for name, of in (("BUILD_TUPLE", 2), ("COPY", 1), ("COPY", 3))
)
_SWAP, _DROP = write_instruction(dis.opmap["SWAP"], 2), write_instruction(dis.opmap["POP_TOP"], 0)
_IN, _ITEM = _cut(lambda one, other: one in other, -2), _cut(lambda one, other: one[other], -2)
_COMPARING, _BEGINNING, _MATCHING = map(_mark, ("IS_OP", "PUSH_EXC_INFO", "MATCH_CLASS"))
_ANSWERING = _mark("CALL", "CALL_KW", "CALL_FUNCTION_EX", "BINARY_SUBSCR")
_KEPT = bytes((dis.opmap["CACHE"],))
_LOADING = _mark("LOAD_ATTR", *(["LOAD_METHOD"] if sys.version_info < (3, 12) else []))
