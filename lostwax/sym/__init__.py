"""Symbolic integers: expressions, what is known of them, the guards that a trace leaves."""

from lostwax.sym.env import (
    ShapeEnv,
    count_parts,
    current,
    decide,
    decide_or,
    expect,
    known,
    learn,
    matches,
    specialize,
)
from lostwax.sym.expressions.expr import (
    Atom,
    BoolExpr,
    Condition,
    Expr,
    Size,
    Symbol,
    ceildiv,
    eq,
    evaluate,
    maximum,
    minimum,
    ne,
    negate,
    quotient,
)
from lostwax.sym.guards import Guard, Violation
from lostwax.sym.reasoning.facts import Range
from lostwax.sym.text.show import show

__all__ = [
    "Atom",
    "BoolExpr",
    "Condition",
    "Expr",
    "Guard",
    "Range",
    "ShapeEnv",
    "Size",
    "Symbol",
    "Violation",
    "ceildiv",
    "count_parts",
    "current",
    "decide",
    "decide_or",
    "eq",
    "evaluate",
    "expect",
    "known",
    "learn",
    "matches",
    "maximum",
    "minimum",
    "ne",
    "negate",
    "quotient",
    "show",
    "specialize",
]
