"""`lostwax check`, `run` and `bench`: programs at work."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pickle import UnpicklingError
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from lostwax.capture.export import export
from lostwax.checking.check import check
from lostwax.checking.result import CheckResult
from lostwax.cli.factories import Model, build_model, import_place, read_dynamic
from lostwax.cli.outcome import CommandOutcome, check_file, check_output, write_error
from lostwax.cli.programs import load_program
from lostwax.cli.progress import show_status
from lostwax.cli.several import Job, find_exit, run_jobs
from lostwax.errors import CommandError
from lostwax.ir.program import ExportedProgram
from lostwax.ir.text import dtype_text
from lostwax.pte import load_runtime
from lostwax.undo.replace_files import replace_files


@dataclass(frozen=True)
class CheckOptions:
    """How programs are compared with their models."""

    draws: int = 8
    own_weights: bool = False
    dynamic: tuple[str, ...] = ()
    seed: int = 0
    imports: tuple[str, ...] = ()


def split_targets(targets: Sequence[str]) -> list[tuple[str, str]]:
    """Files, each with the model after it, and models alone, which have "" for a file."""
    found: list[tuple[str, str]] = []
    file = ""
    for each in targets:
        if each.endswith(".pt2"):
            if file:
                break
            file = each
        else:
            found.append((file, each))
            file = ""
    if file:
        raise CommandError(
            f"check takes a .pt2 file and its model, or a model alone; {file!r} is followed by none"
            "\n  instead: lostwax check model.pt2 MODULE:FACTORY"
        )
    return found


def check_models(
    targets: Sequence[str], options: CheckOptions, jobs: int, on_ray: bool
) -> CommandOutcome:
    """Compare each program with its model."""
    todo = [Job(m, f, options, reads=bool(f)) for f, m in split_targets(targets)]
    if len(todo) == 1 and not on_ray:
        with show_status(f"checking {todo[0].file or todo[0].model}") as tell:
            listed = [check_model(todo[0], tell)]
        text = listed[0].pop("report")
    else:
        listed = run_jobs("checking", check_model, todo, jobs, on_ray)
        lines = [_write_checked(each) for each in listed]
        agreed = sum(bool(each.get("ok")) for each in listed)
        text = "\n".join([*lines, f"{agreed} of {len(listed)} agree"])
    is_ok = all(each.get("ok") for each in listed)
    return CommandOutcome({"ok": is_ok, "models": listed}, text, find_exit(listed))


def check_model(
    job: Job[CheckOptions], on_case: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Compare the program of a file with a model, or a model with its own program if there is no
    file; what is reported of it."""
    options = job.options
    for name in options.imports:
        import_place(name)
    model = build_model(job.model, options.seed)
    if job.file:
        program = load_program(job.file)
        if not options.own_weights:
            _take_weights(model.module, program, job.file)
    else:
        shapes = read_dynamic(options.dynamic, model)
        program = export(
            model.module, model.args, dict(model.kwargs) or None, dynamic_shapes=shapes
        )
    found = check(program, model.module, draws=options.draws, seed=options.seed, on_case=on_case)
    record = {"model": job.model, "file": job.file or None, **_describe_check(found)}
    return {**record, "error": None, "report": found.report}


def _write_checked(record: dict[str, Any]) -> str:
    """What people read of one of several."""
    name = f"{record['file']}, {record['model']}" if record["file"] else record["model"]
    if record["error"]:
        return f"{name}: {write_error(record['error'])}"
    report = record.pop("report")
    if not record["ok"]:
        return f"{name}:\n" + "\n".join(f"  {line}" for line in report.splitlines())
    count = len(record["agreed"])
    return f"{name}: agrees in {count} case{'' if count == 1 else 's'}"


def _describe_check(found: CheckResult) -> dict[str, Any]:
    differences = [
        {"case": d.case, "what": d.what, "node": d.node, "counterexample": d.counterexample}
        for d in found.differences
    ]
    listed = {"agreed": list(found.agreed), "refused": list(found.refused)}
    return {"ok": found.ok, **listed, "differences": differences}


def _take_weights(module: Any, program: ExportedProgram, file: str) -> None:
    """The weights of the file into the model: those that a factory draws are others each time."""
    if not isinstance(module, nn.Module):
        return
    own = module.state_dict(keep_vars=True)
    strange = [n for n, t in program.state_dict.items() if n not in own or own[n].shape != t.shape]
    if strange:
        raise CommandError(
            f"the weights of {file} do not fit the model: {strange[0]!r} is not in both with one "
            "size\n  instead: the factory that the file was exported from, or --own-weights"
        )
    module.load_state_dict(program.state_dict, strict=False)


