"""What a fake forward costs: ours beside torch's FakeTensorMode, in one process.

    python -m bench.fake [--models resnet50 llama] [--repeats 5] [--json]

Each model's weights are converted once, outside the timed part; both run the same module code
under `no_grad`. The sides take turns, so that a change in the machine's mood meets all of them; the
figures are the least processor time of the turns, to which a busy machine can only add. Four
comparisons, three of them with a bar:

    cold       the first forward of a mode: torch's operator cache is cleared before each run (its
               lazy imports are loaded already and not counted), ours is a mode just made
    warm       every later forward; torch's operator cache is full
    symbolic   later forwards with a ShapeEnv attached, every dimension of the inputs dynamic
    batch      the same with only the dimensions that examples/models calls dynamic

Exits with 1 when a bar is missed or an output differs from torch's.
"""

from __future__ import annotations

import argparse
import copy
import gc
import itertools
import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode as TorchFakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext
from torch.fx.experimental.symbolic_shapes import ShapeEnv as TorchShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode

from examples.models import MODELS
from lostwax.fake import FakeTensorMode
from lostwax.fake.symbolic.node import wrap
from lostwax.sym import ShapeEnv

NAMES = ("resnet50", "vit", "bert", "llama", "unet", "lstm")
BARS = {"cold": 10.0, "warm": 3.0, "symbolic": 10.0}
COMPARISONS = ("cold", "warm", "symbolic", "batch")

Dims = tuple[dict[int, str], ...]
Forward = Callable[[], Any]


@dataclass
class Side:
    """One way to run a model's forward: `prepare` is not timed, what it returns is."""

    prepare: Callable[[], Forward]
    seconds: list[float] = field(default_factory=list)

    def measure(self) -> None:
        forward = self.prepare()
        gc.collect()
        start = time.process_time()
        forward()
        self.seconds.append(time.process_time() - start)

    @property
    def milliseconds(self) -> float:
        return 1e3 * min(self.seconds)


def on_fakes(model: nn.Module, convert: Callable[[Tensor], Tensor]) -> nn.Module:
    """The module with every parameter and buffer converted, and no data copied."""
    state = itertools.chain(model.parameters(), model.buffers())
    return copy.deepcopy(model, {id(tensor): convert(tensor) for tensor in state})


def all_dims(inputs: tuple[Tensor, ...], named: Dims) -> Dims:
    """Every dimension dynamic: those with a name keep it, the others are each their own."""
    return tuple(
        {d: dims.get(d, f"input{i}_{d}") for d in range(tensor.dim())}
        for i, (tensor, dims) in enumerate(zip(inputs, named, strict=True))
    )


def under(mode: AbstractContextManager[Any], module: nn.Module, inputs: list[Any]) -> Forward:
    def forward() -> Any:
        with mode, torch.no_grad():
            return module(*inputs)

    return forward


# ------------------------------------------------------------------------------------------ torch


def torch_forward(model: nn.Module, inputs: tuple[Tensor, ...], dims: Dims | None) -> Forward:
    if dims is None:
        mode = TorchFakeTensorMode()
        fakes = [mode.from_tensor(tensor) for tensor in inputs]
        return under(mode, on_fakes(model, mode.from_tensor), fakes)
    mode = TorchFakeTensorMode(shape_env=TorchShapeEnv())
    fakes = [
        torch_symbolic(mode, f"input{i}", tensor, named)
        for i, (tensor, named) in enumerate(zip(inputs, dims, strict=True))
    ]
    module = on_fakes(model, lambda tensor: mode.from_tensor(tensor, static_shapes=True))
    return with_python_dispatcher(under(mode, module, fakes))


def torch_symbolic(
    mode: TorchFakeTensorMode, name: str, tensor: Tensor, dims: dict[int, str]
) -> Tensor:
    """Equal sizes get one symbol (DUCK), as equal names do on our side."""
    kinds = [DimDynamic.DUCK if d in dims else DimDynamic.STATIC for d in range(tensor.dim())]
    context = StatelessSymbolicContext(dynamic_sizes=kinds)
    return mode.from_tensor(tensor, source=ConstantSource(name), symbolic_context=context)


def with_python_dispatcher(forward: Forward) -> Forward:
    """torch needs it for symbolic sizes: without it the C++ of `lstm` asks for concrete ones."""

    def dispatched() -> Any:
        with enable_python_dispatcher():
            return forward()

    return dispatched


def torch_cold(forward: Forward) -> Side:
    def prepare() -> Forward:
        TorchFakeTensorMode.cache_clear()
        return forward

    return Side(prepare)


def warmed(forward: Forward) -> Side:
    """Each timed run follows an untimed one: the cold side has emptied torch's cache before."""

    def prepare() -> Forward:
        forward()
        return forward

    return Side(prepare)


# ------------------------------------------------------------------------------------------- ours


