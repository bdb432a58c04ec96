"""Random Python with control flow on declared sizes, exported once with `control_flow="sizes"` and
compared with eager at many sizes.

    python -m fuzz.sizes [--count 200] [--seed 0] [--jobs 1] [--minutes 60] [--show]

A program is a `forward` that branches on the sizes `n` and `m` of its arguments, loops over them, and
cuts and joins tensors by them; some conditions depend on data, too. Which sizes are declared, and
from 0, 1 or 2 on, differs. An export is right at each of them, or refuses with an error of lostwax's:
all else is a failure. "checked": a branch inside of another one, of which both ways cannot be kept, is
answered by the example, and the program checks that when it runs. Exits with 1 if anything was wrong.
"""

from __future__ import annotations

import random
import sys
from typing import Any, NamedTuple

import torch

import lostwax
from fuzz import running
from fuzz.flow import Base, is_same, limit, make_class
from lostwax import Dim
from lostwax.errors import LostwaxError

_VALUES = {
    "z": (
        "z + 1", "z * 2", "x - z", "z.cos()", "z + y.sum()", "z + v[0]", "z * s", "x.flip(0)", "z + k",
        "torch.cat([z[1:], z[:1]])", "z.roll(1, 0)", "z.clone()", "z.cumsum(0)", "z / n", "z + self.t[0]",
        "torch.where(z > 0, z, x)", "z.reshape(n * m).view(n, m)", "z.t().contiguous().t()",
        "z + torch.arange(n)[:, None]", "torch.zeros(n, m)", "z - z.mean()",
    ),
    "v": (
        "v + 1", "z.sum(0)", "v * y", "y - v", "v + s", "v * n", "x.mean(0)", "v + k", "v.flip(0)", "y.clone()",
        "v / m", "torch.arange(m) + s", "(x[0] if n > 0 else y)", "z[-1] + v", "z[n // 2] - y",
    ),
    "w": (
        "w * 2", "z[: n // 2].sum(1)", "x[1:, 0]", "w + s", "torch.zeros(n + m)", "z[::2, 0]", "torch.cat([w, y])",
        "w[w > 0]", "torch.arange(n).float()", "torch.ones(max(n - 2, 0))", "z.reshape(-1)", "w[: len(w) // 2]",
        "torch.cat([w, w])[: n + 1]",
    ),
    "s": (
        "s + 1", "z.sum()", "s * 2", "v.max()", "w.sum()", "s + n", "s - k", "s * z.shape[0]", "s / m",
        "torch.tensor(1.0) * n", "s + len(w)", "x.numel() * s",
    ),
    "k": ("k + 1", "k + n", "n - 1", "min(n, k)", "k * 2", "n // 2", "len(w)", "max(m - k, 1)", "k % 3"),
}  # fmt: skip
_SIZES = (
    "n > 1", "n == 1", "n % 2 == 0", "n < m", "n // 2 >= 2", "len(x) == 3", "x.numel() > 6", "n in (1, 3)",
    "n - 1", "m > 2", "n != m", "n * 2 > m + 3", "z.shape[0] == n", "not n", "len(w) > 2", "w.shape[0] == n",
    "1 < n < 5", "x.shape == z.shape", "n > 1 and m > 1", "n == 0 or m == 1", "bool(n)", "k > 2", "k == n",
    "x[1:].shape[0] > 1", "(n + m) % 3 == 1", "min(n, m) > 1", "flag", "-n < -2", "(n > 3) is True", "n is 2",
    "(n == m) is not False", "(n > 1) in [True]", "flag is True", "flag is not False", "(n > 1, m > 2) == (True, False)",
    "bool(n > 2) is True", "k is n", "(lambda v: v is True)(n > 3)", "any(v is True for v in (n > 4, m > 3))",
)  # fmt: skip
_DATA = ("z.sum() > 0", "s > 1", "v[0] < 0", "(x > 0).any()")
_FIRST = (
    "n, m = x.shape", "z = x * 1.0", "v = y + 0", "w = x.sum(1)", "s = torch.tensor(0.5)", "k = 0", "flag = False",
)  # fmt: skip


