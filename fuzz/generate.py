"""The program of a kind and a seed.

    masks   several sizes that depend on data, of temporaries and of masks that are written
    state   modules that keep something from call to call, and are changed between calls
    calls   arguments that are one tensor, overlap, or lie in memory otherwise than the example's
    names   arguments and attributes called like something else
    ways    modules whose Python is changed between calls, for `lostwax.capture`
    mixed   all of it at once

Must not know of lostwax.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from torch import Tensor

from fuzz import statements as tables
from fuzz.grow import Growing
from fuzz.program import Change, Program, is_name


@dataclass(frozen=True)
class Kind:
    """How often what is in a program."""

    lines: tuple[tuple[str, ...], ...]
    """Tables of statements; those that occur several times are more likely."""
    count: tuple[int, int] = (2, 8)
    """So many statements, from and to."""
    state: int = 0
    """At most so many pieces of state."""
    dynamic: float = 0.3
    shared: float = 0.1
    layouts: float = 0.1
    changes: float = 0.0
    python_changes: float = 0.0
    names: float = 0.05


_PLAIN = (tables.COMPUTE, tables.COMPUTE, tables.VIEWS, tables.WRITES)
KINDS = {
    "masks": Kind(
        (tables.COMPUTE, tables.WRITES, tables.GARBAGE, *(tables.MASKS,) * 3,
         *(tables.SIZES,) * 5, *(tables.SIZED,) * 6),
        count=(4, 14), state=1,
    ),
    "state": Kind((*_PLAIN, tables.VIEWS, *(tables.KEEPING,) * 6), state=4, changes=0.5),
    "calls": Kind(
        (*_PLAIN, tables.VIEWS, tables.WRITES, tables.ASKED, tables.KEEPING),
        state=1, dynamic=0.4, shared=0.5, layouts=0.5,
    ),
    "names": Kind((*_PLAIN, tables.KEEPING, tables.SIZES), state=3, dynamic=0.5, names=1.0),
    "ways": Kind(
        (*_PLAIN, *(tables.KEEPING,) * 4, tables.ASKED),
        state=4, changes=0.3, python_changes=1.0, layouts=0.2,
    ),
    "mixed": Kind(
        (*_PLAIN, tables.MASKS, *(tables.SIZES,) * 2, *(tables.SIZED,) * 2, *(tables.KEEPING,) * 3,
         tables.ASKED, tables.GARBAGE),
        count=(3, 12), state=3, dynamic=0.4, shared=0.2, layouts=0.2, changes=0.3,
        python_changes=0.3, names=0.2,
    ),
}  # fmt: skip
SIZES = (4, 4, 6, 2, 5, 3, 1, 7, 0)


def generate(kind: str, seed: int) -> Program:
    """The program of a seed."""
    growing = Growing(Program(seed, kind))
    rng, program, how = growing.rng, growing.program, KINDS[kind]
    program.calls = rng.randint(3, 5)
    _make_state(growing, how)
    _make_inputs(growing, how)
    for _ in range(rng.randint(*how.count)):
        line = growing.try_one(rng.choice(how.lines), 10)
        if line is not None:
            program.body.append(line)
    _make_results(growing)
    _make_changes(growing, how)
    if rng.random() < how.names:
        _make_names(program, rng)
    return program


def _make_state(growing: Growing, how: Kind) -> None:
    rng, program = growing.rng, growing.program
    program.as_function = how.state == 0 or rng.random() < 0.1
    if program.as_function:
        return
    for i in range(rng.randint(min(1, how.state - 1), how.state)):
        table = tables.TIED if i and rng.random() < 0.3 else tables.STATE
        line = growing.try_one(table)
        if line is not None:
            program.init.append(line)
    if rng.random() < 0.1:
        program.init.append("self.eval()")


def _make_inputs(growing: Growing, how: Kind) -> None:
    rng, program = growing.rng, growing.program
    varies = rng.random() < how.dynamic
    sizes = [4, *(rng.choice(SIZES) if varies else 4 for _ in range(program.calls - 1))]
    program.inputs.append(f"n = {tuple(sizes)}[call]")
    growing.run(f"n = {tuple(sizes)}[0]")
    for i in range(rng.randint(1, 3)):
        table = tables.SHARED if i and rng.random() < how.shared else tables.INPUTS
        y = rng.choice(program.arguments) if program.arguments else ""
        for _ in range(4):
            text = (
                rng.choice(table if i else tables.INPUTS[:4])
                .replace("{x}", f"x{i}")
                .replace("{y}", y)
            )
            if growing.run(text) is not None:
                program.arguments.append(f"x{i}")
                program.inputs.append(text)
                break
    if not program.arguments:
        program.arguments.append("x0")
        program.inputs.append(growing.run("x0 = torch.randn(n, 3)") or "")
    if varies:
        for name in program.arguments:
            value = growing.value(name)
            if isinstance(value, Tensor) and 4 in value.shape:
                program.dynamic[name] = [d for d, s in enumerate(value.shape) if s == 4]
    for name in program.arguments:
        if rng.random() < how.layouts:
            _lay_out(growing, name)
    last = program.arguments[-1]
    if rng.random() < 0.2:
        program.by_name.append(last)
    growing.scope.pop("n", None)


def _lay_out(growing: Growing, name: str) -> None:
    """The argument in another layout: in all calls, in the example, or in one that comes after."""
    rng, program = growing.rng, growing.program
    text = rng.choice(tables.LAYOUTS).replace("{x}", name)
    when = rng.choice(
        ("", "if call == 0: ", "", *(f"if call == {c}: " for c in range(1, program.calls)))
    )
    if growing.run(f"if False: {text}" if "==" in when and "0" not in when else text) is not None:
        program.inputs.append(f"{when}{text}")


def _make_results(growing: Growing) -> None:
    rng, program = growing.rng, growing.program
    named = [(n, v) for n, v in growing.named() if isinstance(v, (Tensor, int, float))]
    local = [n for n, _ in named if n[0] == "t"]
    names = [n for n, v in named if isinstance(v, Tensor) or n[0] == "t"]
    chosen = local[-rng.randint(2, 8) :]
    chosen += [rng.choice(names) for _ in range(rng.randint(0 if chosen else 1, 3))]
    for i, name in enumerate(chosen):
        kind = rng.random()
        if kind < 0.15 and isinstance(growing.value(name), Tensor):
            chosen[i] = rng.choice(
                (f"{name}.view(-1)", f"{name}[:1]", f"{name}.detach()", f"[{name}]", f"{name}.mT",
                 f"{name}.reshape(-1)", f"{name}.contiguous()", f"({name}, {name})"),
            )  # fmt: skip
            if growing.run(f"_ = {chosen[i]}") is None:
                chosen[i] = name
    rng.shuffle(chosen)
    program.results = chosen
    single = "single" if len(chosen) == 1 else "tuple"
    program.form = rng.choice(("tuple", "tuple", "list", "dict", single))


def _make_changes(growing: Growing, how: Kind) -> None:
    rng, program = growing.rng, growing.program
    if not program.as_function and program.init and rng.random() < how.changes:
        for _ in range(rng.randint(1, 2)):
            text = growing.try_one(tables.CHANGES, 2)
            if text is not None:
                program.changes.append(Change(rng.randint(1, program.calls - 1), text, False))
    if rng.random() < how.python_changes:
        for _ in range(rng.randint(1, 2)):
            text = growing.try_one(tables.PYTHON_CHANGES, 10)
            if text is not None:
                text = text.replace("self.", "module.")
                program.changes.append(Change(rng.randint(1, program.calls - 1), text, True))


def _make_names(program: Program, rng: random.Random) -> None:
    """Other names for arguments, and for attributes."""
    held = sorted({f"h{i}" for i in range(1, 9) if any(f"h{i}" in s for s in program.init)})
    names = [n for n in tables.NAMES if is_name(n)]
    for own in (program.arguments, held):
        chosen = rng.sample(names, len(own))
        # What comes to a function as `self` would be its first argument.
        program.names |= {a: c for a, c in zip(own, chosen, strict=True) if rng.random() < 0.8}