def our_forward(model: nn.Module, inputs: tuple[Tensor, ...], dims: Dims | None) -> Forward:
    if dims is None:
        mode = FakeTensorMode()
        fakes = [mode.from_tensor(tensor) for tensor in inputs]
    else:
        env = ShapeEnv()
        mode = FakeTensorMode(shape_env=env)
        symbols = symbols_for(env, inputs, dims)
        fakes = [
            mode.from_tensor(
                tensor, sizes=tuple(symbols.get(named.get(d)) for d in range(tensor.dim()))
            )
            for tensor, named in zip(inputs, dims, strict=True)
        ]
    module = on_fakes(model, lambda tensor: mode.from_tensor(tensor, static_shapes=True))
    return under(mode, module, fakes)


def symbols_for(env: ShapeEnv, inputs: tuple[Tensor, ...], dims: Dims) -> dict[str | None, Any]:
    """One symbol for each name of a dimension."""
    hints = {
        name: tensor.shape[d]
        for tensor, named in zip(inputs, dims, strict=True)
        for d, name in named.items()
    }
    return {name: wrap(env.symbol(name, hint=hint)) for name, hint in hints.items()}


def our_cold(model: nn.Module, inputs: tuple[Tensor, ...]) -> Side:
    return Side(lambda: our_forward(model, inputs, None))


# ---------------------------------------------------------------------------------------- measure


class Count(TorchDispatchMode):
    """Counts the operators of a forward; asking for a device is none."""

    operators = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators += func is not torch.ops.prim.device.default
        return func(*args, **(kwargs or {}))


@dataclass
class Row:
    """What was measured of one model, in milliseconds a forward."""

    model: str
    operators: int
    torch: dict[str, float]
    ours: dict[str, float]

    def ratio(self, comparison: str) -> float:
        return self.torch[comparison] / self.ours[comparison]

    def missed(self) -> list[str]:
        return [name for name, bar in BARS.items() if self.ratio(name) < bar]

    def as_dict(self) -> dict[str, Any]:
        ratios = {name: round(self.ratio(name), 2) for name in COMPARISONS}
        return {
            "model": self.model,
            "operators": self.operators,
            "torch_ms": self.torch,
            "ours_ms": self.ours,
            "ratio": ratios,
            "missed": self.missed(),
        }


def measure(name: str, repeats: int) -> Row:
    example = MODELS[name]
    torch.manual_seed(0)
    model, inputs = example.full().eval(), example.full_inputs()
    symbolic = {"symbolic": all_dims(inputs, example.dynamic), "batch": example.dynamic}
    theirs = torch_forward(model, inputs, None)
    mine = our_forward(model, inputs, None)
    check_equal(mine(), theirs())
    peer = {"cold": torch_cold(theirs), "warm": warmed(theirs)}
    ours = {"cold": our_cold(model, inputs), "warm": warmed(mine)}
    for comparison, dims in symbolic.items():
        peer[comparison] = warmed(torch_forward(model, inputs, dims))
        ours[comparison] = warmed(our_forward(model, inputs, dims))
    for _ in range(repeats):
        for side in (*peer.values(), *ours.values()):
            side.measure()
    return Row(name, count(theirs), milliseconds(peer), milliseconds(ours))


def count(forward: Forward) -> int:
    with Count() as counter:
        forward()
    return counter.operators


def milliseconds(sides: dict[str, Side]) -> dict[str, float]:
    return {name: round(side.milliseconds, 3) for name, side in sides.items()}


def check_equal(mine: Tensor, theirs: Tensor) -> None:
    """A fast answer that is wrong is no answer."""
    for what in ("shape", "dtype", "device"):
        if getattr(mine, what) != getattr(theirs, what):
            raise ValueError(f"{what} is {getattr(mine, what)}, torch's {getattr(theirs, what)}")
    if mine.stride() != theirs.stride():
        raise ValueError(f"strides are {mine.stride()}, torch's {theirs.stride()}")


# ------------------------------------------------------------------------------------------- face


HEAD = f"{'ms a forward':<13}{'ops':>6}" + "".join(
    f"{f'{name}: torch':>17}{'ours':>8}{'×':>7}" for name in COMPARISONS
)


def line(row: Row) -> str:
    text = f"{row.model:<13}{row.operators:>6}"
    for name in COMPARISONS:
        text += f"{row.torch[name]:>17.1f}{row.ours[name]:>8.1f}{row.ratio(name):>6.1f}×"
    return text


def verdict(rows: list[Row], failures: dict[str, str]) -> str:
    bars = ", ".join(f"{name} ≥ {bar:g}×" for name, bar in BARS.items())
    missed = [f"{row.model} {name} {row.ratio(name):.1f}×" for row in rows for name in row.missed()]
    missed += [f"{name} (failed)" for name in failures]
    return f"bars: {bars}: " + ("missed by " + ", ".join(missed) if missed else "all held")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fake", description=__doc__)
    parser.add_argument("--models", nargs="+", default=NAMES, choices=list(MODELS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    rows: list[Row] = []
    failures: dict[str, str] = {}
    say = (lambda text: None) if options.json else print
    say(HEAD)
    for name in options.models:
        try:
            rows.append(measure(name, options.repeats))
            say(line(rows[-1]))
        except Exception as error:  # the other models are measured all the same
            failures[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            say(f"{name:<13}{failures[name]}")
    say(verdict(rows, failures))
    if options.json:
        print(json.dumps({"rows": [row.as_dict() for row in rows], "failures": failures}, indent=2))
    return 1 if failures or any(row.missed() for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
