"""The graph of a program's module, for users to read and to edit: state is read by `get_attr`, the
arguments and the result have their structure, and writes stand at the end.

It is made when somebody asks for it. Must not know how a program is run.
"""

from __future__ import annotations

import copy
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType
from typing import Any, NoReturn, Self

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo

from lostwax.identity import ByIdentity
from lostwax.ir.data import Program
from lostwax.ir.graph.effects import memory_chain
from lostwax.ir.run.in_place_form import write_in_place
from lostwax.ir.run.write_back import (
    GRADIENTS,
    RESULTS,
    is_rebound,
    replace_dtypes_and_devices,
    write_to_parameter,
)
from lostwax.ir.signature import InputKind
from lostwax.late_imports import late_import
from lostwax.ops.registry import aten


class UnliftedModule(GraphModule):
    """A module that runs a program, and is a GraphModule to those who ask.

    Its `graph` is made when it is first asked for. Until `recompile()` is called the program runs;
    then the graph does, on arguments that are checked as before."""

    _runner: Any
    _constants: dict[str, Any]
    _holds_constants = True
    """Says, to those who do not know the class, that there is such a table."""
    _code: str
    _edited: Callable[..., Any] | None = None
    """What runs since `recompile()`."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Make the object: its class is its own already, as that of each GraphModule is."""
        return object.__new__(cls)

    def __init__(self) -> None:
        nn.Module.__init__(self)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name not in _OF_GRAPHS and not self._shows_constant(name):
                raise
        self._unlift()
        return self.__dict__[name] if name in self.__dict__ else super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. If it shows a constant of the program, that is another one from then
        on."""
        shows_constant = self._shows_constant(name)
        if shows_constant:
            self._unlift()
        super().__setattr__(name, value)
        if shows_constant:
            new = {key: value for key, shown in self._constant_names.items() if shown == name}
            self._keep(_constants=self._constants | new)

    def _shows_constant(self, name: str) -> bool:
        """Does the attribute show a constant of the program, or will it, once there is a graph?"""
        names = self.__dict__.get("_constant_names")
        if names is None:
            constants = self.__dict__.get("_constants", {})
            names = name_constants(self._is_taken, constants) if constants else {}
        return name in names.values()

    def __str__(self) -> str:
        try:
            return super().__str__()
        except AttributeError:  # it has no graph
            return repr(self)

    @property
    def graph(self) -> Graph:
        """The graph, with state read by `get_attr`; edit it, and call `recompile()`. (There is none
        if state has the name of something that a GraphModule has: then this is that state.)"""
        return self._graph

    @graph.setter
    def graph(self, graph: Graph) -> None:
        self._unlift()
        graph.owning_module = self
        self._keep(_graph=graph)
        self.recompile()

    @property
    def code(self) -> str:
        """The code of the graph."""
        return self._code

    def __prepare_scriptable__(self) -> NoReturn:
        """torch.jit.script asks for it."""
        raise TypeError(
            "the module of a program cannot be scripted\n"
            "  why: it runs the program, which needs no Python of yours\n"
            "  instead: lostwax.save(program, path), which torch.export.load reads; or script the "
            "module that was exported"
        )

    def recompile(self) -> Any:
        """Run the graph, as it is now edited, from here on."""
        code, edited = compile_graph(self.graph)
        self._keep(_edited=edited, **code)

    def _unlift(self) -> None:
        with _UNLIFTING:
            if "_graph" not in self.__dict__:
                self._make_graph()

    def _make_graph(self) -> None:
        runner = self._runner
        program, run = runner.program, runner.graph_module
        _warn_quantizer(program)
        for name in (*program.state_dict, *program.graph_signature.buffers):
            first = name.partition(".")[0]
            if hasattr(UnliftedModule, first):
                raise AttributeError(
                    f"the module of the program has no graph: its {name} is called like "
                    f"GraphModule.{first}\n  instead: rename it, or edit program.graph by a pass"
                )
        names = name_constants(self._is_taken, self._constants)
        graph = unlift_graph(program, run, names, list(runner.convention.names))
        write_in_place(graph)
        graph.owning_module = self
        _show_values(program, graph)
        children = {name: child for name, child in run.named_children() if name not in names}
        held = {attribute: self._constants[name] for name, attribute in names.items()}
        info = graph._codegen.pytree_info  # type: ignore[attr-defined]
        hooks: dict[str, Any] = {name: [] for name in _HOOKS}
        self._keep(
            _graph=graph,
            _in_spec=info.in_spec,
            _out_spec=info.out_spec,
            _constant_names=names,
            _tracer_cls=None,
            _tracer_extras={},
            meta={**run.meta},
            **hooks,
            **children,
            **held,
            **compile_graph(graph)[0],
        )

    def _is_taken(self, name: str) -> bool:
        if hasattr(UnliftedModule, name) or name in self.__dict__ or name in _OF_GRAPHS:
            return True
        return any(name in self.__dict__[held] for held in HOLDS_STATE)

    def _run_edited(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the edited graph, on arguments for which the program holds."""
        runner = self._runner
        inputs = runner.bind(args, kwargs)
        if self._has_state():
            runner.check_state(self, inputs)
        assert self._edited is not None
        if runner.door is not None:
            args, kwargs = runner.door.take_shards(args, kwargs)
        named = runner.convention.arguments(args, kwargs)
        count = runner.convention.positional
        by_name = dict(zip(runner.convention.names[count:], named[count:], strict=True))
        return runner.hold(partial(self._edited, self, **by_name), *named[:count])

    def _has_state(self) -> bool:
        """Is all of the program's state there? An edit may have removed what nobody reads."""
        held = {*dict(self.named_parameters(remove_duplicate=False))}
        held |= {*dict(self.named_buffers(remove_duplicate=False))}
        return held >= {s.target for s in self._runner.program.graph_signature.input_specs
                        if s.kind in (InputKind.PARAMETER, InputKind.BUFFER)}  # fmt: skip

    def __copy__(self) -> Self:
        made = type(self).__new__(type(self))
        made._keep(**self.__dict__)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made._keep(**copy.deepcopy(self.__getstate__(), memo))  # type: ignore[no-untyped-call]
        if "_graph" in made.__dict__:
            made._graph.owning_module = made
        return made

    def _convert_graph(
        self,
        casts: Mapping[torch.dtype, torch.dtype],
        moves: Mapping[torch.device, torch.device],
    ) -> None:
        """The module has other dtypes or is elsewhere: so are the graph and its constants."""
        if "_graph" not in self.__dict__:
            return
        names = self._constant_names
        self._keep(**{names[name]: value for name, value in self._constants.items()})
        replace_dtypes_and_devices(self._graph, moves, casts)
        if self._edited is not None:
            self.recompile()

    def _keep(self, **own: Any) -> None:
        """Set attributes of our own that are no state. (`setattr` would write to state of the same
        name.)"""
        self.__dict__.update(own)


