"""Writes payloads of XNNPACK's: values, nodes between them, and constants beside them.

Must not know of operators: a node has a kind and its fields.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch

from lostwax.backends.spec import Payload
from lostwax.backends.xnnpack.schema import (
    EXTERNAL_INPUT,
    EXTERNAL_OUTPUT,
    FLAT_AT,
    FLOAT32,
    HEADER,
    HEADER_SIZE,
    IDENTIFIER,
    NAMED,
    NO_VALUE,
    PAYLOAD,
)
from lostwax.pte.file.container import round_up
from lostwax.pte.file.flat import Table, write_table

Clamp = tuple[float, float]


@dataclass(frozen=True)
class ElementForm:
    """How the elements of a value are written: their dtype, and, if they are quantized, the table
    that says what they mean, with its fields."""

    datatype: int
    kind: str = ""
    fields: tuple[tuple[str, Any], ...] = ()


FLOATS = ElementForm(FLOAT32)


class PayloadWriter:
    """Gathers the values and nodes of one payload; `write` makes bytes of them."""

    def __init__(self) -> None:
        self.values: list[Table] = []
        self.nodes: list[Table] = []
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.externals = 0
        self.data: list[Table] = [Table("ConstantDataOffset", {})]
        self.named: dict[str, Any] = {}
        self.datatypes: dict[int, int] = {}
        """That of each value."""
        self.known: dict[Any, int] = {}
        """The constants by their names and sizes."""

    def add_value(
        self,
        size: Sequence[int],
        form: ElementForm = FLOATS,
        external: int = NO_VALUE,
        flags: int = 0,
        data: int = 0,
    ) -> int:
        """Add a value; `external` is its place among the arguments of the delegate."""
        number = len(self.values)
        self.datatypes[number] = form.datatype
        fields = {
            "datatype": form.datatype,
            "num_dims": len(size),
            "dims": list(size),
            "constant_buffer_idx": data,
            "external_id": external,
            "flags": flags,
            "id_out": number,
        }
        value = Table("XNNTensorValue", fields)
        if form.kind:
            about = {"tensor_value": value, "quant_params": Table(form.kind, dict(form.fields))}
            value = Table("XNNQuantizedTensorValue", about)
        self.values.append(Table("XValue", {"xvalue_union": value}))
        return number

    def add_input(self, size: Sequence[int], place: int, form: ElementForm = FLOATS) -> int:
        self.inputs.append(self.add_value(size, form, place, EXTERNAL_INPUT))
        return self.inputs[-1]

    def add_output(self, size: Sequence[int], place: int, form: ElementForm = FLOATS) -> int:
        self.outputs.append(self.add_value(size, form, place, EXTERNAL_OUTPUT))
        return self.outputs[-1]

    def add_constant(self, tensor: torch.Tensor) -> int:
        """Add a constant of float32; equal ones are one."""
        data = tensor.detach().to("cpu", torch.float32)
        return self.add_data(data, tuple(data.shape) or (1,), FLOATS)

    def add_data(
        self,
        tensor: torch.Tensor,
        size: tuple[int, ...],
        form: ElementForm,
        is_own: bool = False,
    ) -> int:
        """Add a constant that lies in memory as this tensor does; equal ones are one. `is_own`: it
        was made for this, and nobody else has it."""
        data = tensor.detach().to("cpu").contiguous()
        plain: Any = data.reshape(-1).view(torch.uint8).numpy()
        # The runtime may keep what it makes of weights under their name: scales are part of that.
        scales = repr(form).encode() if form.kind else b""
        name = _name(plain, scales)
        if (name, size, form) not in self.known:
            index = self._find_index(name, memoryview(plain).toreadonly() if is_own else data)
            self.known[name, size, form] = self.add_value(size, form, data=index)
        return self.known[name, size, form]

    def add_named(self, tensor: torch.Tensor, prefix: str) -> int:
        """Add data that is no value, and return its index."""
        data = tensor.detach().to("cpu").contiguous()
        plain: Any = data.reshape(-1).view(torch.uint8).numpy()
        return self._find_index(prefix + _name(plain), data)

    def _find_index(self, name: str, data: torch.Tensor | memoryview) -> int:
        if name not in self.named:
            self.named[name] = data
            fields = {"offset": NAMED, "size": data.nbytes, "named_key": name}
            self.data.append(Table("ConstantDataOffset", fields))
        return list(self.named).index(name) + 1

    def add_node(self, kind: str, clamp: Clamp | None = None, /, **fields: Any) -> None:
        """Add a node; its results are limited to the clamp, if there is one."""
        about: dict[str, Any] = {
            "xnode_union": Table(kind, fields),
            "debug_handle": len(self.nodes) + 1,
        }
        if clamp is not None:
            limits = {"output_min": clamp[0], "output_max": clamp[1]}
            about["output_min_max"] = Table("OutputMinMax", limits)
        self.nodes.append(Table("XNode", about))

    def write(self) -> Payload:
        fields = {
            "version": "0",
            "xnodes": self.nodes,
            "xvalues": self.values,
            "num_externs": self.externals,
            "input_ids": self.inputs,
            "output_ids": self.outputs,
            "constant_data": self.data,
        }
        flat = write_table(Table("XNNGraph", fields), IDENTIFIER, PAYLOAD)
        end = FLAT_AT + round_up(len(flat), 16)
        sizes = struct.pack("<HIIIQ", HEADER_SIZE, FLAT_AT, len(flat), end, 0)
        head = bytes(4) + HEADER + sizes
        return Payload(head.ljust(FLAT_AT, b"\0") + flat.ljust(end - FLAT_AT, b"\0"), self.named)


def _name(data: Any, more: bytes = b"") -> str:
    """A name that is of the data; of all hashes that Python has, this is the fastest."""
    found = blake2b(data, digest_size=32)
    found.update(more)
    return found.hexdigest()


# ------------------------------------------------------------------------------- events
#
# XNNPACK's profile tells by names what it runs: "Add (ND) #2" is the second one. It rewrites what
# it is given: it merges reshapes, drops copies, appends limits, and squares what is multiplied by
# itself. So only that has a name here which it runs as it stands, one for one; what is not named
# is of the whole delegate.

Step = tuple[str, Mapping[str, Any], Sequence[str]]
"""A node of a payload: its kind, its fields, and the names of the nodes of the part."""

_NAMES = {
    **dict.fromkeys(("XNNConv2d", "XNNDepthwiseConv2d"), "Convolution (NHWC, F32) IGEMM"),
    "XNNFullyConnected": "Fully Connected (NC, F32) GEMM",
    "XNNBatchMatrixMultiply": "Batch Matrix Multiply (NC, F32) GEMM",
    "XNNSoftmax": "Softmax (NC, F32)",
    "XNNSigmoid": "Sigmoid (NC)",
    "XNNTanh": "TanH (NC)",
    "XNNGelu": "GELU (NC)",
    "XNNELU": "ELU (NC)",
    "XNNLeakyReLU": "LeakyReLU (NC)",
    "XNNHardswish": "HardSwish (NC)",
    "XNNPReLU": "PReLU (ND)",
    "XNNExp": "Exp (NC)",
    "XNNLog": "Log (NC)",
    "XNNSin": "Sine (NC)",
    "XNNCos": "Cosine (NC)",
    "XNNAbs": "Abs (NC)",
    "XNNNegate": "Negate (NC)",
    "XNNFloor": "Floor (NC)",
    "XNNCeiling": "Ceiling (NC)",
    "XNNSquare": "Square (NC)",
    "XNNSquareRoot": "Square Root (NC)",
    "XNNReciprocalSquareRoot": "Reciprocal Square Root (NC)",
    "XNNAdd": "Add (ND)",
    "XNNSubtract": "Subtract (ND)",
    "XNNMultiply": "Multiply (ND)",
    "XNNDiv": "Divide (ND)",
    "XNNMinimum": "Minimum (ND)",
    "XNNMaximum": "Maximum (ND)",
    "XNNMaxPooling2d": "Max Pooling (NHWC, F32)",
    "XNNGlobalAvgPooling2d": "Mean (ND) Reduce2",
    "XNNStaticConstantPad": "Constant Pad (ND, X32)",
    "XNNStaticResizeBilinear2D": "Resize Bilinear (NHWC)",
    "XNNStaticSlice": "Slice (ND, X32)",
}
_CONVOLUTIONS = ("XNNConv2d", "XNNDepthwiseConv2d")
_DEPTHWISE = (3, 4, 9, 25)
"""So many elements kernels have for which there are special functions."""


def name_events(
    steps: Iterable[Step], datatypes: Mapping[int, int]
) -> Iterator[tuple[str, Sequence[str]]]:
    """The names of events, each with the nodes that it is of. `datatypes` are those of values."""
    counts: Counter[str] = Counter()
    for kind, fields, nodes in steps:
        name = _name_event(kind, fields, datatypes)
        if name:
            counts[name] += 1
            yield f"{name} #{counts[name]}", nodes


def _name_event(kind: str, fields: Mapping[str, Any], datatypes: Mapping[int, int]) -> str:
    ids = [value for key, value in fields.items() if key.endswith("_id")]
    if any(datatypes.get(each, FLOAT32) != FLOAT32 for each in ids):
        return ""
    if kind == "XNNMultiply" and fields["input1_id"] == fields["input2_id"]:
        return _NAMES["XNNSquare"]
    if kind in _CONVOLUTIONS:
        return _name_convolution(kind, fields)
    return _NAMES.get(kind, "")


def _name_convolution(kind: str, fields: Mapping[str, Any]) -> str:
    window = fields["kernel_height"] * fields["kernel_width"]
    moves = fields["subsampling_height"] * fields["subsampling_width"] > 1
    is_padded = any(fields[f"padding_{side}"] for side in ("top", "bottom", "left", "right"))
    if fields["group_output_channels"] > 1 and fields["groups"] > 1:
        return _NAMES[kind]
    if kind == "XNNDepthwiseConv2d" and window in _DEPTHWISE:
        return "Convolution (NHWC, F32) DWConv"
    if window == 1 and not moves and not is_padded:
        if kind == "XNNDepthwiseConv2d":
            return "Convolution (NHWC, F32) VMulCAddC"
        if fields["groups"] == 1:
            return _NAMES["XNNFullyConnected"]
    return _NAMES[kind]
