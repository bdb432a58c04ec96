"""What was marked beforehand: tensors (`mark_dynamic`), functions (`@dynamic_spec` of torch 2.15).
Every export asks for them, and few find any."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from lostwax.errors import DynamicShapesError

MARKS: Any = WeakIdKeyDictionary()
"""Tensor → {dimension: hint}; the tensor itself stays untouched."""


def marks_of(tensor: torch.Tensor) -> dict[int, Any]:
    """The marks of a tensor, by dimension."""
    found: dict[int, Any] = MARKS.get(tensor, {})
    return found


def find_attached_spec(function: Any, given: Any) -> Any:
    """What `@dynamic_spec` says about a function; `given` if it is not decorated."""
    while isinstance(function, partial):
        function = function.func
    attached = getattr(function, "_dynamic_spec", None)
    if attached is None or not is_of_torch_spec(attached):
        return given
    if given is not None:
        name = getattr(function, "__qualname__", "the function")
        raise DynamicShapesError(
            f"{name} is decorated with @dynamic_spec, and dynamic_shapes= was passed, too\n"
            "  instead: one of them"
        )
    return attached


def is_of_torch_spec(value: Any) -> bool:
    """Is it of a class that torch 2.15 has for specs, `ShapesSpec`, `ShapeVar` and so on?"""
    return any(cls.__module__ == _SPECS for cls in type(value).__mro__)


_SPECS = "torch.fx.experimental.dynamic_spec"
