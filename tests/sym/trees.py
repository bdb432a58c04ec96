"""Reference trees: expressions as plain tuples with Python's meaning, and the engine's objects
evaluated.

A tree is an int, a `str` (the name of a symbol) or a tuple `(operator, *trees)`. `evaluate` gives
its value over numpy columns, one row per model, and where it is defined (no division by zero
anywhere in it, as eager Python needs). `build` makes the engine's object of it, `value` and `holds`
evaluate that object: two independent ways to one number."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from lostwax import sym

Tree = Any
Columns = Mapping[Any, Any]  # name or Symbol → int64 column

ARITHMETIC = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "max": sym.maximum,
    "min": sym.minimum,
    "ceildiv": sym.ceildiv,
}
RELATIONS = {
    "==": sym.eq,
    "!=": sym.ne,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
NUMPY_RELATIONS = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}


def both(a: Any, b: Any) -> Any:
    """`a & b` where either may be a plain bool."""
    if isinstance(a, bool):
        return b if a else False
    return (a if b else False) if isinstance(b, bool) else a & b


def either(a: Any, b: Any) -> Any:
    if isinstance(a, bool):
        return True if a else b
    return (True if b else a) if isinstance(b, bool) else a | b


def inverse(a: Any) -> Any:
    return not a if isinstance(a, bool) else ~a


def build(tree: Tree, names: Mapping[str, Any]) -> Any:
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return names[tree]
    operator, *parts = tree
    args = [build(part, names) for part in parts]
    if operator in ARITHMETIC:
        return ARITHMETIC[operator](*args)
    if operator in RELATIONS:
        return RELATIONS[operator](*args)
    return {"and": both, "or": either, "not": inverse}[operator](*args)


def evaluate(tree: Tree, columns: Columns) -> tuple[Any, Any]:
    """(values, defined) of a tree; both broadcast against the columns."""
    if isinstance(tree, int):
        return tree, True
    if isinstance(tree, str):
        return columns[tree], True
    operator, *parts = tree
    evaluated = [evaluate(part, columns) for part in parts]
    defined = True
    for _, d in evaluated:
        defined = np.logical_and(defined, d)
    args = [v for v, _ in evaluated]
    if operator in ("//", "%", "ceildiv"):
        return _divided(operator, args[0], args[1], defined)
    if operator in NUMPY_RELATIONS:
        return NUMPY_RELATIONS[operator](*args), defined
    plain = {"+": np.add, "-": np.subtract, "*": np.multiply, "max": np.maximum, "min": np.minimum}
    logic = {"and": np.logical_and, "or": np.logical_or, "not": np.logical_not}
    return {**plain, **logic}[operator](*args), defined


def _divided(operator: str, a: Any, b: Any, defined: Any) -> tuple[Any, Any]:
    defined = np.logical_and(defined, np.not_equal(b, 0))
    b = np.where(np.equal(b, 0), 1, b)
    if operator == "%":
        return np.mod(a, b), defined
    return (
        np.floor_divide(a, b) if operator == "//" else -np.floor_divide(np.negative(a), b)
    ), defined


def value(e: Any, columns: Columns) -> tuple[Any, Any]:
    """(values, defined) of an engine object: int, Expr, bool or BoolExpr. `columns` is keyed by
    Symbol."""
    if isinstance(e, int):
        return e, True
    if isinstance(e, sym.BoolExpr):
        return _holds(e, columns)
    result, defined = 0, True
    for monomial, coefficient in e.terms.items():
        term: Any = coefficient
        for atom in monomial:
            v, d = _atom(atom, columns)
            term, defined = term * v, np.logical_and(defined, d)
        result = result + term
    return result, defined


def _atom(atom: Any, columns: Columns) -> tuple[Any, Any]:
    if atom.kind == "symbol":
        return columns[atom], True
    evaluated = [value(x, columns) for x in atom.args]
    defined = True
    for _, d in evaluated:
        defined = np.logical_and(defined, d)
    args = [v for v, _ in evaluated]
    if atom.kind in ("div", "mod"):
        return _divided("//" if atom.kind == "div" else "%", *args, defined)
    result = args[0]
    for other in args[1:]:
        result = np.maximum(result, other) if atom.kind == "max" else np.minimum(result, other)
    return result, defined


def _holds(b: Any, columns: Columns) -> tuple[Any, Any]:
    if b.kind in ("and", "or"):
        evaluated = [value(x, columns) for x in b.args]
        result, defined = evaluated[0]
        for v, d in evaluated[1:]:
            result = np.logical_and(result, v) if b.kind == "and" else np.logical_or(result, v)
            defined = np.logical_and(defined, d)
        return result, defined
    v, defined = value(b.poly, columns)
    return {"eq": np.equal, "ne": np.not_equal, "ge": np.greater_equal}[b.kind](v, 0), defined


class Random:
    """Random trees over given names."""

    def __init__(self, rnd: random.Random, names: list[str]) -> None:
        self.rnd, self.names = rnd, names

    def leaf(self) -> Tree:
        if self.rnd.random() < 0.65:
            return self.rnd.choice(self.names)
        return self.rnd.choice([0, 1, 1, 2, 2, 3, 4, 5, 7, 8, -1, -2])

    def tree(self, depth: int) -> Tree:
        if depth == 0 or self.rnd.random() < 0.15:
            return self.leaf()
        operators = ["+", "+", "-", "*", "*", "//", "//", "%", "max", "min", "ceildiv"]
        operator = self.rnd.choice(operators)
        left = self.tree(depth - 1)
        if operator in ("//", "%", "ceildiv") and self.rnd.random() < 0.75:
            return operator, left, self.rnd.choice([2, 3, 4, 8, -2, 5])
        return operator, left, self.tree(depth - 1)

    def condition(self, depth: int) -> Tree:
        draw = self.rnd.random()
        if draw < 0.06:
            return "not", self.condition(depth)
        if draw < 0.15:
            shallow = min(depth, 1)
            return self.rnd.choice(["and", "or"]), self.condition(shallow), self.condition(shallow)
        relation = self.rnd.choice(["==", "==", "!=", "<", "<=", ">", ">="])
        return relation, self.tree(depth), self.tree(self.rnd.choice([0, 0, 1, depth]))
