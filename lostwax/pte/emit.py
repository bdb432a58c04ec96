"""Makes the tables of a file of planned listings, and the pools of data beside them.

Values are numbered as they are met; equal numbers and equal lists are one value. Must not decide
anything: which kernels, and where tensors lie, is settled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy
import torch

from lostwax.errors import LoweringError
from lostwax.ir.graph.delegate import LoweredBackendModule
from lostwax.pte.file.container import Pool, Within, write_file, write_weights
from lostwax.pte.file.flat import Table
from lostwax.pte.file.schema import DTYPES, DYNAMIC_BOUND, EXTERNAL, IN_SEGMENT, STATIC
from lostwax.pte.lowering.listing import (
    Call,
    DelegateCall,
    JumpIfFalse,
    Label,
    Listing,
    ListOperand,
    Move,
    Number,
    Storage,
    Tensor,
)
from lostwax.pte.lowering.state import has_data
from lostwax.pte.lowering.writer import check_tensor


def emit_file(
    listings: Sequence[Listing],
    arenas: Sequence[Sequence[int]],
    constants: Mapping[str, Any],
    beside: ExternalWeights | None = None,
) -> Emitted:
    """The file of these methods; `arenas` has the sizes of each one's arenas, `constants` has the
    methods that return a plain value, or several. Weights go into the file, or into `beside`."""
    weights, starts, blobs = Data(), Data(), Blobs(1)
    plans = [
        _Method(listing, weights, starts, blobs, beside).emit(sizes)
        for listing, sizes in zip(listings, arenas, strict=True)
    ]
    for name, value in constants.items():
        several = value if isinstance(value, (list, tuple)) else [value]
        listing = Listing(name, outputs=[_constant_result(name, each) for each in several])
        plans.append(_Method(listing, weights, starts, blobs).emit([0]))
    plans.sort(key=lambda plan: plan.fields["name"])
    fields: dict[str, Any] = {
        "execution_plan": plans,
        "constant_buffer": [],
        "backend_delegate_data": [],
        "constant_segment": _offsets(0, weights.pool),
        "named_data": blobs.named_data(),
    }
    pools: list[Pool | Within] = [weights.pool, *(weights.find(p) or p for p in blobs.pools)]
    if starts.pool.pieces:
        fields["mutable_data_segments"] = [_offsets(len(pools), starts.pool)]
        pools.append(starts.pool)
    chunks = write_file(fields, pools)
    sizes = {"weights": weights.pool.size, "state": starts.pool.size, **blobs.count(pools[1:])}
    rest = sum(map(len, chunks)) - sum(sizes.values())
    return Emitted(chunks, {"program": rest, **sizes})


class Emitted(NamedTuple):
    """A file in chunks, which are views of weights, and its bytes by what they are: the program,
    the weights of its kernels, the first values of its state, and what delegates have."""

    chunks: list[Any]
    sizes: dict[str, int]


def _offsets(index: int, pool: Pool) -> Table:
    return Table("SubsegmentOffsets", {"segment_index": index, "offsets": pool.offsets})


def _constant_result(name: str, value: Any) -> Any:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise _refuse_constant(name, "an integer of more than 64 bits")
    if isinstance(value, str) and ("\0" in value or not _is_encodable(value)):
        raise _refuse_constant(name, "a text that the runtime cannot hold")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if not isinstance(value, torch.Tensor):
        raise _refuse_constant(name, f"a {type(value).__name__}")
    if not has_data(value) or value.layout is not torch.strided:
        raise _refuse_constant(name, "a tensor without data, or a sparse one")
    check_tensor(value.dtype, value.ndim, f"the constant method {name!r}", "")
    return Listing(name).new_constant(value.detach().resolve_conj().resolve_neg().cpu(), name)


def _is_encodable(text: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in text)


def _refuse_constant(name: str, what: str) -> LoweringError:
    return LoweringError.at(
        f"the constant method {name!r} returns {what}",
        "",
        why="an executable holds tensors, numbers, texts, None, and lists of these",
        instead="one constant method for each item",
    )


class Data:
    """Data of tensors in one segment; equal data is there once."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.known: dict[tuple[int, bytes], list[tuple[Any, int]]] = {}

    def add(self, tensor: torch.Tensor) -> int:
        data = _bytes_of(tensor)
        alike = self.known.setdefault((len(data), bytes(data[:64])), [])
        for other, index in alike:
            if _is_equal(other, data):
                return index
        alike.append((data, self.pool.add(data)))
        return alike[-1][1]

    def find(self, other: Pool) -> Within | None:
        """Where the one piece of another segment is in this one; None if it is not."""
        ((_, wanted),) = other.pieces
        for data, index in self.known.get((len(wanted), bytes(wanted[:64])), ()):
            if len(data) and _is_equal(data, wanted):
                return Within(self.pool.offsets[index], len(data))
        return None


def _bytes_of(tensor: torch.Tensor) -> Any:
    """The memory of a contiguous tensor, not copied."""
    if not tensor.numel():
        return memoryview(b"")
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


