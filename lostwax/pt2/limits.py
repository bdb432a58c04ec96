"""What a file may ask for at most. Reading costs time and memory in proportion to the file; these
bounds are for what would not: nesting, counts without bytes, compressed records.

Numbers only, far above what real programs need.
"""

from __future__ import annotations

MAX_RECORDS = 1 << 20
MAX_NAME = 4096
MAX_JSON = 1 << 30
"""Bytes of one JSON record."""
MAX_GRAPH_DEPTH = 24
"""Graphs inside graphs."""
MAX_TREE_DEPTH = 64
MAX_LEARNING = 1_000_000
"""Steps of reasoning that all conditions of a program may cost together: some seconds."""
MAX_CHAIN = 500
"""Expressions inside expressions, by way of names: each knows all that it is made of."""
MAX_DIMS = 64
MAX_SIZE = (1 << 62) - 1
"""Of one size, stride or offset: torch counts elements in 63 bits."""


def expansion(file_size: int) -> int:
    """How many bytes the compressed records of a file may become, together."""
    return max(64 << 20, 16 * file_size)
