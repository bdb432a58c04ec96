"""`lostwax export` and `lostwax lower`: models to files."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lostwax.backends.transform import to_edge_transform_and_lower
from lostwax.capture.export import export
from lostwax.cli.factories import build_model, read_dynamic
from lostwax.cli.outcome import CommandOutcome, check_output, write_error
from lostwax.cli.plugins import find_partitioner
from lostwax.cli.programs import describe_program, load_program, write_bytes
from lostwax.cli.progress import show_status
from lostwax.cli.several import Job, find_exit, run_jobs
from lostwax.errors import CommandError
from lostwax.ir.program import ExportedProgram
from lostwax.pt2 import save
from lostwax.undo.replace_files import replace_files

SUFFIXES = {"pt2": ".pt2", "core": ".pt2", "edge": ".txt", "pte": ".pte"}


@dataclass(frozen=True)
class Options:
    """How models are exported."""

    dynamic: tuple[str, ...] = ()
    strict: bool = False
    form: str = "pt2"
    """"pt2", "core" (the same in core ATen), "edge" (a listing) or "pte"."""
    backend: str = ""
    control_flow: str = "capture"
    seed: int = 0


def export_models(
    models: Sequence[str], output: str | None, options: Options, jobs: int, on_ray: bool
) -> CommandOutcome:
    """Export each model to a file of its own."""
    todo = [
        Job(m, f, options)
        for m, f in zip(models, _name_files(models, output, options), strict=True)
    ]
    if len(todo) == 1 and not on_ray:
        with show_status(f"exporting {models[0]}"):
            made = export_model(todo[0])
        return CommandOutcome({"models": [made]}, write_line(made))
    listed = run_jobs("exporting", export_model, todo, jobs, on_ray)
    done = sum(each["error"] is None for each in listed)
    lines = [*map(write_line, listed), f"{done} of {len(listed)} exported"]
    return CommandOutcome({"models": listed}, "\n".join(lines), find_exit(listed))


def choose_form(output: str | None, core: bool, edge: bool, pte: bool, backend: str) -> str:
    """The form that the options, or the name of the file, ask for."""
    asked = [name for name, is_asked in (("core", core), ("edge", edge), ("pte", pte)) if is_asked]
    if len(asked) > 1:
        raise CommandError(f"--{asked[0]} and --{asked[1]} exclude each other")
    form = asked[0] if asked else "pte" if (output or "").endswith(".pte") else "pt2"
    if backend and form not in ("edge", "pte"):
        raise CommandError("--backend goes with --pte or --edge")
    return form


def _name_files(models: Sequence[str], output: str | None, options: Options) -> list[str]:
    """The files that the models go to: several into a folder."""
    suffix = SUFFIXES[options.form]
    if len(models) == 1 and output is not None and not os.path.isdir(output):
        if not output.endswith(suffix):
            raise CommandError(
                f"-o {output!r}: what is written is a {suffix} file\n  instead: -o "
                f"{Path(output).with_suffix(suffix)}"
            )
        check_output(output)
        return [output]
    folder = Path(output or ".")
    if folder.suffix in SUFFIXES.values():
        if len(models) == 1:
            check_output(output)
        raise CommandError(f"-o {output!r}: several models go into a folder, -o {folder.stem}/")
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CommandError(f"the folder {str(folder)!r} cannot be written to")
    files: list[str] = []
    for spec in models:
        stem = Path(spec.rpartition(":")[2].partition("?")[0]).stem or "model"
        file, number = folder / f"{stem}{suffix}", 2
        while str(file) in files:
            file, number = folder / f"{stem}-{number}{suffix}", number + 1
        files.append(str(file))
    return files


def export_model(job: Job[Options]) -> dict[str, Any]:
    """Export one model and write its file; what is reported of it."""
    options = job.options
    model = build_model(job.model, options.seed)
    shapes = read_dynamic(options.dynamic, model)
    start = time.perf_counter()
    program = export(
        model.module,
        model.args,
        dict(model.kwargs) or None,
        dynamic_shapes=shapes,
        strict=options.strict,
        control_flow=options.control_flow,  # type: ignore[arg-type]
    )
    seconds = time.perf_counter() - start
    described = describe_program(program)
    more = write_program(program, job.file, options.form, options.backend)
    size = os.path.getsize(job.file)
    return {
        "model": job.model,
        "file": job.file,
        "bytes": size,
        "seconds": round(seconds, 3),
        **{key: described[key] for key in ("inputs", "outputs", "ranges", "parameters")},
        "nodes": sum(described["operators"].values()),
        **more,
        "error": None,
    }


def write_program(program: ExportedProgram, file: str, form: str, backend: str) -> dict[str, Any]:
    """Write a program in one of the forms; what is reported of it beside the program."""
    if form == "pt2":
        save(program, file)
        return {}
    if form == "core":
        save(program.run_decompositions(), file)
        return {}
    partitioner = find_partitioner(backend) if backend else None
    edge = to_edge_transform_and_lower(program, partitioner=partitioner)
    delegated = round(edge.delegation_report().share, 4) if backend else None
    if form == "edge":
        data = f"{edge.exported_program()}\n".encode()
        replace_files({file: lambda opened: opened.write(data)})
        return {"delegated": delegated}
    executable = edge.to_executable()
    executable.save(file)
    return {"delegated": delegated, "arena_bytes": executable.arena_sizes}


def lower_file(source: str, output: str | None, form: str, backend: str) -> CommandOutcome:
    """Lower the program of a file."""
    suffix = SUFFIXES[form]
    file = output or str(Path(Path(source).name).with_suffix(suffix))
    check_output(file, (suffix,))
    with show_status(f"lowering {source}"):
        more = write_program(load_program(source), file, form, backend)
    made = {"source": source, "file": file, "bytes": os.path.getsize(file), **more}
    return CommandOutcome(made, f"{file}: {write_bytes(made['bytes'])}{_write_more(made)}")


def write_line(made: dict[str, Any]) -> str:
    """What people read of one model."""
    if made["error"]:
        return f"{made['model']}: " + write_error(made["error"])
    ranges = [f"{name} in {text}" for name, text in made["ranges"].items()]
    varying = f", {', '.join(ranges)}" if ranges else ""
    return (
        f"{made['file']}: {made['nodes']} operators, {made['parameters']:,} parameters, "
        f"{write_bytes(made['bytes'])}{varying}{_write_more(made)}; exported in "
        f"{made['seconds']:.2f} s"
    )


def _write_more(made: dict[str, Any]) -> str:
    text = ""
    if made.get("delegated") is not None:
        text += f", {made['delegated']:.0%} delegated"
    if made.get("arena_bytes"):
        text += f", memory {write_bytes(sum(made['arena_bytes'].values()))} beside the weights"
    return text
