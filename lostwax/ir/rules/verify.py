"""Is this a program? The table of rules, and the one function that checks them.

A rule is a name, a sentence and a function that yields what breaks it (`graph.py`,
`program.py`); a dialect adds its own to the table. Must not change what it checks.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

from torch.fx import GraphModule, Node

from lostwax.cache import cached
from lostwax.errors import VerificationError
from lostwax.ir.data import Program
from lostwax.ir.graph.lookup import subgraphs
from lostwax.ir.rules.control import CONTROL_RULES
from lostwax.ir.rules.delegates import DELEGATE_RULE
from lostwax.ir.rules.graph import GRAPH_RULES, TYPE_RULE, Found
from lostwax.ir.rules.program import INPUT_RULE, PROGRAM_RULES
from lostwax.ir.text import source_text


@dataclass(frozen=True)
class Violation:
    """A rule, the name of the node that breaks it, and what is wrong."""

    rule: str
    node: str
    text: str
    source: str = ""

    def __str__(self) -> str:
        where = f"node {self.node!r} " if self.node else "the program "
        at = f"\n    at {self.source}" if self.source else ""
        return f"{where}breaks the rule {self.rule!r}: {self.text}{at}"


@dataclass(frozen=True)
class GraphRule:
    """A rule of one graph."""

    name: str
    sentence: str
    check: Callable[[GraphModule], Found]


@dataclass(frozen=True)
class ProgramRule:
    """A rule of a whole program."""

    name: str
    sentence: str
    check: Callable[[Program], Found]


Rule = GraphRule | ProgramRule


class Verifier:
    """The rules of a dialect as torch.export hands them around:
    `program.verifier().check(program)`."""

    dialect: ClassVar[str] = "ATEN"

    def check(self, ep: Program) -> None:
        """Raise a `VerificationError` if the program breaks a rule of its dialect."""
        validate(ep)


@cached(100)
def find_verifier(dialect: str) -> type[Verifier]:
    """The class of a dialect: one for each, so that they can be compared."""
    return type(f"{dialect.title()}Verifier", (Verifier,), {"dialect": dialect})


def validate(program: Program, rules: Sequence[Rule] | None = None) -> None:
    """Raise a `VerificationError` that names every broken rule, or return."""
    violations = verify(program, rules)
    if violations:
        raise VerificationError(
            f"not a valid program:{list_violations(violations)}", tuple(violations)
        )


def list_violations(violations: Sequence[Violation]) -> str:
    """A line for each, and no more than one can read."""
    shown = "".join(f"\n  {violation}" for violation in violations[:20])
    more = f"\n  and {len(violations) - 20} more" if len(violations) > 20 else ""
    return shown + more


def verify(program: Program, rules: Sequence[Rule] | None = None) -> list[Violation]:
    """Return what breaks the rules. A rule is checked only if those before it hold for this graph,
    so that it may rely on them."""
    for kind, group in groupby(rules_of(program) if rules is None else rules, type):
        if kind is GraphRule:
            found = _verify_graph(program.graph_module, list(group))  # type: ignore[arg-type]
        else:
            found = _verify_program(program, group)  # type: ignore[arg-type]
        if found:
            return found
    return []


def rules_of(program: Program, but: Container[str] = ()) -> list[Rule]:
    """Those of its dialect, but for the ones of these names."""
    return [
        rule
        for rule in RULES
        if rule.name not in but and program.dialect not in _EXEMPT.get(rule.name, ())
    ]


def _verify_program(program: Program, rules: Iterable[ProgramRule]) -> list[Violation]:
    found = (_violations(rule.name, rule.check(program)) for rule in rules)
    return next(filter(None, found), [])


_EXEMPT = {"functional": ("TRAINING",)}
"""For a rule, the dialects that it does not apply to: a training graph writes in place."""


def _verify_graph(
    module: GraphModule, rules: Sequence[GraphRule], path: str = ""
) -> list[Violation]:
    for rule in rules:
        found = _violations(rule.name, rule.check(module), path)
        if found:
            return found
    return [
        violation
        for name, child in subgraphs(module)
        for violation in _verify_graph(child, rules, f"{path}{name}.")
    ]


def _violations(rule: str, found: Found, path: str = "") -> list[Violation]:
    return [
        Violation(rule, f"{path}{node.name}", text, source_text(node))
        if isinstance(node, Node)
        else Violation(rule, f"{path}{node or ''}", text)
        for node, text in found
    ]


RULES: tuple[Rule, ...] = (
    *(GraphRule(*rule) for rule in GRAPH_RULES),
    *(GraphRule(*rule) for rule in CONTROL_RULES),
    GraphRule(*DELEGATE_RULE),
    ProgramRule(*INPUT_RULE),  # before the types: a wrong input is wrong in all that reads it
    GraphRule(*TYPE_RULE),
    *(ProgramRule(*rule) for rule in PROGRAM_RULES),
)
