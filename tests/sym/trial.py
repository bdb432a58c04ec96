"""One random conversation with a ShapeEnv, each answer checked against all models over small
integers.

A *model* is an assignment of the symbols within their ranges; *alive* are those that every guard
admits. The engine is right when it says of an expression what all alive models say, and when its
guards leave only models for which its answers hold. `Tally` counts questions, and how many of those
that brute force decides the engine decides too."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lostwax import sym
from lostwax.errors import ContradictionError, DataDependentError
from tests.sym.trees import Random, Tree, build, evaluate, value


@dataclass
class Tally:
    questions: int = 0
    determined: int = 0  # conditions that are the same in all alive models
    decided: int = 0  # of those, answered by known()
    admitted: int = 0  # models that exact guards would admit
    lost: int = 0  # of those, refused by a guard that says more than it must
    undecided: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        return self.decided / max(1, self.determined)

    def __str__(self) -> str:
        return (
            f"{self.questions} questions, {self.determined} determined, {self.share:.1%} of them "
            f"decided; {self.lost / max(1, self.admitted):.2%} of the models lost to guards"
        )


class Stop(Exception):
    """No model agrees with the example any more: the rest of the conversation would mean
    nothing."""


@dataclass(frozen=True)
class Spec:
    """A symbol to be: its range, and the example's value or None for an unbacked one.

    The engine knows no upper bound of an `open` symbol: there it must prove, it cannot try all.
    Models up to `hi` can then refute an answer, but not determine one.
    """

    lo: int
    hi: int
    hint: int | None
    open: bool = False


class Trial:
    """`perform` asks one question; names of symbols are s0, u1, s2, ...: unbacked ones start with
    u."""

    def __init__(self, specs: list[Spec], tally: Tally) -> None:
        self.tally = tally
        self.env = sym.ShapeEnv()
        self.log: list[Any] = list(specs)
        self.hints = [spec.hint for spec in specs]
        self.open = any(spec.open for spec in specs)
        self.names = {
            name: self.symbol(name, s) for name, s in zip(names(specs), specs, strict=True)
        }
        symbols = [next(iter(e.symbols())) for e in self.names.values()]
        boxes = [range(spec.lo, spec.hi + 1) for spec in specs]
        models = np.array(list(itertools.product(*boxes)), dtype=np.int64)
        self.columns = dict(zip(self.names, models.T, strict=True))
        self.by_symbol = dict(zip(symbols, models.T, strict=True))
        self.alive = np.ones(len(models), dtype=bool)
        self.agrees = np.ones(len(models), dtype=bool)  # with the example
        for column, hint in zip(models.T, self.hints, strict=True):
            if hint is not None:
                self.agrees &= column == hint
        self.guards_seen = 0

    def symbol(self, name: str, spec: Spec) -> Any:
        hi = None if spec.open else spec.hi
        if spec.hint is None:
            return self.env.unbacked(name, lo=spec.lo, hi=hi, origin="a test")
        source = f"x.shape[{name[1:]}]"
        return self.env.symbol(
            name, hint=spec.hint, lo=spec.lo, hi=hi, source=source, declared=name
        )

    # ---- the conversation

    def perform(self, kind: str, tree: Tree) -> None:
        """Raises Stop when nothing that follows could mean anything."""
        self.log.append((kind, tree))
        built = self.build(tree)
        if built is not None:
            getattr(self, "ask_" + kind)(tree, built[0])

    def build(self, tree: Tree) -> tuple[Any] | None:
        """The engine's object in a 1-tuple; None when the tree divides by zero."""
        self.tally.questions += 1
        defined = self.over(*evaluate(tree, self.columns))[1]
        try:
            result = build(tree, self.names)
        except ZeroDivisionError:
            self.check(not (self.alive & self.agrees & defined).any(), "needless ZeroDivisionError")
            self.apply_guards()
            return None
        except ContradictionError:
            self.check(not (self.alive & defined).any(), "contradiction, but it is defined")
            raise Stop from None
        self.narrow(defined, "building it")
        return (result,)

    def ask_value(self, tree: Tree, e: Any) -> None:
        want = self.values(tree)
        self.check(self.same(e, want), "value of {}", e)
        self.check(self.same(sym.current(e), want), "current({}) = {}", e, sym.current(e))
        lo, hi = self.env.bounds(e)
        inside = (lo is None or lo <= want.min()) and (hi is None or want.max() <= hi)
        self.check(inside, "bounds {}..{} of {}, values {}..{}", lo, hi, e, want.min(), want.max())
        divisor = self.env.divisor(e)
        self.check(
            not (want % divisor).any() if divisor else not want.any(),
            "divisor {} of {}",
            divisor,
            e,
        )
        if None not in self.hints and not isinstance(e, int):
            self.check(e.hint == self.example(tree), "hint {} of {}", e.hint, e)

    def ask_known(self, tree: Tree, b: Any) -> None:
        truth = self.values(tree)
        answer = sym.known(b)
        if answer is not None:
            self.check((truth == answer).all(), "known({}) = {}", b, answer)
        if not self.open and (truth == truth[0]).all():
            self.tally.determined += 1
            self.tally.decided += answer is not None
            if answer is None:
                self.tally.undecided.append(f"{b} is {truth[0]} given {self.facts()}")

    def ask_decide(self, tree: Tree, b: Any) -> None:
        self.ask_known(tree, b)
        if isinstance(b, sym.BoolExpr) and None not in self.hints:
            self.check(b.hint == self.example(tree), "hint {} of {}", b.hint, b)
        try:
            answer = sym.decide(b)
        except DataDependentError:
            self.check(None in self.hints, "decide({}) calls backed symbols data-dependent", b)
            return
        if None not in self.hints:
            self.check(
                answer == self.example(tree), "decide({}) = {} against the example", b, answer
            )
        self.narrow(self.everywhere(tree) == answer, ("decide", b, answer))

    def ask_or_true(self, tree: Tree, b: Any) -> None:
        self.ask_or(tree, b, True)

    def ask_or_false(self, tree: Tree, b: Any) -> None:
        self.ask_or(tree, b, False)

    def ask_or(self, tree: Tree, b: Any, default: bool) -> None:
        answer = sym.decide_or(b, default)
        self.apply_guards()
        if answer != default:
            self.check((self.values(tree) == answer).all(), "decide_or({}, {})", b, default)

    def ask_expect(self, tree: Tree, b: Any) -> None:
        truth = self.everywhere(tree)
        try:
            answer = sym.expect(b)
        except ContradictionError:
            self.check(not (truth & self.alive).any(), "expect({}) sees a contradiction", b)
            raise Stop from None
        if answer:
            self.narrow(truth, ("expect", b))
        else:
            self.check(not (truth & self.alive & self.agrees).any(), "expect({}) is False", b)

    def ask_specialize(self, tree: Tree, e: Any) -> None:
        try:
            answer = sym.specialize(e)
        except DataDependentError:
            self.check(None in self.hints, "specialize({}) calls backed symbols data-dependent", e)
            return
        if None not in self.hints:
            self.check(answer == self.example(tree), "specialize({}) = {}", e, answer)
        self.narrow(self.everywhere(tree) == answer, ("specialize", e, answer))

    def close(self) -> None:
        """What the environment reports in the end, over all models."""
        self.apply_guards()  # also the one that ended the conversation with a contradiction
        kept = np.ones(len(self.alive), dtype=bool)
        for guard in self.env.minimal_guards():
            kept &= np.logical_and(*self.over(*value(guard.cond, self.by_symbol)))
        self.check(
            (kept == self.alive).all(), "minimal_guards() admit other models than all guards"
        )
        if None not in self.hints:
            self.close_violations()
        if self.alive.any():
            for symbol, r in self.env.ranges().items():
                seen = self.by_symbol[symbol][self.alive]
                inside = (r.lo is None or r.lo <= seen.min()) and (
                    r.hi is None or seen.max() <= r.hi
                )
                self.check(
                    inside, "range {} of {}, values {}..{}", r, symbol, seen.min(), seen.max()
                )

    def close_violations(self) -> None:
        """Without one, the guards admit all that was declared; with one, its size is refused."""
        violations = self.env.violations()
        self.check(violations or self.alive.all(), "no violation, but models are refused")
        for violation in violations:
            if violation.counterexample is not None:
                row = self.agrees_but_for(violation.dim, violation.counterexample)
                self.check(self.open or row.any(), "{} is outside the declared range", violation)
                self.check(not (row & self.alive).any(), "{} is no counterexample", violation)

    def agrees_but_for(self, name: str, size: int) -> Any:
        row = self.columns[name] == size
        for other, hint in zip(self.names, self.hints, strict=True):
            if other != name:
                row = row & (self.columns[other] == hint)
        return row

    # ---- checking

    def over(self, values: Any, defined: Any) -> tuple[Any, Any]:
        shape = self.alive.shape
        return np.broadcast_to(values, shape), np.broadcast_to(defined, shape)

    def everywhere(self, tree: Tree) -> Any:
        return self.over(*evaluate(tree, self.columns))[0]

    def values(self, tree: Tree) -> Any:
        """In the alive models, where it must be defined."""
        return self.everywhere(tree)[self.alive]

    def example(self, tree: Tree) -> Any:
        return evaluate(tree, dict(zip(self.names, self.hints, strict=True)))[0]

    def same(self, e: Any, want: Any) -> bool:
        got, defined = self.over(*value(e, self.by_symbol))
        return bool(defined[self.alive].all() and (got[self.alive] == want).all())

    def apply_guards(self) -> None:
        """Every new guard must be defined wherever the older ones hold, and must not refuse the
        example."""
        before = self.alive & self.agrees
        for guard in self.env.guards[self.guards_seen :]:
            held, defined = self.over(*value(guard.cond, self.by_symbol))
            self.check(defined[self.alive].all(), "guard {} divides by zero", guard.cond)
            self.alive = self.alive & held
        self.guards_seen = len(self.env.guards)
        if None not in self.hints and before.any():
            self.check((self.alive & self.agrees).any(), "the guards refuse the example")

    def narrow(self, allowed: Any, what: object) -> None:
        """New guards must leave only `allowed` models, and should leave all of them."""
        before = self.alive
        self.apply_guards()
        self.check(not (self.alive & ~allowed).any(), "{}: the guards admit too much", what)
        self.tally.admitted += int((before & allowed).sum())
        self.tally.lost += int((before & allowed & ~self.alive).sum())
        if not (self.alive & self.agrees).any():
            raise Stop

    def facts(self) -> list[str]:
        return [str(g.cond) for g in self.env.guards]

    def check(self, condition: Any, what: str, *values: Any) -> None:
        if not condition:
            story = "\n  ".join(map(str, self.log))
            raise AssertionError(f"{what.format(*values)}\n  guards {self.facts()}\n  {story}")


