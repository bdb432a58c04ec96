"""Normal forms: expressions with all that is known to be equal put in its place.

The normal form of an expression may contain hidden symbols, which only the engine knows; the
current form, which users see, does not. Must not learn anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from lostwax.sym.expressions.algebra import Algebra
from lostwax.sym.expressions.expr import Atom, Expr, Monomial, Symbol, Terms
from lostwax.sym.expressions.terms import divide_monomial
from lostwax.sym.reasoning.bounds import MAX_DEPTH
from lostwax.sym.reasoning.facts import Facts
from lostwax.sym.reasoning.rules import Rules

MAX_REWRITES = 16  # of products in one expression


@dataclass(eq=False, repr=False)
class Forms:
    facts: Facts
    algebra: Algebra
    rules: Rules

    def current(self, e: Expr) -> Expr:
        """`e` under today's facts, in symbols that the user knows."""
        if e.current_at != self.facts.version:
            result = self.normal(e)
            if result.hidden:
                result = self._rebuild(e, visible=True)
            e.current, e.current_at = result, self.facts.version
        return e.current

    def normal(self, e: Expr) -> Expr:
        if e.normal_at != self.facts.version:
            facts = self.facts
            changes = e.const is None and (e.composite or facts.substitutions or facts.rewrites)
            e.normal = self._rebuild(e) if changes else e
            e.normal_at = facts.version
        return e.normal

    def _rebuild(self, e: Expr, visible: bool = False) -> Expr:
        same: Terms = {}
        changed: Expr | None = None
        for monomial, coefficient in e.terms.items():
            values = [self._visible_atom(a) if visible else self._normal_atom(a) for a in monomial]
            if all(v is a.expr for v, a in zip(values, monomial, strict=True)):
                same[monomial] = coefficient
                continue
            term = self.algebra.make_constant(coefficient)
            for value in values:
                term = term.multiply(value)
            changed = term if changed is None else changed.add(term)
        result = e if changed is None else self.rules.settle(same).add(changed)
        return self._rewrite(result, visible) if self.facts.rewrites else result

    def _normal_atom(self, atom: Atom) -> Expr:
        if atom.normal_at == self.facts.version:
            return atom.normal
        self.algebra.steps += 1
        atom.normal = atom.expr  # cuts a circle, if there is one
        atom.normal_at = self.facts.version
        value = self.facts.substitutions.get(atom)
        if value is not None:
            result = self._rebuild(value)
        elif isinstance(atom, Symbol) or atom.depth > MAX_DEPTH:
            result = atom.expr
        else:
            result = self._remake(atom, tuple(self._rebuild(x) for x in atom.operands))
            if result is not atom.expr and self._is_substituted(result):
                result = self._rebuild(result)
        atom.normal = result
        return result

    def _is_substituted(self, e: Expr) -> bool:
        return any(a in self.facts.substitutions for a in e.atoms())

    def _visible_atom(self, atom: Atom) -> Expr:
        normal = self._normal_atom(atom)
        if not normal.hidden:
            return normal
        if isinstance(atom, Symbol) or atom.depth > MAX_DEPTH:
            return atom.expr
        return self._remake(atom, tuple(self._rebuild(x, visible=True) for x in atom.operands))

    def _remake(self, atom: Atom, operands: tuple[Expr, ...]) -> Expr:
        if atom.kind == "mod":
            return self.rules.mod(*operands)
        if atom.kind != "div":
            return self.rules.extremum(atom.kind, list(operands))
        if atom.args[1] == 1 and len(operands[0].terms) > 1:
            return self.algebra.fold(operands[0])
        return self.rules.floordiv(*operands)

    def _rewrite(self, e: Expr, visible: bool) -> Expr:
        """With products replaced by what they are known to equal, which is smaller each time."""
        for _ in range(MAX_REWRITES):
            found = self._find_rewrite(e, visible)
            if found is None:
                break
            monomial, rest, value = found
            coefficient = e.terms[monomial]
            e = e.subtract(self.algebra.make({monomial: coefficient}))
            e = e.add(self.algebra.make({rest: coefficient}).multiply(value))
        return e

    def _find_rewrite(self, e: Expr, visible: bool) -> tuple[Monomial, Monomial, Expr] | None:
        for monomial in e.terms:
            for atom in dict.fromkeys(monomial):
                for product, value in self.facts.rewrites.get(atom, {}).items():
                    rest = divide_monomial(monomial, product)
                    if rest is not None and not (visible and value.hidden):
                        return monomial, rest, value
        return None
