"""What the runtime would believe of a file: numbers of things that are not there, tensors without
memory, weights that are shorter than their sizes say. It is refused before anything runs.

The runtime itself verifies the tables of a program, where tensors lie in arenas and in the file,
and the kinds of values that kernels take. Must not run anything.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from lostwax_run.errors import FileError
from lostwax_run.payload import check_payload
from lostwax_run.tables import Bytes, Table, reading

# Slots of the tables of ExecuTorch's program.fbs
PLANS, INLINE, SEGMENTS, NAMED = 1, 3, 4, 7
NAME, VALUES, INPUTS, OUTPUTS, CHAINS, KERNELS, DELEGATES = 0, 2, 3, 4, 5, 6, 7
KERNEL_CALL, DELEGATE_CALL, MOVE_CALL, JUMP_CALL, FREE_CALL = 1, 2, 3, 4, 5
TENSOR, EXTERNAL, IN_SEGMENT = 5, 1, 1
VIEW = "executorch_prim::et_view"
"""The kernel that gives its last argument memory, that of its first."""
BYTES = {0: 1, 1: 1, 2: 2, 3: 4, 4: 8, 5: 2, 6: 4, 7: 8, 11: 1, 15: 2}


@reading
def check_program(data: Bytes, weights: Bytes | None) -> None:
    """Refuse a program that speaks of what it has not."""
    root = _root(data)
    names = _list_names(root, weights)
    for plan in root.tables(PLANS):
        _PlanCheck(data, root, plan, names).check()


def _list_names(root: Table, weights: Bytes | None) -> dict[str, int]:
    """The bytes of all data that has a name."""
    found: dict[str, int] = {}
    places = [(root, SEGMENTS, NAMED)]
    if weights is not None:
        places.append((_root(weights), 1, 2))
    for table, segments, named in places:
        sizes = [segment.integer(1, "Q") for segment in table.tables(segments)]
        for each in table.tables(named):
            found[each.text(0)] = sizes[each.integer(1, "I")]
    return found


class _PlanCheck:
    """The check of one method."""

    def __init__(self, data: Bytes, root: Table, plan: Table, names: dict[str, int]) -> None:
        self.data, self.root, self.plan, self.names = data, root, plan, names
        self.values = list(plan.tables(VALUES))
        self.is_view = [kernel.text(0) == VIEW for kernel in plan.tables(KERNELS)]
        self.delegates = [self._read_delegate(each) for each in plan.tables(DELEGATES)]
        self.bare = {at for at, value in enumerate(self.values) if _has_no_memory(value)}
        """The tensors that have no memory yet, in the order of the instructions."""

    def check(self) -> None:
        for value in self.values:
            self._check_external(value)
        for index in (*self.plan.numbers(INPUTS, "i"), *self.plan.numbers(OUTPUTS, "i")):
            self._require(index, len(self.values), "value")
        self.bare -= set(self.plan.numbers(INPUTS, "i"))
        for chain in self.plan.tables(CHAINS):
            steps = chain.count(2)
            for step in chain.tables(2):
                self._check_step(step, steps)
        for index in self.plan.numbers(OUTPUTS, "i"):
            self._require_memory(index)

    def _check_external(self, value: Table) -> None:
        name = _find_external(value)
        if name is not None and name not in self.names:
            raise FileError(
                f"the weight {name!r} is neither in the program nor in weights beside it"
                "\n  instead: Program(file, weights='model.ptd'), with the file written with it"
            )

    def _check_step(self, step: Table, steps: int) -> None:
        kind, inner = step.integer(0, "B"), step.table(1)
        if inner is None:
            self._refuse("an instruction is empty")
            return
        first = inner.integer(0, "i")
        if kind in (KERNEL_CALL, DELEGATE_CALL):
            args = inner.numbers(1, "i")
            for index in args:
                self._require(index, len(self.values), "value")
            self._check_call(kind, first, args)
        else:
            self._require(first, len(self.values), "value")
            if kind == MOVE_CALL:
                self._require(inner.integer(1, "i"), len(self.values), "value")
            elif kind == JUMP_CALL:
                self._require(inner.integer(1, "i"), steps + 1, "instruction")

    def _check_call(self, kind: int, index: int, args: tuple[int, ...]) -> None:
        if kind == KERNEL_CALL:
            self._require(index, len(self.is_view), "kernel")
            if self.is_view[index] and args:
                self.bare.discard(args[-1])
        else:
            self._require(index, len(self.delegates), "delegate")
            self._check_delegate(index, args)
        for arg in args:
            self._require_memory(arg)

    def _check_delegate(self, index: int, args: tuple[int, ...]) -> None:
        payload = self.delegates[index]
        if payload is None:
            return
        for external in check_payload(payload, self.names.get):
            self._require(external.at, len(args), "argument of a delegate")
            value = self.values[args[external.at]]
            tensor = value.table(1)
            if value.integer(0, "B") != TENSOR or tensor is None:
                self._refuse(f"the argument {external.at} of a delegate is no tensor")
            elif BYTES.get(tensor.integer(0, "b"), 0) * 8 < external.bits:
                self._refuse(f"the argument {external.at} of a delegate has numbers of fewer bits")

    def _read_delegate(self, delegate: Table) -> Bytes | None:
        """The payload of XNNPACK's; other backends are not known."""
        place = delegate.table(1)
        if delegate.text(0) != "XnnpackBackend" or place is None:
            return None
        index = place.integer(1, "I")
        if place.integer(0, "b") != IN_SEGMENT:
            start, count = self.root.row(INLINE, index).span(0)
            return self.data[start : start + count]
        segment = self.root.row(SEGMENTS, index)
        (base,) = struct.unpack_from("<Q", self.data, 24)
        start = base + segment.integer(0, "Q")
        return self.data[start : start + segment.integer(1, "Q")]

    def _require(self, index: int, count: int, what: str) -> None:
        if not 0 <= index < count:
            self._refuse(f"it speaks of the {what} {index}, and has {count}")

    def _require_memory(self, index: int) -> None:
        if index in self.bare:
            self._refuse(f"the value {index} has no memory")

    def _refuse(self, what: str) -> None:
        raise FileError(
            f"the method {self.plan.text(NAME)!r} is damaged: {what}\n  instead: write it again"
        )


