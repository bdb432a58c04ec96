"""Cuts a program's graph into the bodies of its modules.

Each call of a submodule gets a graph of its own. It reads state below the module as attributes, and
gets all else that it reads as inputs; sizes are computed from values that it has. A buffer is
written in the call that computes its new value, if nobody reads the old one later. Must not make
modules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import getitem
from typing import Any

from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._pytree import TreeSpec

from lostwax.classes import SYMBOLIC
from lostwax.errors import VerificationError
from lostwax.fake import FakeTensor
from lostwax.fake.symbolic.node import unwrap
from lostwax.ir.data import ModuleCallSignature
from lostwax.ir.graph.effects import memory_chain, view_base
from lostwax.ir.graph.lookup import find_attribute
from lostwax.ir.graph.writer import graph_border
from lostwax.ir.program import ExportedProgram
from lostwax.ir.pytree import mapping_keys
from lostwax.ir.run.calling import Convention
from lostwax.ir.run.write_back import before_write, graph_with_writes, is_rebound
from lostwax.ir.signature import ConstantArgument, CustomObjArgument, InputKind, OutputKind
from lostwax.ir.text import type_text
from lostwax.ir.unflatten.call_tree import TreeCall, build_call_tree
from lostwax.ir.unflatten.interpreter import (
    EXTRAS,
    BuildStructure,
    CallTarget,
    ModuleBody,
    TakeLeaves,
)
from lostwax.ops.registry import aten, has_trait
from lostwax.ops.traits import Trait
from lostwax.sym import Expr


class ModuleBodies:
    """The bodies of all modules of a program."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        sunk = find_inner_writes(program)
        written = {i for i, _ in sunk.values()}
        self.graph, copies = graph_with_writes(program, written, {}, {})
        specs = enumerate(program.graph_signature.output_specs)
        self.rebound = [s for i, s in specs if is_rebound(s) and i not in written]
        """The outputs that the root returns after the results."""
        self.nodes = {n.name: copies[n] for n in program.graph.nodes if n in copies}
        self.state = self._state(copies)
        self.numbers = free_numbers(self.graph)
        self.tree, self.owners = build_call_tree(self.graph, self.numbers)
        self.writes: dict[str, list[tuple[Node, Node]]] = {}
        """By the name of a call: the buffers that are written at its end, with their values."""
        outputs: Any = program.graph.output_node().args[0]
        for target, (index, name) in sunk.items():
            value = outputs[index]
            self.writes.setdefault(name, []).append((copies[target], copies[value]))
        self.written = {target for pairs in self.writes.values() for target, _ in pairs}
        self.signatures = {e.fqn: e.signature for e in program.module_call_graph if e.signature}
        self.escaping = self._find_escaping()
        self.subgraphs: list[tuple[str, str, GraphModule]] = []
        """The sub-graphs that bodies read: the path of the module, the name there, the graph."""
        paths = [entry.fqn for entry in program.module_call_graph]
        held = (*program.state_dict, *program.constants, *paths)
        self.taken = {n.rsplit(".", i)[0] for n in held for i in range(n.count(".") + 1)}
        """The paths of all that the original's modules hold."""
        self.of: dict[str, dict[str, ModuleBody]] = {}
        """By the path of a module, or of another form of one ("norm@1"): its bodies, by the names
        of its calls."""
        self._distinct: dict[Any, ModuleBody] = {}
        self._forms: dict[Any, str] = {}
        self.root = _BodyMaker(self, self.tree).make_body()

    def _state(self, copies: dict[Node, Node]) -> dict[Node, list[str]]:
        """The inputs that are state, each with all its names."""
        names = _state_names(self.program)
        found = {}
        placeholders = [n for n in self.program.graph.nodes if n.op == "placeholder"]
        specs = self.program.graph_signature.input_specs
        for node, spec in zip(placeholders, specs, strict=True):
            if spec.kind is not InputKind.USER_INPUT and spec.target is not None:
                others = names.get(spec.target, [])
                found[copies[node]] = [spec.target, *(n for n in others if n != spec.target)]
        return found

    def _find_escaping(self) -> dict[TreeCall, dict[Node, None]]:
        """The values of each call that are read outside of it, in order."""
        found: dict[TreeCall, dict[Node, None]] = {call: {} for call in self.tree.calls()}

        def note_use(node: Node, at: TreeCall) -> None:
            outside = set(at.chain())
            for call in self.owners[node].chain() if node in self.owners else ():
                if call not in outside:
                    found[call][node] = None

        for node in self.owners:
            for user in node.users:
                if user not in self.numbers:
                    note_use(node, self.owners.get(user, self.tree))
        for call in self.tree.calls():
            for _, value in self.writes.get(call.name, ()):
                note_use(value, call)
            signature = self.signatures.get(call.name)
            if call.parent is not None and signature is not None:
                for node in self.named_nodes(signature.inputs, call):
                    note_use(node, call.parent)
                for node in self.named_nodes(signature.outputs, call):
                    note_use(node, call)
        return found

    def named_nodes(self, args: Sequence[Any], call: TreeCall) -> list[Node]:
        """The nodes that arguments of a signature name."""
        return [self.node(a, call) for a in args if not isinstance(a, ConstantArgument)]

    def node(self, arg: Any, call: TreeCall) -> Node:
        found = self.nodes.get(arg.name)
        if found is None:
            raise VerificationError(
                f"the call signature of {call.name!r} speaks of {arg.name!r}, which the graph does "
                "not have: a pass has removed or renamed it"
            )
        return found

    def share_body(self, key: Any, body: ModuleBody) -> ModuleBody:
        """Return the first body that does the same."""
        return self._distinct.setdefault(key, body)

    def add_body(self, call: TreeCall, body: ModuleBody) -> str:
        """Note what a call does; return the path of the module that does it. Whose call signature
        is kept is one module. Else calls that compute other things are modules of their own, each
        with the name of the first call that does it."""
        is_other = body.convention is None and call.path in self.of
        key = call.path, None if body.convention is not None else _list_operators(body)
        path = self._forms.setdefault(key, call.name if is_other else call.path)
        self.of.setdefault(path, {})[call.name] = body
        return path


