"""What a trace demands of its inputs: guards, the least set of them, and what they do to declared
ranges.

Learns only into copies of facts, never into the environment's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from lostwax.errors import ContradictionError
from lostwax.location import Location
from lostwax.sym.expressions.algebra import Algebra
from lostwax.sym.expressions.expr import BoolExpr, Condition, Expr, Symbol, evaluate
from lostwax.sym.expressions.terms import leading_monomial
from lostwax.sym.reasoning.bounds import Bounds
from lostwax.sym.reasoning.conditions import Conditions
from lostwax.sym.reasoning.facts import Facts
from lostwax.sym.reasoning.forms import Forms
from lostwax.sym.reasoning.learn import Learner
from lostwax.sym.reasoning.prove import Prover
from lostwax.sym.text.show import show


class Guard(NamedTuple):
    """A condition under which the trace is right.

    `kind`: "branch" (a decision by the example), "check" (the program checks it too), "assert"
    (checked at run time, as it depends on data), "division" (a divisor is not zero), "specialize"
    (a concrete integer was needed)."""

    cond: BoolExpr
    kind: str
    where: Location
    asked_by: str
    reason: str

    @property
    def predicate(self) -> str:
        """The condition as Python over the named inputs: `x.shape[0] >= 8`."""
        return show(self.cond, {s: s.source for s in self.cond.symbols()})

    def __str__(self) -> str:
        asked = f" [{self.asked_by}]" if self.asked_by not in self.reason else ""
        return f"{self.predicate}  # {self.kind}: {self.reason}; {self.where}{asked}"


class BrokenDim(NamedTuple):
    """A declared dimension that the trace does not hold for.

    At size `counterexample`, within the declared range, with the example's other sizes, the trace
    would be wrong; None if the sizes that were tried show none. `fix` is code to paste."""

    dim: str
    guard: Guard
    counterexample: int | None
    fix: str

    def __str__(self) -> str:
        wrong = "" if self.counterexample is None else f", not so at {self.counterexample}"
        fix = self.fix.replace("\n", "\n    ")
        return (
            f"{self.dim}: the trace needs `{self.guard.predicate}`{wrong}\n"
            f"  because {self.guard.reason}\n  at {self.guard.where}\n  fix:\n    {fix}"
        )


# ------------------------------------------------------------------------------------ the least set


@dataclass(eq=False, repr=False)
class Implications:
    """Which conditions follow from others."""

    facts: Facts
    conditions: Conditions
    prover: Prover
    learner: Learner

    def find_minimal(self, born: Facts, guards: list[Guard]) -> list[Guard]:
        """Guards of which none follows from the others and the facts at birth.

        Checked in the order given, they never divide by zero: those that divide by a symbol come
        last."""
        return order_guards(self._drop_implied(born, guards) if guards else [])

    def is_implied(self, born: Facts, statements: list[Condition], condition: BoolExpr) -> bool:
        """Would a condition be certain, were these statements declared from the start?"""
        with self.facts.replaced_by(born.copy()):
            for statement in statements:
                self.learner.absorb(statement)
            return self._is_certain(condition)

    def _is_certain(self, condition: BoolExpr) -> bool:
        return self._is_defined(condition) and self.prover.known(condition) is True

    def _is_defined(self, condition: BoolExpr) -> bool:
        """Are its divisors known not to be zero?"""
        zeros = (self.conditions.is_zero(q) for q in _find_divisors(condition))
        return all(self.prover.known(self.conditions.negate(zero)) is True for zero in zeros)

    def _drop_implied(self, facts: Facts, guards: list[Guard]) -> list[Guard]:
        """Halves, each under the facts of the other: every guard meets all others in n log n
        steps."""
        if len(guards) == 1:
            return [] if self._follows(facts, guards[0]) else guards
        half = len(guards) // 2
        left = self._drop_implied(self._learn_into_copy(facts, guards[half:]), guards[:half])
        if not left:
            return self._drop_implied(facts, guards[half:])
        return left + self._drop_implied(self._learn_into_copy(facts, left), guards[half:])

    def _follows(self, facts: Facts, guard: Guard) -> bool:
        if guard.kind == "division" and _find_divisors(guard.cond):
            return False  # a guard after it may rest on it
        with self.facts.replaced_by(facts):
            return self._is_certain(guard.cond)

    def _learn_into_copy(self, facts: Facts, guards: list[Guard]) -> Facts:
        """A copy that has learned the guards, each once its divisors are known not to be zero."""
        copy = facts.copy()
        left = guards
        with self.facts.replaced_by(copy):
            while left:
                ready = [g for g in left if self._is_defined(g.cond)]
                if not ready:
                    break
                for guard in ready:
                    try:
                        self.learner.absorb(guard.cond)
                    except ContradictionError:
                        return facts  # no input satisfies them all: nothing may be concluded
                left = [g for g in left if g not in ready]
        return copy


def order_guards(guards: Iterable[Guard]) -> list[Guard]:
    """Those that divide by a symbol last: a guard before them says that it is not zero."""
    return sorted(guards, key=lambda g: bool(_find_divisors(g.cond)))


def _find_divisors(condition: BoolExpr) -> list[Expr]:
    """What a condition divides by, numbers aside."""
    atoms = sorted(condition.atoms(), key=lambda a: a.id)
    divided = (a for a in atoms if a.kind in ("div", "mod"))
    return [a.operands[1] for a in divided if a.operands[1].const is None]


# ---------------------------------------------------------------------------------- declared ranges


@dataclass(eq=False, repr=False)
class Declarations:
    """Says how a dimension would have to be declared for a guard to hold."""

    algebra: Algebra
    bounds: Bounds
    conditions: Conditions
    forms: Forms
    implications: Implications

    def find_violation(self, born: Facts, guard: Guard) -> BrokenDim | None:
        """What a guard does to the declared dimensions in it; None if there are none, or if data
        decides."""
        dims = [s for s in sorted(guard.cond.symbols(), key=lambda s: s.id) if s.declared]
        if not dims or guard.cond.unbacked:
            return None
        dims.sort(key=lambda s: self.forms.normal(s.expr) is s.expr)  # those that are settled first
        wrong = {s: _find_counterexample(guard.cond, s) for s in dims}
        dims.sort(key=lambda s: wrong[s] is None)
        gives_way = any(not s.declared for s in guard.cond.symbols())

        def find_first(found: Iterable[tuple[Symbol, Expr]]) -> BrokenDim | None:
            for symbol, form in found:
                told, code = self._restrict(symbol, form)
                if code and (gives_way or self.implications.is_implied(born, told, guard.cond)):
                    return BrokenDim(_name(symbol), guard, wrong[symbol], code)
            return None

        violation = find_first(self._find_forms(guard.cond, dims))
        if violation is not None:
            return violation
        forms = [(s, self.forms.normal(s.expr)) for s in dims]
        restrictions = [self._restrict(s, f) for s, f in forms if f is s.expr or _is_affine(f)]
        together = [x for statements, _ in restrictions for x in statements]
        if self.implications.is_implied(born, together, guard.cond):
            lines = [line for _, code in restrictions for line in code.splitlines()]
            return BrokenDim(_name(dims[0]), guard, wrong[dims[0]], "\n".join(dict.fromkeys(lines)))
        violation = find_first(_solve(guard.cond, guard.cond.poly, dims))
        if violation is not None:
            return violation
        names = {s: _name(s) for s in guard.cond.symbols()}
        code = f'constraints=["{show(guard.cond, names)}"]'
        return BrokenDim(_name(dims[0]), guard, wrong[dims[0]], code)

    def _find_forms(self, cond: BoolExpr, dims: list[Symbol]) -> Iterator[tuple[Symbol, Expr]]:
        """What a dimension can be declared to be: what the trace made of it; else what the
        condition makes of it once `max` and `min` are taken as in the example."""
        for symbol in dims:
            form = self.forms.normal(symbol.expr)
            if form is symbol.expr or _is_affine(form):
                yield symbol, form
        poly = self._take_extrema_as_in_example(cond.poly)
        if poly is not cond.poly:
            yield from _solve(cond, poly, dims)

    def _take_extrema_as_in_example(self, e: Expr) -> Expr:
        """With each `max` and `min` replaced by the operand that is it in the example."""
        result = self.algebra.zero
        for monomial, coefficient in e.terms.items():
            term = self.algebra.make_constant(coefficient)
            for atom in monomial:
                chosen = None
                if atom.kind in ("max", "min"):
                    best = (max if atom.kind == "max" else min)(x.hint or 0 for x in atom.operands)
                    chosen = next((x for x in reversed(atom.operands) if x.hint == best), None)
                term = term.multiply(atom.expr if chosen is None else chosen)
            result = result.add(term)
        return result

    def _restrict(self, symbol: Symbol, form: Expr) -> tuple[list[Condition], str]:
        """A dimension of this form: as conditions, and as the code that declares it so."""
        dim = _name(symbol)
        if form.const is not None:
            return [
                self.conditions.is_zero(symbol.expr.shift(-form.const))
            ], f"{dim} = {form.const}"
        lo, hi = self.bounds.range_of(self.forms.normal(symbol.expr))
        limits = [] if lo is None else [self.conditions.at_least(symbol.expr, lo)]
        if hi is not None:
            limits.append(self.conditions.at_most(symbol.expr, hi))
        if form is symbol.expr:
            narrowed = (lo, hi) != (symbol.lo, symbol.hi)
            return limits, _declare(dim, lo, hi) if narrowed else ""
        statements, lines = limits, []
        owner = _find_owner(form)
        if owner is not None and owner is not symbol:
            others, code = self._restrict(owner, self.forms.normal(owner.expr))
            statements, lines = [*others, *statements], code.splitlines()
        for s in self._find_undeclared(form, symbol):
            lines.append(_declare(_name(s), *self.bounds.range_of(s.expr)))
        lines.append(f"{dim} = {show(form, {s: _name(s) for s in form.symbols()})}")
        if owner is symbol:
            statements.append(self._residue_condition(symbol, form))
        else:
            statements.append(self.conditions.is_zero(symbol.expr.subtract(form)))
        return statements, "\n".join(lines)

    def _find_undeclared(self, form: Expr, symbol: Symbol) -> list[Symbol]:
        """The symbols in a dimension's form that are new, or whose range its own has narrowed."""
        return [
            s
            for s in sorted(form.symbols(), key=lambda s: s.id)
            if (s.root is symbol if s.hidden else self.bounds.range_of(s.expr) != (s.lo, s.hi))
        ]

    def _residue_condition(self, symbol: Symbol, form: Expr) -> Condition:
        """`symbol % n == k` where its form is `n*hidden + k`."""
        head = leading_monomial(form.terms)
        if len(form.terms) != 1 + (() in form.terms) or len(head) != 1:
            return True
        n = form.terms[head]
        rest = self.algebra.make_atom("mod", (symbol.expr, self.algebra.make_constant(n)))
        return self.algebra.make_condition("eq", rest.shift(-(form.terms.get((), 0) % n)))


