"""Functions that torch would keep as operators, and a program has step by step: checkpoints, nested
compile regions; `flex_attention` has a file of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

from lostwax import Dim
from lostwax.capture import export
from tests.capture.control.compare import agree

X = torch.arange(12.0).view(4, 3) / 7 + 0.1
Q = torch.sin(torch.arange(2 * 4 * 6 * 8.0)).view(2, 4, 6, 8)
K = torch.cos(torch.arange(2 * 2 * 6 * 8.0)).view(2, 2, 6, 8)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(reentrant: bool) -> None:
    def program(self: Any, x: Any) -> Any:
        y = checkpoint(lambda x: self.linear(x).sin(), x, use_reentrant=reentrant)
        return checkpoint(lambda y: torch.cos(y) * x, y, use_reentrant=reentrant)

    agree(program, (X,), (-X,), gradients=True)


def test_checkpoint_in_a_branch() -> None:
    def program(self: Any, x: Any) -> Any:
        def true(x: Any) -> Any:
            return checkpoint(lambda x: self.linear(x).sin(), x, use_reentrant=False)

        return torch.cond(x.sum() > 0, true, lambda x: x * 2, (x,))

    agree(program, (X,), (-X,), gradients=True)


def test_nested_compile_region() -> None:
    @torch.compiler.nested_compile_region
    def region(x: Any, y: Any) -> Any:
        return torch.sin(x) + y

    def program(self: Any, x: Any) -> Any:
        return region(x, 1) + region(self.linear(x), x)

    agree(program, (X,), (-X,), gradients=True)


def _bias(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return score + (i - j) * 0.1 * (h + 1)


def test_flex_attention_of_varying_length_keeps_the_layout() -> None:
    def program(x: Any) -> Any:
        q = x.view(2, x.shape[1], 4, 8).transpose(1, 2)
        return flex_attention(q, q, q, score_mod=_bias).transpose(1, 2).view(2, x.shape[1], 32)

    found = export(program, (torch.randn(2, 6, 32),), dynamic_shapes=({1: Dim("n")},)).module()
    for n in (1, 5, 9):
        x = torch.randn(2, n, 32)
        q = x.view(2, n, 4, 8).transpose(1, 2)
        steps = torch.arange(n).view(n, 1) - torch.arange(n).view(1, n)
        bias = steps * 0.1 * (torch.arange(4).view(4, 1, 1) + 1)
        want = F.scaled_dot_product_attention(q, q, q, attn_mask=bias)
        torch.testing.assert_close(found(x), want.transpose(1, 2).reshape(2, n, 32))
