"""What nodes give, as torch's fake tensors of one mode.

torch makes a fake by running an operator: 0.3 ms, and 1.5 ms if a size varies. Here each gets
memory of its own without that: consumers tell by it which values alias. Must not run an operator on
fakes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lostwax.classes import SYMBOLIC
from lostwax.fake import FakeTensor
from lostwax.fake.asked_tensor import is_marked
from lostwax.interop.numbers import PeerNumbers
from lostwax.memory import span
from lostwax.sym import Size
from lostwax.types import TensorType


class PeerValues:
    """Values of one program, as torch has them."""

    def __init__(self, numbers: PeerNumbers) -> None:
        from torch._subclasses.fake_tensor import FakeTensor as PeerTensor
        from torch._subclasses.fake_tensor import FakeTensorMode as PeerMode

        self._numbers = numbers
        self.mode: Any = PeerMode(
            allow_fallback_kernels=False, allow_non_fake_inputs=True, shape_env=numbers.env
        )
        self._class: Any = PeerTensor
        self._symbolic: dict[Any, torch.Tensor] = {}
        """One tensor of each symbolic type: sizes that vary are dear to set."""
        self._attributes: dict[torch.device, tuple[torch.device, dict[str, Any]]] = {}
        """What torch notes of a fake, by the device."""

    def value(self, value: Any) -> Any:
        """What a node gives: a tensor, a number, None, or several of them."""
        if isinstance(value, FakeTensor):
            return self.fake(value)
        if isinstance(value, (tuple, list)):
            return type(value)([self.value(each) for each in value])
        return self._numbers.number(value) if isinstance(value, SYMBOLIC) else value

    def fake(self, value: FakeTensor, is_state: bool = False) -> Any:
        t = value.fake_type
        with torch._C._DisableTorchDispatch():  # a mode of the caller's is not asked
            bare = self._like(t) if t.is_symbolic else _new(t, t.size, t.stride, t.offset)
        found = self._attributes.get(t.device)
        if found is None:
            found = self._attributes[t.device] = self._describe(t.device)
        device, attributes = found
        made: Any = torch.Tensor._make_subclass(
            self._class,
            bare,
            is_marked(value),  # (its capture is over: no tracer knows better)
            dispatch_device=True,
            device_for_backend_keys=device,
        )
        # As in torch's own programs, nobody gets the memory of what a node gives: where sizes vary,
        # it is lent; and `copy.deepcopy` of it would copy the mode, too, whose weak references
        # then free twice what they refer to. Weights are copied with the program.
        guards: Any = torch._C
        if is_state and self.mode._allow_unsafe_data_ptr_access:
            guards._set_warn_deprecated_on_mutable_data_ptr(made)
        else:
            guards._set_throw_on_mutable_data_ptr(made)
        made.__dict__.update(attributes)
        return made

    def _like(self, t: Any) -> torch.Tensor:
        key = (t.size, t.stride, t.dtype, t.offset)
        found = self._symbolic.get(key)
        if found is None:
            size, stride = (tuple(map(self._numbers.size, each)) for each in key[:2])
            offset = self._numbers.size(t.offset)
            # What torch asks of the sizes meanwhile holds for the example; it would keep it.
            with self._numbers.env.suppress_guards():
                found = self._symbolic[key] = _new(t, size, stride, offset, self._numbers.size)
        made: torch.Tensor = torch._lazy_clone(found)  # the sizes of this one, memory of its own
        return made

    def _describe(self, device: torch.device) -> tuple[torch.device, dict[str, Any]]:
        with torch._C._DisableTorchDispatch():
            bare = torch.empty((), dtype=torch.float32, device="meta")
        like = self._class(self.mode, bare, device)
        return like.fake_device, dict(vars(like))


def _new(
    t: TensorType, size: Any, stride: Any, offset: Any, number: Callable[[Size], Any] = int
) -> torch.Tensor:
    if isinstance(offset, int) and offset == 0:
        return torch.empty_strided(size, stride, dtype=t.dtype, device="meta")
    space = number(span(t)[1])  # what torch would compute of symbolic sizes is dear
    return torch.empty_strided((space,), (1,), dtype=t.dtype, device="meta").as_strided(
        size, stride, offset
    )
