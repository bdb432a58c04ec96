"""What autograd saves and gives back, in a capture of a program that differentiates inside.

A tensor that comes back from autograd is a copy, detached and then joined again to what made the
original: to a program it is the original. Must not record anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lostwax.fake.mode import FakeTensorMode
from lostwax.fake.tensor import FakeTensor
from lostwax.ops.registry import has_trait
from lostwax.ops.traits import Trait


class SavedTensors:
    """The tensors of one capture, by the place in autograd's graph where each was made."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._made: dict[tuple[Any, int], FakeTensor] = {}
        self._is_asking = False

    def recover(self, values: Sequence[Any]) -> None:
        """Identify tensors that came back from autograd with the originals; remember new ones."""
        for each in values:
            if isinstance(each, (list, tuple)):
                self.recover(each)
            elif isinstance(each, FakeTensor) and each.requires_grad and each.tracked is not None:
                original = self._find_original(each)
                if original is not each:
                    each.tracked = original.tracked

    def _find_original(self, fake: FakeTensor) -> FakeTensor:
        made_by = fake.grad_fn
        if made_by is not None:
            return self._made.setdefault((made_by, fake.output_nr), fake)
        view = fake.tracked.view
        if self._is_asking or view is None or not has_trait(view.func, Trait.DETACHES):
            return fake
        leaf = self._find_leaf(fake)
        return leaf if isinstance(leaf, FakeTensor) else fake

    def _find_leaf(self, fake: FakeTensor) -> Any:
        """The tensor that gets the gradient of a leaf: itself, or what it is a copy of."""
        self._is_asking = True
        try:
            with self._mode.pause_recording(), torch.enable_grad():
                found: Any = self._mode.in_autograd(fake.view_as, fake).grad_fn
        finally:
            self._is_asking = False
        return found.next_functions[0][0].variable

    def forget(self) -> None:
        """The keys keep autograd's graph alive."""
        self._made.clear()
