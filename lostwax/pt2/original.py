"""What a program knows of the module that it was captured from, in our own record of a file: the
arguments with their defaults, whether the module was in training mode, and what its Python has
asked of tensors. Also the names of the arguments, if torch's part of the file has other ones.

If a default is no plain constant, the arguments are not written.
"""

from __future__ import annotations

import inspect
import keyword
import math
from typing import Any

import torch

from lostwax.errors import LoadError
from lostwax.ir.data import Assumption, Group, Ref, Settings
from lostwax.ir.program import ExportedProgram
from lostwax.ir.run.conditions.answers import ATTRIBUTE, ONE, QUESTIONS, VALUE, is_mode
from lostwax.ir.signature import InputKind
from lostwax.pt2 import sharding
from lostwax.pt2.lines import Lines
from lostwax.pt2.peer import argument_names

_KINDS = {kind.name: kind for kind in inspect._ParameterKind}
_PLAIN = (int, float, bool, str, type(None))


def write(program: ExportedProgram, lines: Lines) -> dict[str, Any]:
    root = program.root_signature
    signature = None if root is None else root.signature
    arguments = None
    if signature is not None and all(map(_is_plain, signature.parameters.values())):
        arguments = [_argument(p) for p in signature.parameters.values()]
    asks = None
    if program.assumptions is not None:
        same = [a.of for a in program.assumptions if _is_one(a)]
        left = [a for a in program.assumptions if not _is_one(a)]
        asked = [a._replace(where=lines.write_text(a.where))._asdict() for a in left]
        asks = {"same": same, "questions": asked}
    found: dict[str, Any] = {
        "arguments": arguments,
        "training": program.training,
        "settings": None if program.settings is None else _write_settings(program.settings, lines),
        "asks": asks,
        "reads_views": program.reads_views,
    }
    if root is not None and root.forward_arg_names != argument_names(root):
        found["names"] = root.forward_arg_names
    return found


def _write_settings(settings: Settings, lines: Lines) -> dict[str, Any]:
    """How torch was set; the lines that asked whether they are exported, as others are told."""
    asked = [lines.write_text(line) for line in settings.asked]
    found = settings._replace(asked=tuple(asked))._asdict()
    if not settings.groups:
        del found["groups"]
    del found["sharding"]
    if settings.sharding is not None:
        found["sharding"] = sharding.write(settings.sharding)
    return found


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
    """Give the program what the record says."""
    if given is None:
        return
    training, arguments = given["training"], given["arguments"]
    if training is not None and not isinstance(training, bool):
        raise LoadError(f"training is {training!r:.80}, neither true nor false")
    program.training = training
    program.reads_views = given.get("reads_views") is True
    if given.get("settings") is not None:
        program.settings = _settings(given["settings"])
    if given.get("asks") is not None:
        specs = program.graph_signature.input_specs
        users = sum(spec.kind is InputKind.USER_INPUT for spec in specs)
        program.assumptions = _assumptions(given["asks"], users)
    root, names = program.root_signature, given.get("names")
    if root is None:
        return
    if arguments is not None:
        root.original = _signature(arguments)
    if names is not None:
        if len(names) != len(root.forward_arg_names or ()) or {type(n) for n in names} != {str}:
            raise LoadError(f"the names of its arguments are {names!r:.80}")
        root.forward_arg_names = list(names)


def _settings(given: Any) -> Settings:
    try:
        on = tuple((str(device), str(dtype)) for device, dtype in given["autocast"])
        dtype, device = given["dtype"], given["device"]
        if not isinstance(getattr(torch, dtype), torch.dtype):
            raise TypeError(f"{dtype!r:.80} is no dtype")
        device = str(torch.device(device))
        asked = tuple(str(line) for line in given.get("asked", ()))
        groups = tuple(_group(*each) for each in given.get("groups", ()))
        cut = None if given.get("sharding") is None else sharding.read(given["sharding"])
        exporting = given.get("exporting") is not False
        return Settings(on, dtype, device, exporting, asked, groups, cut)
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise LoadError(f"how torch was set at capture is damaged: {error}") from None


def _group(name: Any, size: Any, rank: Any) -> Group:
    if not isinstance(name, str) or type(size) is not int or type(rank) not in (int, type(None)):
        raise TypeError(f"{(name, size, rank)!r:.80} is no process group")
    return Group(name, size, rank)


def _is_one(assumption: Assumption) -> bool:
    return assumption.what == ONE and assumption.answer is True


def _assumptions(given: Any, users: int) -> tuple[Assumption, ...]:
    """`users` is the number of the user's inputs."""
    try:
        asked = [_assumption(each, users) for each in given["questions"]]
        same = [tuple(_ref(ref, users) for ref in group) for group in given["same"]]
        if not all(same):
            raise TypeError("a group is empty")
        holds_apart = given.get("either") is True  # so older files say it
        return (*(Assumption(ONE, of, True) for of in same if not holds_apart), *asked)
    except (KeyError, TypeError, ValueError) as error:
        raise LoadError(f"what the original asks of tensors is damaged: {error}") from None


def _ref(given: Any, users: int) -> Ref:
    if isinstance(given, str) or (type(given) is int and 0 <= given < users):
        return given
    raise ValueError(f"there is no input {given!r:.80}")


def _assumption(given: Any, users: int) -> Assumption:
    what, where, wanted = given["what"], given["where"], given["answer"]
    if not isinstance(what, str) or not (
        what in (*QUESTIONS, ONE, VALUE) or what.startswith(ATTRIBUTE) or is_mode(what)
    ):
        raise ValueError(f"{what!r:.80} cannot be asked")
    is_asked = is_mode(what) is not bool(given["of"])
    if type(wanted) not in (bool, int, str) or not isinstance(where, str) or not is_asked:
        raise TypeError(f"{what!r:.80} has no answer, or is asked of nothing")
    of = tuple(_ref(ref, users) for ref in given["of"])
    return Assumption(what, of, wanted, where, given["computed"] is True)


def _signature(arguments: Any) -> inspect.Signature | None:
    """The signature of the original; None if a name in it is a keyword of Python."""
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
