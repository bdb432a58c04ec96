"""Random loops over a length that varies, or that data decide, whose bodies append to lists and let
tensors get longer, exported and compared with eager at several lengths.

    python -m fuzz.appending [--count 200] [--seed 0] [--jobs 1] [--minutes 60] [--show]

An export is right, or refuses with an error of lostwax's: all else is a failure. Where eager
raises, the program has to raise, too. Exits with 1 if anything was wrong.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

import lostwax
from fuzz import running
from fuzz.flow import is_same, make_class
from lostwax import Dim
from lostwax.errors import LostwaxError

_FIRST = (
    "l = [{}]", "m = []", "other = l", "box = {{'m': m}}", "h = torch.zeros(2)", "n = 0",
    "out = torch.zeros_like(x)", "k = 1.5", "flag = True", "q = []", "c = []", "p = []",
    "w = x[:1, 0]",
)  # fmt: skip
_CHECKED = "is required at "
"""What the program says where it holds for some sizes alone, as inside of loops."""
_LOOPS = (
    "for t in range(x.shape[0]):", "for t in reversed(range(x.shape[0])):",
    "for t in range(x.shape[0] - 1, -1, -1):", "for t in range(1, x.shape[0]):",
    "for t, r in enumerate(x):", "for t, (r, s) in enumerate(zip(x, y)):",
    "for t in range(0, x.shape[0], 2):", "for t, r in enumerate(reversed(l)):",
)  # fmt: skip
_WHILES = (
    "while {} < x.shape[0]:", "while {} < x.shape[0] and h.sum() < 3:",
    "while {} < x.shape[0] and (not l or l[-1].sum() < 2):",
    "while {} < x.shape[0] and w.sum() > -2:",
)  # fmt: skip
_MORE = (
    "q.append(x[t][x[t] > 0])", "q.append(x[: t + 1, 0])", "q.append(h[:1])", "c.append(t)",
    "c.append(x[t].sum().item())", "p.append((x[t], t))", "p.append((h, n))", "w = w[w > 0]",
    "w = torch.cat([w, x[t]])", "w = torch.cat([w, x[t][y[t] > 0]])", "c.append(len(l))",
    "h = h + torch.stack(l).sum(0)", "h = h + torch.cat(q).sum()",
)  # fmt: skip
_VALUES = (
    "h", "x[t]", "y[t] * 2", "h + x[t]", "x[t] + n", "h * k", "x[x.shape[0] - 1 - t]", "h.clone()",
    "x[t] * t", "l[-1] * 0.5", "y[t] + len(l)", "(l[-1] if l else h) + x[t]", "x[-1 - t]",
    "torch.where(x[t] > 0, h, y[t])", "x.sum(0)", "out[t]", "x[0] if flag else h",
)  # fmt: skip
_CHANGES = (
    "n += 1", "k = k * 0.5", "flag = not flag", "out[t] = {}", "h = {}", "h = torch.tanh({})",
    "h.add_(1)", "h += x[t]", "x[t].mul_(2)", "h, g = {}, h", "l[0] = {}", "otheq.append({})",
)  # fmt: skip
_AFTER = (
    "torch.stack(l)", "torch.stack(l, 1)", "torch.cat(l)", "torch.stack(m, -1)", "torch.cat(m, 0)",
    "torch.stack(l[::-1])", "torch.stack(m[1:])", "l[-1] * 2", "m[0] + h", "len(l) + len(m)", "h",
    "n", "k", "out", "torch.stack(other)", "torch.stack(box['m'] + l)", "flag", "m[len(m) - 1]",
    "torch.stack([a * 2 for a in m])", "sum(m)", "torch.stack(tuple(m))", "torch.cat([*m, h])",
    "torch.cat(q)", "len(q)", "q[-1]", "w", "w.shape[0]", "c[-1]", "p[-1]", "torch.cat([w, *q])",
    "torch.stack([a * b for a, b in p])", "torch.stack([h * 0 + a for a in c])", "len(c)",
    "torch.stack([h, *l])", "[a.shape[0] for a in q][0]", "q[0].sum() + len(p)",
)  # fmt: skip
_BETWEEN = (
    "h.zero_()", "l.append(h)", "m.reverse()", "l[-1].add_(1)", "m.pop()", "x.mul_(2)",
    "l += m", "h = h + l[-1]", "m = m + [h]", "torch.stack(l).zero_()", "l.insert(0, h)",
)  # fmt: skip


class _Writer:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lines: list[str] = []

    def write(self) -> str:
        self._emit(0, "def forward(self, x, y):")
        self._emit(1, "x, y = x.clone(), y * 1")
        start = self.rng.choice(("", "", "x[0]", "h0", "h0, y[0]"))
        self._emit(1, "h0 = torch.ones(2)")
        for each in _FIRST:
            self._emit(1, each.format(start))
        for _ in range(self.rng.choice((1, 1, 2))):
            self._write_loop(1, 2)
            for _ in range(self.rng.choice((0, 0, 0, 1, 2))):
                self._emit(1, self._pick(_BETWEEN))
        results = ", ".join(self._pick(_AFTER) for _ in range(self.rng.randint(1, 4)))
        self._emit(1, f"return ({results},)")
        return "".join(self.lines)

    def _write_loop(self, indent: int, depth: int) -> None:
        if self.rng.random() < 0.25:
            own = f"v{depth}"  # a loop inside sets t
            self._emit(indent, f"{own} = t = 0")
            self._emit(indent, self._pick(_WHILES).format(own))
            self._emit(indent + 1, f"t = {own}")
            self._emit(indent + 1, f"{own} += 1")
        else:
            self._emit(indent, self._pick(_LOOPS))
        for _ in range(self.rng.randint(0, 2)):
            self._write_change(indent + 1, depth)
        for _ in range(self.rng.choice((1, 1, 1, 2))):
            self._emit(indent + 1, self._append())
        for _ in range(self.rng.randint(0, 1)):
            self._write_change(indent + 1, depth)

    def _write_change(self, indent: int, depth: int) -> None:
        r = self.rng.random()
        if r < 0.2 and depth:
            self._emit(indent, f"if {self._pick(('x[t]', 'h'))}.sum() > 0:")
            last = self._pick((self._change(), "break", "continue", self._append()))
            self._emit(indent + 1, last)
            if self.rng.random() < 0.3 and last not in ("break", "continue"):
                self._emit(indent, "else:")
                self._emit(indent + 1, self._append())
        elif r < 0.23 and depth:
            self._emit(indent, "for i in range(2):")
            self._emit(indent + 1, self._change())
        elif r < 0.28 and depth > 1:
            self._write_loop(indent, depth - 1)
        else:
            self._emit(indent, self._change())

    def _change(self) -> str:
        return self._pick(_CHANGES).format(self._pick(_VALUES))

    def _append(self) -> str:
        if self.rng.random() < 0.4:
            return self._pick(_MORE)
        form = self._pick(("l.append({})", "m.append({})", "l.append({})", "m += [{}]"))
        return form.format(self._pick(_VALUES))

    def _emit(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text + "\n")

    def _pick(self, values: Any) -> str:
        return str(self.rng.choice(values))


def write_program(seed: int) -> str:
    return _Writer(seed).write()


def _make_call(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    x, y = (torch.randn(n, 2, generator=generator) for _ in range(2))
    return x, y


def _run(module: Any, call: tuple[torch.Tensor, ...]) -> tuple[str, Any]:
    try:
        return "ran", module(*call)
    except Exception as error:
        return "raised", f"{type(error).__name__}: {error}"


def judge(seed: int) -> tuple[str, str]:
    """What becomes of a program: "right", "refused", "checked" (it serves fewer sizes than eager,
    and says so when it runs), "skipped" or "wrong"; and a text."""
    module = make_class(write_program(seed), seed)()
    wanted = {n: _run(module, _make_call(n)) for n in (4, 1, 2, 3, 7)}
    if wanted[4][0] == "raised":
        return "skipped", ""
    n = Dim("n", min=2 if "range(1" in write_program(seed) else 1, max=100)
    shapes = {"x": {0: n}, "y": {0: n}}
    try:
        program = lostwax.export(module, _make_call(4), dynamic_shapes=shapes, control_flow="sizes")
    except LostwaxError as error:
        told = [*getattr(error, "__notes__", []), str(error)][0]
        return "refused", told.partition("\n")[0]
    except Exception as error:
        return "wrong", f"the export raises {type(error).__name__}: {error}"
    run = program.module()
    for size, (kind, want) in wanted.items():
        if size < n.min:
            continue
        got_kind, got = _run(run, _make_call(size))
        if got_kind == "raised" and kind == "ran" and _CHECKED in got and size != 4:
            return "checked", got
        if got_kind != kind or (kind == "ran" and not is_same(want, got)):
            return "wrong", f"at {size}: {got}, eager: {want}"
    return "right", ""


def main() -> int:
    return running.main(judge, write_program)


if __name__ == "__main__":
    sys.exit(main())
