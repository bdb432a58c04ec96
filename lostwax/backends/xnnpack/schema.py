"""The tables of a payload of XNNPACK's: our description of ExecuTorch's `schema.fbs`, as data.

As in `lostwax.pte.file.schema`. Must not know what the tables mean.
"""

from __future__ import annotations

from lostwax.pte.file.flat import TableForm
from lostwax.pte.file.schema import Fields

IDENTIFIER = b"XN01"
HEADER = b"XH00"
HEADER_SIZE = 30
FLAT_AT = 32
"""Where the tables begin in a payload."""

FLOAT32, INT8, INT8_BY_CHANNEL, INT32_BY_CHANNEL, INT4_BY_CHANNEL = 1, 3, 6, 7, 8
INT8_BY_ROW, INT4_BY_GROUP = 9, 10
"""The numbers of dtypes. Those of rows are chosen when the program runs."""
NO_VALUE = 0xFFFFFFFF
NAMED = 0xFFFFFFFFFFFFFFFF
"""The offset of data that is found by its name."""
EXTERNAL_INPUT, EXTERNAL_OUTPUT = 1, 2
KEEP_DIMS = 64
ALIGN_CORNERS = 8
MOST_DIMS = 6

NODES = (
    "XNNAdd XNNFullyConnected XNNSoftmax XNNSigmoid XNNStaticTranspose XNNClamp XNNConv2d XNNDiv "
    "XNNStaticResizeBilinear2D XNNStaticConstantPad XNNAvgPooling2d XNNMinimum XNNDepthwiseConv2d "
    "XNNMaxPooling2d XNNMultiply XNNSubtract XNNFloor XNNConvert XNNGlobalAvgPooling2d "
    "XNNStaticReshape XNNArgMaxPooling2d XNNSquareRoot XNNCeiling XNNHardswish XNNLeakyReLU "
    "XNNMaximum XNNNegate XNNSquare XNNELU XNNAbs XNNPReLU XNNConcatenate2 XNNConcatenate3 "
    "XNNConcatenate4 XNNStaticSlice XNNScaledDotProductAttention XNNBatchMatrixMultiply "
    "XNNConcatenate5 XNNConvTranspose2d XNNReciprocalSquareRoot XNNLog XNNGelu XNNTanh XNNExp "
    "XNNSin XNNCopy XNNCos"
)
"""The kinds of nodes in the order of their tags."""


def _fields(names: str, **others: str) -> Fields:
    """Fields of these names: numbers, if nothing else is said of them."""
    return tuple((name, others.get(name, "u32")) for name in names.split())


_ENDS = "input_id output_id flags"
_ONE = _fields(_ENDS)
_TWO = _fields("input1_id input2_id output_id flags")
_WINDOW = "padding_top padding_right padding_bottom padding_left"
_CONVOLUTION = _fields(
    f"{_WINDOW} kernel_height kernel_width subsampling_height subsampling_width dilation_height "
    "dilation_width group_input_channels group_output_channels groups adjustment_height "
    "adjustment_width input1_id filter_id bias_id output_id flags"
)
_POOL = _fields(
    f"{_WINDOW} pooling_height pooling_width stride_height stride_width dilation_height "
    f"dilation_width {_ENDS}"
)
_JOIN = _fields("axis input1_id input2_id input3_id input4_id output_id flags input5_id")

TABLES: dict[str, Fields] = {
    **dict.fromkeys(NODES.split(), _ONE),
    **dict.fromkeys(
        ["XNNAdd", "XNNDiv", "XNNMinimum", "XNNMaximum", "XNNMultiply", "XNNSubtract"], _TWO
    ),
    **dict.fromkeys(["XNNPReLU", "XNNBatchMatrixMultiply"], _TWO),
    **dict.fromkeys(["XNNConv2d", "XNNDepthwiseConv2d", "XNNConvTranspose2d"], _CONVOLUTION),
    **dict.fromkeys(["XNNAvgPooling2d", "XNNMaxPooling2d"], _POOL),
    **{f"XNNConcatenate{count}": _JOIN for count in (2, 3, 4, 5)},
    "XNNFullyConnected": _fields("input1_id filter_id bias_id output_id flags"),
    "XNNStaticTranspose": _fields(f"num_dims perm {_ENDS}", perm="[u32]"),
    "XNNStaticReshape": _fields(f"num_dims new_shape {_ENDS}", new_shape="[u32]"),
    "XNNStaticSlice": _fields(f"num_dims offsets sizes {_ENDS}", offsets="[u32]", sizes="[u32]"),
    "XNNStaticConstantPad": _fields(
        f"pre_paddings post_paddings padding_value {_ENDS}",
        pre_paddings="[u32]",
        post_paddings="[u32]",
        padding_value="f32",
    ),
    "XNNStaticResizeBilinear2D": _fields(f"new_height new_width {_ENDS}"),
    "XNNELU": _fields(f"alpha {_ENDS}", alpha="f32"),
    "XNNLeakyReLU": _fields(f"negative_slope {_ENDS}", negative_slope="f32"),
    "XNNTensorValue": _fields(
        "datatype num_dims dims constant_buffer_idx external_id flags id_out",
        datatype="i16",
        dims="[u32]",
    ),
    "PerChannelQuant": _fields(
        "scale channel_dim scale_buffer_idx num_scales", scale="[f32]", channel_dim="i32"
    ),
    "PerTensorQuant": (("scale", "f32"), ("zero_point", "i32")),
    "PerTokenDynamicQuant": (("num_nonbatch_dims", "i32"),),
    "PerChannelGroupQuant": _fields(
        "scale channel_dim group_size scale_bf16 scale_buffer_idx num_scales",
        scale="[f32]",
        scale_bf16="[u8]",
        channel_dim="i32",
        group_size="i32",
    ),
    "XNNQuantizedTensorValue": (
        ("tensor_value", "XNNTensorValue"),
        (
            "quant_params",
            "|PerChannelQuant PerTensorQuant PerTokenDynamicQuant PerChannelGroupQuant",
        ),
    ),
    "XValue": (("xvalue_union", "|XNNTensorValue XNNQuantizedTensorValue"),),
    "OutputMinMax": (("output_min", "f32"), ("output_max", "f32")),
    "XNode": (
        ("xnode_union", f"|{NODES}"),
        ("debug_handle", "u32"),
        ("output_min_max", "OutputMinMax"),
    ),
    "ConstantDataOffset": (("offset", "u64"), ("size", "u64"), ("named_key", "str")),
    "Buffer": (),
    "XNNGraph": (
        ("version", "str"),
        ("xnodes", "[XNode]"),
        ("xvalues", "[XValue]"),
        ("num_externs", "u32"),
        ("input_ids", "[u32]"),
        ("output_ids", "[u32]"),
        ("constant_buffer", "[Buffer]"),
        ("mem_buffer_sizes", "[u32]"),
        ("constant_data", "[ConstantDataOffset]"),
    ),
}

PAYLOAD = TableForm(TABLES)
