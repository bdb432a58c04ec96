"""What users write to say that a size may vary: `Dim`, its arithmetic, hints, and marks on tensors.

spec.py works out what these mean for a call. Must not know symbols.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable
from typing import Any, ClassVar, Self, TypeAlias

import torch

from lostwax.capture.shapes.marks import MARKS
from lostwax.errors import DynamicShapesError

_WRITE = "write n*dim + k with integers n >= 1 and k, such as dim + 1, 2*dim or 16*dim - 1"


# ------------------------------------------------------------------------------------------- hints


class Static:
    """`Dim.STATIC`: this size is always the example's."""

    def __call__(self, min: int | None = None, max: int | None = None) -> Static:
        raise DynamicShapesError(
            "Dim.STATIC has no range: its size is the example's\n"
            "  instead: Dim.DYNAMIC(min=2, max=8)"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static)

    def __hash__(self) -> int:
        return hash(Static)

    def __repr__(self) -> str:
        return "Dim.STATIC"


class _Varying:
    """A hint that a size varies, within limits. A limit of None is 0 for a size from below, else no
    limit. (No dataclass: what makes one takes longer than reading a whole spec.)"""

    __slots__ = ("_limits",)
    _text: ClassVar[str]

    def __init__(self, min: int | None = None, max: int | None = None) -> None:
        self._limits = min, max
        _check_limits(repr(self), min, max)

    @property
    def min(self) -> int | None:
        return self._limits[0]

    @property
    def max(self) -> int | None:
        return self._limits[1]

    def __call__(self, min: int | None = None, max: int | None = None) -> Self:
        if self._limits != (None, None):
            raise DynamicShapesError(
                f"{self} has its range already\n  instead: {self._text}{_arguments_text(min, max)}"
            )
        return type(self)(min, max)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._limits == self._limits

    def __hash__(self) -> int:
        return hash((self._text, self._limits))

    def __repr__(self) -> str:
        return self._text + _arguments_text(*self._limits)


class Auto(_Varying):
    """`Dim.AUTO`: this size varies if the program allows it."""

    __slots__ = ()
    _text = "Dim.AUTO"


class Dynamic(_Varying):
    """`Dim.DYNAMIC`: this size varies; it is an error if the program fixes it."""

    __slots__ = ()
    _text = "Dim.DYNAMIC"


Hint: TypeAlias = Static | Auto | Dynamic


def _arguments_text(lo: int | None, hi: int | None) -> str:
    limits = [f"{word}={n}" for word, n in (("min", lo), ("max", hi)) if n is not None]
    return f"({', '.join(limits)})" if limits else ""


def _check_limits(what: str, lo: Any, hi: Any) -> None:
    for word, limit in (("min", lo), ("max", hi)):
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool)):
            raise DynamicShapesError(
                f"{what}: {word} must be an int or None, not {limit!r}\n"
                f"  instead: {word}=8, or leave it out: then there is no limit"
            )
    if lo is not None and hi is not None and lo > hi:
        raise DynamicShapesError(
            f"{what}: no size is at least {lo} and at most {hi}\n"
            f"  instead: min={hi}, max={lo}, or leave one of them out"
        )


# -------------------------------------------------------------------------------------------- dims


class _Affine:
    """The arithmetic that dims allow: `scale*root + offset`."""

    __name__: str

    @property
    def _terms(self) -> tuple[Dim, int, int]:
        raise NotImplementedError

    def __add__(self, other: Any) -> Dim | DerivedDim:
        root, scale, offset = self._terms
        return _make_dim(root, scale, offset + _require_int(other, f"{self} + {other}"))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Dim | DerivedDim:
        root, scale, offset = self._terms
        return _make_dim(root, scale, offset - _require_int(other, f"{self} - {other}"))

    def __mul__(self, other: Any) -> Dim | DerivedDim:
        root, scale, offset = self._terms
        factor = _require_int(other, f"({self})*{other}")
        if factor < 1:
            raise _arithmetic_error(f"({self})*{other}", "sizes that shrink as the dim grows")
        return _make_dim(root, scale * factor, offset * factor)

    __rmul__ = __mul__

    def __rsub__(self, other: Any) -> Any:
        raise _arithmetic_error(f"{other} - ({self})", "sizes that shrink as the dim grows")

    def __neg__(self) -> Any:
        raise _arithmetic_error(f"-({self})", "sizes that shrink as the dim grows")

    def __truediv__(self, other: Any) -> Any:
        raise _arithmetic_error(f"({self})/{other}", "quotients")

    __floordiv__ = __truediv__

    def __mod__(self, other: Any) -> Any:
        raise _arithmetic_error(f"({self}) % {other}", "remainders")

    def __pow__(self, other: Any) -> Any:
        raise _arithmetic_error(f"({self})**{other}", "powers")

    def __str__(self) -> str:
        return self.__name__


