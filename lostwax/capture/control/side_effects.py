"""What a recorded function leaves behind in Python: in attributes, lists, variables of others.

A capture runs both branches of a condition, and the body of a loop once; eager runs one of them, or
runs it many times. So what stays in Python would be another thing than eager's, and is refused; but
a buffer that is replaced is a value like one that is written to, and the operator carries it out.
Must not look at tensors' values.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import nn

from lostwax.capture.python.assignments import line_that_sets
from lostwax.capture.python.code_names import argument_defaults, closure_variables, outline
from lostwax.capture.python.containers import (
    CLASSES,
    GONE,
    HOLDERS,
    STREAMS,
    ClassAttributes,
    is_object,
    items,
    key_of,
    members,
    parts,
)
from lostwax.capture.python.iterators import Stream
from lostwax.capture.python.reach import Reach
from lostwax.capture.state.global_state import KeptBefore, read_keeper
from lostwax.capture.state.snapshot import Snapshot
from lostwax.errors import CaptureError
from lostwax.identity import Seen
from lostwax.location import is_user_code, user_location


class ReplacedBuffer(NamedTuple):
    """A buffer of a module in whose place a function has put another tensor."""

    buffers: dict[str, Any]
    name: str
    tensor: torch.Tensor
    value: Any = None
    """The tensor's value when the function ended."""

    def is_same_place(self, other: ReplacedBuffer) -> bool:
        return self.buffers is other.buffers and self.name == other.name


class PythonMoment(NamedTuple):
    """What modules hold, and what is kept outside of them, at one moment."""

    snapshot: Snapshot
    held: list[dict[str, Any]]
    """The attributes, parameters, buffers and submodules of the modules."""
    outside: dict[Any, Any]
    attributes: dict[int, Any]
    """What is in globals: in the attributes of objects and classes, in containers."""


