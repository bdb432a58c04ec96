"""A draft: a private copy of a program that a pass may edit, and how it becomes a program again.

A pass edits the graph with FX alone. When the draft is finished, all else is brought up to date:
the signature, the types of changed nodes, where new nodes come from, the names in the calls of
modules. Weights are shared with the original. Must not change the program that it is a draft of,
and must not verify: `pipeline.py` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from lostwax.errors import PassError
from lostwax.fake import FakeTensor
from lostwax.fake.tensor import storage_key
from lostwax.ir.data import ModuleCallEntry, ModuleCallSignature
from lostwax.ir.graph.copying import copy_module
from lostwax.ir.graph.lookup import find_attribute, graph_modules
from lostwax.ir.graph.outline import outline_modules
from lostwax.ir.graph.retype import (
    NodeForm,
    fill_provenance,
    is_foreign,
    mode_of,
    node_forms,
    retype,
)
from lostwax.ir.graph.rewriter import argument_of
from lostwax.ir.graph.writer import insert_node
from lostwax.ir.program import ExportedProgram
from lostwax.ir.signature import (
    INPUT_ORDER,
    ArgumentSpec,
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)

_STATE = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_RESULTS = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
_WRITTEN = (
    OutputKind.BUFFER_MUTATION,
    OutputKind.PARAMETER_MUTATION,
    OutputKind.GRADIENT_TO_PARAMETER,
)


class Draft:
    """A program while it is edited.

    `graph` and `graph_module` are FX's and are edited with FX's own methods. `inputs` says of each
    placeholder what it stands for; `state_dict` and `constants` may be filled and emptied.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        """The program that the draft was made of; read only."""
        self.graph_module, nodes = copy_module(program.graph_module)
        self._graph = self.graph_module.graph
        self.state_dict = dict(program.state_dict)
        self.constants = dict(program.constants)
        self.example_inputs = program.example_inputs
        self.guards = tuple(program.guards)
        signature = program.graph_signature
        placeholders = [nodes[n] for n in program.graph.nodes if n.op == "placeholder"]
        self.inputs: dict[Node, InputSpec] = dict(
            zip(placeholders, signature.input_specs, strict=True)
        )
        self.outputs: list[OutputSpec] = list(signature.output_specs)
        self.mode = mode_of(program.graph)
        _refuse_foreign(placeholders)
        self._given = list(self.inputs.items())
        self._results: list[Any] = list(self.graph.output_node().args[0])  # type: ignore[arg-type]
        self._forms: dict[Node, NodeForm] = node_forms(m.graph for m in self.graph_modules())
        self._origins: dict[str, dict[str, Any]] = {}
        """By the name of a new node, the `meta` of the node that it replaced."""
        self._renamed: dict[str, str] = {}
        self.graph_module._register_replace_node_hook(self._note_replaced)

    @property
    def graph(self) -> Graph:
        """The graph that is being changed."""
        return self.graph_module.graph

    def graph_modules(self) -> Iterable[GraphModule]:
        """The graph module and its sub-graphs, however deep."""
        return graph_modules(self.graph_module)

    def _note_replaced(self, old: Node, new: str, user: Node) -> None:
        self._origins.setdefault(new, old.meta)
        self._renamed[old.name] = new

    # ----------------------------------------------------------------------------------- state

    def tensor(self, node: Node) -> torch.Tensor | None:
        """Return the real tensor of a placeholder of state; None if it has none."""
        spec = self.inputs.get(node)
        if spec is None or spec.kind not in _STATE or spec.target is None:
            return None
        value = self.state_dict.get(spec.target, self.constants.get(spec.target))
        return value if isinstance(value, torch.Tensor) else None

    def written(self) -> set[Node]:
        """The placeholders of state that the program writes, or whose gradient it returns (so that
        an optimizer writes them), and those that share memory with them."""
        names = {s.target for s in self.outputs if s.kind in _WRITTEN}
        tensors = {node: self.tensor(node) for node in self.inputs}
        keys = {
            storage_key(t)
            for n, t in tensors.items()
            if t is not None and self.inputs[n].target in names
        }
        return {n for n, t in tensors.items() if t is not None and storage_key(t) in keys}

    def add(
        self, kind: InputKind, target: str, tensor: torch.Tensor, name: str | None = None
    ) -> Node:
        """Add a placeholder for a tensor; `target`, its name in the state, is made unique."""
        taken = self.state_dict.keys() | self.constants.keys()
        target = _free_name(target, taken)
        store = self.constants if kind is InputKind.CONSTANT_TENSOR else self.state_dict
        store[target] = tensor
        letter = {InputKind.PARAMETER: "p", InputKind.BUFFER: "b"}.get(kind, "c")
        name = name or f"{letter}_{''.join(c if c.isalnum() else '_' for c in target)}"
        with self._before_later(kind):
            node = self.graph.placeholder(name)
        node.target = node.name
        node.meta["val"] = self.fake(tensor)
        persistent = True if kind is InputKind.BUFFER else None
        self.inputs[node] = InputSpec(kind, TensorArgument(node.name), target, persistent)
        return node

    def _before_later(self, kind: InputKind) -> Any:
        """Insert the next node after all placeholders of this kind."""
        height = INPUT_ORDER.index(kind)
        for node in self.graph.nodes:
            spec = self.inputs.get(node)
            if spec is None or INPUT_ORDER.index(spec.kind) > height:
                return self.graph.inserting_before(node)
        raise AssertionError("a graph without an output node")

    def fake(self, tensor: torch.Tensor) -> FakeTensor:
        """Make the fake of a real tensor, for this program."""
        with self.mode.pause_recording():
            return self.mode.from_tensor(tensor, static_shapes=True)

    # ----------------------------------------------------------------------------------- edits

    def retype(self) -> set[Node]:
        """Bring the recorded types up to date now; return the nodes whose type has changed.
        (`finish` does it, too.)"""
        with self.typing():
            return retype(self.graph, self.mode, self._forms)

    @contextmanager
    def typing(self) -> Iterator[None]:
        """Inside, operators may be evaluated on fakes, under the conditions of this program alone.
        New conditions on sizes become conditions of the program."""
        env = self.mode.shape_env
        with torch.no_grad(), self.mode.pause_recording():
            if env is None:
                yield
                return
            with env.trial() as new:
                for guard in self.guards:
                    env.absorb(guard.cond)
                yield
        for guard in new:
            if any(s.unbacked for s in guard.cond.symbols()):
                raise PassError(
                    f"the result needs `{guard.cond}`, which depends on data, and nothing checks it"
                )
        self.guards = (*self.guards, *new)

    def adopt(self, module: GraphModule) -> None:
        """Continue with the graph module that a pass returned instead of editing its argument.
        Inputs are recognised by their names, else by their order."""
        if module is self.graph_module:
            return
        for node in self.graph.nodes:  # a node with an old node's name has its provenance
            self._origins.setdefault(node.name, node.meta)
        self.graph_module, self._graph = module, module.graph
        self._recognise_inputs(self._given)

    def _recognise_inputs(self, before: list[tuple[Node, InputSpec]]) -> None:
        """Say of the placeholders of another graph what they stand for, by those of the last."""
        by_name = {n.name: (n, spec) for n, spec in before}
        nodes = self.graph.find_nodes(op="placeholder")
        if not all(n.name in by_name for n in nodes) and len(nodes) == len(by_name):
            by_name = {n.name: known for n, known in zip(nodes, before, strict=True)}
        self.inputs = {}
        for node in nodes:
            if node.name in by_name:
                was, self.inputs[node] = by_name[node.name]
                if "val" not in node.meta:
                    node.meta.update(was.meta)

    # --------------------------------------------------------------------------------- the end

    def finish(self) -> ExportedProgram:
        """Return the edited program. The one that it was a draft of is as before."""
        if self.graph is not self._graph:  # FX's tools sort nodes into a new one
            placeholders = self._graph.find_nodes(op="placeholder")
            self._recognise_inputs([(n, self.inputs[n]) for n in placeholders if n in self.inputs])
        outline_modules(self.graph_module)
        self._lift_attributes()
        self._return_lost_inputs()
        self.retype()
        for module in self.graph_modules():
            fill_provenance(module.graph, self._origins)
            module._replace_hooks.clear()
            module.recompile()
        signature = ExportGraphSignature(list(self._input_specs()), self._output_specs())
        return replace(
            self.program,
            graph_module=self.graph_module,
            graph_signature=signature,
            state_dict=self.state_dict,
            constants=self.constants,
            module_call_graph=self._renew_calls(signature),
            example_inputs=self.example_inputs,
            guards=self.guards,
        )

    def _lift_attributes(self) -> None:
        """Turn tensors that a pass set on the module into state, which is an input."""
        for node in list(self.graph.nodes):
            if node.op != "get_attr":
                continue
            value = find_attribute(self.graph_module, str(node.target))
            if isinstance(value, torch.Tensor):
                is_parameter = isinstance(value, torch.nn.Parameter)
                kind = InputKind.PARAMETER if is_parameter else InputKind.CONSTANT_TENSOR
                node.replace_all_uses_with(self.add(kind, str(node.target), value))
                self.graph.erase_node(node)

    def _return_lost_inputs(self) -> None:
        """Put back each input of the user that a pass erased, as one that nothing reads: how a
        program is called does not change."""
        present = {id(self.inputs.get(n)): n for n in self.graph.nodes if n.op == "placeholder"}
        later = next(n for n in self.graph.nodes if n.op != "placeholder")
        for lost, spec in reversed(self._given):
            if spec.kind is not InputKind.USER_INPUT:
                continue
            if id(spec) not in present:
                name = _free_name(spec.arg.name, {n.name for n in self.graph.nodes})
                with self.graph.inserting_before(later):
                    node = insert_node(self.graph, "placeholder", name, name, (), {})
                node.meta = dict(lost.meta)
                self.inputs[node] = spec
                present[id(spec)] = node
            later = present[id(spec)]

    # ------------------------------------------------------------------------------- signature

    def _input_specs(self) -> Iterator[InputSpec]:
        for node in self.graph.nodes:
            if node.op == "placeholder":
                spec = self.inputs.get(node)
                if spec is None:
                    raise PassError(
                        f"node {node.name!r} is a new placeholder, and nothing says what it "
                        "stands for\n  instead: draft.add(kind, name, tensor), or keep the tensor "
                        "as an attribute of the module and read it with get_attr"
                    )
                yield replace(spec, arg=replace(spec.arg, name=node.name))

    def _output_specs(self) -> list[OutputSpec]:
        values: list[Any] = list(self.graph.output_node().args[0])  # type: ignore[arg-type]
        specs = self.outputs
        if len(values) != len(specs):
            specs = self._remaining_outputs(values)
        names = {spec.arg.name: node.name for node, spec in self.inputs.items() if spec.arg.name}
        return [
            replace(
                spec, arg=_returned_argument(value, spec.arg), target=_written_target(spec, names)
            )
            for value, spec in zip(values, specs, strict=True)
        ]

    def _remaining_outputs(self, values: list[Any]) -> list[OutputSpec]:
        """The outputs that remain after a pass: those whose node is still returned."""
        left: list[OutputSpec] = []
        rest = list(zip(self._results, self.outputs, strict=True))
        for value in values:
            while rest and rest[0][0] is not value:
                gone = rest.pop(0)[1]
                if gone.kind in _RESULTS:
                    rest = []
            if rest:
                left.append(rest.pop(0)[1])
        if len(left) != len(values) or any(s.kind in _RESULTS for _, s in rest):
            raise PassError(
                f"{len(values)} values are returned, {len(self.outputs)} were before: what a "
                "program returns to its caller does not change"
            )
        return left

    def _renew_calls(self, signature: ExportGraphSignature) -> list[ModuleCallEntry]:
        """Return how modules were called, in current names. The root's call is that of the
        signature; a call that lost one of its values loses its signature."""
        names = {n.name for n in self.graph.nodes}
        users = [s.arg for s in signature.input_specs if s.kind is InputKind.USER_INPUT]
        results = [s.arg for s in signature.output_specs if s.kind in _RESULTS]
        entries = []
        for entry in self.program.module_call_graph:
            call = entry.signature
            if call is not None and entry.fqn == "":
                call = replace(
                    call,
                    inputs=users if call.inputs else [],
                    outputs=results if call.outputs else [],
                )
            elif call is not None:
                call = self._renew_call(call, names)
            entries.append(ModuleCallEntry(entry.fqn, call))
        return entries

    def _renew_call(self, call: ModuleCallSignature, names: set[str]) -> ModuleCallSignature | None:
        inputs = [replace(a, name=self.current_name(a.name, names)) for a in call.inputs]
        outputs = [replace(a, name=self.current_name(a.name, names)) for a in call.outputs]
        for arg in (*inputs, *outputs):
            if not isinstance(arg, ConstantArgument) and arg.name not in names:
                return None
        return replace(call, inputs=inputs, outputs=outputs)

    def current_name(self, name: str, names: set[str]) -> str:
        """The name of the node that replaced this one; its own name if none did."""
        seen = set()
        while name not in names and name in self._renamed and name not in seen:
            seen.add(name)
            name = self._renamed[name]
        return name


