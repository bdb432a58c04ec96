"""`check_stages`: where a result goes wrong on its way to a device. The values of a program's nodes
in each form that it takes, beside those that it computes as it was captured: core ATen, Edge, with
delegates, in the runtime.

Must not change the program or the module.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.fx import Interpreter, Node
from torch.utils import _pytree as pytree

from lostwax.checking.program import copy_callable
from lostwax.checking.result import state_values
from lostwax.checking.untouched import leave_untouched
from lostwax.dialects.manager import to_edge
from lostwax.errors import CheckError, LoadError
from lostwax.ir.origin import NodeOrigin, origin_of
from lostwax.ir.program import ExportedProgram
from lostwax.ir.run.module import call_convention
from lostwax.pte.executable import ExecutableProgram, emit_recording
from lostwax.pte.runtime import load_runtime

BAR = 1e-4
"""What an error may be, relative to the largest value: that of `check` for executables."""
Values = dict[str, list[torch.Tensor]]


@dataclass(frozen=True)
class Point:
    """How wrong the value of a node is in one stage: the greatest difference, divided by the
    greatest value."""

    origin: NodeOrigin
    error: float


@dataclass(frozen=True)
class StageErrors:
    """One form of a program."""

    name: str
    points: tuple[Point, ...]
    """In the order of the program, those nodes that this stage has, too."""
    error: float
    """Of the results, beside eager."""

    @property
    def worst(self) -> Point | None:
        return max(self.points, key=lambda point: point.error, default=None)


@dataclass(frozen=True)
class StagesResult:
    """What `check_stages` found. It is true if no result is further from eager than the bar."""

    stages: tuple[StageErrors, ...]
    bar: float
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return all(stage.error <= self.bar for stage in self.stages)

    def __bool__(self) -> bool:
        return self.ok

    def find_growth(self) -> tuple[StageErrors, Point] | None:
        """The first stage and the first node in it whose error is above the bar."""
        for stage in self.stages:
            for point in stage.points:
                if point.error > self.bar:
                    return stage, point
        return None

    def __str__(self) -> str:
        lines = [f"{_number(stage.error)}  the results, {stage.name}" for stage in self.stages]
        found = self.find_growth()
        if found is not None:
            stage, point = found
            where = f"\n    at {point.origin.line}, code: {point.origin.code}"
            lines.append(
                f"the error grows first in {stage.name}: {point.origin.name} = "
                f"{point.origin.operator}{where if point.origin.line else ''}\n"
                f"    {_number(point.error)} of the largest value"
            )
        return "\n".join([*lines, *self.notes])

    def plot(self) -> str:
        """The error along the program: for each line of the user's the greatest one of each
        stage."""
        rows: dict[str, dict[str, float]] = {}
        for stage in self.stages:
            for point in stage.points:
                row = rows.setdefault(f"{point.origin.line}  {point.origin.code}".strip(), {})
                row[stage.name] = max(row.get(stage.name, 0.0), point.error)
        shown = [stage.name for stage in self.stages if stage.points]
        lines = ["  ".join([*(name.rjust(10) for name in shown), "line"])]
        for line, row in rows.items():
            cells = [_number(row[n]) if n in row else "" for n in shown]
            bar = "#" * _length(max(row.values()), self.bar)
            lines.append("  ".join([*(c.rjust(10) for c in cells), f"{line}  {bar}".rstrip()]))
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        found = self.find_growth()
        growth = {"stage": found[0].name, **asdict(found[1])} if found else None
        if growth is not None and found is not None:
            growth["origin"] = found[1].origin._asdict()
        stages = [
            {
                "name": s.name,
                "error": _finite(s.error),
                "nodes": [{**p.origin._asdict(), "error": _finite(p.error)} for p in s.points],
            }
            for s in self.stages
        ]
        return {"ok": self.ok, "bar": self.bar, "growth": growth, "stages": stages}


def check_stages(
    program: ExportedProgram,
    module: Any,
    inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
    *,
    partitioner: Any = None,
    file: Any = None,
    bar: float = BAR,
) -> StagesResult:
    """Compare the values of a program's nodes, as it was captured, with those of core ATen, of
    Edge, with the delegates of a partitioner, and of the runtime; and all results with eager's.

    `inputs` are `(args, kwargs)`, the example's if not given: random ones hide much. `file` is a
    `.pte` file of this program, whose results are compared, too.
    """
    call = inputs or program.example_inputs
    if call is None:
        raise CheckError(
            "the program has no example inputs\n  instead: check_stages(program, module, "
            "inputs=((x,), {}))"
        )
    wanted = _run_module(module, call)
    given = call_convention(program, True).bind(*copy.deepcopy(call))
    truth, results = _record(program, given)
    nodes = [n for n in program.graph.nodes if n.op == "call_function" and n.name in truth]
    stages = [StageErrors("ATen", (), _error(results, wanted))]

    def add(name: str, other: ExportedProgram, values: Values, results: Sequence[Any]) -> None:
        points = tuple(_compare(nodes, truth, other, values))
        stages.append(StageErrors(name, points, _error(results, wanted)))

    core = program.run_decompositions()
    add("core ATen", core, *_record(core, given))
    edge = to_edge(program)
    add("Edge", edge.exported_program(), *_record(edge.exported_program(), given))
    lowered = edge if partitioner is None else edge.to_backend(partitioner)
    if partitioner is not None:
        add("delegated", lowered.exported_program(), *_record(lowered.exported_program(), given))
    notes = []
    try:
        executable = lowered.to_executable()
        add("runtime", executable.exported_program(), *_run_recording(executable, given))
    except LoadError as error:
        notes.append(f"not run in the runtime: {str(error).splitlines()[0]}")
    if file is not None:  # which was asked for: that it does not run is no note
        got = load_runtime(file).run(list(given))
        stages.append(StageErrors(f"{file}", (), _error(got, wanted)))
    return StagesResult(tuple(stages), bar, tuple(notes))


def _run_module(module: Any, call: Any) -> list[Any]:
    with leave_untouched(module), torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        args, kwargs = copy.deepcopy(call)
        return pytree.tree_leaves(copy_callable(module)(*args, **kwargs))


class _StageInterpreter(Interpreter):
    """Runs a graph, and keeps what each node computes."""

    def __init__(self, program: ExportedProgram) -> None:
        super().__init__(program.graph_module)
        self.values: Values = {}

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if n.op == "call_function" and "empty" not in str(n.target):  # that has no value
            self.values[n.name] = _keep(value)
        return value


def _keep(value: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(value)
    return [t.detach().to("cpu", copy=True) for t in leaves if isinstance(t, torch.Tensor)]


def _record(program: ExportedProgram, given: Sequence[Any]) -> tuple[Values, list[Any]]:
    recorder = _StageInterpreter(program)
    state = copy.deepcopy(state_values(program))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        results = recorder.run(*state, *copy.deepcopy(given))
    written = len(results) - len(program.graph_signature.user_outputs)
    return recorder.values, list(results[written:])


def _run_recording(executable: ExecutableProgram, given: Sequence[Any]) -> tuple[Values, list[Any]]:
    buffer, nodes = emit_recording(executable, "forward")
    got = load_runtime(buffer).run(copy.deepcopy(list(given)))
    count = len(got) - len(nodes)
    values = {n.name: _keep(v) for n, v in zip(nodes, got[count:], strict=True)}
    return values, got[:count]


# ---------------------------------------------------------------------------------------- errors


def _compare(
    nodes: Sequence[Node], truth: Values, other: ExportedProgram, values: Values
) -> Iterator[Point]:
    """How far the value of each node is from that of what was made of it: the last node with its
    sizes that says so, or the one with its name."""
    made: dict[str, list[str]] = {}
    for node in other.graph.nodes:
        for origin in node.meta.get("decomposed_from") or ():
            made.setdefault(origin.name, []).append(node.name)
    for node in nodes:
        known = made.get(node.name) or [node.name]
        for name in reversed(known):
            if name in values and _sizes(values[name]) == _sizes(truth[node.name]):
                yield Point(origin_of(node), _error(values[name], truth[node.name]))
                break


def _sizes(values: Sequence[torch.Tensor]) -> list[torch.Size]:
    return [t.shape for t in values]


def _error(got: Sequence[Any], want: Sequence[Any]) -> float:
    """The greatest difference of tensors, divided by the greatest value; infinite where they have
    other sizes."""
    if len(got) != len(want):
        return math.inf
    return max((_distance(a, b) for a, b in zip(got, want, strict=True)), default=0.0)


def _distance(got: Any, want: Any) -> float:
    if not isinstance(got, torch.Tensor) or not isinstance(want, torch.Tensor):
        return 0.0 if got == want else math.inf
    if got.shape != want.shape:
        return math.inf
    if not want.numel():
        return 0.0
    wide = torch.complex128 if want.is_complex() else torch.float64
    a, b = (t.detach().to("cpu", wide) for t in (got, want))
    same = (a == b) | (a.isnan() & b.isnan())
    difference = torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=math.inf).max()
    finite = b[b.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 1.0
    return float(difference) / max(scale, 1e-3)


def _finite(error: float) -> float:
    return min(error, 1e30)


def _number(error: float) -> str:
    return "0" if not error else f"{error:.1e}"


def _length(error: float, bar: float) -> int:
    """One sign for each power of ten above a thousandth of the bar."""
    return 0 if not error else max(0, min(12, math.ceil(math.log10(error / bar) + 3)))
