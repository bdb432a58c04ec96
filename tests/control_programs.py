"""Programs with control flow, shared by the tests of all that consumes programs: each a module, an
example, and further inputs, so that every path is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch._higher_order_ops import map as torch_map
from torch._higher_order_ops import scan as torch_scan
from torch._higher_order_ops import while_loop as torch_while_loop
from torch.export import Dim

import lostwax
from lostwax.interop import from_torch
from lostwax.ir.program import ExportedProgram
from tests.pt2.peer_programs import Binary, Unary

# ------------------------------------------------------------------------- what the operators mean


class _Meaning:
    plain = False


@contextmanager
def plain_python() -> Iterator[None]:
    """Inside, the operators below are Python's own `if` and loops: the reference for values and
    gradients, which knows nothing of torch's implementations."""
    _Meaning.plain = True
    try:
        yield
    finally:
        _Meaning.plain = False


def cond(pred, on_true, on_false, operands):
    if _Meaning.plain:
        return (on_true if pred else on_false)(*operands)
    return torch.cond(pred, on_true, on_false, operands)


def while_loop(condition, body, carried):
    if not _Meaning.plain:
        return torch_while_loop(condition, body, carried)
    while condition(*carried):
        carried = body(*carried)
    return carried


def _stack(trees):
    return pytree.tree_map(lambda *leaves: torch.stack(leaves), *trees)


def map_rows(body, xs, *args):
    if not _Meaning.plain:
        return torch_map(body, xs, *args)
    leaves, spec = pytree.tree_flatten(xs)
    rows = zip(*(leaf.unbind(0) for leaf in leaves), strict=True)
    return _stack([body(pytree.tree_unflatten(row, spec), *args) for row in rows])


def scan(step, carry, xs, reverse=False):
    if not _Meaning.plain:
        return torch_scan(step, carry, xs, reverse=reverse)
    made = []
    for row in reversed(xs) if reverse else xs:
        carry, out = step(carry, row)
        made.append(out)
    return carry, _stack(made[::-1] if reverse else made)


def associative_scan(combine, xs, more=()):
    """As torch's operator: on flat lists, along the first dimension."""
    if not _Meaning.plain:
        operator = torch.ops.higher_order.associative_scan
        return operator(combine, list(xs), tuple(more))
    carry, *rows = zip(*xs, strict=True)
    made = [carry]
    for row in rows:
        made.append(combine(*made[-1], *row, *more))
    return _stack(made)


# ---------------------------------------------------------------------------------- the programs


class ControlCase(NamedTuple):
    """A module, the example, further inputs, and what varies."""

    module: nn.Module
    args: tuple[Any, ...]
    others: tuple[tuple[Any, ...], ...] = ()
    dynamic: Any = None
    by: str = "both"
    """Whose capture it is for: "ours", "torch" or "both"; "strict" is torch's strict capture, which
    alone keeps nested regions."""