def update_program(
    program: ExportedProgram, module: GraphModule, signature: ExportGraphSignature
) -> ExportedProgram:
    """The program with the graph that a pass has made, and the signature that it gives it."""
    draft = Draft(program)
    draft.adopt(module)
    placeholders = module.graph.find_nodes(op="placeholder")
    if [n.name for n in placeholders] == [s.arg.name for s in signature.input_specs]:
        draft._given = list(zip(placeholders, signature.input_specs, strict=True))
        draft.inputs = dict(draft._given)
    draft.outputs = list(signature.output_specs)
    return draft.finish()


def _refuse_foreign(placeholders: Iterable[Node]) -> None:
    """Refuse a program whose inputs had other values written over: what they were, with their
    symbols, stood nowhere else."""
    for node in placeholders:
        if is_foreign(node.meta.get("val")):
            raise PassError(
                f"the input {node.name!r} has a {type(node.meta['val']).__name__} as meta['val'] "
                "that is not lostwax's: a tool of torch's, such as FakeTensorProp, has written to "
                "the graph of the program itself\n"
                "  instead: give the tool copy.deepcopy(program.graph_module), or run it in a pass"
                ", FxPass(tool)(program); this program must be exported or loaded again"
            )


def _free_name(name: str, taken: Iterable[str]) -> str:
    taken, wanted, count = set(taken), name, 0
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    return name


def _returned_argument(value: Any, before: ArgumentSpec) -> ArgumentSpec:
    """What the signature says of a returned value."""
    if isinstance(value, Node) and not isinstance(before, ConstantArgument):
        return replace(before, name=value.name)
    return argument_of(value)


def _written_target(spec: OutputSpec, names: dict[str, str]) -> str | None:
    """The target of an output; an input of the user is named by its placeholder."""
    if spec.kind in (OutputKind.USER_INPUT_MUTATION, OutputKind.GRADIENT_TO_USER_INPUT):
        return names.get(spec.target or "", spec.target)
    return spec.target
