"""The module whose state a program carries: the exported one, that of an exported method, or a
stand-in for an exported function.

A stand-in holds the modules that the function names, under these names, and other objects where
the function can keep something. So the parameters of `lambda x: model(x)` become the program's,
as those of `model` would. Must not call anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from lostwax import bytecode as code_names
from lostwax.capture.heap.functions import has_user_class
from lostwax.errors import InputTypeError
from lostwax.identity import Seen
from lostwax.ir.program import ExportedProgram


def find_root_module(mod: Any) -> nn.Module:
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
        raise InputTypeError(
            f"export takes a module, and {function.__name__} is a class of them\n"
            f"  instead: make one, {function.__name__}(...)"
        )
    if not callable(function) or isinstance(function, ExportedProgram):
        instead = "pass the nn.Module itself, or a function of tensors"
        if isinstance(function, ExportedProgram):
            instead = "export program.module()"
        raise InputTypeError(
            f"export takes a module, a function or a method, not {type(function).__name__}\n"
            f"  instead: {instead}"
        )
    return _make_stand_in(mod)


def forward_of(mod: Any) -> Any:
    """The function whose signature names the arguments of a call."""
    if isinstance(mod, partial):
        return partial(forward_of(mod.func), *mod.args, **mod.keywords)
    return mod.forward if isinstance(mod, nn.Module) else mod


def _make_stand_in(function: Any) -> nn.Module:
    """A module with the state of a function: the modules that it names, the object that it is or
    whose method it is, and its closure."""
    made = nn.Module()
    for name, module in _find_modules(function).items():
        vars(made)["_modules"][f"{name}_" if hasattr(nn.Module, name) else name] = module
    owner = getattr(function, "__self__", function)
    if has_user_class(owner):
        vars(made)["self"] = owner
    plain = getattr(function, "__func__", function)
    if isinstance(plain, FunctionType) and plain.__closure__:
        vars(made)["closure"] = dict(code_names.closure_variables(plain))
    return made


def _find_modules(function: Any) -> dict[str, nn.Module]:
    """The modules that a function names, and those that the functions it names do."""
    found: dict[str, nn.Module] = {}
    seen = Seen()
    left = [function]
    while left:
        each = left.pop()
        if each in seen:
            continue
        seen.add(each)
        for name, value in _named_values(each):
            module = _module_in(value)
            if module is not None:
                found.setdefault(_free_name(name, module, found), module)
            elif isinstance(value, (FunctionType, MethodType, partial)):
                left.append(value)
    return found


def _free_name(name: str, module: nn.Module, taken: dict[str, nn.Module]) -> str:
    """The name, with a number if another module has it: two functions may use one name."""
    numbered = (name if i == 0 else f"{name}_{i}" for i in count())
    return next(each for each in numbered if taken.get(each, module) is module)


def _module_in(value: Any) -> nn.Module | None:
    """The module that a value is, whose method it is, or a ModuleList for a list of modules."""
    held = value.__self__ if isinstance(value, MethodType) else value
    if isinstance(held, torch.jit.ScriptModule):  # refused where it is called
        return None
    if isinstance(held, nn.Module):
        return held
    if isinstance(held, (list, tuple)) and held and all(isinstance(m, nn.Module) for m in held):
        return nn.ModuleList(held)
    return None


def _named_values(function: Any) -> Iterator[tuple[str, Any]]:
    """The names and values that a function or another callable can use."""
    if isinstance(function, partial):
        arguments = getattr(getattr(function.func, "__code__", None), "co_varnames", ())
        yield from (*zip(arguments, function.args, strict=False), *function.keywords.items())
        yield "function", function.func
        return
    owner = getattr(function, "__self__", function)
    if has_user_class(owner):
        yield from getattr(owner, "__dict__", {}).items()
    plain = getattr(function, "__func__", function)
    if not isinstance(plain, FunctionType):
        plain = type(plain).__call__  # of an object
    if isinstance(plain, FunctionType):
        yield from code_names.closure_variables(plain)
        yield from code_names.argument_defaults(plain)
        yield from _named_globals(plain)


def _named_globals(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The globals that its code reads: modules, their methods, functions of the same file."""
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
