"""What an operator may be, beside what its schema and its type rule say of it.

A family file marks its operators, each next to its rule: `mark(Trait.STOPS_GRADIENT, ...)`. The
mode, the tracer and the passes ask `Trait.X in operator(overload).traits`, or have a table from
traits to handlers; none of them knows an operator by its name. Must not say what is to be done.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


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
    """A view, or an error where the strides of its argument allow none."""
    VIEWS_STORAGE = auto()
    """It shows the storage of its argument, whatever the argument itself shows of it."""
    SHOWS_PART = auto()
    """It may show fewer elements than its base has: a write to it is copied into the base."""
    SHOWS_TWICE = auto()
    """It may show an element of its base more than once, at strides that are not zero."""
    OTHER_ELEMENTS = auto()
    """Its elements are not those of its base: places in memory are not counted through it."""
    NOT_ITS_BASE = auto()
    """It is something else than its base, though their types may be the same."""

    # --------------------------------------------------------------------------------- conjugates

    CONJUGATES = auto()
    """Its result is conjugated when it is read."""
    REAL_OF_CONJUGATE = auto()
    """Of a conjugate it shows what it would show of the tensor that is conjugated."""
    NEGATIVE_OF_CONJUGATE = auto()
    """So, with the other sign."""
    NOT_OF_CONJUGATE = auto()
    """It cannot view a conjugate: that is to be computed before."""
    RESOLVES_CONJUGATE = auto()
    """A copy of what is conjugated when it is read, and any other tensor itself."""
    RESOLVES_NEGATIVE = auto()
    """The same of what is negated when it is read."""

    # ---------------------------------------------------------------------- layouts, types, numbers

    ROW_MAJOR = auto()
    """Its result is row-major whatever the layout of its arguments."""
    AS_FIRST = auto()
    """Its result is laid out as its first argument, whatever the layout of the others."""
    READS_IN_ORDER = auto()
    """Its kernel takes its arguments for contiguous; torch copies those that are not."""
    READS_DENSE = auto()
    """It takes tensors without gaps alone; what torch calls it from makes them so."""
    READS_TYPE = auto()
    """It answers with a number of its argument's type, not of its data."""
    READS_LAYOUT = auto()
    """So, with one that the layout decides."""
    READS_NUMBER = auto()
    """It answers with the number that its argument holds."""
    READS_BITS = auto()
    """It shows the bits of its argument as another type."""
    RULE_READS_SETTINGS = auto()
    """Its type rule looks at settings of torch that change from call to call."""

    # ------------------------------------------------------------------------- what is made anew

    FACTORY = auto()
    """Its result comes out of nothing that has a gradient."""
    RANGE = auto()
    """It makes numbers of a range: they are those that its type is able to tell apart."""
    UNINITIALIZED = auto()
    """Nobody has written to the memory of its result."""
    LITERAL = auto()
    """It brings a tensor that Python has into the program."""

    # --------------------------------------------------------------------------------------- writes

    COPIES_INTO = auto()
    """It overwrites its first argument by the second, cast and expanded. Its functional twin has no
    derivative."""
    ONE_BY_ONE = auto()
    """It writes to many tensors. Its functional twin has no derivative; that of one tensor has."""
    OVERWRITES = auto()
    """It does not read what it overwrites; to autograd that has a gradient, of zeros."""
    FILLS = auto()
    """It writes a number, its last argument, in many places."""
    WRITES_ALIKE = auto()
    """Into elements that are one in memory it writes one value."""
    DROPS_OUT = auto()
    """C++ returns its result and leaves `out=` as it is, where tensors are of a subclass."""
    DECLARED_ELSEWHERE = auto()
    """Its schema does not say what it writes; another operator does the same, and says it."""
    SIZES_STATE = auto()
    """Its first call gives running statistics their size."""

    READS_ELSEWHERE = auto()
    """An element of its result depends on other places of its arguments than its own."""
    READS_NUMBER_FIRST = auto()
    """A tensor that holds one number it reads before it writes."""

    # ------------------------------------------------------------------------------------- `out=`

    EXACT_OUT = auto()
    """It converts nothing: `out=` has the dtype of the result."""
    OUT_APART = auto()
    """Eager refuses an `out=` that it reads, also if both are the very same tensor."""
    OUTS_APART = auto()
    """Eager refuses two `out=` that overlap."""
    ROW_MAJOR_OUT = auto()
    """An `out=` of another size becomes row-major, whatever the strides of the result alone: its
    `out=` form copies."""
    RELAYS_FIRST_OUT = auto()
    """LAPACK's wrapper lays the first `out=` out anew if that is empty, also one of the right
    size."""
    RELAYS_TWO_OUTS = auto()
    """So, the first two."""

    # ------------------------------------------------------------------------------- random numbers

    DRAWS_IN_ORDER = auto()
    """It draws in the order of memory, and its functional twin in that of indices."""
    DRAWS_BETWEEN = auto()
    """It draws integers between two bounds; its functional twin has a name that Python has not."""
    DRAWS_FACTORS = auto()
    """In training its result is its first argument times the noise that it draws into the
    second. Torch's derivative reads the noise as it was before."""

    # ------------------------------------------------------------------------------------ gradients

    DETACHES = auto()
    """It is there to stop a gradient, and does nothing else."""
    STOPS_GRADIENT = auto()
    """A view that no gradient flows through."""
    UNDERIVED = auto()
    """It looks at the size of its argument alone, so that its gradient ends here, and has no
    derivative."""
    FORWARD_ONLY = auto()
    """C++ calls it where it sees no gradient; another operator does the same with a derivative."""
    PARTS_ARE_CAST = auto()
    """It has a derivative of its own, and its kernel calls operators that autocast casts."""

    # ------------------------------------------------------------------------ composite operators

    ONE_FOR_ONE = auto()
    """A composite operator that amounts to one other operator."""
    RECURRENT = auto()
    """Steps over a sequence. C++ would choose the kernel of one device; torch's Python does not."""
    BEFORE_NUMPY = auto()
    """`x.numpy()` calls it before it reads the data."""

    # --------------------------------------------------------------------------------------- checks

    ASSERTS = auto()
    """It raises if something does not hold."""
    ASKS_ALL = auto()
    """Is all of a tensor true? What asks so is often a check."""
    CHECKS_ALL = auto()
    """The same, and never anything but a check."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why no program can have an operator. The text may speak of `{overload}` or `{name}`."""

    text: str
    why: str
    instead: str
