"""A program of ours, made directly of torch's `ExportedProgram`: its graphs, signature, ranges and
conditions are read, nothing of it is written, traced or run.

What is read is the program that a file of it would give; but what files have no form for and ours
has, is taken. Must not change torch's program; state is passed by reference.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx.immutable_collections import immutable_dict, immutable_list

from lostwax.classes import SYMBOLIC
from lostwax.errors import LoadError
from lostwax.fake import FakeTensor, FakeTensorMode
from lostwax.fake.symbolic.node import wrap
from lostwax.fake.tensor import new_fake
from lostwax.interop.graphs import AS_NUMBER, keep_notes
from lostwax.interop.numbers import DEFINITIONS
from lostwax.ir import signature as kinds
from lostwax.ir.data import ModuleCallEntry, ModuleCallSignature
from lostwax.ir.graph.graph_module import make_graph_module
from lostwax.ir.graph.lookup import find_attribute
from lostwax.ir.graph.writer import NO_KWARGS, GraphWriter
from lostwax.ir.program import ExportedProgram
from lostwax.ir.ranges import Limits, limits_by_name
from lostwax.ir.signature import (
    ArgumentSpec,
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
)
from lostwax.ops.registry import aten
from lostwax.pt2.graph import metadata
from lostwax.pt2.graph.decode import Reading, assemble
from lostwax.pt2.graph.names import choose_name, name_of_attribute, restore_sequences
from lostwax.pt2.graph.signature import complete_root
from lostwax.pt2.graph.symbols import SymbolReader
from lostwax.pt2.graph.targets import check_callable, unspeakable
from lostwax.pt2.schema import DTYPES
from lostwax.sym import Expr, ShapeEnv, Size
from lostwax.types import TensorType

if TYPE_CHECKING:
    import torch.export


def read_program(program: torch.export.ExportedProgram) -> ExportedProgram:
    """Our program of one of torch's, with the same state."""
    reading = Reading("a torch.export.ExportedProgram")
    with reading.here("the signature"):
        signature = _read_signature(program.graph_signature)
    ranges = limits_by_name(program.range_constraints)
    values = _ReadValues(program.graph, ranges)
    graph = _GraphReading(reading, values, program.graph_module)
    made = graph.convert()
    with reading.here("the module call graph"):
        calls = [_read_call(entry, signature) for entry in program.module_call_graph]
    with reading.here("the state"):
        state, constants = (
            {name: values.state(value) for name, value in held.items()}
            for held in (program.state_dict, program.constants)
        )
    plain = {
        "range_constraints": {n: {"min_val": lo, "max_val": hi} for n, (lo, hi) in ranges.items()},
        "guards_code": program._guards_code,
        "verifiers": [program.dialect],
    }
    with reading.here("its parts"):
        ours = assemble(
            *(reading, plain, values.symbols, made, graph.renamed),
            *(signature, calls, state, constants),
        )
    ours.example_inputs = values.example(program.example_inputs)
    return ours


# --------------------------------------------------------------------------------------- signature


def _read_signature(given: Any) -> ExportGraphSignature:
    return ExportGraphSignature(
        [_read_input(spec) for spec in given.input_specs],
        [_read_output(spec) for spec in given.output_specs],
    )


def _read_input(spec: Any) -> InputSpec:
    kind, arg = InputKind[spec.kind.name], _read_argument(spec.arg)
    if kind is InputKind.CUSTOM_OBJ:
        raise LoadError(
            f"the input {arg.name!r} is an object of the class {spec.arg.class_fqn!r}; a program "
            "of lostwax holds tensors and numbers"
        )
    persistent = spec.persistent is True if kind is InputKind.BUFFER else None
    return InputSpec(kind, arg, spec.target, persistent)


def _read_output(spec: Any) -> OutputSpec:
    arg = _read_argument(spec.arg)
    if isinstance(arg, ConstantArgument):
        arg.name = ""
    return OutputSpec(OutputKind[spec.kind.name], arg, spec.target)


