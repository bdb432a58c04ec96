"""Writes timm and transformers architectures as ONNX models and compares them with eager.

    python -m sweep.onnx [--only resnet18 Llama ...] [--library timm] [--opset 18] [--part 2/8]

Each is exported in evaluation, float32, with a batch that varies and, for texts, a length; the
model is checked by `onnx.checker` with its full check, and run in onnxruntime at several batches
and lengths. Exits with 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
import warnings
from collections import Counter
from typing import Any

import onnx
import onnx_ir
import onnxruntime
import torch
import torch.utils._pytree as pytree
from torch import Tensor

import lostwax
from lostwax.errors import LostwaxError
from lostwax.ops.decompositions.runtime import grouped_mm
from sweep.__main__ import chosen
from sweep.architectures import Architecture, build, cast, example
from sweep.dynamic import TEXTS, dynamic_shapes
from sweep.libraries import load

SIZES = ((2, 12), (1, 12), (3, 5), (4, 17))


def export(architecture: Architecture, model: Any, keep: Any) -> tuple[Any, bool]:
    """The program, with a length that varies where the model has one and lets it."""
    args, kwargs = cast(example(architecture), torch.float32)
    least = max(architecture.least, 1)
    if any(name in TEXTS for name in kwargs):
        try:
            spec = dynamic_shapes(kwargs, lengths=True, least=least)
            made = lostwax.export(model, args, kwargs, dynamic_shapes=spec, keep=keep)
            return made, True
        except LostwaxError:
            pass
    spec = dynamic_shapes(kwargs, lengths=False, least=least)
    return lostwax.export(model, args, kwargs, dynamic_shapes=spec, keep=keep), False


def sweep(architecture: Architecture, model: Any, opset: int, keep: Any = ()) -> str:
    """What became of it: "ok" and figures, or what is wrong."""
    try:
        program, lengths = export(architecture, model, keep)
    except LostwaxError as error:
        return "not exported: " + str(error).splitlines()[0]
    start = time.process_time()
    try:
        made = program.to_onnx(opset=opset, decompositions=own_operators())
    except LostwaxError as error:
        return "refused: " + " ".join(str(error).split())[:300]
    milliseconds = 1e3 * (time.process_time() - start)
    proto = onnx_ir.to_proto(made)
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    worst = 0.0
    for batch, length in SIZES:
        if batch < architecture.least or (length != 12 and not lengths):
            length = 12
        worst = max(worst, compare(architecture, model, session, batch, length))
    what = "length" if lengths else "batch"
    return f"ok, {what}, {milliseconds:.0f} ms, {len(made.graph)} nodes, differs by {worst:.0e}"


def own_operators() -> dict[Any, Any]:
    """How operators that are a library's own are computed."""
    if not hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        return {}
    return {torch.ops.transformers.grouped_mm_fallback.default: grouped_mm}


def compare(architecture: Architecture, model: Any, session: Any, batch: int, length: int) -> float:
    args, kwargs = cast(example(architecture, batch, length), torch.float32)
    with torch.no_grad():
        try:
            found = copy.deepcopy(model)(*args, **kwargs)
        except (RuntimeError, ValueError, IndexError):
            return 0.0  # too short for the model itself
    wanted = [x for x in pytree.tree_leaves(found) if isinstance(x, Tensor)]
    given = [x.numpy() for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    names = [each.name for each in session.get_inputs()]
    got = session.run(None, dict(zip(names, given, strict=False)))[-len(wanted) :]
    worst = 0.0
    for ours, eager in zip(map(torch.from_numpy, got), wanted, strict=True):
        # of the largest result: random weights make some of hundreds, and sums of these near 0
        scale = max(1.0, float(eager.abs().max())) if eager.numel() else 1.0
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4 * scale, equal_nan=True)
        if eager.numel():
            worst = max(worst, float((ours.double() - eager.double()).abs().max()))
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sweep.onnx", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="parts of architectures' names")
    parser.add_argument("--library", choices=("timm", "transformers"))
    parser.add_argument("--opset", type=int, default=23)
    parser.add_argument("--flat", action="store_true", help="export without keep='composite'")
    parser.add_argument("--part", default="1/1", help="2/8: of each eight architectures the second")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    onnxruntime.set_default_logger_severity(4)
    torch.set_num_threads(1)
    timm, transformers = load()
    tally: Counter[str] = Counter()
    for architecture in chosen(options.only, options.library, options.part):
        torch.manual_seed(0)
        try:
            model = build(architecture, timm, transformers).float().eval()
            if architecture.prepares:
                args, kwargs = cast(example(architecture), torch.float32)
                model(*args, **kwargs)
            keep = () if options.flat else "composite"
            outcome = sweep(architecture, model, options.opset, keep)
        except Exception as error:
            outcome = f"failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        tally[outcome.partition(",")[0].partition(":")[0]] += 1
        print(f"{architecture.name:<40} {outcome}", flush=True)
    print(dict(tally))
    return int(set(tally) != {"ok"})


if __name__ == "__main__":
    sys.exit(main())