# ------------------------------------------------------------------------------ a part of the graph


class _BodyMaker:
    """Makes the graph of one call."""

    def __init__(self, bodies: ModuleBodies, call: TreeCall) -> None:
        self.bodies = bodies
        self.call = call
        self.signature = bodies.signatures.get(call.name) if call.parent is not None else None
        self.graph = Graph()
        self.local: dict[Node, Node] = {}
        """Nodes of the whole graph → nodes of this graph."""
        self.inputs: list[Node] = []
        """The values that are passed in beside the arguments of a signature."""
        self.attributes: dict[Node, Node] = {}
        """The nodes that read state, before any write."""
        self.last: Node = graph_border(self.graph)
        """The last placeholder."""
        self.head: Node | None = None
        """The last node that reads state; these nodes follow the placeholders."""

    def make_body(self) -> ModuleBody:
        convention = self._make_placeholders()
        for item in self.call.items:
            if isinstance(item, TreeCall):
                self._emit_call(item)
            else:
                self.local[item] = self.graph.node_copy(item, self.value)
        for target, value in self.bodies.writes.get(self.call.name, ()):
            self.value(target)
            write = (self.attributes[target], self.value(value))
            self.graph.call_function(aten.copy_.default, write)
        results, more = self._results()
        self.graph.output(tuple(self._leaf(r) for r in (*results, *more)))
        extras = len(self.inputs) if self.signature is not None else 0
        self.more = more
        reads_views = self.bodies.program.reads_views
        return ModuleBody(self.graph, extras, len(results), convention, reads_views)

    def _make_placeholders(self) -> Convention | None:
        bodies, signature = self.bodies, self.signature
        if self.call.parent is None:
            for node in bodies.graph.nodes:
                if node.op == "placeholder" and node not in bodies.state:
                    self.local[node] = self._placeholder(node)
            return None
        if signature is None:
            return None
        captured = []
        for i, arg in enumerate(signature.inputs):
            if isinstance(arg, ConstantArgument):
                self.last = _placeholder_after(self.graph, self.last, f"constant_{i}")
                captured.append(CustomObjArgument("", repr(arg.value)))
            else:
                node = bodies.node(arg, self.call)
                made = self._placeholder(node)
                self.local.setdefault(node, made)
                captured.append(CustomObjArgument("", type_text(node.meta.get("val"))))
        return Convention(
            signature.in_spec, signature.out_spec, captured, signature.forward_arg_names
        )

    def _placeholder(self, node: Node) -> Node:
        self.last = _placeholder_after(self.graph, self.last, node.name)
        self.last.meta = dict(node.meta)
        return self.last

    def _results(self) -> tuple[list[Any], list[Node]]:
        """Return the results, and the other values that are read outside."""
        bodies, call = self.bodies, self.call
        if call.parent is None:
            return list(bodies.graph.output_node().args[0]), []  # type: ignore[arg-type]
        escaping = list(bodies.escaping[call])
        if self.signature is None:
            return escaping, []
        results = [
            a.value if isinstance(a, ConstantArgument) else bodies.node(a, call)
            for a in self.signature.outputs
        ]
        return results, [n for n in escaping if n not in results]

    def _leaf(self, value: Any) -> Any:
        return self.value(value) if isinstance(value, Node) else value

    # ---- values

    def value(self, node: Node) -> Node:
        """Return the node here for a value of the whole graph. If it is not known yet, it is read
        from state, computed as a size, or passed in."""
        found = self.local.get(node)
        if found is None:
            found = self.local[node] = self._fetch(node)
        return found

    def _fetch(self, node: Node) -> Node:
        if node in self.bodies.state:
            name = self._own_name(node)
            if name is not None:
                return self._read_state(node, name)
        elif node.op == "get_attr":
            return self._read_subgraph(node)
        elif isinstance(node.meta.get("val"), SYMBOLIC):
            size = self._compute_size(node)
            if size is not None:
                return size
        assert self.call.parent is not None, f"{node.name} is computed after it is read"
        self.inputs.append(node)
        return self._placeholder(node)

    def _own_name(self, node: Node) -> str | None:
        """The name of state relative to this module; None if it does not lie below it."""
        prefix = f"{self.call.path}." if self.call.path else ""
        names = self.bodies.state[node]
        return next((n[len(prefix) :] for n in names if n.startswith(prefix)), None)

    def _read_state(self, node: Node, name: str) -> Node:
        with self.graph.inserting_after(self.head or self.last):
            read = self.head = self.graph.create_node("get_attr", name, name=node.name)
        read.meta = dict(node.meta)
        self.attributes[node] = read
        if node in self.bodies.written:
            with self.graph.inserting_after(read):
                self.head = self.graph.call_function(before_write, (read,))
            self.head.meta = dict(node.meta)
        return self.head

    def _read_subgraph(self, node: Node) -> Node:
        owner = self.bodies.program.graph_module
        found = find_attribute(owner, str(node.target))
        prefix = f"{self.call.path}." if self.call.path else ""
        name = str(node.target).replace(".", "_")
        while f"{prefix}{name}" in self.bodies.taken:  # the original has something of this name
            name += "_"
        self.bodies.subgraphs.append((self.call.path, name, found))
        return self.graph.create_node("get_attr", name, name=node.name)

    def _compute_size(self, node: Node) -> Node | None:
        """Compute a symbolic number from values that this graph has; None if that is impossible."""
        if self._is_at_hand(node):
            return self.graph.node_copy(node, self.value)
        expr = unwrap(node.meta["val"])
        for known, here in list(self.local.items()):
            fake = known.meta.get("val")
            if isinstance(expr, Expr) and isinstance(fake, FakeTensor):
                for dim, size in enumerate(fake.fake_type.size):
                    if size == expr:
                        made = self.graph.call_function(aten.sym_size.int, (here, dim))
                        made.meta = dict(node.meta)
                        return made
        return None

    def _is_at_hand(self, node: Node) -> bool:
        if node in self.local:
            return True
        if node in self.bodies.state:
            return self._own_name(node) is not None
        is_number = isinstance(node.meta.get("val"), SYMBOLIC)
        return (
            is_number
            and node.op == "call_function"
            and all(map(self._is_at_hand, node.all_input_nodes))
        )

    # ---- calls

    def _emit_call(self, call: TreeCall) -> None:
        part = _BodyMaker(self.bodies, call)
        body = part.make_body()
        body = self.bodies.share_body(_body_key(call, body, self.bodies.of), body)
        path = self.bodies.add_body(call, body)
        prefix = f"{self.call.path}." if self.call.path else ""
        is_inside = call.path.startswith(prefix) and call.path != self.call.path
        extras = tuple(self.value(n) for n in part.inputs)
        args: tuple[Any, ...] = extras
        kwargs: dict[str, Any] = {}
        if part.signature is not None:
            args, kwargs = self._build_arguments(part.signature, call)
            kwargs |= {EXTRAS: extras} if extras else {}
        node = self.graph.create_node(
            "call_module", path.removeprefix(prefix), args, kwargs, call.path.replace(".", "_")
        )
        node.meta["calling"] = CallTarget(
            path,
            path.removeprefix(prefix) if is_inside else None,
            call.name,
            tuple(n.name for n in part.more),
        )
        self._take_results(node, part)

    def _build_arguments(
        self, signature: ModuleCallSignature, call: TreeCall
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        leaves = iter(
            [
                a.value
                if isinstance(a, ConstantArgument)
                else self.value(self.bodies.node(a, call))
                for a in signature.inputs
            ]
        )
        positional, by_name = signature.in_spec.children()
        args = tuple(self._build_tree(spec, leaves) for spec in positional.children())
        named = zip(mapping_keys(by_name), by_name.children(), strict=True)
        return args, {name: self._build_tree(spec, leaves) for name, spec in named}

    def _build_tree(self, spec: TreeSpec, leaves: Any) -> Any:
        """Build a structure of nodes: as FX writes it, or with a call if FX has no notation."""
        if spec.is_leaf():
            return next(leaves)
        if spec.type not in (tuple, list, dict):
            parts = tuple(next(leaves) for _ in range(spec.num_leaves))
            made = BuildStructure(spec)
            return self.graph.create_node("call_function", made, parts, name="structured")
        children = [self._build_tree(child, leaves) for child in spec.children()]
        if spec.type is dict:
            return dict(zip(mapping_keys(spec), children, strict=True))
        return tuple(children) if spec.type is tuple else children

    def _take_results(self, node: Node, part: _BodyMaker) -> None:
        """Take the results of a call apart into nodes."""
        results, more = part._results()
        if more:
            node.meta["val"] = None
            given = self.graph.call_function(getitem, (node, 1))
            for i, each in enumerate(more):
                self._take_item(each, given, i)
            node = self.graph.call_function(getitem, (node, 0))
        signature = part.signature
        if signature is None and len(results) == 1:
            self.local[results[0]] = node
            node.meta["val"] = results[0].meta.get("val")
            return
        if signature is not None:
            if signature.out_spec.is_leaf():
                node.meta["val"] = getattr(results[0], "meta", {}).get("val")
                if results[0] in self.bodies.escaping[part.call]:
                    self.local[results[0]] = node
                return
            leaves = TakeLeaves(signature.out_spec, part.call.path)
            node = self.graph.create_node("call_function", leaves, (node,), name="leaves")
        for i, each in enumerate(results):
            if each in self.bodies.escaping[part.call] and each not in self.local:
                self._take_item(each, node, i)

    def _take_item(self, value: Node, of: Node, index: int) -> None:
        made = self.graph.create_node("call_function", getitem, (of, index), name=value.name)
        made.meta = dict(value.meta)
        self.local[value] = made


def _placeholder_after(graph: Graph, node: Node, name: str) -> Node:
    """Insert a new placeholder after the last one."""
    with graph.inserting_after(node):
        return graph.placeholder(name)


class _Ref(int):
    def __repr__(self) -> str:
        return f"%{int(self)}"


def _body_key(call: TreeCall, body: ModuleBody, of: dict[str, dict[str, ModuleBody]]) -> Any:
    """Return a key that is equal for two bodies of a module that do the same."""
    places = {n: _Ref(i) for i, n in enumerate(body.graph.nodes)}
    lines = []
    for node in body.graph.nodes:
        calling = node.meta.get("calling")
        target: Any = "" if node.op == "placeholder" else node.target
        if calling is not None:
            target = (calling.path, id(of[calling.path][calling.name]))
        args = map_arg((node.args, node.kwargs), places.__getitem__)
        lines.append((node.op, target, repr(args)))
    convention = body.convention
    structure = None if convention is None else (repr(convention.in_spec), convention.names)
    return (call.path, tuple(lines), body.extras, body.results, repr(structure))


def _list_operators(body: ModuleBody) -> str:
    """What a body computes, whatever of it is passed in, kept in buffers and handed on."""
    calls = [n for n in body.graph.nodes if n.op.startswith("call") and n.target not in _PASSING]
    return repr([(n.target, map_arg((n.args, n.kwargs), lambda _: "")) for n in calls])


_PASSING = (getitem, before_write, aten.copy_.default)


# ------------------------------------------------------------------------------- numbers and writes


def free_numbers(graph: Graph) -> set[Node]:
    """The symbolic numbers that are computed from sizes of the graph's inputs. They belong to no
    module: each module computes those that it needs."""
    found: set[Node] = set()
    for node in graph.nodes:
        if (
            node.op == "call_function"
            and isinstance(node.meta.get("val"), SYMBOLIC)
            and all(n.op == "placeholder" or n in found for n in node.all_input_nodes)
            and not has_trait(node.target, Trait.READS_NUMBER)
        ):
            found.add(node)
    return found


def find_inner_writes(program: ExportedProgram) -> dict[Node, tuple[int, str]]:
    """Find the buffers that can be written inside a call: input → index of the output that writes
    it, and name of the call. Nothing may read the old value later, and no result may share memory
    with the new one."""
    graph, signature = program.graph, program.graph_signature
    _, owners = build_call_tree(graph, free_numbers(graph))
    places = {n: i for i, n in enumerate(graph.nodes)}
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    specs = zip(placeholders, signature.input_specs, strict=True)
    buffers = {s.target: n for n, s in specs if s.kind is InputKind.BUFFER}
    values: Sequence[Any] = graph.output_node().args[0]  # type: ignore[assignment]
    names = _state_names(program)
    shown = Counter(n for value in values if isinstance(value, Node) for n in memory_chain(value))
    found = {}
    for i, (spec, value) in enumerate(zip(signature.output_specs, values, strict=True)):
        if spec.kind is OutputKind.BUFFER_MUTATION and value in owners and view_base(value) is None:
            target = buffers[spec.target]
            call = _innermost_call(owners[value], names[spec.target or ""])
            if (
                call is not None
                and shown[value] == 1
                and not _is_read_after(target, call.last, places)
            ):
                found[target] = (i, call.name)
    return found


def _state_names(program: ExportedProgram) -> dict[str, list[str]]:
    """All names of the same state, by each of them."""
    held = {**program.constants, **program.state_dict}
    by_id: dict[int, list[str]] = {}
    for name, value in held.items():
        by_id.setdefault(id(value), []).append(name)
    return {name: by_id[id(value)] for name, value in held.items()}


def _innermost_call(call: TreeCall, names: Iterable[str]) -> TreeCall | None:
    """The innermost enclosing call whose module contains the state."""
    for each in reversed(call.chain()[1:]):
        if any(name.startswith(f"{each.path}.") for name in names):
            return each
    return None


def _is_read_after(target: Node, end: int, places: dict[Node, int]) -> bool:
    """Is the input, or a view of it, read after this index in the graph?"""
    todo = [target]
    while todo:
        node = todo.pop()
        for user in node.users:
            if places[user] > end:
                return True
            if view_base(user) is node:
                todo.append(user)
    return False
