"""The arguments of a node, from the JSON object of a `.pt2`.

Must not make nodes: what names a graph or a delegate, the reader of the graph does.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import fx

from lostwax.cache import Cache
from lostwax.errors import LoadError
from lostwax.identity import ByIdentity
from lostwax.pt2.container.weights import read_device
from lostwax.pt2.graph.signature import read_kind
from lostwax.pt2.graph.targets import Callee, describe_callee, target_named
from lostwax.pt2.schema import DTYPES, KEYWORD, LAYOUTS, MEMORY_FORMATS

Json = Mapping[str, Any]
Call = tuple[Callee, list[Any], dict[str, Any]]


class _Hole(NamedTuple):
    """Where a value comes to stand, by its number."""

    number: int


class _CallForm(NamedTuple):
    """A call with holes."""

    callee: Callee
    args: list[Any]
    kwargs: dict[str, Any]
    holes: list[tuple[int, int]] | None
    """The places and numbers of all holes, if they are among `args`; None if some lie deeper."""


class ArgumentReader:
    """Reads the arguments of the nodes of one graph."""

    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}
        """Nodes by the names in the file; and numbers that the file has nodes for."""
        self._forms: ByIdentity[Json, _CallForm] = ByIdentity()

    def read_graph(self, given: Json) -> fx.Node:
        """The node that reads a sub-graph."""
        raise NotImplementedError

    def read_delegate(self, given: Json) -> fx.Node:
        """The node that reads a delegate."""
        raise NotImplementedError

    def read_call(self, given: Json) -> Call:
        """What a node calls, and with what. An entry of a cache has calls that differ in the names
        of values alone once, under `form`, with numbers for names; and then `values`."""
        form = given.get("form")
        if form is None:
            return self._read_call(given)
        found = [self._value(name) for name in given["values"]]
        callee, args, kwargs, holes = self._forms.get(form) or self._read_form(form, len(found))
        if holes is None:
            return callee, _fill(args, found), _fill(kwargs, found)
        args = args.copy()
        for place, number in holes:
            args[place] = found[number]
        return callee, args, kwargs

    def _read_form(self, form: Json, count: int) -> _CallForm:
        values, self.values = self.values, {i: _Hole(i) for i in range(count)}
        try:
            callee, args, kwargs = self._read_call(form)
        finally:
            self.values = values
        holes = [(i, each.number) for i, each in enumerate(args) if type(each) is _Hole]
        is_deep = any(type(each) is not _Hole and _has_hole(each) for each in [*args, kwargs])
        self._forms[form] = found = _CallForm(callee, args, kwargs, None if is_deep else holes)
        return found

    def _read_call(self, given: Json) -> Call:
        callee = describe_callee(target_named(given["target"]))
        args, kwargs = self._bind(given, callee.names)
        if callee.unspeakable is not None:
            at, default = callee.unspeakable
            if len(args) == at + 1 and args[-1] == default:
                args.pop()  # written out for torch's reader
        return callee, args, kwargs

    def _bind(self, given: Json, names: tuple[str, ...] | None) -> tuple[list[Any], dict[str, Any]]:
        """The arguments by place and by name. `names` are those of the operator's, if it has a
        schema."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        most = 0 if names is None else len(names)
        for item in given["inputs"]:
            value, name, count = self.read_argument(item["arg"]), item["name"], len(args)
            by_name = bool(kwargs) or item.get("kind") == KEYWORD
            if names is not None and not by_name:  # what is left out is left out in the middle, too
                by_name = count >= most or names[count] != name
            if not by_name:
                args.append(value)
            elif name in kwargs or not _is_keyword(name, names):
                raise LoadError(f"{given['target']} has no argument {name!r}, or has it twice")
            else:
                kwargs[name] = value
        return args, kwargs

    def read_argument(self, given: Json) -> Any:
        if len(given) != 1:
            raise LoadError("an argument is not exactly one of its kinds")
        ((kind, value),) = given.items()
        if kind == "as_tensor":
            return self._value(value["name"])
        read = _ARGUMENTS.get(kind)
        if read is None:
            raise LoadError(f"{kind!r} is no kind of argument")
        return read(self, value)

    def _value(self, name: Any) -> Any:
        found = self.values.get(name)
        if found is None:
            raise LoadError(f"the value {name!r} is used, and nothing before defines it")
        return found

    def _symbolic(self, given: Json) -> Any:
        kind, value = read_kind(given)
        return self._value(value) if kind == "as_name" else _check_plain(kind, value)


