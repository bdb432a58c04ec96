"""A program from the JSON object of a `.pt2`.

The file is not trusted: a name must be an identifier and be defined once before it is used, an
operator must be registered, a size must be a number or parse as one. What goes wrong becomes a
`LoadError` that says where. Nothing is run, imported or evaluated.
"""

from __future__ import annotations

import marshal
import operator
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import fx

from lostwax.errors import LoadError, LostwaxError
from lostwax.fake import FakeTensorMode
from lostwax.fake.symbolic.node import wrap
from lostwax.fake.tensor import new_fake
from lostwax.ir.data import ModuleCallEntry
from lostwax.ir.graph.delegate import LoweredBackendModule
from lostwax.ir.graph.graph_module import ReadableModule
from lostwax.ir.graph.writer import GraphWriter, base_name, graph_border
from lostwax.ir.program import ExportedProgram
from lostwax.ir.ranges import RangeConstraints
from lostwax.ir.signature import ExportGraphSignature, InputKind
from lostwax.pt2 import original
from lostwax.pt2.graph import metadata
from lostwax.pt2.graph.arguments import SYMBOLIC, ArgumentReader, read_named_device
from lostwax.pt2.graph.delegates import read_delegate
from lostwax.pt2.graph.names import (
    ATTRIBUTES,
    choose_name,
    name_of_attribute,
    restore_sequences,
)
from lostwax.pt2.graph.signature import read_call_graph, read_kind, read_name, read_signature
from lostwax.pt2.graph.symbols import SymbolReader, hints_of
from lostwax.pt2.graph.targets import Callee
from lostwax.pt2.guards import flat_places, places, read_facts, read_guards
from lostwax.pt2.limits import MAX_DIMS, MAX_GRAPH_DEPTH, MAX_LEARNING
from lostwax.pt2.schema import (
    DTYPES,
    OPSET,
    SCHEMA_MAJOR,
    UNREAD,
)
from lostwax.sym import Expr, ShapeEnv, Size
from lostwax.types import TensorType

Json = Mapping[str, Any]

_FAULTS = (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, OverflowError)


def decode(
    given: Json,
    state_dict: dict[str, Any],
    constants: dict[str, Any],
    place: str,
    held: Mapping[str, torch.Tensor] | None = None,
) -> ExportedProgram:
    """Make the program that the JSON object describes, with this state; `held` are the tensors of
    its delegates."""
    reading = Reading(place, held or {})
    with reading.here("its records"):
        _check_version(given)
        given = (given.get("lostwax") or {}).get("whole", given)
        return _program(reading, given, state_dict, constants)


class Reading:
    """What is being read, for messages; and what all graphs of a program share."""

    def __init__(self, place: str, held: Mapping[str, torch.Tensor] | None = None) -> None:
        self.where: list[str] = [place]
        self.held = held or {}
        self.delegates: dict[int, LoweredBackendModule | None] = {}
        """The delegates by their numbers; None: it is being read."""
        self.types: dict[bytes, tuple[TensorType, None, bool]] = {}
        """What `new_fake` is given, by the bytes of what a file says of the tensor."""
        self.read_meta = metadata.MetadataReader().read

    @contextmanager
    def here(self, what: str) -> Iterator[None]:
        self.where.append(what)
        try:
            yield
        except LoadError as error:
            if error.where:
                raise
            raise LoadError(error.message, tuple(self.where)) from None
        except RecursionError:
            raise LoadError("it is nested too deeply", tuple(self.where)) from None
        except _FAULTS as error:
            raise LoadError(_explain(error), tuple(self.where)) from error
        self.where.pop()


