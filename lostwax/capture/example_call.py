"""An example call: the names of its leaves in the graph; the names of its arguments, the place of
each leaf in them, and copies of their structure with other leaves.

Must not decide which sizes are dynamic; `shapes/` does.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from types import FunctionType, MethodType
from typing import Any, NamedTuple, NoReturn, TypeAlias

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.utils._pytree import TreeSpec

from lostwax.errors import InputStructureError, did_you_mean
from lostwax.ir.data import Sharding
from lostwax.ir.program import ExportedProgram
from lostwax.ir.pytree import (
    LEAVES,
    MAPPINGS,
    check_leaf,
    child_steps,
    is_namedtuple,
    leaf_paths,
    mapping_keys,
    sketch_call,
)


def flat_names(tops: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """A readable name for each leaf of a call: the argument's name and the path to the leaf. `tops`
    are the names of the positional arguments."""
    if _LEAVES.issuperset(map(type, (*args, *kwargs.values()))):
        return _make_distinct([identifier(name) for name in (*tops, *kwargs)])
    names = []
    for path in _key_paths((tuple(args), dict(kwargs))):
        top = tops[path[1].idx] if path[0].idx == 0 else str(path[1].key)
        names.append(identifier("_".join([top, *map(_key_text, path[2:])])))
    return _make_distinct(names)


def leaves_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
    """The leaves of a call."""
    flat = (*args, *kwargs.values())
    return flat if _LEAVES.issuperset(map(type, flat)) else pytree.tree_leaves(flat)


_LEAVES = frozenset((torch.Tensor, torch.nn.Parameter, int, float, bool, str))


def _key_paths(call: Any) -> list[Any]:
    try:
        return [keys for keys, _ in pytree.tree_flatten_with_path(call)[0]]
    except ValueError:  # a class was registered without keys for its children: we number them
        return list(_numbered_paths((), call))


def _numbered_paths(path: tuple[Any, ...], tree: Any) -> Iterator[tuple[Any, ...]]:
    if pytree.tree_is_leaf(tree):
        yield path
        return
    record = pytree.SUPPORTED_NODES[pytree._get_node_type(tree)]
    if record.flatten_with_keys_fn is None:
        children = record.flatten_fn(tree)[0]
        keyed: Any = [(pytree.SequenceKey(i), child) for i, child in enumerate(children)]
    else:
        keyed = record.flatten_with_keys_fn(tree)[0]
    for key, child in keyed:
        yield from _numbered_paths((*path, key), child)


def _make_distinct(names: list[str]) -> list[str]:
    """The names with numbers where they repeat: `a_b` may be `a["b"]` or `a_b`."""
    taken = set(names)
    if len(taken) == len(names):
        return names
    found: list[str] = []
    for name in names:
        each, count = name, 1
        while each in found or (each != name and each in taken):
            each, count = f"{name}_{count}", count + 1
        found.append(each)
    return found


def argument_names(function: Callable[..., Any], count: int, kwargs: dict[str, Any]) -> list[str]:
    """The names of positional arguments; those of `*args` are numbered."""
    plain = _plain_names(function)
    if plain is not None and count <= len(plain):
        return plain[:count]
    names: list[str] = []
    for parameter in _parameters(function):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            names.extend(f"{parameter.name}_{i}" for i in range(count - len(names)))
        elif parameter.kind in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        ):
            names.append(parameter.name)
    return [*names[:count], *(f"arg_{i}" for i in range(len(names), count))]


def _plain_names(function: Any) -> list[str] | None:
    """The names of a plain function's positional arguments, read from its code. None if we must ask
    `inspect`, which takes as long as ten operators."""
    is_method = isinstance(function, MethodType)
    plain = function.__func__ if is_method else function
    if not isinstance(plain, FunctionType) or vars(plain).keys() & _SIGNATURE_GIVERS:
        return None
    code = plain.__code__
    return list(code.co_varnames[is_method : code.co_argcount])


_SIGNATURE_GIVERS = frozenset(("__wrapped__", "__signature__"))


def _key_text(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def identifier(text: str) -> str:
    """A Python name made from a text."""
    name = text.replace(".", "_")
    if name.isidentifier() and name.isascii():
        return name
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return f"_{name}" if not name or name[0].isdigit() else name


def identifiers(prefixes: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Python names made from many texts, each with a prefix."""
    if _are_plain(texts):  # nothing to replace but dots
        names = map(str.replace, texts, repeat("."), repeat("_"))
        return list(map(str.__add__, prefixes, names))
    return [prefix + identifier(text) for prefix, text in zip(prefixes, texts, strict=True)]


