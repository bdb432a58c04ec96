"""Captures while functions whose control flow depends on data have hooks in them.

Must not know which functions these are, nor how a capture works.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import CodeType, FunctionType
from typing import Any, TypeVar

from lostwax.capture import threads
from lostwax.capture.aliasing.attributes import watch_tensors
from lostwax.capture.attempt import Attempt, Retry
from lostwax.capture.flow.hooks import HOOKS
from lostwax.capture.flow.open_regions import close_regions, count_open
from lostwax.capture.flow.rewriting.exits import NotRewritable
from lostwax.capture.flow.rewriting.recompile import rewrite
from lostwax.capture.heap.moment import Moment
from lostwax.capture.python.functions_run import find_watcher, let_watch
from lostwax.errors import CaptureError, find_own_error
from lostwax.ir.program import ExportedProgram
from lostwax.location import NOWHERE, find_tracebacks, is_user_code, locate_line
from lostwax.undo.undo import Undo, run_and_undo

T = TypeVar("T")


def capture_with_hooks(
    capture: Callable[[Attempt], ExportedProgram], attempt: Attempt
) -> ExportedProgram:
    """What the capture gives, with the attempt's plans carried out while it runs."""
    try:
        changed = rewrite(attempt.plans, HOOKS)
    except NotRewritable as error:
        raise CaptureError.here(
            f"a function that asks data cannot be taken apart: {error}",
            why="both ways through it are recorded, and what follows, for each of them",
            instead="write the part that asks as a function of its own",
        ) from None

    def work(undo: Undo) -> ExportedProgram:
        undo.add(partial(_set_codes, [(f, f.__code__) for f, _ in changed]))
        undo.add(partial(close_regions, count_open()))
        _set_codes(changed)
        let_watch(watch, undo)
        watch_tensors(undo)
        return capture(attempt)

    watch = _Watch()
    try:
        program = run_and_undo(work)
    except (Exception, Retry) as error:  # an interrupt goes on
        watch.refuse_left()
        if isinstance(error, RecursionError) and find_own_error(error) is None:
            raise _refuse_recursion(error) from None
        raise
    watch.refuse_left()
    return program


def _refuse_recursion(error: RecursionError) -> CaptureError:
    """What to say of a function that calls itself until data stop it."""
    found = [each for each in find_tracebacks(error) if is_user_code(each.tb_frame.f_code)]
    where = locate_line(found[-1].tb_frame, found[-1].tb_lineno) if found else NOWHERE
    return CaptureError(
        f"a function calls itself, and data decide how often.\n  at {where}\n"
        "  why: both ways are recorded, and the one of them has no end\n"
        "  instead: write it as a loop, while …:"
    )


class _Watch:
    """Tells what a capture has left otherwise than it was, beside what captures put back."""

    def __init__(self) -> None:
        self._before: Moment | None = None
        self._around = find_watcher()

    def call(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call what is captured."""
        self._before = Moment(threads.running[-1].python.reachable)
        if self._around is not None:
            return self._around.call(function, *args, **kwargs)
        return function(*args, **kwargs)

    def refuse_left(self) -> None:
        """The first attempt has left it so, too, and nobody knows how it was before."""
        names = [] if self._before is None else self._before.list_changed_scalars()
        if names:
            raise CaptureError(
                f"the module changes {', '.join(names)}, and its control flow asks data.\n"
                "  why: it was captured more than once to find out what both ways do, and each "
                "time it found what the last one had left\n"
                '  instead: keep what changes in a buffer, self.register_buffer("n", '
                "torch.zeros(()))"
            )


def _set_codes(codes: list[tuple[FunctionType, CodeType]]) -> None:
    for function, code in codes:
        function.__code__ = code
