"""Programs as ONNX models: `save(program, "model.onnx")`, `to_onnx(program)`, and a table that
users extend. Needs `onnx-ir`: `pip install lostwax[onnx]`.
"""

from lostwax.onnx.custom import leave_to_runtime
from lostwax.onnx.model import to_onnx
from lostwax.onnx.saving import save
from lostwax.onnx.table import NotWritten, translation
from lostwax.onnx.values import OnnxTensor
from lostwax.onnx.writer import OnnxWriter

__all__ = [
    "NotWritten",
    "OnnxTensor",
    "OnnxWriter",
    "leave_to_runtime",
    "save",
    "to_onnx",
    "translation",
]
