"""What a trace demands of its inputs: guards, the least set of them, and what they do to declared
ranges.

Reads an environment and answers; learns only into copies of facts, never into the environment's
own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lostwax.errors import ContradictionError
from lostwax.location import Location
from lostwax.sym.expressions.expr import BoolExpr, Condition, Expr, Symbol, evaluate
from lostwax.sym.expressions.terms import leading
from lostwax.sym.reasoning.facts import Facts
from lostwax.sym.reasoning.learn import Learner
from lostwax.sym.text.show import show


@dataclass(frozen=True)
class Guard:
    """A condition under which the trace is right.

    `kind`: "branch" (a decision by the example), "check" (the program checks it too), "assert"
    (checked at run time, as it depends on data), "division" (a divisor is not zero), "specialize"
    (a concrete integer was needed).
    """

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


@dataclass(frozen=True)
class Violation:
    """A declared dimension that the trace does not hold for.

    At size `counterexample`, within the declared range, with the example's other sizes, the trace
    would be wrong; None if the sizes that were tried show none. `fix` is code to paste.
    """

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


def minimal(env: Learner, born: Facts, guards: list[Guard]) -> list[Guard]:
    """Guards of which none follows from the others and the facts at birth.

    Checked in the order given, they never divide by zero: those that divide by a symbol come last.
    """
    return in_order(_irredundant(env, born, guards) if guards else [])


def in_order(guards: Iterable[Guard]) -> list[Guard]:
    """Those that divide by a symbol last: a guard before them says that it is not zero."""
    return sorted(guards, key=lambda g: _divides_by_symbol(g.cond))


def _irredundant(env: Learner, facts: Facts, guards: list[Guard]) -> list[Guard]:
    """Halves, each under the facts of the other: every guard meets all others in n log n steps."""
    if len(guards) == 1:
        return [] if _implied(env, facts, guards[0]) else guards
    half = len(guards) // 2
    left = _irredundant(env, _with(env, facts, guards[half:]), guards[:half])
    if not left:
        return _irredundant(env, facts, guards[half:])
    return left + _irredundant(env, _with(env, facts, left), guards[half:])


def _implied(env: Learner, facts: Facts, guard: Guard) -> bool:
    if guard.kind == "division" and _divides_by_symbol(guard.cond):
        return False  # a guard after it may rest on it
    with env.under(facts):
        return _is_defined(env, guard.cond) and env.known(guard.cond) is True


def _with(env: Learner, facts: Facts, guards: list[Guard]) -> Facts:
    """A copy that has learned the guards, each once its divisors are known not to be zero."""
    copy = facts.copy(env.new_version())
    left = guards
    with env.under(copy):
        while left:
            ready = [g for g in left if _is_defined(env, g.cond)]
            if not ready:
                break
            for guard in ready:
                try:
                    env.absorb(guard.cond)
                except ContradictionError:
                    return facts  # no input satisfies them all: nothing may be concluded
            left = [g for g in left if g not in ready]
    return copy


def _divisors(condition: BoolExpr) -> Iterator[Condition]:
    env = condition.env
    for atom in sorted(condition.atoms(), key=lambda a: a.id):
        if atom.kind in ("div", "mod") and not isinstance(atom.args[1], int):
            yield env.negate(env.is_zero(atom.operands[1]))


def _divides_by_symbol(condition: BoolExpr) -> bool:
    return any(True for _ in _divisors(condition))


def _is_defined(env: Learner, condition: BoolExpr) -> bool:
    return all(env.known(nonzero) is True for nonzero in _divisors(condition))


# ---------------------------------------------------------------------------------- declared ranges


def violation(env: Learner, born: Facts, guard: Guard) -> Violation | None:
    """What a guard does to the declared dimensions in it; None without any, or if data decides."""
    dims = [s for s in sorted(guard.cond.symbols(), key=lambda s: s.id) if s.declared]
    if not dims or guard.cond.unbacked:
        return None
    dims.sort(key=lambda s: env.normal_form(s.expr) is s.expr)  # those that are settled first
    wrong = {s: _counterexample(guard.cond, s) for s in dims}
    dims.sort(key=lambda s: wrong[s] is None)
    gives_way = any(not s.declared for s in guard.cond.symbols())
    for symbol, form in _forms(env, guard.cond, dims):
        statements, code = _restriction(env, symbol, form)
        if code and (gives_way or _settled(env, born, guard, statements)):
            return Violation(_name(symbol), guard, wrong[symbol], code)
    forms = [(s, env.normal_form(s.expr)) for s in dims]
    all_of_them = [
        _restriction(env, s, form) for s, form in forms if form is s.expr or _is_affine(form)
    ]
    if _settled(env, born, guard, [x for statements, _ in all_of_them for x in statements]):
        lines = [line for _, code in all_of_them for line in code.splitlines()]
        return Violation(_name(dims[0]), guard, wrong[dims[0]], "\n".join(dict.fromkeys(lines)))
    names = {s: _name(s) for s in guard.cond.symbols()}
    code = f'constraints=["{show(guard.cond, names)}"]'
    return Violation(_name(dims[0]), guard, wrong[dims[0]], code)


def _forms(env: Learner, cond: BoolExpr, dims: list[Symbol]) -> Iterator[tuple[Symbol, Expr]]:
    """What a dimension can be declared to be: what the trace made of it; else what the condition
    makes of it once `max` and `min` are taken as in the example."""
    for symbol in dims:
        form = env.normal_form(symbol.expr)
        if form is symbol.expr or _is_affine(form):
            yield symbol, form
    poly = _without_extrema(cond.poly)
    if cond.kind != "eq" or poly.composite or poly is cond.poly:
        return
    for symbol in reversed(dims):
        k = poly.terms.get((symbol,), 0)
        if abs(k) == 1:
            form = env.sub(symbol.expr, env.scale(poly, k))
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


def _without_extrema(e: Expr) -> Expr:
    """With each `max` and `min` replaced by the operand that is it in the example."""
    env = e.env
    result = env.const(0)
    for monomial, coefficient in e.terms.items():
        term = env.const(coefficient)
        for atom in monomial:
            chosen = None
            if atom.kind in ("max", "min"):
                best = (max if atom.kind == "max" else min)(x.hint or 0 for x in atom.operands)
                chosen = next((x for x in reversed(atom.operands) if x.hint == best), None)
            term = env.mul(term, env.make({(atom,): 1}) if chosen is None else chosen)
        result = env.add(result, term)
    return result


def _restriction(env: Learner, symbol: Symbol, form: Expr) -> tuple[list[Condition], str]:
    """A dimension of this form: as conditions, and as the code that declares it so."""
    dim = _name(symbol)
    if form.const is not None:
        return [env.is_zero(env.shift(symbol.expr, -form.const))], f"{dim} = {form.const}"
    lo, hi = env.range_of(env.normal_form(symbol.expr))
    limits = [] if lo is None else [env.nonnegative(env.shift(symbol.expr, -lo))]
    if hi is not None:
        limits.append(env.nonnegative(env.shift(env.scale(symbol.expr, -1), hi)))
    if form is symbol.expr:
        narrowed = (lo, hi) != (symbol.lo, symbol.hi)
        return limits, _declaration(dim, lo, hi) if narrowed else ""
    statements, lines = limits, []
    owner = _owner(form)
    if owner is not None and owner is not symbol:
        others, code = _restriction(env, owner, env.normal_form(owner.expr))
        statements, lines = [*others, *statements], code.splitlines()
    for s in _to_declare(env, form, symbol):
        lines.append(_declaration(_name(s), *env.range_of(s.expr)))
    lines.append(f"{dim} = {show(form, {s: _name(s) for s in form.symbols()})}")
    if owner is symbol:
        statements.append(_same_residue(env, symbol, form))
    else:
        statements.append(env.is_zero(env.sub(symbol.expr, form)))
    return statements, "\n".join(lines)


def _owner(form: Expr) -> Symbol | None:
    """The dimension that a hidden symbol in a form was made for."""
    owner = next((s.root for s in form.symbols() if s.hidden), None)
    while owner is not None and owner.root is not None:
        owner = owner.root
    return owner


def _to_declare(env: Learner, form: Expr, symbol: Symbol) -> list[Symbol]:
    """The symbols in a dimension's form that are new, or whose range its own has narrowed."""
    return [
        s
        for s in sorted(form.symbols(), key=lambda s: s.id)
        if (s.root is symbol if s.hidden else env.range_of(s.expr) != (s.lo, s.hi))
    ]


