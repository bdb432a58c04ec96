"""Calls that a program says it holds for: sizes drawn from its ranges, tensors of those sizes.

Must not run anything: it makes arguments, and the code that makes them again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._pytree import TreeSpec

from lostwax.ir.run.calling import Convention
from lostwax.ir.run.leaves import NumberLeaf, TensorLeaf
from lostwax.sym import Expr, Symbol, evaluate

_SIZES = (0, 1, 2, 3, 7, 13, 32)
_LARGE = 257
_MOST = 1 << 22
"""Elements of one input: a check is no test of endurance."""


@dataclass(frozen=True)
class Drawn:
    """One call: what is special about it, its arguments, and the code that makes them."""

    title: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    code: str


def example(inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> Drawn:
    """The call that the program was captured with."""
    return Drawn("the example", *inputs, "args, kwargs = copy.deepcopy(program.example_inputs)")


def drawn(
    convention: Convention,
    inputs: tuple[tuple[Any, ...], dict[str, Any]],
    count: int,
    seed: int,
) -> Iterator[Drawn]:
    """Up to `count` calls with other sizes than the example's; none if no size is dynamic."""
    if not convention.solved:
        return
    for i, values in enumerate(_assignments(convention, count, random.Random(seed))):
        yield _call(convention, inputs, values, seed + i)


# -------------------------------------------------------------------------------------------- sizes


def _assignments(
    convention: Convention, count: int, source: random.Random
) -> Iterator[dict[Symbol, int]]:
    """Values of the symbols for which the program says that it holds: first the small and the odd
    ones, then at random."""
    seen: set[tuple[int, ...]] = set()
    symbols = list(convention.solved)
    for values in _candidates(convention, symbols, source):
        key = tuple(values[s] for s in symbols)
        if key not in seen and _holds(convention, values):
            yield values
            seen.add(key)
            if len(seen) == count:
                return


def _candidates(
    convention: Convention, symbols: Sequence[Symbol], source: random.Random
) -> Iterator[dict[Symbol, int]]:
    limits = {s: _limits(convention, s) for s in symbols}
    for size in (*_SIZES, _LARGE):
        yield {s: min(max(size, lo), hi) for s, (lo, hi) in limits.items()}
    for _ in range(500):
        yield {s: source.choice(_near(lo, hi, source)) for s, (lo, hi) in limits.items()}


def _limits(convention: Convention, symbol: Symbol) -> tuple[int, int]:
    lo, hi = convention.ranges.get(symbol, (None, None))
    lo = 0 if lo is None else lo
    return lo, max(lo, _LARGE) if hi is None else min(hi, max(lo, _LARGE))


def _near(lo: int, hi: int, source: random.Random) -> list[int]:
    """Some numbers between two, the small ones more often."""
    return [lo, hi, source.randint(lo, hi), source.randint(lo, min(hi, lo + 16))]


def _holds(convention: Convention, values: dict[Symbol, int]) -> bool:
    """Do the conditions hold, and is each size one, and not too large?"""
    if not all(evaluate(g.cond, values) for g in convention.guards):
        return False
    for leaf in convention.leaves:
        if isinstance(leaf, TensorLeaf):
            elements = 1
            for size in leaf.size:
                if isinstance(size, Expr) and not size.symbols() <= values.keys():
                    return False
                number = _number(size, values)
                if number < 0:
                    return False
                elements *= number
            if elements > _MOST:
                return False
    return True


def _number(size: int | Expr, values: dict[Symbol, int]) -> int:
    return evaluate(size, values) if isinstance(size, Expr) else size


# ---------------------------------------------------------------------------------------- arguments


def _call(
    convention: Convention,
    inputs: tuple[tuple[Any, ...], dict[str, Any]],
    values: dict[Symbol, int],
    seed: int,
) -> Drawn:
    leaves, spec = pytree.tree_flatten(inputs)
    lines = [
        f"torch.manual_seed({seed})",
        "leaves, spec = tree_flatten(copy.deepcopy(program.example_inputs))",
    ]
    names = {"torch": torch}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for i, leaf in enumerate(convention.leaves):
            text = _leaf_text(leaf, leaves[i], values)
            if text is not None:
                lines.append(f"leaves[{i}] = {text}")
                leaves[i] = eval(text, names)  # of this module's own making
    lines.append("args, kwargs = tree_unflatten(leaves, spec)")
    args, kwargs = _unflattened(leaves, spec)
    return Drawn(_title(convention, values), args, kwargs, "\n".join(lines))


def _unflattened(leaves: list[Any], spec: TreeSpec) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    return args, kwargs


def _leaf_text(leaf: Any, given: Any, values: dict[Symbol, int]) -> str | None:
    """The code of an argument whose size varies; None: the example's own will do."""
    if isinstance(leaf, NumberLeaf):
        return str(evaluate(leaf.value, values))
    if not isinstance(leaf, TensorLeaf) or not any(isinstance(s, Expr) for s in leaf.size):
        return None
    size = tuple(_number(s, values) for s in leaf.size)
    options = f"dtype={given.dtype}, device={str(given.device)!r}"
    if given.dtype.is_floating_point or given.dtype.is_complex:
        return f"torch.randn({size}, {options})"
    if given.dtype is torch.bool:
        return f"torch.randint(0, 2, {size}, {options})"
    # Numbers are often indices: those of the example are valid ones.
    lo, hi = (int(given.min()), int(given.max()) + 1) if given.numel() else (0, 1)
    return f"torch.randint({lo}, {hi}, {size}, {options})"


def _title(convention: Convention, values: dict[Symbol, int]) -> str:
    """`x.shape[0] = 7`: the sizes that make the others."""
    found = []
    for symbol, (index, _, _) in convention.solved.items():
        place = convention.places[index]
        found.append(f"{place.text} = {evaluate(place.expr, {symbol: values[symbol]})}")
    return ", ".join(found)
