"""The public face of lostwax. Lazy: `import lostwax` loads no torch; a name loads its layer when
it is first used. Nothing inside the package imports this module.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lostwax import errors
    from lostwax.fake import (
        FakeTensor,
        FakeTensorMode,
        FakeTensorProp,
        detect_fake_mode,
        unset_fake_temporarily,
    )
    from lostwax.sym import ShapeEnv

__version__ = "0.1.0"

__all__ = [
    "FakeTensor",
    "FakeTensorMode",
    "FakeTensorProp",
    "ShapeEnv",
    "__version__",
    "detect_fake_mode",
    "errors",
    "unset_fake_temporarily",
]

_HOME = {
    "FakeTensor": "lostwax.fake",
    "FakeTensorMode": "lostwax.fake",
    "FakeTensorProp": "lostwax.fake",
    "detect_fake_mode": "lostwax.fake",
    "unset_fake_temporarily": "lostwax.fake",
    "ShapeEnv": "lostwax.sym",
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("lostwax.errors")
    if name not in _HOME:
        raise AttributeError(f"module 'lostwax' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
