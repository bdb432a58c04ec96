"""The tables of the `.pt2` format: records, versions, enumerations.

Schema 8 of torch.export, as torch 2.11 to 2.13 write it. Within a major version new fields may
appear: unknown ones are ignored by every reader, missing ones have the defaults given in
`decode.py`. The history of the versions stands here.

    8.0 … 8.20   one JSON object per program, weights as raw bytes in records of their own
    < 8          pickled weights and other nesting: refused
"""

from __future__ import annotations

import torch

ARCHIVE_FORMAT = b"pt2"
ARCHIVE_VERSION = b"0"
CONTAINER_VERSION = b"6\n"
SCHEMA_MAJOR, SCHEMA_MINOR = 8, 20
OPSET = {"aten": torch._C._get_max_operator_version()}

# Records of a model, by its name.
MODEL = "models/{}.json"
WEIGHTS_CONFIG = "data/weights/{}_weights_config.json"
CONSTANTS_CONFIG = "data/constants/{}_constants_config.json"
SAMPLE_INPUTS = "data/sample_inputs/{}.pt"
WEIGHTS, CONSTANTS, EXTRA = "data/weights/", "data/constants/", "extra/"

POSITIONAL, KEYWORD = 1, 2

# Ends the names of results that no node reads, after the name of their operator.
UNREAD = "_unused"

# The fields that name the state which a placeholder is for.
STATE_NAMES = ("parameter_name", "buffer_name", "tensor_constant_name")

_DTYPES = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    9: "complex32",
    10: "complex64",
    11: "complex128",
    12: "bool",
    13: "bfloat16",
    28: "uint16",
    29: "float8_e4m3fn",
    30: "float8_e5m2",
    31: "float8_e4m3fnuz",
    32: "float8_e5m2fnuz",
    33: "float8_e8m0fnu",
    34: "uint32",
    35: "uint64",
}
DTYPES: dict[int, torch.dtype] = {number: getattr(torch, name) for number, name in _DTYPES.items()}
DTYPE_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}

LAYOUTS: dict[int, torch.layout] = {
    1: torch.sparse_coo,
    2: torch.sparse_csr,
    3: torch.sparse_csc,
    4: torch.sparse_bsr,
    5: torch.sparse_bsc,
    6: torch._mkldnn,  # type: ignore[attr-defined]
    7: torch.strided,
}
LAYOUT_NUMBERS = {layout: number for number, layout in LAYOUTS.items()}

MEMORY_FORMATS: dict[int, torch.memory_format] = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}
MEMORY_FORMAT_NUMBERS = {form: number for number, form in MEMORY_FORMATS.items()}
