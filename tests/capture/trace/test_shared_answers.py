"""What one capture found out of symbolic sizes, the next one has; guards are asked in each."""

import pytest
import torch
from torch import nn

import lostwax
from lostwax import Dim
from lostwax.capture.trace import single_step_composites
from lostwax.fake import rule_cache
from lostwax.ir.trace import log


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x))).flatten(1)


class Positions(nn.Module):
    """Its limit is a guard."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(16, 4))

    def forward(self, x):
        return x.transpose(1, 2).transpose(1, 2) + self.table[: x.size(1)]


def told(program):
    nodes = [(n.name, str(n.target), str(n.args), str(n.meta["val"])) for n in program.graph.nodes]
    return nodes, str(program.range_constraints), [str(g) for g in program.guards]


def exports(module, x, dims, times=3):
    return [lostwax.export(module, (x,), dynamic_shapes=(dims,)) for _ in range(times)]


def test_the_next_capture_asks_no_rule_and_gives_the_same(monkeypatch):
    module, x = Convolutions().eval(), torch.randn(2, 3, 8, 8)
    first, *_ = exports(module, x, {0: Dim("batch")})
    asked = []
    ask, observed = rule_cache.ask_rule, single_step_composites._call_and_remember
    monkeypatch.setattr(rule_cache, "ask_rule", lambda *a: asked.append(a) or ask(*a))
    monkeypatch.setattr(
        single_step_composites, "_call_and_remember", lambda *a: asked.append(a) or observed(*a)
    )
    (again,) = exports(module, x, {0: Dim("batch")}, times=1)
    assert not asked
    assert told(again) == told(first)
    more = torch.randn(5, 3, 8, 8)
    torch.testing.assert_close(again.module()(more), module(more))


def test_guards_are_asked_in_each_capture():
    module, x = Positions(), torch.randn(2, 6, 4)
    first, *others = exports(module, x, {0: Dim("batch"), 1: Dim.AUTO})
    assert [str(g.cond) for g in first.guards] == ["s0 <= 16"]
    for program in others:
        assert told(program) == told(first)
        with pytest.raises(lostwax.errors.LostwaxError, match="16"):
            program.module()(torch.randn(2, 17, 4))


def test_a_declared_limit_that_spares_a_guard_spares_no_other_capture_its_own():
    module, x = Positions(), torch.randn(2, 6, 4)
    (free,) = exports(module, x, {1: Dim("length", max=16)}, times=1)
    assert not free.guards
    (bound,) = exports(module, x, {1: Dim.AUTO}, times=1)
    assert [str(g.cond) for g in bound.guards] == ["s0 <= 16"]
    with pytest.raises(lostwax.errors.LostwaxError, match="length"):
        exports(module, x, {1: Dim("length", max=32)}, times=1)


def test_an_example_of_another_size_gets_answers_of_its_own():
    module = Convolutions().eval()
    for batch in (2, 1, 0, 3):
        (program,) = exports(module, torch.randn(batch, 3, 8, 8), {0: Dim("batch")}, times=1)
        more = torch.randn(4, 3, 8, 8)
        torch.testing.assert_close(program.module()(more), module(more))


def test_programs_keep_symbols_of_their_own():
    module, x = Convolutions().eval(), torch.randn(2, 3, 8, 8)
    a, b = exports(module, x, {0: Dim("batch")}, times=2)
    sizes = [next(iter(reversed(p.graph.nodes))).meta["val"][0].shape[0] for p in (a, b)]
    assert sizes[0].node.shape_env is not sizes[1].node.shape_env


def test_the_list_without_numbers_is_one_object_too():
    """Lists are told by their identity, which another one in its place would leave behind."""
    assert log.share_list(()) is log.share_list(()) is not None
    program = lostwax.export(lambda x: x.new_zeros([]) + x.sum([]), (torch.randn(3),))
    empty = [a for n in program.graph.nodes for a in n.args if a == []]
    assert all(a is log.share_list(()) for a in empty)
