"""Random programs for the fuzzer: small modules of views, writes, aliases and Python values.

A program is source text. It is grown line by line: each candidate line is run on real tensors and
stays if eager accepts it, so every program is valid, and a seed is all that is needed to have it
again. Left out is only what eager itself does not define: operands that overlap the written memory
in another layout, element-wise writes to memory that a view shows twice, and the order in which
random numbers fill a layout that is not row-major.
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

from tests.capture.compare import storage

NAMES: dict[str, Any] = {"torch": torch, "F": F, "nn": nn}
_DTYPES = (torch.float32,) * 6 + (torch.float64, torch.int64, torch.int32, torch.bool)
_TEXT = {d: str(d) for d in _DTYPES}


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
    return Growing(seed).program()


# ----------------------------------------------------------------------------------------- memory


def cells(t: Tensor) -> list[int]:
    """The places in memory of a tensor's elements, in units of its element."""
    end = t.storage_offset() + 1
    end += sum((s - 1) * st for s, st in zip(t.shape, t.stride(), strict=True) if s)
    if t.numel() == 0:
        return []
    return torch.arange(end).as_strided(t.shape, t.stride(), t.storage_offset()).flatten().tolist()


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
class Growing:
    """A program under way: what is in scope, with its values of today."""

    seed: int
    rng: random.Random = field(init=False)
    lines: list[str] = field(default_factory=list)
    scope: dict[str, Any] = field(default_factory=dict)
    count: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        torch.manual_seed(self.seed)
        self.module = nn.Module()
        self._state()
        names = "xyz"[: self.rng.randint(1, 3)]
        values: list[Any] = [self.tensor() for _ in names]
        if len(values) > 1 and values[0].dim() > 1 and self.rng.random() < 0.15:
            values[1] = self.rng.choice((values[0], values[0][...], values[0].mT))
        self.flag, self.n = self.rng.random() < 0.5, self.rng.randint(0, 3)
        self.args = (*values, self.flag, self.n)
        self.parameters = [*names, "flag", "n"]
        self.original = deepcopy((self.module, self.args))
        self.scope = {**NAMES, **dict(zip(self.parameters, self.args, strict=True))}
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
        module.__class__ = type("Random", (nn.Module,), {"forward": made["forward"]})
        return Program(self.seed, source, module, args)

    def grown(self) -> bool:
        """One more line, if eager takes it."""
        line = self.rng.choice(self.kinds())(self)
        if line is None:
            return False
        before = dict(self.scope)
        try:
            exec(compile(line, "<line>", "exec"), self.scope)
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
            self.scope = before
            return False
        self.lines.extend(line.split("\n"))
        return True

    def kinds(self) -> tuple[Kind, ...]:
        """What a line may be; those that occur several times are more likely."""
        return KINDS

    def finish(self) -> None:
        names = self.tensors()
        late = [n for n in names if n.startswith("t")][-3:] or names
        chosen = [self.rng.choice((*names, *late)) for _ in range(self.rng.randint(1, 5))]
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
        return names + [
            f"self.{k}" for k in held if isinstance(getattr(self.module, k, None), Tensor)
        ]

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
        name = self.pick(lambda t: not shows_twice(t) and not isinstance(t, nn.Parameter))
        return None if name == "self.constant" and self.rng.random() < 0.9 else name

    def operand(self, target: str) -> str:
        """Something to write: read from other memory, or from the very same place."""
        goal = self.value(target)
        fits = [n for n in self.tensors() if self._broadcasts(self.value(n), goal)]
        kind = self.rng.random()
        if not fits or kind < 0.3:
            return self.rng.choice(("1", "2", "0.5", "True", "torch.tensor(3)"))
        name = self.rng.choice(fits)
        source = self.value(name)
        if source.requires_grad and not goal.is_floating_point():
            return f"{name}.detach()"  # autograd has no functional fill of these
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


# -------------------------------------------------------------------------------- kinds of lines


def _view(g: Growing) -> str | None:
    """A new name for memory that has one already."""
    name = g.pick()
    if name is None:
        return None
    text = g.rng.choice(_VIEWS)(g, name, g.value(name))
    return text and (text if "=" in text.split("(")[0] else f"{g.new()} = {text}")


