"""Symbolic integers: µs per operation, ours beside torch's ShapeEnv and sympy, in one process.

    python -m bench.sym [--rounds N] [--repeats N] [--json]

One round is what tracing a layer asks: sizes of views, padding to a multiple, convolution and
pooling arithmetic, and the questions about them, none of which needs a guard. "repeated": every
round has the same constants, as the layers of one model do. "varied": the constants change. Every
repeat starts with a fresh environment; the least CPU time of the repeats counts, since other
programs may be running, which only add to it.

"proven" is the share of questions answered. Three of the twelve in a round depend on the sizes;
ShapeEnv answers two of those by excluding sizes 0 and 1. Exit code 1 when ours is not at least 10
times faster than ShapeEnv: expressions against its SymInts, and SymInts against its SymInts.
"""

from __future__ import annotations

import argparse
import json
import operator
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from lostwax import sym

BAR = 10.0
OPERATIONS = 49  # of one round: arithmetic, comparisons and questions counted one each


@dataclass(frozen=True)
class Engine:
    """What the workload needs beyond Python's operators; `sizes` are b >= 1, s >= 0, h >= 8, all
    new."""

    sizes: Callable[[], tuple[Any, Any, Any]]
    maximum: Callable[[Any, Any], Any]
    eq: Callable[[Any, Any], Any]
    known: Callable[[Any], bool | None]


def one_round(e: Engine, b: Any, s: Any, h: Any, i: int, answers: Counter[bool | None]) -> None:
    c, k, p, stride, w = (64, 3, 1, 2, 8) if i < 0 else constants(i)
    eq, known = e.eq, e.known
    rows = b * s
    numel = rows * c
    verdicts = [
        known(eq(numel // c, rows)),  # view(-1, c)
        known(eq(numel // (b * c), s)),  # view(b, -1, c)
        known(eq(numel % (b * c), 0)),
    ]
    padded = (s + (w - 1)) // w * w
    verdicts += [
        known(padded - s >= 0),
        known(eq(padded % w, 0)),
        known(eq(s % w, 0)),  # depends on s
        known(e.maximum(s, 1) >= 1),
        known(eq(s * c, s * c)),
        known(eq(numel, 0)),  # depends, unless sizes 0 are excluded
        known(eq(b, 1)),  # depends, unless size 1 is excluded
    ]
    out = (h + (2 * p - k)) // stride + 1
    pooled = (out + -2) // 2 + 1
    verdicts += [known(out >= 1), known(eq(pooled, (out + -2) // 2 + 1))]
    answers.update(verdicts)


def constants(i: int) -> tuple[int, int, int, int, int]:
    return 8 * (1 + i % 37), 1 + 2 * (i % 4), i % 4, 1 + i % 3, 2 + i % 14


def measure(e: Engine, rounds: int, repeats: int, varied: bool) -> dict[str, Any]:
    times = []
    for _ in range(repeats):
        sizes = e.sizes()
        answers: Counter[bool | None] = Counter()
        start = time.process_time()
        for i in range(rounds):
            one_round(e, *sizes, i if varied else -1, answers)
        times.append((time.process_time() - start) / rounds / OPERATIONS * 1e6)
    proven = (answers[True] + answers[False]) / sum(answers.values())
    return {"us": min(times), "first": times[0], "proven": proven}


# ---- the engines


def ours() -> Engine:
    def sizes() -> tuple[Any, Any, Any]:
        env = sym.ShapeEnv()
        return tuple(env.symbol(n, hint=v, lo=lo) for n, v, lo in SIZES)  # type: ignore[return-value]

    return Engine(sizes, sym.maximum, sym.eq, sym.known)


def ours_symint() -> Engine | None:
    """None as long as there is no SymInt node."""
    if find_spec("lostwax.fake.symbolic.node") is None:
        return None
    import torch

    from lostwax.fake.symbolic.node import unwrap, wrap

    def sizes() -> tuple[Any, Any, Any]:
        return tuple(map(wrap, ours().sizes()))  # type: ignore[return-value]

    return Engine(sizes, torch.sym_max, operator.eq, lambda c: sym.known(unwrap(c)))


def torch_symint() -> Engine:
    import torch
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental import symbolic_shapes as shapes

    def sizes() -> tuple[Any, Any, Any]:
        env = shapes.ShapeEnv(duck_shape=False)
        return tuple(new(env, name, hint) for name, hint, _ in SIZES)  # type: ignore[return-value]

    def new(env: Any, name: str, hint: int) -> Any:
        source = ConstantSource(name)
        dynamic = shapes.DimDynamic.DYNAMIC
        symbol = env.create_symbol(hint, source, dynamic_dim=dynamic, constraint_dim=None)
        return env.create_symintnode(symbol, hint=hint, source=source)

    def known(c: Any) -> bool | None:
        return c if type(c) is bool else shapes._static_eval_sym_bool(c)

    return Engine(sizes, torch.sym_max, operator.eq, known)


def plain_sympy() -> Engine:
    import sympy
    from sympy.core.cache import clear_cache

    def sizes() -> tuple[Any, Any, Any]:
        clear_cache()
        b, h = sympy.symbols("b h", integer=True, positive=True)
        return b, sympy.Symbol("s", integer=True, nonnegative=True), h

    known = {sympy.true: True, sympy.false: False}.get
    return Engine(sizes, sympy.Max, sympy.Eq, known)


SIZES = (("b", 4, 1), ("s", 7, 0), ("h", 224, 8))
ENGINES = {
    "ours, Expr": ours,
    "ours, torch.SymInt": ours_symint,
    "torch ShapeEnv, torch.SymInt": torch_symint,
    "sympy": plain_sympy,
}
PEER = "torch ShapeEnv, torch.SymInt"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=205, help="205 are about 10,000 operations")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    engines = {name: e for name, make in ENGINES.items() if (e := make()) is not None}
    results: dict[str, dict[str, Any]] = {name: {} for name in engines}
    for kind in ("repeated", "varied"):
        for name, engine in engines.items():
            figures = measure(engine, options.rounds, options.repeats, kind == "varied")
            results[name][kind] = figures
        for figures in (results[name][kind] for name in engines):
            figures["ratio"] = results[PEER][kind]["us"] / figures["us"]
    mine = [r for name, r in results.items() if name.startswith("ours")]
    holds = all(r[kind]["ratio"] >= BAR for r in mine for kind in r)
    print(
        json.dumps({"results": results, "bar": BAR, "holds": holds})
        if options.json
        else table(results)
    )
    if not options.json:
        print(f"at least {BAR:.0f}x faster than ShapeEnv: {'holds' if holds else 'MISSED'}")
    return 0 if holds else 1


def table(results: dict[str, dict[str, Any]]) -> str:
    lines = [
        f"{'µs per operation':30s}  repeated (first)  ShapeEnv/it"
        "    varied (first)  ShapeEnv/it  proven"
    ]
    for name, by_kind in results.items():
        r, v = by_kind["repeated"], by_kind["varied"]
        lines.append(
            f"{name:30s} {r['us']:9.2f} ({r['first']:5.1f}) {r['ratio']:11.1f}x "
            f"{v['us']:9.2f} ({v['first']:5.1f}) {v['ratio']:11.1f}x  {r['proven']:6.0%}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
