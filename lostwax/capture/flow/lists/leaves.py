"""Values with other leaves in them: what is in a tuple, a list or a dict, by its path.

Must not know what the leaves are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lostwax.capture.flow.merging import NOTHING, Path
from lostwax.capture.heap.holders import MISSING


def replace_leaves(path: Path, value: Any, shown: Mapping[Path, Any], made: list[Any]) -> Any:
    """A value that is at a path, with what is shown in the places of its leaves. The containers
    that are made for that are added to `made`."""
    if path in shown:
        return shown[path]
    inner = [each for each in shown if each[: len(path)] == path]
    if not inner:
        return value
    if value is MISSING or value is NOTHING:  # a tuple of what was not there before the loop
        keys = dict.fromkeys(each[len(path)] for each in inner)
        return tuple(replace_leaves((*path, k), MISSING, shown, made) for k in keys)
    if isinstance(value, dict):
        found = {k: replace_leaves((*path, k), v, shown, made) for k, v in value.items()}
        made.append(found)
        return found
    parts = [replace_leaves((*path, k), v, shown, made) for k, v in enumerate(value)]
    is_named = hasattr(value, "_fields")
    made.append(type(value)(*parts) if is_named else type(value)(parts))
    return made[-1]
