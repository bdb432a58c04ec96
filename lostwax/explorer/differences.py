"""How two programs on a page differ, node by node: found in the data of the page, so programs and
files of any form can be compared.

Nodes stand for each other if they call the same operator in the same module, in the same order;
weights and inputs if they have the same name. Weights are compared by type: a page has no values.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Any

from lostwax.explorer.graph import KINDS

SAME, CHANGED, ONLY_HERE = range(3)
_BY_NAME = ("input", "parameter", "buffer", "constant")
_WORD = re.compile(r"\w+")


def note_differences(entries: list[dict[str, Any]], strings: Sequence[str]) -> None:
    """Compare each method of the first program with that of the second."""
    first = {each["method"]: each for each in entries if each["stage"] == 0}
    for each in entries:
        if each["stage"] == 1 and each["method"] in first:
            _compare_entries(first[each["method"]], each, strings)


def _compare_entries(a: dict[str, Any], b: dict[str, Any], strings: Sequence[str]) -> None:
    """Note in both programs what has become of each node, as `changes`, and in the second which
    node of the first it is, as `links`."""
    old, new = _Nodes(a, strings), _Nodes(b, strings)
    links = [-1] * len(new)
    for one, other in _pair_graphs(old, new):
        for here, there in _pair_nodes(old, new, one, other):
            links[there] = here
    found = [ONLY_HERE] * len(old)
    changes = [ONLY_HERE] * len(new)
    for at, origin in enumerate(links):
        if origin >= 0:
            reads = [links[i] for i in b["columns"]["inputs"][at]]
            is_same = old.text(origin) == new.text(at) and old.inputs(origin) == reads
            found[origin] = changes[at] = SAME if is_same else CHANGED
    a["changes"], b["changes"], b["links"] = found, changes, links


class _Nodes:
    """The nodes of a program as the page has them."""

    def __init__(self, entry: dict[str, Any], strings: Sequence[str]) -> None:
        self.entry, self.columns, self.strings = entry, entry["columns"], strings

    def __len__(self) -> int:
        return len(self.columns["name"])

    def inputs(self, at: int) -> list[int]:
        return list(self.columns["inputs"][at])

    def graphs(self) -> dict[Hashable, list[int]]:
        """The nodes of each graph, by the names of the graphs around it."""
        paths: list[tuple[str, ...]] = []
        for graph in self.entry["graphs"]:
            owner = graph["owner"]
            around = paths[self.columns["graph"][owner]] if owner >= 0 else ()
            paths.append((*around, graph["name"]))
        found: dict[Hashable, list[int]] = {path: [] for path in paths}
        for at, graph in enumerate(self.columns["graph"]):
            found[paths[graph]].append(at)
        return found

    def key(self, at: int) -> tuple[str, str, str]:
        """What a node is told by."""
        columns, strings = self.columns, self.strings
        kind, module = KINDS[columns["kind"][at]], self.entry["modules"][columns["module"][at]]
        if kind in _BY_NAME:
            return kind, strings[columns["note"][at]] or columns["name"][at], ""
        return kind, strings[columns["target"][at]], strings[module[1]]

    def text(self, at: int) -> tuple[str, str]:
        """The type and the call of a node, in which inputs stand by their places, and values of a
        file, which are numbered through, by nothing."""
        columns, strings = self.columns, self.strings
        places = {columns["name"][i]: f"%{n}" for n, i in enumerate(columns["inputs"][at])}
        call = _WORD.sub(lambda m: places.get(m[0], m[0]), strings[columns["call"][at]])
        if columns["stack"][at] < 0 and "::" in call:
            call = re.sub(r"\bt\d+\b", "t", call)
        return strings[columns["type"][at]], call


def _pair_graphs(old: _Nodes, new: _Nodes) -> Iterator[tuple[list[int], list[int]]]:
    there = new.graphs()
    for path, nodes in old.graphs().items():
        if path in there:
            yield nodes, there[path]


def _pair_nodes(
    old: _Nodes, new: _Nodes, one: list[int], other: list[int]
) -> Iterator[tuple[int, int]]:
    named = {key: at for at in one if (key := old.key(at))[0] in _BY_NAME}
    yield from ((named[key], at) for at in other if (key := new.key(at)) in named)
    mine = [(key, at) for at in one if (key := old.key(at))[0] not in _BY_NAME]
    others = [(key, at) for at in other if (key := new.key(at))[0] not in _BY_NAME]
    # What is the same at both ends is most of it, and need not be searched.
    begin = _count_same(mine, others)
    end = _count_same(mine[begin:][::-1], others[begin:][::-1])
    yield from ((m[1], o[1]) for m, o in zip(mine[:begin], others, strict=False))
    rest, there = mine[begin : len(mine) - end], others[begin : len(others) - end]
    keys = [key for key, _ in rest], [key for key, _ in there]
    matcher = SequenceMatcher(None, *keys, autojunk=False)
    for block in matcher.get_matching_blocks():
        for step in range(block.size):
            yield rest[block.a + step][1], there[block.b + step][1]
    tails = zip(mine[len(mine) - end :], others[len(others) - end :], strict=True)
    yield from ((m[1], o[1]) for m, o in tails)


def _count_same(a: Sequence[tuple[Any, int]], b: Sequence[tuple[Any, int]]) -> int:
    pairs = zip(a, b, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0][0] == pair[1][0], pairs))
