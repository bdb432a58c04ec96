"""Programs in files, described: what `lostwax show`, `diff` and `export` tell of them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from lostwax.cli.outcome import CommandOutcome, Exit, check_file
from lostwax.cli.wording import in_options
from lostwax.errors import CommandError, LoadError, LoweringError
from lostwax.ir.diff import diff
from lostwax.ir.program import ExportedProgram
from lostwax.ir.ranges import limits_by_name
from lostwax.ir.signature import InputKind, OutputKind
from lostwax.ir.stages.split import split
from lostwax.ir.text import count_operators as count_operators
from lostwax.ir.text import graph_text, type_text
from lostwax.pt2.loading import load
from lostwax.pt2.saving import save
from lostwax.pte import dump
from lostwax.pte.file.reader import read_file


def load_programs(file: str, *, weights: bool = True) -> dict[str, ExportedProgram]:
    """The programs of a `.pt2` file, by name."""
    check_file(file)
    with in_options(()):
        return load(file, weights=weights, by_name=True)


def load_program(file: str, name: str = "") -> ExportedProgram:
    """The program of a file, or the one of that name."""
    programs = load_programs(file)
    if name and name not in programs:
        raise CommandError(f"{file} has no program {name!r}; it has {', '.join(programs)}")
    if len(programs) > 1 and not name:
        raise CommandError(f"{file} has several programs: --name {', --name '.join(programs)}")
    return programs[name or next(iter(programs))]


def write_bytes(size: float) -> str:
    """A size as people read it."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"


def write_count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


# -------------------------------------------------------------------------------------- one program


def describe_program(program: ExportedProgram) -> dict[str, Any]:
    """What a program is, as data. Sizes have the names that they were declared by."""
    signature = program.graph_signature
    types = {node.name: type_text(node.meta.get("val")) for node in program.graph.nodes}
    inputs, outputs = [], []
    for given in signature.input_specs:
        name = getattr(given.arg, "name", str(given.arg))
        kind = given.kind.name.lower()
        inputs.append({"name": name, "kind": kind, "type": types.get(name), "target": given.target})
    for made in signature.output_specs:
        name = getattr(made.arg, "name", str(made.arg))
        kind = made.kind.name.lower()
        outputs.append({"name": name, "kind": kind, "type": types.get(name), "target": made.target})
    user_inputs = [i for i in inputs if i["kind"] == InputKind.USER_INPUT.name.lower()]
    user_outputs = [o for o in outputs if o["kind"] == OutputKind.USER_OUTPUT.name.lower()]
    return {
        "dialect": program.dialect,
        "inputs": {i["name"]: i["type"] for i in user_inputs},
        "outputs": {o["name"]: o["type"] for o in user_outputs},
        "signature": {"inputs": inputs, "outputs": outputs},
        "ranges": {
            k: _write_range(v) for k, v in limits_by_name(program.range_constraints).items()
        },
        "guards": [
            {"condition": str(g.cond), "kind": g.kind, "reason": g.reason, "at": str(g.where)}
            for g in program.guards
        ],
        "operators": dict(count_operators(program)),
        "parameters": sum(
            t.numel() for t in program.state_dict.values() if isinstance(t, torch.nn.Parameter)
        ),
    }


def _write_range(limits: tuple[int | None, int | None]) -> str:
    low, high = ("" if each is None else str(each) for each in limits)
    return f"{low}..{high}"


def show_file(file: str, name: str, ops: bool, memory: bool) -> CommandOutcome:
    """What is in a file: the programs, or how often each operator is in them, or their memory."""
    check_file(file)
    if file.endswith(".pte"):
        return _show_executable(file, ops, memory)
    programs = load_programs(file, weights=memory)
    if name:
        programs = {name: load_program(file, name)}
    described = {key: describe_program(each) for key, each in programs.items()}
    texts = []
    for key, each in programs.items():
        summary = described[key]
        if memory:
            summary["memory"] = plan_program(each)
            text = _write_memory(summary["memory"])
        elif ops:
            text = write_histogram(summary["operators"])
        else:
            summary["text"] = graph_text(each.graph)
            text = _write_program(summary)
        texts.append(f"{key}:\n{text}" if len(programs) > 1 else text)
    return CommandOutcome({"file": file, "programs": described}, "\n\n".join(texts))


def _write_program(summary: Mapping[str, Any]) -> str:
    signature = summary["signature"]
    lines = [summary["text"], "", "inputs"]
    lines += [_write_argument(each) for each in signature["inputs"]]
    lines += ["outputs", *(_write_argument(each) for each in signature["outputs"])]
    if summary["ranges"]:
        lines += ["ranges", *(f"  {name} in {text}" for name, text in summary["ranges"].items())]
    if summary["guards"]:
        lines.append("guards")
        for each in summary["guards"]:
            lines += [f"  {each['condition']}", f"    {each['reason']}", f"    at {each['at']}"]
    return "\n".join(lines)


def _write_argument(each: Mapping[str, Any]) -> str:
    target = f"  {each['target']}" if each["target"] else ""
    return f"  {each['name']}: {each['type']}  {each['kind']}{target}"


def write_histogram(operators: Mapping[str, int]) -> str:
    """Operators with how often each is called, the most frequent first."""
    ordered = sorted(operators.items(), key=lambda item: (-item[1], item[0]))
    most = max(operators.values(), default=1)
    width = max((len(name) for name in operators), default=0)
    lines = [f"{n:6}  {name:{width}}  {'█' * max(round(24 * n / most), 1)}" for name, n in ordered]
    return "\n".join([*lines, f"{sum(operators.values()):6}  in all"])


