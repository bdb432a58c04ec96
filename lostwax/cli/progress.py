"""Progress on a terminal; silence in a pipe. Must not import torch."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


def is_terminal() -> bool:
    """Does a person look at stderr?"""
    return sys.stderr is not None and sys.stderr.isatty()


@contextlib.contextmanager
def show_status(text: str) -> Iterator[Callable[[str], None]]:
    """Say what is being done, while it is done; the function that comes with it says how far."""
    if not is_terminal():
        yield lambda part: None
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as status:
        yield lambda part: status.update(f"{text}: {part}")


@contextlib.contextmanager
def count_steps(text: str, total: int) -> Iterator[Callable[[str], None]]:
    """A bar; the function that comes with it is called after each step, with what was done."""
    if not is_terminal():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=total)

        def advance(done: str) -> None:
            bar.update(task, advance=1, description=done)

        yield advance
