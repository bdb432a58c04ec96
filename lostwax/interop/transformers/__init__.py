"""lostwax as a backend of `transformers.exporters`: importing this module registers it.

    import lostwax.interop.transformers
    from transformers.exporters import AutoHfExporter

    config = lostwax.interop.transformers.LostwaxConfig(dynamic=True)
    exported = AutoHfExporter.from_config(config).export(model, inputs, config)

`pip install lostwax[transformers]`: transformers 5.23 or later.
"""

from __future__ import annotations

from lostwax.errors import LoadError

try:
    from transformers.exporters import register_backend
except ImportError as error:
    raise LoadError(
        f"transformers cannot take lostwax as a backend: {error}\n"
        "  instead: pip install 'transformers>=5.23'"
    ) from error

from lostwax.interop.transformers.containers import register_caches
from lostwax.interop.transformers.exporter import (
    LostwaxConfig,
    LostwaxExporter,
    LostwaxPteConfig,
    LostwaxPteExporter,
)
from lostwax.interop.transformers.onnx import LostwaxOnnxConfig, LostwaxOnnxExporter
from lostwax.interop.transformers.runner import (
    LostwaxOnnxRunner,
    LostwaxPteRunner,
    LostwaxRunner,
)

__all__ = [
    "LostwaxConfig",
    "LostwaxExporter",
    "LostwaxOnnxConfig",
    "LostwaxOnnxExporter",
    "LostwaxOnnxRunner",
    "LostwaxPteConfig",
    "LostwaxPteExporter",
    "LostwaxPteRunner",
    "LostwaxRunner",
]

register_caches()
register_backend(LostwaxExporter, LostwaxRunner)
register_backend(LostwaxPteExporter, LostwaxPteRunner)
register_backend(LostwaxOnnxExporter, LostwaxOnnxRunner)
