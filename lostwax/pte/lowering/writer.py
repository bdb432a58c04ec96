"""Writes calls into a listing: what lowering and the selections of kernels share.

Must not know which kernel is best for an operator.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node

from lostwax.classes import SYMBOLIC
from lostwax.dialects.call_dtypes import is_apart
from lostwax.dialects.edge_operators import EdgeOperator, find_out_variant, search_out_variant
from lostwax.errors import LoweringError
from lostwax.fake.symbolic.node import unwrap
from lostwax.fake.tensor import FakeTensor
from lostwax.ir.graph.lookup import find_attribute
from lostwax.ir.text import source_place
from lostwax.ops.decompositions.runtime import INSTEAD
from lostwax.ops.dialect_operator import overload_of
from lostwax.ops.registry import has_trait
from lostwax.ops.traits import Trait
from lostwax.pte.file.schema import DTYPES, MOST_DIMS
from lostwax.pte.lowering.kernels import (
    BROADCASTING,
    HALVES,
    LONG_INDEX,
    REFUSED,
    Parameter,
    kernel_names,
    kernel_parameters,
)
from lostwax.pte.lowering.listing import Call, Listing, ListOperand, Number, Tensor
from lostwax.sym import Size


class Pending:
    """What a node stands for, to be written when something reads it."""

    def write(self, writer: CallWriter) -> Tensor:
        raise NotImplementedError


class CallWriter:
    """Writes the calls that nodes of a graph become."""

    def __init__(
        self, listing: Listing, graph: Graph | None = None, kernels: Collection[str] = ()
    ) -> None:
        self.listing = listing
        self.kernels = kernel_names().union(kernels)
        """What the runtime has, with what the user says that it has."""
        self.graph = graph
        """The graph of the method; those of branches and loops are others."""
        self.places: dict[tuple[Tensor, Size], Tensor] = {}
        """Indices counted from the start, by the indices and the size of their dimension."""
        self.values: dict[Node, Any] = {}
        """For each node a tensor, a list of them, or a number; a tensor may be pending."""

    def inline(self, graph: GraphModule, operands: Sequence[Any]) -> list[Any]:
        """Write the steps of a sub-graph for these operands; return its results."""
        raise NotImplementedError

    def find_subgraph(self, node: Node) -> GraphModule:
        """The sub-graph that a node reads."""
        found = find_attribute(node.graph.owning_module, str(node.target))
        assert isinstance(found, GraphModule)
        return found

    def value(self, argument: Any) -> Any:
        """An argument of a node: tensors and numbers of the listing in place of nodes."""
        if isinstance(argument, Node):
            if argument not in self.values:
                value = argument.meta.get("val")
                assert isinstance(value, SYMBOLIC), argument
                size = unwrap(value)
                self.values[argument] = self.listing.number(size)
            found = self.values[argument]
            if isinstance(found, Pending):
                found = self.values[argument] = found.write(self)
            return found
        if isinstance(argument, (list, tuple)):
            return [self.value(a) for a in argument]
        return argument

    def new_like(self, value: FakeTensor) -> Tensor:
        t = value.fake_type
        node = self.listing.node
        where = source_place(node) if node is not None else ""
        check_tensor(t.dtype, t.ndim, f"the result of {node}", where)
        return self.listing.new_tensor(t.size, t.dtype)

    def call(self, kernel: str, *args: Any, outs: list[Tensor]) -> Tensor:
        """Call a kernel with these arguments, in the order of its schema; outs come last. Returns
        the first out; what an argument is, if there is none, since such a kernel writes it."""
        made = outs[0] if outs else args[0]
        if kernel in BROADCASTING:
            x, y, out = see_in_fewer_dims([*args[:2], made])
            args, outs = (x, y, *args[2:]), [out]
        parameters = kernel_parameters(kernel)
        given = [p for p in parameters if not p.is_out]
        filled = [*args, *(p.default for p in given[len(args) :])]
        if kernel in LONG_INDEX:
            at = [p.name for p in given].index("index")
            filled[at] = self.cast(filled[at], torch.int64)
        if kernel in REFUSED:
            self._require_dtypes(kernel, [t for t in (*args, *outs) if isinstance(t, Tensor)])
        if any(v is None and not p.is_optional for v, p in zip(filled, given, strict=True)):
            self._refuse_missing(kernel)
        ready = [_coerce(v, p) for v, p in zip(filled, given, strict=True)]
        is_list = [p.kind for p in parameters if p.is_out] == ["[tensor]"]
        listed = ListOperand("[tensor]", outs)
        written: list[Any] = [listed] if is_list else list(outs)
        last = [listed] if is_list or len(outs) > 1 else outs
        step = Call(kernel, [*ready, *written, *last], tuple(outs), self.listing.node)
        self.listing.steps.append(step)
        for out in outs:
            self.listing.note(out)
        return made

    def _require_dtypes(self, kernel: str, tensors: list[Tensor]) -> None:
        node = self.listing.node
        for tensor in tensors:
            if tensor.dtype in REFUSED[kernel]:
                raise LoweringError.at(
                    f"{node} needs {kernel} for {tensor.dtype}",
                    "" if node is None else source_place(node),
                    why="the runtime's kernel refuses this dtype",
                    instead="another dtype: x.float(), x.long()",
                )

    def _refuse_missing(self, kernel: str) -> None:
        """Refuse a call without an argument that the kernel needs: the runtime would abort."""
        node = self.listing.node
        raise LoweringError.at(
            f"{node} lacks an argument of {kernel}",
            "" if node is None else source_place(node),
            why="a pass gave it None, or left it out",
            instead="all arguments that have no default",
        )

    def call_out_variant(self, node: Node) -> Any:
        """The call of the operator's own kernel."""
        target: Any = node.target
        overload = overload_of(target)
        kernel = self.find_kernel(node, target, overload)
        parameters = [p for p in kernel_parameters(kernel) if not p.is_out]
        names = [a.name for a in overload._schema.arguments]
        given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
        args = [self.value(given.get(p.name, p.default)) for p in parameters]
        value = node.meta["val"]
        if self._names_dim_of_scalar(args, parameters):
            return self._call_on_row(kernel, args, parameters, value)
        if isinstance(target, EdgeOperator) and is_apart(node, target):
            return self._call_in_float(kernel, args, value)
        if isinstance(value, FakeTensor):
            return self.call(kernel, *args, outs=[self.new_like(value)])
        outs = [self.new_like(v) for v in value]
        self.call(kernel, *args, outs=outs)
        return outs

    def _call_in_float(self, kernel: str, args: list[Any], value: Any) -> Any:
        """Call a kernel in float32 for values in half precision, which it has not together; they
        are rounded to it afterwards, as eager does."""
        wide = [self._cast_to_float(each) for each in args]
        several = [value] if isinstance(value, FakeTensor) else value
        sizes = [(v.fake_type.size, v.dtype) for v in several]
        outs = [self.listing.new_tensor(n, torch.float32 if d in HALVES else d) for n, d in sizes]
        self.call(kernel, *wide, outs=outs)
        rounded = [self.cast(out, d) for out, (_, d) in zip(outs, sizes, strict=True)]
        return rounded[0] if isinstance(value, FakeTensor) else rounded

    def _cast_to_float(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._cast_to_float(each) for each in value]
        is_half = isinstance(value, Tensor) and value.dtype in HALVES
        return self.cast(value, torch.float32) if is_half else value

    def find_kernel(self, node: Node, target: Any, overload: OpOverload) -> str:
        """The kernel of an operator's out variant."""
        if isinstance(target, EdgeOperator) and target.namespace == "dim_order_ops":
            return f"{target.name()}.out"
        find = find_out_variant if overload.namespace == "aten" else search_out_variant
        # One that returns nothing writes into what it is given, and is a kernel as it is.
        out = find(overload) if overload._schema.returns else overload
        name = "" if out is None else _kernel_name(out)
        if name in self.kernels:
            return name
        own = overload.namespace != "aten" and name
        if has_trait(overload, Trait.COMMUNICATES):
            raise LoweringError.at(
                f"{target} is a collective, and a program for ExecuTorch has none",
                source_place(node),
                why="its runtime is one process",
                instead="save the program for torch, lostwax.save(program, file), and run it on "
                "each rank",
            )
        raise LoweringError.at(
            f"{target} has no kernel in the ExecuTorch runtime",
            source_place(node),
            why=f"the runtime has {len(kernel_names())} kernels, and nothing here computes "
            "this operator by them",
            instead=INSTEAD.get(overload.name())
            or (f'if your runtime has it, to_executable(kernels=["{name}"]); or ' if own else "")
            + ("" if name or overload.namespace == "aten" else _advise_variant(overload))
            + "write it by other operators, here or in EdgeConfig(decompositions={...})",
        )

    def copy_to_plain_order(self, source: Tensor) -> Tensor:
        return self._copy_as(source, source.dtype)

    def cast(self, source: Tensor, dtype: torch.dtype) -> Tensor:
        return source if source.dtype is dtype else self._copy_as(source, dtype)

    def _copy_as(self, source: Tensor, dtype: torch.dtype) -> Tensor:
        out = self.listing.new_tensor(source.size, dtype)
        order = list(range(len(source.size)))
        return self.call("dim_order_ops::_to_dim_order_copy.out", source, False, order, outs=[out])

    def clone(self, tensor: Tensor) -> Tensor:
        copy = self.listing.new_tensor(tensor.size, tensor.dtype)
        order = list(range(len(tensor.size)))
        self.call("dim_order_ops::_clone_dim_order.out", tensor, False, order, outs=[copy])
        return copy

    def _names_dim_of_scalar(self, args: list[Any], parameters: list[Parameter]) -> bool:
        """Does a call name dimension 0 of a tensor that has none? Eager takes it for a row of one
        element, the runtime ends the process."""
        is_named = any(
            p.name == "dim" and (a == 0 or a == -1 or a == [0] or a == [-1])
            for a, p in zip(args, parameters, strict=True)
        )
        return is_named and isinstance(args[0], Tensor) and args[0].size == ()

    def _call_on_row(
        self, kernel: str, args: list[Any], parameters: list[Parameter], value: Any
    ) -> Any:
        """Call a kernel on tensors without dimensions as rows of one element."""
        rows = [
            self.listing.view(a, (1,)) if isinstance(a, Tensor) and a.size == () else a
            for a in args
        ]
        kept = [a for a, p in zip(args, parameters, strict=True) if p.name == "keepdim"]
        size = () if kept == [False] else (1,)
        values = [value] if isinstance(value, FakeTensor) else value
        outs = [self.listing.new_tensor(size, v.dtype) for v in values]
        self.call(kernel, *rows, outs=outs)
        plain = [self.listing.view(out, ()) for out in outs]
        return plain[0] if isinstance(value, FakeTensor) else plain


