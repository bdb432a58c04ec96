"""Python's and numpy's random generators: a capture leaves them as they were, and tells of numbers
that the module draws from them.

torch's own is not drawn from. Must not draw.
"""

from __future__ import annotations

import ctypes
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


@contextmanager
def own_random_numbers() -> Iterator[None]:
    """Python's and numpy's generators are put back; numbers that the module draws from them are
    told of."""
    python, array = random.getstate(), _numpy_state()
    try:
        yield
    finally:
        drawn = [] if random.getstate() == python else ["random"]
        if _numpy_state() != array:
            drawn.append("numpy.random")
            ctypes.memmove(_numpy_address(), array, len(array))
        if drawn:
            random.setstate(python)
            warnings.warn(
                f"the module draws from Python's {' and '.join(drawn)}; the number is baked into "
                "the program. torch.rand would be drawn anew in each run.",
                stacklevel=2,
            )


def _numpy_state() -> bytes:
    """The state of numpy's own generator as it lies in memory: `get_state` takes as long as ten
    operators."""
    address = _numpy_address()
    return ctypes.string_at(address, _MT19937_BYTES) if address else b""


def _numpy_address() -> int:
    """Where it lies; 0: it is of another kind, which somebody has chosen."""
    numpy_random: Any = np.random
    generator = numpy_random.get_bit_generator()
    return generator.ctypes.state_address if type(generator) is np.random.MT19937 else 0


_MT19937_BYTES = 4 * 624 + 4  # the key, and the position in it
