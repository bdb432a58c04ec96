"""Random Python functions without tensors, rewritten as those are that ask data (`capture/flow/`):
they have to do what they did, in the same order.

    python -m fuzz.rewriting [START] [END]

Every part of an expression may log that it was computed, and what was computed is compared too.
Prints the functions that do something else, and exits with 1 if there is one.
"""

from __future__ import annotations

import ast
import random
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

from lostwax.capture.flow.hooks import HOOKS
from lostwax.capture.flow.rewriting import recompile
from lostwax.capture.flow.rewriting.exits import NotRewritable
from lostwax.capture.flow.rewriting.scopes import Globals, Shadows

_HEAD = """
class Manager:
    def __init__(self, log): self.log = log
    def __enter__(self): self.log.append('in')
    def __exit__(self, *args): self.log.append(('out', args[0]))

class Box:
    pass

def f(x, y, z, log):
    def g(v):
        log.append(v)
        return v
    d, b = {0: 1, 1: 5}, Box()
    b.v = y
    value = 7
    def h(v):
        nonlocal value
        value = v if v > value else value + 1
        return value
"""
_ARGUMENTS = ((0, 0, 0), (1, 2, 3), (2, 1, 5), (3, 3, 1), (-1, 0, 2))


class _Writer:
    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._lines: list[str] = []

    def write(self) -> str:
        for _ in range(self._rng.randint(2, 5)):
            self._statement(3, False, 1)
        self._emit(1, "log.append((x, y, z, d, b.v, value))")
        return _HEAD + "\n".join(self._lines) + "\n"

    def _emit(self, indent: int, text: str) -> None:
        self._lines.append("    " * indent + text)

    def _pick(self, *values: str) -> str:
        return self._rng.choice(values)

    def _value(self, depth: int = 2) -> str:
        r = self._rng.random()
        if depth <= 0 or r < 0.25:
            return self._pick("x", "y", "z", "x + y", "y - 1", "len(log)", "x % 3", "b.v", "d[0]")
        one, other = self._value(depth - 1), self._value(depth - 1)
        if r < 0.40:
            return f"{self._pick('g', 'g', 'h')}({one})"
        if r < 0.55:
            return f"({one} if {self._question(depth - 1)} else {other})"
        if r < 0.63:
            return f"({one} {self._pick('and', 'or')} {other})"
        if r < 0.70:
            return f"({one} + {other})"
        if r < 0.74:
            return f"len('%s-%s' % ({one}, {other}))"
        if r < 0.78:
            return f"sum({{g({one}): {other}, 3: {one}}}.values())"
        if r < 0.82:
            return f"sum([{one}, *[{other}, {one}], {other}][{one} % 2 if x > 0 else 0:])"
        if r < 0.86:
            return f"sum({one} if i % 2 else i for i in range(3) if {self._question(0)})"
        if r < 0.90:
            return f"len([i + j for i in range(2) if g(i) < x for j in range(i, 2) if {one} or j])"
        if r < 0.93:
            return f"{self._pick('max', 'min')}({one}, {other})"
        if r < 0.94:
            return f"len({{i: ({one} and i) for i in range(2)}})"
        if r < 0.985:
            return self._pick(
                f"next((g(i) for i in range(4) if i > z), {one})",
                f"sum((g(i) for i in (x, y) for j in (0, z) if i > j), {one})",
                f"sum(map(g, [{one}, {other}]))",
                f"len(list(filter(lambda v: g(v) > x, [{one}, {other}])))",
                f"sum(i for i in filter(g, [{one}, {other}]))",
                f"[*(g(i) if i > y else {one} for i in (x, z))][0]",
                f"(lambda v: sum(v if i else g(z) for i in (0, v)))({one})",
                f"[v for v in enumerate({one} if i else g(i) for i in (0, 1) if i or z)][-1][1]",
            )
        return f"(y := {one})"

    def _question(self, depth: int = 1) -> str:
        r = self._rng.random()
        if depth <= 0 or r < 0.3:
            return self._pick("x % 2", "y > 1", "z < 3", "len(log) % 2 == 0", "x > y or z", "g(x)")
        one, other = self._question(depth - 1), self._question(depth - 1)
        if r < 0.5:
            return f"({one} {self._pick('and', 'or')} {other})"
        if r < 0.65:
            return f"not ({one})"
        if r < 0.8:
            return f"g({self._value(depth - 1)}) < {self._value(depth - 1)} <= g({one})"
        if r < 0.9:
            return f"{self._pick('any', 'all')}({one} and g(i) for i in (0, 2, x))"
        return f"{self._pick('any', 'all')}([{one}, {other}])"

    def _block(self, depth: int, in_loop: bool, indent: int) -> None:
        for _ in range(self._rng.randint(1, 4)):
            self._statement(depth, in_loop, indent)

    def _more(self, share: float, word: str, depth: int, in_loop: bool, indent: int) -> None:
        if self._rng.random() < share:
            self._emit(indent, f"{word}:")
            self._block(depth, in_loop, indent + 1)

    def _statement(self, depth: int, in_loop: bool, indent: int) -> None:
        r = self._rng.random()
        if r < 0.3 or depth <= 0:
            self._emit(indent, f"{self._pick('x', 'y', 'z', 'value')} = {self._value()}")
        elif r < 0.34:
            self._emit(indent, f"log.append({self._value()})")
        elif r < 0.38:
            target = self._pick("x", "b.v", "d[0]", "d[0 if x else 1]", "d[g(0)]")
            self._emit(indent, f"{target} {self._pick('+=', '=')} {self._value()}")
        elif r < 0.6:
            self._emit(indent, f"if {self._question()}:")
            self._block(depth - 1, in_loop, indent + 1)
            self._more(0.5, "else", depth - 1, in_loop, indent)
        elif r < 0.7:
            self._emit(indent, f"for i in range({self._rng.randint(1, 4)}):")
            self._block(depth - 1, True, indent + 1)
            self._more(0.3, "else", depth - 1, in_loop, indent)
        elif r < 0.72:
            over = self._pick(
                "(g(x) if j > z else j for j in range(3) if g(j) != y)",
                "filter(lambda v: g(v) or x, (x, 0, y))",
                "map(g, (x, y))",
                "(x + j for j in (0, z))",
            )
            self._emit(indent, f"for i in {over}:")
            self._block(depth - 1, True, indent + 1)
            self._more(0.3, "else", depth - 1, in_loop, indent)
        elif r < 0.74:
            self._match(depth, in_loop, indent)
        elif r < 0.76:
            self._emit(indent, f"w{depth} = 0")
            asked = self._question()
            self._emit(indent, f"while w{depth} < 3 and ({asked} or w{depth} < 1):")
            self._emit(indent + 1, f"w{depth} += 1")
            self._block(depth - 1, True, indent + 1)
            self._more(0.3, "else", depth - 1, in_loop, indent)
        elif r < 0.82:
            self._emit(indent, "with Manager(log):")
            self._block(depth - 1, in_loop, indent + 1)
        elif r < 0.88:
            self._try(depth, in_loop, indent)
        elif r < 0.93:
            self._emit(indent, f"return {self._value()}, {self._value()}")
        elif r < 0.97 and in_loop:
            self._emit(indent, self._pick("break", "continue"))
        elif r < 0.98:
            self._emit(indent, f"assert {self._question()}, g({self._value()})")
        else:
            self._emit(indent, "log.append((x, y, z))")

    def _match(self, depth: int, in_loop: bool, indent: int) -> None:
        cases = [
            *("case [0 | 1, _]", f"case [2, k] if {self._question()}", "case [k, 1]"),
            *(f"case [k, l] if k < l and {self._question()}", "case [*k, 3]", "case _ if g(x)"),
        ]
        self._emit(indent, f"match [g({self._value(1)}), {self._value(1)}]:")
        for case in self._rng.sample(cases, 3):
            self._emit(indent + 1, f"{case}:")
            if "k" in case:
                self._emit(indent + 2, "log.append(k)")
            self._block(depth - 1, in_loop, indent + 2)

    def _try(self, depth: int, in_loop: bool, indent: int) -> None:
        self._emit(indent, "try:")
        self._block(depth - 1, in_loop, indent + 1)
        if self._rng.random() < 0.5:
            self._emit(indent + 1, f"if {self._question()}: raise ValueError({self._value()})")
        self._emit(indent, "except ValueError as e:")
        self._emit(indent + 1, "log.append(str(e))")
        self._block(depth - 1, in_loop, indent + 1)
        self._more(0.4, "else", depth - 1, in_loop, indent)
        if self._rng.random() < 0.4:
            self._emit(indent, "finally:")
            self._emit(indent + 1, "log.append('finally')")


