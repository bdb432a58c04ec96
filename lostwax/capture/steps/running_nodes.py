"""Which node of a graph is running. The module of a program, or another GraphModule, that is
captured again gives its steps what its nodes know: the user's lines, modules, annotations.

FX writes a line of code for each node, and the line of a frame tells the node.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from types import CodeType, FrameType
from typing import Any, NamedTuple

from torch.fx import Graph, Node

from lostwax.location import Location, is_user_code

KEPT = (
    "nn_module_stack", "source_fn_stack", "torch_fn", "custom", "quantization_tag",
    "_numeric_debug_handle", "partitioner_tag",
)  # fmt: skip
"""What a step takes over from the node that it runs for, beside the stack trace."""
_ASSIGNMENT = re.compile(r"\s*(\w+)\s*(?::[^=]*)?=")
_FRAME = re.compile(r'File "([^"]*)", line (\d+), in ([^\n]*)')


class GraphCode:
    """The code of a graph: the node of each instruction. (Python would count out the line of a
    frame from the first one on.)"""

    def __init__(self, code: CodeType, text: str, graph: Graph) -> None:
        nodes = {node.name: node for node in graph.nodes}
        names = map(_ASSIGNMENT.match, text.split("\n"))
        by_line = [None if name is None else nodes.get(name[1]) for name in names]
        self._starts: list[int] = []
        self._nodes: list[Node | None] = []
        last = None
        for start, _, line in code.co_lines():
            if line is not None and line != last:
                last = line
                self._starts.append(start)
                self._nodes.append(by_line[line - 1])

    def find(self, offset: int) -> Node | None:
        """The node that the instruction at this offset belongs to."""
        return self._nodes[bisect_right(self._starts, offset) - 1]


class Judged(NamedTuple):
    """What is known of a code, which it keeps alive."""

    code: CodeType
    is_users: bool
    of_graph: GraphCode | None


class RunningNodes:
    """The codes that run in the calls of graphs, in one capture."""

    def __init__(self) -> None:
        self.judged: dict[int, Judged] = {}
        """By identity of the code."""

    def judge(self, frame: FrameType) -> Judged:
        """Add the code that runs in this frame."""
        code = frame.f_code
        of_graph = None
        if code.co_filename.startswith("<eval"):
            module: Any = frame.f_locals.get("self")
            graph, text = getattr(module, "graph", None), getattr(module, "_code", None)
            if isinstance(graph, Graph) and isinstance(text, str):
                of_graph = GraphCode(code, text, graph)
        found = self.judged[id(code)] = Judged(code, is_user_code(code), of_graph)
        return found


def read_trace(node: Node) -> str:
    """The user's frames that a node has, as text that ends a line."""
    text = str(node.meta.get("stack_trace") or "")
    return f"{text}\n" if text and not text.endswith("\n") else text


def read_location(node: Node) -> Location | None:
    """The user's line that a node has."""
    frames = _FRAME.findall(read_trace(node))
    return Location(frames[-1][0], int(frames[-1][1]), frames[-1][2]) if frames else None
