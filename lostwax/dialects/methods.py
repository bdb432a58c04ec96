"""The methods of a file that is to be: programs by name, and constants by name.

Must not lower anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lostwax.errors import LoweringError
from lostwax.ir.program import ExportedProgram
from lostwax.ir.text import count_text
from lostwax.late_imports import late_import

if TYPE_CHECKING:
    from lostwax.late_imports import Page


def require_method_name(name: Any) -> None:
    """Refuse what cannot be the name of a method."""
    if not isinstance(name, str) or not name.isidentifier():
        raise LoweringError(f"{name!r} is no name of a method\n  instead: an identifier")


def require_config(config: Any, kind: type) -> Any:
    """The configuration that is given, or a plain one."""
    if config is None:
        return kind()
    if not isinstance(config, kind):
        raise LoweringError(
            f"config is a {type(config).__name__}\n  instead: {kind.__name__}(...), or None"
        )
    return config


class Methods:
    """Programs in the Edge dialect, each a method, and methods that return constants."""

    def __init__(
        self, programs: Mapping[str, ExportedProgram], constants: Mapping[str, Any]
    ) -> None:
        if not isinstance(constants, Mapping):
            raise LoweringError(f"constant_methods is a dict of values by name, not {constants!r}")
        self._programs, self._constants = dict(programs), dict(constants)
        for name in (*self._programs, *self._constants):
            require_method_name(name)

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

    def plot(self, **options: Any) -> Page:
        """The methods as a page to look at, for the last line of a notebook's cell:
        `lostwax.explore(manager)`."""
        page: Page = late_import("plot")(self, **options)
        return page

    def _repr_html_(self) -> str:
        from lostwax.ir.notebook import methods_html

        return methods_html(type(self).__name__, self._facts(), self._programs, self._constants)

    def _facts(self) -> list[str]:
        """What a notebook tells first."""
        return [count_text(len(self._programs), "method")]

    def exported_program(self, name: str = "forward") -> ExportedProgram:
        """The Edge program of a method."""
        if name not in self._programs:
            raise LoweringError(
                f"there is no method {name!r}; there are {', '.join(sorted(self._programs))}\n"
                f"  instead: exported_program({min(self._programs, default='forward')!r})"
            )
        return self._programs[name]
