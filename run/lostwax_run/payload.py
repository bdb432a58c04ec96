"""Checks a payload of XNNPACK's: XNNPACK follows its graph and reads its weights without asking.

Every value that a node reads is there before it, every value is written once, and weights have the
bytes that their sizes speak of. Must not know of programs.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lostwax_run.errors import FileError
from lostwax_run.tables import Bytes, Table

NODES = """
    Add FullyConnected Softmax Sigmoid StaticTranspose Clamp Conv2d Div StaticResizeBilinear2D
    StaticConstantPad AvgPooling2d Minimum DepthwiseConv2d MaxPooling2d Multiply Subtract Floor
    Convert GlobalAvgPooling2d StaticReshape ArgMaxPooling2d SquareRoot Ceiling Hardswish
    LeakyReLU Maximum Negate Square ELU Abs PReLU Concatenate2 Concatenate3 Concatenate4
    StaticSlice ScaledDotProductAttention BatchMatrixMultiply Concatenate5 ConvTranspose2d
    ReciprocalSquareRoot Log Gelu Tanh Exp Sin Copy Cos
""".split()  # noqa: SIM905
"""The kinds of nodes in the order of their tags, of ExecuTorch's schema.fbs for XNNPACK."""

_TWO, _CONVOLUTION, _POOL = ((0, 1), 2), ((15, 16, 17), 18), ((10,), 11)
_FORMS = {
    **dict.fromkeys(["Add", "Div", "Minimum", "Maximum", "Multiply", "Subtract"], _TWO),
    **dict.fromkeys(["PReLU", "BatchMatrixMultiply"], _TWO),
    "FullyConnected": ((0, 1, 2), 3),
    **dict.fromkeys(["Conv2d", "DepthwiseConv2d", "ConvTranspose2d"], _CONVOLUTION),
    **dict.fromkeys(["AvgPooling2d", "MaxPooling2d"], _POOL),
    **{f"Concatenate{n}": ((1, 2, 3, 4, 7), 5) for n in (2, 3, 4, 5)},
    **dict.fromkeys(["StaticTranspose", "StaticReshape", "StaticResizeBilinear2D"], ((2,), 3)),
    **dict.fromkeys(["StaticSlice", "StaticConstantPad"], ((3,), 4)),
    **dict.fromkeys(["ELU", "LeakyReLU"], ((1,), 2)),
    "ArgMaxPooling2d": ((6,), 8),
}
"""The slots of what a node reads, and of what it writes; of most kinds 0 and 1."""

_BITS = (32, 32, 16, 8, 8, 32, 8, 32, 4, 8, 4, 8, 32, 32, 16)
"""The bits of a number, by the number of its dtype."""
_IS_INPUT, _IS_OUTPUT, _NONE = 1, 2, 0xFFFFFFFF
_QUANTIZED, _BY_CHANNEL, _BY_GROUP = 2, 1, 4

FindSize = Callable[[str], int | None]


@dataclass(frozen=True)
class External:
    """An argument of the call of a payload, by its place."""

    at: int
    bits: int


def check_payload(data: Bytes, find_size: FindSize) -> list[External]:
    """Refuse a payload that lies; what its call must have. `find_size` is asked for the bytes of
    data with a name."""
    if len(data) < 38 or bytes(data[4:8]) != b"XH00":
        _refuse("it has no header")
    at, size, constants_at, constants = struct.unpack_from("<IIIQ", data, 10)
    tables = data[at : at + size]
    graph = Table(tables, struct.unpack_from("<I", tables)[0])
    room = min(constants, max(0, len(data) - constants_at))
    check = _GraphCheck([_find_bytes(each, room, find_size) for each in graph.tables(8)])
    for value in graph.tables(2):
        check.add_value(value)
    for node in graph.tables(1):
        check.add_node(node)
    places = [each.at for each in check.externals]
    if len(set(places)) != len(places) or max(places, default=0) >= graph.integer(3, "I"):
        _refuse("its arguments are not in their places")
    return check.externals


