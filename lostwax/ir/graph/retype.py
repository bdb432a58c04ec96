"""What the nodes of an edited graph return, and where they come from.

Only what changed is evaluated again: new nodes, nodes with other arguments, and whatever reads a
value whose type became another. Must not change what a graph computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from lostwax.classes import SYMBOLIC
from lostwax.errors import LostwaxError, PassError
from lostwax.fake import FakeTensor, FakeTensorMode
from lostwax.fake.symbolic.node import unwrap
from lostwax.fake.tensor import new_fake
from lostwax.ir.graph.control import (
    Body,
    call_value,
    describe_call,
    differ,
    recorded_value,
)
from lostwax.ir.graph.lookup import find_attribute
from lostwax.ir.text import source_text
from lostwax.ops.dialect_operator import overload_of
from lostwax.ops.registry import has_trait, operator
from lostwax.ops.traits import Trait
from lostwax.sym import BoolExpr, Condition, ShapeEnv

PROVENANCE: dict[str, Any] = {"stack_trace": "", "nn_module_stack": {}, "source_fn_stack": []}
"""The keys of `meta` that say where a call comes from, each with its value for "unknown"."""

_ABSENT = object()


class NodeForm(NamedTuple):
    """What a node was before an edit. Compared by identity, since FX replaces arguments and never
    changes them in place."""

    target: Any
    args: Any
    kwargs: Any
    val: Any


def node_form(node: Node) -> NodeForm:
    return NodeForm(node.target, node.args, node.kwargs, node.meta.get("val", _ABSENT))


def node_forms(graphs: Iterable[Graph]) -> dict[Node, NodeForm]:
    """Record the form of each node before an edit, for `retype` to compare with afterwards."""
    return {node: node_form(node) for graph in graphs for node in graph.nodes}


def retype(graph: Graph, mode: FakeTensorMode, before: Mapping[Node, NodeForm]) -> set[Node]:
    """Bring `meta["val"]` up to date, also in sub-graphs; return the nodes whose type has changed.

    This evaluates operators, so call it where that records nothing (inside `Draft.typing`)."""
    changed: set[Node] = set()
    _retype_graph(graph, mode, before, changed)
    return changed


def _retype_graph(
    graph: Graph, mode: FakeTensorMode, before: Mapping[Node, NodeForm], changed: set[Node]
) -> None:
    for node in graph.nodes:
        was = before.get(node)
        if was is not None and was.val is not node.meta.get("val", _ABSENT):
            _drop_foreign(node, was)
        if node.op == "placeholder":
            if was is not None and was.val is not node.meta.get("val"):
                changed.add(node)
        elif node.op == "call_function":
            is_higher = isinstance(node.target, HigherOrderOperator)
            others = is_higher and _retype_bodies(node, mode, before, changed)
            if others or _is_stale(node, was, changed):
                _retype(node, mode, was, changed)
        elif node.op == "output" and "val" in node.meta:
            val = map_arg(node.args[0], recorded_value)
            node.meta["val"] = tuple(val) if isinstance(val, list) else val  # as at capture


def _drop_foreign(node: Node, was: NodeForm) -> None:
    """Put back the value from before the edit in the place of one that is not ours: tools of
    torch's write their own fakes, and numbers where a program has symbols."""
    is_number = isinstance(was.val, SYMBOLIC)
    if is_number or (was.val is not _ABSENT and is_foreign(node.meta.get("val"))):
        node.meta["val"] = was.val


def is_foreign(value: Any) -> bool:
    """Is it, or does it hold, a tensor that is not one of our fakes?"""
    if isinstance(value, (tuple, list)):
        return any(map(is_foreign, value))
    return isinstance(value, Tensor) and not isinstance(value, FakeTensor)


