"""A method as a listing: calls of kernels on tensors and numbers, before anything has an address.

Lowering writes it, planning gives its storages their places, emission makes a file of it. Must not
know of operators: a call has the name of a kernel, and its arguments as they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from lostwax.errors import LoweringError
from lostwax.ir.graph.delegate import LoweredBackendModule
from lostwax.ir.text import source_place
from lostwax.sym import Expr, Size, Symbol
from lostwax.types import Sizes, product

ARENA, STATE_ARENA = 1, 2
"""The arena of what is planned, and that of state which methods share; 0 is reserved."""


@dataclass(eq=False)
class Storage:
    """The memory of one or several tensors.

    A constant lies in the file, as `data`. All else lies in an arena: `is_kept` memory holds its
    value from call to call, and begins with `data`; other memory is planned by its lifetime.
    """

    nbytes: int
    data: torch.Tensor | None = None
    is_kept: bool = False
    is_given: bool = False
    """Is it an input, which is written before the first call?"""
    name: str = ""
    offset: int = -1
    """Where planning put it; -1: nowhere yet, or it is a constant."""
    arena: int = ARENA

    @property
    def is_constant(self) -> bool:
        return self.data is not None and not self.is_kept


@dataclass(eq=False)
class Tensor:
    """A tensor that calls read and write; several may lie in one storage."""

    size: Sizes
    dtype: torch.dtype
    storage: Storage
    bound: tuple[int, ...]
    """The sizes that are written into the file: the greatest that there may be."""
    order: tuple[int, ...] | None = None
    """The order of dimensions in memory, if it is another than their own."""
    grows: bool = False
    """Is it written row by row, and has its sizes only then?"""

    @property
    def is_dynamic(self) -> bool:
        return self.grows or any(s.__class__ is not int for s in self.size)


@dataclass(eq=False)
class Number:
    """A number that is computed when the method runs; `start` says of which kind it is."""

    start: int | float | bool = 0


class ListOperand(list[Any]):
    """A list as an argument; `kind` is that of the parameter, as it cannot be seen from the items:
    "[int]", "[float]", "[bool]", "[tensor]" or "[tensor?]"."""

    def __init__(self, kind: str, items: Iterable[Any]) -> None:
        super().__init__(items)
        self.kind = kind


@dataclass(eq=False)
class Label:
    """A place to jump to."""


@dataclass(eq=False)
class Call:
    """A call of a kernel. `args` are all that the runtime is given: those of the schema, outs among
    them, and the result once more. What it writes is in `outs`."""

    kernel: str
    args: list[Any]
    outs: tuple[Any, ...]
    node: Node | None = None


@dataclass(eq=False)
class DelegateCall(Call):
    """A call of a delegate, in the place of a kernel: `args` are what it is given, then `outs`."""

    delegate: LoweredBackendModule | None = None


@dataclass(eq=False)
class Move:
    """Lets `to` be the value `source`; a tensor is not copied."""

    source: Any
    to: Any
    node: Node | None = None


@dataclass(eq=False)
class JumpIfFalse:
    """Continues at the label if the condition is false."""

    condition: Any
    to: Label
    node: Node | None = None


Step = Call | Move | JumpIfFalse | Label


@dataclass
class Listing:
    """The steps of one method, with what it is given and what it returns."""

    name: str
    steps: list[Step] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    node: Node | None = None
    """The node that is being lowered, for errors."""
    known: dict[Expr, Callable[[], Number]] = field(default_factory=dict)
    """Sizes that can be read off a tensor, or were computed, and how to get each."""
    numbers: dict[Expr, Number] = field(default_factory=dict)
    lowered: dict[Node, tuple[int, Any]] = field(default_factory=dict)
    """What each node of the graph became, and how many steps there were then."""

    # ---- tensors

    def new_tensor(self, size: Sequence[Size], dtype: torch.dtype) -> Tensor:
        """A tensor in memory of its own, which a call is to write."""
        sizes = tuple(size)
        bound = self.bound_of(sizes)
        nbytes = int(product(bound)) * dtype.itemsize
        return Tensor(sizes, dtype, Storage(nbytes), bound)

    def new_constant(self, data: torch.Tensor, name: str = "") -> Tensor:
        data = data.detach().contiguous()
        size = tuple(data.shape)
        return Tensor(size, data.dtype, Storage(data.nbytes, data, name=name), size)

    def view(self, tensor: Tensor, size: Sequence[Size]) -> Tensor:
        """The same elements in the same memory, with other sizes."""
        sizes = tuple(size)
        if sizes == tensor.size:
            return tensor
        seen = Tensor(sizes, tensor.dtype, tensor.storage, self.bound_of(sizes))
        if tensor.is_dynamic or seen.is_dynamic:
            self.write_view(tensor, seen)
            self.note(seen)
        return seen

    def write_view(self, tensor: Tensor, seen: Tensor) -> None:
        """Let `seen` be a view of the tensor, with its own sizes, when the method runs."""
        args = [tensor, ListOperand("[int]", map(self.number, seen.size)), seen]
        self.steps.append(Call("executorch_prim::et_view.default", args, (seen,), self.node))

    def note(self, tensor: Tensor) -> Tensor:
        """Remember the sizes of a tensor that was given or written: numbers that are needed later
        are read off it."""
        for dim, size in enumerate(tensor.size):
            if isinstance(size, Expr) and size not in self.known:
                self.known[size] = self._size_reader(tensor, dim)
        return tensor

    def _size_reader(self, tensor: Tensor, dim: int) -> Callable[[], Number]:
        def read() -> Number:
            number = Number(0)
            call = Call("aten::sym_size.int", [tensor, dim, number], (number,), self.node)
            self.steps.append(call)
            return number

        return read

    def bound_of(self, size: Sizes) -> tuple[int, ...]:
        """The sizes to write into the file. If the number of elements can never be the product of
        the greatest sizes, since these exclude each other, the bound is that number: the runtime
        compares nothing else."""
        if not any(isinstance(s, Expr) for s in size):
            return size  # type: ignore[return-value]
        each = [self._greatest(s) for s in size]
        whole = product(size)
        joint = self._greatest(whole)
        if joint < int(product(each)):
            return (joint, *[1] * (len(size) - 1))
        return tuple(each)

    def _greatest(self, size: Size) -> int:
        if isinstance(size, int):
            return size
        found = size.env.bounds(size).hi
        if found is None:
            raise LoweringError.at(
                f"the size {size} has no upper bound",
                source_place(self.node) if self.node is not None else "",
                why="the memory of an executable is planned before it runs, for the greatest sizes",
                instead="; ".join(
                    _advise_bound(s) for s in sorted(size.symbols(), key=lambda s: s.id)
                ),
            )
        return found

    def least(self, size: Size) -> int:
        """The smallest that a size may be."""
        if isinstance(size, int):
            return size
        return max(size.env.bounds(size).lo or 0, 0)

    # ---- numbers

    def knows(self, *sizes: Size) -> bool:
        """Can these sizes be computed already?"""
        symbols = (atom.expr for s in sizes if isinstance(s, Expr) for atom in s.symbols())
        return all(symbol in self.known or symbol in self.numbers for symbol in symbols)

    def number(self, value: Size) -> int | Number:
        """The number as an argument: itself, or what computes it when the method runs."""
        if not isinstance(value, Expr):
            return int(value)
        found = self.numbers.get(value)
        if found is None:
            reader = self.known.get(value)
            found = reader() if reader is not None else self._compute(value)
            self.numbers[value] = found
        return found

    def _compute(self, value: Expr) -> Number:
        total: int | Number | None = None
        for monomial, times in value.terms.items():
            term: int | Number = times
            for atom in monomial:
                term = self.apply("mul", term, self._atom(atom))
            total = term if total is None else self.apply("add", total, term)
        assert isinstance(total, Number)
        return total

    def _atom(self, atom: Any) -> int | Number:
        reader = self.known.get(atom.expr)
        if reader is not None or atom.expr in self.numbers:
            return self.number(atom.expr)
        if atom.kind == "symbol":
            solved = self._solve(atom)
            if solved is not None:
                return solved
            raise LoweringError.at(
                f"the size {atom.name} cannot be read off an input",
                source_place(self.node) if self.node is not None else "",
                why="the executable computes sizes from those of its inputs",
                instead="declare the size itself as a dynamic dimension of some input",
            )
        prim = {"div": "floordiv", "mod": "mod", "max": "sym_max", "min": "sym_min"}[atom.kind]
        first, *rest = [self.number(a) for a in atom.args]
        for other in rest:
            first = self.apply(prim, first, other)
        return first

    def _solve(self, atom: Any) -> Number | None:
        """A symbol from a size that is a multiple of it and a number more: `2 * n + 1`."""
        for size in (*self.numbers, *self.known):
            terms = dict(size.terms)
            times, more = terms.pop((atom,), 0), terms.pop((), 0)
            if times and not terms:
                found = self.number(size)
                rest = self.apply("add", found, -more) if more else found
                self.numbers[atom.expr] = solved = self.apply("floordiv", rest, times)
                return solved  # type: ignore[no-any-return]
        return None

    def apply(self, prim: str, *args: Any, start: Any = 0) -> Any:
        """Call one of the runtime's functions on numbers."""
        if prim == "mul" and args[0] == 1:
            return args[1]
        result = Number(start)
        kernel = f"executorch_prim::{prim}.Scalar"
        self.steps.append(Call(kernel, [*args, result], (result,), self.node))
        return result

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Inside are steps that may be skipped or repeated: numbers that they compute are not known
        afterwards."""
        known, numbers = dict(self.known), dict(self.numbers)
        try:
            yield
        finally:
            self.known, self.numbers = known, numbers

    # ---- reading

    def calls(self) -> Iterator[Call]:
        return (step for step in self.steps if isinstance(step, Call))


def list_leaves(value: Any) -> Iterator[Any]:
    """The tensors and numbers of an argument."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from list_leaves(item)
    else:
        yield value


def _advise_bound(symbol: Symbol) -> str:
    """What to write so that a size has a bound."""
    name = symbol.name
    if not symbol.unbacked:
        return f"a bound for {name}: Dim(name, max=...) in dynamic_shapes"
    origin = f" and comes from {symbol.origin}" if symbol.origin else ""
    return f"torch._check(n <= ...) for the number {name}, which depends on data{origin}"
