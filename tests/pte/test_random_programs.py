"""A few random programs in the runtime; `python -m fuzz.executable` runs thousands."""

from __future__ import annotations

import pytest

from fuzz.executable import IN_PYTHON, Program, generate, judge
from tests.pte.runtime import portable  # without the runtime, these are skipped
from tests.whole import sampled

COUNT = sampled(10, 25)


@pytest.mark.filterwarnings("ignore")
def test_programs_do_in_the_runtime_what_they_do_in_eager() -> None:
    assert portable is not None
    outcomes = [(program.seed, *judge(program)) for program in map(generate, range(COUNT))]
    assert [o for o in outcomes if o[1] not in ("right", "refused")] == []
    assert sum(o[1] == "right" for o in outcomes) > COUNT // 2


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the loop of the example is another than that of the calls, results differ."""
    program = Program(
        0, ("v = cond(x.sum() > 99, lambda x: x, lambda x: x + 1, (x,))",), ("v",), False
    )
    assert judge(program)[0] == "right"
    monkeypatch.setitem(IN_PYTHON, "cond", lambda condition, yes, no, operands: yes(*operands))
    assert judge(program)[0] == "wrong"
