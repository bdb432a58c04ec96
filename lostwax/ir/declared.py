"""The arguments of the original as its code declares them: what a capture keeps of a function, so
that its signature can be computed later.

Must not keep the function itself: it would keep alive what it holds, a module for instance.
"""

from __future__ import annotations

import inspect
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

_FIRST = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class DeclaredArguments(NamedTuple):
    """A function's code and defaults. The signature of a method is without `self`."""

    code: CodeType
    defaults: tuple[Any, ...]
    by_name: dict[str, Any]
    is_method: bool

    def signature(self) -> inspect.Signature:
        code, kinds = self.code, inspect.Parameter
        names = iter(code.co_varnames)
        first = [next(names) for _ in range(code.co_argcount)]
        defaults = dict(zip(reversed(first), reversed(self.defaults), strict=False))
        found = [
            kinds(n, _FIRST[i >= code.co_posonlyargcount], default=defaults.get(n, kinds.empty))
            for i, n in enumerate(first)
        ]
        rest = [next(names) for _ in range(code.co_kwonlyargcount)]
        if code.co_flags & inspect.CO_VARARGS:
            found.append(kinds(next(names), kinds.VAR_POSITIONAL))
        found += [
            kinds(n, kinds.KEYWORD_ONLY, default=self.by_name.get(n, kinds.empty)) for n in rest
        ]
        if code.co_flags & inspect.CO_VARKEYWORDS:
            found.append(kinds(next(names), kinds.VAR_KEYWORD))
        return inspect.Signature(found[self.is_method :])


def read_declared(function: Any) -> DeclaredArguments | inspect.Signature | None:
    """Return what is kept of a function or method; None if it is neither, or if it wraps something
    without a signature."""
    is_method = isinstance(function, MethodType)
    plain = function.__func__ if is_method else function
    if not isinstance(plain, FunctionType):
        return None
    if "__wrapped__" in vars(plain) or "__signature__" in vars(plain):
        try:
            return inspect.signature(function)
        except ValueError:
            return None
    return DeclaredArguments(
        plain.__code__, plain.__defaults__ or (), plain.__kwdefaults__ or {}, is_method
    )
