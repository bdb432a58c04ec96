"""The rules of the IR specification, as a table, and the one function that checks them.

A rule is a name, a sentence and a function that yields what breaks it. Rules of graphs hold for
sub-graphs too; rules of programs speak of signature, state and calling convention. A dialect adds
rules to the table. Must not change what it checks, nor ask questions that cost guards.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Node

from lostwax.errors import LostwaxError, VerificationError
from lostwax.fake import FakeTensor
from lostwax.fake.symnode import unwrap
from lostwax.ir.calling import same_constant
from lostwax.ir.pytree import LEAVES
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
    TensorArgument,
    TokenArgument,
)
from lostwax.ir.text import source_text, target_text, type_text
from lostwax.ops import registry
from lostwax.sym import Expr
from lostwax.types import TensorType

if TYPE_CHECKING:
    from lostwax.ir.program import ExportedProgram

Found = Iterator[tuple[Node | str | None, str]]
"""What breaks a rule: the node (or the name of one that is not there), and what is wrong."""

# Functions on numbers that graphs may call beside operators.
ON_NUMBERS: frozenset[Any] = frozenset(
    [
        *(operator.getitem, operator.add, operator.sub, operator.mul, operator.floordiv),
        *(operator.truediv, operator.mod, operator.pow, operator.neg, operator.pos, operator.abs),
        *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
        *(operator.and_, operator.or_, operator.not_, operator.lshift, operator.rshift),
        *(math.floor, math.ceil, math.trunc, math.sqrt, round),
        *(torch.sym_int, torch.sym_float, torch.sym_max, torch.sym_min, torch.sym_not),
        *(torch.sym_ite, torch.sym_sum, torch._sym_sqrt),  # type: ignore[attr-defined]
    ]
)

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_VALUES = (FakeTensor, *_SYMBOLIC, int, float, bool, str, type(None))
_CONSTANTS = (*LEAVES, slice, range, type(...), OpOverload, HigherOrderOperator)


@dataclass(frozen=True)
class Violation:
    """A rule, the name of the node that breaks it, and what is wrong."""

    rule: str
    node: str
    text: str
    source: str = ""

    def __str__(self) -> str:
        where = f"node {self.node!r} " if self.node else "the program "
        at = f"\n    at {self.source}" if self.source else ""
        return f"{where}breaks the rule {self.rule!r}: {self.text}{at}"


@dataclass(frozen=True)
class GraphRule:
    """A rule of one graph."""

    name: str
    sentence: str
    check: Callable[[GraphModule], Found]


@dataclass(frozen=True)
class ProgramRule:
    """A rule of a whole program."""

    name: str
    sentence: str
    check: Callable[[ExportedProgram], Found]


Rule = GraphRule | ProgramRule


def validate(program: ExportedProgram, rules: Sequence[Rule] | None = None) -> None:
    """Raise a `VerificationError` that names every broken rule, or return."""
    violations = verify(program, rules)
    if violations:
        shown = "\n  ".join(str(v) for v in violations[:20])
        more = f"\n  and {len(violations) - 20} more" if len(violations) > 20 else ""
        raise VerificationError(f"not a valid program:\n  {shown}{more}", tuple(violations))


def verify(program: ExportedProgram, rules: Sequence[Rule] | None = None) -> list[Violation]:
    """What breaks the rules. A rule is asked only if those before it hold for this graph, so that
    it may rely on them."""
    rules = RULES if rules is None else rules
    on_graphs = [rule for rule in rules if isinstance(rule, GraphRule)]
    on_programs = [rule for rule in rules if isinstance(rule, ProgramRule)]
    found = _of_graph(program.graph_module, on_graphs)
    for rule in on_programs:
        if found:
            break
        found = _violations(rule.name, rule.check(program))
    return found


def _of_graph(module: GraphModule, rules: Sequence[GraphRule], path: str = "") -> list[Violation]:
    for rule in rules:
        found = _violations(rule.name, rule.check(module), path)
        if found:
            return found
    return [
        violation
        for name, child in _subgraphs(module)
        for violation in _of_graph(child, rules, f"{path}{name}.")
    ]


def _violations(rule: str, found: Found, path: str = "") -> list[Violation]:
    return [
        Violation(rule, f"{path}{node.name}", text, source_text(node))
        if isinstance(node, Node)
        else Violation(rule, f"{path}{node or ''}", text)
        for node, text in found
    ]


def _subgraphs(module: GraphModule) -> Iterator[tuple[str, GraphModule]]:
    seen = set()
    for node in module.graph.nodes:
        if node.op == "get_attr" and node.target not in seen:
            seen.add(node.target)
            child = _attribute(module, node.target)
            if isinstance(child, GraphModule):
                yield node.target, child


def _attribute(root: Any, path: str) -> Any:
    for part in path.split("."):
        root = getattr(root, part, None)
    return root


# ---------------------------------------------------------------------------------- rules of graphs


def _kinds(module: GraphModule) -> Found:
    legal = ("placeholder", "call_function", "get_attr", "output")
    for node in module.graph.nodes:
        if node.op not in legal:
            yield node, f"its kind is {node.op}; a graph has only {', '.join(legal)}"


def _output(module: GraphModule) -> Found:
    nodes = list(module.graph.nodes)
    outputs = [n for n in nodes if n.op == "output"]
    if not outputs:
        yield None, "there is no output node"
    for node in outputs[1:]:
        yield node, f"{outputs[0].name!r} is the output already"
    if outputs and nodes[-1] is not outputs[0] and len(outputs) == 1:
        yield outputs[0], f"it is not the last node: {nodes[-1].name!r} is"
    if outputs and not isinstance(outputs[0].args[0], (tuple, list)):
        yield outputs[0], "it does not return a tuple"


def _placeholders_first(module: GraphModule) -> Found:
    before: Node | None = None
    for node in module.graph.nodes:
        if node.op == "placeholder" and before is not None:
            yield node, f"a placeholder stands after {before.name!r}"
        if node.op != "placeholder":
            before = before or node


def _placeholder_form(module: GraphModule) -> Found:
    for node in module.graph.nodes:
        if node.op == "placeholder":
            if not isinstance(node.target, str):
                yield node, f"its target {node.target!r} is not the name of an input"
            if len(node.args) > 1 or node.kwargs:
                yield node, "it has arguments beside a default value"


def _names(module: GraphModule) -> Found:
    seen: set[str] = set()
    for node in module.graph.nodes:
        if node.name in seen:
            yield node, "another node has the same name"
        seen.add(node.name)


def _order(module: GraphModule) -> Found:
    seen: set[Node] = set()
    for node in module.graph.nodes:
        for used in node.all_input_nodes:
            if used.graph is not module.graph:
                yield node, f"its argument {used.name!r} belongs to another graph"
            elif used not in seen:
                yield node, f"its argument {used.name!r} is computed after it, or was erased"
        seen.add(node)


def _get_attr(module: GraphModule) -> Found:
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value = _attribute(module, str(node.target))
            if not isinstance(value, GraphModule):
                yield (
                    node,
                    f"{node.target} is {type(value).__name__}; only sub-graphs are read as "
                    "attributes, parameters and buffers are inputs",
                )


def _operators(module: GraphModule) -> Found:
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target in ON_NUMBERS:
            continue
        if not isinstance(node.target, (OpOverload, HigherOrderOperator)):
            yield (
                node,
                f"{target_text(node.target)} is neither an operator with a schema, nor a "
                "higher-order one, nor arithmetic on numbers",
            )


def _calls(module: GraphModule) -> Iterator[tuple[Node, OpOverload]]:
    for node in module.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, OpOverload):
            yield node, node.target


def _functional(module: GraphModule) -> Found:
    for node, overload in _calls(module):
        written = registry.operator(overload).mutates
        if written:
            yield node, f"{overload} writes to its argument {', '.join(map(repr, written))}"


def _schema(module: GraphModule) -> Found:
    for node, overload in _calls(module):
        arguments = overload._schema.arguments
        positional = [a for a in arguments if not a.kwarg_only]
        given = {a.name for a in positional[: len(node.args)]}
        if len(node.args) > len(positional):
            yield node, f"{overload} takes {len(positional)} arguments, {len(node.args)} are given"
        for name in node.kwargs:
            if name in given or all(a.name != name for a in arguments):
                yield node, f"{overload} does not take {name!r}, or takes it twice"
        for a in arguments:
            if not a.has_default_value() and a.name not in given and a.name not in node.kwargs:
                yield node, f"{overload} is called without its argument {a.name!r}"


def _arguments(module: GraphModule) -> Found:
    for node in module.graph.nodes:
        for value in _flat((node.args, node.kwargs)):
            if isinstance(value, torch.Tensor):
                yield node, f"a tensor {type_text(value)} is baked in; tensors are inputs"
            elif isinstance(value, _SYMBOLIC):
                yield node, f"the symbolic number {value} is baked in; it must be computed by nodes"
            elif not isinstance(value, (Node, *_CONSTANTS)):
                yield node, f"its argument {value!r} is neither a node nor a constant"


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        for item in value:
            yield from _flat(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _flat(item)
    else:
        yield value


_METADATA: dict[str, type | tuple[type, ...]] = {
    "stack_trace": str,
    "nn_module_stack": dict,
    "source_fn_stack": list,
}


def _metadata(module: GraphModule) -> Found:
    for node in module.graph.nodes:
        if node.op in ("call_function", "placeholder") and "val" not in node.meta:
            yield node, "meta['val'] is missing"
        if node.op == "call_function":
            for key, kind in _METADATA.items():
                if key not in node.meta:
                    yield node, f"meta[{key!r}] is missing"
                elif not isinstance(node.meta[key], kind):
                    yield node, f"meta[{key!r}] is a {type(node.meta[key]).__name__}"


def _values(module: GraphModule) -> Found:
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        value = node.meta["val"]
        for part in _flat(value):
            if not isinstance(part, _VALUES):
                yield node, f"meta['val'] holds a {type(part).__name__}, not a lostwax FakeTensor"
        if isinstance(node.target, OpOverload):
            yield from _returns(node, node.target, value)
        elif node.target is operator.getitem:
            yield from _item(node, value)


def _returns(node: Node, overload: OpOverload, value: Any) -> Found:
    """As many values as the schema returns, tensors where it returns tensors."""
    kinds = [r.type.kind() for r in overload._schema.returns]
    values = [value] if len(kinds) == 1 else value
    if not kinds:
        if value is not None and value != ():
            yield node, f"{overload} returns nothing, meta['val'] is {type(value).__name__}"
    elif not isinstance(values, (tuple, list)) or len(values) != len(kinds):
        yield node, f"{overload} returns {len(kinds)} values, meta['val'] is {_shown(value)}"
    else:
        for kind, part in zip(kinds, values, strict=True):
            if (kind == "TensorType") != isinstance(part, FakeTensor) and part is not None:
                yield node, f"{overload} returns a {kind}, meta['val'] has {_shown(part)}"


def _item(node: Node, value: Any) -> Found:
    source, index = node.args[0], node.args[1]
    if not isinstance(source, Node) or not isinstance(index, int):
        return
    whole = source.meta.get("val")
    if not isinstance(whole, (tuple, list)) or not -len(whole) <= index < len(whole):
        yield node, f"{source.name!r} has no item {index}"
    elif _shown(whole[index]) != _shown(value):
        yield (
            node,
            f"meta['val'] is {_shown(value)}, item {index} of {source.name!r} is "
            f"{_shown(whole[index])}",
        )


def _shown(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_shown, value))})"
    return type_text(value) or repr(value)


def _types(module: GraphModule) -> Found:
    """What the type rules say of each static call, against what is recorded."""
    for node, overload in _calls(module):
        record = registry.operator(overload)
        if record.rule is None or record.data_dependent or record.by_twin:
            continue
        try:
            args = _as_types(list(node.args))
            kwargs = {k: _as_types(v) for k, v in node.kwargs.items()}
        except _Symbolic:
            continue  # asking could cost guards
        try:
            result = record.rule(*args, **kwargs)
        except LostwaxError:
            raise
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            yield node, f"{overload} refuses these arguments: {str(error).splitlines()[0]}"
            continue
        yield from _compared(node, result)


class _Symbolic(Exception):
    pass


def _as_types(value: Any) -> Any:
    """An argument as type rules take it."""
    if isinstance(value, Node):
        return _as_types(value.meta.get("val"))
    if isinstance(value, (tuple, list)):
        return [_as_types(v) for v in value]
    if isinstance(value, FakeTensor):
        if value.type.is_symbolic:
            raise _Symbolic
        return value.type
    if isinstance(value, _SYMBOLIC):
        raise _Symbolic
    return value


def _compared(node: Node, result: Any) -> Found:
    computed = list(result) if isinstance(result, (tuple, list)) else [result]
    recorded = [v for v in _flat([node.meta["val"]]) if isinstance(v, FakeTensor)]
    computed = [t for t in _flat(computed) if isinstance(t, TensorType)]
    if len(computed) != len(recorded):
        return
    for wanted, fake in zip(computed, recorded, strict=True):
        if (wanted.size, wanted.dtype) != (fake.type.size, fake.type.dtype):
            yield node, f"meta['val'] is {fake.type}, the operator gives {wanted}"


# -------------------------------------------------------------------------------- rules of programs


def _placeholders(program: ExportedProgram) -> list[Node]:
    return [n for n in program.graph.nodes if n.op == "placeholder"]


def _results(program: ExportedProgram) -> Sequence[Any]:
    return program.graph.output_node().args[0]  # type: ignore[return-value]


def _inputs_match(program: ExportedProgram) -> Found:
    nodes, specs = _placeholders(program), program.graph_signature.input_specs
    if len(nodes) != len(specs):
        yield None, f"the graph has {len(nodes)} placeholders, the signature {len(specs)} inputs"
        return
    for node, spec in zip(nodes, specs, strict=True):
        if node.name != spec.arg.name:
            yield node, f"the signature calls this input {spec.arg.name!r}"
        elif not _is_of_kind(node.meta["val"], spec.arg):
            yield node, f"it is {_shown(node.meta['val'])}, the signature says {spec.arg}"


def _outputs_match(program: ExportedProgram) -> Found:
    values, specs = _results(program), program.graph_signature.output_specs
    if len(values) != len(specs):
        yield "output", f"it returns {len(values)} values, the signature has {len(specs)} outputs"
        return
    for i, (value, spec) in enumerate(zip(values, specs, strict=True)):
        if isinstance(spec.arg, ConstantArgument) and not isinstance(value, Node):
            if not same_constant(value, spec.arg.value):
                yield "output", f"output {i} is {value!r}, the signature says {spec.arg.value!r}"
        elif not isinstance(value, Node) or value.name != spec.arg.name:
            name = value.name if isinstance(value, Node) else value
            yield "output", f"output {i} is {name!r}, the signature calls it {spec.arg.name!r}"
        elif not _is_of_kind(value.meta.get("val"), spec.arg):
            yield value, f"it is {_shown(value.meta.get('val'))}, the signature says {spec.arg}"


def _is_of_kind(value: Any, arg: ArgumentSpec) -> bool:
    match arg:
        case TensorArgument():
            return isinstance(value, FakeTensor)
        case SymIntArgument():
            return isinstance(value, (torch.SymInt, int))
        case SymFloatArgument():
            return isinstance(value, (torch.SymFloat, float))
        case SymBoolArgument():
            return isinstance(value, (torch.SymBool, bool))
        case ConstantArgument():
            return same_constant(value, arg.value)
        case CustomObjArgument() | TokenArgument():
            return True


_INPUT_ORDER = [
    InputKind.TOKEN,
    InputKind.PARAMETER,
    InputKind.BUFFER,
    InputKind.CONSTANT_TENSOR,
    InputKind.CUSTOM_OBJ,
    InputKind.USER_INPUT,
]
_OUTPUT_ORDER = [
    {OutputKind.TOKEN},
    {OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION},
    {OutputKind.USER_INPUT_MUTATION},
    {OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT},
    {OutputKind.GRADIENT_TO_PARAMETER, OutputKind.GRADIENT_TO_USER_INPUT},
]


def _kinds_in_order(program: ExportedProgram) -> Found:
    signature = program.graph_signature
    last = 0
    for i in signature.input_specs:
        height = _INPUT_ORDER.index(i.kind)
        if height < last:
            yield i.arg.name, f"a {i.kind.name} stands after a {_INPUT_ORDER[last].name}"
        last = max(last, height)
    last = 0
    for o in signature.output_specs:
        height = next(h for h, kinds in enumerate(_OUTPUT_ORDER) if o.kind in kinds)
        if height < last:
            after = " or ".join(sorted(kind.name for kind in _OUTPUT_ORDER[last]))
            yield o.arg.name, f"a {o.kind.name} stands after a {after}"
        last = max(last, height)


def _state(program: ExportedProgram) -> Found:
    seen: set[str] = set()
    for spec in program.graph_signature.input_specs:
        name = spec.arg.name
        if spec.kind in (InputKind.USER_INPUT, InputKind.TOKEN):
            if spec.target is not None:
                yield name, f"a {spec.kind.name} has the target {spec.target!r}"
        elif spec.target is None:
            yield name, f"a {spec.kind.name} has no target"
        elif spec.target in seen:
            yield name, f"another input has the target {spec.target!r}"
        else:
            seen.add(spec.target)
            yield from _stored(program, spec, spec.target)


def _stored(program: ExportedProgram, spec: InputSpec, target: str) -> Found:
    name = spec.arg.name
    if spec.kind is InputKind.BUFFER and spec.persistent is None:
        yield name, "it is not said whether this buffer is persistent"
        return
    in_state = spec.kind is InputKind.PARAMETER or spec.persistent is True
    store, where = (
        (program.state_dict, "state_dict") if in_state else (program.constants, "constants")
    )
    if target not in store:
        yield name, f"its target {target!r} is not in {where}"
    elif spec.kind is InputKind.PARAMETER and not isinstance(store[target], torch.nn.Parameter):
        yield name, f"{where}[{target!r}] is not an nn.Parameter"
    elif spec.kind is not InputKind.CUSTOM_OBJ and not isinstance(store[target], torch.Tensor):
        yield name, f"{where}[{target!r}] is not a tensor"


def _state_types(program: ExportedProgram) -> Found:
    stores = {**program.constants, **program.state_dict}
    specs = program.graph_signature.input_specs
    for node, spec in zip(_placeholders(program), specs, strict=True):
        value, fake = stores.get(spec.target or ""), node.meta["val"]
        both = isinstance(value, torch.Tensor) and isinstance(fake, FakeTensor)
        if both and type_text(value) != type_text(fake):
            yield node, f"it is {type_text(fake)}, {spec.target!r} is {type_text(value)}"


def _writes(program: ExportedProgram) -> Found:
    signature = program.graph_signature
    written: set[tuple[OutputKind, str | None]] = set()
    nodes = {n.name: n for n in program.graph.nodes}
    for spec in signature.output_specs:
        if spec.kind in _TARGETS:
            key = (spec.kind, spec.target)
            source = _source_of(signature.input_specs, spec)
            if source is None:
                yield (
                    spec.arg.name,
                    f"{spec.kind.name}: there is no {spec.target!r} among the inputs",
                )
            elif "MUTATION" in spec.kind.name:
                if key in written:
                    yield spec.arg.name, f"{spec.target!r} is written twice"
                yield from _same_type(nodes[spec.arg.name], nodes[source.arg.name])
            written.add(key)
        elif spec.target is not None:
            yield spec.arg.name, f"a {spec.kind.name} has the target {spec.target!r}"


_TARGETS = {
    OutputKind.BUFFER_MUTATION: InputKind.BUFFER,
    OutputKind.PARAMETER_MUTATION: InputKind.PARAMETER,
    OutputKind.USER_INPUT_MUTATION: InputKind.USER_INPUT,
    OutputKind.GRADIENT_TO_PARAMETER: InputKind.PARAMETER,
    OutputKind.GRADIENT_TO_USER_INPUT: InputKind.USER_INPUT,
}


def _source_of(inputs: Sequence[InputSpec], spec: OutputSpec) -> InputSpec | None:
    kind = _TARGETS[spec.kind]
    for given in inputs:
        name = given.arg.name if kind is InputKind.USER_INPUT else given.target
        if given.kind is kind and name == spec.target:
            return given
    return None


def _same_type(new: Node, old: Node) -> Found:
    if _shown(new.meta["val"]) != _shown(old.meta["val"]):
        yield (
            new,
            f"it is {_shown(new.meta['val'])} and is written to {old.name!r}, "
            f"which is {_shown(old.meta['val'])}",
        )


def _calling(program: ExportedProgram) -> Found:
    signature, root = program.graph_signature, program.root_signature
    first = program.module_call_graph[0] if program.module_call_graph else None
    if root is None or first is None or first.fqn != "":
        yield None, "module_call_graph does not begin with the root and its signature"
        return
    spec = root.in_spec
    if spec.type is not tuple or [c.type for c in spec.children()] != [tuple, dict]:
        yield None, "in_spec is not a tuple of arguments and a dict of keyword arguments"
    if spec.num_leaves != len(signature.user_inputs):
        yield (
            None,
            f"in_spec has {spec.num_leaves} leaves, the signature "
            f"{len(signature.user_inputs)} user inputs",
        )
    if root.out_spec.num_leaves != len(signature.user_outputs):
        yield (
            None,
            f"out_spec has {root.out_spec.num_leaves} leaves, the signature "
            f"{len(signature.user_outputs)} user outputs",
        )
    names = {n.name for n in program.graph.nodes}
    for entry in program.module_call_graph:
        for arg in (*entry.signature.inputs, *entry.signature.outputs) if entry.signature else ():
            if not isinstance(arg, ConstantArgument) and arg.name not in names:
                yield (
                    arg.name,
                    f"the call of {entry.fqn!r} speaks of it, the graph does not have it",
                )


def _ranges(program: ExportedProgram) -> Found:
    known = {str(symbol) for symbol in program.range_constraints}
    for symbol, limits in program.range_constraints.items():
        lo, hi = limits if isinstance(limits, tuple) else (limits.lower, limits.upper)
        if lo is not None and hi is not None and bool(lo > hi):
            yield None, f"the range of {symbol} is empty: {lo} to {hi}"
    for node in _placeholders(program):
        value = node.meta["val"]
        sizes = value.type.size if isinstance(value, FakeTensor) else (unwrap(value),)
        for size in sizes:
            for symbol in size.symbols() if isinstance(size, Expr) else ():
                if symbol.name not in known:
                    yield node, f"its symbol {symbol.name} has no range"


RULES: tuple[Rule, ...] = (
    GraphRule("node kinds", "only placeholder, call_function, get_attr and output", _kinds),
    GraphRule("one output", "exactly one output, the last node, returns a tuple", _output),
    GraphRule(
        "placeholders first", "placeholders stand before all other nodes", _placeholders_first
    ),
    GraphRule(
        "placeholder form",
        "a placeholder names an input; a default is all it has",
        _placeholder_form,
    ),
    GraphRule("unique names", "no two nodes have one name", _names),
    GraphRule("order", "a node stands after its arguments, in the same graph", _order),
    GraphRule("get_attr", "only sub-graphs are read as attributes", _get_attr),
    GraphRule(
        "operators", "operators with a schema, higher-order ones, arithmetic on numbers", _operators
    ),
    GraphRule("functional", "no operator writes to its arguments", _functional),
    GraphRule("schema", "arguments are those of the operator's schema", _schema),
    GraphRule("arguments", "an argument is a node or a constant; no tensors", _arguments),
    GraphRule("metadata", "calls say what they return and where they come from", _metadata),
    GraphRule("values", "meta['val'] has the form that the operator returns", _values),
    GraphRule("types", "meta['val'] has the size and dtype that the operator gives", _types),
    ProgramRule("inputs", "the signature's inputs are the placeholders", _inputs_match),
    ProgramRule("outputs", "the signature's outputs are what is returned", _outputs_match),
    ProgramRule(
        "signature order", "state before user inputs, writes before results", _kinds_in_order
    ),
    ProgramRule("state", "each parameter, buffer and constant is there, under its name", _state),
    ProgramRule("state types", "state has the size and dtype of its placeholder", _state_types),
    ProgramRule("writes", "what is written is an input of that kind and type, once", _writes),
    ProgramRule(
        "calling convention", "structures have as many leaves as inputs, outputs", _calling
    ),
    ProgramRule("ranges", "each symbol of an input has a range, and no range is empty", _ranges),
)
