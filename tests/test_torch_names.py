"""Names that people import: all of torch.export's, with the members and argument names of its
classes and functions, are ours, or torch_names.toml says why not."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.export

import lostwax
from lostwax.torch_version import TORCH

MODULES = {
    "": "torch.export",
    **{
        name: f"torch.export.{name}"
        for name in ("decomp_utils", "dynamic_shapes", "exported_program", "graph_signature")
    },
    **{name: f"torch.export.{name}" for name in ("passes", "pt2_archive", "unflatten")},
}
REASONS: dict[str, Any] = tomllib.loads((Path(__file__).parent / "torch_names.toml").read_text())
MADE_WITH = (2, 13)
"""The torch whose names the reasons were made for: others may have fewer."""


def peer_names() -> Iterator[tuple[str, Any, Any]]:
    """Each public name of torch.export with torch's object and ours, None if we have none."""
    seen = set()
    for module, path in MODULES.items():
        importlib.import_module(path)
        theirs = sys.modules[path]  # `torch.export.unflatten` is also a function
        ours = importlib.import_module(f"lostwax.{module}" if module else "lostwax")
        for name in theirs.__all__:
            shown = f"{module}.{name}" if module else name
            own = getattr(ours, name, None)
            if (name, id(own)) not in seen or own is None:
                seen.add((name, id(own)))
                yield shown, getattr(theirs, name), own


def faults() -> Iterator[str]:
    for name, theirs, ours in peer_names():
        if ours is None:
            yield name
        elif inspect.isclass(theirs):
            yield from class_faults(name, theirs, ours)
        elif inspect.isfunction(theirs):
            yield from call_faults(name, theirs, ours)


def class_faults(name: str, theirs: Any, ours: Any) -> Iterator[str]:
    fields = (
        {field.name for field in dataclasses.fields(ours)}
        if dataclasses.is_dataclass(ours)
        else set[str]()
    )
    yield from call_faults(name, theirs, ours)
    builtin = {*dir(dict), *dir(torch.nn.Module), *dir(Exception)}
    for member in dir(theirs):
        if member.startswith("_") or member in builtin - vars(theirs).keys():
            continue
        if member not in fields and not hasattr(ours, member):
            yield f"{name}.{member}"
        elif inspect.isfunction(getattr(theirs, member)):
            yield from call_faults(
                f"{name}.{member}", getattr(theirs, member), getattr(ours, member)
            )


def call_faults(name: str, theirs: Any, ours: Any) -> Iterator[str]:
    """Arguments that torch's takes by a name, or in a place, and ours does not."""
    try:
        wanted, own = (list(inspect.signature(f).parameters.values()) for f in (theirs, ours))
    except ValueError:  # an enum, a class in C++
        return
    by_name = {p.name: p for p in own}
    if any(p.kind is p.VAR_KEYWORD for p in own) and any(p.kind is p.VAR_POSITIONAL for p in own):
        return
    for i, parameter in enumerate(wanted):
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        is_placed = parameter.kind is not parameter.KEYWORD_ONLY
        if parameter.name not in by_name:
            yield f"{name}({parameter.name})"
        elif is_placed and (i >= len(own) or own[i].name != parameter.name):
            yield f"{name}({parameter.name}) in another place"


def test_every_name_of_torch_is_ours_or_has_a_reason():
    found = set(faults())
    told = {name for entry in REASONS.values() for name in entry["names"]}
    assert not found - told, "add it, or say why not in torch_names.toml"
    if MADE_WITH == TORCH:
        assert not told - found, "no fault any more: take it out of torch_names.toml"


def test_every_reason_is_told():
    assert all(entry["reason"].strip() for entry in REASONS.values())


class Lacking:
    def __init__(self, a): ...
    def run(self, x): ...


class Having:
    def __init__(self, a, b): ...
    def run(self, x, y): ...
    def stop(self): ...


def test_the_walk_sees_what_is_missing():
    found = list(class_faults("C", Having, Lacking))
    assert found == ["C(b)", "C.run(y)", "C.stop"]
    assert list(class_faults("C", Having, Having)) == []
    assert list(call_faults("f", lambda a, b: 0, lambda b, a: 0)) == [
        "f(a) in another place",
        "f(b) in another place",
    ]
    assert any(name == "unflatten.InterpreterModuleDispatcher" for name, _, _ in peer_names())


@pytest.mark.parametrize("name", [name for name in MODULES if name])
def test_modules_are_importable(name):
    made = importlib.import_module(f"lostwax.{name}")
    assert made is getattr(lostwax, name)
    assert {*made.__all__} <= {*dir(made)}
    with pytest.raises(AttributeError, match="no attribute 'wax'"):
        _ = made.wax


def test_unflatten_is_a_module_and_a_function():
    from lostwax.unflatten import UnflattenedModule, unflatten

    program = lostwax.export(torch.nn.ReLU(), (torch.ones(2),))
    assert isinstance(lostwax.unflatten(program), UnflattenedModule)
    assert inspect.signature(lostwax.unflatten) == inspect.signature(unflatten)
