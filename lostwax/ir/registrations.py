"""The code that registers containers of other libraries, for the errors that ask for it.

Only text: nothing of these libraries is imported here, and nothing is registered. Must not be
guessed: tests/capture/test_hugging_face.py runs each line, saves a program and loads it.
"""

from __future__ import annotations

_DYNAMIC = "register_dynamic_cache_export_support"
_GENERIC = "register_pytree_node"
_PAIR = (
    "import torch; from transformers.cache_utils import EncoderDecoderCache; "
    "torch.utils._pytree.register_pytree_node(EncoderDecoderCache, "
    "lambda cache: ([cache.self_attention_cache, cache.cross_attention_cache], "
    "list(cache.is_updated.values())), lambda caches, updated: "
    "(made := object.__new__(EncoderDecoderCache)).__dict__.update(self_attention_cache=caches[0], "
    "cross_attention_cache=caches[1], is_updated=dict(enumerate(updated))) or made, "
    "serialized_type_name='transformers.cache_utils.EncoderDecoderCache')"
)
"""What transformers itself registers for it does not survive a file: numbers that are keys become
texts in JSON."""


def registration_code(name: str, context: str = "") -> str:
    """Return the code that registers a cache of transformers under its name in files; empty for
    other classes. `context` is what a file says of the cache: there are two ways to register a
    `DynamicCache`."""
    name = name.replace(":", ".")
    module, _, cls = name.rpartition(".")
    is_name = all(part.isidentifier() for part in name.split("."))
    if not is_name or not module.startswith("transformers.") or not cls.endswith("Cache"):
        return ""
    if cls == "EncoderDecoderCache":
        return _PAIR
    if cls == "DynamicCache" and '"_t"' not in context:
        return f"from transformers.integrations.executorch import {_DYNAMIC}; {_DYNAMIC}()"
    return (
        f"from transformers.exporters.exporter_dynamo import {_GENERIC}; "
        f"from {module} import {cls}; {_GENERIC}({cls})"
    )
