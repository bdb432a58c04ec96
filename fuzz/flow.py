"""Random Python with control flow on data, exported and compared with eager.

    python -m fuzz.flow [START] [END] [-v]

A program is a `forward` with nested `if`, loops, early exits, lists, dictionaries, objects, buffers
and writes in place, most of whose conditions depend on data. It is run on five inputs, so that many
paths are taken. An export is right, or refuses with an error of lostwax's: all else is a failure.
Prints what became of the programs, and the refusals by their text. Exits with 1 if anything was
wrong.
"""

from __future__ import annotations

import linecache
import random
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

import lostwax
from lostwax.errors import LostwaxError


class Box:
    """An object of the user's."""

    def __init__(self, v: Any) -> None:
        self.v = v


_EXPRESSIONS = (
    "x + y", "y * 2", "z - x", "x.cos()", "x + 1", "y - z", "z * 0.5", "l[-1] + x", "b.v + y",
    "d['k'] - x", "self.t + x", "x + n", "x.clone()", "y",
)  # fmt: skip
_TENSORS = ("x", "y", "z", "b.v", "self.t", "l[0]")
_KNOWN = ("n % 2 == 0", "n > 1", "len(l) > 1", "k == 'a'", "flag")
_FIRST = ("z = x * y", "l = [x]", "n = 0", "k = 'a'", "flag = False", "b = Box(y)", "d = {'k': z}")
_WRITES = (".add_(1)", ".mul_(2)", "[0] = 3.0")


class _Writer:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lines: list[str] = []

    def write(self) -> str:
        self._emit(0, "def forward(self, x, y):")
        for each in _FIRST:
            self._emit(1, each)
        for _ in range(self.rng.randint(2, 5)):
            self._statement(3, 1, in_loop=False, on_data=False)
        self._emit(1, "return x, y, z, l, n, b.v, d, self.t, k, flag")
        return "".join(self.lines)

    def _emit(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text + "\n")

    def _pick(self, values: Any) -> str:
        return str(self.rng.choice(values))

    def _value(self) -> str:
        one, other = self._pick(_EXPRESSIONS), self._pick(_EXPRESSIONS)
        r = self.rng.random()
        if r < 0.1:
            return f"{one} if {self._condition()} else {other}"
        if r < 0.12:
            return f"sum([t if t[0] > 0 else {one} for t in (x, y)])"
        if r < 0.14:
            return f"x * max({self._pick(_TENSORS)}.sum(), y[0])"
        if r < 0.16:
            return f"x + ({self._pick(_TENSORS)}.sum() > 0 and y[0] > 0)"
        if r < 0.18:
            return f"x * (not {self._condition()})"
        return self._of_functions(one, other) if r < 0.22 else one

    def _of_functions(self, one: str, other: str) -> str:
        """A value by a function that asks, or that others ask."""
        bound = self._pick(("0", "1", "-2"))
        return self._pick(
            (
                f"(lambda t: t + y if t[0] > {bound} else {one})({other})",
                f"x + sum(1 for t in x if t > {bound}) + len([t for t in y if t > {bound}])",
                f"x + next((t for t in y if t > {bound}), z[0])",
                "x * max(*y, z[0]) - min(x, key=lambda t: -t)",
                "torch.stack(sorted(x))",
                f"{one} + sum(t if t > {bound} else x[0] for t in y)",
                f"torch.stack([*map(lambda t: t if t > {bound} else -t, x)]) + {one}",
            )
        )

    def _condition(self, depth: int = 1) -> str:
        r = self.rng.random()
        if r >= 0.8:
            return self._pick(_KNOWN)
        if r >= 0.65 and depth:
            one, other = self._condition(0), self._condition(0)
            return f"{one} {self._pick(('and', 'or'))} {other}"
        if r >= 0.62:
            return f"-1 < {self._pick(_TENSORS)}.sum() < {self._pick(('1', 'x[0]'))}"
        if r >= 0.59:
            return f"{self._pick(('any', 'all'))}(t[0] > n for t in (x, y, z))"
        if r >= 0.56:
            return self._pick(
                ("torch.equal(x, y)", "x.allclose(z, atol=1)", "torch.is_nonzero(z[0])")
            )
        r *= 1.25
        bound = self._pick(("0", "1", "-2", "3"))
        found = f"{self._pick(_TENSORS)}.sum() {self._pick('<>')} {bound}"
        return f"not {found}" if r > 0.7 else found

    def _block(self, depth: int, indent: int, **around: bool) -> None:
        for _ in range(self.rng.randint(1, 3)):
            self._statement(depth, indent, **around)

    def _statement(self, depth: int, indent: int, in_loop: bool, on_data: bool) -> None:
        around = {"in_loop": in_loop, "on_data": on_data}
        r, value = self.rng.random(), self._value()
        if r < 0.30 or depth <= 0:
            self._emit(indent, f"{self._pick('xyz')} = {value}")
        elif r < 0.34:
            self._emit(indent, f"l[0] = {value}" if on_data else f"l.append({value})")
        elif r < 0.46:
            place = self._pick(("l[0]", "b.v", "d['k']", "self.t"))
            self._emit(indent, f"{place} = {value}")
        elif r < 0.53:
            self._emit(indent, self._pick(("n += 1", "k = 'a'", "k = 'b'", "flag = not flag")))
        elif r < 0.57:
            self._emit(indent, f"{self._pick('xyz')} = {self._pick('xyz')}.clone()")
            self._emit(indent, f"{self._pick('xyz')}{self._pick(_WRITES)}")
        elif r < 0.80:
            self._emit(indent, f"if {self._condition()}:")
            self._block(depth - 1, indent + 1, **around)
            self._maybe_else(0.5, depth, indent, **around)
        elif r < 0.86:
            self._emit(indent, f"for i in range({self.rng.randint(1, 3)}):")
            self._block(depth - 1, indent + 1, in_loop=True, on_data=on_data)
            self._maybe_else(0.3, depth, indent, **around)
        elif r < 0.89:
            self._loop_on_data(depth, indent)
        elif r < 0.895:
            self._emit(indent, "for t in (u if u > 0 else y[0] for u in x):")
            self._emit(indent + 1, f"x = {value} + t")
        elif r < 0.90:
            self._emit(indent, "match n:")
            for case in (f"case 0 if {self._condition()}", f"case k0 if {self._condition()}"):
                self._emit(indent + 1, f"{case}:")
                self._block(depth - 1, indent + 2, **around)
        elif r < 0.91:
            self._emit(indent, "with torch.no_grad():")
            self._block(depth - 1, indent + 1, **around)
        elif r < 0.95:
            self._emit(indent, f"return {value}, l, n")
        elif r < 0.98 and in_loop:
            self._emit(indent, self._pick(("break", "continue")))
        else:
            self._emit(indent, "x, y = y, x")

    def _maybe_else(self, share: float, depth: int, indent: int, **around: bool) -> None:
        if self.rng.random() < share:
            self._emit(indent, "else:")
            self._block(depth - 1, indent + 1, **around)

    def _loop_on_data(self, depth: int, indent: int) -> None:
        own = f"w{depth}"
        self._emit(indent, f"{own} = torch.zeros(())")
        self._emit(indent, f"while {own} < {self._pick(('3', 'x.sum()'))}:")
        self._emit(indent + 1, f"{own} = {own} + 1")
        if self.rng.random() < 0.5:
            self._emit(indent + 1, f"if {own} > 6: break")
        self._block(depth - 1, indent + 1, in_loop=True, on_data=True)


