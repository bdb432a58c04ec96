"""From a program in the Edge dialect to a listing of kernel calls.

A node becomes the call of its out variant, unless `select.py` knows a better way. Views are not
copied where the runtime can see the same memory under other sizes. Must not plan memory.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Node

from lostwax.dialects.edge_operators import EdgeOperator
from lostwax.errors import LoweringError
from lostwax.fake.symbolic.node import unwrap
from lostwax.fake.tensor import FakeTensor
from lostwax.ir.program import ExportedProgram
from lostwax.ir.signature import ConstantArgument, InputKind, OutputKind
from lostwax.ir.text import source_place, type_text
from lostwax.pte.file.schema import MOST_DIMS
from lostwax.pte.lowering.arithmetic import ARITHMETIC
from lostwax.pte.lowering.control import CONTROL
from lostwax.pte.lowering.convolution import CONVOLUTIONS
from lostwax.pte.lowering.delegates import lower_delegate
from lostwax.pte.lowering.in_place import IN_PLACE, write_arguments
from lostwax.pte.lowering.kernels import HALVES
from lostwax.pte.lowering.listing import Call, Listing, Number, Storage, Tensor
from lostwax.pte.lowering.pools import POOLS
from lostwax.pte.lowering.quantized import QUANTIZED
from lostwax.pte.lowering.select import SELECTED
from lostwax.pte.lowering.state import STATE, WRITES, has_data
from lostwax.pte.lowering.strided import STRIDED, Strided, settle_view
from lostwax.pte.lowering.writer import CallWriter, check_tensor
from lostwax.sym import Expr
from lostwax.types import TensorType, channels_last_strides

_RESULTS = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)


_HIGHER = {
    **CONTROL,
    "executorch_call_delegate": lower_delegate,
    "auto_functionalized": write_arguments,
}
_SELECTIONS = {
    **SELECTED,
    **STRIDED,
    **IN_PLACE,
    **ARITHMETIC,
    **CONVOLUTIONS,
    **POOLS,
    **QUANTIZED,
}


def lower_method(
    name: str,
    program: ExportedProgram,
    kept: Mapping[tuple[str, str], Storage],
    kernels: Collection[str] = (),
) -> Listing:
    """The listing of a program. `kept` holds the memory of state that is written, by the names of
    method and state; `kernels` are those that the runtime has beside its own."""
    return Lowering(name, program, kept, kernels).run()


class Lowering(CallWriter):
    """Lowers one program."""

    def __init__(
        self,
        name: str,
        program: ExportedProgram,
        kept: Mapping[tuple[str, str], Storage],
        kernels: Collection[str] = (),
    ) -> None:
        super().__init__(Listing(name), program.graph, kernels)
        self.program = program
        self.kept = kept
        self.buffers: dict[str, Tensor] = {}

    def run(self) -> Listing:
        nodes = list(self.program.graph.nodes)
        specs = iter(self.program.graph_signature.input_specs)
        for node in nodes:
            self.listing.node = node
            if node.op == "placeholder":
                self._lower_input(node, next(specs))
            elif node.op == "call_function":
                self.lower_call(node)
                self.listing.lowered[node] = len(self.listing.steps), self.values.get(node)
            elif node.op == "output":
                self._lower_output(node)
        return self.listing

    def inline(self, graph: GraphModule, operands: Sequence[Any]) -> list[Any]:
        (outer, self.values), caller = (self.values, {}), self.listing.node
        given = iter(operands)
        results: Any = []
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                self._bind(node, next(given))
            elif node.op == "call_function":
                self.listing.node = node
                self.lower_call(node)
            elif node.op == "output":
                results = self.value(node.args[0])
        self.values, self.listing.node = outer, caller
        return list(results) if isinstance(results, (list, tuple)) else [results]

    def _bind(self, node: Node, value: Any) -> None:
        """Let an input of a sub-graph be this value."""
        self.values[node] = value
        recorded = node.meta.get("val")
        size = unwrap(recorded) if isinstance(recorded, torch.SymInt) else None
        if isinstance(size, Expr) and isinstance(value, Number):
            self.listing.numbers[size] = value
        if isinstance(recorded, FakeTensor) and isinstance(value, Tensor):
            sizes = recorded.fake_type.size
            if sizes != value.size:  # the same under other names
                self.listing.note(replace(value, size=sizes))

    # ---------------------------------------------------------------------------- inputs, outputs

    def _lower_input(self, node: Node, spec: Any) -> None:
        if spec.kind in STATE:
            self.values[node] = self._state(spec.target)
        elif spec.kind is not InputKind.USER_INPUT:
            raise LoweringError.at(
                f"the input {node.name!r} is a {spec.kind.name.lower()}",
                "",
                why="an executable takes tensors and plain numbers",
                instead="compute with tensors",
            )
        else:
            self.values[node] = value = self._user_input(node, spec)
            self.listing.inputs.append(value)
            if isinstance(value, Tensor) and value.order is not None:
                self.values[node] = self.copy_to_plain_order(value)

    def _state(self, target: str) -> Tensor:
        program = self.program
        data = program.state_dict.get(target, program.constants.get(target))
        if not has_data(data):
            raise LoweringError.at(
                f"the state {target!r} has no data",
                "",
                why="its tensor is a fake, or lies on the device 'meta'",
                instead="load the weights into the module, and export it again",
            )
        check_tensor(data.dtype, data.ndim, f"the state {target!r}", "")
        data = data.detach().cpu()
        storage = self.kept.get((self.listing.name, target))
        if storage is None:
            return self.listing.new_constant(data, target)
        size = tuple(data.shape)
        self.buffers[target] = Tensor(size, data.dtype, storage, size)
        return self.buffers[target]

    def _user_input(self, node: Node, spec: Any) -> Any:
        if isinstance(spec.arg, ConstantArgument):
            value = spec.arg.value
            if value is None or isinstance(value, (bool, int, float, str)):
                return value
        else:
            value = node.meta.get("val")
        if isinstance(value, FakeTensor):
            t = value.fake_type
            check_tensor(t.dtype, t.ndim, f"the input {node.name!r}", "")
            tensor = self.listing.new_tensor(t.size, t.dtype)
            tensor.storage.is_given = True
            tensor.order = _dim_order(t)
            return self.listing.note(tensor)
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise LoweringError.at(
            f"the input {node.name!r} is {type_text(value) or type(value).__name__}",
            "",
            why="the runtime takes tensors; a number is fixed when the program is lowered",
            instead="pass a tensor: torch.tensor(n), and n.item() where the number is needed",
        )

    def _lower_output(self, node: Node) -> None:
        signature = self.program.graph_signature
        pairs = list(zip(node.args[0], signature.output_specs, strict=True))  # type: ignore[arg-type]
        news: list[tuple[Tensor, Any, Any]] = []
        for value, spec in pairs:
            given = self.value(value) if isinstance(value, Node) else value
            if spec.kind in WRITES:
                news.append((self.buffers[str(spec.target)], given, value))
            elif spec.kind in _RESULTS:
                self.listing.outputs.append(self._result(given))
            else:
                raise LoweringError.at(
                    f"the program writes to its input {spec.target!r}",
                    source_place(value) if isinstance(value, Node) else "",
                    why="an executable works on a copy of its inputs, so that its caller would "
                    "not see it",
                    instead="return the new value, and write it in the caller",
                )
        self._write_back(news)

    def _result(self, value: Any) -> Any:
        """A result. State that is written after it is computed would change under it."""
        if isinstance(value, Tensor) and value.storage.is_kept:
            return self.clone(value)
        if isinstance(value, (Tensor, Number)) or value is None:
            return value
        if isinstance(value, (bool, int, float, str)):
            return value
        raise LoweringError.at(
            f"a result is a {type(value).__name__}",
            "",
            why="an executable returns tensors, numbers, texts and None",
            instead="return tensors",
        )

    def _write_back(self, news: list[tuple[Tensor, Any, Any]]) -> None:
        """Write new state, with the nodes that compute it. What is read of other state is read
        before any is written."""
        ready = []
        for buffer, new, node in news:
            if new.storage is buffer.storage:
                continue
            self.listing.node = node
            ready.append((buffer, self.clone(new) if new.storage.is_kept else new, node))
        for buffer, new, node in ready:
            call = Call("aten::copy_", [buffer, new, False, buffer], (buffer,), node)
            self.listing.steps.append(call)

    # ---------------------------------------------------------------------------- calls

    def lower_call(self, node: Node) -> None:
        target: Any = node.target
        if node in self.values:
            return  # what was lowered before it computes it, too
        if target is operator.getitem:
            self._lower_item_of(node)
        elif isinstance(target, EdgeOperator):
            self.values[node] = self._lower_operator(node, target)
        elif isinstance(target, HigherOrderOperator):
            control = _HIGHER.get(target.name())
            if control is None:
                raise LoweringError.at(
                    f"{target.name()} cannot be lowered",
                    source_place(node),
                    why=f"an executable has {', '.join(_HIGHER)}",
                    instead="write it by these, or by operators alone",
                )
            self.values[node] = control(self, node)
        elif isinstance(target, OpOverload) and not target._schema.returns:
            pass  # an assertion: the runtime has no kernel that could stop it
        elif target is torch.ops.aten._local_scalar_dense.default:
            self._lower_item(node)
        elif isinstance(node.meta.get("val"), torch.SymInt):
            pass  # computed from its expression, where it is needed
        elif isinstance(node.meta.get("val"), (bool, int, float)):
            self.values[node] = node.meta["val"]  # a stride of an input: the same at every call
        else:
            self._lower_number(node)

    def _lower_item_of(self, node: Node) -> None:
        """One of several results."""
        several: Any = node.args[0]
        self.value(several)
        made = self.values[several][node.args[1]]
        is_view = isinstance(made, Strided)
        self.values[node] = settle_view(self, node, made) if is_view else made

    def _lower_operator(self, node: Node, target: EdgeOperator) -> Any:
        value = node.meta["val"]
        if isinstance(value, FakeTensor):
            t = value.fake_type
            if t.ndim > MOST_DIMS:
                check_tensor(t.dtype, t.ndim, f"the result of {node}", source_place(node))
            if 0 in t.size and all(isinstance(s, int) for s in t.size):
                return self.new_like(value)  # without elements, nothing is to be computed
        select = _SELECTIONS.get(target.name())
        made = select(self, node) if select is not None else None
        return self.call_out_variant(node) if made is None else made

    def _lower_item(self, node: Node) -> None:
        value = node.meta["val"]
        number = Number(next(s for c, s in _STARTS if isinstance(value, c)))
        source = self.value(node.args[0])
        if source.dtype is torch.bool and isinstance(value, torch.SymInt):
            source = self.cast(source, torch.int64)  # else it would be no integer there
        if source.dtype in HALVES:  # of which the runtime reads no number
            source = self.cast(source, torch.float32)
        call = Call("aten::_local_scalar_dense", [source, number], (number,), node)
        self.listing.steps.append(call)
        self.values[node] = number
        size = unwrap(value) if isinstance(value, torch.SymInt) else None
        if isinstance(size, Expr):
            self.listing.numbers[size] = number

    def _lower_number(self, node: Node) -> None:
        """A number that is no integer of sizes: computed as the graph says."""
        args = [self.value(a) for a in node.args]
        if node.target in _BY_OTHERS:
            self.values[node] = _BY_OTHERS[node.target](self.listing, *args)
            return
        prim = _PRIMS.get(node.target)
        if prim is None:
            raise LoweringError.at(
                f"{node.target} on numbers has no kernel",
                source_place(node),
                instead="compute it with tensors",
            )
        value = node.meta.get("val")
        start = next((s for c, s in _STARTS if isinstance(value, c)), 0)
        self.values[node] = self.listing.apply(prim, *args, start=start)


_STARTS: tuple[tuple[type, Any], ...] = (
    (torch.SymInt, 0),
    (torch.SymFloat, 0.0),
    (torch.SymBool, False),
)

_PRIMS: dict[Any, str] = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.floordiv: "floordiv",
    operator.truediv: "truediv",
    operator.mod: "mod",
    operator.neg: "neg",
    operator.eq: "eq",
    operator.lt: "lt",
    operator.le: "le",
    operator.gt: "gt",
    operator.ge: "ge",
    math.ceil: "ceil",
    math.trunc: "trunc",
    round: "round",
    torch.sym_float: "sym_float",
    torch.sym_int: "sym_int",
    torch.sym_max: "sym_max",
    torch.sym_min: "sym_min",
    torch.sym_not: "sym_not",
    torch.sym_ite: "sym_ite",
}
"""The runtime's function for each function on numbers."""

_BY_OTHERS: dict[Any, Callable[..., Any]] = {
    operator.ne: lambda listing, a, b: listing.apply(
        "sym_not", listing.apply("eq", a, b, start=False), start=False
    ),
    operator.and_: lambda listing, a, b: listing.apply("sym_ite", a, b, False, start=False),
    operator.or_: lambda listing, a, b: listing.apply("sym_ite", a, True, b, start=False),
}
"""Functions on numbers that the runtime has not, by those that it has. `and_` and `or_` are given
truths: the integers that sizes are computed of have no bits."""


def _dim_order(t: TensorType) -> tuple[int, ...] | None:
    """The order of an input's dimensions in memory; None if it is their own. Inputs with other
    strides are laid out contiguously by who calls the method."""
    if t.ndim != 4 or t.is_contiguous or t.stride != channels_last_strides(t.size):
        return None
    return (0, 2, 3, 1)
