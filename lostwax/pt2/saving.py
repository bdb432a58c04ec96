"""`save`: programs into a `.pt2` archive that torch.export reads, too.

All that can be refused is refused before the first byte is written; a file on disk is replaced at
the end or not at all.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

import torch

from lostwax.dialects.to_aten import lift_to_aten
from lostwax.errors import SaveError
from lostwax.ir.graph.delegate import held_delegates
from lostwax.ir.graph.inlined import inline_delegates
from lostwax.ir.passes.transforms.copies import SeparateWrites, lent_state, needs_copies
from lostwax.ir.passes.transforms.gradients import PlainGradients, has_custom_gradients
from lostwax.ir.program import ExportedProgram, describe_stranger
from lostwax.ir.rules.graph import TYPE_RULE
from lostwax.ir.rules.verify import list_violations, rules_of, verify
from lostwax.ir.signature import list_members
from lostwax.location import user_location, warn
from lostwax.pt2.container.references import References
from lostwax.pt2.container.weights import Payloads, Sharing
from lostwax.pt2.container.writer import Writer
from lostwax.pt2.graph.delegates import list_held
from lostwax.pt2.graph.encode import encode
from lostwax.pt2.lines import Lines
from lostwax.pt2.peer import find_unchecked, find_unreadable
from lostwax.pt2.plain import find_lost, make_plain
from lostwax.pt2.records import check_record_name, close_archive
from lostwax.pt2.schema import (
    CONSTANTS,
    CONSTANTS_CONFIG,
    EXTRA,
    MODEL,
    OPSET,
    SAMPLE_INPUTS,
    WEIGHTS,
    WEIGHTS_CONFIG,
)
from lostwax.undo.replace_files import replace_files

Programs: TypeAlias = "ExportedProgram | Mapping[str, ExportedProgram]"


def save(
    ep: Programs,
    f: str | os.PathLike[str] | IO[bytes],
    *,
    extra_files: Mapping[str, str | bytes] | None = None,
    opset_version: Mapping[str, int] | None = None,
    pickle_protocol: int = 2,
    example_inputs: bool = True,
    metadata: Literal["none", "lines", "full"] = "lines",
    weights: Literal["inside", "checkpoint"] = "inside",
) -> None:
    """Write the program `ep`, or several by name, to `f`, a path or a binary file.

    `torch.export.load` reads what this writes. Programs of one archive share the weights they have
    in common. A program whose weights are fake is saved as structure alone, with a warning. A path
    is replaced only when all is written. `example_inputs=False` leaves the example call out.
    `extra_files` are kept beside the program, by name, for `load` to give back. `metadata` says how
    much of the user's source the file tells: the innermost line of each node, and no absolute
    paths; whole stack traces ("full"); or no lines ("none"). `opset_version` are versions of sets
    of operators that the file is to name beside aten's, for `load` to compare. With
    `weights="checkpoint"` those that `lostwax.checkpoint` has read are not copied: the file refers
    to theirs, which `load` looks for beside it, and torch.export.load cannot. `pickle_protocol`
    changes nothing: the example call alone is pickled, by the protocol that all readers know.
    """
    _check_target(f)
    opset = _read_opset(opset_version)
    lines, extra = Lines(metadata), extra_files or {}
    if not isinstance(extra, Mapping):
        raise SaveError(
            f"extra_files is a {type(extra).__name__}; texts or bytes by name are wanted, "
            "{'notes.txt': '…'}"
        )
    references = _read_weights_word(weights)
    records = _ArchiveRecords(_by_name(ep), extra, opset, example_inputs, lines, references)
    if isinstance(f, (str, os.PathLike)):
        replace_files({f: records.write})
    elif f.seekable():
        records.write(f)
    else:
        buffer = io.BytesIO()
        records.write(buffer)
        f.write(buffer.getbuffer())


def _read_opset(given: Mapping[str, int] | None) -> dict[str, int]:
    """The versions of sets of operators that a file names. A program calls this torch's operators,
    so that another version of aten would not be true."""
    found = {**OPSET, **(given or {})}
    wrong = [name for name, version in found.items() if type(version) is not int]
    if wrong or found["aten"] != OPSET["aten"]:
        name = wrong[0] if wrong else "aten"
        raise SaveError(
            f"opset_version says {found[name]!r} for {name!r}: "
            + ("a version is an int" if wrong else f"the program calls version {OPSET['aten']}")
            + "\n  instead: leave it out, or name the versions of other sets of operators"
        )
    return found


def _read_weights_word(given: Any) -> References | None:
    if given not in ("inside", "checkpoint"):
        raise SaveError(
            f"weights is {given!r}\n  instead: 'inside' the archive, or in the 'checkpoint' that "
            "they were read from"
        )
    return References() if given == "checkpoint" else None


def _by_name(ep: Any) -> dict[str, ExportedProgram]:
    programs = dict(ep) if isinstance(ep, Mapping) else {"model": ep}
    for name, each in programs.items():
        if not isinstance(each, ExportedProgram):
            raise SaveError(
                f"save takes a program, or a dict of programs by name; {name!r} is "
                f"{describe_stranger(each)}"
            )
    return programs


def _check_program(name: str, program: ExportedProgram) -> None:
    """A pass of the user's may have left something that would fail when the file is loaded or run.
    The rule of types is left out: it asks the rules of all operators once more."""
    violations = verify(program, rules_of(program, but=(TYPE_RULE[0],)))
    if violations:
        raise SaveError(
            f"{name!r} is not a valid program, and is not saved:{list_violations(violations)}\n"
            "  instead: let the pass that changed it leave a valid program; program.validate() "
            "after each change says which one it was",
        )


def _check_target(file: Any) -> None:
    if isinstance(file, io.TextIOBase) or not (
        isinstance(file, (str, os.PathLike)) or hasattr(file, "write")
    ):
        raise TypeError(
            "save writes to a path or to a file that is open for bytes, and is given an object of "
            f"type {type(file).__name__} for it\n  at {user_location()}\n"
            "  why: a .pt2 file is an archive\n"
            '  instead: lostwax.save(program, "model.pt2")'
        )
    writer = _OTHER_WRITERS.get(Path(file).suffix) if isinstance(file, (str, os.PathLike)) else None
    if writer is not None:
        warn(
            f"{os.fspath(file)!r}: what save writes is a .pt2 archive, whatever its name\n"
            "  why: the runtimes of files of that name cannot read it\n"
            f"  instead: {writer}; or the name {os.fspath(Path(file).with_suffix('.pt2'))!r}"
        )


_OTHER_WRITERS = {
    ".pte": "program.to_edge().to_executable().save(path)",
    ".onnx": "lostwax.onnx.save(program, path)",
}


def _to_bytes(name: str, given: Any) -> bytes:
    if isinstance(given, str):
        return given.encode()
    if not isinstance(given, (bytes, bytearray, memoryview)):
        raise SaveError(
            f"the extra file {name!r} is a {type(given).__name__}; a text or bytes is wanted"
        )
    return bytes(given)


def _lift(program: ExportedProgram) -> ExportedProgram:
    """The program without what is of ours alone: in ATen, with what delegates compute in their
    place."""
    lowered = any(True for _ in held_delegates(program.graph_module))
    if lowered:
        warn(
            "torch's format has no delegates: lostwax.load gives them back, and torch.export.load "
            "the operators that they stand for"
        )
        program = inline_delegates(program)
    return lift_to_aten(program) if lowered or program.dialect == "EDGE" else program


def _encode_for_torch(
    program: ExportedProgram, readable: ExportedProgram, lines: Lines
) -> dict[str, Any]:
    """The JSON object of a program. torch can read all but our own record, which holds the rest.
    `readable` is the program without what torch has no form for, as far as `_lift` knows."""
    _warn_of_unreadable(readable)
    if has_custom_gradients(program):
        warn(
            "the program has a backward of its own (torch.autograd.Function), which torch's format "
            "cannot hold: lostwax.load gives it back, but loaded by torch.export the program "
            "differentiates what it computes",
        )
        readable = PlainGradients()(readable)
    if needs_copies(readable):
        readable = SeparateWrites()(readable)
    if members := list_members(program.graph_signature):
        warn(
            "a file has no classes of the user's: loaded, the program returns plain numbers or "
            f"texts in place of{_list_lines([*map(repr, members)])}",
        )
    lost = find_lost(program)
    if lost:
        warn(
            "torch's format has no words for some arguments or results: lostwax.load gives them "
            f"back, but to torch.export.load{_list_lines(lost)}",
        )
        readable = make_plain(readable)
    records = encode(readable, lines=lines)
    if readable is not program:
        records["lostwax"]["whole"] = encode(program, lines=lines)
    return records


def _warn_of_unreadable(program: ExportedProgram) -> None:
    unread, loose = find_unreadable(program), find_unchecked(program)
    if unread:
        warn(
            "torch.export.load will not read this file, or not run it; lostwax.load will. It "
            f"stumbles over{_list_lines(unread)}",
        )
    if loose:
        warn(
            "loaded by torch.export.load the program also runs where lostwax.load's refuses, and "
            "may return what the original would not: the original asks something of its tensors, "
            f"or counts on it, that torch does not check{_list_lines(loose)}",
        )


def _list_lines(lines: list[str]) -> str:
    more = [f"and {len(lines) - 5} more"] if lines[5:] else []
    return "".join(f"\n  {line}" for line in (*lines[:5], *more))


class _ArchiveRecords:
    """Everything that goes into an archive, made before anything is written."""

    def __init__(
        self,
        programs: Mapping[str, ExportedProgram],
        extra: Mapping[str, str | bytes],
        opset: dict[str, int],
        example_inputs: bool,
        lines: Lines,
        references: References | None = None,
    ) -> None:
        if not programs:
            raise SaveError("there is no program to save")
        self.references = references
        self.weights, self.constants = Payloads("weight_", references), Payloads("tensor_")
        self.small: list[tuple[str, bytes]] = []
        self.lines = lines
        self.lifted: dict[str, ExportedProgram] = {}
        self.held: dict[str, dict[str, torch.Tensor]] = {}
        for name, program in programs.items():
            check_record_name(name)
            _check_program(name, program)
            self.lifted[name] = _lift(program)
            self._collect(self.lifted[name])
            self.held[name] = list_held(program)
            for held, tensor in self.held[name].items():
                self.constants.add(held, tensor)
        self.sharing = Sharing({WEIGHTS: self.weights, CONSTANTS: self.constants})
        for name, program in programs.items():
            self._model(name, program, opset, example_inputs)
        for name, content in extra.items():
            check_record_name(name)
            self.small.append((EXTRA + name, _to_bytes(name, content)))
        if self.weights.fake:
            warn(
                f"{self.weights.fake} weights are fake: the file holds the program's structure, "
                "and none of their values",
            )

    def _collect(self, program: ExportedProgram) -> None:
        for payloads in (self.weights, self.constants):
            payloads.keep_apart(lent_state(program))
        for name, tensor in program.state_dict.items():
            self.weights.add(name, tensor)
        for name, value in program.constants.items():
            if not isinstance(value, torch.Tensor):
                raise SaveError(
                    f"the constant {name!r} is a {type(value).__name__}, not a tensor; only "
                    "tensors are saved"
                )
            self.constants.add(name, value)

    def _model(
        self, name: str, program: ExportedProgram, opset: dict[str, int], example_inputs: bool
    ) -> None:
        add, lifted = self.small.append, self.lifted[name]
        constants, state = lifted.constants, lifted.state_dict
        add((WEIGHTS_CONFIG.format(name), _json(self.weights.config(state))))
        add((CONSTANTS_CONFIG.format(name), _json(self.constants.config(constants))))
        records = _encode_for_torch(program, lifted, self.lines)
        records["opset_version"] = opset
        if files := self.references and self.references.describe():
            records["lostwax"]["checkpoint"] = files
        records["lostwax"]["sharing"] = {
            "weights": self.sharing.describe(state),
            "constants": self.sharing.describe(constants, state),
        }
        if held := self.held[name]:
            records["lostwax"]["added"] = [n for n in constants if n not in program.constants]
            records["lostwax"]["held"] = self.constants.config(held)
            records["lostwax"]["sharing"]["held"] = self.sharing.describe(held, state)
        add((MODEL.format(name), _json(records)))
        sample = _pickle_example(make_plain(program).example_inputs) if example_inputs else b""
        add((SAMPLE_INPUTS.format(name), sample))

    def write(self, file: IO[bytes]) -> None:
        writer = Writer(file)
        try:
            for folder, payloads in ((WEIGHTS, self.weights), (CONSTANTS, self.constants)):
                for name, memory in payloads.records():
                    writer.add(folder + name, memory.data())
            for name, data in self.small:
                writer.add(name, data)
            close_archive(writer)
        except BaseException:
            writer.abandon()
            raise


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def _pickle_example(inputs: Any) -> bytes:
    """The example call as torch keeps it; empty if it cannot be pickled."""
    if inputs is None:
        return b""
    buffer = io.BytesIO()
    try:
        torch.save(inputs, buffer)
    except Exception:  # of any class: what cannot be pickled is left out
        return b""
    return buffer.getvalue()
