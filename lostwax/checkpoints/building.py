"""Modules that are built without their weights: each parameter is on `meta` as soon as a module has
it. What a module computes for itself, a table of positions, is computed.

Must not know where weights come from.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.utils.weak import WeakIdKeyDictionary


class WeightlessBuild:
    """What this thread builds: modules, in the order in which they are seen, held weakly, as what
    a constructor only copies is gone when it ends."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._is_inner: Any = WeakIdKeyDictionary()
        self._on_meta: Any = WeakIdKeyDictionary()

    @contextmanager
    def run(self, dtype: torch.dtype | None = None) -> Iterator[None]:
        """See each parameter and module that a module is given; `dtype` is torch's default."""
        before = torch.get_default_dtype()
        with ExitStack() as undo:
            if dtype is not None:
                undo.callback(torch.set_default_dtype, before)
                torch.set_default_dtype(dtype)
            for register, take in (
                (register_module_parameter_registration_hook, self._take_parameter),
                (register_module_module_registration_hook, self._take_module),
            ):
                undo.callback(register(take).remove)
            yield

    def list_roots(self) -> list[nn.Module]:
        """The modules that no other module has."""
        return [each for each, is_inner in self._is_inner.items() if not is_inner]

    def _take_parameter(self, module: nn.Module, name: str, value: Any) -> Any:
        if threading.get_ident() != self._thread:
            return None
        self._is_inner.setdefault(module, False)
        if type(value) is not nn.Parameter or value.is_meta:
            return None
        known = self._on_meta.get(value)
        if known is None:
            empty = torch.empty_like(value, device="meta")
            known = nn.Parameter(empty, requires_grad=value.requires_grad)
            self._on_meta[value] = known
        return known

    def _take_module(self, module: nn.Module, name: str, inner: Any) -> None:
        if threading.get_ident() == self._thread and isinstance(inner, nn.Module):
            self._is_inner.setdefault(module, False)
            self._is_inner[inner] = True
