"""The environment: answers to each kind of question, guards with their reasons, texts of errors,
ranges, and the hard cases of real programs."""

from __future__ import annotations

import subprocess
import sys
from inspect import currentframe
from itertools import pairwise
from pathlib import Path

import pytest

from lostwax import sym
from lostwax.errors import ContradictionError, DataDependentError

HERE = Path(__file__)


@pytest.fixture
def env():
    return sym.ShapeEnv()


@pytest.fixture
def s(env):
    return env.symbol("s", hint=8, source="x.shape[0]")


@pytest.fixture
def u(env):
    return env.unbacked("u0", lo=0, origin="nonzero at model.py:12")


def line():
    """The line of the caller."""
    return currentframe().f_back.f_lineno


def texts(guards):
    return [sym.show(g.cond) for g in guards]


# ---- plain numbers pass through


def test_plain_numbers_need_no_environment():
    assert sym.eq(3, 3) is True
    assert sym.ne(3, 3) is False
    assert sym.maximum(3, 5, 4) == 5
    assert sym.minimum(3, 5, 4) == 3
    assert sym.ceildiv(9, 4) == 3
    assert sym.known(True) is True
    assert sym.decide(False) is False
    assert sym.decide_or(True, False) is True
    assert sym.expect(False) is False
    assert sym.specialize(7) == 7
    assert sym.current(7) == 7


def test_constant_results_are_plain_numbers(s):
    assert type(s - s) is int
    assert type(s * 0) is int
    assert type((2 * s + 1) % 2) is int
    assert sym.eq(s + 1, s + 1) is True
    assert sym.eq(s + 1, s) is False
    assert (s + 1 > s) is True


@pytest.mark.parametrize("use", [bool, int, lambda e: [1, 2, 3][e], lambda e: range(e)])
def test_an_expression_is_not_silently_a_number(s, use):
    with pytest.raises(TypeError, match=r"specialize|decide|known"):
        use(s)


def test_a_condition_is_not_silently_a_bool(s):
    with pytest.raises(TypeError, match="decide"):
        bool(s >= 4)


def test_two_environments_do_not_mix(s):
    with pytest.raises(ValueError, match="another ShapeEnv"):
        s + sym.ShapeEnv().symbol("t", hint=3)


# ---- the five questions


def test_known_never_guards(env, s):
    assert sym.known(s >= 0) is True
    assert sym.known(s < 0) is False
    assert sym.known(s >= 4) is None
    assert env.guards == []


def test_decide_follows_the_example_and_records_it(env, s):
    assert sym.decide(s >= 4) is True
    assert sym.decide(sym.eq(s % 2, 1)) is False
    assert texts(env.guards) == ["s >= 4", "s % 2 == 0"]
    assert [g.kind for g in env.guards] == ["branch", "branch"]


def test_what_was_decided_is_known(env, s):
    sym.decide(s >= 4)
    assert sym.known(s >= 3) is True
    assert sym.known(sym.eq(s, 2)) is False
    sym.decide(s >= 4)
    sym.decide(2 * s > 7)
    assert len(env.guards) == 1


def test_decide_or_takes_the_default_without_a_guard(env, s, u):
    assert sym.decide_or(sym.eq(u, 5), False) is False
    assert sym.decide_or(sym.eq(u, 5), True) is True
    assert sym.decide_or(s >= 100, False) is False
    assert sym.decide_or(s >= 4, True) is True
    assert env.guards == []


def test_decide_or_guards_where_the_example_differs(env, s):
    t = env.symbol("t", hint=8)
    assert sym.decide_or(sym.eq(s, t), False) is True
    assert texts(env.guards) == ["s == t"]


