"""Runs cases of tests/run/cases.py with lostwax_run, where there is nothing but numpy, and compares
the results bit for bit. Prints JSON.

    python replay.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy

from lostwax_run import Program


def main(folder: Path) -> None:
    found = {path.stem: replay(path) for path in sorted(folder.glob("*.npz"))}
    loaded = [name for name in ("torch", "lostwax", "executorch") if name in sys.modules]
    print(json.dumps({"cases": found, "loaded": loaded}))


def replay(path: Path) -> list[str]:
    """What differs, call by call."""
    arrays = numpy.load(path)
    program = Program(path.with_suffix(".pte"))
    differences = []
    for at, call in enumerate(json.loads(str(arrays["calls"]))):
        inputs = [arrays[name] for name in call["inputs"]]
        kept = [value.copy() for value in inputs]
        results = program.run(*inputs, method=call["method"])
        wanted = [arrays[name] for name in call["results"]]
        if len(results) != len(wanted):
            differences.append(f"call {at}: {len(results)} results, not {len(wanted)}")
        for place, (ours, theirs) in enumerate(zip(results, wanted, strict=False)):
            difference = compare(numpy.asarray(ours), theirs)
            if difference:
                differences.append(f"call {at}, result {place}: {difference}")
        if any(compare(a, b) for a, b in zip(inputs, kept, strict=True)):
            differences.append(f"call {at} has changed an input")
    return differences


def compare(ours: numpy.ndarray, theirs: numpy.ndarray) -> str:
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        return f"{ours.dtype}{ours.shape}, not {theirs.dtype}{theirs.shape}"
    if ours.tobytes() == theirs.tobytes():
        return ""
    return f"differs by {numpy.abs(ours.astype('f8') - theirs.astype('f8')).max():.3g}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
