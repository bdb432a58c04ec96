"""Structures of arguments and results: the containers that programs support, how to register more,
and the path of a leaf in a call (`x['mask'][0]`).

Containers are those of torch's registry (`torch.utils._pytree`), where libraries register theirs;
None is a leaf. Must not know of programs.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Generator, Iterable, Iterator, Sequence
from enum import Enum
from types import CoroutineType
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils._pytree import TreeSpec

from lostwax.classes import PLAIN, SYMBOLIC
from lostwax.errors import DataDependentError, InputTypeError, RegistrationError

LEAVES = (torch.Tensor, *PLAIN, *SYMBOLIC, torch.device, torch.ScriptObject)
MAPPINGS = (dict, OrderedDict, defaultdict)
_INDEXED = (tuple, list, deque, torch.Size)


def register_dataclass(cls: type[Any], *, serialized_type_name: str | None = None) -> None:
    """Let a dataclass be an argument or a result of programs, and hold tensors there.

    Fields that are None are part of the structure, not leaves. `serialized_type_name` is its name
    in files; without one it is the class's own. Registering a class twice is harmless.
    """
    if not isinstance(cls, type) or not dataclasses.is_dataclass(cls):
        raise RegistrationError(
            f"{cls!r} is not a dataclass\n"
            "  why: the fields of a dataclass say where the tensors are\n"
            "  instead: decorate it with @dataclasses.dataclass, or register it with "
            "torch.utils._pytree.register_pytree_node"
        )
    name = serialized_type_name or f"{cls.__module__}.{cls.__qualname__}"
    if cls not in _pytree.SUPPORTED_NODES:
        _pytree.register_dataclass(cls, serialized_type_name=name)
    elif serialized_type_name not in (None, registered_name(cls)):
        raise RegistrationError(
            f"{cls.__qualname__} is registered already, under the name {registered_name(cls)!r}: "
            f"it cannot become {serialized_type_name!r}"
        )


def registered_name(cls: type[Any]) -> str | None:
    """The name of a container class in files."""
    record = _pytree.SUPPORTED_SERIALIZED_TYPES.get(cls)
    name = None if record is None else record.serialized_type_name
    return None if name == _pytree.NO_SERIALIZED_TYPE_NAME_FOUND else name


def flatten_call(args: Iterable[Any], kwargs: dict[str, Any]) -> tuple[list[Any], TreeSpec]:
    """Return the leaves of a call and its structure `(args, kwargs)`."""
    return _pytree.tree_flatten((tuple(args), dict(kwargs)))


def unflatten_leaves(leaves: Iterable[Any], spec: TreeSpec) -> Any:
    """Build a structure from its leaves. A `torch.Size` stays one; torch's registration would make
    it a tuple."""
    return _unflatten_leaves(iter(leaves), spec)


def _unflatten_leaves(leaves: Iterator[Any], spec: TreeSpec) -> Any:
    if spec.is_leaf():
        return next(leaves)
    children = [_unflatten_leaves(leaves, child) for child in spec.children()]
    if spec.type is torch.Size and all(isinstance(n, int) for n in children):
        return torch.Size(children)
    return _pytree.SUPPORTED_NODES[spec.type].unflatten_fn(children, spec.context)


def check_leaf(value: Any, path: str, what: str = "") -> None:
    """Refuse a value that a program cannot have as an argument or result. The error begins with
    `what`."""
    if isinstance(value, LEAVES):
        return
    cls = type(value)
    raise InputTypeError(
        f"{what}{path} is of type {cls.__module__}.{cls.__qualname__}, which is neither a tensor, "
        f"a constant nor a known container\n  fix: {_way_out(value, path, 'result' in what)}",
        path,
    )


def _way_out(value: Any, name: str, is_result: bool) -> str:
    """What the user can write instead of a leaf that programs do not support."""
    from lostwax.ir.registrations import registration_code

    cls = type(value)
    name = "x" if is_result else name
    module = cls.__module__.partition(".")[0]
    if dataclasses.is_dataclass(cls):
        return f"lostwax.register_dataclass({cls.__name__}), or pass its tensors themselves"
    if module == "transformers" and (code := registration_code(f"{cls.__module__}.{cls.__name__}")):
        return code
    if module == "numpy":
        return f"torch.as_tensor({name})" if hasattr(value, "__len__") else f"{name}.item()"
    if isinstance(value, Enum):
        return f"{name}.value{'' if is_result else _BAKED}"
    if isinstance(value, (set, frozenset, range, Generator, map, zip, filter)):
        return f"a list of it, list({name})"
    if isinstance(value, CoroutineType):
        return f"write {value.__qualname__} with def, not async def: no program waits"
    if module == "builtins" or isinstance(value, torch.nn.Module):
        return "return tensors and constants only" if is_result else f"leave it out{_BAKED}"
    return (
        f"torch.utils._pytree.register_pytree_node({cls.__name__}, flatten, unflatten, "
        f"serialized_type_name='{cls.__module__}.{cls.__qualname__}'), or pass its tensors "
        "themselves"
    )


_BAKED = ", or bake it in: functools.partial(module, name=value)"


# ---------------------------------------------------------------------------------- names and paths


def is_namedtuple(spec: TreeSpec) -> bool:
    return spec.type is namedtuple


def container_class(spec: TreeSpec) -> type[Any]:
    """The class of the container that a spec describes."""
    return spec.context if is_namedtuple(spec) else spec.type  # type: ignore[no-any-return]


def mapping_keys(spec: TreeSpec) -> list[Any]:
    """The keys of a mapping's children, in their order."""
    return spec.context[1] if spec.type is defaultdict else spec.context  # type: ignore[no-any-return]


