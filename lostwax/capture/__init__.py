"""Capture runs a module's Python once on fakes, and makes a program of what it computes.

The package is also the function `lostwax.capture(mod)`: Python gives both one name.
"""

import sys
from typing import Any

from lostwax.capture.export import export
from lostwax.namespaces import CallableModule

__all__ = ["export"]


class _Callable(CallableModule):
    @property
    def _function(self) -> Any:
        from lostwax.capture.adaptive import capture

        return capture


sys.modules[__name__].__class__ = _Callable