def _is_equal(a: Any, b: Any) -> bool:
    """Are these bytes, of one length, the same? (`==` would compare them one by one.)"""
    if not len(a):
        return True
    one, other = numpy.frombuffer(a, numpy.uint8), numpy.frombuffer(b, numpy.uint8)
    parts = range(0, len(one), _AT_ONCE)
    return all(numpy.array_equal(one[i : i + _AT_ONCE], other[i : i + _AT_ONCE]) for i in parts)


_AT_ONCE = 1 << 22
"""So many bytes are compared at once: numpy makes an array of answers."""


class Blobs:
    """Data of delegates, each piece in a segment of its own; equal payloads are there once, and so
    is what has one name. `first` is the number of the first of these segments."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.pools: list[Pool] = []
        self.payloads: dict[bytes, int] = {}
        self.names: dict[str, tuple[int, Any]] = {}

    def add(self, data: Any) -> int:
        """Add data; return the number of its segment."""
        pool = Pool()
        pool.add(data)
        self.pools.append(pool)
        return self.first + len(self.pools) - 1

    def add_named(self, name: str, value: Any) -> None:
        is_tensor = isinstance(value, torch.Tensor)
        data = _bytes_of(value.detach().cpu().contiguous()) if is_tensor else memoryview(value)
        if name not in self.names:
            self.names[name] = self.add(data), data
        elif self.names[name][1] != data:
            raise LoweringError(
                f"two delegates have different data under the name {name!r}"
                "\n  instead: names that are of the data, such as a hash of it"
            )

    def add_delegate(self, delegate: LoweredBackendModule) -> Table:
        """Add a payload, and the data that it names; return the delegate's table."""
        for name, value in delegate.named_data.items():
            self.add_named(name, value)
        payload = delegate.processed_bytes
        if payload not in self.payloads:
            self.payloads[payload] = self.add(payload)
        where = {"location": IN_SEGMENT, "index": self.payloads[payload]}
        specs = [
            Table("CompileSpec", {"key": spec.key, "value": list(spec.value)})
            for spec in delegate.compile_specs
        ]
        fields = {
            "id": delegate.backend_id,
            "processed": Table("BackendDelegateDataReference", where),
            "compile_specs": specs,
        }
        return Table("BackendDelegate", fields)

    def count(self, pools: Sequence[Pool | Within]) -> dict[str, int]:
        """The bytes of payloads and of weights in these segments; what is elsewhere in the file
        counts there."""
        found = {"delegates": 0, "weights of delegates": 0}
        payloads = set(self.payloads.values())
        for at, pool in enumerate(pools[: len(self.pools)], self.first):
            if isinstance(pool, Pool):
                found["delegates" if at in payloads else "weights of delegates"] += pool.size
        return found

    def named_data(self) -> list[Table]:
        return [
            Table("NamedData", {"key": name, "segment_index": index})
            for name, (index, _) in self.names.items()
        ]


class ExternalWeights:
    """The weights beside a file, each under its own name: equal ones may differ in another file of
    the same module."""

    def __init__(self) -> None:
        self.data = Data()
        self.names: dict[tuple[int, torch.dtype, tuple[int, ...], str], str] = {}

    def add(self, tensor: Tensor) -> str:
        """Add the data of a tensor; return its name."""
        storage = tensor.storage
        assert storage.data is not None
        key = (self.data.add(storage.data), tensor.dtype, tensor.bound, storage.name)
        if key not in self.names:
            taken, name = set(self.names.values()), storage.name or "constant"
            others = (f"{name}_{i}" for i in count(1))
            self.names[key] = (
                name if name not in taken else next(n for n in others if n not in taken)
            )
        return self.names[key]

    def write(self) -> bytes:
        """The `.ptd` file."""
        named = []
        for (index, dtype, size, _), name in self.names.items():
            layout = {
                "scalar_type": DTYPES[dtype],
                "sizes": list(size),
                "dim_order": list(range(len(size))),
            }
            fields = {
                "key": name,
                "segment_index": index - 1,
                "tensor_layout": Table("TensorLayout", layout),
            }
            named.append(Table("NamedTensor", fields))
        return write_weights(named, self.data.pool)


