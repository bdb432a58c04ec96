"""The state of the module being captured: fakes replace it, and afterwards everything is put back,
also when the capture fails.

What the call left behind becomes part of the program, is reported, or refused. Must not copy a
weight.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, repeat
from types import FunctionType
from typing import Any, NamedTuple, NoReturn
from weakref import ref

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lostwax.cache import PerClass
from lostwax.capture.heap.contents import key_of, list_items, stands_for
from lostwax.capture.heap.edges import extra_parts
from lostwax.capture.heap.held_by_modules import open_unsnapshotted
from lostwax.capture.heap.holders import MISSING, ModuleAttributes, items
from lostwax.capture.heap.places import Places
from lostwax.capture.heap.snapshot import REGISTRIES, HeldValue, Snapshot
from lostwax.capture.python.assignments import line_that_sets
from lostwax.capture.state.unkept_changes import note_change, note_silent_change, warn_of_change
from lostwax.classes import SYMBOLIC, TENSORS
from lostwax.errors import CaptureError
from lostwax.fake.tensor import FakeTensor, storage_key
from lostwax.ir.run.held import find_held as held_by
from lostwax.location import Location
from lostwax.types import TensorType
from lostwax.undo.undo import Undo


class StateSlot:
    """One parameter or buffer: the real tensor and all of its names."""

    __slots__ = ("is_persistent", "kind", "name", "names", "tensor")

    kind: str
    """"parameter" or "buffer"."""
    name: str
    """The first of its names."""
    tensor: torch.Tensor
    names: list[str]
    is_persistent: bool
    """Is its first name in the `state_dict`? Its other names may be, or not."""


class KeptTensor(NamedTuple):
    """A tensor that the call left in a module, in a place where there was none."""

    where: str
    name: str
    tensor: Any
    is_shared: bool = False
    """Is it an attribute of the class, which all its modules share?"""
    is_registered: bool = False
    """Is it a parameter or a buffer, which a `state_dict` shows?"""


class ModuleState:
    """The parameters and buffers of a module. A tied one is one slot."""

    def __init__(self, root: nn.Module, differentiates: bool = False) -> None:
        """`differentiates`: gradients of DTensors are recorded, too."""
        self.root = root
        self.paths: dict[int, str] = {}
        """The first path of each module, by the module's id."""
        self.modules: list[nn.Module] = []
        parameters: dict[int, StateSlot] = {}
        buffers: dict[int, StateSlot] = {}
        self.places = _walk_modules(root)
        """Every module with each of its paths, outer ones first."""
        self.persistent: dict[str, torch.Tensor] = {}
        """The tensors in the module's `state_dict`, in its order."""
        self.non_persistent: dict[str, torch.Tensor] = {}
        """The buffers that are not in it."""
        self._wrappers: dict[str, tuple[Any, bool]] = {}
        """Those that are made of others, which are buffers then; and whether they are not
        persistent."""
        self._fake_wrappers: dict[str, Any] = {}
        """What is in their places while the module runs."""
        for path, module in self.places:
            if id(module) not in self.paths:
                self.paths[id(module)] = path
                self.modules.append(module)
            if module._parameters:
                self._collect_slots(parameters, "parameter", path, module._parameters, ())
            if module._buffers:
                non_persistent = module._non_persistent_buffers_set
                self._collect_slots(buffers, "buffer", path, module._buffers, non_persistent)
        if any(map(_IS_SCRIPTED.__getitem__, map(type, self.modules))):
            self._refuse_scripted()
        left = list(self._wrappers.items())
        for path, (wrapper, is_apart) in left:
            parts = _take_apart(path, wrapper, differentiates)
            known = len(self._wrappers)
            if wrapper.requires_grad and differentiates:
                self._collect_slots(parameters, "parameter", path, parts, ())
            else:
                self._collect_slots(buffers, "buffer", path, parts, parts if is_apart else ())
            left += list(self._wrappers.items())[known:]
        self.slots = [*parameters.values(), *buffers.values()]
        self.parameters = len(parameters)
        """How many of the slots are parameters; these come first."""
        for slot in self.slots[: self.parameters]:
            if not isinstance(slot.tensor, nn.Parameter):  # a shard of one
                whole = nn.Parameter(slot.tensor)
                self.persistent.update(dict.fromkeys(slot.names, whole))
        self._saved: Snapshot | None = None

    def _refuse_scripted(self) -> NoReturn:
        module = next(m for m in self.modules if _IS_SCRIPTED[type(m)])
        path = self.paths[id(module)]
        raise _scripted_error(module, f"the module {path or 'to export'}", "export")

    def _collect_slots(
        self,
        slots: dict[int, StateSlot],
        kind: str,
        owner: str,
        held: Mapping[str, torch.Tensor | None],
        non_persistent: Collection[str],
    ) -> None:
        prefix = f"{owner}." if owner else ""
        persistent = self.persistent
        for name, tensor in held.items():
            if tensor is not None:
                path = prefix + name
                if type(tensor) not in TENSORS and is_traceable_wrapper_subclass(tensor):
                    self._wrappers[path] = tensor, name in non_persistent
                    continue
                slot = slots.get(id(tensor))
                if slot is None:
                    slot = slots[id(tensor)] = StateSlot()
                    slot.kind = kind
                    slot.name = path
                    slot.tensor = tensor
                    slot.names = [path]
                    slot.is_persistent = name not in non_persistent
                else:
                    slot.names.append(path)
                if name in non_persistent:
                    self.non_persistent[path] = tensor
                else:
                    persistent[path] = tensor

    @property
    def fake_wrappers(self) -> dict[str, torch.Tensor]:
        """What stands in their places while the module is captured."""
        return self._fake_wrappers

    @property
    def wrappers(self) -> dict[str, torch.Tensor]:
        """The tensors that are made of others, by name."""
        return {name: wrapper for name, (wrapper, _) in self._wrappers.items()}

    def replace(
        self,
        attributes: ModuleAttributes,
        fakes: Mapping[int, torch.Tensor],
        places: Places,
        undo: Undo,
    ) -> None:
        """Replace each parameter and buffer by its fake (found by the tensor's id) until the end.
        What modules hold and we do not know all of is added to the places."""
        saved = self._saved = Snapshot(attributes)
        undo.add(saved.restore)
        if self._wrappers:
            fakes = dict(fakes)
            for wrapper, _ in reversed(self._wrappers.values()):  # inner ones first
                fakes[id(wrapper)] = _wrap_fakes(wrapper, fakes)
            wrappers = self._wrappers.items()
            self._fake_wrappers = {path: fakes[id(wrapper)] for path, (wrapper, _) in wrappers}
        saved.replace(fakes)
        open_unsnapshotted(places, saved)

    def list_changed(self) -> Iterator[tuple[Any, Any]]:
        """What modules hold that is not as it was given, with its key."""
        changes = self._saved.list_changes() if self._saved is not None else ()
        return ((key_of(held), held) for held, _ in changes)

    def find_changes(
        self,
        fakes: Mapping[int, Any],
        read: Collection[torch.Tensor],
        ran: Sequence[FunctionType],
        constants: Mapping[int, int],
    ) -> tuple[dict[str, torch.Tensor], list[KeptTensor]]:
        """What the call left behind: the buffers that now hold another tensor, and tensors in
        places where a program does not keep them. `read` are the tensors from outside that the
        program reads, `ran` the user's functions that ran; `constants` are the ids of constants
        by those of what a recorder knows of their fakes.
        """
        assert self._saved is not None
        if self._saved.is_untouched():
            return {}, []
        self._check_tensors(self._saved)
        found = self.find_reassigned(fakes)
        self.check_memory_apart(fakes)
        read = [*read, *(tensor for tensor in found.values() if is_from_outside(tensor))]
        kept = [
            *self._find_registered(),
            *self._find_attributes(self._saved, fakes, read, constants),
        ]
        if not kept:  # otherwise the caller checks whether the next call leaves the same
            self._warn_of_values(self._saved, ran, fakes)
        return found, kept

    def find_reassigned(self, fakes: Mapping[int, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The buffers that now hold another tensor (`self.buf = self.buf + 1`)."""
        found: dict[str, torch.Tensor] = {}
        for slot in self.slots:
            held = [self._held_tensor(slot, name) for name in slot.names]
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
                self._check_kind(slot, held[0])
                found[slot.name] = held[0]
        return found

    def _check_kind(self, slot: StateSlot, held: torch.Tensor) -> None:
        """Refuse a parameter in the place of a buffer: it would have a gradient. Also refuse a
        buffer that has left the `state_dict`, or entered it."""
        for name in slot.names if slot.kind == "buffer" else ():
            module, leaf = self._find_owner(name)
            if module._parameters.get(leaf) is held:
                raise CaptureError(
                    f"the buffer {name} is replaced by a parameter.\n"
                    "  why: a program's state keeps its kinds; the next call would find a "
                    "parameter, with a gradient\n"
                    f"  instead: write into it, self.{name}.copy_(...), or assign a tensor, "
                    f"self.{name} = x.detach().clone()"
                )
            if (leaf in module._non_persistent_buffers_set) is (name in self.persistent):
                now = "persistent" if name in self.non_persistent else "not persistent"
                raise CaptureError(
                    f"the buffer {name} is registered again, and is {now} from then on.\n"
                    "  why: a program's state_dict has the same names after a call as before\n"
                    f"  instead: assign it, self.{name} = ..., and register it once as it is to be"
                )

    def _held_tensor(self, slot: StateSlot, name: str) -> torch.Tensor | None:
        module, leaf = self._find_owner(name)
        if isinstance(module, torch.Tensor):
            return getattr(module, leaf, None)
        found = (module._parameters if slot.kind == "parameter" else module._buffers).get(leaf)
        return getattr(module, leaf, None) if found is None else found

    def _find_owner(self, name: str) -> tuple[Any, str]:
        """The module that holds the tensor of this name, and its name there."""
        owner, _, leaf = name.rpartition(".")
        module: Any = self.root
        for part in owner.split(".") if owner else ():
            module = held_by(module, part)
        return module, leaf

    def check_memory_apart(self, fakes: Mapping[int, Any]) -> None:
        """Refuse state that did not share memory before the call and does now: a program keeps
        one tensor for each."""
        owners: dict[int, StateSlot] = {}
        for slot in self.slots:
            held: Any = self._held_tensor(slot, slot.name)
            before: Any = fakes[id(slot.tensor)]
            other = owners.setdefault(id(getattr(held, "fake_storage", held)), slot)
            if other is slot:
                continue
            if fakes[id(other.tensor)].fake_storage is not before.fake_storage:
                raise CaptureError(
                    f"{other.name} and {slot.name} share memory after the call, and did not "
                    "before.\n  why: a later write to one would have to show in the other\n"
                    f"  instead: assign a copy, self.{slot.name} = x.clone()"
                )
            for each in (other, slot):
                now: Any = self._held_tensor(each, each.name)
                root = getattr(now, "tracked", None) and now.tracked.root
                if any(
                    fakes[id(s.tensor)].tracked.root is root for s in self.slots if s is not each
                ):
                    raise CaptureError(
                        f"{other.name} and {slot.name} share memory, and one is put in the place "
                        "of the other.\n  why: a program keeps one tensor for each\n"
                        f"  instead: write into it, self.{each.name}.copy_(...), or assign a copy, "
                        f"self.{each.name} = x.clone()"
                    )

    def find_attribute_paths(self) -> dict[int, list[str]]:
        """The paths of tensors in plain attributes, by the tensor's id. Modules of programs hold
        their constants in a table."""
        found: dict[int, list[str]] = {}
        for module in self.modules:
            path = self.paths[id(module)]
            is_of_program = getattr(type(module), "_holds_constants", False)
            named = module.__dict__["_constants"] if is_of_program else {}
            for name, value in (*named.items(), *module.__dict__.items()):
                if isinstance(value, torch.Tensor):
                    found.setdefault(id(value), []).append(f"{path}.{name}" if path else name)
        return found

    def _find_registered(self) -> Iterator[KeptTensor]:
        """Parameters and buffers that the call has registered: the program has no such state."""
        known = {name for slot in self.slots for name in slot.names}
        for path, module in _walk_modules(self.root):
            prefix = f"{path}." if path else ""
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is not None and prefix + name not in known:
                    if self._fake_wrappers.get(prefix + name) is tensor:
                        continue
                    note_change(f"the module registers {prefix + name}")
                    yield KeptTensor(prefix + name, name, tensor, is_registered=True)

    def _find_attributes(
        self,
        saved: Snapshot,
        fakes: Mapping[int, Any],
        read: Collection[torch.Tensor],
        constants: Mapping[int, int],
    ) -> Iterator[KeptTensor]:
        """Tensors that the call left in plain attributes: a program loses them between two runs.
        Those that each run makes before it reads them do not count. We note each tensor in the
        place of another one, and each that was there before the call: whoever holds the module
        finds it there. (Others, if they are no mistake, are caches.)"""
        own = {id(fake): tensor for tensor, fake in fakes.items()}
        of_modules = zip(chain.from_iterable(self._module_values(saved)), repeat(False))
        of_classes = zip(chain.from_iterable(self._class_values(saved)), repeat(True))
        for at, is_shared in chain(of_modules, of_classes):
            found = at.value
            ids = id(found), own.get(id(found)), constants.get(id(getattr(found, "tracked", None)))
            if isinstance(found, torch.Tensor) and at.known.isdisjoint(ids):
                is_old = id(found) in own or is_from_outside(found)
                if is_old or isinstance(at.before, torch.Tensor):
                    note_change(f"the module puts another tensor into its attribute {at.where}")
                before = at.before if at.is_attribute else None
                if not _is_made_anew(before, found, read):
                    yield KeptTensor(at.where, at.name, found, is_shared)

    def _warn_of_values(
        self, saved: Snapshot, ran: Sequence[FunctionType], fakes: Mapping[int, Any]
    ) -> None:
        """Tell of plain values that the call set in attributes, and of tensors that it moved
        within a container: a program loses them, too."""
        own = {id(fake): tensor for tensor, fake in fakes.items()}
        for values in self._values_now(saved):
            others = [each for each in values if _is_other(each)]
            changed = (each for each in others if _is_changed_value(each) or _is_moved(each, own))
            if (at := next(changed, None)) is None:
                if objects := [each for each in others if not _leads_to_tensor(each.value)]:
                    note_silent_change(f"the module changes its attribute {objects[0].where}")
            else:
                text = _TAKEN_AWAY if at.value is MISSING else _KEPT_VALUE
                text = _MOVED if isinstance(at.value, torch.Tensor) else text
                line = line_that_sets(_name_in_code(at), ran)
                told = "" if line is None else f" ({line})"
                warn_of_change(text.format(at.where, at.before, at.value, told))

    def _values_now(self, saved: Snapshot) -> Iterator[Iterator[HeldValue]]:
        """What modules and their classes hold now, attribute by attribute."""
        yield from self._module_values(saved)
        yield from self._class_values(saved)

    def _module_values(self, saved: Snapshot) -> Iterator[Iterator[HeldValue]]:
        for module, attributes in zip(self.modules, saved.attributes, strict=True):
            path = self.paths[id(module)]
            prefix = f"{path}." if path else ""
            yield from _attribute_values(saved, prefix, module.__dict__, attributes)
            for part in extra_parts(module):
                yield from _attribute_values(saved, prefix, *_compare(saved, part))

    def _class_values(self, saved: Snapshot) -> Iterator[Iterator[HeldValue]]:
        for each in saved.classes:
            prefix = f"{each.owner.__qualname__}."
            yield from _attribute_values(saved, prefix, *_compare(saved, each))

    def _check_tensors(self, saved: Snapshot) -> None:
        """Refuse changes of tensors that are no state: to a program they are constants."""
        changed = {id(each.tensor): each.describe_changes() for each in saved.tensors}
        for at in chain.from_iterable(self._values_now(saved)):
            for change in changed.get(id(at.value), ()):
                raise CaptureError(
                    f"the tensor in the attribute {at.where} {change}.\n"
                    "  why: it is a constant of the program, no state of the module\n"
                    f'  instead: register a buffer, self.register_buffer("{at.name}", ...), and '
                    f"write to it; or change a copy, x = self.{at.where}.clone()"
                )


_IS_SCRIPTED = PerClass(__name__, "scripted", lambda cls: issubclass(cls, torch.jit.ScriptModule))
"""Is it a class of TorchScript?"""


def refuse_scripted(error: TypeError) -> None:
    """If the error comes from a call of a scripted module, raise one that says so."""
    at = error.__traceback__
    while at is not None:
        module = at.tb_frame.f_locals.get("self")
        if isinstance(module, torch.jit.ScriptModule):
            raise _scripted_error(module, "a module that is called", "call") from error
        at = at.tb_next


def _scripted_error(module: nn.Module, what: str, do: str) -> CaptureError:
    name = getattr(module, "original_name", "")
    return CaptureError(
        f"{what} is a {type(module).__name__} of TorchScript "
        f"(torch.jit.script or trace{f' of {name}' if name else ''}).\n"
        "  why: TorchScript keeps its weights and its code to itself, a capture sees neither\n"
        f"  instead: {do} the module that it was made of, before torch.jit.script(...) or "
        "torch.jit.trace(...)"
    )


def _take_apart(path: str, wrapper: Any, differentiates: bool) -> dict[str, torch.Tensor]:
    """The tensors that a tensor of a class of its own is made of."""
    from lostwax.ir.shards import is_dtensor

    is_shard = is_dtensor(wrapper)
    if wrapper.requires_grad and torch.is_grad_enabled() and not (is_shard and differentiates):
        joint = "; lostwax.export_joint records gradients of DTensors" * is_shard
        raise CaptureError(
            f"{path} is a {type(wrapper).__name__}, which is made of other tensors, and requires "
            "gradients.\n  why: a program has the tensors that it is made of, as buffers\n"
            f"  instead: module.requires_grad_(False), or export it under torch.no_grad(){joint}"
        )
    found = {name: getattr(wrapper, name) for name in wrapper.__tensor_flatten__()[0]}
    return {name: part for name, part in found.items() if isinstance(part, torch.Tensor)}


def _wrap_fakes(wrapper: Any, fakes: Mapping[int, torch.Tensor]) -> torch.Tensor:
    """A tensor of the wrapper's class, made of the fakes of what that is made of."""
    names, context = wrapper.__tensor_flatten__()
    held = {name: getattr(wrapper, name) for name in names}
    parts = {name: fakes.get(id(part), part) for name, part in held.items()}
    made = type(wrapper).__tensor_unflatten__(parts, context, wrapper.size(), wrapper.stride())
    made._is_param = isinstance(wrapper, nn.Parameter)
    return made  # type: ignore[no-any-return]


def _compare(saved: Snapshot, place: Any) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """What is in a place, and what was."""
    return dict(items(place)), dict(list_items(saved.content_before(place)) or ())


def _attribute_values(
    saved: Snapshot, prefix: str, now: Mapping[str, Any], before: Mapping[str, Any]
) -> Iterator[Iterator[HeldValue]]:
    for name in dict.fromkeys((*now, *before)):
        if name not in REGISTRIES:
            value, was = now.get(name, MISSING), before.get(name, MISSING)
            yield saved.held_values(f"{prefix}{name}", name, value, was)


def _leads_to_tensor(value: Any) -> bool:
    """Is it a tensor, or refers to one, as recurrent layers do to their weights?"""
    return isinstance(value() if type(value) is ref else value, torch.Tensor)


def _is_other(at: HeldValue) -> bool:
    return at.value is not at.before and not stands_for(at.value, at.before)


def _is_changed_value(at: HeldValue) -> bool:
    """Is it a plain value that was a different one, or a value that is gone?"""
    if at.value is MISSING:
        return isinstance(at.before, (*PLAIN, torch.Tensor))
    if not isinstance(at.value, PLAIN):
        return False
    return type(at.value) is not type(at.before) or at.value != at.before


def _is_moved(at: HeldValue, own: Mapping[int, int]) -> bool:
    """Is it a tensor that its container held before at another key? `own` maps the id of a fake
    to the id of its tensor."""
    if at.is_attribute or not isinstance(at.value, torch.Tensor):
        return False
    ids = id(at.value), own.get(id(at.value))
    return id(at.before) not in ids and not at.known.isdisjoint(ids)


def _name_in_code(at: HeldValue) -> str:
    """Its name in the user's code: the attribute, or the variable in a function's closure."""
    is_variable = at.name == "closure" and at.where.startswith("closure['")
    return at.where.split("'")[1] if is_variable else at.name


PLAIN = (
    int, float, complex, str, bytes, type(None), torch.dtype, torch.device, *SYMBOLIC,
)  # fmt: skip
_TAKEN_AWAY = (
    "the module takes away {0}, which was {1!r}{3}; the program keeps no such state: every run of "
    "it begins with what was there at capture."
)
_MOVED = (
    "the module puts a tensor that it holds into {0}, where it was not{3}; the program keeps no "
    "such state: every run of it begins with what was there at capture."
)
_KEPT_VALUE = (
    "the module sets its attribute {0}, which was {1!r}, to {2!r}{3}; the program keeps no such "
    "state: every run of it begins with what it was at capture. A buffer would be kept."
)


def _is_made_anew(before: Any, now: Any, read: Collection[torch.Tensor]) -> bool:
    """Is it a tensor that each run makes before reading it? (The old `weight_norm` does that.)"""
    return (
        isinstance(before, torch.Tensor)
        and (before.shape, before.dtype) == (now.shape, now.dtype)
        and not any(storage_key(before) == storage_key(each) for each in read)
    )


def is_from_outside(value: Any) -> bool:
    """Is it a real tensor, made before the call?"""
    return isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)


def kept_tensor_error(kept: KeptTensor, because: str) -> CaptureError:
    """The error that refuses it: a program has no place for it."""
    from lostwax.ir.text import list_frames

    tracked = getattr(kept.tensor, "tracked", None)
    step = tracked.value.step if tracked is not None else None
    meta: dict[str, Any] = {"stack_trace": ""}
    if step is not None:
        step.place.describe(step.target, meta)
    frames = list_frames(meta["stack_trace"])[-1:]
    at = "".join(f"\n  at {Location(file, int(line), name)}" for file, line, name, _ in frames)
    return CaptureError(
        f"the module keeps a tensor in the attribute {kept.where}.{at}\n"
        "  why: the program has no such state, the next run would not find it\n"
        f"  and it is not taken for a cache: {because}\n"
        f'  instead: register a buffer, self.register_buffer("{kept.name}", ...), '
        "before exporting and write to it; or, if only the first call makes it, call the module "
        "once under torch.no_grad() before exporting: then it is a constant of the program; or, if "
        f"the next call does not read it, take it away before forward returns, {_removal(kept)}"
        f"{_GROWN if _is_symbolic(kept.tensor) else ''}"
    )


def warn_of_unread_cache(kept: KeptTensor, ran: Sequence[FunctionType]) -> None:
    """Warn of a tensor that only others than the program could read."""
    line = line_that_sets(kept.name, ran)
    warn_of_change(
        f"the module keeps a tensor in the attribute {kept.where}{f', at {line}' if line else ''}; "
        "the next call does not read it, so the program does without: after a run of it the "
        "attribute is what it was before. Return the tensor if it is needed."
    )


def _is_symbolic(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor) and tensor.fake_type.is_symbolic


def _removal(kept: KeptTensor) -> str:
    """The statement that takes it away."""
    is_held = kept.where.endswith(("]", ")"))
    path = f"self.{kept.where}" if "." not in kept.where else kept.where
    return f"del {path}" if is_held else f"{path} = None"


def check_replacement_type(slot: StateSlot, before: TensorType, now: TensorType) -> None:
    """Refuse a tensor in a buffer's place that has another size or dtype."""
    if (before.size, before.dtype) != (now.size, now.dtype):
        grown = _GROWN if now.is_symbolic else ""
        raise CaptureError(
            f"the {slot.kind} {slot.name} is replaced by a tensor of size {tuple(now.size)} and "
            f"{now.dtype}; it was of size {tuple(before.size)} and {before.dtype}.\n"
            "  why: a program's state keeps its types, the next run counts on them\n"
            f"  instead: register it with the size and dtype it will have{grown}"
        )


_GROWN = (
    "; if it is a table that grows with the inputs, call the module once with the largest before "
    'exporting, so that it is large enough, and declare that, Dim("length", max=...)'
)


def _walk_modules(root: nn.Module) -> list[tuple[str, nn.Module]]:
    """Every module with its path, outer ones first. A module with several paths comes once for
    each."""
    found: list[tuple[str, nn.Module]] = []

    def visit(prefix: str, children: Mapping[str, nn.Module | None]) -> None:
        for name, child in children.items():
            if child is not None:
                path = prefix + name
                found.append((path, child))
                inner = child._modules
                if inner:
                    visit(f"{path}.", inner)

    found.append(("", root))
    visit("", root._modules)
    return found
