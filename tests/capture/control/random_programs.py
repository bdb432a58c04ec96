"""Random programs with control flow: branches, loops and scans in each other, which read and write
what is outside of them, through views, in place, and by replacing a buffer.

    python -m tests.capture.control.random_programs FIRST LAST
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch._higher_order_ops as operators

from lostwax import Dim
from lostwax.errors import LostwaxError
from tests.capture.control.compare import EagerError, agree

_EXPRESSIONS = (
    "{a} + {b}", "{a} * 0.5", "{a}.sin()", "torch.tanh({a}) - {b}", "self.linear({a})",
    "{a} + self.total", "{a}.clone()", "{a}.flip(0)", "torch.where({a} > 0, {a}, {b})",
    "{a}.detach() * {b}",
)  # fmt: skip
_WRITES = (
    "{a}.add_({b}.clone())", "{a}.mul_(0.5)", "{a}[0].add_(1)", "{a}.t()[0].sub_(0.3)",
    "{a}.copy_({b}.clone() * 0.9)",
)  # fmt: skip
_TO_STATE = (
    "self.total.add_({a}.sum(0) * 0.1)", "self.total = self.total * 0.5 + {a}[0]",
    "self.total[1:].mul_(0.9)",
)  # fmt: skip
_PREDICATES = (
    "{a}.sum() > 0", "{a}.max() > 0.5", "self.total.sum() < 1", "{a}[0, 0] < {b}[0, 1]",
)  # fmt: skip


class Writer:
    """Writes one program."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines = ["def program(self, x):", "    x = x + 0"]
        self.count = 0
        known = self.write_block(1, ["x"], self.random.randint(3, 6), 2)
        shown = self.random.sample(known, min(3, len(known)))
        results = ", ".join(f"{name} * 1" for name in shown)
        self.add(1, f"return {results}, self.total * 1")

    def add(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def new_name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def fill(self, forms: tuple[str, ...], known: list[str]) -> str:
        a, b = self.random.choice(known), self.random.choice(known)
        return self.random.choice(forms).format(a=a, b=b)

    def write_block(self, depth: int, known: list[str], length: int, levels: int) -> list[str]:
        """Some statements; the names that are known after them."""
        known = list(known)
        for _ in range(length):
            kind = self.random.random()
            if kind < 0.35:
                known.append(self.new_name())
                self.add(depth, f"{known[-1]} = {self.fill(_EXPRESSIONS, known[:-1])}")
            elif kind < 0.5:
                owned = [name for name in known if name != "handed"]
                self.add(depth, self.fill(_WRITES, owned))
            elif kind < 0.58:
                self.add(depth, self.fill(_TO_STATE, known))
            elif kind < 0.66:
                owned = [name for name in known if name != "handed"]
                known.append(self.new_name())
                form = ("{a}.view(-1).view({a}.shape)",)
                self.add(depth, f"{known[-1]} = {self.fill(form, owned)}")
            elif levels:
                writers = (self.write_cond, self.write_cond, self.write_while, self.write_scan)
                known += self.random.choice(writers)(depth, known, levels - 1)
        return known

    def write_cond(self, depth: int, known: list[str], levels: int) -> list[str]:
        holds, *functions, first, second = (self.new_name() for _ in range(5))
        self.add(depth, f"{holds} = {self.fill(_PREDICATES, known)}")
        for function in functions:
            self.add(depth, f"def {function}(given):")
            inner = self.write_block(
                depth + 1, [*known, "given"], self.random.randint(1, 3), levels
            )
            self.add(depth + 1, f"return {self.fill(_EXPRESSIONS, inner)}, {inner[-1]} * 1")
        operand = self.random.choice(known)
        call = f"torch.cond({holds}, {', '.join(functions)}, ({operand},))"
        self.add(depth, f"{first}, {second} = {call}")
        return [first, second]

    def write_while(self, depth: int, known: list[str], levels: int) -> list[str]:
        body, out = self.new_name(), self.new_name()
        self.add(depth, f"def {body}(i, handed):")
        inner = self.write_block(depth + 1, [*known, "handed"], self.random.randint(1, 3), levels)
        self.add(depth + 1, f"return i + 1, ({self.fill(_EXPRESSIONS, inner)}).clamp(-2, 2)")
        start = f"(torch.zeros(()), {self.random.choice(known)} * 1)"
        condition = f"lambda i, handed: i < {self.random.randint(0, 3)}"
        self.add(depth, f"_, {out} = operators.while_loop({condition}, {body}, {start})")
        return [out]

    def write_scan(self, depth: int, known: list[str], levels: int) -> list[str]:
        body, out = self.new_name(), self.new_name()
        self.add(depth, f"def {body}(c, row):")
        self.add(depth + 1, self.fill(("y = c * 0.5 + row + {a}.sum(0) * 0.1",), known))
        if self.random.random() < 0.4:
            self.add(depth + 1, "self.total.add_(row * 0.1)")
        if self.random.random() < 0.4:
            branches = self.fill(("lambda y: y * 0.7, lambda y: y + {a}[0]",), known)
            self.add(depth + 1, f"y = torch.cond(y.sum() > 0, {branches}, (y,))")
        self.add(depth + 1, "return y, y * 2")
        call = self.fill((f"operators.scan({body}, {{a}}[0] * 1, {{b}} * 1)",), known)
        self.add(depth, f"_, {out} = {call}")
        return [out]


def make_program(seed: int) -> tuple[Callable[..., Any], str]:
    source = "\n".join(Writer(seed).lines)
    names: dict[str, Any] = {"torch": torch, "operators": operators}
    exec(compile(source, f"<program {seed}>", "exec"), names)
    return names["program"], source


def compare(seed: int) -> str:
    """Export the program of a seed and run it beside plain Python; every third one with a size that
    varies, the others with gradients. What has come of it."""
    program, source = make_program(seed)
    random_numbers = torch.Generator().manual_seed(seed)
    varies = seed % 3 == 0
    rows = (3, 3, 2, 5) if varies else (3, 3, 3)
    inputs = [
        (torch.randn(n, 3, generator=random_numbers) * (0.3 + i),) for i, n in enumerate(rows)
    ]
    try:
        agree(
            program,
            *inputs,
            dynamic=[{0: Dim("rows", min=2)}] if varies else None,
            gradients=not varies,
        )
    except EagerError:
        return ""
    except LostwaxError as error:
        return str(error.args[0]).splitlines()[0]
    except Exception as error:
        raise AssertionError(f"seed {seed}:\n{source}") from error
    return ""


if __name__ == "__main__":
    found = Counter(compare(seed) for seed in range(*map(int, sys.argv[1:])))
    for refusal, times in found.most_common():
        print(times, refusal or "as Python")
