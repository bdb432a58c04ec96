"""Python's and numpy's random generators: a capture leaves them as they were, and warns of numbers
that the module draws from them.

They belong to all threads. A thread that is alone has them put back. Where there are others, who
may draw meanwhile, nothing is put back, or they would draw the same numbers twice: there the
capturing thread draws from copies. A function that code already holds (`from random import random`)
is the generator's own and draws from it all the same: that the generator was drawn from is
reported, though it may have been another thread. torch's generator is not drawn from.

numpy loads its generators when they are first used: that takes a tenth of the time of our import.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from functools import partial
from typing import Any

import numpy as np

from lostwax.cache import cached
from lostwax.capture import threads
from lostwax.capture.patches import swap
from lostwax.capture.patches.swap import CodeSwap, CodeSwaps, NameSwap, stand_for
from lostwax.capture.threads import is_capturing
from lostwax.location import PASSING_ON
from lostwax.undo.undo import Undo

PASSING_ON.add(__file__)

_shared: Any = random._inst
_Random: Any = random.Random
_numpy: Any = np


def separate_generators(undo: Undo) -> None:
    """From here on, what this thread draws leaves the generators of all threads as they are."""
    if threads.is_alone():
        undo.add(partial(_put_back, _python_state(), _numpy_state(), undo))
        return
    classes = _make_classes()
    undo.add(partial(_warn_of_copies, _python_state(), _numpy_state(), undo))
    _copies.clear()
    _CODE_SWAPS.apply(undo)
    swap.set_classes(classes, undo)


def _warn_of_draws(drawn: list[str], undo: Undo) -> None:
    undo.notes.append(
        f"the module draws from Python's {' and '.join(drawn)}; the number is baked into "
        "the program. torch.rand would be drawn again in each run."
    )


# ------------------------------------------------------------------------------- a thread alone


def _put_back(python: Any, array: bytes | None, undo: Undo) -> None:
    drawn = [] if _python_state() == python else ["random"]
    if _is_numpy_drawn(array):
        drawn.append("numpy.random")
    if drawn and threads.is_alone():  # else another may have drawn since
        _set_python_state(python)
        if array:
            ctypes.memmove(_numpy_address(), array, len(array))
        elif array is None and "numpy.random" in drawn:
            _numpy.random.seed()  # as it was: its position is not known
    if drawn:
        _warn_of_draws(drawn, undo)


def _is_numpy_drawn(array: bytes | None) -> bool:
    """Does numpy's generator stand elsewhere than at this state? One that was loaded since has been
    drawn from, or seeded, if it is not where a new one is."""
    now = _numpy_state()
    if array is not None or not now:
        return now != array
    new = _numpy.random.RandomState()._bit_generator.ctypes.state_address
    return now[_KEY_BYTES:] != ctypes.string_at(new + _KEY_BYTES, _MT19937_BYTES - _KEY_BYTES)


def _numpy_state() -> bytes | None:
    """The state of numpy's own generator as it lies in memory: `get_state` takes as long as ten
    operators. None if it is not loaded."""
    if "numpy.random" not in sys.modules:
        return None
    address = _numpy_address()
    return ctypes.string_at(address, _MT19937_BYTES) if address else b""


def _numpy_address() -> int:
    """Where that state lies; 0 if a generator of another kind was chosen."""
    generator = _numpy.random.get_bit_generator()
    return generator.ctypes.state_address if type(generator) is np.random.MT19937 else 0


def _python_state() -> Any:
    """The state of Python's generator."""
    if not _PYTHON_ADDRESS:
        return random.getstate()
    return ctypes.string_at(_PYTHON_ADDRESS, _MT19937_BYTES), _shared.gauss_next


def _set_python_state(state: Any) -> None:
    if not _PYTHON_ADDRESS:
        random.setstate(state)
        return
    ctypes.memmove(_PYTHON_ADDRESS, state[0], _MT19937_BYTES)
    _shared.gauss_next = state[1]


_KEY_BYTES = 4 * 624
_MT19937_BYTES = _KEY_BYTES + 4  # the key, and the position in it


