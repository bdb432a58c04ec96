"""Random programs through all passes: they still do what eager does, and share the same memory.

python -m tests.ir.passes.test_random_passes [count [first seed]]
"""

from __future__ import annotations

import random
import sys
import warnings

import pytest
import torch

from lostwax import Dim, default_decompositions, export
from lostwax.errors import PassError
from lostwax.ir.program import ExportedProgram
from lostwax.passes import (
    CommonSubexpressions,
    ConstantFolding,
    DeadCode,
    Decompose,
    FoldBatchNorm,
    FxPass,
    MoveToDevice,
    NoOps,
    Pipeline,
    RuntimeAssertions,
    UnusedState,
)
from tests.capture.aliasing.test_fuzz import Outcome, check
from tests.capture.programs import generate
from tests.capture.shapes import test_fuzz_dims as fuzz_dims
from tests.whole import sampled

CHUNKS, SIZE = sampled(1, 5), 40
ALL = Pipeline(
    (
        NoOps(),
        RuntimeAssertions(),
        CommonSubexpressions(),
        FxPass(lambda module: None, name="nothing"),
        ConstantFolding(),
        FoldBatchNorm(),
        DeadCode(),
        NoOps(),
        CommonSubexpressions(),
        MoveToDevice("cpu"),
    )
)


def transformed(program: ExportedProgram) -> ExportedProgram:
    """Through all passes that keep the state; the others must accept it, too."""
    text = str(program)
    after = ALL(program)
    UnusedState()(after)
    MoveToDevice("meta")(after)
    assert str(program) == text, "a pass changed the program that it was given"
    return after


def checked(seed: int) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return check(generate(seed), transformed)
        except (PassError, AssertionError) as error:
            return Outcome(generate(seed), [repr(error)])


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_programs(chunk: int) -> None:
    for seed in range(chunk * SIZE, (chunk + 1) * SIZE):
        outcome = checked(seed)
        wrong = [*outcome.wrong, *outcome.aliases]
        assert not wrong, "\n".join([f"seed {seed}", outcome.program.source, *wrong])


@pytest.mark.parametrize("seed", range(90, sampled(96, 110)))
def test_random_sizes(seed: int) -> None:
    """Programs that ask about their sizes: after all passes they accept the sizes they accepted
    before; and the assertions in the graph refuse the others without further checks."""
    choose = random.Random(seed)
    torch.manual_seed(seed)
    function = fuzz_dims.program(choose)
    sizes = [choose.randint(1, 12) for _ in range(4)]
    args = fuzz_dims.inputs(sizes)
    if isinstance(fuzz_dims.attempted(function, args), Exception):
        return
    shapes = dict.fromkeys(("x", "y"), (Dim.AUTO, Dim.AUTO))
    apart = Decompose(default_decompositions())
    before = export(function, args, dynamic_shapes=shapes)
    after = Pipeline((RuntimeAssertions(), ALL, apart, CommonSubexpressions()))(before)
    modules = before.module(), after.module(), after.module(check_guards=False)
    for _ in range(15):
        args = fuzz_dims.inputs([choose.choice((n, *fuzz_dims.SIZES)) for n in sizes])
        wanted, got, unchecked = (fuzz_dims.attempted(module, args) for module in modules)
        if isinstance(wanted, Exception):
            assert isinstance(got, Exception)
            assert isinstance(unchecked, Exception), wanted
        else:
            torch.testing.assert_close((got, unchecked), (wanted, wanted))


def main(count: int = 1000, first: int = 0) -> int:
    bad = 0
    for seed in range(first, first + count):
        outcome = checked(seed)
        wrong = [*outcome.wrong, *outcome.aliases]
        bad += bool(wrong)
        if wrong:
            print(f"seed {seed}", outcome.program.source, *wrong, sep="\n")
    print(f"{count} programs, {bad} wrong")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
