"""Random programs as executables, run by the real ExecuTorch runtime, compared with eager.

    python -m fuzz.executable [--count 2000] [--seed 0] [--xnnpack] [--show]

A program is a module of some statements on tensors of several dtypes and sizes, with views, writes,
state and control flow. It is exported, with fixed sizes or with a varying number of rows, lowered,
and called several times. The runtime does what eager does, or lostwax refuses the program: all else
is a failure, and is shown as a small program. Programs run in processes apart, since a kernel that
gets what it does not expect ends the process. With --xnnpack parts of them are handed to XNNPACK.
Exits with 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import lostwax
from fuzz.expressions import DYNAMIC, SHARP, SOFT, draw
from lostwax.errors import LostwaxError

ROWS = 4
"""The rows of the example."""
BATCH = 100
"""The programs that one process judges."""
SIZES = (4, 1, 6, 0, 4)
"""The rows of the calls, if they vary."""
HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn


class Random(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 3)
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("table", torch.arange(12.0).view(4, 3))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x, k, h, b):
"""


def _cond(condition: Any, yes: Any, no: Any, operands: Any) -> Any:
    return (yes if condition else no)(*operands)


def _while_loop(condition: Any, body: Any, carried: Any) -> Any:
    while condition(*carried):
        carried = body(*carried)
    return carried


def _map_rows(body: Any, rows: Any) -> Any:
    return torch.stack([body(row) for row in rows])


def _scan(body: Any, carried: Any, rows: Any) -> Any:
    made = []
    for row in rows:
        carried, one = body(carried, row)
        made.append(one)
    return carried, torch.stack(made)


IN_PYTHON = {"cond": _cond, "while_loop": _while_loop, "map_rows": _map_rows, "scan": _scan}
"""Control flow as eager has it; the operators of torch compile their bodies."""


def load_operators() -> dict[str, Any]:
    """The operators of control flow, under the names that programs call."""
    from torch._higher_order_ops import map as map_rows
    from torch._higher_order_ops import scan, while_loop

    return {"cond": torch.cond, "while_loop": while_loop, "map_rows": map_rows, "scan": scan}


@dataclass(frozen=True)
class Program:
    """The statements of `forward`, and the names that it returns."""

    seed: int
    lines: tuple[str, ...]
    results: tuple[str, ...]
    is_dynamic: bool
    is_delegated: bool = False

    def source(self) -> str:
        body = [*self.lines, f"return {', '.join(self.results)},"]
        return HEAD + "".join(f"        {line}\n" for line in body)

    def module(self, control: dict[str, Any] | None = None) -> Any:
        """The module; without operators of control flow it branches and loops in Python."""
        names: dict[str, Any] = {**IN_PYTHON, **(control or {})}
        exec(compile(self.source(), f"<program {self.seed}>", "exec"), names)
        return names["Random"]().eval()


