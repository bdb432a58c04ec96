"""Puts back what a call leaves in Python and in tensors: a function has no copy, and the methods of
a module's copy reach what the module's reach (globals, closures).

Must not compare anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from lostwax.capture.heap.contents import write
from lostwax.capture.heap.places import Places
from lostwax.identity import Seen


def _can_put_back(tensor: torch.Tensor) -> bool:
    """Is it an ordinary one, with data? (Others are left to who writes to them.)"""
    is_plain = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided
    is_other = tensor.is_meta or tensor.is_quantized or tensor.is_nested or tensor.is_inference()
    return is_plain and not is_other


@contextmanager
def leave_untouched(function: Any) -> Iterator[None]:
    """Inside, a function or a module's copy may be called. What it has changed is put back at the
    end, but for what the copy holds itself, what C keeps, and iterators."""
    root = getattr(function, "__self__", function)
    modules = [*root.modules()] if isinstance(root, nn.Module) else []
    own = Seen()
    for each in modules:
        own.add(each)
    places = Places(own, opens_watched=False)
    places.add("the function", function)
    for cls in {type(each) for each in modules}:
        places.add("forward", cls.forward)
    with torch.no_grad():
        tensors = [(each, each.clone()) for each in places.list_tensors() if _can_put_back(each)]
    try:
        yield
    finally:
        for _, place in [*places.list_changes({})]:
            write(place.value, place.content)
        with torch.no_grad():
            for tensor, content in tensors:
                if not torch.equal(tensor, content):  # (batch norm counts no version)
                    tensor.copy_(content)
