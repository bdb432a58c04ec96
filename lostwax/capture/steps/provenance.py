"""Where a step comes from: the user's frames and the stack of modules. Cheap to take, made to text
at the end.

While capturing, calls of the program's modules are noted; the frames above such a call are taken
once, and an operator walks only the frames below it. Must not keep frames alive after the call.
"""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, NamedTuple, Protocol

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch._ops import OpOverload
from torch.fx import GraphModule, Node, traceback

from lostwax.cache import Cache, PerClass, cached_by_identity
from lostwax.capture.threads import wait
from lostwax.fake.refusals import refuse_thread
from lostwax.fake.tensor import FakeTensor
from lostwax.ir.graph.lookup import WHOLE
from lostwax.location import JUDGED, Location, is_user_code
from lostwax.undo.undo import Undo

Frames = tuple[Any, ...]
"""The user's frames, innermost first: code, offset of the instruction, code, offset, ... In the
place of a code may be the node of a graph that runs."""


def operator_in_progress() -> str:
    """The operator that the user's code has called and that is being evaluated; "" if none is.
    Asked only when there is something to tell: an operator does not note that it runs."""
    found = ""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_code(frame.f_code):
        if frame.f_code.co_name == "__torch_dispatch__":
            found = str(frame.f_locals.get("func", ""))
        frame = frame.f_back
    return found


class Entered:
    """A module that is being called: its path, and the user's frames between the call of the
    module around it and this one."""

    __slots__ = (
        "frame", "frames", "is_graph", "module", "name", "outer", "path", "place", "stack", "text",
    )  # fmt: skip

    path: str
    name: str
    """The call's own name: the path, from the second call on with a number."""
    module: nn.Module
    outer: Entered | None
    frame: FrameType | None
    frames: Frames
    place: StepPlace | None
    """The one place of all operators in it, if it runs no code of the user's."""
    is_graph: bool
    """Does it run a graph, whose nodes know where they come from?"""
    stack: dict[str, tuple[str, str]] | None
    text: str | None

    def stack_trace(self) -> str:
        """The frames above this call, as text."""
        if self.text is None:
            above = "" if self.outer is None else self.outer.stack_trace()
            self.text = above + _frames_text(self.frames)
        return self.text

    def module_stack(self) -> dict[str, tuple[str, str]]:
        """`nn_module_stack`: for each module being called its path and class, outermost first, by
        the name of the call."""
        if self.stack is None:
            self.stack = {} if self.outer is None else self.outer.module_stack().copy()
            cls: Any = self.module.__class__
            self.stack[self.name] = (self.path, _TYPE_NAMES[cls])
        return self.stack

    def extend_stack(self, inner: dict[str, tuple[str, Any]]) -> dict[str, tuple[str, Any]]:
        """The `nn_module_stack` of a node with this one, if the module runs that node: the modules
        of the node are inside of those around this one."""
        if not inner:
            return self.module_stack()
        if not self.name and self.outer is None:
            return inner
        stack = {} if self.outer is None else self.outer.module_stack().copy()
        for name, (path, cls) in inner.items():
            stack[_join(self.name, name)] = (_join(self.path, path), cls)
        return stack


