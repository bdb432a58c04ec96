"""Moves a program to another device: its state, the devices that its nodes name, its recorded
types, its example inputs.

Must not change what is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree

from lostwax.errors import PassError
from lostwax.fake import FakeTensor, FakeTensorMode
from lostwax.fake.devices import concrete_device
from lostwax.fake.storage import FakeStorage
from lostwax.fake.tensor import new_fake
from lostwax.ir.passes.draft import Draft
from lostwax.ir.passes.pipeline import Pass
from lostwax.ir.passes.transforms.state import convert_state
from lostwax.ir.program import ExportedProgram
from lostwax.ops.registry import operator

Location = str | torch.device | Mapping[str, str]


def move_to_device_pass(ep: ExportedProgram, location: Location) -> ExportedProgram:
    """Return the program `ep` on another device. `location` is a device, or maps devices by name to
    where what is on them goes: `{"cpu": "cuda:0"}`. The given program stays where it is."""
    return MoveToDevice(location)(ep)


@dataclass(frozen=True)
class MoveToDevice(Pass):
    """Moves all of a program to a device, also to "meta", where tensors have no data."""

    location: Location

    def edit(self, draft: Draft) -> None:
        state = convert_state({**draft.constants, **draft.state_dict}, self._move_tensor)
        draft.constants = {k: state[k] for k in draft.constants}
        draft.state_dict = {k: state[k] for k in draft.state_dict}
        if draft.example_inputs is not None:
            draft.example_inputs = pytree.tree_map_only(
                torch.Tensor, self._move_tensor, draft.example_inputs
            )
        # A mode models one absent device, so the moved program gets a mode of its own.
        draft.mode = FakeTensorMode(shape_env=draft.mode.shape_env)
        storages: dict[FakeStorage, FakeStorage] = {}
        for module in draft.graph_modules():
            for node in module.graph.nodes:
                self._move_call(node)
                if "val" in node.meta:
                    node.meta["val"] = pytree.tree_map_only(
                        FakeTensor,
                        lambda v: self._move_fake(v, draft.mode, storages),
                        node.meta["val"],
                    )

    def destination(self, device: torch.device) -> torch.device:
        """The device that what is on this one moves to."""
        if isinstance(self.location, Mapping):
            for name in (str(device), device.type):
                if name in self.location:
                    return torch.device(self.location[name])
            return device
        try:
            return torch.device(self.location)
        except RuntimeError as error:  # torch's, with a list of all that it might know
            raise PassError(
                f"{self.location!r} is no device of torch\n  why: {str(error).partition(': ')[0]}"
                '\n  instead: "cuda", "cuda:0", "cpu" or "meta"'
            ) from None

    def _move_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        device = self.destination(tensor.device)
        try:
            return tensor.to(device)
        except (
            AssertionError,
            RuntimeError,
        ) as error:  # torch was built without it, or none is here
            raise PassError(f"nothing can be moved to {device} here: {error}") from error

    def _move_fake(
        self, fake: FakeTensor, mode: FakeTensorMode, storages: dict[FakeStorage, FakeStorage]
    ) -> FakeTensor:
        """Move a fake. Values that shared memory share it again."""
        device = concrete_device(self.destination(fake.fake_type.device))
        t = fake.fake_type.replace(device=device)
        storage = storages.setdefault(fake.fake_storage, FakeStorage(t))
        return new_fake(mode, t, storage, requires_grad=fake.requires_grad)

    def _move_call(self, node: Node) -> None:
        """Replace the devices that a call names. A factory that names none creates on the CPU."""
        node.args, node.kwargs = map_aggregate((node.args, node.kwargs), self._move_argument)
        if not isinstance(node.target, OpOverload) or node.all_input_nodes:
            return
        if "device" in operator(node.target).argument_names and "device" not in node.kwargs:
            cpu = torch.device("cpu")
            if self.destination(cpu) != cpu:
                node.kwargs = {**node.kwargs, "device": self.destination(cpu)}

    def _move_argument(self, value: Any) -> Any:
        return self.destination(value) if isinstance(value, torch.device) else value
