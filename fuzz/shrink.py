"""A smaller program that still fails in the same way: statements are dropped while it does."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

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


# ------------------------------------------------------------------------------------------ sources


def shrink_source(source: str, fails: Callable[[str], bool]) -> str:
    """The functions of a source with all statements dropped that need not be there."""
    left = MOST
    smaller: str | None = source
    while smaller is not None:
        source, smaller = smaller, None
        for each in _smaller_sources(source):
            left -= 1
            if left < 0:
                return source
            if fails(each):
                smaller = each
                break
    return source


def _smaller_sources(source: str) -> Iterator[str]:
    """Sources with a statement less, or with one of its blocks in the place of one."""
    for i in range(len(_list_blocks(ast.parse(source)))):
        for k in reversed(range(len(_list_blocks(ast.parse(source))[i]))):
            inner = [getattr(_list_blocks(ast.parse(source))[i][k], n, []) for n in _BLOCKS]
            for new in ([], *(each for each in inner if each)):
                tree = ast.parse(source)
                block = _list_blocks(tree)[i]
                block[k : k + 1] = new if new or len(block) > 1 else [ast.Pass()]
                found = ast.unparse(tree)
                if len(found) < len(source):
                    yield found


def _list_blocks(tree: ast.AST) -> list[list[ast.stmt]]:
    found = [getattr(node, name, None) for node in ast.walk(tree) for name in _BLOCKS]
    return [each for each in found if isinstance(each, list) and each]


_BLOCKS = ("body", "orelse", "finalbody")
