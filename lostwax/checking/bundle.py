"""Bundled programs: each call in the file, run in the runtime, beside what it is to return.

Must not make programs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from lostwax.checking.result import CheckResult, Difference, close_to_scale
from lostwax.pte.file.bundle import BundledCase, read_bundle
from lostwax.pte.runtime import load_runtime, weights_path

_SIDES = ("runtime", "bundle")


def check_bundle(
    path: str | os.PathLike[str], on_case: Callable[[str], None] | None = None
) -> CheckResult:
    """Run each call of a bundled program as a first one, and compare what it returns with what
    the file expects."""
    bundle = read_bundle(path)
    weights = Path(weights_path(path))
    beside = weights.read_bytes() if weights.exists() else None
    agreed, different = [], []
    for method, cases in bundle.cases.items():
        for at, case in enumerate(cases):
            name = f"call {at} of {method}"
            if on_case is not None:
                on_case(name)
            wrong = _compare(bundle.program, beside, method, case)
            if wrong:
                code = (
                    f"import lostwax\nbundle = lostwax.pte.read_bundle({os.fspath(path)!r})\n"
                    f"case = bundle.cases[{method!r}][{at}]\n"
                    f"lostwax.pte.run(bundle.program, case.inputs, method={method!r})\n"
                    "case.expected"
                )
                different.append(Difference(name, wrong, "", code, _SIDES))
            else:
                agreed.append(name)
    return CheckResult(tuple(agreed), (), tuple(different), _SIDES)


def _compare(program: bytes, weights: bytes | None, method: str, case: BundledCase) -> str:
    try:
        got = load_runtime(program, weights).run(case.inputs, method=method)
    except RuntimeError as error:
        return f"the runtime raises {str(error).splitlines()[0]}"
    if len(got) != len(case.expected):
        return f"there are {len(got)} results instead of {len(case.expected)}"
    for at, (a, b) in enumerate(zip(got, case.expected, strict=True)):
        if wrong := close_to_scale(a, b):
            return f"result {at}: {wrong}"
    return ""
