"""A program as bytes, without its state; and back, bound to the tensors of the module.

The state and the constants of a program are tensors that the module has, or that its code reads
elsewhere: these are found again by their names and by the order in which a look comes by them.
Tensors that the code makes (`torch.tensor([1, 2])`) are in the bytes. Nothing that is read is
executed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from lostwax.capture.request import Request
from lostwax.capture.state.module_state import ModuleState
from lostwax.capture.state.root_module import find_root_module, forward_of
from lostwax.errors import LoadError, SaveError
from lostwax.export_cache.spelling import NoTextError
from lostwax.ir.declared import read_declared
from lostwax.ir.program import ExportedProgram
from lostwax.pt2.graph.decode import decode
from lostwax.pt2.graph.encode import encode
from lostwax.pt2.schema import DTYPE_NUMBERS, DTYPES

Json = dict[str, Any]
_MOST_BYTES = 1 << 20
"""Of the tensors that the code makes."""


class Live:
    """The tensors that a program is bound to: those of the module, and `read`, which its code finds
    elsewhere."""

    def __init__(self, request: Request, read: list[torch.Tensor]) -> None:
        root = find_root_module(request.mod)
        state = ModuleState(root)
        self.persistent, self.non_persistent = state.persistent, state.non_persistent
        self.is_sharded = bool(state.wrappers)
        self.training = None if type(root) is nn.Module else root.training
        self.read = read
        self.request = request

    def place(self, name: str, tensor: Any) -> Json:
        """Where a tensor of the program is found again."""
        for kind, held in (("state", self.persistent), ("buffers", self.non_persistent)):
            if held.get(name) is tensor:
                return {kind: name}
        number = next((i for i, each in enumerate(self.read) if each is tensor), None)
        return _write_literal(name, tensor) if number is None else {"read": number}

    def find(self, place: Json) -> torch.Tensor:
        """The tensor that `place` tells of."""
        ((kind, where),) = place.items()
        return _FINDERS[kind](self, where)


_FINDERS: dict[str, Callable[[Live, Any], torch.Tensor]] = {
    "state": lambda live, name: live.persistent[name],
    "buffers": lambda live, name: live.non_persistent[name],
    "read": lambda live, number: live.read[number],
    "literal": lambda live, given: _read_literal(given),
}


def write_program(program: ExportedProgram, live: Live) -> bytes:
    """The bytes of a program. Raises `NoTextError` if a part of it has no form, or if what is read
    back would be another program."""
    if live.is_sharded or any(not isinstance(t, torch.Tensor) for t in program.constants.values()):
        raise NoTextError("a program with state that is no plain tensor")
    try:
        records = encode(program)
    except SaveError as error:
        raise NoTextError(f"the program: {str(error).splitlines()[0]}") from None
    folding = _Folding()
    given = {
        "program": folding.fold(records),
        "tables": folding.to_json(),
        "state": {name: live.place(name, t) for name, t in program.state_dict.items()},
        "constants": {name: live.place(name, t) for name, t in program.constants.items()},
    }
    written = json.dumps(given, separators=(",", ":"), allow_nan=False).encode()
    if encode(read_program(written, live)) != records:
        raise NoTextError("the program, which would be read as another one")
    return written


def read_program(written: bytes | memoryview, live: Live) -> ExportedProgram:
    """The program of these bytes, with the tensors of the module. Raises `LoadError`."""
    try:
        given = json.loads(bytes(written))
        state = _bind(given["state"], live)
        constants = _bind(given["constants"], live)
        _unfold(given["program"], given["tables"])
    except _FAULTS as error:
        raise LoadError(f"the entry is damaged: {error}") from None
    program = decode(given["program"], state, constants, "the program")
    request = live.request
    program.example_inputs = request.args, request.kwargs
    program.training = live.training
    if program.root_signature is not None:
        program.root_signature.original = read_declared(forward_of(request.mod))
    return program


_FAULTS = (AttributeError, LookupError, TypeError, ValueError, RuntimeError)
_LONG = ("stack_trace", "nn_module_stack")
"""Texts that many nodes have in common."""


class _Folding:
    """What many nodes and tensors have in common, which an entry has once: tables, whose rows are
    told by their numbers."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, int]] = {
            "texts": {}, "metas": {}, "types": {}, "forms": {}
        }  # fmt: skip

    def to_json(self) -> Json:
        return {name: [*map(json.loads, table)] for name, table in self._tables.items()}

    def _number(self, table: str, row: Any) -> int:
        found = self._tables[table]
        return found.setdefault(json.dumps(row), len(found))

    def fold(self, records: Json) -> Json:
        """The records with numbers for what is in the tables."""
        module = records["graph_module"]
        graph = module["graph"]
        types = {name: self._number("types", t) for name, t in graph["tensor_values"].items()}
        nodes = [self._fold_node(node) for node in graph["nodes"]]
        folded = {**graph, "nodes": nodes, "tensor_values": types}
        return {**records, "graph_module": {**module, "graph": folded}}

    def _fold_node(self, node: Json) -> Json | list[Any]:
        """Of a call without graphs a list: what is left of it."""
        meta = self._fold_meta(node["metadata"])
        rest = {key: each for key, each in node.items() if key not in _TOLD_APART}
        names: list[str] = []
        inputs = [{**each, "arg": _number_names(each["arg"], names)} for each in node["inputs"]]
        if '"as_graph"' in (text := json.dumps(inputs)) or '"as_delegate"' in text:
            return {**node, "metadata": meta}
        form = self._number("forms", {**rest, "inputs": inputs})
        return [form, meta, names, node["outputs"], node.get("name")]

    def _fold_meta(self, told: Json) -> int:
        texts = {key: self._number("texts", told[key]) for key in _LONG if key in told}
        return self._number("metas", {**told, **texts})


