"""The short ways that make an export fast lead to the same place as the long ones."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import nn
from torch.fx.immutable_collections import immutable_dict, immutable_list

import lostwax
from lostwax.fake import FakeTensorMode

aten = torch.ops.aten


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.conv(x)).relu_()
        return torch.cat([y, y + 1], dim=1).sum((2, 3))


@pytest.fixture(scope="module")
def program() -> lostwax.ExportedProgram:
    return lostwax.export(Net().eval(), (torch.randn(1, 3, 8, 8),))


def test_a_graph_is_as_if_fx_had_made_it(program):
    graph = program.graph
    graph.lint()
    again = copy.deepcopy(graph)
    for ours, theirs in zip(graph.nodes, again.nodes, strict=True):
        assert str(ours.args) == str(theirs.args)
        assert [type(a) for a in ours.args] == [type(a) for a in theirs.args]
        assert type(ours.kwargs) is immutable_dict
        assert [n.name for n in ours.users] == [n.name for n in theirs.users]
        assert [n.name for n in ours.all_input_nodes] == [n.name for n in theirs.all_input_nodes]
    assert len(graph.nodes) == len(list(graph.nodes))
    (conv,) = graph.find_nodes(op="call_function", target=aten.convolution.default)
    assert type(conv.args[3]) is immutable_list
    assert len(graph.find_nodes(op="placeholder")) == 8


def test_new_nodes_get_names_that_are_free(program):
    graph = program.graph
    names = {node.name for node in graph.nodes}
    output = next(iter(reversed(graph.nodes)))
    with graph.inserting_before(output):
        new = graph.call_function(aten.add.Tensor, (output.args[0][0], 1))
    assert new.name not in names
    graph.erase_node(new)


def test_calls_are_noted_and_the_note_is_taken_off():
    net = Net().eval()
    net.conv._compiled_call_impl = mine = net.conv._call_impl  # as after net.conv.compile()
    program = lostwax.export(net, (torch.randn(1, 3, 8, 8),))
    assert net.conv.__dict__["_compiled_call_impl"] is mine
    assert "_compiled_call_impl" not in net.norm.__dict__
    (conv,) = program.graph.find_nodes(op="call_function", target=aten.convolution.default)
    assert list(conv.meta["nn_module_stack"]) == ["", "conv"]
    with pytest.raises(RuntimeError):
        lostwax.export(net, (torch.randn(1, 4, 8, 8),))
    assert net.conv.__dict__["_compiled_call_impl"] is mine
    assert "_compiled_call_impl" not in net.norm.__dict__


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(enabled):
    threshold, frozen = gc.get_threshold(), gc.get_freeze_count()
    try:
        gc.enable() if enabled else gc.disable()
        lostwax.export(lambda x: x + 1, (torch.ones(2),))
        assert gc.isenabled() is enabled
        assert gc.get_threshold() == threshold
        assert frozen - 100 <= gc.get_freeze_count() <= frozen  # of the frozen some may have died
    finally:
        gc.enable()


def test_answers_are_kept_apart():
    mode = FakeTensorMode()
    x = mode.from_tensor(torch.ones(3, dtype=torch.int64))
    with mode:
        for _ in range(2):
            assert [(x + n).dtype for n in (1, 1.0, True)] == [
                torch.int64, torch.float32, torch.int64,
            ]  # fmt: skip
            torch.set_default_dtype(torch.float64)
            try:
                assert (x / 2).dtype is torch.float64
            finally:
                torch.set_default_dtype(torch.float32)
            assert (x / 2).dtype is torch.float32
        a, b = x.view(3, 1), x.view(1, 3)
        assert (a.t().shape, b.t().shape) == ((1, 3), (3, 1))


@pytest.mark.parametrize(
    "options",
    [
        {"bias": False},
        {"num_layers": 2, "bidirectional": True, "batch_first": True},
        {"num_layers": 2, "proj_size": 3, "dropout": 0.5},
    ],
    ids=str,
)
def test_an_unrolled_lstm_computes_what_eager_does(options):
    lstm, x = nn.LSTM(5, 7, **options).eval(), torch.randn(4, 3, 5)
    program = lostwax.export(lstm, (x,))
    program.validate()
    module = program.module()
    for a, b in zip(_flat(lstm(x)), _flat(module(x)), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)
        assert b.stride() == a.stride()
    wanted, found = _gradients(lstm, x), _gradients(module, x)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


def _flat(result):
    out, (hidden, cell) = result
    return out, hidden, cell


def _gradients(module, x):
    out, hidden, cell = _flat(module(x))
    loss = out.square().sum() + hidden.sum() + cell.sum()
    return dict(
        zip(
            dict(module.named_parameters()),
            torch.autograd.grad(loss, module.parameters()),
            strict=True,
        )
    )
