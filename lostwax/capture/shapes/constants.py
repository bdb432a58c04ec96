"""Inputs that are declared to be constants, `constants={"image_grid_thw"}`: their values are read
at export, so that what Python computes from them is concrete. A call with others is refused.

Each is checked twice: before a call, with an error that shows both values (`ir/run/conditions/`);
and by an assertion that is first in the graph, wherever that goes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from lostwax.capture.example_call import Argument, ArgumentSlot, ExampleCall
from lostwax.capture.shapes.dims import Auto, Static
from lostwax.capture.shapes.spec import Spec
from lostwax.errors import ConstantsError, did_you_mean
from lostwax.fake.data import KNOWN_LIMIT, assert_data, remember_constant
from lostwax.fake.mode import FakeTensorMode
from lostwax.fake.tensor import FakeTensor
from lostwax.ir.data import Assumption
from lostwax.ir.run.conditions.answers import VALUE
from lostwax.ir.run.conditions.values import find_same, value_text


class DeclaredConstant(NamedTuple):
    """One input that is a constant."""

    value: Tensor
    """A copy, on the same device: what the graph compares with."""
    known: Tensor
    """A copy on the CPU: what Python is answered from."""
    text: str
    path: str


def read_constants(
    names: Collection[str], call: ExampleCall, spec: Spec | None
) -> dict[int, DeclaredConstant]:
    """The values of the tensors that these names mean, as they are now. In the spec their sizes are
    fixed. (Python's own numbers are constants already.)"""
    names = (names,) if isinstance(names, str) else names
    found: dict[int, DeclaredConstant] = {}
    for name in names:
        leaves = list(_find_leaves(str(name).replace('"', "'"), call))
        if not leaves:
            _refuse_name(str(name), call)
        for i in leaves:
            if spec is not None:
                _fix_sizes(spec, i, str(name))
            leaf = call.leaves[i]
            if isinstance(leaf, Tensor):
                found[i] = _read_value(leaf, call.paths()[i])
    return found


def _find_leaves(name: str, call: ExampleCall) -> Iterator[int]:
    """The leaves that a name means: all that are in an argument, or in a part of it."""
    if name in call.slots:
        yield from _list_leaves(call.slots[name])
        return
    for i, path in enumerate(call.paths()):
        if path == name or (path.startswith(name) and path[len(name)] in "[."):
            yield i


def _list_leaves(slot: ArgumentSlot) -> Iterator[int]:
    if isinstance(slot, Argument):
        yield from range(slot.start, slot.start + slot.tree.num_leaves)
        return
    parts: Iterable[ArgumentSlot] = slot.values() if isinstance(slot, dict) else slot
    for part in parts:
        yield from _list_leaves(part)


def _refuse_name(name: str, call: ExampleCall) -> NoReturn:
    paths = call.paths()
    raise ConstantsError(
        f"constants={{{name!r}}}: the example call has no input of this name"
        f"{did_you_mean(name, [*call.slots, *paths])}\n"
        f"  its inputs: {', '.join(paths) or 'none'}\n"
        "  instead: name an argument that is given, or a part of one, \"batch['grid']\"",
        name,
    )


def _fix_sizes(spec: Spec, leaf: int, name: str) -> None:
    """A constant has the sizes of the example. `Dim.AUTO` leaves that open."""
    entries = spec.leaves[leaf]
    each = entries if isinstance(entries, tuple) else (entries,)
    varies = next((e for e in each if not isinstance(e, (Auto, Static, type(None)))), None)
    if varies is not None:
        path = spec.paths[leaf]
        raise ConstantsError(
            f"{path} is declared to be a constant, constants={{{name!r}}}, and dynamic_shapes lets "
            f"it vary: {varies}\n"
            "  why: a constant has one value, of one size\n"
            f"  instead: leave {path} out of one of them",
            path,
        )
    spec.leaves[leaf] = None


def _read_value(leaf: Tensor, path: str) -> DeclaredConstant:
    why = None
    if leaf.is_meta or isinstance(leaf, FakeTensor) or not _is_plain(leaf):
        why = f"it is of {type(leaf).__name__} on {leaf.device}, and has no data to read"
    elif leaf.numel() > KNOWN_LIMIT:
        why = (
            f"it has {leaf.numel()} elements, and what is computed from it would be known up to "
            f"{KNOWN_LIMIT}"
        )
    if why is not None:
        raise ConstantsError(
            f"{path} is declared to be a constant, and its value cannot be read\n  why: {why}\n"
            "  instead: pass a real, small tensor in the example; one that is large and never "
            "changes can be a buffer of the module",
            path,
        )
    value = leaf.detach().clone()
    return DeclaredConstant(value, value.clone().cpu(), value_text(value), path)


def _is_plain(leaf: Tensor) -> bool:
    return type(leaf) in (Tensor, torch.nn.Parameter, torch.nn.Buffer)


# ------------------------------------------------------------------------------ while capturing


def assume_constants(
    mode: FakeTensorMode, declared: Mapping[int, DeclaredConstant], given: list[Any]
) -> None:
    """Record the assertions, then let the capture know the values. `given` is what the module is
    called with."""
    for i, constant in declared.items():
        if constant.value.numel():  # an empty one is known by its sizes
            same = find_same(given[i], constant.value)
            text = f"{constant.path} is not the constant that was declared, {constant.text}"
            assert_data(same, text)
    mode.known_limit = KNOWN_LIMIT
    for i, constant in declared.items():
        remember_constant(given[i], constant.known)


def list_values(declared: Mapping[int, DeclaredConstant]) -> list[Assumption]:
    """What each call is checked for."""
    return [Assumption(VALUE, (i,), constant.text) for i, constant in declared.items()]
