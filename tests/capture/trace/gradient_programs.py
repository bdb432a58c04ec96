"""Random programs for the gradient fuzzer: detached tensors, writes that autograd sees or does not,
functions with a backward of their own, and gradients inside.

As in `programs.py` a program is source text, grown line by line: a line stays if eager accepts it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.capture.trace.test_gradients import Clamped, InPlace, Product, Reversed, Rounded

SIZE = (3, 4)


def strided(t: Tensor) -> Tensor:
    """A view of storage. (To eager, what lies outside of its argument has no gradient.)"""
    if not t.is_contiguous() or t.numel() < 5:
        raise ValueError
    return t.as_strided((2, 2), (1, 2), t.storage_offset() + 1)


NAMES: dict[str, Any] = {
    "strided": strided,
    "torch": torch,
    "checkpoint": checkpoint,
    "Clamped": Clamped,
    "InPlace": InPlace,
    "Product": Product,
    "Reversed": Reversed,
    "Rounded": Rounded,
}


class Written(nn.Module):
    """A module whose forward is a text."""

    def __init__(self, source: str, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.w = nn.Parameter(torch.randn(SIZE))
        self.register_buffer("b", torch.randn(SIZE))
        names = dict(NAMES)
        exec(source, names)
        self.body = names["forward"]

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Any:
        return self.body(self, x, y, z)


@dataclass
class GradientProgram:
    seed: int
    source: str

    def fresh(self) -> Written:
        return Written(self.source, self.seed)


def given(seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Leaves, and the arguments: a leaf, what is computed from one, and what has no gradient."""
    torch.manual_seed(seed + 1)
    leaves = [torch.randn(SIZE, requires_grad=True) for _ in range(2)]
    return leaves, [leaves[0], leaves[1] * 2, torch.randn(SIZE)]


class _Growing:
    """A program under way."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.lines: list[str] = []
        self.names = ["x", "y", "z", "self.w", "self.b"]
        self.last = "x"

    def pick(self) -> str:
        return self.last if self.rng.random() < 0.4 else self.rng.choice(self.names)

    def source(self, result: str) -> str:
        body = "".join(f"    {line}\n" for line in [*self.lines, f"return {result}"])
        return f"def forward(self, x, y, z):\n{body}"

    def runs(self, line: str, result: str = "x * 1") -> bool:
        self.lines.append(line)
        module, (_, args) = Written(self.source(result), self.seed), given(self.seed)
        try:
            module(*args)
        except Exception:
            self.lines.pop()
            return False
        return True

    def grow(self) -> None:
        roll, new = self.rng.random(), f"v{len(self.lines)}"
        if roll < 0.4:
            line = f"{new} = {self.view()}"
            if self.rng.random() < 0.2:  # (other views made so are leaves to eager)
                line = f"with torch.no_grad(): {line}.detach()"
        elif roll < 0.7:
            new, line = "", self.write()
        elif roll < 0.95:
            line = f"{new} = {self.computed()}"
        else:
            line = f"{new}, = torch.autograd.grad({self.pick()}.square().sum(), {self.pick()}, "
            line += f"create_graph={self.rng.random() < 0.7})"
        if self.runs(line) and new:
            self.names.append(new)
            self.last = new

    def view(self) -> str:
        forms = (
            "{}.detach()", "{}.detach()", "{}[1:]", "{}[0]", "{}[..., 1:3]", "{}.t()",
            "{}.view(-1)", "{}.reshape(4, 3)", "{}.diagonal()", "{}.unbind(0)[1]", "{}.mT",
            "strided({})", "{}.detach().requires_grad_()", "{}.unsqueeze(0)",
            "{}.clone()", "{}.split(2)[0]", "{}.view_as({})",
        )  # fmt: skip
        name = self.pick()
        return self.rng.choice(forms).replace("{}", name)

    def computed(self) -> str:
        a, b = self.pick(), self.pick()
        forms = (
            f"{a} * {b}", f"{a}.tanh()", f"{a}.exp() * {b}.sum()", f"torch.sigmoid({a})",
            f"Rounded.apply({a} * 3)", f"Reversed.apply({a}, 0.5)", f"Clamped.apply({a}, -1, 1)",
            f"Product.apply({a} * 0.1, {b}.tanh())", f"{a}.cumsum(0)", f"{a}.max({a}.mean())",
            f"checkpoint(lambda t, s: t.tanh() * s, {a} * 1, {b}.sum(), use_reentrant=False)",
            f"InPlace.apply({a} * 1)", f"torch.where({a} > 0, {a}, {b}.mean())",
            f"torch.func.grad(lambda t: (t.exp() * {b}.sum()).sum())({a})",
        )  # fmt: skip
        return self.rng.choice(forms)

    def write(self) -> str:
        t, a = self.pick(), self.pick()
        forms = (
            f"{t}.mul_(2)", f"{t}.fill_(0.5)", f"{t}.zero_()", f"{t}.add_({a}.mean())",
            f"{t}.mul_({a}.mean())", f"{t}.copy_({a})", f"{t}[0] = {a}.mean()", f"{t}.tanh_()",
            f"{t}[..., 0] *= {a}.sum()", f"{t}.add_({a})", f"{t}.sigmoid_()", f"InPlace.apply({t})",
            f"torch.mul({t}, {a}.mean(), out={t})",
        )  # fmt: skip
        line = self.rng.choice(forms)
        quiet = self.rng.random() < 0.35
        return f"with torch.no_grad(): {line}" if quiet else line

    def result(self) -> str:
        names = [n for n in self.names if n not in ("x", "y", "z", "self.w", "self.b")]
        chosen = self.rng.sample(names, min(len(names), 3))
        return "".join(f"{n}, " for n in chosen) + "x * 1, y * 1, z * 1, self.w * 1, self.b * 1"


def grown(seed: int) -> GradientProgram:
    """The program of a seed."""
    growing = _Growing(seed)
    for _ in range(growing.rng.randint(3, 9)):
        growing.grow()
    return GradientProgram(seed, growing.source(growing.result()))