def _kernel_name(overload: OpOverload) -> str:
    schema = overload._schema
    return f"{schema.name}.{schema.overload_name}".removesuffix(".")


def _advise_variant(overload: OpOverload) -> str:
    """What must be registered of an operator that returns new tensors: kernels write into tensors
    that they are given."""
    schema = overload._schema
    outs = [chr(ord("a") + at) for at in range(len(schema.returns))]
    names = ["out"] if len(outs) == 1 else [f"out{at}" for at in range(len(outs))]
    arguments = str(schema).partition("(")[2].rpartition(") ->")[0]
    star = "" if "*," in arguments else "*, "
    given = ", ".join(f"Tensor({mark}!) {name}" for mark, name in zip(outs, names, strict=True))
    returns = ", ".join(f"Tensor({mark}!)" for mark in outs)
    returns = f"({returns})" if len(outs) > 1 else returns
    return (
        f'an out variant, torch.library.define("{schema.name}.out", "({arguments}, {star}{given}) '
        f'-> {returns}"), with to_executable(kernels=["{schema.name}.out"]); or '
    )


def see_in_fewer_dims(tensors: list[Any]) -> list[Any]:
    """Two operands and their result with dimensions put together that are broadcast alike: the
    kernels are fast if an operand is broadcast along one dimension, which is the first or last."""
    if any(not isinstance(t, Tensor) or t.is_dynamic for t in tensors):
        return tensors
    whole = tensors[-1].bound
    if all(t.bound == whole for t in tensors) or 0 in whole:
        return tensors
    sizes = [(1,) * (len(whole) - len(t.bound)) + t.bound for t in tensors]
    groups: list[list[tuple[int, ...]]] = []
    for each in zip(*sizes, strict=True):
        if each[-1] == 1:
            continue
        if groups and all((a == 1) == (b == 1) for a, b in zip(groups[-1][0], each, strict=True)):
            groups[-1].append(each)
        else:
            groups.append([each])
    if len(groups) == len(whole):
        return tensors
    merged = [[math.prod(column) for column in zip(*group, strict=True)] for group in groups]
    each_size = list(zip(*merged, strict=True)) or [()] * len(tensors)
    pairs = zip(tensors, each_size, strict=True)
    return [Tensor(size, t.dtype, t.storage, size) for t, size in pairs]


