"""The structure of arguments and results in files: torch's treespec JSON, both ways. Our own record
also has what torch has no name for: the tuples of its operators, and named tuples that nobody has
registered.

Reading makes nothing but `TreeSpec`s of containers that are registered in this process: it imports
no module, whatever the text names.
"""

from __future__ import annotations

import json
import sys
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
_OF_TORCH = "torch.return_types."
_RETURNED: dict[str, Any] = {each.__name__: each for each in torch.return_types.all_return_types}
_MAPPINGS: dict[str, Any] = {"builtins.dict": dict, "collections.OrderedDict": OrderedDict}


def tree_text(spec: TreeSpec) -> str:
    """The structure as files have it."""
    if _is_deep(spec):
        raise SaveError(
            f"a structure of arguments or results is nested deeper than {MAX_TREE_DEPTH} levels, "
            "more than files have room for\n  instead: pass its leaves in a list"
        )
    try:
        protocol, root = json.loads(_pytree.treespec_dumps(plain_tree(spec)))
        return json.dumps((protocol, _name_containers(spec, root)))
    except (NotImplementedError, TypeError) as error:
        raise SaveError(
            f"a container of the program's arguments or results has no name in files: {error}\n"
            "  fix: lostwax.register_dataclass(cls) for a dataclass; "
            "torch.utils._pytree.register_pytree_node(cls, ..., serialized_type_name='...') or "
            "torch.utils._pytree._register_namedtuple(cls, serialized_type_name='...') for others"
        ) from None


def is_unnamed(spec: TreeSpec) -> bool:
    """Is it a tuple of torch's operators, or a named tuple, that has no name in torch's files?"""
    if spec.type is namedtuple:
        return spec.context not in _pytree.SUPPORTED_SERIALIZED_TYPES
    return _RETURNED.get(getattr(spec.type, "__name__", "")) is spec.type is not None


def plain_tree(spec: TreeSpec) -> TreeSpec:
    """The structure with tuples in the place of those that have no name."""
    if spec.is_leaf():
        return spec
    children = [plain_tree(child) for child in spec.children()]
    is_tuple = is_unnamed(spec)
    return TreeSpec(tuple if is_tuple else spec.type, None if is_tuple else spec.context, children)


def _name_containers(spec: TreeSpec, written: Any) -> Any:
    """Put back, in what is written of a plain structure, what torch has no name for."""
    children = zip(spec.children(), written["children_spec"], strict=True)
    made = {**written, "children_spec": [_name_containers(*each) for each in children]}
    if is_unnamed(spec) and spec.type is namedtuple:
        cls = spec.context
        named = {"module": cls.__module__, "name": cls.__qualname__, "fields": [*cls._fields]}
        return {**made, "type": "collections.namedtuple", "context": named}
    if is_unnamed(spec):
        return {**made, "type": _OF_TORCH + spec.type.__name__, "context": None}
    return made


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
        if spec.type is namedtuple and not is_unnamed(spec):
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
    if isinstance(name, str) and name.startswith(_OF_TORCH):
        found = _RETURNED.get(name.removeprefix(_OF_TORCH))
        if found is None or found.n_sequence_fields != count:
            raise LoadError(f"this torch has no tuple {name!r} of {count} elements")
        return found, None
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
    if isinstance(name, dict):
        return _find_unregistered(name["module"], name["name"], name["fields"], count)
    cls = _pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(name)
    if cls is None:
        raise LoadError(
            f"the named tuple {name!r} is not registered in this process\n  fix: "
            f"torch.utils._pytree._register_namedtuple(cls, serialized_type_name={name!r})"
        )
    if len(getattr(cls, "_fields", ())) != count:
        raise LoadError(f"the named tuple {name!r} has not {count} fields")
    return cls


def _find_unregistered(module: Any, name: Any, fields: Any, count: int) -> Any:
    """The named tuple of this name in a module that is loaded; else one with these fields."""
    texts = (module, name, *fields)
    if not all(isinstance(each, str) for each in texts) or len(fields) != count:
        raise LoadError(f"the named tuple {name!r:.80} has not {count} fields")
    found: Any = sys.modules.get(module)
    for part in name.split("."):  # no attribute is computed, and nothing is imported
        found = getattr(found, "__dict__", {}).get(part)
    if _pytree.is_namedtuple_class(found) and [*found._fields] == fields:
        return found
    try:
        return namedtuple(name.rpartition(".")[2], fields)
    except ValueError as error:  # no names of Python's
        raise LoadError(f"the named tuple {name!r:.80}: {error}") from error


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