def _find_python_state() -> int:
    """Where it lies: in CPython behind the head of the object, the position first; 0: elsewhere."""
    address = id(_shared) + object.__basicsize__
    if _Random.__basicsize__ < object.__basicsize__ + _MT19937_BYTES:
        return 0
    position, *key = struct.unpack("=i624I", ctypes.string_at(address, _MT19937_BYTES))
    return address if random.getstate()[1] == (*key, position) else 0


_PYTHON_ADDRESS = _find_python_state()


# ----------------------------------------------------------------------------- one among others

_copies: dict[str, Any] = {}
"""What the capturing thread draws from, by the generator's name, once it has drawn."""


def _warn_of_copies(python: Any, array: bytes | None, undo: Undo) -> None:
    drawn = sorted(_copies, reverse=True)
    _copies.clear()
    if drawn:
        _warn_of_draws(drawn, undo)
    elif _python_state() != python or _numpy_state() != array:
        undo.notes.append(PERHAPS_DRAWN)


PERHAPS_DRAWN = (
    "Python's random or numpy.random was drawn from during the export, by another thread or by a "
    "function that the module holds (`from random import random`); if it was the module, the "
    "number is baked into the program. torch.rand would be drawn again in each run."
)


def list_copies() -> list[Any]:
    """What the capturing thread draws from in the places of the generators of all."""
    return list(_copies.values())


def _copy_of_python() -> Any:
    if "random" not in _copies:
        copy = _Random(0)
        copy.setstate(_shared.getstate())
        _copies["random"] = copy
    return _copies["random"]


def _copy_of_numpy() -> Any:
    if "numpy.random" not in _copies:
        copy: Any = np.random.RandomState(type(_numpy.random.get_bit_generator())())
        copy.set_state(np.random.get_state())
        _copies["numpy.random"] = copy
    return _copies["numpy.random"]


class _Drawing(random.Random):
    """The generator of all, for threads that do not capture; what Python's `random` draws, it draws
    by these two. No `super()`: its class may be another one again when a thread gets here."""

    def random(self) -> float:
        if is_capturing() and self is _shared:
            return _copy_of_python().random()  # type: ignore[no-any-return]
        return _Random.random(self)  # type: ignore[no-any-return]

    def getrandbits(self, k: int, /) -> int:
        if is_capturing() and self is _shared:
            return _copy_of_python().getrandbits(k)  # type: ignore[no-any-return]
        return _Random.getrandbits(self, k)  # type: ignore[no-any-return]


def _make_seeding(name: str) -> Any:
    """A method that reads or sets a generator's state."""

    def answer(plain: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        copied = self is _shared and ("random" in _copies or name != "getstate")
        return plain(_copy_of_python() if copied else self, *args, **kwargs)

    return answer


_SEEDS = ("seed", "setstate", "getstate")
_CODE_SWAPS = CodeSwaps([CodeSwap(getattr(_Random, name), _make_seeding(name)) for name in _SEEDS])


@cached()
def _make_classes() -> list[tuple[Any, type]]:
    swaps = [NameSwap(random, name, _make_python_draw(name)) for name in ("random", "getrandbits")]
    shared = _numpy.random.mtrand._rand
    for name, function in vars(np.random).items():
        if getattr(function, "__self__", None) is shared or name in _BY_OTHER_NAMES:
            method = _BY_OTHER_NAMES.get(name, name)
            swaps.append(NameSwap(np.random, name, _make_numpy_draw(method, function)))
    return [*swap.make_classes(swaps), (_shared, _Drawing)]


_BY_OTHER_NAMES = {"seed": "seed", "ranf": "random_sample", "sample": "random_sample"}
"""Functions that are no methods, and the methods that they call."""


def _make_python_draw(name: str) -> Any:
    def draw(*args: Any) -> Any:
        return getattr(_shared, name)(*args)  # which asks for the thread

    return stand_for(getattr(random, name), draw)


def _make_numpy_draw(name: str, function: Any) -> Any:
    def draw(*args: Any, **kwargs: Any) -> Any:
        asked = is_capturing() and ("numpy.random" in _copies or name != "get_state")
        return (getattr(_copy_of_numpy(), name) if asked else function)(*args, **kwargs)

    return stand_for(function, draw)
