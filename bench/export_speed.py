"""What an export costs: ours beside torch.export, in one process, on the models of examples/models.

    python -m bench.export_speed [--models resnet50 llama] [--rounds 3] [--json] [--dynamic]

With `--dynamic` see `dynamic_speed.py`. Otherwise five sides, taking turns, so that a change in the
machine's mood meets all of them. A figure is the least processor time of a side's turns: what else
runs on the machine can only add to a turn, and adds more to a side that touches more memory. (For
ours over the floor the medians' ratio is shown too, for information.)

    functional  torch.export.export(strict=False).run_decompositions(): the peer, whose result is
                what ours is, a functional ATen program
    strict      torch.export.export(strict=True), which analyses bytecode and stops before that form
    ours        lostwax.export
    fake        the forward alone under lostwax.FakeTensorMode: type rules, nothing recorded (shown
                for information)
    floor       the forward alone under a dispatch mode that records nothing and knows every answer
                beforehand: each operator makes one trip to Python, which returns a new wrapper
                tensor of the size noted in an earlier run. No rule, no graph, no names, no
                conversion of weights: what any tracer that runs the module's Python must pay.
                Nothing of lostwax is in it. Kernels of the CPU alone are switched off (mkldnn's
                LSTM, fused attention): the floor makes the calls of a portable program, which
                is what the other sides make. `ops` and `nodes` show how close that comes.

Every side has exported something before: imports and first-time tables are not counted, and torch's
cache of operators stays warm from round to round. Within one round torch's sides run once, and
after each of them the three cheap ones fifteen times, in turn: a longer run meets a quiet moment
less often than a short one, so there must be many. The bars: functional / ours at least 40 in the
median over the models and 20 for each, ours / floor at most 3 for each. Exits with 1 when one is
missed, when an export fails, or when the programs' outputs differ in size, stride or dtype.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from bench import dynamic_speed
from bench.clock import processor_seconds
from bench.fake import on_fakes, our_forward
from examples.models import MODELS
from lostwax.capture import export

MEDIAN_BAR, EACH_BAR, FLOOR_BAR = 40.0, 20.0, 3.0
SIDES = ("functional", "strict", "ours", "fake", "floor")
CHEAP, TURNS = ("ours", "fake", "floor"), 15
Work = Callable[[], Any]


# -------------------------------------------------------------------------------------- the floor


class Wrapper(Tensor):
    """A tensor with a size and no data; only a dispatch mode knows what to do with it."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise TypeError(f"{func} outside of the floor's mode")


def wrapper(like: Tensor, device: torch.device | None = None) -> Tensor:
    """A new tensor with the type of this one."""
    made: Tensor = Tensor._make_wrapper_subclass(
        Wrapper, like.shape, strides=like.stride(), dtype=like.dtype, device=device or like.device
    )
    return made


ITSELF = object()
Answer = tuple[Any, Any]
"""The operator; and its result: ITSELF is the first argument (a write), for each tensor in it a new
one of its type is made."""


class Notes(TorchDispatchMode):
    """Finds what each operator of a forward on wrappers returns, by torch's kernels for `meta`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.answers: list[Answer] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args_there, kwargs_there = pytree.tree_map(on_meta, (args, kwargs or {}))
        out = func(*args_there, **kwargs_there)
        if args and out is args_there[0]:
            self.answers.append((func, ITSELF))
            return args[0]
        here = next((a.device for a in pytree.tree_leaves(args) if isinstance(a, Tensor)), None)
        answer = pytree.tree_map_only(Tensor, lambda t: wrapper(t, here), out)
        self.answers.append((func, answer))
        return again(answer)


def on_meta(value: Any) -> Any:
    if not isinstance(value, Wrapper):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


class Floor(TorchDispatchMode):
    """Gives the answers of an earlier run, one by one, each as a new tensor."""

    def __init__(self, answers: list[Answer]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.answers = answers
        self.position = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = self.answers[self.position][1]
        self.position += 1
        return args[0] if answer is ITSELF else again(answer)


class Checked(Floor):
    """The same, sure that the operators are those of the earlier run."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        noted = self.answers[self.position][0]
        if noted is not func:
            raise ValueError(f"operator {self.position} is {func}, in the earlier run {noted}")
        return super().__torch_dispatch__(func, types, args, kwargs)


