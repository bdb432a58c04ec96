"""Which code catches an exception, read off the bytecode.

A `try` does, and so may a `with`: `contextlib.suppress`. Layer 0: imports nothing of the house but
`cache`.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from types import CodeType, FrameType
from typing import Any

from lostwax.cache import cached, cached_by_identity


def is_caught(frame: FrameType, offset: int, kind: type[BaseException] = BaseException) -> bool:
    """May an exception from here be caught in this frame? `kind` is its class, if that is known."""
    seen: set[int] = set()
    handler = _find_handler(frame.f_code, offset)
    while handler is not None and handler not in seen:
        if not _is_passed_on(frame, handler, kind):
            return True
        seen.add(handler)
        handler = _find_handler(frame.f_code, handler)  # what is around it
    return False


def find_catching(frame: FrameType, offset: int, kind: type[BaseException]) -> int | None:
    """The line of the handler in this frame that is sure to catch such an exception from here, and
    to go on; None, if there is none. (A `with` is, if it is `contextlib.suppress`.)"""
    seen: set[int] = set()
    handler = _find_handler(frame.f_code, offset)
    while handler is not None and handler not in seen:
        if _goes_on(frame, handler, kind):
            return _find_line(frame.f_code, handler)
        seen.add(handler)
        handler = _find_handler(frame.f_code, handler)
    return None


def _goes_on(frame: FrameType, handler: int, kind: type[BaseException]) -> bool:
    path = _manager(frame.f_code, handler)
    if path is not None:
        named = [_find_known(frame, (name,)) for name in _arguments(frame.f_code, handler)]
        kinds = [each for each in named if isinstance(each, type)]
        is_other = bool(kinds) and kinds == named and not issubclass(kind, tuple(kinds))
        return _find_known(frame, path) is suppress and not is_other
    is_with = "WITH_EXCEPT_START" in _names_from(frame.f_code, handler)[:2]
    return not (
        is_with or _is_passed_on(frame, handler, kind) or _always_raises(frame.f_code, handler)
    )


@cached(1000)
def _always_raises(code: CodeType, handler: int) -> bool:
    """Does every way through the handler raise, also where it matches?"""
    steps = [s for s in _instructions(code) if s.offset >= handler]
    places = {s.offset: i for i, s in enumerate(steps)}
    seen, left = set[int](), [0]
    while left:
        i = left.pop()
        if i in seen:
            continue
        seen.add(i)
        name = steps[i].opname if i < len(steps) else "RETURN"
        if name in ("POP_EXCEPT", "YIELD_VALUE", "SEND") or name.startswith("RETURN"):
            return False
        if name in ("RERAISE", "RAISE_VARARGS"):
            continue
        is_jump = "JUMP" in name or name == "FOR_ITER"
        if is_jump and steps[i].argval not in places:
            return False
        left += [places[steps[i].argval]] if is_jump else []
        left += [] if name.startswith("JUMP") else [i + 1]
    return True


def _find_line(code: CodeType, handler: int) -> int:
    """Where a handler is written."""
    places = [s.positions for s in _instructions(code) if s.offset >= handler]
    return next((at.lineno for at in places if at is not None and at.lineno), code.co_firstlineno)


def _find_handler(code: CodeType, offset: int) -> int | None:
    covering = (handler for start, end, handler in _handlers(code) if start <= offset < end)
    return next(covering, None)


def _is_passed_on(frame: FrameType, handler: int, kind: type[BaseException]) -> bool:
    """Is it a `finally`, an `except` of other classes, the end of a `with` whose manager passes
    exceptions on, or a hook of the house's?"""
    if _is_of_house(frame.f_code, handler) or _only_raises(frame.f_code, handler):
        return True
    clauses = _clauses(frame.f_code, handler)
    if clauses is not None and not any(_may_match(frame, each, kind) for each in clauses):
        return True
    path = _manager(frame.f_code, handler)
    if path is None:
        return False
    made = _find_known(frame, path)
    if str(getattr(made, "__module__", "")).partition(".")[0] == "torch" or made is nullcontext:
        return True
    left = getattr(made, "__exit__", None) if isinstance(made, type) else None
    code = getattr(left, "__code__", None)
    return code is not None and _is_never_true(code)


def _may_match(frame: FrameType, path: tuple[str, ...], kind: type[BaseException]) -> bool:
    """May an exception of this class be one of the class that a global name and attributes of it
    tell?"""
    known = _find_known(frame, path)
    if kind is BaseException or not isinstance(known, type):
        return True
    return issubclass(kind, known)


def _find_known(frame: FrameType, path: tuple[str, ...]) -> Any:
    """What a global name and attributes of it tell."""
    name, *attributes = path
    known: Any = frame.f_globals.get(name, frame.f_builtins.get(name))
    for each in attributes:
        known = getattr(known, each, None)
    return known


@cached(1000)
def _only_raises(code: CodeType, handler: int) -> bool:
    """Is it what Python does where a handler itself has raised?"""
    return _names_from(code, handler)[:3] == ["COPY", "POP_EXCEPT", "RERAISE"]


def _names_from(code: CodeType, handler: int) -> list[str]:
    return [s.opname for s in _instructions(code) if s.offset >= handler]