class _Method:
    """Emits one method."""

    def __init__(
        self,
        listing: Listing,
        weights: Data,
        starts: Data,
        blobs: Blobs,
        beside: ExternalWeights | None = None,
    ) -> None:
        self.listing, self.weights, self.starts = listing, weights, starts
        self.blobs, self.beside = blobs, beside
        self.values: list[Table] = []
        self.numbers: dict[Any, int] = {}
        """The indices of plain values and lists, by what they are."""
        self.objects: dict[Tensor | Number, int] = {}
        self.storages: dict[Storage, int] = {}
        self.operators: dict[str, int] = {}
        self.delegates: list[Table] = []

    def emit(self, arenas: Sequence[int]) -> Table:
        listing = self.listing
        inputs = [self.index_of(v) for v in listing.inputs]
        places: dict[Label, int] = {}
        at = 0
        for step in listing.steps:
            if isinstance(step, Label):
                places[step] = at
            else:
                at += 1
        instructions = [
            self._instruction(step, places) for step in listing.steps if not isinstance(step, Label)
        ]
        chain = {"inputs": [], "outputs": [], "instructions": instructions}
        outputs = [self.index_of(v) for v in listing.outputs]
        fields = {
            "name": listing.name,
            "container_meta_type": Table(
                "ContainerMetadata", {"encoded_inp_str": "", "encoded_out_str": ""}
            ),
            "values": self.values,
            "inputs": inputs,
            "outputs": outputs,
            "chains": [Table("Chain", chain)],
            "operators": [_operator(name) for name in self.operators],
            "delegates": self.delegates,
            "non_const_buffer_sizes": [0, *arenas],
        }
        return Table("ExecutionPlan", fields)

    def _instruction(self, step: Any, places: Mapping[Label, int]) -> Table:
        if isinstance(step, DelegateCall):
            assert step.delegate is not None
            args = [self.index_of(a) for a in step.args]
            table = Table("DelegateCall", {"delegate_index": len(self.delegates), "args": args})
            self.delegates.append(self.blobs.add_delegate(step.delegate))
        elif isinstance(step, Call):
            index = self.operators.setdefault(step.kernel, len(self.operators))
            args = [self.index_of(a) for a in step.args]
            table = Table("KernelCall", {"op_index": index, "args": args})
        elif isinstance(step, Move):
            ends = {"move_from": self.index_of(step.source), "move_to": self.index_of(step.to)}
            table = Table("MoveCall", ends)
        else:
            assert isinstance(step, JumpIfFalse)
            condition = self.index_of(step.condition)
            where = {"cond_value_index": condition, "destination_instruction": places[step.to]}
            table = Table("JumpFalseCall", where)
        return Table("Instruction", {"instr_args": table})

    # ---------------------------------------------------------------------------- values

    def index_of(self, value: Any) -> int:
        """The index of a value, which is made when it is first met."""
        if isinstance(value, (Tensor, Number)):
            found = self.objects.get(value)
            if found is None:
                found = self.objects[value] = self._add(self._object(value))
            return found
        if isinstance(value, ListOperand):
            return self._list_index(value)
        key = (value.__class__, repr(value))
        if key not in self.numbers:
            self.numbers[key] = self._add(_plain(value))
        return self.numbers[key]

    def _add(self, table: Table) -> int:
        self.values.append(Table("EValue", {"val": table}))
        return len(self.values) - 1

    def _list_index(self, items: ListOperand) -> int:
        kind = _LISTS[items.kind]
        numbers: list[Any] = list(items)
        if kind in _BY_INDEX:
            numbers = [-1 if i is None else self.index_of(i) for i in items]
        key = (kind, tuple(numbers))
        if key not in self.numbers:
            self.numbers[key] = self._add(Table(kind, {"items": numbers}))
        return self.numbers[key]

    def _object(self, value: Tensor | Number) -> Table:
        return _plain(value.start) if isinstance(value, Number) else self._tensor(value)

    def _tensor(self, tensor: Tensor) -> Table:
        storage = tensor.storage
        order = tensor.order or range(len(tensor.size))
        fields: dict[str, Any] = {
            "scalar_type": DTYPES[tensor.dtype],
            "sizes": list(tensor.bound),
            "dim_order": list(order),
            "shape_dynamism": DYNAMIC_BOUND if tensor.is_dynamic else STATIC,
        }
        if storage.is_constant and self.beside is not None and storage.nbytes:
            info = {"fully_qualified_name": self.beside.add(tensor), "location": EXTERNAL}
            fields["extra_tensor_info"] = Table("ExtraTensorInfo", info)
        elif storage.data is not None:
            data = self.starts if storage.is_kept else self.weights
            if storage not in self.storages:
                self.storages[storage] = data.add(storage.data)
            fields["data_buffer_idx"] = self.storages[storage]
        if not storage.is_constant:
            assert storage.offset >= 0, "a tensor without a place"
            low, high = storage.offset & 0xFFFFFFFF, storage.offset >> 32
            place = {
                "memory_id": storage.arena,
                "memory_offset_low": low,
                "memory_offset_high": high,
            }
            fields["allocation_info"] = Table("AllocationDetails", place)
        return Table("Tensor", fields)


_LISTS = {
    "[int]": "IntList",
    "[float]": "DoubleList",
    "[bool]": "BoolList",
    "[tensor]": "TensorList",
    "[tensor?]": "OptionalTensorList",
}
_BY_INDEX = ("IntList", "TensorList", "OptionalTensorList")
"""Lists whose items are indices of values."""


def _plain(value: Any) -> Table:
    if value is None:
        return Table("Null", {})
    if isinstance(value, bool):
        return Table("Bool", {"bool_val": value})
    if isinstance(value, int):
        return Table("Int", {"int_val": value})
    if isinstance(value, float):
        return Table("Double", {"double_val": value})
    return Table("String", {"string_val": value})


def _operator(kernel: str) -> Table:
    name, _, overload = kernel.partition(".")
    return Table("Operator", {"name": name, "overload": overload})
