"""Each rule of the verifier is broken once, at least, and says so; whole programs break none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.utils import _pytree

from lostwax.errors import VerificationError
from lostwax.fake.symbolic.node import wrap
from lostwax.fake.tensor import new_fake
from lostwax.ir.data import ModuleCallEntry
from lostwax.ir.program import ExportedProgram
from lostwax.ir.rules.control import CONTROL_RULES
from lostwax.ir.rules.delegates import DELEGATE_RULE
from lostwax.ir.rules.verify import RULES, verify
from lostwax.ir.signature import (
    ConstantArgument,
    InputKind,
    OutputKind,
    OutputSpec,
    SymIntArgument,
    TensorArgument,
)
from tests.ir.build import Builder

aten = torch.ops.aten
Break = Callable[[ExportedProgram], None]


def whole() -> ExportedProgram:
    """Everything a static program has: state of each kind, writes, views, results, constants."""
    b = Builder()
    w = b.parameter("layer.w", nn.Parameter(torch.ones(3)))
    mean = b.buffer("mean", torch.zeros(3))
    b.buffer("cache", torch.zeros(3), persistent=False)
    k = b.constant("k", torch.ones(3))
    x = b.input("x", torch.zeros(2, 3))
    b.input("n", 3)
    y = b.call(aten.mul.Tensor, x, w)
    z = b.call(aten.add.Tensor, y, k)
    b.write(mean, b.call(aten.mean.dim, z, [0]))
    b.write(x, b.call(aten.neg.default, x))
    top = b.call(aten.topk.default, z, 2)
    return b.program((z, b.item(top, 0), 3))


def node(p: ExportedProgram, name: str) -> fx.Node:
    return next(n for n in p.graph.nodes if n.name == name)


def calls(p: ExportedProgram, target: Any) -> fx.Node:
    return next(n for n in p.graph.nodes if n.target is target)


def test_a_whole_program_breaks_no_rule():
    p = whole()
    assert verify(p) == []
    p.validate()


def with_subgraph() -> tuple[ExportedProgram, fx.GraphModule]:
    p = whole()
    inner = fx.Graph()
    a = inner.placeholder("a")
    a.meta["val"] = node(p, "x").meta["val"]
    sin = inner.call_function(aten.sin.default, (a,))
    sin.meta.update(calls(p, aten.neg.default).meta)
    inner.output((sin,))
    p.graph_module.true_graph = fx.GraphModule(nn.Module(), inner)
    with p.graph.inserting_after(node(p, "n")):
        p.graph.get_attr("true_graph")
    return p, p.graph_module.true_graph


# ------------------------------------------------------------------------------ the graph is broken


def call_module(p: ExportedProgram) -> None:
    p.graph_module.inner = nn.ReLU()
    with p.graph.inserting_before(p.graph.output_node()):
        p.graph.call_module("inner", (node(p, "x"),))


def call_method(p: ExportedProgram) -> None:
    with p.graph.inserting_before(p.graph.output_node()):
        p.graph.call_method("relu", (node(p, "x"),))


def no_output(p: ExportedProgram) -> None:
    p.graph.erase_node(p.graph.output_node())


def two_outputs(p: ExportedProgram) -> None:
    p.graph.output((node(p, "x"),))


def not_last(p: ExportedProgram) -> None:
    p.graph.create_node("call_function", aten.relu.default, (node(p, "x"),))


def bare_output(p: ExportedProgram) -> None:
    p.graph.output_node().args = (node(p, "x"),)


def late_placeholder(p: ExportedProgram) -> None:
    with p.graph.inserting_before(p.graph.output_node()):
        p.graph.placeholder("late")


def placeholder_arguments(p: ExportedProgram) -> None:
    node(p, "x").args = (1, 2)


def placeholder_target(p: ExportedProgram) -> None:
    node(p, "x").target = 3  # type: ignore[assignment]


def same_name(p: ExportedProgram) -> None:
    calls(p, aten.neg.default)._rename("x_9")
    calls(p, aten.mul.Tensor).name = "x_9"


def used_before_made(p: ExportedProgram) -> None:
    calls(p, aten.mul.Tensor).args = (calls(p, aten.neg.default), 2)


def another_graph(p: ExportedProgram) -> None:
    calls(p, aten.mul.Tensor).args = (fx.Graph().placeholder("stranger"), 2)


def tensor_attribute(p: ExportedProgram) -> None:
    p.graph_module.register_buffer("attribute", torch.ones(3))
    with p.graph.inserting_before(p.graph.output_node()):
        p.graph.get_attr("attribute")


def missing_attribute(p: ExportedProgram) -> None:
    with p.graph.inserting_before(p.graph.output_node()):
        p.graph.create_node("get_attr", "no.such")


def python_function(p: ExportedProgram) -> None:
    calls(p, aten.neg.default).target = torch.neg


def packet(p: ExportedProgram) -> None:
    calls(p, aten.neg.default).target = aten.neg


def in_place(p: ExportedProgram) -> None:
    calls(p, aten.neg.default).target = aten.neg_.default


def out_variant(p: ExportedProgram) -> None:
    neg = calls(p, aten.neg.default)
    neg.target, neg.kwargs = aten.neg.out, {"out": node(p, "x")}


def silent_write(p: ExportedProgram) -> None:
    neg = calls(p, aten.neg.default)
    neg.target = aten.native_batch_norm.default
    neg.args = (node(p, "x"), None, None, node(p, "b_mean"), node(p, "b_mean"), True, 0.1, 1e-5)


def too_many_arguments(p: ExportedProgram) -> None:
    calls(p, aten.neg.default).args = (node(p, "x"), 1)


def unknown_argument(p: ExportedProgram) -> None:
    calls(p, aten.neg.default).kwargs = {"beta": 1}


def missing_argument(p: ExportedProgram) -> None:
    calls(p, aten.mul.Tensor).args = (node(p, "x"),)


def baked_tensor(p: ExportedProgram) -> None:
    calls(p, aten.mul.Tensor).args = (node(p, "x"), torch.ones(3))  # type: ignore[assignment]


def baked_symbol(p: ExportedProgram) -> None:
    symbol = wrap(Builder().env.symbol(hint=2))
    calls(p, aten.mul.Tensor).args = (node(p, "x"), symbol)


def odd_argument(p: ExportedProgram) -> None:
    calls(p, aten.mul.Tensor).args = (node(p, "x"), object())  # type: ignore[assignment]


def drop(key: str, name: str = "") -> Break:
    def broken(p: ExportedProgram) -> None:
        del (node(p, name) if name else calls(p, aten.neg.default)).meta[key]

    return broken


def put(key: str, value: Any) -> Break:
    def broken(p: ExportedProgram) -> None:
        calls(p, aten.neg.default).meta[key] = value

    return broken


def real_value(p: ExportedProgram) -> None:
    calls(p, aten.neg.default).meta["val"] = torch.zeros(2, 3)


def number_for_tensor(p: ExportedProgram) -> None:
    calls(p, aten.neg.default).meta["val"] = 3


def nothing_for_tensor(p: ExportedProgram) -> None:
    calls(p, aten.mul.Tensor).meta["val"] = None


def real_input(p: ExportedProgram) -> None:
    node(p, "x").meta["val"] = torch.zeros(2, 3)


def move(node: fx.Node) -> None:
    fake = node.meta["val"]
    elsewhere = fake.fake_type.replace(device=torch.device("meta"))
    node.meta["val"] = new_fake(fake.fake_mode, elsewhere)


def unknown_device(p: ExportedProgram) -> None:
    move(calls(p, aten.neg.default))


def another_device(p: ExportedProgram) -> None:
    move(node(p, "b_cache"))
    move(calls(p, aten.neg.default))


def names_another_device(p: ExportedProgram) -> None:
    mul = calls(p, aten.mul.Tensor)
    with p.graph.inserting_before(mul):
        new = p.graph.call_function(aten.scalar_tensor.default, (2.0,), {"device": "cuda:0"})
    new.meta.update(mul.meta)


def nothing_for_an_input(p: ExportedProgram) -> None:
    node(p, "x").meta["val"] = None


def one_for_two(p: ExportedProgram) -> None:
    top = calls(p, aten.topk.default)
    top.meta["val"] = top.meta["val"][0]


def wrong_item(p: ExportedProgram) -> None:
    node(p, "getitem").args = (calls(p, aten.topk.default), 1)


def no_such_item(p: ExportedProgram) -> None:
    node(p, "getitem").args = (calls(p, aten.topk.default), 2)


def wrong_size(p: ExportedProgram) -> None:
    calls(p, aten.neg.default).meta["val"] = node(p, "c_k").meta["val"]


def impossible_call(p: ExportedProgram) -> None:
    calls(p, aten.topk.default).args = (calls(p, aten.add.Tensor), 7)


# ----------------------------------------------------------------------- signature and state broken


def rename_input(p: ExportedProgram) -> None:
    p.graph_signature.input_specs[4].arg.name = "y"


def drop_input(p: ExportedProgram) -> None:
    p.graph_signature.input_specs.pop()


def input_of_another_kind(p: ExportedProgram) -> None:
    p.graph_signature.input_specs[4].arg = SymIntArgument("x")


def another_constant(p: ExportedProgram) -> None:
    p.graph_signature.input_specs[5].arg = ConstantArgument("n", 4)


def rename_output(p: ExportedProgram) -> None:
    p.graph_signature.output_specs[2].arg = TensorArgument("elsewhere")


def drop_output(p: ExportedProgram) -> None:
    p.graph_signature.output_specs.pop()


def another_result(p: ExportedProgram) -> None:
    p.graph_signature.output_specs[-1].arg = ConstantArgument("", 4)


def result_of_another_kind(p: ExportedProgram) -> None:
    spec = p.graph_signature.output_specs[2]
    spec.arg = SymIntArgument(spec.arg.name)


def inputs_out_of_order(p: ExportedProgram) -> None:
    specs = p.graph_signature.input_specs
    specs[0].kind, specs[4].kind = specs[4].kind, specs[0].kind


def outputs_out_of_order(p: ExportedProgram) -> None:
    specs = p.graph_signature.output_specs
    specs[0].kind, specs[2].kind = specs[2].kind, specs[0].kind


def no_target(p: ExportedProgram) -> None:
    p.graph_signature.input_specs[0].target = None


def user_input_with_target(p: ExportedProgram) -> None:
    p.graph_signature.input_specs[4].target = "x"


def same_target(p: ExportedProgram) -> None:
    p.graph_signature.input_specs[2].target = "mean"


def no_persistence(p: ExportedProgram) -> None:
    p.graph_signature.input_specs[1].persistent = None


def lost_parameter(p: ExportedProgram) -> None:
    del p.state_dict["layer.w"]


def lost_constant(p: ExportedProgram) -> None:
    del p.constants["k"]


def plain_parameter(p: ExportedProgram) -> None:
    p.state_dict["layer.w"] = torch.ones(3)


def constant_number(p: ExportedProgram) -> None:
    p.constants["k"] = 3


def state_of_another_size(p: ExportedProgram) -> None:
    p.state_dict["mean"] = torch.zeros(4)


def write_to_nothing(p: ExportedProgram) -> None:
    p.graph_signature.output_specs[0].target = "median"


def write_twice(p: ExportedProgram) -> None:
    specs, output = p.graph_signature.output_specs, p.graph.output_node()
    specs.insert(
        0, OutputSpec(OutputKind.BUFFER_MUTATION, TensorArgument(specs[0].arg.name), "mean")
    )
    output.args = ((output.args[0][0], *output.args[0]),)  # type: ignore[index,misc]


def write_of_another_type(p: ExportedProgram) -> None:
    first, second = p.graph_signature.output_specs[:2]
    first.arg, second.arg = second.arg, first.arg
    values = list(p.graph.output_node().args[0])  # type: ignore[arg-type]
    p.graph.output_node().args = ((values[1], values[0], *values[2:]),)


def result_with_target(p: ExportedProgram) -> None:
    p.graph_signature.output_specs[2].target = "mean"


def no_root(p: ExportedProgram) -> None:
    p.module_call_graph.clear()


def root_is_not_first(p: ExportedProgram) -> None:
    p.module_call_graph.insert(0, ModuleCallEntry("layer"))


def other_arguments(p: ExportedProgram) -> None:
    p.root_signature.in_spec = _pytree.tree_structure(((1,), {}))


def no_kwargs(p: ExportedProgram) -> None:
    p.root_signature.in_spec = _pytree.tree_structure((1, 2))


def other_results(p: ExportedProgram) -> None:
    p.root_signature.out_spec = _pytree.tree_structure([1])


def unknown_name(p: ExportedProgram) -> None:
    p.root_signature.outputs.append(TensorArgument("nowhere"))


def empty_range(p: ExportedProgram) -> None:
    p.range_constraints["s0"] = (3, 2)


def symbol_without_range(p: ExportedProgram) -> None:
    b = Builder()
    node(p, "n").meta["val"] = wrap(b.env.symbol(hint=3))
    p.graph_signature.input_specs[5].arg = SymIntArgument("n")


BROKEN: list[tuple[Break, str, str, str]] = [
    (call_module, "node kinds", "inner", "its kind is call_module"),
    (call_method, "node kinds", "relu", "its kind is call_method"),
    (no_output, "one output", "", "there is no output node"),
    (two_outputs, "one output", "output_1", "'output' is the output already"),
    (not_last, "one output", "output", "it is not the last node: 'relu_default' is"),
    (bare_output, "outputs", "output", "it does not return a tuple"),
    (late_placeholder, "placeholders first", "late", "a placeholder stands after 'mul_tensor'"),
    (placeholder_arguments, "placeholder form", "x", "it has arguments beside a default value"),
    (placeholder_target, "placeholder form", "x", "its target 3 is not the name of an input"),
    (same_name, "unique names", "x_9", "another node has the same name"),
    (used_before_made, "order", "mul_tensor", "'neg_default' is computed after it, or was erased"),
    (another_graph, "order", "mul_tensor", "'stranger' belongs to another graph"),
    (
        tensor_attribute,
        "get_attr",
        "attribute",
        "attribute is Tensor; only sub-graphs and delegates are read",
    ),
    (missing_attribute, "get_attr", "no_such", "no.such is NoneType; only sub-graphs"),
    (python_function, "operators", "neg_default", "neither an operator with a schema"),
    (packet, "operators", "neg_default", "neither an operator with a schema"),
    (in_place, "functional", "neg_default", "aten.neg_.default writes to its argument 'self'"),
    (out_variant, "functional", "neg_default", "aten.neg.out writes to its argument 'out'"),
    (silent_write, "functional", "neg_default", "with training=True writes to 'running_mean'"),
    (too_many_arguments, "schema", "neg_default", "takes 1 arguments, 2 are given"),
    (unknown_argument, "schema", "neg_default", "does not take 'beta', or takes it twice"),
    (missing_argument, "schema", "mul_tensor", "is called without its argument 'other'"),
    (baked_tensor, "arguments", "mul_tensor", "a tensor f32[3] is baked in; tensors are inputs"),
    (baked_symbol, "arguments", "mul_tensor", "the symbolic number s0 is baked in"),
    (odd_argument, "arguments", "mul_tensor", "is neither a node nor a constant"),
    (drop("val"), "metadata", "neg_default", "meta['val'] is missing"),
    (drop("val", "x"), "metadata", "x", "meta['val'] is missing"),
    (drop("stack_trace"), "metadata", "neg_default", "meta['stack_trace'] is missing"),
    (drop("nn_module_stack"), "metadata", "neg_default", "meta['nn_module_stack'] is missing"),
    (drop("source_fn_stack"), "metadata", "neg_default", "meta['source_fn_stack'] is missing"),
    (put("stack_trace", 3), "metadata", "neg_default", "meta['stack_trace'] is a int"),
    (put("nn_module_stack", []), "metadata", "neg_default", "meta['nn_module_stack'] is a list"),
    (put("source_fn_stack", {}), "metadata", "neg_default", "meta['source_fn_stack'] is a dict"),
    (put("nn_module_stack", {"": 3}), "metadata", "neg_default", "is 3; it must be the path and"),
    (put("source_fn_stack", [3]), "metadata", "neg_default", "has 3; it must be a name and a fun"),
    (nothing_for_tensor, "values", "mul_tensor", "returns a TensorType, meta['val'] has None"),
    (real_input, "values", "x", "holds a Tensor, not a lostwax FakeTensor"),
    (nothing_for_an_input, "inputs", "x", "it is None, the signature says TensorArgument"),
    (another_device, "types", "neg_default", "is on meta, what the operator gives on cpu"),
    (
        unknown_device,
        "devices",
        "neg_default",
        "is on meta, which no input is on and no call names",
    ),
    (names_another_device, "devices", "scalar_tensor_default", "names the device cuda:0, and meta"),
    (real_value, "values", "neg_default", "holds a Tensor, not a lostwax FakeTensor"),
    (number_for_tensor, "values", "neg_default", "returns a TensorType, meta['val'] has 3"),
    (one_for_two, "values", "topk_default", "returns 2 values, meta['val'] is f32[2, 2]"),
    (wrong_item, "values", "getitem", "f32[2, 2], item 1 of 'topk_default' is i64[2, 2]"),
    (no_such_item, "values", "getitem", "'topk_default' has no item 2"),
    (wrong_size, "types", "neg_default", "is float32[3], the operator gives float32[2, 3]"),
    (impossible_call, "types", "topk_default", "aten.topk.default refuses these arguments"),
    (rename_input, "inputs", "x", "the signature calls this input 'y'"),
    (drop_input, "inputs", "", "the graph has 6 placeholders, the signature 5 inputs"),
    (input_of_another_kind, "inputs", "x", "it is f32[2, 3], the signature says SymIntArgument"),
    (another_constant, "inputs", "n", "the signature says ConstantArgument(name='n', value=4)"),
    (rename_output, "outputs", "output", "output 2 is 'add_tensor', the signature calls it 'else"),
    (drop_output, "outputs", "output", "it returns 5 values, the signature has 4 outputs"),
    (another_result, "outputs", "output", "output 4 is 3, the signature says 4"),
    (result_of_another_kind, "outputs", "add_tensor", "it is f32[2, 3], the signature says SymInt"),
    (inputs_out_of_order, "signature order", "b_mean", "a BUFFER stands after a USER_INPUT"),
    (outputs_out_of_order, "signature order", "neg_default", "stands after a LOSS_OUTPUT or USER"),
    (no_target, "state", "p_layer_w", "a PARAMETER has no target"),
    (user_input_with_target, "state", "x", "a USER_INPUT has the target 'x'"),
    (same_target, "state", "b_cache", "another input has the target 'mean'"),
    (no_persistence, "state", "b_mean", "it is not said whether this buffer is persistent"),
    (lost_parameter, "state", "p_layer_w", "its target 'layer.w' is not in state_dict"),
    (lost_constant, "state", "c_k", "its target 'k' is not in constants"),
    (plain_parameter, "state", "p_layer_w", "state_dict['layer.w'] is not an nn.Parameter"),
    (constant_number, "state", "c_k", "constants['k'] is not a tensor"),
    (state_of_another_size, "state types", "b_mean", "it is f32[3], 'mean' is f32[4]"),
    (write_to_nothing, "writes", "mean_dim", "there is no 'median' among the inputs"),
    (write_twice, "writes", "mean_dim", "'mean' is written twice"),
    (write_of_another_type, "writes", "neg_default", "is written to 'b_mean', which is f32[3]"),
    (result_with_target, "writes", "add_tensor", "a USER_OUTPUT has the target 'mean'"),
    (no_root, "calling convention", "", "module_call_graph does not begin with the root"),
    (root_is_not_first, "calling convention", "", "does not begin with the root"),
    (other_arguments, "calling convention", "", "in_spec has 1 leaves, the signature 2 user inp"),
    (no_kwargs, "calling convention", "", "in_spec is not a tuple of arguments and a dict"),
    (other_results, "calling convention", "", "out_spec has 1 leaves, the signature 3 user outp"),
    (unknown_name, "calling convention", "nowhere", "the call of '' speaks of it"),
    (empty_range, "ranges", "", "the range of s0 is empty: 3 to 2"),
    (symbol_without_range, "ranges", "n", "its symbol s0 has no range"),
]


@pytest.mark.parametrize(("broken", "rule", "name", "text"), BROKEN)
def test_a_broken_rule_is_named_with_its_node(broken, rule, name, text):
    p = whole()
    broken(p)
    violations = verify(p)
    assert violations
    first = violations[0]
    assert (first.rule, first.node) == (rule, name)
    assert text in first.text
    with pytest.raises(VerificationError) as error:
        p.validate()
    assert error.value.violations == tuple(violations)


def test_every_rule_is_broken_above():
    # test_control.py breaks these, and tests/backends/test_dialect.py that of delegates.
    of_calls = {rule for rule, _, _ in (*CONTROL_RULES, DELEGATE_RULE)}
    assert {rule.name for rule in RULES} == {rule for _, rule, _, _ in BROKEN} | of_calls


def test_the_text_of_an_error_shows_the_users_line():
    p = whole()
    in_place(p)
    with pytest.raises(VerificationError) as error:
        p.validate()
    assert error.value.args[0] == (
        "not a valid program:\n"
        "  node 'neg_default' breaks the rule 'functional': aten.neg_.default writes to its "
        "argument 'self'\n"
        "    at /home/me/model.py:12 in forward, code: y = x + 1"
    )


def test_sub_graphs_are_checked_too():
    p, inner = with_subgraph()
    assert verify(p) == []
    next(n for n in inner.graph.nodes if n.op == "call_function").target = aten.sin_.default
    (violation,) = verify(p)
    assert violation.rule == "functional"
    assert violation.node == "true_graph.sin_default"


def test_a_dialect_can_add_a_rule():
    from lostwax.ir.rules.verify import GraphRule

    def no_neg(module: fx.GraphModule) -> Any:
        for n in module.graph.nodes:
            if n.target is aten.neg.default:
                yield n, "neg is not in this dialect"

    (violation,) = verify(whole(), [*RULES, GraphRule("dialect", "no neg", no_neg)])
    assert str(violation).startswith("node 'neg_default' breaks the rule 'dialect': neg is not")


def test_dynamic_programs_are_checked_without_guards():
    b = Builder()
    s = b.env.symbol(hint=4)
    x = b.input("x", torch.zeros(4, 3), sizes=(wrap(s), 3))
    n = b.call(aten.sym_size.int, x, 0)
    y = b.call(aten.view.default, x, [n, 3, 1])
    p = b.program((y, n), ranges={"s0": (0, None)})
    before = len(b.env.guards)
    assert verify(p) == []
    assert len(b.env.guards) == before
    assert p.graph_signature.input_specs[0].kind is InputKind.USER_INPUT
