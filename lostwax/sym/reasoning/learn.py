"""Learning: a condition becomes a range, a substitution, a residue, a rewrite, or a stored fact.

Equalities are solved for the newest symbol, unbacked ones first; `s % 8 == 0` makes `s` eight times
a hidden symbol; an inequality on one symbol is a range; the rest is stored and used by the prover.
Everything learned must already be implied by the condition: nothing is guessed here. Work per fact
is limited; what is not worked out is only not used.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from math import gcd, lcm

from lostwax.errors import ContradictionError
from lostwax.sym.expressions.algebra import Algebra
from lostwax.sym.expressions.expr import Atom, BoolExpr, Condition, Expr, Monomial, Symbol
from lostwax.sym.expressions.terms import common_factor, divide_monomial, leading_monomial
from lostwax.sym.reasoning.bounds import EVERYTHING, Bounds, intersect
from lostwax.sym.reasoning.conditions import Conditions, find_single_atom
from lostwax.sym.reasoning.facts import Facts, Range
from lostwax.sym.reasoning.forms import Forms
from lostwax.sym.reasoning.prove import Prover
from lostwax.sym.reasoning.rules import Rules

LEARNING = 100_000  # steps per fact, all its consequences together
MAX_RESIDUES = 8  # of a symbol that are looked at one by one
ROUNDS = 4  # times that a symbol's range is passed on, or a condition taken, for one fact


@dataclass(eq=False, repr=False)
class Learner:
    facts: Facts
    algebra: Algebra
    bounds: Bounds
    rules: Rules
    conditions: Conditions
    forms: Forms
    prover: Prover

    def __post_init__(self) -> None:
        self._queue: deque[tuple[Condition, bool]] = deque()
        self._touched: dict[Symbol, None] = {}
        self._busy = False
        self._hidden: dict[tuple[Symbol, int, int], Symbol] = {}

    def absorb(self, condition: Condition) -> None:
        """Take a condition, and what follows from it, among the facts."""
        self._queue.append((condition, False))
        if self._busy:
            return
        facts, then = self.facts, self.facts.world
        if isinstance(condition, BoolExpr):
            facts.told.append(condition)
            facts.fits_example = facts.fits_example and condition.hint is not False
            then = None if then is None else then.add_fact(condition)
        facts.world = None  # until all of it is learned
        self._busy = True
        limit = self.algebra.steps + LEARNING
        rounds: Counter[Symbol] = Counter()
        taken: Counter[Condition] = Counter()
        try:
            while (self._queue or self._touched) and self.algebra.steps < limit:
                if self._queue:
                    condition, again = self._queue.popleft()
                    taken[condition] += 1
                    if taken[condition] <= ROUNDS:  # else two forms of it lead to each other
                        self._take(condition, again)
                else:
                    self._propagate(rounds)
            facts.world = then
        finally:
            self._busy = False
            self._queue.clear()
            self._touched.clear()

    def known_by_residues(self, b: Condition) -> bool | None:
        """`known`, with each remainder of a symbol looked at by itself, where quotients and
        remainders of one symbol by small numbers are all that is in the way."""
        symbol, modulus = _find_period(b) if isinstance(b, BoolExpr) else (None, 0)
        if symbol is None or self.forms.normal(symbol.expr) is not symbol.expr:
            return None
        rest = self.algebra.make_atom("mod", (symbol.expr, self.algebra.make_constant(modulus)))
        answers: set[bool | None] = set()
        for r in range(modulus):
            with self.facts.replaced_by(self.facts.copy()):
                try:
                    self.absorb(self.conditions.is_zero(rest.shift(-r)))
                    answers.add(self.prover.known(b))
                except ContradictionError:
                    continue  # no size leaves this remainder
                except ZeroDivisionError:
                    return None  # a divisor would be 0 there, which is not yet known to be excluded
            if len(answers) > 1 or None in answers:
                return None
        return answers.pop() if answers else None

    def _enqueue(self, condition: Condition, again: bool = False) -> None:
        """`again`: it is a fact that has lost its place, because its normal form has changed."""
        self._queue.append((condition, again))

    # ---- one condition

    def _take(self, b: Condition, again: bool) -> None:
        answer = None if again and b is not False else self.prover.known(b)
        if answer is False:
            raise ContradictionError(f"`{b}` contradicts what is already known")
        if answer is True or isinstance(b, bool):
            return
        self.facts.decided[b] = True
        opposite = self.conditions.negate(b)
        if isinstance(opposite, BoolExpr):
            self.facts.decided[opposite] = False
        if b.kind == "and":
            self._queue.extend((x, again) for x in b.args)
        elif b.kind == "or":
            self._learn_clause(b)
        else:
            self._take_normal(b, again)

    def _take_normal(self, b: BoolExpr, again: bool) -> None:
        p = self.forms.normal(b.poly)
        condition = b if p is b.poly else self.conditions.make(b.kind, p)
        if condition is not b:
            self._enqueue(condition, again=again)
        elif b.kind == "ge":
            self._take_inequality(b)
        elif b.kind == "ne":
            self._take_nonzero(b)
        else:
            self._take_equality(p)

    def _learn_clause(self, b: BoolExpr) -> None:
        live = [x for x in b.args if self.prover.known(x) is not False]
        if not live:
            raise ContradictionError(f"`{b}` contradicts what is already known")
        if len(live) == 1:
            self._enqueue(live[0])
        elif not any(self.prover.known(x) for x in live):
            clause = self.conditions.any_of(live)
            assert isinstance(clause, BoolExpr)
            self.facts.decided[clause] = True
            self._store(clause)

    def _store(self, fact: BoolExpr) -> None:
        self.facts.store(fact)
        self.facts.change()

    # ---- p >= 0

    def _take_inequality(self, b: BoolExpr) -> None:
        symbol, sign, constant = find_single_atom(b.poly) or (None, 0, 0)
        if isinstance(symbol, Symbol):
            self._tighten(symbol, Range(-constant, None) if sign > 0 else Range(None, constant))
            return
        lo, hi = self.bounds.range_of(b.poly)
        if hi == 0:
            self._enqueue(self.conditions.is_zero(b.poly))
        elif lo is None or lo < 0:
            self._store(b)
            self._pass_on_inequality(b.poly)
            self._take_positive_product(b.poly)

    def _take_positive_product(self, p: Expr) -> None:
        """`c*x*y >= 1` where neither is negative: both are at least 1."""
        if len(p.terms) != 2 or p.terms.get((), 0) >= 0:
            return
        monomial = leading_monomial(p.terms)
        if len(monomial) < 2 or p.terms[monomial] < 0:
            return
        if all(self.bounds.is_nonnegative(a.expr) for a in monomial):
            for atom in dict.fromkeys(monomial):
                self._enqueue(self.conditions.at_least(atom.expr, 1))

    def _tighten(self, symbol: Symbol, to: Range) -> None:
        old = self.facts.ranges[symbol]
        lo, hi = intersect(old, to)
        if (lo, hi) == old:
            return
        while lo is not None and (hi is None or lo <= hi) and self._is_hole(symbol, lo):
            lo += 1
        while hi is not None and (lo is None or lo <= hi) and self._is_hole(symbol, hi):
            hi -= 1
        if lo is not None and hi is not None and lo > hi:
            raise ContradictionError(f"no value is left for {symbol.source}")
        self.facts.ranges[symbol] = Range(lo, hi)
        self._touched[symbol] = None
        self.facts.change()
        if lo == hi and lo is not None:
            self._substitute(symbol, self.algebra.make_constant(lo))

    def _is_hole(self, symbol: Symbol, value: int) -> bool:
        there = self.conditions.is_zero(symbol.expr.shift(-value))
        return isinstance(there, BoolExpr) and self.facts.decided.get(there) is False

    def _propagate(self, rounds: Counter[Symbol]) -> None:
        """A range has changed: what follows from the facts that mention the symbol."""
        symbol = next(iter(self._touched))
        del self._touched[symbol]
        rounds[symbol] += 1
        if rounds[symbol] > ROUNDS:
            return
        for fact in self.facts.find_mentioning(symbol):
            self.algebra.steps += 1
            if fact.kind == "ge":
                self._pass_on_inequality(fact.poly)
            elif fact.kind == "ne":
                self._pass_on_nonzero(fact.poly)
            elif fact.kind == "or" and any(self.prover.known(x) is not None for x in fact.args):
                self.facts.discard(fact)
                self._enqueue(fact, again=True)

    def _pass_on_inequality(self, p: Expr) -> None:
        """The range that `p >= 0` leaves to each symbol that is a term of p."""
        self.algebra.steps += len(p.terms)
        highs = {m: self.bounds.range_of_term(m, c).hi for m, c in p.terms.items()}
        unbounded = [m for m, hi in highs.items() if hi is None]
        if len(unbounded) > 1:
            return
        total = sum(hi for hi in highs.values() if hi is not None)
        for monomial in unbounded or highs:
            atom = monomial[0] if len(monomial) == 1 else None
            if not isinstance(atom, Symbol) or atom in self.facts.substitutions:
                continue
            coefficient, rest = p.terms[monomial], total - (highs[monomial] or 0)
            if coefficient > 0:
                self._tighten(atom, Range(-(rest // coefficient), None))
            else:
                self._tighten(atom, Range(None, rest // -coefficient))

    # ---- p != 0

    def _take_nonzero(self, b: BoolExpr) -> None:
        _, common = common_factor(b.poly.terms)
        if len(common) > 1 and len(b.poly.terms) == 1:
            for atom in dict.fromkeys(common):
                self._enqueue(self.conditions.negate(self.conditions.is_zero(atom.expr)))
            return
        self._store(b)
        self._pass_on_nonzero(b.poly)

    def _pass_on_nonzero(self, p: Expr) -> None:
        for side in (p, p.scale(-1)):
            if self.prover.prove(side):
                self._enqueue(self.conditions.at_least(side, 1))

    # ---- p == 0

    def _take_equality(self, p: Expr) -> None:
        factors = p.factors()
        if factors:
            self._enqueue(self.conditions.any_of(self.conditions.is_zero(f) for f in factors))
        elif not (
            self._solve(p) or self._take_residue(p) or self._split_residue(p) or self._rewrite(p)
        ):
            for side in (p, p.scale(-1)):
                self._enqueue(self.conditions.nonnegative(side))

    def _find_lone_symbols(self, p: Expr) -> dict[Symbol, int]:
        """Symbols that occur once in p, as a term, with their coefficients."""
        within = Counter(a for m in p.terms for b in m for a in b.atoms)
        return {
            m[0]: c
            for m, c in p.terms.items()
            if len(m) == 1 and isinstance(m[0], Symbol) and within[m[0]] == 1
        }

    def _solve(self, p: Expr) -> bool:
        units = [s for s, c in self._find_lone_symbols(p).items() if abs(c) == 1]
        if not units:
            return False
        symbol = max(units, key=lambda s: (s.unbacked, s.hidden, s.id))
        if p.unbacked and not symbol.unbacked:  # an input is never written in terms of data
            return False
        sign = p.terms[(symbol,)]
        value = p.drop_term((symbol,), times=-sign)
        lo, hi = self.facts.ranges[symbol]
        self._substitute(symbol, value)
        if lo is not None:
            self._enqueue(self.conditions.at_least(value, lo))
        if hi is not None:
            self._enqueue(self.conditions.at_most(value, hi))
        return True

    def _substitute(self, atom: Atom, value: Expr) -> None:
        self.facts.substitutions[atom] = value
        self._learn_again(self.facts.find_mentioning(atom))

    def _learn_again(self, facts: list[BoolExpr]) -> None:
        """Normal forms have changed: these facts lose their place and are learned in their new
        form."""
        for fact in facts:
            self.algebra.steps += 1
            self.facts.discard(fact)
            if fact.kind == "eq":
                product = leading_monomial(fact.poly.terms)
                del self.facts.rewrites[product[0]][product]
            self._enqueue(fact, again=True)
        self.facts.change()

    def _take_residue(self, p: Expr) -> bool:
        """`r % n == k`; where r is one symbol, that symbol becomes a multiple and a constant."""
        single = find_single_atom(p)
        if single is None or single[0].kind != "mod":
            return False
        atom, sign, constant = single
        remainder = -constant * sign
        self._substitute(atom, self.algebra.make_constant(remainder))
        r, n = atom.operands[0], atom.args[1]
        monomial = leading_monomial(r.terms)
        lone = len(r.terms) == 1 + (() in r.terms) and len(monomial) == 1
        if not lone or not isinstance(n, int) or not isinstance(monomial[0], Symbol):
            return True
        symbol, coefficient = monomial[0], r.terms[monomial]
        if n > 0 and gcd(coefficient, n) == 1 and symbol not in self.facts.substitutions:
            inverse = pow(coefficient, -1, n)
            self._introduce(symbol, n, (remainder - r.terms.get((), 0)) * inverse % n)
        return True

    def _introduce(self, symbol: Symbol, n: int, remainder: int) -> None:
        """`symbol = n*quotient + remainder` with a hidden symbol for the quotient."""
        quotient = self._hidden.get((symbol, n, remainder))
        if quotient is None:
            hint = None if symbol.hint is None else (symbol.hint - remainder) // n
            name = f"({symbol.name} - {remainder})//{n}" if remainder else f"{symbol.name}//{n}"
            root = symbol.root or symbol
            number = self.algebra.next_id()
            quotient = Symbol(number, name, hint=hint, lo=None, hi=None, root=root)
            self.algebra.add_atom(quotient)
            self._hidden[symbol, n, remainder] = quotient
        lo, hi = self.facts.ranges[symbol]
        self._substitute(symbol, quotient.expr.scale(n).shift(remainder))
        self.facts.ranges[quotient] = EVERYTHING
        first = None if lo is None else -((remainder - lo) // n)
        self._tighten(quotient, Range(first, None if hi is None else (hi - remainder) // n))

    def _split_residue(self, p: Expr) -> bool:
        """`n*s + r == 0` with n > 1: r is a multiple of n, which may say more of another symbol."""
        lone = self._find_lone_symbols(p)
        if not lone:
            return False
        symbol = min(lone, key=lambda s: abs(lone[s]))
        rest = p.drop_term((symbol,))
        remainder = self.rules.mod(rest, self.algebra.make_constant(abs(lone[symbol])))
        if remainder.const is not None:
            return False
        divides = self.conditions.is_zero(remainder)
        single = find_single_atom(remainder)
        self._enqueue(divides)
        if single is None or self.prover.known(divides) is True:
            return False
        self._enqueue(self.algebra.make_condition("eq", p), again=True)
        return True

    def _rewrite(self, p: Expr) -> bool:
        """A product that equals something smaller: `b*s == n`."""
        product = leading_monomial(p.terms)
        coefficient = p.terms[product]
        if len(product) < 2 or abs(coefficient) != 1 or not self._may_rewrite(product, p):
            return False
        affected = [
            fact
            for fact in self.facts.find_mentioning(product[0])
            if any(divide_monomial(m, product) is not None for m in fact.poly.terms)
        ]
        self._learn_again(affected)
        rest = p.drop_term(product, times=-coefficient)
        self.facts.rewrites.setdefault(product[0], {})[product] = rest
        self._store(self.algebra.make_condition("eq", p))
        return True

    def _may_rewrite(self, product: Monomial, p: Expr) -> bool:
        """Not if a rule could feed itself through an atom of its own right side."""
        nested = {a for m in p.terms for atom in m for x in atom.operands for a in x.atoms()}
        return all(isinstance(a, Symbol) and a not in nested for a in product)


def _find_period(b: BoolExpr) -> tuple[Symbol | None, int]:
    """The only symbol within quotients and remainders, and a number that all their divisors divide;
    no symbol if there are several, or the number is large."""
    parts = [a for a in b.atoms() if a.kind in ("div", "mod")]
    symbols = {a for part in parts for a in part.atoms if isinstance(a, Symbol)}
    divisors = [part.operands[1].const for part in parts]
    if len(symbols) != 1 or not all(divisors):
        return None, 0
    modulus = lcm(*(abs(n) for n in divisors if n))
    return (symbols.pop(), modulus) if modulus <= MAX_RESIDUES else (None, 0)