@cached(1000)
def _clauses(code: CodeType, handler: int) -> tuple[tuple[str, ...], ...] | None:
    """The classes that the handler catches; none for a `finally`. None, if it cannot be told: then
    it may catch all. Every way that no class matches has to raise again."""
    steps = [s for s in _instructions(code) if s.offset >= handler]
    places = {s.offset: i for i, s in enumerate(steps)}
    found: list[tuple[str, ...]] = []
    seen, left = set[int](), [0]
    while left:
        i = left.pop()
        if i in seen:
            continue
        seen.add(i)
        step = steps[i] if i < len(steps) else None
        if step is None or step.opname in _LEAVING or step.opname.startswith("RETURN"):
            return None
        target = places.get(step.argval) if "JUMP" in step.opname else None
        if step.opname == "CHECK_EXC_MATCH":
            classes, jump = _read_classes(steps[:i]), steps[i + 1]
            if not classes or not jump.opname.endswith("IF_FALSE") or jump.argval not in places:
                return None
            found += classes
            left.append(places[jump.argval])
        elif "JUMP" in step.opname:
            if target is None:
                return None
            left += [target] if step.opname.startswith("JUMP") else [target, i + 1]
        elif step.opname != "RERAISE":
            left.append(i + 1)
    return tuple(found)


def _read_classes(steps: list[dis.Instruction]) -> list[tuple[str, ...]]:
    """The names that the last of these steps load: of one class, or of a tuple of them."""
    last, count = len(steps) - 1, 1
    if steps[last].opname == "BUILD_TUPLE":
        last, count = last - 1, steps[last].arg or 0
    found: list[tuple[str, ...]] = []
    path: list[str] = []
    while last >= 0 and len(found) < count:
        step = steps[last]
        if step.opname == "LOAD_ATTR":
            path.insert(0, step.argval)
        elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            found.append((step.argval, *path))
            path = []
        else:
            return []
        last -= 1
    return found


_LEAVING = frozenset(("POP_EXCEPT", "FOR_ITER", "SEND", "YIELD_VALUE", "WITH_EXCEPT_START"))
"""A handler with one of these may end without raising again, or is not looked into."""


@cached(1000)
def _is_of_house(code: CodeType, handler: int) -> bool:
    """Does the handler begin with a constant of the house's? (`capture/flow/hooks.py`)"""
    steps = [s for s in _instructions(code) if s.offset >= handler][:2]
    if [s.opname for s in steps] != ["PUSH_EXC_INFO", "LOAD_CONST"]:
        return False
    return type(steps[1].argval).__module__.startswith("lostwax.")


@cached_by_identity(1000)
def _is_never_true(code: CodeType) -> bool:
    """Does the function return None or False at every `return`? (A generator does not tell.)"""
    steps = _instructions(code)
    for i, step in enumerate(steps):
        if step.opname in ("RETURN_VALUE", "RETURN_CONST"):
            said = step if step.opname == "RETURN_CONST" else steps[i - 1]
            is_constant = said.opname in ("LOAD_CONST", "RETURN_CONST")
            if not is_constant or said.argval not in (None, False):
                return False
    return not code.co_flags & _GENERATOR


_GENERATOR = 0x20 | 0x80 | 0x200  # of any kind


def _manager(code: CodeType, handler: int) -> tuple[str, ...] | None:
    """What the `with` that ends here calls to make its manager: a global name and attributes of it,
    `torch.no_grad`. None if it is no `with`, or calls nothing so simple."""
    return _read_manager(code, handler)[0]


def _arguments(code: CodeType, handler: int) -> tuple[str, ...]:
    """The global names in the arguments that it is made with."""
    return _read_manager(code, handler)[1]


@cached(1000)
def _read_manager(code: CodeType, handler: int) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    steps = _instructions(code)
    if _names_from(code, handler)[:2] != ["PUSH_EXC_INFO", "WITH_EXCEPT_START"]:
        return None, ()
    start = min(start for start, _, each in _handlers(code) if each == handler)
    before = [s for s in steps if s.offset < start and s.opname != "NOP"]
    if [s.opname for s in before[-2:]] != ["CALL", "BEFORE_WITH"]:
        return None, ()
    begins = _begins(before[-2])
    path: list[str] = []
    given: list[str] = []
    for step in reversed(before[:-2]):
        is_global = step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
        if begins is None or _begins(step) != begins:
            given += [step.argval] if is_global else []
            continue
        if is_global:
            return (step.argval, *reversed(path)), tuple(given)
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            path.append(step.argval)
        elif step.opname not in ("PRECALL", "KW_NAMES", "PUSH_NULL"):
            return None, ()
    return None, ()


def _begins(step: dis.Instruction) -> tuple[int, int] | None:
    """Where in the source the expression that the step belongs to begins."""
    at = step.positions
    if at is None or at.lineno is None or at.col_offset is None:
        return None
    return at.lineno, at.col_offset


@cached_by_identity(1000)
def _instructions(code: CodeType) -> list[dis.Instruction]:
    return [s for s in dis.get_instructions(code) if s.opname != "CACHE"]


@cached_by_identity(1000)
def _handlers(code: CodeType) -> tuple[tuple[int, int, int], ...]:
    return tuple(_parse_table(code.co_exceptiontable))


def _parse_table(table: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, handler) of each entry. A number has six bits a byte; the first byte of an
    entry has a mark."""
    rest = iter(table)
    for first in rest:
        numbers = [_number(first, rest), *(_number(next(rest), rest) for _ in range(3))]
        start, length, handler = (2 * n for n in numbers[:3])
        yield start, start + length, handler


def _number(byte: int, rest: Iterator[int]) -> int:
    value = byte & 63
    while byte & 64:
        byte = next(rest)
        value = value << 6 | byte & 63
    return value