def check_tensor(dtype: torch.dtype, rank: int, what: str, where: str) -> None:
    if dtype not in DTYPES:
        raise LoweringError.at(
            f"{what} has the dtype {dtype}",
            where,
            why="the runtime has no tensors of this dtype",
            instead="x.to(torch.float32), or another of "
            + ", ".join(str(d).removeprefix("torch.") for d in DTYPES),
        )
    if rank > MOST_DIMS:
        raise LoweringError.at(
            f"{what} has {rank} dimensions",
            where,
            why=f"the runtime has tensors of at most {MOST_DIMS}",
            instead="fewer dimensions",
        )


def _coerce(value: Any, parameter: Parameter) -> Any:
    """An argument in the form that the kernel's parameter has."""
    if value is None or isinstance(value, (Tensor, Number)):
        return value
    kind = parameter.kind
    if kind == "float":
        return float(value)
    if isinstance(value, torch.dtype):
        return DTYPES[value]
    if isinstance(value, torch.memory_format):
        return 1 if value is torch.preserve_format else 0
    if isinstance(value, torch.layout):
        return 0
    if kind == "[float]":
        return ListOperand(kind, map(float, value))
    if kind[0] == "[":
        return ListOperand(kind, [value] if isinstance(value, int) else value)
    if kind == "bool":
        return bool(value)
    if kind == "int":
        return int(value)
    return value
