"""Read expressions from text: the form that `text.show` prints. sympy's form stands on top of it
in `srepr.py`.

A tokenizer and a precedence parser of our own: text from a file is never evaluated. Length, depth,
the size of numbers and the size of products are limited, so that a hostile text costs
milliseconds, not memory.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, TypeAlias

from lostwax.errors import ParseError
from lostwax.sym.expressions.expr import (
    BoolExpr,
    Condition,
    Expr,
    Size,
    eq,
    maximum,
    minimum,
    ne,
    negate,
)

# Size | Condition | str, and whatever else the functions of a grammar make for each
# other
Value: TypeAlias = Any

MAX_LENGTH = 1 << 16
MAX_DEPTH = 100
MAX_BITS = 2048
MAX_TERMS = 1024
MAX_DEGREE = 32


def parse(text: str, names: Mapping[str, Size]) -> Size | Condition:
    """The expression that `text` writes in Python: `(s0 + 7)//8`, `s0 % 8 == 0 and s1 <= max(s0,
    1)`.

    `names` gives the value of each name; a name may be a path such as `x.shape[0]`."""
    return Parser(text, PYTHON, names.get).read_all()


class GrammarError(Exception):
    """Raised by the functions of a grammar; the parser adds the place and makes it a ParseError."""


class Function(NamedTuple):
    build: Callable[..., Value]
    arity: int | None  # None: one or more
    keywords: bool = False


@dataclass(frozen=True)
class Grammar:
    functions: Mapping[str, Function]
    constants: Mapping[str, Value]
    refused: Mapping[str, str] = field(default_factory=dict)  # name → why it is no integer


class Token(NamedTuple):
    kind: str
    text: str
    position: int


_PATH = r"""[A-Za-z_]\w*(?:\.[A-Za-z_]\w*(?:\(\))?|\[(?:-?\d+|'[^'\\\n]*'|"[^"\\\n]*")\])*"""
_TOKEN = re.compile(
    rf"""\s*(?:(?P<number>\d+(?![\w.]))|(?P<name>{_PATH})|'(?P<string>[^'\\\n]*)'"""
    r"""|(?P<sign>//|\*\*|<=|>=|==|!=|[-+*%<>(),=])|(?P<end>$))""",
    re.ASCII,
)
_COMPARISONS: Mapping[str, Callable[[Size, Size], Condition]] = {
    "==": eq,
    "!=": ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OR, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _UNARY, _POWER = range(1, 9)
_BINDING = {
    "or": _OR,
    "and": _AND,
    **dict.fromkeys(_COMPARISONS, _COMPARISON),
    **dict.fromkeys(("+", "-"), _SUM),
    **dict.fromkeys(("*", "//", "%"), _PRODUCT),
    "**": _POWER,
}
_KEYWORDS = ("and", "or", "not")


class Parser:
    """One text, read once from left to right."""

    def __init__(self, text: str, grammar: Grammar, lookup: Callable[[str], Size | None]) -> None:
        self.text, self.grammar, self.lookup = text, grammar, lookup
        if len(text) > MAX_LENGTH:
            self.fail(f"{len(text)} characters are more than the {MAX_LENGTH} allowed", 0)
        self.tokens = self.tokenize()
        self.next = next(self.tokens)
        self.depth = 0

    def read_all(self) -> Size | Condition:
        value = self.read_expression(0)
        if self.next.kind != "end":
            self.fail(
                f"unexpected {self.next.text!r} after a complete expression", self.next.position
            )
        try:
            return value if type(value) is bool or isinstance(value, BoolExpr) else integer(value)
        except GrammarError as refusal:
            self.fail(str(refusal), 0)

    def fail(self, message: str, position: int) -> NoReturn:
        shortened = message if len(message) <= 300 else message[:297] + "..."
        raise ParseError(shortened, self.text, position)

    def tokenize(self) -> Iterator[Token]:
        position = 0
        while match := _TOKEN.match(self.text, position):
            kind = match.lastgroup or ""
            text, start = match[kind], match.start(kind)
            yield Token("sign" if text in _KEYWORDS and kind == "name" else kind, text, start)
            if kind == "end":
                return
            position = match.end()
        position += len(self.text[position:]) - len(self.text[position:].lstrip())
        self.fail("not part of an integer expression", position)

    def take(self) -> Token:
        token = self.next
        if token.kind != "end":
            self.next = next(self.tokens)
        return token

    def expect(self, sign: str) -> None:
        if self.next.kind != "sign" or self.next.text != sign:
            found = repr(self.next.text) if self.next.text else "the end"
            self.fail(f"expected {sign!r}, found {found}", self.next.position)
        self.take()

    def read_expression(self, above: int) -> Value:
        """The longest expression here whose operators bind tighter than `above`."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"nested deeper than {MAX_DEPTH} levels", self.next.position)
        value = self.read_operand()
        while self.next.kind == "sign" and _BINDING.get(self.next.text, 0) > above:
            value = self.read_infix(value)
        self.depth -= 1
        return value

    def read_operand(self) -> Value:
        token = self.take()
        if token.kind == "number":
            return self.build(token, _number, token.text)
        if token.kind == "name":
            return self.read_name(token)
        if token.text == "(" and token.kind == "sign":
            value = self.read_expression(0)
            self.expect(")")
            return value
        if token.text == "not" and token.kind == "sign":
            return self.build(token, negation, self.read_expression(_NOT))
        if token.text in ("-", "+") and token.kind == "sign":
            value = self.build(token, integer, self.read_expression(_UNARY))
            return -value if token.text == "-" else value
        found = repr(token.text) if token.text else "the end"
        return self.fail(f"expected a number, a name or '(', found {found}", token.position)

    def read_name(self, token: Token) -> Value:
        if token.text in self.grammar.refused:
            self.fail(f"{token.text}: {self.grammar.refused[token.text]}", token.position)
        if self.next.kind == "sign" and self.next.text == "(":
            return self.read_call(token)
        if token.text in self.grammar.constants:
            return self.grammar.constants[token.text]
        value = self.lookup(token.text)
        if value is None:
            self.fail(f"unknown name {token.text!r}", token.position)
        return value

    def read_call(self, token: Token) -> Value:
        function = self.grammar.functions.get(token.text)
        if function is None:
            known = ", ".join(sorted(self.grammar.functions))
            self.fail(f"unknown function {token.text!r} (known: {known})", token.position)
        args, keywords = self.read_arguments()
        if keywords and not function.keywords:
            self.fail(f"{token.text} takes no keyword {next(iter(keywords))!r}", token.position)
        if not args or (function.arity is not None and len(args) != function.arity):
            wanted = function.arity or "at least 1"
            self.fail(f"{token.text} takes {wanted} argument(s), not {len(args)}", token.position)
        return self.build(token, function.build, *args, **keywords)

    def read_arguments(self) -> tuple[list[Value], dict[str, Value]]:
        args: list[Value] = []
        keywords: dict[str, Value] = {}
        self.expect("(")
        while self.next.text != ")" or self.next.kind != "sign":
            if self.next.kind == "string":
                args.append(self.take().text)
            elif (keyword := self.read_keyword()) is not None:
                keywords[keyword] = self.read_expression(0)
            else:
                args.append(self.read_expression(0))
            if self.next.text != ",":
                break
            self.take()
        self.expect(")")
        return args, keywords

    def read_keyword(self) -> str | None:
        """The `integer` of `integer=True`, taken; None, and nothing taken, before an ordinary
        argument."""
        after = self.next.position + len(self.next.text)
        if self.next.kind != "name" or not re.match(r"\s*=(?!=)", self.text[after : after + 9]):
            return None
        name = self.take().text
        self.expect("=")
        return name

    def read_infix(self, left: Value) -> Value:
        token = self.next
        binding = _BINDING[token.text]
        if binding == _SUM:
            return self.read_sum(left)
        if binding == _COMPARISON:
            return self.read_comparison(left)
        self.take()
        # ** is right-associative, and its right side may start with a sign
        right = self.read_expression(binding if binding != _POWER else _UNARY - 1)
        return self.build(token, _OPERATORS[token.text], left, right)

    def read_sum(self, left: Value) -> Value:
        parts = [self.build(self.next, integer, left)]
        while self.next.kind == "sign" and self.next.text in ("+", "-"):
            token = self.take()
            part = self.build(token, integer, self.read_expression(_SUM))
            parts.append(part if token.text == "+" else -part)
        return total(parts)

    def read_comparison(self, left: Value) -> Value:
        """`a <= b`, and Python's `a <= b <= c`."""
        verdict: Condition = True
        while self.next.kind == "sign" and self.next.text in _COMPARISONS:
            token = self.take()
            right = self.read_expression(_COMPARISON)
            verdict = conjunction(verdict, self.build(token, compare, token.text, left, right))
            left = right
        return verdict

    def build(
        self, token: Token, build: Callable[..., Value], *args: Value, **keywords: Value
    ) -> Value:
        """Build a value; what is wrong with it is reported at `token`."""
        try:
            return build(*args, **keywords)
        except (GrammarError, ZeroDivisionError) as error:
            self.fail(str(error), token.position)


def _number(digits: str) -> int:
    if len(digits) > MAX_BITS // 4:
        raise GrammarError(f"a number of {len(digits)} digits is too large")
    return int(digits)


def integer(value: Value) -> Size:
    if isinstance(value, bool | BoolExpr):
        raise GrammarError("an integer is needed here, this is true or false")
    if not isinstance(value, int | Expr):
        raise GrammarError("an integer is needed here, this is not always a whole number")
    return value


def truth(value: Value) -> Condition:
    if not isinstance(value, bool | BoolExpr):
        raise GrammarError("a condition is needed here, this is a number")
    return value


def total(parts: list[Size]) -> Size:
    """The sum, added up as a balanced tree: a long one would cost the square of its length from
    left to right."""
    while len(parts) > 1:
        pairs = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[len(pairs) * 2 :]
    return parts[0]


def product(left: Value, right: Value) -> Size:
    a, b = integer(left), integer(right)
    (terms_a, degree_a, bits_a), (terms_b, degree_b, bits_b) = extent(a), extent(b)
    if (
        terms_a * terms_b > MAX_TERMS
        or degree_a + degree_b > MAX_DEGREE
        or bits_a + bits_b > MAX_BITS
    ):
        raise GrammarError("this product is too large")
    return a * b


def extent(e: Size) -> tuple[int, int, int]:
    """How many terms, of which degree, with coefficients of how many bits."""
    if isinstance(e, int):
        return 1, 0, e.bit_length()
    bits = max(c.bit_length() for c in e.terms.values())
    return len(e.terms), max(map(len, e.terms)), bits


def power(base: Value, exponent: Value) -> Size:
    n = integer(exponent)
    if not isinstance(n, int) or not 0 <= n <= MAX_BITS:
        raise GrammarError("an exponent must be a small natural number")
    result: Size = 1
    for _ in range(n):
        result = product(result, base)
    return result


def compare(sign: str, left: Value, right: Value) -> Condition:
    return _COMPARISONS[sign](integer(left), integer(right))


def for_integers(function: Callable[..., Size]) -> Callable[..., Size]:
    """The function, which refuses all but integers."""
    return lambda *values: function(*map(integer, values))


def for_conditions(function: Callable[..., Condition]) -> Callable[..., Condition]:
    """The function, which refuses all but conditions."""
    return lambda *values: function(*map(truth, values))


quotient = for_integers(operator.floordiv)
remainder = for_integers(operator.mod)
largest = for_integers(maximum)
smallest = for_integers(minimum)
conjunction = for_conditions(operator.and_)
disjunction = for_conditions(operator.or_)
negation = for_conditions(negate)

_OPERATORS: Mapping[str, Callable[[Value, Value], Value]] = {
    "or": disjunction,
    "and": conjunction,
    "*": product,
    "//": quotient,
    "%": remainder,
    "**": power,
}

PYTHON = Grammar(
    functions={"max": Function(largest, None), "min": Function(smallest, None)},
    constants={"True": True, "False": False},
)