def _same_residue(env: Learner, symbol: Symbol, form: Expr) -> Condition:
    """`symbol % n == k` where its form is `n*hidden + k`."""
    head = leading(form.terms)
    if len(form.terms) != 1 + (() in form.terms) or len(head) != 1:
        return True
    n = form.terms[head]
    rest = env.atom("mod", (symbol.expr, env.const(n)))
    return env.condition("eq", env.shift(rest, -(form.terms.get((), 0) % n)))


def _settled(env: Learner, born: Facts, guard: Guard, statements: list[Condition]) -> bool:
    """Would the guard be certain, were this declared from the start?"""
    with env.under(born.copy(env.new_version())):
        for statement in statements:
            env.absorb(statement)
        return _is_defined(env, guard.cond) and env.known(guard.cond) is True


def _declaration(dim: str, lo: int | None, hi: int | None) -> str:
    limits = [f"min={lo}"] if lo is not None else []
    if hi is not None:
        limits.append(f"max={hi}")
    return f"{dim} = Dim({', '.join([repr(dim), *limits])})"


def _name(symbol: Symbol) -> str:
    if symbol.root is not None:
        return f"_{_name(symbol.root)}"
    return symbol.declared or symbol.source


def _counterexample(condition: BoolExpr, symbol: Symbol) -> int | None:
    """A size of one dimension, all others as in the example, at which the condition fails."""
    values = {s: s.hint for s in condition.symbols() if s.hint is not None}
    for size in _sizes_to_try(condition, symbol):
        try:
            if not evaluate(condition, {**values, symbol: size}):
                return size
        except ZeroDivisionError:
            continue
    return None


def _sizes_to_try(condition: BoolExpr, symbol: Symbol) -> Iterator[int]:
    """Around the example, the ends of the range and the constants of the condition; then powers of
    two.
    """
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
