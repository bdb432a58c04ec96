"""One buffer under several names, kept in the `state_dict` under some of them: each name is kept as
in the original, and the tensor stays one, by every way."""

from __future__ import annotations

import io
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

import lostwax
import lostwax.interop


class TwoNames(nn.Module):
    """`kept` says which of the two names is in the `state_dict`."""

    def __init__(self, kept: str, body: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("passing", torch.zeros(3), persistent=False)
        self.register_buffer("one", torch.zeros(3), persistent=kept == "one")
        self.register_buffer("between", torch.ones(3))
        self.register_buffer("two", self.one, persistent=kept == "two")

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(self, x)


def _read(m: Any, x: Any) -> Any:
    return m.one + x


def _written(m: Any, x: Any) -> Any:
    m.two.add_(x)
    return m.one * 2


def _replaced(m: Any, x: Any) -> Any:
    m.one = m.two = m.two * 0.5 + x
    return m.one * 2


def _file(program: Any) -> io.BytesIO:
    file = io.BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    return file


WAYS: dict[str, Callable[[Any], Any]] = {
    "module": lambda p: p.module(),
    "decomposed": lambda p: p.run_decompositions().module(),
    "copied": lambda p: deepcopy(p).module(),
    "unflattened": lostwax.unflatten,
    "loaded": lambda p: lostwax.load(_file(p)).module(),
    "twice": lambda p: lostwax.load(_file(lostwax.load(_file(p)))).module(),
    "again": lambda p: lostwax.export(p.module(), (torch.ones(3),)).module(),
}
FOR_TORCH: dict[str, Callable[[Any], Any]] = {
    "torch loads": lambda p: torch.export.load(_file(p)).module(),
    "to_torch": lambda p: lostwax.interop.to_torch(p).module(),
}


@pytest.mark.parametrize("body", [_read, _written, _replaced], ids=lambda f: f.__name__[1:])
@pytest.mark.parametrize("kept", ["one", "two"])
@pytest.mark.parametrize("way", [*WAYS, *FOR_TORCH])
def test_each_name_is_kept_as_in_the_original(
    way: str, kept: str, body: Callable[[Any, Any], Any]
) -> None:
    eager, x = TwoNames(kept, body), torch.full((3,), 2.0)
    ours = {**WAYS, **FOR_TORCH}[way](lostwax.export(deepcopy(eager), (x,)))
    for _ in range(2):
        assert set(ours.state_dict()) == set(eager.state_dict())
        for m in (eager, ours):
            m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()})
        torch.testing.assert_close(ours(x), eager(x))
        torch.testing.assert_close(dict(ours.state_dict()), dict(eager.state_dict()))
    if way in WAYS:  # torch's own has two tensors for them, in the order of inputs
        assert list(ours.state_dict()) == list(eager.state_dict())
        assert ours.one is ours.two
        assert [n for n, _ in ours.named_buffers()] == [n for n, _ in eager.named_buffers()]


def test_without_data_they_are_one_tensor() -> None:
    program = lostwax.export(TwoNames("two", _read), (torch.ones(3),))
    loaded = lostwax.load(_file(program), weights=False)
    assert loaded.constants["one"] is loaded.state_dict["two"]
