"""A smaller program that still fails in the same way: statements are dropped while it does."""

from __future__ import annotations

from collections.abc import Iterator

from fuzz.judge import Finding, judge
from fuzz.program import Program

MOST = 400
"""So many programs are tried for one that fails."""


def shrink(program: Program, finding: Finding) -> Program:
    """The program with all dropped that need not be there."""
    left = [MOST]
    smaller: Program | None = program
    while smaller is not None:
        program = smaller
        smaller = next((p for p in _smaller(program) if _fails(p, finding, left)), None)
    return program


def fails(program: Program, finding: Finding) -> bool:
    """Is the finding there again?"""
    return _fails(program, finding, [1])


def _fails(program: Program, finding: Finding, left: list[int]) -> bool:
    left[0] -= 1
    if left[0] < 0:
        return False
    way = None if finding.way == "export" else {finding.way}
    try:
        found = judge(program.compiled(), way)
    except Exception:
        return False
    sought = (finding.rank, finding.what, finding.way)
    same = (f for f in found if (f.rank, f.what, f.way) == sought)
    return any(finding.rank == "wrong" or f.signature == finding.signature for f in same)


def _smaller(p: Program) -> Iterator[Program]:
    """Programs with one thing less."""
    if p.calls > 1:
        yield p.without(calls=p.calls - 1)
    if p.names:
        yield p.without(names={})
        yield from (p.without(names={k: v for k, v in p.names.items() if k != n}) for n in p.names)
    for part in ("changes", "body", "results", "init", "inputs", "by_name"):
        lines = getattr(p, part)
        if part == "results" and len(lines) == 1:
            continue
        for i in reversed(range(len(lines))):
            yield p.without(**{part: lines[:i] + lines[i + 1 :]})
    if p.dynamic:
        yield p.without(dynamic={})
    if p.form != "single" and len(p.results) == 1:
        yield p.without(form="single")
    for i, name in enumerate(p.arguments):
        if len(p.arguments) > 1:
            rest = p.arguments[:i] + p.arguments[i + 1 :]
            dynamic = {k: v for k, v in p.dynamic.items() if k != name}
            by_name = [k for k in p.by_name if k != name]
            yield p.without(arguments=rest, dynamic=dynamic, by_name=by_name)
