"""`--dynamic`: which sizes vary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from lostwax.capture.shapes.dims import Dim
from lostwax.cli.models.factories import Model
from lostwax.cli.models.grammar import DYNAMIC
from lostwax.errors import CommandError, did_you_mean

AUTO = "auto"


def read_dynamic(texts: Iterable[str], model: Model) -> dict[str, Any] | None:
    """`dynamic_shapes` from what the command line says.

    `batch` is the first size of all inputs that have the first one's; `1=length` the second one;
    `tokens.1=length:1..512` that of one input, with its range; `0=2*half` twice another; `auto` all
    sizes that can vary.
    """
    found = [_read_one(text) for text in texts]
    if not found:
        return None
    arguments = model.arguments
    ranges = _find_ranges(found)
    chosen: dict[int, dict[int, Any]] = {}
    for each in found:
        tensors = _find_tensors(each, arguments)
        if each["name"] == AUTO and each["axis"] is None:
            for tensor in tensors:
                for axis in range(tensor.dim()):
                    chosen.setdefault(id(tensor), {}).setdefault(axis, Dim.AUTO)
            continue
        dim, axis = _make_dim(each, ranges), int(each["axis"] or 0)
        for tensor in tensors:
            if tensor.shape[axis] == tensors[0].shape[axis]:
                chosen.setdefault(id(tensor), {})[axis % tensor.dim()] = dim
    return {
        name: pytree.tree_map(lambda leaf: chosen.get(id(leaf)), value)
        for name, value in arguments.items()
    }


def read_file_dims(
    shapes: Sequence[Sequence[Any]], ranges: Mapping[str, Any], model: Model
) -> dict[str, Any] | None:
    """`dynamic_shapes` from the sizes that an ONNX file has for its inputs, in order: numbers, and
    names or formulas of what varies."""
    tensors = [t for t in pytree.tree_leaves(model.arguments) if isinstance(t, torch.Tensor)]
    if len(tensors) != len(shapes) or not any(isinstance(n, str) for s in shapes for n in s):
        return None
    limits = {
        name: {key: n for key, n in zip(("min", "max"), pair, strict=True) if n is not None}
        for name, pair in ranges.items()
    }
    chosen: dict[int, dict[int, Any]] = {}
    for tensor, sizes in zip(tensors, shapes, strict=True):
        for axis, text in enumerate(sizes):
            if isinstance(text, str):
                found = DYNAMIC.fullmatch(text.replace(" ", ""))
                chosen.setdefault(id(tensor), {})[axis] = (
                    Dim.AUTO if found is None else _make_dim(found, limits)
                )
    return {
        name: pytree.tree_map(lambda leaf: chosen.get(id(leaf)), value)
        for name, value in model.arguments.items()
    }


def _read_one(text: str) -> re.Match[str]:
    found = DYNAMIC.fullmatch(text)
    if found is None:
        raise CommandError(
            f"--dynamic {text!r} is not understood\n"
            "  instead: batch, batch:1..64, 1=length, tokens.1=length:1..512 or auto"
        )
    if found["name"] == AUTO and (found["scale"] or found["offset"] or ".." in text):
        raise CommandError(
            f"--dynamic {text!r}: auto finds the range itself\n  instead: auto, or a name of your "
            "own, batch:1..64"
        )
    low, high = found["min"], found["max"]
    if low and high and int(low) > int(high):
        name = text.partition(":")[0]
        raise CommandError(
            f"--dynamic {text!r}: no size is at least {low} and at most {high}\n"
            f"  instead: --dynamic {name}:{high}..{low}"
        )
    return found


def _find_ranges(found: list[re.Match[str]]) -> dict[str, dict[str, int]]:
    """The limits by name: who names a size twice says its range once."""
    ranges: dict[str, dict[str, int]] = {}
    said: dict[str, str] = {}
    for each in found:
        limits = {k: int(each[k]) for k in ("min", "max") if each[k]}
        name = each["name"]
        if limits and ranges.get(name) and ranges[name] != limits:
            raise CommandError(
                f"--dynamic {said[name]!r} and {each[0]!r}: one name has one range\n"
                "  instead: say it once, or use two names"
            )
        if limits:
            ranges[name], said[name] = limits, each[0]
    return ranges


def _make_dim(each: re.Match[str], ranges: dict[str, dict[str, int]]) -> Any:
    if each["name"] == AUTO:
        return Dim.AUTO
    dim = Dim(each["name"], **ranges.get(each["name"], {}))
    return int(each["scale"] or 1) * dim + int(each["offset"] or 0)


def _find_tensors(each: re.Match[str], arguments: dict[str, Any]) -> list[torch.Tensor]:
    """The inputs that are meant: those that have the dimension."""
    name, text = each["input"], each[0]
    if name and name not in arguments:
        raise CommandError(
            f"--dynamic {text!r}: there is no input {name!r}{did_you_mean(name, arguments)}; there "
            f"are {', '.join(arguments)}\n"
            f"  instead: --dynamic {next(iter(arguments), 'x')}.{text.partition('.')[2]}"
        )
    value = arguments[name] if name else arguments
    tensors = [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]
    if each["name"] == AUTO and each["axis"] is None:
        return tensors
    axis = int(each["axis"] or 0)
    most = max((t.dim() for t in tensors), default=0)
    tensors = [t for t in tensors if -t.dim() <= axis < t.dim()]
    if not tensors:
        raise CommandError(
            f"--dynamic {text!r}: no input has a dimension {axis}\n"
            f"  instead: a number below {most}; the first is 0"
        )
    return tensors
