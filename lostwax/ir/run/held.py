"""What a module holds under a name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn


def find_held(module: Any, name: str) -> Any:
    """Find what a module holds under one of the original's names. State and submodules come before
    attributes of our own classes; else Python's lookup finds what replaced it (a
    parametrization)."""
    if isinstance(module, nn.Module):
        stores: tuple[Mapping[str, Any], ...]
        stores = (module._parameters, module._buffers, module._modules)
        for store in stores:
            if name in store:
                return store[name]
    return getattr(module, name)