def _retype_bodies(
    node: Node, mode: FakeTensorMode, before: Mapping[Node, NodeForm], changed: set[Node]
) -> bool:
    """Bring the sub-graphs of a call up to date. Do they return something else than before?"""
    call = describe_call(node)
    bodies = () if call is None else call.bodies
    for body in bodies:
        if (module := body.find_module()) is not None:
            _give_types(module, body, changed)
            with facts_inside(node, body, mode):
                _retype_graph(module.graph, mode, before, changed)
    for module in () if call is not None else _sub_graphs(node):
        _retype_graph(module.graph, mode, before, changed)
    return any(_returns_other(body.find_module(), before, changed) for body in bodies)


def _sub_graphs(node: Node) -> Iterator[GraphModule]:
    read = (n for n in node.all_input_nodes if n.op == "get_attr")
    found = (find_attribute(node.graph.owning_module, str(n.target)) for n in read)
    return (module for module in found if isinstance(module, GraphModule))


def _give_types(module: GraphModule, body: Body, changed: set[Node]) -> None:
    """Give the inputs of a sub-graph the types of operands that have changed, or are others than
    before."""
    inputs = module.graph.find_nodes(op="placeholder")
    for node, operand, given in zip(inputs, body.operands, body.given_values(), strict=False):
        if (isinstance(operand, Node) and operand in changed) or differ(node.meta["val"], given):
            node.meta["val"] = given


@contextmanager
def facts_inside(node: Node, body: Body, mode: FakeTensorMode) -> Iterator[None]:
    """Inside, what is known where a sub-graph runs: the predicate of a branch, and what the
    sub-graph itself asserts. It must need nothing else that nobody checks there."""
    env = mode.shape_env
    module = body.find_module()
    if env is None or module is None:
        yield
        return
    with env.trial() as new:
        for fact in (*_branch_facts(node, body), *_find_assertions(module)):
            env.absorb(fact)
        yield
    if new:
        raise PassError(
            f"the {body.role} of {node.name!r} would need `{new[0].cond}`, and nothing checks it"
        )


def _branch_facts(node: Node, body: Body) -> Iterator[Condition]:
    predicate = unwrap(recorded_value(node.args[0]))
    if isinstance(predicate, BoolExpr) and body.role in ("true branch", "false branch"):
        yield predicate if body.role == "true branch" else ~predicate


def _find_assertions(module: GraphModule) -> Iterator[BoolExpr]:
    for node in module.graph.nodes:
        if node.op == "call_function" and has_trait(node.target, Trait.ASSERTS):
            condition = unwrap(recorded_value(node.args[0]))
            if isinstance(condition, BoolExpr):
                yield condition


def _returns_other(
    module: GraphModule | None, before: Mapping[Node, NodeForm], changed: set[Node]
) -> bool:
    if module is None:
        return False
    output = module.graph.output_node()
    was = before.get(output)
    is_other = was is None or was.args is not output.args
    return is_other or not changed.isdisjoint(output.all_input_nodes)


def _is_stale(node: Node, was: NodeForm | None, changed: set[Node]) -> bool:
    if was is None or was.val is _ABSENT or was.val is not node.meta.get("val"):
        return True
    if was.target is not node.target or was.args is not node.args or was.kwargs is not node.kwargs:
        return True
    return bool(changed) and not changed.isdisjoint(node.all_input_nodes)


def _retype(node: Node, mode: FakeTensorMode, was: NodeForm | None, changed: set[Node]) -> None:
    old = node.meta.get("val", _ABSENT)
    new = evaluate_node(node, mode)
    if old is _ABSENT or same_type(old, new) is False:
        node.meta["val"] = new
    if was is not None and same_type(was.val, node.meta["val"]) is False:
        changed.add(node)


def evaluate_node(node: Node, mode: FakeTensorMode) -> Any:
    """Evaluate a call on the fakes recorded for its arguments."""
    target: Any = overload_of(node.target)
    if isinstance(target, HigherOrderOperator):
        return _higher_order_value(node)
    if isinstance(target, OpOverload) and not operator(target).results:
        return None  # an assertion: evaluating it would make the environment assume it
    args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    try:
        if not isinstance(target, OpOverload):
            return target(*args, **kwargs)
        new = mode.evaluate(target, args, kwargs)
    except (LostwaxError, *_REFUSALS) as error:
        source = source_text(node)
        why = _find_misplaced(target, args, kwargs) or str(error).splitlines()[0]
        raise PassError(
            f"node {node.name!r} cannot be typed: {target} refuses its arguments: "
            f"{why}" + (f"\n    at {source}" if source else "")
        ) from error
    record = operator(target)
    is_own = record.evaluation is not None or Trait.READS_NUMBER in record.traits
    if record.data_dependent or is_own:
        return _keep_old_sizes(node.meta.get("val"), new)
    return new