def _read_argument(arg: Any) -> ArgumentSpec:
    """An argument of torch's as ours, whose classes have the same names and fields."""
    cls = getattr(kinds, type(arg).__name__, None)
    if cls is None:
        raise LoadError(f"{arg!r:.200} is no kind of argument")
    return cls(**{name: getattr(arg, name) for name in cls.__dataclass_fields__})  # type: ignore[no-any-return]


def _read_call(entry: Any, signature: ExportGraphSignature) -> ModuleCallEntry:
    call = entry.signature
    if call is None:
        return ModuleCallEntry(entry.fqn)
    names = call.forward_arg_names
    made = ModuleCallSignature(
        [_read_argument(arg) for arg in call.inputs],
        [_read_argument(arg) for arg in call.outputs],
        call.in_spec,
        call.out_spec,
        None if names is None else list(names),
    )
    return complete_root(ModuleCallEntry(entry.fqn, made), signature)


# ------------------------------------------------------------------------------------------ values


_OF_DATA = re.compile(r"u\d+", re.ASCII)


class _ReadValues:
    """Values of one program: torch's fakes and symbolic numbers as ours. Each distinct expression
    is read once."""

    def __init__(self, graph: fx.Graph, ranges: dict[str, Limits]) -> None:
        self._env = ShapeEnv()
        self._mode = FakeTensorMode(shape_env=self._env)
        envs = _find_environments(graph)
        defined = [each for env in envs for each in getattr(env, DEFINITIONS, ())]
        # Symbols of data are made in the order of their numbers, which texts show.
        numbers = sorted(int(name[1:]) for name in ranges if _OF_DATA.fullmatch(name))
        texts = [f"Symbol('u{number}', integer=True)" for number in numbers]
        self.symbols = SymbolReader(
            self._env, ranges, partial(_find_hints, envs), {}, defined, texts
        )
        self._read: dict[Any, Any] = {}
        self._sources: dict[Any, Any] = {}

    def value(self, value: Any) -> Any:
        """What a node gives: a tensor, a number, None, or several of them."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, SYMBOLIC):
            return wrap(self._expression(value))
        if isinstance(value, (list, tuple)):
            made = [self.value(each) for each in value]
            return made if isinstance(value, list) else tuple(made)
        if value is None or isinstance(value, _CONSTANTS):
            return value
        raise LoadError(f"it gives {value!r:.200}, which is neither a tensor nor a number")

    def state(self, value: Any) -> Any:
        """A tensor of the state: one of torch's fakes becomes one of ours."""
        from torch._subclasses import FakeTensor as PeerTensor

        if not isinstance(value, PeerTensor):
            return value
        made = self._tensor(value)
        if isinstance(value, torch.nn.Parameter):
            made._is_param = True
        return made

    def example(self, given: Any) -> Any:
        """The arguments of the example: torch's fakes become ours."""
        from torch._subclasses import FakeTensor as PeerTensor

        if not any(isinstance(leaf, PeerTensor) for leaf in pytree.tree_leaves(given)):
            return given
        return pytree.tree_map_only(PeerTensor, self._tensor, given)

    def _tensor(self, value: torch.Tensor) -> FakeTensor:
        if value.layout is not torch.strided or value.dtype not in _DTYPES:
            raise LoadError(f"a tensor of {value.dtype}, {value.layout}, has no type in lostwax")
        dtype, offset = value.dtype, self._size(value.storage_offset())
        t = TensorType(
            tuple([self._size(s) for s in value.size()]),
            dtype,
            value.device,
            tuple([self._size(s) for s in value.stride()]),
            offset,
        )
        grad = value.requires_grad and (dtype.is_floating_point or dtype.is_complex)
        return new_fake(self._mode, t, requires_grad=grad)

    def _size(self, value: Any) -> Size:
        if value.__class__ is int:
            return value
        found = self._expression(value)
        if not isinstance(found, (int, Expr)):
            raise LoadError(f"{found} is no size")
        return found

    def _expression(self, value: Any) -> Any:
        expression = value.node.expr
        found = self._read.get(expression)
        if found is None:
            from sympy import srepr  # type: ignore[import-untyped]

            found = self._read[expression] = self.symbols.expression(srepr(expression))
        return found

    def metadata(self, meta: dict[str, Any]) -> dict[str, Any]:
        """The entries of `node.meta` that we know, in our form; missing ones are empty."""
        stack = meta.get("nn_module_stack") or {}
        sources = meta.get("source_fn_stack") or ()
        out: dict[str, Any] = {
            "stack_trace": meta.get("stack_trace") or "",
            "nn_module_stack": {k: (p, metadata.type_text(t)) for k, (p, t) in stack.items()},
            "source_fn_stack": [(name, self._source(function)) for name, function in sources],
        }
        if out["nn_module_stack"] == metadata.NO_MODULE:
            out["nn_module_stack"] = {}
        if meta.get("torch_fn"):
            out["torch_fn"] = tuple(meta["torch_fn"])
        if meta.get("custom"):
            out["custom"] = dict(meta["custom"])
        if meta.get("from_node"):
            out["from_node_text"] = json.dumps([each.to_dict() for each in meta["from_node"]])
        out.update({key: meta[key] for key in metadata.OWN if meta.get(key)})
        return out

    def _source(self, function: Any) -> Any:
        """A function that a node comes from, if it is one that files can name; else its name."""
        found = self._sources.get(function)
        if found is None:
            text = metadata.function_text(function)
            found = self._sources[function] = metadata.function_named(text)
        return found


