"""Language models: decoders of transformers as `.pte` files that ExecuTorch's runners take, and as
ONNX models for onnxruntime. Nothing of transformers is imported before a model is exported.
"""

from __future__ import annotations

from lostwax.llm.exporting import LanguageModel, export
from lostwax.llm.onnx import export_onnx
from lostwax.llm.parts import ModelInParts, export_parts
from lostwax.llm.tokens import TokensCheck

__all__ = ["LanguageModel", "ModelInParts", "TokensCheck", "export", "export_onnx", "export_parts"]