def _explain(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it has no field {error}"
    if isinstance(error, LostwaxError):
        return str(error)
    return f"it is damaged ({type(error).__name__}: {str(error)[:300]})"


def _check_version(given: Json) -> None:
    version = given["schema_version"]
    if version["major"] != SCHEMA_MAJOR:
        raise LoadError(
            f"the program is written in schema {version['major']}.{version['minor']}; lostwax "
            f"reads schema {SCHEMA_MAJOR}, which torch 2.11 to 2.13 write"
        )
    given_opset = given["opset_version"].get("aten", 0)
    if given_opset.__class__ is not int or given_opset > OPSET["aten"]:
        raise LoadError(
            f"the program uses version {given_opset} of the operators aten; this torch "
            f"({torch.__version__}) has version {OPSET['aten']}, in which they may mean something "
            "else\n  fix: load it with a newer torch"
        )


def _program(
    reading: Reading, given: Json, state_dict: dict[str, Any], constants: dict[str, Any]
) -> ExportedProgram:
    module = given["graph_module"]
    graph = module["graph"]
    own = given.get("lostwax") or {}
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    hints = partial(hints_of, graph)
    described, defined = own.get("symbols", {}), own.get("defined", ())
    symbols = SymbolReader(env, _ranges(given), hints, described, defined, own.get("integers", ()))
    with reading.here("the signature"):
        signature = read_signature(module["signature"], own.get("writes"))
    names = [spec.arg.name for spec in signature.input_specs]
    builder = _GraphReader(reading, mode, symbols, own)
    made = builder.graph(graph, names)
    with reading.here("the metadata of the graph"):
        made.meta.update(metadata.read_custom(module.get("metadata") or {}))
    with reading.here("the module call graph"):
        calls = read_call_graph(module["module_call_graph"], signature)
    program = assemble(
        reading, given, symbols, made, builder.renamed, signature, calls, state_dict, constants
    )
    for delegate in filter(None, reading.delegates.values()):
        delegate.give_ranges(program.range_constraints, program.guards)
    return program


def assemble(
    reading: Reading,
    given: Json,
    symbols: SymbolReader,
    made: fx.GraphModule,
    renamed: Mapping[str, str],
    signature: ExportGraphSignature,
    calls: list[ModuleCallEntry],
    state_dict: dict[str, Any],
    constants: dict[str, Any],
) -> ExportedProgram:
    """The program of a graph and a signature that have been read, with the guards and ranges that
    are given."""
    _rename(signature, calls, renamed)
    root = calls[0].signature if calls and calls[0].fqn == "" else None
    if root is None:
        raise LoadError("the module call graph does not begin with the root and its signature")
    users = [
        node.meta["val"]
        for node, spec in zip(made.graph.find_nodes(op="placeholder"), signature.input_specs)  # noqa: B905
        if spec.kind is InputKind.USER_INPUT
    ]
    with reading.here("the guards"):
        where = places(root.in_spec, root.forward_arg_names, users) + flat_places(users)
        targets = {node.target for node in made.graph.nodes}
        guards = read_guards(given, symbols, where, targets)
        for fact in read_facts(given, symbols, guards):
            symbols.env.learn(fact)
            if symbols.env.steps > MAX_LEARNING:
                raise LoadError("its conditions on sizes are too many, or too intricate")
    program = ExportedProgram(
        graph_module=made,
        graph_signature=signature,
        state_dict=state_dict,
        constants=constants,
        range_constraints=_constraints(given, symbols),
        module_call_graph=calls,
        dialect=_dialect(given),
        guards=tuple(guards),
    )
    with reading.here("the original"):
        original.read((given.get("lostwax") or {}).get("original"), program)
    return program


def _rename(
    signature: ExportGraphSignature, calls: list[ModuleCallEntry], renamed: Mapping[str, str]
) -> None:
    for old, new in renamed.items():
        signature.replace_all_uses(old, new)
        for call in calls:
            for arg in (*call.signature.inputs, *call.signature.outputs) if call.signature else ():
                if arg.name == old:
                    arg.name = new


def _dialect(given: Json) -> str:
    names = given.get("verifiers") or ["ATEN"]
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise LoadError("the names of its verifiers are damaged")
    return names[0]


# ------------------------------------------------------------------------------------------- ranges


Limits = tuple[int | None, int | None]


def _ranges(given: Json) -> dict[str, Limits]:
    return {
        name: _limits(name, limits["min_val"], limits["max_val"])
        for name, limits in given["range_constraints"].items()
    }


def _limits(name: str, lo: Any, hi: Any) -> Limits:
    if not all(b is None or b.__class__ is int for b in (lo, hi)):
        raise LoadError(f"the range of {name} is {lo!r} to {hi!r}")
    return lo, hi


def _constraints(given: Json, symbols: SymbolReader) -> RangeConstraints:
    """Of the symbols that the program has, and of sizes that are computed of them."""
    limits = _ranges(given)
    own = given.get("lostwax")
    in_files = {described["name"]: name for name, described in symbols.described.items()}
    found = {}
    for entry in own["ranges"] if isinstance(own, dict) else list(limits):
        if isinstance(entry, list) and len(entry) == 3:  # of an expression
            name = read_name(entry[0])
            found[symbols.find_named(name)] = _limits(name, *entry[1:])
        else:
            name = read_name(entry)
            found[symbols.find_named(name)] = limits[in_files.get(name, name)]
    return RangeConstraints((e, both) for e, both in found.items() if e is not None)


# ------------------------------------------------------------------------------------------- graphs


class _GraphReader(ArgumentReader):
    """One graph: its values by the names that the file gives them."""

    def __init__(
        self,
        reading: Reading,
        mode: FakeTensorMode,
        symbols: SymbolReader,
        beside: Json,
        depth: int = 0,
        title: str = "main",
    ) -> None:
        super().__init__()
        if depth > MAX_GRAPH_DEPTH:
            raise LoadError(f"graphs are nested deeper than {MAX_GRAPH_DEPTH} levels")
        self.reading, self.mode, self.symbols, self.depth = reading, mode, symbols, depth
        self.title = title
        self.beside = beside
        self.recorded = beside.get("values", {}).get(title, {})
        self.items = beside.get("items", {}).get(title, {})
        self.literals: Json = beside.get("numbers", {}).get(title, {})
        self.writer = GraphWriter()
        self._append = self.writer.append
        self.names: set[str] = set()
        self.numbers = count()
        """Of lists among results, which have no name in the file."""
        self.renamed: dict[str, str] = {}
        self.children: dict[str, Any] = {}
        self.read: dict[str, tuple[Json, str]] = {}
        """The sub-graphs by their names in the file: their records, and their names here."""
        self.given: Json = {}

    def graph(self, given: Json, names: list[str] | None = None) -> fx.GraphModule:
        self.given = given
        inputs = given["inputs"]
        if names is not None and len(names) != len(inputs):
            raise LoadError(f"it has {len(inputs)} inputs, its signature {len(names)}")
        # One frame for all: what is being read is only needed when it cannot be.
        what, i = "input", -1
        try:
            for i, argument in enumerate(inputs):
                self._input(argument, names[i] if names is not None else f"arg{i}_1")
            what, i = "node", -1
            for i, node in enumerate(given["nodes"]):  # noqa: B007
                self._node(node)
        except (LoadError, RecursionError, *_FAULTS):
            with self.reading.here(f"{what} {i} of graph {self.title!r}"):
                raise
        with self.reading.here(f"the outputs of graph {self.title!r}"):
            self._output(given)
        made = self.writer.finish()
        with self.reading.here(f"the order of graph {self.title!r}"):
            self._rearrange(made, self.beside.get("order", {}).get(self.title))
        return ReadableModule(self.children, made)

    def _rearrange(self, graph: fx.Graph, names: list[str] | None) -> None:
        """Put the nodes in the order that our own record has."""
        if names is None:
            return
        nodes = {node.name: node for node in graph.nodes}
        if len(names) != len(nodes) or nodes.keys() != set(names):
            return
        seen: set[fx.Node] = set()
        for node in map(nodes.__getitem__, names):
            if not seen.issuperset(node.all_input_nodes):
                raise LoadError(f"the node {node.name!r} stands before what it reads")
            seen.add(node)
            graph_border(graph).prepend(node)

    def _name(self, name: Any) -> str:
        """A name for a node: as in the file, unless generated code could not use it."""
        if name.__class__ is not str or not name.isidentifier() or not name.isascii():
            raise LoadError(f"{name!r} is not a name")
        return choose_name(name, self.names)

    def _of_list(self) -> str:
        """The name of the node that reads a list among several results. Files do not have it: it is
        the one that a capture would give, with the next number that is free."""
        values = self.given["tensor_values"]
        numbered = (f"getitem_{n}" if n else "getitem" for n in self.numbers)
        return next(name for name in numbered if name not in values and name not in self.names)

    def _define(self, name: Any, node: fx.Node) -> None:
        if name in self.values:
            raise LoadError(f"the value {name!r} is defined twice")
        self.values[name] = node
        if node.name != name:
            self.renamed[name] = node.name

    def _input(self, argument: Json, name: str) -> None:
        kind, given = read_kind(argument)
        if kind == "as_tensor":
            name, value = given["name"], self._tensor(given["name"])
        elif kind in SYMBOLIC:
            name = given["as_name"]
            value = self._number(kind, name)
        else:
            value = self.read_argument(argument)
        target = self._name(name)
        node = self._append("placeholder", target, target, (), {})
        node.meta["val"] = value
        self._define(name, node)

    def _output(self, given: Json) -> None:
        values = [self.read_argument(a) for a in given["outputs"]]
        if given.get("is_single_tensor_return"):
            (result,) = values
            shown = _show(result)
        else:
            result = tuple(values)
            shown = tuple(map(_show, values))
        node = self._append("output", self._name("output"), "output", (result,), {})
        node.meta["val"] = shown

    # ---- values

    def _tensor(self, name: Any) -> torch.Tensor:
        meta = self.given["tensor_values"][name]
        if name in self.recorded:
            return new_fake(self.mode, *self._type(name, meta))
        key, types = marshal.dumps(meta, 2), self.reading.types
        return new_fake(
            self.mode, *(types.get(key) or types.setdefault(key, self._type(name, meta)))
        )

    def _type(self, name: Any, meta: Json) -> tuple[TensorType, None, bool]:
        """The type of a tensor, no storage, and whether it requires gradients."""
        sizes, strides = meta["sizes"], meta["strides"]
        size = self.symbols.size
        dtype = DTYPES.get(meta["dtype"])
        if dtype is None or len(sizes) != len(strides) or len(sizes) > MAX_DIMS:
            raise LoadError(f"the type of {name!r} is damaged")
        layout = [size(s) for s in (*sizes, *strides, meta["storage_offset"])]
        if name in self.recorded:
            layout = self._recorded_layout(name, len(layout))
        dims, device = len(sizes), read_named_device(meta["device"])
        t = TensorType(tuple(layout[:dims]), dtype, device, tuple(layout[dims:-1]), layout[-1])
        grad = meta["requires_grad"] is True and (dtype.is_floating_point or dtype.is_complex)
        return t, None, grad

    def _recorded_layout(self, name: str, count: int) -> list[Size]:
        """Sizes, strides and offset as the graph had them, before more became known of them."""
        given = self.recorded[name]
        found = [self.symbols.expression(s) if isinstance(s, str) else s for s in given]
        if len(found) != count or not all(s.__class__ in (int, Expr) for s in found):
            raise LoadError(f"our own record of {name!r} is damaged")
        return found

    def _number(self, kind: str, name: Any) -> Any:
        if name in self.recorded:
            return wrap(self.symbols.expression(self.recorded[name]))
        return self.symbols.number(self.given[SYMBOLIC[kind]][name])

    # ---- nodes

    def _node(self, given: Json) -> None:
        if self.literals and given.get("name") in self.literals:
            self._literal_operand(given["name"])
            return
        callee, args, kwargs = self.read_call(given)
        outputs = given["outputs"]
        several = len(outputs) > 1 or (len(outputs) == 1 and "as_tensors" in outputs[0])
        if callee.is_higher_order:
            several = given.get("is_hop_single_tensor_return") is not True
            restore_sequences(callee.target.name(), args, self.children)
        read = self._several if several else self._one
        read(given, callee, tuple(args), kwargs, self.reading.read_meta(given["metadata"]))

    def _literal_operand(self, name: str) -> None:
        """A number among operands, for which the file has a node: here it is itself."""
        value = self.literals[name]
        if value.__class__ not in (int, float) or name in self.values:
            raise LoadError(f"our own record of {name!r} is damaged")
        self.values[name] = value

    def _one(
        self, given: Json, callee: Callee, args: tuple[Any, ...], kwargs: dict[str, Any], meta: Any
    ) -> None:
        outputs, target = given["outputs"], callee.target
        if not outputs or "as_none" in outputs[0]:
            name = self._name(given.get("name") or base_name(target))
            self._call_function(name, target, args, kwargs, meta, None)
            return
        name, value = self._result(outputs[0])
        node = self._call_function(self._name(name), target, args, kwargs, meta, value)
        self._define(name, node)

    def _call_function(
        self, name: str, target: Any, args: tuple[Any, ...], kwargs: Any, meta: Any, value: Any
    ) -> fx.Node:
        node = self._append("call_function", name, target, args, kwargs)
        node.meta.update(meta, val=value)  # in place: see `ir/graph/rewriter.py`
        return node

    def _result(self, output: Json) -> tuple[str, Any]:
        kind, given = read_kind(output)
        if kind == "as_tensor":
            return given["name"], self._tensor(given["name"])
        if kind in SYMBOLIC:
            return given["as_name"], self._number(kind, given["as_name"])
        raise LoadError(f"it returns {kind}, which no operator does")

    def _several(
        self, given: Json, callee: Callee, args: tuple[Any, ...], kwargs: dict[str, Any], meta: Any
    ) -> None:
        """An operator that returns several values, each of which has a name in the file."""
        name = self._name(given.get("name") or base_name(callee.target))
        node = self._append("call_function", name, callee.target, args, kwargs)
        outputs = given["outputs"]
        unread = f"{given.get('name')}{UNREAD}"
        if callee.returns_one and len(outputs) == 1:
            value: Any = self._items(node, outputs[0]["as_tensors"], unread, meta)
        else:
            value = tuple([self._item(node, i, o, unread, meta) for i, o in enumerate(outputs)])
        node.meta.update(meta, val=value)

    def _items(self, node: fx.Node, outputs: Any, unread: str, meta: Any) -> list[Any]:
        return [self._item(node, i, {"as_tensor": o}, unread, meta) for i, o in enumerate(outputs)]

    def _item(self, node: fx.Node, index: int, output: Json, unread: str, meta: Any) -> Any:
        """Make the node that reads one of several results, unless its name says that nobody
        does."""
        if "as_none" in output:
            return None
        unread = f"{unread}_{index}"
        if "as_tensors" in output:
            items = output["as_tensors"]
            if all(o["name"] == f"{unread}_{i}" for i, o in enumerate(items)):
                return [self._tensor(o["name"]) for o in items]
            name = self._name(self._of_list())
            whole = self._append("call_function", name, operator.getitem, (node, index), {})
            values = self._items(whole, items, unread, meta)
            whole.meta.update(meta, val=values)
            return values
        name, value = self._result(output)
        if name == unread:
            return value
        own = self.reading.read_meta(self.items[name]) if name in self.items else meta
        item = self._call_function(
            self._name(name), operator.getitem, (node, index), {}, own, value
        )
        self._define(name, item)
        return value

    # ---- what arguments are made of

    def read_delegate(self, given: Json) -> fx.Node:
        """The node that reads a delegate, which is made when the first one is read."""
        number, path = given["number"], given["path"]
        if path.__class__ is not str or not path.isidentifier() or path in ATTRIBUTES:
            raise LoadError(f"{path!r} is no name of a delegate")
        delegates = self.reading.delegates
        if number not in delegates:
            delegates[number] = None
            with self.reading.here(f"the delegate {path!r}"):
                delegates[number] = self._read_delegate(number)
        found = delegates[number]
        if found is None or self.children.setdefault(path, found) is not found:
            raise LoadError(f"the delegate {path!r} is in itself, or is two")
        return self._append("get_attr", self._name(given["name"]), path, (), {})

    def _read_delegate(self, number: Any) -> LoweredBackendModule:
        listed = self.beside["delegates"]
        if number.__class__ is not int or not 0 <= number < len(listed):
            raise LoadError(f"there is no delegate {number!r}")
        given, title = listed[number], f"delegate_{number}"
        signature = read_signature(given["signature"])
        inner = _GraphReader(
            self.reading, self.mode, self.symbols, self.beside, self.depth + 1, title
        )
        made = inner.graph(given["graph"], [s.arg.name for s in signature.input_specs])
        calls = read_call_graph(given["module_call_graph"], signature)
        _rename(signature, calls, inner.renamed)
        dialect = read_name(given["dialect"])
        program = ExportedProgram(made, signature, {}, {}, {}, calls, dialect=dialect)
        return read_delegate(given, number, program, self.reading.held)

    def read_graph(self, given: Json) -> fx.Node:
        wanted = given["name"]
        again = self.read.get(wanted) if wanted.__class__ is str else None
        if again is not None and again[0] == given["graph"]:  # files repeat what two calls share
            name = self._name(f"{again[1]}_{len(self.names)}")
            return self._append("get_attr", name, again[1], (), {})
        name = self._name(name_of_attribute(wanted))
        self.read[given["name"]] = (given["graph"], name)
        title, depth = f"{self.title}.{given['name']}", self.depth + 1
        reader = _GraphReader(self.reading, self.mode, self.symbols, self.beside, depth, title)
        self.children[name] = reader.graph(given["graph"])
        return self._append("get_attr", name, name, (), {})


def _show(value: Any) -> Any:
    return value.meta.get("val") if isinstance(value, fx.Node) else value
