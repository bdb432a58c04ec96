"""The errors for questions that only data can answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from lostwax.branches import find_catching
from lostwax.errors import CaptureError, DataDependentError
from lostwax.location import Location, user_location
from lostwax.sym.expressions.expr import BoolExpr, Condition, Expr, negate
from lostwax.sym.text.show import show

_BOTH_WAYS = "compute both ways and choose, torch.where(condition, a, b)"

Kinds: TypeAlias = "tuple[type[Exception], ...]"
FAILING: Kinds = (RuntimeError, IndexError)
"""What operators raise."""


def refuse_caught(*kinds: type[Exception]) -> None:
    """Data decide whether what runs now raises one of these: refuse it, if the user's code catches
    that, and goes on."""
    caught = find_catching(kinds)
    if caught is not None:
        name = caught.kind.__name__.lstrip("_")
        raise CaptureError(
            f"data decide whether this raises {name}, and that is caught."
            f"\n  at {user_location()}\n  caught at {caught.at}\n"
            "  why: the program raises it when it runs, and cannot catch anything\n"
            "  instead: ask before it, if n != 0: …, and do on the other side what is done "
            "where it is caught; of a matrix, by what cholesky_ex or inv_ex returns"
        )


def refuse_integer(e: Expr, where: Location) -> DataDependentError:
    why = f"depends on data{_list_origins(e)}"
    if e.hint is not None:
        why = f"varies, and the example, where it is {e.hint}, does not take this branch"
    return DataDependentError(
        f"a concrete integer is needed, but {show(e)} {why}\n"
        f"  asked at {where}\n"
        "  instead: compute with the symbolic number, x.item() or x.shape[0], without "
        "int(), len() or range()"
    ).ask(e)


def refuse_branch(
    b: BoolExpr, where: Location, spell: Callable[[Condition], str], is_truth: bool
) -> DataDependentError:
    """`is_truth`: the condition is about a number that is 0 or 1. `spell` writes a condition on
    floats as the user would."""
    if is_truth and not spell(b):
        return _refuse_truth(b, where)
    either = [spell(c) or show(c, joined=("&", "|")) for c in (b, negate(b))]
    fix = f"torch._check({either[0]}) or torch._check({either[1]})"
    if is_truth:
        fix += f";\n  or {_BOTH_WAYS}"
    return DataDependentError(
        f"cannot decide `{either[0]}` while tracing: it depends on data{_list_origins(b)}\n"
        f"  asked at {where}\n  fix: state before that line which it is, {fix}"
    ).ask(b)


def _refuse_truth(b: BoolExpr, where: Location) -> DataDependentError:
    """The error for `if tensor:`, and its like."""
    origin = next(s.origin or "" for s in b.symbols())
    made = "" if origin.endswith(str(where)) else f"\n  it comes from {origin}"
    return DataDependentError(
        f"cannot decide a branch while tracing: the truth of a tensor depends on data{made}\n"
        f"  asked at {where}\n  fix: {_BOTH_WAYS};\n"
        "  or, if it is always the same, state it: c = condition.item(); torch._check(c), or "
        "torch._check(torch.sym_not(c)); if c: ..."
    ).ask(b)


def _list_origins(e: Expr | BoolExpr) -> str:
    unbacked = sorted((s for s in e.symbols() if s.unbacked), key=lambda s: s.id)
    return "".join(f"\n  {s.name} comes from {s.origin}" for s in unbacked if s.origin)
