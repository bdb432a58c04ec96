"""Properties that hypothesis tries to break, and shrinks when it can."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lostwax import sym
from lostwax.sym.text.parse import parse
from lostwax.sym.text.show import to_srepr
from lostwax.sym.text.srepr import parse_srepr
from tests.sym.trees import build, evaluate, value
from tests.sym.trial import CONDITIONS, NUMBERS, Spec, Stop, Tally, Trial, names

NAMES = ("a", "b", "p")  # p is positive: a divisor that needs no guard
GRID = np.array(list(itertools.product((-4, -1, 0, 3), (0, 1, 2, 7), (1, 2, 5))), dtype=np.int64)
COLUMNS = dict(zip(NAMES, GRID.T, strict=True))

leaves = st.one_of(st.sampled_from(NAMES), st.sampled_from([0, 1, 2, 3, 4, 8, -1, -2, 7]))
divisors = st.sampled_from([2, 3, 4, 8, -2, "p"])


def _grow(inner):
    return st.one_of(
        st.tuples(st.sampled_from(["+", "-", "*", "max", "min"]), inner, inner),
        st.tuples(st.sampled_from(["//", "%", "ceildiv"]), inner, divisors),
    )


trees = st.recursive(leaves, _grow, max_leaves=7)
comparisons = st.tuples(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), trees, trees)
conditions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["and", "or"]), inner, inner), st.tuples(st.just("not"), inner)
    ),
    max_leaves=3,
)
anything = st.one_of(trees, conditions)


def fresh():
    env = sym.ShapeEnv()
    return {
        "a": env.symbol("a", hint=3, lo=None),
        "b": env.symbol("b", hint=2, lo=0, source="x.shape[0]"),
        "p": env.symbol("p", hint=5, lo=1, source="y['k'].shape[1]"),
    }


def by_symbol(symbols):
    return {next(iter(e.symbols())): COLUMNS[name] for name, e in symbols.items()}


def all_equal(left, right):
    return (np.broadcast_to(left, len(GRID)) == np.broadcast_to(right, len(GRID))).all()


@given(anything)
def test_an_expression_means_what_python_means(tree):
    symbols = fresh()
    got, defined = value(build(tree, symbols), by_symbol(symbols))
    assert np.all(defined)
    assert all_equal(got, evaluate(tree, COLUMNS)[0])


@given(anything)
def test_equal_is_identical(tree):
    symbols = fresh()
    assert build(tree, symbols) is build(tree, symbols) or isinstance(build(tree, symbols), int)


@given(trees, trees)
def test_identical_is_equal(left, right):
    symbols = fresh()
    a, b = build(left, symbols), build(right, symbols)
    if a is b:
        assert all_equal(evaluate(left, COLUMNS)[0], evaluate(right, COLUMNS)[0])


def _quotients(tree):
    """How deep quotients and remainders stand in each other."""
    if not isinstance(tree, tuple):
        return 0
    return (tree[0] in ("//", "%", "ceildiv")) + max(map(_quotients, tree[1:]))


def _same_value(tree, draw):
    """Another tree that is equal by the laws of arithmetic, rewritten at random all over."""
    if not isinstance(tree, tuple):
        return draw(
            st.sampled_from([tree, ("+", tree, 0), ("*", 1, tree), ("-", 0, ("-", 0, tree))])
        )
    operator, left, right = tree[0], _same_value(tree[1], draw), _same_value(tree[2], draw)
    return draw(st.sampled_from(_spellings(operator, left, right)))


def _spellings(operator, left, right):
    forms = [(operator, left, right)]
    if operator in ("+", "*", "max", "min"):
        forms.append((operator, right, left))
    if operator == "-":
        forms += [("+", left, ("*", -1, right)), ("-", 0, ("-", right, left))]
    if operator == "+":
        forms += [("-", left, ("-", 0, right)), ("-", ("+", left, ("+", right, "a")), "a")]
    if operator == "*" and isinstance(right, tuple) and right[0] in ("+", "-"):
        forms.append((right[0], ("*", left, right[1]), ("*", left, right[2])))
    if operator == "%" and isinstance(right, int):
        forms += [("-", left, ("*", right, ("//", left, right))), ("%", ("+", left, right), right)]
    if operator == "//" and isinstance(right, int):
        forms += [("-", ("//", ("+", left, right), right), 1), ("//", ("*", 3, left), 3 * right)]
    if operator == "ceildiv" and isinstance(right, int):
        forms.append(("-", 0, ("//", ("-", 0, left), right)))
        forms += [("//", ("+", left, right - 1), right)] if right > 0 else []
    return forms


@pytest.mark.parametrize("divisor", range(2, 10))
@pytest.mark.parametrize("factor", range(1, 6))
def test_both_spellings_of_a_rounded_up_quotient_are_one(divisor, factor):
    b, p = fresh()["b"], fresh()["p"]
    for above in (factor * b, factor * b + 3, factor * b * b + b, factor * p + 1):
        added = (above + divisor - 1) // divisor
        assert -(-above // divisor) is added
        assert sym.ceildiv(above, divisor) is added
        assert above + -above % divisor is added * divisor


@settings(max_examples=500)
@given(trees, st.data())
def test_one_value_has_one_form(tree, data):
    """The same object; with a quotient inside a quotient at least none that is known to differ."""
    symbols = fresh()
    other = _same_value(tree, data.draw)
    one, two = build(tree, symbols), build(other, symbols)
    if _quotients(tree) > 1:
        assert sym.known(sym.eq(one, two)) is not False, (one, two, other)
    else:
        assert one is two or (isinstance(one, int) and one == two), (one, two, other)


@given(anything)
def test_python_text_comes_back_as_the_same_object(tree):
    symbols = fresh()
    e = build(tree, symbols)
    again = parse(sym.show(e), symbols)
    assert again is e or (isinstance(e, int) and again == e), sym.show(e)


@given(anything)
def test_python_text_is_python(tree):
    symbols = fresh()
    text = sym.show(build(tree, symbols))
    row = {name: int(column[5]) for name, column in COLUMNS.items()}
    want = np.broadcast_to(evaluate(tree, COLUMNS)[0], len(GRID))[5]
    assert eval(text, {"max": max, "min": min}, row) == want, text


@given(anything)
def test_text_over_sources_comes_back(tree):
    symbols = fresh()
    e = build(tree, symbols)
    sources = {"b": "x.shape[0]", "p": "y['k'].shape[1]", "a": "n"}
    table = {next(iter(symbols[k].symbols())): text for k, text in sources.items()}
    again = parse(sym.show(e, table), {text: symbols[k] for k, text in sources.items()})
    assert again is e or (isinstance(e, int) and again == e), sym.show(e, table)


@given(anything)
def test_srepr_text_comes_back_as_the_same_object(tree):
    symbols = fresh()
    e = build(tree, symbols)
    again = parse_srepr(to_srepr(e), symbols)
    assert again is e or (isinstance(e, int) and again == e), to_srepr(e)


@settings(max_examples=60)
@given(anything)
def test_srepr_text_means_the_same_to_sympy(tree):
    """Written for the real reader, read back from what the real writer makes of it."""
    sympy = pytest.importorskip("sympy")
    functions = vars(pytest.importorskip("torch.utils._sympy.functions"))
    symbols = fresh()
    theirs = sympy.sympify(to_srepr(build(tree, symbols)), locals=dict(functions))
    back = parse_srepr(sympy.srepr(theirs), symbols)
    got, _ = value(back, by_symbol(symbols))
    assert all_equal(got, evaluate(tree, COLUMNS)[0]), sympy.srepr(theirs)


@given(conditions)
def test_not_not_is_nothing(tree):
    b = build(tree, fresh())
    assert isinstance(b, bool) or ~~b is b


def _specs(draw):
    lo = draw(st.sampled_from([0, 1, 2, -3]))
    hi = lo + draw(st.integers(1, 6))
    return Spec(lo, hi, draw(st.one_of(st.none(), st.integers(lo, hi))))


@settings(max_examples=150)
@given(st.data())
def test_a_conversation_that_shrinks(data):
    """The brute-force trial again, with choices that hypothesis can make smaller."""
    specs = [_specs(data.draw) for _ in range(data.draw(st.integers(1, 3)))]
    known = st.sampled_from(names(specs))
    leaf = st.one_of(known, st.sampled_from([0, 1, 2, 3, 4, 8, -1, -2, 7]))
    tree = st.recursive(
        leaf,
        lambda x: st.tuples(st.sampled_from(["+", "-", "*", "max", "min", "//", "%"]), x, x),
        max_leaves=5,
    )
    condition = st.tuples(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), tree, tree)
    trial = Trial(specs, Tally())
    try:
        for _ in range(data.draw(st.integers(1, 8))):
            kind = data.draw(st.sampled_from(sorted({*CONDITIONS, *NUMBERS})))
            trial.perform(kind, data.draw(tree if kind in NUMBERS else condition))
    except Stop:
        pass
    trial.close()
