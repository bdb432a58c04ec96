"""ShapeEnv: the symbols of a program, what is known of them, and the questions that a trace asks.

`decide` is the only place where a hint, the example's value, becomes an answer; it leaves a guard
with the user's line. The functions take plain ints and bools too, at almost no cost, so that one
type rule serves both.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import lcm
from types import CodeType, FrameType
from typing import Any, TypeVar

from lostwax import logs
from lostwax.branches import RAISES, MergeSite
from lostwax.errors import ContradictionError, DataDependentError
from lostwax.location import Location, find_user_frame, user_location
from lostwax.sym import world
from lostwax.sym.expressions.algebra import Algebra
from lostwax.sym.expressions.expr import BoolExpr, Condition, Expr, Size, Symbol, Terms
from lostwax.sym.guards import BrokenDim, Declarations, Guard, Implications
from lostwax.sym.operators import Operators
from lostwax.sym.reasoning.bounds import Bounds, divisor
from lostwax.sym.reasoning.conditions import Conditions
from lostwax.sym.reasoning.facts import Facts, Range
from lostwax.sym.reasoning.forms import Forms
from lostwax.sym.reasoning.learn import Learner
from lostwax.sym.reasoning.prove import Prover
from lostwax.sym.reasoning.rules import Rules
from lostwax.sym.text.show import show
from lostwax.sym.undecided import FAILING, Kinds, refuse_branch, refuse_caught, refuse_integer
from lostwax.sym.world import ExprsByForm

T = TypeVar("T")
_REASONS = {
    "branch": "the trace follows the example",
    "check": "the program checks it",
    "assert": "it depends on data and is checked at run time",
    "division": "the program divides by it",
    "specialize": "a concrete integer was needed, the example's was taken",
}

_OTHER_NAMES = r"(s|u|f|r)\d+|max|min|[Tt]rue|[Ff]alse|and|or|not"
"""The names that symbols get which nobody has declared, and the words of expressions."""


class ShapeEnv:
    """The symbolic integers of one program.

    The parts reason from `facts`, which they share, and know each other by the arguments they are
    made with. Only canonical forms and proofs ask each other in turn: `prove` and `unfold` close
    that circle."""

    def __init__(self) -> None:
        def prove(p: Expr) -> bool:
            return prover.prove(p)

        def unfold(e: Expr) -> Terms:
            return rules.unfold(e)

        facts = self.facts = Facts()
        facts.world = world.first()
        algebra = self.algebra = Algebra(self)
        bounds = self._bounds = Bounds(facts, unfold)
        rules = self.rules = Rules(facts, algebra, bounds, prove)
        conditions = self.conditions = Conditions(facts, algebra, bounds, rules)
        forms = Forms(facts, algebra, rules)
        prover = Prover(facts, algebra, bounds, rules, conditions, forms)
        learner = Learner(facts, algebra, bounds, rules, conditions, forms, prover)
        self.operators = Operators(facts, algebra, rules, conditions, forms, self.require_nonzero)
        self._shorten = prover.shorten
        self._implications = Implications(facts, conditions, prover, learner)
        self._declarations = Declarations(algebra, bounds, conditions, forms, self._implications)
        # what the environment offers of its parts
        self.make = algebra.make
        self.current_form = forms.current
        self.normal_form = forms.normal
        self.known = prover.known
        self.known_by_residues = learner.known_by_residues
        self.absorb = learner.absorb
        self.show = show

        self.symbols: list[Symbol] = []
        self.exprs_by_form = ExprsByForm(self.symbols, algebra)
        self.guards: list[Guard] = []
        self.where: Callable[[], Location] = user_location
        self.asking: Callable[[], str] = str  # which operator is being evaluated; "" if none
        self.narrow: Callable[[BoolExpr], tuple[Condition, bool]] = lambda b: (True, False)
        """The sizes at which a condition on floats holds, and whether that is all it says."""
        self.spell: Callable[[Condition], str] = lambda b: ""
        """A condition on floats as the user would write it; "" if it is none."""
        self.passed_over: Condition = False
        """What will be asked next though nothing hangs on it: it is answered once with no, and
        without a guard."""
        self.deferred: list[tuple[CodeType, frozenset[int], BoolExpr]] = []
        """Parts of a condition that have no guard: others, asked there, are to say the rest."""
        self.before_hint: Callable[[FrameType, BoolExpr | Expr], None] | None = None
        """Is called where the user's Python asks, before the hint answers it; it may raise."""
        self.merged: dict[Symbol, MergeSite] = {}
        """Symbols that stand for a number that two ways have left, and where these join."""
        self.strides: dict[tuple[Any, ...], Any] = facts.new_memo()
        """Row-major strides, by size."""
        self._companions: dict[Any, Any] = {}
        self._axioms: list[Condition] = []
        self._backed = self._unbacked = 0

    @property
    def steps(self) -> int:
        """The work that all of this has cost so far."""
        return self.algebra.steps

    def companion(self, make: Callable[[ShapeEnv], T]) -> T:
        """What others keep of this environment, made once: the floats of `real.py`, what torch
        sees in its place."""
        found: T | None = self._companions.get(make)
        if found is None:
            found = self._companions[make] = make(self)
        return found

    # ---- symbols and facts

    def symbol(
        self,
        name: str | None = None,
        *,
        hint: int,
        lo: int | None = 0,
        hi: int | None = None,
        source: str | None = None,
        declared: str | None = None,
    ) -> Expr:
        """A size of an input. `declared` is the name of the user's Dim, whose range is `lo` to
        `hi`; the symbol is called so if it can be told by that name."""
        if name is None and declared is not None and self.can_be_called(declared):
            name = declared
        elif name is None:
            name, self._backed = f"s{self._backed}", self._backed + 1
        if (lo is not None and hint < lo) or (hi is not None and hint > hi):
            raise ContradictionError(
                f"the example's {source or name} is {hint}, which is not in its range {lo} to {hi}"
            )
        number = self.algebra.next_id()
        symbol = Symbol(number, name, hint=hint, lo=lo, hi=hi, source=source, declared=declared)
        logs.dynamic.info("%s is %s, example %d, range %s to %s", name, symbol.source, hint, lo, hi)
        return self._add_symbol(symbol)

    def can_be_called(self, name: str) -> bool:
        """Is this a name for a symbol that texts can be read by, and that no other has or gets?"""
        plain = name.isidentifier() and not re.fullmatch(_OTHER_NAMES, name)
        return plain and all(symbol.name != name for symbol in self.symbols)

    def unbacked(
        self,
        name: str | None = None,
        *,
        lo: int | None = None,
        hi: int | None = None,
        origin: str | None = None,
    ) -> Expr:
        """An integer that lies in data: no example value. `origin` says what made it."""
        if name is None:
            name, self._unbacked = f"u{self._unbacked}", self._unbacked + 1
        logs.dynamic.info("%s is %s, without an example", name, origin)
        symbol = Symbol(self.algebra.next_id(), name, hint=None, lo=lo, hi=hi, origin=origin)
        return self._add_symbol(symbol)

    def _add_symbol(self, symbol: Symbol) -> Expr:
        if symbol.lo is not None and symbol.hi is not None and symbol.lo > symbol.hi:
            raise ContradictionError(
                f"{symbol.source} has no value from {symbol.lo} to {symbol.hi}"
            )
        symbol.place = len(self.symbols)
        self.symbols.append(symbol)
        expr = self.algebra.add_atom(symbol)
        self._give_range(self.facts, symbol)
        return expr

    def _give_range(self, facts: Facts, symbol: Symbol) -> None:
        facts.ranges[symbol] = Range(symbol.lo, symbol.hi)
        if symbol.lo is not None and symbol.lo == symbol.hi:
            facts.substitutions[symbol] = self.algebra.make_constant(symbol.lo)
        if facts.world is not None:
            facts.world = facts.world.add_symbol(symbol)

    def learn(self, b: Condition) -> None:
        """A fact that holds by nature (`0 <= u0 <= numel`): no guard."""
        self._axioms.append(b)
        self.absorb(b)

    def assume(self, b: Condition, kind: str, asked_by: str = "", raises: Kinds = ()) -> None:
        """Record a guard, and learn it. What is recorded may say more than b, never less. `raises`:
        what eager raises where it does not hold."""
        b = self.conditions.strengthen(self._shorten(b))
        if isinstance(b, BoolExpr):
            if raises and b.unbacked:
                refuse_caught(*raises)
            interval, settles = self.narrow(b)
            if self.known(interval) is not True:
                self._record(interval, kind, asked_by)
                self.absorb(interval)
            if not settles:
                self._record(b, kind, asked_by)
        self.absorb(b)

    def _record(self, b: Condition, kind: str, asked_by: str) -> None:
        if isinstance(b, BoolExpr):
            operator = "" if asked_by else self.asking()
            reason = self._reason(b, kind, operator)
            guard = Guard(b, kind, self.where(), asked_by or operator, reason)
            self.guards.append(guard)
            logs.dynamic.info("guard %s", guard)

    def explain(self, why: str) -> None:
        """Add to the reason of the last guard."""
        if why:
            last = self.guards[-1]
            self.guards[-1] = last._replace(reason=f"{last.reason}: {why}")

    def _reason(self, b: BoolExpr, kind: str, operator: str) -> str:
        backed = sorted((s for s in b.symbols() if s.hint is not None), key=lambda s: s.id)
        example = ", ".join(f"{s.source} = {s.hint}" for s in backed)
        if kind in ("branch", "specialize") and example:
            return f"{_REASONS[kind]} ({example})"
        return f"{operator} requires it" if operator and kind == "check" else _REASONS[kind]

    # ---- questions

    def require_nonzero(self, q: Expr) -> None:
        """A requirement: `q` is a divisor."""
        if q.const is not None:
            if q.const == 0:
                raise ZeroDivisionError("integer division or modulo by zero")
            return
        b = self.conditions.negate(self.conditions.is_zero(q))
        answer = self.known(b)
        if answer is False or (answer is None and self._is_refuted(b)):
            text = f"division by {q}, which is 0" + self._in_example(q)
            if answer is None:
                self.assume(self.conditions.negate(b), "branch")
            raise ZeroDivisionError(text)
        if answer is None:
            self.assume(b, "division", raises=(ZeroDivisionError,))

    def _is_refuted(self, b: Condition) -> bool:
        """Is it false in the example? In a branch that it does not take that says nothing."""
        return isinstance(b, BoolExpr) and b.hint is False and self.facts.fits_example

    def _in_example(self, e: Expr) -> str:
        sizes = ", ".join(f"{s.source} = {s.hint}" for s in sorted(e.symbols(), key=lambda s: s.id))
        return f" for {sizes}" if sizes else ""

    def decide(
        self, b: Condition, asked_by: str = "", or_raises: Callable[[bool], bool] = lambda _: False
    ) -> bool:
        """`or_raises` says whether the program raises where it is not this answer: of data that is
        an assertion."""
        answer = self.known(b)
        if answer is None:
            answer = self.known_by_residues(b)
        if answer is None:
            assert isinstance(b, BoolExpr)
            if b.hint is None:
                ways_on = [way for way in (True, False) if or_raises(way)]
                if len(ways_on) != 1:
                    raise self._refuse_branch(b)
                answer, kind = ways_on[0], "assert"
            else:
                answer = b.hint
                kind = "check" if or_raises(answer) else "branch"
            recorded = len(self.guards)
            self.assume(b if answer else self.conditions.negate(b), kind, asked_by)
            if kind == "assert" and len(self.guards) > recorded:
                self.explain(RAISES)
        return answer

    def decide_or(self, b: Condition, default: bool, asked_by: str = "") -> bool:
        """`default` is acceptable to the caller whatever the truth is, so it needs no guard. The
        other answer does, and is given only where the example says so of a plain relation: two
        sizes that match, which nobody has declared."""
        answer = self.known(b)
        if answer is not None:
            return answer
        assert isinstance(b, BoolExpr)
        if b.hint is None or b.hint is default or _is_compound(b) or _asks_for_0_or_1(b):
            return default
        if not self.facts.fits_example or any(s.declared for s in b.symbols()):
            return default
        self.assume(b if b.hint else self.conditions.negate(b), "branch", asked_by)
        return b.hint

    def matches(self, b: Condition, asked_by: str = "") -> bool:
        """Certain, or so in the example, with a guard: for what is wanted to be true. A size is not
        taken for 0 or 1 because the example's is."""
        answer = self.known(b)
        if answer is None:
            assert isinstance(b, BoolExpr)
            answer = bool(b.hint) and not b.args and not _asks_for_0_or_1(b)
            answer = answer and self.facts.fits_example
            if answer:
                self.assume(b, "branch", asked_by)
        return answer

    def expect(self, b: Condition, asked_by: str = "", raises: Kinds = FAILING) -> bool:
        """A requirement; as the function of this name."""
        answer = self.known(b)
        if answer is None:
            answer = self.known_by_residues(b)
        if answer is not None:
            return answer
        assert isinstance(b, BoolExpr)
        if self._is_refuted(b):  # and who catches what is raised then goes another way
            self.assume(self.conditions.negate(b), "branch", asked_by)
            return False
        self.assume(b, "assert" if b.unbacked else "check", asked_by, raises)
        return True

    def specialize(self, e: Expr, asked_by: str = "") -> int:
        """A concrete integer, at the price of a guard that it is the example's."""
        e = self.current_form(e)
        lo, hi = self.bounds(e)
        if lo is not None and lo == hi:
            return lo
        if e.hint is None or not self.facts.fits_example:
            raise refuse_integer(e, self.where())
        self.assume(self.conditions.is_zero(e.shift(-e.hint)), "specialize", asked_by)
        return e.hint

    def _refuse_branch(self, b: BoolExpr) -> DataDependentError:
        short = self._shorten(b)
        b = short if isinstance(short, BoolExpr) else b
        symbols = b.symbols()
        is_truth = len(symbols) == 1 and all(self.bounds(s.expr) == (0, 1) for s in symbols)
        return refuse_branch(b, self.where(), self.spell, is_truth)

    @contextmanager
    def trial(self) -> Iterator[list[Guard]]:
        """Inside, nothing that is assumed lasts; the guards it would have cost are in the list
        afterwards."""
        guards, symbols = len(self.guards), len(self.symbols)
        found: list[Guard] = []
        try:
            with self.facts.replaced_by(self.facts.copy()):
                yield found
        finally:
            found.extend(self.guards[guards:])
            del self.guards[guards:]
            for symbol in self.symbols[symbols:]:
                self._give_range(self.facts, symbol)

    # ---- what is known

    def bounds(self, e: Size) -> Range:
        """The least and the greatest value of `e`; None is no bound."""
        return Range(e, e) if isinstance(e, int) else self._bounds.range_of(self.normal_form(e))

    def divisor(self, e: Size) -> int:
        """A positive integer that divides every value of `e`; 0 if `e` is zero."""
        if isinstance(e, int):
            return abs(e)
        e = self.normal_form(e)
        return lcm(divisor(e.terms), divisor(self.rules.unfold(e)))

    def ranges(self) -> dict[Symbol, Range]:
        """Today's range of each symbol."""
        return {symbol: self.bounds(symbol.expr) for symbol in self.symbols}

    def minimal_guards(self) -> list[Guard]:
        """Guards that say the same as all of them together: none follows from the others."""
        return self._implications.find_minimal(self._initial_facts(), self.guards)

    def violations(self) -> list[BrokenDim]:
        """The guards that declared ranges do not imply, each with a fix."""
        born = self._initial_facts()
        found = (self._declarations.find_violation(born, g) for g in self.minimal_guards())
        return [v for v in found if v is not None]

    def _initial_facts(self) -> Facts:
        """Declared ranges and what holds by nature, without any guard."""
        facts = self.facts.make_empty()
        for symbol in self.symbols:
            self._give_range(facts, symbol)
        with self.facts.replaced_by(facts):
            for axiom in self._axioms:
                self.absorb(axiom)
        return facts


