"""Capture runs a module's Python once on fakes, and makes a program of what it computes.

The package is also the function `lostwax.capture(mod)`: Python gives both one name.
"""

import sys
from types import ModuleType
from typing import Any

from lostwax.capture.adaptive import Captured, capture
from lostwax.capture.export import export

__all__ = ["Captured", "capture", "export"]


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Captured:
        return capture(*args, **kwargs)


_Callable.__call__.__doc__ = capture.__doc__
sys.modules[__name__].__class__ = _Callable