CONDITIONS = ("known", "known", "decide", "decide", "or_true", "or_false", "expect")
NUMBERS = ("value", "value", "specialize")


def names(specs: list[Spec]) -> list[str]:
    return [f"{'s' if spec.hint is not None else 'u'}{i}" for i, spec in enumerate(specs)]


def random_spec(rnd: random.Random, open: bool) -> Spec:
    lo = rnd.choice([0, 0, 0, 1, 1, 2, -3])
    hi = lo + (rnd.randrange(1, 7) if not open else 9)
    return Spec(lo, hi, rnd.randint(lo, hi) if rnd.random() < 0.75 else None, open)


def directed(rnd: random.Random, trees: Random, example: dict[str, int], depth: int) -> Tree:
    """An equality or congruence that holds for the example, so that facts are learned."""
    left, right = trees.tree(depth), trees.tree(rnd.choice([0, 0, 1]))
    (a, defined_a), (b, defined_b) = evaluate(left, example), evaluate(right, example)
    if not (defined_a and defined_b):
        return "==", left, right
    if rnd.random() < 0.4:
        n = rnd.choice([2, 3, 4, 6, 8])
        return "==", ("%", left, n), int(a) % n
    n = rnd.choice([1, 1, 2, 3])
    return "==", ("*", n, left), ("+", right, n * int(a) - int(b))


def random_trial(seed: int, tally: Tally) -> None:
    rnd = random.Random(seed)
    open, count = rnd.random() < 0.3, rnd.choice([1, 2, 2, 3, 3])
    trial = Trial([random_spec(rnd, open) for _ in range(count)], tally)
    trial.log.insert(0, f"seed {seed}")
    trees, depth = Random(rnd, list(trial.names)), rnd.choice([1, 2, 2, 3])
    example = {name: hint or 0 for name, hint in zip(trial.names, trial.hints, strict=True)}
    try:
        for _ in range(rnd.choice([4, 8, 12])):
            if rnd.random() < 0.3:
                trial.perform(rnd.choice(NUMBERS), trees.tree(depth))
            elif rnd.random() < 0.25:
                trial.perform(rnd.choice(CONDITIONS), directed(rnd, trees, example, depth))
            else:
                trial.perform(rnd.choice(CONDITIONS), trees.condition(depth))
    except Stop:
        pass
    trial.close()


def converse(first_seed: int, questions: int) -> Tally:
    """Random trials, until so many questions were asked."""
    tally = Tally()
    for seed in itertools.count(first_seed):
        if tally.questions >= questions:
            break
        random_trial(seed, tally)
    return tally
