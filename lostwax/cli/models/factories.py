"""Models by name: `MODULE:FACTORY`, `path/to/model.py:FACTORY`, `timm:NAME`, `transformers:NAME`,
`hf:DIR`, each with options, `timm:resnet50?num_classes=10`.

A factory returns the module and its example inputs, `module, args` or `module, args, kwargs`; or
the module alone, whose inputs the command line describes.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lostwax.cli.models.inputs import (
    make_inputs,
    move_inputs,
    name_inputs,
    read_device,
    read_dtype,
)
from lostwax.cli.models.names import AS_IT_IS, Building, read_name
from lostwax.cli.models.weights import load_weights
from lostwax.cli.plugins import find_library, list_libraries
from lostwax.errors import CommandError, did_you_mean


@dataclass(frozen=True)
class Model:
    """What a factory has made."""

    name: str
    module: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    has_inputs: bool = True

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


def build_model(spec: str, how: Building = AS_IT_IS) -> Model:
    """The model that a text names, with weights and inputs as is asked; what nobody says is drawn
    with the seed."""
    place, name, options = read_name(spec)
    torch.manual_seed(how.seed)
    build = find_library(place)
    if build is not None:
        made: Any = build(name, options)
    else:
        made = find_factory(place, name)
        if callable(made) and not isinstance(made, nn.Module):
            made = call_factory(made, options, spec)
    model = _read_made(made, spec, name)
    if how.weights:
        load_weights(model.module, how.weights)
    elif any(t.is_meta for t in _list_state(model.module)):
        raise CommandError(
            f"the weights of {spec!r} are on meta, where there are no data\n"
            "  instead: --weights FILE, or a factory that loads them"
        )
    return _place_model(model, spec, how)


def _list_state(module: Any) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()] if isinstance(module, nn.Module) else []


def _place_model(model: Model, spec: str, how: Building) -> Model:
    """The model with the inputs, dtype and device that were asked for."""
    dtype, device = read_dtype(how.dtype), read_device(how.device)
    args, kwargs = model.args, model.kwargs
    if how.shapes:
        args, kwargs = make_inputs(model.module, args, kwargs, how.shapes)
    elif not model.has_inputs:
        raise CommandError(
            f"{spec!r} is a module without example inputs\n  instead: --input-shape "
            f"{name_inputs(model.module)}; or a factory that returns module, args"
        )
    if dtype is None and device is None:
        return replace(model, args=args, kwargs=kwargs)
    if isinstance(model.module, nn.Module):
        model.module.to(device=device, dtype=dtype)
    args, kwargs = move_inputs((args, kwargs), dtype, device)
    return replace(model, args=args, kwargs=kwargs)


def call_factory(factory: Any, options: dict[str, Any], spec: str) -> Any:
    """What a function returns, called with the options that the text has for it."""
    try:
        inspect.signature(factory).bind(**options)
    except TypeError as error:
        raise CommandError(
            f"{spec!r} cannot be called: {error}\n  instead: {spec.partition('?')[0]}?NAME=VALUE, "
            f"where it takes {inspect.signature(factory)}"
        ) from error
    except ValueError:  # what is built in says nothing of its arguments
        pass
    return factory(**options)


def find_factory(place: str, name: str) -> Any:
    """What a module or a file has under a name."""
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
                f"{did_you_mean(place, list_libraries())}\n"
                "  instead: install it, or go to its folder; lostwax models lists what can be named"
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


def import_places(names: Iterable[str]) -> None:
    """Import what registers the operators and classes that are in a file."""
    for name in names:
        import_place(name)


def _read_made(made: Any, spec: str, name: str) -> Model:
    """What a factory has made. A module alone gets its example inputs from the command line."""
    short = re.sub(r"[^\w.-]+", "-", name).strip("-")
    if isinstance(made, nn.Module):
        return Model(short, made, (), {}, has_inputs=False)
    if not isinstance(made, (tuple, list)) or len(made) not in (2, 3) or not callable(made[0]):
        shown = "nothing" if made is None else f"a value of type {type(made).__name__}"
        raise CommandError(
            f"{spec!r} returns {shown}; a factory returns a module and its example inputs\n"
            "  instead: return module, args; or module, args, kwargs"
        )
    module, args, *rest = made
    args = tuple(args) if isinstance(args, (tuple, list)) else (args,)
    if isinstance(made[1], Mapping):
        args, rest = (), [made[1]]
    return Model(short, module, args, dict(*rest))
