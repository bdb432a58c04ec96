"""Which code catches an exception, read off the bytecode.

A `try` does, and so may a `with`: `contextlib.suppress`, or a manager whose `__exit__` may return
something true. Layer 0: imports nothing of lostwax but `bytecode` and `cache`.
"""

from __future__ import annotations

import builtins
import sys
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import _GeneratorContextManager, contextmanager, suppress
from inspect import getattr_static
from types import CodeType, FrameType, FunctionType, GeneratorType
from typing import Any, NamedTuple

from lostwax.bytecode import Instruction, find_places, read_handlers, read_steps
from lostwax.cache import cached, cached_by_identity


class _Scene(NamedTuple):
    """Code, and what names mean in it."""

    code: CodeType
    known: Mapping[str, Any]
    """What globals and builtins are."""
    frame: FrameType | None = None
    """Where its variables are, if it runs."""

    @staticmethod
    def of(frame: FrameType) -> _Scene:
        return _Scene(frame.f_code, ChainMap(frame.f_globals, frame.f_builtins), frame)

    def find(self, path: Sequence[str], is_local: bool = False) -> Any:
        """What a name and attributes of it tell, without running anything of the user's."""
        name, *attributes = path
        of = self.known if not is_local else self.frame.f_locals if self.frame else {}
        found = of.get(name)
        for each in attributes:
            found = getattr_static(found, each, None)
        return found


def is_caught(frame: FrameType, offset: int, kind: type[BaseException] = BaseException) -> bool:
    """May an exception from here be caught in this frame? `kind` is its class, if that is known."""
    return _may_catch(_Scene.of(frame), offset, kind)


def _may_catch(scene: _Scene, offset: int, kind: type[BaseException]) -> bool:
    return not all(_is_passed_on(scene, each, kind) for each in _handlers_around(scene, offset))


def find_catching(frame: FrameType, offset: int, kind: type[BaseException]) -> int | None:
    """The line of the handler in this frame that is sure to catch such an exception from here, and
    to go on; None, if there is none. (A `with` is, if it is `contextlib.suppress`.)"""
    scene = _Scene.of(frame)
    for handler in _handlers_around(scene, offset):
        if _goes_on(scene, handler, kind):
            return _find_line(frame.f_code, handler)
    return None


def _handlers_around(scene: _Scene, offset: int) -> Iterator[int]:
    """Yield the handlers of what is raised here, the innermost first."""
    seen: set[int] = set()
    handler = _find_handler(scene.code, offset)
    while handler is not None and handler not in seen:
        yield handler
        seen.add(handler)
        handler = _find_handler(scene.code, handler)


def _goes_on(scene: _Scene, handler: int, kind: type[BaseException]) -> bool:
    if _ends_with(scene.code, handler):
        manager = _read_manager(scene.code, handler)
        found = scene.find(manager.path, manager.is_local) if manager else None
        return found is suppress and not _suppresses_others(scene, manager, kind)
    return not (
        _is_passed_on(scene, handler, kind)
        or _read_clauses(scene.code, handler, is_any_way=True) is not None
    )


def _find_line(code: CodeType, handler: int) -> int:
    """Where a handler is written."""
    return next((s.line for s in _steps_from(code, handler) if s.line), code.co_firstlineno)


def _find_handler(code: CodeType, offset: int) -> int | None:
    covering = (handler for start, end, handler in read_handlers(code) if start <= offset < end)
    return next(covering, None)


def _is_passed_on(scene: _Scene, handler: int, kind: type[BaseException]) -> bool:
    """Is it a `finally`, an `except` of other classes, the end of a `with` whose manager passes
    exceptions on, or a hook of lostwax's?"""
    if _is_own_hook(scene.code, handler) or _only_raises(scene.code, handler):
        return True
    if _ends_with(scene.code, handler):
        manager = _read_manager(scene.code, handler)
        return manager is not None and _never_swallows(scene, manager, kind)
    clauses = _read_clauses(scene.code, handler)
    return clauses is not None and not any(_may_match(scene, each, kind) for each in clauses)


