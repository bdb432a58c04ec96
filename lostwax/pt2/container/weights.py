"""Parameters, buffers and constants in files: raw bytes, and a table that says what lies where.

Tensors that share memory share a record, also between the programs of one archive. In torch's table
a record has one dtype, and belongs either to parameters and buffers or to constants. Tensors that
share memory beyond that, or must not share it in torch, have several records, and our own record
says where each tensor lies in the first of them. Reading gives views into the mapped file, within
the bounds of their record. Must not copy what can be a view.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from lostwax.classes import TENSORS
from lostwax.errors import LoadError, SaveError
from lostwax.fake import FakeTensor, FakeTensorMode
from lostwax.fake.convert import type_of
from lostwax.fake.tensor import new_fake
from lostwax.identity import ByIdentity, Seen
from lostwax.memory import byte_span
from lostwax.pt2.container.archive import Archive
from lostwax.pt2.container.references import FOLDER, CheckpointFiles, Reference, References
from lostwax.pt2.limits import MAX_DIMS, MAX_SIZE
from lostwax.pt2.schema import DTYPE_NUMBERS, DTYPES, LAYOUT_NUMBERS, STATE_NAMES, WEIGHTS
from lostwax.types import TensorType

Json = Mapping[str, Any]


# ------------------------------------------------------------------------------------------ writing


@dataclass
class _StorageSpan:
    """A stretch of one storage, from the first to the last byte that tensors of one dtype use."""

    number: int
    tensor: torch.Tensor
    low: int
    high: int

    def data(self) -> memoryview:
        if self.low == self.high:
            return memoryview(b"")
        storage = self.tensor.untyped_storage()
        if storage.device.type != "cpu":
            storage = storage.cpu()
        flat = torch.empty(0, dtype=torch.uint8).set_(storage)
        data: Any = flat.numpy()
        return memoryview(data)[self.low : self.high]


class Payloads:
    """The memory that the tensors of an archive need, each stretch once."""

    def __init__(self, prefix: str, references: References | None = None) -> None:
        self.prefix = prefix
        self._references = references
        self.fake = 0
        """Tensors without data, of which the file keeps the type only."""
        self._memories: dict[Any, _StorageSpan] = {}
        self._apart = Seen()

    def keep_apart(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give these tensors records of their own. To be called before they are added."""
        for tensor in tensors:
            self._apart.add(tensor)

    def _key(self, tensor: torch.Tensor) -> Any:
        return id(tensor) if tensor in self._apart else _memory_key(tensor)

    def add(self, name: str, tensor: torch.Tensor) -> None:
        _check_kind(name, tensor)
        if self.refer(tensor) is not None:
            return
        low, high = _extent(tensor)
        key = self._key(tensor)
        known = self._memories.get(key)
        if known is None:
            self._memories[key] = _StorageSpan(len(self._memories), tensor, low, high)
            self.fake += _is_fake(tensor)
        elif high > low:
            empty = known.low == known.high
            known.low = low if empty else min(low, known.low)
            known.high = high if empty else max(high, known.high)

    def refer(self, tensor: torch.Tensor) -> Reference | None:
        """Where a tensor lies in a checkpoint, if it is to stay there."""
        is_known = self._references is not None and not _is_fake(tensor)
        return self._references.find(tensor) if is_known and self._references else None

    def config(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """The table of these tensors, all of which were added. torch's reader asks the first tensor
        of a record whether the record has a gradient, so tensors without one come first."""
        return {"config": {name: self._entry(tensors[name]) for name in _in_order(tensors)}}

    def memories(self) -> list[_StorageSpan]:
        return list(self._memories.values())

    def records(self) -> list[tuple[str, _StorageSpan]]:
        return [(self.record_name(m), m) for m in self._memories.values()]

    def record_name(self, memory: _StorageSpan) -> str:
        return f"{self.prefix}{memory.number}"

    def _place(self, tensor: torch.Tensor) -> tuple[str, int]:
        """The record of a tensor, and its place there, in elements."""
        reference = self.refer(tensor)
        if reference is not None:
            return f"{FOLDER}{reference.file}", reference.offset // tensor.dtype.itemsize
        memory = self._memories[self._key(tensor)]
        offset = 0
        if not _is_fake(tensor):
            offset = int(tensor.storage_offset()) - memory.low // tensor.dtype.itemsize
        return self.record_name(memory), offset

    def _entry(self, tensor: torch.Tensor) -> dict[str, Any]:
        record, offset = self._place(tensor)
        return {
            "path_name": record,
            "is_param": isinstance(tensor, nn.Parameter) or getattr(tensor, "_is_param", False),
            "use_pickle": False,
            "tensor_meta": {
                "dtype": DTYPE_NUMBERS[tensor.dtype],
                "sizes": [{"as_int": int(s)} for s in tensor.shape],
                "requires_grad": tensor.requires_grad,
                "device": device_json(tensor.device),
                "strides": [{"as_int": int(s)} for s in tensor.stride()],
                "storage_offset": {"as_int": max(offset, 0)},
                "layout": LAYOUT_NUMBERS[tensor.layout],
            },
        }


class Sharing:
    """What torch's tables cannot say: which names are one tensor, and what shares memory with a
    tensor of another dtype, or with a constant."""

    def __init__(self, folders: Mapping[str, Payloads]) -> None:
        self._first: dict[int, tuple[str, Payloads, _StorageSpan]] = {}
        """Of storages with several records, by identity: the one that has all of it."""
        held: dict[int, list[tuple[str, Payloads, _StorageSpan]]] = {}
        for folder, payloads in folders.items():
            for memory in payloads.memories():
                if not _is_fake(memory.tensor):
                    storage = memory.tensor.untyped_storage()._cdata
                    held.setdefault(storage, []).append((folder, payloads, memory))
        for storage, records in held.items():
            if len(records) > 1:
                self._first[storage] = min(records, key=lambda each: each[2].tensor.itemsize)
                whole = self._first[storage][2]
                used = [m for _, _, m in records if m.low < m.high] or [whole]
                whole.low = min(m.low for m in used) // 16 * 16  # as every dtype wants it
                whole.high = max(m.high for m in used)

    def describe(
        self, tensors: Mapping[str, torch.Tensor], others: Mapping[str, torch.Tensor] | None = None
    ) -> dict[str, Any]:
        """Our own record of these tensors. `others` are the tensors of the folder before."""
        first = ByIdentity[torch.Tensor, str]()
        for name, tensor in (others or {}).items():
            first.setdefault(tensor, name)
        tied = {n: f for n, t in tensors.items() if (f := first.setdefault(t, n)) != n}
        lying = {n: at for n, t in tensors.items() if (at := self._place(t)) is not None}
        names = list(tensors) if _in_order(tensors) != list(tensors) else []
        return {"names": names, "tied": tied, "lying": lying}

    def _place(self, tensor: torch.Tensor) -> list[Any] | None:
        """The folder, the record, and the place in it in bytes."""
        if _is_fake(tensor):
            return None
        found = self._first.get(tensor.untyped_storage()._cdata)
        if found is None or tensor.numel() == 0:
            return None
        folder, payloads, memory = found
        offset = int(tensor.storage_offset()) * tensor.itemsize - memory.low
        return [folder, payloads.record_name(memory), offset]


def _in_order(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """The names, those without a gradient first if they share a record with one that has one."""
    kinds = {(_memory_key(t), t.requires_grad) for t in tensors.values()}
    is_mixed = len({key for key, _ in kinds}) < len(kinds)
    return sorted(tensors, key=lambda n: tensors[n].requires_grad) if is_mixed else list(tensors)


def device_json(device: torch.device) -> dict[str, Any]:
    return {"type": device.type, "index": device.index}


def _is_fake(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor) or tensor.is_meta


def _memory_key(tensor: torch.Tensor) -> Any:
    if _is_fake(tensor):
        return id(tensor)
    return tensor.untyped_storage()._cdata, tensor.dtype


def _check_kind(name: str, tensor: torch.Tensor) -> None:
    what = None
    if type(tensor) not in (*TENSORS, FakeTensor):
        what = f"a {type(tensor).__module__}.{type(tensor).__qualname__}"
    elif tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        what = "not a plain strided tensor"
    elif tensor.dtype not in DTYPE_NUMBERS:
        what = f"of {tensor.dtype}"
    elif tensor.is_conj() or tensor.is_neg():
        what = "a conjugated or negated view"
    if what is not None:
        raise SaveError(
            f"{name!r} is {what}, which a .pt2 file has no form for\n"
            "  instead: replace it by an ordinary dense tensor of its values, then export again"
        )


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of the storage that the tensor uses, and the one after the last."""
    is_empty = _is_fake(tensor) or tensor.numel() == 0
    return (0, 0) if is_empty else byte_span(type_of(tensor))  # type: ignore[return-value]


# ------------------------------------------------------------------------------------------ reading


class WeightReader:
    """The tensors of an archive: programs that share a record share the memory.

    Without `data`, and where a record has no bytes, they are fakes of `mode`.
    """

    def __init__(
        self,
        archive: Archive,
        mode: FakeTensorMode,
        data: bool = True,
        folder: str | None = None,
    ) -> None:
        self.archive, self.mode, self.data = archive, mode, data
        self._folder = folder
        """Where the files of a checkpoint are."""
        self._files = CheckpointFiles((), folder)
        self._flat: dict[tuple[str, torch.device], torch.Tensor] = {}
        self._made: dict[Any, torch.Tensor] = {}

    def tensors(
        self,
        folder: str,
        config: Json,
        sharing: Json | None,
        records: Json,
        others: Mapping[str, torch.Tensor] | None = None,
    ) -> dict[str, torch.Tensor]:
        """The tensors of a table, by name. `sharing` is our own record of them, `records` is the
        JSON object of the program, `others` are its tensors in the folder before: a buffer may be
        persistent under one name and not under another."""
        entries = config.get("config")
        if not isinstance(entries, dict):
            raise LoadError(f"the table of {folder} is damaged")
        lying = {} if sharing is None else sharing["lying"]
        self._files = CheckpointFiles(read_own(records, "checkpoint"), self._folder)
        kinds: dict[str, _WeightKind] = {}
        found: dict[str, torch.Tensor] = {}
        name = ""
        try:
            for name in _names_in_order(entries, sharing):
                kinds[name] = _kind(lying.get(name), folder, entries[name])
            first = _find_tied(kinds, records) if sharing is None else sharing["tied"]
            count = Counter[_WeightKind]()
            for name, kind in kinds.items():
                other = first.get(name, name)
                if kinds.get(other) == kind and other in found:
                    found[name] = found[other]
                elif others is not None and other in others and _is_of(others[other], kind):
                    found[name] = others[other]
                else:
                    found[name] = self._tensor(folder, kind, count[kind])
                    count[kind] += 1
        except (LoadError, *_FAULTS) as error:
            raise _name_tensor(error, folder, name) from None
        return found

    def _tensor(self, folder: str, kind: _WeightKind, number: int) -> torch.Tensor:
        """The tensor of this kind and number that a program has in a folder. The same tensor of
        another folder (a buffer that is not persistent) is another object in the same memory."""
        made = self._made.get((folder, kind, number))
        if made is None:
            made = self._made[folder, kind, number] = self._new(*kind)
        return made

    def _new(self, path: str, t: TensorType, is_parameter: bool, grad: bool) -> torch.Tensor:
        grad = grad and (t.dtype.is_floating_point or t.dtype.is_complex)
        needed = _count_bytes(t)
        wants_fake = not self.data or t.device.type == "meta"
        size = 0 if wants_fake else self._window(path)[2]
        if wants_fake or (size == 0 and needed > 0):
            fake = new_fake(self.mode, t, requires_grad=grad)
            if is_parameter:
                fake._is_param = True  # `isinstance(fake, nn.Parameter)` holds
            return fake
        if needed > size:
            raise LoadError(f"it needs {needed} bytes of {path}, which has {size}")
        flat = self._bytes(path, t.device)
        flat = flat[: flat.numel() // t.dtype.itemsize * t.dtype.itemsize].view(t.dtype)
        layout: Any = (t.size, t.stride, t.offset if needed else 0)
        tensor = torch.as_strided(flat, *layout).data  # itself, no view of the bytes
        if is_parameter:
            return nn.Parameter(tensor, requires_grad=grad)
        return tensor.requires_grad_() if grad else tensor

    def _window(self, path: str) -> tuple[Any, int, int]:
        """A buffer, and where in it a record lies, or a whole file of a checkpoint."""
        number = path.removeprefix(WEIGHTS + FOLDER)
        if number == path:
            return self.archive.window(path)
        if not number.isdecimal() or len(number) > 6:
            raise LoadError(f"there is no file of a checkpoint {number!r}")
        file = self._files.map(int(number))
        return file, 0, len(file)

    def _bytes(self, path: str, device: torch.device) -> torch.Tensor:
        """A record as one flat tensor of bytes: a view into the file where that is aligned, and the
        device is the CPU."""
        known = self._flat.get((path, device))
        if known is None:
            buffer, offset, size = self._window(path)
            if size == 0:
                known = torch.empty(0, dtype=torch.uint8)
            elif offset % _ALIGNED == 0:
                known = torch.frombuffer(buffer, dtype=torch.uint8, count=size, offset=offset)
            else:
                copy = bytearray(memoryview(buffer)[offset : offset + size])
                known = torch.frombuffer(copy, dtype=torch.uint8)
            if device.type != "cpu":
                known = _move(known, device)
            self._flat[path, device] = known
        return known


_ALIGNED = 16
"""The size of the largest element."""


class _WeightKind(NamedTuple):
    """What a table says of a tensor."""

    path: str
    type: TensorType
    is_parameter: bool
    grad: bool


def _is_of(tensor: torch.Tensor, kind: _WeightKind) -> bool:
    """Can it be the same tensor as an entry of another folder's table?"""
    return (tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad) == (
        kind.type.size, kind.type.stride, kind.type.dtype, kind.grad
    ) and not kind.is_parameter  # fmt: skip


def _kind(lying: Any, folder: str, entry: Json) -> _WeightKind:
    """`lying` is the place that our own record gives: a folder, a record, a byte."""
    path, meta = entry["path_name"], entry["tensor_meta"]
    if entry.get("use_pickle"):
        raise LoadError("it is pickled, as tensors of other classes are: that is never read")
    if not isinstance(path, str) or not isinstance(meta, dict):
        raise LoadError("it is an object of another language; only tensors are read")
    t, is_parameter, grad = _type(meta), entry["is_param"] is True, meta["requires_grad"] is True
    if lying is None:
        return _WeightKind(folder + path, t, is_parameter, grad)
    where, name, byte = lying
    if not isinstance(where, str) or not isinstance(name, str) or byte.__class__ is not int:
        raise LoadError("the place where it lies is damaged")
    if not 0 <= byte <= MAX_SIZE or byte % t.dtype.itemsize:
        raise LoadError(f"it cannot lie at the byte {byte} of {name}")
    return _WeightKind(where + name, t.replace(offset=byte // t.dtype.itemsize), is_parameter, grad)


_FAULTS = (KeyError, TypeError, ValueError, AttributeError, RuntimeError)


def _name_tensor(error: Exception, folder: str, name: str) -> LoadError:
    """The error that says which tensor could not be read."""
    where = (f"the tensor {name!r} of {folder}",)
    if isinstance(error, LoadError):
        return LoadError(error.message, where)
    return LoadError(f"its description is damaged ({type(error).__name__}: {error})", where)


def _names_in_order(entries: Json, sharing: Json | None) -> list[str]:
    """The names in the order of our own record, if it has one."""
    names = [] if sharing is None else sharing["names"]
    return names if set(names) == set(entries) else list(entries)


def _find_tied(kinds: Mapping[str, _WeightKind], records: Json) -> dict[str, str]:
    """Find names that mean one tensor, in a file that does not say so: they lie in one place, and
    the graph reads only one of them."""
    together: dict[_WeightKind, list[str]] = {}
    for name, kind in kinds.items():
        together.setdefault(kind, []).append(name)
    groups = [names for names in together.values() if len(names) > 1]
    read = _used_state(records) if groups else set()
    are_one = [names for names in groups if len(read.intersection(names)) < 2]
    return {name: names[0] for names in are_one for name in names[1:]}


def _used_state(records: Any) -> set[str]:
    """The names of the state that the graph reads, as far as they can be read. (In torch's files
    each name of a tied tensor is an input, and one of them is read.)"""
    try:
        module = records["graph_module"]
        specs = [v for spec in module["signature"]["input_specs"] for v in spec.values()]
        targets = {s["arg"]["name"]: s[key] for s in specs for key in STATE_NAMES if key in s}
        left = [node["inputs"] for node in module["graph"]["nodes"]]
    except (KeyError, TypeError, AttributeError):
        return set()  # what is wrong with them is said by who reads them
    found: set[str] = set()
    while left:
        each = left.pop()
        if isinstance(each, dict):
            found.add(str(targets.get(str(each.get("name")), "")))
            left.extend(each.values())
        elif isinstance(each, list):
            left.extend(each)
    return found


def read_own(records: Json, *keys: str) -> Any:
    """What stands in our own record of a program under these keys; None: nothing."""
    found: Any = records.get("lostwax")
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def sharing_record(records: Json, what: str) -> Json | None:
    """What our own record says of the tensors of one folder; None: the file has none."""
    found: Any = read_own(records, "sharing", what)
    if not isinstance(found, dict):
        return None
    parts: Any = map(found.get, ("names", "tied", "lying"))
    names, tied, lying = parts
    is_whole = isinstance(names, list) and isinstance(tied, dict) and isinstance(lying, dict)
    if not is_whole or not all(isinstance(name, str) for name in (*names, *tied.values())):
        raise LoadError("our own record of what shares memory is damaged")
    return found


def _move(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    try:
        return tensor.to(device)
    except (RuntimeError, AssertionError, ImportError) as error:
        raise LoadError(
            f"it belongs on {device}, which cannot be used here: {error}\n"
            "  instead: lostwax.load(path, weights=False) reads the structure alone"
        ) from None


def _type(meta: Json) -> TensorType:
    dtype = DTYPES.get(meta["dtype"])
    if dtype is None:
        raise LoadError(f"its dtype has the unknown number {meta['dtype']!r}")
    sizes = tuple(_natural(s) for s in meta["sizes"])
    strides = tuple(_natural(s) for s in meta["strides"])
    if len(sizes) != len(strides) or len(sizes) > MAX_DIMS:
        raise LoadError(f"it has {len(sizes)} sizes and {len(strides)} strides")
    return TensorType(
        sizes, dtype, read_device(meta["device"]), strides, _natural(meta["storage_offset"])
    )


def _natural(given: Json) -> int:
    value = given["as_int"]
    if value.__class__ is not int or not 0 <= value <= MAX_SIZE:
        raise LoadError(f"{value!r} is no size")
    return value


def read_device(given: Json) -> torch.device:
    index = given.get("index")
    if index is not None and not (index.__class__ is int and 0 <= index < 128):
        raise LoadError(f"{index!r} is no index of a device")
    try:
        return torch.device(given["type"], index) if index is not None else _device(given["type"])
    except (RuntimeError, TypeError):
        raise LoadError(f"{given['type']!r} is no device") from None


def _device(kind: Any) -> torch.device:
    if not isinstance(kind, str) or not kind.isidentifier():
        raise TypeError
    return torch.device(kind)


def _count_bytes(t: TensorType) -> int:
    """Count the bytes of its record up to the last one that a tensor uses."""
    return 0 if 0 in t.size else byte_span(t)[1]  # type: ignore[return-value]
