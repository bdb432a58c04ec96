"""The methods of a file that is to be: programs by name, and constants by name.

Must not lower anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lostwax.errors import LoweringError
from lostwax.ir.program import ExportedProgram


class Methods:
    """Programs in the Edge dialect, each a method, and methods that return constants."""

    def __init__(
        self, programs: Mapping[str, ExportedProgram], constants: Mapping[str, Any]
    ) -> None:
        self._programs, self._constants = dict(programs), dict(constants)

    @property
    def methods(self) -> set[str]:
        """The names of the methods that compute something."""
        return set(self._programs)

    @property
    def config_methods(self) -> set[str]:
        """The names of the methods that return a constant."""
        return set(self._constants)

    @property
    def constant_methods(self) -> dict[str, Any]:
        """What each of these methods returns."""
        return dict(self._constants)

    def exported_program(self, name: str = "forward") -> ExportedProgram:
        """The Edge program of a method."""
        if name not in self._programs:
            raise LoweringError(
                f"there is no method {name!r}; there are {', '.join(sorted(self._programs))}"
            )
        return self._programs[name]
