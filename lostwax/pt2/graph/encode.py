"""A program as the JSON object of a `.pt2`: graph, signature, structure, ranges.

One method for one record of the schema (`schema.py`; the form in docs/pt2.md). Must not
touch tensors' data nor change the program; what torch's reader would refuse is refused here.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Node

from lostwax.cache import cached_by_identity
from lostwax.classes import SYMBOLIC
from lostwax.errors import SaveError
from lostwax.fake import FakeTensor
from lostwax.ir.data import ModuleCallEntry
from lostwax.ir.graph.delegate import LoweredBackendModule, held_delegates
from lostwax.ir.graph.lookup import find_attribute
from lostwax.ir.program import ExportedProgram
from lostwax.ir.ranges import RangeConstraints, limits_by_name
from lostwax.ir.signature import (
    ArgumentSpec,
    ConstantArgument,
    CustomObjArgument,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
)
from lostwax.ops.dialect_operator import overload_of
from lostwax.ops.registry import has_trait
from lostwax.ops.traits import Trait
from lostwax.pt2 import peer
from lostwax.pt2.container.weights import device_json
from lostwax.pt2.graph import metadata
from lostwax.pt2.graph.delegates import describe_delegate
from lostwax.pt2.graph.spelling import SymbolWriter, as_recorded, bounds, settle, settle_number
from lostwax.pt2.graph.targets import argument_names, name_of, unspeakable
from lostwax.pt2.graph.treespec import namedtuple_fields, tree_text
from lostwax.pt2.guards import Beside, example_sizes, guards_code, own_record
from lostwax.pt2.lines import WHOLE, Lines
from lostwax.pt2.schema import (
    DTYPE_NUMBERS,
    KEYWORD,
    LAYOUT_NUMBERS,
    MEMORY_FORMAT_NUMBERS,
    OPSET,
    POSITIONAL,
    SCHEMA_MAJOR,
    SCHEMA_MINOR,
    UNREAD,
)
from lostwax.sym import Expr

Json = dict[str, Any]
_NUMBER = {"int": "as_sym_int", "float": "as_sym_float", "bool": "as_sym_bool"}


def encode(program: ExportedProgram, plain_names: bool = False, lines: Lines = WHOLE) -> Json:
    """The JSON object of a program. `plain_names` says how dims are called (`DimNames`), `lines`
    how much is kept of the user's source."""
    symbols = SymbolWriter(example_sizes(program), plain_names)
    specs = program.graph_signature
    constants = {
        s.arg.name: s.arg.value
        for s in specs.input_specs
        if s.kind is InputKind.USER_INPUT and isinstance(s.arg, ConstantArgument)
    }
    beside = Beside(list(held_delegates(program.graph_module)))
    graph = _GraphEncoder(program.graph_module, symbols, beside, lines).graph(constants)
    if isinstance(program.range_constraints, RangeConstraints):
        for limited in program.range_constraints.limits:  # also of what no node has any more
            symbols.text(limited)
    trees = [
        tree
        for entry in program.module_call_graph
        if entry.signature is not None
        for tree in (entry.signature.in_spec, entry.signature.out_spec)
    ]
    return {
        "graph_module": {
            "graph": graph,
            "signature": {
                "input_specs": [_input_spec(s) for s in specs.input_specs],
                "output_specs": [_output_spec(s) for s in specs.output_specs],
            },
            "module_call_graph": [_call_entry(e) for e in program.module_call_graph],
            "metadata": metadata.write_custom(program.graph_module.meta),
            "treespec_namedtuple_fields": namedtuple_fields(*trees),
        },
        "opset_version": OPSET,
        "range_constraints": _ranges(program, symbols),
        "schema_version": {"major": SCHEMA_MAJOR, "minor": SCHEMA_MINOR},
        "verifiers": [program.dialect],
        "torch_version": torch.__version__,
        "guards_code": guards_code(program),
        "lostwax": own_record(program, symbols, beside, lines)
        | _delegates(program, symbols, beside, lines),
    }


