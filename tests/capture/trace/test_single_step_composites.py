"""Composite operators that amount to one other: what is remembered of the first call is right for
the next."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from lostwax import Dim


def calls(program: Any, target: Any) -> list[Any]:
    return [n for n in program.graph.nodes if n.target is target]


LAYERS = {
    "conv": (lambda: nn.Conv2d(3, 3, 3, padding=1), (2, 3, 5, 5), torch.ops.aten.convolution),
    "conv without bias": (
        lambda: nn.Conv2d(3, 3, 1, bias=False, groups=3),
        (2, 3, 5, 5),
        torch.ops.aten.convolution,
    ),
    "batch norm": (
        lambda: nn.BatchNorm2d(3),
        (2, 3, 5, 5),
        torch.ops.aten._native_batch_norm_legit_no_training,
    ),
    "layer norm": (lambda: nn.LayerNorm(5), (2, 5), torch.ops.aten.native_layer_norm),
    "group norm": (lambda: nn.GroupNorm(1, 3), (2, 3, 5), torch.ops.aten.native_group_norm),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_second_layer_is_recorded_as_the_first(name: str) -> None:
    make, size, packet = LAYERS[name]
    model, x = nn.Sequential(make(), make(), make()).eval(), torch.randn(size)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    program = lostwax.export(model, (x,))
    program.validate()
    first, *others = calls(program, packet.default)
    assert len(others) == 2
    for i, node in enumerate(others, 1):
        plain = [a for a in node.args if not isinstance(a, torch.fx.Node)]
        assert plain == [a for a in first.args if not isinstance(a, torch.fx.Node)]
        assert str(node.meta["val"]) == str(first.meta["val"])
        assert list(node.meta["nn_module_stack"]) == ["", str(i)]
        assert node.meta["source_fn_stack"] == [(str(i), type(model[i]))]
        assert all(node in a.users for a in node.all_input_nodes)
    torch.testing.assert_close(program.module()(x), model(x))


def test_functions_on_one_line_are_told_apart_by_their_lines() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x = nn.functional.conv1d(x, w)
        return nn.functional.conv1d(x, w)

    program = lostwax.export(f, (torch.randn(1, 2, 8), torch.randn(2, 2, 3)))
    first, second = calls(program, torch.ops.aten.convolution.default)
    assert "x = nn.functional.conv1d(x, w)" in first.meta["stack_trace"]
    assert "return nn.functional.conv1d(x, w)" in second.meta["stack_trace"]


def test_writes_are_not_forgotten_with_the_second_layer() -> None:
    model, x = nn.Sequential(*[nn.BatchNorm1d(3) for _ in range(3)]), torch.randn(4, 3)
    exported, eager = lostwax.export(model, (x,)).module(), copy.deepcopy(model)
    torch.testing.assert_close(exported(x), eager(x))
    for name, buffer in eager.named_buffers():
        torch.testing.assert_close(dict(exported.named_buffers())[name], buffer)


def test_one_tensor_in_two_places_says_nothing_of_two_tensors() -> None:
    def normed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return nn.functional.layer_norm(x, (7,), weight, bias)

    x, weight, bias = torch.randn(2, 7), torch.randn(7), torch.randn(7)
    tied = lostwax.export(lambda x, w: normed(x, w, w), (x, weight))
    free = lostwax.export(normed, (x, weight, bias))
    torch.testing.assert_close(tied.module()(x, weight), normed(x, weight, weight))
    torch.testing.assert_close(free.module()(x, weight, bias), normed(x, weight, bias))
    again = lostwax.export(lambda x, w: normed(x, w, w), (x, weight))
    torch.testing.assert_close(again.module()(x, weight), normed(x, weight, weight))


def test_a_kept_operator_stays_whole() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3)), torch.randn(1, 3, 8, 8)
    lostwax.export(model, (x,))
    program = lostwax.export(model, (x,), keep=[torch.ops.aten.conv2d.default])
    assert len(calls(program, torch.ops.aten.conv2d.default)) == 2
    assert not calls(program, torch.ops.aten.convolution.default)


def test_sizes_that_vary() -> None:
    model, x = nn.Sequential(*[nn.Conv2d(3, 3, 3) for _ in range(3)]), torch.randn(2, 3, 12, 9)
    spec = ({0: Dim("batch"), 2: Dim("height", min=7)},)
    exported = lostwax.export(model, (x,), dynamic_shapes=spec).module()
    for batch, height in ((1, 7), (5, 20)):
        y = torch.randn(batch, 3, height, 9)
        torch.testing.assert_close(exported(y), model(y))
    text = r"is 6, but the program holds for 7 <= input.shape\[2\]"
    with pytest.raises(lostwax.errors.LostwaxError, match=text):
        exported(torch.randn(2, 3, 6, 9))


def test_gradients_of_frozen_layers() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.free = nn.Conv1d(2, 2, 1), nn.Conv1d(2, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                x = self.frozen(x)
            return self.free(self.free(x)) + x

    model, x = Model(), torch.randn(1, 2, 4, requires_grad=True)
    exported = lostwax.export(model, (x,)).module()
    for run in (model, exported):
        run(x).sum().backward()
    assert x.grad is None
    assert exported.frozen.weight.grad is None
    torch.testing.assert_close(exported.free.weight.grad, model.free.weight.grad)
