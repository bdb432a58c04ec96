"""Models by name: `MODULE:FACTORY`, `path/to/model.py:FACTORY`, `timm:NAME`, `transformers:NAME`,
each with options, `timm:resnet50?num_classes=10`.

A factory returns the module and its example inputs: `module, args` or `module, args, kwargs`.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import torch
import torch.utils._pytree as pytree
from torch import nn

from lostwax.capture.shapes.dims import Dim
from lostwax.cli.plugins import find_library
from lostwax.errors import CommandError, did_you_mean


@dataclass(frozen=True)
class Model:
    """What a factory has made."""

    name: str
    module: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def arguments(self) -> dict[str, Any]:
        """The example call, by the names of the arguments."""
        called = self.module.forward if isinstance(self.module, nn.Module) else self.module
        bound = inspect.signature(called).bind(*self.args, **self.kwargs)
        found: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            kind = bound.signature.parameters[name].kind
            found.update(value if kind is inspect.Parameter.VAR_KEYWORD else {name: value})
        return found


def build_model(spec: str, seed: int = 0) -> Model:
    """The model that a text names. Its weights and inputs are drawn with that seed."""
    place, colon, rest = spec.rpartition(":")
    if not colon or not place or not rest:
        raise CommandError(
            f"{spec!r} names no factory\n  instead: MODULE:FACTORY, path/to/model.py:FACTORY, "
            "timm:resnet50 or transformers:bert"
        )
    name, _, query = rest.partition("?")
    options = {key: _read_option(v) for key, v in parse_qsl(query, keep_blank_values=True)}
    torch.manual_seed(seed)
    build = find_library(place)
    if build is not None:
        made: Any = build(name, options)
    else:
        made = _find_factory(place, name)
        made = made(**options) if callable(made) and not isinstance(made, nn.Module) else made
    return _read_made(made, spec, name)


def _read_option(text: str) -> Any:
    """`10` is a number, `true` and an option without a value are true, all else is text."""
    if text.lower() in ("", "true", "false"):
        return text.lower() != "false"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _find_factory(place: str, name: str) -> Any:
    module = import_place(place)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
            guess = did_you_mean(name, known)
            own = [
                n for n in known if getattr(vars(module)[n], "__module__", "") == module.__name__
            ]
            guess = guess or (f"; it has {', '.join(own[:8])}" if own else "")
            raise CommandError(f"{place} has no {name!r}{guess}")
        found = getattr(found, part)
    return found


def import_place(place: str) -> Any:
    """A file of Python, or a module; what is in the working directory can be imported."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{place}.".startswith(f"{error.name}."):
                raise  # a module of the user's imports one that is not there
            raise CommandError(
                f"there is no module {error.name!r}, neither installed nor in {Path.cwd()}"
            ) from error
    path = Path(place).resolve()
    if not path.is_file():
        raise CommandError(f"there is no file {place!r}")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = re.sub(r"\W", "_", path.stem)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _read_made(made: Any, spec: str, name: str) -> Model:
    if not isinstance(made, (tuple, list)) or len(made) not in (2, 3) or not callable(made[0]):
        shown = type(made).__name__
        raise CommandError(
            f"{spec!r} returns a {shown}; a factory returns a module and its example inputs\n"
            "  instead: return module, args; or module, args, kwargs"
        )
    module, args, *rest = made
    args = tuple(args) if isinstance(args, (tuple, list)) else (args,)
    if isinstance(made[1], Mapping):
        args, rest = (), [made[1]]
    return Model(re.sub(r"[^\w.-]+", "-", name).strip("-"), module, args, dict(*rest))


# ------------------------------------------------------------------------------ sizes that vary

_DYNAMIC = re.compile(
    r"(?:(?:(?P<input>[A-Za-z_]\w*)\.)?(?P<axis>-?\d+)=)?"
    r"(?P<name>[A-Za-z_]\w*)(?::(?P<min>\d*)\.\.(?P<max>\d*))?"
)


def read_dynamic(texts: Iterable[str], model: Model) -> dict[str, Any] | None:
    """`dynamic_shapes` from what the command line says.

    `batch` is the first size of all inputs that have the first one's; `1=length` the second one;
    `tokens.1=length:1..512` that of one input, with its range.
    """
    texts = list(texts)
    if not texts:
        return None
    arguments = model.arguments
    chosen: dict[int, dict[int, Any]] = {}
    for text in texts:
        found = _DYNAMIC.fullmatch(text)
        if found is None:
            raise CommandError(
                f"--dynamic {text!r} is not understood\n"
                "  instead: batch, batch:1..64, 1=length or tokens.1=length:1..512"
            )
        limits = {k: int(found[k]) for k in ("min", "max") if found[k]}
        dim, axis = Dim(found["name"], **limits), int(found["axis"] or 0)
        if found["input"] and found["input"] not in arguments:
            known = did_you_mean(found["input"], arguments)
            raise CommandError(
                f"--dynamic {text!r}: there is no input {found['input']!r}{known}; there are "
                f"{', '.join(arguments)}"
            )
        value = arguments[found["input"]] if found["input"] else arguments
        tensors = [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]
        tensors = [t for t in tensors if -t.dim() <= axis < t.dim()]
        if not tensors:
            raise CommandError(f"--dynamic {text!r}: no input has a dimension {axis}")
        for tensor in tensors:
            if tensor.shape[axis] == tensors[0].shape[axis]:
                chosen.setdefault(id(tensor), {})[axis % tensor.dim()] = dim
    return {
        name: pytree.tree_map(lambda leaf: chosen.get(id(leaf)), value)
        for name, value in arguments.items()
    }