def child_steps(spec: TreeSpec) -> list[str]:
    """For each child, how Python reaches it from its container: `[0]`, `['mask']`, `.field`."""
    count = spec.num_children
    if spec.type in MAPPINGS:
        return [f"[{key!r}]" for key in mapping_keys(spec)]
    if is_namedtuple(spec):
        return [f".{name}" for name in spec.context._fields]
    fields = _field_names(spec)
    if fields is not None:
        return [f".{name}" for name in fields]
    if spec.type in _INDEXED or (isinstance(spec.type, type) and issubclass(spec.type, _INDEXED)):
        return [f"[{i}]" for i in range(count)]
    return [f".<{i}>" for i in range(count)]


def _field_names(spec: TreeSpec) -> Sequence[str] | None:
    """The names of the children, if the registration of the class keeps them in the context."""
    context = spec.context
    is_pair = isinstance(context, list) and len(context) == 2 and isinstance(context[0], list)
    if is_pair and dataclasses.is_dataclass(spec.type):
        context = context[0]  # [names of the children, names of the fields that are None]
    if not isinstance(context, (list, tuple)) or len(context) != spec.num_children:
        return None
    return (
        context if all(isinstance(name, str) and name.isidentifier() for name in context) else None
    )


def leaf_paths(spec: TreeSpec, path: str = "") -> Iterator[str]:
    """Yield the path of each leaf as Python writes it."""
    if spec.is_leaf():
        yield path
        return
    for step, child in zip(child_steps(spec), spec.children(), strict=True):
        yield from leaf_paths(child, path + step)


def argument_names(in_spec: TreeSpec, names: Sequence[str] | None) -> list[str]:
    """The names of the arguments of a call, positional ones first; `arg0`, ... if unknown."""
    positional, by_name = in_spec.children()
    keys = list(mapping_keys(by_name))
    if names is not None and len(names) >= positional.num_children:
        return [*names[: positional.num_children], *keys]
    return [*(f"arg{i}" for i in range(positional.num_children)), *keys]


def call_paths(in_spec: TreeSpec, names: Sequence[str] | None = None) -> list[str]:
    """The path of each leaf of a call: `x`, `x['mask']`, `y[0].field`."""
    positional, by_name = in_spec.children()
    arguments = (*positional.children(), *by_name.children())
    named = zip(argument_names(in_spec, names), arguments, strict=True)
    return [path for name, spec in named for path in leaf_paths(spec, name)]


# --------------------------------------------------------------------------- one thing or another


class Chosen:
    """A result of which data decide what it is: None or a tensor, one tensor or two, a word.

    The graph returns which it is, and the leaves of each thing that it may be. It is a container
    of torch's registry: whatever rebuilds the results of a call makes of it the one that it is.
    """

    def __init__(self, which: Any, options: Iterable[Any]) -> None:
        self.which, self.options = which, tuple(options)


def _flatten(chosen: Chosen) -> tuple[list[Any], list[str]]:
    names = [f"option{i}" for i in range(len(chosen.options))]
    return [chosen.which, *chosen.options], ["which", *names]


def _unflatten(values: Iterable[Any], _: Sequence[str]) -> Any:
    which, *options = values
    if isinstance(which, (int, torch.Tensor)):
        return options[int(which)]
    raise DataDependentError.here(
        "a program returns one thing or another, and it is captured again",
        why="which it is, is known only when it runs",
        instead="export the module that the program was made of",
    )


_pytree.register_pytree_node(
    Chosen, _flatten, _unflatten, serialized_type_name="lostwax.ir.pytree.Chosen"
)


# ----------------------------------------------------------------------------------------- sketches


def sketch(value: Any) -> str:
    """Show the structure of a value in one line: `[f32[2, 3], {'k': 3}]`."""
    leaves, spec = _pytree.tree_flatten(value)
    return sketch_spec(spec, iter([leaf_text(leaf) for leaf in leaves]))


def sketch_call(args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    """Show a call in one line: `(f32[2, 3], mask=None)`."""
    parts = [sketch(a) for a in args] + [f"{k}={sketch(v)}" for k, v in kwargs.items()]
    return f"({', '.join(parts)})"


def sketch_captured(in_spec: TreeSpec, texts: Iterable[str]) -> str:
    """Show the captured call in one line; `texts` are its leaves."""
    leaves = iter(texts)
    positional, by_name = in_spec.children()
    parts = [sketch_spec(child, leaves) for child in positional.children()]
    named = zip(mapping_keys(by_name), by_name.children(), strict=True)
    parts += [f"{key}={sketch_spec(child, leaves)}" for key, child in named]
    return f"({', '.join(parts)})"


def sketch_spec(spec: TreeSpec, leaves: Iterator[str]) -> str:
    if spec.is_leaf():
        return next(leaves)
    children = [sketch_spec(child, leaves) for child in spec.children()]
    if spec.type is tuple:
        return f"({', '.join(children)}{',' if len(children) == 1 else ''})"
    if spec.type is list:
        return f"[{', '.join(children)}]"
    if spec.type in MAPPINGS:
        pairs = zip(mapping_keys(spec), children, strict=True)
        text = f"{{{', '.join(f'{k!r}: {v}' for k, v in pairs)}}}"
        return text if spec.type is dict else f"{spec.type.__name__}({text})"
    named = (
        f"{step[1:]}={child}" if step[1:].isidentifier() else child
        for step, child in zip(child_steps(spec), children, strict=True)
    )
    return f"{container_class(spec).__name__}({', '.join(named)})"


def leaf_text(value: Any) -> str:
    """Show a leaf in a sketch: a tensor by its type, a constant by its value."""
    from lostwax.ir.text import type_text

    text = type_text(value) or repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
