"""The module of a program with control flow, beside the original with Python's own `if` and loops:
values and gradients on inputs that take every path."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn

import lostwax
import lostwax.passes
from lostwax.ir.graph.copying import copy_module
from tests.control_programs import (
    Unary,
    both_programs,
    cases,
    cond,
    plain_python,
    program,
    run_reference,
)
from tests.ir.build import Builder

aten = torch.ops.aten
NAMES = list(cases())


def all_inputs(name):
    return (cases()[name].args, *cases()[name].others)


@pytest.mark.parametrize("name", NAMES)
def test_every_path_gives_what_the_original_gives(name):
    for p in both_programs(name):
        for module in (p.module(), p.run_decompositions().module()):
            for args in all_inputs(name):
                torch.testing.assert_close(module(*args), run_reference(name, args))


def gradients(module, args, context):
    given = [
        a.clone().requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a
        for a in args
    ]
    module.zero_grad()
    with context:
        out = module(*given)
    leaves = [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]
    sum(t.cos().sum() for t in leaves if t.requires_grad).backward()
    tensors = [a for a in given if isinstance(a, torch.Tensor)]
    return [t.grad for t in (*tensors, *module.parameters())]


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_the_original(name):
    for p in (*both_programs(name), program(name).run_decompositions()):
        module = p.module()
        for args in all_inputs(name):
            wanted = gradients(cases()[name].module, args, plain_python())
            torch.testing.assert_close(gradients(module, args, nullcontext()), wanted)


@pytest.mark.parametrize("name", ["cond closure", "map", "scan closure", "modules"])
def test_a_module_in_another_dtype(name):
    module, original = program(name).module().double(), copy.deepcopy(cases()[name].module).double()
    for args in all_inputs(name):
        given = [a.double() for a in args]
        with plain_python():
            wanted = original(*given)
        torch.testing.assert_close(module(*given), wanted)


AGAIN = ["cond closure", "cond unbacked", "while closure", "map", "scan", "associative"]


@pytest.mark.parametrize("name", AGAIN)
def test_we_capture_the_control_flow_of_the_module(name):
    case = cases()[name]
    again = lostwax.export(program(name).module(), case.args, dynamic_shapes=case.dynamic)
    assert operators(again) == operators(program(name)) != []
    for args in all_inputs(name):
        torch.testing.assert_close(again.module()(*args), run_reference(name, args))


def operators(p):
    found = (n.target for n in p.graph.nodes)
    return [t.name() for t in found if isinstance(t, torch._ops.HigherOrderOperator)]


@pytest.mark.parametrize("name", AGAIN)
def test_torch_captures_the_control_flow_of_the_module(name):
    case = cases()[name]
    again = torch.export.export(program(name).module(), case.args, dynamic_shapes=case.dynamic)
    assert operators(again) == operators(program(name)) != []
    for args in all_inputs(name):
        torch.testing.assert_close(again.module()(*args), run_reference(name, args))


@pytest.mark.parametrize("name", ["cond closure"])
def test_torch_compiles_the_module(name):
    compiled = torch.compile(program(name).module(), backend="eager")
    for args in all_inputs(name):
        torch.testing.assert_close(compiled(*args), run_reference(name, args))


def test_a_predicate_may_be_batched():
    module = program("cond").module()
    rows = torch.stack([cases()["cond"].args[0], cases()["cond"].others[0][0]])
    wanted = torch.stack([module(row) for row in rows])
    torch.testing.assert_close(torch.vmap(module)(rows), wanted)


@pytest.mark.parametrize("name", ["cond nested", "map", "scan closure", "associative pair"])
def test_torch_func_differentiates_the_module(name):
    module, args = program(name).module(), cases()[name].args

    def loss(*given):
        return sum(t.cos().sum() for t in pytree.tree_leaves(module(*given)))

    wanted = gradients(cases()[name].module, args, plain_python())[: len(args)]
    torch.testing.assert_close(list(torch.func.grad(loss, (0, 1))(*args)), wanted)


def test_a_mode_sees_what_is_computed():
    from torch.utils.flop_counter import FlopCounterMode

    module = program("cond closure").module()
    (x,), (other,) = cases()["cond closure"].args, cases()["cond closure"].others[0]
    counts = []
    for given in (x, other):
        with FlopCounterMode(display=False) as counter:
            module(given)
        counts.append(counter.get_total_flops())
    assert counts == [2 * 5 * 3 * 3, 0]


def test_fakes_go_through_loops_of_known_length():
    with lostwax.FakeTensorMode():
        found = program("scan").module()(torch.zeros(3), torch.ones(5, 3))
    assert [tuple(t.shape) for t in found] == [(3,), (5, 3)]


def test_make_fx_sees_the_operator():
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(program("cond").module(), tracing_mode="fake")(*cases()["cond"].args).graph
    assert "cond" in [str(n.target) for n in graph.nodes]


def test_a_loop_of_many_steps():
    name = "while"
    x, y = torch.tensor(1000), torch.ones(2, 3) * 1e-30
    module = program(name).module()
    torch.testing.assert_close(module(x, y), run_reference(name, (x, y)))


def test_nothing_to_go_over():
    module = program("map pair").module(check_guards=False)
    with pytest.raises(Exception, match="expected f32"):
        module(torch.ones(0, 3), torch.ones(3))


def identity_branch():
    """A program whose branch returns its operand, which the program then writes."""
    b = Builder()
    state = b.buffer("state", torch.zeros(3))
    flag = b.input("flag", torch.tensor(True))
    x = b.input("x", torch.ones(3))
    for name, target in (("same", None), ("other", aten.neg.default)):
        inner = torch.fx.Graph()
        a = inner.placeholder("a")
        a.meta["val"] = state.meta["val"]
        result = a
        if target is not None:
            result = inner.call_function(target, (a,))
            result.meta = {
                "stack_trace": "",
                "nn_module_stack": {},
                "source_fn_stack": [],
                "val": b.mode.evaluate(target, (a.meta["val"],), {}),
            }
        inner.output((result,))
        b.root.add_module(name, torch.fx.GraphModule(nn.Module(), inner))
    graphs = [b.graph.get_attr(name) for name in ("same", "other")]
    call = b.graph.call_function(torch.ops.higher_order.cond, (flag, *graphs, [state]))
    call.meta = {
        "stack_trace": "",
        "nn_module_stack": {},
        "source_fn_stack": [],
        "val": (state.meta["val"],),
    }
    result = b.item(call, 0)
    b.write(state, b.call(aten.add.Tensor, state, x))
    return b.program((result,))


def test_what_a_branch_returns_has_memory_of_its_own():
    module = identity_branch().module()
    (before,) = module(torch.tensor(True), torch.ones(3))
    assert before.tolist() == [0.0, 0.0, 0.0]
    assert module.state.tolist() == [1.0, 1.0, 1.0]


def test_one_sub_graph_may_be_used_twice():
    whole = program("cond twice")
    p = replace(whole, graph_module=copy_module(whole.graph_module)[0])
    second = next(n for n in p.graph.nodes if n.name == "cond_1")
    second.args = (*second.args[:2], second.args[1], second.args[3])
    p.graph_module.recompile()
    p.validate()
    for q in (p, p.run_decompositions()):
        for args in all_inputs("cond twice"):
            y = cases()["cond twice"].module.l(args[0]) if args[0].sum() > 0 else args[0] + 1
            torch.testing.assert_close(q.module()(*args), y.exp() + y.exp())


def test_other_strides_of_an_operand():
    """A view in a branch, which the strides of another input do not allow."""

    def branch(m, x):
        return cond(x.sum() > 0, lambda x: x.view(-1) + 1, lambda x: x.view(-1) * 2, (x,))

    module = lostwax.export(Unary(branch), (torch.ones(3, 4),)).module()
    turned = torch.arange(12.0).view(4, 3).t()
    torch.testing.assert_close(module(turned), turned.reshape(-1) + 1)
    torch.testing.assert_close(module(-turned), turned.reshape(-1) * -2)


def test_random_numbers_are_drawn_by_the_branch_that_runs():
    def branch(m, x):
        return cond(x.sum() > 0, lambda x: x + torch.rand(3), lambda x: x.clone(), (x,))

    p = lostwax.export(Unary(branch), (torch.ones(3),))
    for module in (p.module(), lostwax.passes.DeadCode()(p).module()):
        for x in (torch.ones(3), -torch.ones(3)):
            torch.manual_seed(0)
            found, after = module(x), torch.rand(1)
            torch.manual_seed(0)
            wanted = x + torch.rand(3) if x.sum() > 0 else x
            torch.testing.assert_close((found, after), (wanted, torch.rand(1)))


def test_the_program_itself_keeps_its_operators():
    p = program("cond closure")
    text = str(p)
    p.module()(*cases()["cond closure"].args)
    assert str(p) == text
