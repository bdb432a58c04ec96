"""`check_stages`: where a result goes wrong on its way to a device. The values of a program's nodes
in each form that it takes, beside those that it computes as it was captured: quantized, core ATen,
Edge, with delegates, in the runtime.

Must not change the program or the module.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from lostwax.backends.transform import to_edge_transform_and_lower
from lostwax.checking.program import copy_callable
from lostwax.checking.quantized import pair_values
from lostwax.checking.recording import Values, list_sizes, record, run_recording
from lostwax.checking.untouched import leave_untouched
from lostwax.dialects.manager import to_edge
from lostwax.errors import CheckError, LoadError, LoweringError
from lostwax.ir.origin import NodeOrigin, origin_of
from lostwax.ir.program import ExportedProgram
from lostwax.ir.run.module import call_convention
from lostwax.pte.runtime import load_runtime

BAR = 1e-4
"""What an error may be, relative to the largest value: that of `check` for executables."""
QUANTIZED_BAR = 0.1
"""What it may be where values are quantized: eight bits have some hundredths in a layer."""


@dataclass(frozen=True)
class Point:
    """How wrong the value of a node is in one stage: the greatest difference, divided by the
    greatest value."""

    origin: NodeOrigin
    error: float
    own: float | None = None
    """What the error is if all that the node reads is right; None if that is not known."""

    def to_json(self) -> dict[str, Any]:
        own = {} if self.own is None else {"own": _finite(self.own)}
        return {**self.origin._asdict(), "error": _finite(self.error), **own}


@dataclass(frozen=True)
class StageErrors:
    """One form of a program."""

    name: str
    points: tuple[Point, ...]
    """In the order of the program, those nodes that this stage has, too."""
    error: float
    """Of the results, beside eager."""
    bar: float = BAR
    """What an error may be."""

    @property
    def worst(self) -> Point | None:
        return max(self.points, key=lambda point: point.error, default=None)

    def find_growth(self) -> Point | None:
        """The first node whose own error is above the bar, or else the first whose error is: many
        small ones may add up to that."""
        own = (p for p in self.points if p.own is not None and p.own > self.bar)
        return next(own, None) or next((p for p in self.points if p.error > self.bar), None)


@dataclass(frozen=True)
class StagesResult:
    """What `check_stages` found. It is true if no result is further from eager than the bar of its
    stage."""

    stages: tuple[StageErrors, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return all(stage.error <= stage.bar for stage in self.stages)

    def __bool__(self) -> bool:
        return self.ok

    def find_growth(self) -> tuple[StageErrors, Point] | None:
        """The first stage in which an error is above the bar, and where it grows there."""
        found = ((stage, stage.find_growth()) for stage in self.stages)
        return next(((stage, point) for stage, point in found if point is not None), None)

    def __str__(self) -> str:
        lines = [f"{_number(stage.error)}  the results, {stage.name}" for stage in self.stages]
        found = self.find_growth()
        if found is not None:
            stage, point = found
            where = f"\n    at {point.origin.line}, code: {point.origin.code}"
            module = f" in {point.origin.module}" if point.origin.module else ""
            own = "" if point.own is None else f"; {_number(point.own)} is its own"
            lines.append(
                f"the error grows first in {stage.name}: {point.origin.name} = "
                f"{point.origin.operator}{module}{where if point.origin.line else ''}\n"
                f"    {_number(point.error)} of the largest value{own}"
            )
        return "\n".join([*lines, *self.notes])

    def plot(self) -> str:
        """The error along the program: for each line of a module the greatest one of each stage.
        The bars are of errors that are a node's own, where these are known."""
        table = _ErrorTable()
        for stage in self.stages:
            for point in stage.points:
                table.add(stage, point)
        return "\n".join(table.lines())

    def to_json(self) -> dict[str, Any]:
        found = self.find_growth()
        growth = {"stage": found[0].name, **found[1].to_json()} if found else None
        stages = [
            {
                "name": s.name,
                "error": _finite(s.error),
                "bar": s.bar,
                "nodes": [p.to_json() for p in s.points],
            }
            for s in self.stages
        ]
        return {"ok": self.ok, "growth": growth, "stages": stages}


_OWN = "its own"


class _ErrorTable:
    """Errors by line and stage."""

    def __init__(self) -> None:
        self.columns: dict[str, float] = {}
        """What an error may be in each."""
        self.rows: dict[str, dict[str, float]] = {}

    def add(self, stage: StageErrors, point: Point) -> None:
        """The point of a stage, in one column or two."""
        module = f"in {point.origin.module}" if point.origin.module else ""
        line = "  ".join(filter(None, (point.origin.line, point.origin.code, module)))
        row = self.rows.setdefault(line, {})
        for name, error in ((stage.name, point.error), (_OWN, point.own)):
            if error is not None:
                self.columns[name] = stage.bar
                row[name] = max(row.get(name, 0.0), error)

    def lines(self) -> Iterator[str]:
        """The lines of the table, with a bar behind each."""
        yield "  ".join([*(name.rjust(10) for name in self.columns), "line"])
        for line, row in self.rows.items():
            cells = [_number(row[n]) if n in row else "" for n in self.columns]
            shown = [_OWN] if _OWN in row else [*row]
            bar = "#" * max(_length(row[n], self.columns[n]) for n in shown)
            yield "  ".join([*(c.rjust(10) for c in cells), f"{line}  {bar}".rstrip()])


