"""Random programs: the exported program does what the module does.

Values, sizes, dtypes and strides of results; what is written to inputs and buffers; which results
share memory with inputs, state or each other. Each program runs twice, so that state carries over.
A refusal is no fault here, but is counted; its reasons are shown by

    python -m tests.capture.aliasing.test_fuzz [count [first seed]]
"""

from __future__ import annotations

import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from torch import Tensor, nn

from lostwax.capture import export
from lostwax.errors import LostwaxError, VerificationError
from lostwax.ir.program import ExportedProgram
from tests.capture.compare import aliasing, differences, run
from tests.capture.programs import Program, generate
from tests.whole import sampled

Transform = Callable[[ExportedProgram], ExportedProgram]
CHUNKS, SIZE = sampled(4, 25), 100
"""2,500 programs in CI, in pieces that a run in parallel can share out."""


@dataclass
class Outcome:
    """What became of one program."""

    program: Program
    wrong: list[str] = field(default_factory=list)
    aliases: list[str] = field(default_factory=list)
    refused: str = ""


def check(program: Program, transform: Transform | None = None) -> Outcome:
    """Export a program, transform it, and compare it with eager."""
    outcome = Outcome(program)
    eager, eager_args = program.fresh()
    try:
        want = run(eager, eager_args, 0)
    except Exception as error:  # a line that was tried while it grew left something behind
        outcome.refused = f"eager: {type(error).__name__}"
        return outcome
    module, args = program.fresh()
    before = _content(module, args)
    try:
        exported = export(module, args)
        exported.validate()
        if transform is not None:
            exported = transform(exported)
    except VerificationError as error:
        outcome.wrong.append(str(error))
        return outcome
    except LostwaxError as error:
        outcome.refused = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        return outcome
    except Exception as error:
        outcome.wrong.append(f"export raises {type(error).__name__}: {error}")
        return outcome
    if _content(module, args) != before:
        outcome.wrong.append("export changed the module or its inputs")
    ours = exported.module()
    for again in range(2):
        if again:
            try:
                want = run(eager, program.fresh()[1], again)
            except Exception:
                break  # a second run on what the first has left need not be possible
        try:
            got = run(ours, program.fresh()[1], again)
        except Exception as error:
            outcome.wrong.append(f"run {again} raises {type(error).__name__}: {error}")
            break
        outcome.wrong += differences(got, want)
        outcome.aliases += aliasing(got, want)
        if _layout(eager) != _layout(ours):
            break  # the module now computes in other strides than the program
    return outcome


def _layout(module: nn.Module) -> list[Any]:
    return [b.stride() for b in module.buffers()]


def _content(module: nn.Module, args: tuple[Any, ...]) -> Any:
    """All that export might have changed, comparable."""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    tensors = [*state.items(), *((str(i), a) for i, a in enumerate(args) if isinstance(a, Tensor))]
    return [
        (name, id(t), t.shape, t.stride(), t.dtype, t.detach().flatten().tolist().__repr__())
        for name, t in tensors
    ], sorted(module.__dict__)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_programs(chunk: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcomes = [check(generate(seed)) for seed in range(chunk * SIZE, (chunk + 1) * SIZE)]
    for outcome in outcomes:
        problems = outcome.wrong + outcome.aliases
        assert not problems, _told(outcome)
    assert sum(bool(o.refused) for o in outcomes) < SIZE / 3


def test_modules_of_programs_are_captured_as_the_original_is() -> None:
    """Other programs, captured from the module of their program."""
    for seed in range(9000, 9000 + sampled(20, 100)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = generate(seed)
            args = program.fresh()[1]
            outcome = check(program, lambda first, args=args: export(first.module(), args))
        assert not outcome.wrong + outcome.aliases, _told(outcome)


def _told(outcome: Outcome) -> str:
    lines = [f"seed {outcome.program.seed}", outcome.program.source]
    return "\n".join([*lines, *outcome.wrong, *outcome.aliases])


def main(count: int = 1000, first: int = 0) -> int:
    warnings.simplefilter("ignore")
    refusals: Counter[str] = Counter()
    wrong = aliased = 0
    started = time.perf_counter()
    for seed in range(first, first + count):
        outcome = check(generate(seed))
        if outcome.refused:
            refusals[re.sub(r"\([\d, ]*\)|\d+", "#", outcome.refused)] += 1
        if outcome.wrong or outcome.aliases:
            print(_told(outcome), end="\n\n")
        wrong += bool(outcome.wrong)
        aliased += bool(outcome.aliases)
    for reason, times in refusals.most_common():
        print(f"{times:6d} {reason}")
    print(
        f"{count} programs in {time.perf_counter() - started:.1f} s: {wrong} wrong, "
        f"{aliased} with other aliasing, {refusals.total()} refused"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
