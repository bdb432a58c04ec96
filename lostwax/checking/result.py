"""What a check finds, and how it is reported: differences, close values, nodes by their lines.

Must not run a program or a module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.fx import Node

from lostwax.errors import CheckError
from lostwax.ir.program import ExportedProgram
from lostwax.ir.signature import InputKind
from lostwax.ir.text import source_text, target_text, type_text

Close = Callable[[Any, Any], str]
"""Says what is wrong with a value, compared with the expected one; "" if nothing is."""


class Case(Protocol):
    """One call of the two sides that are compared."""

    def find_difference(self) -> str:
        """What differs, in words; "" if nothing does. Raises `Refusal`."""

    def find_first_node(self) -> str:
        """The first node whose value is another, in words; "" if none is found."""

    def code(self) -> str:
        """Python code that shows the difference."""


class Refusal(Exception):
    """The program says that it does not hold for these arguments."""


@dataclass(frozen=True)
class Difference:
    """A case in which the program does not do what the module does."""

    case: str
    what: str
    node: str
    """The first node that differs, with its source line; "" if none was found."""
    counterexample: str
    """Python code that shows the difference between `program` and `module`."""
    sides: tuple[str, str] = ("program", "module")

    def __str__(self) -> str:
        one, other = self.sides
        lines = [f"the {one} differs from the {other}", f"  case: {self.case}", f"  {self.what}"]
        if self.node:
            lines.append(f"  the first node that differs: {self.node}")
        lines.append("  counterexample:")
        return "\n".join([*lines, *(f"    {line}" for line in self.counterexample.split("\n"))])


@dataclass(frozen=True)
class CheckResult:
    """What `check` found. It is true if something was compared and nothing differs."""

    agreed: tuple[str, ...]
    refused: tuple[str, ...] = ()
    """The cases that the program itself refused, and why: it does not claim to hold for them."""
    differences: tuple[Difference, ...] = field(default=())
    sides: tuple[str, str] = ("program", "module")
    told: str = ""
    """What code was told that asked whether it was being exported, and which lines asked."""

    @property
    def ok(self) -> bool:
        """Something was compared, and nothing differs."""
        return bool(self.agreed) and not self.differences

    @property
    def report(self) -> str:
        """What differs, or that nothing does, in words."""
        lines = [str(d) for d in self.differences]
        if not self.agreed and not self.differences:
            lines.append("nothing was compared")
        one, other = self.sides
        lines += [f"the {one} agrees with the {other}: {case}" for case in self.agreed]
        lines += [f"the {one} refuses: {case}" for case in self.refused]
        return "\n".join([*lines, *([self.told] if self.told else [])])

    def raise_on_difference(self) -> None:
        """Raise a `CheckError` with the report, unless `ok`."""
        if not self.ok:
            raise CheckError(self.report)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return self.report

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from lostwax.ir.notebook import show_code

        return show_code(self.report)


def describe_node(node: Node, wrong: str) -> str:
    """A node that differs: its name, its call, the user's line, and what is wrong."""
    where = f"\n    at {source_text(node)}" if source_text(node) else ""
    return f"{node.name} = {target_text(node.target)}{where}\n    {wrong}"


def state_values(program: ExportedProgram) -> list[Any]:
    """What the program holds, in the order of its inputs."""
    held = {**program.constants, **program.state_dict}
    specs = program.graph_signature.input_specs
    return [held.get(s.target or "") for s in specs if s.kind is not InputKind.USER_INPUT]


def make_close(rtol: float | None, atol: float | None) -> Close:
    def close(got: Any, want: Any) -> str:
        if not isinstance(got, torch.Tensor) or not isinstance(want, torch.Tensor):
            same = got is want or (type(got) is type(want) and bool(got == want))
            return "" if same else f"it is {_describe(got)} instead of {_describe(want)}"
        if got.shape != want.shape or got.dtype != want.dtype:
            return f"it is {type_text(got)} instead of {type_text(want)}"
        try:
            torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            return _shorten_message(str(error))
        return ""

    return close


def close_to_scale(got: Any, want: Any) -> str:
    """The bar of kernels of a runtime: 1e-4, relative to the largest value."""
    scale = 1.0
    if isinstance(want, torch.Tensor) and want.dtype.is_floating_point:
        finite = want.detach()[want.isfinite()].abs()
        scale = max(float(finite.max()), 1e-3) if finite.numel() else 1.0
    return make_close(1e-4, 1e-4 * scale)(got, want)


def _describe(value: Any) -> str:
    return type_text(value) or repr(value)


def _shorten_message(text: str) -> str:
    """The first lines of a message of `assert_close`, which have the numbers, as one line."""
    lines = [line.strip() for line in text.split("\n")]
    return "; ".join([line for line in lines if line][:3])