class Inner(nn.Module):
    """A module inside of another whose forward branches, with parameters in one branch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return cond(x.sum() > 0, lambda x: self.linear(x), lambda x: x * 2.0, (x,))


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Inner(), Inner()

    def forward(self, x):
        return self.second(self.first(x)) + 1


def _cond(m, x):
    return cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


def _cond_closure(m, x):
    return cond(x.sum() > 0, lambda x: m.l(x) + m.c, lambda x: (x - 1).clone(), (x,))


def _cond_pair(m, x):
    a, b = cond(x.shape[0] > 4, lambda x: (x + 1, x.sum()), lambda x: (x - 1, x.mean()), (x,))
    return a + b, x.shape[0] * 2


def _cond_size_operand(m, x):
    n = x.shape[0]
    return cond(x.sum() > 0, lambda x: x + n, lambda x: x.view(n, -1) * (n * 2), (x,))


def _cond_nested(m, x, y):
    def inner(x):
        return cond(x.mean() > 1, lambda x: x * y, lambda x: x + y, (x,))

    return cond(x.sum() > 0, inner, lambda x: x - y, (x,))


def _cond_twice(m, x):
    y = cond(x.sum() > 0, lambda x: m.l(x), lambda x: x + 1, (x,))
    return cond(y.sum() > 0, lambda y: y.exp() + y.exp(), lambda y: y - 1, (y,))


def _cond_unbacked(m, x):
    y = cond(x.sum() > 0, lambda x: x[:2].clone(), lambda x: x[:3].clone(), (x,))
    return y.sum(), y.shape[0]


def _cond_asserts(m, x, n):
    def check(x, n):
        size = n.item()
        torch._check(size >= 1)
        torch._check(size <= 3)
        return x * torch.ones(size).sum()

    return cond(x.sum() > 0, check, lambda x, n: x + n, (x, n))


def _while(m, x, y):
    return while_loop(lambda x, y: x.sum() > 0, lambda x, y: (x - 1, y * 1.5), (x, y))


def _while_closure(m, x):
    i = torch.zeros((), dtype=torch.int64)
    return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, m.l(x)), (i, x))[1]


def _while_number(m, x):
    return while_loop(lambda i, x: i < 4, lambda i, x: (i + 1, x * 2 + i), (0, x))


def _while_cond(m, x, y):
    def body(x, y):
        y = cond(x > 2, lambda y: y + 1, lambda y: y * 3.0, (y,))
        return x - 1, y

    return while_loop(lambda x, y: x > 0, body, (x, y))


def _map(m, x, y):
    return map_rows(lambda x, y: m.l(x) * y, x, y)


def _map_pair(m, x, y):
    def body(pair, y):
        return {"a": pair[0] + y, "b": pair[1].sum()}

    return map_rows(body, (x, x * 2), y)


def _scan(m, x, y):
    return scan(lambda c, x: (c + x, (c * x).sin()), x, y)


def _scan_closure(m, x, y):
    def step(h, x):
        h = torch.tanh(m.l(x) + h)
        return h, h.clone()

    return scan(step, x, y)


def _scan_reverse(m, x, y):
    return scan(lambda c, x: (c * 0.5 + x, c.clone()), x, y, reverse=True)


def _associative(m, x):
    return associative_scan(lambda a, b: (a * b,), [x])[0]


def _associative_pair(m, x, y):
    def combine(a, b, c, d, k):
        return a * c, b * d * k

    return associative_scan(combine, [x, y], (m.k,))


def _constants(m, x):
    """Values of parameters alone, computed in a loop inside of a branch."""

    def loop(x):
        return scan(lambda c, row: (c + row * (m.w * 2).exp(), c.clone()), x[0] * 0, x)[1]

    return cond(x.sum() > 0, loop, lambda x: x * (m.w + 1), (x,))


def _modes(m, x):
    with torch.no_grad():
        y = x * 2
    return y + x


@torch.compiler.nested_compile_region
def _step(x):
    return torch.sin(x) + 1


def _regions(m, x):
    return _step(_step(x))


@cache
def cases() -> dict[str, ControlCase]:
    """All of them, made once: weights and inputs come from one seed."""
    torch.manual_seed(0)
    r = torch.randn
    linear = nn.Linear(3, 3)
    plus, minus = torch.rand(5, 3) + 0.1, -torch.rand(5, 3) - 0.1
    rows = ({0: Dim("rows", min=1, max=30)},)
    first = {0: Dim("rows", min=2, max=30)}
    more = torch.rand(7, 3)
    return {
        "cond": ControlCase(Unary(_cond), (plus,), ((minus,),)),
        "cond dynamic": ControlCase(Unary(_cond), (plus,), ((minus,), (more,)), rows),
        "cond closure": ControlCase(
            Unary(_cond_closure, l=linear, c=torch.ones(3)), (plus,), ((minus,), (more,)), rows
        ),
        "cond pair": ControlCase(Unary(_cond_pair), (plus,), ((minus[:3],), (more,)), rows),
        "cond size operand": ControlCase(
            Unary(_cond_size_operand), (plus,), ((minus,), (-more,), (more,)), rows
        ),
        "cond nested": ControlCase(
            Binary(_cond_nested), (plus, r(3)), ((minus, r(3)), (plus + 3, r(3)))
        ),
        "cond twice": ControlCase(Unary(_cond_twice, l=linear), (plus,), ((minus,), (plus * 9,))),
        "cond unbacked": ControlCase(Unary(_cond_unbacked), (plus,), ((minus,),)),
        "cond asserts": ControlCase(
            *(Binary(_cond_asserts), (plus, torch.tensor(2)), ((minus, torch.tensor(9)),)),
            by="torch",
        ),
        "while": ControlCase(
            Binary(_while), (torch.tensor(3), r(2, 3)), ((torch.tensor(-1), r(2, 3)),)
        ),
        "while closure": ControlCase(Unary(_while_closure, l=linear), (plus,), ((minus,),)),
        "while number": ControlCase(Unary(_while_number), (plus,), ((minus,),), by="ours"),
        "while cond": ControlCase(
            Binary(_while_cond), (torch.tensor(5), r(2)), ((torch.tensor(1), r(2)),)
        ),
        "map": ControlCase(Binary(_map, l=linear), (plus, r(3)), ((more, r(3)),), (first, None)),
        "map pair": ControlCase(Binary(_map_pair), (plus, r(3)), ((minus, r(3)),)),
        "scan": ControlCase(
            Binary(_scan), (torch.zeros(3), plus), ((torch.ones(3), more),), (None, first)
        ),
        "scan closure": ControlCase(
            Binary(_scan_closure, l=linear), (torch.zeros(3), plus), ((torch.ones(3), minus),)
        ),
        "scan reverse": ControlCase(
            Binary(_scan_reverse), (torch.zeros(3), plus), ((torch.ones(3), minus),)
        ),
        "recurrent": ControlCase(
            *(Unary(lambda m, x: m.l(x), l=nn.GRU(3, 2)), (plus,), ((more,),), rows), by="ours"
        ),
        "associative": ControlCase(Unary(_associative), (plus,), ((minus,),)),
        "associative pair": ControlCase(
            Binary(_associative_pair, k=torch.rand(3)), (plus, minus), ((minus, plus),)
        ),
        "constants": ControlCase(
            Unary(_constants, w=nn.Parameter(torch.rand(3))), (plus,), ((minus,), (plus * 9,))
        ),
        "modes": ControlCase(Unary(_modes), (plus,), ((minus,),), by="torch"),
        "regions": ControlCase(Unary(_regions), (plus,), ((minus,),), by="strict"),
        "modules": ControlCase(Outer(), (plus,), ((minus,), (plus * 9,))),
    }


def run_reference(name: str, args: tuple[Any, ...]) -> Any:
    """What the original returns, with Python's own control flow."""
    with plain_python():
        return cases()[name].module(*args)


@cache
def torch_program(name: str) -> torch.export.ExportedProgram:
    """The program that torch captures."""
    case = cases()[name]
    options = {"dynamic_shapes": case.dynamic, "strict": case.by == "strict"}
    return torch.export.export(case.module, case.args, **options)


@cache
def peer_program(name: str) -> ExportedProgram:
    """Torch's program as one of ours."""
    return from_torch(torch_program(name))


@cache
def program(name: str) -> ExportedProgram:
    """The program that lostwax captures; torch's, where it does not."""
    case = cases()[name]
    if case.by in ("torch", "strict"):
        return peer_program(name)
    return lostwax.export(case.module, case.args, dynamic_shapes=case.dynamic)


def peer_names() -> list[str]:
    """The programs that torch captures, too."""
    return [name for name, case in cases().items() if case.by == "both"]


def both_programs(name: str) -> list[ExportedProgram]:
    """The program as lostwax captures it, and as torch does, as far as they do."""
    return [program(name), *([peer_program(name)] if cases()[name].by == "both" else [])]
