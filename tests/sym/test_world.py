"""Environments that were told the same are in one world; any difference makes another."""

import pytest

from lostwax.errors import ContradictionError
from lostwax.sym import ShapeEnv, decide, eq, expect, world
from lostwax.sym.world import form


def batch_and_length(**given):
    env = ShapeEnv()
    declared = {"hint": 4, "lo": 0, "hi": None, "source": "x.size(0)", "declared": "batch"} | given
    return env, env.symbol(**declared), env.symbol(hint=7)


def test_the_same_symbols_and_facts_are_one_world():
    (env, _, n), (other, _, m) = batch_and_length(), batch_and_length()
    assert env.facts.world is other.facts.world is not None
    assert expect(n <= 9)
    assert env.facts.world is not other.facts.world
    assert expect(m <= 9)
    assert env.facts.world is other.facts.world


@pytest.mark.parametrize(
    "given", [{"hint": 5}, {"lo": 1}, {"hi": 64}, {"source": "y.size(0)"}, {"declared": None}]
)
def test_a_symbol_that_differs_makes_another_world(given):
    assert batch_and_length(**given)[0].facts.world is not batch_and_length()[0].facts.world


def test_the_order_of_facts_makes_another_world():
    (env, b, n), (other, c, m) = batch_and_length(), batch_and_length()
    assert [expect(n <= 9), decide(b >= 2)] == [True, True]
    assert [decide(c >= 2), expect(m <= 9)] == [True, True]
    assert env.facts.world is not other.facts.world


def test_what_cannot_be_told_elsewhere_is_in_no_world():
    env, _, n = batch_and_length()
    assert decide(eq(n % 2, 1))
    assert env.facts.world is None
    env, _, n = batch_and_length()
    env.unbacked()
    assert env.facts.world is None


def test_trials_and_contradictions_are_in_no_world():
    env, b, n = batch_and_length()
    before = env.facts.world
    with env.trial():
        assert env.facts.world is None
    assert env.facts.world is before
    with pytest.raises(ContradictionError):
        env.absorb((n + b >= 8) & (n + b <= 6))
    assert env.facts.world is None


def test_a_symbol_that_is_born_in_a_trial_counts():
    env, _, _ = batch_and_length()
    before = env.facts.world
    with env.trial():
        env.symbol(hint=3)
    assert env.facts.world is not before


def test_forms_are_of_symbols_by_their_places():
    (_, b, n), (other, c, m) = batch_and_length(), batch_and_length()
    assert form(3 * b * n + n - 2) is form(m - 2 + m * c * 3) is not None
    assert form(b) is not form(m)
    assert other.exprs_by_form[form(2 * b * b)] is 2 * c * c
    assert form(n // 2) is None
    assert form((b + 1) * (n + 1)) is None  # which knows that it is a product


def test_what_is_forgotten_is_found_by_nobody():
    (env, _, n), (other, _, m) = batch_and_length(), batch_and_length()
    assert expect(n <= 9)
    held = env.facts.world
    held.keep("question", "answer")
    world.forget()
    assert held.find("question") is None
    assert expect(m <= 9)
    assert other.facts.world is not held
    assert batch_and_length()[0].facts.world is batch_and_length()[0].facts.world


def test_facts_are_tried_as_long_as_a_trial_lasts():
    env, b, n = batch_and_length()
    with env.trial():
        assert not env.facts.are_tried
        assert decide(b >= 2)
        assert env.facts.are_tried
        with env.trial():
            assert env.facts.are_tried
    assert decide(n >= 2)
    assert not env.facts.are_tried
