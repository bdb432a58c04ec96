"""`id` names an object only as long as that lives: a scan of the source for it, with a reason for
each use (identities.toml); the tables that hold what they name; and exports between which ids are
reused on purpose."""

from __future__ import annotations

import ast
import gc
import itertools
import random
import re
import tomllib
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lostwax import Dim, export
from lostwax.identity import ByIdentity, Seen

PACKAGE = Path(__file__).parent.parent / "lostwax"
TABLE = tomllib.loads((Path(__file__).parent / "identities.toml").read_text())


# --------------------------------------------------------------------------------------- the source


def uses(root: Path) -> set[str]:
    """Each function of a package, with its file, that speaks of `id`."""
    found = set()
    for path in root.rglob("*.py"):
        text = path.read_text()
        tree = ast.parse(text if re.search(r"\bid\b", text) else "")
        for function in _functions_with_id(tree, ()):
            found.add(f"{path.relative_to(root).as_posix()} {function}")
    return found


def _functions_with_id(node: ast.AST, around: tuple[str, ...]) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Name) and child.id == "id" and isinstance(child.ctx, ast.Load):
            yield ".".join(around) or "-"
        is_named = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        yield from _functions_with_id(child, (*around, child.name) if is_named else around)


def test_each_use_of_id_has_a_reason() -> None:
    listed = [use for kind in TABLE.values() for use in kind["uses"]]
    assert len(listed) == len(set(listed)), "listed twice"
    assert all(kind["reason"] for kind in TABLE.values())
    found = uses(PACKAGE)
    assert not found - set(listed), (
        "new uses of id(): hold the objects (lostwax.identity), or add them to identities.toml "
        f"under the reason why they live: {sorted(found - set(listed))}"
    )
    assert not set(listed) - found, f"no more there: {sorted(set(listed) - found)}"


def test_the_scan_finds_them(tmp_path: Path) -> None:
    source = """
        KNOWN = {id(print)}
        class A:
            id: int
            def f(self, xs):
                return set(map(id, xs)), self.id, sorted(xs, key=lambda x: x.id)
        def g(x):
            def h():
                return {id(x): 1}
            return h
        def k(id_of): return id_of.id(3)
    """
    (tmp_path / "inner").mkdir()
    lines = [line[8:] for line in source.splitlines()]
    (tmp_path / "inner" / "a.py").write_text("\n".join(lines))
    assert uses(tmp_path) == {"inner/a.py -", "inner/a.py A.f", "inner/a.py g.h"}


# --------------------------------------------------------------------------------------- the tables


class Thing:
    def __eq__(self, other: object) -> bool:
        raise AssertionError("not to be asked")

    __hash__ = None  # type: ignore[assignment]


def test_tables_hold_what_they_name() -> None:
    table, seen = ByIdentity[Thing, int](), Seen()
    alive = []
    for i in range(100):  # each would get the id of the one before
        thing = Thing()
        assert thing not in table
        assert table.get(thing) is None
        assert thing not in seen
        assert table.setdefault(thing, i) == i
        assert table.setdefault(thing, -1) == i
        seen.add(thing)
        assert thing in table
        assert thing in seen
        assert table[thing] == i
        alive.append(weakref.ref(thing))
    assert all(each() is not None for each in alive)
    assert len(table) == 100
    assert next(iter(table)) is alive[0]()
    table.clear()
    del seen, thing
    assert not any(each() is not None for each in alive)


# ------------------------------------------------------------------------------------------ reuse


