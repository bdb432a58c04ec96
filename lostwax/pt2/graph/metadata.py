"""Where a node comes from: each entry of `node.meta` as one string of a file, written and read.

The name of a class or function is looked up among operators and the modules of torch.nn; other
names stay text. Nothing is imported.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from lostwax.cache import cached
from lostwax.errors import LoadError, SaveError
from lostwax.ir.graph.handles import HANDLE, REASONS
from lostwax.ir.graph.lookup import WHOLE
from lostwax.pt2.graph.targets import name_of, target_named
from lostwax.pt2.lines import Lines

_NUMBER = re.compile(r"\d{1,18}")
_OUTER_COMMA = re.compile(r",(?![^\[]*\])")


NO_MODULE = {"L__self__": ("", "lostwax.NoModule")}
"""Written for nodes that stand in no module: torch cannot unflatten a program that has such
nodes."""
DECOMPOSED = "decomposed_from"
"""Our own entry: the operators that a node was one of several nodes of."""
OWN = (DECOMPOSED, WHOLE, HANDLE, REASONS)
"""Entries that torch does not have."""


def write(meta: dict[str, Any], lines: Lines) -> dict[str, str]:
    """The entries of `node.meta` that files keep."""
    out: dict[str, str] = {}
    trace = lines.write_trace(meta.get("stack_trace") or "")
    if trace:
        out["stack_trace"] = trace
    stack = (meta.get("nn_module_stack") or NO_MODULE).items()
    out["nn_module_stack"] = ";".join(f"{k},{p},{type_text(t)}" for k, (p, t) in stack)
    if meta.get("source_fn_stack"):
        sources = meta["source_fn_stack"]
        out["source_fn_stack"] = ";".join(f"{name},{function_text(f)}" for name, f in sources)
    if meta.get("torch_fn"):
        out["torch_fn"] = ";".join(meta["torch_fn"])
    out |= write_custom(meta)
    if meta.get("from_node_text"):
        out["from_node"] = meta["from_node_text"]
    if meta.get(DECOMPOSED):  # our own: torch's reader passes over it
        origins = meta[DECOMPOSED]

        out[DECOMPOSED] = ";".join(f"{o.name},{name_of(o.target)}" for o in origins)
    if meta.get(WHOLE):  # our own, too
        out[WHOLE] = name_of(meta[WHOLE])
    if HANDLE in meta:  # ExecuTorch's
        out[HANDLE] = str(meta[HANDLE])
    if meta.get(REASONS):  # our own
        out[REASONS] = json.dumps(meta[REASONS])
    return out


class MetadataReader:
    """Reads the metadata of one program. Nodes of which a file tells the same share what is read,
    as the nodes of a capture do."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], dict[str, Any]] = {}

    def read(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The entries of `node.meta` that a file has; missing ones are empty."""
        if "custom" in given:  # notes of the user's, who may write to them
            return _read(given)
        key = (*given, *given.values())
        return self._known.get(key) or self._known.setdefault(key, _read(given))


def _read(given: Mapping[str, Any]) -> dict[str, Any]:
    stack, sources = given.get("nn_module_stack"), given.get("source_fn_stack")
    out: dict[str, Any] = {
        "stack_trace": str(given.get("stack_trace") or ""),
        "nn_module_stack": _module_stack(stack) if stack else {},
        "source_fn_stack": [*map(_source, sources.split(";"))] if sources else [],
    }
    if given.get("torch_fn"):
        out["torch_fn"] = tuple(given["torch_fn"].split(";"))
    out |= read_custom(given)
    if given.get("from_node"):
        out["from_node_text"] = str(given["from_node"])
    if given.get(DECOMPOSED):
        from lostwax.ir.decompose.decompose import Origin  # few programs have been decomposed

        parts = [part.partition(",") for part in given[DECOMPOSED].split(";")]
        out[DECOMPOSED] = tuple(Origin(n, target_named(t)) for n, _, t in parts)
    if given.get(WHOLE):
        out[WHOLE] = target_named(given[WHOLE])
    if handles := _NUMBER.findall(str(given.get(HANDLE) or "")):
        numbers = tuple(map(int, handles))
        out[HANDLE] = numbers[0] if len(numbers) == 1 else numbers
    if given.get(REASONS):
        reasons = json.loads(given[REASONS])
        if not isinstance(reasons, list) or not all(isinstance(r, str) for r in reasons):
            raise LoadError("the reasons why no backend took it are damaged")
        out[REASONS] = tuple(reasons)
    return out


def write_custom(meta: dict[str, Any]) -> dict[str, str]:
    """The notes of the user's, of a node or of the whole graph."""
    if not meta.get("custom"):
        return {}
    try:
        return {"custom": json.dumps(meta["custom"])}
    except (TypeError, ValueError) as error:
        what = "a node" if "val" in meta else "the graph"
        raise SaveError(f"meta['custom'] of {what} is not plain data: {error}") from None


def read_custom(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"custom": json.loads(given["custom"])} if given.get("custom") else {}


def _module_stack(text: str) -> dict[str, tuple[str, str]]:
    """A dict of its own: many nodes have the same text."""
    return dict(_read_module_stack(text))


@cached(1000)
def _read_module_stack(text: str) -> dict[str, tuple[str, str]]:
    stack = {}
    for part in text.split(";"):
        fields = _OUTER_COMMA.split(part)
        if len(fields) != 3:
            raise LoadError(f"{part[:200]!r} is not a module: a key, a path and a type are")
        stack[fields[0]] = (fields[1], fields[2])
    return {} if stack == NO_MODULE else stack


def type_text(kind: Any) -> str:
    """The name of a class, as torch's files have it."""
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"


_HOMES = {
    "torch.nn.functional": nn.functional,
    "torch.linalg": torch.linalg,
    "torch.fft": torch.fft,
    "torch.special": torch.special,
    "Tensor": torch.Tensor,  # torch would find a method by its whole name, and fail to write it
    "torch.Tensor": torch.Tensor,
    "torch": torch,
}
"""Where functions that nodes come from are looked up, by name."""


def function_text(function: Any) -> str:
    """The name of a function that a node comes from, as torch's files have it."""
    if isinstance(function, (str, type)):
        return type_text(function)
    name = getattr(function, "__name__", "")
    for home, names in _HOMES.items():
        for known in (name, name.removeprefix(f"{home.rpartition('.')[2]}_")):
            if getattr(names, known, None) is function:
                return f"{home}.{known}"
    try:
        return name_of(function)
    except SaveError:
        name = getattr(function, "__qualname__", None) or type(function).__name__
        return f"{getattr(function, '__module__', '')}.{name}"


def _source(text: str) -> tuple[str, Any]:
    name, _, function = text.partition(",")
    return name, function_named(function)


def function_named(text: str) -> Any:
    """The function of this name, or the name if no such function is known."""
    try:
        return _find_function(text)
    except LoadError:
        return text


@cached(1000)
def _find_function(text: str) -> Any:
    """Raises `LoadError` if there is none as yet: that is not kept."""
    module, _, leaf = text.rpartition(".")
    if text.startswith("torch.nn.") and module != "torch.nn.functional":
        found = getattr(sys.modules.get(module), leaf, None)
        is_known = isinstance(found, type) and issubclass(found, nn.Module)
    elif module in _HOMES:
        found = getattr(_HOMES[module], leaf, None)
        is_known = inspect.isroutine(found)
    else:
        return target_named(text)
    if not is_known:
        raise LoadError(f"there is no {text}")
    return found
