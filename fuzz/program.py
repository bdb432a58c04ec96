"""One random program: statements, and the script that they make.

A program is text, so that a failure can be shown as it is, run by hand and made smaller. Must not
know how statements are chosen, nor what is done with a program.
"""

from __future__ import annotations

import keyword
import linecache
import re
import textwrap
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

HEAD = """\
import gc
import torch
import torch.nn.functional as F
from torch import nn
"""
CONFIG = 'CONFIG = {"scale": 2.0, "parts": [1.0, 2.0]}'
"""What lies outside of the module, and may change."""
SUBMODULES = {
    "Memory": """\
class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(3))

    def forward(self, x):
        self.h = self.h * 0.5 + x.reshape(-1, 3).sum(0)
        return self.h
""",
    "Window": """\
class Window(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(3, 3))
        self.last = self.rows[-1]

    def forward(self, x):
        self.rows[:-1] = self.rows[1:].clone()
        self.rows[-1] = x.reshape(-1, 3).sum(0)
        return self.rows, self.last
""",
    "Counter": """\
class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x):
        self.n += 1
        return x * self.n
""",
    "Gated": """\
class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.scale = 2.0
        self.hidden = [torch.ones(3)]

    def forward(self, x):
        y = self.inner(x)
        return y * self.scale + self.hidden[0] if self.training else y
""",
}
"""Classes that a program may hold; they are in its text where it does."""


@dataclass
class Change:
    """What is done to the module before a call."""

    call: int
    text: str
    python: bool
    """Does it reach what only the module itself has: attributes, hooks, modes? Programs have
    parameters and buffers by name, and nothing else to change."""


@dataclass
class Program:
    """Statements in their places."""

    seed: int
    kind: str
    calls: int = 3
    init: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    by_name: list[str] = field(default_factory=list)
    """Those that are passed by name."""
    inputs: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    form: str = "tuple"
    changes: list[Change] = field(default_factory=list)
    dynamic: dict[str, list[int]] = field(default_factory=dict)
    """The dims of arguments that vary."""
    names: dict[str, str] = field(default_factory=dict)
    """What arguments and attributes are called instead."""
    as_function: bool = False

    def source(self) -> str:
        """The whole script."""
        me = "self"
        given = [self.names.get(a, a) for a in self.arguments]
        body = [*self.body, f"return {self._returned()}"]
        shadowed = [n for n in ("torch", "F", "gc", "self") if n in given]
        lines = [self._renamed(s, shadowed) for s in body]
        if "self" in given:
            me = "self_"
        arguments = given if self.as_function else [me, *given]
        forward = f"def forward({', '.join(arguments)}):\n{_indented(lines)}"
        parts = [HEAD, *(f"{n}_ = {n}" for n in shadowed if n != "self")]
        parts += [c for n, c in SUBMODULES.items() if any(f"{n}(" in s for s in self.statements())]
        parts.append(CONFIG)
        if self.as_function:
            parts.append(f"{forward}\n\ndef make():\n    return forward")
        else:
            init = ["super().__init__()", "torch.default_generator.manual_seed(7)", *self.init]
            first = f"def __init__(self):\n{_indented([self._renamed(s, []) for s in init])}"
            methods = textwrap.indent(f"{first}\n\n{forward}", "    ")
            parts.append(f"class Random(nn.Module):\n{methods}\n\ndef make():\n    return Random()")
        parts += [self._inputs(), self._changes(python=False), self._changes(python=True)]
        said = {self.names.get(a, a): dims for a, dims in self.dynamic.items()}
        parts.append(f"CALLS = {self.calls}\nDYNAMIC = {said}")
        return "\n".join(f"{p.rstrip()}\n" for p in parts)

    def statements(self) -> list[str]:
        return [*self.init, *self.body, *self.inputs, *(c.text for c in self.changes)]

    def _returned(self) -> str:
        listed = ", ".join(self.results)
        if self.form == "single":
            return self.results[0]
        if self.form == "dict":
            items = ", ".join(f'"{_key(i)}": {r}' for i, r in enumerate(self.results))
            return f"{{{items}}}"
        return f"[{listed}]" if self.form == "list" else f"({listed},)"

    def _inputs(self) -> str:
        # Names of arguments are the caller's here: nothing is shadowed.
        by_position = "".join(f"{a}, " for a in self.arguments if a not in self.by_name)
        by_name = ", ".join(f'"{self.names.get(a, a)}": {a}' for a in self.by_name)
        lines = [
            "torch.default_generator.manual_seed(call)",
            *self.inputs,
            f"return ({by_position}), {{{by_name}}}",
        ]
        return f"def inputs(call):\n{_indented(lines)}"

    def _changes(self, *, python: bool) -> str:
        name = "change_python" if python else "change"
        lines = [
            f"if call == {c.call}:\n{textwrap.indent(self._renamed(c.text, []), '    ')}"
            for c in self.changes
            if c.python is python
        ]
        return f"def {name}(module, call):\n{_indented(lines or ['pass'])}"

    def _renamed(self, text: str, shadowed: list[str]) -> str:
        for name in shadowed:
            text = re.sub(rf"\b{name}\b", f"{name}_", text)
        if not self.names:
            return text
        return re.sub(r"\b[xh]\d+\b", lambda m: self.names.get(m.group(), m.group()), text)

    def compiled(self) -> Script:
        """The script, compiled; errors and refusals name its lines."""
        source, file = self.source(), f"<{self.kind} {self.seed}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        return Script(self, source, compile(source, file, "exec"))

    def without(self, **parts: Any) -> Program:
        """Another program: these parts instead."""
        return replace(self, **parts)


@dataclass
class Script:
    """A program that can be run, each time in a world of its own."""

    program: Program
    source: str
    code: CodeType

    def fresh(self) -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": "random_program"}
        exec(self.code, names)
        return names

    def forget(self) -> None:
        """Nobody asks for its lines any more."""
        linecache.cache.pop(self.code.co_filename, None)


def is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def _key(i: int) -> str:
    return ("out", "output", "self", "0", "add", "x.y")[i % 6] + "'" * (i // 6)


def _indented(lines: list[str]) -> str:
    return textwrap.indent("\n".join(lines), "    ")
