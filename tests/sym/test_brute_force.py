"""100,000 random questions to the engine (10,000 without `make fuzz`), each answered by brute force
over small integers too: not one may differ."""

from __future__ import annotations

import pytest

from lostwax import sym
from tests.sym.trial import converse
from tests.whole import sampled

CHUNKS, QUESTIONS = sampled(2, 20), 5_000


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_wrong_answer_and_nine_in_ten_decided(chunk, record_property):
    tally = converse(first_seed=chunk * 1_000_000, questions=QUESTIONS)
    record_property("tally", str(tally))
    print(f"chunk {chunk}: {tally}")
    assert tally.determined > QUESTIONS // 10
    assert tally.share >= 0.90, "\n".join(tally.undecided[:20])
    assert tally.lost <= 0.02 * tally.admitted


def test_an_engine_that_guesses_is_caught(monkeypatch):
    proven = sym.known
    monkeypatch.setattr(sym, "known", lambda b: proven(b) is not False)
    with pytest.raises(AssertionError, match="known"):
        converse(first_seed=0, questions=200)


def test_an_engine_that_forgets_a_guard_is_caught(monkeypatch):
    monkeypatch.setattr(sym, "decide", lambda b: b if isinstance(b, bool) else b.hint)
    with pytest.raises(AssertionError, match="the guards admit too much"):
        converse(first_seed=0, questions=1_000)
