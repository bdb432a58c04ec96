"""Quantized programs in XNNPACK: ours beside ExecuTorch's lowering of the same module.

    python -m bench.quantized [--models convnet static] [--rounds 3]

torchao quantizes a convnet and a transformer encoder: statically to int8, with activations as the
program runs, and with weights of four bits in groups. Both sides lower the same quantized module;
lowering is in processor time, of which the least counts. The runtime then runs both files, and ours
without XNNPACK, on one thread. The bars: lowering 30 times as fast, no more delegates, no larger
file, run time no more than a tenth above theirs. Results are compared with the quantized module and
with the one in floats. Exits with 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import copy
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import lostwax
from bench.clock import processor_seconds
from lostwax.backends import XnnpackPartitioner

BAR, SLOWER = 30.0, 1.1


class Block(nn.Module):
    """Convolutions, depthwise and of points, and a sum."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.wide = nn.Conv2d(channels, channels * 2, 1)
        self.depthwise = nn.Conv2d(channels * 2, channels * 2, 3, padding=1, groups=channels * 2)
        self.narrow = nn.Conv2d(channels * 2, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.depthwise(torch.relu(self.wide(x))))
        return x + self.narrow(y)  # type: ignore[no-any-return]


def make_convnet() -> tuple[nn.Module, list[tuple[Tensor, ...]]]:
    model = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.ReLU(), Block(32), Block(32)),
        *(nn.MaxPool2d(2), Block(32), Block(32), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(32, 100)),
    )
    return model.eval(), [(torch.randn(1, 3, 96, 96),) for _ in range(3)]


def make_encoder() -> tuple[nn.Module, list[tuple[Tensor, ...]]]:
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, activation="gelu")
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return encoder.eval(), [(torch.randn(1, 64, 128),) for _ in range(3)]


def quantize(model: nn.Module, batches: Any, dynamic: bool) -> Any:
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as xnnpack
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    config = xnnpack.get_symmetric_quantization_config(is_per_channel=True, is_dynamic=dynamic)
    program = lostwax.export(model, batches[0], keep="composite")
    prepared = prepare_pt2e(program.module(), xnnpack.XNNPACKQuantizer().set_global(config))
    for batch in batches:
        prepared(*batch)
    return convert_pt2e(prepared)


def put_in_groups(model: nn.Module, batches: Any) -> Any:
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
    from torchao.quantization.granularity import PerGroup

    small = copy.deepcopy(model)
    block = PerGroup(32)
    quantize_(
        small,
        Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=block),
    )
    return small


def make_layers() -> tuple[nn.Module, list[tuple[Tensor, ...]]]:
    layers = [
        nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
        for _ in range(4)
    ]
    return nn.Sequential(*layers).eval(), [(torch.randn(1, 64, 256),)]


MODELS: dict[str, tuple[Callable[[], Any], Callable[..., Any]]] = {
    "convnet": (make_convnet, lambda m, b: quantize(m, b, False)),
    "static": (make_encoder, lambda m, b: quantize(m, b, False)),
    "dynamic": (make_encoder, lambda m, b: quantize(m, b, True)),
    "groups": (make_layers, put_in_groups),
}


def lower_ours(program: Any) -> Any:
    lowered = lostwax.to_edge_transform_and_lower(program, partitioner=XnnpackPartitioner())
    return lowered, lowered.to_executable().buffer


def lower_theirs(program: Any) -> Any:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    lowered = to_edge_transform_and_lower(
        copy.deepcopy(program), partitioner=[XnnpackPartitioner()]
    )
    return lowered, lowered.to_executorch().buffer


def measure(name: str, rounds: int) -> list[str]:
    """Measure one model, and print a line for each side; return the bars that it missed."""
    torch.manual_seed(0)
    make, quantized = MODELS[name]
    model, batches = make()
    module, x = quantized(model, batches), batches[0]
    with torch.no_grad():
        want, floats = module(*x), model(*x)
    theirs = torch.export.export(module, x)
    if name == "groups":
        from torchao.utils import unwrap_tensor_subclass

        unwrap_tensor_subclass(module)
    ours = lostwax.export(module, x, keep="composite")
    loss = float((want - floats).norm() / floats.norm())
    print(f"{name}: the quantized module is {loss:.2%} off the one in floats")
    plain = ours.to_edge().to_executable().buffer
    found = {}
    for side, lower, program in (("ours", lower_ours, ours), ("theirs", lower_theirs, theirs)):
        (lowered, buffer), seconds = min(
            (_time(lower, program) for _ in range(rounds)), key=lambda pair: pair[1]
        )
        graph = lowered.exported_program().graph
        count = sum("call_delegate" in str(n.target) for n in graph.nodes)
        found[side] = seconds, count, len(buffer), *_run(buffer, x, want, floats)
        _print(side, found[side])
    _print("without", (0.0, 0, len(plain), *_run(plain, x, want, floats)))
    (a, b), faults = (found["ours"], found["theirs"]), []
    if b[0] / a[0] < BAR:
        faults.append(f"{name}: lowering is {b[0] / a[0]:.1f} times as fast")
    if a[1] > b[1]:
        faults.append(f"{name}: {a[1]} delegates, theirs {b[1]}")
    if a[2] > b[2]:
        faults.append(f"{name}: {a[2]} bytes, theirs {b[2]}")
    if a[3] > SLOWER * b[3]:
        faults.append(f"{name}: runs in {a[3] * 1e3:.2f} ms, theirs in {b[3] * 1e3:.2f}")
    return faults


def _time(lower: Any, program: Any) -> tuple[Any, float]:
    made: list[Any] = []
    seconds = processor_seconds(lambda: made.append(lower(program)))
    return made[0], seconds


def _run(buffer: bytes, x: Any, want: Tensor, floats: Tensor) -> tuple[float, float, float]:
    """The time of a call, and how far its result is from the quantized module and from floats."""
    loaded = lostwax.pte.load_runtime(buffer)
    got = loaded.run(x)[0]
    seconds = min(processor_seconds(lambda: loaded.run(x)) for _ in range(15))
    off = float((got - floats).norm() / floats.norm())
    return seconds, float((got - want).abs().max() / want.abs().max()), off


def _print(side: str, row: Any) -> None:
    lowering, count, size, run, error, off = row
    print(
        f"  {side:8} lowered in {lowering * 1e3:8.1f} ms, {count:2} delegates, {size:9,} bytes, "
        f"runs in {run * 1e3:8.2f} ms; {error:.1e} off the module, {off:.2%} off floats"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    faults = [fault for name in options.models for fault in measure(name, options.rounds)]
    print("\n".join(["missed:", *faults]) if faults else "all bars are met")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