_UNLIFTING = threading.RLock()
"""Threads that ask a module for its graph get the same one."""
HOLDS_STATE = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
"""Where a module holds its state."""
_HOOKS = ("_replace_hooks", "_create_node_hooks", "_erase_node_hooks", "_deepcopy_hooks")
_CODE = ("_code", "_lineno_map", "_prologue_start")
_OF_GRAPHS = frozenset(("_graph", *_CODE, "_in_spec", "_out_spec", "meta", *_HOOKS))
"""What a module has once its graph was asked for."""


def unlift_graph(
    program: Program, run: GraphModule, names: Mapping[str, str], arguments: list[str]
) -> Graph:
    """Return the graph that runs, `run`, with `get_attr` in the place of what it is given beside
    the user's arguments. `names` are the attributes that hold constants; `arguments` the names of
    the arguments."""
    specs = iter(program.graph_signature.input_specs)
    graph, new = Graph(), dict[Node, Any]()
    state: dict[str | None, Node] = {}
    for node in run.graph.nodes:
        if node.op == "output":
            break
        if node.op != "placeholder":
            new[node] = graph.node_copy(node, new.__getitem__)
            continue
        spec = next(specs)
        if spec.kind is InputKind.USER_INPUT:
            new[node] = graph.node_copy(node)
        elif spec.kind is InputKind.TOKEN or spec.target is None:
            raise AttributeError("the module of a program with tokens for effects has no graph")
        else:
            held = names.get(spec.target, spec.target)
            new[node] = state[spec.target] = graph.create_node("get_attr", held, name=node.name)
            new[node].meta.update(node.meta)
    results = [new[v] if isinstance(v, Node) else v for v in run.graph.output_node().args[0]]  # type: ignore[union-attr]
    outputs = program.graph_signature.output_specs
    written = [state[s.target] for s in outputs if is_rebound(s)]
    if written:
        values = [graph.call_function(aten.clone.default, (v,)) for v in results[-len(written) :]]
        results = [_save_result(graph, v, written) for v in results[: -len(written)]]
        for target, value in zip(written, values, strict=True):
            graph.call_function(write_to_parameter, (target, value))
    made = graph.output(tuple(results))
    made.meta.update(run.graph.output_node().meta)
    root = program.root_signature
    assert root is not None
    is_joint = any(s.kind in GRADIENTS for s in outputs if s.kind in RESULTS)
    out_spec = None if is_joint else root.out_spec
    graph.set_codegen(_PyTreeCodeGen(_PyTreeInfo(arguments, root.in_spec, out_spec)))
    return graph


