"""Which torch reads which file: every program of `peer_programs`, saved by torch and by lostwax
under each torch, loaded by torch and by lostwax under each, run, and compared with eager. Each
interpreter has a torch of its own; three take four minutes:

    python -m tests.pt2.versions .venv-torch2.11/bin/python .venv/bin/python

It prints what was not written, not read, or wrong, and then the table of docs/pt2.md.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

import lostwax
from tests.pt2.compare import called
from tests.pt2.peer_programs import Case, cases

SIDES: dict[str, Any] = {"torch": torch.export, "lostwax": lostwax}
HERE = ".".join(torch.__version__.split(".")[:2])


def write(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Save each program from both sides; say of those that cannot be why."""
    failed = {}
    for name in names:
        for side, module in SIDES.items():
            case = cases()[name]
            path = folder / f"{HERE}+{side}+{name}.pt2"
            try:
                options = dict(case.options or {})
                if side == "lostwax":
                    options.pop("strict", None)
                program = module.export(
                    case.module, case.args, case.kwargs, dynamic_shapes=case.dynamic, **options
                )
                module.save(program, path)
            except Exception as error:
                path.unlink(missing_ok=True)  # torch leaves a part of it
                failed[path.stem] = describe(error)
    return failed


def read(folder: Path) -> dict[str, str]:
    """`same` for each file and side, or what is wrong with it."""
    results = {}
    for path in sorted(folder.glob("*.pt2")):
        for side, module in SIDES.items():
            case = cases()[path.stem.split("+")[2]]
            try:
                result = compare(module.load(path).module(), case)
            except Exception as error:
                result = describe(error)
            results[f"{path.stem}+{HERE}+{side}"] = result
    return results


def compare(module: Any, case: Case) -> str:
    """Is what the module computes, and makes of its arguments, what eager does?"""
    for _ in range(2):  # with state, the second call is another
        found, spec = pytree.tree_flatten(called(module, case.args, case.kwargs))
        expected, other = pytree.tree_flatten(called(case.module, case.args, case.kwargs))
        if spec != other:
            return "WRONG: another structure"
        for a, b in zip(found, expected, strict=True):
            if isinstance(b, torch.Tensor):
                try:
                    torch.testing.assert_close(a, b, equal_nan=True)
                except AssertionError as error:
                    return f"WRONG: {describe(error)}"
            elif type(a) is not type(b) or a != b:
                return f"WRONG: {a!r}, not {b!r}"
    return "same"


def describe(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:160]}"


def show(results: dict[str, str]) -> None:
    counts: defaultdict[tuple[str, str], Counter[bool]] = defaultdict(Counter)
    for key, result in results.items():
        writer, saver, _, reader, loader = key.split("+")
        counts[f"{saver} {writer}", f"{loader} {reader}"][result == "same"] += 1
        if result != "same":
            print(f"{key}: {result}")
    rows, columns = (list(dict.fromkeys(keys)) for keys in zip(*counts, strict=True))
    print(f"\n| written by | {' | '.join(columns)} |\n{'|---' * (len(columns) + 1)}|")
    for row in rows:
        cells = [f"{counts[row, c][True]} of {counts[row, c].total()}" for c in columns]
        print(f"| {row} | {' | '.join(cells)} |")


def main(arguments: list[str]) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if arguments[0] in ("write", "read"):
        folder = Path(arguments[1])
        print(json.dumps(write(folder, cases()) if arguments[0] == "write" else read(folder)))
        return
    results: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for step in ("write", "read"):
            for python in arguments:
                command = [python, "-m", "tests.pt2.versions", step, folder]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                said = json.loads(done.stdout.splitlines()[-1])
                if step == "write":
                    for key, reason in said.items():
                        print(f"{key} is not written: {reason}")
                else:
                    results |= said
    show(results)


if __name__ == "__main__":
    main(sys.argv[1:])
