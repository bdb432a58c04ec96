"""z3 as the judge where brute force cannot go: symbols without an upper bound."""

from __future__ import annotations

import random

import pytest

from lostwax import sym
from tests.sym.trees import Random, build

z3 = pytest.importorskip("z3")

SEEDS, CONVERSATIONS, QUESTIONS = 6, 15, 5
# z3's own count of work: unlike a time limit it gives the same answers on a busy machine
EFFORT = 200_000


def floor_divide(a, b):
    """z3 divides as Euclid did, which is the floor only by a positive divisor."""
    return z3.If(b > 0, a / b, (-a) / (-b))


def modulo(a, b):
    return z3.If(b > 0, a % b, -((-a) % (-b)))


MEANING = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": floor_divide,
    "%": modulo,
    "ceildiv": lambda a, b: -floor_divide(-a, b),
    "max": lambda a, b: z3.If(a >= b, a, b),
    "min": lambda a, b: z3.If(a <= b, a, b),
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "and": z3.And,
    "or": z3.Or,
    "not": z3.Not,
}


def of_tree(tree, variables):
    if isinstance(tree, int):
        return z3.IntVal(tree)
    if isinstance(tree, str):
        return variables[tree]
    return MEANING[tree[0]](*(of_tree(part, variables) for part in tree[1:]))


def of_engine(e, variables):
    """The engine's object as z3 sees it: `variables` is keyed by Symbol."""
    if isinstance(e, bool):
        return z3.BoolVal(e)
    if isinstance(e, int):
        return z3.IntVal(e)
    if isinstance(e, sym.BoolExpr):
        if e.kind in ("and", "or"):
            return MEANING[e.kind](*(of_engine(x, variables) for x in e.args))
        return MEANING[{"eq": "==", "ne": "!=", "ge": ">="}[e.kind]](
            of_engine(e.poly, variables), 0
        )
    total = z3.IntVal(0)
    for monomial, coefficient in e.terms.items():
        term = z3.IntVal(coefficient)
        for atom in monomial:
            term = term * of_atom(atom, variables)
        total = total + term
    return total


def of_atom(atom, variables):
    if atom.kind == "symbol":
        return variables[atom]
    first, *others = (of_engine(x, variables) for x in atom.args)
    for other in others:
        first = MEANING[{"div": "//", "mod": "%"}.get(atom.kind, atom.kind)](first, other)
    return first


class Conversation:
    def __init__(self, seed):
        self.rnd = random.Random(seed)
        self.env, self.solver, self.guards = sym.ShapeEnv(), z3.Solver(), 0
        self.solver.set("rlimit", EFFORT)
        self.names, self.variables, self.by_symbol = {}, {}, {}
        for name in ("a", "b", "c")[: self.rnd.choice([1, 2, 3])]:
            self.add(name, self.rnd.choice([0, 0, 0, 1, 2, -3]))

    def add(self, name, lo):
        e = self.names[name] = self.env.symbol(name, hint=lo + self.rnd.randrange(12), lo=lo)
        z = self.variables[name] = self.by_symbol[next(iter(e.symbols()))] = z3.Int(name)
        self.solver.add(z >= lo)

    def take_guards(self):
        for guard in self.env.guards[self.guards :]:
            self.solver.add(of_engine(guard.cond, self.by_symbol))
        self.guards = len(self.env.guards)

    def possible(self, claim):
        self.solver.push()
        self.solver.add(claim)
        answer = self.solver.check()
        self.solver.pop()
        return answer

    def ask(self, tree):
        """(our answer, z3's: True, False, None for "depends", "?" for too hard); None when
        undefined."""
        try:
            b = build(tree, self.names)
        except ZeroDivisionError:
            return None
        finally:
            self.take_guards()
        ours, claim = sym.known(b), of_tree(tree, self.variables)
        can_fail, can_hold = self.possible(z3.Not(claim)), self.possible(claim)
        assert not (ours is True and can_fail == z3.sat), self.story(tree, b, ours)
        assert not (ours is False and can_hold == z3.sat), self.story(tree, b, ours)
        if self.rnd.random() < 0.4:
            sym.decide(b)
            self.take_guards()
        if can_fail == z3.unsat or can_hold == z3.unsat:
            return ours, can_fail == z3.unsat
        return ours, "?" if z3.unknown in (can_fail, can_hold) else None

    def story(self, tree, b, ours):
        given = [str(g.cond) for g in self.env.guards]
        return f"known({b}) = {ours}, z3 disagrees; {tree} given {given}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_z3_never_refutes_an_answer(seed, record_property):
    asked = decided = ours = 0
    missed = []
    for number in range(CONVERSATIONS):
        talk = Conversation(seed * 10_000 + number)
        random_trees = Random(talk.rnd, list(talk.names))
        for _ in range(QUESTIONS):
            tree = random_trees.condition(talk.rnd.choice([1, 2]))
            answers = talk.ask(tree)
            if answers is None:
                continue
            asked += 1
            if isinstance(answers[1], bool):
                decided, ours = decided + 1, ours + (answers[0] is not None)
                missed += [talk.story(tree, build(tree, talk.names), None)] * (answers[0] is None)
    record_property("z3", f"{asked} asked, {decided} decided by z3, {ours} of them by us")
    print(f"seed {seed}: {asked} asked, {decided} decided by z3, {ours} of them by us")
    assert decided > asked // 10
    assert ours >= 0.8 * decided, "\n".join(missed)
