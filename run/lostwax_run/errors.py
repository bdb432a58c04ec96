"""What lostwax_run raises. Imports nothing of it.

The text says what is wrong, then why, then what to do instead, each in a line of its own.
"""

from __future__ import annotations


class RunError(Exception):
    """A program cannot be run; all others of this module are kinds of it."""


class FileError(RunError):
    """A file is no program, or no weights: it is damaged, cut off, or something else."""


class MissingError(RunError):
    """A program needs kernels or a backend that this runtime has not."""


class InputError(RunError, ValueError):
    """What is given to a method is not what it takes."""
