"""Facts about operators that neither their schemas nor their type rules tell.

A family file marks its operators next to their rules: `mark(Trait.STOPS_GRADIENT, ...)`. The mode,
the tracer and the passes ask `Trait.X in operator(overload).traits`, or have a table from traits to
handlers; none of them knows an operator by its name. Must not say what is to be done about a fact.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple


class Trait(Enum):
    """One fact about an operator that neither its schema nor its type rule tells."""

    __hash__ = object.__hash__  # that of Enum is written in Python

    # ------------------------------------------------------------------ what shares memory, and how

    SHARES_STORAGE = auto()
    """Its result lies in the memory of its first argument, though its schema has no alias."""
    VIEW_OR_COPY = auto()
    """The layout of its argument decides whether its result is a view or a copy."""
    COPIES_GAPS = auto()
    """It copies whatever is not contiguous, also where a view would do."""
    NEEDS_STRIDES = auto()
    """Its result is a view; where the strides of its argument allow none, it raises."""
    VIEWS_STORAGE = auto()
    """It views the whole storage of its argument, not only the part that the argument shows."""
    SHOWS_PART = auto()
    """It may show fewer elements than its base has: a write to it is copied into the base."""
    SHOWS_TWICE = auto()
    """It may show an element of its base more than once, at strides that are not zero."""
    OTHER_ELEMENTS = auto()
    """Its elements are not its base's own, but cast, conjugated or negated: places in memory cannot
    be counted through it."""
    NOT_ITS_BASE = auto()
    """Its values or gradients differ from its base's, even where their types are equal."""

    # --------------------------------------------------------------------------------- conjugates

    CONJUGATES = auto()
    """Its result is conjugated when it is read."""
    REAL_OF_CONJUGATE = auto()
    """Its result is the same for a conjugate as for the tensor that is conjugated."""
    NEGATIVE_OF_CONJUGATE = auto()
    """Its result for a conjugate is the negative of that for the tensor that is conjugated."""
    NOT_OF_CONJUGATE = auto()
    """It cannot view a conjugate: the conjugate must be computed before."""
    RESOLVES_CONJUGATE = auto()
    """It copies a tensor that is conjugated when it is read, and returns any other one as it is."""
    RESOLVES_NEGATIVE = auto()
    """It copies a tensor that is negated when it is read, and returns any other one as it is."""

    # ---------------------------------------------------------------------- layouts, types, numbers

    ROW_MAJOR = auto()
    """Its result is row-major whatever the layout of its arguments."""
    AS_FIRST = auto()
    """Its result is laid out as its first argument, whatever the layout of the others."""
    READS_IN_ORDER = auto()
    """Its kernel assumes contiguous arguments; torch copies those that are not."""
    READS_DENSE = auto()
    """It takes only tensors without gaps; its callers in torch copy the others first."""
    READS_TYPE = auto()
    """It returns a number that follows from its argument's type, not from its data."""
    READS_LAYOUT = auto()
    """It returns a number that follows from its argument's layout."""
    READS_NUMBER = auto()
    """It returns the number that its argument holds."""
    SUBTRACTS = auto()
    """It returns its first argument less its second, if there are no others."""
    SUBTRACTS_FROM = auto()
    """It returns its second argument less its first, if there are no others."""
    READS_BITS = auto()
    """It shows the bits of its argument as another type."""
    READS_GRADIENT = auto()
    """Its layout depends on whether a gradient reaches an argument."""
    RULE_READS_SETTINGS = auto()
    """Its type rule looks at settings of torch that change from call to call."""

    # ------------------------------------------------------------------------- what is newly made

    FACTORY = auto()
    """It makes its result from no tensor that has a gradient."""
    RANGE = auto()
    """It makes the numbers of a range: which ones depends on what its dtype can tell apart."""
    UNINITIALIZED = auto()
    """Nobody has written to the memory of its result."""
    LITERAL = auto()
    """It brings a tensor that exists in Python into the program."""

    # --------------------------------------------------------------------------------------- writes

    COPIES_INTO = auto()
    """It overwrites its first argument with the second, cast and expanded. Its functional twin has
    no derivative."""
    ONE_BY_ONE = auto()
    """It writes to many tensors. Its functional twin has no derivative; that of one tensor has."""
    OVERWRITES = auto()
    """It does not read what it overwrites; autograd gives that a gradient of zeros."""
    FILLS = auto()
    """It writes a number, its last argument, in many places."""
    WRITES_ALIKE = auto()
    """It writes equal values to elements that share one place in memory."""
    DROPS_OUT = auto()
    """If tensors are of a subclass, C++ returns a new result and leaves `out=` unwritten."""
    DECLARED_ELSEWHERE = auto()
    """Its schema hides what it writes; another operator does the same and declares it."""
    SIZES_STATE = auto()
    """Its first call gives running statistics their size."""

    READS_ELSEWHERE = auto()
    """An element of its result depends on elements of its arguments at other places."""
    READS_NUMBER_FIRST = auto()
    """It reads a 0-d argument before it writes anything."""

    # ------------------------------------------------------------------------------------- `out=`

    EXACT_OUT = auto()
    """It does not convert: `out=` must have the dtype of the result."""
    OUT_APART = auto()
    """Eager refuses an `out=` that it reads, also if both are the very same tensor."""
    OUTS_APART = auto()
    """Eager refuses two `out=` that overlap."""
    ROW_MAJOR_OUT = auto()
    """Its `out=` form copies: an `out=` of another size becomes row-major, even where the result
    without `out=` would not."""
    ROW_MAJOR_OUT_ON_CPU = auto()
    """The same, but a GPU's kernel gives such an `out=` the layout of the result."""
    RELAYS_FIRST_OUT = auto()
    """LAPACK's wrapper gives the first `out=` new strides if it is empty, even at the right
    size."""
    RELAYS_TWO_OUTS = auto()
    """LAPACK's wrapper does so with the first two `out=`."""

    # ------------------------------------------------------------------------------- random numbers

    DRAWS_IN_ORDER = auto()
    """It draws in the order of memory, but its functional twin in the order of indices."""
    DRAWS_BETWEEN = auto()
    """It draws integers between two bounds; Python has no name for its functional twin."""
    DRAWS_FACTORS = auto()
    """In training its result is its first argument times the noise that it draws into the
    second. Torch's derivative reads the noise as it was before."""

    # ------------------------------------------------------------------------------------ gradients

    DETACHES = auto()
    """It is there to stop a gradient, and does nothing else."""
    STOPS_GRADIENT = auto()
    """A view that no gradient flows through."""
    UNDERIVED = auto()
    """It has no derivative, and reads only the size of its argument, so that the gradient ends
    here."""
    FORWARD_ONLY = auto()
    """C++ calls it if no gradient is needed; another operator does the same with a derivative."""
    PARTS_ARE_CAST = auto()
    """It has a derivative of its own, and its kernel calls operators that autocast casts."""

    # ------------------------------------------------------------------------ composite operators

    ONE_FOR_ONE = auto()
    """A composite operator that amounts to one other operator."""
    RECURRENT = auto()
    """It steps over a sequence. C++ would choose one device's kernel; torch's Python does not."""
    BEFORE_NUMPY = auto()
    """`x.numpy()` calls it before it reads the data."""

    # -------------------------------------------------------------------------------- collectives

    COMMUNICATES = auto()
    """All processes of a group run it together, in the same order. What it returns is there after
    a wait."""
    WAITS = auto()
    """It returns its argument when what a collective writes there has arrived."""

    # --------------------------------------------------------------------------------------- checks

    ASSERTS = auto()
    """It raises if something does not hold."""
    FAILS = auto()
    """Its kernel raises for some data. (So do those that take places, by their schemas.)"""
    FAILS_TO_FACTOR = auto()
    """It raises `LinAlgError` for some matrices."""
    COUNTS_NONZERO = auto()
    """Its result has as many rows as its first argument has elements that are not zero."""
    SIZED_BY_MASKS = auto()
    """Of data, only those of the masks among its arguments say how large its result is: the rule
    asks for one size for each mask after the first argument, in their order."""
    ASKS_ALL = auto()
    """It asks whether all of a tensor is true, which is often a check."""
    CHECKS_ALL = auto()
    """It asks whether all of a tensor is true, and is never anything but a check."""


class OperatorRefusal(NamedTuple):
    """Why no program can have an operator. The text may contain `{overload}` or `{name}`."""

    text: str
    why: str
    instead: str
