"""The results of a delegate by their types alone: for who runs a call of it with torch's own fakes,
as `torch.cond` does in eager before it runs a branch.

Must not compute anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Node
from torch.utils._pytree import tree_unflatten

from lostwax.errors import LoweringError
from lostwax.fake.mode import FakeTensorMode
from lostwax.fake.symbolic.node import unwrap
from lostwax.fake.tensor import FakeTensor
from lostwax.ir.data import Program
from lostwax.sym import Expr, Symbol, evaluate
from lostwax.sym.expressions.affine import read_affine

_FAKE = torch._C._TorchDispatchModeKey.FAKE


def has_strange_fakes() -> bool:
    """Is a fake mode active that is not of lostwax? It takes no tensor that has data."""
    active = torch._C._get_dispatch_mode(_FAKE)
    return active is not None and not isinstance(active, FakeTensorMode)


class DescribedProgram:
    """Stands for a program where there are such fakes."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def module(self) -> Callable[..., Any]:
        """What is called with fakes, and returns such tensors as the program does."""
        return self._describe

    def _describe(self, *given: Any) -> Any:
        sizes = self._read_sizes(given)
        (output,) = self.program.graph.find_nodes(op="output")
        results = output.args[0]
        count = len(results) - len(self.program.graph_signature.user_outputs)
        made = [_make_result(each, sizes) for each in results[count:]]
        spec = self.program.call_spec.out_spec
        return tuple(made) if spec is None else tree_unflatten(made, spec)

    def _read_sizes(self, given: tuple[Any, ...]) -> dict[Symbol, int]:
        """The sizes of this call: torch asks for them again in the next one."""
        inputs = [n.meta.get("val") for n in self.program.graph.find_nodes(op="placeholder")]
        found: dict[Symbol, int] = {}
        for value, each in zip(inputs[len(inputs) - len(given) :], given, strict=True):
            for size, number in _pair_sizes(value, each):
                affine = read_affine(size) if isinstance(size, Expr) else None
                if affine is not None:
                    found[affine.symbol] = (int(number) - affine.offset) // affine.factor
        return found


def _pair_sizes(value: Any, given: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, FakeTensor):
        yield from zip(value.fake_type.size, given.shape, strict=True)
    else:
        yield unwrap(value), given


def _make_result(result: Any, sizes: dict[Symbol, int]) -> Any:
    value = result.meta.get("val") if isinstance(result, Node) else result
    if not isinstance(value, FakeTensor):
        number = unwrap(value)
        return evaluate(number, sizes) if isinstance(number, Expr) else value
    type_ = value.fake_type
    unknown = {s for e in type_.size if isinstance(e, Expr) for s in e.symbols()} - sizes.keys()
    if unknown:
        raise LoweringError(
            "a delegate whose results have sizes that data decide is called where torch asks for "
            "them before it runs, as in a branch of torch.cond in eager\n  instead: export the "
            "module with lostwax, and run the program"
        )
    size, stride = ([evaluate(e, sizes) for e in each] for each in (type_.size, type_.stride))
    return torch.empty_strided(size, stride, dtype=type_.dtype, device=type_.device)
