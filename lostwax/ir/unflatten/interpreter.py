"""Modules that run a graph node by node, and the calls between them.

A module of an unflattened program has a graph for each way in which it is called. Its parent's
graph calls it like any module, so that hooks run and another module can replace it. Must not know
how the graphs were made.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree
from torch.utils._pytree import TreeSpec

from lostwax.errors import InputStructureError, SwapError
from lostwax.identity import ByIdentity
from lostwax.ir.pytree import leaf_text, sketch, sketch_spec
from lostwax.ir.run.calling import Convention
from lostwax.ir.run.control import find_runner
from lostwax.ir.run.held import find_held
from lostwax.ir.run.write_back import SHOWN, layout_free_target
from lostwax.ir.text import graph_text, source_text


class Container(nn.Module):
    """A module that only holds others, as `nn.ModuleList` and `nn.ModuleDict` do: `m[0]`,
    `m["a"]`, `m.a`."""

    def __init__(self) -> None:
        super().__init__()
        self._constants: dict[str, Any] = {}
        """Tensors and objects that are no state. They are not attributes, since the original may
        use names that our classes use (`graph`, `bodies`)."""

    def __getattr__(self, name: str) -> Any:
        constants = self.__dict__.get("_constants", {})
        return constants[name] if name in constants else super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        constants = self.__dict__.get("_constants", {})
        if name in constants:
            constants[name] = value
        else:
            super().__setattr__(name, value)

    def __getitem__(self, key: int | str) -> nn.Module:
        if isinstance(key, int) and key < 0:
            key += len(self)
        found = self._modules.get(str(key))
        if found is None:
            raise (IndexError if isinstance(key, int) else KeyError)(key)
        return found

    def __setitem__(self, key: int | str, module: nn.Module) -> None:
        self[key]  # it is there
        self._modules[str(key)] = module

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(m for m in self._modules.values() if m is not None)

    def __bool__(self) -> bool:
        return True

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> Container:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, value in self._constants.items():
            if isinstance(value, torch.Tensor):
                self._constants[name] = value.to(fn(value).device)
        return self


@dataclass(eq=False)
class ModuleBody:
    """What a module does in one or several of its calls.

    The last `extras` inputs of the graph are values that the original's call does not take; what it
    returns after its `results` are values that the original's call does not return.
    """

    graph: Graph
    extras: int
    results: int
    convention: Convention | None = None
    """The structure of the original's arguments and results; None if they are flat."""
    reads_views: bool = False
    """As the program says."""
    dead: dict[Node, list[Node]] = field(default_factory=dict)
    """For each node, the values that nothing reads after it."""

    def __post_init__(self) -> None:
        seen: set[Node] = set()
        for node in reversed(self.graph.nodes):
            last = [n for n in dict.fromkeys(node.all_input_nodes) if n not in seen]
            self.dead[node] = last
            seen.update(last)

    @property
    def names(self) -> list[str]:
        """The names of the arguments."""
        names = [n.name for n in self.graph.nodes if n.op == "placeholder"]
        return names[: len(names) - self.extras]

    def with_graph(self, graph: Graph) -> ModuleBody:
        """Return the same body with another graph."""
        return ModuleBody(graph, self.extras, self.results, self.convention, self.reads_views)

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleBody:
        return self


class GraphsModule(Container):
    """A module with graphs of its own."""

    bodies: dict[str, ModuleBody]
    """The bodies by the names of the calls; equal bodies are one object."""

    if TYPE_CHECKING:
        graph: Graph
        """The graph of its first call."""
        arg_names: list[str]
        """The names of the arguments of its first call."""

    _type_name: str | None = None

    def type_name(self) -> str | None:
        """The class of the original's module, `torch.nn.modules.linear.Linear`; None if no node of
        the program says it."""
        return self._type_name

    def finalize(self) -> None:
        """Take note of changes: to be called after a graph of this module was edited."""
        made = ByIdentity[ModuleBody, ModuleBody]()
        for name, body in self.bodies.items():
            if body not in made:
                made[body] = body.with_graph(body.graph)
            self.bodies[name] = made[body]

    def print_readable(
        self,
        print_output: bool = True,
        include_stride: bool = False,
        include_device: bool = False,
        colored: bool = False,
    ) -> str:
        """Print and return the graphs as Python, with those of the submodules nested. The text is
        the same with strides, devices and colours asked for: it has neither."""
        text = self._readable_text()
        if print_output:
            sys.stdout.write(text + "\n")
        return text

    def _readable_text(self) -> str:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        """Find `graph` and `arg_names`; state with one of these names comes first."""
        if name in ("graph", "arg_names"):
            for held in (self._parameters, self._buffers, self._modules, self._constants):
                if name in held:
                    return held[name]
            first = next(iter(self.bodies.values()))
            return first.graph if name == "graph" else first.names
        return super().__getattr__(name)


