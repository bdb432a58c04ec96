"""The graph that runs: a program's own, followed by the writes that its signature lists.

A program only computes; what the original wrote is written here, at the end. Must not change the
program: a graph that writes is a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree

from lostwax.fake.convert import type_of
from lostwax.ir.data import Program
from lostwax.ir.graph.copying import copy_graph, copy_module
from lostwax.ir.graph.effects import has_effect, memory_base, memory_chain
from lostwax.ir.graph.gradient import gradient_source, with_gradient
from lostwax.ir.graph.lookup import graph_modules, subgraphs
from lostwax.ir.graph.writer import graph_border
from lostwax.ir.signature import InputSpec, OutputKind, OutputSpec, StateWrite
from lostwax.memory import expanded_sizes
from lostwax.ops.registry import aten, has_trait
from lostwax.ops.traits import Trait

GRADIENTS = (OutputKind.GRADIENT_TO_PARAMETER, OutputKind.GRADIENT_TO_USER_INPUT)
RESULTS = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT, *GRADIENTS)
_WRITTEN = (
    OutputKind.BUFFER_MUTATION,
    OutputKind.PARAMETER_MUTATION,
    OutputKind.USER_INPUT_MUTATION,
)


def before_write(value: torch.Tensor) -> torch.Tensor:
    """Return the value itself, or a copy if autograd is on: what autograd keeps for the gradient
    must not be overwritten. (In the original the write stood elsewhere, or kept a copy itself.) If
    the module is being captured, no copy is needed, since nothing is written."""
    needs_own = torch.is_grad_enabled() and not torch.compiler.is_exporting()
    return copy_with_strides(value) if needs_own else value


def copy_with_strides(value: torch.Tensor) -> torch.Tensor:
    """Copy a tensor with its strides: views of it rely on them."""
    copy = value.clone()
    if copy.stride() == value.stride():
        return copy
    same = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return copy if expanded_sizes(type_of(same)) else same.copy_(copy)


def write_unseen(target: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Write without autograd."""
    with torch.no_grad():
        return target.copy_(value)