_REFUSALS = RuntimeError, ValueError, IndexError, TypeError, AttributeError


def _find_misplaced(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Which argument is no tensor, and has to be one; "" if none is."""
    if not isinstance(target, OpOverload):
        return ""
    arguments = target._schema.arguments
    given = {**dict(zip((a.name for a in arguments), args, strict=False)), **kwargs}
    for argument in arguments:
        value = given.get(argument.name)
        if str(argument.type) == "Tensor" and not isinstance(value, Tensor):
            return f"the argument {argument.name!r} is {value!r}, not a tensor"
    return ""


def _higher_order_value(node: Node) -> Any:
    """What a call returns that runs sub-graphs, by what these return. Of an operator that nothing
    is known of, the recorded value is taken."""
    call = describe_call(node)
    if call is not None and all(body.find_module() is not None for body in call.bodies):
        return call_value(call)
    if "val" in node.meta:
        return node.meta["val"]
    raise PassError(
        f"node {node.name!r} is a new call of {node.target} and does not say what it returns\n"
        "  instead: set its meta['val']"
    )


def _keep_old_sizes(old: Any, new: Any) -> Any:
    """Let sizes that depend on data keep their symbols, since the rest of the program uses them."""
    if isinstance(old, FakeTensor) and isinstance(new, FakeTensor) and old.ndim == new.ndim:
        t, was = new.fake_type, old.fake_type
        return new_fake(new.fake_mode, t.replace(size=was.size, stride=was.stride))
    if isinstance(old, (tuple, list)) and isinstance(new, (tuple, list)) and len(old) == len(new):
        return type(new)([_keep_old_sizes(o, n) for o, n in zip(old, new, strict=True)])
    return old if isinstance(old, SYMBOLIC) else new


def same_type(a: Any, b: Any) -> bool:
    """Do two recorded values describe the same type?"""
    if isinstance(a, FakeTensor) or isinstance(b, FakeTensor):
        both = isinstance(a, FakeTensor) and isinstance(b, FakeTensor)
        return both and a.fake_type == b.fake_type
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(same_type, a, b))
    if isinstance(a, SYMBOLIC) or isinstance(b, SYMBOLIC):
        return unwrap(a) is unwrap(b)
    return a is b or (a.__class__ is b.__class__ and a == b)


def mode_of(graph: Graph) -> FakeTensorMode:
    """The mode that the values of this graph belong to."""
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, FakeTensor):
            return cast(FakeTensorMode, value.fake_mode)
    return FakeTensorMode(shape_env=ShapeEnv())


# --------------------------------------------------------------------------------------- provenance


def fill_provenance(graph: Graph, origins: Mapping[str, Mapping[str, Any]]) -> None:
    """Record where each new call comes from: where the call it replaces came from (`origins`, by
    name), else the call that reads it, else the first call that it reads."""
    for node in reversed(graph.nodes):
        if node.op == "call_function" and not has_provenance(node):
            _take_provenance(node, origins.get(node.name) or _neighbour_provenance(node))


def has_provenance(node: Node) -> bool:
    return all(key in node.meta for key in PROVENANCE)


def _neighbour_provenance(node: Node) -> Mapping[str, Any]:
    for other in (*node.users, *node.all_input_nodes):
        if other.op == "call_function" and has_provenance(other):
            return other.meta
    return {}


def _take_provenance(node: Node, source: Mapping[str, Any]) -> None:
    for key, nothing in PROVENANCE.items():
        if key not in node.meta:
            node.meta[key] = source.get(key, nothing)