def test_decide_or_proves_first(env, s):
    assert sym.decide_or(s >= 0, False) is True
    assert sym.decide_or(s < 0, True) is False
    assert env.guards == []


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("question", [0, 1])
def test_sizes_0_and_1_are_sizes_like_any_other(env, size, question):
    """A layout question takes the default even if the example is 0 or 1; a branch guards."""
    n = env.symbol("n", hint=size)
    assert sym.known(sym.eq(n, question)) is None
    assert sym.decide_or(sym.eq(n, question), False) is False
    assert sym.decide_or(sym.ne(n, question), True) is True
    assert sym.decide_or(sym.eq(n * 64, 0), False) is False
    assert env.guards == []
    assert not isinstance(n + 1, int)
    assert sym.decide(sym.eq(n, question)) is (size == question)
    assert len(env.guards) == 1


def test_expect_is_a_check_of_the_program(env, s):
    assert sym.expect(s >= 4) is True
    assert [(g.kind, sym.show(g.cond)) for g in env.guards] == [("check", "s >= 4")]
    assert sym.expect(s >= 100) is False  # and the program may catch what is raised then
    assert [(g.kind, sym.show(g.cond)) for g in env.guards[1:]] == [("branch", "s <= 99")]


def test_expect_of_unbacked_is_a_run_time_assertion(env, u):
    assert sym.expect(u >= 4) is True
    assert [(g.kind, sym.show(g.cond)) for g in env.guards] == [("assert", "u0 >= 4")]
    assert sym.decide(u >= 2) is True