class Chaos:
    """Decides at random when garbage is collected, and leaves holes that new objects fill."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def stir(self) -> None:
        self.random.choice((gc.enable, gc.disable, lambda: gc.collect(0), lambda: None))()
        junk: list[Any] = [[object() for _ in range(self.random.randrange(50))], {}, set(), Thing()]
        junk += [torch.empty(0) for _ in range(self.random.randrange(5))]
        self.random.shuffle(junk)
        del junk[:: self.random.randrange(1, 3)]


def masks(chaos: Chaos) -> Any:
    limits = [chaos.random.randrange(-2, 3) for _ in range(5)]
    inplace = chaos.random.random() < 0.5

    def forward(x):
        out, x = [x * 2], x.detach() if inplace else x
        for limit in limits:
            mask = x > limit
            out.append(x[mask] * x[mask].shape[0])
            if inplace:
                mask.logical_not_()
                out.append(torch.masked_select(x, mask) * mask.nonzero().shape[0])
            del mask
            chaos.stir()
        return out

    return forward


def generated(chaos: Chaos) -> Any:
    """A function whose code is gone when it is."""
    lines = [f"    x = x {chaos.random.choice('+-*')} {i}" for i in range(1, 4)]
    scope: dict[str, Any] = {}
    exec("\n".join(["def forward(x):", *lines, "    return x"]), scope)
    return scope["forward"]


NAMES = itertools.count()


def custom(chaos: Chaos) -> Any:
    """An operator of the user's, which is gone when it is."""
    # A name that was never used: torch.ops keeps what it has found under one, also if that is gone,
    # and calls it (seen with torch 2.11: bad_alloc, or a crash).
    factor, name = chaos.random.randrange(2, 9), f"scaled_{next(NAMES)}"
    library = torch.library.Library("lostwax_reuse", "FRAGMENT")
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, lambda x: x * factor, "CompositeExplicitAutograd")
    torch.library.register_fake(
        f"lostwax_reuse::{name}", lambda x: torch.empty_like(x), lib=library
    )

    def forward(x):
        return getattr(torch.ops.lostwax_reuse, name)(x.detach()) + factor * x

    forward.library = library  # type: ignore[attr-defined]
    return forward


def module(chaos: Chaos) -> Any:
    size = chaos.random.randrange(1, 4)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(size))
            self.register_buffer("count", torch.zeros(()))
            self.kept = [torch.randn(size) for _ in range(size)]

        def forward(self, x):
            self.count += 1
            chaos.stir()
            return x[:, None] * self.weight + sum(self.kept) + self.count

    return Layer()


def differentiated(chaos: Chaos) -> Any:
    factor = chaos.random.randrange(2, 9)

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            a = x.clone()
            ctx.parts = [a[:2], a[2:]]
            a.mul_(factor)
            ctx.factor = torch.full((), float(factor))
            return a + 0

        @staticmethod
        def backward(ctx, grad):
            chaos.stir()
            return grad * ctx.factor + ctx.parts[0].sum() - ctx.parts[1].sum()

    def forward(x):
        return Scaled.apply(x * factor)

    return forward


def views(chaos: Chaos) -> Any:
    at = chaos.random.randrange(1, 4)

    def forward(x):
        y = x * at
        first, second = y[:at], y[at:]
        chaos.stir()
        first += second.sum()
        del first
        chaos.stir()
        y.view(-1, 1).mul_(2)
        return y, second.clone()

    return forward


MAKERS = (masks, generated, custom, module, differentiated, views)


@pytest.mark.parametrize("seed", range(3))
def test_exports_in_a_row_while_ids_are_reused(seed: int) -> None:
    chaos = Chaos(seed)
    is_collecting = gc.isenabled()
    torch.manual_seed(seed)
    try:
        for _ in range(10):
            function = chaos.random.choice(MAKERS)(chaos)
            _compare(chaos, function)
            del function
            chaos.stir()
    finally:
        gc.enable() if is_collecting else gc.disable()


def _compare(chaos: Chaos, function: Any) -> None:
    x = torch.tensor([1.0, -2, 3, 4, -5], requires_grad=True)
    shapes = {"x": {0: Dim.DYNAMIC}} if chaos.random.random() < 0.5 else None
    program = export(function, (x,), dynamic_shapes=shapes)
    chaos.stir()
    decomposed = program.run_decompositions()
    for each in (program, decomposed):
        ran = each.module()
        for values in (x, torch.tensor([-1.0, -1, 2, 2, 2], requires_grad=True)):
            if isinstance(function, nn.Module):
                function.count.zero_()
                ran.count.zero_()
            want, got = function(values), ran(values)
            torch.testing.assert_close(got, want)
            torch.testing.assert_close(_gradient(got, values), _gradient(want, values))
            chaos.stir()


def _gradient(out: Any, x: Tensor) -> Tensor:
    total = sum(each.sum() for each in (out if isinstance(out, (list, tuple)) else [out]))
    return torch.autograd.grad(total, x)[0]
