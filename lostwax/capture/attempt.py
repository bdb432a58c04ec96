"""How a call is captured: an `Attempt` says it. A `Retry` stops one, and says how the next differs.

Code that finds out during a capture that it should have begun otherwise raises a `Retry`. One
loop makes one attempt after the other (`make_attempts`). Must not know how a capture works.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from lostwax.errors import find_own_error, note_made
from lostwax.ir.data import Ref

if TYPE_CHECKING:
    from lostwax.capture.flow.rewriting.recompile import FunctionKey, Plan
    from lostwax.capture.shapes.constants import DeclaredConstant
    from lostwax.capture.shapes.spec import Spec

T = TypeVar("T")
Line = tuple[str, int]
"""A file and a line in it."""


class SizeBranches:
    """Branches on declared sizes of which both ways could not be kept (`control_flow="sizes"`): the
    example decides them, with a guard."""

    def __init__(self, lines: frozenset[Line] = frozenset(), reasons: tuple[str, ...] = ()) -> None:
        self.lines = lines
        self.reasons = reasons
        """Why, of those where both ways were tried."""
        self.last_tried: list[Line] = []
        """The branch of which a capture has kept both ways last, noted while it runs."""

    def settle(self, line: Line) -> SizeBranches:
        return SizeBranches(self.lines | {line}, self.reasons)

    def decide_last_by_example(self, reason: BaseException) -> SizeBranches | None:
        """The branch that was tried last is settled, too; None if it was, or if there is none."""
        found = self.lines.union(self.last_tried)
        return SizeBranches(found, (*self.reasons, str(reason))) if found != self.lines else None


class Attempt(NamedTuple):
    """How a call is captured. By default as it is given."""

    spec: Spec | None = None
    """The sizes and numbers that vary."""
    tracked: bool = False
    """Autograd records, too."""
    apart: bool = False
    """A tensor that is passed several times becomes several tensors that share memory."""
    agreed: bool = True
    """These have the same sizes."""
    joined: tuple[Ref, ...] = ()
    """Two inputs, or state and an input, that become one tensor."""
    plans: Mapping[FunctionKey, Plan] = MappingProxyType({})
    """The functions whose control flow depends on data, and what is changed in them."""
    kernels: Mapping[Any, Callable[..., Any]] = MappingProxyType({})
    """Fake kernels of custom operators that have none."""
    settled: SizeBranches | None = None
    """With `control_flow="sizes"`, the branches on sizes that the example decides."""
    tells_exporting: bool = True
    """Is code told that it is being exported, if it asks?"""
    keeps_options: bool = True
    """May data make a variable one thing or another (`python/one_of.py`)?"""
    asked: list[str] | None = None
    """The lines that ask it, noted by all attempts that come of this one."""
    declared: Mapping[int, DeclaredConstant] = MappingProxyType({})
    """The values of inputs that are declared to be constants, by the index of the leaf."""

    def decide_last_by_example(self, reason: BaseException) -> Attempt | None:
        """The example decides the branch on a size of which both ways were tried last; None if
        there is none."""
        found = None if self.settled is None else self.settled.decide_last_by_example(reason)
        return None if found is None else self._replace(settled=found)


class Retry(BaseException):
    """Stops an attempt, and says how the next one differs. (No `Exception`: the user's code is not
    to catch it. If it does, the attempt is stopped all the same.)"""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        note_made(self)

    refusal: BaseException
    """What to raise if there is no other attempt."""

    def amend(self, attempt: Attempt) -> Attempt | None:
        """The next attempt; None if none would get further."""
        raise NotImplementedError


Amend = Callable[[Attempt, BaseException], Attempt | None]
"""Finds the attempt that comes after an error; None if there is none."""


def make_attempts(make: Callable[[Attempt], T], attempt: Attempt, amend: Sequence[Amend]) -> T:
    """What is made by the first attempt that nothing stops. After an error that is no `Retry`, or
    the refusal of one, `amend` are asked."""
    while True:
        try:
            return make(attempt)
        except (Exception, Retry) as raised:
            found = _find_next(attempt, find_own_error(raised) or raised, amend)
            if found is raised:
                raise
        # Not above: there, the error would keep what was captured alive.
        if not isinstance(found, Attempt):
            raise found
        attempt = found


def _find_next(
    attempt: Attempt, error: BaseException, amend: Sequence[Amend]
) -> Attempt | BaseException:
    """The attempt that comes after an error, or what to raise."""
    if isinstance(error, Retry):
        found = error.amend(attempt)
        if found is not None:
            return found
        error = error.refusal
    return next(filter(None, (each(attempt, error) for each in amend)), error)
