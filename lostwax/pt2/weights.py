"""Parameters, buffers and constants in files: raw bytes, and a table that says what lies where.

Tensors that share memory share a record, also between the programs of one archive. Reading gives
views into the mapped file, within the bounds of their record. Must not copy what it can show.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lostwax.errors import LoadError, SaveError
from lostwax.fake import FakeTensor, FakeTensorMode
from lostwax.fake.tensor import new_fake
from lostwax.pt2.archive import Archive
from lostwax.pt2.limits import MAX_DIMS, MAX_SIZE
from lostwax.pt2.schema import DTYPE_NUMBERS, DTYPES, LAYOUT_NUMBERS
from lostwax.types import TensorType

Json = Mapping[str, Any]


# ------------------------------------------------------------------------------------------ writing


@dataclass
class _Memory:
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

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.fake = 0
        """Tensors without data, of which the file keeps the type only."""
        self._memories: dict[Any, _Memory] = {}

    def add(self, name: str, tensor: torch.Tensor) -> None:
        _check_kind(name, tensor)
        low, high = _extent(tensor)
        key = _memory_key(tensor)
        known = self._memories.get(key)
        if known is None:
            self._memories[key] = _Memory(len(self._memories), tensor, low, high)
            self.fake += _is_fake(tensor)
        elif high > low:
            empty = known.low == known.high
            known.low = low if empty else min(low, known.low)
            known.high = high if empty else max(high, known.high)

    def config(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """The table for these tensors, all of which were added."""
        return {"config": {name: self._entry(tensor) for name, tensor in tensors.items()}}

    def records(self) -> list[tuple[str, _Memory]]:
        return [(f"{self.prefix}{m.number}", m) for m in self._memories.values()]

    def _entry(self, tensor: torch.Tensor) -> dict[str, Any]:
        memory = self._memories[_memory_key(tensor)]
        offset = 0
        if not _is_fake(tensor):
            offset = int(tensor.storage_offset()) - memory.low // tensor.dtype.itemsize
        return {
            "path_name": f"{self.prefix}{memory.number}",
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
    if type(tensor) not in (torch.Tensor, nn.Parameter, nn.Buffer, FakeTensor):
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
    if _is_fake(tensor) or tensor.numel() == 0:
        return 0, 0
    first = int(tensor.storage_offset())
    last = first + sum((s - 1) * st for s, st in zip(tensor.shape, tensor.stride(), strict=True))
    return first * tensor.dtype.itemsize, (last + 1) * tensor.dtype.itemsize


# ------------------------------------------------------------------------------------------ reading


class WeightReader:
    """The tensors of an archive: programs that share a record share the memory.

    Without `data`, and where a record has no bytes, they are fakes of `mode`.
    """

    def __init__(self, archive: Archive, mode: FakeTensorMode, data: bool = True) -> None:
        self.archive, self.mode, self.data = archive, mode, data
        self._flat: dict[tuple[str, torch.dtype], torch.Tensor] = {}
        self._made: dict[Any, torch.Tensor] = {}

    def tensors(self, folder: str, config: Json) -> dict[str, torch.Tensor]:
        found = {}
        entries = config.get("config")
        if not isinstance(entries, dict):
            raise LoadError(f"the table of {folder} is damaged")
        for name, entry in entries.items():
            try:
                found[name] = self._tensor(folder, entry)
            except LoadError as error:
                raise LoadError(error.message, (f"the tensor {name!r} of {folder}",)) from None
            except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
                raise LoadError(
                    f"its description is damaged ({type(error).__name__}: {error})",
                    (f"the tensor {name!r} of {folder}",),
                ) from None
        return found

    def _tensor(self, folder: str, entry: Json) -> torch.Tensor:
        path, meta = entry["path_name"], entry["tensor_meta"]
        if entry.get("use_pickle"):
            raise LoadError("it is pickled, as tensors of other classes are: that is never read")
        if not isinstance(path, str) or not isinstance(meta, dict):
            raise LoadError("it is an object of another language; only tensors are read")
        t = _type(meta)
        is_parameter, grad = entry["is_param"] is True, meta["requires_grad"] is True
        key = (folder + path, t, is_parameter, grad)
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = self._new(folder + path, t, is_parameter, grad)
        return made

    def _new(self, path: str, t: TensorType, is_parameter: bool, grad: bool) -> torch.Tensor:
        grad = grad and (t.dtype.is_floating_point or t.dtype.is_complex)
        record = self.archive.record(path)
        needed = _needed(t)
        if not self.data or t.device.type == "meta" or (record.size == 0 and needed > 0):
            fake = new_fake(self.mode, t, requires_grad=grad)
            if is_parameter:
                fake._is_param = True  # `isinstance(fake, nn.Parameter)` holds
            return fake
        if needed > record.size:
            raise LoadError(f"it needs {needed} bytes of {path}, which has {record.size}")
        flat = self._bytes(path, t.dtype)
        layout: Any = (t.size, t.stride, t.offset if needed else 0)
        tensor = torch.as_strided(flat, *layout).data  # itself, no view of the bytes
        if t.device.type != "cpu":
            tensor = _moved(tensor, t.device)
        if is_parameter:
            return nn.Parameter(tensor, requires_grad=grad)
        return tensor.requires_grad_() if grad else tensor

    def _bytes(self, path: str, dtype: torch.dtype) -> torch.Tensor:
        """A record as one flat tensor of this dtype: a view into the file where that is aligned."""
        known = self._flat.get((path, dtype))
        if known is None:
            buffer, offset, size = self.archive.window(path)
            count = size // dtype.itemsize
            if count == 0:
                known = torch.empty(0, dtype=dtype)
            elif offset % dtype.itemsize == 0:
                known = torch.frombuffer(buffer, dtype=dtype, count=count, offset=offset)
            else:
                copy = bytearray(memoryview(buffer)[offset : offset + count * dtype.itemsize])
                known = torch.frombuffer(copy, dtype=dtype)
            self._flat[path, dtype] = known
        return known


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
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


def _needed(t: TensorType) -> int:
    """The bytes of a record that a tensor reaches."""
    if 0 in t.size:
        return 0
    last = t.offset + sum((s - 1) * st for s, st in zip(t.size, t.stride, strict=True))
    return (last + 1) * t.dtype.itemsize  # type: ignore[return-value]