def _require_int(value: Any, text: str) -> int:
    if isinstance(value, _Affine):
        raise _arithmetic_error(text, "a relation of two dims")
    if not isinstance(value, int) or isinstance(value, bool):
        raise _arithmetic_error(text, f"{value!r}, which is no int")
    return value


def _arithmetic_error(text: str, what: str) -> DynamicShapesError:
    return DynamicShapesError(
        f"{text}: a dim cannot be declared by {what}\n"
        f"  instead: {_WRITE};\n"
        '  any other relation goes into export(..., constraints=["h == w", "n % 8 == 0"])'
    )


class Dim(_Affine):
    """A size that may vary from `min` (by default 0) to `max` (None: no limit).

    All sizes that are declared with one name are equal. `dim + 1` and `2*dim` declare sizes that
    depend on it. `Dim.AUTO`, `Dim.DYNAMIC` and `Dim.STATIC` are for sizes without a name.
    """

    AUTO: ClassVar[Auto] = Auto()
    DYNAMIC: ClassVar[Dynamic] = Dynamic()
    STATIC: ClassVar[Static] = Static()

    def __init__(self, name: str, *, min: int | None = None, max: int | None = None) -> None:
        if not isinstance(name, str) or not _is_name(name):
            hint = f'Dim("{_identifier(name)}")' if isinstance(name, str) else 'Dim("batch")'
            raise DynamicShapesError(
                f"the name of a Dim must be a Python identifier, not {name!r}\n  instead: {hint}"
            )
        text = f"Dim({name!r}{_arguments_text(min, max).replace('(', ', ').rstrip(')')})"
        _check_limits(text, min, max)
        for limit in (min, max):
            if limit is not None and limit < 0:
                raise DynamicShapesError(
                    f"{text}: a size is never negative, min and max are >= 0\n"
                    "  instead: min=0, or leave it out: then there is no limit"
                )
        self.__name__ = name
        self.min = 0 if min is None else min
        self.max = max

    @property
    def _terms(self) -> tuple[Dim, int, int]:
        return self, 1, 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Dim):
            return NotImplemented
        return (self.__name__, self.min, self.max) == (other.__name__, other.min, other.max)

    def __hash__(self) -> int:
        return hash((self.__name__, self.min, self.max))

    def __repr__(self) -> str:
        limits = [f"min={self.min}"] if self.min else []
        limits += [] if self.max is None else [f"max={self.max}"]
        return f"Dim({', '.join([repr(self.__name__), *limits])})"


class IntVariable(Dim):
    """An integer argument that may vary, and may be negative; a limit of None is none. Made from an
    `IntVar` of torch's."""

    def __init__(self, name: str, min: int | None, max: int | None) -> None:
        super().__init__(name)
        _check_limits(name, min, max)
        self.min, self.max = min, max  # type: ignore[assignment]

    def __repr__(self) -> str:
        limits = _arguments_text(self.min, self.max).replace("(", ", ").rstrip(")")
        return f"IntVar({self.__name__!r}{limits})"


class DerivedDim(_Affine):
    """A size that depends on another: `scale*root + offset`. Made by arithmetic with a Dim."""

    def __init__(self, root: Dim, scale: int, offset: int) -> None:
        self.root, self.scale, self.offset = root, scale, offset

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DerivedDim) and other._terms == self._terms

    def __hash__(self) -> int:
        return hash(self._terms)

    @property
    def __name__(self) -> str:  # type: ignore[override]
        text = self.root.__name__ if self.scale == 1 else f"{self.scale}*{self.root.__name__}"
        if not self.offset:
            return text
        return f"{text} {'+' if self.offset > 0 else '-'} {abs(self.offset)}"

    @property
    def _terms(self) -> tuple[Dim, int, int]:
        return self.root, self.scale, self.offset

    @property
    def min(self) -> int:
        return max(0, self.scale * (self.root.min or 0) + self.offset)

    @property
    def max(self) -> int | None:
        return None if self.root.max is None else self.scale * self.root.max + self.offset

    def __repr__(self) -> str:
        return self.__name__

    __str__ = __repr__