def make_inputs(rows: int, seed: int) -> tuple[torch.Tensor, ...]:
    """Quarters, so that sums and products are exact, integers, half precision and truths."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randint(-12, 13, (rows, 3), generator=rng) / 4
    k = torch.randint(-5, 6, (rows, 3), generator=rng)
    return x, k, (torch.randint(-8, 9, (rows, 3), generator=rng) / 4).half(), x > 0


# ------------------------------------------------------------------------------- drawing


def generate(seed: int) -> Program:
    """Draw statements; those that eager refuses are dropped."""
    rng = random.Random(seed)
    is_dynamic = rng.random() < 0.4
    program = Program(seed, (), ("x",), is_dynamic)
    values = dict(zip("xkhb", make_inputs(ROWS, seed), strict=True))
    exact = {"x", "k", "b"}
    for _ in range(rng.randint(2, 7)):
        kind = rng.choice((*[None] * 6, SHARP, SOFT, DYNAMIC))
        line, name, is_exact = draw(rng, values, exact, kind, len(values), is_dynamic)
        if not line:
            continue
        tried = replace(program, lines=(*program.lines, line), results=(*values, name))
        try:
            with torch.no_grad():
                made = tried.module()(*make_inputs(ROWS, seed))
        except Exception:
            continue
        if not all(_is_small(v) for v in tree_leaves(made)):
            continue
        program = tried
        values[name] = made[-1]
        exact = exact | {name} if is_exact else exact - {name}
    names = [n for n in values if n not in "xkhb"] or ["x"]
    chosen = rng.sample(names, rng.randint(1, min(3, len(names))))
    return replace(program, results=(*chosen, *rng.sample("xk", rng.randint(0, 1))))


def _is_small(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
        return True
    return value.numel() < 5000 and not bool((value.abs() > 1e4).any())


# ------------------------------------------------------------------------------- judging


def load_runtime() -> Any:
    """The runtime; its library is loaded before processes part, since it has threads."""
    return import_module("executorch.extension.pybindings.portable_lib")


def judge(program: Program) -> tuple[str, str]:
    """What became of a program: a rank and the reason."""
    portable_lib = load_runtime()
    module, first = program.module(), make_inputs(ROWS, program.seed)
    rows = lostwax.Dim("rows", min=0, max=max(SIZES))
    shapes = tuple({0: rows} for _ in first) if program.is_dynamic else None
    try:
        exported = lostwax.export(program.module(load_operators()), first, dynamic_shapes=shapes)
        parts = [lostwax.backends.XnnpackPartitioner()] if program.is_delegated else []
        lowered = lostwax.to_edge_transform_and_lower(exported, partitioner=parts)
        buffer = lowered.to_executable().buffer
    except LostwaxError as error:
        return "refused", str(error).splitlines()[0]
    except Exception as error:
        return "bare", f"{type(error).__name__}: {error}"
    is_rough = any(_HALF.search(line) for line in program.lines)
    full = portable_lib.Verification.InternalConsistency
    loaded = portable_lib._load_for_executorch_from_buffer(buffer, program_verification=full)
    for call, size in enumerate(SIZES if program.is_dynamic else (ROWS,) * 3):
        inputs = make_inputs(size, program.seed + call)
        try:
            with torch.no_grad():
                wanted = tree_leaves(module(*[x.clone() for x in inputs]))
        except Exception:
            break  # state may be half written
        try:
            got = loaded.run_method("forward", inputs)
        except RuntimeError as error:
            if not size:
                return "refused", "the runtime refuses empty tensors"
            return "failed", f"call {call}, {size} rows: {str(error).splitlines()[0]}"
        for at, (ours, eager) in enumerate(zip(got, wanted, strict=True)):
            if why := compare(ours, eager, is_rough):
                return "wrong", f"call {call}, {size} rows, result {at}: {why}"
    return "right", ""


_HALF = re.compile(r"\bh\b|half|bfloat16")
"""Results may come of half precision, whatever they are now."""
_TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 5e-2}


def compare(ours: Any, eager: Any, is_rough: bool = False) -> str:
    if not isinstance(eager, torch.Tensor):
        return "" if ours == eager or (ours != ours and eager != eager) else f"{ours} vs {eager}"
    if ours.shape != eager.shape or ours.dtype is not eager.dtype:
        return f"{ours.dtype}{list(ours.shape)} vs {eager.dtype}{list(eager.shape)}"
    if not eager.dtype.is_floating_point:
        return "" if torch.equal(ours, eager) else f"{ours.tolist()} vs {eager.tolist()}"
    finite = eager[eager.isfinite()].abs().double()
    each = max(_TOLERANCE.get(eager.dtype, 1e-4), 1e-2 if is_rough else 0)
    scale = each * max(1e-3, float(finite.max()) if len(finite) else 1)
    close = torch.allclose(ours.double(), eager.double(), rtol=0, atol=scale, equal_nan=True)
    return "" if close else f"{ours.tolist()} vs {eager.tolist()}"


def run_apart(programs: Iterator[Program]) -> Iterator[tuple[Program, str, str]]:
    """Judge programs in a process apart, and in another when that has ended."""
    load_runtime()
    while left := list(islice(programs, BATCH)):
        yield from _run_batch(left)


def _run_batch(left: list[Program]) -> Iterator[tuple[Program, str, str]]:
    while left:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 2)
            for program in left:
                signal.alarm(60)
                os.write(write, (json.dumps(judge(program)) + "\n").encode())
            os._exit(0)
        os.close(write)
        done = 0
        with os.fdopen(read) as pipe:
            for line in pipe:
                rank, why = json.loads(line)
                yield left[done], rank, why
                done += 1
        if os.waitpid(child, 0)[1]:
            yield left[done], "ended", "the process"
            done += 1
        left = left[done:]


def shrink(program: Program, rank: str) -> Program:
    """Leave out statements and results while the program fails in this way."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in filter(_runs, _smaller(program)):
            if next(run_apart(iter([candidate])))[1] == rank:
                program, smaller = candidate, True
                break
    return program


def _runs(program: Program) -> bool:
    try:
        program.module()(*make_inputs(ROWS, program.seed))
    except Exception:
        return False
    return True


def _smaller(program: Program) -> Iterator[Program]:
    for at in range(len(program.results) if len(program.results) > 1 else 0):
        yield replace(program, results=program.results[:at] + program.results[at + 1 :])
    for at in range(len(program.lines)):
        yield replace(program, lines=program.lines[:at] + program.lines[at + 1 :])
    if program.is_dynamic:
        yield replace(program, is_dynamic=False)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.executable", description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--xnnpack", action="store_true", help="with delegates")
    parser.add_argument("--show", action="store_true", help="print the program of the first seed")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.show:
        program = replace(generate(options.seed), is_delegated=options.xnnpack)
        print(program.source(), *next(run_apart(iter([program])))[1:])
        return 0
    return report(options.seed, options.count, is_delegated=options.xnnpack)


def report(
    seed: int, count: int, say: Callable[..., None] = print, *, is_delegated: bool = False
) -> int:
    """Judge many programs; print what failed, and how many there were of each rank."""
    ranks: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    failures: dict[str, Program] = {}
    started = time.perf_counter()
    seeds = range(seed, seed + count)
    programs = (replace(generate(s), is_delegated=is_delegated) for s in seeds)
    for program, rank, why in run_apart(programs):
        ranks[rank] += 1
        if rank == "refused":
            refusals[why[:90]] += 1
        elif rank != "right":
            small = shrink(program, rank)
            text = f"{rank} {' ; '.join(small.lines)}"
            if text not in failures:
                failures[text] = small
                why = next(run_apart(iter([small])))[2]
                varying = ", rows vary" if small.is_dynamic else ""
                say(f"{'=' * 80}\n{rank}, seed {program.seed}{varying}: {why[:600]}")
                say("".join(small.source().splitlines(keepends=True)[14:]), flush=True)
    for text, times in refusals.most_common(25):
        say(f"{times:6d} refused: {text}")
    took = time.perf_counter() - started
    say(f"{dict(ranks)} in {took:.0f} s; {len(failures)} kinds of failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