def write_function(seed: int) -> str:
    return _Writer(seed).write()


def judge(seed: int) -> str | None:
    """What is wrong with a rewritten function, if anything is; "refused" if it is not rewritten."""
    source = write_function(seed)
    try:
        plain, new = map(_load, compile_both(source))
    except (SyntaxError, NotRewritable):
        return "refused"
    for arguments in _ARGUMENTS:
        wanted, found = (_run(each, arguments) for each in (plain, new))
        if wanted != found:
            return f"{arguments}: {wanted}, and rewritten: {found}"
    return None


def compile_both(source: str) -> list[CodeType]:
    """The code of a file as it is, and with its function rewritten."""
    tree, other = ast.parse(source), ast.parse(source)
    (function,) = [n for n in other.body if isinstance(n, ast.FunctionDef)]
    recompile.rewrite_function(
        function, recompile.Plan(), Shadows(other, Globals(())).find(function)
    )
    ast.fix_missing_locations(other)
    plain, new = (compile(each, "generated.py", "exec") for each in (tree, other))
    return [plain, recompile.put_hooks(new, HOOKS)]


def list_codes(code: CodeType) -> list[CodeType]:
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return [code, *[found for each in inner for found in list_codes(each)]]


def _load(code: CodeType) -> Callable[..., Any]:
    names: dict[str, Any] = {}
    exec(code, names)
    return names["f"]  # type: ignore[no-any-return]


def _run(function: Callable[..., Any], arguments: tuple[int, ...]) -> tuple[Any, list[Any]]:
    log: list[Any] = []
    try:
        return function(*arguments, log), log
    except Exception as error:
        return (type(error).__name__, "" if isinstance(error, NameError) else str(error)), log


def main(start: int = 0, end: int = 1000) -> int:
    refused = wrong = 0
    for seed in range(start, end):
        found = judge(seed)
        if found == "refused":
            refused += 1
        elif found:
            wrong += 1
            print(f"seed {seed}: {found}\n{write_function(seed)}")
    print(f"{end - start} functions: {wrong} wrong, {refused} not rewritten")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))
