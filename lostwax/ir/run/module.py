"""A program as an `nn.Module`: the state under its own names, the graph run on it.

The graph that runs is the program's own, followed by its writes (`write_back.py`). Must not change
the program: state that the module writes is copied, all else shares memory with the program.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

import torch
from torch import nn
from torch.fx import GraphModule

from lostwax.errors import InputValueError, NotPickledError
from lostwax.errors.tracebacks import CALL_ERRORS, leave_out_own_frames
from lostwax.fake import FakeTensor
from lostwax.ir.data import SHARD, Program
from lostwax.ir.graph.effects import has_effect
from lostwax.ir.graph.lookup import all_nodes
from lostwax.ir.ranges import limits_by_name
from lostwax.ir.rules.verify import validate
from lostwax.ir.run.calling import Convention, accept_self, call_with_self
from lostwax.ir.run.conditions.answers import LAYOUT_ASKED, same_pairs
from lostwax.ir.run.conditions.first_run import FirstRun, has_custom_operators
from lostwax.ir.run.conditions.overlap import Check, StateCheck, overlap_check, state_check
from lostwax.ir.run.conditions.questions import assumption_check
from lostwax.ir.run.conditions.settings import hold_to_settings
from lostwax.ir.run.control import run_by_python
from lostwax.ir.run.held import find_held
from lostwax.ir.run.leaves import UNCHANGED, Changes, Leaf, TensorLeaf
from lostwax.ir.run.state import fill_state, own_state
from lostwax.ir.run.unlifted import HOLDS_STATE, UnliftedModule
from lostwax.ir.run.write_back import (
    GRADIENTS,
    RESULTS,
    graph_to_run,
    has_draws_and_views,
    is_rebound,
    layout_free_graph,
)
from lostwax.ir.signature import (
    STATE_WRITES,
    ConstantArgument,
    CustomObjArgument,
    InputKind,
    InputSpec,
    OutputSpec,
    StateWrite,
    is_member,
)
from lostwax.location import warn
from lostwax.ops.registry import has_trait
from lostwax.ops.traits import Trait


class JointResult(NamedTuple):
    """What the module of a joint program returns: the result of the original, the gradients of
    parameters by name, and those of inputs as Python writes them (`x`, `x['mask']`)."""

    result: Any
    gradients: dict[str, torch.Tensor]
    input_gradients: dict[str, torch.Tensor]


def program_module(
    program: Program,
    check_guards: bool = True,
    state: Mapping[str, Any] | None = None,
    holder: nn.Module | None = None,
) -> ProgramModule:
    """Make a module that runs the program; its `forward` has the signature of the original. It may
    be given its state, and a module that holds it, too."""
    convention = call_convention(program, check_guards)

    def forward(self: ProgramModule, /, *args: Any, **kwargs: Any) -> Any:
        try:
            if self._edited is not None:
                return self._run_edited(args, kwargs)
            return self._runner(self, args, kwargs)
        except CALL_ERRORS as error:
            raise leave_out_own_frames(error)  # noqa: B904

    me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    signature = convention.signature
    own: dict[str, Any] = {"forward": forward, "__module__": __name__}
    if "self" not in signature.parameters:
        parameters = (me, *signature.parameters.values())
        forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    if convention.takes_self:
        own |= {"forward": accept_self(forward), "__call__": call_with_self}
    cls = type("ProgramModule", (ProgramModule,), own)
    module: ProgramModule = cls()
    if holder is not None:
        module._keep(**{name: holder.__dict__[name] for name in HOLDS_STATE})
    constants = fill_state(module, program, own_state(program) if state is None else state)
    runner = _Runner(program, check_guards, convention)
    module._keep(_constants=constants, _runner=runner, _beside=())
    return module if program.training is None else module._set_training(program.training)


class ProgramModule(UnliftedModule):
    """What `program.module()` returns: it has the original's names of parameters and buffers, and
    its `forward` takes the original's arguments."""

    _runner: _Runner
    _beside: tuple[ProgramModule, ...]
    """All modules that hold this state, if there are others."""
    _tree: nn.Module | None = None
    """What holds the state of all of them: this module may be of a part alone."""

    def train(self, mode: bool = True) -> ProgramModule:
        """Mark the modules, as in any module. What is computed was settled at capture."""
        captured = self._runner.program.training
        if captured is not None and captured is not mode:
            way, wanted = ("training", "eval()") if captured else ("evaluation", "train()")
            warn(
                f"{wanted} does not change what a program computes: it was captured in {way} mode, "
                f"dropout and batch norm included; capture the original again after {wanted}",
            )
        return self._set_training(mode)

    def _set_training(self, mode: bool) -> ProgramModule:
        return super().train(mode)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _EmptyModuleMaker(type(self)), (), self.__getstate__()  # type: ignore[no-untyped-call]

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> ProgramModule:
        """Implement `.to()` and its like: from then on inputs must have the new dtype, and the
        graph names the new devices."""
        leaves = self._runner.convention.leaves
        whole = self if self._tree is None else self._tree
        convert = partial(nn.Module._apply, whole, fn, recurse)
        casts, moves = note_changes(whole, fn, convert, leaves)
        if casts or moves:
            for each in self._beside or (self,):
                each._convert(casts, moves)
        return self

    def _convert(
        self, casts: Mapping[torch.dtype, torch.dtype], moves: Mapping[torch.device, torch.device]
    ) -> None:
        constants = {k: _move_value(v, moves) for k, v in self._constants.items()}
        self._keep(_runner=self._runner.convert(casts, moves), _constants=constants)
        self._convert_graph(casts, moves)


