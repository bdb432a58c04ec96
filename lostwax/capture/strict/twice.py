"""`export(strict=True)`: captures a call twice, the first time watched.

The first capture refuses what the module reads of the world outside (`outside.py`), and what it
leaves otherwise than it was in objects that were there before (`changes.py`). The second shows that
nothing else decides: both programs must be the same. Must not know how a capture works.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from lostwax.capture import threads
from lostwax.capture.attempt import Attempt
from lostwax.capture.patches.random_numbers import PERHAPS_DRAWN
from lostwax.capture.python.assignments import line_that_sets
from lostwax.capture.python.functions_run import let_watch
from lostwax.capture.state.unkept_changes import collect_changes
from lostwax.capture.strict.baked_in import BakedIn, ReadsWatcher
from lostwax.capture.strict.changes import Before, SideEffect, name_arguments
from lostwax.capture.strict.lines import find_lines
from lostwax.capture.strict.outside import ExternalAccessMonitor, refuse
from lostwax.errors import StrictError
from lostwax.ir.diff import find_change
from lostwax.ir.program import ExportedProgram
from lostwax.location import Location
from lostwax.undo.undo import Undo, run_and_undo

T = TypeVar("T")


def capture_strictly(
    capture: Callable[[Attempt], ExportedProgram], attempt: Attempt
) -> ExportedProgram:
    """Return what the capture makes, if it makes the same twice and changes nothing else."""
    again = partial(capture, attempt)
    first = _capture_first(again)
    second = copy_context().run(run_and_undo, partial(_capture_quietly, again))
    change = find_change(first, second)
    if change is not None:
        raise StrictError(
            f"two captures of the same call differ: {change.between_runs()}\n"
            "  why: the module reads something that changes from call to call, and the program "
            "would have what it was at capture, in every run\n"
            "  instead: pass it as an argument, or keep it in a buffer"
        )
    return first


def _capture_first(capture: Callable[[], ExportedProgram]) -> ExportedProgram:
    try:
        return copy_context().run(run_and_undo, partial(_capture_watched, capture))
    except StateChanged as error:
        left = error
    raise _changes_error(left.changes, left.guesses, find_lines(capture, left.changes))


def _capture_watched(capture: Callable[[], ExportedProgram], undo: Undo) -> ExportedProgram:
    heard = collect_changes(undo, hears_all=False)
    watcher = StrictWatcher(undo)
    let_watch(watcher, undo)
    program = capture()
    program._report = StrictReport(watcher.reads.values, watcher.reads.tells)
    heard = [each for each in heard if each != PERHAPS_DRAWN]  # it was another thread, or is seen
    if heard:
        raise StrictError(f"{heard[0]}\n  why: {_WHY}")
    return program


def _capture_quietly(capture: Callable[[], ExportedProgram], undo: Undo) -> ExportedProgram:
    collect_changes(undo, hears_all=False)
    return capture()


@dataclass
class StrictReport:
    """What a strict export reports: `program._report`."""

    baked_in: list[BakedIn]
    """The numbers and texts that the module reads from attributes, globals and variables."""
    tells: list[Location]
    """The lines that print or log, which the program does not."""

    def __str__(self) -> str:
        lines = [f"  {each}" for each in self.baked_in]
        told = [f"  {each}" for each in self.tells]
        return "\n".join(
            [
                *(["baked in:", *lines] if lines else ["baked in: nothing"]),
                *(["not in the program, as it prints or logs:", *told] if told else []),
            ]
        )


class StrictWatcher(ReadsWatcher):
    """Runs around the call that a capture makes of the module."""

    def __init__(self, undo: Undo) -> None:
        super().__init__()
        self._undo = undo

    def call(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        tracer = threads.running[-1]
        python = tracer.python
        before = Before(tracer, name_arguments(function, args, kwargs))
        outside = ExternalAccessMonitor(self._undo, refuse)
        python.reach.add_look(outside.look_at)
        outside.look_at_call(function, python.modules)
        try:
            result = function(*args, **kwargs)
        except BaseException:
            before.put_back()
            raise
        finally:
            outside.end()
        changes = before.list_changes()
        if changes:
            before.put_back()
            raise StateChanged(
                changes, [line_that_sets(each.name, before.functions) for each in changes]
            )
        self.list_reads()
        return result


class StateChanged(Exception):
    """Raised in a capture whose call has changed objects."""

    def __init__(self, changes: list[SideEffect], guesses: list[Location | None]) -> None:
        super().__init__()
        self.changes, self.guesses = changes, guesses


def _changes_error(
    changes: list[SideEffect], guesses: list[Location | None], lines: list[Location | None]
) -> StrictError:
    told = [
        f"  {each}" + (f"\n    at {line or guess}" if line or guess else "")
        for each, guess, line in zip(changes, guesses, lines, strict=True)
    ]
    return StrictError(
        "the call leaves objects that were there before it otherwise than they were.\n"
        + "\n".join(told)
        + f"\n  why: {_WHY}\n  instead: {_INSTEAD}"
    )


_WHY = (
    "a program changes tensors alone: the next call of the module would find something else than "
    "the next run of the program"
)
_INSTEAD = (
    'keep it in a buffer, self.register_buffer("n", torch.zeros(())); return it; or put it back '
    "before forward returns"
)
