"""`match` taken apart: values and guards of its cases become conditions of `if`s.

    match n:                        truth 1 = n == 3
        case 3 if c: …              if truth 1 and c: …
        case [a, 1]: …              else:
                                        match n: case [a, part 1]: truth 2 = part 1 == 1
                                        if truth 2: …

Must not know what a condition depends on.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from lostwax.capture.flow.rewriting.exits import assign, load, locate_all, map_blocks
from lostwax.capture.flow.rewriting.names import PART, TRUTH
from lostwax.capture.flow.rewriting.scopes import find_stored
from lostwax.capture.python.trees import walk

Block = list[ast.stmt]


def lower_matches(block: Sequence[ast.stmt], name: Callable[[str], str]) -> Block:
    """The statements of a block; `name` makes names for variables."""
    found: Block = []
    for each in block:
        map_blocks(each, lambda inner: lower_matches(inner, name))
        found += _take_match(each, name) if isinstance(each, ast.Match) else [each]
    return found


def _take_match(match: ast.Match, name: Callable[[str], str]) -> Block:
    if not any(case.guard or _holds_value(case.pattern) for case in match.cases):
        return [match]
    subject = name(PART)
    found: Block = [assign(subject, match.subject), *_take_cases(match.cases, subject, name)]
    locate_all(found, match)
    return found


def _take_cases(cases: Sequence[ast.match_case], subject: str, name: Callable[[str], str]) -> Block:
    if not cases:
        return []
    case, *rest = cases
    pattern: Any = case.pattern
    test, before = _ask_value(pattern, subject), Block()
    if test is None and _takes_all(pattern):
        before = [assign(pattern.name, load(subject))] if pattern.name else []
        test = case.guard
        if test is None:
            return [*before, *case.body]
    elif test is not None:
        test = _join([test, *([case.guard] if case.guard else [])])
    else:
        tests: list[ast.expr] = []
        pattern = _take_values(pattern, tests, name)
        holds = name(TRUTH)
        asked = _join([*tests, *([case.guard] if case.guard else [])])
        matched = ast.match_case(pattern, None, [assign(holds, asked or ast.Constant(True))])
        before = [assign(holds, ast.Constant(False)), ast.Match(load(subject), [matched])]
        test = load(holds)
    assert test is not None
    choice: Any = ast.If(test, case.body, _take_cases(rest, subject, name))
    choice.bound = frozenset(find_stored([pattern]))
    found: Block = [*before, choice]
    locate_all(found, pattern)
    return found


def _ask_value(pattern: Any, subject: str) -> ast.expr | None:
    """The condition that a pattern of values alone is."""
    if isinstance(pattern, ast.MatchValue):
        return ast.Compare(load(subject), [ast.Eq()], [pattern.value])
    if isinstance(pattern, ast.MatchSingleton):
        return ast.Compare(load(subject), [ast.Is()], [ast.Constant(pattern.value)])
    if isinstance(pattern, ast.MatchOr):
        tests = [_ask_value(each, subject) for each in pattern.patterns]
        if all(tests):
            return ast.BoolOp(ast.Or(), [each for each in tests if each])
    return None


def _take_values(pattern: Any, tests: list[ast.expr], name: Callable[[str], str]) -> Any:
    """A pattern with variables in the places of values, which `tests` ask for."""
    if _holds_value(pattern) and (test := _ask_value(pattern, part := name(PART))) is not None:
        tests.append(test)
        return ast.copy_location(ast.MatchAs(None, part), pattern)
    if isinstance(pattern, ast.MatchAs) and pattern.pattern is not None:
        pattern.pattern = _take_values(pattern.pattern, tests, name)
    elif isinstance(pattern, (ast.MatchSequence, ast.MatchMapping)):
        pattern.patterns = [_take_values(each, tests, name) for each in pattern.patterns]
    elif isinstance(pattern, ast.MatchClass):
        pattern.patterns = [_take_values(each, tests, name) for each in pattern.patterns]
        pattern.kwd_patterns = [_take_values(each, tests, name) for each in pattern.kwd_patterns]
    return pattern


def _join(tests: list[ast.expr]) -> ast.expr | None:
    if len(tests) < 2:
        return tests[0] if tests else None
    return ast.BoolOp(ast.And(), tests)


def _holds_value(pattern: ast.AST) -> bool:
    """Is there one that a number, a text or None may be?"""
    return any(isinstance(node, (ast.MatchValue, ast.MatchSingleton)) for node in walk(pattern))


def _takes_all(pattern: Any) -> bool:
    return isinstance(pattern, ast.MatchAs) and pattern.pattern is None