class Base(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("t", torch.tensor([0.5, -1.0]))


def write_program(seed: int) -> str:
    return _Writer(seed).write()


def make_class(source: str, seed: int) -> type[Base]:
    file = f"/generated/flow_{seed}.py"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    names: dict[str, Any] = {"torch": torch, "Box": Box}
    exec(compile(source, file, "exec"), names)
    return type("Generated", (Base,), {"forward": names["forward"]})


_INPUTS = (
    ([1.0, 2.0], [-1.0, 0.5]),
    ([-1.0, -2.0], [1.0, 1.0]),
    ([3.0, 0.0], [2.0, 2.0]),
    ([0.0, 0.0], [0.0, 0.0]),
    ([-0.5, 0.1], [-3.0, -3.0]),
)


def _inputs() -> list[tuple[torch.Tensor, ...]]:
    return [tuple(map(torch.tensor, each)) for each in _INPUTS]


class Slow(Exception):
    """It takes too long."""


@contextmanager
def limit(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Slow

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _run(module: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[str, Any]:
    try:
        with limit(5):
            return "ran", (module(*inputs), module.get_buffer("t").clone())
    except Slow:
        return "slow", None
    except Exception as error:
        return "raised", f"{type(error).__name__}: {error}"


def judge(seed: int) -> tuple[str, str]:
    """What becomes of a program: "right", "refused", "skipped" or "wrong"; and a text."""
    cls = make_class(write_program(seed), seed)
    wanted = [_run(cls(), each) for each in _inputs()]
    runs = [i for i, (kind, _) in enumerate(wanted) if kind == "ran"]
    if not runs or any(kind == "slow" for kind, _ in wanted):
        return "skipped", ""
    try:
        with limit(60):
            program = lostwax.export(cls(), _inputs()[runs[0]])
    except Slow:
        return "wrong", "the export does not end"
    except LostwaxError as error:
        return "refused", str(error).partition("\n")[0]
    except Exception as error:
        return "wrong", f"the export raises {type(error).__name__}: {error}"
    for i in runs:
        kind, found = _run(program.module(), _inputs()[i])
        if kind != "ran" or not is_same(wanted[i][1], found):
            return "wrong", f"input {i}: {found}, eager: {wanted[i][1]}"
    return "right", ""


def is_same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        is_like = a.dtype == b.dtype and a.shape == b.shape
        return is_like and torch.allclose(a, b, equal_nan=True)
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(is_same(a[k], b[k]) for k in a)
    return bool(a == b)


def report(judge: Any, write: Any, arguments: list[str]) -> int:
    """Judge programs, by their numbers, and print what became of them."""
    numbers = [int(each) for each in arguments if each.isdigit()]
    start, end = (*numbers, 200)[:2] if len(numbers) > 1 else (0, (*numbers, 200)[0])
    outcomes, reasons = Counter[str](), Counter[str]()
    for seed in range(start, end):
        kind, text = judge(seed)
        outcomes[kind] += 1
        if kind == "refused":
            reasons[text] += 1
        if kind not in ("refused", "right", "skipped") and (kind == "wrong" or "-v" in arguments):
            print(f"{seed}: {kind}: {text}", flush=True)
            if "-v" in arguments:
                print(write(seed))
    print(dict(outcomes))
    for text, count in reasons.most_common(30):
        print(f"{count:6} {text}")
    return 1 if outcomes["wrong"] else 0


def main() -> int:
    warnings.simplefilter("ignore")
    return report(judge, write_program, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
