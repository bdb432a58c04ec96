"""What a program knows of the module it was captured from, in our own record: its arguments with
their defaults, and whether it was in training mode.

Defaults that are no plain constants are not written, and the arguments then neither.
"""

from __future__ import annotations

import inspect
import keyword
import math
from typing import Any

from lostwax.errors import LoadError
from lostwax.ir.program import ExportedProgram

_KINDS = {kind.name: kind for kind in inspect._ParameterKind}
_PLAIN = (int, float, bool, str, type(None))


def written(program: ExportedProgram) -> dict[str, Any]:
    root = program.root_signature
    signature = None if root is None else root.signature
    arguments = None
    if signature is not None and all(map(_is_plain, signature.parameters.values())):
        arguments = [_argument(p) for p in signature.parameters.values()]
    return {"arguments": arguments, "training": program.training}


def _is_plain(parameter: inspect.Parameter) -> bool:
    value = parameter.default
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return value is parameter.empty or type(value) in _PLAIN


def _argument(parameter: inspect.Parameter) -> dict[str, Any]:
    found: dict[str, Any] = {"name": parameter.name, "kind": parameter.kind.name}
    if parameter.default is not parameter.empty:
        found["default"] = parameter.default
    return found


def read(given: Any, program: ExportedProgram) -> None:
    """Tell the program what the record says."""
    if given is None:
        return
    training, arguments = given["training"], given["arguments"]
    if training is not None and not isinstance(training, bool):
        raise LoadError(f"training is {training!r:.80}, neither true nor false")
    program.training = training
    if arguments is not None and program.root_signature is not None:
        program.root_signature.original = _signature(arguments)


def _signature(arguments: Any) -> inspect.Signature | None:
    """None if Python has no such signature, since a name means something else there."""
    try:
        if any(keyword.iskeyword(given["name"]) for given in arguments):
            return None
        return inspect.Signature([_parameter(given) for given in arguments])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LoadError(
            f"the arguments of the original are not those of a function: {error}"
        ) from None


def _parameter(given: Any) -> inspect.Parameter:
    default = given.get("default", inspect.Parameter.empty)
    if default is not inspect.Parameter.empty and type(default) not in _PLAIN:
        raise TypeError(f"the default of {given['name']!r:.80} is no constant")
    return inspect.Parameter(given["name"], _KINDS[given["kind"]], default=default)