def again(answer: Any) -> Any:
    if isinstance(answer, Tensor):
        return wrapper(answer)
    return type(answer)([again(a) for a in answer]) if isinstance(answer, (list, tuple)) else answer


@contextmanager
def portable() -> Iterator[None]:
    """Inside, C++ does not choose operators that only a CPU has."""
    with torch.backends.mkldnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH):
        yield


def floor(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Work, int]:
    """The floor's forward, and its number of operators."""
    bare, wrapped = on_fakes(model, wrapper), [wrapper(x) for x in inputs]
    with torch.no_grad(), portable(), Notes() as notes:
        bare(*wrapped)

    def forward(cls: type[Floor] = Floor) -> Any:
        with torch.no_grad(), portable(), cls(notes.answers):
            return bare(*wrapped)

    forward(Checked)
    return forward, len(notes.answers)


# -------------------------------------------------------------------------------------- the sides


def torch_functional(model: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    return torch.export.export(model, inputs, strict=False).run_decompositions()


def torch_strict(model: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    return torch.export.export(model, inputs, strict=True)


@dataclass
class Row:
    """What was measured of one model."""

    model: str
    operators: int
    """Operators of the floor's forward."""
    nodes: int
    """call_function nodes of our program."""
    seconds: dict[str, list[float]] = field(default_factory=lambda: {s: [] for s in SIDES})

    def milliseconds(self, side: str) -> float:
        return 1e3 * min(self.seconds[side])

    def ratio(self, over: str, under: str) -> float:
        return self.milliseconds(over) / self.milliseconds(under)

    def median_height(self) -> float:
        """Ours over the floor, by the medians of their turns."""
        ours, floor = (statistics.median(self.seconds[side]) for side in ("ours", "floor"))
        return ours / floor

    def missed(self) -> list[str]:
        speed, height = self.ratio("functional", "ours"), self.ratio("ours", "floor")
        found = []
        if speed < EACH_BAR:
            found.append(f"{self.model} {speed:.1f}× (bar {EACH_BAR:g}×)")
        if height > FLOOR_BAR:
            found.append(f"{self.model} {height:.2f}× the floor (bar {FLOOR_BAR:g}×)")
        return found

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "operators": self.operators,
            "nodes": self.nodes,
            "ms": {side: round(self.milliseconds(side), 3) for side in SIDES},
            "functional_over_ours": round(self.ratio("functional", "ours"), 2),
            "strict_over_ours": round(self.ratio("strict", "ours"), 2),
            "ours_over_floor": round(self.ratio("ours", "floor"), 3),
            "ours_over_floor_median": round(self.median_height(), 3),
            "missed": self.missed(),
        }


def measure(name: str, rounds: int) -> Row:
    example = MODELS[name]
    torch.manual_seed(0)
    model, inputs = example.full().eval(), example.full_inputs()
    bottom, operators = floor(model, inputs)
    program = export(model, inputs)
    work: dict[str, Work] = {
        "functional": lambda: torch_functional(model, inputs),
        "strict": lambda: torch_strict(model, inputs),
        "ours": lambda: export(model, inputs),
        "fake": our_forward(model, inputs, None),
        "floor": bottom,
    }
    check_equal(program, work["functional"]())
    row = Row(name, operators, sum(n.op == "call_function" for n in program.graph.nodes))
    del program
    turns = [side for dear in ("functional", "strict") for side in (dear, *CHEAP * TURNS)]
    for side in turns * rounds:
        if side not in CHEAP:
            torch._dynamo.reset()  # what strict export remembers of earlier ones
        row.seconds[side].append(processor_seconds(work[side]))
    return row


def output_types(program: Any) -> list[Any]:
    node = next(iter(reversed(program.graph.nodes)))
    values = [arg.meta["val"] for arg in node.args[0]]
    return [(v.dtype, tuple(v.shape), v.stride()) for v in values]


def check_equal(ours: Any, theirs: Any) -> None:
    """A fast answer that is wrong is no answer; values are the tests' business."""
    if output_types(ours) != output_types(theirs):
        raise ValueError(f"outputs are {output_types(ours)}, torch's {output_types(theirs)}")


def warm_up() -> None:
    """Each side exports a small model: lazy imports are not what is measured."""
    example = MODELS["vit"]
    model, inputs = example.tiny().eval(), example.tiny_inputs()
    for run in (torch_functional, torch_strict, export):
        run(model, inputs)  # type: ignore[operator]


# ------------------------------------------------------------------------------------------- face


HEAD = (
    f"{'ms':<13}{'ops':>6}{'nodes':>6}"
    + "".join(f"{side:>11}" for side in SIDES)
    + f"{'functional':>13}{'strict':>9}{'ours':>8}{'median':>9}"
    + "\n"
    + f"{'':<80}{'/ ours':>13}{'/ ours':>9}{'/ floor':>8}"
)


def line(row: Row) -> str:
    text = f"{row.model:<13}{row.operators:>6}{row.nodes:>6}"
    text += "".join(f"{row.milliseconds(side):>11.1f}" for side in SIDES)
    speed, strict = row.ratio("functional", "ours"), row.ratio("strict", "ours")
    height = f"{row.ratio('ours', 'floor'):>7.2f}×{row.median_height():>8.2f}×"
    return text + f"{speed:>12.1f}×{strict:>8.1f}×{height}"


def median_speed(rows: list[Row]) -> float:
    return statistics.median(row.ratio("functional", "ours") for row in rows) if rows else 0.0


def missed_bars(rows: list[Row], failures: dict[str, str]) -> list[str]:
    missed = [text for row in rows for text in row.missed()]
    if median_speed(rows) < MEDIAN_BAR:
        missed.insert(0, f"the median {median_speed(rows):.1f}× (bar {MEDIAN_BAR:g}×)")
    return missed + [f"{name} (failed)" for name in failures]


def verdict(rows: list[Row], failures: dict[str, str]) -> str:
    missed = missed_bars(rows, failures)
    return (
        f"functional / ours: median {median_speed(rows):.1f}×\n"
        f"bars: median ≥ {MEDIAN_BAR:g}×, each ≥ {EACH_BAR:g}×, "
        f"within {FLOOR_BAR:g}× of the floor: "
    ) + ("missed by " + ", ".join(missed) if missed else "all held")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.export_speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--dynamic", action="store_true", help="with sizes that vary")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # torch.export's, about its own future
    if options.dynamic:
        return dynamic_speed.run(options.models, options.rounds, options.json)
    rows: list[Row] = []
    failures: dict[str, str] = {}
    say = (lambda text: None) if options.json else (lambda text: print(text, flush=True))
    say(HEAD)
    warm_up()
    for name in options.models:
        try:
            rows.append(measure(name, options.rounds))
            say(line(rows[-1]))
        except Exception as error:  # the other models are measured all the same
            failures[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            say(f"{name:<13}{failures[name]}")
    say(verdict(rows, failures))
    if options.json:
        found = {"median": round(median_speed(rows), 2), "missed": missed_bars(rows, failures)}
        rows_as_dicts = [row.as_dict() for row in rows]
        print(json.dumps({"rows": rows_as_dicts, "failures": failures, **found}, indent=2))
    return 1 if missed_bars(rows, failures) else 0


if __name__ == "__main__":
    sys.exit(main())