def test_specialize_fixes_the_value(env, s):
    assert sym.specialize(s // 4) == 2
    assert [g.kind for g in env.guards] == ["specialize"]
    assert env.bounds(s) == (8, 11)
    assert sym.specialize(s + 1) == 9
    assert sym.current(s) == 8


def test_specialize_asks_nothing_when_it_is_certain(env, s):
    assert sym.specialize(sym.minimum(s, -1)) == -1
    assert env.guards == []


def test_learned_facts_are_no_guards(env, s, u):
    env.learn(u <= s)
    assert sym.known(u <= s + 1) is True
    assert env.guards == []


def test_equalities_substitute(env, s):
    t = env.symbol("t", hint=8)
    env.assume(sym.eq(s, t), "check")
    assert sym.current(t) is sym.current(s)
    assert sym.known(sym.eq(s * 3 + 1, t * 3 + 1)) is True


def test_asking_twice_records_once(env, s):
    for _ in range(3):
        sym.decide(s >= 4)
        s // (s - 2)
    assert len(env.guards) == 1


# ---- division by what may be zero


def test_a_possible_zero_divisor_is_guarded(env, s):
    t = env.symbol("t", hint=3)
    assert (s // t).hint == 2
    assert [(g.kind, sym.show(g.cond)) for g in env.guards] == [("division", "t >= 1")] or [
        (g.kind, sym.show(g.cond)) for g in env.guards
    ] == [("division", "t != 0")]
    assert sym.known(t >= 1) is True


def test_a_zero_divisor_raises_as_in_python(env, s):
    zero = env.symbol("z", hint=0)
    for divide in (lambda: s // 0, lambda: s % 0, lambda: s // (s - s), lambda: 3 % zero):
        with pytest.raises(ZeroDivisionError):
            divide()


def test_division_by_unbacked_is_a_run_time_assertion(env, s, u):
    s % u
    assert [sym.show(g.cond) for g in env.guards] in (["u0 >= 1"], ["u0 != 0"])


def test_a_divisor_after_a_congruence(env):
    """s is 0 now, so the divisor u + s is u, and u is 0 or 1: it must be 1."""
    s = env.symbol("s", hint=0, lo=-3, hi=2)
    u = env.unbacked("u", lo=0, hi=1)
    assert sym.expect(sym.eq((2 - 2 * s) % 8, 2))
    assert sym.ceildiv(u, u + s) == 1
    assert all(sym.evaluate(g.cond, {**zero(s), **one(u)}) for g in env.guards)


def zero(e):
    return dict.fromkeys(e.symbols(), 0)


def one(e):
    return dict.fromkeys(e.symbols(), 1)


def test_an_assertion_may_put_a_zero_below_the_example(env):
    """With s = 1 the asserted u is 0, by which s was divided: not the user's ZeroDivisionError."""
    s = env.symbol("s", hint=1, lo=1, hi=7)
    u = env.unbacked("u", lo=1, hi=8)
    sym.expect(sym.eq(s // u, s))
    try:
        sym.expect(sym.eq(u, s // 2))
    except ContradictionError:
        return
    assert sym.known(u >= 1) is True


# ---- where and why


def test_a_guard_knows_the_users_line(env, s):
    sym.decide(sym.eq(s % 2, 0)); here = line()  # fmt: skip # noqa: E702
    (guard,) = env.guards
    assert (guard.where.file, guard.where.line) == (__file__, here)
    assert guard.where.function == "test_a_guard_knows_the_users_line"
    assert "sym.decide(sym.eq(s % 2, 0))" in guard.where.text
    assert f"test_env.py:{here}" in str(guard.where)


def test_every_kind_of_guard_has_a_place_and_a_reason(env, s, u):
    t = env.symbol("t", hint=3)
    sym.decide(s >= 4)
    sym.expect(s >= 5)
    sym.expect(u <= 7)
    s // t
    sym.specialize(t)
    assert [g.kind for g in env.guards] == ["branch", "check", "assert", "division", "specialize"]
    for guard in env.guards:
        assert guard.where.file == __file__
        assert guard.reason
    assert len({g.reason for g in env.guards}) == 5


def test_who_asked_can_be_said(env, s):
    env.assume(s >= 4, "check", asked_by="aten.view")
    (guard,) = env.guards
    assert guard.asked_by == "aten.view"
    assert guard.where.file == __file__


def test_a_question_about_data_says_where_it_came_from_and_what_to_write(env, u):
    with pytest.raises(DataDependentError) as caught:
        sym.decide(u >= 4)
    message = str(caught.value)
    assert "u0 >= 4" in message
    assert "nonzero at model.py:12" in message
    assert "test_env.py:" in message
    assert "sym.decide(u >= 4)" in message
    assert "torch._check(u0 >= 4)" in message
    assert "torch._check(u0 <= 3)" in message
    assert env.guards == []


def test_the_suggested_check_works(env, u):
    env.assume(u >= 4, "assert")
    assert sym.decide(u >= 4) is True


def test_a_number_needed_from_data_says_where_it_came_from(env, u):
    with pytest.raises(DataDependentError) as caught:
        sym.specialize(u + 1)
    message = str(caught.value)
    assert "u0 + 1" in message
    assert "nonzero at model.py:12" in message
    assert "sym.specialize(u + 1)" in message


def test_a_contradiction_names_the_facts(env, s):
    env.assume(s >= 10, "assert")
    with pytest.raises(ContradictionError) as caught:
        env.assume(s <= 5, "assert")
    assert "s <= 5" in str(caught.value)


# ---- ranges and guards in the end


def test_ranges_say_what_is_left(env, s, u):
    t = env.symbol("t", hint=6, lo=2, hi=20)
    sym.decide(s >= 4)
    sym.decide(t * 2 <= 25)
    sym.expect(u <= s)
    ranges = {symbol.name: (r.lo, r.hi) for symbol, r in env.ranges().items()}
    assert ranges["s"] == (4, None)
    assert ranges["t"] == (2, 12)
    assert ranges["u0"] == (0, None)


def test_minimal_guards_drop_what_follows(env, s):
    sym.decide(s >= 2)
    sym.decide(s >= 5)
    sym.decide(2 * s >= 7)
    assert texts(env.minimal_guards()) == ["s >= 5"]


def test_minimal_guards_keep_a_divisor_not_zero(env, s):
    t = env.symbol("t", hint=2)
    sym.decide(sym.eq(s % t, 0))
    kept = texts(env.minimal_guards())
    assert "s % t == 0" in kept
    assert len(kept) == 2


def test_derived_knowledge_is_reported_over_the_users_symbols(env, s):
    """`s % 8 == 0` may be kept as s = 8*t inside; no such t leaves the engine."""
    sym.decide(sym.eq(s % 8, 0))
    for e in (sym.current(s // 8), s // 8 + 1, s % 16):
        assert {x.name for x in e.symbols()} == {"s"}
    assert texts(env.minimal_guards()) == ["s % 8 == 0"]
    assert [x.name for x in env.ranges()] == ["s"]


# ---- hard cases, at the level of numbers


def certain(b):
    return sym.known(b) is True


def sizes(env, **hints):
    return [env.symbol(name, hint=hint) for name, hint in hints.items()]


def test_view_with_minus_one(env):
    b, s = sizes(env, b=4, s=7)
    assert b * s * 64 // 64 is b * s
    assert certain(sym.eq(b * s * 64 % 64, 0))
    assert env.guards == []
    assert b * s * 64 // b is s * 64
    assert texts(env.minimal_guards()) in (["b >= 1"], ["b != 0"])


def test_splitting_what_was_merged(env):
    b, s, h = sizes(env, b=4, s=7, h=16)
    assert certain(sym.eq((b * s) * h, b * s * h))
    assert env.guards == []


def test_view_that_halves_a_dimension(env):
    b, s = sizes(env, b=4, s=8)
    assert sym.expect(sym.eq(b * s * 64, b * (s // 2) * 128))
    for guard in env.guards:
        assert sym.show(guard.cond) in ("s % 2 == 0", "b*(s % 2) == 0")
    assert certain(sym.eq(s // 2 * 128, s * 64)) or certain(sym.eq(b * (s // 2) * 128, b * s * 64))


def test_conv_and_pool_chain(env):
    (h,) = sizes(env, h=224)
    side = h
    for _ in range(3):
        side = (side - 2) // 2 + 1
        assert sym.decide(side >= 1)
    assert side is h // 8
    assert texts(env.minimal_guards()) == ["h >= 8"]


def test_chunk(env):
    """chunk(2): the number of pieces is concrete, and costs comparisons, not an int()."""
    (s,) = sizes(env, s=9)
    piece = (s + 1) // 2
    assert sym.decide(piece < s)
    assert sym.decide(s <= 2 * piece)
    assert texts(env.minimal_guards()) == ["s >= 2"]


def test_slices_from_the_end(env):
    """x[:, -n:] has min(n, s) columns."""
    s, n = sizes(env, s=10, n=3)
    start = sym.maximum(s - n, 0)
    assert certain(sym.eq(s - start, sym.minimum(n, s)))
    assert env.guards == []


def test_shifted_slices_match(env):
    """x[:, :-1] and x[:, 1:] have the same length, also for s = 0."""
    (s,) = sizes(env, s=10)
    without_last = sym.maximum(s - 1, 0)
    without_first = s - sym.minimum(1, s)
    assert certain(sym.eq(without_last, without_first))
    assert env.guards == []


def test_a_loop_over_a_symbolic_count(env):
    (s,) = sizes(env, s=10)
    assert len(range(sym.specialize(s // 4))) == 2
    assert env.bounds(s) == (8, 11)


def test_nonzero_stays_below_numel(env):
    (s,) = sizes(env, s=10)
    u = env.unbacked(origin="nonzero at model.py:3")
    env.learn(u >= 0)
    env.learn(u <= s)
    assert certain(2 * u <= 2 * s)
    assert sym.expect(u >= 1)
    assert certain(s >= 1)
    assert [g.kind for g in env.guards] == ["assert"]


def test_two_halves_are_recorded_exactly(env):
    """Not decided by every engine: then it must be a guard that admits every size."""
    (s,) = sizes(env, s=10)
    assert sym.expect(sym.eq(s // 2 + (s + 1) // 2, s))
    symbol = next(iter(s.symbols()))
    for n in range(12):
        assert all(sym.evaluate(g.cond, {symbol: n}) for g in env.guards)


# ---- the layer


def test_the_engine_imports_neither_torch_nor_sympy():
    code = (
        "import sys, lostwax.sym as sym\n"
        "e = sym.ShapeEnv(); s = e.symbol(hint=4); sym.decide(sym.eq(s % 2, 0)); e.violations()\n"
        "print([m for m in ('torch', 'sympy', 'numpy', 'z3') if m in sys.modules])"
    )
    root = HERE.parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert done.stdout.strip() == "[]"


def test_what_is_so_for_each_remainder_is_so():
    """`round(n / 2)` is not negative: no guard, whatever came before."""
    env = sym.ShapeEnv()
    n = env.symbol(hint=3, source="n")
    odd = (n + n // 2) % 2
    b = 2 * sym.minimum(-1, -2 * (n % 2)) * odd + n + 2 * odd >= -1
    assert env.known_by_residues(b) is True
    assert sym.decide(b) is True
    assert sym.expect(b) is True
    assert env.guards == []


def test_a_fact_whose_forms_lead_to_each_other_ends():
    env = sym.ShapeEnv()
    u, s = env.unbacked(lo=-9, hi=9), env.symbol(hint=3, lo=2, source="s")
    sym.expect(sym.ne(u, 0))
    sym.expect(sym.eq(s, sym.maximum(-s, s // u)))
    assert sym.expect(sym.eq(s % 3, 0))


def test_halves_rounded_up_are_one_floor(env, s):
    """Strided convolutions, one after the other, in each of the ways to write it."""
    spellings = (lambda x: (x + 1) // 2, lambda x: (x - 1) // 2 + 1, lambda x: -(-x // 2))
    for spelling in spellings:
        sizes = [s]
        for _ in range(5):
            sizes.append(spelling(sizes[-1]))
        assert [str(size) for size in sizes[2:]] == [f"(s + {n - 1})//{n}" for n in (4, 8, 16, 32)]
        for larger, smaller in pairwise(sizes):
            assert sym.known(sym.eq(larger // 2 + smaller, larger)) is True
            assert sym.known(sym.eq(larger - smaller, larger // 2)) is True


def test_pieces_add_up(env, s):
    for count in (2, 4, 8, 16):
        pieces = [(s + i) // count for i in range(count)]
        assert sym.known(sym.eq(sum(pieces), s)) is True
        assert sym.known(sym.eq(sum(pieces), s + 1)) is False


def test_places_of_a_pyramid_are_not_negative(env, s):
    t, batch = env.symbol("t", hint=6), env.symbol("batch", hint=2)
    places, height, width = 0, s, t
    for _ in range(5):
        height, width = (height + 1) // 2, (width + 1) // 2
        places = places + height * width
    assert sym.known(places >= 0) is True
    assert sym.known(batch * places >= 0) is True
    assert sym.known(places >= 1) is None
    env.learn((s >= 1) & (t >= 1))
    assert sym.known(places >= 1) is True


def test_floors_of_max_and_min_are_those_of_their_parts(env, s):
    assert sym.maximum(1, s) // 2 is s // 2
    assert str((sym.maximum(s, 5) + 1) // 2) == str(sym.maximum((s + 1) // 2, 3))
    assert str(sym.minimum(s, 5) // 2) == str(sym.minimum(s // 2, 2))


def test_in_a_branch_the_example_refutes_nothing(env, s):
    other = env.symbol("t", hint=8, source="y.shape[0]")
    with env.trial() as guards:
        env.absorb(s <= 3)  # the example, 8, is not there
        assert sym.known(s + other <= other + 5) is True
        assert sym.expect(sym.eq(s, 2))
        assert not sym.matches(sym.eq(other, 8))
        with pytest.raises(DataDependentError, match="example, where it is 8, does not take"):
            sym.specialize(other)
    assert texts(guards) == ["s == 2"]
    assert not sym.expect(sym.eq(s, 2))
