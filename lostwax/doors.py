"""Doors: names of a lower layer that lead to a higher one, as `program.to_edge()` does.

A lower layer says here that it has a door; only the face, which stands above all layers, says where
each leads. So no layer knows those above it. Layer 0: imports nothing of the house.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

_homes: dict[str, str] = {}


def set_doors(homes: Mapping[str, str]) -> None:
    """Say where doors lead: for each name the module that has what it stands for."""
    _homes.update(homes)


def enter(name: str) -> Any:
    """What the door of this name leads to; its module is loaded now."""
    return getattr(import_module(_homes[name]), name)
