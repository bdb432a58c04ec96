"""The state that methods write: one storage for each tensor, whichever methods use it.

State of several methods lies in an arena of its own, at the same place in each of them: a runtime
that backs that arena once for all methods lets one see what another wrote. Must not plan other
memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch

from lostwax.errors import LoweringError
from lostwax.fake.tensor import FakeTensor
from lostwax.ir.program import ExportedProgram
from lostwax.ir.signature import InputKind, OutputKind
from lostwax.pte.file.container import DATA_ALIGNMENT, round_up
from lostwax.pte.lowering.listing import (
    STATE_ARENA,
    Call,
    JumpIfFalse,
    Label,
    Listing,
    ListOperand,
    Step,
    Storage,
    Tensor,
)

STATE = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
WRITES = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)


@dataclass(eq=False)
class _Kept:
    """A tensor that some method writes, and the methods that use it with the names they have."""

    data: torch.Tensor
    names: dict[str, str] = field(default_factory=dict)
    is_written: bool = False


class State:
    """The storages of all that methods write.

    Methods share a tensor if it is the same memory in their programs, or if `shared` has its name:
    that is for programs that were loaded, each with tensors of its own. What is `unread` begins
    with anything.
    """

    def __init__(
        self,
        programs: Mapping[str, ExportedProgram],
        shared: Sequence[str] = (),
        unread: Sequence[str] = (),
    ) -> None:
        kept: dict[Any, _Kept] = {}
        for method, program in programs.items():
            written = {s.target for s in program.graph_signature.output_specs if s.kind in WRITES}
            for target, data in _list_state(program):
                key = target if target in shared else _memory_key(data)
                if not data.numel():
                    key = method, target
                entry = kept.setdefault(key, _Kept(data))
                if method in entry.names:  # another name of the same memory
                    entry = kept.setdefault((method, target), _Kept(data))
                elif target in shared:
                    _require_equal(target, entry.data, data)
                entry.names[method] = target
                entry.is_written |= target in written
        unknown = sorted(set(shared) - kept.keys())
        if unknown:
            raise LoweringError(f"no method has the state {unknown[0]!r}, which is to be shared")
        written_names = {
            n for each in kept.values() if each.is_written for n in each.names.values()
        }
        if others := sorted({*unread} - written_names):
            raise LoweringError(f"no method writes the state {others[0]!r}, which is to be unread")
        self.size = 0
        """The bytes of the arena of state; 0 for a single method, which has its state beside all
        else."""
        self.storages: dict[tuple[str, str], Storage] = {}
        self.shared = sorted(
            next(iter(entry.names.values()))
            for entry in kept.values()
            if entry.is_written and len(entry.names) > 1
        )
        """The names of what one method may read that another wrote."""
        self.starts: list[tuple[Storage, torch.Tensor]] = []
        """What the methods write into shared state when the first of them runs."""
        for entry in kept.values():
            if entry.is_written:
                self._keep(entry, len(programs) > 1, any(n in unread for n in entry.names.values()))
        self.is_ready = self._place(Storage(1, is_kept=True)) if self.starts else None

    def _keep(self, entry: _Kept, apart: bool, is_unread: bool) -> None:
        data = entry.data.detach().cpu().contiguous()
        storage = Storage(data.nbytes, data, is_kept=True, name=next(iter(entry.names.values())))
        if apart:
            self._place(storage)
        if is_unread:
            storage.data = None
        elif len(entry.names) > 1:
            # A start value in the file is written whenever a method is loaded, which may be after
            # another has run. Arenas begin with zeros.
            storage.data = None
            if data.reshape(-1).view(torch.uint8).any():
                self.starts.append((storage, data))
        for method, target in entry.names.items():
            self.storages[method, target] = storage

    def _place(self, storage: Storage) -> Storage:
        storage.arena, storage.offset = STATE_ARENA, self.size
        self.size += max(round_up(storage.nbytes, DATA_ALIGNMENT), DATA_ALIGNMENT)
        return storage

    def write_starts(self, listing: Listing) -> None:
        """Let a planned method begin with writing the values that state starts with, unless one has
        done so."""
        if self.is_ready is None:
            return
        first, rest = Label(), Label()
        is_ready = Tensor((), torch.bool, self.is_ready, ())
        steps: list[Step] = [JumpIfFalse(is_ready, first), JumpIfFalse(False, rest), first]
        for storage, data in self.starts:
            size = tuple(data.shape)
            to = Tensor(size, data.dtype, storage, size)
            start = listing.new_constant(data, storage.name)
            steps.append(Call("aten::copy_", [to, start, False, to], (to,)))
        done = [ListOperand("[int]", ()), True, is_ready, is_ready]
        listing.steps[:0] = [*steps, Call("aten::full.out", done, (is_ready,)), rest]


def _list_state(program: ExportedProgram) -> Iterator[tuple[str, torch.Tensor]]:
    for spec in program.graph_signature.input_specs:
        if spec.kind in STATE:
            target = str(spec.target)
            data = program.state_dict.get(target, program.constants.get(target))
            if has_data(data):
                yield target, data


def has_data(data: Any) -> TypeGuard[torch.Tensor]:
    """Is it a tensor whose elements are there?"""
    return isinstance(data, torch.Tensor) and not isinstance(data, FakeTensor) and not data.is_meta


def _memory_key(data: torch.Tensor) -> Any:
    return data.device, data.data_ptr(), tuple(data.shape), data.stride(), data.dtype


def _require_equal(target: str, one: torch.Tensor, other: torch.Tensor) -> None:
    if one.dtype is not other.dtype or one.shape != other.shape or not torch.equal(one, other):
        raise LoweringError.at(
            f"the state {target!r} cannot be shared",
            "",
            why="methods have it with different values, sizes or dtypes",
            instead="export the methods of one module",
        )
