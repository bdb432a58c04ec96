"""`make demo`: what fake tensors and symbolic sizes do, on the bundled models.

python -m examples.demo
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from examples.largest_batch import GB, largest, peak_bytes
from examples.models import MODELS, Example, llama
from lostwax import FakeTensorMode, ShapeEnv
from lostwax.errors import DataDependentError


def title(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m")


def models_without_data() -> None:
    title("Every bundled model, in full size")
    for name, example in MODELS.items():
        start = time.perf_counter()
        with FakeTensorMode(), torch.no_grad():
            model = example.full().eval()
            built = time.perf_counter()
            output = model(*example.full_inputs())
        forward = time.perf_counter() - built
        print(
            f"  {name:<13} {parameters(model):8.2f} M parameters, built in {built - start:5.2f} s, "
            f"forward {1e3 * forward:4.0f} ms  {describe(output)}"
        )


def parameters(model: torch.nn.Module) -> float:
    return sum(p.numel() for p in model.parameters()) / 1e6


def describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} on {tensor.device}"


def a_large_decoder() -> None:
    title("A decoder of 70 billion parameters")
    with FakeTensorMode(), torch.no_grad():
        model = llama.Llama(llama.LLAMA_70B)
        logits = model(torch.randint(0, llama.LLAMA_70B.vocabulary, (8, 2048)))
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    print(f"  {parameters(model) / 1e3:.1f} billion parameters, {weights / GB:.0f} GB of weights")
    print(f"  logits: {describe(logits)}")


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
    for name in ("resnet50", "vit", "bert", "llama", "gpt2", "swin"):
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


def main() -> None:
    models_without_data()
    a_large_decoder()
    symbolic_sizes()
    sizes_that_only_data_know()
    a_batch_that_fits()


if __name__ == "__main__":
    main()
