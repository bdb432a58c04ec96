"""Makes bundles of executables: calls with what the program returns for them.

Must not know how a bundle is written.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from lostwax.dialects.methods import Methods
from lostwax.errors import SaveError
from lostwax.ir.run.module import call_convention
from lostwax.pte.file.bundle import BundledCase, is_plain
from lostwax.pte.file.reader import read_file
from lostwax.pte.runtime import lay_out


def make_cases(
    methods: Methods, buffer: bytes, calls: Mapping[str, Sequence[Any]] | Sequence[Any]
) -> dict[str, list[BundledCase]]:
    """The calls that are given for each method, each with what its program returns when it is
    called for the first time. A call is a tuple of arguments, or `(args, kwargs)`."""
    if not isinstance(calls, Mapping):
        calls = {"forward": calls}
    plans = {p["name"]: p for p in read_file(buffer).program["execution_plan"] or ()}
    found = {}
    for method, listed in calls.items():
        program = methods.exported_program(method)
        if not isinstance(listed, (list, tuple)) or not listed:
            raise SaveError(
                f"bundled has no calls of {method!r}, but {type(listed).__name__}"
                "\n  instead: a list of tuples of arguments, bundled=[(x,), (y,)]"
            )
        wanted = [plans[method]["values"][i]["val"] for i in plans[method]["inputs"] or ()]
        found[method] = [_make_case(method, program, at, c, wanted) for at, c in enumerate(listed)]
    return found


def _make_case(
    method: str, program: Any, at: int, call: Any, wanted: Sequence[dict[str, Any]]
) -> BundledCase:
    args, kwargs = _split(method, at, call)
    given = list(call_convention(program, True).bind(args, kwargs))
    inputs = [
        lay_out(i, value, each) for i, (value, each) in enumerate(zip(given, wanted, strict=True))
    ]
    with torch.no_grad():
        returned = tree_leaves(program.module()(*copy.deepcopy(args), **copy.deepcopy(kwargs)))
    # A method returns all as the Edge dialect lays it out; ExecuTorch's comparison dies of others.
    results = [r.contiguous() if isinstance(r, torch.Tensor) else r for r in returned]
    for what, values in (("input", inputs), ("result", results)):
        for i, value in enumerate(values):
            if not is_plain(value):
                raise SaveError(
                    f"{what} {i} of call {at} of {method!r} is a {type(value).__name__}, for which "
                    "a bundled program has no form\n  why: it has tensors and numbers"
                )
    return BundledCase(tuple(inputs), tuple(results))


def _split(method: str, at: int, call: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not isinstance(call, tuple):
        raise SaveError(
            f"call {at} of {method!r} that is to be bundled is a {type(call).__name__}"
            "\n  instead: a tuple of arguments, (x,), or of these and a dict, ((x,), {'y': y})"
        )
    if len(call) == 2 and isinstance(call[0], tuple) and isinstance(call[1], dict):
        return call[0], call[1]
    return call, {}
