"""Programs with calls of them, and what ExecuTorch's own Python gives for these calls: for
tests/run/replay.py, which runs where there is no torch.

    python -m tests.run.cases FOLDER

A case is `NAME.pte`, maybe `NAME.ptd`, and `NAME.npz`: `calls`, JSON, each with a method and the
names of its inputs and results among the arrays.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import torch

import lostwax
from examples.models import MODELS
from lostwax.backends import XnnpackPartitioner
from lostwax.backends.xnnpack.schema import FLAT_AT, HEADER
from lostwax.backends.xnnpack.schema import TABLES as PAYLOAD_TABLES
from lostwax.pte.file import tables
from lostwax.pte.file.schema import SCALARS
from lostwax.pte.runtime import LoadedProgram, load_executorch
from tests.backends.quantized import Convnet, quantize
from tests.pte.test_bundled import cut, make_dims
from tests.pte.test_shared_state import LENGTH, Decoder, Read, Start, Tally

Calls = list[tuple[str, tuple[Any, ...]]]


def main(folder: Path) -> None:
    for name, make in list_cases():
        torch.manual_seed(0)
        executable, calls, *peer = make()
        write_case(folder, name, executable, calls, *peer)


def list_cases() -> Iterator[tuple[str, Callable[[], tuple[Any, ...]]]]:
    for name in MODELS:
        yield name, lambda name=name: make_bundled(name, False)
        yield f"{name}-xnnpack", lambda name=name: make_bundled(name, True)
    yield "decoder", make_decoder
    yield "decoder-beside", make_decoder_beside
    yield "tally", make_tally
    yield "loop", make_loop
    yield "constants", make_constants
    yield "beside", make_beside
    yield "quantized", make_quantized
    yield "integers", make_integers
    yield "layouts", make_layouts


def write_case(folder: Path, name: str, executable: Any, calls: Calls, other: Any = None) -> None:
    """The case, with results of ExecuTorch's; of the `other` executable, if it cannot load this."""
    executable.save(folder / f"{name}.pte")
    source = other or executable
    peer = LoadedProgram(source.buffer, source.weights, load_executorch)
    arrays: dict[str, Any] = {}
    told = []

    def add(values: Any) -> list[str]:
        names = [f"a{len(arrays) + at}" for at in range(len(values))]
        for each, value in zip(names, values, strict=True):
            is_bits = isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16
            arrays[each] = numpy.asarray(value.view(torch.uint16) if is_bits else value)
        return names

    for method, inputs in calls:
        results = peer.run(inputs, method=method)
        told.append({"method": method, "inputs": add(inputs), "results": add(results)})
    scalars = numpy.array(list_scalars(executable.buffer))
    numpy.savez(
        folder / f"{name}.npz", calls=numpy.array(json.dumps(told)), scalars=scalars, **arrays
    )


def list_scalars(data: bytes) -> list[tuple[int, int]]:
    """Where the numbers of a program's tables are, and those of its payloads, and their bytes."""
    found: list[tuple[int, int]] = []

    class Recorder(tables.TableReader):
        base = 0

        def _field(self, at: int, kind: str, what: str, depth: int) -> Any:
            if kind in SCALARS:
                found.append((self.base + at, SCALARS[kind][1]))
            elif kind[0] == "[" and kind[1:-1] in SCALARS:
                size, start = SCALARS[kind[1:-1]][1], self._follow(at, what)
                count = min(self.number("u32", start, what), 64)
                found.extend((self.base + start + 4 + size * i, size) for i in range(count))
            return super()._field(at, kind, what, depth)

    reader = Recorder(data)
    reader.table(reader.number("u32", 0, "it"), "Program", "it", 0)
    for header in re.finditer(HEADER, data):
        start = header.start() - 4
        reader = Recorder(data[start + FLAT_AT :], PAYLOAD_TABLES)
        reader.base = start + FLAT_AT
        reader.table(reader.number("u32", 0, "it"), "XNNGraph", "it", 0)
    return found


def make_bundled(name: str, on_xnnpack: bool) -> tuple[Any, Calls]:
    module, inputs = MODELS[name].tiny().eval(), MODELS[name].tiny_inputs()
    program = lostwax.export(module, inputs, dynamic_shapes=make_dims(name))
    edge = program.to_edge()
    edge = edge.to_backend(XnnpackPartitioner()) if on_xnnpack else edge
    sizes = [cut(inputs, name, 3), inputs, cut(inputs, name, 1)]
    return edge.to_executable(), [("forward", given) for given in sizes]


