"""What the first export of a process costs: ours beside torch.export's, as a user meets it.

    python -m bench.cold [--group a b c] [--only llama vit] [--repeat 3] [--jobs 1] [--ours-only]

A figure is the processor time from after `import torch`, the import of the model's library and the
making of the model, to the program in hand. Each is measured in a process of its own; ours and
torch's take turns, and of `--repeat` processes the median counts. Every model is exported at the
example's sizes, and with `Dim.AUTO` for its batch and its lengths. The models:

    a  a small network, and those of examples/models in full size
    b  a dozen of transformers, from small configurations
    c  a dozen of timm

Of each side there are two processes. In the one the export is the first thing that is done: the
imports count (`import lostwax; lostwax.export`, or `import torch.export`, and whatever either
imports when it is called). In the other both have exported a Linear before: then nothing but the
model is new. In each the first program is taken through run_decompositions() too, and ours is
exported once more: the second export.

lostwax is measured from a copy that has bytecode, as pip leaves it, also where the environment
forbids Python to write any. The bars are those below `BARS`; exits with 1 when one is missed or an
export of ours fails. Where torch.export fails, our bar against our second export counts alone.
"""

from __future__ import annotations

import argparse
import compileall
import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from examples.models import MODELS
from sweep import architectures, libraries

NAME, WIDTH = 40, 12
"""Characters of a line's name and of a column."""
ROOT = Path(__file__).parents[1]
SMALL = "small network"
TRANSFORMERS = (
    "LlamaForCausalLM", "Qwen3MoeForCausalLM", "GemmaForCausalLM", "GPT2LMHeadModel",
    "MambaForCausalLM", "BertModel", "DistilBertModel", "T5ForConditionalGeneration",
    "WhisperModel", "CLIPTextModel", "ViTModel", "ConvNextModel",
)  # fmt: skip
TIMM = (
    "resnet18", "densenet121", "regnety_002", "efficientnet_b0", "mobilenetv3_small_050",
    "inception_v3", "convnext_atto", "mixer_s32_224", "vit_tiny_patch16_224", "mobilevit_xxs",
    "swin_tiny_patch4_window7_224", "levit_128s",
)  # fmt: skip
LENGTHS = ("input_ids", "attention_mask", "decoder_input_ids")
"""Inputs of transformers whose second dimension may vary, like the first of every input."""


# -------------------------------------------------------------------------------------- the models


@dataclass
class Call:
    """A model and the example call; for each input the dimensions that may vary."""

    model: nn.Module
    args: tuple[Tensor, ...]
    kwargs: dict[str, Tensor]
    varying: Any

    def shapes(self, auto: Any) -> Any:
        """What `dynamic_shapes` is given."""
        if isinstance(self.varying, dict):
            return {name: dict.fromkeys(dims, auto) for name, dims in self.varying.items()}
        return tuple(dict.fromkeys(dims, auto) for dims in self.varying)


def make_small() -> Call:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 4))
    return Call(model, (torch.randn(2, 16),), {}, [[0]])


def make_bundled(name: str) -> Call:
    example = MODELS[name]
    return Call(example.full(), example.full_inputs(), {}, [list(dims) for dims in example.dynamic])


def make_of_library(name: str) -> Call:
    architecture = next(a for a in architectures.ARCHITECTURES if a.name == name)
    load = {"timm": libraries.load_timm, "transformers": libraries.load_transformers}
    library = {architecture.library: load[architecture.library]()}
    model = architectures.build(architecture, library.get("timm"), library.get("transformers"))
    args, kwargs = architectures.example(architecture)
    varying = {name: [0, 1] if name in LENGTHS else [0] for name in kwargs}
    return Call(model, args, kwargs, varying or [[0] for _ in args])


def make(name: str) -> Call:
    torch.manual_seed(0)
    if name == SMALL:
        return make_small()
    return make_bundled(name) if name in MODELS else make_of_library(name)


GROUPS = {"a": (SMALL, *MODELS), "b": TRANSFORMERS, "c": TIMM}


# ----------------------------------------------------------------------- within a measured process


def import_ours() -> tuple[Any, Any]:
    import lostwax

    return lostwax.export, lambda: lostwax.Dim.AUTO


def import_theirs() -> tuple[Any, Any]:
    import torch.export

    return torch.export.export, lambda: torch.export.Dim.AUTO


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    gc.collect()
    start = time.process_time()
    result = work()
    return result, time.process_time() - start


def measure_here(side: str, name: str, dynamic: bool, warm: bool) -> Iterator[tuple[str, float]]:
    """The seconds of each part, in this process; `warm` is after the export of a Linear."""
    call = make(name)
    call.model.eval()
    (export, auto), seconds = timed(import_ours if side == "ours" else import_theirs)
    yield "imports", seconds
    if warm:
        export(nn.Linear(2, 2), (torch.ones(1, 2),))

    def run() -> Any:
        shapes = call.shapes(auto()) if dynamic else None
        return export(call.model, call.args, call.kwargs, dynamic_shapes=shapes)

    program, seconds = timed(run)
    yield "first", seconds
    yield "decomposing", timed(program.run_decompositions)[1]
    if side == "ours":
        yield "second", timed(run)[1]