def _any_size(g: Growing, t: Tensor) -> str:
    """Sizes that some view of this tensor may have."""
    n = t.numel()
    if n == 0 or g.rng.random() < 0.3:
        return g.rng.choice(("-1", f"{n}", f"1, {n}", f"{n}, 1", f"-1, {n or 1}"))
    a = g.rng.choice([d for d in range(1, n + 1) if n % d == 0])
    return g.rng.choice((f"{a}, {n // a}", f"{a}, -1", f"{n // a}, 1, {a}"))


def _expanded(g: Growing, t: Tensor) -> str:
    sizes = [g.rng.choice((2, 3, -1)) if s == 1 else g.rng.choice((-1, s)) for s in t.shape]
    more = [2] if g.rng.random() < 0.4 else []
    return ", ".join(map(str, more + sizes))


def _strided(g: Growing, t: Tensor) -> str:
    dims = g.rng.randint(0, 3)
    sizes = [g.rng.randint(1, 3) for _ in range(dims)]
    strides = [g.rng.choice((1, 2, 3, 4, 0) if g.rng.random() < 0.2 else (1, 2, 4)) for _ in sizes]
    if g.rng.random() < 0.5:  # without overlap
        strides = list(torch.empty(sizes).stride())
    offset = g.rng.choice(("", ", 0", ", 1", f", {t.storage_offset()}"))
    return f"({''.join(f'{s}, ' for s in sizes)}), ({''.join(f'{s}, ' for s in strides)}){offset}"


def _permutation(g: Growing, t: Tensor) -> str:
    order = [d - g.rng.choice((0, t.dim())) for d in range(t.dim())]
    g.rng.shuffle(order)
    return ", ".join(map(str, order))


def _pieces(g: Growing, name: str, t: Tensor) -> str:
    d = g.dim(t)
    n = t.shape[d] if t.dim() else 1
    call = g.rng.choice(
        (
            f"split({g.rng.randint(1, 2)}, {d})",
            f"chunk({g.rng.randint(1, 3)}, {d})",
            f"unbind({d})",
            f"split([{n // 2}, {n - n // 2}], {d})",
            f"tensor_split({g.rng.randint(1, 3)}, {d})",
        )
    )
    if g.rng.random() < 0.5:
        return f"{name}.{call}[{g.rng.choice((0, -1, 1))}]"
    return f"{g.new()}, *rest{g.count} = {name}.{call}\n{g.new()} = rest{g.count - 1}[-1]"


View = Callable[[Growing, str, Tensor], str | None]
_VIEWS: tuple[View, ...] = (
    lambda g, n, t: f"{n}[{g.index(t)}]",
    lambda g, n, t: f"{n}[{g.index(t)}]",
    lambda g, n, t: f"{n}[{g.index(t)}]",
    lambda g, n, t: f"{n}.select({g.dim(t)}, {g.rng.randint(-2, 2)})",
    lambda g, n, t: f"{n}.narrow({g.dim(t)}, {g.rng.randint(0, 1)}, {g.rng.randint(0, 2)})",
    lambda g, n, t: f"{n}.t()",
    lambda g, n, t: f"{n}.mT",
    lambda g, n, t: f"{n}.transpose({g.dim(t)}, {g.dim(t)})",
    lambda g, n, t: f"{n}.movedim({g.dim(t)}, {g.dim(t)})",
    lambda g, n, t: f"{n}.permute({_permutation(g, t)})",
    lambda g, n, t: f"{n}.view({_any_size(g, t)})",
    lambda g, n, t: f"{n}.reshape({_any_size(g, t)})",
    lambda g, n, t: f"{n}.flatten({g.dim(t)})",
    lambda g, n, t: f"{n}.squeeze()",
    lambda g, n, t: f"{n}.squeeze({g.dim(t)})",
    lambda g, n, t: f"{n}.unsqueeze({g.rng.randint(-t.dim() - 1, t.dim())})",
    lambda g, n, t: f"{n}.expand({_expanded(g, t)})",
    lambda g, n, t: f"{n}.diagonal({g.rng.randint(-1, 1)}, {g.dim(t)}, {g.dim(t)})",
    lambda g, n, t: f"{n}.as_strided({_strided(g, t)})",
    lambda g, n, t: f"{n}.unfold({g.dim(t)}, {g.rng.randint(0, 3)}, {g.rng.randint(1, 3)})",
    lambda g, n, t: f"{n}.detach()",
    lambda g, n, t: f"{n}.data",
    lambda g, n, t: f"{n}.view(torch.int32)" if t.dtype is not torch.bool else None,
    lambda g, n, t: f"{n}.view(torch.int16)" if t.dtype is not torch.bool else None,
    lambda g, n, t: f"{n}.view_as({n})",
    lambda g, n, t: f"{n}.contiguous()",
    lambda g, n, t: f"{n}.to({g.rng.choice(_DTYPES)})",
    lambda g, n, t: f"torch.view_as_complex({n})",
    lambda g, n, t: f"torch.view_as_real({n})",
    lambda g, n, t: f"{n}.conj()",
    lambda g, n, t: f"{n}.real",
    lambda g, n, t: f"{n}.imag",
    lambda g, n, t: n,
    _pieces,
    _pieces,
)


