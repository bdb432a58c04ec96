"""Random programs with symbolic sizes: exported at one size, they do at every other size what eager
does, or say which condition is broken.

Values, sizes and dtypes of results, and what is written to inputs and buffers. Strides are counted
apart: where eager takes a view at some sizes only, the program may copy. Wrong is also an error
that is not the program's own, and a program that cannot be built. A refusal to export is no fault
here, but is counted; its reasons are shown by

    python -m tests.capture.shapes.test_fuzz_sizes [count [first seed]]
"""

from __future__ import annotations

import random
import re
import sys
import time
import warnings
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
from torch import Tensor

from lostwax import Dim, export
from lostwax.errors import LostwaxError, VerificationError
from tests.capture.compare import differences, run
from tests.capture.programs import Program
from tests.capture.shapes.sized_programs import generate, resized, state_of
from tests.whole import sampled

CHUNKS, SIZE = sampled(2, 6), 40
"""240 programs in CI, in pieces that a run in parallel can share out."""
OWN = ("is required at", "Runtime assertion failed", "as at capture: the program relies on them")
"""What assertions of the graph say."""
VALUES = (0, 1, 2, 3, 4, 5, 7, 11)


@dataclass
class Outcome:
    """What became of one program."""

    program: Program
    wrong: list[str] = field(default_factory=list)
    refused: str = ""
    compared: int = 0
    """Sizes at which both ran."""
    guarded: int = 0
    """Sizes that the program refuses and eager does not."""
    layouts: int = 0
    """Sizes at which only strides differ."""


def check(program: Program) -> Outcome:
    outcome = Outcome(program)
    eager, args = program.fresh()
    try:
        run(eager, args, 0)
    except Exception as error:
        outcome.refused = f"eager: {type(error).__name__}"
        return outcome
    module, args = program.fresh()
    spec = [
        (dict.fromkeys(range(a.dim()), Dim.AUTO) if isinstance(a, Tensor) else None) for a in args
    ]
    try:
        exported = export(module, args, dynamic_shapes=tuple(spec))
        exported.validate()
    except VerificationError as error:
        outcome.wrong.append(str(error))
        return outcome
    except LostwaxError as error:
        outcome.refused = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        return outcome
    except Exception as error:
        if _is_eagers(program, error):
            outcome.refused = f"as eager at other sizes: {error}"
        else:
            outcome.wrong.append(f"export raises {type(error).__name__}: {error}")
        return outcome
    for sizes in _sizes(program):
        _compare(outcome, exported, sizes)
        if outcome.wrong:
            break
    return outcome


def _is_eagers(program: Program, error: Exception) -> bool:
    """Does eager say the same at some sizes, though not at the example's? `x.view(torch.int16)` of
    what is a single column there."""
    for sizes in _sizes(program):
        try:
            run(state_of(program), resized(program, sizes), 0)
        except Exception as its:
            if str(its)[:20] == str(error)[:20]:
                return True
    return False


def _sizes(program: Program) -> list[dict[int, int]]:
    """Other values for the sizes that occur; first their own."""
    rng = random.Random(program.seed)
    own = sorted({s for a in program.args if isinstance(a, Tensor) for s in a.shape})
    found = [{s: s for s in own}]
    found += [{**found[0], s: n} for s in own for n in rng.sample(VALUES, 3)]
    found += [{s: rng.choice(VALUES) for s in own} for _ in range(4)]
    return found if own else found[:1]


def _compare(outcome: Outcome, exported: Any, sizes: dict[int, int]) -> None:
    args = resized(outcome.program, sizes)
    again = deepcopy(args)
    try:
        want = run(state_of(outcome.program), args, 0)
    except Exception:
        return  # what the program does there is its own affair
    try:
        got = run(exported.module(), again, 0)
    except LostwaxError:
        outcome.guarded += 1
        return
    except RuntimeError as error:
        if any(text in str(error) for text in OWN):
            outcome.guarded += 1
        else:
            outcome.wrong.append(f"{sizes}: raises {type(error).__name__}: {error}")
        return
    except Exception as error:
        outcome.wrong.append(f"{sizes}: raises {type(error).__name__}: {error}")
        return
    found = differences(got, want)
    outcome.compared += 1
    outcome.layouts += any(": strides " in text for text in found)
    outcome.wrong += [f"{sizes}: {text}" for text in found if ": strides " not in text]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_programs(chunk: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcomes = [check(generate(seed)) for seed in range(chunk * SIZE, (chunk + 1) * SIZE)]
    for outcome in outcomes:
        assert not outcome.wrong, _told(outcome)
    assert sum(bool(o.refused) for o in outcomes) < SIZE / 2
    assert sum(o.compared for o in outcomes) > 3 * SIZE


def _told(outcome: Outcome) -> str:
    return "\n".join([f"seed {outcome.program.seed}", outcome.program.source, *outcome.wrong])


def main(count: int = 1000, first: int = 0) -> int:
    warnings.simplefilter("ignore")
    refusals: Counter[str] = Counter()
    total: Counter[str] = Counter()
    started = time.perf_counter()
    for seed in range(first, first + count):
        outcome = check(generate(seed))
        if outcome.refused:
            refusals[re.sub(r"\([\d, ]*\)|\d+", "#", outcome.refused)] += 1
        if outcome.wrong:
            print(_told(outcome), end="\n\n", flush=True)
        for what in ("compared", "guarded", "layouts"):
            total[what] += getattr(outcome, what)
        total["wrong"] += bool(outcome.wrong)
    for reason, times in refusals.most_common():
        print(f"{times:6d} {reason}")
    print(
        f"{count} programs in {time.perf_counter() - started:.1f} s: {total['wrong']} wrong, "
        f"{refusals.total()} refused; at {total['compared']} sizes as eager, of these "
        f"{total['layouts']} in other strides; {total['guarded']} sizes refused by a condition"
    )
    return int(total["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