def _are_plain(texts: Sequence[str]) -> bool:
    joined = "".join(["_", *texts])
    is_name = joined.isascii() and joined.replace(".", "_").isidentifier()
    return is_name and {text[:1] for text in texts}.isdisjoint(_NO_FIRST)


_NO_FIRST = frozenset(("", *"0123456789"))


ExampleArgs: TypeAlias = torch.Tensor | tuple[Any, ...] | list[Any]
"""The arguments of an example call by position; a single tensor is the one argument."""


def as_call(args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The checked `args` and `kwargs` of an example call; a single tensor is its one argument."""
    if isinstance(args, torch.Tensor):
        args = (args,)
    if not isinstance(args, (tuple, list)):
        by_name = isinstance(args, Mapping)
        raise InputStructureError(
            "args must be a tuple of the example's positional arguments, not "
            f"{type(args).__name__}\n"
            f"  instead: {'args=(), kwargs={...}' if by_name else 'for one argument write (x,)'}"
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise InputStructureError(
            f"kwargs must be a dict of keyword arguments, not {type(kwargs).__name__}\n"
            "  instead: kwargs={'mask': mask}"
        )
    for name in kwargs or ():
        if not isinstance(name, str):
            raise InputStructureError(
                f"kwargs must have names for keys, and has {name!r}\n"
                "  instead: kwargs={'mask': mask}"
            )
    return tuple(args), dict(kwargs or {})


def refuse_unbound(
    error: TypeError, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """If the error is Python's about the arguments of this function, raise one that says which."""
    if f"{getattr(function, '__name__', '')}() " in str(error):
        check_binding(function, args, kwargs)


def check_binding(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse an example call that does not fit the signature of the function, if it has one."""
    parameters = _parameters(function)
    kinds = {p.kind for p in parameters}
    by_position = [p.name for p in parameters if p.kind in _BY_POSITION]
    by_name = [p.name for p in parameters if p.kind in _BY_NAME]
    given = {*by_position[: len(args)], *kwargs}
    free = [name for name in by_name if name not in given]
    name = getattr(function, "__qualname__", "the function").rpartition("<locals>.")[2]

    def refuse(what: str, path: str, fix: str) -> NoReturn:
        plain = [p.replace(annotation=p.empty) for p in parameters]
        declared = f"{name}{inspect.Signature(plain)}"
        called = sketch_call(args, dict(kwargs))
        raise InputStructureError(
            f"the example call does not fit {name}: {what}\n"
            f"  declared: {declared}\n  called:   {called}\n  fix: {fix}",
            path,
        )

    for key in kwargs if parameters and _VAR_KEYWORD not in kinds else ():
        if key not in by_name:
            near = did_you_mean(key, free)
            left = f", or pass one of {', '.join(free)}" if free else ""
            refuse(f"it has no argument {key!r}{near}", key, f"leave {key} out{left}")
    if len(args) > len(by_position) and parameters and _VAR_POSITIONAL not in kinds:
        what = f"{len(args)} positional arguments, and it takes {len(by_position)}"
        refuse(what, f"args[{len(by_position)}]", "leave out what is too much")
    for key in by_position[: len(args)]:
        if key in kwargs and key in by_name:
            refuse(f"{key} is given twice", key, f"pass {key} once, in args or in kwargs")
    for parameter in parameters:
        is_group = parameter.kind in (_VAR_POSITIONAL, _VAR_KEYWORD)
        if parameter.default is parameter.empty and not is_group and parameter.name not in given:
            key = parameter.name
            fix = f"pass it in args or in kwargs, kwargs={{{key!r}: ...}}"
            refuse(f"{key} is missing", key, fix)


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_VAR_POSITIONAL = inspect.Parameter.VAR_POSITIONAL
_VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD


def check_leaves(leaves: Sequence[Any], what: str, paths: Callable[[], Iterable[str]]) -> None:
    """Refuse leaves of types that the specification does not allow. `paths` are their places."""
    for i, leaf in enumerate(leaves):
        if not isinstance(leaf, LEAVES):
            check_leaf(leaf, list(paths())[i], what)


# ------------------------------------------------------------------------------- by its arguments

Label: TypeAlias = Any  # names a child in a spec of nested dicts: a key, a field's name, an index


class Argument(NamedTuple):
    """One argument: its name, its structure, and the index of its first leaf in the call."""

    name: str
    tree: TreeSpec
    start: int


# What a parameter of the function received: one argument, or those of `*args` or `**kwargs`.
ArgumentSlot: TypeAlias = Argument | list[Argument] | dict[str, Argument]


class ExampleCall:
    """The arguments of one call of a function, as its signature binds them."""

    def __init__(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> None:
        self.function = _called_function(function)
        kwargs = dict(kwargs or {})
        self.leaves, self.tree = pytree.tree_flatten((tuple(args), kwargs))
        names = [*argument_names(self.function, len(args), kwargs), *kwargs]
        if len(set(names)) < len(names):
            check_binding(self.function, args, kwargs)
        positional, by_name = self.tree.children()
        self.arguments: dict[str, Argument] = {}
        start = 0
        for name, tree in zip(names, (*positional.children(), *by_name.children()), strict=True):
            self.arguments[name] = Argument(name, tree, start)
            start += tree.num_leaves
        self.slots = dict(self._slots(len(args), kwargs))

    def _slots(self, count: int, kwargs: dict[str, Any]) -> Iterator[tuple[str, ArgumentSlot]]:
        """The slots that the call fills, in the order of the signature. If the signature is not
        known, each argument has its own."""
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

    def flat_arguments(self) -> list[Argument]:
        """All arguments in the order of the signature."""
        found: list[Argument] = []
        for slot in self.slots.values():
            if isinstance(slot, Argument):
                found.append(slot)
            else:
                found.extend(slot.values() if isinstance(slot, dict) else slot)
        return found

    def trails(self) -> list[tuple[Label, ...]]:
        """The labels that lead to each leaf: the argument's name, then one for each container."""
        return [
            trail
            for argument in self.arguments.values()
            for trail in _trails(argument.tree, (argument.name,))
        ]

    def paths(self) -> list[str]:
        """The path of each leaf as Python: `batch['ids'][0]`."""
        return [
            path
            for argument in self.arguments.values()
            for path in leaf_paths(argument.tree, argument.name)
        ]

    def mirror(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """The structure of the arguments with other leaves, by name of the parameter."""
        return {name: self._mirror_slot(slot, leaves) for name, slot in self.slots.items()}

    def _mirror_slot(self, slot: ArgumentSlot, leaves: Sequence[Any]) -> Any:
        if isinstance(slot, list):
            return tuple(self._mirror_slot(argument, leaves) for argument in slot)
        if isinstance(slot, dict):
            return {name: self._mirror_slot(argument, leaves) for name, argument in slot.items()}
        return mirror_tree(slot.tree, iter(leaves[slot.start : slot.start + slot.tree.num_leaves]))


def _called_function(function: Any) -> Callable[..., Any]:
    """The function that is called: the forward of a module, or of a program's module."""
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
    """The labels of a container's children: keys, names of fields, else their indices."""
    if tree.type in MAPPINGS:
        return list(mapping_keys(tree))
    named = [step[1:] if step.startswith(".") else "" for step in child_steps(tree)]
    return [name if name.isidentifier() else i for i, name in enumerate(named)]


def _trails(tree: TreeSpec, trail: tuple[Label, ...]) -> Iterator[tuple[Label, ...]]:
    if tree.is_leaf():
        yield trail
        return
    for label, child in zip(labels(tree), tree.children(), strict=True):
        yield from _trails(child, (*trail, label))


def mirror_tree(tree: TreeSpec, leaves: Iterator[Any]) -> Any:
    """The structure with other leaves. Classes that might not be able to hold them become lists."""
    if tree.is_leaf():
        return next(leaves)
    children = [mirror_tree(child, leaves) for child in tree.children()]
    if tree.type in MAPPINGS:
        return dict(zip(mapping_keys(tree), children, strict=True))
    if is_namedtuple(tree):
        return tree.context(*children)
    return tuple(children) if tree.type is tuple else children


class PlainCall:
    """The inputs and results of a call without DTensors (`boundary.py` has those with them)."""

    meshes: Sequence[Any] = ()

    def __init__(self, leaves: list[Any]) -> None:
        self.shards = leaves

    def wrap(self, leaves: list[Any]) -> list[Any]:
        """What the module is called with."""
        return leaves

    def unwrap(self, outputs: list[Any]) -> list[Any]:
        """The results as the program has them."""
        return outputs

    def list_whole(self) -> Iterable[tuple[int, torch.Tensor]]:
        """What the module is called with that is cut, by the index of the input."""
        return ()

    def add_result(self, index: int, tensor: torch.Tensor) -> torch.Tensor:
        """One more result, as the program has it."""
        return tensor

    def cut_example(self, args: Any, kwargs: Any) -> Any:
        """The call that was captured, of plain tensors, as files can have it."""
        return args, kwargs

    def make_table(self, state: Mapping[str, Any]) -> Sharding | None:
        """The table of placements; `state` are tensors by name."""
        return None