def _may_match(scene: _Scene, path: tuple[str, ...], kind: type[BaseException]) -> bool:
    """May an exception of this class be one of the class that a global name and attributes of it
    tell?"""
    known = scene.find(path)
    if kind is BaseException or not isinstance(known, type):
        return True
    return issubclass(kind, known)


@cached(1000)
def _only_raises(code: CodeType, handler: int) -> bool:
    """Is it what Python does where a handler itself has raised?"""
    return _names_from(code, handler)[:3] == ["COPY", "POP_EXCEPT", "RERAISE"]


def _ends_with(code: CodeType, handler: int) -> bool:
    """Is it where a `with` ends?"""
    return _names_from(code, handler)[:2] == ["PUSH_EXC_INFO", "WITH_EXCEPT_START"]


def _names_from(code: CodeType, handler: int) -> list[str]:
    return [s.opname for s in _steps_from(code, handler)]


@cached(1000)
def _read_clauses(
    code: CodeType, handler: int, is_any_way: bool = False
) -> tuple[tuple[str, ...], ...] | None:
    """The classes that the handler catches; none for a `finally`. None, if it may end without
    raising what there was; then it may catch all. `is_any_way`: look at what it does where a class
    matches, too, and there it may raise something else."""
    steps = _steps_from(code, handler)
    places = find_places(steps)
    found: list[tuple[str, ...]] = []
    seen, left = set[int](), [0]
    while left:
        i = left.pop()
        if i in seen:
            continue
        seen.add(i)
        name = steps[i].opname if i < len(steps) else "RETURN"
        if name.startswith(_LEAVING) or (name == "RAISE_VARARGS" and not is_any_way):
            return None
        if name in ("RERAISE", "RAISE_VARARGS"):
            continue
        jump, goes_past = steps[i], not name.startswith("JUMP")
        if name == "CHECK_EXC_MATCH" and not is_any_way:
            classes, jump, goes_past = _read_classes(steps[:i]), steps[i + 1], False
            if not classes or not jump.opname.endswith("IF_FALSE"):
                return None
            found += classes
        if "JUMP" in jump.opname or jump.opname == "FOR_ITER":
            if jump.argval not in places:
                return None
            left.append(places[jump.argval])
        left += [i + 1] if goes_past else []
    return tuple(found)


_LEAVING = ("POP_EXCEPT", "SEND", "YIELD_VALUE", "RETURN")
"""A handler with one of these may end without raising again."""


def _read_classes(steps: list[Instruction]) -> list[tuple[str, ...]]:
    """The names that the last of these steps load: of one class, or of a tuple of them."""
    last, count = len(steps) - 1, 1
    if steps[last].opname == "BUILD_TUPLE":
        last, count = last - 1, steps[last].arg
    found: list[tuple[str, ...]] = []
    path: list[str] = []
    while last >= 0 and len(found) < count:
        step = steps[last]
        if step.opname == "LOAD_ATTR":
            path.insert(0, step.argval)
        elif step.opname in _GLOBAL:
            found.append((step.argval, *path))
            path = []
        else:
            return []
        last -= 1
    return found


_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
_LOCAL = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_DEREF")


@cached(1000)
def _is_own_hook(code: CodeType, handler: int) -> bool:
    """Does the handler begin with a constant of lostwax's? (`capture/flow/hooks.py`)"""
    steps = _steps_from(code, handler)[:2]
    if [s.opname for s in steps] != ["PUSH_EXC_INFO", "LOAD_CONST"]:
        return False
    return type(steps[1].argval).__module__.startswith("lostwax.")


# --------------------------------------------------------------------------------------- managers


