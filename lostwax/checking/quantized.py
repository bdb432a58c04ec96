"""Which values of a quantized program are those of the program in floats.

Must not know who has quantized it: modules and lines stay what they were.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from torch.fx import Node

from lostwax.checking.recording import Values, list_sizes
from lostwax.ir.program import ExportedProgram
from lostwax.ir.text import list_frames

Place = tuple[str, ...]
"""The path of a module, and the user's line: its file, number and code."""
Run = list[Node]
"""Nodes of one place, one after another."""
Pairs = dict[Node, Node]

_QUANTIZING = re.compile(r"(fake_)?(de)?quantize_|choose_qparams")
"""How operators begin that go to integers and back, whoever has them."""


def pair_values(
    floats: ExportedProgram, quantized: ExportedProgram, truth: Values
) -> dict[str, str]:
    """For the nodes in floats the names of those that compute the same in the quantized program.

    The nodes of one place are paired in their order, if they are the same operators. If not, the
    results of a place are: a layer that is computed otherwise still has one."""
    mine, theirs = _list_runs(floats), _list_runs(quantized)
    there = {place[0] for place in theirs}
    pairs: Pairs = {}
    for place, runs in mine.items():
        pairs.update(_pair_place(runs, theirs.get(place, [])))
    for place, runs in mine.items():
        for run in runs if place[0] not in there else ():
            _pair_folded(run, pairs, truth)
    return {node.name: other.name for node, other in pairs.items()}


def _list_runs(program: ExportedProgram) -> dict[Place, list[Run]]:
    calls = [n for n in program.graph.nodes if n.op == "call_function" and not _is_quantizing(n)]
    found: dict[Place, list[Run]] = {}
    for place, run in groupby(calls, _find_place):
        found.setdefault(place, []).append(list(run))
    return found


def _is_quantizing(node: Node) -> bool:
    return _QUANTIZING.match(getattr(node.target, "__name__", "")) is not None


def _find_place(node: Node) -> Place:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]) if stack else ""
    # A file has the innermost line alone, in a folder that may be another.
    for file, line, _, code in list_frames(str(node.meta.get("stack_trace") or ""))[-1:]:
        return path, os.path.basename(file), line, code
    return (path,)


def _pair_place(runs: Sequence[Run], others: Sequence[Run]) -> Iterator[tuple[Node, Node]]:
    here, there = ([n for run in each for n in run] for each in (runs, others))
    if [n.target for n in here] == [n.target for n in there]:
        yield from zip(here, there, strict=True)
    elif len(runs) == len(others):
        yield from ((a[-1], b[-1]) for a, b in zip(runs, others, strict=True))


def _pair_folded(run: Run, pairs: Pairs, truth: Values) -> None:
    """A module that is gone was folded into what it reads, as a normalization into a convolution,
    which then computes the result of both; if nothing else reads that."""
    calls = {i for n in run for i in n.all_input_nodes if i.op == "call_function"}
    outside = calls.difference(run)
    source = outside.pop() if len(outside) == 1 else None
    if source is None or source not in pairs or not set(run).issuperset(source.users):
        return
    sizes = [list_sizes(truth[n.name]) if n.name in truth else None for n in (source, run[-1])]
    if sizes[0] == sizes[1]:
        pairs[run[-1]] = pairs.pop(source)