_CONSTANTS = (
    int,
    float,
    complex,
    str,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
_DTYPES = frozenset(DTYPES.values())


def _find_environments(graph: fx.Graph) -> list[Any]:
    modes = (getattr(node.meta.get("val"), "fake_mode", None) for node in graph.nodes)
    envs = [mode.shape_env for mode in dict.fromkeys(modes) if mode is not None]
    return [env for env in envs if env is not None]


def _find_hints(envs: list[Any]) -> dict[str, int]:
    """The example's value of each symbol."""
    known = [env.backed_var_to_val for env in envs]
    return {str(symbol): int(value) for each in known for symbol, value in each.items()}


# ------------------------------------------------------------------------------------------ graphs


class _GraphReading:
    """One graph that is being read."""

    def __init__(
        self, reading: Reading, values: _ReadValues, module: fx.GraphModule, title: str = "main"
    ) -> None:
        self._reading, self._values, self._module, self._title = reading, values, module, title
        self._writer = GraphWriter()
        self._nodes: dict[fx.Node, Any] = {}
        """What became of each node: a node, or a number."""
        self._names: set[str] = set()
        self._children: dict[str, fx.GraphModule] = {}
        self._paths: dict[str, str] = {}
        self.renamed: dict[str, str] = {}
        """Names that generated code could not use."""

    def convert(self) -> fx.GraphModule:
        for node in self._module.graph.nodes:
            try:  # one frame for all: what is being read is only needed when it cannot be
                self._add(node)
            except Exception:
                with self._reading.here(f"the node {node.name!r} of graph {self._title!r}"):
                    raise
        made = make_graph_module(self._children, self._writer.finish())
        made.meta.update(keep_notes(self._module))
        return made

    def _add(self, node: fx.Node) -> None:
        if node.op == "call_function":
            self._call(node)
        elif node.op == "placeholder":
            self._append(node, (), ()).meta["val"] = self._values.value(node.meta["val"])
        elif node.op == "get_attr":
            self._get_subgraph(node)
        elif node.op == "output":
            self._output(node)
        else:
            raise LoadError(f"a program has no nodes that are {node.op!r}")

    def _output(self, node: fx.Node) -> None:
        inputs: dict[fx.Node, None] = {}
        given = self._map(node.args[0], inputs)
        if isinstance(given, fx.Node):
            self._append(node, (given,), inputs).meta["val"] = _show(given)
        else:
            self._append(node, (tuple(given),), inputs).meta["val"] = tuple(map(_show, given))

    def _get_subgraph(self, node: fx.Node) -> None:
        """Its name is the one that a file's reader gives it."""
        is_read = str(node.target) in self._paths
        path = self._subgraph(str(node.target))
        name = choose_name(f"{path}_{len(self._names)}" if is_read else path, self._names)
        self._nodes[node] = self._writer.append_ready("get_attr", name, path, (), (), NO_KWARGS)

    def _subgraph(self, path: str) -> str:
        """Read the sub-graph that lies at a path, once, and return its name here."""
        name = self._paths.get(path)
        if name is None:
            child = find_attribute(self._module, path)
            if not isinstance(child, fx.GraphModule):
                raise LoadError(
                    f"{path} is a {type(child).__name__}; only graphs are read as attributes, and "
                    "tensors are inputs"
                )
            name = name_of_attribute(path.replace(".", "_"))
            while name in self._children:
                name += "_"
            self._paths[path] = name
            inner = _GraphReading(self._reading, self._values, child, f"{self._title}.{path}")
            self._children[name] = inner.convert()
        return name

    # ---- calls

    def _call(self, node: fx.Node) -> None:
        target: Any = node.target
        if target is operator.add and type(node.args[0]) in (int, float) and node.args[1] == 0:
            self._nodes[node] = node.args[0]  # a number for which `to_torch` had to make a node
            return
        if node.name.startswith(AS_NUMBER) and _makes_number(node):
            (truth,) = node.all_input_nodes
            self._nodes[node] = self._nodes[truth]  # a node of `to_torch`, too
            return
        if "val" not in node.meta and not _gives_nothing(target):
            raise LoadError("nothing is known of its result: it has no meta['val']")
        inputs: dict[fx.Node, None] = {}
        args = [self._map(each, inputs) for each in node.args]
        value = self._values.value(node.meta.get("val"))
        if isinstance(target, OpOverload):
            unnamed = unspeakable(target)
            if unnamed is not None and args[unnamed[0] :] == [unnamed[1]]:
                args.pop()  # written out for torch's reader
        elif isinstance(target, HigherOrderOperator):
            restore_sequences(target.name(), args, self._children)
            value = tuple(value) if isinstance(value, list) else value
        else:
            check_callable(target)
        kwargs = self._map(node.kwargs, inputs) if node.kwargs else NO_KWARGS
        made = self._append(node, tuple(args), inputs, kwargs)
        made.meta = {**self._values.metadata(node.meta), "val": value}

    # ---- nodes

    def _append(
        self,
        node: fx.Node,
        args: tuple[Any, ...],
        inputs: Iterable[fx.Node],
        kwargs: Any = NO_KWARGS,
    ) -> fx.Node:
        name = choose_name(node.name, self._names)
        if name != node.name:
            self.renamed[node.name] = name
        target = name if node.op == "placeholder" else node.target
        made = self._writer.append_ready(node.op, name, target, args, inputs, kwargs)
        self._nodes[node] = made
        return made

    def _map(self, value: Any, inputs: dict[fx.Node, None]) -> Any:
        """An argument. Its sequences are lists, as files have them."""
        if isinstance(value, fx.Node):
            made = self._nodes[value]
            if isinstance(made, fx.Node):
                inputs[made] = None
            return made
        if isinstance(value, (list, tuple)):
            return immutable_list([self._map(v, inputs) for v in value])
        if isinstance(value, dict):
            return immutable_dict({k: self._map(v, inputs) for k, v in value.items()})
        if value is None or isinstance(value, (*_CONSTANTS, OpOverload, HigherOrderOperator)):
            return value
        if isinstance(value, slice):
            return slice(*(self._map(v, inputs) for v in (value.start, value.stop, value.step)))
        raise LoadError(f"its argument {value!r:.200} is neither a node nor a constant")


def _makes_number(node: fx.Node) -> bool:
    """Is it a cast of a truth that is read as a number, and by nothing else?"""
    return (
        node.target is aten._to_copy.default
        and node.all_input_nodes[0].meta["val"].dtype is torch.bool
        and node.kwargs == {"dtype": torch.int64}
        and all(user.target is aten._local_scalar_dense.default for user in node.users)
    )


def _gives_nothing(target: Any) -> bool:
    return isinstance(target, OpOverload) and not target._schema.returns


def _show(value: Any) -> Any:
    return value.meta.get("val") if isinstance(value, fx.Node) else value
