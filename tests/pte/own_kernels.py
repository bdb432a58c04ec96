"""Custom operators whose kernels a user's runtime has, in the real runtime: those of ExecuTorch for
language models, which write caches. Importing them changes the runtime of the whole process:
`test_own_kernels.py` runs this file in one of its own."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
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


@torch.library.custom_op("own_kernels::fill", mutates_args=("cache",))
def fill(cache: torch.Tensor, x: torch.Tensor, start: int) -> None:
    cache[start : start + x.shape[0]] = x


FILL = """
#include <cstring>
#include <executorch/runtime/kernel/kernel_includes.h>
#include <executorch/runtime/kernel/operator_registry.h>
using namespace executorch::runtime;

static void fill(KernelRuntimeContext&, Span<EValue*> stack) {
  auto cache = stack[0]->toTensor(), x = stack[1]->toTensor();
  const size_t row = cache.nbytes() / cache.size(0);
  char* begin = (char*)cache.mutable_data_ptr() + stack[2]->toInt() * row;
  std::memcpy(begin, x.const_data_ptr(), x.nbytes());
}

static auto done = register_kernel(Kernel("own_kernels::fill", fill));
"""


class Fills(nn.Module):
    """An operator that returns nothing writes state, and something else."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(8, 2))

    def forward(self, x: Any, at: Any) -> Any:
        start = at.item()
        torch._check(start >= 0)
        torch._check(start < 7)
        before, made = self.rows.sum(), self.rows * 2
        torch.ops.own_kernels.fill(self.rows, x, start)
        torch.ops.own_kernels.fill(made, x, 0)
        return self.rows.sum(0), made, before


@pytest.mark.filterwarnings("ignore:the executable does not check")
def test_operators_that_return_nothing(tmp_path: Path) -> None:
    program = lostwax.export(Fills(), (torch.ones(2, 2), torch.tensor(2)))
    name = "own_kernels::fill"
    with pytest.raises(LoweringError, match=rf'to_executable\(kernels=\["{name}"\]\)'):
        program.to_edge().to_executable()
    executable = program.to_edge().to_executable(kernels=[name])
    assert lostwax.pte.dump(executable.buffer).count("clone") == 1  # of what is no state
    load_library(FILL, tmp_path)
    runtime, eager = Runtime(executable.buffer), Fills()
    for start in (2, 5, 0):
        call = torch.randn(2, 2), torch.tensor(start)
        assert_close(runtime(*call), eager(*call))


def load_library(source: str, folder: Path) -> None:
    """Compile kernels, and give them to the runtime of this process."""
    import executorch
    from executorch.extension.pybindings import _portable_lib

    headers = Path(executorch.__path__[0]) / "include"
    compiler = shutil.which("g++")
    if compiler is None or not headers.exists():
        pytest.skip("there is no compiler, or ExecuTorch's headers are not there")
    (folder / "own.cpp").write_text(source)
    library = folder / "own.so"
    inside = (headers, headers / "executorch/runtime/core/portable_type/c10")
    options = ["-std=c++17", "-shared", "-fPIC", "-DC10_USING_CUSTOM_GENERATED_MACROS"]
    options += [f"-I{each}" for each in inside]
    subprocess.run([compiler, *options, folder / "own.cpp", "-o", library], check=True)
    ctypes.CDLL(_portable_lib.__file__, mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(library))
