"""What ExecuTorch's runners read of a file beside its `forward`: constant methods, from a model's
configuration and its settings for generation.
"""

from __future__ import annotations

from typing import Any


def make_metadata(
    model: Any, context: int, length: int, has_kernels: bool = False
) -> dict[str, Any]:
    """The constant methods of a model that keeps `context` tokens and takes `length` at once."""
    config = model.config.get_text_config(decoder=True)
    found = {
        "get_max_context_len": context,
        "get_max_seq_len": length,
        "get_vocab_size": config.vocab_size,
        "use_kv_cache": True,
        "use_sdpa_with_kv_cache": has_kernels,
        "enable_dynamic_shape": length > 1,
    }
    begin, ends = (_find_token(model, config, name) for name in ("bos_token_id", "eos_token_id"))
    if begin is not None:
        found["get_bos_id"] = begin
    if ends is not None:  # else the runner takes those of the tokenizer
        found["get_eos_ids"] = list(ends) if isinstance(ends, (list, tuple)) else [ends]
    return found


def _find_token(model: Any, config: Any, name: str) -> Any:
    """A token of the settings for generation, which go before the configuration."""
    settings = getattr(model, "generation_config", None)
    found = getattr(settings, name, None)
    return getattr(config, name, None) if found is None else found
