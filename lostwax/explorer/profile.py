"""How long nodes take, and how far their values are from those of another program: read from a
file, or measured here with the example.

A profile is `{"seconds": {node: seconds}, "errors": {node: error}}`, either of which may be left
out. Nodes have the names that the page shows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.fx import Interpreter, Node
from torch.utils import _pytree as pytree

from lostwax.checking.result import state_values
from lostwax.errors import InputStructureError, InputValueError
from lostwax.ir.program import ExportedProgram
from lostwax.ir.run.module import call_convention
from lostwax.profiling.eager import profile_program
from lostwax.profiling.profile import Profile as Measured
from lostwax.profiling.profile import profile_from_json

TABLES = ("seconds", "errors")
RUNS = 5
Profile = dict[str, dict[str, float]]


def read_profile(given: Any) -> Profile:
    """A profile of a user: a mapping, the path of a JSON file, or what `lostwax profile` tells."""
    if isinstance(given, (str, os.PathLike)):
        try:
            given = json.loads(Path(given).read_text("utf-8"))
        except FileNotFoundError as error:
            error.add_note("  why: profile= is a dict, the path of a JSON file, or True")
            error.add_note("  instead: profile=True, which measures the example")
            raise
        except ValueError as error:
            raise ValueError(
                f"{given} is no profile: {error}\n"
                '  instead: a JSON file of {"seconds": {"conv2d": 0.001}}'
            ) from None
    if isinstance(given, Mapping) and ("result" in given or "pieces" in given):
        given = profile_from_json(given)
    if isinstance(given, Measured):
        given = {"seconds": _lay_over(given)}
    is_table = isinstance(given, Mapping) and given and set(given) <= set(TABLES)
    if not is_table or not all(map(_is_column, given.values())):
        raise ValueError(
            "a profile is a dict of numbers by the names of nodes, or a JSON file of one\n"
            '  instead: {"seconds": {"conv2d": 0.001}, "errors": {"conv2d": 1e-6}}'
        )
    return {name: dict(given.get(name, ())) for name in TABLES}


def _lay_over(given: Measured) -> dict[str, float]:
    """The seconds of instructions, and of nodes where a piece is of one of them, or of a layer with
    its activation."""
    found: dict[str, float] = {}
    for piece in given.pieces:
        names = [piece.at, *(n.name for n in piece.nodes[:1] if len(piece.nodes) <= 2)]
        for name in filter(None, names):
            found[name] = found.get(name, 0.0) + piece.seconds
    return found


def _is_column(given: Any) -> bool:
    """Numbers that are none, as infinity, cannot stand in a page."""
    return isinstance(given, Mapping) and all(
        isinstance(value, (int, float)) and 0 <= value < float("inf") for value in given.values()
    )


def note_profile(
    entries: list[dict[str, Any]], programs: Mapping[tuple[int, str], ExportedProgram], given: Any
) -> None:
    """Note the profile in each program of a page; True: measure it."""
    told = None if given is True else read_profile(given)
    for entry in entries:
        found = told or _measure(entries, entry, programs)
        entry["profile"] = _number(found, entry["columns"]["name"])
    if any(table for entry in entries for table in entry["profile"].values()):
        return
    if told is None:
        raise ValueError(
            "nothing can be measured: a .pte file has no example\n"
            "  instead: a profile of your own, as a dict or a JSON file"
        )
    named = ", ".join([name for table in told.values() for name in table][:3])
    raise ValueError(f"the profile names no node of the program: it has {named or 'no numbers'}")


def _measure(
    entries: list[dict[str, Any]],
    entry: dict[str, Any],
    programs: Mapping[tuple[int, str], ExportedProgram],
) -> Profile:
    """The times of a program, and if it is compared with another, the errors against that."""
    found: Profile = {table: {} for table in TABLES}
    method = entry["method"]
    program, first = programs.get((entry["stage"], method)), programs.get((0, method))
    if program is None:
        return found
    found["seconds"] = measure_seconds(program)
    if "changes" in entry and "links" in entry and first is not None:
        (other,) = (e for e in entries if (e["stage"], e["method"]) == (0, method))
        names, others = entry["columns"]["name"], other["columns"]["name"]
        pairs = [
            (others[origin], names[at])
            for at, origin in enumerate(entry["links"])
            if origin >= 0 and entry["columns"]["graph"][at] == 0
        ]
        found["errors"] = measure_errors(first, program, pairs)
    return found


def _number(profile: Profile, names: list[str]) -> dict[str, dict[int, float]]:
    """The profile by the numbers of nodes; of several of one name, that of the outermost graph."""
    numbers: dict[str, int] = {}
    for at, name in enumerate(names):
        numbers.setdefault(name, at)
    return {
        table: {numbers[n]: float(value) for n, value in profile[table].items() if n in numbers}
        for table in TABLES
    }


# ---------------------------------------------------------------------------------------- measuring


class _ExampleInterpreter(Interpreter):
    """Runs a graph, and notes what each node computes."""

    def __init__(self, program: ExportedProgram) -> None:
        super().__init__(program.graph_module)
        self.values: dict[str, list[torch.Tensor]] = {}

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if n.op == "call_function" and "empty" not in str(n.target):  # that has no value
            leaves = pytree.tree_leaves(value)
            self.values[n.name] = [_to_double(t) for t in leaves if isinstance(t, torch.Tensor)]
        return value


def measure_seconds(program: ExportedProgram) -> dict[str, float]:
    """How long each node takes with the example: the median of several runs, after one that does
    not count."""
    found = profile_program(program, _require_example(program), "", RUNS)
    return {piece.nodes[0].name: piece.seconds for piece in found.pieces}


def measure_errors(
    a: ExportedProgram, b: ExportedProgram, pairs: list[tuple[str, str]]
) -> dict[str, float]:
    """How far the values of `b` are from those of `a`, both run with the example of `a`: for each
    pair of nodes the greatest difference, divided by the greatest value of `a`. Empty if `b` does
    not take that example."""
    ours = _run(a)
    try:
        theirs = _run(b, example=a.example_inputs)
    except (InputStructureError, InputValueError):
        return {}
    found = {}
    for name, other in pairs:
        values = list(zip(ours.get(name, ()), theirs.get(other, ()), strict=False))
        if values and all(x.shape == y.shape and x.numel() for x, y in values):
            error = max(_distance(x, y) for x, y in values)
            found[other] = min(error, 1e30)  # a page has no infinity
    return found


def _to_double(t: torch.Tensor) -> torch.Tensor:
    wide = torch.complex128 if t.is_complex() else torch.float64
    return t.detach().to("cpu", wide, copy=True)


def _distance(x: torch.Tensor, y: torch.Tensor) -> float:
    same = (x == y) | (x.isnan() & y.isnan())
    difference = torch.where(same, 0.0, (x - y).abs()).nan_to_num(nan=float("inf")).max()
    return float(difference / x.abs().nan_to_num().max().clamp(min=1e-30))


def _require_example(program: ExportedProgram) -> Any:
    if program.example_inputs is None:
        raise ValueError(
            "the program has no example inputs, with which it could be measured\n"
            "  instead: a profile of your own, as a dict or a JSON file"
        )
    return program.example_inputs


def _run(program: ExportedProgram, example: Any = None) -> dict[str, list[torch.Tensor]]:
    """What each node computes."""
    example = example or _require_example(program)
    inputs = call_convention(program, True).bind(*example)
    recorder = _ExampleInterpreter(program)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        recorder.run(*state_values(program), *inputs)
    return recorder.values