def _solve(cond: BoolExpr, poly: Expr, dims: list[Symbol]) -> Iterator[tuple[Symbol, Expr]]:
    """What a condition `poly == 0` makes of each dimension, as far as a Dim can be that."""
    if cond.kind != "eq" or poly.composite:
        return
    for symbol in reversed(dims):
        k = poly.terms.get((symbol,), 0)
        if abs(k) == 1:
            form = symbol.expr.subtract(poly.scale(k))
            if _is_affine(form):
                yield symbol, form


def _is_affine(form: Expr) -> bool:
    """A constant, or `n*dim + k` of a dim with a name: what a Dim can be declared as."""
    monomials = [m for m in form.terms if m]
    if not monomials:
        return True
    (head, *others) = monomials
    if others or len(head) != 1 or form.terms[head] < 0:
        return False
    (symbol,) = head
    return isinstance(symbol, Symbol) and _name(symbol).isidentifier()


def _find_owner(form: Expr) -> Symbol | None:
    """The dimension that a hidden symbol in a form was made for."""
    owner = next((s.root for s in form.symbols() if s.hidden), None)
    while owner is not None and owner.root is not None:
        owner = owner.root
    return owner


def _declare(dim: str, lo: int | None, hi: int | None) -> str:
    limits = [f"min={lo}"] if lo is not None else []
    if hi is not None:
        limits.append(f"max={hi}")
    return f"{dim} = Dim({', '.join([repr(dim), *limits])})"


