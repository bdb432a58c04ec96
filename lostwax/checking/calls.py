"""The calls in which a program is compared: those that the user gives, or the example and calls for
which the program claims to hold, drawn from the ranges of its sizes.

Makes the arguments, and code that makes them again. Must not run a program or a module.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._pytree import TreeSpec

from lostwax.errors import CheckError
from lostwax.ir.program import ExportedProgram
from lostwax.ir.run.calling import Convention
from lostwax.ir.run.leaves import NumberLeaf, TensorLeaf
from lostwax.ir.run.module import call_convention
from lostwax.sym import Expr, Symbol, evaluate

_SIZES = (0, 1, 2, 3, 7, 13, 32)
_LARGE = 257
_MOST = 1 << 22
"""How many elements an input has at most: a check is no test of endurance."""


@dataclass(frozen=True)
class DrawnCall:
    """A call: a title, its arguments, and code that makes them."""

    title: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    code: str


def list_calls(
    program: ExportedProgram,
    inputs: Sequence[Any] | None,
    draws: int,
    seed: int,
    on_case: Callable[[str], None] | None = None,
) -> Iterator[DrawnCall]:
    """The calls that are compared; each is told before it is made."""
    for case in _make_calls(program, inputs, draws, seed):
        if on_case is not None:
            on_case(case.title)
        yield case


def _make_calls(
    program: ExportedProgram, inputs: Sequence[Any] | None, draws: int, seed: int
) -> Iterator[DrawnCall]:
    if inputs is not None:
        for i, given in enumerate(inputs):
            if isinstance(inputs, torch.Tensor) or not isinstance(given, (tuple, list)):
                raise CheckError(
                    "inputs is a list of calls, each a tuple of arguments\n"
                    "  why: several calls may be compared, one after another\n"
                    "  instead: check(program, module, inputs=[(x, y)])"
                )
            args, kwargs = given if _is_pair(given) else (tuple(given), {})
            yield DrawnCall(f"inputs[{i}]", args, kwargs, f"args, kwargs = {_pair_text(given, i)}")
        return
    if program.example_inputs is None:
        raise CheckError(
            "the program has no example inputs, it was loaded without them\n"
            "  instead: check(program, module, inputs=[(x, y)])"
        )
    code = "args, kwargs = copy.deepcopy(program.example_inputs)"
    yield DrawnCall("the example", *program.example_inputs, code)
    convention = call_convention(program, True)
    yield from _draw_calls(convention, program.example_inputs, draws, seed)


def _is_pair(given: Any) -> bool:
    return len(given) == 2 and isinstance(given[0], tuple) and isinstance(given[1], dict)


def _pair_text(given: Any, index: int) -> str:
    return f"inputs[{index}]" if _is_pair(given) else f"tuple(inputs[{index}]), {{}}"


def _draw_calls(
    convention: Convention,
    inputs: tuple[tuple[Any, ...], dict[str, Any]],
    count: int,
    seed: int,
) -> Iterator[DrawnCall]:
    """Draw up to `count` calls with other sizes than the example's; none if no size is dynamic."""
    if not convention.solved or count <= 0:
        return
    for i, values in enumerate(_assignments(convention, count, random.Random(seed))):
        yield _make_call(convention, inputs, values, seed + i)


# -------------------------------------------------------------------------------------------- sizes


def _assignments(
    convention: Convention, count: int, source: random.Random
) -> Iterator[dict[Symbol, int]]:
    """Values of the symbols for which the program claims to hold: first small and odd ones, then
    random ones."""
    seen: set[tuple[int, ...]] = set()
    symbols = list(convention.solved)
    for values in _candidates(convention, symbols, source):
        key = tuple(values[s] for s in symbols)
        if key not in seen and _is_valid(convention, values):
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
        yield {s: source.choice(_draw_near(lo, hi, source)) for s, (lo, hi) in limits.items()}


def _limits(convention: Convention, symbol: Symbol) -> tuple[int, int]:
    lo, hi = convention.ranges.get(symbol, (None, None))
    lo = 0 if lo is None else lo
    return lo, max(lo, _LARGE) if hi is None else min(hi, max(lo, _LARGE))


def _draw_near(lo: int, hi: int, source: random.Random) -> list[int]:
    """Some numbers between two limits, small ones more often."""
    return [lo, hi, source.randint(lo, hi), source.randint(lo, min(hi, lo + 16))]


def _is_valid(convention: Convention, values: dict[Symbol, int]) -> bool:
    """Do the guards hold, is no size negative, and no tensor too large?"""
    if not all(evaluate(g.cond, values) for g in convention.guards):
        return False
    for leaf in convention.leaves:
        if isinstance(leaf, TensorLeaf):
            elements = 1
            for size in leaf.size:
                if isinstance(size, Expr) and not size.symbols() <= values.keys():
                    return False
                number = _evaluate_size(size, values)
                if number < 0:
                    return False
                elements *= number
            if elements > _MOST:
                return False
    return True


def _evaluate_size(size: int | Expr, values: dict[Symbol, int]) -> int:
    return evaluate(size, values) if isinstance(size, Expr) else size


# ---------------------------------------------------------------------------------------- arguments


def _make_call(
    convention: Convention,
    inputs: tuple[tuple[Any, ...], dict[str, Any]],
    values: dict[Symbol, int],
    seed: int,
) -> DrawnCall:
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
    args, kwargs = _unflatten(leaves, spec)
    return DrawnCall(_title(convention, values), args, kwargs, "\n".join(lines))


def _unflatten(leaves: list[Any], spec: TreeSpec) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    return args, kwargs


def _leaf_text(leaf: Any, given: Any, values: dict[Symbol, int]) -> str | None:
    """The code of an argument whose size varies; None if the example's argument will do."""
    if isinstance(leaf, NumberLeaf):
        return str(evaluate(leaf.value, values))
    if not isinstance(leaf, TensorLeaf) or not any(isinstance(s, Expr) for s in leaf.size):
        return None
    size = tuple(_evaluate_size(s, values) for s in leaf.size)
    options = f"dtype={given.dtype}, device={str(given.device)!r}"
    if given.dtype.is_floating_point or given.dtype.is_complex:
        return f"torch.randn({size}, {options})"
    if given.dtype is torch.bool:
        return f"torch.randint(0, 2, {size}, {options})"
    # Integers are often indices: those in the range of the example's are valid.
    lo, hi = (int(given.min()), int(given.max()) + 1) if given.numel() else (0, 1)
    return f"torch.randint({lo}, {hi}, {size}, {options})"


def _title(convention: Convention, values: dict[Symbol, int]) -> str:
    """The sizes from which the others follow: `x.shape[0] = 7`."""
    found = []
    for symbol, (index, _, _) in convention.solved.items():
        place = convention.places[index]
        found.append(f"{place.text} = {evaluate(place.expr, {symbol: values[symbol]})}")
    return ", ".join(found)
