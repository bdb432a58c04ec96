"""Custom operators whose kernels a user's runtime has, in the real runtime: those of ExecuTorch for
language models, which write caches. Importing them changes the runtime of the whole process:
`test_own_kernels.py` runs this file in one of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from lostwax.errors import LoweringError
from tests.pte.runtime import Runtime, assert_close

pytest.importorskip("executorch.extension.llm.custom_ops.custom_ops")

KERNELS = ["llama::update_cache.out", "llama::custom_sdpa.out"]
CONTEXT = 16


class Attention(nn.Module):
    """Attention that keeps keys and values by ExecuTorch's own operators."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, CONTEXT, 2, 8))
        self.register_buffer("values", torch.zeros(1, CONTEXT, 2, 8))

    def update(self, k: Any, v: Any, at: Any) -> Any:
        start = at[0].item()
        torch._check(start >= 0)
        torch._check(start < CONTEXT)
        torch.ops.llama.update_cache(k, self.keys, start)
        torch.ops.llama.update_cache(v, self.values, start)
        return start

    def forward(self, q: Any, k: Any, v: Any, at: Any) -> Any:
        start = self.update(k, v, at)
        return torch.ops.llama.custom_sdpa(q, self.keys, self.values, start, None, 0.0, True, None)


class ReadsBefore(Attention):
    """It also returns what the cache was, by a view that it takes before the write."""

    def forward(self, q: Any, k: Any, v: Any, at: Any) -> Any:
        before = self.keys.clone()
        sums = self.values.sum((2, 3))
        found = super().forward(q, k, v, at)
        return found, before * 2, sums


class WritesTwice(Attention):
    def forward(self, q: Any, k: Any, v: Any, at: Any) -> Any:
        self.update(k * 3, v, at)
        between = self.keys + 1
        return super().forward(q, k, v, at), between


class WritesOthers(Attention):
    """What is written is no state: an intermediate, and an input's clone."""

    def forward(self, q: Any, k: Any, v: Any, at: Any) -> Any:
        made = self.keys * 2 + 1
        start = at[0].item()
        torch._check(start >= 0)
        torch._check(start < CONTEXT)
        torch.ops.llama.update_cache(k, made, start)
        return made, self.keys + made


class WritesInBranch(Attention):
    def forward(self, q: Any, k: Any, v: Any, at: Any) -> Any:
        if at.sum() > 3:
            self.update(k, v, at)
        else:
            self.update(v, k, at)
        return self.keys + 1, self.values + 1


def draw(count: int, start: int) -> tuple[Any, ...]:
    heads = [torch.randn(1, count, heads, 8) for heads in (4, 2, 2)]
    return *heads, torch.arange(start, start + count)


@pytest.mark.filterwarnings("ignore:the executable does not check")
@pytest.mark.parametrize(
    "kind", [Attention, ReadsBefore, WritesTwice, WritesOthers, WritesInBranch]
)
def test_operators_that_write(kind: type[Attention]) -> None:
    torch.manual_seed(0)
    length = lostwax.Dim("length", min=1, max=CONTEXT)
    shapes = ({1: length}, {1: length}, {1: length}, {0: length})
    program = lostwax.export(kind(), draw(3, 0), dynamic_shapes=shapes)
    executable = program.to_edge().to_executable(kernels=KERNELS)
    runtime, eager, start = Runtime(executable.buffer), kind(), 0
    for count in (3, 1, 5, 1):
        call = draw(count, start)
        wanted = eager(*call)
        assert_close(runtime(*call), wanted if isinstance(wanted, tuple) else (wanted,))
        start += count


def test_caches_are_written_in_place() -> None:
    program = lostwax.export(Attention(), draw(1, 0))
    with pytest.warns(UserWarning, match="does not check"):
        executable = program.to_edge().to_executable(kernels=KERNELS)
    text = lostwax.pte.dump(executable.buffer)
    assert text.count("llama::update_cache.out") == 2
    assert "copy_" not in text.replace("as_strided_copy", "")
    assert "clone" not in text


@pytest.mark.parametrize(
    ("kernels", "text"),
    [
        (
            [],
            r'update_cache.*no kernel[\s\S]*to_executable\(kernels=\["llama::update_cache.out"\]\)',
        ),
        (KERNELS[:1], r"custom_sdpa.*no kernel"),
        ("llama::update_cache.out", "instead: a list of names"),
        ([1], "instead: a list of names"),
    ],
)
def test_kernels_that_are_not_declared_are_refused(kernels: Any, text: str) -> None:
    edge = lostwax.export(Attention(), draw(1, 0)).to_edge()
    with pytest.raises(LoweringError, match=text):
        edge.to_executable(kernels=kernels)
