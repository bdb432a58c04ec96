"""Profiles of programs in eager: each node is run and timed; on a GPU by torch's profiler.

Must not know how profiles are shown.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.fx import Interpreter, Node
from torch.profiler import DeviceType
from torch.utils import _pytree as pytree

from lostwax.checking.result import state_values
from lostwax.ir.origin import origin_of
from lostwax.ir.program import ExportedProgram
from lostwax.ir.run.module import call_convention
from lostwax.profiling.profile import Profile, TimedPiece

_MARK = "lostwax:"


class _Stopwatch(Interpreter):
    """Runs a graph, and notes how long each node takes, and how much it makes."""

    def __init__(self, program: ExportedProgram, is_marked: bool) -> None:
        super().__init__(program.graph_module)
        self.is_marked = is_marked
        self.seconds: dict[str, float] = {}
        self.bytes: dict[str, int] = {}

    def run_node(self, n: Node) -> Any:
        if n.op != "call_function":
            return super().run_node(n)
        start = time.perf_counter()
        if self.is_marked:
            with torch.profiler.record_function(_MARK + n.name):
                value = super().run_node(n)
        else:
            value = super().run_node(n)
        self.seconds[n.name] = time.perf_counter() - start
        leaves = pytree.tree_leaves(value)
        self.bytes[n.name] = sum(t.nbytes for t in leaves if isinstance(t, torch.Tensor))
        return value


def profile_program(program: ExportedProgram, inputs: Any, title: str, calls: int = 5) -> Profile:
    """How long each node of a program takes: the median of so many calls, after one that does not
    count; together they are the call. `inputs` are args and kwargs. Where tensors are on a GPU,
    what counts is how long that works."""
    bound = call_convention(program, True).bind(*inputs)
    values = [*state_values(program), *bound]
    is_on_gpu = any(isinstance(v, torch.Tensor) and v.is_cuda for v in values)
    runs = []
    watch = _Stopwatch(program, is_on_gpu)
    for turn in range(calls + 1):
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(0)
            seconds = _run_on_gpu(watch, values) if is_on_gpu else _run(watch, values)
        if turn:
            runs.append(seconds)
    whole = statistics.median(sum(run.values()) for run in runs)
    nodes = {n.name: n for n in program.graph.nodes if n.op == "call_function"}
    return Profile(title, whole, calls, tuple(_pieces(nodes, runs, watch.bytes)))


def _pieces(
    nodes: dict[str, Node], runs: list[dict[str, float]], sizes: dict[str, int]
) -> Iterator[TimedPiece]:
    for name, node in nodes.items():
        origin = origin_of(node)
        seconds = statistics.median(run.get(name, 0.0) for run in runs)
        yield TimedPiece(origin.operator, seconds, (origin,), "", sizes.get(name, 0))


def _run(watch: _Stopwatch, values: list[Any]) -> dict[str, float]:
    watch.run(*values)
    return dict(watch.seconds)


def _run_on_gpu(watch: _Stopwatch, values: list[Any]) -> dict[str, float]:
    """How long the kernels of each node take, which begin after the call of it is over."""
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profiler:
        watch.run(*values)
        torch.cuda.synchronize()
    return kernel_seconds(profiler.events() or ())


def kernel_seconds(events: Iterable[Any]) -> dict[str, float]:
    """How long the kernels of each marked node take. On the GPU there are marks too, from the first
    kernel of a node to its last: they are no kernels."""
    found: dict[str, float] = {}
    for event in events:
        if event.name.startswith(_MARK) and event.device_type == DeviceType.CPU:
            name = event.name.removeprefix(_MARK)
            found[name] = found.get(name, 0.0) + _kernel_micros(event, set()) / 1e6
    return found


def _kernel_micros(event: Any, counted: set[int]) -> float:
    """torch gives an event its kernels by its id, which what the driver does below it may share."""
    found = 0.0
    if event.id not in counted:
        counted.add(event.id)
        found = float(sum(k.duration for k in event.kernels if not k.name.startswith(_MARK)))
    return found + sum(_kernel_micros(child, counted) for child in event.cpu_children)
