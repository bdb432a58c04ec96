"""Indexing beside function modes, which see it first, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import lostwax
from lostwax import Dim


class KeepIndices(TorchFunctionMode):
    """As torch's own mode for functions of a single place."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__ and isinstance(args[1], tuple):
            return torch.ops.aten.index(args[0], list(args[1]))
        return func(*args, **(kwargs or {}))


class Doubles(TorchFunctionMode):
    """What is written is written twice; what is read is read by another mode, too."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__setitem__:
            return func(args[0], args[1], args[2] * 2)
        return func(*args, **(kwargs or {}))


def same_blocks(ids: Tensor) -> Tensor:
    """A mask of attention, made of a function of single places."""

    def is_same(batch: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return ids[batch, query] == ids[batch, key]

    function: Callable[..., Tensor] = is_same
    for dims in ((None, None, 0), (None, 0, None), (0, None, None)):
        function = torch.vmap(function, in_dims=dims)
    batch, length = ids.shape
    with KeepIndices():
        return function(torch.arange(batch), torch.arange(length), torch.arange(length))


def under_vmap(x: Tensor) -> Tensor:
    """An index is many numbers there, also where no mode is on."""
    return torch.vmap(lambda place, row: x[place] + row[place])(x[:, 0] * 0 + 1, x)


def with_sizes(x: Tensor) -> Tensor:
    y = x * 1
    with Doubles(), KeepIndices(), torch.device("cpu"):
        y[x.shape[0] - 1] = x[0]
        y[:, 1:2] = 3
        return y[: x.shape[0] // 2] + x[x.shape[0] - 1] + torch.ones(1)


@pytest.mark.parametrize("function", [same_blocks, under_vmap, with_sizes])
def test_modes_see_it_first(function: Callable[[Tensor], Tensor]) -> None:
    shapes = ({0: Dim("batch", min=2)},)
    program = lostwax.export(function, (torch.randint(3, (4, 5)),), dynamic_shapes=shapes)
    for batch in (4, 2, 7):
        x = torch.randint(3, (batch, 5))
        assert torch.equal(program.module()(x), function(x))


def test_modes_are_as_before() -> None:
    def count(x: Tensor) -> Tensor:
        with Doubles() as mode:
            y = x[0]
            assert torch._C._len_torch_function_stack() == 1
            assert torch._C._get_function_stack_at(0) is mode
        return y

    program = lostwax.export(count, (torch.ones(2),))
    assert [n.name for n in program.graph.nodes] == ["x", "select", "output"]