_TOLD_APART = ("metadata", "inputs", "outputs", "name")


def _number_names(given: Any, names: list[str]) -> Any:
    """What an argument is, with numbers for the names of values."""
    if isinstance(given, list):
        return [_number_names(each, names) for each in given]
    if not isinstance(given, dict):
        return given
    folded = {key: _number_names(each, names) for key, each in given.items()}
    for key in ("name", "as_name"):
        if type(given.get(key)) is str:
            folded[key] = len(names)
            names.append(given[key])
    return folded


def _unfold(records: Json, tables: Json) -> None:
    texts, metas, types = tables["texts"], tables["metas"], tables["types"]
    forms = tables["forms"]
    for told in metas:
        told.update({key: str(texts[told[key]]) for key in _LONG if key in told})
    graph = records["graph_module"]["graph"]
    graph["nodes"] = [
        {**node, "metadata": metas[node["metadata"]]}
        if type(node) is dict
        else {
            "form": forms[node[0]],
            "metadata": metas[node[1]],
            "values": node[2],
            "outputs": node[3],
            "name": node[4],
        }
        for node in graph["nodes"]
    ]
    graph["tensor_values"] = {name: types[n] for name, n in graph["tensor_values"].items()}


def _bind(places: Mapping[str, Json], live: Live) -> dict[str, Any]:
    return {name: live.find(place) for name, place in places.items()}


def _write_literal(name: str, tensor: torch.Tensor) -> Json:
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
        raise NoTextError(f"the constant {name}, a {type(tensor).__qualname__}")
    if tensor.numel() * tensor.element_size() > _MOST_BYTES or tensor.device.type != "cpu":
        raise NoTextError(f"the constant {name}, which is large, or on a device")
    if tensor.requires_grad or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        raise NoTextError(f"the constant {name}, which is a view or requires gradients")
    data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return {
        "literal": {
            "dtype": DTYPE_NUMBERS[tensor.dtype],
            "size": list(tensor.shape),
            "data": base64.b64encode(data).decode(),
        }
    }


def _read_literal(given: Json) -> torch.Tensor:
    data = bytearray(base64.b64decode(given["data"], validate=True))
    dtype, size = DTYPES[given["dtype"]], given["size"]
    if not data:
        return torch.empty(size, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(size)