def _compute(g: Growing) -> str | None:
    """A new tensor."""
    a, b = g.pick(), g.pick()
    if a is None or b is None:
        return None
    t = g.value(a)
    text = g.rng.choice(
        (
            f"{a} + {b}",
            f"{a} * {b}",
            f"{a} - 1.5",
            f"{a} * 2",
            f"torch.where({a} > 0, {a}, {b})",
            f"torch.cat([{a}, {b}], {g.dim(t)})",
            f"torch.stack([{a}, {b}])",
            f"{a}.sum()",
            f"{a}.sum({g.dim(t)}, keepdim={g.flag})",
            f"{a}.float().mean({g.dim(t)})",
            f"{a}.clone()",
            f"torch.relu({a})",
            f"{a}.sin()",
            f"{a}.float() @ {b}.float()",
            f"{a}.flip({g.dim(t)})",
            f"{a}.roll(1, {g.dim(t)})",
            f"{a}.cumsum({g.dim(t)})",
            f"torch.zeros_like({a})",
            f"torch.empty_like({a}).fill_(2)",
            f"{a}.new_zeros(2, 3)",
            f"torch.full_like({a}, 2)",
            f"torch.ones({', '.join(map(str, t.shape)) or '()'})",
            "torch.tensor([[1., 2.], [3., 4.]])",
            f"torch.arange({g.rng.randint(1, 6)})",
            f"{a}[{a} > 0].sum()",
            f"{a}[[0, -1]]",
            f"{a}[torch.tensor([0, 1, 0])]",
            f"{a}.gather({g.dim(t)}, torch.zeros_like({a}, dtype=torch.int64))",
            f"torch.rand_like({a})",
            f"F.dropout({a}.contiguous(), 0.5, training=flag)",
            f"{a}.sort({g.dim(t)})[0]",
            f"{a}.max({g.dim(t)})[0]",
            f"torch.broadcast_tensors({a}, {b})[0]",
            f"{a}.to(torch.float64) / 3",
            f"{a}.repeat({', '.join(['2'] * max(1, t.dim()))})",
            f"torch.atleast_2d({a})",
            f"{a}.float().softmax({g.dim(t)})",
        )
    )
    return f"{g.new()} = {text}"


def _write(g: Growing) -> str | None:
    """A write to existing memory."""
    x = g.target()
    return x and g.rng.choice(_WRITES)(g, x, g.value(x))


def _mask(g: Growing, x: str, t: Tensor) -> str:
    return g.rng.choice((f"{x} > 0", f"({x} > 0)", f"torch.ones_like({x}, dtype=torch.bool)"))


