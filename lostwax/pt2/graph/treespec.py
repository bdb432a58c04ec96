"""The structure of arguments and results in files: torch's treespec JSON, both ways.

Reading makes nothing but `TreeSpec`s of containers that are registered in this process: it imports
no module, whatever the text names.
"""

from __future__ import annotations

import json
from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils._pytree import TreeSpec

from lostwax.errors import LoadError, SaveError
from lostwax.ir.registrations import registration_code
from lostwax.pt2.limits import MAX_TREE_DEPTH

_PROTOCOL = 1
_FACTORIES: dict[str, Any] = {
    f.__name__: f for f in (list, dict, set, tuple, int, float, str, bool)
}
_SEQUENCES: dict[str, Any] = {
    "builtins.tuple": tuple,
    "builtins.list": list,
    "torch.Size": torch.Size,
}
_MAPPINGS: dict[str, Any] = {"builtins.dict": dict, "collections.OrderedDict": OrderedDict}


def tree_text(spec: TreeSpec) -> str:
    """The structure as files have it."""
    if _is_deep(spec):
        raise SaveError(
            f"a structure of arguments or results is nested deeper than {MAX_TREE_DEPTH} levels, "
            "more than files have room for\n  instead: pass its leaves in a list"
        )
    try:
        return _pytree.treespec_dumps(spec)
    except (NotImplementedError, TypeError) as error:
        raise SaveError(
            f"a container of the program's arguments or results has no name in files: {error}\n"
            "  fix: lostwax.register_dataclass(cls) for a dataclass; "
            "torch.utils._pytree.register_pytree_node(cls, ..., serialized_type_name='...') or "
            "torch.utils._pytree._register_namedtuple(cls, serialized_type_name='...') for others"
        ) from None


def _is_deep(spec: TreeSpec) -> bool:
    level, depth = [spec], 0
    while level and depth <= MAX_TREE_DEPTH:
        level = [child for each in level for child in each.children()]
        depth += 1
    return bool(level)


def namedtuple_fields(*specs: TreeSpec) -> dict[str, dict[str, list[str]]]:
    """The fields of each named tuple in these structures, by its name in files."""
    found: dict[str, dict[str, list[str]]] = {}
    for spec in specs:
        if spec.type is namedtuple:
            name = _pytree.SUPPORTED_SERIALIZED_TYPES[spec.context].serialized_type_name
            found[name] = {"field_names": list(spec.context._fields)}
        found.update(namedtuple_fields(*spec.children()))
    return found


def tree_of(text: Any) -> TreeSpec:
    """The structure that a file tells of."""
    try:
        protocol, root = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        raise LoadError("a structure of arguments is not readable") from None
    if protocol != _PROTOCOL:
        raise LoadError(f"a structure of arguments is written in the unknown form {protocol!r}")
    return _tree(root, 0)


def _tree(given: Any, depth: int) -> TreeSpec:
    if depth > MAX_TREE_DEPTH:
        raise LoadError(f"a structure of arguments is nested deeper than {MAX_TREE_DEPTH} levels")
    name, context = given["type"], given["context"]
    children = [_tree(child, depth + 1) for child in given["children_spec"]]
    if name is None:
        if children or context is not None:
            raise LoadError("a leaf of a structure of arguments has parts")
        return _pytree.treespec_leaf()
    kind, context = _container(name, context, len(children))
    return TreeSpec(kind, context, children)


def _container(name: str, context: Any, count: int) -> tuple[Any, Any]:
    """The class of a container and its context."""
    if name in _SEQUENCES:
        return _SEQUENCES[name], None
    if name in _MAPPINGS:
        return _MAPPINGS[name], _keys(json.loads(context), count)
    if name == "collections.deque":
        return deque, _maximum(json.loads(context))
    if name == "collections.defaultdict":
        return defaultdict, _default(context, count)
    if name == "collections.namedtuple":
        return namedtuple, _named_tuple(context, count)
    return _find_registered(name, context)


def _keys(keys: Any, count: int) -> list[Any]:
    plain = isinstance(keys, list) and all(
        isinstance(k, (str, int, float, bool, type(None))) for k in keys
    )
    if not plain:
        raise LoadError(
            "a dict in the structure of arguments has keys that are not strings or numbers"
        )
    if len(keys) != count or len(set(keys)) != count:
        raise LoadError("a dict in the structure of arguments has too many or too few keys")
    return keys  # type: ignore[no-any-return]


def _maximum(length: Any) -> int | None:
    if length is not None and not (isinstance(length, int) and 0 <= length < 1 << 31):
        raise LoadError(f"a deque cannot have the maximal length {length!r}")
    return length


def _default(context: Any, count: int) -> list[Any]:
    factory = _FACTORIES.get(context["default_factory_name"])
    if factory is None or context["default_factory_module"] != "builtins":
        raise LoadError(
            "a defaultdict in the structure of arguments makes its values by "
            f"{context['default_factory_module']}.{context['default_factory_name']}; known are "
            f"{', '.join(_FACTORIES)}"
        )
    return [factory, _keys(context["dict_context"], count)]


def _named_tuple(name: Any, count: int) -> Any:
    cls = _pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(name)
    if cls is None:
        raise LoadError(
            f"the named tuple {name!r} is not registered in this process\n  fix: "
            f"torch.utils._pytree._register_namedtuple(cls, serialized_type_name={name!r})"
        )
    if len(getattr(cls, "_fields", ())) != count:
        raise LoadError(f"the named tuple {name!r} has not {count} fields")
    return cls


def _find_registered(name: Any, context: Any) -> tuple[Any, Any]:
    cls = _pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(name)
    if cls is None:
        known = f"lostwax.register_dataclass(cls, serialized_type_name={name!r})"
        code = registration_code(str(name), str(context)) or f"for a dataclass with {known}"
        raise LoadError(
            f"the container {name!r} is not registered in this process\n"
            f"  fix: register it as when the program was saved, {code}, then load again"
        )
    read = _pytree.SUPPORTED_SERIALIZED_TYPES[cls].from_dumpable_context
    if read is None:
        return cls, json.loads(context)
    return cls, read(context)  # the user's own function, given where the class was registered
