"""Parameters and buffers of modules bound to the tensors of a checkpoint, by name.

All is compared before anything is changed. Must not read a weight, but where a checkpoint has one
parameter twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from lostwax.checkpoints.headers import StoredTensor, name_some
from lostwax.checkpoints.reading import StoredReader
from lostwax.errors import LoadError
from lostwax.identity import ByIdentity
from lostwax.ir.data import SHARD
from lostwax.ir.shards import cut_shard, describe_mesh, describe_placements, is_dtensor


class _TensorSlot(NamedTuple):
    """A place of a module that holds a tensor."""

    name: str
    holder: dict[str, Any]
    key: str
    tensor: torch.Tensor
    is_kept: bool
    """Is it in the module's state_dict?"""


def bind(modules: list[nn.Module], reader: StoredReader) -> list[str]:
    """Put the tensors of a checkpoint into modules; return what of both has no counterpart."""
    slots = [slot for module in modules for slot in _list_slots(module)]
    names: ByIdentity[torch.Tensor, list[str]] = ByIdentity()
    for slot in slots:
        names.setdefault(slot.tensor, []).append(slot.name)
    _check(slots, names, reader.stored)
    bound: ByIdentity[torch.Tensor, torch.Tensor] = ByIdentity()
    for slot in slots:
        stored = [n for n in names[slot.tensor] if n in reader.stored]
        if stored and slot.is_kept:
            found = bound.get(slot.tensor)
            if found is None:
                found = _make(reader, stored, slot.tensor)
                bound[slot.tensor] = found
            slot.holder[slot.key] = found
    return _describe_others(slots, names, reader.stored)


def _list_slots(module: nn.Module) -> Iterator[_TensorSlot]:
    for prefix, inner in module.named_modules(remove_duplicate=False):
        for holder in (inner._parameters, inner._buffers):
            for key, tensor in holder.items():
                if tensor is not None:
                    name = f"{prefix}.{key}" if prefix else key
                    is_kept = key not in inner._non_persistent_buffers_set
                    yield _TensorSlot(name, holder, key, tensor, is_kept)


def _make(reader: StoredReader, names: list[str], old: torch.Tensor) -> torch.Tensor:
    found, *others = (reader.read(name) for name in names)
    for name, other in zip(names[1:], others, strict=True):
        if not torch.equal(found, other):
            raise LoadError(
                f"{names[0]} and {name} are one parameter of the model, and differ in the "
                "checkpoint\n  instead: build the model with both of them (tie_word_embeddings="
                "False)"
            )
    if is_dtensor(old):
        return _make_shard(found, old)
    if isinstance(old, nn.Parameter):
        return nn.Parameter(found, requires_grad=old.requires_grad)
    return found


def _make_shard(stored: torch.Tensor, old: Any) -> torch.Tensor:
    """The shard that this rank has, a view of the file, as a DTensor like the old one."""
    placements = describe_placements(old.placements)
    if placements is None:
        raise LoadError(
            f"a parameter is cut by {list(old.placements)}\n  instead: Shard or Replicate"
        )
    mesh = describe_mesh(old.device_mesh)
    names, context = old.__tensor_flatten__()
    parts = {name: getattr(old, name) for name in names}
    parts[SHARD] = cut_shard(stored, placements, mesh)
    made = type(old).__tensor_unflatten__(parts, context, old.size(), old.stride())
    if isinstance(old, nn.Parameter):
        return nn.Parameter(made, requires_grad=old.requires_grad)
    return made  # type: ignore[no-any-return]


def _check(
    slots: list[_TensorSlot],
    names: ByIdentity[torch.Tensor, list[str]],
    stored: Mapping[str, StoredTensor],
) -> None:
    lacking, sizes, dtypes = list[str](), list[str](), list[str]()
    for name, _, _, tensor, is_kept in slots:
        entry = stored.get(name) if is_kept else None
        if entry is None:
            if tensor.is_meta and not any(n in stored for n in names[tensor]):
                lacking.append(name)
        elif entry.shape != tuple(tensor.shape):
            sizes.append(f"{name} is {list(entry.shape)} there, {list(tensor.shape)} in the model")
        elif entry.dtype != tensor.dtype:
            dtypes.append(f"{name} is {entry.dtype} there, {tensor.dtype} in the model")
    told = [
        *_tell("not in the checkpoint", lacking),
        *_tell("of other shapes", sizes),
        *_tell("of other dtypes", dtypes),
    ]
    if told:
        raise LoadError(
            "\n  ".join(["the checkpoint is not this model's", *told, _propose(dtypes, stored)])
        )


def _tell(what: str, names: list[str]) -> list[str]:
    return [f"{len(names)} {what}: {name_some(names)}"] if names else []


def _propose(dtypes: list[str], stored: Mapping[str, StoredTensor]) -> str:
    if not dtypes:
        return "instead: the class and the configuration of what was saved"
    return f"instead: with checkpoint.on_meta(dtype={usual_dtype(stored)}): …"


def usual_dtype(stored: Mapping[str, StoredTensor]) -> torch.dtype:
    """The dtype of most bytes among floating point tensors."""
    counts: dict[torch.dtype, int] = {}
    for each in stored.values():
        if each.dtype.is_floating_point:
            counts[each.dtype] = counts.get(each.dtype, 0) + each.stop - each.start
    return max(counts, key=lambda dtype: counts[dtype], default=torch.float32)


def _describe_others(
    slots: list[_TensorSlot],
    names: ByIdentity[torch.Tensor, list[str]],
    stored: Mapping[str, StoredTensor],
) -> list[str]:
    known = {slot.name for slot in slots if slot.is_kept}
    extra = [name for name in stored if name not in known]
    kept = [s.name for s in slots if s.is_kept and not any(n in stored for n in names[s.tensor])]
    return [
        *_tell("tensors of the checkpoint have no place in the model", extra),
        *_tell("buffers are not in the checkpoint, and stay as the model makes them", kept),
    ]
