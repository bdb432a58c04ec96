"""`one is other` in the user's functions: a copy of a function's code that asks us.

Python compares the objects, and tells nobody. But a number that is not known is another object than
the one that it stands for, `flag is True`; and of two tensors data may decide whether they are one.
So in the copy the comparison is `(one, other) in ASKED`. `x is None` stays as it is. The bytes are
exchanged, and not the source (`flow/rewriting`): that would have to be read and compiled, for
functions most of which compare no number. Must not know who wants the answer.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from lostwax.bytecode import copies
from lostwax.capture import threads
from lostwax.classes import SYMBOLIC
from lostwax.fake.symbolic.objects import are_one_object
from lostwax.fake.tensor import FakeTensor
from lostwax.location import PASSING_ON

PASSING_ON.add(__file__)
_SYMBOLIC: frozenset[type] = frozenset(SYMBOLIC)


def is_same(one: Any, other: Any) -> Any:
    """`one is other`: a truth, symbolic where data or sizes decide it. Refused for tensors, if it
    is so on one side of an `if` only."""
    if type(one) in _SYMBOLIC or type(other) in _SYMBOLIC:
        return are_one_object(one, other) if threads.is_capturing() else one is other
    are_two = one is not other and isinstance(one, Tensor) and isinstance(other, Tensor)
    if are_two and FakeTensor in (type(one), type(other)) and threads.is_capturing():
        threads.running[-1].check_apart(one, other)
    return one is other


class _Asked:
    def __contains__(self, pair: tuple[Any, Any]) -> Any:
        return is_same(*pair)  # Python makes a truth of it


ASKED = _Asked()
ask_identities = partial(copies.ask_identities, asked=ASKED)
"""The code with questions; itself if it compares nothing that can be a number or a tensor."""
