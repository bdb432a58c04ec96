"""`flex_attention` in programs, and regions that torch.compile would compile once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention as peer
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from lostwax import Dim, export

TABLE = torch.randn(4, 40, 40)
DOCUMENT = torch.arange(40) // 7

Attention = Callable[..., Any]


class Attend(nn.Module):
    """Calls flex_attention with what a case gives it."""

    def __init__(self, options: Callable[[Any, Tensor, Tensor], dict[str, Any]]) -> None:
        super().__init__()
        self.options = options
        self.slopes = nn.Parameter(torch.randn(4))
        self.register_buffer("relative", torch.randn(80))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, **self.options(self, q, k))


def blocks(mask: Callable[..., Tensor]) -> Callable[[Any, Tensor, Tensor], dict[str, Any]]:
    def make(self: Any, q: Tensor, k: Tensor) -> dict[str, Any]:
        sizes = (None, None, q.shape[2], k.shape[2])
        return {"block_mask": create_block_mask(mask, *sizes, device="cpu")}

    return make


CASES: dict[str, Callable[[Any, Tensor, Tensor], dict[str, Any]]] = {
    "plain": lambda self, q, k: {},
    "a scale": lambda self, q, k: {"scale": 0.3},
    "with the sums": lambda self, q, k: {"return_lse": True},
    "a relative place": lambda self, q, k: {"score_mod": lambda s, b, h, i, j: s + (i - j)},
    "a parameter": lambda self, q, k: {
        "score_mod": lambda s, b, h, i, j: s + self.slopes[h] * (j - i)
    },
    "a parameter at a fixed place": lambda self, q, k: {
        "score_mod": lambda s, b, h, i, j: s + self.slopes[0]
    },
    "a buffer": lambda self, q, k: {
        "score_mod": lambda s, b, h, i, j: s * self.relative[i - j + 40]
    },
    "a table of the file": lambda self, q, k: {
        "score_mod": lambda s, b, h, i, j: s + TABLE[h, i, j]
    },
    "a soft cap": lambda self, q, k: {"score_mod": lambda s, b, h, i, j: 2 * torch.tanh(s / 2)},
    "causal": blocks(lambda b, h, i, j: i >= j),
    "rows without any key": blocks(lambda b, h, i, j: (i > 3) & (j < i)),
    "documents": blocks(lambda b, h, i, j: DOCUMENT[i] == DOCUMENT[j]),
}


def qkv(batch: int, length: int, heads: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.randn(batch, 4, length, 8),
        torch.randn(batch, heads, length, 8),
        torch.randn(batch, heads, length, 8),
    )


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch):
    """Eager itself, which is what it is compared with, compiles nothing."""
    monkeypatch.setattr(peer, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def compare(module: nn.Module, program: Any, inputs: tuple[Tensor, ...]) -> None:
    found, wanted = program.module()(*inputs), module(*inputs)
    torch.testing.assert_close(found, wanted)
    if isinstance(found, Tensor):
        assert found.stride() == wanted.stride()


@pytest.mark.parametrize("name", CASES)
def test_programs_attend_as_eager(name):
    module = Attend(CASES[name])
    varying = ({0: Dim.AUTO, 2: Dim.AUTO},) * 3
    program = export(module, qkv(2, 16), dynamic_shapes=varying)
    for inputs in (qkv(2, 16), qkv(1, 33), qkv(3, 1)):
        compare(module, program, inputs)


def test_heads_that_share_keys():
    module = Attend(lambda self, q, k: {"enable_gqa": True})
    inputs = qkv(2, 8, heads=2)
    compare(module, export(module, inputs), inputs)


def test_the_result_lies_as_the_queries_do():
    q, k, v = qkv(2, 8)
    inputs = (q.transpose(1, 2).contiguous().transpose(1, 2), k, v)
    module = Attend(CASES["plain"])
    compare(module, export(module, inputs), inputs)


def test_gradients_are_those_of_the_same_attention():
    """Eager has none on the CPU."""
    inputs = qkv(2, 8)
    program = export(Attend(CASES["causal"]), inputs)
    for each in inputs:
        each.requires_grad_()
    found = torch.autograd.grad(program.module()(*inputs).sin().sum(), inputs)
    plain = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True)
    torch.testing.assert_close(found, torch.autograd.grad(plain.sin().sum(), inputs))


def test_autocast_casts_what_is_attended():
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return flex_attention(q, k, v)

    inputs = qkv(1, 8)
    found, wanted = export(attend, inputs).module()(*inputs), attend(*inputs)
    torch.testing.assert_close(found, wanted)


def test_indices_elsewhere_are_numbers_again():
    """Only what flex_attention calls keeps its indices as tensors."""

    def attend(q: Tensor, k: Tensor, v: Tensor, n: Tensor) -> Tensor:
        out = flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + TABLE[0, i, j])
        return out + k[0, n, 0]

    inputs = (*qkv(1, 8), torch.tensor(3))
    program = export(attend, inputs)
    assert "index.Tensor(k" not in str(program.graph)
    torch.testing.assert_close(program.module()(*inputs), attend(*inputs))


def test_a_nested_region_is_part_of_the_program():
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.once(self.once(x))

        @torch.compiler.nested_compile_region
        def once(self, x: Tensor) -> Tensor:
            return self.layer(x).relu() if type(x) is torch.Tensor else x

    module, x = Layers(), torch.randn(2, 4)
    torch.testing.assert_close(export(module, (x,)).module()(x), module(x))


@pytest.mark.parametrize(
    "function",
    [lambda x: 2 * x.tanh(), lambda x: x / 2, lambda x: (x > 0) * 1.5, lambda x: x.long() * 2.5],
)
def test_numbers_under_vmap(function):
    """`vmap` casts the number by itself."""

    def mapped(x: Tensor) -> Tensor:
        return torch.vmap(torch.vmap(function))(x)

    x = torch.randn(3, 2) * 3
    torch.testing.assert_close(export(mapped, (x,)).module()(x), mapped(x))