def plan_program(program: ExportedProgram) -> dict[str, Any]:
    """The memory that a program needs: its weights, and the arena if it is lowered."""
    weights = {id(t): t for t in (*program.state_dict.values(), *program.constants.values())}
    tensors = [t for t in weights.values() if isinstance(t, torch.Tensor)]
    summary: dict[str, Any] = {
        "weight_bytes": sum(t.numel() * t.element_size() for t in tensors),
        "arena_bytes": None,
        "not_planned": None,
    }
    try:
        with in_options(()):
            summary["arena_bytes"] = program.to_edge().to_executable().arena_sizes["forward"]
    except LoweringError as error:
        summary["not_planned"] = str(error)
    return summary


def _write_memory(summary: Mapping[str, Any]) -> str:
    lines = [f"weights: {write_bytes(summary['weight_bytes'])}"]
    if summary["arena_bytes"] is not None:
        lines.append(f"arena, as planned for an executable: {write_bytes(summary['arena_bytes'])}")
    else:
        lines.append(f"the arena cannot be planned: {summary['not_planned']}")
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------- stages


def split_file(file: str, at: Sequence[str], folder: str) -> CommandOutcome:
    """Cut the program of a file into stages, and write them."""
    check_file(file)
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise CommandError(f"-o {folder!r} is a file, and stages are written into a folder")
    with in_options(()):
        stages = split(load_program(file), list(at))
        os.makedirs(folder, exist_ok=True)
        files = [os.path.join(folder, f"stage_{i}.pt2") for i in range(len(stages))]
        for path, stage in zip(files, stages, strict=True):
            save(stage, path)
    described = [
        {"file": path, "from": begin, **describe_program(stage)}
        for path, begin, stage in zip(files, ("", *stages.at), stages, strict=True)
    ]
    text = "\n".join([repr(stages), *files])
    return CommandOutcome({"source": file, "stages": described, "shared": stages.shared}, text)


# -------------------------------------------------------------------------------------- executables


def describe_methods(file: str) -> dict[str, dict[str, Any]]:
    """What the methods of a `.pte` file call, and the memory that they need."""
    return _describe_methods(_read_executable(file))


def _read_executable(file: str) -> Any:
    with reading(file):
        return read_file(Path(file).read_bytes())


@contextmanager
def reading(file: str) -> Iterator[None]:
    """An error about a `.pte` file names it, and says what to do."""
    try:
        yield
    except LoadError as error:
        told = error.message
        if "fix: " not in told and "instead: " not in told:
            told += "\n  fix: copy it again, or write it again: lostwax lower, lostwax export --pte"
        raise LoadError(told, tuple(dict.fromkeys((file, *error.where)))) from None


def _describe_methods(found: Any) -> dict[str, dict[str, Any]]:
    methods: dict[str, Any] = {}
    for plan in found.program["execution_plan"] or ():
        calls: Counter[str] = Counter()
        for chain in plan["chains"] or ():
            for step in chain["instructions"] or ():
                call = step["instr_args"]
                if call[""] == "KernelCall":
                    kernel = plan["operators"][call["op_index"]]
                    calls[".".join(filter(None, (kernel["name"], kernel["overload"])))] += 1
                elif call[""] == "DelegateCall":
                    calls[plan["delegates"][call["delegate_index"]]["id"]] += 1
        arenas = [int(size) for size in plan["non_const_buffer_sizes"] or ()]
        methods[plan["name"]] = {"operators": dict(calls), "arena_bytes": arenas}
    return methods


def _show_executable(file: str, ops: bool, memory: bool) -> CommandOutcome:
    found = _read_executable(file)
    methods, data = _describe_methods(found), found.data_size
    result = {"file": file, "bytes": found.size, "data_bytes": data, "methods": methods}
    if memory:
        lines = [f"weights: {write_bytes(data)}"]
        lines += [f"{m}: arena {write_bytes(sum(t['arena_bytes']))}" for m, t in methods.items()]
        return CommandOutcome(result, "\n".join(lines))
    if ops:
        texts = (f"{m}:\n{write_histogram(t['operators'])}" for m, t in methods.items())
        return CommandOutcome(result, "\n\n".join(texts))
    text = dump(file)
    return CommandOutcome({**result, "text": text}, text)


# ------------------------------------------------------------------------------------ two programs


def diff_files(old: str, new: str) -> CommandOutcome:
    """What differs between the programs of two files."""
    before, after = load_programs(old), load_programs(new)
    changes: list[dict[str, str]] = []
    lines: list[str] = []
    for name in [*before, *(n for n in after if n not in before)]:
        if name not in before or name not in after:
            changes.append(
                {
                    "program": name,
                    "kind": "program",
                    "name": name,
                    "old": name if name in before else "",
                    "new": name if name in after else "",
                }
            )
            lines.append(f"{'-' if name in before else '+'} program {name}")
            continue
        found = diff(before[name], after[name])
        lines += (line if len(before) == 1 else f"{name}: {line}" for line in found.lines())
        for each in found:
            changes.append(
                {
                    "program": name,
                    "kind": each.kind,
                    "name": each.name,
                    "old": each.old,
                    "new": each.new,
                }
            )
    code = Exit.DIFFERS if changes else Exit.OK
    return CommandOutcome({"changes": changes}, "\n".join(lines) or "no differences", code)
