"""Lowers timm and transformers architectures to `.pte` files and compares them with eager.

    python -m sweep.pte [--only resnet18 Llama ...] [--library timm] [--all] [--xnnpack]

Each is lowered in evaluation, float32, with fixed sizes, with a batch that varies up to 4, and, for
texts, with a length that varies up to 24; the real ExecuTorch runtime runs it, and `lostwax.check`
compares it with the module at several batches and lengths.
Each runs in a process of its own, since a kernel that gets what it does not expect ends the
process. Without `--all` or `--only` a dozen are taken. Exits with 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from typing import Any

import torch

import lostwax
from lostwax.backends import XnnpackPartitioner
from lostwax.errors import LostwaxError
from lostwax.ops.decompositions.runtime import grouped_mm
from sweep.__main__ import chosen
from sweep.architectures import Architecture, build, cast, example
from sweep.dynamic import dynamic_shapes
from sweep.libraries import load

DOZEN = (
    "resnet18",
    "mobilenetv3_small_050",
    "efficientnet_b0",
    "convnext_atto",
    "regnety_002",
    "vit_tiny_patch16_224",
    "mixer_s32_224",
    "BertModel",
    "DistilBertModel",
    "GPT2LMHeadModel",
    "LlamaForCausalLM",
    "ViTModel",
)
SIZES = {
    "fixed": ((2, 12),),
    "bounded": ((2, 12), (1, 12), (4, 12), (3, 12)),
    "length": ((2, 12), (1, 5), (4, 24), (3, 2)),
}
"""What varies: the batches and lengths that are compared. The example's come first."""


TEXTS = ("text", "masked", "seq2seq")
"""The inputs that have a length."""


def bound_sizes(args: Any, kwargs: Any, varies: str) -> Any:
    """The dimensions that vary, each with an upper bound."""
    if varies == "fixed":
        return None
    bounds = {"batch": (1, 4), "length": (2, 24), "decoder_length": (2, 24)}
    dims = {name: lostwax.Dim(name, min=low, max=high) for name, (low, high) in bounds.items()}
    names = dynamic_shapes(kwargs, lengths=varies == "length")
    return {
        name: spec and {at: dims[dim.__name__] for at, dim in spec.items()}
        for name, spec in names.items()
    }


def lower_and_check(architecture: Architecture, model: Any, varies: str, xnnpack: bool) -> str:
    """What became of it: "ok" and figures, or what is wrong."""
    args, kwargs = cast(example(architecture), torch.float32)
    shapes = bound_sizes(args, kwargs, varies)
    try:
        program = lostwax.export(model, args, kwargs, dynamic_shapes=shapes)
    except LostwaxError as error:
        return "not exported: " + str(error).splitlines()[0]
    start = time.process_time()
    try:
        partitioner = XnnpackPartitioner() if xnnpack else []
        edge = lostwax.to_edge_transform_and_lower(
            program, partitioner=partitioner, config=edge_config()
        )
        executable = edge.to_executable()
    except LostwaxError as error:
        return "refused: " + str(error).splitlines()[0]
    milliseconds = 1e3 * (time.process_time() - start)
    calls = [cast(example(architecture, *sizes), torch.float32) for sizes in SIZES[varies]]
    result = lostwax.check(executable, model, inputs=calls)
    if not result.ok:
        return "wrong: " + " ".join(result.report.split())[:400]
    size, arena = len(executable.buffer), executable.arena_sizes["forward"]
    taken = f", {str(edge.delegation_report()).splitlines()[0]}" if xnnpack else ""
    sizes = f"file {size / 1e6:.2f} MB, arena {arena / 1e6:.2f} MB"
    return f"ok, {milliseconds:.0f} ms, {sizes}{taken}"


def edge_config() -> lostwax.EdgeConfig:
    """How operators that are a library's own are computed."""
    if not hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        return lostwax.EdgeConfig()
    fallback = torch.ops.transformers.grouped_mm_fallback.default
    return lostwax.EdgeConfig(decompositions={fallback: grouped_mm})


def run_apart(
    architecture: Architecture, timm: Any, transformers: Any, varies: str, xnnpack: bool
) -> str:
    """The outcome of `lower_and_check` in a process of its own."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            torch.manual_seed(0)
            model = build(architecture, timm, transformers).float().eval()
            outcome = lower_and_check(architecture, model, varies, xnnpack)
        except Exception as error:
            outcome = f"failed: {type(error).__name__}: {str(error)[:300]}"
        os.write(write, outcome.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        outcome = pipe.read()
    os.waitpid(child, 0)
    return outcome or "ended the process"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sweep.pte", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="parts of architectures' names")
    parser.add_argument("--library", choices=("timm", "transformers"))
    parser.add_argument("--all", action="store_true", help="all that the sweep has")
    parser.add_argument("--xnnpack", action="store_true", help="with XNNPACK's delegates")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    timm, transformers = load()
    import executorch.extension.pybindings.portable_lib  # noqa: F401  once, before the forks

    is_ok = True
    for architecture in chosen(options.only, options.library):
        if not options.only and not options.all and architecture.name not in DOZEN:
            continue
        for varies in SIZES:
            if varies == "length" and architecture.inputs not in TEXTS:
                continue
            outcome = run_apart(architecture, timm, transformers, varies, options.xnnpack)
            is_ok = is_ok and outcome.startswith("ok")
            print(f"{architecture.name:<32} {varies:<9}{outcome}", flush=True)
    return 0 if is_ok else 1


if __name__ == "__main__":
    sys.exit(main())
