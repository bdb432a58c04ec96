"""Reads ETDumps: what the ExecuTorch runtime noted while it ran a `.pte` file, here or on a device.
The file is taken as hostile.

Must not know what instructions stand for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lostwax.errors import LoadError
from lostwax.pte.file.schema import Fields
from lostwax.pte.file.tables import TableReader

IDENTIFIER = b"ED00"

TABLES: dict[str, Fields] = {
    "ETDump": (("version", "u32"), ("run_data", "[RunData]")),
    "RunData": (
        ("name", "str"),
        ("bundled_input_index", "i32"),
        ("allocators", "[Allocator]"),
        ("events", "[Event]"),
    ),
    "Allocator": (("name", "str"),),
    "Event": (
        ("profile_event", "ProfileEvent"),
        ("allocation_event", "AllocationEvent"),
        ("debug_event", "DebugEvent"),
    ),
    "ProfileEvent": (
        ("name", "str"),
        ("chain_index", "i32"),
        ("instruction_id", "i32"),
        ("delegate_debug_id_int", "i32"),
        ("delegate_debug_id_str", "str"),
        ("delegate_debug_metadata", "[u8]"),
        ("start_time", "u64"),
        ("end_time", "u64"),
    ),
    "AllocationEvent": (("allocator_id", "u32"), ("allocation_size", "u64")),
    "DebugEvent": (),
}
ABSENT = dict.fromkeys(("bundled_input_index", "instruction_id", "delegate_debug_id_int"), -1)


@dataclass(frozen=True)
class Event:
    """A piece of time. `instruction` is the number of the instruction in its method; `part` names
    what a delegate did inside of it, "" for the instruction itself."""

    name: str
    instruction: int
    part: str
    start: int
    end: int

    @property
    def time(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Block:
    """Events that belong together: the loading of a method, or one call of it."""

    name: str
    events: tuple[Event, ...]


def read_trace(file: str | os.PathLike[str] | bytes) -> list[Block]:
    """The blocks of an ETDump, given by its path or as bytes. Times are those of the device's
    clock, nanoseconds as a rule."""
    if isinstance(file, (str, os.PathLike)):
        with open(file, "rb") as opened:
            file = opened.read()
    data = bytes(file)
    if data[8:12] == IDENTIFIER:  # its size stands before it
        data = data[4:]
    if data[4:8] != IDENTIFIER:
        raise LoadError(
            f"not an ETDump: its identifier is {data[4:8]!r}, not {IDENTIFIER!r}\n  instead: what "
            "a runtime noted that was built with its event tracer: take_trace().dump of lostwax-run"
        )
    reader = TableReader(data, TABLES, ABSENT)
    root = reader.table(reader.number("u32", 0, "the offset of the dump"), "ETDump", "the dump", 0)
    return [Block(run["name"] or "", tuple(_events(run))) for run in root["run_data"] or ()]


def _events(run: dict[str, Any]) -> Iterator[Event]:
    for event in run["events"] or ():
        told = event["profile_event"]
        if told is None:
            continue
        number = told["delegate_debug_id_int"]
        part = told["delegate_debug_id_str"] or (str(number) if number >= 0 else "")
        times = told["start_time"], told["end_time"]
        yield Event(told["name"] or "", told["instruction_id"], part, *times)
