"""`make demo`: two models exported, run and timed beside torch.export; then what fake tensors and
symbolic sizes do.

python -m examples.demo [--quick]

`--quick` takes the tiny models and leaves torch.export out, which takes seconds for each.
"""

from __future__ import annotations

import argparse
import textwrap
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import lostwax
from examples.largest_batch import GB, largest, peak_bytes
from examples.models import MODELS, Example, llama
from lostwax import FakeTensorMode, ShapeEnv
from lostwax.errors import DataDependentError


def title(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m")


def describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} on {tensor.device}"


# ----------------------------------------------------------------------------------------- export


def exported(name: str, what: str, *, quick: bool) -> None:
    title(f"{what}, exported")
    example = MODELS[name]
    torch.manual_seed(0)
    model = (example.tiny if quick else example.full)().eval()
    inputs = (example.tiny_inputs if quick else example.full_inputs)()
    program = lostwax.export(model, inputs)
    nodes = sum(node.op == "call_function" for node in program.graph.nodes)
    signature = program.graph_signature
    print(
        f"  {nodes} operators, {len(signature.parameters)} parameters, "
        f"{len(signature.buffers)} buffers; a part of print(program):\n"
    )
    print(excerpt(str(program)))
    with torch.no_grad():
        compare(program.module()(*inputs), model(*inputs))
    times(model, inputs, quick=quick)


def excerpt(text: str, length: int = 16) -> str:
    """The first operators of a printed program, long lines cut."""
    lines = [line for line in text.splitlines() if line.strip()]
    start = next(i for i, line in enumerate(lines) if "torch.ops." in line)
    shown = textwrap.dedent("\n".join(lines[start - 1 : start + length])).splitlines()
    cut = [line if len(line) <= 96 else line[:93] + "..." for line in shown]
    return textwrap.indent("\n".join([*cut, "..."]), "    ")


def compare(ours: Tensor, eager: Tensor) -> None:
    off = (ours - eager).abs().max().item() / eager.abs().max().item()
    same = "equal" if ours.stride() == eager.stride() else "different"
    print(f"\n  run: {describe(ours)}, strides {same}; off eager by {off:.0e} of its largest value")


def times(model: torch.nn.Module, inputs: tuple[Tensor, ...], *, quick: bool) -> None:
    ours = min(seconds(lambda: lostwax.export(model, inputs)) for _ in range(3))
    print(f"  lostwax.export                                {1e3 * ours:8.0f} ms")
    if not quick:
        theirs = seconds(lambda: torch.export.export(model, inputs).run_decompositions())
        print(f"  torch.export.export(...).run_decompositions() {1e3 * theirs:8.0f} ms")
        print("  (one look at a clock; python -m bench.export_speed measures)")


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


# --------------------------------------------------------------------------- fakes, symbolic sizes


def parameters(model: torch.nn.Module) -> float:
    return sum(p.numel() for p in model.parameters()) / 1e6


def models_without_data() -> None:
    title("Every bundled model in full size, without its memory")
    for name, example in MODELS.items():
        with FakeTensorMode(), torch.no_grad():
            model = example.full().eval()
            output = model(*example.full_inputs())
        print(f"  {name:<13} {parameters(model):8.2f} M parameters  {describe(output)}")
    with FakeTensorMode(), torch.no_grad():
        model = llama.Llama(llama.LLAMA_70B)
        logits = model(torch.randint(0, llama.LLAMA_70B.vocabulary, (8, 2048)))
    print(f"  a decoder of {parameters(model) / 1e3:.1f} billion parameters: {describe(logits)}")


def symbolic_inputs(mode: FakeTensorMode, example: Example) -> list[Tensor]:
    """The tiny inputs with a symbol for every dimension that may vary; equal names, equal sizes."""
    env = mode.shape_env
    symbols: dict[str, Any] = {}
    fakes = []
    for tensor, dims in zip(example.tiny_inputs(), example.dynamic, strict=True):
        for dim, name in dims.items():
            if name not in symbols:
                symbols[name] = env.symbol(name, hint=tensor.shape[dim])
        sizes = tuple(symbols.get(dims.get(dim)) for dim in range(tensor.dim()))
        fakes.append(mode.from_tensor(tensor, sizes=sizes))
    return fakes


def symbolic_sizes() -> None:
    title("Symbolic sizes: one forward for every batch and every length")
    for name in ("resnet50", "bert", "llama"):
        example = MODELS[name]
        mode = FakeTensorMode(shape_env=ShapeEnv())
        inputs = symbolic_inputs(mode, example)
        with mode, torch.no_grad():
            output = example.tiny().eval()(*inputs)
        print(f"  {name:<13} {describe(output)}")
        for guard in mode.shape_env.minimal_guards():
            print(f"      needs {guard}")


def sizes_that_only_data_know() -> None:
    title("Sizes that only the data know")
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with mode:
        x = torch.randn(4, 8)
        chosen = x[x > 0]
        print(f"  x[x > 0] of {describe(x)} is {describe(chosen)}")
        try:
            if chosen.shape[0] > 5:
                print("  never printed")
        except DataDependentError as error:
            print("  a branch on it is refused:")
            print("      " + str(error).replace("\n", "\n      "))


def a_batch_that_fits() -> None:
    title("The largest batch of ResNet-50 that trains in 16 GB, on a GPU that need not exist")
    example = MODELS["resnet50"]

    def fits(batch: int) -> bool:
        with FakeTensorMode(), torch.device("cuda"):
            return peak_bytes(example.full, example.full_inputs, batch) <= 16 * GB

    print(f"  {largest(fits)}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")  # torch.export's, about its own future
    exported("resnet50", "ResNet-50", quick=options.quick)
    exported("llama", "A Llama-style decoder", quick=options.quick)
    models_without_data()
    symbolic_sizes()
    sizes_that_only_data_know()
    a_batch_that_fits()


if __name__ == "__main__":
    main()
