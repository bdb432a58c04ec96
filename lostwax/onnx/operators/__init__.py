"""How operators are written in ONNX, one family a file; `load` fills the table."""

from importlib import import_module

_FAMILIES = (
    "control", "creation", "indexing", "matrix", "nn.attention", "nn.convolution",
    "nn.normalization", "nn.pooling", "nn.recurrent", "nn.resampling", "numbers", "pointwise",
    "quantized", "reductions", "shapes", "sorting", "stepwise",
)  # fmt: skip


def load() -> None:
    """Fill the table."""
    for family in _FAMILIES:
        import_module(f"{__name__}.{family}")
