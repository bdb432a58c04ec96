"""An example call seen by its arguments: which name each has, where each leaf of it stands, and
the same structure made again with other leaves.

Must not know what is asked of the arguments; spec.py and collect.py do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch.utils._pytree as pytree
from torch import nn
from torch.utils._pytree import TreeSpec

from lostwax.capture.example_call import argument_names
from lostwax.ir.program import ExportedProgram
from lostwax.ir.pytree import MAPPINGS, is_namedtuple, leaf_paths, mapping_keys, steps

Label: TypeAlias = Any  # what a spec in dict form calls a child: a key, a field's name, an index


@dataclass(frozen=True)
class Argument:
    """One argument: its name, its structure, and the index of its first leaf in the call."""

    name: str
    tree: TreeSpec
    start: int


# What a parameter of the function received: one argument, or those of `*args` or `**kwargs`.
Slot: TypeAlias = Argument | list[Argument] | dict[str, Argument]


class Call:
    """The arguments of one call of a function, as its signature binds them."""

    def __init__(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> None:
        self.function = _forward(function)
        kwargs = dict(kwargs or {})
        self.leaves, self.tree = pytree.tree_flatten((tuple(args), kwargs))
        names = [*argument_names(self.function, len(args), kwargs), *kwargs]
        positional, by_name = self.tree.children()
        self.arguments: dict[str, Argument] = {}
        start = 0
        for name, tree in zip(names, (*positional.children(), *by_name.children()), strict=True):
            self.arguments[name] = Argument(name, tree, start)
            start += tree.num_leaves
        self.slots = dict(self._slots(len(args), kwargs))

    def _slots(self, count: int, kwargs: dict[str, Any]) -> Iterator[tuple[str, Slot]]:
        """In the order of the signature; only what was given. An unknown signature has one slot
        for each argument."""
        given = list(self.arguments.values())
        positional, by_name = given[:count], dict(zip(kwargs, given[count:], strict=True))
        for parameter in _parameters(self.function):
            if parameter.kind is parameter.VAR_POSITIONAL:
                if positional:
                    yield parameter.name, list(positional)
                positional = []
            elif parameter.kind is parameter.VAR_KEYWORD:
                if by_name:
                    yield parameter.name, dict(by_name)
                by_name = {}
            elif positional and parameter.kind is not parameter.KEYWORD_ONLY:
                yield parameter.name, positional.pop(0)
            elif parameter.name in by_name:
                yield parameter.name, by_name.pop(parameter.name)
        for argument in (*positional, *by_name.values()):
            yield argument.name, argument

    def flat(self) -> list[Argument]:
        """All arguments in the order of the signature."""
        found: list[Argument] = []
        for slot in self.slots.values():
            if isinstance(slot, Argument):
                found.append(slot)
            else:
                found.extend(slot.values() if isinstance(slot, dict) else slot)
        return found

    def trails(self) -> list[tuple[Label, ...]]:
        """The way to each leaf: the argument's name, then the label at each container."""
        return [
            trail
            for argument in self.arguments.values()
            for trail in _trails(argument.tree, (argument.name,))
        ]

    def paths(self) -> list[str]:
        """The same as Python: `batch['ids'][0]`."""
        return [
            path
            for argument in self.arguments.values()
            for path in leaf_paths(argument.tree, argument.name)
        ]

    def mirrored(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """The structure of the arguments with other leaves, by name of the parameter."""
        return {name: self._mirrored(slot, leaves) for name, slot in self.slots.items()}

    def _mirrored(self, slot: Slot, leaves: Sequence[Any]) -> Any:
        if isinstance(slot, list):
            return tuple(self._mirrored(argument, leaves) for argument in slot)
        if isinstance(slot, dict):
            return {name: self._mirrored(argument, leaves) for name, argument in slot.items()}
        return mirrored(slot.tree, iter(leaves[slot.start : slot.start + slot.tree.num_leaves]))


def _forward(function: Any) -> Callable[..., Any]:
    """What is called: a module's forward; for a program that of its module."""
    if isinstance(function, ExportedProgram):
        function = function.module()
    found: Callable[..., Any] = function.forward if isinstance(function, nn.Module) else function
    return found


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def labels(tree: TreeSpec) -> list[Label]:
    """What the children of a container are called: keys, names of fields, else their index."""
    if tree.type in MAPPINGS:
        return list(mapping_keys(tree))
    named = [step[1:] if step.startswith(".") else "" for step in steps(tree)]
    return [name if name.isidentifier() else i for i, name in enumerate(named)]


def _trails(tree: TreeSpec, trail: tuple[Label, ...]) -> Iterator[tuple[Label, ...]]:
    if tree.is_leaf():
        yield trail
        return
    for label, child in zip(labels(tree), tree.children(), strict=True):
        yield from _trails(child, (*trail, label))


def mirrored(tree: TreeSpec, leaves: Iterator[Any]) -> Any:
    """A structure with other leaves. Classes that might not hold them become lists."""
    if tree.is_leaf():
        return next(leaves)
    children = [mirrored(child, leaves) for child in tree.children()]
    if tree.type in MAPPINGS:
        return dict(zip(mapping_keys(tree), children, strict=True))
    if is_namedtuple(tree):
        return tree.context(*children)
    return tuple(children) if tree.type is tuple else children
