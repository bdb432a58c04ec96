"""Inputs that the command line describes, `--input-shape x=1x3x224x224`, `--dtype`, `--device`, or
names: files of numpy and torch."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from pickle import UnpicklingError
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from lostwax.errors import CommandError, did_you_mean

_SHAPE = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<sizes>\d+(?:[x,]\d+)*)(?::(?P<dtype>\w+))?")
_SHORT = {"f16": "float16", "fp16": "float16", "bf16": "bfloat16", "f32": "float32"}
_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_SHORT |= {"fp32": "float32", "f64": "float64", "i64": "int64", "i32": "int32"}


def read_dtype(text: str) -> torch.dtype | None:
    """The dtype of `--dtype`, for floats; None if nothing is asked."""
    found = _find_dtype(text, "--dtype") if text else None
    if found is not None and not found.is_floating_point:
        raise CommandError(
            f"--dtype {text!r} is of the weights, and those are floats: float32, float16, bfloat16"
            "\n  instead: for one input of integers, --input-shape ids=1x8:int64"
        )
    return found


def _find_dtype(text: str, option: str) -> torch.dtype:
    found = getattr(torch, _SHORT.get(text, text), None)
    if not isinstance(found, torch.dtype):
        known = [name for name, value in vars(torch).items() if isinstance(value, torch.dtype)]
        raise CommandError(
            f"{option} {text!r} is no dtype of torch{did_you_mean(text, [*known, *_SHORT])}"
        )
    return found


def read_device(text: str) -> torch.device | None:
    """The device of `--device`, if it is there; None if nothing is asked."""
    if not text:
        return None
    try:
        device = torch.device(text)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        what = str(error).strip().splitlines()[0]
        raise CommandError(
            f"--device {text!r} cannot be had: {what}\n  instead: cpu, or what lostwax doctor lists"
        ) from error
    if device.type == "meta":
        raise CommandError("--device 'meta' has no data, and a program needs its weights")
    return device


def _find_parameters(module: Any) -> dict[str, inspect.Parameter]:
    called = module.forward if isinstance(module, nn.Module) else module
    return dict(inspect.signature(called).parameters)


def name_inputs(module: Any) -> str:
    """What to write for the inputs that a module must have: `x=1x3x224x224`."""
    empty, plain = inspect.Parameter.empty, inspect.Parameter.POSITIONAL_OR_KEYWORD
    found = _find_parameters(module).values()
    needed = [each.name for each in found if each.default is empty and each.kind is plain]
    return " --input-shape ".join(f"{name}=1x3x224x224" for name in needed or ["x"])


def make_inputs(
    module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], texts: Sequence[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs of these sizes, drawn at random. Those with names replace the ones that are there;
    those without are all that there are."""
    parameters = _find_parameters(module)
    named: dict[str, torch.Tensor] = {}
    plain: list[torch.Tensor] = []
    for text in texts:
        found = _SHAPE.fullmatch(text)
        if found is None:
            raise CommandError(
                f"--input-shape {text!r} is not understood\n"
                "  instead: 1x3x224x224, x=1x3x224x224 or ids=1x8:int64"
            )
        sizes = [int(size) for size in re.split("[x,]", found["sizes"])]
        dtype = _find_dtype(found["dtype"] or "float32", "--input-shape")
        if found["name"]:
            named[found["name"]] = _draw(sizes, dtype)
        else:
            plain.append(_draw(sizes, dtype))
    _check_names(named, parameters)
    by_place = dict(zip(parameters, args, strict=False))
    args = tuple(plain or (named.pop(name, value) for name, value in by_place.items()))
    for name, parameter in [*parameters.items()][len(args) :]:  # by place, as they are called
        if name not in named or name in kwargs or parameter.kind not in _BY_PLACE:
            break
        args = (*args, named.pop(name))
    return args, {**kwargs, **named}


def _draw(sizes: list[int], dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(sizes, dtype=dtype if dtype.itemsize > 1 else torch.float32).to(dtype)
    return torch.randint(0, 2, sizes).to(dtype)  # an index into any table


def _check_names(names: Iterable[str], parameters: Mapping[str, inspect.Parameter]) -> None:
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for name in () if takes_any else names:
        if name not in parameters:
            hint = did_you_mean(name, parameters) or f"; it has {', '.join(parameters)}"
            raise CommandError(f"--input-shape {name}=…: the model has no input {name!r}{hint}")


def move_inputs(inputs: Any, dtype: torch.dtype | None, device: torch.device | None) -> Any:
    """The same with floats in that dtype, on that device."""

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.to(device=device, dtype=dtype if leaf.is_floating_point() else None)

    return pytree.tree_map(move, inputs)


def read_input(file: str, option: str = "--input") -> Any:
    """What a file has: a tensor, those of an `.npz` by name, or whatever torch.save wrote."""
    try:
        if file.endswith((".npy", ".npz")):
            import numpy

            found = numpy.load(file)
            if file.endswith(".npz"):
                return {name: torch.from_numpy(found[name]) for name in found.files}
            return torch.from_numpy(found)
        return torch.load(file, weights_only=True)
    except (ValueError, TypeError, EOFError, RuntimeError, UnpicklingError) as error:
        raise CommandError(
            f"{option} {file!r} cannot be read: it is damaged, or no data\n"
            "  instead: a file that numpy.save or torch.save wrote, of numbers"
        ) from error
