"""A program under way: each statement is run on real tensors, and stays if eager accepts it.

So every program is valid for its example, and a seed is all that is needed to have it again. The
statements come from the tables in `statements.py`; their holes are filled here, with what is in
scope. Must not know of lostwax.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fuzz.program import CONFIG, HEAD, SUBMODULES, Program

REFUSED = (
    RuntimeError, IndexError, ValueError, TypeError, AttributeError, KeyError, AssertionError,
    NotImplementedError, ZeroDivisionError, OverflowError, NameError, UnboundLocalError,
)  # fmt: skip
"""What eager may say to a statement that does not fit."""
_CONSTANTS = ("0", "1", "2", "0.5", "-1.5", "3")
MOST = 4096
"""Elements that a value may have: programs are to be small."""


class Unfillable(Exception):
    """Nothing in scope fits into a hole."""


class Growing:
    """What is in scope, with its values of today."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.rng = random.Random(f"{program.kind} {program.seed}")
        torch.default_generator.manual_seed(program.seed)
        self.count = 0
        self.held = 0
        self.scope: dict[str, Any] = {}
        exec(_PRELUDE, self.scope)
        self.scope["self"] = self.module = nn.Module()
        self.scope["module"] = self.module
        self.scope["call"] = 0

    # ----------------------------------------------------------------------------------- statements

    def try_one(self, templates: tuple[str, ...], tries: int = 6) -> str | None:
        """A statement of the table that eager accepts; it was run."""
        for _ in range(tries):
            text = self.run(self.rng.choice(templates))
            if text is not None:
                return text
        return None

    def run(self, template: str) -> str | None:
        """The template filled and run, or nothing if that cannot be."""
        count, held = self.count, self.held
        try:
            text = self.filled(template)
        except Unfillable:
            self.count, self.held = count, held
            return None
        before = dict(self.scope)
        try:
            exec(compile(text, "<statement>", "exec"), self.scope)
        except REFUSED:
            self.scope = before
            self.count, self.held = count, held
            return None
        if any(isinstance(v, Tensor) and v.numel() > MOST for v in self.scope.values()):
            self.scope = before
            return None
        return text

    def filled(self, template: str) -> str:
        """`{v}` is something in scope that is a `v`; `{v1}` and `{v2}` are two, a name that occurs
        twice is the same."""
        chosen: dict[str, str] = {}

        def fill(match: re.Match[str]) -> str:
            hole = match.group(1)
            if hole not in chosen:
                chosen[hole] = self.fill(hole.rstrip("0123456789"), chosen)
            return chosen[hole]

        return _HOLE.sub(fill, template).replace("{{", "{").replace("}}", "}")

    def fill(self, hole: str, chosen: dict[str, str]) -> str:
        if hole == "new":
            self.count += 1
            return f"t{self.count}"
        if hole == "attr":
            self.held += 1
            return f"h{self.held}"
        if hole == "c":
            return self.rng.choice(_CONSTANTS)
        if hole == "pick":
            return str(self.rng.randint(0, 2))
        if hole == "call":
            return str(self.rng.randint(1, max(1, self.program.calls - 1)))
        if hole == "like":  # of the size and dtype of what fills {b} or {w}
            return self.alike(chosen.get("b") or chosen.get("w") or chosen["h"])
        return self.pick(FITS[hole], hole)

    def pick(self, fits: Callable[[str, Any], bool], hole: str) -> str:
        found = [name for name, value in self.named() if _fits(fits, name, value)]
        if not found:
            raise Unfillable(hole)
        # What came last is the most entangled: prefer it.
        local = [n for n in found if n[0] == "t"]
        if local and self.rng.random() < 0.4:
            return self.rng.choice(local[-3:])
        return self.rng.choice(found)

    def alike(self, name: str) -> str:
        goal = self.value(name)
        found = [
            n
            for n, v in self.named()
            if isinstance(v, Tensor) and v.shape == goal.shape and v.dtype == goal.dtype
        ]
        found = [n for n in found if n != name] or found
        return self.rng.choice(found)

    # ---------------------------------------------------------------------------------------- scope

    def value(self, name: str) -> Any:
        return eval(name, self.scope)

    def named(self) -> list[tuple[str, Any]]:
        """All values that a statement can name."""
        own = [(k, v) for k, v in self.scope.items() if _OWN.fullmatch(k)]
        found = [each for k, v in own for each in _values(k, v)]
        return [*found, *_attributes("self", self.module)]


