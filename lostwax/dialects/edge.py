"""From core ATen to the Edge dialect, in one walk over the graph.

Views become copies, numbers in the place of tensors become constants, operands are cast to the
dtype that the operator computes in, casts and copies say their dim order, and every operator
becomes an Edge operator. All values are laid out contiguously. State that nothing reads goes. Must
not change the program that it reads, and traces nothing again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.immutable_collections import immutable_list

from lostwax.dialects.edge_operators import edge, edge_operator
from lostwax.dialects.promotion import (
    FILLED,
    PROMOTED,
    convert_number,
    find_compute_dtype,
    is_number,
    is_rounded,
    number_dtype,
    tensor_of,
)
from lostwax.errors import LoweringError
from lostwax.fake.tensor import FakeTensor, new_fake
from lostwax.ir.data import ModuleCallEntry
from lostwax.ir.graph.copying import copy_module
from lostwax.ir.graph.delegate import LoweredBackendModule
from lostwax.ir.graph.handles import HANDLE
from lostwax.ir.graph.lookup import all_nodes
from lostwax.ir.graph.retype import mode_of
from lostwax.ir.graph.rewriter import GraphRewriter, hold, rename_arguments
from lostwax.ir.program import ExportedProgram
from lostwax.ir.signature import (
    STATE_WRITES,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    TensorArgument,
)
from lostwax.ir.text import source_place, type_text
from lostwax.types import TensorType, channels_last_strides, contiguous_strides

aten = torch.ops.aten

COPIES: dict[OpOverload, OpOverload] = {
    aten.alias.default: aten.alias_copy.default,
    aten.as_strided.default: aten.as_strided_copy.default,
    aten.detach.default: aten.detach_copy.default,
    aten.diagonal.default: aten.diagonal_copy.default,
    aten.expand.default: aten.expand_copy.default,
    aten.permute.default: aten.permute_copy.default,
    aten.select.int: aten.select_copy.int,
    aten.slice.Tensor: aten.slice_copy.Tensor,
    aten.split.Tensor: aten.split_copy.Tensor,
    aten.split_with_sizes.default: aten.split_with_sizes_copy.default,
    aten.squeeze.default: aten.squeeze_copy.default,
    aten.squeeze.dim: aten.squeeze_copy.dim,
    aten.squeeze.dims: aten.squeeze_copy.dims,
    aten.t.default: aten.t_copy.default,
    aten.transpose.int: aten.transpose_copy.int,
    aten.unbind.int: aten.unbind_copy.int,
    aten.unfold.default: aten.unfold_copy.default,
    aten.unsqueeze.default: aten.unsqueeze_copy.default,
    aten.view.default: aten.view_copy.default,
    aten._unsafe_view.default: aten.view_copy.default,
    aten.view_as_complex.default: aten.view_as_complex_copy.default,
    aten.view_as_real.default: aten.view_as_real_copy.default,
}
"""The copy that stands for each view."""

SAME_VALUE = frozenset(
    (aten.alias_copy.default, aten.detach_copy.default, aten.lift_fresh_copy.default)
)
"""Operators that return the value that they are given."""

OF_LAYOUT = frozenset(
    (aten.as_strided.default, aten.sym_stride.int, aten.sym_storage_offset.default)
)
"""Operators whose result depends on how their argument lies in memory."""

PLAIN_OPERATORS = frozenset(
    (
        *(aten.sym_size.int, aten.sym_numel.default, aten.sym_stride.int),
        *(aten.sym_storage_offset.default, aten._assert_scalar.default),
        *(aten._assert_async.msg, aten.sym_constrain_range.default),
        *(aten.sym_constrain_range_for_size.default, aten._local_scalar_dense.default),
    )
)
"""What stays an ATen operator: what returns numbers, or nothing."""


def lower_to_edge(program: ExportedProgram) -> ExportedProgram:
    """Return the program in the Edge dialect; it must be in core ATen."""
    lowering = _ProgramLowering(program)
    return lowering.run()


class _ProgramLowering:
    """Lowers one program: its graph, its sub-graphs, and the constants that both need."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self.mode = mode_of(program.graph)
        self.constants: dict[tuple[str, torch.dtype], tuple[str, torch.Tensor]] = {}

    def run(self) -> ExportedProgram:
        program = self.program
        read = self._read_state()
        graphs = _GraphLowering(self, program.graph_module, read)
        module = graphs.run()
        specs = [s for s, r in zip(program.graph_signature.input_specs, read, strict=True) if r]
        at = next((i for i, s in enumerate(specs) if s.kind in _AFTER_CONSTANTS), len(specs))
        specs[at:at] = [
            InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(name), name)
            for name, _ in self.constants.values()
        ]
        outputs = rename_arguments(program.graph_signature.output_specs, graphs.names)
        state, constants = hold(program, specs)
        return replace(
            program,
            graph_module=module,
            graph_signature=ExportGraphSignature(specs, outputs),
            state_dict=state,
            constants=constants | dict(self.constants.values()),
            module_call_graph=[self._renew_entry(e, graphs) for e in program.module_call_graph],
            dialect="EDGE",
        )

    def _renew_entry(self, entry: ModuleCallEntry, graphs: _GraphLowering) -> ModuleCallEntry:
        """The root's call in today's names; those of other modules are lost with their values."""
        call = entry.signature
        if entry.fqn or call is None:
            return ModuleCallEntry(entry.fqn)
        outputs = rename_arguments(call.outputs, graphs.names)
        return ModuleCallEntry(entry.fqn, replace(call, outputs=outputs))

    def _read_state(self) -> list[bool]:
        """For each input whether it stays: it is the user's, or it is read, or written."""
        signature = self.program.graph_signature
        written = {s.target for s in signature.output_specs if s.kind in STATE_WRITES}
        nodes = (n for n in self.program.graph.nodes if n.op == "placeholder")
        return [
            spec.kind is InputKind.USER_INPUT or bool(node.users) or spec.target in written
            for node, spec in zip(nodes, signature.input_specs, strict=True)
        ]

    def constant(self, value: Any, dtype: torch.dtype) -> str:
        """The name of the constant that holds this number, shared by all that need it."""
        key = (repr(value), dtype)
        if key not in self.constants:
            name = f"_lifted_tensor_constant{len(self.constants)}"
            self.constants[key] = name, tensor_of(value, dtype)
        return self.constants[key][0]


