"""How operators are written in ONNX, one family a file; `load` fills the table."""

from importlib import import_module

_FAMILIES = (
    "attention", "control", "convolution", "creation", "indexing", "matrix",
    "normalization", "numbers", "pointwise", "pooling", "quantized", "reductions", "resampling",
    "shapes", "sorting",
)  # fmt: skip


def load() -> None:
    """Fill the table."""
    for family in _FAMILIES:
        import_module(f"{__name__}.{family}")
