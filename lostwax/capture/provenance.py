"""Where a step comes from: the user's frames and the stack of modules. Cheap to take, made to text
at the end.

While capturing, `nn.Module.__call__` notes the module that is entered; the frames above that call
are taken once per module call, and an operator walks only the frames below it. Must not keep frames
alive after the call.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from torch import nn

from lostwax.location import is_user_code

Frames = tuple[tuple[CodeType, int], ...]
"""(code, line) of the user's frames, outermost first."""


class Entered:
    """A module that is being called: its path, and the user's frames between the call of the
    module around it and this one."""

    __slots__ = ("frame", "frames", "module", "outer", "path", "stack", "text")

    def __init__(
        self,
        path: str,
        module: nn.Module,
        outer: Entered | None,
        frame: FrameType,
        bottom: FrameType | None,
    ) -> None:
        self.path = path
        self.module = module
        self.outer = outer
        self.frame: FrameType | None = frame
        self.frames = _walk(frame.f_back, outer, bottom)
        self.stack: dict[str, tuple[str, str]] | None = None
        self.text: str | None = None

    def stack_trace(self) -> str:
        """The frames above this call, as text."""
        if self.text is None:
            above = "" if self.outer is None else self.outer.stack_trace()
            self.text = above + _frames_text(self.frames)
        return self.text

    def module_stack(self) -> dict[str, tuple[str, str]]:
        """`nn_module_stack`: for each module being called its path and class, outermost first."""
        if self.stack is None:
            own = {self.path: (self.path, _type_name(self.module.__class__))}
            self.stack = {**self.outer.module_stack(), **own} if self.outer is not None else own
        return self.stack


class Place:
    """Where one step was recorded: in which module call, and the user's frames since."""

    __slots__ = ("entered", "frames")

    def __init__(self, entered: Entered | None, frames: Frames) -> None:
        self.entered = entered
        self.frames = frames

    def stack_trace(self) -> str:
        own = _frames_text(self.frames)
        return own if self.entered is None else self.entered.stack_trace() + own

    def module_stack(self) -> dict[str, tuple[str, str]]:
        return {} if self.entered is None else self.entered.module_stack()

    def source(self, target: Any) -> list[tuple[str, Any]]:
        """`source_fn_stack`: the module class of torch.nn that made this call, else the "
        "operator."""
        entered = self.entered
        if entered is not None and type(entered.module).__module__.startswith("torch.nn."):
            return [(entered.path, type(entered.module))]
        return [(getattr(target, "__name__", str(target)), target)]


class Provenance:
    """The modules being called, during one capture."""

    def __init__(self, paths: Mapping[int, str]) -> None:
        self._paths = paths
        """The path of each module of the program, by identity."""
        self._entered: Entered | None = None
        self._bottom: FrameType | None = None

    def here(self) -> Place:
        """The place of the operator being called now."""
        return Place(self._entered, _walk(sys._getframe(1), self._entered, self._bottom))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, module calls are noted. Frames above this one are not the program's."""
        original = nn.Module.__call__
        self._bottom = sys._getframe(2)
        nn.Module.__call__ = self._noting(original)  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.__call__ = original  # type: ignore[method-assign]
            self._bottom = self._entered = None

    def _noting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            path = self._paths.get(id(module))
            if path is None:
                return original(module, *args, **kwargs)
            outer = self._entered
            entered = self._entered = Entered(path, module, outer, sys._getframe(), self._bottom)
            try:
                return original(module, *args, **kwargs)
            finally:
                self._entered = outer
                entered.frame = None

        return __call__


def _walk(frame: FrameType | None, entered: Entered | None, bottom: FrameType | None) -> Frames:
    """The user's frames from the innermost module call down to this one."""
    stop = bottom if entered is None else entered.frame
    found: list[tuple[CodeType, int]] = []
    while frame is not None and frame is not stop:
        code = frame.f_code
        if is_user_code(code):
            found.append((code, frame.f_lineno))
        frame = frame.f_back
    found.reverse()
    return tuple(found)


def _frames_text(frames: Frames) -> str:
    return "".join([_frame_text(code, line) for code, line in frames])


_TEXTS: dict[tuple[int, int], tuple[CodeType, str]] = {}  # by identity of the code, kept alive


def _frame_text(code: CodeType, line: int) -> str:
    found = _TEXTS.get((id(code), line))
    if found is None:
        text = linecache.getline(code.co_filename, line).strip()
        place = f'  File "{code.co_filename}", line {line}, in {code.co_name}'
        found = _TEXTS[id(code), line] = (code, f"{place}\n    {text}\n")
    return found[1]


def _type_name(cls: Any) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
