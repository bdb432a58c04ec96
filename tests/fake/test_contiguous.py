"""`contiguous()` of symbolic sizes: without C++'s questions, and with the answer that C++ gives."""

import itertools

import pytest
import torch

from lostwax.fake import FakeTensorMode, rule_cache
from lostwax.fake.symbolic.layout import is_never_contiguous
from lostwax.fake.symbolic.node import BoolNode, wrap
from lostwax.sym import ShapeEnv, eq

EXAMPLES = [(2, 3, 4), (3, 3, 3), (2, 1, 3), (1, 2, 2), (4, 2, 0)]


def permuted(example, order, declared):
    """A permuted tensor of symbolic sizes."""
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    sizes = tuple(wrap(env.symbol(hint=s, declared=declared)) for s in example)
    x = mode.from_tensor(torch.randn(example), sizes=sizes).permute(order)
    rule_cache._find_mark(mode, x.fake_type)
    return env, mode, x


@pytest.mark.parametrize("declared", [None, "d"])
@pytest.mark.parametrize("example", EXAMPLES)
def test_it_is_what_cpp_says(example, declared):
    for order in itertools.permutations(range(3)):
        said = []
        for ask in (torch.Tensor.contiguous, lambda x: x.contiguous()):
            env, mode, x = permuted(example, order, declared)
            with mode, torch.no_grad():
                out = ask(x)
            guards = [str(g.cond) for g in env.guards]
            said.append((out is x, str(out.fake_type), guards))
        assert said[0] == said[1], order


def test_cpp_asks_nothing_where_the_answer_is_plain(monkeypatch):
    _, mode, x = permuted((2, 3, 4), (0, 2, 1), None)
    with mode, torch.no_grad():
        for question in ("guard_or_false", "guard_or_true", "guard_bool"):
            monkeypatch.setattr(BoolNode, question, None)
        copy = x.contiguous()
        assert copy is not x
        assert copy.contiguous() is copy


def test_what_only_the_example_says_is_left_to_cpp():
    env = ShapeEnv()
    n, step = env.symbol(hint=3), env.symbol(hint=3)
    assert is_never_contiguous((4, n), (1, 4))
    assert not is_never_contiguous((4, n), (step, 1))  # perhaps, at the price of a guard
    assert not is_never_contiguous((n, n, n), (1, step, 1))
    assert is_never_contiguous((n, n, n), (1, n, 1))
    env.learn(eq(n, step))
    assert is_never_contiguous((n, n, n), (1, step, 1))
    assert not is_never_contiguous((4, env.unbacked()), (1, 4))