def _asks_for_0_or_1(b: BoolExpr) -> bool:
    """size == 0, size == 1, numel == 0: nothing that a trace may be specialised on."""
    constant = b.poly.terms.get((), 0)
    return b.kind != "ge" and len(b.poly.terms) == 1 + (constant != 0) and constant in (0, -1)


def _is_compound(b: BoolExpr) -> bool:
    """Anything but a size against another, or against a number."""
    if b.args:
        return True
    monomials = [m for m in b.poly.terms if m]
    return len(monomials) > 2 or any(len(m) > 1 or m[0].kind != "symbol" for m in monomials)


# --------------------------------------------------------------------------- for ints and bools too


def known(b: Condition) -> bool | None:
    """True or False if that is certain, else None. Never a guard."""
    return b if b is True or b is False else b.env.known(b)


def decide(b: Condition, asked_by: str = "") -> bool:
    """A branch: certain, else as in the example, with a guard; an error if data decides."""
    return b if b is True or b is False else b.env.decide(b, asked_by)


def decide_or(b: Condition, default: bool, asked_by: str = "") -> bool:
    """Certain, else `default`, without a guard where none is needed; see `ShapeEnv.decide_or`."""
    return b if b is True or b is False else b.env.decide_or(b, default, asked_by)


def matches(b: Condition, asked_by: str = "") -> bool:
    """Certain, or so in the example, with a guard; see `ShapeEnv.matches`."""
    return b if b is True or b is False else b.env.matches(b, asked_by)