def run_file(file: str, inputs: Sequence[str], output: str | None, name: str) -> CommandOutcome:
    """Run a program once, with inputs from files, or with the example that is in it."""
    check_file(file)
    check_output(output)
    given = [_read_input(each) for each in inputs]
    start = time.perf_counter()
    if file.endswith(".pte"):
        if not given:
            raise CommandError("a .pte file has no example inputs\n  instead: --input x.npy")
        results: Any = load_runtime(file).run(given, method=name or "forward")
    else:
        call = _prepare(load_program(file, name), given, file)
        start = time.perf_counter()
        with torch.no_grad():
            results = call()
    seconds = time.perf_counter() - start
    if output is not None:
        replace_files({output: partial(torch.save, results)})
    leaves = pytree.tree_leaves(results)
    described = [_describe_value(leaf) for leaf in leaves]
    lines = [each["text"] for each in described]
    if output is not None:
        lines.append(f"written to {output}")
    return CommandOutcome(
        {"seconds": seconds, "results": described, "file": output}, "\n".join(lines)
    )


def _read_input(file: str) -> Any:
    check_file(file)
    if not file.endswith((".npy", ".pt")):
        raise CommandError(f"--input {file!r}: inputs are .npy files, or .pt files of torch.save")
    try:
        if file.endswith(".npy"):
            import numpy

            return torch.from_numpy(numpy.load(file))
        return torch.load(file, weights_only=True)
    except (ValueError, TypeError, EOFError, RuntimeError, UnpicklingError) as error:
        raise CommandError(f"--input {file!r} cannot be read: it is damaged, or no data") from error


def _prepare(program: ExportedProgram, given: Sequence[Any], file: str) -> Callable[[], Any]:
    if given:
        args, kwargs = tuple(given), dict[str, Any]()
    elif program.example_inputs is None:
        raise CommandError(f"{file} has no example inputs\n  instead: --input x.pt")
    else:
        args, kwargs = copy.deepcopy(program.example_inputs)
    module = program.module()
    return lambda: module(*args, **kwargs)


def _describe_value(value: Any) -> dict[str, Any]:
    if not isinstance(value, torch.Tensor):
        return {"type": type(value).__name__, "text": repr(value)}
    sizes = ", ".join(map(str, value.shape))
    kind = f"{dtype_text(value.dtype)}[{sizes}]"
    record: dict[str, Any] = {"type": kind, "text": kind}
    if value.numel() and not value.dtype.is_complex:
        plain = value.detach().to(torch.float64)
        record.update(
            {"min": plain.min().item(), "mean": plain.mean().item(), "max": plain.max().item()}
        )
        record["text"] += (
            f" min {record['min']:.4g}, mean {record['mean']:.4g}, max {record['max']:.4g}"
        )
    return record


def bench_file(file: str, spec: str, repeat: int, seed: int) -> CommandOutcome:
    """How long a program takes, and beside it the model in eager, if one is given."""
    calls: dict[str, Callable[[], Any]] = {}
    if file.endswith(".pte"):
        if not spec:
            raise CommandError("a .pte file has no example inputs\n  instead: a factory, too")
        runtime, model = load_runtime(file), build_model(spec, seed)
        given = pytree.tree_leaves((model.args, model.kwargs))
        calls["the runtime"] = lambda: runtime.run(given)
        calls["eager"] = _call_model(model)
    else:
        calls["the program"] = _prepare(load_program(file), (), file)
        if spec:
            calls["eager"] = _call_model(build_model(spec, seed))
    with show_status(f"running {file}"), torch.no_grad():
        times = _time_calls(calls, repeat)
    lines = [
        f"{name}: median {1e3 * t['median']:.3f} ms, least {1e3 * t['least']:.3f} ms"
        for name, t in times.items()
    ]
    return CommandOutcome({"repeat": repeat, "seconds": times}, "\n".join(lines))


def _call_model(model: Model) -> Callable[[], Any]:
    return lambda: model.module(*model.args, **model.kwargs)


def _time_calls(calls: dict[str, Callable[[], Any]], repeat: int) -> dict[str, dict[str, float]]:
    """They take turns, so that what else the machine does meets all of them."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeat + 2):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if turn >= 2:  # the first two make what is kept
                found[name].append(time.perf_counter() - start)
    return {n: {"median": statistics.median(t), "least": min(t)} for n, t in found.items()}
