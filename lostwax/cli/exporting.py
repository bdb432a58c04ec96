"""`lostwax export` and `lostwax lower`: models to files. One by one, in processes side by side, or
on Ray; one that fails does not end the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lostwax.backends.transform import to_edge_transform_and_lower
from lostwax.backends.xnnpack.partitioner import XnnpackPartitioner
from lostwax.capture.export import export
from lostwax.cli.factories import build_model, read_dynamic
from lostwax.cli.outcome import Exit, Outcome, run_safely, write_error
from lostwax.cli.programs import describe_program, load_program, write_bytes
from lostwax.cli.progress import count_steps, show_status
from lostwax.errors import CommandError
from lostwax.ir.program import ExportedProgram
from lostwax.pt2 import save

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


@dataclass(frozen=True)
class Job:
    """One model and the file it goes to."""

    model: str
    file: str
    options: Options


def export_models(
    models: Sequence[str], output: str | None, options: Options, jobs: int, on_ray: bool
) -> Outcome:
    """Export each model to a file of its own."""
    todo = [
        Job(m, f, options)
        for m, f in zip(models, _name_files(models, output, options), strict=True)
    ]
    if len(todo) == 1 and not on_ray:
        with show_status(f"exporting {models[0]}"):
            made = export_model(todo[0])
        return Outcome({"models": [made]}, write_line(made))
    run = _run_on_ray if on_ray else _run_in_processes if jobs > 1 else _run_here
    found: dict[str, dict[str, Any]] = {}
    with count_steps("exporting", len(todo)) as advance:
        for job, made in run(todo, jobs):
            found[job.file] = made
            advance(job.model)
    listed = [found[job.file] for job in todo]
    failed = [each for each in listed if each["error"]]
    lines = [write_line(each) for each in listed]
    lines.append(f"{len(listed) - len(failed)} of {len(listed)} exported")
    code = Exit(failed[0]["error"]["exit"]) if failed else Exit.OK
    return Outcome({"models": listed}, "\n".join(lines), code)


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
        return [output]
    folder = Path(output or ".")
    if folder.suffix in SUFFIXES.values():
        raise CommandError(f"-o {output!r}: several models go into a folder, -o {folder.stem}/")
    folder.mkdir(parents=True, exist_ok=True)
    files: list[str] = []
    for spec in models:
        stem = Path(spec.rpartition(":")[2].partition("?")[0]).stem or "model"
        file, number = folder / f"{stem}{suffix}", 2
        while str(file) in files:
            file, number = folder / f"{stem}-{number}{suffix}", number + 1
        files.append(str(file))
    return files


def export_model(job: Job) -> dict[str, Any]:
    """Export one model and write its file; what is told of it."""
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
    """Write a program in one of the forms; what is told of it beside the program."""
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
        Path(file).write_text(f"{edge.exported_program()}\n")
        return {"delegated": delegated}
    executable = edge.to_executable()
    executable.save(file)
    return {"delegated": delegated, "arena_bytes": executable.arena_sizes}


def find_partitioner(name: str) -> Any:
    if name != "xnnpack":
        raise CommandError(f"there is no backend {name!r}; there is xnnpack")
    return XnnpackPartitioner()


def lower_file(source: str, output: str | None, form: str, backend: str) -> Outcome:
    """Lower the program of a file."""
    suffix = SUFFIXES[form]
    file = output or str(Path(Path(source).name).with_suffix(suffix))
    if not file.endswith(suffix):
        raise CommandError(f"-o {file!r}: what is written is a {suffix} file")
    with show_status(f"lowering {source}"):
        more = write_program(load_program(source), file, form, backend)
    made = {"source": source, "file": file, "bytes": os.path.getsize(file), **more}
    return Outcome(made, f"{file}: {write_bytes(made['bytes'])}{_write_more(made)}")


def write_line(made: dict[str, Any]) -> str:
    """What people are told of one model."""
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


# ------------------------------------------------------------------------------------- several

Done = Iterator[tuple[Job, dict[str, Any]]]


def run_job(job: Job) -> dict[str, Any]:
    """Export one model; an error is told, not raised."""
    made: list[dict[str, Any]] = []

    def work() -> Outcome:
        made.append(export_model(job))
        return Outcome(None, "")

    _, error = run_safely(work, False)
    return made[0] if made else tell_failure(job, error)


def tell_failure(job: Job, error: dict[str, Any]) -> dict[str, Any]:
    return {"model": job.model, "file": None, "error": error}


def _run_here(todo: Iterable[Job], jobs: int) -> Done:
    for job in todo:
        yield job, run_job(job)


def _run_in_processes(todo: Sequence[Job], jobs: int) -> Done:
    """Each in a process of its own: one that is killed, for memory perhaps, takes none along."""
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(_run_process, job, jobs): job for job in todo}
        for each in as_completed(running):
            yield running[each], each.result()


def _run_process(job: Job, jobs: int) -> dict[str, Any]:
    threads = str(max((os.cpu_count() or 1) // jobs, 1))
    known = [os.path.abspath(each) for each in sys.path if each]  # what can be imported here
    code = "from lostwax.cli.exporting import run_sent; run_sent()"
    code = f"import sys; sys.path[:] = {known!r}\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(asdict(job)),
        capture_output=True,
        text=True,
        env={"OMP_NUM_THREADS": threads, **os.environ},
    )
    if done.returncode == 0:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    last = (done.stderr.strip().splitlines() or [""])[-1]
    message = f"the process ended with {done.returncode}" + (f": {last}" if last else "")
    error = {"exit": int(Exit.FAULT), "code": None, "class": "ProcessError", "message": message}
    return tell_failure(
        job, {**error, "file": None, "line": None, "column": None, "traceback": None}
    )


def read_job(sent: dict[str, Any]) -> Job:
    options = sent["options"]
    return Job(
        sent["model"], sent["file"], Options(**{**options, "dynamic": tuple(options["dynamic"])})
    )


def run_sent() -> None:
    """What a process of `-j` runs: a job comes by stdin, and what was made goes to stdout."""
    answer, sys.stdout = sys.stdout, sys.stderr
    answer.write("\n" + json.dumps(run_job(read_job(json.load(sys.stdin))), default=str) + "\n")


def _run_on_ray(todo: Sequence[Job], jobs: int) -> Done:
    """On the machines of a Ray cluster, or of this one. The files come back here."""
    try:
        import ray
    except ModuleNotFoundError as error:
        raise CommandError(
            "--ray: Ray is not installed\n  instead: pip install 'lostwax[ray]'"
        ) from error
    if not ray.is_initialized():
        ray.init(log_to_driver=False, logging_level="error")
    run: Any = ray.remote(run_far)
    running = {run.remote(asdict(job)): job for job in todo}
    while running:
        done, _ = ray.wait(list(running))
        for each in done:
            job = running.pop(each)
            try:
                made, data = ray.get(each)
            except Exception as error:  # a worker died; the others go on
                message = str(error).strip().splitlines()[0]
                told = {"exit": int(Exit.FAULT), "code": None, "class": type(error).__name__}
                made = tell_failure(
                    job,
                    {
                        **told,
                        "message": message,
                        "file": None,
                        "line": None,
                        "column": None,
                        "traceback": None,
                    },
                )
                data = None
            if data is not None:
                Path(job.file).write_bytes(data)
                made["file"] = job.file
            yield job, made


def run_far(sent: dict[str, Any]) -> tuple[dict[str, Any], bytes | None]:
    """What a worker of Ray runs: what was made, and the file's bytes."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / Path(sent["file"]).name
        made = run_job(read_job({**sent, "file": str(file)}))
        return made, file.read_bytes() if file.exists() else None
