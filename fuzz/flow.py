"""Random Python with control flow on data, exported and compared with eager.

    python -m fuzz.flow [--count 200] [--seed 0] [--jobs 1] [--minutes 60] [--kinds plain ties ...]
                        [--show] [--minimize]

What programs are made of stands in `flow_programs.py`. Each is called on several inputs in a row,
so that many paths are taken and what one call leaves is found by the next; compared are results,
buffers, what became of the arguments, and gradients (those of the values that the forward has
read, also where eager reads what was written since past autograd: docs/export.md). An export is
right, or refuses with an error of lostwax's: all else is a failure. "checked": the program refuses
a call in words. "told": the export has warned that the program does not keep what the module keeps,
and each first call is right. Exits with 1 if anything was wrong.
"""

from __future__ import annotations

import ast
import contextlib
import decimal
import enum
import fractions
import functools
import io
import itertools
import json
import linecache
import math
import operator
import random
import signal
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops import map as map_rows

import lostwax
from fuzz import flow_programs, running
from fuzz.flow_programs import KINDS, choose_kind
from fuzz.shrink import shrink_source
from lostwax.errors import LostwaxError

# --------------------------------------------------------------------- what programs are made with


class Box:
    """An object of the user's."""

    def __init__(self, v: Any) -> None:
        self.v = v


@dataclass
class Pair:
    one: Any
    other: Any


class Mode(enum.IntEnum):
    IDLE = 0
    UP = 1
    DOWN = 2

    def is_moving(self) -> bool:
        return self is not Mode.IDLE


class Flags(enum.IntFlag):
    A = 1
    B = 2


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Count(int):
    def twice(self) -> int:
        return self * 2


class Base(nn.Module):
    """A module of the user's, without its `forward`."""

    has_part = False
    """Does it hold views of its state?"""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.5, 2.0]))
        self.register_buffer("t", torch.tensor([0.5, -1.0]))
        self.register_buffer("u", torch.tensor([1.0, 2.0]))
        self.register_buffer("best", torch.zeros(2))
        self.register_buffer("score", torch.zeros(()))
        self.register_buffer("n", torch.zeros(()))
        self.count, self.steps, self.is_warm = 0, [1], False
        self.mode, self.last = Mode.IDLE, None
        if self.has_part:
            self.part, self.piece = self.w.data[:1], self.u[:1]

    def is_true(self, v: Any) -> bool:
        return v is True

    def up(self, x: Tensor) -> Tensor:
        return x + 1

    def down(self, x: Tensor) -> Tensor:
        return x - 1

    def idle(self, x: Tensor) -> Tensor:
        return x * 1

    def scaled(self, x: Tensor) -> Tensor:
        return x * self.w

    def count_and(self, x: Tensor) -> Tensor:
        self.n += 1
        return x * self.n

    def keep(self, x: Tensor) -> None:
        if x.sum() > self.score:
            self.score = x.sum()
            self.best = x


def _plain_cond(asked: Any, one: Any, other: Any, operands: Any = ()) -> Any:
    return one(*operands) if asked else other(*operands)


def _plain_while_loop(condition: Any, body: Any, carried: Any) -> Any:
    while condition(*carried):
        carried = body(*carried)
    return carried


def _plain_scan(combine: Any, carried: Any, rows: Tensor) -> Any:
    found = []
    for row in rows:
        carried, out = combine(carried, row)
        found.append(out)
    return carried, torch.stack(found)


def _plain_map(function: Any, rows: Tensor, *others: Any) -> Any:
    return torch.stack([function(row, *others) for row in rows])


_KNOWN = {
    **{each.__name__: each for each in (Box, Pair, Mode, Flags, Color, Count)},
    **{
        each.__name__: each
        for each in (contextlib, functools, itertools, json, math, operator, statistics)
    },
    "torch": torch,
    "np": np,
    "Fraction": fractions.Fraction,
    "Decimal": decimal.Decimal,
}
OPERATORS = {
    "cond": torch.cond,
    "while_loop": while_loop,
    "scan": scan,
    "map_rows": map_rows,
    "accumulate": partial(associative_scan, dim=0, combine_mode="generic"),
}
PLAIN = {
    "cond": _plain_cond,
    "while_loop": _plain_while_loop,
    "scan": _plain_scan,
    "map_rows": _plain_map,
    "accumulate": lambda combine, rows: torch.stack([*itertools.accumulate(rows, combine)]),
}
"""What torch's operators compute, in Python: eager compiles them at each call, which takes long."""