class Sizes(NamedTuple):
    """What is declared of the sizes `n` and `m`: from where on they may vary; None: they do not."""

    n: int | None
    m: int | None

    def list_pairs(self) -> list[tuple[int, int]]:
        """Sizes to compare at, the example's first."""
        rows = [4] if self.n is None else [n for n in (4, 0, 1, 2, 3, 5, 6, 9) if n >= self.n]
        columns = [3] if self.m is None else [m for m in (3, 0, 1, 2, 4, 7) if m >= self.m]
        return [(n, m) for n in rows for m in columns]


class _Writer:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lines: list[str] = []
        least = (None, 0, 1, 2)
        n = self.rng.choice(least[1:])
        self.sizes = Sizes(n, self.rng.choice((None, None, *least[1:])))

    def write(self) -> str:
        self._emit(0, "def forward(self, x, y):")
        for each in _FIRST:
            self._emit(1, each)
        for _ in range(self.rng.randint(2, 4)):
            self._statement(2, 1, in_loop=False)
        self._emit(1, f"return {self._returned()}")
        return "".join(self.lines)

    def _returned(self) -> str:
        return self._pick(("z, v, s, k, w", "z, v, s, k", "z, v, s", "z.sum(), s, w.sum()", "v, k"))

    def _emit(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text + "\n")

    def _pick(self, values: Any) -> str:
        return str(self.rng.choice(values))

    def _condition(self) -> str:
        r = self.rng.random()
        if r < 0.12:
            return self._pick(_DATA)
        if r < 0.2:
            return f"{self._pick(_SIZES)} {self._pick(('and', 'or'))} {self._pick(_DATA + _SIZES)}"
        return self._pick(_SIZES)

    def _assignment(self) -> str:
        name = self._pick("zzvvswk")
        one, other = self._pick(_VALUES[name]), self._pick(_VALUES[name])
        r = self.rng.random()
        value = f"{one} if {self._condition()} else {other}" if r < 0.15 else one
        if name == "s" and r > 0.93:
            value = self._pick(("sum(t.sum() for t in x)", "sum([x[i].sum() for i in range(n)])"))
        if name == "z" and r > 0.93:
            value = "torch.stack([z[i] * (i + 1) for i in range(n)])"
        return f"{name} = {value}"

    def _block(self, depth: int, indent: int, in_loop: bool) -> None:
        for _ in range(self.rng.randint(1, 2)):
            self._statement(depth, indent, in_loop)

    def _statement(self, depth: int, indent: int, in_loop: bool) -> None:
        r = self.rng.random()
        if r < 0.35 or depth <= 0:
            self._emit(indent, self._assignment())
        elif r < 0.65:
            self._emit(indent, f"if {self._condition()}:")
            self._block(depth - 1, indent + 1, in_loop)
            if self.rng.random() < 0.5:
                self._emit(indent, "else:")
                self._block(depth - 1, indent + 1, in_loop)
        elif r < 0.83:
            self._loop(depth, indent)
        elif r < 0.87:
            self._emit(
                indent,
                self._pick(
                    ("z[0] = 2.0", "z.add_(1)", "v.mul_(2)", "self.t.add_(n)", "z[n // 2:] += 1")
                ),
            )
        elif r < 0.91:
            self._emit(indent, self._pick(("flag = not flag", "flag = n > 2", "flag = k == 1")))
        elif r < 0.94 and in_loop:
            self._emit(indent, f"if {self._condition()}: {self._pick(('break', 'continue'))}")
        elif r < 0.96:
            self._emit(indent, f"if {self._condition()}: return {self._returned()}")
        elif r < 0.98:
            self._emit(indent, f"assert {self._pick(_SIZES)}")
        else:
            self._match(depth, indent, in_loop)

    def _match(self, depth: int, indent: int, in_loop: bool) -> None:
        head, *cases = self.rng.choice(
            (
                ("n > 2", "True", "False"), ("n", "1 | 2", "4", "_"), ("(n > 1, m > 2)", "(True, False)", "(True, _)"),
                ("flag", "True", "False"), ("x.shape", "(4, _)", "(v, 3)", "_"), ("n % 2 == 0", "False", "_"), ("k", "0", "int()"),
            )
        )  # fmt: skip
        self._emit(indent, f"match {head}:")
        for case in cases:
            self._emit(indent + 1, f"case {case}:")
            self._block(depth - 1, indent + 2, in_loop)

    def _loop(self, depth: int, indent: int) -> None:
        i = f"i{depth}"
        head = self._pick(
            (
                f"for {i} in range(n):", f"for {i} in range(m):", f"for {i} in range(1, n):",
                f"for {i} in range(n - 1, -1, -1):", f"for {i} in range(0, n, 2):", f"for {i} in range(min(n, m)):",
                f"for {i}, r{depth} in enumerate(x):", f"for {i} in range(2):", f"for {i} in range(n // 2):",
            )
        )  # fmt: skip
        if self.rng.random() < 0.15:
            self._emit(indent, f"{i} = 0")
            self._emit(indent, f"while {i} < {self._pick(('n', 'm', 'n // 2'))}:")
            self._emit(indent + 1, f"{i} += {self._pick('12')}")
        else:
            self._emit(indent, head)
            used = (
                f"s = s + x[{i} % n].sum()",
                f"v = v + {i}",
                f"z = z + {i}",
                f"s = s * 0.5 + {i}",
                f"k += {i}",
            )
            if "enumerate" in head:
                used = (*used, f"v = v + r{depth}", f"s = s + r{depth}.sum()")
            self._emit(indent + 1, self._pick(used))
        if self.rng.random() < 0.2:
            self._emit(indent + 1, "s = s + 1")
        if self.rng.random() < 0.6:
            self._block(depth - 1, indent + 1, in_loop=True)


