"""Capture runs a module's Python once on fakes, and makes a program of what it computes.

The package is also the function `lostwax.capture(mod)`: Python gives both one name.
"""

import sys
from types import ModuleType
from typing import Any

from lostwax.capture.export import export

__all__ = ["export"]


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A callable that runs a module through captured programs: `adaptive.capture`."""
        from lostwax.capture.adaptive import capture

        return capture(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
