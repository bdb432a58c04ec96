"""Floats that programs compute from sizes: `h * 0.5`, `s / 3`, `math.sqrt(d)`.

A `Real` is a *ratio*, an integer expression over a positive integer or expression, as long as that
is exactly what the float is; then `int(h * 0.5)` and `math.ceil(s / 2)` are integer expressions
again. Otherwise it is a *tree* of float operations, known by its example value alone; an integer
made of it is a new symbol, and `definition` says of what.

Exactness: floats hold integers below 2**53, so a ratio over a power of two is exact under + - *;
over anything else it was rounded once, by the division, and stays in that form only while scaled by
powers of two. Rounding it to an integer is still exact: it lies at least 1/below away from the next
integer. (All for sizes whose products stay below 2**53.)
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeGuard

from lostwax.branches import find_catching
from lostwax.errors import CaptureError, DataDependentError
from lostwax.sym.env import ShapeEnv, current, decide, expect, known, specialize
from lostwax.sym.expressions.expr import (
    Condition,
    Expr,
    Interned,
    Size,
    Symbol,
    eq,
    evaluate,
    maximum,
    minimum,
    negate,
    quotient,
)
from lostwax.sym.expressions.terms import leading_monomial
from lostwax.sym.numbers.integers import absolute, round_half_even, truncdiv
from lostwax.sym.undecided import Kinds, refuse_caught

Number: TypeAlias = "Real | float"

_SHORT = 1 << 20  # numerators and denominators of constants that leave room for a size
_MAX_BELOW = 1 << 20


class Definition(NamedTuple):
    """An integer symbol that stands for `op` of some reals: trunc, floor, ... or a comparison, as 0
    or 1."""

    op: str
    args: tuple[Number, ...]


class Reals:
    """The reals of one environment: equal is identical, and an integer made of one is made once."""

    def __init__(self, env: ShapeEnv) -> None:
        self.made: dict[tuple[Any, ...], Real] = {}
        self.integers: dict[Definition, Expr] = {}
        self.definitions: dict[Symbol, Definition] = {}
        self.unbacked = 0


_Operator: TypeAlias = "Callable[[Any, Number], Number]"


def _make_operators(rule: _Operator) -> tuple[_Operator, _Operator]:
    """An operator, and the one for a Real on its right."""
    return lambda self, other: rule(self, other), lambda self, other: rule(other, self)


class Real(Interned):
    """A float that is not known yet. Operators give `Real | float`, comparisons a condition."""

    __slots__ = ("above", "args", "below", "env", "face", "hint", "op", "unbacked")

    def __init__(self, env: ShapeEnv, op: str, args: tuple[Any, ...], hint: float | None):
        self.env = env
        self.op = op
        self.args = args
        self.hint = hint
        self.unbacked = hint is None
        self.face: Any = None
        # of a tree: 0 over 0
        self.above: Size
        self.below: Size
        self.above, self.below = args if op == "ratio" else (0, 0)

    @property
    def is_ratio(self) -> bool:
        return self.op == "ratio"

    def symbols(self) -> frozenset[Symbol]:
        parts = [a.symbols() for a in self.args if isinstance(a, (Expr, Real))]
        return frozenset().union(*parts)

    __add__, __radd__ = _make_operators(lambda a, b: _add(a, b, "+"))
    __sub__, __rsub__ = _make_operators(lambda a, b: _add(a, b, "-"))
    __mul__, __rmul__ = _make_operators(lambda a, b: _multiply(a, b))
    __truediv__, __rtruediv__ = _make_operators(lambda a, b: _divide(a, b))
    __floordiv__, __rfloordiv__ = _make_operators(lambda a, b: _divide_down(a, b))
    __mod__, __rmod__ = _make_operators(lambda a, b: _reduce(a, b))
    __pow__, __rpow__ = _make_operators(lambda a, b: _raise(a, b))

    def __neg__(self) -> Number:
        if self.is_ratio:
            return ratio(self.env, -self.above, self.below)
        return self.args[0] if self.op == "neg" else apply("neg", self)

    def __pos__(self) -> Number:
        return self

    def __abs__(self) -> Number:
        if self.is_ratio and known(self.below > 0) is True:
            return ratio(self.env, absolute(self.above), self.below)
        return apply("abs", self)

    def __lt__(self, other: Number) -> Condition:
        return compare("<", self, other)

    def __le__(self, other: Number) -> Condition:
        return compare("<=", self, other)

    def __gt__(self, other: Number) -> Condition:
        return compare(">", self, other)

    def __ge__(self, other: Number) -> Condition:
        return compare(">=", self, other)

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of {self} is a question: ask decide(compare('!=', r, 0.0))")

    # ---- integers of it

    def floor(self) -> Size:
        return self.above // self.below if self.is_ratio else self._make_integer("floor")

    def ceil(self) -> Size:
        return -(-self.above // self.below) if self.is_ratio else self._make_integer("ceil")

    def trunc(self) -> Size:
        return truncdiv(self.above, self.below) if self.is_ratio else self._make_integer("trunc")

    def round(self) -> Size:
        """To the nearest integer, halves to the even one."""
        if not self.is_ratio:
            return self._make_integer("round")
        if decide(self.below > 0):
            return round_half_even(self.above, self.below)
        return round_half_even(-self.above, -self.below)

    def is_integer(self) -> Condition:
        if self.is_ratio:
            return eq(self.above % self.below, 0)
        return eq(self._make_integer("is_integer"), 1)

    def _make_integer(self, op: str) -> Size:
        return _make_integer(self.env, Definition(op, (self,)))

    def __str__(self) -> str:
        return _spell(self)


# ------------------------------------------------------------------------------------------- making


def real(e: Size) -> Number:
    """The float of an integer."""
    return ratio(e.env, e, 1) if isinstance(e, Expr) else float(e)


def ratio(env: ShapeEnv, above: Size, below: Size) -> Number:
    """`above / below`, in lowest terms as far as structure shows them; the caller has excluded zero
    below."""
    above, below = current(above), current(below)
    found = env.companion(Reals).made.get(("ratio", (above, below)))
    if found is not None:
        return found
    exact = quotient(above, below)
    if exact is not None:
        above, below = exact, 1
    if isinstance(below, int):
        if isinstance(above, int):
            return above / below
        if below < 0:
            above, below = -above, -below
        common = math.gcd(below, *above.terms.values()) if isinstance(above, Expr) else 1
        reduced = quotient(above, common)
        assert reduced is not None
        above, below = reduced, below // common
    top, bottom = _hint_of(above), _hint_of(below)
    hint = None if top is None or not bottom else top / bottom
    return _make(env, "ratio", (above, below), hint)


def real_symbol(env: ShapeEnv, name: str, origin: str | None) -> Real:
    """A float that nothing is computed from: an input, or the value of a tensor."""
    return _make(env, "symbol", (name, origin), None)


def real_names(env: ShapeEnv) -> list[str]:
    """The names of all such floats."""
    return [str(made.args[0]) for made in env.companion(Reals).made.values() if made.op == "symbol"]


def unbacked_real(env: ShapeEnv, origin: str) -> Real:
    """The value of a float tensor: `origin` says what asked for it."""
    reals = env.companion(Reals)
    reals.unbacked += 1
    return real_symbol(env, f"f{reals.unbacked - 1}", origin)


def divide(a: Size, b: Size) -> Number:
    """`a / b` of two integers; zero below is excluded by a guard."""
    if isinstance(b, Expr):
        return real(a) / real(b)
    if b == 0:
        raise ZeroDivisionError("division by zero")
    return ratio(a.env, a, b) if isinstance(a, Expr) else a / b


def definition(symbol: Symbol) -> Definition | None:
    """What an integer symbol that came out of a tree of floats stands for."""
    return symbol.expr.env.companion(Reals).definitions.get(symbol)


def defined_integers(env: ShapeEnv) -> list[Symbol]:
    """All such symbols, in the order in which they were made."""
    return list(env.companion(Reals).definitions)


def apply(op: str, *args: Number) -> Number:
    """`op` of these as a tree."""
    env = _find_env(args)
    if env is None:
        return float(FUNCTIONS[op](*args))
    hints = [_hint_of(a) for a in args]
    if op in _LIMITED:
        _hold_caught(env, args, (ValueError, OverflowError, ZeroDivisionError))
    return _make(env, op, args, None if None in hints else _compute_hint(env, op, args, hints))


def _hold_caught(env: ShapeEnv, args: tuple[Number, ...], kinds: Kinds) -> None:
    """It may not be defined, and raise one of these. If the user's code catches that, it is as in
    the example."""
    if None in map(_hint_of, args):
        refuse_caught(*kinds)
    elif find_catching(kinds) is not None:
        _hold_symbols(env, args)


def _hold_symbols(env: ShapeEnv, args: tuple[Number, ...]) -> None:
    symbols = {s for a in args if isinstance(a, Real) for s in a.symbols()}
    for each in sorted(symbols, key=lambda symbol: symbol.id):
        env.assume(eq(each.expr, each.hint), "branch")  # type: ignore[arg-type]


def _compute_hint(env: ShapeEnv, op: str, args: tuple[Number, ...], hints: list[Any]) -> float:
    """`op` of the example's numbers, which may not be defined: `math.sqrt(n - 3)`. In a branch that
    the example does not take that says nothing; else who catches what is raised relies on these."""
    try:
        return float(FUNCTIONS[op](*hints))
    except (ArithmeticError, ValueError, TypeError):  # a root of a negative number is no float
        if not env.facts.fits_example:
            return math.nan
        _hold_symbols(env, args)
        raise


def extremum(op: str, a: Number, b: Number) -> Number:
    """`max` or `min` of two floats."""
    env, x, y = _find_exact_pair(a, b)
    if env is None:
        return apply(op, a, b)
    choice = maximum if op == "max" else minimum
    return ratio(env, choice(x.above * y.below, y.above * x.below), x.below * y.below)


def _make(env: ShapeEnv, op: str, args: tuple[Any, ...], hint: float | None) -> Real:
    made = env.companion(Reals).made
    found = made.get((op, args))
    if found is None:
        found = made[op, args] = Real(env, op, args, hint)
    return found


def _make_integer(env: ShapeEnv, what: Definition) -> Expr:
    """The symbol for an integer that only floats can compute."""
    reals = env.companion(Reals)
    found = reals.integers.get(what)
    if found is None:
        if what.op in _ROUNDING:
            _hold_caught(env, what.args, (ValueError, OverflowError))
        name = f"r{len(reals.integers)}"
        text = _spell_definition(what)
        hints = [_hint_of(a) for a in what.args]
        lo, hi = _find_integer_bounds(what)
        if None in hints:
            found = env.unbacked(name, lo=lo, hi=hi, origin=text)
        else:
            is_open = any(each != each for each in hints)  # the example does not come here
            hint = 0 if is_open else int(FUNCTIONS[what.op](*hints))
            found = env.symbol(name, hint=hint, lo=lo, hi=hi, source=text)
        reals.integers[what] = found
        (symbol,) = found.symbols()
        reals.definitions[symbol] = what
    return found


def _spell_definition(what: Definition) -> str:
    """`trunc(s0 * 0.3)`, `f0 > 0.0`, and what the floats in it are that come from elsewhere."""
    shown = [str(a) for a in what.args]
    text = f"{what.op}({', '.join(shown)})"
    if len(shown) == 2:
        text = f"{enclose(what.args[0])} {what.op} {enclose(what.args[1])}"
    origins = {str(r): r.args[1] for a in what.args for r in _find_leaves(a) if r.args[1]}
    known_as = ", ".join(f"{name} being {origin}" for name, origin in origins.items())
    return f"{text}, {known_as}" if known_as else text


def _find_leaves(x: Any) -> Iterable[Real]:
    """The floats in it that nothing is computed from."""
    if isinstance(x, Real):
        if x.op == "symbol":
            yield x
        else:
            for part in x.args:
                yield from _find_leaves(part)


def _find_env(numbers: tuple[Number, ...]) -> ShapeEnv | None:
    return next((n.env for n in numbers if isinstance(n, Real)), None)


def _hint_of(value: Any) -> Any:
    return value.hint if isinstance(value, (Expr, Real)) else value


# --------------------------------------------------------------------------------------- arithmetic


class _RatioNumber(NamedTuple):
    above: Size
    below: Size

    @property
    def exact(self) -> bool:
        """Over a power of two: no rounding has happened."""
        return isinstance(self.below, int) and not self.below & (self.below - 1)


def _find_ratio(x: Number, longest: float = _SHORT) -> _RatioNumber | None:
    """The ratio that a number is; None for trees and for constants longer than `longest`, which
    leave no room for a size."""
    if isinstance(x, Real):
        return _RatioNumber(x.above, x.below) if x.is_ratio else None
    if not math.isfinite(x):
        return None
    above, below = float(x).as_integer_ratio()
    return _RatioNumber(above, below) if abs(above) <= longest and below <= longest else None


def _find_exact_pair(a: Number, b: Number) -> tuple[ShapeEnv | None, _RatioNumber, _RatioNumber]:
    """Both as exact ratios; no environment if they are not, or too fine together."""
    x, y = _find_ratio(a), _find_ratio(b)
    if x is None or y is None or not (x.exact and y.exact):
        return None, _NOTHING, _NOTHING
    assert isinstance(x.below, int)
    assert isinstance(y.below, int)
    return (_find_env((a, b)) if x.below * y.below <= _MAX_BELOW else None), x, y


_NOTHING = _RatioNumber(0, 1)


def _add(a: Number, b: Number, op: str) -> Number:
    env, x, y = _find_exact_pair(a, b)
    if env is None:
        if _is_negated(b):  # floats know no difference
            op, b = "-" if op == "+" else "+", -b
        if op == "+":
            return apply("-", b, -a) if _is_negated(a) else apply("+", *_order(a, b))
        return apply(op, a, b)
    above = _SIZE_OPERATORS[op](x.above * y.below, y.above * x.below)
    return ratio(env, above, x.below * y.below)


def _is_negated(x: Number) -> bool:
    """Is a number written with a minus, so that it is another one that is subtracted?"""
    if isinstance(x, Real) and not x.is_ratio:
        return x.op == "neg"
    number = x.above if isinstance(x, Real) else x
    if isinstance(number, Expr):
        number = number.terms[leading_monomial(number.terms)]
    return number < 0


def _multiply(a: Number, b: Number) -> Number:
    for one, other in ((a, b), (b, a)):
        if isinstance(one, Real) and one.op == "neg":
            return -_multiply(one.args[0], other)
    env, x, y = _find_exact_pair(a, b)
    if env is not None:
        return ratio(env, x.above * y.above, x.below * y.below)
    if isinstance(a, Real) and _is_power_of_two(b):
        return _scale(a, b)
    if isinstance(b, Real) and _is_power_of_two(a):
        return _scale(b, a)
    return apply("*", *_order(a, b))


def _order(a: Number, b: Number) -> tuple[Number, Number]:
    """Two of which either may be the first, in the order in which they are kept: what others have
    sorted is read as it was."""
    return (b, a) if _rank(b) < _rank(a) else (a, b)


def _rank(x: Number) -> tuple[bool, str, str]:
    if not isinstance(x, Real):
        return True, "", ""
    return False, x.op, x.args[0] if x.op == "symbol" else ""


def _divide(a: Number, b: Number) -> Number:
    _refuse_zero(b)
    x, y = _find_ratio(a), _find_ratio(b)
    env = _find_env((a, b))
    if x is not None and y is not None and env is not None and x.exact and y.exact:
        return ratio(env, x.above * y.below, x.below * y.above)
    if isinstance(a, Real) and _is_power_of_two(b):
        return _scale(a, 1 / b)
    return apply("/", a, b)


def _is_power_of_two(x: Number) -> TypeGuard[float]:
    return not isinstance(x, Real) and abs(math.frexp(x)[0]) == 0.5


def _scale(a: Real, power: float) -> Number:
    """A rounded ratio times a power of two: it rounds in the same way."""
    if power == -1.0:
        return -a
    if not a.is_ratio or not 1 / _SHORT <= abs(power) <= _SHORT:
        return apply("*", a, power)
    above, below = power.as_integer_ratio()
    return ratio(a.env, a.above * above, a.below * below)


def _divide_down(a: Number, b: Number) -> Number:
    _refuse_zero(b)
    env, x, y = _find_exact_pair(a, b)
    if env is None:
        return apply("//", a, b)
    return real((x.above * y.below) // (y.above * x.below))


def _reduce(a: Number, b: Number) -> Number:
    _refuse_zero(b)
    env, x, y = _find_exact_pair(a, b)
    if env is None:
        return apply("%", a, b)
    return ratio(env, (x.above * y.below) % (y.above * x.below), x.below * y.below)


def _raise(a: Number, b: Number) -> Number:
    if isinstance(a, Real) and isinstance(b, (int, float)) and b in (1, 2, 3, 4):
        result: Number = a
        for _ in range(int(b) - 1):
            result = result * a
        return result
    whole = isinstance(b, (int, float)) and float(b).is_integer()
    if not whole and not expect(compare(">=", a, 0.0)):
        raise CaptureError.here(
            f"({a}) ** ({b}): the base is negative, the result would be complex",
            why="numbers that programs compute from sizes are real",
            instead="compute it where the base is positive, if n > 3: ...",
        )
    return apply("**", a, b)


def _refuse_zero(divisor: Number) -> None:
    if not expect(compare("!=", divisor, 0.0), raises=(ZeroDivisionError,)):
        raise ZeroDivisionError("float division by zero")


# --------------------------------------------------------------------------------------- comparison


def compare(op: str, a: Number, b: Number) -> Condition:
    """`a op b` for one of == != < <= > >=."""
    if op == "!=":
        return negate(compare("==", a, b))
    env = _find_env((a, b))
    if env is None:
        return bool(FUNCTIONS[op](a, b))
    for x, y in ((a, b), (b, a)):
        if isinstance(x, float) and not math.isfinite(x) and isinstance(y, Real) and y.is_ratio:
            return bool(FUNCTIONS[op](a if x is a else 0.0, b if x is b else 0.0))
    sides = _find_comparable(a, b)
    if sides is None:
        return eq(_make_integer(env, Definition(op, (a, b))), 1)
    left, right = sides
    return eq(left, right) if op == "==" else _SIZE_OPERATORS[op](left, right)


def _find_comparable(a: Number, b: Number) -> tuple[Size, Size] | None:
    """Two integers in the order of a and b, where rounding cannot have changed it."""
    x, y = _find_ratio(a, math.inf), _find_ratio(b, math.inf)  # to compare needs no room
    if x is None or y is None:
        return None
    if known(x.below > 0) is not True or known(y.below > 0) is not True:
        return None
    exact = x.exact and y.exact
    for side in (x, y):
        # Two different ratios are 1/(below*below) apart: far more than rounding moves them, if
        # that is not tiny.
        if not exact and isinstance(side.below, int) and side.below > _MAX_BELOW:
            return None
    return x.above * y.below, y.above * x.below


# -------------------------------------------------------------------------- values, ranges and text


def current_real(r: Real) -> Number:
    """`r` under today's facts."""
    if r.op == "symbol":
        return r
    if r.is_ratio:
        above, below = current(r.above), current(r.below)
        return r if above is r.above and below is r.below else ratio(r.env, above, below)
    args = tuple(current_real(a) if isinstance(a, Real) else a for a in r.args)
    return r if args == r.args else apply(r.op, *args)


