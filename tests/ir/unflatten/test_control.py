"""Unflattened programs with control flow: each sub-graph stays with the module whose `forward` has
it, and is given that module's parameters."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lostwax import unflatten
from lostwax.interop import from_torch
from tests.control_programs import Unary, cases, cond, plain_python, program, run_reference


@pytest.mark.parametrize("name", cases())
def test_every_path_gives_what_the_original_gives(name):
    for p in (program(name), program(name).run_decompositions()):
        module = unflatten(p)
        for args in (cases()[name].args, *cases()[name].others):
            torch.testing.assert_close(module(*args), run_reference(name, args))


def test_sub_graphs_stay_with_their_modules():
    module = unflatten(program("modules"))
    x = cases()["modules"].args[0]
    for part, original in ((module.first, "first"), (module.second, "second")):
        graphs = [n for n in part.graph.nodes if n.op == "get_attr"]
        assert {n.target for n in graphs} >= {"linear.weight", "linear.bias"}
        assert sum(isinstance(m, torch.fx.GraphModule) for m in part.children()) == 2
        with plain_python():
            wanted = getattr(cases()["modules"].module, original)(x)
        torch.testing.assert_close(part(x), wanted)
    assert not any(isinstance(m, torch.fx.GraphModule) for m in module.children())


def test_a_part_can_be_replaced():
    module = unflatten(program("modules"))
    module.first = nn.Identity()
    x = cases()["modules"].args[0]
    with plain_python():
        wanted = cases()["modules"].module.second(x) + 1
    torch.testing.assert_close(module(x), wanted)


def test_gradients_reach_the_parameters():
    module, original = unflatten(program("modules")), copy.deepcopy(cases()["modules"].module)
    for args in (cases()["modules"].args, *cases()["modules"].others):
        module.zero_grad()
        original.zero_grad()
        (x,) = (a.clone().requires_grad_() for a in args)
        module(x).sum().backward()
        with plain_python():
            original(x).sum().backward()
        found = {name: p.grad for name, p in module.named_parameters()}
        torch.testing.assert_close(found, {n: p.grad for n, p in original.named_parameters()})


def test_another_dtype():
    module = unflatten(program("scan closure")).double()
    original = copy.deepcopy(cases()["scan closure"].module).double()
    args = [a.double() for a in cases()["scan closure"].args]
    with plain_python():
        wanted = original(*args)
    torch.testing.assert_close(module(*args), wanted)


def test_a_sub_graph_has_a_name_that_is_free():
    def branch(m, x):
        return cond(x.sum() > 0, lambda x: m.true_graph_0(x), lambda x: x + 1, (x,))

    original = Unary(branch, true_graph_0=nn.Linear(3, 3))
    x = torch.ones(2, 3)
    module = unflatten(from_torch(torch.export.export(original, (x,))))
    for given in (x, -x):
        with plain_python():
            torch.testing.assert_close(module(given), original(given))
    assert module.state_dict().keys() == original.state_dict().keys()


def test_the_text_shows_the_sub_graphs():
    text = unflatten(program("modules")).print_readable(print_output=False)
    assert text.count(" = torch.ops.higher_order.cond(gt") == 2
    assert text.count("        class true_graph_0(torch.nn.Module):") == 1
    assert text.count("        class true_graph_1(torch.nn.Module):") == 1
