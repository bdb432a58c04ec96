"""Where a sweep computes, and in which precision. Must not know of libraries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.backends import cudnn
from torch.nn.attention import SDPBackend, sdpa_kernel

from sweep.architectures import Architecture, cast, example
from sweep.compare import Run, run_exactly, run_noisy

PRECISIONS = ("own", "float32", "autocast", "half")
"""The dtype of the architecture (mostly float64), float32, bfloat16 by autocast, float16."""


@dataclass(frozen=True)
class Setting:
    """A device and one of `PRECISIONS`."""

    device: str = "cpu"
    precision: str = "own"

    def find_dtype(self, architecture: Architecture) -> torch.dtype:
        if self.precision == "own":
            return architecture.dtype
        return torch.float16 if self.precision == "half" else torch.float32

    def make_example(self, architecture: Architecture, *sizes: int) -> Any:
        """An example call, as `architectures.example`."""
        call = cast(example(architecture, *sizes), self.find_dtype(architecture))
        return pytree.tree_map_only(Tensor, lambda tensor: tensor.to(self.device), call)

    @contextmanager
    def make_context(self) -> Iterator[None]:
        """What the module and its program are called in. On a GPU, attention is computed as it is
        defined, since kernels that do it at once have random numbers of their own; and in the
        precision that was asked for."""
        is_cast = self.precision == "autocast"
        cast = torch.autocast(self.device, torch.bfloat16) if is_cast else nullcontext()
        is_cpu = self.device == "cpu"
        plain = nullcontext() if is_cpu else sdpa_kernel(SDPBackend.MATH)
        exact = nullcontext() if is_cpu else cudnn.flags(True, deterministic=True, allow_tf32=False)
        with cast, plain, exact:
            yield

    def run_otherwise(self, model: nn.Module, args: Any, kwargs: Any) -> list[Run]:
        """What the model does with other last bits, and in double precision; nothing: the program
        may not differ by those."""
        noise = _NOISE[self.precision]
        if not noise:
            return []
        found = [run_noisy(model, args, kwargs, self.make_context(), noise)]
        try:
            with Setting(self.device).make_context():
                found.append(run_exactly(model, args, kwargs))
        except (RuntimeError, ValueError, TypeError):
            pass  # its code, or a kernel, is not for double precision
        return found


_NOISE = {"own": 0.0, "float32": 1e-5, "autocast": 2**-8, "half": 2**-10}
"""By how much weights differ in their last bits."""