def _rows(g: Growing, t: Tensor, d: int) -> str:
    """Indices into a dimension, each once: what two writes to one place leave is not defined."""
    n = t.shape[d] if t.dim() else 1
    chosen = g.rng.sample(range(n), g.rng.randint(0, n))
    return f"torch.tensor({chosen}, dtype=torch.int64)"


def _index_write(g: Growing, x: str, t: Tensor) -> str:
    d = g.dim(t)
    count = g.rng.randint(1, max(1, t.shape[d] if t.dim() else 1))
    rows = f"torch.tensor({list(range(count))})"
    part = f"torch.ones_like({x}).narrow({d}, 0, {count})"
    return g.rng.choice(
        (
            f"{x}.index_fill_({d}, {_rows(g, t, d)}, 2)",
            f"{x}.index_copy_({d}, {rows}, {part})",
            f"{x}.index_add_({d}, {rows}, {part})",
            f"{x}.index_put_(({_rows(g, t, 0)},), torch.tensor(5).to({x}.dtype))",
            f"{x}.index_put_(({_rows(g, t, 0)},), torch.ones_like({x}[:1]), accumulate=True)",
            f"{x}[{_rows(g, t, 0)}] = 4",
            f"{x}[{_rows(g, t, 0)}] += 1",
            f"{x}[:, {_rows(g, t, -1)}] = 4",
            f"{x}.scatter_({d}, torch.zeros_like({x}, dtype=torch.int64).narrow({d}, 0, 1), 3)",
            f"{x}.scatter_add_({d}, ({x} * 0).long(), torch.ones_like({x}))",
            f"{x}.put_(torch.tensor([0]), torch.ones(1).to({x}.dtype))",
        )
    )


def _out(g: Growing, x: str, t: Tensor) -> str:
    a = g.operand(x)
    a = a if not a[0].isdigit() and a != "True" else f"torch.ones_like({x})"
    return g.rng.choice(
        (
            f"torch.add({a}, {a}, out={x})",
            f"torch.mul({a}, 2, out={x})",
            f"torch.sin({a}, out={x})",
            f"torch.cumsum({a}.clone(), {g.dim(t)}, out={x})",
            f"torch.cat([{a}.clone()], out={x})",
            f"{g.new()} = torch.sub({a}, 1, out={x})",
            f"torch.where({a} > 0, {a}, {a}, out={x})",
            f"torch.matmul({a}.clone(), {a}.clone(), out={x})",
            f"torch.sum({a}.clone().unsqueeze({g.dim(t)}), {g.dim(t)}, out={x})",
        )
    )


Write = Callable[[Growing, str, Tensor], str | None]
_WRITES: tuple[Write, ...] = (
    lambda g, x, t: f"{x}.add_({g.operand(x)})",
    lambda g, x, t: f"{x}.mul_({g.operand(x)})",
    lambda g, x, t: f"{x} += {g.operand(x)}" if not x.startswith("self.p") else None,
    lambda g, x, t: f"{x} *= 2" if not x.startswith("self.p") else None,
    lambda g, x, t: f"{x}.copy_({g.operand(x)})",
    lambda g, x, t: f"{x}.copy_({g.operand(x)})",
    lambda g, x, t: f"{x}[{g.index(t)}] = {g.rng.choice((1, 2.5, True))}",
    lambda g, x, t: f"{x}[{g.index(t)}] += 1",
    lambda g, x, t: f"{x}[...] = {g.operand(x)}",
    lambda g, x, t: f"{x}[{g.index(t)}].mul_(3)",
    lambda g, x, t: f"{x}[{_mask(g, x, t)}] = {g.rng.choice((0, -1.5))}",
    lambda g, x, t: f"{x}.masked_fill_({_mask(g, x, t)}, {g.rng.choice((0, -1.5))})",
    lambda g, x, t: f"{x}.masked_scatter_({_mask(g, x, t)}, torch.ones_like({x}))",
    lambda g, x, t: f"{x}.fill_({g.rng.choice((0, 3.5))})",
    lambda g, x, t: f"{x}.zero_()",
    lambda g, x, t: f"{x}.relu_()",
    lambda g, x, t: f"F.relu({x}, inplace=True)",
    lambda g, x, t: f"{g.new()} = {x}.clamp_(-1, 1)",
    lambda g, x, t: f"{x}.neg_()",
    lambda g, x, t: f"{x}.sin_()",
    lambda g, x, t: f"{x}.clamp_(min={g.operand(x)})",
    lambda g, x, t: f"{x}.addcmul_(torch.ones_like({x}), torch.ones_like({x}), value=2)",
    lambda g, x, t: f"{x}.lerp_(torch.ones_like({x}), 0.5)",
    lambda g, x, t: f"{x}.tril_()",
    lambda g, x, t: f"{x}.fill_diagonal_(7)",
    lambda g, x, t: f"{x}.cumsum_({g.dim(t)})",
    lambda g, x, t: f"{x}.uniform_()" if t.is_contiguous() else None,
    lambda g, x, t: f"{x}.bernoulli_()" if t.is_contiguous() else None,
    lambda g, x, t: f"{x}.gt_(0)",
    lambda g, x, t: f"torch._foreach_add_([{x}], 1)",
    lambda g, x, t: f"torch._foreach_mul_([{x}, torch.ones_like({x})], [2, 3])",
    lambda g, x, t: f"{x}.data.add_(1)",
    lambda g, x, t: f"{x}.detach().mul_(2)",
    lambda g, x, t: f"with torch.no_grad():\n    {x}.mul_(0.5)",
    _index_write, _index_write, _index_write, _out, _out,
)  # fmt: skip


