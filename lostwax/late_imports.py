"""Names of a lower layer that lead to a higher one, as `program.to_edge()` does, imported late.

A lower layer asks here for a name; only the face, which stands above all layers, says where each
is. So no layer knows those above it. Layer 0: imports nothing of the package.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

_homes: dict[str, str] = {}


def set_homes(homes: Mapping[str, str]) -> None:
    """Say for each name in which module it is."""
    _homes.update(homes)


def late_import(name: str) -> Any:
    """What a name stands for; its module is loaded now."""
    return getattr(import_module(_homes[name]), name)
