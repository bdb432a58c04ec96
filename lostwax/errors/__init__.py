"""Every exception that lostwax raises. The docstring of a class is its help page: it says what the
cause is, under "What to do" how to go on, and has a program that gives the error ("Example") and
one without it ("Mended"), which goes on with the names of the first. `docs/errors.md` and
`lostwax explain` show them; the tests run them.

Layer 0: imports nothing of lostwax but `location`. An error says what was refused, where in the
user's code, why, and what to write instead; it carries the values it speaks of. Its `code` is
listed in tests/error_codes.toml, and stays what it is.
"""

from __future__ import annotations

from lostwax.errors import base, making, using
from lostwax.errors.base import *  # noqa: F403
from lostwax.errors.base import LostwaxError
from lostwax.errors.making import *  # noqa: F403
from lostwax.errors.using import *  # noqa: F403

CLASSES: tuple[type[LostwaxError], ...] = tuple(
    sorted(
        {
            each
            for module in (base, making, using)
            for each in vars(module).values()
            if isinstance(each, type) and issubclass(each, LostwaxError)
        },
        key=lambda each: each.code,
    )
)
"""All of them, in the order of their codes."""

for _each in CLASSES:
    _each.__module__ = __name__  # where users find them
del _each

# What else is here, is for lostwax itself.
__all__ = sorted(each.__name__ for each in CLASSES)
