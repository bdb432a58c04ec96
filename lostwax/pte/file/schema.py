"""The tables of a `.pte` file: our description of ExecuTorch's `program.fbs`, as data.

Fields stand in the order of their slots. A kind is a scalar ("u32"), "str", a table by its name, a
list of one of these ("[i32]"), or a union ("|" and the names of its tables in the order of their
tags, from 1); a union takes two slots. Must not know how tables are written or read.
"""

from __future__ import annotations

import torch

Fields = tuple[tuple[str, str], ...]

IDENTIFIER = b"ET12"
HEADER = b"eh00"
HEADER_SIZE = 32

WEIGHTS_IDENTIFIER = b"FT01"
WEIGHTS_HEADER = b"FH01"
WEIGHTS_HEADER_SIZE = 40
"""The `.ptd` file, with weights beside a program; its root is a FlatTensor."""

VALUES = (
    "|Null Int Bool Double Tensor String IntList DoubleList BoolList TensorList OptionalTensorList"
)
INSTRUCTIONS = "|KernelCall DelegateCall MoveCall JumpFalseCall FreeCall"

TABLES: dict[str, Fields] = {
    "Program": (
        ("version", "u32"),
        ("execution_plan", "[ExecutionPlan]"),
        ("constant_buffer", "[Buffer]"),
        ("backend_delegate_data", "[BackendDelegateInlineData]"),
        ("segments", "[DataSegment]"),
        ("constant_segment", "SubsegmentOffsets"),
        ("mutable_data_segments", "[SubsegmentOffsets]"),
        ("named_data", "[NamedData]"),
    ),
    "ExecutionPlan": (
        ("name", "str"),
        ("container_meta_type", "ContainerMetadata"),
        ("values", "[EValue]"),
        ("inputs", "[i32]"),
        ("outputs", "[i32]"),
        ("chains", "[Chain]"),
        ("operators", "[Operator]"),
        ("delegates", "[BackendDelegate]"),
        ("non_const_buffer_sizes", "[i64]"),
        ("non_const_buffer_device", "[NonConstBufferDevice]"),
    ),
    "ContainerMetadata": (("encoded_inp_str", "str"), ("encoded_out_str", "str")),
    "EValue": (("val", VALUES),),
    "Tensor": (
        ("scalar_type", "i8"),
        ("storage_offset", "i32"),
        ("sizes", "[i32]"),
        ("dim_order", "[u8]"),
        ("requires_grad", "bool"),
        ("data_buffer_idx", "u32"),
        ("allocation_info", "AllocationDetails"),
        ("layout", "i8"),
        ("shape_dynamism", "i8"),
        ("extra_tensor_info", "ExtraTensorInfo"),
    ),
    "AllocationDetails": (
        ("memory_id", "u32"),
        ("memory_offset_low", "u32"),
        ("memory_offset_high", "u32"),
    ),
    "ExtraTensorInfo": (
        ("mutable_data_segments_idx", "u64"),
        ("fully_qualified_name", "str"),
        ("location", "i8"),
        ("device_type", "i8"),
        ("device_index", "i8"),
    ),
    "Null": (),
    "Int": (("int_val", "i64"),),
    "Bool": (("bool_val", "bool"),),
    "Double": (("double_val", "f64"),),
    "String": (("string_val", "str"),),
    "IntList": (("items", "[i64]"),),
    "DoubleList": (("items", "[f64]"),),
    "BoolList": (("items", "[bool]"),),
    "TensorList": (("items", "[i32]"),),
    "OptionalTensorList": (("items", "[i32]"),),
    "Operator": (("name", "str"), ("overload", "str")),
    "Chain": (
        ("inputs", "[i32]"),
        ("outputs", "[i32]"),
        ("instructions", "[Instruction]"),
        ("stacktrace", "[FrameList]"),
    ),
    "Instruction": (("instr_args", INSTRUCTIONS),),
    "KernelCall": (("op_index", "i32"), ("args", "[i32]")),
    "DelegateCall": (("delegate_index", "i32"), ("args", "[i32]")),
    "MoveCall": (("move_from", "i32"), ("move_to", "i32")),
    "JumpFalseCall": (("cond_value_index", "i32"), ("destination_instruction", "i32")),
    "FreeCall": (("value_index", "i32"),),
    "BackendDelegate": (
        ("id", "str"),
        ("processed", "BackendDelegateDataReference"),
        ("compile_specs", "[CompileSpec]"),
    ),
    "BackendDelegateDataReference": (("location", "i8"), ("index", "u32")),
    "CompileSpec": (("key", "str"), ("value", "[u8]")),
    "NonConstBufferDevice": (
        ("buffer_idx", "i32"),
        ("device_type", "i8"),
        ("device_index", "i8"),
    ),
    "Buffer": (("storage", "[u8]"),),
    "BackendDelegateInlineData": (("data", "[u8]"),),
    "DataSegment": (("offset", "u64"), ("size", "u64")),
    "SubsegmentOffsets": (("segment_index", "u32"), ("offsets", "[u64]")),
    "NamedData": (("key", "str"), ("segment_index", "u32")),
    "FlatTensor": (
        ("version", "u32"),
        ("segments", "[DataSegment]"),
        ("named_data", "[NamedTensor]"),
    ),
    "NamedTensor": (("key", "str"), ("segment_index", "u32"), ("tensor_layout", "TensorLayout")),
    "TensorLayout": (("scalar_type", "i8"), ("sizes", "[i32]"), ("dim_order", "[u8]")),
    "Frame": (("filename", "str"), ("lineno", "i32"), ("name", "str"), ("context", "str")),
    "FrameList": (("items", "[Frame]"),),
}

SCALARS = {
    "bool": ("?", 1),
    "i8": ("b", 1),
    "u8": ("B", 1),
    "i16": ("h", 2),
    "i32": ("i", 4),
    "u32": ("I", 4),
    "i64": ("q", 8),
    "u64": ("Q", 8),
    "f32": ("f", 4),
    "f64": ("d", 8),
}
"""The letter that `struct` has for each kind of scalar, and its bytes."""

DTYPES: dict[torch.dtype, int] = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex32: 8,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
    torch.uint16: 27,
    torch.uint32: 28,
    torch.uint64: 29,
}
"""The number of each dtype that tensors of a program may have."""

STATIC, DYNAMIC_BOUND = 0, 1
IN_SEGMENT = 1
"""The location of a delegate's data in a segment of the file."""
EXTERNAL = 1
"""The location of a tensor whose data is in a `.ptd` file, under its name."""
MOST_DIMS = 16