class _Manager(NamedTuple):
    """How a `with` gets its manager."""

    path: tuple[str, ...]
    """A name and attributes of it, `torch.no_grad`."""
    is_local: bool
    """Is it the name of a variable?"""
    is_called: bool
    """Is that called to make it?"""
    given: tuple[str, ...]
    """What it is called with: global names, and "" for anything else."""


def _never_swallows(scene: _Scene, manager: _Manager, kind: type[BaseException]) -> bool:
    """Does the manager hand on what is raised in its `with`?"""
    found = scene.find(manager.path, manager.is_local)
    if manager.is_called and found is suppress:
        return _suppresses_others(scene, manager, kind)
    if manager.is_called and not isinstance(found, type):
        is_generator = isinstance(found, FunctionType) and found.__code__ is _MANAGER_CODE
        return _is_of_torch(found) or (is_generator and _yields_bare(found.__wrapped__, kind))
    if isinstance(found, _GeneratorContextManager):
        at = found.gen.gi_frame if isinstance(found.gen, GeneratorType) else None
        return at is not None and not is_caught(at, at.f_lasti, kind)
    of = found if manager.is_called else type(found)
    leave = getattr_static(of, "__exit__", None)
    if not isinstance(leave, FunctionType):  # of C: those of Python's own return nothing true
        return _is_of_torch(of) or (leave is not None and _is_pythons_own(of))
    return _is_of_torch(of) or _is_never_true(leave.__code__)


def _suppresses_others(scene: _Scene, manager: Any, kind: type[BaseException]) -> bool:
    """Are the classes that `suppress` is called with known, and this is none of them?"""
    named = [scene.find((name,)) for name in manager.given]
    kinds = tuple(each for each in named if isinstance(each, type))
    is_known = len(kinds) == len(named) > 0 and kind is not BaseException
    return is_known and not issubclass(kind, kinds)


def _is_of_torch(made: Any) -> bool:
    return str(getattr_static(made, "__module__", "")).partition(".")[0] == "torch"


def _yields_bare(made: Any, kind: type[BaseException]) -> bool:
    """Does a generator of which `contextlib` makes a manager catch nothing where it yields?"""
    if not isinstance(made, FunctionType):
        return False
    scene = _Scene(made.__code__, ChainMap(made.__globals__, vars(builtins)))
    yields = [s.offset for s in _instructions(made.__code__) if s.opname == "YIELD_VALUE"]
    return not any(_may_catch(scene, each, kind) for each in yields)


_MANAGER_CODE = contextmanager(lambda: iter(())).__code__


@cached_by_identity(1000)
def _is_never_true(code: CodeType) -> bool:
    """Does the function return None or False at every `return`? (A generator does not tell.)"""
    steps = _instructions(code)
    for i, step in enumerate(steps):
        if step.opname == "RETURN_VALUE":
            said, is_met = steps[i - 1], step.is_jump_target  # with something else
            if is_met or said.opname != "LOAD_CONST" or said.argval not in (None, False):
                return False
    return not code.co_flags & _GENERATOR


_GENERATOR = 0x20 | 0x80 | 0x200  # of any kind


def is_told_nothing(manager: Any) -> bool:
    """Does the end of a `with` do the same, whether its body has raised or not?"""
    if isinstance(manager, _GeneratorContextManager):
        at = manager.gen.gi_frame if isinstance(manager.gen, GeneratorType) else None
        return at is not None and (_is_in_torch(at) or _ends_alike(at.f_code))
    leave = getattr_static(type(manager), "__exit__", None)
    if _is_of_torch(type(manager)) or not isinstance(leave, FunctionType):
        return _is_of_torch(type(manager)) or _is_pythons_own(type(manager))
    return not _reads_error(leave.__code__)