_OWN = re.compile(r"[xt]\d+")
"""What a program calls its arguments and its values."""
_HOLE = re.compile(r"\{([a-zA-Z]\w*)\}")
_PRELUDE = compile("\n".join([HEAD, *SUBMODULES.values(), CONFIG]), "<prelude>", "exec")


def _attributes(path: str, module: nn.Module) -> Iterator[tuple[str, Any]]:
    """What a module holds, as Python writes it: `self.h1`, `self.h2[0]`, `self.h3.weight`."""
    own = {k: v for k, v in module.__dict__.items() if not k.startswith("_") and k != "training"}
    for name, value in [*module._parameters.items(), *module._buffers.items(), *own.items()]:
        if name.isidentifier():
            yield from _values(f"{path}.{name}", value)
        elif path:
            yield f"{path}[{name}]" if name.isdigit() else f"{path}[{name!r}]", value
    for name, child in module._modules.items():
        if child is not None:
            text = f"{path}.{name}" if name.isidentifier() else f"{path}[{name}]"
            yield text, child
            yield from _attributes(text, child)


def _values(text: str, value: Any) -> Iterator[tuple[str, Any]]:
    yield text, value
    if isinstance(value, (list, tuple)):
        yield from ((f"{text}[{i}]", v) for i, v in enumerate(value))
    elif isinstance(value, dict):
        yield from ((f"{text}[{k!r}]", v) for k, v in value.items())


def _fits(fits: Fits, name: str, value: Any) -> bool:
    try:
        return fits(name, value)
    except RuntimeError:  # a view that autograd does not look at any more
        return False


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype is torch.float32


def _shows_twice(t: Tensor) -> bool:
    return any(st == 0 and s > 1 for s, st in zip(t.shape, t.stride(), strict=True))


def _is_writable(name: str, value: Any) -> bool:
    if not _is_float(value) or _shows_twice(value):
        return False
    return not (value.is_leaf and value.requires_grad)


def _is_attribute(name: str) -> bool:
    """Can it be assigned as an attribute of the module itself?"""
    return re.fullmatch(r"self\.h\d+", name) is not None


Fits = Callable[[str, Any], bool]
FITS: dict[str, Fits] = {
    "t": lambda n, v: _is_float(v),
    "v": lambda n, v: _is_float(v) and v.dim() == 1,
    "M": lambda n, v: _is_float(v) and v.dim() == 2,
    "u": lambda n, v: _is_float(v) and v.dim() == 1 and n[0] == "t",
    "m": lambda n, v: isinstance(v, Tensor) and v.dtype is torch.bool,
    "i": lambda n, v: isinstance(v, Tensor) and v.dtype is torch.int64 and v.dim() == 1,
    "a": lambda n, v: isinstance(v, Tensor),
    "x": lambda n, v: isinstance(v, Tensor) and n[0] == "x",
    "args": lambda n, v: isinstance(v, (list, dict)) and n[0] == "x",
    "l": lambda n, v: isinstance(v, Tensor) and n[0] == "t",
    "w": _is_writable,
    "b": lambda n, v: _is_attribute(n) and _is_float(v) and not isinstance(v, nn.Parameter),
    "h": lambda n, v: n.startswith("self.") and _is_float(v),
    "p": lambda n, v: isinstance(v, nn.Parameter),
    "k": lambda n, v: type(v) is int and not n.startswith("self."),
    "f": lambda n, v: type(v) is float and not n.startswith("self."),
    "number": lambda n, v: type(v) in (int, float) and n.startswith("self."),
    "flag": lambda n, v: isinstance(v, bool) and n.startswith("self."),
    "list": lambda n, v: type(v) is list and n.startswith("self."),
    "dict": lambda n, v: type(v) is dict and n.startswith("self."),
    "s": lambda n, v: isinstance(v, nn.Module) and type(v).forward is not nn.Module.forward,
    "linear": lambda n, v: isinstance(v, nn.Linear),
    "mha": lambda n, v: isinstance(v, nn.MultiheadAttention),
    "drop": lambda n, v: isinstance(v, nn.Dropout),
}
"""What may stand in a hole: by what it is called and by its value."""