SYMBOLIC = {
    "as_sym_int": "sym_int_values",
    "as_sym_float": "sym_float_values",
    "as_sym_bool": "sym_bool_values",
}


def _check_plain(kind: str, value: Any) -> Any:
    wanted = {"as_int": int, "as_float": float, "as_bool": bool, "as_string": str}[kind]
    if kind == "as_float":
        return _float(value)
    if value.__class__ is not wanted:
        raise LoadError(f"{str(value)[:100]!r} is no {wanted.__name__}")
    return value


_INFINITE = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}


def _float(value: Any) -> float:
    if value.__class__ is float or value.__class__ is int:
        return float(value)
    if value.__class__ is str and value in _INFINITE:
        return _INFINITE[value]
    raise LoadError(f"{str(value)[:100]!r} is no float")


def _literal(kind: str) -> Callable[[ArgumentReader, Any], Any]:
    return lambda reader, value: _check_plain(kind, value)


def _literals(kind: str) -> Callable[[ArgumentReader, Any], Any]:
    return lambda reader, values: [_check_plain(kind, v) for v in values]


def _read_from(table: Mapping[int, Any], what: str) -> Callable[[ArgumentReader, Any], Any]:
    def read(reader: ArgumentReader, value: Any) -> Any:
        if value.__class__ is not int or value not in table:
            raise LoadError(f"{value!r} is the number of no {what}")
        return table[value]

    return read


def _complex(reader: ArgumentReader, value: Json) -> complex:
    return complex(_float(value["real"]), _float(value["imag"]))


def _optional(reader: ArgumentReader, given: Json) -> Any:
    return None if "as_none" in given else reader._value(given["as_tensor"]["name"])


_ARGUMENTS: dict[str, Callable[[ArgumentReader, Any], Any]] = {
    "as_none": lambda reader, value: None,
    "as_tensors": lambda reader, values: [reader._value(v["name"]) for v in values],
    "as_optional_tensors": lambda reader, values: [_optional(reader, v) for v in values],
    "as_nested_tensors": lambda reader, lists: [
        [reader._value(v["name"]) for v in values] for values in lists
    ],
    **{f"as_{kind}": _literal(f"as_{kind}") for kind in ("int", "float", "bool", "string")},
    **{f"as_{kind}s": _literals(f"as_{kind}") for kind in ("int", "float", "bool", "string")},
    "as_int_lists": lambda reader, lists: [[_check_plain("as_int", v) for v in vs] for vs in lists],
    "as_float_lists": lambda reader, lists: [[_float(v) for v in values] for values in lists],
    "as_complex": _complex,
    **dict.fromkeys(SYMBOLIC, ArgumentReader._symbolic),
    **{
        f"{kind}s": lambda reader, values: [reader._symbolic(v) for v in values]
        for kind in SYMBOLIC
    },
    "as_scalar_type": _read_from(DTYPES, "dtype"),
    "as_memory_format": _read_from(MEMORY_FORMATS, "memory format"),
    "as_layout": _read_from(LAYOUTS, "layout"),
    "as_device": lambda reader, given: read_named_device(given),
    "as_graph": lambda reader, given: reader.read_graph(given),
    "as_delegate": lambda reader, given: reader.read_delegate(given),
    "as_operator": lambda reader, name: target_named(name),
    "as_string_to_argument": lambda reader, given: {
        name: reader.read_argument(value) for name, value in given.items()
    },
}


def _fill(form: Any, values: list[Any]) -> Any:
    """The values in place of the holes."""
    if type(form) is _Hole:
        return values[form.number]
    if isinstance(form, list):
        return [_fill(each, values) for each in form]
    if isinstance(form, dict):
        return {key: _fill(each, values) for key, each in form.items()}
    return form


def _has_hole(form: Any) -> bool:
    parts = form.values() if isinstance(form, dict) else form if isinstance(form, list) else ()
    return type(form) is _Hole or any(map(_has_hole, parts))


def _is_keyword(name: Any, names: tuple[str, ...] | None) -> bool:
    """May an argument be given by this name? It becomes part of generated code."""
    if names is not None:
        return name in names
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)


_DEVICES = Cache[tuple[Any, Any], torch.device](__name__, "devices", 1000)


def read_named_device(given: Json) -> torch.device:
    key = (given["type"], given.get("index"))
    return _DEVICES.table.get(key) or _DEVICES.keep(key, read_device(given))