def expect(b: Condition, asked_by: str = "", raises: Kinds = FAILING) -> bool:
    """A requirement: a guard, or a run-time assertion if data decides. False, with a guard that it
    does not hold, if the example violates it. `raises`: what eager raises then."""
    return b if b is True or b is False else b.env.expect(b, asked_by, raises)


def specialize(e: Size, asked_by: str = "") -> int:
    """A concrete integer, at the price of a guard that it is the example's."""
    return e.env.specialize(e, asked_by) if isinstance(e, Expr) else e


def count_parts(e: Size) -> int:
    """The same, of how many things there are."""
    ask_for_parts(e)
    return specialize(e)


def ask_for_parts(e: Size) -> None:
    """The hint is about to decide how many things there are."""
    if isinstance(e, Expr) and e.env.before_hint is not None and e.hint is not None:
        asking = find_user_frame(sys._getframe(1))
        if asking is not None and not isinstance(current(e), int):
            e.env.before_hint(asking, e)


def learn(b: Condition) -> None:
    """A fact that holds by nature; no guard. What is certain already costs nothing."""
    if not isinstance(b, bool) and b.env.known(b) is None:
        b.env.learn(b)


def current(e: Size) -> Size:
    """`e` under today's facts."""
    if e.__class__ is not Expr:
        return e
    now = e.current if e.current_at == e.env.facts.version else e.env.current_form(e)
    return now if now.const is None else now.const
