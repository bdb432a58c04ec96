"""State that is written in part: in its own memory where nothing reads the old value afterwards."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from tests.pte.runtime import Runtime, assert_close


class Cache(nn.Module):
    """Writes a part of a cache of eight rows; `write` says how."""

    def __init__(self, write: Callable[..., Any]) -> None:
        super().__init__()
        self.register_buffer("keys", torch.arange(48.0).view(2, 8, 3))
        self.write = write

    def forward(self, x: Any, at: Any) -> Any:
        return self.write(self, x, at)


def copy_at_index(cache: Any, x: Any, at: Any) -> Any:
    cache.keys.index_copy_(1, at, x)
    return cache.keys.sum(1)


def set_at_index(cache: Any, x: Any, at: Any) -> Any:
    cache.keys[:, at - 4] = x  # also from the end
    return cache.keys * 2


def set_slice(cache: Any, x: Any, at: Any) -> Any:
    cache.keys[:, 2:6:2] = x
    return cache.keys.transpose(1, 2) + 1


def set_row(cache: Any, x: Any, at: Any) -> Any:
    cache.keys[:, -3] = x[:, 0]
    return cache.keys.mean(1)


def set_slice_from_data(cache: Any, x: Any, at: Any) -> Any:
    n = at[0].item()
    torch._check(n >= 0)
    torch._check(n <= 6)
    cache.keys.narrow(1, n, 2).copy_(x)
    return cache.keys.sum(1)


def write_twice(cache: Any, x: Any, at: Any) -> Any:
    before = cache.keys[:, 1:2] * 1
    cache.keys.index_copy_(1, at, x)
    between = cache.keys.sum(1)
    cache.keys[:, 0] = before[:, 0] + 1
    return before, between, cache.keys * 1


IN_PLACE = {
    copy_at_index: 1,
    set_at_index: 1,
    set_slice: 1,
    set_row: 1,
    set_slice_from_data: 1,
    write_twice: 2,
}


def read_old_after(cache: Any, x: Any, at: Any) -> Any:
    old = cache.keys.clone()
    cache.keys.index_copy_(1, at, x)
    return old + cache.keys


def read_a_view_of_the_old(cache: Any, x: Any, at: Any) -> Any:
    old = cache.keys.clone().transpose(1, 2).split(1, 2)[1]
    cache.keys.index_copy_(1, at, x)
    return old + cache.keys.sum()


def write_itself(cache: Any, x: Any, at: Any) -> Any:
    cache.keys[:, 0:4] = cache.keys.clone()[:, 2:6]
    return cache.keys * 1


def write_in_a_branch(cache: Any, x: Any, at: Any) -> Any:
    def put(keys: Any, x: Any, at: Any) -> Any:
        return keys.index_copy(1, at, x)

    made = torch.cond(at.sum() > 3, put, lambda keys, x, at: keys + 1, (cache.keys, x, at))
    old = cache.keys * 1
    cache.keys.add_(1)
    return made, old


def expand_values(cache: Any, x: Any, at: Any) -> Any:
    cache.keys[:, at] = x[:, :1] + 1
    return cache.keys * 1


def add_at_index(cache: Any, x: Any, at: Any) -> Any:
    cache.keys.index_add_(1, at, x)
    return cache.keys * 1


NOT = dict.fromkeys(
    (read_old_after, read_a_view_of_the_old, write_in_a_branch, expand_values, add_at_index), 0
)


@pytest.mark.parametrize("write", [*IN_PLACE, *NOT, write_itself])
def test_a_part_of_state_is_written(write: Callable[..., Any]) -> None:
    cache = Cache(write)
    example = torch.randn(2, 2, 3), torch.tensor([1, 3])
    program = lostwax.export(copy.deepcopy(cache), example)
    buffer = program.to_edge().to_executable().buffer
    if write in (IN_PLACE | NOT):
        listing = lostwax.pte.dump(buffer)
        times = (IN_PLACE | NOT)[write]
        assert listing.count("aten::index_put_(") == times
        assert listing.count("aten::copy_(") == (0 if times else 1)
    runtime = Runtime(buffer)
    for at in ([1, 3], [0, 2], [3, 2], [2, 2]):
        row = torch.randn(2, 1, 3).expand(2, 2, 3).contiguous()  # what is written twice is the same
        inputs = row, torch.tensor(at)
        wanted = cache(*inputs)
        assert_close(runtime(*inputs), wanted if isinstance(wanted, tuple) else [wanted])


def test_a_check_sees_what_was_written() -> None:
    cache = Cache(copy_at_index)
    program = lostwax.export(cache, (torch.randn(2, 2, 3), torch.tensor([1, 3])))
    lostwax.check(program.to_edge().to_executable(), copy.deepcopy(cache)).raise_on_difference()