class _GraphCheck:
    """The check of one graph, of which constants have so many bytes."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self.elements: dict[int, int] = {}
        """How many elements each value has, at most."""
        self.ready: set[int] = set()
        self.unwritten: set[int] = set()
        self.externals: list[External] = []

    def add_value(self, value: Table) -> None:
        kind, inner = value.integer(0, "B"), value.table(1)
        tensor = inner.table(0) if kind == _QUANTIZED and inner is not None else inner
        if tensor is None or inner is None:
            return _refuse("a value is empty")
        number, buffer = tensor.integer(6, "I"), tensor.integer(3, "I")
        place, flags = tensor.integer(4, "I"), tensor.integer(5, "I")
        if number in self.elements or number == _NONE:
            _refuse(f"the value {number} is there twice")
        dtype = tensor.integer(0, "h")
        bits = _BITS[dtype] if 0 <= dtype < len(_BITS) else 32
        self.elements[number] = count = math.prod(tensor.numbers(2, "I"))
        if buffer:
            self._require_bytes(buffer, (count * bits + 7) // 8, f"the value {number}")
        if kind == _QUANTIZED:
            self._check_scales(inner, tensor, count)
        is_external = bool(flags & (_IS_INPUT | _IS_OUTPUT))
        if is_external != (place != _NONE):
            _refuse(f"the value {number} is an argument, or is none")
        if is_external:
            self.externals.append(External(place, bits))
        (self.ready if buffer or flags & _IS_INPUT else self.unwritten).add(number)
        return None

    def add_node(self, node: Table) -> None:
        tag, inner = node.integer(0, "B"), node.table(1)
        kind = NODES[tag - 1] if 1 <= tag <= len(NODES) else ""
        if inner is None or not kind:
            return _refuse(f"there is a node of the unknown kind {kind or tag}")
        reads, writes = _FORMS.get(kind, ((0,), 1))
        for slot in reads:
            number = inner.integer(slot, "I") if inner.has(slot) else _read_absent(slot, reads)
            if number not in self.ready and not (number == _NONE and slot != reads[0]):
                _refuse(f"{kind} reads the value {number}, which is not there yet")
        for slot in (7, writes) if kind == "ArgMaxPooling2d" else (writes,):
            number = inner.integer(slot, "I")
            if number not in self.unwritten:
                _refuse(f"{kind} writes the value {number}, which is there already")
            self.unwritten.remove(number)
            self.ready.add(number)
        if (reads, writes) == _CONVOLUTION:
            self._check_convolution(inner)
        return None

    def _check_convolution(self, node: Table) -> None:
        height, width = (node.integer(slot, "I") for slot in (4, 5))
        inputs, outputs, groups = (node.integer(slot, "I") for slot in (10, 11, 12))
        wanted = {16: height * width * inputs * outputs * groups, 17: outputs * groups}
        for slot, count in wanted.items():
            number = node.integer(slot, "I")
            if number != _NONE and self.elements[number] < count:
                _refuse(f"a convolution reads {count:,} elements of the value {number}")

    def _check_scales(self, inner: Table, tensor: Table, elements: int) -> None:
        kind, scales = inner.integer(1, "B"), inner.table(2)
        if scales is None or kind not in (_BY_CHANNEL, _BY_GROUP):
            return
        dims, axis = tensor.numbers(2, "I"), scales.integer(1, "i")
        if not 0 <= axis < max(len(dims), 1):
            _refuse(f"its scales are along the dim {axis} of {len(dims)}")
        count_at, buffer_at, width = (3, 2, 4) if kind == _BY_CHANNEL else (5, 4, 2)
        group = scales.integer(2, "i") if kind == _BY_GROUP else 0
        if kind == _BY_GROUP and group <= 0:
            _refuse(f"groups have {group} elements")
        wanted = -(-elements // group) if group else dims[axis] if dims else 1
        buffer = scales.integer(buffer_at, "I")
        if buffer:
            wanted = max(wanted, scales.integer(count_at, "I"))
            self._require_bytes(buffer, wanted * width, "a list of scales")
        elif max(scales.count(0), scales.count(3) if group else 0) < wanted:
            _refuse(f"there are to be {wanted} scales")

    def _require_bytes(self, buffer: int, wanted: int, what: str) -> None:
        found = self.sizes[buffer] if buffer < len(self.sizes) else -1
        if found < wanted:
            told = "no data" if found < 0 else f"{found:,} bytes"
            _refuse(f"{what} has {told}; its sizes speak of {wanted:,}")


def _read_absent(slot: int, reads: Sequence[int]) -> int:
    """A field that is not there is 0; the fifth input of a join did not exist once."""
    return _NONE if slot == 7 and len(reads) == 5 else 0


def _find_bytes(entry: Table, room: int, find_size: FindSize) -> int:
    if entry.has(2):
        size = find_size(entry.text(2))
        return -1 if size is None else size
    offset, size = entry.integer(0, "Q"), entry.integer(1, "Q")
    return min(size, max(0, room - offset)) if size else max(0, room - offset)


def _refuse(what: str) -> None:
    raise FileError(f"the payload for XNNPACK is damaged: {what}\n  instead: write it again")