def specialize_real(r: Number) -> float:
    """The example's value, with a guard on every integer it is made of."""
    if not isinstance(r, Real):
        return r
    if r.op == "symbol":
        if r.hint is None:
            raise DataDependentError(
                f"the value of {r} is not known while tracing"
                + (f": it came from {r.args[1]}" if r.args[1] else "")
                + f"\n  asked at {r.env.where()}"
                + "\n  instead: compute with the symbolic number, t.item(), not float() or int()"
            ).ask()
        return r.hint
    if r.is_ratio:
        return specialize(r.above) / specialize(r.below)
    return float(FUNCTIONS[r.op](*map(specialize_real, r.args)))


def evaluate_real(r: Number, values: Mapping[Symbol, int]) -> float:
    """What the float is where the symbols have these values."""
    if not isinstance(r, Real):
        return r
    if r.is_ratio:
        return evaluate(r.above, values) / evaluate(r.below, values)
    return float(FUNCTIONS[r.op](*(evaluate_real(a, values) for a in r.args)))


def complete_values(values: Mapping[Symbol, int], symbols: Iterable[Symbol]) -> dict[Symbol, int]:
    """`values`, and those of the symbols that floats define."""
    done = dict(values)
    for symbol in symbols:
        what = definition(symbol) if symbol not in done else None
        if what is not None:
            inner = (s for a in what.args if isinstance(a, Real) for s in a.symbols())
            done = complete_values(done, inner)
            args = (evaluate_real(a, done) for a in what.args)
            done[symbol] = int(FUNCTIONS[what.op](*args))
    return done


