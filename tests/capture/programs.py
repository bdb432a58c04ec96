"""Random programs for the fuzzer: small modules of views, writes, aliases and Python values.

A program is source text. It is grown line by line: each candidate line is run on real tensors and
stays if eager accepts it, so every program is valid, and a seed is all that is needed to have it
again. Left out is only what eager itself does not define: operands that overlap the written memory
in another layout, and element-wise writes to memory that a view shows twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NAMES: dict[str, Any] = {"torch": torch, "F": F, "nn": nn}
_DTYPES = (torch.float32,) * 6 + (torch.float64, torch.int64, torch.int32, torch.bool)
_TEXT = {d: str(d) for d in _DTYPES}


class Holder(nn.Module):
    """The module of a program; `forward` is made from its text."""


@dataclass
class Program:
    """One random program: its text, its state and its example inputs."""

    seed: int
    source: str
    module: nn.Module
    args: tuple[Any, ...]

    def fresh(self) -> tuple[nn.Module, tuple[Any, ...]]:
        """The module and its arguments in memory of their own, sharing as the originals do."""
        module, args = deepcopy((self.module, self.args))
        return module, args


def generate(seed: int) -> Program:
    """The program of a seed."""
    return _Growing(seed).program()


# ----------------------------------------------------------------------------------------- memory


def cells(t: Tensor) -> list[int]:
    """The places in memory of a tensor's elements, in units of its element."""
    end = t.storage_offset() + 1
    end += sum((s - 1) * st for s, st in zip(t.shape, t.stride(), strict=True) if s)
    if t.numel() == 0:
        return []
    return torch.arange(end).as_strided(t.shape, t.stride(), t.storage_offset()).flatten().tolist()


def storage(t: Tensor) -> int:
    return t.untyped_storage()._cdata


def shows_twice(t: Tensor) -> bool:
    """Does one place in memory stand for two elements?"""
    places = cells(t)
    return len(set(places)) < len(places)


def _same_place(a: Tensor, b: Tensor) -> bool:
    return (a.storage_offset(), a.shape, a.stride(), a.dtype) == (
        b.storage_offset(),
        b.shape,
        b.stride(),
        b.dtype,
    )


# ---------------------------------------------------------------------------------------- growing