def make_class(source: str, name: Any, known: dict[str, Any] | None = None) -> type[Base]:
    """A module whose forward is the function of a source."""
    file = f"/generated/flow_{name}.py"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    names: dict[str, Any] = {**_KNOWN, **(known or {})}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # `n is 1`
        exec(compile(source, file, "exec"), names)
    own = {"forward": names["forward"], "has_part": "self.p" in source}
    return type("Generated", (Base,), own)


# ------------------------------------------------------------------------------------------- calls

INPUTS = (
    ([1.0, 2.0], [-1.0, 0.5]),
    ([-1.0, -2.0], [1.0, 1.0]),
    ([3.0, 0.0], [2.0, 2.0]),
    ([0.0, 0.0], [0.0, 0.0]),
    ([-0.5, 0.1], [-3.0, -3.0]),
)


class Slow(Exception):
    """It takes too long."""


@contextmanager
def limit(seconds: int) -> Iterator[None]:
    """Inside, no more of the processor's time is spent than that, however busy the machine is."""

    def stop(*_: Any) -> None:
        raise Slow

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def make_cache() -> dict[str, Tensor]:
    at = torch.zeros((), dtype=torch.int64)
    return {"k": torch.zeros(2, 4), "v": torch.tensor([1.0, -1.0]), "at": at}


def make_call(which: int, cache: Any, with_gradients: bool) -> tuple[list[Tensor], list[Any]]:
    """Leaves, and the arguments that are made of them, so that these may be written to."""
    leaves = [torch.tensor(each, requires_grad=with_gradients) for each in INPUTS[which]]
    arguments: list[Any] = [each.clone() for each in leaves]
    return leaves, arguments if cache is None else [*arguments, cache]


class Ungraded(str):
    """Why there are no gradients."""


@dataclass
class Told:
    """What one call was seen to do."""

    kind: str
    seen: Any

    def is_same(self, other: Told) -> bool:
        return self.kind == other.kind and (self.kind != "ran" or is_same(self.seen, other.seen))


def _call(module: Any, leaves: list[Tensor], arguments: list[Any]) -> Told:
    is_truth = isinstance(module, Base)
    saving = torch.autograd.graph.saved_tensors_hooks(clone, lambda saved: saved)
    try:
        with limit(5):
            with saving if is_truth else contextlib.nullcontext():
                result = module(*arguments)
            changed = pytree.tree_map_only(Tensor, clone, (result, arguments))
            buffers = {
                name: clone(each) for name, each in module.named_buffers(remove_duplicate=False)
            }
            gradients = differentiate(result, [*leaves, *module.parameters()])
    except Slow:
        return Told("slow", None)
    except LostwaxError as error:
        return Told("refused", str(error).partition("\n")[0])
    except BaseException as error:  # programs raise KeyboardInterrupt, too
        return Told("raised", f"{type(error).__name__}: {error}")
    seen = {"results": changed[0], "arguments": changed[1], "buffers": buffers}
    return Told("ran", seen | {"gradients": gradients})


def clone(value: Tensor) -> Tensor:
    return value.detach().clone()


def differentiate(result: Any, leaves: list[Tensor]) -> Any:
    """Gradients of what is returned, by all that it may depend on. (Tensors count by their places:
    of one that depends on nothing torch's `cond` says that it does.)"""
    wanted = [each for each in leaves if each.requires_grad]
    tensors = [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor)]
    found = [(i, t) for i, t in enumerate(tensors, 1) if t.requires_grad]
    if not found or not wanted:
        return [torch.zeros_like(each) for each in wanted]
    loss = sum((t.flatten() * torch.arange(1, t.numel() + 1)).sum() * i for i, t in found)
    try:
        given = torch.autograd.grad(loss, wanted, retain_graph=True, allow_unused=True)  # type: ignore[arg-type]
    except RuntimeError as error:
        return Ungraded(str(error))
    pairs = zip(given, wanted, strict=True)
    return [torch.zeros_like(leaf) if each is None else each for each, leaf in pairs]


def _run(make: Callable[[], Any], order: list[int], how: tuple[bool, bool]) -> list[Told]:
    """Calls in a row. After one that raises, what there was before is forgotten."""
    has_cache, with_gradients = how
    module, found = None, []
    for which in order:
        if module is None:
            module, cache = make(), make_cache() if has_cache else None
        found.append(_call(module, *make_call(which, cache, with_gradients)))
        if found[-1].kind != "ran":
            module = None
        if found[-1].kind == "slow":
            break
    return found


