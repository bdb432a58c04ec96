"""Caches as containers: what models of transformers take and return beside tensors.

`transformers.exporters` writes a cache as a list of its tensors and a description, plain JSON, of
all the rest. We write the same, so that a file of either is one for the other, and it does not
matter whose registration came first: torch keeps one for each class, for the whole process. Output
classes (`ModelOutput`) register themselves.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree

from lostwax.classes import SYMBOLIC
from lostwax.errors import CaptureError

_PLAIN = (type(None), bool, int, float, str)


def register_caches(*modules: str) -> None:
    """Register all classes of caches that there are now, and those that these modules define."""
    utils = import_module("transformers.cache_utils")
    found = set(_list_subclasses(utils.Cache))
    for name in modules:
        own = vars(import_module(name)).values()
        found |= {c for c in own if isinstance(c, type) and is_cache(c) and c.__module__ == name}
    for cls in found - pytree.SUPPORTED_NODES.keys() - {utils.Cache}:
        pytree.register_pytree_node(
            cls,
            flatten,
            unflatten,
            serialized_type_name=_name(cls),
            flatten_with_keys_fn=_flatten_with_keys,
        )


def is_cache(cls: type) -> bool:
    """Is it a class of caches? Some models have their own, of no common base."""
    base = import_module("transformers.cache_utils").Cache
    return issubclass(cls, base) or cls.__name__.endswith("Cache")


def _list_subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    for each in cls.__subclasses__():
        yield each
        yield from _list_subclasses(each)


def hold_all(value: Any) -> Any:
    """A cache whose layers keep all tokens, in the place of one whose layers drop those that are
    out of their window. The masks of models leave these out in any case; but how many have been
    dropped is a number of Python's, which would be another at each call."""
    utils = import_module("transformers.cache_utils")
    if isinstance(value, utils.EncoderDecoderCache):
        made = copy.copy(value)
        made.self_attention_cache = hold_all(value.self_attention_cache)
        made.cross_attention_cache = hold_all(value.cross_attention_cache)
        return made
    layers = getattr(value, "layers", None) if isinstance(value, utils.Cache) else None
    if any(isinstance(layer, utils.StaticSlidingWindowLayer) for layer in layers or ()):
        raise CaptureError(
            "a static cache with a window counts its tokens in Python\n"
            "  why: the number is another at each call, and programs compute with tensors alone\n"
            '  instead: cache_implementation="dynamic"'
        )
    if not any(type(layer) is utils.DynamicSlidingWindowLayer for layer in layers or ()):
        return value
    made = copy.copy(value)
    made.layers = [_hold_all(layer, utils) for layer in value.layers]
    return made


def _hold_all(layer: Any, utils: Any) -> Any:
    if type(layer) is not utils.DynamicSlidingWindowLayer:
        return layer
    made = utils.DynamicLayer()
    if layer.is_initialized:
        made.lazy_initialization(layer.keys, layer.values)
        dropped = (0, 0, layer.cumulative_length - layer.keys.shape[-2], 0)
        made.keys, made.values = F.pad(layer.keys, dropped), F.pad(layer.values, dropped)
    return made


# ------------------------------------------------------------------------------------- both ways


def flatten(value: Any) -> tuple[list[Any], Any]:
    """The tensors of an object, in the order in which they are reached, and a description of it."""
    leaves: list[Any] = []
    return leaves, _describe(value, leaves)


def unflatten(leaves: Any, description: Any) -> Any:
    return _build(description, list(leaves))


def _flatten_with_keys(value: Any) -> tuple[list[tuple[Any, Any]], Any]:
    leaves, description = flatten(value)
    return [(pytree.SequenceKey(at), leaf) for at, leaf in enumerate(leaves)], description


def _describe(value: Any, leaves: list[Any]) -> Any:
    cls = type(value)
    if cls in _PLAIN:
        return value
    if isinstance(value, (torch.Tensor, *SYMBOLIC)):
        leaves.append(value)
        kind = "tensor" if isinstance(value, torch.Tensor) else "sym"
        return {"_t": kind, "i": len(leaves) - 1}
    if isinstance(value, torch.Size):
        return {"_t": "size", "v": list(value)}
    if isinstance(value, torch.device):
        return {"_t": "device", "s": str(value)}
    if isinstance(value, (torch.dtype, torch.layout)):
        kind = "dtype" if isinstance(value, torch.dtype) else "layout"
        return {"_t": kind, "n": str(value).removeprefix("torch.")}
    if isinstance(value, type):
        return {"_t": "type", "p": _name(value)}
    if isinstance(value, dict):
        inner = {key: _describe(each, leaves) for key, each in value.items()}
        if cls is not dict:
            return {"_t": "map", "p": _name(cls), "v": inner}
        named = all(type(key) is str for key in inner)
        return inner if named else {"_t": "items", "v": [[k, v] for k, v in inner.items()]}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [_describe(each, leaves) for each in value]
        return items if cls is list else {"_t": "seq", "p": _name(cls), "v": items}
    if callable(value) or not hasattr(value, "__dict__"):
        raise CaptureError(
            f"a cache has an attribute of class {cls.__qualname__}, which no file can hold\n"
            "  why: a cache among inputs or outputs is taken apart into tensors and plain values\n"
            "  instead: a cache whose attributes are tensors, numbers and containers of them"
        )
    state = {name: _describe(each, leaves) for name, each in vars(value).items()}
    return {"_t": "obj", "p": _name(cls), "s": state}


def _build(description: Any, leaves: list[Any]) -> Any:
    if isinstance(description, list):
        return [_build(each, leaves) for each in description]
    if not isinstance(description, dict):
        return description
    match description.get("_t"):
        case None:
            return {key: _build(each, leaves) for key, each in description.items()}
        case "tensor" | "sym":
            return leaves[description["i"]]
        case "size":
            return torch.Size(description["v"])
        case "device":
            return torch.device(description["s"])
        case "dtype" | "layout":
            return getattr(torch, description["n"])
        case "type":
            return _find(description["p"])
        case "items":
            return {key: _build(each, leaves) for key, each in description["v"]}
        case "map":
            inner = {key: _build(each, leaves) for key, each in description["v"].items()}
            return _find(description["p"])(inner)
        case "seq":
            cls, items = _find(description["p"]), [_build(v, leaves) for v in description["v"]]
            return cls(*items) if hasattr(cls, "_fields") else cls(items)
        case _:
            cls = _find(description["p"])
            made = cls.__new__(cls)
            state = description["s"].items()
            vars(made).update({name: _build(each, leaves) for name, each in state})
            return made


def _name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _find(name: str) -> Any:
    module, _, path = name.partition(":")
    found = import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found
