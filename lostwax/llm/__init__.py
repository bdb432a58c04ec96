"""Language models for devices: decoders of transformers as `.pte` files that ExecuTorch's runners
take. Nothing of transformers is imported before a model is exported.
"""

from __future__ import annotations

from lostwax.llm.exporting import LanguageModel, export
from lostwax.llm.tokens import TokensCheck

__all__ = ["LanguageModel", "TokensCheck", "export"]
