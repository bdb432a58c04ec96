"""Where nodes come from, as plain texts: for tables of many nodes, and for files that are read
without their programs."""

from __future__ import annotations

from typing import NamedTuple

from torch.fx import Node

from lostwax.ir.text import list_frames, target_text
from lostwax.location import show_path


class NodeOrigin(NamedTuple):
    """Where a node comes from: its operator, the path and class of its module, the user's line."""

    name: str
    operator: str
    module: str = ""
    kind: str = ""
    line: str = ""
    code: str = ""


def origin_of(node: Node) -> NodeOrigin:
    """Where a node comes from."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path, kind = stack[-1] if stack else ("", "")
    name = kind.__name__ if isinstance(kind, type) else str(kind).rpartition(".")[2]
    place = locate(str(node.meta.get("stack_trace") or ""))
    operator = target_text(node.target).removeprefix("torch.ops.")
    return NodeOrigin(node.name, operator, path, name, *place)


def locate(trace: str) -> tuple[str, str]:
    """The innermost line of the user's in a stack trace, `model.py:12`, and its code."""
    frames = list_frames(trace)
    if not frames:
        return "", ""
    file, line, _, code = frames[-1]
    return f"{show_path(file)}:{line}", code
