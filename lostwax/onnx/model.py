"""`to_onnx`: a program as an ONNX model in memory.

Inputs and outputs are the user's; weights are initializers; what the program writes comes in and
goes out under a pair of names. Must not write files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir
import torch
from torch._ops import OpOverload
from torch.fx import Node

import lostwax.onnx.operators as _operators
import lostwax.onnx.patterns as _patterns
from lostwax.classes import SYMBOLIC
from lostwax.errors import OnnxError
from lostwax.fake.symbolic.node import unwrap
from lostwax.fake.tensor import FakeTensor
from lostwax.ir.decompose.core_aten import CustomDecompTable
from lostwax.ir.decompose.decompose import decompose_program
from lostwax.ir.decompose.expander import Decomposition
from lostwax.ir.decompose.gaps import OF_STRIDES
from lostwax.ir.graph.lookup import all_nodes, graph_modules
from lostwax.ir.passes.transforms.gradients import PlainGradients, has_custom_gradients
from lostwax.ir.program import ExportedProgram, check_is_program
from lostwax.ir.ranges import limits_by_name
from lostwax.ir.signature import ConstantArgument, InputKind, OutputKind
from lostwax.ir.text import source_place
from lostwax.onnx.functions import Wanted, check_wanted, make_functions
from lostwax.onnx.matmul_nbits import use_matmul_nbits
from lostwax.onnx.table import NEWEST, OLDEST, USUAL, NotWritten, find_translation, name_of
from lostwax.onnx.translate import find_needed, write_graph
from lostwax.onnx.values import DTYPES, OnnxTensor, make_shape
from lostwax.onnx.weights import fold_weights
from lostwax.onnx.writer import OnnxWriter, Refused, remove_unread
from lostwax.ops.decompositions.runtime import RUNTIME

_operators.load()
_patterns.load()

_IR_VERSIONS = {23: 11, 24: 12, 25: 13, 26: 13}
"""The version of the file's form that came with an opset; earlier ones are written in that of 10,
the first in which nodes have metadata."""
STATE = "lostwax.state"
"""The key in the model's metadata: a JSON object, from inputs to the outputs that are handed to
them in the next call."""

RANGES = "lostwax.ranges"
"""The same, from names of dims to their least and largest sizes, or null."""


def to_onnx(
    program: ExportedProgram,
    *,
    opset: int = USUAL,
    decompositions: Mapping[OpOverload, Decomposition] | None = None,
    functions: Wanted = False,
    matmul_nbits: bool = False,
) -> ir.Model:
    """The program as an ONNX model: `onnx_ir.Model`. Nothing is copied: its initializers refer to
    the program's weights. `lostwax.onnx.save` writes it to a file. `decompositions` say how
    operators are computed by others, where they have no form in ONNX, or another is wanted; `opset`
    is the version of ONNX's operators, 18 to 26.

    With `functions=True` calls of modules are calls of ONNX functions, with a list of classes those
    of these. With `matmul_nbits=True` products with weights of four bits in groups are
    `MatMulNBits`, an operator of onnxruntime's own."""
    check_is_program(program, "to_onnx")
    return write_model(program, opset, decompositions or {}, functions, matmul_nbits)


def write_model(
    program: ExportedProgram,
    opset: int,
    decompositions: Mapping[OpOverload, Decomposition],
    functions: Wanted,
    matmul_nbits: bool,
    stays: Callable[[torch.Tensor], object] = lambda _: False,
) -> ir.Model:
    """As `to_onnx`; `stays` says of a weight that it is held as it is."""
    if type(opset) is not int or not OLDEST <= opset <= NEWEST:
        raise OnnxError(
            f"opset={opset!r} cannot be written\n  why: opsets {OLDEST} to {NEWEST} are known\n"
            f"  instead: leave it out, which is {USUAL}, or take one of these"
        )
    wanted = check_wanted(functions)
    ready = prepare(program, opset, decompositions)
    try:
        return _ModelWriter(ready, opset).run(wanted, matmul_nbits, stays)
    except NotWritten as error:  # of a result of the program itself
        text = "a result of the program cannot be written in ONNX"
        raise OnnxError.at(text, "", why=error.why, instead=error.instead) from None


# ------------------------------------------------------------------------------- operators


class _OnnxTable(CustomDecompTable):
    """Takes apart all that has no translation."""

    def __init__(self, opset: int, given: Mapping[OpOverload, Decomposition]) -> None:
        super().__init__()
        self.opset = opset
        self.offer(RUNTIME).update(given)

    def _find(self, op: OpOverload) -> Any:
        if op not in self.changed and find_translation(op, self.opset):
            return None
        return super()._find(op)


def prepare(
    program: ExportedProgram, opset: int, given: Mapping[OpOverload, Decomposition]
) -> ExportedProgram:
    """The program with operators that the table has. All that are missing are reported at once."""
    if has_custom_gradients(program):
        program = PlainGradients()(program)
    if given or _list_missing(program, opset) or _has_gaps(program):
        program = decompose_program(program, _OnnxTable(opset, given), are_strides_seen=False)
        missing = _list_missing(program, opset)
        if missing:
            raise _make_missing_error(missing)
    return program