def _find_integer_bounds(what: Definition) -> tuple[int | None, int | None]:
    if what.op not in _ROUNDING:
        return 0, 1
    lo, hi = (
        FUNCTIONS[what.op](b) if math.isfinite(b) else None for b in _find_bounds(what.args[0])
    )
    return lo, hi


def _find_bounds(x: Number) -> tuple[float, float]:
    """Rounding keeps order: the operation on the ends of the ranges gives the ends, rounding
    included."""
    if not isinstance(x, Real):
        return x, x
    if x.is_ratio and isinstance(x.below, int) and isinstance(x.above, Expr):
        lo, hi = x.env.bounds(x.above)
        return -math.inf if lo is None else lo / x.below, math.inf if hi is None else hi / x.below
    if x.op in ("+", "-", "*"):
        (a, b), (c, d) = _find_bounds(x.args[0]), _find_bounds(x.args[1])
        corners = [FUNCTIONS[x.op](p, q) for p in (a, b) for q in (c, d)]
        if not any(map(math.isnan, corners)):
            return min(corners), max(corners)
    return (0.0, math.inf) if x.op in ("sqrt", "abs") else (-math.inf, math.inf)


def _spell(x: Any) -> str:
    if not isinstance(x, Real):
        return str(x)
    if x.op == "symbol":
        return str(x.args[0])
    if x.is_ratio:
        if x.below == 1:
            return f"float({x.above})"
        return f"{enclose(x.above)}/{enclose(x.below)}"
    if x.op in _SIZE_OPERATORS or x.op in ("*", "/", "//", "%", "**"):
        return f"{enclose(x.args[0])} {x.op} {enclose(x.args[1])}"
    return f"{x.op}({', '.join(map(_spell, x.args))})"


def enclose(x: Any) -> str:
    text = _spell(x)
    return text if text.replace("_", "").replace(".", "").isalnum() else f"({text})"


def _round_float(x: float, digits: float | None = None) -> float:
    return round(x) if digits is None else round(x, int(digits))


_SIZE_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ROUNDING = ("floor", "ceil", "trunc", "round")
"""Neither an infinite number nor NaN has an integer."""
MATH = ("sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan", "log2")
_LIMITED = frozenset((*MATH, "**"))
"""Not every float has one."""
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **_SIZE_OPERATORS,
    **{name: getattr(math, name) for name in MATH},
    "==": operator.eq,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "neg": operator.neg,
    "abs": abs,
    "max": max,
    "min": min,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": _round_float,
    "is_integer": float.is_integer,
}