def _has_no_memory(value: Table) -> bool:
    tensor = value.table(1) if value.integer(0, "B") == TENSOR else None
    if tensor is None or tensor.has(6) or tensor.integer(5, "I") or 0 in tensor.numbers(2, "i"):
        return False
    return _find_external(value) is None


def _find_external(value: Table) -> str | None:
    """The name of a tensor that lies in a file of weights."""
    tensor = value.table(1) if value.integer(0, "B") == TENSOR else None
    extra = tensor.table(9) if tensor is not None else None
    return extra.text(1) if extra is not None and extra.integer(2, "b") == EXTERNAL else None


@reading
def check_weights(data: Bytes) -> None:
    """Refuse weights whose tables lie: the runtime follows them wherever they lead."""
    if len(data) < 48 or bytes(data[8:12]) != b"FH01":
        raise FileError("the file of weights has no header, or ends in it")
    start, size, base, room = struct.unpack_from("<QQQQ", data, 16)
    if start + size > len(data) or base + room > len(data):
        end = max(start + size, base + room)
        raise FileError(f"the file of weights has {len(data):,} bytes, and speaks of {end:,}")
    root = _root(data[: start + size])
    segments = list(root.tables(1))
    if any(each.integer(0, "Q") + each.integer(1, "Q") > room for each in segments):
        raise FileError("a weight does not lie in the file: it is damaged or cut off")
    for named in root.tables(2):
        is_whole = named.has(0) and named.integer(1, "I") < len(segments)
        if not is_whole or not all(_is_tensor(each) for each in _list_layouts(named)):
            raise FileError(f"the weight {named.text(0)!r} is damaged")


def _list_layouts(named: Table) -> Iterator[Table]:
    layout = named.table(2)
    if layout is not None:
        yield layout


def _is_tensor(layout: Table) -> bool:
    sizes, order = layout.numbers(1, "i"), layout.numbers(2, "B")
    is_whole = layout.has(1) and layout.has(2) and min(sizes, default=0) >= 0
    return is_whole and sorted(order) == [*range(len(sizes))]


def _root(data: Bytes) -> Table:
    return Table(data, struct.unpack_from("<I", data)[0])
