"""`lostwax export` and `lostwax lower`: models to files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lostwax.backends.transform import to_edge_transform_and_lower
from lostwax.capture.export import export
from lostwax.cli.models.calls import read_calls
from lostwax.cli.models.factories import Model, build_model
from lostwax.cli.models.names import AS_IT_IS, Building, check_calls
from lostwax.cli.models.sizes import read_dynamic
from lostwax.cli.outcome import CommandOutcome, check_output, write_error
from lostwax.cli.programs import (
    count_operators,
    describe_methods,
    describe_program,
    load_program,
    write_bytes,
    write_count,
)
from lostwax.cli.progress import show_status
from lostwax.cli.several import Job, find_exit, run_jobs
from lostwax.cli.wording import in_options
from lostwax.errors import CommandError
from lostwax.ir.program import ExportedProgram
from lostwax.ir.run.module import call_convention
from lostwax.late_imports import find_partitioner
from lostwax.pt2.saving import save
from lostwax.undo.replace_files import replace_files


@dataclass(frozen=True)
class Writing:
    """How files are written."""

    backend: str = ""
    onnx: Mapping[str, Any] = field(default_factory=dict)
    """Options of `lostwax.onnx.save` that were given."""
    etrecord: bool = False
    """Is an ETRecord written beside a .pte file?"""
    bundle: tuple[str, ...] = ()
    """Calls that are written beside it, with what they return."""


@dataclass(frozen=True)
class TargetForm:
    """One thing that can be written of a program."""

    suffix: str
    write: Callable[[ExportedProgram, Model, str, Writing], dict[str, Any]]
    """Writes the program of a model to a file, and tells more of what was written."""
    has_backends: bool = False


@dataclass(frozen=True)
class Options:
    """How models are exported."""

    building: Building = AS_IT_IS
    dynamic: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    strict: bool = False
    form: str = "pt2"
    """A key of `FORMS`."""
    control_flow: str = "capture"
    writing: Writing = Writing()


def export_models(
    models: Sequence[str], output: str | None, options: Options, jobs: int, on_ray: bool
) -> CommandOutcome:
    """Export each model to a file of its own."""
    todo = [
        Job(m, f, options) for m, f in zip(models, name_files(models, output, options), strict=True)
    ]
    if len(todo) == 1 and not on_ray:
        with show_status(f"exporting {models[0]}"):
            made = export_model(todo[0])
        return CommandOutcome({"models": [made]}, write_line(made))
    listed = run_jobs("exporting", export_model, todo, jobs, on_ray)
    done = sum(each["error"] is None for each in listed)
    lines = [*map(write_line, listed), f"{done} of {len(listed)} exported"]
    return CommandOutcome({"models": listed}, "\n".join(lines), find_exit(listed))


def choose_form(output: str | None, asked: Sequence[str], writing: Writing) -> str:
    """The form that the options, or the name of the file, ask for."""
    if len(asked) > 1:
        raise CommandError(
            f"--{asked[0]} and --{asked[1]} exclude each other\n"
            "  instead: one of them; one file is of one form"
        )
    suffix = Path(output or "").suffix
    by_suffix = next((name for name, form in FORMS.items() if form.suffix == suffix), "pt2")
    form = asked[0] if asked else by_suffix
    if writing.backend and not FORMS[form].has_backends:
        raise CommandError("--backend goes with --pte or --edge")
    for name in ("etrecord", "bundle"):
        if getattr(writing, name) and form != "pte":
            raise CommandError(f"--{name} is of .pte files\n  instead: -o x.pte, or without it")
    check_calls(writing.bundle)
    if writing.onnx and form != "onnx":
        name = next(iter(writing.onnx)).replace("_", "-")
        raise CommandError(f"--{name} is of ONNX files\n  instead: -o x.onnx, or without --{name}")
    return form


def name_files(models: Sequence[str], output: str | None, options: Options) -> list[str]:
    """The files that the models go to: several into a folder."""
    suffix = FORMS[options.form].suffix
    if len(models) == 1 and output is not None and not os.path.isdir(output):
        if not output.endswith(suffix):
            raise CommandError(
                f"-o {output!r}: what is written is a {suffix} file\n  instead: -o "
                f"{Path(output).with_suffix(suffix)}"
            )
        check_output(output)
        return [output]
    folder = Path(output or ".")
    if folder.suffix in {form.suffix for form in FORMS.values()}:
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


def export_built(model: Model, options: Options) -> ExportedProgram:
    """Export a model; what is refused is told in words of the command line."""
    shapes = read_dynamic(options.dynamic, model)
    with in_options(options.dynamic):
        return export(
            model.module,
            model.args,
            dict(model.kwargs) or None,
            dynamic_shapes=shapes,
            constraints=options.constraints,
            constants=options.constants,
            strict=options.strict,
            control_flow=options.control_flow,  # type: ignore[arg-type]
            keep="composite" if options.form == "onnx" else (),
        )


def export_model(job: Job[Options]) -> dict[str, Any]:
    """Export one model and write its file; what is reported of it."""
    options = job.options
    find_backend(options.writing.backend)
    model = build_model(job.model, options.building)
    start = time.perf_counter()
    program = export_built(model, options)
    seconds = time.perf_counter() - start
    described = describe_program(program)
    with in_options(options.dynamic):
        more = FORMS[options.form].write(program, model, job.file, options.writing)
    size = os.path.getsize(job.file)
    return {
        "model": job.model,
        "file": job.file,
        "bytes": size,
        "seconds": round(seconds, 3),
        **{key: described[key] for key in ("inputs", "outputs", "ranges", "parameters")},
        **more,
        "error": None,
    }


def find_backend(name: str) -> Any:
    """The partitioner of a backend; None if none is asked for."""
    return find_partitioner(name, CommandError)


# ------------------------------------------------------------------------------------------- forms


def _write_pt2(
    program: ExportedProgram, model: Model, file: str, writing: Writing
) -> dict[str, Any]:
    save(program, file)
    return {"nodes": sum(count_operators(program).values())}


def _write_core(
    program: ExportedProgram, model: Model, file: str, writing: Writing
) -> dict[str, Any]:
    core = program.run_decompositions()
    save(core, file)
    return {"nodes": sum(count_operators(core).values())}


def _write_edge(
    program: ExportedProgram, model: Model, file: str, writing: Writing
) -> dict[str, Any]:
    edge = to_edge_transform_and_lower(program, partitioner=find_backend(writing.backend))
    lowered = edge.exported_program()
    data = f"{lowered}\n".encode()
    replace_files({file: lambda opened: opened.write(data)})
    nodes = sum(count_operators(lowered).values())
    return {"nodes": nodes, "delegated": _share(edge, writing.backend)}


def _write_pte(
    program: ExportedProgram, model: Model, file: str, writing: Writing
) -> dict[str, Any]:
    calls = list(read_calls(writing.bundle, model, "--bundle"))
    for call in calls:
        with call.name_in_errors():
            call_convention(program, True).bind(call.args, call.kwargs)
    edge = to_edge_transform_and_lower(program, partitioner=find_backend(writing.backend))
    executable = edge.to_executable()
    bundled = [(call.args, call.kwargs) for call in calls] or None
    executable.save(file, etrecord=writing.etrecord, bundled=bundled)
    counts = (sum(each["operators"].values()) for each in describe_methods(file).values())
    return {
        "nodes": sum(counts),
        "bundled_calls": len(calls),
        "delegated": _share(edge, writing.backend),
        "arena_bytes": executable.arena_sizes,
    }


def _share(edge: Any, backend: str) -> float | None:
    return round(edge.delegation_report().share, 4) if backend else None


def _write_onnx(
    program: ExportedProgram, model: Model, file: str, writing: Writing
) -> dict[str, Any]:
    from lostwax.onnx import save as save_onnx
    from lostwax.onnx.saving import count_nodes

    return {"nodes": count_nodes(save_onnx(program, file, **writing.onnx))}


FORMS = {
    "pt2": TargetForm(".pt2", _write_pt2),
    "core": TargetForm(".pt2", _write_core),
    "edge": TargetForm(".txt", _write_edge, has_backends=True),
    "pte": TargetForm(".pte", _write_pte, has_backends=True),
    "onnx": TargetForm(".onnx", _write_onnx),
}
"""What can be written. The first with a suffix is what a file of that name becomes."""


def lower_file(
    source: str, output: str | None, asked: str | None, writing: Writing
) -> CommandOutcome:
    """Lower the program of a file; if nobody says to what, then to what its name says, `.pte`."""
    form = choose_form(output or "x.pte", [asked] if asked else [], writing)
    form = "core" if form == "pt2" and not asked else form
    suffix = FORMS[form].suffix
    file = output or str(Path(Path(source).name).with_suffix(suffix))
    check_output(file, (suffix,))
    find_backend(writing.backend)
    with show_status(f"lowering {source}"), in_options(()):
        program = load_program(source)
        more = FORMS[form].write(program, _model_of(program, source), file, writing)
    made = {"source": source, "file": file, "bytes": os.path.getsize(file), **more}
    told = f"{file}: {write_count(made['nodes'], 'operator')}, {write_bytes(made['bytes'])}"
    return CommandOutcome(made, f"{told}{write_more(made)}")


def _model_of(program: ExportedProgram, source: str) -> Model:
    """What a file's program is called like."""
    args, kwargs = program.example_inputs or ((), {})
    return Model(source, program.module(), args, kwargs, bool(program.example_inputs))


def write_line(made: dict[str, Any]) -> str:
    """What people read of one model."""
    if made["error"]:
        return f"{made['model']}: " + write_error(made["error"])
    ranges = [f"{name} in {text}" for name, text in made["ranges"].items()]
    varying = f", {', '.join(ranges)}" if ranges else ""
    return (
        f"{made['file']}: {write_count(made['nodes'], 'operator')}, "
        f"{write_count(made['parameters'], 'parameter')}, {write_bytes(made['bytes'])}{varying}"
        f"{write_more(made)}; exported in {made['seconds']:.2f} s"
    )


def write_more(made: dict[str, Any]) -> str:
    """What is told of some files alone."""
    text = ""
    if made.get("delegated") is not None:
        text += f", {made['delegated']:.0%} delegated"
    if made.get("arena_bytes"):
        text += f", memory {write_bytes(sum(made['arena_bytes'].values()))} beside the weights"
    if made.get("bundled_calls"):
        text += f", {write_count(made['bundled_calls'], 'call')} in the .bpte file"
    return text
