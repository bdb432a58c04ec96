"""Triton kernels in programs, on a GPU: an operator stays one, a bare launch is refused."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import lostwax

try:
    import triton
    import triton.language as tl
except ImportError:  # it comes with torch's builds for CUDA
    triton = None

if triton is not None:

    @triton.jit
    def _add_kernel(x, y, out, n, block: tl.constexpr):
        at = tl.program_id(0) * block + tl.arange(0, block)
        mask = at < n
        tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)

    @torch.library.triton_op("lostwax_gpu::add", mutates_args={})
    def add(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        n = out.numel()
        torch.library.wrap_triton(_add_kernel)[(triton.cdiv(n, 64),)](x, y, out, n, 64)
        return out

    class Added(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return add(x.relu(), x) * 2

    class Launched(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            out = torch.empty_like(x)
            _add_kernel[(1,)](x, x, out, x.numel(), 64)
            return out

    class Wrapped(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            out = torch.empty_like(x)
            torch.library.wrap_triton(_add_kernel)[(1,)](x, x, out, x.numel(), 64)
            return out


def stays_an_operator() -> float:
    if triton is None:
        return 0.0
    x = torch.randn(3, 5, device="cuda")
    program = lostwax.export(Added(), (x,), dynamic_shapes=({0: lostwax.Dim("n")},))
    assert torch.ops.lostwax_gpu.add.default in [n.target for n in program.graph.nodes]
    x = torch.randn(9, 5, device="cuda")
    torch.testing.assert_close(program.module()(x), Added()(x))
    return 0.0


def is_refused() -> float:
    for module in () if triton is None else (Launched(), Wrapped()):
        text = "nothing is refused"
        try:
            lostwax.export(module, (torch.randn(3, 5, device="cuda"),))
        except lostwax.errors.LostwaxError as error:
            text = str(error)
        assert "torch.library.triton_op" in text, text
        assert "triton_cases.py" in text, text
    return 0.0
