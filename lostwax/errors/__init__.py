"""Every exception that lostwax raises. The docstring of a class is its help page: it says what the
cause is, under "What to do" how to go on, and has a program that gives the error ("Example") and
one without it ("Mended"), which goes on with the names of the first. `docs/errors.md` and
`lostwax explain` show them; the tests run them.

Layer 0: imports nothing of the house but `location`. An error says what was refused, where in the
user's code, why, and what to write instead; it carries the values it speaks of. Its `code` is
listed in tests/error_codes.toml, and stays what it is.
"""

from __future__ import annotations

from lostwax.errors.base import (
    LostwaxError,
    asks_data,
    collect_errors,
    did_you_mean,
    find_own_error,
    note_made,
)
from lostwax.errors.making import (
    CaptureError,
    ConstraintViolationError,
    ContradictionError,
    DataDependentError,
    DynamicShapesError,
    InputTypeError,
    JointError,
    MissingFakeRuleError,
    MixedModeError,
    NonFakeInputError,
    NotYetError,
    ParseError,
    RegistrationError,
    SettingsError,
    StrictError,
    UnknownModuleError,
    UnsupportedFakeError,
    WrongFakeError,
)
from lostwax.errors.using import (
    CheckError,
    CommandError,
    DecompositionError,
    InputStructureError,
    InputValueError,
    LoadError,
    LoweringError,
    NotCallableError,
    NotPickledError,
    PassError,
    SaveError,
    SharedStateError,
    SwapError,
    VerificationError,
)

CLASSES: tuple[type[LostwaxError], ...] = (
    LostwaxError,
    CaptureError,
    DataDependentError,
    StrictError,
    JointError,
    InputTypeError,
    UnknownModuleError,
    RegistrationError,
    SettingsError,
    NotYetError,
    ConstraintViolationError,
    DynamicShapesError,
    ContradictionError,
    ParseError,
    UnsupportedFakeError,
    NonFakeInputError,
    MixedModeError,
    MissingFakeRuleError,
    WrongFakeError,
    InputStructureError,
    InputValueError,
    NotCallableError,
    SharedStateError,
    SwapError,
    VerificationError,
    DecompositionError,
    PassError,
    CheckError,
    LoweringError,
    SaveError,
    LoadError,
    NotPickledError,
    CommandError,
)
"""All of them, in the order of their codes."""

for _each in CLASSES:
    _each.__module__ = __name__  # where users find them
del _each

__all__ = [
    "CLASSES",
    "CaptureError",
    "CheckError",
    "CommandError",
    "ConstraintViolationError",
    "ContradictionError",
    "DataDependentError",
    "DecompositionError",
    "DynamicShapesError",
    "InputStructureError",
    "InputTypeError",
    "InputValueError",
    "JointError",
    "LoadError",
    "LostwaxError",
    "LoweringError",
    "MissingFakeRuleError",
    "MixedModeError",
    "NonFakeInputError",
    "NotCallableError",
    "NotPickledError",
    "NotYetError",
    "ParseError",
    "PassError",
    "RegistrationError",
    "SaveError",
    "SettingsError",
    "SharedStateError",
    "StrictError",
    "SwapError",
    "UnknownModuleError",
    "UnsupportedFakeError",
    "VerificationError",
    "WrongFakeError",
    "asks_data",
    "collect_errors",
    "did_you_mean",
    "find_own_error",
    "note_made",
]
