"""What there is to show of what was given: the stages of a program, each with its methods.

A stage is a program on its way, from export to executable. Must not write files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload

from lostwax.dialects.manager import EdgeProgramManager
from lostwax.dialects.methods import Methods
from lostwax.explorer.differences import note_differences
from lostwax.explorer.graph import ProgramWriter, Tables
from lostwax.explorer.links import link_nodes
from lostwax.explorer.listing import PlanWriter
from lostwax.explorer.memory import find_planned_memory, find_program_memory, list_kernels
from lostwax.explorer.profile import note_profile
from lostwax.ir.graph.delegate import find_delegates
from lostwax.ir.graph.lookup import graph_modules
from lostwax.ir.passes.journal import Journal
from lostwax.ir.program import ExportedProgram, describe_stranger
from lostwax.pt2.loading import load
from lostwax.pte.executable import ExecutableProgram, plan_method
from lostwax.pte.file.reader import File, read_file

VERSION = 1
"""Of the form of the data; a page and its data are always written together."""


@dataclass(frozen=True)
class Stage:
    """A program on its way: its methods, which are programs or, of a file, listings."""

    label: str
    methods: Mapping[str, ExportedProgram]
    executable: ExecutableProgram | None = None
    file: File | None = None


def find_stages(given: Any, lower: bool, weights: bool = False) -> list[Stage]:
    """The stages of what a user gives; with `lower`, those that follow as well, up to Edge."""
    stages = list(_list_stages(given, weights))
    if not stages:
        raise TypeError("explore takes a program; it was given an empty collection")
    last = stages[-1]
    if lower and last.file is None and all(p.dialect != "EDGE" for p in last.methods.values()):
        core = {name: program.run_decompositions() for name, program in last.methods.items()}
        edge = {name: program.to_edge() for name, program in last.methods.items()}
        stages.append(Stage("core ATen", core))
        stages.append(Stage("Edge", {n: each.exported_program() for n, each in edge.items()}))
    return stages


def pair_stages(a: Any, b: Any, lower: bool, weights: bool = False) -> list[Stage]:
    """Two programs that are compared, each of one stage."""
    if lower:
        raise ValueError("diff shows two programs, lower the stages of one: ask for one of them")
    found = []
    for given, place in ((a, "first"), (b, "second")):
        stages = find_stages(given, False, weights)
        if len(stages) > 1:
            raise ValueError(f"diff compares two programs; the {place} are {len(stages)} stages")
        is_file = isinstance(given, (str, os.PathLike))
        label = Path(given).name if is_file else f"{place}: {stages[0].label}"
        found.append(replace(stages[0], label=label))
    mine, others = (_names(stage) for stage in found)
    if not set(mine) & set(others):
        raise ValueError(
            "diff compares methods of the same name; the first program has "
            f"{', '.join(mine)}, the second {', '.join(others)}\n"
            "  instead: a dict of the program by that name"
        )
    if found[0].label == found[1].label:
        found = [replace(stage, label=str(path)) for stage, path in zip(found, (a, b), strict=True)]
    return found


def _list_stages(given: Any, weights: bool) -> Iterator[Stage]:
    if isinstance(given, (str, os.PathLike)):
        yield _read_stage(Path(given), weights)
    elif isinstance(given, ExportedProgram):
        yield Stage(_name_dialect([given]), {"forward": given})
    elif isinstance(given, ExecutableProgram):
        yield Stage("executable", _list_methods(given), given)
    elif isinstance(given, EdgeProgramManager):
        methods = _list_methods(given)
        yield Stage(_name_dialect(list(methods.values())), methods)
    elif isinstance(given, Journal):
        for number, entry in enumerate(given):
            if number == 0:
                yield Stage("before", {"forward": entry.before})
            yield Stage(entry.name, {"forward": entry.after})
    elif isinstance(given, Mapping):
        for each in given.values():
            _require_program(each)
        yield Stage(_name_dialect(list(given.values())), dict(given))
    elif isinstance(given, (list, tuple)):
        for each in given:
            yield from _list_stages(each, weights)
    else:
        _require_program(given)


def _require_program(given: Any) -> None:
    if not isinstance(given, ExportedProgram):
        raise TypeError(
            "explore takes a program, an EdgeProgramManager, an executable, a Journal, the path "
            f"of a .pt2 or .pte file, or a list of these; not {describe_stranger(given)}"
        )


def _read_stage(path: Path, weights: bool) -> Stage:
    if path.suffix == ".pte":
        return Stage("executable", {}, file=read_file(path.read_bytes()))
    methods = load(path, weights=weights, by_name=True)
    if list(methods) == ["model"]:
        methods = {"forward": methods["model"]}
    return Stage(_name_dialect(list(methods.values())), methods)


def _list_methods(methods: Methods) -> dict[str, ExportedProgram]:
    return {name: methods.exported_program(name) for name in sorted(methods.methods)}


def _name_dialect(programs: Sequence[ExportedProgram]) -> str:
    """The name of the stage that programs have come to."""
    graphs = [module.graph for each in programs for module in graph_modules(each.graph_module)]
    backends = {
        d.backend_id.removesuffix("Backend"): 0 for g in graphs for _, d in find_delegates(g)
    }
    if backends:
        return " + ".join(backends)
    if any(program.dialect == "EDGE" for program in programs):
        return "Edge"
    nodes = [node for program in programs for node in program.graph.nodes]
    if not any(node.meta.get("decomposed_from") for node in nodes):
        return "ATen"
    targets = [n.target for n in nodes if isinstance(n.target, OpOverload)]
    return "core ATen" if all(torch.Tag.core in t.tags for t in targets) else "decomposed"


# ------------------------------------------------------------------------------------------- data


def describe_stages(
    stages: Sequence[Stage], title: str, source: bool, is_diff: bool = False, profile: Any = None
) -> dict[str, Any]:
    """The data of a page."""
    tables = Tables(source)
    methods = list(dict.fromkeys(name for stage in stages for name in _names(stage)))
    described, writers = [], dict[tuple[str, int], ProgramWriter]()
    for number, stage in enumerate(stages):
        for name in _names(stage):
            entry: dict[str, Any] = {"label": stage.label, "stage": number, "method": name}
            if stage.file is not None:
                plans = {plan["name"]: plan for plan in stage.file.program["execution_plan"]}
                entry |= PlanWriter(tables, plans[name], stage.file).write()
            else:
                writers[name, number] = writer = ProgramWriter(tables, stage.methods[name])
                entry |= writer.write()
                entry["memory"] = find_program_memory(writer)
                if stage.executable is not None:
                    listing = plan_method(stage.executable, name)
                    weights = entry["memory"]["weights"]
                    entry["memory"] = find_planned_memory(listing, writer.numbers, weights)
                    entry["kernels"] = list_kernels(listing, writer.numbers)
                if (name, number - 1) in writers:
                    entry["links"] = link_nodes(writers[name, number - 1], writer)
            described.append(entry)
    if is_diff:
        note_differences(described, tables.strings.items)
    if profile is not None and profile is not False:
        programs = {(n, name): p for n, s in enumerate(stages) for name, p in s.methods.items()}
        note_profile(described, programs, profile)
    return {
        "version": VERSION,
        "title": title,
        "methods": methods,
        "stages": [stage.label for stage in stages],
        "programs": described,
        "strings": tables.strings.items,
        "source": tables.sources.to_json(),
        "diff": is_diff,
    }


def _names(stage: Stage) -> list[str]:
    if stage.file is not None:
        return [str(plan["name"]) for plan in stage.file.program["execution_plan"] or ()]
    return list(stage.methods)
