"""How a command ends: what it prints, as text or as JSON, and the exit code. The form of the JSON
is described in docs/command-line.md, and its number goes up when a script could notice.

Must not import torch.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NoReturn, TextIO

from typer import BadParameter
from typer.core import TyperCommand, TyperGroup

from lostwax.cli.progress import hide_progress, show_progress
from lostwax.cli.wording import write_in_options
from lostwax.errors import CommandError, LostwaxError
from lostwax.location import end_search_at, find_raised, is_own_file, show_path

SCHEMA = "lostwax/1"


class Exit(IntEnum):
    """The exit codes of all commands."""

    OK = 0
    FAULT = 1
    """An exception of somebody's code: the model's, or ours."""
    USAGE = 2
    """The command line is wrong: an option, a file, a module, a factory."""
    REFUSED = 3
    """lostwax refuses the model or the file, with a code."""
    DIFFERS = 4
    """The command did its work, and the answer is no: programs differ, problems were found."""
    INTERRUPTED = 130


@dataclass
class CommandOutcome:
    """What a command found: as data, and as text for people."""

    result: Any
    text: str
    exit: Exit = Exit.OK
    notes: list[str] = field(default_factory=list)
    """Lines for people that are not part of the answer: they go to stderr."""
    go_on: Callable[[], None] | None = None
    """What is done when the answer is printed, until somebody interrupts it."""


def finish(
    command: str,
    work: Callable[[], CommandOutcome],
    *,
    as_json: bool,
    show_traceback: bool = False,
    is_quiet: bool = False,
    status: str = "",
) -> None:
    """Do the work, print its outcome or its error, and leave with the exit code. Meanwhile a
    terminal shows the status, if there is one."""
    warned: list[dict[str, Any]] = []
    for name in ("torchao", "torch.utils._pytree"):  # of kernels and names that nobody asked for
        logging.getLogger(name).setLevel(logging.ERROR)
    shown = show_progress("" if as_json or is_quiet else status)
    with shown, _open_answer(as_json), _quiet_stdout(is_quiet), _collect_warnings(warned):
        outcome, error = run_safely(work, show_traceback)
    for each in () if as_json or is_quiet else warned:
        _say(f"warning: {_write_place(each)}{each['message']}")
    code = outcome.exit if outcome is not None else Exit(error["exit"])
    if as_json:
        result = None if outcome is None else outcome.result
        _print(write_json(command, code, result, error, warned))
    elif outcome is not None:
        for note in () if is_quiet else outcome.notes:
            _say(note)
        _print(outcome.text)
    else:
        _say(write_error(error))
    if outcome is not None and outcome.go_on is not None:
        with contextlib.suppress(KeyboardInterrupt):
            outcome.go_on()
    raise SystemExit(int(code))


def run_safely(
    work: Callable[[], CommandOutcome], show_traceback: bool
) -> tuple[CommandOutcome | None, dict[str, Any]]:
    """The outcome of the work, or what is to be reported of its error."""
    end_search_at(sys._getframe().f_code)
    try:
        return work(), {}
    except KeyboardInterrupt as error:
        return None, describe_error(error, Exit.INTERRUPTED, show_traceback)
    except CommandError as error:
        return None, describe_error(error, Exit.USAGE, show_traceback)
    except LostwaxError as error:
        return None, describe_error(error, Exit.REFUSED, show_traceback)
    except OSError as error:
        is_disk = error.filename is not None or error.errno in (errno.ENOSPC, errno.EROFS)
        if not is_disk or find_raised(error) is not None:  # the model's own
            return None, describe_error(error, Exit.FAULT, show_traceback)
        warned = describe_error(error, Exit.USAGE, show_traceback)
        place = "" if error.filename is None else f"{error.filename}: "
        return None, {**warned, "message": f"{place}{error.strerror}"}
    except Exception as error:
        return None, describe_error(error, Exit.FAULT, show_traceback)


def describe_error(error: BaseException, code: Exit, show_traceback: bool) -> dict[str, Any]:
    """An error as data."""
    span = error.span if isinstance(error, LostwaxError) else None
    place = find_raised(error) if span is None else (show_path(span.file), span.line)
    if isinstance(error, CommandError):  # it is about the command line, not about code
        span = place = None
    return {
        "exit": int(code),
        "code": error.code if isinstance(error, LostwaxError) else None,
        "class": type(error).__name__,
        "message": _write_message(error),
        "file": place[0] if place else None,
        "line": place[1] if place else None,
        "column": None if span is None else span.start + 1,
        "traceback": "".join(traceback.format_exception(error)) if show_traceback else None,
    }


def _write_message(error: BaseException) -> str:
    """What an error says, and what is noted of it: why, and what to write instead."""
    is_own = isinstance(error, LostwaxError) and not isinstance(error, CommandError)
    said = str(error) if isinstance(error, LostwaxError) else str(error).strip()
    noted = [write_in_options(each, ()) for each in getattr(error, "__notes__", ())]
    notes = [each for each in noted if is_own or not _PLACE.match(each)]
    return "\n".join([said or type(error).__name__, *notes])


_PLACE = re.compile(r"\s*at .+:\d+")
"""The note that has the line, which is told by itself."""


def write_error(error: dict[str, Any]) -> str:
    """An error for people: no traceback unless one was asked for."""
    if error["traceback"]:
        return str(error["traceback"]).rstrip()
    if error["exit"] == Exit.INTERRUPTED:
        return "interrupted"
    if error["code"]:
        more = "" if error["exit"] == Exit.USAGE else f"\n  more: lostwax explain {error['code']}"
        return f"error: {error['message']}{more}"
    said, *notes = f"{error['class']}: {error['message']}".split("\n  ")
    where = [f"at {error['file']}:{error['line']}"] if error["file"] else []
    return "\n  ".join([f"error: {said}", *where, *notes, "more: --traceback"])


def write_json(
    command: str, code: Exit, result: Any, error: dict[str, Any], warned: list[dict[str, Any]]
) -> str:
    """The one object that `--json` prints."""
    face = sys.modules["lostwax"]  # it is above: not imported from here
    envelope = {
        "schema": SCHEMA,
        "lostwax": face.__version__,
        "command": command,
        "exit": int(code),
        "result": result,
        "error": error or None,
        "warnings": warned,
    }
    return json.dumps(envelope, indent=2, default=str, ensure_ascii=False)


class _Answer:
    """Where an answer goes while it is found; None if nowhere, as with `--json`."""

    stream: TextIO | None = None


_answer = _Answer()


@contextlib.contextmanager
def _open_answer(as_json: bool) -> Iterator[None]:
    """Keep a stream of our own for parts of the answer: others may redirect stdout."""
    with contextlib.ExitStack() as held:
        if not as_json and sys.stdout is not None:
            _answer.stream = sys.stdout
            with contextlib.suppress(OSError):  # it is no file
                copy = os.dup(sys.stdout.fileno())
                _answer.stream = held.enter_context(open(copy, "w", encoding=sys.stdout.encoding))
        try:
            yield
        finally:
            _answer.stream = None


def tell_part(text: str) -> None:
    """Print a part of the answer at once. The progress on a terminal ends with the first."""
    hide_progress()
    _write(_answer.stream, text, end="")


@contextlib.contextmanager
def _quiet_stdout(is_quiet: bool) -> Iterator[None]:
    """What the model prints is not the command's answer: it goes to stderr, or nowhere."""
    with contextlib.ExitStack() as held:
        nowhere = is_quiet or sys.stderr is None
        to: Any = held.enter_context(open(os.devnull, "w")) if nowhere else sys.stderr
        held.enter_context(contextlib.redirect_stdout(to))
        if is_quiet:  # libraries log as they are imported
            held.callback(logging.disable, logging.root.manager.disable)
            logging.disable(logging.WARNING)
        yield