def _save_result(graph: Graph, value: Any, written: list[Node]) -> Any:
    """Return a copy of a result that lies in the memory of state which is about to be written."""
    if isinstance(value, Node) and not set(written).isdisjoint(memory_chain(value)):
        return graph.call_function(aten.clone.default, (value,))
    return value


def _show_values(program: Program, graph: Graph) -> None:
    """Give the nodes values that are fakes of torch's, for which its tools look. Where it captures
    the module it makes its own."""
    is_captured = torch.compiler.is_exporting() or torch.compiler.is_compiling()
    values = {} if is_captured else late_import("show_values")(program)
    shown = ByIdentity[Any, Any]()  # not by name: FX gives some nodes of a copy another one
    for node in program.graph.nodes:
        if node.name in values:
            shown[node.meta["val"]] = values[node.name]
    for node in graph.nodes:
        value = shown.get(node.meta.pop("val", None))
        if value is not None:
            node.meta["val"] = value


def name_constants(taken: Callable[[str], bool], constants: Mapping[str, Any]) -> dict[str, str]:
    """Choose attributes for a program's constants: their names, as far as these are free."""
    chosen: dict[str, str] = {}
    for name in constants:
        attribute = name.replace(".", "_")
        while taken(attribute) or attribute in chosen.values():
            attribute = f"_{attribute}"
        chosen[name] = attribute
    return chosen


_PARTS = {aten.convolution.default, aten.addmm.default, aten.mm.default}
_WHOLE = {aten.linear.default, aten.conv1d.default, aten.conv2d.default, aten.conv3d.default}


def _warn_quantizer(program: Program) -> None:
    """torchao's PT2E quantizers look for layers that are whole, and say nothing if there is
    none. Here is where they ask for a graph."""
    asking, level = _skip_frames(sys._getframe(1), "lostwax")
    _, above = _skip_frames(asking, "torchao")
    if not asking.f_globals.get("__name__", "").startswith("torchao.quantization.pt2e"):
        return
    targets = {node.target for node in program.graph.nodes}
    if targets & _PARTS and not targets & _WHOLE:
        found = ", ".join(sorted(str(target) for target in targets & _PARTS))
        warnings.warn(
            f"nothing of this program may be quantized: quantizers look for linear and conv2d, and "
            f'it has {found}\n  instead: lostwax.export(..., keep="composite")',
            stacklevel=level + above + 2,
        )


def _skip_frames(frame: FrameType, package: str) -> tuple[FrameType, int]:
    """The nearest frame that is not of a package, and how far up it is."""
    count = 0
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame, count = frame.f_back, count + 1
    return frame, count


def compile_graph(graph: Graph) -> tuple[dict[str, Any], Callable[..., Any]]:
    """Return the code of a graph, under the names that a GraphModule has for it, and the function
    that it defines: of the module and the arguments."""
    made: Any = graph.python_code(root_module="self")
    names = dict(made.globals)
    exec(compile(made.src, "<eval of an edited graph>", "exec"), names)
    held = {"_code": made.src, "_lineno_map": made._lineno_map}
    return held | {"_prologue_start": made._prologue_start}, names["forward"]