def _has_gaps(program: ExportedProgram) -> bool:
    """Does it lay results out with gaps in memory? Taking apart leaves that out."""
    nodes = all_nodes(program.graph_module)
    return any(node.target in OF_STRIDES for node in nodes if node.op == "call_function")


def _list_missing(program: ExportedProgram, opset: int) -> list[Node]:
    found = []
    for module in graph_modules(program.graph_module):
        needed = find_needed(module)
        found += [
            node
            for node in module.graph.nodes
            if node in needed
            and node.op == "call_function"
            and find_translation(node.target, opset) is None
            and not isinstance(node.meta.get("val"), SYMBOLIC)
        ]
    return found


def _make_missing_error(missing: list[Node]) -> OnnxError:
    first: dict[str, list[Node]] = {}
    for node in missing:
        first.setdefault(name_of(node.target), []).append(node)
    lines = [
        f"  {name}, {len(nodes)} time{'s' * (len(nodes) > 1)}, at {source_place(nodes[0])}"
        for name, nodes in first.items()
    ]
    name = next(iter(first))
    return OnnxError(
        f"{len(first)} operator{'s' * (len(first) > 1)} of the program "
        f"{'have' if len(first) > 1 else 'has'} no form in ONNX:\n"
        + "\n".join(lines)
        + "\n  why: ONNX has no operator for it, and it is not taken apart into others\n"
        f'  instead: say how it is written, @lostwax.onnx.translation("{name}"), or leave it to '
        "the runtime as an operator of a domain of yours, "
        f'lostwax.onnx.leave_to_runtime("{name}", domain="mine"); or by others, decompositions='
        "{op: function}"
    )


def _make_refused_error(refused: list[Refused]) -> OnnxError:
    """All calls that cannot be written, those of one kind once."""
    kinds: dict[tuple[str, str], list[Refused]] = {}
    for each in refused:
        kinds.setdefault((each.target, each.reason.why), []).append(each)
    if len(kinds) == 1:
        target, place, reason = refused[0]
        text = f"{target} cannot be written in ONNX here"
        return OnnxError.at(text, place, why=reason.why, instead=reason.instead)
    lines = [f"{len(kinds)} calls of operators cannot be written in ONNX:"]
    for (target, why), found in kinds.items():
        times = f", {len(found)} times" if len(found) > 1 else ""
        lines += [f"  {target}{times}, at {found[0].place}", f"    why: {why}"]
        lines += [f"    instead: {found[0].reason.instead}"]
    return OnnxError("\n".join(lines))


# ------------------------------------------------------------------------------- models