class StepPlace:
    """Where one step was recorded: in which module call, and the user's frames since."""

    __slots__ = ("custom", "entered", "frames")

    entered: Entered | None
    frames: Frames
    custom: dict[str, Any] | None
    """What the user notes at it, by `torch.fx.traceback.annotate`."""

    def describe(self, target: Any, meta: dict[str, Any], name: str = "") -> None:
        """Put what is known of a step that calls `target`, in a node of that name, into its
        meta."""
        entered, frames = self.entered, self.frames
        if self.custom:
            meta["custom"] = self.custom
        if entered is None:
            meta["stack_trace"], meta["nn_module_stack"] = _frames_text(frames), {}
        else:
            above = entered.stack_trace() if entered.text is None else entered.text
            meta["stack_trace"] = above + _frames_text(frames) if frames else above
            stack = entered.stack
            meta["nn_module_stack"] = entered.module_stack() if stack is None else stack
            if not frames:  # else a hook of the user's, or its like, has called it
                cls: Any = entered.module.__class__
                if _IS_OF_TORCH[cls]:
                    meta["source_fn_stack"] = [(entered.name, cls)]
                    return
            elif entered.is_graph and self._describe_by_node(entered, target, meta):
                return
        meta["source_fn_stack"] = [self._source(target, name)]

    def _describe_by_node(self, entered: Entered, target: Any, meta: dict[str, Any]) -> bool:
        """Put what the running node of a graph knows into the meta. Does it know its source?"""
        node = next((frame for frame in self.frames[::2] if isinstance(frame, Node)), None)
        if node is None:
            return False
        from lostwax.capture.steps.running_nodes import KEPT

        meta.update({key: node.meta[key] for key in KEPT if key in node.meta})
        if WHOLE in node.meta and node.target is target:
            meta[WHOLE] = node.meta[WHOLE]
        meta["nn_module_stack"] = entered.extend_stack(node.meta.get("nn_module_stack") or {})
        if self.custom:
            meta["custom"] = {**node.meta.get("custom", {}), **self.custom}
        return bool(node.meta.get("source_fn_stack"))

    def location(self) -> Location | None:
        """The user's line, if there is one."""
        entered, frames = self.entered, self.frames
        while entered is not None and not frames:
            frames, entered = entered.frames, entered.outer
        if not frames:
            return None
        code = frames[0]
        if isinstance(code, Node):
            from lostwax.capture.steps.running_nodes import read_location

            return read_location(code)
        return Location(code.co_filename, _line(code, frames[1]), code.co_name)

    def _source(self, target: Any, name: str) -> tuple[str, Any]:
        """The function that was called, by a name that no other call of it has."""
        return name, _find_function(target)


def new_place(entered: Entered | None, frames: Frames) -> StepPlace:
    place = StepPlace()
    place.entered = entered
    place.frames = frames
    custom = traceback.current_meta.get("custom")
    place.custom = custom.copy() if custom else None
    return place


class OtherLine(StepPlace):
    """A place with the line of another: a derivative has that of the forward, and a view that is
    taken again that of its first taking."""

    __slots__ = ("line",)

    def __init__(self, here: StepPlace, line: StepPlace) -> None:
        self.entered, self.frames, self.custom = here.entered, here.frames, here.custom
        self.line: StepPlace = line.line if isinstance(line, OtherLine) else line

    def describe(self, target: Any, meta: dict[str, Any], name: str = "") -> None:
        self.line.describe(target, meta, name)
        trace = meta["stack_trace"]
        super().describe(target, meta, name)
        meta["stack_trace"] = trace


class PartPlace(StepPlace):
    """The place of the parts of one composite operator: their source is the function that the user
    called."""

    __slots__ = ("calls", "source", "whole")

    calls: dict[str, int]
    """How often each function has been the source of nodes, by name."""
    source: tuple[str, Any] | None
    whole: Any

    def _source(self, target: Any, name: str) -> tuple[str, Any]:
        if self.source is None:
            function = _find_function(self.whole)
            base = self.whole._schema.name.rpartition("::")[2]
            count = self.calls.get(base, 0)
            self.calls[base] = count + 1
            self.source = (f"{base}_{count}" if count else base, function)
        return self.source


class WholePlace(PartPlace):
    """The place of what stands for a composite operator that the user keeps whole, and that a
    program cannot show as it is."""

    __slots__ = ()

    def describe(self, target: Any, meta: dict[str, Any], name: str = "") -> None:
        super().describe(target, meta, name)
        meta[WHOLE] = self.whole