def _make_dim(root: Dim, scale: int, offset: int) -> Dim | DerivedDim:
    return root if (scale, offset) == (1, 0) else DerivedDim(root, scale, offset)


def _is_name(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def _identifier(name: str) -> str:
    cleaned = re.sub(r"\W", "_", name)
    return cleaned if _is_name(cleaned) else f"dim_{cleaned}".rstrip("_")


def dims(*names: str, min: int | None = None, max: int | None = None) -> tuple[Dim, ...]:
    """Several Dims of one range, `min` to `max`, one for each of the `names`:
    `dims("h", "w", min=32)` or `dims("h w", min=32)`."""
    split = [part for name in names for part in re.split(r"[\s,]+", name) if part]
    return tuple(Dim(name, min=min, max=max) for name in split)


def root_of(dim: Dim | DerivedDim) -> Dim:
    """The Dim that a size depends on: itself, unless it is derived."""
    return dim.root if isinstance(dim, DerivedDim) else dim


def roots_by_name(entries: Iterable[Any]) -> dict[str, Dim]:
    """The Dims among the entries of a spec, and those that others are derived from."""
    roots = [root_of(entry) for entry in entries if isinstance(entry, Dim | DerivedDim)]
    return {root.__name__: root for root in roots}


def adopt_dim(value: Any) -> Any:
    """Turn a Dim or hint of torch.export into ours, so that specs written with those work. Other
    values are returned as they are."""
    if type(value).__module__ != "torch.export.dynamic_shapes":
        return value
    if hasattr(value, "fn"):
        offset = int(value.fn(0))
        return (int(value.fn(1)) - offset) * adopt_dim(value.root) + offset
    kind = getattr(getattr(value, "type", None), "name", None)
    if kind is not None:
        hint = getattr(Dim, kind)
        return hint if isinstance(hint, Static) else hint(min=value.min, max=value.max)
    highest = value.max if isinstance(value.max, int) else None
    return Dim(value.__name__, min=value.min, max=highest)


# ------------------------------------------------------------------------------------------- marks


def mark_dynamic(
    tensor: torch.Tensor,
    index: int | Iterable[int],
    *,
    min: int | None = None,
    max: int | None = None,
) -> None:
    """Let the size number `index` of this tensor vary, from `min` to `max`, whenever it is an
    example input, as `Dim.DYNAMIC` does. Several may be given at once.

    If `dynamic_shapes` says something about the same dimension, that counts instead.
    """
    _mark(tensor, index, Dynamic(min, max))


def maybe_mark_dynamic(tensor: torch.Tensor, index: int | Iterable[int]) -> None:
    """Let a size vary if the program allows it, as `Dim.AUTO` does."""
    _mark(tensor, index, Auto())


def mark_static(tensor: torch.Tensor, index: int | Iterable[int] | None = None) -> None:
    """Fix a size to the example's; all sizes if no dimension is given."""
    _mark(tensor, range(tensor.ndim) if index is None else index, Static())


def _mark(tensor: torch.Tensor, index: int | Iterable[int], hint: Hint) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise DynamicShapesError(
            f"only tensors can be marked, not a {type(tensor).__name__}\n"
            "  instead: mark an input's tensor; for an int write dynamic_shapes={'n': Dim.DYNAMIC}"
        )
    indices = (index,) if isinstance(index, int) else tuple(index)
    for dim in indices:
        if not isinstance(dim, int):
            raise DynamicShapesError(
                f"dimensions to mark are numbers, not {index!r}\n  instead: mark_dynamic(x, 0); "
                "for a name, dynamic_shapes={'x': {0: Dim(\"batch\")}}"
            )
        if not -tensor.ndim <= dim < tensor.ndim:
            raise DynamicShapesError(
                f"the tensor has {tensor.ndim} dimension(s), there is no dimension {dim} to mark\n"
                f"  instead: one of {', '.join(map(str, range(tensor.ndim))) or 'another tensor'}"
            )
        MARKS.setdefault(tensor, {})[dim % tensor.ndim] = hint