def measure_parts(order: str) -> dict[str, Any]:
    """All parts until one fails, and why it fails."""
    found: dict[str, Any] = {}
    try:
        for part, seconds in measure_here(*json.loads(order)):
            found[part] = seconds
    except Exception as error:
        found["failure"] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return found


# ------------------------------------------------------------------------------------- the figures


@dataclass
class Row:
    """What was measured of one model with fixed or with dynamic sizes."""

    group: str
    name: str
    dynamic: bool
    parts: dict[str, list[float]] = field(default_factory=dict)
    """Seconds, for each side, state and part: `ours cold first`."""
    failures: dict[str, str] = field(default_factory=dict)
    """For each side, why a part is missing."""

    def add(self, side: str, state: str, parts: dict[str, Any]) -> None:
        if "failure" in parts:
            self.failures[side] = parts.pop("failure")
        for part, seconds in parts.items():
            self.parts.setdefault(f"{side} {state} {part}", []).append(seconds)

    def seconds(self, key: str) -> float | None:
        """The median of a part, or of the sum of several: `ours cold imports+first`."""
        side, state, parts = key.split()
        turns = [self.parts.get(f"{side} {state} {part}") for part in parts.split("+")]
        found = [t for t in turns if t is not None]
        if len(found) < len(turns):
            return None
        return statistics.median(sum(turn) for turn in zip(*found, strict=True))

    def ratio(self, over: str, under: str) -> float | None:
        a, b = self.seconds(over), self.seconds(under)
        return None if a is None or b is None else a / b

    @property
    def title(self) -> str:
        return f"{self.name} (dynamic)" if self.dynamic else self.name

    def as_dict(self) -> dict[str, Any]:
        ratios = {title: self.ratio(*pair) for title, pair in RATIOS.items()}
        sizes = "dynamic" if self.dynamic else "static"
        return {"group": self.group, "name": self.name, "sizes": sizes, "seconds": self.parts,
                "ratios": ratios, "failures": self.failures}  # fmt: skip


COLUMNS = {
    "imports": "ours cold imports",
    "cold": "ours cold imports+first",
    "cold+dec": "ours cold imports+first+decomposing",
    "first": "ours warm first",
    "second": "ours warm second",
    "first+dec": "ours warm first+decomposing",
    "cold ": "torch cold imports+first",
    "cold+dec ": "torch cold imports+first+decomposing",
    "first ": "torch warm first",
    "first+dec ": "torch warm first+decomposing",
}
"""Ours, then torch's. `cold` is with the imports, `first` after the export of a Linear."""

OURS_COLD, OURS_FIRST = COLUMNS["cold"], COLUMNS["first"]
RATIOS = {
    "first, / second": (OURS_FIRST, COLUMNS["second"]),
    "torch+dec, cold": (COLUMNS["cold+dec "], OURS_COLD),
    "torch, cold": (COLUMNS["cold "], OURS_COLD),
    "torch+dec, first": (COLUMNS["first+dec "], OURS_FIRST),
    "torch, first": (COLUMNS["first "], OURS_FIRST),
    "both+dec, cold": (COLUMNS["cold+dec "], COLUMNS["cold+dec"]),
    "both+dec, first": (COLUMNS["first+dec "], COLUMNS["first+dec"]),
}
"""Torch's over our export, whose program is functional without decompositions. `both+dec`: each
with its decompositions."""


@dataclass(frozen=True)
class Bar:
    """A limit for a figure over the rows: `find` makes one of many."""

    text: str
    find: Callable[[list[float]], float]
    limit: float
    figure: str
    at_most: bool = False
    only: str | None = None

    def judge(self, rows: list[Row]) -> tuple[bool, str] | None:
        chosen = [row for row in rows if self.only in (None, row.name)]
        if self.figure in RATIOS:
            values = [row.ratio(*RATIOS[self.figure]) for row in chosen]
        else:
            values = [row.seconds(COLUMNS[self.figure]) for row in chosen]
        found = [value for value in values if value is not None]
        if not found:
            return None
        value = self.find(found)
        held = value <= self.limit if self.at_most else value >= self.limit
        sign = "≤" if self.at_most else "≥"
        word = "held" if held else "NOT HELD"
        return held, f"{self.text}: {value:.2f} (bar {sign} {self.limit:g}): {word}"


BARS = (
    Bar("imports, seconds, median", statistics.median, 0.15, "imports", at_most=True),
    Bar("first over second export, worst", max, 2.5, "first, / second", at_most=True),
    Bar("torch + decompositions, cold, small network", min, 10, "torch+dec, cold", only=SMALL),
    Bar("torch + decompositions, cold, median", statistics.median, 25, "torch+dec, cold"),
    Bar("torch + decompositions, cold, worst", min, 10, "torch+dec, cold"),
    Bar("torch alone, cold, median", statistics.median, 8, "torch, cold"),
    Bar("torch alone, cold, worst", min, 4, "torch, cold"),
    Bar("torch alone, first, median", statistics.median, 8, "torch, first"),
    Bar("torch alone, first, worst", min, 4, "torch, first"),
)


