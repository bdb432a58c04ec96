"""The ExecuTorch runtime, the judge of `.pte` files; without it these tests are skipped."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

_IS_OURS = torch.__version__.startswith("2.13")
"""With the torch that we develop on it must load; its wheel is not built for every other one."""

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    portable: Any = pytest.importorskip(
        "executorch.extension.pybindings.portable_lib",
        reason="executorch is not installed, or not for this torch: make venv, or pip install "
        "--no-deps executorch",
        exc_type=ModuleNotFoundError if _IS_OURS else ImportError,
    )


class Runtime:
    """A file in the runtime, loaded with its full verification. The runtime keeps a pointer to the
    bytes, so they live as long as this."""

    def __init__(self, buffer: bytes) -> None:
        self.buffer = buffer
        full = portable.Verification.InternalConsistency
        self.module = portable._load_for_executorch_from_buffer(buffer, program_verification=full)

    def __call__(self, *inputs: Any, method: str = "forward") -> list[Any]:
        return list(self.module.run_method(method, inputs))


def assert_close(ours: Any, eager: Any) -> None:
    """The bar of the runtime: 1e-4, relative to the largest value."""
    assert len(ours) == len(eager)
    for a, b in zip(ours, eager, strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        finite = b.detach()[b.isfinite()].abs() if b.dtype.is_floating_point else b.new_empty(0)
        scale = float(finite.max()) if finite.numel() else 1.0
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * max(scale, 1e-3), equal_nan=True)