def write_to_parameter(target: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Write to a parameter. If it is a leaf that requires gradients, the original wrote under
    `no_grad`, else autograd would have refused; autograd sees any other write, as for a buffer."""
    is_seen = not (target.is_leaf and target.requires_grad)
    with torch.set_grad_enabled(torch.is_grad_enabled() and is_seen):
        return target.copy_(value)


def is_rebound(spec: OutputSpec) -> bool:
    """Does the module rebind the state to the value itself, as the original did?"""
    return spec.write in (StateWrite.TENSOR, StateWrite.MEMORY)


def graph_to_run(
    program: Program,
    moves: Mapping[torch.device, torch.device],
    casts: Mapping[torch.dtype, torch.dtype],
) -> GraphModule:
    """Return the program's own graph if it only computes results; else a copy that also writes. The
    graph returns the results, then the values of the state that is rebound."""
    specs = program.graph_signature.output_specs
    if all(s.kind in RESULTS for s in specs) and not moves and not casts:
        return program.graph_module
    made = GraphModule(program.graph_module, graph_with_writes(program, (), moves, casts)[0])
    if moves or casts:
        for path, child in subgraphs(program.graph_module):
            made.set_submodule(path, convert_subgraph(child, moves, casts))
    return made


def convert_subgraph(
    module: GraphModule,
    moves: Mapping[torch.device, torch.device],
    casts: Mapping[torch.dtype, torch.dtype],
) -> GraphModule:
    """Return a copy of a sub-graph that names the new devices and dtypes."""
    copy, _ = copy_module(module)
    for each in graph_modules(copy):
        replace_dtypes_and_devices(each.graph, moves, casts)
        each.recompile()
    return copy


def replace_dtypes_and_devices(
    graph: Graph,
    moves: Mapping[torch.device, torch.device],
    casts: Mapping[torch.dtype, torch.dtype],
) -> None:
    """Replace the devices and dtypes that the nodes name, after the state was moved or cast.

    A program does not know whether the original named a dtype or asked a tensor for it, as
    recurrent layers do: a dtype that state had is replaced in either case. Ranges of numbers keep
    their dtype: in the original they would, too, unless it asked a tensor.
    """
    extremes = {
        sign * torch.finfo(a).max: sign * torch.finfo(b).max
        for a, b in casts.items()
        for sign in (1, -1)
        if a.is_floating_point and b.is_floating_point
    }

    def replace_value(value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return casts.get(value, value)
        return extremes.get(value, value) if value.__class__ is float else value

    for node in graph.nodes if moves or casts else ():
        if moves:
            node.args = replace_devices(node.args, moves)
            node.kwargs = replace_devices(node.kwargs, moves)
        if casts and not has_trait(node.target, Trait.RANGE):
            node.args = map_aggregate(node.args, replace_value)
            node.kwargs = map_aggregate(node.kwargs, replace_value)
            if len(node.all_input_nodes) > 1 and isinstance(node.target, OpOverload):
                node.target = _cast_to_state_types(node.target, casts)


def _cast_to_state_types(target: OpOverload, casts: Mapping[torch.dtype, torch.dtype]) -> Any:
    """Return an operator that, if its arguments have several dtypes and it does not accept them,
    casts what was not cast (a literal of the original) to the dtype of the state."""
    if layout_free_target(target, reads_views=True) is not None:
        return target

    def cast(value: Any) -> Any:
        is_old = isinstance(value, torch.Tensor) and value.dtype in casts
        return value.to(casts[value.dtype]) if is_old else value

    def operator(*args: Any, **kwargs: Any) -> Any:
        try:
            return target(*args, **kwargs)
        except RuntimeError:
            types = {a.dtype for a in pytree.tree_leaves(args) if isinstance(a, torch.Tensor)}
            if len(types) < 2 or types.isdisjoint(casts):
                raise
        return target(*pytree.tree_map(cast, args), **pytree.tree_map(cast, kwargs))

    return operator


def graph_with_writes(
    program: Program,
    left_out: Container[int],
    moves: Mapping[torch.device, torch.device],
    casts: Mapping[torch.dtype, torch.dtype],
) -> tuple[Graph, dict[Node, Node]]:
    """Return a copy of the graph that writes, and returns the results and the values of the state
    that is rebound, without the outputs `left_out`; and the copies of its nodes."""
    graph, copies = copy_graph(program.graph)
    end = graph.output_node()
    output: Any = end.args[0]
    graph.erase_node(end)
    replace_dtypes_and_devices(graph, moves, casts)
    targets = _write_targets(program, copies)
    specs = program.graph_signature.output_specs
    kept = [i for i in range(len(specs)) if i not in left_out]
    wanted = {k: targets[i] for k, i in enumerate(kept) if i in targets}
    writer = _WriteBack(graph, wanted, program.graph_module)
    rebound = [k for k in wanted if is_rebound(specs[kept[k]])]
    writer.finish([output[i] for i in kept], [specs[i] for i in kept], rebound)
    return graph, copies


def _write_targets(program: Program, copies: Mapping[Node, Node]) -> dict[int, Node]:
    """For each output that is a write, by index, the placeholder that it writes to."""
    signature = program.graph_signature
    placeholders = [copies[n] for n in program.graph.nodes if n.op == "placeholder"]
    return written_placeholders(signature.input_specs, placeholders, signature.output_specs)


def written_placeholders(
    inputs: Sequence[InputSpec], placeholders: Sequence[Node], outputs: Sequence[OutputSpec]
) -> dict[int, Node]:
    """For each output that is a write, by index, the placeholder that it writes to."""
    by_name = {s.arg.name: n for s, n in zip(inputs, placeholders, strict=True)}
    by_target = {s.target: n for s, n in zip(inputs, placeholders, strict=True)}
    return {
        i: by_name[s.target or ""]
        if s.kind is OutputKind.USER_INPUT_MUTATION
        else by_target[s.target]
        for i, s in enumerate(outputs)
        if s.kind in _WRITTEN
    }


def replace_devices(args: Any, moves: Mapping[torch.device, torch.device]) -> Any:
    return map_aggregate(args, lambda a: moves.get(a, a) if isinstance(a, torch.device) else a)


class _WriteBack:
    """Ends a graph with the writes of its signature, and lets it return the results alone.

    If the original wrote in place, a result that is a view of what was written shares memory with
    it: such a result is computed from the written tensor. If the original rebound the state to
    another tensor, results stay what they are, since the next write must not reach them. A value
    that shows the state before a write, and is needed after it, is copied first.
    """

    def __init__(self, graph: Graph, targets: Mapping[int, Node], bodies: nn.Module) -> None:
        self.graph = graph
        self.bodies = bodies
        self.targets = targets
        self.begin = next((n for n in graph.nodes if n.op != "placeholder"), graph_border(graph))
        self.copies: dict[Node, Node] = {}
        self.after_write: dict[Node, Node] = {}
        """For a value that is written, or is a view of one: the same view of the written tensor."""
        self.untouched: dict[Node, Node] = {}
        """For a write, or a view of the written tensor: the same view before anything is
        written."""
        self.first_write: Node | None = None
        self.itself: dict[Node, Node] = {}
        """As `after_write`, for writes of which the signature does not say how they were done: as
        torch's own reader does, the state is returned for this very value, not for views of it."""

    def finish(
        self, values: list[Any], specs: Sequence[OutputSpec], more: Sequence[int] = ()
    ) -> None:
        """Add the writes and the output node. The outputs `more` are not written, but returned
        after the results."""
        changed = {
            t: self.read_before(t)
            for i, t in self.targets.items()
            if values[i] is not t and (i not in more or specs[i].write is StateWrite.MEMORY)
        }
        old = set(changed.values())
        saved = [self.save(changed.get(value, value), old) for value in values]
        for i, target in self.targets.items():
            if target in changed and i not in more:
                write = self.choose_write(specs[i].kind, saved[i], changed[target])
                done = self.graph.call_function(write, (target, saved[i]))
                self.first_write = self.first_write or done
                self.untouched[done] = target
                if not is_rebound(specs[i]):
                    self.note_written(saved[i], done, specs[i], old)
        results = [v for v, s in zip(saved, specs, strict=True) if s.kind in RESULTS]
        results += [saved[i] for i in more]
        results = [self.itself.get(v) or self.derive(v) for v in results]
        self.graph.output(tuple(results))

    def note_written(self, value: Node, done: Node, spec: OutputSpec, old: set[Node]) -> None:
        """Note that after the write `done`, the value is the tensor that was written to."""
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            self.after_write[value] = done  # what was handed in is handed out
        elif spec.write is None:
            self.itself.setdefault(value, done)
            return
        elif value.op != "placeholder":
            self.after_write.setdefault(value, done)
        while has_trait(value.target, Trait.DETACHES) and value not in old:
            value = value.args[0]  # type: ignore[assignment]
            if value.op == "call_function" and value not in old:
                self.after_write.setdefault(value, done)

    def choose_write(self, kind: OutputKind, value: Node, old: Node) -> Callable[..., Any]:
        """Choose how an output is written to its target. If a write to an input left the input's
        gradient as it was, it stood under `no_grad` in the original."""
        if kind is OutputKind.PARAMETER_MUTATION:
            return write_to_parameter
        while kind is OutputKind.USER_INPUT_MUTATION and value is not old:
            kept = gradient_source(value, self.bodies)
            if kept is None:
                return aten.copy_.default  # type: ignore[no-any-return]
            value = kept
        return aten.copy_.default if kind is OutputKind.BUFFER_MUTATION else write_unseen

    def read_before(self, target: Node) -> Node:
        """Let the graph read, in the place of an input that is written at its end, the value before
        that write."""
        users = [user for user in target.users if not has_trait(user.target, Trait.READS_LAYOUT)]
        with self.graph.inserting_before(self.begin):
            old = self.graph.call_function(before_write, (target,))
        for user in users:
            user.replace_input_with(target, old)
        return old

    def save(self, value: Any, old: set[Node]) -> Any:
        """Return a copy if the value is about to be overwritten, or is a view of such a value."""
        if not isinstance(value, Node) or old.isdisjoint(memory_chain(value)):
            return value
        if value not in self.copies:
            base = memory_base(value)
            if base is None or value in old:
                self.copies[value] = self.graph.call_function(copy_with_strides, (value,))
            else:
                self.copies[value] = self.move_view(value, base, self.save(base, old))
        return self.copies[value]

    def derive(self, value: Any) -> Any:
        """If a result is a view of a written value, return the same view of the written tensor."""
        if not isinstance(value, Node) or value in self.after_write:
            return self.after_write.get(value, value)
        base = memory_base(value)
        new = None if base is None else self.derive(base)
        if new is base or base is None:
            return value
        self.after_write[value] = moved = self.move_view(value, base, new)
        if has_trait(value.target, Trait.NEEDS_STRIDES):
            moved.meta[SHOWN] = True
            self.try_view(moved)
        return moved

    def try_view(self, value: Node) -> Node | None:
        """Take the same view of the tensor before anything is written: if its strides do not allow
        the view, that must fail while nothing has happened."""
        if value in self.untouched:
            return self.untouched[value]
        base = memory_base(value)
        before = None if base is None or base is not value.args[0] else self.try_view(base)
        if before is None:  # with a gradient of its own
            return None
        with self.graph.inserting_before(self.first_write):
            tried = self.graph.node_copy(value, lambda n: before if n is base else n)
        self.untouched[value] = tried
        return tried

    def move_view(self, value: Node, base: Node, new: Any) -> Node:
        """Compute the value from another base."""
        made: Any = value.args[0]
        if made is base or made.target is not with_gradient:
            return self.graph.node_copy(value, lambda n: new if n is base else n)
        backward, outputs, inputs, saved = made.args
        outputs = [new if o is base else o for o in outputs]
        again = self.graph.call_function(with_gradient, (backward, outputs, inputs, saved))
        return self.graph.node_copy(value, lambda n: again if n is made else n)


# ------------------------------------------------------------------------------- layouts of inputs


SHOWN = "shown"
"""The key in `meta` of a view of what was written, which the caller gets: it must not become a
copy."""


def layout_free_target(target: Any, reads_views: bool) -> Any:
    """Return a function that computes what the operator does, for any strides of its argument; None
    if the operator itself does."""
    if has_trait(target, Trait.READS_DENSE):
        return _group_norm
    return aten.reshape.default if has_trait(target, Trait.NEEDS_STRIDES) and reads_views else None


def has_draws_and_views(module: GraphModule) -> bool:
    """Does the graph draw random numbers, or have other effects, and also call an operator that may
    fail for some strides?"""
    targets = {id(n.target): n.target for each in graph_modules(module) for n in each.graph.nodes}
    found = [t for t in targets.values() if layout_free_target(t, True) is not None]
    return bool(found) and any(
        has_effect(t) and not has_trait(t, Trait.ASSERTS) for t in targets.values()
    )


def layout_free_graph(module: GraphModule, reads_views: bool) -> GraphModule:
    """Return a copy of the graph that runs with any strides of its inputs."""
    copy, _ = copy_module(module)
    for each in graph_modules(copy):
        for node in each.graph.nodes:
            if node.op == "call_function" and SHOWN not in node.meta:
                node.target = layout_free_target(node.target, reads_views) or node.target
        each.recompile()
    return copy


def _group_norm(value: torch.Tensor, *args: Any) -> Any:
    """Make the argument dense first, as torch's function does: the operator takes nothing else."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    form = formats.get(value.dim(), torch.contiguous_format)
    is_dense = value.is_contiguous() or value.is_contiguous(memory_format=form)
    return aten.native_group_norm.default(value if is_dense else value.contiguous(), *args)