_AFTER_CONSTANTS = (InputKind.CUSTOM_OBJ, InputKind.USER_INPUT)


class _GraphLowering(GraphRewriter):
    """Writes the Edge graph of one graph module."""

    def __init__(
        self,
        program: _ProgramLowering,
        module: GraphModule,
        kept: Sequence[bool] | None = None,
    ) -> None:
        """`kept` says of the inputs of the outer graph which of them stay."""
        super().__init__(module)
        self.program, self.kept, self.is_outer = program, kept, kept is not None
        self.fixed: dict[str, Node] = {}
        """The placeholders of constants by name."""

    def run(self) -> GraphModule:
        self._find_constants()
        self._add_placeholders()
        for node in self.nodes:
            if node.op != "placeholder":
                self.write[node.op](node)
        return self.finish()

    # -------------------------------------------------------------------------- what is given

    def _find_constants(self) -> None:
        """Find the numbers that stand for tensors, before placeholders are written."""
        if not self.is_outer:
            return
        for node in self.nodes:
            for value, dtype in _numbers_for_tensors(node):
                if not isinstance(value, Node):
                    self.program.constant(value, dtype)

    def _add_placeholders(self) -> None:
        nodes = [n for n in self.nodes if n.op == "placeholder"]
        kept = self.kept or [True] * len(nodes)
        specs = self.program.program.graph_signature.input_specs if self.is_outer else ()
        pending = dict(self.program.constants.values()) if self.is_outer else {}
        for i, node in enumerate(nodes):
            if pending and specs[i].kind in _AFTER_CONSTANTS:
                self._add_constants(pending)
                pending = {}
            if kept[i]:
                self.copy_input(node)
        self._add_constants(pending)

    def _add_constants(self, tensors: dict[str, torch.Tensor]) -> None:
        mode = self.program.mode
        for name, tensor in tensors.items():
            node = self.writer.append_ready("placeholder", name, name, (), ())
            node.meta["val"] = new_fake(mode, TensorType((), tensor.dtype, tensor.device))
            self.fixed[name] = node

    def copy(self, node: Node) -> Node:
        return self._lay_out_copied(super().copy(node))

    def copy_input(self, node: Node) -> Node:
        return self._lay_out_copied(super().copy_input(node))

    def _lay_out_copied(self, copy: Node) -> Node:
        value = copy.meta.get("val")
        laid_out = self._lay_out(value)
        if laid_out is not value and not _is_channels_last(value):
            copy.meta["val"] = laid_out
        return copy

    def rewrite_child(self, child: GraphModule) -> GraphModule:
        return _GraphLowering(self.program, child).run()

    def copy_child(self, node: Node) -> None:
        path, is_new = str(node.target), str(node.target) not in self.children
        super().copy_child(node)
        child = self.children[path]
        if is_new and isinstance(child, LoweredBackendModule):  # of a program before this one
            self.children[path] = _without_handles(child)

    # -------------------------------------------------------------------------- calls

    def rewrite_call(self, node: Node) -> None:
        target: Any = node.target
        if target in _DROPPED:
            return
        if not isinstance(target, OpOverload) or target in PLAIN_OPERATORS:
            if target in OF_LAYOUT:
                _require_plain_layout(node)
            self.copy(node)
            return
        if target in OF_LAYOUT:
            _require_plain_layout(node)
        target = COPIES.get(target, target)
        if target in SAME_VALUE:
            self.replace(node, self.new[node.args[0]])  # type: ignore[index]
        elif target in _LAYOUTS:
            _LAYOUTS[target](self, node)
        else:
            dtype = find_compute_dtype(node)
            args = self._lower_arguments(node, dtype)
            kwargs = self.map_argument(node.kwargs)
            if dtype is not None and is_rounded(node, dtype):
                self._write_rounded(node, edge_operator(target), args, kwargs, dtype)
            else:
                self._write(node, edge_operator(target), args, kwargs)

    def _write(self, node: Node, target: Any, args: Any, kwargs: Any) -> Node:
        copy = self.put(node, target, args, kwargs)
        copy.meta["val"] = self._lay_out(node.meta.get("val"))
        return copy

    def _write_rounded(
        self, node: Node, target: Any, args: Any, kwargs: Any, dtype: torch.dtype
    ) -> None:
        """Write a call that computes in a wider dtype, and the cast of its result."""
        size = node.meta["val"].fake_type.size
        value, wide = node.meta["val"], TensorType(size, dtype, _device_of(node))
        made = self.add(node, target, args, kwargs, new_fake(self.program.mode, wide))
        order = immutable_list(range(value.ndim))
        copy = edge.dim_order_ops._to_dim_order_copy.default
        self._write(node, copy, (made,), {"dtype": value.dtype, "dim_order": order})

    def _lay_out(self, value: Any) -> Any:
        """The value of a node, as it lies in memory in this dialect."""
        if isinstance(value, FakeTensor):
            t = value.fake_type
            if t.offset == 0 and t.stride == contiguous_strides(t.size):
                return value
            return new_fake(value.fake_mode, TensorType(t.size, t.dtype, t.device))
        if isinstance(value, (tuple, list)):
            return type(value)([self._lay_out(v) for v in value])
        return value

    def _lower_arguments(self, node: Node, dtype: torch.dtype | None) -> tuple[Any, ...]:
        """The arguments of a call in the new graph: numbers as tensors, operands in the dtype that
        it computes in."""
        args: list[Any] = list(self.map_argument(node.args))
        operands = PROMOTED.get(node.target, ())  # type: ignore[call-overload]
        for i, argument in enumerate(node.target._schema.arguments[: len(args)]):  # type: ignore[union-attr]
            given = node.args[i]
            if is_number(given):
                if _takes_tensor(argument):
                    args[i] = self._number_as_tensor(node, given, dtype or number_dtype(given))
                elif dtype is not None and i in operands and not isinstance(given, Node):
                    args[i] = convert_number(given, dtype)
            elif dtype is not None and i in operands and isinstance(args[i], Node):
                args[i] = self._cast(node, args[i], dtype)
        filled = FILLED.get(node.target)  # type: ignore[call-overload]
        if filled is not None and not isinstance(args[filled], Node):
            args[filled] = convert_number(args[filled], node.meta["val"].dtype)
        if node.target is aten.cat.default:
            dtype = node.meta["val"].dtype
            args[0] = immutable_list([self._cast(node, part, dtype) for part in args[0]])
        return tuple(args)

    def _number_as_tensor(self, node: Node, value: Any, dtype: torch.dtype) -> Node:
        if isinstance(value, Node):
            return self._add(node, edge.aten.scalar_tensor.default, (self.new[value],), dtype, ())
        if self.is_outer:
            return self.fixed[self.program.constant(value, dtype)]
        number = convert_number(value, dtype)
        return self._add(node, edge.aten.full.default, (immutable_list(), number), dtype, ())

    def _cast(self, node: Node, operand: Node, dtype: torch.dtype) -> Node:
        value = operand.meta["val"]
        if value.dtype is dtype:
            return operand
        size = value.fake_type.size
        target = edge.dim_order_ops._to_dim_order_copy.default
        order = immutable_list(range(len(size)))
        return self._add(node, target, (operand,), dtype, size, dim_order=order)

    def _add(
        self, node: Node, target: Any, args: Any, dtype: torch.dtype, size: Any, **kwargs: Any
    ) -> Node:
        """Add a call that this one needs, with the option `dtype`."""
        value = new_fake(self.program.mode, TensorType(size, dtype, _device_of(node)))
        return self.add(node, target, args, {"dtype": dtype, **kwargs}, value)

    # -------------------------------------------------------------------------- layouts

    def _lower_copy(self, node: Node) -> None:
        """A cast, or a copy that changes nothing and goes."""
        source, value = self.new[node.args[0]], node.meta["val"]  # type: ignore[index]
        if source.meta["val"].dtype is value.dtype:
            self.replace(node, source)
            return
        target = edge.dim_order_ops._to_dim_order_copy.default
        order = immutable_list(range(value.ndim))
        self._write(node, target, (source,), {"dtype": value.dtype, "dim_order": order})

    def _lower_empty(self, node: Node) -> None:
        value = node.meta["val"]
        size = self.map_argument(node.args[0])
        order = immutable_list(range(value.ndim))
        target = edge.dim_order_ops._empty_dim_order.default
        self._write(node, target, (size,), {"dtype": value.dtype, "dim_order": order})


