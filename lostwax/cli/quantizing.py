"""`lostwax quantize`: models in integers, by torchao's PT2E quantization. The quantizers are other
people's, and are imported when one is asked for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from lostwax.capture.export import export
from lostwax.cli.exporting import FORMS, Options, name_files, write_more
from lostwax.cli.models.calls import GivenCall, read_calls
from lostwax.cli.models.factories import Model, build_model, call_factory, find_factory
from lostwax.cli.models.names import read_name, read_options
from lostwax.cli.models.sizes import read_dynamic
from lostwax.cli.outcome import CommandOutcome
from lostwax.cli.plugins import QUANTIZERS
from lostwax.cli.programs import write_bytes, write_count
from lostwax.cli.progress import show_status
from lostwax.cli.wording import in_options
from lostwax.errors import CommandError, did_you_mean
from lostwax.ir.program import ExportedProgram
from lostwax.late_imports import list_backends
from lostwax.location import warn

_ANNOTATION = "quantization_annotation"
_COMPARED = 8
"""Of so many calls the results are compared with those in floats."""


def quantize_model(
    spec: str, output: str | None, quantizer: str, calibration: list[str], options: Options
) -> CommandOutcome:
    """Quantize a model, write it to a file, and tell how far it is from the floats."""
    (file,) = name_files([spec], output, options)
    start = time.perf_counter()
    with show_status(f"quantizing {spec}") as tell:
        tell("loading the quantizer")
        chosen = find_quantizer(quantizer)
        tell("building the model")
        model = build_model(spec, options.building)
        if isinstance(model.module, nn.Module):
            model.module.eval()
        tell("exporting it")
        program = _export(model.module, model, options)
        prepared, counts = _prepare(program, chosen, quantizer, spec)
        seen, calls = _calibrate(prepared, program, model, calibration, quantizer, tell)
        tell("converting it")
        quantized = _convert(prepared)
        difference = _compare(quantized, seen)
        tell("exporting it again")
        again = _export(quantized, model, options)
        with in_options(options.dynamic):
            more = FORMS[options.form].write(again, model, file, options.writing)
    made = {
        "model": spec,
        "file": file,
        "bytes": os.path.getsize(file),
        "seconds": round(time.perf_counter() - start, 3),
        "quantizer": quantizer,
        **counts,
        "calls": calls,
        "difference": difference,
        "float_bytes": sum(t.nbytes for t in program.state_dict.values()),
        **more,
    }
    return CommandOutcome(made, _write_line(made))


def _write_line(made: dict[str, Any]) -> str:
    sizes = f"{write_bytes(made['bytes'])}; the weights were {write_bytes(made['float_bytes'])}"
    far = made["difference"]
    return (
        f"{made['file']}: {made['annotated']} of {write_count(made['operators'], 'operator')} "
        f"quantized, {sizes}{write_more(made)}; in {made['seconds']:.2f} s\n"
        f"  calibrated with {write_count(made['calls'], 'call')}; "
        + ("it returns no floats" if far is None else f"{far:.1%} from the results in floats")
    )


def _export(module: Any, model: Model, options: Options) -> ExportedProgram:
    """With composites, which are what quantizers look for."""
    with in_options(options.dynamic):
        return export(
            module,
            model.args,
            dict(model.kwargs) or None,
            dynamic_shapes=read_dynamic(options.dynamic, model),
            constraints=options.constraints,
            keep="composite",
        )


# -------------------------------------------------------------------------------------- quantizers


def find_quantizer(text: str) -> Any:
    """The quantizer of a name, `xnnpack?is_dynamic=true`, or what a function of the user's
    returns."""
    if ":" in text.partition("?")[0]:
        place, name, options = read_name(text)
        return call_factory(find_factory(place, name), options, text)
    name, _, query = text.partition("?")
    options = read_options(query)
    if options.pop("is_qat", False):
        raise CommandError(
            "--quantizer …?is_qat is for training, which no command does\n"
            "  instead: prepare_qat_pt2e in Python, as docs/recipes/quantization.md shows"
        )
    if name not in QUANTIZERS:
        hint = did_you_mean(name, QUANTIZERS) or f"; there is {', '.join(QUANTIZERS)}"
        raise CommandError(
            f"there is no quantizer {name!r}{hint}\n"
            "  instead: one of these, or MODULE:FUNCTION, which returns a quantizer"
        )
    place, kind, configure = QUANTIZERS[name]
    module = _import(place)
    configuration = call_factory(getattr(module, configure), options, text)
    return getattr(module, kind)().set_global(configuration)


def choose_backend(quantizer: str) -> str:
    """The backend that a quantizer has its name of; empty if none."""
    name = quantizer.partition("?")[0]
    return name if name in list_backends() else ""


def _import(name: str) -> Any:
    """A module of theirs."""
    package = name.partition(".")[0]
    try:
        return import_module(name)
    except ImportError as error:
        needed = "torchao executorch" if package == "executorch" else package
        raise CommandError(
            f"{package} does not load, which quantizes: {error}\n  instead: pip install {needed}"
        ) from error


# ---------------------------------------------------------------------------------------- the work


def _prepare(
    program: ExportedProgram, quantizer: Any, text: str, spec: str
) -> tuple[Any, dict[str, int]]:
    """A module that sees what values there are, and how many operators will be quantized."""
    module: Any = program.module()
    _keep_integers(module.graph)
    module.recompile()
    total = sum(node.op == "call_function" for node in program.graph.nodes)
    prepared = _import("torchao.quantization.pt2e.quantize_pt2e").prepare_pt2e(module, quantizer)
    calls = [node for node in prepared.graph.nodes if node.op == "call_function"]
    annotated = sum(_ANNOTATION in node.meta for node in calls)
    if not annotated:
        there = sorted({str(node.target) for node in calls})
        raise CommandError(
            f"--quantizer {text} finds nothing to quantize in {spec}\n"
            "  why: each looks for operators that its backend computes in integers, as linear and "
            f"conv2d; there is {', '.join(there[:6])}{', …' if len(there) > 6 else ''}\n"
            f"  instead: another quantizer, or lostwax export {spec} in floats"
        )
    return prepared, {"annotated": annotated, "operators": total}


def _keep_integers(graph: torch.fx.Graph) -> None:
    """Numbers beside integers stay numbers: XNNPACK's quantizer makes tensors of floats of those
    that `add.Tensor` and `mul.Tensor` have, and an index would become one."""
    scalar = {
        torch.ops.aten.add.Tensor: torch.ops.aten.add.Scalar,
        torch.ops.aten.mul.Tensor: torch.ops.aten.mul.Scalar,
    }
    for node in graph.nodes:
        if node.target in scalar and isinstance(node.args[1], int):
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and not value.is_floating_point():
                node.target = scalar[node.target]


def _calibrate(
    prepared: Any,
    program: ExportedProgram,
    model: Model,
    texts: list[str],
    quantizer: str,
    tell: Callable[[str], None],
) -> tuple[list[tuple[GivenCall, Any]], int]:
    """Run the calls; the first of them with their results in floats, and how many there were.
    Without any it is the example. The program says which sizes it is for; torchao's does not."""
    calls: Iterable[GivenCall] = read_calls(texts, model, "--calibrate")
    if not texts:
        calls = [GivenCall(model.args, dict(model.kwargs), "the example")]
        if "is_dynamic" not in quantizer:
            warn(
                "calibrated with the example alone, whose values set the limits of all others\n"
                "  instead: --calibrate FILE, with inputs as the model will see them"
            )
    floats = program.module()
    seen: list[tuple[GivenCall, Any]] = []
    count = 0
    with torch.no_grad(), in_options(()):
        for call in calls:
            with call.name_in_errors():
                wanted = floats(*call.args, **call.kwargs)
                prepared(*call.args, **call.kwargs)
            count += 1
            tell(f"calibrating, {write_count(count, 'call')}")
            if len(seen) < _COMPARED:
                seen.append((call, wanted))
    if not count:
        raise CommandError(
            f"--calibrate {' '.join(texts)}: there is no call in it\n  instead: a folder or file "
            "with inputs, or a function that yields them"
        )
    return seen, count


def _convert(prepared: Any) -> Any:
    """The module in integers, without the weights that nothing reads any more."""
    module = _import("torchao.quantization.pt2e.quantize_pt2e").convert_pt2e(prepared)
    read = {node.target for node in module.graph.nodes if node.op == "get_attr"}
    held = [*module.named_parameters(), *module.named_buffers()]
    for name, _ in held:
        if name not in read:
            owner, _, last = name.rpartition(".")
            delattr(module.get_submodule(owner), last)
    return module


def _compare(quantized: Any, seen: list[tuple[GivenCall, Any]]) -> float | None:
    """How far the results are from those in floats, of the largest of them; None if none is a
    float."""
    found: list[float] = []
    with torch.no_grad():
        for (args, kwargs, _), wanted in seen:
            made = pytree.tree_leaves(quantized(*args, **kwargs))
            for a, b in zip(pytree.tree_leaves(wanted), made, strict=True):
                if isinstance(a, torch.Tensor) and a.is_floating_point() and a.isfinite().any():
                    a, b = a[a.isfinite()], b[a.isfinite()]
                    found.append(float((a - b).abs().max() / a.abs().max().clamp(min=1e-30)))
    return float(torch.tensor(found).max()) if found else None  # not a number, if one is none
