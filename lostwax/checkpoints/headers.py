"""What stands in a checkpoint: the names, dtypes and shapes of its tensors, from the headers of
`.safetensors` files. No weight is read here, and nothing of a file is trusted.

The form of a file: eight bytes with the length of its header, the header (JSON: name to dtype,
shape and the bytes from and to), the bytes of all tensors.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lostwax.errors import LoadError

DTYPES: Mapping[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}
_MOST_HEADER = 100_000_000
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_LFS = b"version "


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a checkpoint: what it is, and the bytes of the file that it is."""

    file: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


def list_files(path: str) -> dict[str, str]:
    """The file of each tensor by an index, or of "" for all tensors of one file."""
    if os.path.isdir(path):
        path = _find_in_folder(path)
    if not os.path.isfile(path):
        raise LoadError(
            f"there is no checkpoint {path!r}\n  instead: a folder with {_WHOLE}, the file itself, "
            f"or an index ({_INDEX})"
        )
    if not path.endswith(".json"):
        return {"": path}
    folder = os.path.dirname(path)
    found = _read_index(path)
    for name in found.values():
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise LoadError(f"{path}: {name!r} is no name of a file beside it")
    return {tensor: os.path.join(folder, name) for tensor, name in found.items()}


def _find_in_folder(folder: str) -> str:
    for name in (_INDEX, _WHOLE):
        if os.path.isfile(path := os.path.join(folder, name)):
            return path
    named = sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))
    if len(named) == 1:
        return os.path.join(folder, named[0])
    others = f"it has {', '.join(named[:3])}" if named else "it has no .safetensors file"
    raise LoadError(
        f"the folder {folder!r} is no checkpoint: {others}\n"
        f"  instead: a folder with {_WHOLE}, or with {_INDEX} and its parts"
    )


def _read_index(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8") as opened:
            found = json.load(opened)["weight_map"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise LoadError(f"{path} is no index of a checkpoint: {error!r}") from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise LoadError(f"{path} is no index of a checkpoint: its weight_map is no table of names")
    return found


def read_headers(path: str | os.PathLike[str]) -> dict[str, StoredTensor]:
    """All tensors of a checkpoint, by name."""
    files = list_files(os.fspath(path))
    if list(files) == [""]:
        return read_header(files[""])
    headers = {file: read_header(file) for file in sorted({*files.values()})}
    lacking = [name for name, file in files.items() if name not in headers[file]]
    if lacking:
        raise LoadError(
            f"{len(lacking)} tensors of the index are not in their files: {name_some(lacking)}"
            "\n  instead: fetch the files again; these are of another checkpoint"
        )
    return {name: headers[file][name] for name, file in files.items()}


def read_header(file: str) -> dict[str, StoredTensor]:
    """The tensors of one file, by name."""
    try:
        with open(file, "rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            start = opened.read(8)
            if start == _LFS:
                raise LoadError("it is a pointer of git-lfs, not the weights\n  fix: git lfs pull")
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
            if length > min(size - 8, _MOST_HEADER):
                raise LoadError("it is no .safetensors file, or is cut off in its header")
            text = opened.read(length)
        return _read_entries(file, text, 8 + length, size)
    except FileNotFoundError:
        raise LoadError(
            f"{file} is missing, a part of the checkpoint\n  fix: fetch it again, whole"
        ) from None
    except LoadError as error:
        raise LoadError(error.message, (file, *error.where)) from None


def _read_entries(file: str, text: bytes, base: int, size: int) -> dict[str, StoredTensor]:
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LoadError(f"its header is no JSON: {error}") from None
    if not isinstance(entries, dict):
        raise LoadError("its header is no table of tensors")
    entries.pop("__metadata__", None)
    found = {name: _read_entry(file, name, each, base) for name, each in entries.items()}
    last = max((each.stop for each in found.values()), default=base)
    if last > size:
        raise LoadError(
            f"it is cut off: its tensors end at byte {last:,}, and it has {size:,}"
            "\n  fix: fetch it again, whole"
        )
    return found


def _read_entry(file: str, name: str, entry: Any, base: int) -> StoredTensor:
    try:
        dtype, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise LoadError(f"the entry of {name!r} is damaged") from None
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise LoadError(f"{name!r} is of {dtype!r}, a dtype that torch has no form for")
    numbers = (*shape, start, stop) if isinstance(shape, list) else (None,)
    if not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers):
        raise LoadError(f"the entry of {name!r} is damaged")
    needed = math.prod(shape) * DTYPES[dtype].itemsize
    if stop - start != needed:
        raise LoadError(f"{name!r} needs {needed:,} bytes, and has {stop - start:,}")
    return StoredTensor(file, DTYPES[dtype], tuple(shape), base + start, base + stop)


def name_some(names: Iterable[str]) -> str:
    """The first few names of a list, for a message."""
    listed = list(names)
    return f"{', '.join(listed[:3])}{', …' * (len(listed) > 3)}"
