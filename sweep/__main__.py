"""Exports a few dozen timm and transformers architectures and compares each with eager.

    python -m sweep [--only resnet18 Llama ...] [--library timm] [--json] [--traceback]
    python -m sweep --device cuda --precision float32 autocast half

Each architecture is exported for evaluation and for training, and for evaluation with a batch and
a length of texts that vary ("batch": the length does not), which is compared at other sizes, too
(`dynamic.py`). The program's outputs,
strides, buffers and gradients are compared with those of the module, and the module must be
unchanged. Where a model's Python branches on data, export may refuse it. The table has a line for
each with the reason when something is wrong; exits with 1 then.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import sys
import time
import traceback
import warnings
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from lostwax import export
from lostwax.errors import CaptureError, DataDependentError
from sweep.architectures import ARCHITECTURES, Architecture, build
from sweep.compare import check, difference, run
from sweep.dynamic import sweep_dynamic
from sweep.libraries import load
from sweep.setting import PRECISIONS, Setting

MODES = ("eval", "train")


@dataclass
class Row:
    """What became of one architecture."""

    library: str
    name: str
    precision: str = "own"
    parameters: int = 0
    nodes: int = 0
    export_ms: float = 0.0
    eval: str = "-"
    train: str = "-"
    dynamic: str = "-"
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Does all that eager runs equal it? ("eager": it raises itself.)"""
        return {self.eval, self.train} <= {"ok", "refused", "eager"} and self.dynamic in (
            "ok", "batch", "refused", "-",
        )  # fmt: skip


def sweep(
    architecture: Architecture,
    timm: Any,
    transformers: Any,
    setting: Setting = Setting(),  # noqa: B008 - it is frozen
    *,
    verbose: bool = False,
) -> Row:
    row = Row(architecture.library, architecture.name, setting.precision)
    torch.manual_seed(0)
    try:
        model = build(architecture, timm, transformers)
        model = model.to(setting.device, setting.find_dtype(architecture))
    except Exception as error:
        return failed(row, "eval", "build", error, verbose)
    row.parameters = sum(p.numel() for p in model.parameters())
    args, kwargs = setting.make_example(architecture)
    for mode in MODES:
        stage = "eager"
        try:
            prepare(architecture, model.train(mode == "train"), setting)
            eager = run(copy.deepcopy(model), args, kwargs, setting.make_context())
            before = {n: t.clone() for n, t in state(model).items()}
            stage = "export"
            start = time.process_time()
            with setting.make_context():
                program = export(model, args, kwargs)
            if mode == "eval":
                row.export_ms = 1e3 * (time.process_time() - start)
                row.nodes = sum(n.op == "call_function" for n in program.graph.nodes)
            stage = "module()"
            module = program.module()
            stage = "run"
            ours = run(module, args, kwargs, setting.make_context())
            stage = "compare"
            check(ours, eager, setting.run_noisy(model, args, kwargs))
            stage = "untouched"
            check_untouched(before, state(model))
            setattr(row, mode, "ok")
        except (DataDependentError, CaptureError) as error:
            if mode in architecture.refused and stage == "export":
                setattr(row, mode, "refused")
            else:
                failed(row, mode, stage, error, verbose)
        except Exception as error:
            failed(row, mode, stage, error, verbose)
    if row.eval == "ok":
        try:
            prepare(architecture, model.eval(), setting)
            row.dynamic = sweep_dynamic(architecture, model, setting)
        except Exception as error:
            failed(row, "dynamic", "wrong", error, verbose)
    return row


def prepare(architecture: Architecture, model: nn.Module, setting: Setting) -> None:
    if architecture.prepares:
        run(model, *setting.make_example(architecture), setting.make_context())
        model.zero_grad()


def state(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def check_untouched(before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    if before.keys() != after.keys():
        raise ValueError(f"the module's state changed: {sorted(before.keys() ^ after.keys())}")
    for name, tensor in before.items():
        text = difference(name, after[name], tensor)
        if text:
            raise ValueError(f"the module's state changed: {text}")


def failed(row: Row, mode: str, stage: str, error: Exception, verbose: bool) -> Row:
    setattr(row, mode, stage)
    first = (str(error).strip() or "?").splitlines()[0]
    where = next((x.strip() for x in str(error).splitlines() if x.strip().startswith("at ")), "")
    text = f"{mode}: {type(error).__name__}: {first} {where}".strip()
    row.reason = f"{row.reason}; {text}" if row.reason else text
    if verbose:
        traceback.print_exception(error)
    return row


# ------------------------------------------------------------------------------------------- face


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
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # the models are small: threads would wait for each other
    timm, transformers = load()
    rows: list[Row] = []
    if not options.json:
        print(HEAD, flush=True)
    architectures = chosen(options.only, options.library, options.part)
    for architecture, precision in product(architectures, options.precision):
        setting = Setting(options.device, precision)
        rows.append(sweep(architecture, timm, transformers, setting, verbose=options.traceback))
        if not options.json:
            print(line(rows[-1]), flush=True)
        gc.collect()
    print(json.dumps([asdict(row) for row in rows], indent=2) if options.json else summary(rows))
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
