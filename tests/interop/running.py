"""Runs programs so that they can be compared: results, writes to inputs, and state as before."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.utils._pytree as pytree

from tests.pt2.compare import called


def run(program: Any, args: Any, kwargs: Any) -> Any:
    """What a program gives and what it makes of its inputs; its state is then as before."""
    held = (*program.state_dict.values(), *program.constants.values())
    before = [(t, t.detach().clone()) for t in held if isinstance(t, torch.Tensor)]
    try:
        return copy.deepcopy(detach(called(program.module(), args, kwargs)))
    finally:
        for tensor, value in before:
            tensor.data.copy_(value)


def detach(found: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach(), found)
