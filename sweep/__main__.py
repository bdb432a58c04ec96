"""Exports a few dozen timm and transformers architectures and compares each with eager.

    python -m sweep [--only resnet18 Llama ...] [--library timm] [--json] [--traceback]
    python -m sweep --device cuda --precision own float32 autocast half --jobs 16

Each architecture is exported for evaluation and for training, and for evaluation with a batch and
a length of texts that vary ("batch": the length does not), which is compared at other sizes, too
(`dynamic.py`). The program's outputs,
strides, buffers and gradients are compared with those of the module, and the module must be
unchanged. Where a model's Python branches on data, export may refuse it. The table has a line for
each with the reason when something is wrong; exits with 1 then.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from itertools import product

from sweep.architectures import ARCHITECTURES, Architecture
from sweep.libraries import load
from sweep.rows import Row, start, work_together
from sweep.setting import PRECISIONS, Setting

HEAD = (
    f"{'architecture':<36}{'M par.':>8}{'nodes':>7}{'ms':>7}  "
    f"{'eval':<10}{'train':<10}{'dynamic':<9}reason"
)


def line(row: Row) -> str:
    name = row.name if row.precision == "own" else f"{row.name} {row.precision}"
    return (
        f"{name:<36}{row.parameters / 1e6:>8.2f}{row.nodes:>7}{row.export_ms:>7.0f}  "
        f"{row.eval:<10}{row.train:<10}{row.dynamic:<9}{row.reason[:200]}"
    ).rstrip()


def summary(rows: list[Row]) -> str:
    text = []
    for precision, library in product(PRECISIONS, ("timm", "transformers")):
        own = [row for row in rows if (row.library, row.precision) == (library, precision)]
        if own:
            refused = sum(row.ok and "refused" in (row.eval, row.train) for row in own)
            note = f" ({refused} of them in one mode, the other is rightly refused)" * bool(refused)
            raising = sum(row.ok and "eager" in (row.eval, row.train) for row in own)
            note += f" (eager itself raises for {raising})" * bool(raising)
            text.append(
                f"{library}{'' if precision == 'own' else f', {precision}'}: "
                f"{sum(row.ok for row in own)} of {len(own)} equal eager" + note
            )
    return "; ".join(text)


def chosen(only: list[str], library: str | None, part: str = "1/1") -> list[Architecture]:
    """`part`: 2/8 is of each eight the second."""
    found = [
        a
        for a in ARCHITECTURES
        if (not only or any(text.lower() in a.name.lower() for text in only))
        and library in (None, a.library)
    ]
    first, step = map(int, part.split("/"))
    return found[first - 1 :: step]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sweep", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="parts of architectures' names")
    parser.add_argument("--library", choices=("timm", "transformers"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=["own"])
    parser.add_argument("--part", default="1/1", help="2/8: of each eight architectures the second")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--traceback", action="store_true", help="print each failure's traceback")
    parser.add_argument("--jobs", type=int, default=1, help="processes; on a GPU, as many as cores")
    options = parser.parse_args()
    start()
    load()  # it says what is missing
    rows: list[Row] = []
    if not options.json:
        print(HEAD, flush=True)
    architectures = chosen(options.only, options.library, options.part)
    settings = [Setting(options.device, precision) for precision in options.precision]
    tasks = [(*each, options.traceback) for each in product(architectures, settings)]
    for row in work_together(tasks, options.jobs):
        rows.append(row)
        if not options.json:
            print(line(row), flush=True)
    print(json.dumps([asdict(row) for row in rows], indent=2) if options.json else summary(rows))
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