@cached_by_identity(20_000)
def _find_function(target: Any) -> Any:
    """What Python calls an operator: `aten.linear.default` → `torch.nn.functional.linear`,
    `aten.add.Tensor` → `torch.add`, `aten.view.default` → `torch.Tensor.view`. What is not there is
    the operator itself."""
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return target
    name = target._schema.name.rpartition("::")[2]
    family, _, rest = name.partition("_")
    if family in ("linalg", "fft", "special"):
        return getattr(getattr(torch, family), rest, target)
    if name.startswith("_"):
        return target
    homes = (torch,) if name in ("sigmoid", "tanh") else (nn.functional, torch, torch.Tensor)
    found = (getattr(home, name, None) for home in homes)
    function = next((f for f in found if inspect.isroutine(f)), target)
    return getattr(function, "stands_for", function)  # while a capture runs


_IS_OF_TORCH = PerClass(__name__, "of torch", lambda cls: cls.__module__.startswith("torch.nn."))
_TYPE_NAMES = PerClass(__name__, "type names", lambda cls: f"{cls.__module__}.{cls.__qualname__}")


class CallWatcher(Protocol):
    """Notes with which arguments some modules are called, and what they return."""

    @property
    def paths(self) -> Container[str]: ...

    def note_entry(
        self, entered: Entered, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None: ...

    def note_exit(self, entered: Entered, result: Any) -> None: ...


class CaughtCall(partial[Any]):
    """Takes the calls of one module during a capture. It is in the attributes of every module, and
    of a class of its own, so that whoever looks at these does not open it."""


class Provenance:
    """The modules being called, during one capture."""

    def __init__(self, paths: Mapping[int, str], watcher: CallWatcher | None = None) -> None:
        self._paths = paths
        """The path of each module of the program, by identity."""
        self._watcher = watcher
        self._thread = 0
        self._counts: dict[str, int] = {}
        self._entered: Entered | None = None
        self._bottom: FrameType | None = None
        self._whole: StepPlace | None = None
        self._calls: dict[str, int] = {}
        self._nodes: Any = None
        self.wholes: dict[int, Any] = {}
        """The composite operators whose parts were recorded, by identity."""

    def here(self) -> StepPlace:
        """The place of the operator being called now."""
        if self._whole is not None:
            return self._whole
        entered = self._entered
        if entered is None:
            stop = self._bottom
        elif entered.place is not None:
            return entered.place
        elif entered.is_graph:
            return self.place_at(sys._getframe(1))
        else:
            stop = entered.frame
        return new_place(entered, _walk(sys._getframe(1), stop))

    def place_at(self, frame: FrameType) -> StepPlace:
        """The place of a call that is made in this frame."""
        entered = self._entered
        if entered is None:
            return new_place(None, _walk(frame, self._bottom))
        return new_place(entered, self._walk_in(entered, frame))

    def _walk_in(self, entered: Entered, frame: FrameType) -> Frames:
        """The user's frames inside of the call of a module; with the nodes that run, if it has a
        graph."""
        if not entered.is_graph:
            return _walk(frame, entered.frame)
        if self._nodes is None:
            from lostwax.capture.steps.running_nodes import RunningNodes  # few captures have graphs

            self._nodes = RunningNodes()
        found: list[Any] = []
        at: FrameType | None = frame
        stop, judged = entered.frame, self._nodes.judged
        while at is not stop and at is not None:
            code = at.f_code
            kind = judged.get(id(code)) or self._nodes.judge(at)
            if kind.of_graph is not None:
                node = kind.of_graph.find(at.f_lasti)
                if node is not None:  # of a branch, too: it knows all frames around it
                    return (*found, node, 0)
            elif kind.is_users:
                found += (code, at.f_lasti)
            at = at.f_back
        return tuple(found)

    def part_of(self, whole: Any, kind: type[PartPlace] = PartPlace) -> StepPlace:
        """The place of the parts of `whole`, which is being called now."""
        if self._whole is not None:
            return self._whole
        here, part = self.here(), kind()
        part.entered = here.entered
        part.frames = here.frames
        part.custom = here.custom
        part.whole = whole
        self.wholes[id(whole)] = whole
        part.calls = self._calls
        part.source = None
        return part

    def as_one(
        self,
        whole: Any,
        function: Callable[..., Any],
        *args: Any,
        kind: type[PartPlace] = PartPlace,
    ) -> Any:
        """Call something that runs none of the user's code: all its operators are in one place, as
        parts of `whole`."""
        before = self._whole
        self._whole = self.part_of(whole, kind)
        try:
            return function(*args)
        finally:
            self._whole = before

    @contextmanager
    def watch_calls(self, bottom: FrameType) -> Iterator[None]:
        """Inside, calls of modules are noted. This frame and those above are not the program's."""
        self._bottom, self._whole = bottom, None
        try:
            yield
        finally:
            self._bottom = self._entered = None
            self._whole = new_place(None, ())  # what is recorded from now on has no line

    def catch_calls(self, modules: Sequence[nn.Module], undo: Undo) -> None:
        """From here on calls of these modules come here; those of other threads wait."""
        # Torch asks each module for a compiled form of its call. Replacing `nn.Module.__call__`
        # would empty the interpreter's caches of every subclass, twice in an export.
        all_held = list(map(vars, modules))
        before = [(held, held[_COMPILED]) for held in all_held if _COMPILED in held]
        self._thread = get_ident()
        undo.add(partial(_let_go, all_held, before))
        paths, called, watched = self._paths, self._call_module, _is_watched()
        for module, held, hooks in zip(modules, all_held, map(_HOOKS, all_held), strict=True):
            kind = _KINDS[module.__class__]
            alone = kind.alone and not (watched or any(hooks) or "forward" in held)
            if kind.has_own_call:
                hooks = (True,)
            held[_COMPILED] = CaughtCall(
                called, module, paths[id(module)], alone, kind.is_graph, hooks
            )

    def _call_module(
        self,
        module: Any,
        path: str,
        alone: bool,
        is_graph: bool,
        hooks: Any,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if get_ident() != self._thread:
            return _call_elsewhere(module, args, kwargs)
        outer = self._entered
        entered = Entered()
        entered.path = path
        count = self._counts.get(path, 0)
        entered.name = f"{path}@{count}" if count else path
        self._counts[path] = count + 1
        entered.module = module
        entered.outer = outer
        entered.frame = frame = sys._getframe()
        entered.is_graph = is_graph
        if outer is None:
            entered.frames = _walk(frame.f_back, self._bottom)
        elif outer.is_graph:
            entered.frames = self._walk_in(outer, frame)
        else:
            entered.frames = _frames_between(frame, outer.frame) if outer.place is None else ()
        entered.place = new_place(entered, ()) if alone else None
        entered.stack = entered.text = None
        watcher = self._watcher
        if watcher is not None:
            if path in watcher.paths:
                watcher.note_entry(entered, args, kwargs)
            else:
                watcher = None
        self._entered = entered
        try:
            if any(hooks) or any(_GLOBAL_HOOKS):
                result = module._call_impl(*args, **kwargs)
            else:  # all that torch does then
                result = module.forward(*args, **kwargs)
            if watcher is not None:
                watcher.note_exit(entered, result)
            return result
        finally:
            self._entered = outer
            entered.frame = None


def _let_go(all_held: list[dict[str, Any]], before: list[tuple[dict[str, Any], Any]]) -> None:
    for held in all_held:
        held.pop(_COMPILED, None)
    for held, compiled in before:
        held[_COMPILED] = compiled


def _call_elsewhere(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Another thread waits until the module holds no fakes; with fakes it is refused."""
    if any(type(leaf) is FakeTensor for leaf in pytree.tree_leaves((args, kwargs))):
        refuse_thread()
    wait()
    return module(*args, **kwargs)


_COMPILED = "_compiled_call_impl"
_HOOK_NAMES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS = itemgetter(*_HOOK_NAMES)
_GLOBAL_HOOKS = [getattr(nn.modules.module, f"_global{name}") for name in _HOOK_NAMES]


class _ModuleKind(NamedTuple):
    """What is known of a class of modules."""

    alone: bool
    """It is a module of torch whose `forward` calls nothing of the user's but modules."""
    has_own_call: bool
    """It has a `_call_impl` of its own, which is called instead of `forward`."""
    is_graph: bool


def _classify_module(cls: Any) -> _ModuleKind:
    package, _, name = cls.__module__.rpartition(".")
    alone = package == "torch.nn.modules" and name in _ALONE
    has_own_call = cls._call_impl is not _Module._call_impl
    return _ModuleKind(alone, has_own_call, issubclass(cls, GraphModule))


_Module: Any = nn.Module
_KINDS = PerClass(__name__, "kinds", _classify_module)
_ALONE = frozenset(
    (
        "activation", "batchnorm", "container", "conv", "dropout", "flatten", "fold",
        "instancenorm", "linear", "loss", "normalization", "padding", "pixelshuffle", "pooling",
        "rnn", "sparse", "upsampling",
    )
)  # fmt: skip


def _is_watched() -> bool:
    """Does something of the user's run with every module, or with every function?"""
    return any(_GLOBAL_HOOKS) or torch._C._len_torch_function_stack() > 0


def _frames_between(frame: Any, stop: FrameType | None) -> Frames:
    """The user's frames between the call of a module and that of the module around it: nearly
    always one, the latter's `forward`, with torch's own before it."""
    before = frame.f_back
    user = before.f_back
    if user is None or user.f_back is not stop or before.f_code is not _CALLING:
        return _walk(before, stop)
    code = user.f_code
    judged = JUDGED.get(id(code))
    return (code, user.f_lasti) if (is_user_code(code) if judged is None else judged[1]) else ()


_CALLING = _Module._wrapped_call_impl.__code__


def _walk(frame: FrameType | None, stop: FrameType | None) -> Frames:
    """The user's frames from this one outwards, up to a frame that does not count."""
    found: list[Any] = []
    while frame is not stop and frame is not None:
        code = frame.f_code
        try:  # this is asked for every step
            is_users = JUDGED[id(code)][1]
        except KeyError:
            is_users = is_user_code(code)
        if is_users:
            found += (code, frame.f_lasti)  # the line is counted out when asked
        frame = frame.f_back
    return tuple(found)


def _frames_text(frames: Frames) -> str:
    """As text, outermost first."""
    if len(frames) <= 2:
        return _frame_text(*frames) if frames else ""
    pairs = zip(frames[-2::-2], frames[::-2], strict=True)
    return "".join([_frame_text(code, offset) for code, offset in pairs])


_TEXTS = Cache[tuple[int, int], tuple[CodeType, str]](__name__, "texts", 20_000)
"""By identity of the code, which the entry holds, and offset."""


def _frame_text(code: CodeType | Node, offset: int) -> str:
    if isinstance(code, Node):
        from lostwax.capture.steps.running_nodes import read_trace

        return read_trace(code)
    found = _TEXTS.table.get((id(code), offset))
    if found is None:
        line = _line(code, offset)
        text = linecache.getline(code.co_filename, line).strip()
        place = f'  File "{code.co_filename}", line {line}, in {code.co_name}'
        found = _TEXTS.keep((id(code), offset), (code, f"{place}\n    {text}\n"))
    return found[1]


def _join(outer: str, inner: str) -> str:
    return f"{outer}.{inner}" if outer and inner else outer or inner


def _line(code: CodeType, offset: int) -> int:
    """The line that the instruction at an offset belongs to."""
    for start, end, line in code.co_lines():
        if start <= offset < end and line is not None:
            return line
    return code.co_firstlineno
