"""The state of the module being captured: fakes stand in for it, and everything is put back
afterwards.

Also when the capture fails. Must not copy a weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lostwax.errors import CaptureError
from lostwax.types import TensorType


@dataclass(eq=False)
class Slot:
    """One distinct parameter or buffer: the real tensor and all the names it goes by."""

    kind: str
    """"parameter" or "buffer"."""
    tensor: torch.Tensor
    names: list[str]
    persistent: bool = True

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass
class State:
    """The parameters and buffers of a module, tied ones once."""

    root: nn.Module
    slots: list[Slot]

    @classmethod
    def of(cls, root: nn.Module) -> State:
        slots: dict[tuple[str, int], Slot] = {}
        for kind, named in (
            ("parameter", root.named_parameters(remove_duplicate=False)),
            ("buffer", root.named_buffers(remove_duplicate=False)),
        ):
            for name, tensor in named:
                slot = slots.setdefault((kind, id(tensor)), Slot(kind, tensor, []))
                slot.names.append(name)
        state = cls(root, list(slots.values()))
        passing = state._non_persistent()
        for slot in state.slots:
            slot.persistent = slot.name not in passing
        return state

    def _non_persistent(self) -> set[str]:
        found: set[str] = set()
        for path, module in self.root.named_modules(remove_duplicate=False):
            prefix = f"{path}." if path else ""
            found.update(prefix + name for name in module._non_persistent_buffers_set)
        return found

    @contextmanager
    def replaced(self, fakes: Mapping[int, torch.Tensor]) -> Iterator[None]:
        """Inside, each parameter and buffer (by id) is its fake; afterwards all is as before."""
        modules = list(self.root.modules())
        saved = [_Saved(module) for module in modules]
        try:
            for module in modules:
                for held in (module._parameters, module._buffers):
                    for name, tensor in held.items():
                        if tensor is not None:
                            held[name] = fakes[id(tensor)]  # type: ignore[assignment]
            yield
        finally:
            for each in saved:
                each.restore()

    def reassigned(self, fakes: Mapping[int, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Buffers that hold another tensor than they were given (`self.buf = self.buf + 1`)."""
        found: dict[str, torch.Tensor] = {}
        for slot in self.slots:
            held = [self._held(slot, name) for name in slot.names]
            if any(h is not held[0] for h in held):
                raise CaptureError(
                    f"the {slot.kind} {' = '.join(slot.names)} is one tensor by several names, and "
                    "not all of them hold the same tensor after the call.\n"
                    "  why: a program has one value for them\n"
                    "  instead: write into it, self.x.copy_(...), or register two tensors"
                )
            if held[0] is None:
                raise CaptureError(
                    f"the {slot.kind} {slot.name} holds no tensor after the call.\n"
                    "  why: a program cannot take a part of its state away\n"
                    "  instead: keep what is None in a plain attribute"
                )
            if held[0] is not fakes[id(slot.tensor)]:
                found[slot.name] = held[0]
        return found

    def _held(self, slot: Slot, name: str) -> torch.Tensor | None:
        owner, _, leaf = name.rpartition(".")
        module = self.root.get_submodule(owner)
        found = (module._parameters if slot.kind == "parameter" else module._buffers).get(leaf)
        return getattr(module, leaf, None) if found is None else found

    def check_apart(self, fakes: Mapping[int, Any]) -> None:
        """What had its own memory before the call must have it after: a program keeps one tensor
        for each."""
        owners: dict[int, Slot] = {}
        for slot in self.slots:
            held: Any = self._held(slot, slot.name)
            before: Any = fakes[id(slot.tensor)]
            other = owners.setdefault(id(getattr(held, "fake_storage", held)), slot)
            if other is not slot and (
                fakes[id(other.tensor)].fake_storage is not before.fake_storage
            ):
                raise CaptureError(
                    f"{other.name} and {slot.name} share memory after the call, and did not "
                    "before.\n  why: a later write to one would have to show in the other\n"
                    f"  instead: assign a copy, self.{slot.name} = x.clone()"
                )

    def check_attributes(self, before: dict[int, set[str]], fake: type) -> None:
        """A tensor kept in a plain attribute would be lost between two runs of the program."""
        for path, module in self.root.named_modules():
            for name, value in module.__dict__.items():
                if isinstance(value, fake) and name not in before.get(id(module), ()):
                    where = f"{path}.{name}" if path else name
                    raise CaptureError(
                        f"the module keeps a tensor in the attribute {where}.\n"
                        "  why: the program has no such state, the next run would not find it\n"
                        f'  instead: register a buffer, self.register_buffer("{name}", ...), '
                        "before exporting and write to it"
                    )


def check_alike(slot: Slot, before: TensorType, now: TensorType) -> None:
    """Another tensor in a buffer's place must be of its size and dtype."""
    if (before.size, before.dtype) != (now.size, now.dtype):
        raise CaptureError(
            f"the {slot.kind} {slot.name} is replaced by a tensor of size {tuple(now.size)} and "
            f"{now.dtype}; it was of size {tuple(before.size)} and {before.dtype}.\n"
            "  why: a program's state keeps its types, the next run counts on them\n"
            "  instead: register it with the size and dtype it will have"
        )


class _Saved:
    """All that a module holds, one container deep."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.attributes = dict(module.__dict__)
        self.containers = [
            (v, _copied(v))
            for name, v in self.attributes.items()
            if _is_container(v) and name not in _UNTOUCHED
        ]

    def restore(self) -> None:
        self.module.__dict__.clear()
        self.module.__dict__.update(self.attributes)
        for container, content in self.containers:
            if isinstance(container, list):
                container[:] = content
            else:
                container.clear()
                container.update(content)


# What every module has and running one does not change: not worth a copy.
_UNTOUCHED = frozenset(nn.Module().__dict__) - {"_parameters", "_buffers", "_modules"}


def _is_container(value: Any) -> bool:
    return isinstance(value, (list, dict, set))


def _copied(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value.copy()
