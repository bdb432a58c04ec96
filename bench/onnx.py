"""What `lostwax.onnx.save` takes beside `torch.onnx.export(dynamo=True, optimize=True)`, both from
the module, what they write, and how fast onnxruntime runs it.

    python -m bench.onnx [MODEL ...] [--cold [--rounds 3]] [--runs 30]

The models are those of `examples`, tiny; batch and length vary. Times of writing are CPU seconds,
ours the least of five and torch's of one: it takes seconds. Calls of onnxruntime on one thread take
turns in one process; the least of so many runs counts. `--cold` starts processes for each side,
which import, export and write: the CPU seconds of the whole process count, `import torch` included,
of `--rounds` the median. lostwax has bytecode there, as pip leaves it. "floor" is a process that
imports torch and onnx_ir alone. `llama-16` is the tiny Llama with sixteen layers. Results of both
are compared with eager's.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import lostwax
from examples.models import MODELS, llama


class Case(NamedTuple):
    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    dims: tuple[dict[int, str], ...]


def make_case(name: str) -> Case:
    torch.manual_seed(0)
    found = MODELS[name.removesuffix(DEEP)]
    module = found.tiny()
    if name.endswith(DEEP):
        module = llama.Llama(replace(llama.LLAMA_TINY, depth=16))
    return Case(module.eval(), found.tiny_inputs(), found.dynamic)


DEEP = "-16"


def make_shapes(case: Case, make_dim: Callable[..., Any]) -> tuple[Any, ...]:
    names = {name for dims in case.dims for name in dims.values()}
    made = {name: make_dim(name, min=2 if name == "length" else 1) for name in sorted(names)}
    return tuple({d: made[name] for d, name in dims.items()} for dims in case.dims)


def save_ours(case: Case, path: str) -> None:
    shapes = make_shapes(case, lostwax.Dim)
    program = lostwax.export(case.module, case.inputs, dynamic_shapes=shapes, keep="composite")
    lostwax.onnx.save(program, path)


def save_theirs(case: Case, path: str) -> None:
    torch.onnx.export(
        case.module,
        case.inputs,
        path,
        dynamic_shapes=make_shapes(case, torch.export.Dim),
        dynamo=True,
        optimize=True,
        verbose=False,
        external_data=False,
    )


SIDES = {"ours": save_ours, "theirs": save_theirs}


def measure(side: str, case: Case, path: str) -> float:
    found = []
    for _ in range(5 if side == "ours" else 1):
        start = time.process_time()
        SIDES[side](case, path)
        found.append(time.process_time() - start)
    return min(found)


def run_both(case: Case, paths: dict[str, str], runs: int) -> dict[str, float]:
    """The least time of a call of each, and nothing if results are not those of eager."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    sessions = {side: onnxruntime.InferenceSession(path, options) for side, path in paths.items()}
    with torch.no_grad():
        wanted = tree_leaves(case.module(*case.inputs))
    feeds = {
        side: dict(
            zip([x.name for x in made.get_inputs()], [x.numpy() for x in case.inputs], strict=True)
        )
        for side, made in sessions.items()
    }
    for side, session in sessions.items():
        found = [torch.from_numpy(x) for x in session.run(None, feeds[side])]
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    least = dict.fromkeys(sessions, math.inf)
    for _ in range(runs):
        for side, session in sessions.items():
            start = time.perf_counter()
            session.run(None, feeds[side])
            least[side] = min(least[side], time.perf_counter() - start)
    return least


def count_nodes(path: str) -> int:
    import onnx_ir

    return sum(1 for _ in onnx_ir.load(path).graph.all_nodes())


def measure_cold(name: str, side: str, folder: Path) -> float:
    """The CPU seconds of a process that imports, exports and writes."""
    code = (
        "import tempfile; from bench.onnx import SIDES, make_case; "
        f"SIDES[{side!r}](make_case({name!r}), tempfile.mkdtemp() + '/x.onnx')"
    )
    if side == "floor":
        code = "import torch, onnx_ir"
    paths = [str(folder), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-W", "ignore", "-c", code]
    before = os.times()
    subprocess.run(command, check=True, capture_output=True, env=environment)
    after = os.times()
    return sum(after[i] - before[i] for i in (2, 3))


def run_cold(names: list[str], rounds: int) -> None:
    from bench.cold import copy_with_bytecode  # the measured processes do not need it

    ratios = []
    with tempfile.TemporaryDirectory() as path:
        copy_with_bytecode(folder := Path(path))
        for name in names:
            found: dict[str, list[float]] = {"ours": [], "floor": [], "theirs": []}
            for _ in range(rounds):
                for side, seconds in found.items():
                    seconds.append(measure_cold(name, side, folder))
            ours, floor, theirs = map(statistics.median, found.values())
            ratios.append(theirs / ours)
            print(
                f"{name:<12} {ours:6.2f} s (floor {floor:.2f} s), torch {theirs:6.2f} s, "
                f"{ratios[-1]:.1f}x; at the floor {theirs / floor:.1f}x",
                flush=True,
            )
    print(f"{statistics.median(ratios):.1f}x (median)")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.onnx", description=__doc__)
    parser.add_argument("models", nargs="*", default=[*MODELS, f"llama{DEEP}"], metavar="MODEL")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    if options.cold:
        run_cold(options.models, options.rounds)
        return
    ratios: dict[str, list[float]] = {"written": [], "nodes": [], "run": []}
    for name in options.models:
        case, folder = make_case(name), Path(tempfile.mkdtemp())
        paths = {side: str(folder / f"{side}.onnx") for side in SIDES}
        seconds = {side: measure(side, case, paths[side]) for side in SIDES}
        nodes = {side: count_nodes(path) for side, path in paths.items()}
        runs = run_both(case, paths, options.runs)
        for kind, found in (("written", seconds), ("nodes", nodes), ("run", runs)):
            ratios[kind].append(found["theirs"] / found["ours"])
        print(
            f"{name:<12} written {seconds['ours']:.3f} s, torch {seconds['theirs']:.2f} s "
            f"({ratios['written'][-1]:.0f}x); nodes {nodes['ours']}, torch {nodes['theirs']} "
            f"({1 / ratios['nodes'][-1]:.2f}); a call {1e3 * runs['ours']:.2f} ms, torch "
            f"{1e3 * runs['theirs']:.2f} ms ({1 / ratios['run'][-1]:.2f})",
            flush=True,
        )
    print(
        f"written {statistics.median(ratios['written']):.0f}x (median); nodes "
        f"{1 / statistics.geometric_mean(ratios['nodes']):.2f}, a call "
        f"{1 / statistics.geometric_mean(ratios['run']):.2f} of torch's (geometric means)"
    )


if __name__ == "__main__":
    main()
