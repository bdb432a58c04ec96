"""Values of Python in few words, for errors and reports.

Must not call a `__repr__` of the user's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lostwax.capture.heap.cached import is_plain
from lostwax.capture.heap.holders import MISSING
from lostwax.fake.tensor import FakeTensor
from lostwax.ir.text import type_text


def describe(value: Any) -> str:
    """A value in few words."""
    if value is MISSING:
        return "nothing"
    if isinstance(value, torch.Tensor):
        is_number = not isinstance(value, FakeTensor) and value.ndim == 0 and not value.is_meta
        return f"a tensor {type_text(value)}{f' of {value.item()!r}' if is_number else ''}"
    if isinstance(value, (set, list)) or type(value) is tuple:
        return describe_all([*value], isinstance(value, set), type(value) is tuple)
    if is_plain(value):
        text = repr(value)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    name = getattr(value, "__name__", None)
    return str(name) if callable(value) and name else f"a {type(value).__name__}"


def describe_all(values: Sequence[Any], is_set: bool = False, is_tuple: bool = False) -> str:
    shown = [describe(each) for each in values[:_MOST_SHOWN]]
    text = ", ".join([*shown, *["..."] * (len(values) > _MOST_SHOWN)])
    return f"{{{text}}}" if is_set else f"({text})" if is_tuple else f"[{text}]"


_LONGEST = 60
_MOST_SHOWN = 4
