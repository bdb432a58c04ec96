"""`lostwax check` and `run`: programs at work."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from lostwax.capture.export import export
from lostwax.checking.bundle import check_bundle
from lostwax.checking.check import check
from lostwax.checking.result import CheckResult
from lostwax.checking.stages import check_stages
from lostwax.cli.exporting import Options, export_built, find_backend
from lostwax.cli.models.factories import build_model, import_place
from lostwax.cli.models.inputs import read_input
from lostwax.cli.models.sizes import read_file_dims
from lostwax.cli.outcome import CommandOutcome, Exit, check_file, split_input, write_error
from lostwax.cli.programs import load_program, reading
from lostwax.cli.progress import show_status
from lostwax.cli.several import Job, find_exit, run_jobs
from lostwax.cli.wording import in_options
from lostwax.errors import CommandError
from lostwax.ir.program import ExportedProgram
from lostwax.ir.text import dtype_text
from lostwax.pte import load_runtime
from lostwax.undo.replace_files import replace_files


@dataclass(frozen=True)
class CheckOptions:
    """How programs are compared with their models."""

    export: Options
    """How a model is built, and exported if there is no file."""
    draws: int = 8
    own_weights: bool = False
    imports: tuple[str, ...] = ()


def check_models(
    pairs: Sequence[tuple[str, str]], options: CheckOptions, jobs: int, on_ray: bool
) -> CommandOutcome:
    """Compare each program with its model."""
    todo = [Job(model, file, options, reads=bool(file)) for file, model in pairs]
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
    tell = on_case or (lambda case: None)
    if job.file.endswith(".onnx"):
        return _describe_job(job, _check_onnx(job, tell))
    program = load_program(job.file) if job.file else None
    tell("building the model")
    building = options.export.building
    model = build_model(job.model, building)
    if program is None:
        tell("exporting it")
        program = export_built(model, options.export)
    elif not options.own_weights and not building.weights:
        _take_weights(model.module, program, job.file)
    found = check(program, model.module, draws=options.draws, seed=building.seed, on_case=on_case)
    return _describe_job(job, found)


def check_bundles(files: Sequence[str]) -> CommandOutcome:
    """Run the calls of bundled programs in the runtime."""
    listed, texts = [], []
    for file in files:
        check_file(file)
        with show_status(f"checking {file}") as tell, reading(file):
            found = check_bundle(file, on_case=tell)
        wrong = [str(each) for each in found.differences]
        listed.append({"file": file, "ok": found.ok, "agreed": found.agreed, "differences": wrong})
        texts.append(found.report)
    is_ok = all(each["ok"] for each in listed)
    code = Exit.OK if is_ok else Exit.DIFFERS
    return CommandOutcome({"ok": is_ok, "bundles": listed}, "\n".join(texts), code)


@dataclass(frozen=True)
class StageOptions:
    """What `check --stages` compares."""

    inputs: Sequence[str] = ()
    backend: str = ""
    quantized: str = ""
    """A .pt2 file, or a model, of the same lines with quantized values."""
    bar: float | None = None


def check_model_stages(
    pairs: Sequence[tuple[str, str]], options: CheckOptions, how: StageOptions
) -> CommandOutcome:
    """Compare the values of a program stage by stage, up to the runtime."""
    if len(pairs) != 1:
        raise CommandError(f"--stages is of one program, and there are {len(pairs)}")
    ((file, spec),) = pairs
    for name in options.imports:
        import_place(name)
    with show_status(f"checking {file or spec}") as tell:
        tell("building the model")
        model = build_model(spec, options.export.building)
        if how.quantized and isinstance(model.module, nn.Module):
            model.module.eval()  # as `lostwax quantize` does
        if file.endswith(".pt2"):
            program = load_program(file)
            if not options.own_weights and not options.export.building.weights:
                _take_weights(model.module, program, file)
        elif file.endswith(".onnx"):
            raise CommandError("--stages is of .pt2 and .pte files, and of models alone")
        else:
            program = export_built(model, options.export)
        example: Any = program.example_inputs or (model.args, model.kwargs)
        given = read_inputs(how.inputs)
        call = match_inputs(given, len(example[0]), [*example[1]]) if given else example
        quantized = _read_quantized(how.quantized, options) if how.quantized else None
        tell("running each stage")
        with in_options(()), reading(file or spec):
            found = check_stages(
                program,
                model.module,
                call,
                partitioner=find_backend(how.backend),
                file=file if file.endswith(".pte") else None,
                quantized=quantized,
                bar=how.bar,
            )
    note = [] if given else ["the inputs are the model's example: --input gives real ones"]
    text = f"{found}\n\n{found.plot()}"
    code = Exit.OK if found else Exit.DIFFERS
    return CommandOutcome({"model": spec, "file": file, **found.to_json()}, text, code, note)


def _read_quantized(name: str, options: CheckOptions) -> ExportedProgram:
    """The quantized program of a file, or of a model."""
    if name.endswith(".pt2"):
        return load_program(name)
    if name.endswith((".pte", ".onnx")):
        raise CommandError(
            f"--quantized {name}: the file has no lines by which values are told\n"
            "  instead: lostwax quantize -o x.pt2, and --quantized x.pt2"
        )
    model = build_model(name, options.export.building)
    if isinstance(model.module, nn.Module):
        model.module.eval()
    return export_built(model, options.export)


def _describe_job(job: Job[CheckOptions], found: CheckResult) -> dict[str, Any]:
    record = {"model": job.model, "file": job.file or None, **_describe_check(found)}
    return {**record, "error": None, "report": found.report}


def _check_onnx(job: Job[CheckOptions], tell: Callable[[str], None]) -> CheckResult:
    """Compare an ONNX model, in onnxruntime, with the model that it was written of."""
    from lostwax.checking.onnx import check_onnx
    from lostwax.onnx.runtime import LoadedModel, read_weights

    options, building = job.options, job.options.export.building
    loaded = LoadedModel(job.file)
    tell("building the model")
    model = build_model(job.model, building)
    if not options.own_weights and not building.weights:
        _take_held(model.module, read_weights(job.file))
    shapes = [loaded.shapes[name] for name in loaded.inputs]
    tell("exporting it")
    with in_options(()):
        program = export(
            model.module,
            model.args,
            dict(model.kwargs) or None,
            dynamic_shapes=read_file_dims(shapes, loaded.ranges, model),
        )
    return check_onnx(
        lambda: LoadedModel(job.file),
        program,
        model.module,
        draws=options.draws,
        seed=building.seed,
        on_case=tell,
    )


def _take_held(module: Any, held: Mapping[str, torch.Tensor]) -> None:
    """The weights of the file into the model, as many as have their names there."""
    if isinstance(module, nn.Module):
        own = module.state_dict()
        fitting = {n: t for n, t in held.items() if n in own and own[n].shape == t.shape}
        module.load_state_dict(fitting, strict=False)


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
    given = read_inputs(inputs)
    if file.endswith(".pte"):
        if not given:
            raise CommandError("a .pte file has no example inputs\n  instead: --input x.npy")
        method = name or "forward"
        with reading(file):
            runtime = load_runtime(file)

        values = list_in_order(given, file)

        def call() -> Any:
            return runtime.run(values, method=method)
    elif file.endswith(".onnx"):
        if not given:
            raise CommandError("an .onnx file has no example inputs\n  instead: --input x.npy")
        from lostwax.onnx.runtime import LoadedModel

        model = LoadedModel(file)
        plain = [value for name, value in given if not name]
        named = {name: value for name, value in given if name}

        def call() -> Any:
            return model(*plain, **named)
    else:
        call = prepare_call(load_program(file, name), given, file)
    with show_status(f"running {file}"), torch.no_grad(), in_options(()):
        start = time.perf_counter()
        results = call()
        seconds = time.perf_counter() - start
    leaves = pytree.tree_leaves(results)
    if output is not None:
        _write_results(results, leaves, output)
    described = [_describe_value(leaf) for leaf in leaves]
    lines = [each["text"] for each in described]
    if output is not None:
        lines.append(f"written to {output}")
    return CommandOutcome(
        {"seconds": seconds, "results": described, "file": output}, "\n".join(lines)
    )


def _write_results(results: Any, leaves: Sequence[Any], output: str) -> None:
    """As numpy has them, or as torch does: by the name of the file."""
    if not output.endswith((".npy", ".npz")):
        replace_files({output: partial(torch.save, results)})
        return
    import numpy

    arrays = [_make_array(leaf) for leaf in leaves]
    if output.endswith(".npz"):
        named = {f"result_{at}": array for at, array in enumerate(arrays)}
        replace_files({output: lambda opened: numpy.savez(opened, **named)})
        return
    if len(arrays) != 1:
        raise CommandError(
            f"-o {output!r} holds one result, and there are {len(arrays)}\n"
            f"  instead: -o {Path(output).with_suffix('.npz')}, or a .pt file"
        )
    replace_files({output: lambda opened: numpy.save(opened, arrays[0])})


def _make_array(value: Any) -> Any:
    import numpy

    if not isinstance(value, torch.Tensor):
        return numpy.asarray(value)
    plain = value.detach().cpu()
    if plain.dtype == torch.bfloat16 or (plain.dtype.itemsize == 1 and plain.is_floating_point()):
        plain = plain.float()  # numpy has no such dtype
    return plain.resolve_conj().resolve_neg().numpy()


Given = list[tuple[str, Any]]
"""Inputs with their names, "" where none was given."""


def read_inputs(texts: Sequence[str]) -> Given:
    """Inputs from files, `x.npy` or `mask=m.npy`."""
    return [(name, read_input(file)) for name, file in map(split_input, texts)]


def list_in_order(given: Given, file: str) -> list[Any]:
    """The inputs of a `.pte` file, which has no names for them."""
    for name, _ in given:
        if name:
            raise CommandError(
                f"--input {name}=…: the inputs of {file} have no names\n  why: a .pte file has "
                "their places alone\n  instead: --input x.npy for each of them, in order"
            )
    return [value for _, value in given]


def prepare_call(program: ExportedProgram, given: Given, file: str) -> Callable[[], Any]:
    """A call of a program, with these inputs or with its example."""
    example = program.example_inputs
    if not given and example is None:
        raise CommandError(f"{file} has no example inputs\n  instead: --input x.pt")
    args, kwargs = copy.deepcopy(example) if example is not None else ((), {})
    if given:
        args, kwargs = match_inputs(given, len(args), [*kwargs])
    module = program.module()
    return lambda: module(*args, **kwargs)


def match_inputs(
    given: Given, positions: int, names: list[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs without a name go to those without one, then to the others in their order."""
    plain = [value for name, value in given if not name]
    kwargs = {name: value for name, value in given if name}
    free = [name for name in names if name not in kwargs]
    kwargs |= dict(zip(free, plain[positions:], strict=False))
    return tuple(plain if len(plain) > positions + len(free) else plain[:positions]), kwargs


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
