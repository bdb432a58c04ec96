"""The calls that options name, `--calibrate` and `--bundle`: files, folders of them, functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lostwax.cli.models.factories import Model, call_factory, find_factory
from lostwax.cli.models.inputs import read_input
from lostwax.cli.models.names import EXAMPLE, read_name
from lostwax.cli.outcome import RESULTS
from lostwax.errors import CommandError, did_you_mean


class GivenCall(NamedTuple):
    """One call, and the words of the command line that gave it."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    source: str

    @contextmanager
    def name_in_errors(self) -> Iterator[None]:
        """Errors meanwhile say which call it was."""
        try:
            yield
        except Exception as error:
            error.add_note(f"  given by: {self.source}")
            raise


def read_calls(texts: Sequence[str], model: Model, option: str) -> Iterator[GivenCall]:
    """The calls that are named, one after another, in the form of the example."""
    for text in texts:
        if text == EXAMPLE:
            yield GivenCall(model.args, dict(model.kwargs), f"{option} {EXAMPLE}")
            continue
        for given, source in _read_source(text, option):
            yield _make_call(given, source, model)


def _read_source(text: str, option: str) -> Iterator[tuple[Any, str]]:
    """What a source has, each with its name: a list is of calls, and all else is one."""
    path = Path(text)
    if path.is_dir():
        for file in sorted(each for each in path.iterdir() if each.name.endswith(RESULTS)):
            yield from _read_source(str(file), option)
        return
    if path.is_file():
        found = read_input(text, option)
    else:
        place, name, options = read_name(text)
        found = find_factory(place, name)
        found = call_factory(found, options, text) if callable(found) else found
    source = f"{option} {text!r}"
    several = isinstance(found, list) or not isinstance(found, (torch.Tensor, tuple, Mapping))
    if several and not hasattr(found, "__iter__"):
        raise CommandError(
            f"{source} gives a value of type {type(found).__name__}\n"
            "  instead: calls: a tensor, a tuple of arguments, a dict of them by name, or several "
            "of these in a list"
        )
    if not several:
        yield found, source
        return
    for at, each in enumerate(found):
        yield each, f"{source}, call {at}"


def _make_call(given: Any, source: str, model: Model) -> GivenCall:
    """One call as the example is: by place what is there by place, by name the others."""
    names = [*model.arguments]
    if not isinstance(given, Mapping):
        plain = tuple(given) if isinstance(given, (tuple, list)) else (given,)
        if len(plain) == len(model.args) and not model.kwargs:
            return GivenCall(plain, {}, source)
        if len(plain) > len(names):
            raise CommandError(
                f"{source}: a call with {len(plain)} arguments, and the example has "
                f"{len(names)}: {', '.join(names)}\n  instead: a tuple is one call, and a list is "
                "several"
            )
        given = dict(zip(names, plain, strict=False))
    for name in given:
        if name not in names:
            hint = did_you_mean(name, names) or f"; it has {', '.join(names)}"
            raise CommandError(f"{source}: the example has no input {name!r}{hint}")
    for name in names:
        if name not in given:
            raise CommandError(
                f"{source}: a call without {name!r}, which the example has\n"
                f"  instead: each call with {', '.join(names)}"
            )
    count = len(model.args)
    args = tuple(given[n] for n in names[:count])
    return GivenCall(args, {n: given[n] for n in names[count:]}, source)
