"""What a file is that is no `.pt2`: people load weights, downloads that broke off, web pages.

A guess from the first bytes, or from the names of a zip file's records, for the error that refuses
it. Must not refuse anything itself.
"""

from __future__ import annotations

import struct
from collections.abc import Collection

from lostwax.pt2.container.writer import LENGTH, LENGTH_MARK

_LOCAL = struct.Struct("<IHHHHHIIIHH")

_WRITE = "lostwax.save and torch.export.save write programs"
_STARTS = (
    (b"\x1f\x8b", "compressed with gzip", "expand it first (gunzip)"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "expand it first (unzstd)"),
    (b"version https://git-lfs", "a pointer of Git LFS, not the file itself", "git lfs pull"),
    (
        b"\x80",
        "a pickle, as torch.save wrote it before torch 1.6",
        f"torch.load reads it; {_WRITE}",
    ),
)
"""First bytes, what begins so, and what to do."""

_AFTER_ONNX_VERSION = (b"\x12", b"\x3a", b"\x42")
"""How the second field of an ONNX model begins: who wrote it, the graph, or the opset."""


def describe_bytes(view: memoryview) -> str:
    """What a file is that has no zip directory."""
    head = bytes(view[:64])
    if not head:
        return _say("empty", f"it may not have been written to the end; {_WRITE}")
    if head.startswith(b"PK\x03\x04"):
        return _describe_truncated(view)
    for start, what, fix in _STARTS:
        if head.startswith(start):
            return _say(what, fix)
    if head[4:8] == b"ET12":
        return _say("a .pte, an ExecuTorch program", "lostwax.pte reads and runs it")
    if head[8:10] in (b'{"', b"{ "):
        return _say("a file of safetensors: weights, and no program", _WRITE)
    if head[:1] == b"\x08" and head[2:3] in _AFTER_ONNX_VERSION:
        runs = "onnxruntime runs it, and so do lostwax run and lostwax check"
        return _say("an ONNX model", f"{runs}; {_WRITE}")
    if head.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return _say("a web page, perhaps that of a failed download", "download the file again")
    if all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head):
        return _say(f"a text, which begins {head[:30].decode()!r}", _WRITE)
    return _say("no zip file", f"it may be damaged; {_WRITE}")


def describe_records(names: Collection[str]) -> str:
    """What a zip file is that does not say that it is a `.pt2`."""
    if "data.pkl" not in names:
        return _say("a zip file of something else", _WRITE)
    if any(name.startswith("code/") for name in names):
        return _say(
            "a TorchScript module (torch.jit.save)",
            "torch.jit.load reads it; export the original module again",
        )
    return _say(
        "what torch.save writes: weights, or a pickled object",
        f"torch.load reads it; {_WRITE}",
    )


def _describe_truncated(view: memoryview) -> str:
    """A zip file without its end: how far its records say that it must reach."""
    at, name, where = 0, "", "before its directory"
    while at + _LOCAL.size <= len(view):
        fields = _LOCAL.unpack_from(view, at)
        if fields[0] != 0x04034B50:
            break
        name_size = int(fields[9])
        name = bytes(view[at + _LOCAL.size : at + _LOCAL.size + name_size]).decode(errors="replace")
        at += _LOCAL.size + name_size + int(fields[10]) + int(fields[7])
    if at > len(view):
        where = f"in the record {name!r}"
    whole = _read_length(view) or at
    least = "" if whole != at else "more than "
    long = f"; it has {least}{whole} when whole" if whole > len(view) else ""
    return _say(
        f"cut off: a zip file that ends after {len(view)} bytes, {where}{long}",
        "copy or download it again, or save it again",
    )


def _read_length(view: memoryview) -> int:
    """The length that our own files say in their first record; 0 if this does not."""
    at = _LOCAL.size + int(_LOCAL.unpack_from(view)[9]) if len(view) >= _LOCAL.size else 0
    if not at or at + LENGTH.size > len(view):
        return 0
    *mark, length = LENGTH.unpack_from(view, at)
    return int(length) if tuple(mark) == LENGTH_MARK else 0


def _say(what: str, fix: str) -> str:
    return f"this is not a .pt2 archive: it is {what}\n  fix: {fix}"