def make_decoder(**config: Any) -> tuple[Any, Calls]:
    """Two methods that share a cache; each token is eager's."""
    model = Decoder().eval()
    size = ({0: lostwax.Dim("length", min=2, max=LENGTH)},)
    first = lostwax.export(Start(model).eval(), (torch.tensor([1, 2, 3]),), dynamic_shapes=size)
    more = lostwax.export(model, (torch.tensor([1]), torch.tensor([3])))
    edge = lostwax.to_edge({"start": first, "forward": more})
    calls: Calls = []
    for text in ([1, 2, 3], [5, 4], [7, 7, 1, 0, 12]):
        calls.append(("start", (torch.tensor(text),)))
        token = Start(model)(torch.tensor(text))
        for at in range(len(text), LENGTH):
            calls.append(("forward", (token, torch.tensor([at]))))
            token = model(token, torch.tensor([at]))
    return edge.to_executable(lostwax.ExecutableConfig(**config)), calls


def make_decoder_beside() -> tuple[Any, Calls, Any]:
    """Shared state with weights beside the file, which ExecuTorch's Python cannot load."""
    torch.manual_seed(0)
    within, _ = make_decoder()
    beside, calls = make_decoder(weights_beside=True)
    return beside, calls, within


def make_tally() -> tuple[Any, Calls]:
    """State that is not zero at the start; one method writes it, another reads it."""
    module = Tally()
    edge = lostwax.to_edge(
        {
            "add": lostwax.export(module, (torch.ones(2),)),
            "read": lostwax.export(Read(module), ()),
        }
    )
    add = ("add", (torch.tensor([1.0, 2.0]),))
    return edge.to_executable(), [("read", ()), add, ("read", ()), add, ("read", ())]


class Looping(torch.nn.Module):
    def forward(self, x: Any, n: Any) -> Any:
        total = x
        for _ in range(int(n)):
            if total.sum() > 10:
                total = total / 3
            total = total * 2 + 1
        return total, n + 1


def make_loop() -> tuple[Any, Calls]:
    x = torch.rand(3)
    program = lostwax.export(Looping(), (x, torch.tensor(3)))
    calls: Calls = [("forward", (x, torch.tensor(n))) for n in (3, 0, 1, 40)]
    return program.to_edge().to_executable(), calls


def make_constants() -> tuple[Any, Calls]:
    program = lostwax.export(torch.nn.ReLU(), (torch.randn(3),))
    told = {"version": 7, "ids": [1, 2], "name": "relu", "rate": 0.5, "table": torch.arange(3)}
    edge = lostwax.to_edge({"forward": program}, constant_methods=told)
    return edge.to_executable(), [("forward", (torch.randn(3),)), ("ids", ()), ("rate", ())]


def make_beside() -> tuple[Any, Calls]:
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    edge = lostwax.export(module, (torch.randn(3, 4),)).to_edge()
    config = lostwax.ExecutableConfig(weights_beside=True)
    return edge.to_executable(config), [("forward", (torch.randn(3, 4),))]


def make_quantized() -> tuple[Any, Calls]:
    module = Convnet().eval()
    batches = [(torch.randn(2, 3, 8, 8),) for _ in range(3)]
    program = lostwax.export(quantize(module, batches), batches[0], keep="composite")
    edge = lostwax.to_edge_transform_and_lower(program, partitioner=XnnpackPartitioner())
    return edge.to_executable(), [("forward", batch) for batch in batches]


def make_integers() -> tuple[Any, Calls]:
    """Dtypes in and out; and nothing at all."""

    class Casts(torch.nn.Module):
        def forward(self, a: Any, b: Any, c: Any, d: Any) -> Any:
            return a + 1, ~b, c.to(torch.bfloat16), d.double() * 2, a[:0].float()

    given = (
        torch.arange(4, dtype=torch.int64),
        torch.tensor([True, False]),
        torch.randn(3),
        torch.randn(3).to(torch.bfloat16),
    )
    return lostwax.export(Casts(), given).to_edge().to_executable(), [("forward", given)]


def make_layouts() -> tuple[Any, Calls]:
    """An input in channels-last, as the example was."""
    module = torch.nn.Conv2d(3, 4, 3)
    x = torch.randn(2, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    executable = lostwax.export(module, (x,)).to_edge().to_executable()
    return executable, [("forward", (x,)), ("forward", (x.contiguous(),))]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