def write_program(seed: int) -> str:
    return _Writer(seed).write()


def _make_inputs(n: int, m: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(n * 10 + m)
    return torch.randn(n, m), torch.randn(m)


def _run(module: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[str, Any]:
    try:
        with limit(10):
            return "ran", (module(*inputs), module.get_buffer("t").clone())
    except Exception as error:
        return "raised", f"{type(error).__name__}: {error}"


def judge(seed: int) -> tuple[str, str]:
    """What becomes of a program: "right", "refused", "skipped", "checked", "lenient" (it runs where
    eager raises) or "wrong"; and a text."""
    writer = _Writer(seed)
    cls: type[Base] = make_class(writer.write(), seed)
    sizes = writer.sizes
    pairs = sizes.list_pairs()
    wanted = {each: _run(cls(), _make_inputs(*each)) for each in pairs}
    if wanted[pairs[0]][0] != "ran":
        return "skipped", ""
    rows, columns = (
        None if least is None else Dim(name, min=least)
        for name, least in (("n", sizes.n), ("m", sizes.m))
    )
    shapes = ({0: rows, 1: columns}, {0: columns})
    try:
        with limit(90):
            program = lostwax.export(
                cls(), _make_inputs(*pairs[0]), dynamic_shapes=shapes, control_flow="sizes"
            )
    except LostwaxError as error:
        return "refused", str(error).partition("\n")[0]
    except Exception as error:
        return "wrong", f"the export raises {type(error).__name__}: {error}"
    is_lenient = ""
    for each, (kind, found) in wanted.items():
        ours, result = _run(program.module(), _make_inputs(*each))
        if kind == "ran" and ours != "ran" and " is required at " in result:
            return "checked", result
        if kind == "ran" and not (ours == "ran" and is_same(found, result)):
            return "wrong", f"declared {sizes}, at {each}: {result}, eager: {found}"
        if kind != "ran" and ours == "ran":
            is_lenient = f"at {each} eager raises {found}"
    return ("lenient", is_lenient) if is_lenient else ("right", "")


def main() -> int:
    return running.main(judge, write_program)


if __name__ == "__main__":
    sys.exit(main())
