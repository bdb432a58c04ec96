"""`load`: the programs of a `.pt2` archive, with weights that are views into the file.

Checks the container and its versions, then reads each model. Nothing of the file is run.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any, Literal, overload

from lostwax import collector
from lostwax.errors import LoadError
from lostwax.fake import FakeTensorMode
from lostwax.ir.program import ExportedProgram
from lostwax.pt2.container.archive import Archive
from lostwax.pt2.container.foreign import describe_records
from lostwax.pt2.container.samples import read_samples
from lostwax.pt2.container.weights import WeightReader, read_own, sharing_record
from lostwax.pt2.graph.decode import decode
from lostwax.pt2.limits import MAX_JSON
from lostwax.pt2.plain import restore_call
from lostwax.pt2.schema import (
    ARCHIVE_FORMAT,
    ARCHIVE_VERSION,
    CONSTANTS,
    CONSTANTS_CONFIG,
    EXTRA,
    MODEL,
    SAMPLE_INPUTS,
    WEIGHTS,
    WEIGHTS_CONFIG,
)
from lostwax.undo.undo import Undo, run_and_undo

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

File = str | os.PathLike[str] | IO[bytes]


@overload
def load(
    f: File,
    *,
    extra_files: dict[str, Any] | None = None,
    expected_opset_version: Mapping[str, int] | None = None,
    weights: bool = True,
    checksums: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    mesh: DeviceMesh | None = None,
    by_name: Literal[False] = False,
) -> ExportedProgram: ...


@overload
def load(
    f: File,
    *,
    extra_files: dict[str, Any] | None = None,
    expected_opset_version: Mapping[str, int] | None = None,
    weights: bool = True,
    checksums: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    mesh: DeviceMesh | None = None,
    by_name: Literal[True],
) -> dict[str, ExportedProgram]: ...


def load(
    f: File,
    *,
    extra_files: dict[str, Any] | None = None,
    expected_opset_version: Mapping[str, int] | None = None,
    weights: bool = True,
    checksums: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    mesh: DeviceMesh | None = None,
    by_name: bool = False,
) -> Any:
    """Read a program that `lostwax.save` or `torch.export.save` wrote to `f`, a path or a file.

    An archive of several programs gives a dict of them, by name; `by_name=True` always does, and
    says so to type checkers. A file on disk is mapped: weights are read when they are used, and
    writing to them does not change the file. With `weights=False` they are fake. `extra_files` is
    filled with the archive's extra files. The program itself is always checked against its
    checksums; `checksums=True` reads and checks the weights, too. Weights that stayed in a
    checkpoint are looked for beside the file, or in the folder `checkpoint`. A program over shards
    runs on the process groups that had the same names at capture, or on `mesh`, which must be of
    the same shape. A program that was
    written with other versions of sets of operators than `expected_opset_version` says
    (`{"aten": 10}`) is refused.
    """
    archive = Archive(f)

    def read(undo: Undo) -> dict[str, ExportedProgram]:
        collector.pause(undo.add)
        if checksums:
            for name in archive.records:
                archive.check(name)
        reader = WeightReader(archive, FakeTensorMode(), weights, _find_folder(f, checkpoint))
        return _load(archive, reader, extra_files, expected_opset_version or {})

    try:
        programs = run_and_undo(read)
    except LoadError as error:
        raise LoadError(error.message, (archive.name, *error.where)) from error.__cause__
    if mesh is not None:
        from lostwax.pt2.placing import place

        for program in programs.values():
            place(program, mesh)
    return programs["model"] if list(programs) == ["model"] and not by_name else programs


def _find_folder(file: Any, checkpoint: str | os.PathLike[str] | None) -> str | None:
    """Where a checkpoint's files are looked for."""
    if checkpoint is not None:
        return os.fspath(checkpoint)
    is_path = isinstance(file, (str, os.PathLike))
    return os.path.dirname(os.path.abspath(os.fspath(file))) if is_path else None


def _load(
    archive: Archive,
    reader: WeightReader,
    extra_files: dict[str, Any] | None,
    opset: Mapping[str, int],
) -> dict[str, ExportedProgram]:
    _check_container(archive)
    if extra_files is not None and not isinstance(extra_files, dict):
        raise TypeError(
            f"extra_files is a {type(extra_files).__name__}; a dict is wanted, which load fills"
        )
    names = [name.removesuffix(".json") for name in archive.under("models/")]
    if not names:
        raise LoadError("the archive holds no program")
    programs = {name: _model(archive, name, reader, opset) for name in names}
    if extra_files is not None:
        for name in archive.under(EXTRA):
            extra_files[name] = _text(archive.read(EXTRA + name))
    return programs


def _check_container(archive: Archive) -> None:
    if "archive_format" not in archive and "serialized_exported_program.json" in archive:
        raise LoadError(
            "the archive is in the form that torch before 2.8 wrote\n"
            "  fix: torch.export.load it with a torch that reads it, and save it again"
        )
    if "archive_format" not in archive:
        raise LoadError(describe_records(archive.records))
    if archive.read("archive_format", 100) != ARCHIVE_FORMAT:
        raise LoadError("the archive is not a .pt2: its record archive_format says otherwise")
    version = archive.read("archive_version", 100)
    if version != ARCHIVE_VERSION:
        raise LoadError(
            f"the archive has the version {version.decode(errors='replace')!r}; lostwax reads "
            f"version {ARCHIVE_VERSION.decode()}"
        )
    order = archive.read("byteorder", 100) if "byteorder" in archive else b"little"
    if order != sys.byteorder.encode():
        raise LoadError("the archive was written on a machine of the other byte order")


def _check_opset(name: str, records: Mapping[str, Any], expected: Mapping[str, int]) -> None:
    given = records.get("opset_version") or {}
    for opset, version in expected.items():
        if given.get(opset) != version:
            found = given.get(opset, "no version")
            raise LoadError(
                f"the model {name!r} was written with {found} of the operators {opset!r}, and "
                f"expected_opset_version says {version}"
            )


def _model(
    archive: Archive, name: str, reader: WeightReader, opset: Mapping[str, int]
) -> ExportedProgram:
    records = _json(archive, MODEL.format(name))
    _check_opset(name, records, opset)
    table = _json(archive, WEIGHTS_CONFIG.format(name))
    state = reader.tensors(WEIGHTS, table, sharing_record(records, "weights"), records)
    table = _json(archive, CONSTANTS_CONFIG.format(name))
    sharing = sharing_record(records, "constants")
    constants = reader.tensors(CONSTANTS, table, sharing, records, state)
    held = {}
    table = read_own(records, "held")
    if isinstance(table, dict):
        sharing = sharing_record(records, "held")
        held = reader.tensors(CONSTANTS, table, sharing, records, state)
    for added in read_own(records, "added") or ():
        constants.pop(added, None)
    program = decode(records, state, constants, f"the model {name!r}", held)
    program.example_inputs = _samples(archive, SAMPLE_INPUTS.format(name), program)
    return program


def _samples(archive: Archive, name: str, program: ExportedProgram) -> Any:
    """The example call, if it is plain data and a call of this program."""
    if name not in archive or not archive.record(name).size:
        return None
    buffer, offset, size = archive.window(name)
    found = read_samples(memoryview(buffer)[offset : offset + size])
    return None if found is None else restore_call(program, *found)


def _json(archive: Archive, name: str) -> Mapping[str, Any]:
    try:
        found = json.loads(archive.read(name, MAX_JSON))
    except (ValueError, RecursionError) as error:
        if isinstance(error, LoadError):
            raise
        raise LoadError(f"{name} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise LoadError(f"{name} is not a JSON object")
    return found


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