def _delegates(
    program: ExportedProgram, symbols: SymbolWriter, beside: Beside, lines: Lines
) -> Json:
    """Our record of the delegates, which torch has no form for."""
    if not beside.delegates:
        return {}
    found = []
    for number, delegate in enumerate(beside.delegates):
        part, path = delegate.program, f"delegate_{number}"
        inner = _GraphEncoder(part.graph_module, symbols, beside, lines, path)
        specs = part.graph_signature
        found.append(
            describe_delegate(delegate, number)
            | {
                "graph": inner.graph(),
                "signature": {
                    "input_specs": [_input_spec(s) for s in specs.input_specs],
                    "output_specs": [_output_spec(s) for s in specs.output_specs],
                },
                "module_call_graph": [_call_entry(e) for e in part.module_call_graph],
                "dialect": part.dialect,
            }
        )
    return {"delegates": found}


def _ranges(program: ExportedProgram, symbols: SymbolWriter) -> Json:
    """The limits of symbols. Those of `2*s0 + 1` are in our own record: torch reads them, and fails
    when it decomposes the program."""
    in_files = {symbol.name: name for name, symbol in symbols.symbols.items()}
    given = limits_by_name(program.range_constraints)
    limits = {in_files.get(n, n): pair for n, pair in given.items() if n.isidentifier()}
    for name, symbol in symbols.symbols.items():
        limits.setdefault(name, (symbol.lo, symbol.hi))
    limits |= dict.fromkeys(symbols.floats, (None, None))
    limits |= {name: bounds(e) for name, e in symbols.named.items() if e.unbacked}
    return {name: {"min_val": lo, "max_val": hi} for name, (lo, hi) in limits.items()}


# ------------------------------------------------------------------------------------------- graphs


class _Form(NamedTuple):
    """What the schema of an operator says, asked of C++ once."""

    names: tuple[str, ...]
    empty: Mapping[str, str]
    """For arguments that are lists: the kind of an empty one."""
    returns: int
    returns_list: bool


@cached_by_identity(20_000)
def _form(overload: OpOverload) -> _Form:
    schema = overload._schema
    returns = [str(r.type) for r in schema.returns]
    return _Form(
        tuple(a.name for a in schema.arguments),
        {a.name: _empty_kind(str(a.type)) for a in schema.arguments},
        len(returns),
        len(returns) == 1 and returns[0].startswith("List["),
    )


def _empty_kind(type_text: str) -> str:
    for word, kind in (("Tensor", "as_tensors"), ("float", "as_floats"), ("bool", "as_bools")):
        if word in type_text:
            return kind
    return "as_strings" if "str" in type_text else "as_ints"


