"""What tests of a capture's surroundings share: what a user would notice if it left torch, a module
or generators otherwise than they were."""

from __future__ import annotations

import gc
import random
import sys
from contextvars import copy_context
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lostwax.capture import threads
from lostwax.capture.heap import reach
from lostwax.capture.patches import table
from lostwax.fake import FakeTensor
from lostwax.undo.autocast_depth import read_autocast_depth


class Doubled(torch.autograd.Function):
    """With a backward that is not its forward's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 3


def keys() -> Any:
    sets = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    return [each.raw_repr() for each in sets]


OWN = ("listening", "notes")
"""Context variables of captures."""


def look(*modules: nn.Module) -> dict[str, Any]:
    """What a user would notice."""
    x = torch.ones(2, requires_grad=True)
    conjugated = torch.tensor([1 + 2j]).conj()
    return {
        "grad mode": torch.is_grad_enabled(),
        "autograd records": (x * 2).requires_grad,
        "conj": (conjugated.is_conj(), conjugated.imag.item()),
        "keys": keys(),
        "modes": (torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()),
        "real": type(torch.empty(1)),
        "only cpu": torch._C._only_lift_cpu_tensors(),
        "autocasts": read_autocast_depth(),
        "mkldnn": torch._C._get_mkldnn_enabled(),
        "exporting": (torch.compiler.is_exporting(), torch.compiler.is_compiling()),
        "codes": [each.__code__ for each in table.CODE_SWAPS.functions],
        "entries": [each.forward.__func__.__code__ for each in modules],
        "reaches": list(reach._running),
        "classes": [type(owner) for owner, _ in table.CLASSES],
        "running": (list(threads.running), threads.is_capturing()),
        "collects": gc.isenabled(),
        "python": hash(random.getstate()),
        "numpy": np.random.get_state()[1].tobytes(),  # type: ignore[index,union-attr]
        "torch": torch.get_rng_state().numpy().tobytes(),
        "fakes": [
            isinstance(t, FakeTensor) for m in modules for t in (*m.parameters(), *m.buffers())
        ],
        "modules": [str(sorted(vars(m), key=str)) for each in modules for m in each.modules()],
        "tensors": [id(t) for m in modules for t in (*m.parameters(), *m.buffers())],
        "profile": sys.getprofile(),
        "context": [v.name for v, value in copy_context().items() if value and v.name in OWN],
        "waited for": threads.one_at_a_time._is_owned(),  # type: ignore[attr-defined]
    }
