"""ExecutableProgram: methods as a `.pte` file, and what users do with it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, NamedTuple

from torch.fx import Node

from lostwax.checkpoints.mapped import write_parts
from lostwax.dialects.methods import Methods, require_config
from lostwax.errors import LoweringError, SaveError
from lostwax.ir.passes.pipeline import Pipeline
from lostwax.ir.program import ExportedProgram
from lostwax.location import warn
from lostwax.pte.bundling import make_cases
from lostwax.pte.emit import ExternalWeights, emit_file
from lostwax.pte.etrecord import InstructionOrigin, list_instructions, write_record
from lostwax.pte.file.bundle import write_bundle
from lostwax.pte.lowering.listing import Listing, Step
from lostwax.pte.lowering.lower import lower_method
from lostwax.pte.lowering.state import State
from lostwax.pte.plan import drop_unread, plan_memory, read_beyond
from lostwax.pte.record import record_values
from lostwax.pte.runtime import bundle_path, record_path, weights_path
from lostwax.pte.unchecked import warn_of_unchecked
from lostwax.undo.replace_files import replace_files


@dataclass(frozen=True)
class ExecutableConfig:
    """How an executable is made of an Edge program.

    Methods that were exported of one module share the state that any of them writes. Programs that
    were loaded have tensors of their own: `shared_state` has the names of those that are one.
    """

    shared_state: tuple[str, ...] = ()
    weights_beside: bool = False
    """Are weights in a `.ptd` file beside the `.pte` file? Several programs may use one."""
    passes: tuple[Any, ...] = ()
    """Run on each method after backends have their parts, before memory is planned. What they make
    need not be legal in Edge: operators of yours, of kernels that are declared, may stand there."""
    reads_late: bool = False
    """Are weights read when the file is written? The executable then has no copy of them, and they
    must not change before."""
    tells_conditions: bool = True
    """Is a warning given of the conditions of the program that the file does not check?"""
    unread_state: tuple[str, ...] = ()
    """State whose first values no method reads before it writes them, as a cache that is filled
    from its beginning. They are not in the file."""


class ExecutableProgram(Methods):
    """One or several methods, lowered to the kernels of the ExecuTorch runtime.

    `buffer` is the file as bytes; `save` writes it.
    """

    sizes: dict[str, int]
    """The bytes of the file by what they are: program, weights, state, delegates, and the weights
    of these."""

    def __init__(
        self,
        programs: Mapping[str, ExportedProgram],
        constant_methods: Mapping[str, Any],
        config: ExecutableConfig | None = None,
        kernels: Collection[str] = (),
        whole: Mapping[str, ExportedProgram] | None = None,
    ) -> None:
        """`whole` are the programs as they were before backends took parts of them."""
        config = require_config(config, ExecutableConfig)
        passes = config.passes
        if not isinstance(passes, (tuple, list)):
            raise LoweringError(f"passes is {passes!r}\n  instead: a tuple of passes, (fuse,)")
        if passes:
            programs = {name: Pipeline(tuple(passes))(each) for name, each in programs.items()}
        super().__init__(programs, constant_methods)
        self._whole = dict(programs if whole is None else whole)
        self.instructions: dict[str, list[InstructionOrigin]] = {}
        """What each instruction of a method is of: the debug handles of nodes."""
        self.config = config
        self.kernels = _require_names(kernels)
        """The kernels that the runtime must have beside its own."""
        shared, unread = self.config.shared_state, self.config.unread_state
        for field, names in (("shared_state", shared), ("unread_state", unread)):
            if not isinstance(names, (tuple, list)):
                raise LoweringError(f"{field} is a tuple of names, not {names!r}")
        state = State(programs, shared, unread)
        listings = []
        self.arena_sizes = {}
        """The bytes of memory that each method needs beside the weights, and beside the state of
        several methods."""
        self.state_size = state.size
        """The bytes of the state of several methods; a single one has it in its arena."""
        for name in sorted(programs):
            planned = _plan_method(name, programs[name], state, self.kernels)
            self.arena_sizes[name] = planned.arena
            state.write_starts(planned.listing)
            listings.append(planned.listing)
            self.instructions[name] = list_instructions(planned.listing)
        beyond = max(map(read_beyond, listings), default=0)
        arenas = [
            [size, state.size + beyond] if state.size else [size]
            for size in self.arena_sizes.values()
        ]
        beside = ExternalWeights() if self.config.weights_beside else None
        chunks, self.sizes = emit_file(listings, arenas, constant_methods, beside)
        self._chunks = chunks if self.config.reads_late else _own(chunks)
        self.weights: bytes | None = None if beside is None else beside.write()
        """The `.ptd` file with the weights, if they are beside."""
        if self.config.tells_conditions:
            warn_of_unchecked(programs)
        if state.shared and programs.keys() >= {"prefill", "decode"}:
            _warn_of_stages(state.shared[0])

    @property
    def buffer(self) -> bytes:
        """The file."""
        whole = b"".join(self._chunks)
        if not self.config.reads_late:
            self._chunks = [whole]
        return whole

    @property
    def size(self) -> int:
        """The bytes of the file."""
        return sum(self.sizes.values())

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        etrecord: bool = False,
        bundled: Sequence[Any] | Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        """Write the file, and that with the weights, if they are beside: `x.ptd` for `x.pte`. A
        file is replaced when all is written, or not at all. With `etrecord` there is an ETRecord
        beside it, `x.etrecord`: which nodes, modules and lines of yours each instruction is of.
        With `bundled` there is a bundled program, `x.bpte`: the file with these calls, tuples of
        arguments of "forward" or by method, and with what the program returns for them."""
        text = os.fspath(path)
        if not text.endswith(".pte"):
            raise SaveError(f"an executable is saved as a .pte file; {text!r} is none")
        files: dict[Any, Any] = {text: self.write_to_file}
        if self.weights is not None:
            files = {weights_path(text): partial(_write, self.weights), **files}
        if etrecord:
            files[record_path(text)] = self.write_record_to_file
        if bundled is not None:
            bundle = write_bundle(self.buffer, make_cases(self, self.buffer, bundled))
            files[bundle_path(text)] = partial(_write, bundle)
        replace_files(files)

    def write_to_file(self, file: IO[bytes]) -> None:
        """Write the file's bytes to an open file."""
        for chunk in self._chunks:
            write_parts(file, chunk)

    def write_record_to_file(self, file: IO[bytes]) -> None:
        """Write the ETRecord to an open file."""
        write_record(file, self._whole, self.instructions)

    def _facts(self) -> list[str]:
        beside = [] if self.weights is None else [f"{len(self.weights):,} bytes of weights beside"]
        arena = f"{max(self.arena_sizes.values(), default=0) + self.state_size:,} bytes of memory"
        return [*super()._facts(), f"{self.size:,} bytes", *beside, arena]

    def __repr__(self) -> str:
        methods = ", ".join(sorted(self.methods | self.config_methods))
        return f"ExecutableProgram({methods}: {self.size:,} bytes)"


