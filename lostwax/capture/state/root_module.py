"""The module whose state a program carries: the one to export, that of a method, or one that stands
in for a function.

The latter has the modules that the function calls, by the names that the function has for them, and
what else the function can keep something in: so the parameters of `lambda x: model(x)` are the
program's, as those of `model` would be. Must not call anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from lostwax.capture.python import code_names
from lostwax.capture.python.containers import is_object
from lostwax.identity import Seen
from lostwax.ir.program import ExportedProgram


def module_of(mod: Any) -> nn.Module:
    """The module whose state the program carries."""
    function = mod
    while isinstance(function, partial):
        function = function.func
    if isinstance(function, nn.Module):
        return function
    owner = getattr(function, "__self__", None)
    if isinstance(owner, nn.Module):
        return owner
    if isinstance(function, type) and issubclass(function, nn.Module):
        raise TypeError(
            f"export takes a module, and {function.__name__} is a class of them; make one: "
            f"{function.__name__}(...)"
        )
    if not callable(function) or isinstance(function, ExportedProgram):
        is_program = "; export program.module()" if isinstance(function, ExportedProgram) else ""
        raise TypeError(
            "export takes a module, a function or a method, not "
            f"{type(function).__name__}{is_program}"
        )
    return _stand_in(mod)


def forward_of(mod: Any) -> Any:
    """The function that says which arguments a call has."""
    if isinstance(mod, partial):
        return partial(forward_of(mod.func), *mod.args, **mod.keywords)
    return mod.forward if isinstance(mod, nn.Module) else mod


def _stand_in(function: Any) -> nn.Module:
    """A module with the state of a function: of the object whose method it is, or that it is, and
    of what it is closed over."""
    made = nn.Module()
    for name, module in _modules(function).items():
        vars(made)["_modules"][f"{name}_" if hasattr(nn.Module, name) else name] = module
    owner = getattr(function, "__self__", function)
    if is_object(owner):
        vars(made)["self"] = owner
    plain = getattr(function, "__func__", function)
    if isinstance(plain, FunctionType) and plain.__closure__:
        vars(made)["closure"] = dict(code_names.closure_variables(plain))
    return made


def _modules(function: Any) -> dict[str, nn.Module]:
    """The modules that a function, and those that it has names for, have names for."""
    found: dict[str, nn.Module] = {}
    seen = Seen()
    left = [function]
    while left:
        each = left.pop()
        if each in seen:
            continue
        seen.add(each)
        for name, value in _named(each):
            module = _module_in(value)
            if module is not None:
                found.setdefault(_free(name, module, found), module)
            elif isinstance(value, (FunctionType, MethodType, partial)):
                left.append(value)
    return found


def _free(name: str, module: nn.Module, taken: dict[str, nn.Module]) -> str:
    """The name, or with a number if that is another module's: two functions may use one name."""
    numbered = (name if i == 0 else f"{name}_{i}" for i in count())
    return next(each for each in numbered if taken.get(each, module) is module)


def _module_in(value: Any) -> nn.Module | None:
    """A module, that of a method, or one of several in a list."""
    held = value.__self__ if isinstance(value, MethodType) else value
    if isinstance(held, torch.jit.ScriptModule):  # refused where it is called
        return None
    if isinstance(held, nn.Module):
        return held
    if isinstance(held, (list, tuple)) and held and all(isinstance(m, nn.Module) for m in held):
        return nn.ModuleList(held)
    return None


def _named(function: Any) -> Iterator[tuple[str, Any]]:
    """What a function, or something else that can be called, has names for."""
    if isinstance(function, partial):
        arguments = getattr(getattr(function.func, "__code__", None), "co_varnames", ())
        yield from (*zip(arguments, function.args, strict=False), *function.keywords.items())
        yield "function", function.func
        return
    owner = getattr(function, "__self__", function)
    if is_object(owner):
        yield from getattr(owner, "__dict__", {}).items()
    plain = getattr(function, "__func__", function)
    if not isinstance(plain, FunctionType):
        plain = type(plain).__call__  # of an object
    if isinstance(plain, FunctionType):
        yield from code_names.closure_variables(plain)
        yield from code_names.argument_defaults(plain)
        yield from _globals(plain)


def _globals(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What its code reads of modules and their methods, and of functions of the same file."""
    known = function.__globals__
    for code in code_names.nested_codes(function.__code__):
        named = {name: known[name] for name in code.co_names if name in known}
        likely = {name: value for name, value in named.items() if _may_have_state(value, known)}
        read = code_names.globals_read(code) if likely else ()
        yield from ((name, value) for name, value in likely.items() if name in read)


def _may_have_state(value: Any, known: dict[str, Any]) -> bool:
    if isinstance(value, FunctionType):
        return value.__globals__ is known
    return _module_in(value) is not None
