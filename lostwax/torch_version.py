"""Which torch is at hand, and all that differs for us between the versions that were tested.

Layer 0: imports nothing of lostwax. Each difference has a name here, with its reason; code asks
for the name and never for a version. Must not import more of torch than torch itself.
"""

from __future__ import annotations

import re
import sys
import warnings
from typing import Any

import torch

TESTED = ((2, 11), (2, 12), (2, 13), (2, 14), (2, 15))
"""The versions on which the tests were run. Others may work: a warning says that nobody looked."""


def parse(version: str) -> tuple[int, int]:
    """(2, 15) for `2.15.0a0+git1234`."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise ValueError(f"{version!r} does not begin with a version as torch writes it: 2.13.0")
    return int(found[1]), int(found[2])


TORCH = parse(torch.__version__)


def tested_texts() -> str:
    """`2.11, 2.12`, for messages."""
    return ", ".join(f"{major}.{minor}" for major, minor in TESTED)


def is_tested() -> bool:
    return TORCH in TESTED


if not is_tested():
    warnings.warn(
        f"lostwax was tested with torch {tested_texts()}; this is torch {torch.__version__}, "
        "where operators may have other layouts, errors or names. Compare what you export with "
        "eager execution (lostwax.check), or install one of the tested versions",
        stacklevel=2,
    )


def make_import_error(error: Exception) -> ImportError:
    """Make the error for a torch that nobody tested and that lacks something that is needed."""
    return ImportError(
        f"lostwax does not work with torch {torch.__version__}, which lacks something that it "
        f"needs: {error}. Install one of the versions that were tested: torch {tested_texts()}"
    )


# ------------------------------------------------------------------------------ operators of ATen

PARTIAL = {
    "cholesky": "until 2.13",
    "linalg_matrix_sqrth": "since 2.14",
    "linalg_polar": "since 2.14",
    "_upsample_lanczos2d_aa": "since 2.12",
    "_upsample_lanczos2d_aa_backward": "since 2.12",
}
"""Operators that are named here and that not every tested torch has."""

# --------------------------------------------------------------------- what operators do otherwise

AMINMAX_CHECKS_OUT = TORCH >= (2, 15)
"""`aminmax` refuses outputs that overlap."""

ARANGE_TRUNCATES_BOUNDS = TORCH < (2, 14)
"""`arange(3.1, dtype=int64)` has 3 elements, not 4."""

ATTENTION_LIFTS = TORCH >= (2, 14)
"""Attention of three dimensions is that of four, the first of size 1, and squeezed again."""

ATTENTION_SHARES_ONE_HEAD = TORCH >= (2, 14)
"""The CPU's fused attention is chosen, too, where key and value have one head for all queries."""

ATTENTION_KEEPS_SYMBOLS = TORCH >= (2, 13)
"""C++ takes attention apart for autograd without asking for sizes as plain numbers. (In 2.11 its
`matmul` does; 2.12 was not looked at.)"""

BESSEL_HAS_GRADIENT = TORCH >= (2, 15)
"""Bessel functions of the first and second kind, also modified ones, can be differentiated."""

DTYPE_ERROR = NotImplementedError if TORCH >= (2, 15) else RuntimeError
"""The class of many refusals of a dtype."""

BOOL_ERROR = NotImplementedError if TORCH >= (2, 14) else RuntimeError
"""The class in which pointwise operators refuse booleans."""

FFT_DTYPE_ERROR = TypeError if TORCH >= (2, 14) else RuntimeError
"""The class in which a Fourier transform refuses integers."""

FFT_TAKES_EMPTY = TORCH >= (2, 15)
"""Fourier transforms of no element: later, torch does not ask MKL, which refuses them."""

KIND_ERROR = TypeError if TORCH >= (2, 15) else RuntimeError
"""The class of refusals of complex numbers where an order is asked, or of real ones for complex."""

GRID_SAMPLER_3D_IS_BICUBIC = TORCH >= (2, 15)
"""`grid_sampler_3d` interpolates with mode "bicubic", too."""

GROUP_NORM_TAKES_ANY_STRIDES = TORCH >= (2, 14)
"""`native_group_norm` takes any strides, and refuses 0 channels or 0 positions. The gradient keeps
the strides of an input that the kernel reads as it is."""

# -------------------------------------------------------------------------------------- functions

LOAD_KNOWS_ROUNDING = TORCH >= (2, 13)
"""`torch.export.load` reads programs that take `abs`, `floor` and `ceil` of numbers."""

INFER_SIZE_TAKES_SYMBOLS = TORCH >= (2, 13)
"""What `F.binary_cross_entropy` asks for the size of its weights takes symbolic sizes. (It does not
in 2.11; 2.12 was not looked at.)"""

APPLY_IS_C = not isinstance(torch.autograd.Function.__dict__["apply"], classmethod)
"""`autograd.Function.apply` is a function of C++: since 2.15."""

_switch = sys.modules.get("torch._higher_order_ops.switch")
SWITCHES: list[Any] = [] if _switch is None else [_switch.SwitchOp]
"""The class of the operator that `torch.switch` calls: since 2.15."""