@contextlib.contextmanager
def _collect_warnings(warned: list[dict[str, Any]]) -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        try:
            yield
        finally:
            for each in caught:
                is_ours = is_own_file(each.filename)  # what the command has to tell, or lostwax
                said = {
                    "message": str(each.message),
                    "file": None if is_ours else show_path(each.filename),
                    "line": None if is_ours else each.lineno,
                }
                if said not in warned:
                    warned.append(said)


def _write_place(each: dict[str, Any]) -> str:
    return f"{each['file']}:{each['line']}: " if each["file"] else ""


def check_output(path: str | None, suffixes: Iterable[str] = ()) -> None:
    """Refuse a file that cannot be written before the work is done, not after it."""
    if path is None:
        return
    ends = tuple(suffixes)
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise CommandError(f"-o {path!r} is a folder, not a file")
    if ends and not path.endswith(ends):
        raise CommandError(f"-o {path!r}: what is written is a {' or '.join(ends)} file")
    if not os.path.isdir(folder):
        raise CommandError(f"-o {path!r}: there is no folder {folder!r}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CommandError(f"-o {path!r}: the folder {folder!r} cannot be written to")


def check_file(path: str) -> None:
    """Refuse what is no file."""
    if os.path.isdir(path):
        raise CommandError(f"{path!r} is a folder, not a file")
    if not os.path.isfile(path):
        raise CommandError(f"there is no file {path!r}")


RESULTS = (".pt", ".pth", ".npy", ".npz")


def split_input(text: str) -> tuple[str, str]:
    """`mask=m.npy` is a file for the input `mask`; without a name, for the next one."""
    name, equals, file = text.partition("=")
    named = bool(equals) and name.isidentifier() and not os.path.exists(text)
    return (name, file) if named else ("", text)


def check_inputs(texts: Iterable[str]) -> None:
    """Refuse inputs that are no files, before the work."""
    for _, file in map(split_input, texts):
        check_file(file)
        if not file.endswith((".npy", ".pt", ".pth")):
            raise CommandError(
                f"--input {file!r}: inputs are .npy files, or .pt files of torch.save"
            )


def _print(text: str) -> None:
    if text:
        _write(sys.stdout, text)


def _say(text: str) -> None:
    _write(sys.stderr, text)


def _write(stream: TextIO | None, text: str, end: str = "\n") -> None:
    """Write to whoever reads. If nobody does any more (`lostwax show … | head`), or the stream was
    closed from the start (`2>&-`), that is no error; a full disk is one."""
    if stream is None:
        return
    try:
        print(text, file=stream, flush=True, end=end)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # what is left in it goes there
        if not isinstance(error, BrokenPipeError):
            if stream is not sys.stderr:
                _say(f"error: the answer cannot be written: {error.strerror}")
            raise SystemExit(int(Exit.USAGE)) from None


# ------------------------------------------------------------------------------ the command line


_UsageError: Any = BadParameter.__base__  # typer has a copy of click, or the package


class Commands(TyperGroup):
    """The commands. A line that is wrong is told as every other error is, as JSON if asked for."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, standalone_mode: bool = True, **more: Any
    ) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        try:
            code = super().main(args=words, standalone_mode=False, **more)
        except _UsageError as error:
            if not standalone_mode:
                raise
            _refuse(error, words)
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code


class Command(TyperCommand):
    """A command. Its help is for people: it names no types of Python."""

    def get_help(self, ctx: Any) -> str:
        text = re.sub(r"\{(\S[^}\n]*)\}", r"\1", super().get_help(ctx))
        return re.sub(r" <(?:list\[)?str\]?>", lambda m: " " * len(m[0]), text)


def _refuse(error: Any, words: Sequence[str]) -> NoReturn:
    if not words:  # it shows the help
        error.show()
        raise SystemExit(int(error.exit_code))
    said = error.format_message().strip()
    path = "lostwax" if error.ctx is None else error.ctx.command_path

    def work() -> CommandOutcome:
        raise CommandError(f"{said}\n  instead: {path} --help lists what there is")

    command = path.partition(" ")[2]
    finish(command, work, as_json="--json" in words, show_traceback=False)
    raise AssertionError("it leaves")
