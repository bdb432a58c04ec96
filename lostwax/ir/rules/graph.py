"""The rules of the IR specification that speak of one graph, and of each of its sub-graphs.

Each rule is a function that yields what breaks it: the node, and what is wrong. Rules are checked
in the order of the table, and may rely on those before them. Must not change the graph, nor ask
questions that add guards.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Node

from lostwax.cache import cached_by_identity
from lostwax.classes import PLAIN, SYMBOLIC
from lostwax.errors import LostwaxError
from lostwax.fake import FakeTensor, rule_cache
from lostwax.identity import Seen
from lostwax.ir.graph.delegate import LoweredBackendModule
from lostwax.ir.graph.lookup import find_attribute, silent_writes
from lostwax.ir.pytree import LEAVES
from lostwax.ir.text import target_text, type_text
from lostwax.ops import registry
from lostwax.ops.dialect_operator import DialectOperator, overload_of
from lostwax.ops.shapes import is_same
from lostwax.sym.numbers.real import MATH
from lostwax.types import TensorType

Found = Iterator[tuple[Node | str | None, str]]
"""What breaks a rule: the node (or the name of one that does not exist), and what is wrong."""

# Functions on numbers that graphs may call beside operators.
ON_NUMBERS: frozenset[Any] = frozenset(
    [
        *(operator.getitem, operator.add, operator.sub, operator.mul, operator.floordiv),
        *(operator.truediv, operator.mod, operator.pow, operator.neg, operator.pos, operator.abs),
        *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
        *(operator.and_, operator.or_, operator.not_, operator.lshift, operator.rshift),
        *(math.floor, math.ceil, math.trunc, math.sqrt, round),
        *(torch.sym_int, torch.sym_float, torch.sym_max, torch.sym_min, torch.sym_not),
        *(torch.sym_ite, torch.sym_sum),
        *(getattr(torch, f"_sym_{name}") for name in MATH),
    ]
)

_VALUES = (FakeTensor, *SYMBOLIC, int, float, bool, str, type(None))
_PLAIN = PLAIN | {Node, torch.device}
"""The classes of most arguments: surely leaves, and legal."""
_CONSTANTS = (*LEAVES, slice, range, type(...), OpOverload, HigherOrderOperator)


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
    if outputs and not isinstance(outputs[0].args[0], (tuple, list, Node)):
        yield outputs[0], "it returns neither a tuple nor, as the body of an operator, one value"


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
            value = find_attribute(module, str(node.target))
            if not isinstance(value, (GraphModule, LoweredBackendModule)):
                yield (
                    node,
                    f"{node.target} is {type(value).__name__}; only sub-graphs and delegates are "
                    "read as attributes, parameters and buffers are inputs",
                )


def _operators(module: GraphModule) -> Found:
    for node in module.graph.nodes:
        if node.op != "call_function" or isinstance(node.target, (OpOverload, DialectOperator)):
            continue
        if node.target not in ON_NUMBERS and not isinstance(node.target, HigherOrderOperator):
            yield (
                node,
                f"{target_text(node.target)} is neither an operator with a schema, nor a "
                "higher-order one, nor arithmetic on numbers",
            )


def _operator_calls(module: GraphModule) -> Iterator[tuple[Node, OpOverload]]:
    for node in module.graph.nodes:
        if node.op == "call_function":
            target = overload_of(node.target)
            if isinstance(target, OpOverload):
                yield node, target


def _functional(module: GraphModule) -> Found:
    for node, overload in _operator_calls(module):
        written = registry.operator(overload).mutates
        if written:
            yield node, f"{overload} writes to its argument {', '.join(map(repr, written))}"
        if silent_writes(node):
            flag = registry.operator(overload).silent_flag
            yield node, f"{overload} with {flag}=True writes to 'running_mean', 'running_var'"


def _schema(module: GraphModule) -> Found:
    for node, overload in _operator_calls(module):
        form = _schema_form(overload)
        given = form.positional[: len(node.args)]
        if len(node.args) > len(form.positional):
            count = len(form.positional)
            yield node, f"{overload} takes {count} arguments, {len(node.args)} are given"
        for name in node.kwargs:
            if name in given or name not in form.names:
                yield node, f"{overload} does not take {name!r}, or takes it twice"
        for name in form.required:
            if name not in given and name not in node.kwargs:
                yield node, f"{overload} is called without its argument {name!r}"


class _SchemaForm(NamedTuple):
    """What the schema of an operator says; kept, since asking C++ is slow."""

    positional: tuple[str, ...]
    names: frozenset[str]
    required: tuple[str, ...]
    returns: tuple[str, ...]


@cached_by_identity(20_000)
def _schema_form(overload: OpOverload) -> _SchemaForm:
    schema = overload._schema
    return _SchemaForm(
        tuple(a.name for a in schema.arguments if not a.kwarg_only),
        frozenset(a.name for a in schema.arguments),
        tuple(a.name for a in schema.arguments if not a.has_default_value()),
        tuple(r.type.kind() for r in schema.returns),
    )


def _arguments(module: GraphModule) -> Found:
    for node in module.graph.nodes:
        for value in (*node.args, *node.kwargs.values()):
            if value.__class__ not in _PLAIN:
                for part in _flatten(value):
                    yield from _argument_rule(node, part)


def _argument_rule(node: Node, value: Any) -> Found:
    if value.__class__ in _PLAIN:
        return
    if isinstance(value, torch.Tensor):
        yield node, f"a tensor {type_text(value)} is baked in; tensors are inputs"
    elif isinstance(value, SYMBOLIC):
        yield node, f"the symbolic number {value} is baked in; it must be computed by nodes"
    elif not isinstance(value, (Node, *_CONSTANTS)):
        yield node, f"its argument {value!r} is neither a node nor a constant"


def _flatten(value: Any) -> list[Any]:
    """The leaves of an argument or a value."""
    found: list[Any] = []
    _gather(value, found)
    return found


def _gather(value: Any, found: list[Any]) -> None:
    if value.__class__ in _PLAIN:
        found.append(value)
    elif isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        for item in value:
            _gather(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            _gather(item, found)
    else:
        found.append(value)


_METADATA: dict[str, type | tuple[type, ...]] = {
    "stack_trace": str,
    "nn_module_stack": dict,
    "source_fn_stack": list,
}


def _metadata(module: GraphModule) -> Found:
    seen = Seen()
    for node in module.graph.nodes:
        if node.op in ("call_function", "placeholder") and "val" not in node.meta:
            yield node, "meta['val'] is missing"
        if node.op == "call_function":
            for key, kind in _METADATA.items():
                if key not in node.meta:
                    yield node, f"meta[{key!r}] is missing"
                elif not isinstance(node.meta[key], kind):
                    yield node, f"meta[{key!r}] is a {type(node.meta[key]).__name__}"
            yield from _entries(node, seen)


def _entries(node: Node, seen: Seen) -> Found:
    """Check the entries of the stacks: (path, class) for modules, (name, function) for sources.
    Nodes share their stacks, so each is checked once."""
    stack, sources = node.meta.get("nn_module_stack"), node.meta.get("source_fn_stack")
    if isinstance(stack, dict) and stack not in seen:
        seen.add(stack)
        for key, entry in stack.items():
            if not _is_named(entry):
                text = "it must be the path and the class of a module"
                yield node, f"meta['nn_module_stack'][{key!r}] is {entry!r}; {text}"
    for entry in sources if isinstance(sources, list) else ():
        if not _is_named(entry):
            text = "it must be a name and a function or class"
            yield node, f"meta['source_fn_stack'] has {entry!r}; {text}"


def _is_named(entry: Any) -> bool:
    if not isinstance(entry, (tuple, list)) or len(entry) != 2 or not isinstance(entry[0], str):
        return False
    return isinstance(entry[1], str) or callable(entry[1])


def _values(module: GraphModule) -> Found:
    for node in module.graph.nodes:
        if node.op == "placeholder" and _is_real(node.meta["val"]):
            name = type(node.meta["val"]).__name__
            yield node, f"meta['val'] holds a {name}, not a lostwax FakeTensor"
        if node.op != "call_function":
            continue
        value = node.meta["val"]
        for part in _flatten(value) if type(value) is not FakeTensor else ():
            if not isinstance(part, _VALUES):
                yield node, f"meta['val'] holds a {type(part).__name__}, not a lostwax FakeTensor"
        target = overload_of(node.target)
        if isinstance(target, OpOverload):
            yield from _returns(node, target, value)
        elif node.target is operator.getitem:
            yield from _item(node, value)


def _is_real(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)


def _returns(node: Node, overload: OpOverload, value: Any) -> Found:
    """Check that there are as many values as the schema returns, with tensors where it says so."""
    kinds = _schema_form(overload).returns
    values = [value] if len(kinds) == 1 else value
    if not kinds:
        if value is not None and value != ():
            yield node, f"{overload} returns nothing, meta['val'] is {type(value).__name__}"
    elif not isinstance(values, (tuple, list)) or len(values) != len(kinds):
        yield node, f"{overload} returns {len(kinds)} values, meta['val'] is {value_text(value)}"
    else:
        for kind, part in zip(kinds, values, strict=True):
            if part is None and len(kinds) > 1:
                continue  # one of several results may be missing
            if (kind == "TensorType") != isinstance(part, FakeTensor):
                yield node, f"{overload} returns a {kind}, meta['val'] has {value_text(part)}"


def _item(node: Node, value: Any) -> Found:
    source, index = node.args[0], node.args[1]
    if not isinstance(source, Node) or not isinstance(index, int):
        return
    whole = source.meta.get("val")
    if not isinstance(whole, (tuple, list)) or not -len(whole) <= index < len(whole):
        yield node, f"{source.name!r} has no item {index}"
    elif value_text(whole[index]) != value_text(value):
        yield (
            node,
            f"meta['val'] is {value_text(value)}, item {index} of {source.name!r} is "
            f"{value_text(whole[index])}",
        )


def value_text(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(value_text, value))})"
    return type_text(value) or repr(value)


def _devices(module: GraphModule) -> Found:
    """A call that names a device gives tensors there; any other gives them on the CPU, or where
    something is that the graph was given or has named."""
    known = {torch.device("cpu")}
    for node in module.graph.nodes:
        named = node.kwargs.get("device") if node.kwargs else None
        value = node.meta.get("val")
        for part in (value,) if type(value) is FakeTensor else _flatten(value):
            if type(part) is not FakeTensor:
                continue
            where = part.fake_type.device
            if named is not None and not _is_same_device(torch.device(named), where):
                yield node, f"it names the device {named}, and meta['val'] is on {where}"
            elif named is not None or node.op == "placeholder":
                known.add(where)
            elif where not in known and not any(_is_same_device(where, each) for each in known):
                yield node, f"meta['val'] is on {where}, which no input is on and no call names"


def _types(module: GraphModule) -> Found:
    """Compare what the type rules say of each static call with what is recorded."""
    for node, overload in _operator_calls(module):
        record = registry.operator(overload)
        if record.rule is None or record.data_dependent or record.by_twin:
            continue
        known = _recall_answer(node, record)
        if known is not None and _agrees(node.meta["val"], known):
            continue
        try:
            args = _as_types(list(node.args))
            kwargs = {k: _as_types(v) for k, v in node.kwargs.items()}
        except _Symbolic:
            continue  # asking could add guards
        try:
            result = record.rule(*args, **kwargs)
        except LostwaxError:
            raise
        except (RuntimeError, ValueError, IndexError, TypeError, AttributeError) as error:
            yield node, f"{overload} refuses these arguments: {str(error).splitlines()[0]}"
            continue
        if not _agrees(node.meta["val"], result):
            yield from _compare_types(node, result)


def _recall_answer(node: Node, record: registry.Operator) -> Any:
    """What the rule answered to this question before; None if it was never asked."""
    args = [a.meta.get("val") if a.__class__ is Node else a for a in node.args]
    mode: Any = next((a.fake_mode for a in args if type(a) is FakeTensor), None)
    key = None if mode is None else rule_cache.question(mode, record, args, node.kwargs)
    return None if mode is None else rule_cache.find_answer(mode, key)


class _Symbolic(Exception):
    pass


def _as_types(value: Any) -> Any:
    """An argument as type rules take it."""
    if value.__class__ is Node:
        value = value.meta.get("val")
    if value.__class__ in _PLAIN:
        return value
    if isinstance(value, (tuple, list)):
        return [_as_types(v) for v in value]
    if isinstance(value, FakeTensor):
        if value.fake_type.is_symbolic:
            raise _Symbolic
        return value.fake_type
    if isinstance(value, SYMBOLIC):
        raise _Symbolic
    return value


def _agrees(value: Any, result: Any) -> bool:
    """Is the result as recorded? Decides only what most calls return; else it is False."""
    if result.__class__ is tuple and value.__class__ is tuple and len(value) == len(result):
        return all(_agrees(v, r) for v, r in zip(value, result, strict=True))
    if type(value) is not FakeTensor or result.__class__ is not TensorType:
        return False
    recorded = value.fake_type
    alike = result.size == recorded.size and result.dtype is recorded.dtype
    return bool(alike and _is_same_device(result.device, recorded.device))


def _is_same_device(a: torch.device, b: torch.device) -> bool:
    """Are two devices the same? A device without a number is the current one, whichever that is."""
    return a == b or (a.type == b.type and (a.index is None or b.index is None))


def _compare_types(node: Node, result: Any) -> Found:
    computed = list(result) if isinstance(result, (tuple, list)) else [result]
    recorded = [v for v in _flatten([node.meta["val"]]) if isinstance(v, FakeTensor)]
    computed = [t for t in _flatten(computed) if isinstance(t, TensorType)]
    if len(computed) != len(recorded):
        return
    for wanted, fake in zip(computed, recorded, strict=True):
        recorded_type = fake.fake_type
        if not have_same_type(wanted, recorded_type):
            yield node, f"meta['val'] is {recorded_type}, the operator gives {wanted}"
        elif not _is_same_device(wanted.device, recorded_type.device):
            where = recorded_type.device
            yield node, f"meta['val'] is on {where}, what the operator gives on {wanted.device}"


def have_same_type(a: TensorType, b: TensorType) -> bool:
    """Do two tensors have the same dtype and sizes? Two symbols may be known to be equal."""
    if a.dtype is not b.dtype or len(a.size) != len(b.size):
        return False
    return all(is_same(x, y) for x, y in zip(a.size, b.size, strict=True))


GRAPH_RULES: tuple[tuple[str, str, Callable[[GraphModule], Found]], ...] = (
    ("node kinds", "only placeholder, call_function, get_attr and output", _kinds),
    ("one output", "exactly one output, the last node", _output),
    ("placeholders first", "placeholders stand before all other nodes", _placeholders_first),
    (
        "placeholder form",
        "a placeholder names an input; a default is all it has",
        _placeholder_form,
    ),
    ("unique names", "no two nodes have one name", _names),
    ("order", "a node stands after its arguments, in the same graph", _order),
    ("get_attr", "only sub-graphs are read as attributes", _get_attr),
    ("operators", "operators with a schema, higher-order ones, arithmetic on numbers", _operators),
    ("functional", "no operator writes to its arguments", _functional),
    ("schema", "arguments are those of the operator's schema", _schema),
    ("arguments", "an argument is a node or a constant; no tensors", _arguments),
    ("metadata", "calls say what they return and where they come from", _metadata),
    ("values", "meta['val'] has the form that the operator returns", _values),
    ("devices", "tensors are on devices that inputs are on or calls name", _devices),
)
TYPE_RULE = ("types", "meta['val'] has the size, dtype and device that the operator gives", _types)