# ---------------------------------------------------------------------------------- the processes


def copy_with_bytecode(folder: Path) -> None:
    """lostwax, as pip installs it: with the bytecode of every file beside it."""
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "lostwax", folder / "lostwax", ignore=skipped)
    if not compileall.compile_dir(folder / "lostwax", quiet=2, workers=1):
        raise SystemExit("lostwax does not compile")


def measure_in_process(folder: Path, row: Row, side: str, state: str) -> None:
    """Adds what a process of its own finds."""
    order = json.dumps([side, row.name, row.dynamic, state == "warm"])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-P", "-W", "ignore", "-m", "bench.cold", "--measure", order]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    last = (done.stdout.strip() or done.stderr.strip() or "no output").splitlines()[-1]
    row.add(side, state, {"failure": last} if done.returncode else json.loads(last))


def measure(row: Row, folder: Path, repeat: int, sides: Iterable[str]) -> None:
    for _ in range(repeat):
        for state in ("cold", "warm"):
            for side in sides:
                measure_in_process(folder, row, side, state)


# ------------------------------------------------------------------------------------------- face


def head() -> str:
    titles = [title.strip() for title in COLUMNS] + [title.partition(", ")[0] for title in RATIOS]
    when = [""] * len(COLUMNS) + [title.partition(", ")[2] for title in RATIOS]
    sides = (
        "ours, ms".rjust(NAME + WIDTH) + "torch, ms".rjust(6 * WIDTH) + "ratios".rjust(4 * WIDTH)
    )
    lines = ("".join(text.rjust(WIDTH) for text in texts) for texts in (titles, when))
    return "\n".join([sides, *(" " * NAME + text for text in lines)])


def line(row: Row) -> str:
    seconds = [row.seconds(key) for key in COLUMNS.values()]
    ratios = [row.ratio(*pair) for pair in RATIOS.values()]
    cells = ["–" if value is None else f"{1e3 * value:.1f}" for value in seconds]
    cells += ["–" if value is None else f"{value:.2f}×" for value in ratios]
    text = f"{row.group} {row.title}".ljust(NAME) + "".join(cell.rjust(WIDTH) for cell in cells)
    return text + "".join(f"\n    {side} fails: {why}" for side, why in row.failures.items())


def summaries(rows: list[Row]) -> Iterator[str]:
    """Median and worst of every ratio."""
    for title, pair in RATIOS.items():
        found = [(ratio, row) for row in rows if (ratio := row.ratio(*pair)) is not None]
        if found:
            pick = max if title == "first, / second" else min
            worst, where = pick(found, key=lambda pair: pair[0])
            median = statistics.median(ratio for ratio, _ in found)
            yield f"{title:<18} median {median:>7.2f}×, worst {worst:>7.2f}× ({where.title})"


def chosen_rows(options: argparse.Namespace) -> list[Row]:
    names = [(group, name) for group in options.group for name in GROUPS[group]]
    unknown = set(options.only or ()) - {name for names in GROUPS.values() for name in names}
    if unknown:
        raise SystemExit(f"no such model: {', '.join(sorted(unknown))}")
    chosen = [pair for pair in names if not options.only or pair[1] in options.only]
    return [Row(group, name, dynamic) for group, name in chosen for dynamic in (False, True)]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.cold",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--group", nargs="+", default=list(GROUPS), choices=list(GROUPS))
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these models alone")
    parser.add_argument("--repeat", type=int, default=3, help="processes of each kind")
    parser.add_argument("--jobs", type=int, default=1, help="models at once, each on a free core")
    parser.add_argument("--ours-only", action="store_true", help="torch.export is not measured")
    parser.add_argument("--json", metavar="F", help="write every figure to this file")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # within a measured process
    options = parser.parse_args()
    if options.measure:
        warnings.simplefilter("ignore")
        print(json.dumps(measure_parts(options.measure)))
        return 0
    rows = chosen_rows(options)
    with tempfile.TemporaryDirectory() as folder:
        copy_with_bytecode(Path(folder))
        print("lostwax has bytecode, as pip leaves it: a compiled copy is measured")
        print(head(), flush=True)
        sides = ("ours", "torch")[: 2 - options.ours_only]

        def measure_row(row: Row) -> str:
            measure(row, Path(folder), options.repeat, sides)
            return line(row)

        with ThreadPoolExecutor(options.jobs) as pool:
            for text in pool.map(measure_row, rows):
                print(text, flush=True)
    print(*summaries(rows), sep="\n")
    verdicts = [verdict for bar in BARS if (verdict := bar.judge(rows))]
    print(*[text for _, text in verdicts], sep="\n")
    if options.json:
        Path(options.json).write_text(json.dumps([row.as_dict() for row in rows], indent=1))
    failed = any("ours" in row.failures for row in rows)
    return 1 if failed or not all(held for held, _ in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
