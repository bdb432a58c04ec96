"""The inputs of a capture: flattened, named, and made fake.

Must not decide which sizes are dynamic.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from types import FunctionType, MethodType
from typing import Any

import torch
import torch.utils._pytree as pytree

from lostwax.ir.pytree import LEAVES, check_leaf


def flat_names(tops: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """A readable name for each leaf of a call: the argument's own name (`tops` has those of the
    positional ones), with the way to the leaf."""
    if _LEAVES.issuperset(map(type, (*args, *kwargs.values()))):
        return _distinct([identifier(name) for name in (*tops, *kwargs)])
    names = []
    for path in _key_paths((tuple(args), dict(kwargs))):
        top = tops[path[1].idx] if path[0].idx == 0 else str(path[1].key)
        names.append(identifier("_".join([top, *map(_step, path[2:])])))
    return _distinct(names)


def leaves_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
    """The leaves of a call."""
    flat = (*args, *kwargs.values())
    return flat if _LEAVES.issuperset(map(type, flat)) else pytree.tree_leaves(flat)


_LEAVES = frozenset((torch.Tensor, torch.nn.Parameter, int, float, bool, str))


def _key_paths(call: Any) -> list[Any]:
    try:
        return [keys for keys, _ in pytree.tree_flatten_with_path(call)[0]]
    except ValueError:  # a class was registered without names for its children: they are numbered
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


def _distinct(names: list[str]) -> list[str]:
    """The names, each once: `a_b` may be `a["b"]` or `a_b`."""
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
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return [f"arg_{i}" for i in range(count)]
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            names.extend(f"{parameter.name}_{i}" for i in range(count - len(names)))
        elif parameter.kind in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        ):
            names.append(parameter.name)
    return [*names[:count], *(f"arg_{i}" for i in range(len(names), count))]


def _plain_names(function: Any) -> list[str] | None:
    """The positional arguments of a function or method as it was written; None: ask `inspect`,
    which takes as long as ten operators."""
    is_method = isinstance(function, MethodType)
    plain = function.__func__ if is_method else function
    if not isinstance(plain, FunctionType) or vars(plain).keys() & _SPEAKING:
        return None
    code = plain.__code__
    return list(code.co_varnames[is_method : code.co_argcount])


_SPEAKING = frozenset(("__wrapped__", "__signature__"))


def _step(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def identifier(text: str) -> str:
    """A Python name made of a text."""
    name = text.replace(".", "_")
    if name.isidentifier() and name.isascii():
        return name
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return f"_{name}" if not name or name[0].isdigit() else name


def identifiers(prefixes: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Such names of many texts, each with a prefix."""
    if _are_plain(texts):  # nothing to replace but dots
        names = map(str.replace, texts, repeat("."), repeat("_"))
        return list(map(str.__add__, prefixes, names))
    return [prefix + identifier(text) for prefix, text in zip(prefixes, texts, strict=True)]


def _are_plain(texts: Sequence[str]) -> bool:
    joined = "".join(["_", *texts])
    is_name = joined.isascii() and joined.replace(".", "_").isidentifier()
    return is_name and {text[:1] for text in texts}.isdisjoint(_NO_FIRST)


_NO_FIRST = frozenset(("", *"0123456789"))


def as_call(args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The example call; a single tensor stands for a call with one argument."""
    if isinstance(args, torch.Tensor):
        args = (args,)
    if not isinstance(args, (tuple, list)):
        raise TypeError(
            "args must be a tuple of the example's positional arguments, not "
            f"{type(args).__name__}; "
            "for one argument write (x,)"
        )
    if kwargs is not None and not isinstance(kwargs, dict):
        raise TypeError(f"kwargs must be a dict of keyword arguments, not {type(kwargs).__name__}")
    for name in kwargs or ():
        if not isinstance(name, str):
            raise TypeError(f"kwargs must have names for keys, and has {name!r}")
    return tuple(args), dict(kwargs or {})


def check_leaves(leaves: Sequence[Any], what: str, paths: Callable[[], Iterable[str]]) -> None:
    """Only the types that the specification allows; `paths` says where each leaf stands."""
    for i, leaf in enumerate(leaves):
        if not isinstance(leaf, LEAVES):
            check_leaf(leaf, list(paths())[i], what)
