"""Every operator sample of torch's `op_db` as an ONNX model in onnxruntime, against eager.

python -m tests.onnx.sampling [operator ...] [--samples N] [--opset 23] [--part 2/8]
"""

from __future__ import annotations

import argparse
import copy
import sys
import warnings
from collections import Counter
from enum import StrEnum
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from lostwax.capture import export
from lostwax.errors import LostwaxError, OnnxError
from tests.onnx.running import Session
from tests.ops.conformance import Call, operators
from tests.ops.decomposing import TOLERANCE, UNINITIALISED, one_call, samples


class Verdict(StrEnum):
    EQUAL = "equal"
    SKIPPED = "skipped"  # eager or export raise, or results are random: nothing to compare
    MISSING = "missing"  # refused: an operator is missing, or a call is not covered
    NOT_RUN = "not run"  # onnxruntime has no kernel
    DIFFERS = "differs"
    RAISES = "raises"


class Outcome(NamedTuple):
    verdict: Verdict
    detail: str = ""


def judge(call: Call, opset: int) -> Outcome:
    function, inputs = one_call(call)
    with torch.no_grad():
        try:
            wanted = pytree.tree_leaves(function(*copy.deepcopy(inputs)))
            again = pytree.tree_leaves(function(*copy.deepcopy(inputs)))
            program = export(function, inputs)
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError, LostwaxError):
            return Outcome(Verdict.SKIPPED)
        found = [x for x in wanted if isinstance(x, Tensor)]
        other = [x for x in again if isinstance(x, Tensor)]
        if any(
            not torch.equal(torch.nan_to_num(a.double()), torch.nan_to_num(b.double()))
            for a, b in zip(found, other, strict=True)
            if not a.is_complex()
        ):
            return Outcome(Verdict.SKIPPED)
        try:
            session = Session(program, opset)
        except OnnxError as error:
            return Outcome(Verdict.MISSING, " ".join(str(error).split())[:160])
        except Exception as error:
            kind = Verdict.NOT_RUN if "NOT_IMPLEMENTED" in str(error) else Verdict.RAISES
            return Outcome(kind, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        try:
            got = session(*inputs)
        except Exception as error:
            return Outcome(Verdict.RAISES, " ".join(str(error).split())[:300])
    if call.operator in UNINITIALISED:
        return Outcome(Verdict.EQUAL)
    return compare_all(found, got)


def compare_all(wanted: list[Any], got: list[Tensor]) -> Outcome:
    for a, b in zip(wanted, got, strict=False):
        tolerance = max(TOLERANCE.get(a.dtype, 0.0) * 5, 1e-5 if a.is_floating_point() else 0)
        try:
            torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance, equal_nan=True)
        except AssertionError as error:
            return Outcome(Verdict.DIFFERS, " ".join(str(error).split())[:200])
    return Outcome(Verdict.EQUAL)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.onnx.sampling", description=__doc__)
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--opset", type=int, default=23)
    parser.add_argument("--part", default="1/1", help="2/8: of each eight operators the second")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    names = options.operators or [*operators()][part - 1 :: parts]
    warnings.simplefilter("ignore")
    tally: Counter[Verdict] = Counter()
    seen: Counter[tuple[str, str]] = Counter()
    for call in samples(names, options.samples):
        outcome = judge(call, options.opset)
        tally[outcome.verdict] += 1
        if outcome.verdict not in (Verdict.EQUAL, Verdict.SKIPPED):
            key = (outcome.verdict, call.operator)
            seen[key] += 1
            if seen[key] <= 2:
                print(f"{outcome.verdict:8} {call}: {outcome.detail}"[:460], flush=True)
    print(dict(tally))
    return int(any(tally[v] for v in (Verdict.DIFFERS, Verdict.RAISES)))


if __name__ == "__main__":
    sys.exit(main())