_LAYOUTS = {
    aten._to_copy.default: _GraphLowering._lower_copy,
    aten.clone.default: _GraphLowering._lower_copy,
    aten.empty.memory_format: _GraphLowering._lower_empty,
}
"""Operators that are about layouts, and how each is lowered."""

_DROPPED = frozenset((aten._assert_tensor_metadata.default,))


def _without_handles(delegate: LoweredBackendModule) -> LoweredBackendModule:
    """The delegate with nodes of its own, which get handles of the program that it is in now."""
    module, _ = copy_module(delegate.program.graph_module)
    for node in all_nodes(module):
        node.meta.pop(HANDLE, None)
    return delegate.with_program(replace(delegate.program, graph_module=module))


def _is_channels_last(value: Any) -> bool:
    """Does an input come so? The runtime takes that, and all others as the dialect has them."""
    if not isinstance(value, FakeTensor) or value.ndim != 4:
        return False
    t = value.fake_type
    return not t.is_contiguous and t.stride == channels_last_strides(t.size)


def _takes_tensor(argument: Any) -> bool:
    return str(argument.type) in ("Tensor", "Optional[Tensor]")


def _numbers_for_tensors(node: Node) -> list[tuple[Any, torch.dtype]]:
    """The numbers that a call is given in the place of tensors, with the dtype of each."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return []
    return [
        (value, find_compute_dtype(node) or number_dtype(value))
        for value, argument in zip(node.args, node.target._schema.arguments, strict=False)
        if is_number(value) and _takes_tensor(argument)
    ]


def _device_of(node: Node) -> torch.device:
    value = node.meta.get("val")
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return next((p.device for p in parts if isinstance(p, FakeTensor)), torch.device("cpu"))


def _require_plain_layout(node: Node) -> None:
    """Refuse a call that reads the layout of a value that is not laid out as this dialect does."""
    source = node.args[0]
    assert isinstance(source, Node)
    t = source.meta["val"].fake_type
    if t.stride != TensorType(t.size, t.dtype, t.device).stride or t.offset != 0:
        raise LoweringError.at(
            f"{node.target} reads how {source.name!r} ({type_text(source.meta['val'])}) lies in "
            "memory",
            source_place(node),
            why="the Edge dialect lays every value out contiguously, and this one is a view "
            f"with strides {list(t.stride)}",
            instead="x.contiguous() before it, or indexing in place of strides",
        )