def _metadata(g: Growing) -> str | None:
    """The same tensor, looked at in another way from now on."""
    x = g.pick(lambda t: not t.requires_grad)
    if x is None or (not x.startswith("t") and g.rng.random() < 0.9):
        return None  # most that come from outside must keep their sizes
    t = g.value(x)
    return g.rng.choice(
        (
            f"{x}.t_()",
            f"{x}.transpose_({g.dim(t)}, {g.dim(t)})",
            f"{x}.squeeze_()",
            f"{x}.squeeze_({g.dim(t)})",
            f"{x}.unsqueeze_({g.rng.randint(-t.dim() - 1, t.dim())})",
            f"{x}.swapaxes_({g.dim(t)}, {g.dim(t)})",
            f"{x}.as_strided_({_strided(g, t)})",
            f"{x}.detach_()",
        )
    )


def _assign(g: Growing) -> str | None:
    """Another tensor in a buffer's place; `x.data = y`."""
    buffers = [n for n in g.tensors() if n.startswith("self.b")]
    if not buffers:
        return None
    b = g.rng.choice(buffers)
    held = g.value(b)
    # A constant in a buffer's place is copied by the program: it would not alias as in eager.
    names = [n for n in g.tensors() if n != "self.constant"]
    same = [n for n in names if _alike(g.value(n), held)]
    return g.rng.choice(
        (
            f"{b} = {b} + 1",
            f"{b} = {b} * 2",
            f"{b} = {g.rng.choice(same)}" if same else None,
            f"{b} = {g.rng.choice(same)}.clone()" if same else None,
            f"{b} = {b}.sin().to({b}.dtype)",
        )
    )


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and not a.requires_grad


def _control(g: Growing) -> str | None:
    """Python decides, by values that are not tensors."""
    x = g.target()
    if x is None:
        return None
    return g.rng.choice(
        (
            f"if flag:\n    {x}.add_(1)\nelse:\n    {x}.mul_(2)",
            f"for i in range(n):\n    {x}.add_(i)",
            f"if {x}.dim() > 1 and {x}.shape[0] > 1:\n    {x}[0].add_({x}[1].clone())",
            f"for row in {x}:\n    row.mul_(2)",
            f"{g.new()} = {x} * n",
            f"{g.new()} = [{x}.add_(k) for k in (1, 2)][0]",
            f"if {x}.is_contiguous():\n    {x}.view(-1).add_(1)",
        )
    )


Kind = Callable[[Growing], str | None]
KINDS: tuple[Kind, ...] = (
    *(_view,) * 8, *(_write,) * 8, *(_compute,) * 4, _metadata, _assign, _control,
)  # fmt: skip