class _GraphEncoder:
    """One graph with its own names."""

    def __init__(
        self,
        module: GraphModule,
        symbols: SymbolWriter,
        beside: Beside,
        lines: Lines,
        path: str = "main",
    ) -> None:
        self.module, self.symbols, self.beside, self.path = module, symbols, beside, path
        self.lines = lines
        self.taken = {node.name for node in module.graph.nodes}
        self.folded: dict[Node, Node] = {}
        """A second reading of the same result, by the first one."""
        self.graph_names: dict[str, GraphModule] = {}
        self.placed: list[str] = []
        """The nodes in the order in which a reader makes them."""
        self.before: list[Json] = []
        """Nodes that are needed before the one that is being written."""
        self.tensors: Json = {}
        self.numbers: dict[str, Json] = {"int": {}, "float": {}, "bool": {}}

    def graph(self, constants: Mapping[str, Any] | None = None) -> Json:
        inputs, nodes, outputs, single = [], [], [], False
        for node in self.module.graph.nodes:
            try:
                if node.op == "placeholder":
                    inputs.append(self._input(node, constants))
                elif node.op == "output":
                    single = isinstance(node.args[0], Node)
                    results = [node.args[0]] if single else node.args[0]
                    outputs = [self.argument(a) for a in results]
                    self.placed.append(node.name)
                elif node.op == "call_function" and not self._is_reading(node):
                    made = self._node(node)
                    nodes += [*self.before, made]
                    self.before.clear()
            except SaveError as error:
                raise SaveError(f"{error}\n  while writing the node {node.name!r}") from None
        self._keep_order()
        return {
            "inputs": inputs,
            "outputs": outputs,
            "nodes": nodes,
            "tensor_values": self.tensors,
            "sym_int_values": self.numbers["int"],
            "sym_bool_values": self.numbers["bool"],
            "is_single_tensor_return": single,
            "custom_obj_values": {},
            "sym_float_values": self.numbers["float"],
        }

    def _keep_order(self) -> None:
        """Note the order of the nodes in our own record, if a reader would make another one: it
        puts sub-graphs before the node that takes them, and items behind the node that gives
        them."""
        placed = set(self.placed)
        order = [n.name for n in self.module.graph.nodes if n.name in placed]
        if order != self.placed:
            self.beside.order[self.path] = order

    def _input(self, node: Node, constants: Mapping[str, Any] | None) -> Json:
        self.placed.append(node.name)
        if constants is not None and node.name in constants:
            return self.argument(constants[node.name])
        return self._value(node.name, node.meta.get("val"))

    def _value(self, name: str, value: Any) -> Json:
        """A value that gets its name here."""
        if isinstance(value, FakeTensor):
            self.tensors[name] = self._tensor(name, value)
            return {"as_tensor": {"name": name}}
        if isinstance(value, (*SYMBOLIC, int, float)):
            kind, record = self.symbols.number(value)
            self.numbers[kind][name] = record
            if settle_number(value) is not as_recorded(value):
                self._keep(name, as_recorded(value))
            return {_NUMBER[kind]: {"as_name": name}}
        if value is None:
            return {"as_none": True}
        raise SaveError(f"a value of type {type(value).__name__} has no form in .pt2 files")

    def _keep(self, name: str, value: Any) -> None:
        """Note in our own record how the graph has a value, if torch's part says what became of
        it."""
        self.beside.values.setdefault(self.path, {})[name] = value

    def _tensor(self, name: str, fake: FakeTensor) -> Json:
        t, size = fake.fake_type, self.symbols.size
        layout = (*t.size, *t.stride, t.offset)
        if any(settle(s) is not s for s in layout if isinstance(s, Expr)):
            self._keep(name, layout)
        return {
            "dtype": DTYPE_NUMBERS[t.dtype],
            "sizes": [size(s) for s in t.size],
            "requires_grad": fake.requires_grad,
            "device": device_json(t.device),
            "strides": [size(s) for s in t.stride],
            "storage_offset": size(t.offset),
            "layout": LAYOUT_NUMBERS[t.layout],
        }

    # ---- nodes

    def _is_reading(self, node: Node) -> bool:
        """Files have no getitem: the values of a tuple have names of their own."""
        return (
            node.target is operator.getitem
            and isinstance(node.args[0], Node)
            and isinstance(node.args[0].meta.get("val"), (tuple, list))
        )

    def _node(self, node: Node) -> Json:
        target = node.target
        overload = overload_of(target)
        form = _form(overload) if isinstance(overload, OpOverload) else None
        name = name_of(target)
        single = None
        value = node.meta.get("val")
        if isinstance(target, HigherOrderOperator):
            single = not isinstance(value, (tuple, list))
        inputs = self._arguments(node, name, form)
        self.placed.append(node.name)
        return {
            "target": name,
            "inputs": inputs,
            "outputs": self._outputs(node, value, form),
            "metadata": metadata.write(node.meta, self.lines),
            "is_hop_single_tensor_return": single,
            "name": node.name,
        }

    def _arguments(self, node: Node, name: str, form: _Form | None) -> list[Json]:
        names: Sequence[str]
        if form is not None:
            names = form.names
        elif isinstance(node.target, HigherOrderOperator):
            names = [""] * len(node.args)
        else:
            names = argument_names(name)
        if len(node.args) > len(names):
            raise SaveError(f"{name} takes {len(names)} arguments, {len(node.args)} are given")
        empty = form.empty if form is not None else {}
        args, kwargs = list(node.args), node.kwargs
        if has_trait(node.target, Trait.ASSERTS):  # its message may name the user's line
            args = [self._message(a) for a in args]
            kwargs = {n: self._message(a) for n, a in kwargs.items()}
        overload = overload_of(node.target)
        unnamed = unspeakable(overload) if isinstance(overload, OpOverload) else None
        if unnamed is not None and unnamed[0] == len(args):
            args.append(unnamed[1])
        given = [
            {"name": n, "arg": self.argument(a, empty.get(n)), "kind": POSITIONAL}
            for n, a in zip(names, args, strict=False)
        ]
        given += [
            {"name": n, "arg": self.argument(a, empty.get(n)), "kind": KEYWORD}
            for n, a in kwargs.items()
        ]
        return given

    def _message(self, value: Any) -> Any:
        return self.lines.write_text(value) if isinstance(value, str) else value

    def _outputs(self, node: Node, value: Any, form: _Form | None) -> list[Json]:
        if form is not None and form.returns == 0:
            return []
        if not isinstance(value, (tuple, list)):
            return [self._value(node.name, value)]
        unread = node.name + UNREAD
        if form is not None and form.returns_list:
            return [self._list(value, self._readers(node), unread)]
        readers = self._readers(node)
        return [self._part(part, readers.get(i), f"{unread}_{i}") for i, part in enumerate(value)]

    def _part(self, part: Any, reader: Node | None, unread: str) -> Json:
        if isinstance(part, (tuple, list)):
            return self._list(part, {} if reader is None else self._readers(reader), unread)
        return self._value(self._free(unread) if reader is None else reader.name, part)

    def _list(self, values: Sequence[Any], readers: Mapping[int, Node], unread: str) -> Json:
        names = []
        for i, value in enumerate(values):
            name = readers[i].name if i in readers else self._free(f"{unread}_{i}")
            self._value(name, value)
            names.append({"name": name})
        return {"as_tensors": names}

    def _readers(self, node: Node) -> dict[int, Node]:
        """For each item of a result the node that reads it."""
        found: dict[int, Node] = {}
        for user in node.users:
            if user.target is operator.getitem and isinstance(user.args[1], int):
                index = user.args[1]
                first = found.setdefault(index % len(node.meta["val"]), user)
                if first is not user:
                    self.folded[user] = first
                else:
                    self._keep_metadata(user, node)
        self.placed += [found[i].name for i in sorted(found)]
        return found

    def _keep_metadata(self, item: Node, node: Node) -> None:
        """Note the metadata of a node that reads an item, if it is not that of the node it
        reads."""
        fields = metadata.write(item.meta, self.lines)
        if fields != metadata.write(node.meta, self.lines):
            self.beside.items.setdefault(self.path, {})[item.name] = fields

    def _free(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    # ---- arguments

    def argument(self, value: Any, empty: str | None = None) -> Json:
        if isinstance(value, Node):
            return self._reference(value)
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            return self._sequence(list(value), empty)
        if isinstance(value, torch.Size):
            return {"as_ints": list(value)}
        if isinstance(value, dict):
            return {"as_string_to_argument": {k: self.argument(v) for k, v in value.items()}}
        return _literal(value)

    def _reference(self, node: Node) -> Json:
        node = self.folded.get(node, node)
        if node.op == "get_attr":
            return self._subgraph(node)
        value = node.meta.get("val")
        if isinstance(value, FakeTensor):
            return {"as_tensor": {"name": node.name}}
        if isinstance(value, (*SYMBOLIC, int, float)):
            return {_NUMBER[self.symbols.number(value)[0]]: {"as_name": node.name}}
        if value is None:
            return {"as_none": True}
        raise SaveError(f"{node.name!r} is a {type(value).__name__}, which is no argument in files")

    def _subgraph(self, node: Node) -> Json:
        path = str(node.target)
        child = find_attribute(self.module, path)
        if isinstance(child, LoweredBackendModule):
            self.placed.append(node.name)
            number = self.beside.delegates.index(child)
            return {"as_delegate": {"name": node.name, "path": path, "number": number}}
        if not isinstance(child, GraphModule):
            raise SaveError(f"{path} is no graph, and no delegate; nothing else is an attribute")
        self.placed.append(node.name)
        name = path.replace(".", "_")
        while self.graph_names.setdefault(name, child) is not child:
            name += "_"
        inner = _GraphEncoder(child, self.symbols, self.beside, self.lines, f"{self.path}.{name}")
        return {"as_graph": {"name": name, "graph": inner.graph()}}

    def _operand_name(self, value: Any) -> str:
        """The name of an operand. A number that is written out has none in files: it becomes the
        result of a node, and our own record tells that it is none."""
        if isinstance(value, Node):
            return self.folded.get(value, value).name
        name = self._free("number")
        kind, record = self.symbols.number(value)
        self.numbers[kind][name] = record
        pair = [{"name": n, "arg": _literal(v), "kind": POSITIONAL}
                for n, v in (("a", value), ("b", type(value)(0)))]  # fmt: skip
        node = {"target": name_of(operator.add), "inputs": pair, "name": name,
                "metadata": metadata.write({}, self.lines)}  # fmt: skip
        output = {_NUMBER[kind]: {"as_name": name}}
        self.before.append({**node, "outputs": [output], "is_hop_single_tensor_return": None})
        self.beside.numbers.setdefault(self.path, {})[name] = value
        return name

    def _sequence(self, values: list[Any], empty: str | None) -> Json:
        parts = [self.argument(v) for v in values]
        kinds = {next(iter(part)) for part in parts}
        if not kinds:
            return {empty or "as_tensors": []}
        if len(kinds) == 1:
            (kind,) = kinds
            if kind in _LISTS:
                return {_LISTS[kind]: [part[kind] for part in parts]}
        for symbolic, plain in _MIXED:
            if kinds == {symbolic, plain}:
                listed = [p[symbolic] if symbolic in p else {plain: p[plain]} for p in parts]
                return {_LISTS[symbolic]: listed}
        if kinds == {"as_tensor", "as_none"} or kinds == {"as_none"}:
            return {"as_optional_tensors": parts}
        if kinds == {"as_int", "as_float"}:
            return {"as_floats": [_float(float(v)) for v in values]}
        if "as_tensor" in kinds and kinds <= _OPERANDS:
            # Operands of a sub-graph: a reader finds numbers by their names, as it does tensors.
            return {"as_tensors": [{"name": self._operand_name(v)} for v in values]}
        raise SaveError(f"a list of {', '.join(sorted(kinds))} has no form in .pt2 files")


_LISTS = {
    "as_tensor": "as_tensors",
    "as_int": "as_ints",
    "as_float": "as_floats",
    "as_bool": "as_bools",
    "as_string": "as_strings",
    "as_sym_int": "as_sym_ints",
    "as_sym_float": "as_sym_floats",
    "as_sym_bool": "as_sym_bools",
    "as_tensors": "as_nested_tensors",
    "as_ints": "as_int_lists",
    "as_floats": "as_float_lists",
}
_OPERANDS = {"as_tensor", "as_sym_int", "as_sym_float", "as_sym_bool", "as_int", "as_float"}
"""What stands beside tensors among the operands of a sub-graph."""
_MIXED = (
    ("as_sym_int", "as_int"),
    ("as_sym_float", "as_float"),
    ("as_sym_bool", "as_bool"),
)


def _literal(value: Any) -> Json:
    match value:
        case None:
            return {"as_none": True}
        case bool():
            return {"as_bool": value}
        case int():
            return {"as_int": value}
        case float():
            return {"as_float": _float(value)}
        case str():
            return {"as_string": value}
        case complex():
            return {"as_complex": {"real": _float(value.real), "imag": _float(value.imag)}}
        case torch.dtype() if value in DTYPE_NUMBERS:
            return {"as_scalar_type": DTYPE_NUMBERS[value]}
        case torch.layout():
            return {"as_layout": LAYOUT_NUMBERS[value]}
        case torch.memory_format():
            return {"as_memory_format": MEMORY_FORMAT_NUMBERS[value]}
        case torch.device():
            return {"as_device": device_json(value)}
        case OpOverload() | HigherOrderOperator():
            return {"as_operator": name_of(value)}
    raise SaveError(f"the argument {value!r} has no form in .pt2 files")


def _float(value: float) -> float | str:
    """JSON has no infinities."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


# ---------------------------------------------------------------------------------------- signature


def _argument_spec(arg: ArgumentSpec) -> Json:
    match arg:
        case SymIntArgument(name):
            return {"as_sym_int": {"as_name": name}}
        case SymFloatArgument(name):
            return {"as_sym_float": {"as_name": name}}
        case SymBoolArgument(name):
            return {"as_sym_bool": {"as_name": name}}
        case ConstantArgument(_, value):
            return _literal(value)
        case CustomObjArgument(name, class_fqn):
            return {"as_custom_obj": {"name": name, "class_fqn": class_fqn}}
    return {"as_tensor": {"name": arg.name}}


_CONSTANT_INPUTS = (
    *("as_none", "as_int", "as_float", "as_string", "as_bool"),  # and in our own record:
    *("as_complex", "as_scalar_type", "as_device", "as_layout", "as_memory_format"),
)


def _input_spec(spec: InputSpec) -> Json:
    name = {"name": spec.arg.name}
    match spec.kind:
        case InputKind.PARAMETER:
            return {"parameter": {"arg": name, "parameter_name": spec.target}}
        case InputKind.BUFFER:
            fields = {"arg": name, "buffer_name": spec.target, "persistent": spec.persistent}
            return {"buffer": fields}
        case InputKind.CONSTANT_TENSOR:
            return {"tensor_constant": {"arg": name, "tensor_constant_name": spec.target}}
        case InputKind.TOKEN:
            return {"token": {"arg": name}}
        case InputKind.CUSTOM_OBJ:
            raise SaveError(f"{spec.target!r} is an object of TorchBind, which is not saved")
    if not isinstance(spec.arg, ConstantArgument):
        return {"user_input": {"arg": _argument_spec(spec.arg)}}
    value = _literal(spec.arg.value)
    if next(iter(value)) not in _CONSTANT_INPUTS:
        raise SaveError(
            f"the input {spec.arg.name!r} is the constant {spec.arg.value!r}, which a .pt2 "
            "file has no form for\n"
            "  instead: bind it before the export, with functools.partial or a default"
        )
    return {"constant_input": {"name": spec.arg.name, "value": value}}


_OUTPUTS = {
    OutputKind.BUFFER_MUTATION: ("buffer_mutation", "buffer_name"),
    OutputKind.PARAMETER_MUTATION: ("parameter_mutation", "parameter_name"),
    OutputKind.USER_INPUT_MUTATION: ("user_input_mutation", "user_input_name"),
    OutputKind.GRADIENT_TO_PARAMETER: ("gradient_to_parameter", "parameter_name"),
    OutputKind.GRADIENT_TO_USER_INPUT: ("gradient_to_user_input", "user_input_name"),
    OutputKind.LOSS_OUTPUT: ("loss_output", ""),
    OutputKind.TOKEN: ("token", ""),
}


def _output_spec(spec: OutputSpec) -> Json:
    if spec.kind is OutputKind.USER_OUTPUT:
        return {"user_output": {"arg": _argument_spec(spec.arg)}}
    key, target = _OUTPUTS[spec.kind]
    fields: Json = {"arg": {"name": spec.arg.name}}
    if target:
        fields[target] = spec.target
    return {key: fields}


def _call_entry(entry: ModuleCallEntry) -> Json:
    given = entry.signature
    if given is None:
        return {"fqn": entry.fqn, "signature": None}
    root = entry.fqn == ""
    return {
        "fqn": entry.fqn,
        "signature": {
            "inputs": [] if root else [_argument_spec(a) for a in given.inputs],
            "outputs": [] if root else [_argument_spec(a) for a in given.outputs],
            "in_spec": tree_text(given.in_spec),
            "out_spec": tree_text(given.out_spec),
            "forward_arg_names": peer.argument_names(given) if root else given.forward_arg_names,
        },
    }
