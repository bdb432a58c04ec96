"""An operator of a dialect: an operator with a schema under another name, of which more is known.

Programs in a dialect call it in place of the operator that it stands for; whoever asks what a node
computes asks `overload_of`. Must not know single dialects.
"""

from __future__ import annotations

from typing import Any

from torch._ops import OpOverload


class DialectOperator:
    """Stands for an operator. It is made once for each, and compared by identity."""

    def __init__(self, overload: OpOverload, name: str) -> None:
        self.overload = overload
        self.__name__ = name  # FX prints and calls it by these two
        self.__qualname__ = name
        self.__module__ = "lostwax.ops"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.overload(*args, **kwargs)

    def __deepcopy__(self, memo: object) -> DialectOperator:
        return self

    def __str__(self) -> str:
        return self.__name__

    __repr__ = __str__


def overload_of(target: Any) -> Any:
    """The operator with a schema that a node's target stands for; else the target itself."""
    return target.overload if isinstance(target, DialectOperator) else target
