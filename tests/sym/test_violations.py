"""Declared dimensions that a trace does not hold for: which one, why, where it goes wrong, and a
fix that, pasted into the declaration, removes the violation."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from lostwax import sym
from lostwax.sym.text.parse import parse


@dataclass
class Program:
    """Something to trace: declared dims (lo, hi, example), and what it asks of its sizes."""

    trace: Callable[..., Any]
    dims: dict[str, tuple[int, int | None, int]]
    constraints: list[str] = field(default_factory=list)

    def run(self) -> sym.ShapeEnv:
        env = sym.ShapeEnv()
        sizes = {
            name: env.symbol(name, hint=hint, lo=lo, hi=hi, source=f"x.shape[{i}]", declared=name)
            for i, (name, (lo, hi, hint)) in enumerate(self.dims.items())
        }
        self.ask(env, sizes)
        return env

    def ask(self, env: sym.ShapeEnv, sizes: dict[str, Any]) -> None:
        for text in self.constraints:
            env.learn(parse(text, sizes))
        self.trace(*sizes.values())

    def run_with(self, fix: str) -> sym.ShapeEnv:
        """Traced again, with the fix pasted after the declarations it names."""
        if fix.startswith("constraints="):
            return Program(self.trace, self.dims, eval(fix.removeprefix("constraints="))).run()
        for guess in range(
            100
        ):  # the example's value of a new dim follows from that of the old one
            env = sym.ShapeEnv()
            sizes = self.declared(env, fix, guess)
            if all(_hint(sizes[name]) == hint for name, (_, _, hint) in self.dims.items()):
                self.ask(env, sizes)
                return env
        raise AssertionError(f"no example fits {fix!r}")

    def declared(self, env: sym.ShapeEnv, fix: str, guess: int) -> dict[str, Any]:
        def dim(name, min=0, max=None):
            hint = self.dims[name][2] if name in self.dims else clamp(guess, min, max)
            return env.symbol(name, hint=hint, lo=min, hi=max, declared=name)

        redeclared = {line.split(" = ")[0] for line in fix.splitlines()}
        scope = {n: dim(n, lo, hi) for n, (lo, hi, _) in self.dims.items() if n not in redeclared}
        exec(fix, {"Dim": dim}, scope)
        return {name: scope[name] for name in self.dims}


def clamp(n, lo, hi):
    return max(n, lo) if hi is None else min(max(n, lo), hi)


def _hint(size):
    return size if isinstance(size, int) else size.hint


def even(n):
    return sym.eq(n % 2, 0)


CASES = {
    "constant, int()": (
        Program(sym.specialize, {"b": (0, 64, 4)}),
        ["b = 4"],
    ),
    "constant, branch": (
        Program(lambda b: sym.decide(sym.eq(b, 4)), {"b": (0, None, 4)}),
        ["b = 4"],
    ),
    "not a constant": (
        Program(lambda b: sym.decide(sym.eq(b, 1)), {"b": (0, 64, 4)}),
        ['constraints=["b != 1"]'],
    ),
    "minimum": (
        Program(lambda b: sym.decide(b >= 4), {"b": (0, None, 8)}),
        ["b = Dim('b', min=4)"],
    ),
    "maximum": (
        Program(lambda b: sym.decide(b > 20), {"b": (2, 64, 8)}),
        ["b = Dim('b', min=2, max=20)"],
    ),
    "minimum and maximum": (
        Program(lambda b: (sym.decide(b > 20), sym.expect(b >= 3)), {"b": (0, 64, 8)}),
        ["b = Dim('b', min=3, max=20)"] * 2,
    ),
    "count of a loop": (
        Program(lambda b: sym.specialize(b // 4), {"b": (0, 64, 10)}),
        ["b = Dim('b', min=8, max=11)"],
    ),
    "not zero": (
        Program(lambda b: 100 // b, {"b": (0, 64, 4)}),
        ["b = Dim('b', min=1, max=64)"],
    ),
    "divisible": (
        Program(lambda b: sym.decide(sym.eq(b % 8, 0)), {"b": (0, None, 16)}),
        ["_b = Dim('_b', min=0)\nb = 8*_b"],
    ),
    "divisible with a rest": (
        Program(lambda b: sym.decide(sym.eq(b % 8, 3)), {"b": (0, 64, 11)}),
        ["_b = Dim('_b', min=0, max=7)\nb = 8*_b + 3"],
    ),
    "divisible and not small": (
        Program(lambda b: (sym.decide(even(b)), sym.decide(b >= 15)), {"b": (0, 64, 24)}),
        ["_b = Dim('_b', min=8, max=32)\nb = 2*_b"] * 2,
    ),
    "equal": (
        Program(lambda a, b: sym.decide(sym.eq(a, b)), {"a": (0, 64, 4), "b": (0, 64, 4)}),
        ["b = a"],
    ),
    "derived": (
        Program(lambda a, b: sym.decide(sym.eq(2 * a, b)), {"a": (0, 32, 4), "b": (0, 64, 8)}),
        ["b = 2*a"],
    ),
    "derived but for the end of the range": (
        Program(
            lambda a, b: sym.expect(sym.eq(a + 1, sym.maximum(1, b))),
            {"a": (0, None, 4), "b": (0, None, 5)},
        ),
        ["b = a + 1"],
    ),
    "sum": (
        Program(lambda a, b: sym.expect(sym.eq(a + b, 12)), {"a": (0, 64, 4), "b": (0, 64, 8)}),
        ['constraints=["a + b == 12"]'],
    ),
    "ordered": (
        Program(lambda a, b: sym.decide(a <= b), {"a": (0, 64, 4), "b": (0, 64, 8)}),
        ['constraints=["a <= b"]'],
    ),
    "product": (
        Program(lambda a, b: sym.decide(even(a * b)), {"a": (0, 64, 3), "b": (0, 64, 8)}),
        None,
    ),
    "nothing asked": (
        Program(lambda a: sym.decide(a >= 0), {"a": (0, 64, 3)}),
        [],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_fix_is_what_one_would_write(name):
    program, fixes = CASES[name]
    if fixes is not None:
        assert [v.fix for v in program.run().violations()] == fixes


@pytest.mark.parametrize("name", CASES)
def test_the_fix_removes_the_violation(name):
    program, _ = CASES[name]
    for violation in program.run().violations():
        left = program.run_with(violation.fix).violations()
        assert [str(v.guard.cond) for v in left] == []


@pytest.mark.parametrize("name", CASES)
def test_the_counterexample_is_one(name):
    """It lies in the declared range, and with the other sizes of the example the guard fails."""
    program, _ = CASES[name]
    for violation in program.run().violations():
        lo, hi, _ = program.dims[violation.dim]
        size = violation.counterexample
        assert size is not None
        assert lo <= size <= (size if hi is None else hi)
        values = {
            s: size if s.name == violation.dim else s.hint for s in violation.guard.cond.symbols()
        }
        assert not sym.evaluate(violation.guard.cond, values)


@pytest.mark.parametrize("name", CASES)
def test_inputs_that_the_fix_admits_satisfy_the_guards(name):
    """The fix, read as a statement about the old dims, never admits a size outside their ranges."""
    program, _ = CASES[name]
    env = program.run()
    symbols = {s.name: s for s in env.ranges()}
    for violation in env.violations():
        if violation.fix.startswith("constraints="):
            continue
        fixed = sym.ShapeEnv()
        sizes = program.declared(fixed, violation.fix, 3)
        free = sorted(
            {s for e in sizes.values() if not isinstance(e, int) for s in e.symbols()}, key=str
        )
        for values in itertools.product(range(70), repeat=len(free)):
            at = dict(zip(free, values, strict=True))
            if not all(s.lo <= n and (s.hi is None or n <= s.hi) for s, n in at.items()):
                continue
            old = {symbols[name]: sym.evaluate(e, at) for name, e in sizes.items()}
            for name, (lo, hi, _) in program.dims.items():
                n = old[symbols[name]]
                assert lo <= n <= (n if hi is None else hi), (violation.fix, name, n)
            assert sym.evaluate(violation.guard.cond, old), (violation.fix, old)


def test_a_violation_tells_the_whole_story():
    program = Program(lambda b: sym.decide(sym.eq(b % 8, 0)), {"b": (0, 64, 16)})
    (violation,) = program.run().violations()
    text = str(violation)
    assert violation.dim == "b"
    assert "x.shape[0] % 8 == 0" in text
    assert str(violation.counterexample) in text.splitlines()[0]
    assert "test_violations.py:" in text
    assert "sym.decide(sym.eq(b % 8, 0))" in text
    assert "x.shape[0] = 16" in text
    assert "b = 8*_b" in text


def test_two_residues_are_one_fix():
    program = Program(
        lambda b: (sym.decide(sym.eq(b % 4, 0)), sym.decide(sym.eq(b % 6, 0))), {"b": (0, 64, 24)}
    )
    fixes = {v.fix for v in program.run().violations()}
    assert fixes == {"_b = Dim('_b', min=0, max=5)\nb = 12*_b"}


@pytest.mark.parametrize("shift", [-3, 0, 2])
def test_an_equality_keeps_both_ranges(shift):
    dims = {"a": (0, 30, 10), "b": (0, 64, 10 + shift)}
    program = Program(lambda a, b: sym.decide(sym.eq(a + shift, b)), dims)
    (violation,) = program.run().violations()
    scope = program.declared(sym.ShapeEnv(), violation.fix, 3)
    env = next(e.env for e in scope.values() if not isinstance(e, int))
    for name, (lo, hi, _) in dims.items():
        low, high = env.bounds(scope[name])
        assert lo <= low <= high <= hi


def test_data_and_undeclared_sizes_violate_nothing():
    env = sym.ShapeEnv()
    u, s = env.unbacked(lo=0), env.symbol(hint=4)
    sym.expect(u >= 4)
    sym.decide(s >= 2)
    assert env.violations() == []