@dataclass
class _Growing:
    """A program under way: what is in scope, with its values of today."""

    seed: int
    rng: random.Random = field(init=False)
    lines: list[str] = field(default_factory=list)
    scope: dict[str, Any] = field(default_factory=dict)
    count: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        torch.manual_seed(self.seed)
        self.module = Holder()
        self._state()
        names = "xyz"[: self.rng.randint(1, 3)]
        values: list[Any] = [self.tensor() for _ in names]
        if len(values) > 1 and self.rng.random() < 0.1:
            values[1] = self.rng.choice((values[0], values[0][..., :1], values[0].T))
        self.flag, self.n = self.rng.random() < 0.5, self.rng.randint(0, 3)
        self.args = (*values, self.flag, self.n)
        self.parameters = [*names, "flag", "n"]
        self.original = deepcopy((self.module, self.args))
        self.scope = dict(zip(self.parameters, self.args, strict=True))
        self.scope["self"] = self.module

    def _state(self) -> None:
        for i in range(self.rng.randint(0, 2)):
            self.module.register_buffer(f"b{i}", self.tensor(), persistent=self.rng.random() < 0.8)
        if self.rng.random() < 0.4:
            self.module.p0 = nn.Parameter(torch.randn(self.sizes()))
        if self.rng.random() < 0.3:
            self.module.constant = torch.randn(self.sizes())
        if self.rng.random() < 0.1 and hasattr(self.module, "b0"):
            self.module.register_buffer("tied", self.module.b0)

    def program(self) -> Program:
        for _ in range(self.rng.randint(2, 9)):
            for _ in range(8):
                if self.grown():
                    break
        self.finish()
        body = "\n".join(f"    {line}" for line in self.lines)
        source = f"def forward(self, {', '.join(self.parameters)}):\n{body}\n"
        made: dict[str, FunctionType] = {}
        exec(compile(source, f"<program {self.seed}>", "exec"), dict(NAMES), made)
        module, args = self.original
        module.forward = made["forward"].__get__(module)  # type: ignore[method-assign]
        module.forward = _Bound(made["forward"], module)
        return Program(self.seed, source, module, args)

    def grown(self) -> bool:
        """One more line, if eager takes it."""
        line = self.rng.choice(_KINDS)(self)
        if line is None:
            return False
        before = dict(self.scope)
        try:
            exec(compile("\n".join(line.split("\n")), "<line>", "exec"), NAMES, self.scope)
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
            self.scope = before
            return False
        self.lines.extend(line.split("\n"))
        return True

    def finish(self) -> None:
        names = self.tensors()
        chosen = [self.rng.choice(names) for _ in range(self.rng.randint(1, 4))]
        text = ", ".join(chosen)
        self.lines.append(
            self.rng.choice(
                (
                    f"return ({text},)",
                    f"return [{text}]",
                    f"return {chosen[0]}",
                    f"return {{'a': ({text},), 'n': n, 'none': None}}",
                )
            )
        )

    # ------------------------------------------------------------------------------------- choices

    def sizes(self, dims: int | None = None) -> list[int]:
        count = self.rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4)) if dims is None else dims
        return [self.rng.choice((0, 1, 2, 2, 3, 3, 4, 4)) if self.rng.random() < 0.5 else
                self.rng.choice((2, 3, 4)) for _ in range(count)]  # fmt: skip

    def tensor(self) -> Tensor:
        """A fresh tensor, also in layouts that are not row-major."""
        dtype, sizes = self.rng.choice(_DTYPES), self.sizes()
        x = (torch.randn(sizes) * 3).to(dtype)
        layout = self.rng.random()
        if layout < 0.15 and sizes:
            x = torch.empty([2 * s for s in sizes], dtype=dtype).zero_()[
                tuple(slice(0, s) for s in sizes)
            ].copy_(x)  # fmt: skip
        elif layout < 0.3 and len(sizes) > 1:
            x = x.transpose(0, -1).contiguous().transpose(0, -1)
        elif layout < 0.35 and len(sizes) == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return x

    def tensors(self) -> list[str]:
        names = [k for k, v in self.scope.items() if isinstance(v, Tensor)]
        held = ("b0", "b1", "p0", "constant", "tied")
        return names + [f"self.{k}" for k in held if isinstance(getattr(self.module, k, None), Tensor)]

    def value(self, name: str) -> Tensor:
        if name.startswith("self."):
            return getattr(self.module, name[5:])  # type: ignore[no-any-return]
        return self.scope[name]  # type: ignore[no-any-return]

    def pick(self, fits: Callable[[Tensor], bool] = lambda t: True) -> str | None:
        found = [n for n in self.tensors() if fits(self.value(n))]
        # What came last is the most entangled: prefer it.
        if found and self.rng.random() < 0.4:
            return found[-1] if not found[-1].startswith("self.") else self.rng.choice(found)
        return self.rng.choice(found) if found else None

    def new(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def target(self) -> str | None:
        """Something to write to."""
        return self.pick(lambda t: not shows_twice(t) and not (t.requires_grad and t.is_leaf))

    def operand(self, target: str) -> str:
        """Something to write: read from other memory, or from the very same place."""
        goal = self.value(target)
        fits = [n for n in self.tensors() if self._broadcasts(self.value(n), goal)]
        kind = self.rng.random()
        if not fits or kind < 0.3:
            return self.rng.choice(("1", "2", "0.5", "True", "torch.tensor(3)"))
        name = self.rng.choice(fits)
        source = self.value(name)
        if storage(source) == storage(goal) and not _same_place(source, goal):
            return f"{name}.clone()"
        return name

    @staticmethod
    def _broadcasts(a: Tensor, goal: Tensor) -> bool:
        try:
            return torch.broadcast_shapes(a.shape, goal.shape) == goal.shape
        except RuntimeError:
            return False

    def dim(self, t: Tensor) -> int:
        return self.rng.randint(-t.dim(), t.dim() - 1) if t.dim() else 0

    def index(self, t: Tensor) -> str:
        """A basic index."""
        parts = []
        for size in t.shape[: self.rng.randint(0, t.dim())]:
            kind = self.rng.random()
            if kind < 0.35 and size:
                parts.append(str(self.rng.randint(-size, size - 1)))
            elif kind < 0.8:
                a, b = self.rng.randint(-size - 1, size), self.rng.randint(-1, size + 1)
                step = self.rng.choice(("", "", ":1", ":2", ":3"))
                low, high = self.rng.choice(("", str(a))), self.rng.choice(("", str(b)))
                parts.append(f"{low}:{high}{step}")
            else:
                parts.append(":")
        if self.rng.random() < 0.2:
            parts.insert(self.rng.randint(0, len(parts)), "None")
        if self.rng.random() < 0.2:
            parts.insert(self.rng.randint(0, len(parts)), "...")
        return ", ".join(parts) or "..."


class _Bound:
    """`forward` bound to its module, also in copies of it."""

    def __init__(self, function: FunctionType, module: nn.Module) -> None:
        self.function, self.module = function, module
        self.__signature__ = _signature(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self.module, *args, **kwargs)