class _EmptyModuleMaker:
    """Makes the empty object when a module is copied. It cannot be pickled, and says so."""

    def __init__(self, cls: type[ProgramModule]) -> None:
        self.cls = cls

    def __call__(self) -> ProgramModule:
        return self.cls.__new__(self.cls)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise NotPickledError("the module of a program")


def note_changes(
    module: nn.Module, fn: Callable[[Any], Any], convert: Callable[[], Any], inputs: Sequence[Leaf]
) -> Changes:
    """Convert a module; return how dtypes and how devices changed, old → new. A module without
    state moves as its inputs would."""
    types = [(t.dtype, t.device) for t in _state_of(module)]
    convert()
    after = _state_of(module)
    casts = _common_changes((d, t.dtype) for (d, _), t in zip(types, after, strict=True))
    moves = _common_changes((d, t.device) for (_, d), t in zip(types, after, strict=True))
    return Changes(casts, moves if types else dict(_moves_of_inputs(fn, inputs)))


def _moves_of_inputs(
    fn: Callable[[Any], Any], inputs: Sequence[Leaf]
) -> Iterator[tuple[torch.device, torch.device]]:
    for device in dict.fromkeys(x.device for x in inputs if isinstance(x, TensorLeaf)):
        moved = fn(torch.empty(0, device=device)).device
        if moved != device:
            yield device, moved


def _state_of(module: nn.Module) -> list[torch.Tensor]:
    """The parameters and buffers under all their names: after a move to `meta`, a tensor that had
    two names is two."""
    parameters = module.named_parameters(remove_duplicate=False)
    return [t for _, t in (*parameters, *module.named_buffers(remove_duplicate=False))]