class InterpreterModule(GraphsModule):
    """A submodule of the original. Its parameters, buffers and submodules keep their names.

    With a preserved call signature it takes and returns what the original does; else it takes the
    values that it reads, in the order in which it reads them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bodies = {}

    def forward(self, /, *args: Any, **kwargs: Any) -> Any:
        order = _ORDER.get()
        if order is None or order.module is not self:
            body = next(iter(self.bodies.values()))
            self._check_alone(body)
            return self._run(body, args, kwargs, ())[0]
        _ORDER.set(None)
        result, order.given = self._run(order.body, args, kwargs, order.extras)
        return result

    def _run(
        self, body: ModuleBody, args: tuple[Any, ...], kwargs: dict[str, Any], extras: Sequence[Any]
    ) -> tuple[Any, Sequence[Any]]:
        if body.convention is not None:
            inputs = body.convention.bind(args, kwargs)
            values = run_body(self, body, [*inputs, *extras])
            results = body.convention.rebuild(values[: body.results])
        else:
            values = run_body(self, body, [*_flat_arguments(body, args, kwargs), *extras])
            results = values[0] if len(values) == 1 else values or None
        return results, values[body.results :]

    def _check_alone(self, body: ModuleBody) -> None:
        if body.extras:
            needed = [n.name for n in body.graph.nodes if n.op == "placeholder"][-body.extras :]
            raise SwapError(
                f"this module cannot run by itself: it also reads {', '.join(needed)}, which are "
                "no arguments of it and are computed outside.\n"
                "  instead: call the whole unflattened module"
            )

    def _readable_text(self) -> str:
        return readable_text(self, type(self).__name__)


class InterpreterModuleDispatcher(InterpreterModule):
    """A submodule whose calls have different graphs: which one runs, the call says."""

    def call_modules(self) -> list[InterpreterModule]:
        """A module for each call, in order, with its graph alone. They share what they hold."""
        found = []
        for name, body in self.bodies.items():
            made = InterpreterModule()
            made.__dict__.update(self.__dict__, bodies={name: body})
            found.append(made)
        return found


_HELD = ("_parameters", "_buffers", "_non_persistent_buffers_set", "_modules", "_constants")


class OtherForm(InterpreterModule):
    """What a submodule does in other calls than its first one, "norm@1". It holds what the
    submodule holds, which a state dict has once, under the submodule's name."""

    def __init__(self, parent: nn.Module, name: str) -> None:
        super().__init__()
        self.__dict__.update(_beside=parent._modules, _name=name)  # no submodules of this one
        original = self._beside[name]
        self.__dict__.update((each, getattr(original, each)) for each in _HELD)

    @property
    def _is_covered(self) -> bool:
        """Is the submodule still there? Another one may have been put in its place."""
        return getattr(self._beside.get(self._name), "_parameters", None) is self._parameters

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        if "destination" in kwargs and self._is_covered:  # a module around it asks
            return kwargs["destination"]
        return super().state_dict(*args, **kwargs)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        if self._is_covered:  # the submodule comes first, and has loaded it
            for name, value in super().state_dict(keep_vars=True).items():
                state_dict.setdefault(f"{prefix}{name}", value)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _flat_arguments(
    body: ModuleBody, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[Any]:
    """Return the arguments in the order of the graph's inputs, given by position or by name."""
    names = body.names
    rest = names[len(args) :]
    if len(args) > len(names) or set(rest) != set(kwargs):
        given = ", ".join([leaf_text(a) for a in args] + [f"{k}=..." for k in kwargs])
        raise InputStructureError(
            f"this module takes {len(names)} values, {', '.join(names)}\n  called with: ({given})"
        )
    return [*args, *(kwargs[name] for name in rest)]


# ----------------------------------------------------------------------------------------- running


@dataclass
class _CallOrder:
    """What a parent tells the module that it calls, beside the arguments."""

    module: nn.Module
    body: ModuleBody
    extras: Sequence[Any]
    given: Sequence[Any] | None = None
    """The values beside the results; None if the module did not run its own graph."""


EXTRAS = "_extras"
"""The keyword of a node that calls a module under which it passes the extra inputs."""
_ORDER: ContextVar[_CallOrder | None] = ContextVar("order", default=None)
_ROOT: ContextVar[nn.Module | None] = ContextVar("root", default=None)


@dataclass(frozen=True)
class CallTarget:
    """Which body of which module a node calls (in its `meta["calling"]`)."""

    path: str
    """The path of the module from the root."""
    relative: str | None
    """The path from the module whose graph this is; None if it does not lie below it."""
    name: str
    more: tuple[str, ...]
    """The names of the values beside the results."""


@dataclass(frozen=True)
class _Missing:
    """Stands for a value that the original module computed and the module that replaced it does
    not."""

    path: str
    value: str

    def refuse(self, reader: str) -> SwapError:
        return SwapError(
            f"{reader} reads {self.value}, which the original module {self.path!r} computes "
            "beside its results; the module in its place does not give it.\n"
            "  why: the original also wrote to a tensor, or another module read its inner values\n"
            f"  instead: exchange a larger module, one that {reader} is a part of"
        )


_FRAMES = 12
"""How many frames of Python's stack each level of nested modules may take here. (In the original it
takes four.)"""
_NESTED = 40
"""The depth of nesting up to which the stack need not grow."""
_ROOM = threading.Lock()
_LIMITS: list[int] = []


@contextmanager
def allow_depth(depth: int) -> Iterator[None]:
    """Inside, modules may be nested this deep. Python has one recursion limit for all threads, so
    the last one that leaves restores it."""
    if depth <= _NESTED:
        yield
        return
    with _ROOM:
        _LIMITS.append(sys.getrecursionlimit())
        sys.setrecursionlimit(_LIMITS[-1] + depth * _FRAMES)
    try:
        yield
    finally:
        with _ROOM:
            least = _LIMITS[0]
            _LIMITS.pop()
            if not _LIMITS:
                sys.setrecursionlimit(least)


@contextmanager
def use_root(root: nn.Module) -> Iterator[None]:
    """Inside, a module that calls one outside of itself finds it below this root."""
    token = _ROOT.set(root)
    try:
        yield
    finally:
        _ROOT.reset(token)


def run_body(module: nn.Module, body: ModuleBody, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Run the graph of a body on these inputs; return its results."""
    values: dict[Node, Any] = {}
    given = iter(inputs)
    for node in body.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(given)
            continue
        if node.op == "output":
            return _read(node.args[0], values, "the caller")  # type: ignore[no-any-return]
        try:
            values[node] = _run_node(module, node, values, body.reads_views)
        except Exception as error:
            _note_node(error, node)
            raise
        for dead in body.dead[node]:
            values.pop(dead, None)
    raise AssertionError("a graph without an output")


def _run_node(module: nn.Module, node: Node, values: dict[Node, Any], reads_views: bool) -> Any:
    if node.op == "get_attr":
        return find_by_path(module, str(node.target))
    calling = node.meta.get("calling")
    if calling is not None:
        return _call_module(module, node, calling, values)
    args = _read(node.args, values, node.name)
    kwargs = _read(node.kwargs, values, node.name)
    target: Any = find_runner(node) or node.target
    try:
        return target(*args, **kwargs)
    except RuntimeError:
        other = layout_free_target(node.target, reads_views)
        if other is None or SHOWN in node.meta:
            raise
    return other(*args, **kwargs)  # the strides did not allow the operator itself


def _read(arg: Any, values: dict[Node, Any], reader: str) -> Any:
    """Replace nodes by their values in an argument, and FX's containers by plain ones."""
    if isinstance(arg, Node):
        found = values[arg]
        if isinstance(found, _Missing):
            raise found.refuse(reader)
        return found
    if isinstance(arg, list):
        return [_read(a, values, reader) for a in arg]
    if isinstance(arg, tuple):
        return tuple([_read(a, values, reader) for a in arg])
    if isinstance(arg, dict):
        return {k: _read(a, values, reader) for k, a in arg.items()}
    return arg


def _call_module(
    module: nn.Module, node: Node, calling: CallTarget, values: dict[Node, Any]
) -> Any:
    called = _find_called(module, calling)
    args = _read(node.args, values, node.name)
    kwargs = {k: _read(v, values, node.name) for k, v in node.kwargs.items() if k != EXTRAS}
    if not isinstance(called, InterpreterModule) or calling.name not in called.bodies:
        result = called(*args, **kwargs)
        more: Sequence[Any] = [_Missing(calling.path, name) for name in calling.more]
        return (result, more) if calling.more else result
    extras = _read(node.kwargs.get(EXTRAS, ()), values, node.name)
    order = _CallOrder(called, called.bodies[calling.name], extras)
    token = _ORDER.set(order)
    try:
        result = called(*args, **kwargs)
    finally:
        _ORDER.reset(token)
    if not calling.more:
        return result
    return result, order.given or [_Missing(calling.path, name) for name in calling.more]


def _find_called(module: nn.Module, calling: CallTarget) -> nn.Module:
    if calling.relative is not None:
        return find_by_path(module, calling.relative)  # type: ignore[no-any-return]
    root = _ROOT.get()
    if root is None:
        raise SwapError(
            f"this module calls {calling.path!r}, which is not a part of it.\n"
            "  instead: call the whole unflattened module"
        )
    return find_by_path(root, calling.path)  # type: ignore[no-any-return]


def find_by_path(module: nn.Module, path: str) -> Any:
    """Find what a module holds under a path of the original; it comes before attributes of our own
    classes."""
    found: Any = module
    for part in path.split(".") if path else ():
        found = _find_part(found, part)
    return found


def _find_part(module: Any, name: str) -> Any:
    if isinstance(module, Container) and name in module._constants:
        return module._constants[name]
    return find_held(module, name)


def _note_node(error: Exception, node: Node) -> None:
    """Add a note that says which node failed, once: the innermost graph is the most precise."""
    source = source_text(node)
    if not any(note.startswith("while running ") for note in getattr(error, "__notes__", ())):
        error.add_note(f"while running {node.name}{f' ({source})' if source else ''}")


# -------------------------------------------------------------------------- structures in the graph


@dataclass(frozen=True)
class BuildStructure:
    """A function that builds a structure that FX has no notation for from its leaves."""

    spec: TreeSpec

    def __call__(self, *leaves: Any) -> Any:
        return pytree.tree_unflatten(leaves, self.spec)


@dataclass(frozen=True)
class TakeLeaves:
    """A function that takes the leaves of what a module returns."""

    spec: TreeSpec
    path: str

    def __call__(self, result: Any) -> list[Any]:
        leaves, spec = pytree.tree_flatten(result)
        if spec != self.spec:
            expected = sketch_spec(self.spec, iter(["*"] * self.spec.num_leaves))
            raise InputStructureError(
                f"the module {self.path!r} returned another structure than the original\n"
                f"  the original: {expected}\n  returned:     {sketch(result)}",
                self.path,
            )
        return leaves


# --------------------------------------------------------------------------------------------- text


def readable_text(module: nn.Module, name: str) -> str:
    """Write each graph of a module and of its submodules as a class, nested as the modules are."""
    lines: list[str] = []
    bodies = getattr(module, "bodies", {})
    distinct = {id(body): (call, body) for call, body in reversed(bodies.items())}
    for i, (_, body) in enumerate(reversed(distinct.values())):
        lines += graph_text(body.graph, name if i == 0 else f"{name}_{i}").split("\n")
    if not lines:
        lines = [f"class {name}(torch.nn.Module):", "    pass"]
    for child_name, child in module.named_children():
        title = child_name if child_name.isidentifier() else f"_{child_name}".replace("@", "_")
        if isinstance(child, Container):
            text = readable_text(child, title)
        elif isinstance(child, GraphModule):  # a sub-graph
            text = graph_text(child.graph, title)
        else:
            text = ""
        if text:
            lines += ["", *(f"    {line}" if line else "" for line in text.split("\n"))]
    return "\n".join(lines)
