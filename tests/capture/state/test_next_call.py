"""State that the next call would find otherwise than the first one did: with other strides, another
dtype, of another kind, in another's place. A program goes on as it was captured, so it is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from lostwax.errors import CaptureError


class Kept(nn.Module):
    """`turned` lies column by column, `one` and `other` in one memory; `body` is the forward."""

    def __init__(self, body: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("turned", torch.arange(6.0).view(3, 2).t())
        self.register_buffer("one", torch.zeros(2, 3))
        self.register_buffer("other", self.one.detach())
        self.register_buffer("third", self.one.detach())
        self.register_buffer("wide", torch.ones(2, 3, dtype=torch.float64))
        self.register_buffer("passing", torch.ones(3), persistent=False)
        self.w = nn.Parameter(torch.ones(2, 3))

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(self, x)


def _factor(t: Any) -> int:
    return 2 if t.is_contiguous() else 3


def _relaid(m: Any, x: Any) -> Any:
    result = m.turned * _factor(m.turned)
    m.turned = torch.cat([m.turned[1:], m.turned[:1]])
    return result


def _relaid_and_written(m: Any, x: Any) -> Any:
    rows = m.turned.t().contiguous()
    rows += 1
    result = m.turned * 2
    m.turned = x.contiguous() * 1
    return result


def _swapped_and_viewed(m: Any, x: Any) -> Any:
    m.other, m.one = m.one, m.other + 1
    m.one = m.other.view(2, 3)
    return m.one * 2


def _third_in_place(m: Any, x: Any) -> Any:
    m.third = m.other
    return m.third * 2


def _parameter(m: Any, x: Any) -> Any:
    m.turned = nn.Parameter(m.turned + x)
    return m.turned * 2


def _own_parameter(m: Any, x: Any) -> Any:
    result = m.turned * 2
    m.turned = m.w
    return result


def _no_longer_kept(m: Any, x: Any) -> Any:
    m.register_buffer("turned", m.turned + 1, persistent=False)
    return m.turned * 2


def _kept_from_now(m: Any, x: Any) -> Any:
    m.register_buffer("passing", m.passing + 1)
    return m.passing * 2


def _wide_data(m: Any, x: Any) -> Any:
    m.turned.data = m.wide.clone()
    return x * 2


def _wide_input(m: Any, x: Any) -> Any:
    x.data = m.wide.clone()
    return x * 2


REFUSED = {
    _relaid: "turned is replaced by a tensor of strides (3, 1); it was of strides (1, 2)",
    _relaid_and_written: "the buffer turned is replaced by a tensor of strides (3, 1)",
    _swapped_and_viewed: "one and other share memory, and one is put in the place of the other",
    _third_in_place: "one and third share memory, and one is put in the place of the other",
    _parameter: "the buffer turned is replaced by a parameter",
    _own_parameter: "the buffer turned is replaced by a parameter",
    _no_longer_kept: "the buffer turned is registered again, and is not persistent from then on",
    _kept_from_now: "the buffer passing is registered again, and is persistent from then on",
    _wide_data: "the buffer turned leaves the program as torch.float64 on cpu",
    _wide_input: "the input x leaves the program as torch.float64 on cpu",
}


@pytest.mark.parametrize("body", REFUSED, ids=lambda f: f.__name__[1:])
def test_what_the_next_call_would_find_otherwise_is_refused(
    body: Callable[[Any, Any], Any],
) -> None:
    with pytest.raises(CaptureError) as caught:
        lostwax.export(Kept(body), (torch.ones(2, 3),))
    text = str(caught.value)
    assert REFUSED[body] in text
    assert "why:" in text
    assert "instead:" in text


def test_the_line_that_asks_is_told() -> None:
    with pytest.raises(
        CaptureError, match=r"because of is_contiguous\(\) at \S+/test_next_call.py"
    ):
        lostwax.export(Kept(_relaid), (torch.ones(2, 3),))


def test_a_tensor_that_lies_alike_may_replace_it() -> None:
    def body(m: Any, x: Any) -> Any:
        result = m.turned * _factor(m.turned)
        m.turned = m.turned + 1
        return result

    x, eager = torch.ones(2, 3), Kept(body)
    module = lostwax.export(deepcopy(eager), (x,)).module()
    for _ in range(3):
        torch.testing.assert_close(module(x), eager(x))


def test_what_replaces_it_lies_as_an_input_does() -> None:
    """A call with an input that lies otherwise would leave another layout to the next one."""

    def body(m: Any, x: Any) -> Any:
        result = m.turned * _factor(m.turned)
        m.turned = x * 2
        return result

    x, eager = torch.arange(6.0).view(3, 2).t(), Kept(body)
    module = lostwax.export(deepcopy(eager), (x,)).module()
    for _ in range(3):
        torch.testing.assert_close(module(x), eager(x))
    with pytest.raises(RuntimeError, match=r"the input x must have strides \(1, 2\)"):
        module(x.contiguous())


def test_a_chain_of_state_lies_as_an_input_does() -> None:
    def body(m: Any, x: Any) -> Any:
        result = m.one * _factor(m.one)
        m.one, m.wide = m.wide.float(), x.double()
        return result

    x = torch.ones(2, 3)
    module = lostwax.export(Kept(body), (x,)).module()
    with pytest.raises(RuntimeError, match=r"the input x must have strides \(3, 1\)"):
        module(torch.ones(3, 2).t())