class PythonState:
    """All that the program's functions may keep something in.

    It is compared before and after each function, so what nearly always holds is asked first, in C:
    that the modules hold the very same objects."""

    def __init__(self, modules: Sequence[nn.Module], reach: Reach, kept: KeptBefore) -> None:
        self.modules = modules
        self.reach = reach
        self._kept = kept
        for module in modules:
            if isinstance(module, nn.RNNBase):  # which notes its weights when next called
                module._update_flat_weights()
        held = list(map(vars, modules))
        self._held = [*held, *filter(None, chain.from_iterable(map(_REGISTRIES, held)))]
        self._buffers = [m._buffers for m in modules if m._buffers]
        self._last: PythonMoment | None = None
        self._objects: dict[int, tuple[str, Any, Any]] = {}
        """The containers and attributes in globals, with the global's name and what was in them
        before a function began that names it."""
        for each in reach.functions:
            self._note_objects(each)
        reach.add_look(lambda found: self._note_objects(found.function))

    def _note_objects(self, function: Any) -> None:
        if not isinstance(function, FunctionType):
            return
        known = function.__globals__
        for name in outline(function.__code__).names:
            for key, part in _find_kept(known.get(name)):
                if key not in self._objects:
                    self._objects[key] = name, part, items(part)

    def look(self, is_settled: bool) -> PythonMoment:
        """This moment. `is_settled`: nothing has run since the last comparison."""
        outside = {key: read_keeper(keeper) for key, (keeper, _) in self._kept.items()}
        attributes = {key: items(part) for key, (_, part, _) in self._objects.items()}
        last = self._last
        if last is not None and (is_settled or self._is_untouched(last)):
            return last._replace(outside=outside, attributes=attributes)
        copies = list(map(dict.copy, self._held))
        self._last = PythonMoment(Snapshot(self.modules), copies, outside, attributes)
        return self._last

    def _is_untouched(self, since: PythonMoment) -> bool:
        try:  # dicts that hold the same objects are equal without asking these
            is_same = self._held == since.held
        except Exception:  # an object that cannot be compared: it is another one
            return False
        return is_same and since.snapshot.has_same_hooks() and since.snapshot.has_same_contents()

    def copy_buffers(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """The registries of buffers, and what is in them."""
        return [(buffers, buffers.copy()) for buffers in self._buffers]

    def find_change(self, since: PythonMoment) -> str | None:
        """The name of what has changed. Of functions that began since, we know what was there
        before they did."""
        for key, (keeper, found) in self._kept.items():
            was = since.outside.get(key, found)
            if hasattr(keeper, "name") and not _is_same(was, read_keeper(keeper)):
                return str(keeper.name)
        for key, (name, part, first) in self._objects.items():
            if not _are_same(items(part), since.attributes.get(key, first), _may_stand_in):
                return name
        if not self._is_untouched(since):
            self._put_back_renewed(since.snapshot)
            if not self._is_untouched(since):
                return self._find_attribute(since.snapshot)
        self._last = since
        return None

    def _put_back_renewed(self, snapshot: Snapshot) -> None:
        """A container that was made again with the very same content, as `nn.RNN` does with the
        list of its weights, is no other one."""
        for module, before in zip(self.modules, snapshot.attributes, strict=True):
            held = vars(module)
            for name in before.keys() & held.keys():
                was, now = before[name], held[name]
                if was is now or type(was) is not type(now) or not _is_plain(now):
                    continue
                known = snapshot.content_before(was)
                if _are_same(items(now), [] if known is None else items(known)):
                    held[name] = was

    def _find_attribute(self, snapshot: Snapshot) -> str:
        for module, before in zip(self.modules, snapshot.attributes, strict=True):
            for name in {**before, **vars(module)}:
                was, now = before.get(name, GONE), vars(module).get(name, GONE)
                if was is not now:
                    return name
                known = snapshot.content_before(now) if is_object(now) or _is_plain(now) else None
                if known is not None and not _are_same(items(known), items(now)):
                    return name
        return "something that a module holds"


class SideEffects:
    """What one function leaves in Python."""

    def __init__(
        self, tracer: Any, what: str, function: Callable[..., Any], is_settled: bool
    ) -> None:
        if tracer.python_state is None:
            tracer.python_state = PythonState(*tracer.watched)
        self._state: PythonState = tracer.python_state
        self._what = what
        self._where = user_location()
        self._before = self._state.look(is_settled)
        self._buffers = self._state.copy_buffers()
        self._own: list[FunctionType] = []
        """The functions, and those that they are closed over."""
        found = _find_variables(function, self._own)
        self._variables = [(name, v, _content(v)) for name, v in found]

    def take_buffers(self) -> list[ReplacedBuffer]:
        """The buffers that were replaced; they are put back."""
        found: list[ReplacedBuffer] = []
        for buffers, before in self._buffers:
            for name, was in before.items():
                now = buffers.get(name)
                if now is not was and isinstance(now, torch.Tensor):
                    found.append(ReplacedBuffer(buffers, name, now))
                    buffers[name] = was
        return found

    def check(self) -> None:
        changed = self._state.find_change(self._before) or self._find_variable()
        if changed is None:
            return
        users = [f for f in self._own if is_user_code(f.__code__)]
        ran = self._state.reach.functions
        line = line_that_sets(changed, users) or line_that_sets(changed, ran)
        raise CaptureError(
            f"{self._what} changes {changed}, which is not its own.\n  at {line or self._where}\n"
            "  why: a capture runs each function once, eager runs one of two branches, or a loop's "
            "body many times: what stays in Python would be another thing than eager's\n"
            "  instead: return the value, and use what the operator returns; tensors that are "
            "written to in place, and buffers, are carried"
        )

    def _find_variable(self) -> str | None:
        for name, value, content in self._variables:
            if isinstance(content, Stream):
                if content.is_moved():
                    return name
                continue
            now = _content(value)
            if (
                now is not content
                if isinstance(value, _Cell)
                else not _are_same(now, content, _may_stand_in)
            ):
                return name
        return None


_REGISTRIES = itemgetter("_parameters", "_buffers", "_modules")
_Cell: Any = type((lambda x: lambda: x)(0).__closure__[0])  # type: ignore[index]
_CONTAINERS = frozenset((list, dict, set, OrderedDict, defaultdict, deque))


def _is_plain(value: Any) -> bool:
    return type(value) in _CONTAINERS


def _find_kept(value: Any) -> list[tuple[int, Any]]:
    """What somebody may keep something in, of a global: its attributes, or itself. Each has a
    number that tells it from others."""
    found: list[Any] = []
    if isinstance(value, type):
        found = [*map(ClassAttributes, CLASSES[value])]
    elif _is_plain(value) or (is_object(value) and not isinstance(value, nn.Module)):
        found = parts(value)
    return [(key_of(part), part) for part in found]


def _content(value: Any) -> Any:
    if STREAMS[type(value)]:
        return Stream(value)
    return value.cell_contents if isinstance(value, _Cell) else items(value)


def _are_same(now: Any, before: Any, but: Callable[[Any], bool] = lambda value: False) -> bool:
    """Are there the same objects under the same keys? Values of which `but` is true are no
    matter."""
    pairs = zip(now, before, strict=False)
    return len(now) == len(before) and all(
        a is c and (b is d or but(b)) for (a, b), (c, d) in pairs
    )


def _may_stand_in(value: Any) -> bool:
    """Is it a function or class, in whose place a capture may have put its own?"""
    return callable(value) and not is_object(value)


def _is_same(was: Any, now: Any) -> bool:
    (value, content), (found, there) = was, now
    if value is not found:
        return False
    if isinstance(content, Stream):
        return not content.is_moved()
    return content is None or not isinstance(content, list) or _are_same(content, there)


def _find_variables(
    function: Callable[..., Any], own: list[FunctionType]
) -> Iterator[tuple[str, Any]]:
    """The variables that a function is closed over, and the containers and iterators in these and
    in its defaults, at any depth; `own` is for the functions among them."""
    left: list[tuple[str, Any]] = [("a value", function)]
    seen = Seen()
    count = 0
    while left and count < _MOST:
        name, value = left.pop()
        if value in seen or isinstance(value, (nn.Module, torch.Tensor)):
            continue
        seen.add(value)
        if isinstance(value, partial):
            left += [(name, each) for each in (value.func, value.args, value.keywords)]
        elif isinstance(value, MethodType):
            left += [(name, value.__func__), (name, value.__self__)]
        elif isinstance(value, FunctionType):
            own.append(value)
            left += [*argument_defaults(value), *closure_variables(value)]
            yield value.__name__, vars(value)
            for variable, cell in zip(
                value.__code__.co_freevars, value.__closure__ or (), strict=True
            ):
                if cell not in seen and _is_set(cell):
                    seen.add(cell)
                    yield variable, cell
        elif STREAMS[type(value)]:
            yield name, value
        else:
            for part in parts(value):
                count += 1
                left += [(name, each) for each in members(part) if _may_hold(each)]
                if not isinstance(part, tuple):
                    yield name, part


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not GONE
    except ValueError:  # an inner function sets it later
        return False


def _may_hold(value: Any) -> bool:
    return HOLDERS[type(value)] or isinstance(value, (FunctionType, MethodType, partial))


_MOST = 10_000
"""In how many containers we look at most."""
