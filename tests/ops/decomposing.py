"""Every operator sample of torch's `op_db` exported, decomposed, and run against eager.

    python -m tests.ops.decomposing [operator ...] [--samples N] [--device cuda] [--part 2/8]

Each sample becomes a program of one call; `run_decompositions()` takes it to core ATen. Compared:
that all operators that are left are core or in the documented list, that the program is valid, and
that its results are eager's, with tolerances by dtype.
"""

from __future__ import annotations

import argparse
import copy
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch._ops import OpOverload
from torch.testing._internal import common_methods_invocations

from lostwax.capture import export
from lostwax.errors import LostwaxError
from lostwax.ir.decompose.core_aten import is_core
from lostwax.ops.decompositions.whole import WHOLE
from tests.ops.conformance import Call, calls, dtypes_of, operators

TOLERANCE = {
    torch.float32: 2e-5,
    torch.float64: 1e-9,
    torch.complex64: 2e-5,
    torch.complex128: 1e-9,
}


class Verdict(StrEnum):
    EQUAL = "equal"
    SKIPPED = "skipped"  # eager raises: nothing to compare with
    REFUSED = "refused"  # export refuses: nothing to decompose
    LEFT = "left"  # an operator is neither core nor in the list
    DIFFERS = "differs"
    RAISES = "raises"


class Outcome(NamedTuple):
    verdict: Verdict
    detail: str = ""
    left: tuple[str, ...] = ()


def one_call(call: Call) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    """The call as a function of its tensors."""
    leaves, structure = pytree.tree_flatten((call.args, dict(call.kwargs)))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def function(*tensors: Tensor) -> Any:
        given = list(leaves)
        for i, tensor in zip(places, tensors, strict=True):
            given[i] = tensor
        args, kwargs = pytree.tree_unflatten(given, structure)
        return call.function(*args, **kwargs)

    return function, tuple(leaves[i].detach() for i in places)


def judged(call: Call) -> Outcome:
    # Samples that draw random numbers seed them, which no program does. Here both sides are seeded.
    with patch.object(
        common_methods_invocations, "wrapper_set_seed", lambda op, *a, **k: op(*a, **k)
    ):
        return _judged(call)


def _judged(call: Call) -> Outcome:
    function, inputs = one_call(call)
    with torch.no_grad():
        try:
            torch.manual_seed(42)
            wanted = function(*copy.deepcopy(inputs))
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
            return Outcome(Verdict.SKIPPED)
        try:
            program = export(function, inputs)
            program.validate()
        except (LostwaxError, RuntimeError, ValueError, TypeError, IndexError) as error:
            return Outcome(Verdict.REFUSED, _told(error))
        try:
            core = program.run_decompositions()
            core.validate()
            module = core.module()
            torch.manual_seed(42)
            got = module(*copy.deepcopy(inputs))
        except Exception as error:
            return Outcome(Verdict.RAISES, _told(error))
    left = tuple(sorted({str(t) for t in targets(core) if not is_core(t)}))
    unlisted = [name for name in left if name.startswith("aten.") and name not in WHOLE]
    if unlisted:
        return Outcome(Verdict.LEFT, ", ".join(unlisted), left)
    difference = compared(call, wanted, got)
    if difference:
        return Outcome(Verdict.DIFFERS, difference, left)
    return Outcome(Verdict.EQUAL, "", left)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def targets(program: Any) -> Iterator[OpOverload]:
    for node in program.graph.nodes:
        if isinstance(node.target, OpOverload):
            yield node.target


def compared(call: Call, wanted: Any, got: Any) -> str:
    if call.operator in UNINITIALISED:
        return ""
    for a, b in zip(pytree.tree_leaves(wanted), pytree.tree_leaves(got), strict=True):
        if not isinstance(a, Tensor):
            if a != b:
                return f"eager {a}, decomposed {b}"
            continue
        tolerance = TOLERANCE.get(a.dtype, 0.0)
        try:
            torch.testing.assert_close(
                b, a, rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=a.numel() > 0
            )
        except AssertionError as error:
            return " ".join(str(error).split())[:200]
    return ""


UNINITIALISED = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided",
                 "empty_permuted"}  # fmt: skip


def samples(names: Iterable[str], count: int, device: str = "cpu") -> Iterator[Call]:
    found = operators()
    for name in names:
        for dtype in dtypes_of(found[name], device):
            for i, call in enumerate(calls(found[name], dtype, ("call",), device)):
                if i >= count:
                    break
                yield call


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.ops.decomposing", description=__doc__)
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--device", default="cpu", help="cpu, or cuda")
    parser.add_argument("--part", default="1/1", help="2/8: of each eight operators the second")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    names = options.operators or [*operators()][part - 1 :: parts]
    warnings.simplefilter("ignore")
    tally: Counter[Verdict] = Counter()
    left: Counter[str] = Counter()
    refused: Counter[tuple[str, str]] = Counter()
    for call in samples(names, options.samples, options.device):
        outcome = judged(call)
        tally[outcome.verdict] += 1
        left.update(outcome.left)
        if outcome.verdict is Verdict.REFUSED:
            refused[call.operator, outcome.detail] += 1
        elif outcome.verdict not in (Verdict.EQUAL, Verdict.SKIPPED):
            print(f"{outcome.verdict:8} {call}: {outcome.detail}"[:400], flush=True)
    print(dict(tally))
    print("left whole:", ", ".join(sorted(left)))
    print("refused by export:")
    for (operator, reason), count in refused.items():
        print(f"{count:>6} {operator}: {reason}")
    return int(any(tally[v] for v in (Verdict.LEFT, Verdict.DIFFERS, Verdict.RAISES)))


if __name__ == "__main__":
    sys.exit(main())