def check_stages(
    program: ExportedProgram,
    module: Any,
    inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
    *,
    partitioner: Any = None,
    file: Any = None,
    quantized: ExportedProgram | None = None,
    bar: float | None = None,
) -> StagesResult:
    """Compare the values of a program's nodes, as it was captured, with those of core ATen, of
    Edge, with the delegates of a partitioner, and of the runtime; and all results with eager's.

    `inputs` are `(args, kwargs)`, the example's if not given: random ones hide much. `quantized`
    is a program of the same module with quantized values: all stages after it are its own, beside
    the values in floats. `file` is a `.pte` file of this program, whose results are compared, too.
    The bar is 1e-4, or a tenth for what is quantized.
    """
    call = inputs or program.example_inputs
    if call is None:
        raise CheckError(
            "the program has no example inputs\n  instead: check_stages(program, module, "
            "inputs=((x,), {}))"
        )
    wanted = _run_module(module, call)
    given = call_convention(program, True).bind(*copy.deepcopy(call))
    truth, results = record(program, given)
    nodes = [n for n in program.graph.nodes if n.op == "call_function" and n.name in truth]
    if quantized is None:
        names = {n.name: n.name for n in nodes}
        bar = first = BAR if bar is None else bar
    else:
        names = pair_values(program, quantized, truth)
        bar, first = QUANTIZED_BAR if bar is None else bar, BAR
        _check_paired(names)
    maker = _StageMaker(nodes, names, truth, wanted, bar)
    maker.stages.append(StageErrors("ATen", (), _error(results, wanted), first))
    if quantized is not None:
        program, given = quantized, call_convention(quantized, True).bind(*copy.deepcopy(call))
        maker.add_quantized(program, given)
    maker.lower(program, given, partitioner, file)
    return StagesResult(tuple(maker.stages), tuple(maker.notes))


def _check_paired(names: Mapping[str, str]) -> None:
    if not names:
        raise CheckError(
            "the quantized program has no value of the program in floats\n  why: values are told "
            "by their modules and lines, and none is in both\n  instead: a program that was "
            "quantized from this module, as its source is now"
        )


class _StageMaker:
    """The forms of a program, each compared as it is made."""

    def __init__(
        self,
        nodes: Sequence[Node],
        names: Mapping[str, str],
        truth: Values,
        wanted: Sequence[Any],
        bar: float,
    ) -> None:
        self.nodes = nodes
        self.names = names
        """What the nodes are called in the program that is lowered."""
        self.truth, self.wanted, self.bar = truth, wanted, bar
        self.stages: list[StageErrors] = []
        self.notes: list[str] = []

    def add_quantized(self, program: ExportedProgram, given: Sequence[Any]) -> None:
        """The values of the quantized program, and those that it has if what is read is right."""
        values, results = record(program, given)
        instead = {other: self.truth[name] for name, other in self.names.items()}
        own, _ = record(program, given, instead)
        self.add("quantized", program, values, results, own)

    def lower(
        self, program: ExportedProgram, given: Sequence[Any], partitioner: Any, file: Any
    ) -> None:
        """All that is made of a program."""
        core = program.run_decompositions()
        self.add("core ATen", core, *record(core, given))
        try:
            edge = to_edge(program)
        except LoweringError as error:
            if partitioner is not None or file is not None:
                raise
            self.notes.append(f"it has no Edge program: {str(error).splitlines()[0]}")
            return
        self.add("Edge", edge.exported_program(), *record(edge.exported_program(), given))
        if partitioner is not None:
            edge = to_edge_transform_and_lower(program, partitioner=partitioner)
            self.add("delegated", edge.exported_program(), *record(edge.exported_program(), given))
        try:
            executable = edge.to_executable()
            self.add("runtime", executable.exported_program(), *run_recording(executable, given))
        except LoadError as error:
            self.notes.append(f"not run in the runtime: {str(error).splitlines()[0]}")
        if file is not None:  # which was asked for: that it does not run is no note
            got = load_runtime(file).run(list(given))
            self.stages.append(StageErrors(f"{file}", (), _error(got, self.wanted), self.bar))

    def add(
        self,
        name: str,
        other: ExportedProgram,
        values: Values,
        results: Sequence[Any],
        own: Values | None = None,
    ) -> None:
        """One form, with the values of its nodes."""
        points = tuple(self._compare(other, values, own or {}))
        self.stages.append(StageErrors(name, points, _error(results, self.wanted), self.bar))

    def _compare(self, other: ExportedProgram, values: Values, own: Values) -> Iterator[Point]:
        """How far the value of each node is from that of what was made of it: the last node with
        its sizes that says so, or the one with its name."""
        made: dict[str, list[str]] = {}
        for node in other.graph.nodes:
            for origin in node.meta.get("decomposed_from") or ():
                made.setdefault(origin.name, []).append(node.name)
        for node in self.nodes:
            called, want = self.names.get(node.name, ""), self.truth[node.name]
            for name in reversed(made.get(called) or [called]):
                if name in values and list_sizes(values[name]) == list_sizes(want):
                    alone = _error(own[name], want) if name in own else None
                    yield Point(origin_of(node), _error(values[name], want), alone)
                    break


def _run_module(module: Any, call: Any) -> list[Any]:
    with leave_untouched(module), torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        args, kwargs = copy.deepcopy(call)
        return pytree.tree_leaves(copy_callable(module)(*args, **kwargs))


# ---------------------------------------------------------------------------------------- errors


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
    """Four signs for each power of ten above a thousandth of the bar."""
    return 0 if not error else max(0, min(32, math.ceil(4 * math.log10(error / bar) + 12)))