def _require_names(kernels: Any) -> frozenset[str]:
    """Refuse what are no names of kernels."""
    several = [] if isinstance(kernels, str) else list(kernels)
    if isinstance(kernels, str) or not all(isinstance(k, str) and "::" in k for k in several):
        raise LoweringError(
            f'kernels is {kernels!r}\n  instead: a list of names, as ["llama::custom_sdpa.out"]'
        )
    return frozenset(several)


def _warn_of_stages(name: str) -> None:
    warn(
        f"the methods 'prefill' and 'decode' share state ({name}), and ExecuTorch's runner of "
        "language models gives each method memory of its own: decoding would not see the prompt"
        "\n  instead: one 'forward' for any number of tokens, as lostwax.llm.export makes it; or a "
        "runtime that shares arenas (Module with share_memory_arenas)"
    )


def plan_method(executable: ExecutableProgram, method: str) -> Listing:
    """The listing of one method as it is in the file: every storage has its place."""
    return _plan_again(executable, method)[0].listing


def emit_recording(executable: ExecutableProgram, method: str) -> tuple[bytes, list[Node]]:
    """The file of one method that also returns, after its results, what each of these nodes
    computes."""
    (listing, written, size), state = _plan_again(executable, method)
    nodes, arena = record_values(listing, written, size)
    state.write_starts(listing)
    arenas = [arena, state.size + read_beyond(listing)] if state.size else [arena]
    return b"".join(emit_file([listing], [arenas], {}).chunks), nodes


class _Planned(NamedTuple):
    """A method whose every storage has its place."""

    listing: Listing
    written: list[Step]
    """Its steps, also those that nothing reads."""
    arena: int


def _plan_method(
    name: str, program: ExportedProgram, state: State, kernels: Collection[str]
) -> _Planned:
    listing = lower_method(name, program, state.storages, kernels)
    written = list(listing.steps)
    drop_unread(listing)
    return _Planned(listing, written, plan_memory(listing))


def _plan_again(executable: ExecutableProgram, method: str) -> tuple[_Planned, State]:
    programs = {name: executable.exported_program(name) for name in executable.methods}
    config = executable.config
    state = State(programs, config.shared_state, config.unread_state)
    return _plan_method(method, programs[method], state, executable.kernels), state


def _own(chunks: list[Any]) -> list[Any]:
    """The chunks, copied where somebody else may change them."""
    is_fixed = [isinstance(each, bytes) or each.readonly for each in chunks]
    return [each if fixed else bytes(each) for each, fixed in zip(chunks, is_fixed, strict=True)]


def _write(data: bytes, file: IO[bytes]) -> None:
    file.write(data)