def _is_in_torch(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "torch"


def _is_pythons_own(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in sys.stdlib_module_names


def _reads_error(code: CodeType) -> bool:
    """Does an `__exit__` look at what it is given, or at what is being handled?"""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & _VARIABLE) + bool(code.co_flags & _KEYWORDS)
    given = code.co_varnames[1 if code.co_argcount else 0 : count]
    asked = {"exc_info", "exception", "format_exc", "print_exc", "locals"}
    return not asked.isdisjoint(code.co_names) or any(
        step.argval in given for step in _instructions(code) if step.opname.startswith("LOAD_")
    )


_VARIABLE, _KEYWORDS = 0x4, 0x8


def _ends_alike(code: CodeType) -> bool:
    """Does a generator with one `yield` do the same after it, whether that raises or not?"""
    steps = [s for s in _instructions(code) if s.opname not in ("NOP", "RESUME")]
    places = [i for i, s in enumerate(steps) if s.opname == "YIELD_VALUE"]
    handler = _find_handler(code, steps[places[0]].offset) if len(places) == 1 else None
    if handler is None:
        return False
    usual = _list_until(steps[places[0] + 2 :], "RETURN_VALUE")[:-1]
    begins = next(i for i, s in enumerate(steps) if s.start >= handler)
    return usual == _list_until(steps[begins + 1 :], "RERAISE")


def _list_until(steps: list[Instruction], last: str) -> list[Any]:
    """What is done, one after the other; not equal to anything, where there are ways."""
    found: list[Any] = []
    for step in steps:
        if step.opname == last:
            return found
        found.append((step.opname, object() if "JUMP" in step.opname else step.argval))
    return [object()]


@cached(1000)
def _read_manager(code: CodeType, handler: int) -> _Manager | None:
    """How the `with` that ends here gets its manager; None, if that is not so simple."""
    start = min(start for start, _, each in read_handlers(code) if each == handler)
    before = [s for s in _instructions(code) if s.start < start and s.opname != "NOP"]
    entering, last = before[-1], before[-2]
    if entering.opname != "BEFORE_WITH" or entering.is_jump_target:  # of `a if c else b`
        return None
    is_called = last.opname in _CALLING
    begins = _begins(last)
    path: list[str] = []
    given: list[str] = []
    for step in reversed(before[: -_CALLING.get(last.opname, 1)]):
        if begins is None or _begins(step) != begins:
            given.append(step.argval if step.opname in _GLOBAL else "")
        elif step.opname in _GLOBAL or step.opname in _LOCAL:
            is_local = step.opname in _LOCAL
            if is_local and _is_set_from(code, step.argval, start):
                return None
            return _Manager((step.argval, *reversed(path)), is_local, is_called, tuple(given))
        elif step.opname == "LOAD_ATTR":
            path.append(step.argval)
        elif step.opname not in ("KW_NAMES", "PUSH_NULL"):
            return None
    return None


_CALLING = {"CALL": 2, "CALL_KW": 3}
"""How many steps there are from the arguments to the end: of the latter the names are one."""


def _is_set_from(code: CodeType, name: str, offset: int) -> bool:
    """May a variable be another one by the time that something is raised?"""
    steps = _steps_from(code, offset)
    return any(s.argval == name and s.opname.startswith(("STORE_", "DELETE_")) for s in steps)


def _begins(step: Instruction) -> tuple[int, int] | None:
    """Where in the source the expression that the step belongs to begins."""
    at = step.positions
    return None if at.lineno is None or at.col_offset is None else (at.lineno, at.col_offset)


@cached_by_identity(1000)
def _instructions(code: CodeType) -> list[Instruction]:
    """The steps of a code, but for those of lostwax's that a handler begins with
    (`capture/python/identities.py`)."""
    found = [*read_steps(code)]
    for i in [i for i, s in enumerate(found) if getattr(s.argval, "is_put_in", False)]:
        begins = max(k for k in range(i) if found[k].opname == "PUSH_EXC_INFO")
        found[begins + 1 : i + 3] = [found[begins]] * (i + 2 - begins)
    return [s for i, s in enumerate(found) if not i or s is not found[i - 1]]


def _steps_from(code: CodeType, offset: int) -> list[Instruction]:
    return [s for s in _instructions(code) if s.start >= offset]