# ------------------------------------------------------------------------------------------- judge


def judge(seed: int, kind: str | None = None) -> tuple[str, str]:
    """What becomes of a program: "right", "refused", "checked", "skipped", "told" or "wrong"; and
    a text."""
    kind = kind or choose_kind(seed)
    return judge_source(flow_programs.write_program(seed, kind), seed, kind)


def judge_source(source: str, seed: int, kind: str) -> tuple[str, str]:
    rng = random.Random(seed)
    order = [*range(len(INPUTS)), *rng.sample(range(len(INPUTS)), 2)]
    how = (kind == "cache", kind == "operators" or rng.random() < 0.5)
    truth = make_class(source, f"{kind}_{seed}", PLAIN)
    wanted = _run(truth, order, how)
    runs = [i for i, told in enumerate(wanted) if told.kind == "ran"]
    if not runs or wanted[-1].kind == "slow":
        return "skipped", wanted[-1].seen or "slow"
    _, example = make_call(order[runs[0]], make_cache() if how[0] else None, how[1])
    module = make_class(source, f"{kind}_{seed}", OPERATORS)()
    try:
        with limit(60), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            program = lostwax.export(module, tuple(example), strict=rng.random() < 0.05)
    except Slow:
        return "wrong", "the export does not end"
    except LostwaxError as error:
        return "refused", str(error).partition("\n")[0]
    except BaseException as error:
        return "wrong", f"the export raises {type(error).__name__}: {error}"
    if rng.random() < 0.1 and kind != "enums":  # files have the numbers of members alone
        program = _save_and_load(program)
    found = _run(program.module, order, how)
    text = _compare(wanted, found, order)
    checked = [each.seen for each in found if each.kind == "refused"]
    if checked and not text:
        return "checked", checked[0]
    warned = [str(each.message) for each in caught if "the program" in str(each.message)]
    if not text or not warned:
        return ("wrong", text) if text else ("right", "")
    # What is not kept is not there in the second call. The first has to be right.
    apart = [[run[0] for run in (_run(make, [i], how) for i in range(len(INPUTS)))]
             for make in (truth, program.module)]  # fmt: skip
    for each in (told for tolds in apart for told in tolds if told.kind == "ran"):
        del each.seen["arguments"]
    text = _compare(*apart, [*range(len(INPUTS))])
    return ("wrong", text) if text else ("told", warned[0])


def _compare(wanted: list[Told], found: list[Told], order: list[int]) -> str:
    """What is different; "" if nothing is."""
    for i, (want, got) in enumerate(zip(wanted, found, strict=False)):
        if want.kind == "ran" and got.kind == "refused":
            break
        if want.kind == "ran" and not want.is_same(got):
            return f"call {i}, input {order[i]}: {tell_difference(want, got)}"
        if want.kind != "ran" and got.kind == "ran":
            break  # it does not raise, and has another state from here on
    return ""


def _save_and_load(program: Any) -> Any:
    file = io.BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    return lostwax.load(file)


def tell_difference(want: Told, got: Told) -> str:
    if got.kind != "ran":
        return f"{got.kind}: {got.seen}, eager: {want.seen['results']}"
    part = next(each for each in want.seen if not is_same(want.seen[each], got.seen[each]))
    return f"{part}: {got.seen[part]}, eager: {want.seen[part]}"


def is_same(a: Any, b: Any) -> bool:
    """Is the second what eager has, which is the first?"""
    if isinstance(a, Ungraded):
        return True
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        is_like = a.dtype == b.dtype and a.shape == b.shape
        return is_like and torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True)
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(is_same(a[k], b[k]) for k in a)
    return bool(a == b) or (isinstance(a, float) and math.isclose(a, b, rel_tol=1e-5)) or a != a


def shrink(seed: int, kind: str) -> str:
    """A wrong program, made smaller."""
    source = flow_programs.write_program(seed, kind)
    sought = judge_source(source, seed, kind)[1].partition(":")[0].startswith("the export")

    def fails(each: str) -> bool:
        try:
            outcome, text = judge_source(each, seed, kind)
        except Exception:  # no program any more
            return False
        return outcome == "wrong" and text.startswith("the export") == sought

    return shrink_source(ast.unparse(ast.parse(source)), fails)


def main() -> int:
    return running.main(judge, flow_programs.write_program, [*KINDS], shrink)


if __name__ == "__main__":
    sys.exit(main())
