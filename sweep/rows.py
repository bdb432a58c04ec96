"""One row of the sweep: an architecture in one precision, and the processes that make rows.

Must not print.
"""

from __future__ import annotations

import copy
import gc
import time
import traceback
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor, nn

from lostwax import export
from lostwax.errors import CaptureError, DataDependentError
from sweep.architectures import Architecture, build
from sweep.compare import check, difference, run
from sweep.dynamic import sweep_dynamic
from sweep.libraries import load
from sweep.setting import Setting

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
            check(ours, eager, setting.run_otherwise(model, args, kwargs))
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


# -------------------------------------------------------------------------------------- processes


Task = tuple[Architecture, Setting, bool]


def start() -> None:
    """What each process does first."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # the models are small: threads would wait for each other


def work(task: Task) -> Row:
    architecture, setting, verbose = task
    row = sweep(architecture, *load(), setting, verbose=verbose)
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()  # other processes share the device
    return row


def work_together(tasks: list[Task], jobs: int) -> Iterator[Row]:
    """The rows as they come, made by so many processes."""
    if jobs == 1:
        yield from map(work, tasks)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), start) as pool:
        for each in as_completed([pool.submit(work, task) for task in tasks]):
            yield each.result()