def _common_changes(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return old → new dtype (or device), where every tensor with the old one changed alike."""
    found: dict[Any, set[Any]] = {}
    for before, after in pairs:
        found.setdefault(before, set()).add(after)
    return {b: next(iter(a)) for b, a in found.items() if len(a) == 1 and b not in a}


def _move_value(value: Any, moves: Mapping[torch.device, torch.device]) -> Any:
    if isinstance(value, torch.Tensor) and value.device in moves and not value.is_meta:
        return value.to(moves[value.device])
    return value


# ---------------------------------------------------------------------------------------- the state


def _make_fetch(specs: Sequence[InputSpec]) -> Callable[[ProgramModule], tuple[Any, ...]]:
    """Make a function that reads the state in the order of the placeholders. Its code is flat, as
    it runs on each call. Where something was replaced (by a parametrization), it looks names up as
    Python does."""
    lines: list[str] = []
    modules = {"": "root"}
    values = []
    for spec in specs:
        if spec.kind is InputKind.TOKEN or spec.target is None:
            values.append("None")
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            owner, _, leaf = spec.target.rpartition(".")
            store = "_parameters" if spec.kind is InputKind.PARAMETER else "_buffers"
            values.append(f"{_module_variable(owner, modules, lines)}.{store}[{leaf!r}]")
        else:
            values.append(f"root._constants[{spec.target!r}]")
    body = "".join(f"        {line}\n" for line in lines)
    source = (
        f"def fetch(root):\n    try:\n{body}        return [{', '.join(values)}]\n"
        "    except KeyError:\n        return by_name(root)\n"
    )
    names: dict[str, Any] = {"by_name": lambda root: [_look_up(root, spec) for spec in specs]}
    exec(compile(source, f"{__file__}:generated", "exec"), names)
    return names["fetch"]  # type: ignore[no-any-return]


def _module_variable(path: str, modules: dict[str, str], lines: list[str]) -> str:
    """Return the variable that holds the module at a path; each module is read once."""
    if path not in modules:
        above, _, leaf = path.rpartition(".")
        parent = _module_variable(above, modules, lines)
        modules[path] = f"m{len(modules)}"
        lines.append(f"{modules[path]} = {parent}._modules[{leaf!r}]")
    return modules[path]


def _look_up(root: ProgramModule, spec: InputSpec) -> Any:
    if spec.target is None or spec.kind is InputKind.TOKEN:
        return None
    if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER):
        return root._constants[spec.target]
    return _find_state(root, spec.target)


def _find_state(root: Any, name: str) -> Any:
    if isinstance(root, _LiveState):
        root = root._module
    for part in name.split(".") if name else ():
        root = find_held(root, part)
    return root


def make_rebind(
    program: Program, specs: Sequence[OutputSpec]
) -> Callable[[Any, Sequence[Any]], Sequence[Any]] | None:
    """Make a function that puts the last results of the graph in the place of state, and returns
    the other results; None if no state is rebound."""
    if not specs:
        return None
    held = {**program.constants, **program.state_dict}
    tied = [[n for n in held if held[n] is held[s.target or ""]] for s in specs]
    count = len(specs)
    nodes = all_nodes(program.graph_module)
    places = any(has_trait(n.target, Trait.VIEWS_STORAGE) for n in nodes)

    def rebind(root: Any, results: Sequence[Any]) -> Sequence[Any]:
        before = [_find_state(root, names[0]) for names in tied]
        values = results[-count:]
        if torch.compiler.is_exporting() and not isinstance(before[0], FakeTensor):
            return _write_for_torch(before, values, results[:-count])
        after = [_lay_out_like(v, b, places) for v, b in zip(values, before, strict=True)]
        for spec, names, old, new in zip(specs, tied, before, after, strict=True):
            if spec.write is StateWrite.MEMORY:
                old.data = new.detach()
            else:
                if isinstance(old, nn.Parameter):
                    new = nn.Parameter(new.detach(), requires_grad=old.requires_grad)
                for name in names:
                    path, _, leaf = name.rpartition(".")
                    _put_state(_find_state(root, path), leaf, new)
        return results[:-count]

    return rebind


def _put_state(module: Any, name: str, value: torch.Tensor) -> None:
    if isinstance(module, nn.Module) and name in module._buffers:
        module._buffers[name] = value
    else:
        setattr(module, name, value)


def _write_for_torch(
    targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor], results: Sequence[Any]
) -> Sequence[Any]:
    """Write the state instead of rebinding it, while torch.export captures the module: it supports
    writes, but not every rebinding. Return the results, copied if they share memory with the
    state."""
    shown = [
        isinstance(r, torch.Tensor) and any(r is t or r._base is t for t in targets)
        for r in results
    ]
    results = [r.clone() if is_shown else r for r, is_shown in zip(results, shown, strict=True)]
    for target, value in zip(targets, [v.clone() for v in values], strict=True):
        with torch.set_grad_enabled(torch.is_grad_enabled() and not target.requires_grad):
            target.copy_(value)
    return results


def _lay_out_like(value: torch.Tensor, before: Any, places: bool) -> torch.Tensor:
    """Return the value laid out as the tensor that it replaces: itself, if it already is. The graph
    relies on strides, and on offsets too if it looks at `places` in memory."""
    if (
        value.dtype is before.dtype
        and value.stride() == before.stride()
        and value.device == before.device
        and not (places and value.storage_offset() != before.storage_offset())
    ):
        return value
    made = torch.empty_strided(
        before.shape, before.stride(), dtype=before.dtype, device=before.device
    )
    return made.copy_(value)


# ------------------------------------------------------------------------------------------ running


class _Runner:
    """Runs one module. Copies of the module share it."""

    def __init__(
        self,
        program: Program,
        check_guards: bool,
        convention: Convention,
        casts: Mapping[torch.dtype, torch.dtype] | None = None,
        moves: Mapping[torch.device, torch.device] | None = None,
    ) -> None:
        self.program = program
        self.check_guards = check_guards
        self.casts, self.moves = casts or {}, moves or {}
        specs = program.graph_signature.input_specs
        self.convention = convention
        self.is_relaxed = False
        self._use_graph(graph_to_run(program, self.moves, self.casts))
        self.bind, self.rebuild = convention.bind, make_rebuild(program, convention)
        self.door = None
        if program.settings is not None and program.settings.sharding is not None:
            from lostwax.ir.run.shards import Door

            self.door = Door(convention, program.settings.sharding)
            self.bind = self.door.bind
        self.fetch = _make_fetch([s for s in specs if s.kind is not InputKind.USER_INPUT])
        outputs = program.graph_signature.output_specs
        self.rebind = make_rebind(program, [s for s in outputs if is_rebound(s)])
        self.check_assumptions = assumption_check(program, convention.leaves)
        self.check_overlap = input_overlap_check(program, convention)
        if has_draws_and_views(program.graph_module):  # a second try would draw other numbers
            self._relax()
        self.check_state_overlap = _state_overlap_check(program, convention)

    def __call__(self, module: ProgramModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.run(module, self.bind(args, kwargs))

    def run(self, module: ProgramModule, inputs: tuple[Any, ...]) -> Any:
        """Run on inputs that were bound."""
        return self.run_on(module, self.check_state(module, inputs), inputs)

    def check_state(self, module: ProgramModule, inputs: tuple[Any, ...]) -> Sequence[Any]:
        """Return the state, after checking that the program holds for it and these inputs."""
        state = self.fetch(module)
        if self.check_overlap is not None:
            self.check_overlap(inputs)
        if self.check_state_overlap is not None:
            self.check_state_overlap(state, inputs)
        if self.check_assumptions is not None:
            self.check_assumptions(state, inputs)
        return state

    def run_on(self, module: ProgramModule, state: Sequence[Any], inputs: tuple[Any, ...]) -> Any:
        """Run on state and inputs that were checked."""
        try:
            results = self.forward(*state, *inputs)
        except RuntimeError as error:
            results = self._run_again(state, inputs, error)
        if self.rebind is not None:
            results = self.rebind(module, results)
        if self.door is not None:
            results = self.door.rebuild(results, inputs)
        return self.rebuild(results)

    def _use_graph(self, graph: GraphModule) -> None:
        """Run this graph from now on."""
        self.graph_module = graph
        forward = run_by_python(graph).forward
        if has_custom_operators(graph):
            forward = FirstRun(graph, forward)
        self.hold = hold_to_settings(self.program)
        self.forward = partial(self.hold, forward)
        if self.program.graph_signature.backward_signature is not None:
            self.forward = torch.no_grad()(self.forward)  # it has its own gradients

    def _run_again(self, state: Sequence[Any], inputs: Sequence[Any], error: RuntimeError) -> Any:
        """If the strides of an input allow no view, or not a kernel, run a graph that copies there.
        Nothing has happened so far, since writes stand at the end. (A graph that draws random
        numbers would have drawn them: for such a program only the copying graph is ever used.)"""
        if not self.is_relaxed and any(text in str(error) for text in _LAYOUT_ERRORS):
            self._relax()
            try:
                return self.forward(*state, *inputs)
            except RuntimeError as another:
                error = another
        explain_failure(self.program, self.convention, inputs, error)
        raise error

    def _relax(self) -> None:
        self.is_relaxed = True
        self._use_graph(layout_free_graph(self.graph_module, self.program.reads_views))

    def convert(
        self,
        casts: Mapping[torch.dtype, torch.dtype],
        moves: Mapping[torch.device, torch.device],
    ) -> _Runner:
        casts, moves = compose_changes(self.casts, casts), compose_changes(self.moves, moves)
        convention = call_convention(self.program, self.check_guards, Changes(casts, moves))
        return _Runner(self.program, self.check_guards, convention, casts, moves)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Runner:
        return self


def explain_failure(
    program: Program, convention: Convention, inputs: Sequence[Any], error: RuntimeError
) -> None:
    """If torch's error comes from an input that is not as at capture, raise one that says so.

    Autograd does not let a program write to an input that now requires gradients. A view, or a
    kernel, may work only with the strides of the example.
    """
    is_leaf_written = "leaf Variable that requires grad" in str(error)
    does = next((what for text, what in _LAYOUT_ERRORS.items() if text in str(error)), None)
    captured = zip(inputs, _captured_inputs(program), convention.leaves, strict=True)
    for given, example, leaf in captured:
        if not isinstance(given, torch.Tensor):
            continue
        if is_leaf_written and given.requires_grad and not example.requires_grad:
            raise InputValueError(
                f"{leaf.path} requires gradients, which it did not at capture, and the program "
                f"writes to it\n  fix: pass {leaf.path}.detach(), or capture it again with such "
                "an input",
                leaf.path,
            ) from error
        if does and given.stride() != example.stride():
            fix = f"pass {leaf.path}.contiguous(), or " if example.is_contiguous() else ""
            raise InputValueError(
                f"{leaf.path} has strides {given.stride()}, but the program was captured with "
                f"{tuple(example.stride())}, and {does} that these do not allow\n"
                f"  fix: {fix}capture it again with such an input",
                leaf.path,
            ) from error


_LAYOUT_ERRORS = {
    "view size is not compatible": "takes a view",
    "X.is_contiguous(memory_format)": "has a group_norm",
}
"""Parts of torch's errors about strides, each with what the program does there."""


class LiveProgram:
    """A program that runs on the state of the module that it was captured from, and writes
    there."""

    def __init__(self, program: Program, root: nn.Module) -> None:
        self._runner = _Runner(program, True, call_convention(program, True))
        self._root: Any = _LiveState(root, program.constants)
        self._draws = any(has_effect(n.target) for n in all_nodes(program.graph_module))

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return the inputs of the program if it holds for this call; else raise what is wrong."""
        inputs = self._runner.bind(args, kwargs)
        self._runner.check_state(self._root, inputs)
        return inputs

    def __call__(self, inputs: tuple[Any, ...]) -> Any:
        """Run on inputs that were bound. Layouts are checked only while it runs: if they are not
        those that the program relies on, it raises `InputValueError` and nothing has happened."""
        drawn = torch.get_rng_state() if self._draws else None
        try:
            return self._runner.run(self._root, inputs)
        except RuntimeError as error:
            if drawn is not None:
                torch.set_rng_state(drawn)
            if LAYOUT_ASKED in str(error):
                raise InputValueError(str(error)) from error
            raise


"""A part of the error that a program raises if an input has another layout than it relies on."""


class _LiveState:
    """A module's state, with the constants that a program carries beside it."""

    def __init__(self, root: nn.Module, constants: Mapping[str, Any]) -> None:
        self._module = root
        self._constants = constants

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def compose_changes(first: Mapping[Any, Any], then: Mapping[Any, Any]) -> dict[Any, Any]:
    """Compose two replacements: map each dtype or device at capture to what it is now."""
    return {**then, **{a: then.get(b, b) for a, b in first.items()}}


def _captured_inputs(program: Program) -> list[Any]:
    """The values of the user's inputs at capture."""
    nodes = [n for n in program.graph.nodes if n.op == "placeholder"]
    found = []
    for node, spec in zip(nodes, program.graph_signature.input_specs, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            arg = spec.arg
            constant = arg.value if isinstance(arg, ConstantArgument) else node.meta.get("val")
            found.append(arg if isinstance(arg, CustomObjArgument) else constant)
    return found


def call_convention(
    program: Program, check_guards: bool, changes: Changes = UNCHANGED
) -> Convention:
    root = program.root_signature
    if root is None:
        validate(program)
        raise AssertionError("a program without a root signature was found to be valid")
    return Convention(
        root.in_spec,
        root.out_spec,
        _captured_inputs(program),
        root.forward_arg_names,
        limits_by_name(program.range_constraints) if check_guards else {},
        program.guards if check_guards else (),
        changes,
        root.signature,
    )


def make_rebuild(program: Program, convention: Convention) -> Callable[[Sequence[Any]], Any]:
    """Make a function that builds the result of a call from the values that the program returns,
    without those that it writes."""
    specs = [s for s in program.graph_signature.output_specs if s.kind in RESULTS]
    count = sum(s.kind not in GRADIENTS for s in specs)
    rebuild = convention.rebuild
    if members := {i: s.arg.value for i, s in enumerate(specs) if is_member(s.arg)}:

        def rebuild(values: Sequence[Any]) -> Any:  # the graph has their numbers
            return convention.rebuild([members.get(i, v) for i, v in enumerate(values)])

    if count == len(specs):
        return rebuild

    inputs = [s for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]
    paths = {s.arg.name: x.path for s, x in zip(inputs, convention.leaves, strict=True)}

    sharding = None if program.settings is None else program.settings.sharding
    whole = {f"{n}.{SHARD}": n for n, _ in (sharding.state if sharding is not None else ())}

    def joint(values: Sequence[Any]) -> JointResult:
        parameters, others = GRADIENTS
        pairs = list(zip(specs, values, strict=True))
        return JointResult(
            rebuild(values[:count]),
            {whole.get(str(s.target), str(s.target)): v for s, v in pairs if s.kind is parameters},
            {paths[str(s.target)]: v for s, v in pairs if s.kind is others},
        )

    return joint


def _state_overlap_check(program: Program, convention: Convention) -> StateCheck | None:
    signature = program.graph_signature
    users = [s.arg.name for s in signature.input_specs if s.kind is InputKind.USER_INPUT]
    state = [s for s in signature.input_specs if s.kind is not InputKind.USER_INPUT]
    outputs = signature.output_specs
    targets = {s.target for s in outputs if s.kind in STATE_WRITES and not is_rebound(s)}
    inputs = set(signature.user_inputs_to_mutate.values())
    return state_check(
        [str(s.target) for s in state],
        [x.path for x in convention.leaves],
        {i for i, s in enumerate(state) if s.target in targets},
        {i for i, name in enumerate(users) if name in inputs},
        same_pairs(program),
    )


def input_overlap_check(program: Program, convention: Convention) -> Check | None:
    signature = program.graph_signature
    users = [s.arg.name for s in signature.input_specs if s.kind is InputKind.USER_INPUT]
    targets = set(signature.user_inputs_to_mutate.values())
    written = {i for i, name in enumerate(users) if name in targets}
    paths = [x.path for x in convention.leaves]
    return overlap_check(_captured_inputs(program), paths, written, same_pairs(program))
