"""Real tensors that a capture meets and that are read as they are: `self.table.numpy()`.

C++ detaches a tensor, and puts it on the CPU, before it shows its memory to numpy, and says nothing
else. So what is detached of a constant is a real tensor, too; operators take it for the constant,
detached. Must not record anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lostwax.capture.trace.outside_tensors import detach, find_state
from lostwax.errors import CaptureError
from lostwax.fake.tensor import FakeTensor
from lostwax.identity import ByIdentity
from lostwax.ops.registry import aten

if TYPE_CHECKING:
    from lostwax.capture.trace.tracer import Tracer


class UnrecordedConstants:
    """The constants that were detached in one capture."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._sources = ByIdentity[torch.Tensor, torch.Tensor]()
        """What each detached tensor was detached from."""
        self._fakes = ByIdentity[torch.Tensor, FakeTensor]()

    def detach(self, tensor: Any) -> torch.Tensor:
        found: torch.Tensor = self.call_unrecorded(aten.detach.default, (tensor,), {})
        self._sources[found] = tensor
        return found

    def call_unrecorded(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator on the real constant, unrecorded."""
        root = find_state(self._tracer, args[0])
        if root is not None and root.kind not in ("", "the constant"):
            raise CaptureError.here(
                f"{root.kind} {root.name} is reached past the module, and detached, or read as it "
                "is (numpy(), tolist())",
                why="the values that it has now would be baked in",
                instead="take it where the module has it (self.name), or pass it as an argument",
            )
        with torch._C._DisableTorchDispatch():
            return func(*args, **kwargs)

    def is_bare(self, tensor: Any) -> bool:
        return tensor in self._sources

    def fake_of(self, tensor: torch.Tensor) -> FakeTensor | None:
        """What stands for a tensor that was detached; None for any other."""
        source = self._sources.get(tensor)
        if source is None:
            return None
        fake = self._fakes.get(tensor)
        if fake is None:
            fake = self._fakes[tensor] = detach(self._tracer, source)
        return fake

    def forget(self) -> None:
        self._sources.clear()
        self._fakes.clear()
