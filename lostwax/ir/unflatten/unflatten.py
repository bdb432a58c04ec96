"""Unflattening: makes of a program a hierarchy of modules with the original's names, each with the
part of the graph that was recorded while it was called.

The graph is cut along the tree of calls (`call_tree.py`). What a part reads from outside becomes
its input, what others read of it becomes its result. Must not compute anything again: the same
operators run in the same order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule
from torch.utils import _pytree as pytree
from torch.utils._pytree import TreeSpec

from lostwax.errors import InputStructureError, SwapError
from lostwax.errors.tracebacks import CALL_ERRORS, leave_out_own_frames
from lostwax.identity import ByIdentity
from lostwax.ir.graph.copying import copy_module
from lostwax.ir.graph.delegate import refuse_delegates
from lostwax.ir.program import ExportedProgram, check_is_program
from lostwax.ir.pytree import sketch_spec
from lostwax.ir.run.calling import accept_self, call_with_self
from lostwax.ir.run.conditions.questions import assumption_check
from lostwax.ir.run.conditions.settings import hold_to_settings
from lostwax.ir.run.control import run_by_python
from lostwax.ir.run.leaves import UNCHANGED, Changes
from lostwax.ir.run.module import (
    call_convention,
    compose_changes,
    explain_failure,
    input_overlap_check,
    make_rebind,
    make_rebuild,
    note_changes,
)
from lostwax.ir.run.state import buffer_ids, hold_state, names_in_order, own_state
from lostwax.ir.run.write_back import replace_dtypes_and_devices
from lostwax.ir.signature import InputKind
from lostwax.ir.unflatten.interpreter import (
    Container,
    GraphsModule,
    InterpreterModule,
    InterpreterModuleDispatcher,
    ModuleBody,
    OtherForm,
    allow_depth,
    find_by_path,
    readable_text,
    run_body,
    use_root,
)
from lostwax.ir.unflatten.split import ModuleBodies


class FlatArgsAdapter(ABC):
    """Lets an unflattened module be called with another structure of arguments than the program
    was captured with."""

    @abstractmethod
    def adapt(
        self,
        target_spec: TreeSpec,
        input_spec: TreeSpec,
        input_args: list[Any],
        metadata: dict[str, Any] | None = None,
        obj: Any | None = None,
    ) -> list[Any]:
        """Return the leaves for `target_spec`, from those given in the structure `input_spec`.

        Both specs describe `(args, kwargs)`. `obj` is the module that is called.
        """

    def get_flat_arg_paths(self) -> list[str]:
        """The paths by which an adapter picks its arguments, for those who want to know them;
        lostwax does not ask."""
        return []


def unflatten(
    module: ExportedProgram, flat_args_adapter: FlatArgsAdapter | None = None
) -> UnflattenedModule:
    """Make of a program a hierarchy of modules with the original's names. (`module` is
    torch.export's name of the argument.)

    It computes what the program does. A submodule that was captured with
    `preserve_module_call_signature` takes and returns what the original does, so that another
    module can be put in its place. `flat_args_adapter` is asked when the arguments of a call have
    another structure than at capture.
    """
    return UnflattenedModule(module, flat_args_adapter)


class UnflattenedModule(GraphsModule):
    """What `unflatten` returns: `state_dict`, names and submodules are the original's."""

    def __init__(
        self, export_module: ExportedProgram, flat_args_adapter: FlatArgsAdapter | None = None
    ) -> None:
        super().__init__()
        check_is_program(export_module, "unflatten")
        refuse_delegates(export_module.graph_module, "unflatten()")
        program = export_module
        self.flat_args_adapter = flat_args_adapter
        self.graph_signature = program.graph_signature
        self.module_call_graph = program.module_call_graph
        self.range_constraints = program.range_constraints
        self._program = program
        self._changes = UNCHANGED
        self._convention = call_convention(program, True)
        self._rebuild = make_rebuild(program, self._convention)
        self._check_assumptions = assumption_check(program, self._convention.leaves)
        self._check_overlap = input_overlap_check(program, self._convention)
        self._hold_to_settings = hold_to_settings(program)
        paths = (e.fqn for e in program.module_call_graph)
        self._depth = max((path.count(".") + 1 for path in paths), default=0)
        with allow_depth(self._depth):
            bodies = ModuleBodies(program)
        self.bodies = {"": bodies.root}
        self._rebind = make_rebind(program, bodies.rebound)
        _build_modules(self, program, bodies)
        preserved = [e.fqn for e in program.module_call_graph if e.signature and "@" not in e.fqn]
        # Modules that were called and computed nothing: no graph calls them.
        idle = {p: find_by_path(self, p) for p in preserved if p and p not in bodies.of}
        self.__dict__["_idle"] = idle

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return call_with_self(self, *args, **kwargs)

    @accept_self
    def forward(self, /, *args: Any, **kwargs: Any) -> Any:
        self._check_idle()
        try:
            inputs = self._check_call(args, kwargs)
        except CALL_ERRORS as error:
            raise leave_out_own_frames(error)  # noqa: B904
        is_joint = self.graph_signature.backward_signature is not None
        with (
            allow_depth(self._depth),
            use_root(self),
            torch.no_grad() if is_joint else nullcontext(),
        ):
            results = self._hold_to_settings(self._run, *inputs)
        if self._rebind is not None:
            results = self._rebind(self, results)
        return self._rebuild(results)

    def _check_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        inputs: Sequence[Any] = self.process_forward_inputs(*args, **kwargs)
        if self._check_overlap is not None:
            self._check_overlap(inputs)
        if self._check_assumptions is not None:
            self._check_assumptions(self._state(), inputs)
        return inputs

    @accept_self
    def process_forward_inputs(self, /, *args: Any, **kwargs: Any) -> Sequence[Any]:
        """The values that a call passes to the graph: adapted, checked, flat."""
        if self.flat_args_adapter is not None:
            args, kwargs = self._adapt(self.flat_args_adapter, args, kwargs)
        return self._convention.bind(args, kwargs)

    def _run(self, *inputs: Any) -> Sequence[Any]:
        try:
            return run_body(self, self.bodies[""], inputs)
        except RuntimeError as error:
            explain_failure(self._program, self._convention, inputs, error)
            raise

    def _state(self) -> list[Any]:
        """The state in the order of the program's inputs; None for what is not under its name."""
        specs = [s for s in self.graph_signature.input_specs if s.kind is not InputKind.USER_INPUT]
        return [_find_state(self, s.target) for s in specs]

    def _check_idle(self) -> None:
        for path, module in self._idle.items():
            if find_by_path(self, path) is not module:
                raise SwapError(
                    f"the module {path!r} was exchanged, but nothing calls it: the original "
                    "computed nothing, so the program does not know where it stood.\n"
                    f"  instead: exchange the module around it, with its own call signature kept"
                )

    def _adapt(
        self, adapter: FlatArgsAdapter, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        target = self._convention.in_spec
        leaves, given = pytree.tree_flatten((args, kwargs))
        if given == target:
            return args, kwargs
        found = adapter.adapt(target_spec=target, input_spec=given, input_args=leaves, obj=self)
        if len(found) != target.num_leaves:
            expected = sketch_spec(target, iter(["*"] * target.num_leaves))
            raise InputStructureError(
                f"{type(adapter).__name__}.adapt returned {len(found)} values, the program takes "
                f"{target.num_leaves}: {expected}"
            )
        return pytree.tree_unflatten(found, target)

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> UnflattenedModule:
        """Implement `.to()` and its like, as `program.module()` does."""
        leaves = self._convention.leaves
        casts, moves = note_changes(self, fn, partial(super()._apply, fn, recurse), leaves)
        if moves or casts:
            before = self._changes
            changes = Changes(
                compose_changes(before.casts, casts), compose_changes(before.moves, moves)
            )
            convention = call_convention(self._program, True, changes)
            self.__dict__.update(_changes=changes, _convention=convention)
            _replace_dtypes_and_devices(self, moves, casts)
        return self

    def _readable_text(self) -> str:
        with allow_depth(self._depth):
            return readable_text(self, "UnflattenedModule")


def _replace_dtypes_and_devices(
    root: nn.Module,
    moves: Mapping[torch.device, torch.device],
    casts: Mapping[torch.dtype, torch.dtype],
) -> None:
    """Give each module new graphs, which name the new devices and dtypes."""
    made: ByIdentity[ModuleBody, ModuleBody] = ByIdentity()
    for module in root.modules():
        if isinstance(module, GraphModule):  # a sub-graph, which no other module has
            replace_dtypes_and_devices(module.graph, moves, casts)
            module.recompile()
        bodies: dict[str, ModuleBody] = getattr(module, "bodies", {})
        for name, body in bodies.items():
            if body not in made:
                graph = Graph()
                graph.output(graph.graph_copy(body.graph, {}))
                replace_dtypes_and_devices(graph, moves, casts)
                made[body] = body.with_graph(graph)
            bodies[name] = made[body]


# -------------------------------------------------------------------------------------- the modules


def _find_state(module: nn.Module, path: str | None) -> Any:
    try:
        return find_by_path(module, path) if path else None
    except AttributeError:
        return None


def _build_modules(root: UnflattenedModule, program: ExportedProgram, bodies: ModuleBodies) -> None:
    """Build submodules for every name, then fill in their state."""
    aliases = _aliases(program, bodies)
    made: dict[str, nn.Module] = {"": root}
    for path in _module_paths(program, bodies):
        above, _, name = path.rpartition(".")
        held = made[above]._modules
        if name not in held:
            known = made.get(aliases.get(path, path))
            held[name] = _make_module(path, bodies, made) if known is None else known
        made[path] = held[name]  # type: ignore[assignment]
    _fill_state(made, program)
    names = _type_names(program)
    for path, module in made.items():
        if isinstance(module, GraphsModule):
            module.__dict__["_type_name"] = names.get(path.partition("@")[0])
    for path, name, graph in bodies.subgraphs:
        made[path].register_module(name, copy_module(run_by_python(graph))[0])


def _type_names(program: ExportedProgram) -> dict[str, str]:
    """The classes of the original's modules by path, as the nodes tell them."""
    stacks = [node.meta.get("nn_module_stack") or {} for node in program.graph.nodes]
    return {
        path.partition("@")[0]: kind
        if isinstance(kind, str)
        else f"{kind.__module__}.{kind.__qualname__}"
        for stack in stacks
        for path, kind in stack.values()
    }


def _make_module(path: str, bodies: ModuleBodies, made: Mapping[str, nn.Module]) -> Container:
    if path not in bodies.of:
        return Container()
    original, _, number = path.partition("@")
    held = bodies.of[path]
    first = next(iter(held.values()))
    is_one = all(body is first for body in held.values())
    module = InterpreterModule() if is_one else InterpreterModuleDispatcher()
    if number:
        above, _, name = original.rpartition(".")
        module = OtherForm(made[above], name)
    module.bodies = held
    return module


def _module_paths(program: ExportedProgram, bodies: ModuleBodies) -> list[str]:
    """All paths of modules, each after that of its parent."""
    named = [e.fqn for e in program.module_call_graph if "@" not in e.fqn]
    state = [name.rpartition(".")[0] for name in (*program.state_dict, *program.constants)]
    found: dict[str, None] = {}
    for path in (*named, *bodies.of, *state):
        parts = path.split(".")
        for i in range(len(parts) if path else 0):
            found[".".join(parts[: i + 1])] = None
    return list(found)


def _aliases(program: ExportedProgram, bodies: ModuleBodies) -> dict[str, str]:
    """Modules that have several names, as far as their state shows it: later name → first name."""
    held: dict[str, dict[str, int]] = {}
    for name, value in (*program.state_dict.items(), *program.constants.items()):
        parts = name.split(".")
        for i in range(1, len(parts)):
            inner = held.setdefault(".".join(parts[:i]), {})
            inner[".".join(parts[i:])] = id(value)
    first: dict[Any, str] = {}
    found: dict[str, str] = {}
    for path, inner in held.items():
        known = first.setdefault(frozenset(inner.items()), path)
        nested = path.startswith(f"{known}.") or known.startswith(f"{path}.")
        if known != path and not nested and path not in bodies.of:
            found[path] = known
    return {a: b for a, b in found.items() if a.rpartition(".")[0] not in found}


def _fill_state(made: Mapping[str, nn.Module], program: ExportedProgram) -> None:
    """Give the modules their state, under each of its names."""
    buffers = buffer_ids(program)
    state = own_state(program)
    for name in dict.fromkeys((*names_in_order(program), *state)):
        value = state[name]
        path, _, leaf = name.rpartition(".")
        module = made[path]
        is_kept = name in program.state_dict
        if is_kept or id(program.constants[name]) in buffers:
            hold_state(module, leaf, value, is_kept)
        else:
            module._constants[leaf] = value  # type: ignore[index, operator]