class _ModelWriter:
    def __init__(self, program: ExportedProgram, opset: int) -> None:
        self.program = program
        self.on = OnnxWriter(opset)
        self.inputs: list[ir.Value] = []
        self.outputs: list[ir.Value] = []
        self.state: dict[str, str] = {}
        self._handed: dict[str, str] = {}
        """The input of each state of the module that is written."""
        self._held: dict[Any, OnnxTensor] = {}
        self._first: dict[ir.Value, Any] = {}
        """What state holds at first."""
        written = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
        specs = program.graph_signature.output_specs
        self._written = {spec.target for spec in specs if spec.kind in written}

    def run(
        self, wanted: Wanted, matmul_nbits: bool, stays: Callable[[torch.Tensor], object]
    ) -> ir.Model:
        module, signature = self.program.graph_module, self.program.graph_signature
        nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
        names = [each.arg.name for each in signature.input_specs]
        users = dict(zip(names, signature.input_specs, strict=True))
        taken = {node: self._input(node, users[node.name]) for node in reversed(nodes)}
        self.inputs.reverse()
        results = write_graph(self.on, module, [taken[node] for node in nodes])
        if self.on.refused:
            raise _make_refused_error(self.on.refused)
        for spec, result in zip(signature.output_specs, results, strict=True):
            self._output(spec, result)
        for value, first in self._first.items():
            value.const_value = first
        nodes = remove_unread(self.on.scope.nodes, self.outputs)
        fold_weights(self.on, nodes, self.inputs, self.outputs, stays)
        if matmul_nbits:
            nodes = use_matmul_nbits(self.on, nodes, self.outputs)
        nodes = remove_unread(nodes, self.outputs)
        nodes, functions = make_functions(self.on, nodes, self.outputs, wanted)
        graph = ir.Graph(
            self.inputs,
            self.outputs,
            nodes=nodes,
            initializers=self._list_initializers(),
            opset_imports={"": self.on.opset, **self.on.domains},
            name="main",
        )
        return ir.Model(
            graph,
            ir_version=_IR_VERSIONS.get(self.on.opset, 10),
            producer_name="lostwax",
            functions=functions,
            metadata_props=self._describe(),
        )

    def _describe(self) -> dict[str, str]:
        """What the format has no place for."""
        limits = limits_by_name(self.program.range_constraints)
        shown = {name for value in self.inputs for name in _list_dims(value)}
        ranges = {name: limits[name] for name in sorted(limits) if name in shown}
        found = {STATE: self.state, RANGES: ranges}
        return {key: json.dumps(value) for key, value in found.items() if value}

    def _list_initializers(self) -> list[ir.Value]:
        inputs = set(self.inputs)
        held = self.on.initializers.values()
        return [
            value for value in held if value.uses() or value.is_graph_output() or value in inputs
        ]

    # ---- inputs

    def _input(self, node: Node, spec: Any) -> Any:
        value = node.meta["val"]
        if spec.kind is InputKind.USER_INPUT:
            if isinstance(spec.arg, ConstantArgument):
                return value
            return self._user_input(node, value)
        if spec.kind is InputKind.TOKEN:
            return None
        return self._state_input(node, spec)

    def _user_input(self, node: Node, value: Any) -> Any:
        if isinstance(value, FakeTensor):
            _check_input(node, value.dtype)
            return self._add_input(node.name, value.dtype, value.fake_type.size)
        if isinstance(value, SYMBOLIC):
            kinds = {torch.SymInt: torch.int64, torch.SymFloat: torch.float64}
            dtype = kinds.get(type(value), torch.bool)
            made = self._add_input(node.name, dtype, ())
            return made if not isinstance(unwrap(value), (int, float)) else value
        return value

    def _add_input(self, name: str, dtype: torch.dtype, size: Any) -> OnnxTensor:
        value = ir.Value(
            name=self.on.free_name(name),
            type=ir.TensorType(DTYPES[dtype]),
            shape=make_shape(size),
        )
        self.inputs.append(value)
        return OnnxTensor(value, dtype)

    def _state_input(self, node: Node, spec: Any) -> Any:
        name = str(spec.target)
        in_state = name in self.program.state_dict
        data = (self.program.state_dict if in_state else self.program.constants).get(name)
        if not isinstance(data, torch.Tensor):
            raise OnnxError(
                f"{name!r} is a {type(data).__name__}, which an ONNX model cannot hold\n"
                "  instead: let the module hold tensors alone"
            )
        if isinstance(data, FakeTensor):
            raise OnnxError(
                f"the weight {name!r} is fake: a model holds values\n"
                "  instead: export a module that has its weights"
            )
        _check_input(node, data.dtype)
        if name in self._written:
            made = self.on.hold(self.on.free_name(name), data)
            self._handed[name] = str(made.value.name)  # a user's input may be called as the state
            self.inputs.append(made.value)
            self._first[made.value] = made.value.const_value
            made.value.const_value = None  # it changes: nothing may be computed of it here
            return OnnxTensor(made.value, made.dtype)
        if not node.users:
            return None
        key = (data.data_ptr(), tuple(data.shape), data.stride(), data.dtype)
        found = self._held.get(key) if data.numel() else None
        if found is None:
            found = self._held[key] = self.on.hold(self.on.free_name(name), data)
        return found

    # ---- outputs

    def _output(self, spec: Any, result: Any) -> None:
        is_write = spec.kind in (
            OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION,
            OutputKind.USER_INPUT_MUTATION,
        )  # fmt: skip
        if spec.kind is OutputKind.TOKEN or result is None or isinstance(result, str):
            return
        name = str(spec.target) if is_write else spec.arg.name or "constant"
        value = self._own_value(result, f"{name}.next" if is_write else name)
        if is_write:
            is_held = spec.kind is not OutputKind.USER_INPUT_MUTATION
            self.state[self._handed[name] if is_held else name] = str(value.name)
        self.outputs.append(value)

    def _own_value(self, result: Any, name: str) -> ir.Value:
        """The value of a result under its name: it is no input, and given once."""
        on = self.on
        if not isinstance(result, OnnxTensor):
            is_float = isinstance(result, float)
            result = (
                on.condition(result)
                if _is_truth(result)
                else (on.constant(result, torch.float64) if is_float else on.scalar(result))
            )
        value: ir.Value = result.value
        if value.producer() is None or value in self.outputs:
            on.at = name
            made = on.write("Identity", [result])
            made.value.shape = value.shape
            on.scope.equal.clear()  # the next one is another output
            value = made.value
        if value.name != name:
            value.name = on.free_name(name)
        if value.shape is None:
            value.shape = ir.Shape([]) if result.type is None else make_shape(result.size)
        return value


def _list_dims(value: ir.Value) -> set[str]:
    """The names in the sizes of an input."""
    return {name for n in value.shape or () for name in re.findall(r"[A-Za-z_]\w*", str(n))}


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool) or type(value).__name__ == "BoolExpr"


def _check_input(node: Node, dtype: torch.dtype) -> None:
    if dtype not in DTYPES:
        raise OnnxError(
            f"the input {node.name!r} is {dtype}\n"
            "  why: runtimes of ONNX do not compute with it\n"
            "  instead: give real tensors (torch.view_as_real), or another dtype"
        )