def _name(symbol: Symbol) -> str:
    if symbol.root is not None:
        return f"_{_name(symbol.root)}"
    return symbol.declared or symbol.source


def _find_counterexample(condition: BoolExpr, symbol: Symbol) -> int | None:
    """A size of one dimension, all others as in the example, at which the condition fails."""
    values = {s: s.hint for s in condition.symbols() if s.hint is not None}
    for size in _choose_sizes(condition, symbol):
        try:
            if not evaluate(condition, {**values, symbol: size}):
                return size
        except ZeroDivisionError:
            continue
    return None


def _choose_sizes(condition: BoolExpr, symbol: Symbol) -> Iterator[int]:
    """Around the example, the ends of the range and the constants of the condition; then powers of
    two."""
    hint = symbol.hint or 0
    centres = [hint, symbol.lo or 0, *([] if symbol.hi is None else [symbol.hi])]
    polys = [x.poly for x in condition.args] or [condition.poly]
    for poly in polys:
        for coefficient in poly.terms.values():
            centres.append(abs(coefficient))
        if (symbol,) in poly.terms:
            centres.append(-poly.terms.get((), 0) // poly.terms[(symbol,)])
    near = [c + d for d in (1, -1, 0, 2, -2, 3, -3, 5, 7) for c in centres]
    for size in dict.fromkeys([*near, *(2**n for n in range(24))]):
        above = symbol.lo is None or size >= symbol.lo
        if above and (symbol.hi is None or size <= symbol.hi):
            yield size
