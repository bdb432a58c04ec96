"""`export`: from a module and an example call to an ExportedProgram.

This is the driver: it replaces state and inputs by fakes, runs the module under the tracer, makes a
graph of the log, and writes the signature. Must not know how operators are evaluated or recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch._ops import OpOverload

from lostwax import collector
from lostwax.branches import OUTERMOST
from lostwax.capture.attempt import Amend, Attempt, make_attempts
from lostwax.capture.example_call import (
    ExampleArgs,
    argument_names,
    as_call,
    check_leaves,
    flat_names,
    identifier,
    identifiers,
    refuse_unbound,
)
from lostwax.capture.heap.holders import ModuleAttributes
from lostwax.capture.heap.reach import Reach
from lostwax.capture.inputs import CaptureInputs
from lostwax.capture.module_calls import PreservedCalls
from lostwax.capture.patches import autocasting
from lostwax.capture.patches import table as patches
from lostwax.capture.patches.autograd_function import check_hooks
from lostwax.capture.python import functions_run
from lostwax.capture.python.assignments import line_that_reads
from lostwax.capture.python.told_exporting import TellExporting, capture_as_told
from lostwax.capture.relied_layouts import (
    assert_layouts,
    check_replaced_layouts,
    layouts_relied_on,
    list_layouts,
)
from lostwax.capture.repeated_tensors import choose_program
from lostwax.capture.request import Request, find_store
from lostwax.capture.shapes.guards import SortedGuards, range_constraints, sort_guards
from lostwax.capture.sharded import placements
from lostwax.capture.state.argument_containers import find_containers, warn_of_changes
from lostwax.capture.state.global_state import OutsideState
from lostwax.capture.state.module_state import (
    KeptTensor,
    ModuleState,
    is_from_outside,
    kept_tensor_error,
    refuse_scripted,
    warn_of_unread_cache,
)
from lostwax.capture.state.root_module import find_root_module, forward_of
from lostwax.capture.state.unkept_changes import note_change, note_changes, warn_of_change
from lostwax.capture.steps.provenance import Provenance
from lostwax.capture.steps.to_graph import Builder, make_argument_spec
from lostwax.capture.threads import claim_fakes, is_alone, one_at_a_time
from lostwax.capture.trace.grad_marks import (
    NeedsAutograd,
    check_next_gradient,
    check_results,
    keep_own_leaves,
)
from lostwax.capture.trace.gradient_steps import give_own_leaf
from lostwax.capture.trace.python_questions import refuse_version
from lostwax.capture.trace.refusals import refuse_caught, refuse_failed
from lostwax.capture.trace.single_step_composites import read_keep
from lostwax.capture.trace.tracer import Tracer, UserPython
from lostwax.errors import (
    LostwaxError,
    asks_data,
    collect_errors,
)
from lostwax.fake import autocast
from lostwax.fake.mode import retire
from lostwax.fake.symbolic.node import unwrap
from lostwax.fake.tensor import FakeTensor
from lostwax.ir.data import TAKEN_APART, Assumption, ModuleCallSignature, Settings
from lostwax.ir.declared import read_declared
from lostwax.ir.program import ExportedProgram
from lostwax.ir.pytree import call_paths, leaf_paths, unflatten_leaves
from lostwax.ir.run.conditions.settings import settings_now
from lostwax.ir.signature import (
    ArgumentSpec,
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    StateWrite,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from lostwax.ir.trace.log import Value
from lostwax.ops.registry import FAMILIES
from lostwax.sym import Expr
from lostwax.sym.guards import order_guards
from lostwax.undo.undo import Undo, run_and_undo

if TYPE_CHECKING:
    from lostwax.capture.caches import RecordedCall
    from lostwax.capture.shapes.collect import DynamicShapes

FAMILIES.load_common()


def export(
    mod: nn.Module | Callable[..., Any],
    args: ExampleArgs = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: DynamicShapes = None,
    strict: bool = False,
    preserve_module_call_signature: Sequence[str] = (),
    prefer_deferred_runtime_asserts_over_guards: bool = False,
    constraints: Sequence[str] = (),
    keep: Sequence[OpOverload] | Literal["composite"] = (),
    control_flow: Literal["capture", "refuse", "sizes"] = "capture",
    constants: Collection[str] = (),
    tell_exporting: TellExporting = "auto",
) -> ExportedProgram:
    """Capture `mod`, a module, a function or a method, into a functional ATen program.

    `args` and `kwargs` are an example call; tensors stand for all tensors of their size, Python
    values are baked in, but for what `dynamic_shapes` declares to vary (`Dim`). `constraints` are
    relations between dims, `"seq % 8 == 0"`. `keep` names composite operators
    (`[torch.ops.aten.linear.default]`) that stay single nodes; `"composite"`: all that torch.export
    keeps. `preserve_module_call_signature` names submodules (`"layers.0"`) whose arguments and
    results `module_call_graph` is to describe. With `prefer_deferred_runtime_asserts_over_guards`
    each call is checked for relations between Dims that `dynamic_shapes` does not state, instead of
    an error here. Python's `if`, `while` and `for` that depend on data become `cond` and
    `while_loop`; with `control_flow="sizes"` so do those that ask about declared sizes; with
    `"refuse"` they are an error. `constants` names inputs, `{"grid"}` or `{"batch['grid']"}`, whose
    values stay those of the example: Python may read them, and each call is checked.
    `tell_exporting` is what code is told that asks whether it is being exported: yes, and no if
    that is refused; with `"compare"` also if it gives other values for the example. With `strict`,
    what the module's Python does beside its tensors is refused: it must change no object that was
    there before, read nothing outside, and give the same program twice. The module is not changed,
    nothing is computed (but with `"compare"`) and no weight is copied.
    """
    request = Request(
        mod,
        *as_call(args, kwargs),
        keep=read_keep(keep),
        preserved=preserve_module_call_signature,
        control_flow=control_flow,
        strict=strict,
        defers=prefer_deferred_runtime_asserts_over_guards,
        constants=constants,
        tell_exporting=tell_exporting,
    )
    attempt = request.first_attempt(dynamic_shapes, constraints)
    if (store := find_store()) is None:
        return capture_call(request, attempt)
    return store.find_or_make(request, attempt, partial(capture_call, request, attempt))


# ------------------------------------------------------------------------------------ the attempts


def capture_call(request: Request, attempt: Attempt, *amend: Amend) -> ExportedProgram:
    """The program of a request: one attempt after the other, until one makes it. `amend` are asked
    where no `Retry` knows the next."""
    flow = () if request.control_flow == "refuse" else (_amend_flow,)

    def work(undo: Undo) -> ExportedProgram:
        collector.pause(undo.add)
        one_way = partial(make_attempts, partial(_make_attempt, request), amend=(*flow, *amend))
        return capture_as_told(one_way, attempt, request.tell_exporting)

    with one_at_a_time, collect_errors():  # an export within another's module is its own affair
        try:
            return run_and_undo(work)
        except Exception as error:
            from lostwax.errors.of_models import explain_error
            from lostwax.errors.tracebacks import leave_out_own_frames  # most exports raise nothing

            shown = leave_out_own_frames(error)
            if not isinstance(error, LostwaxError):
                explain_error(error, *request.name_tensors())
            raise shown  # noqa: B904


def _amend_flow(attempt: Attempt, error: BaseException) -> Attempt | None:
    """What comes after an error if both ways of the control flow are taken."""
    if not (attempt.plans or attempt.settled is not None or asks_data(error)):
        return None
    from lostwax.capture.flow.retry import amend_refused

    return amend_refused(attempt, error)


def _make_attempt(request: Request, attempt: Attempt) -> ExportedProgram:
    """Capture a call. More captures may be needed to know that the program is right; what stops one
    of them stops the attempt."""
    capture = partial(_capture_and_compare, request)
    if attempt.plans:
        from lostwax.capture.flow.hooked import capture_with_hooks

        capture = partial(capture_with_hooks, capture)
    if request.strict:
        from lostwax.capture.strict.twice import capture_strictly

        capture = partial(capture_strictly, capture)
    program = capture(attempt)
    if attempt.spec is not None and attempt.spec.check_more_calls is not None:
        attempt.spec.check_more_calls(program)
    return program


def _capture_and_compare(request: Request, attempt: Attempt) -> ExportedProgram:
    """The program, if it holds for the next call, too."""

    def capture_once(attempt: Attempt) -> ExportedProgram:
        # What the call sets in variables of its context is gone with the context.
        return copy_context().run(Capture(request, attempt).run)

    def capture() -> ExportedProgram:
        return choose_program(capture_once(attempt), capture_once, attempt)

    program, warned = note_changes(capture)
    if warned:
        from lostwax.capture.next_call import check_next_call

        check_next_call(program, capture, warned[0])
    return program


class Capture:
    """One capture of one call."""

    differentiates = False  # gradients of DTensors, too

    def __init__(self, request: Request, attempt: Attempt) -> None:
        mod, args, kwargs = request.mod, request.args, request.kwargs
        self.call = mod
        self.args, self.kwargs = args, kwargs
        self.root = find_root_module(mod)
        self.state = ModuleState(self.root, self.differentiates)
        self.calls = PreservedCalls(self.state.places, request.preserved)
        provenance = Provenance(self.state.paths, self.calls if request.preserved else None)
        self.tracer = Tracer(provenance, keep=request.keep, tracked=attempt.tracked)
        self.tracer.kernels = attempt.kernels
        self.tracer.tells_exporting = attempt.tells_exporting
        if attempt.asked is not None:
            self.tracer.asked_exporting = attempt.asked
        self.calls.tracer = self.tracer
        self.grad = torch.is_grad_enabled()
        self.settings = settings_now()
        forward = forward_of(mod)
        self.original = read_declared(forward)
        tops = argument_names(forward, len(args), kwargs)
        self.argument_names = [*tops, *kwargs]
        self.leaves, self.in_spec = pytree.tree_flatten((args, kwargs))
        self.names = flat_names(tops, args, kwargs)
        paths = partial(call_paths, self.in_spec, self.argument_names)
        check_leaves(self.leaves, "the input ", paths)
        self.boundary = placements.describe_call(self.leaves, paths, self.differentiates)
        self.leaves = self.boundary.shards
        assert self.tracer.shape_env is not None
        self.env = self.tracer.shape_env
        if attempt.settled is not None:
            from lostwax.capture.flow.sizes import Splits

            splits = self.tracer.splits = Splits(attempt.settled)
            self.env.before_hint = splits.ask
        self.symbols = None
        if attempt.spec is not None:
            from lostwax.capture.shapes.symbols import Symbols

            own = {id(slot.tensor) for slot in self.state.slots}
            self.symbols = Symbols(self.env, attempt.spec, self.leaves, own, attempt.agreed)
        self.attempt = attempt
        self.was_alone = is_alone()
        self.declared: list[Assumption] = []
        """What inputs must be that are constants."""
        self.first_step = 0
        """How many steps there were before the module was called."""
        self.refusals: list[BaseException] = []
        """What of ours was raised, also where the user's code caught it."""
        self.retiring = True
        """Must the fakes refuse to be used afterwards? Another thread may have taken one out of the
        module."""

    def run(self) -> ExportedProgram:
        program = run_and_undo(self._run)
        self.tracer.forget()  # the program's fakes keep the tracer alive
        # Questions that are put to these fakes from now on do not concern the program.
        self.tracer.gradients.differentiable = self.tracer.gradients.enabled = False
        self.env.before_hint = None
        return program if type(self.root) is not nn.Module else _drop_unused_state(program)

    def _run(self, undo: Undo) -> ExportedProgram:
        undo.tell = warn_of_change
        tracer = self.tracer
        claim_fakes(tracer, undo)
        inputs = self.inputs = CaptureInputs(tracer, self.state)
        undo.add(self._retire_fakes)
        inputs.enter_call(self.leaves, self.names, self.symbols, self.attempt)
        tracer.gradients.differentiable = self.grad and inputs.is_differentiable
        tracer.gradients.enabled = self.grad
        check_hooks(tracer, self.state.modules)
        args, kwargs = unflatten_leaves(self.boundary.wrap(inputs.call_leaves), self.in_spec)
        arguments = zip(self.argument_names, (*args, *kwargs.values()), strict=False)
        containers = find_containers(arguments)
        tracer.provenance.catch_calls(self.state.modules, undo)
        attributes = ModuleAttributes(self.state.modules)
        reach = self.reach = Reach(
            self.call, attributes, (args, kwargs), has_lists=bool(self.attempt.plans)
        )
        outside = OutsideState(reach, self.state.modules, undo)
        self.state.replace(attributes, inputs.fakes, outside.places, undo)
        tracer.python = UserPython(self.state.modules, reach, outside, self.state.list_changed)
        patches.apply(tracer, reach, self.state.modules, undo)
        placements.apply(undo)
        around = autocast.is_entered()
        with tracer:
            self._assume_constants()
            with collect_errors() as seen, tracer.provenance.watch_calls(sys._getframe()):
                self.refusals = seen
                out = self._compute_result(args, kwargs)
            refuse_caught(seen)
            tracer.python.check_recomputed()
            autocasting.check(tracer, around)
            inputs.check_gradients(reach.functions)
            warn_of_changes(containers, reach.functions)
            if tracer.outside.state_views:
                self._check_versions()
            returned, self.out_spec = flatten_result(out)
            outputs = self.boundary.unwrap(returned)
            check_leaves(outputs, "the result", lambda: leaf_paths(self.out_spec))
            kept = self._find_changes(outputs)
            if self.grad:
                self._check_gradients(outputs)
            program = self._make_program(outputs)
            if kept:
                self._check_caches(kept, outputs)
            if outside.caches:
                self._check_kept_results()
        outside.warns_of_values = True
        return program

    def _assume_constants(self) -> None:
        if self.attempt.declared:
            from lostwax.capture.shapes.constants import assume_constants, list_values

            with self.tracer.provenance.watch_calls(sys._getframe()):
                assume_constants(self.tracer, self.attempt.declared, self.inputs.call_leaves)
            self.declared = list_values(self.attempt.declared)
            self.first_step = len(self.tracer.region.steps)

    def _compute_result(self, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call the module."""
        try:
            result = functions_run.call_watched(self.call, *args, **kwargs)
            return result if self.tracer.calls is None else self.tracer.calls.end(result)
        except TypeError as error:
            refuse_scripted(error)
            refuse_unbound(error, forward_of(self.call), self.args, self.kwargs)
            refuse_failed(error, self.env, self.refusals)
            raise
        except Exception as error:
            refuse_failed(error, self.env, self.refusals)
            raise

    def _find_changes(self, outputs: list[Any]) -> list[KeptTensor]:
        """Find and check the state that the call replaced; other tensors it left in modules."""
        tracer, inputs = self.tracer, self.inputs
        read = [tensor for tensor, _ in (*tracer.outside.constants, *tracer.outside.state_views)]
        read += [out for out in outputs if is_from_outside(out)]
        constants, ran = tracer.outside.map_constants(), self.reach.functions
        self.reassigned, kept = self.state.find_changes(inputs.fakes, read, ran, constants)
        replaced = inputs.find_replaced(self.reassigned)
        inputs.check_replaced(replaced, outputs)
        inputs.check_ties(self.reassigned, outputs, self.reach.functions)
        check_replaced_layouts(tracer, inputs, replaced, outputs)
        self._warn_of_objects(outputs)
        self._copy_literals([each.held for each in replaced])
        return kept

    def _check_gradients(self, outputs: list[Any]) -> None:
        """Refuse returned leaves that the module made itself, and keep the gradients of results
        that depend only on such leaves."""
        tracer = self.tracer
        check_results(outputs, self.inputs.initial)
        if tracer.gradients.has_own_leaves():
            if not tracer.tracked:
                raise NeedsAutograd
            results = zip(outputs, leaf_paths(self.out_spec, "the result"), strict=True)
            keep_own_leaves(results, tracer.value_of, partial(give_own_leaf, tracer))

    def _warn_of_objects(self, outputs: list[Any]) -> None:
        """Note results and state for which the identity of the object may matter: a caller might
        change the object itself (`m.view.data = ...`), and a program returns only values."""
        if any(is_from_outside(out) and self.inputs.is_view_of_state(out) for out in outputs):
            note_change("a result is itself a tensor that the module keeps, a view of its state")
        for name in self.inputs.find_renamed(self.reassigned):
            note_change(f"{name} is replaced by a view of itself")

    def _check_versions(self) -> None:
        """Refuse code that asks for the version of a tensor if the module keeps views of state: a
        program does not count their writes."""
        line = line_that_reads("_version", self.reach.functions)
        if line is not None:
            tensor, root = self.tracer.outside.state_views[0]
            size = tuple(tensor.shape)
            refuse_version(f"a tensor, in a module that keeps a view {size} of {root.name},", line)

    def _check_caches(self, kept: list[KeptTensor], outputs: list[Any]) -> None:
        """Refuse tensors that the call left in modules, unless they are caches, or nothing reads
        them."""
        shared = [each for each in kept if each.is_shared]
        if shared:
            raise kept_tensor_error(shared[0], "it belongs to a class, and to all modules of it")
        from lostwax.capture.caches import NotACache, check_cache, name_varying_inputs

        tensors = [self.tracer.adopt(each.tensor) for each in kept]
        try:
            first = self._record_call(outputs, self.out_spec)
            first = first._replace(steps=first.steps[self.first_step :])
            inputs = name_varying_inputs(self.inputs, self.attempt.declared)
            unread = check_cache(self.tracer, tensors, inputs, first, self._run_again)
        except NotACache as reason:
            raise kept_tensor_error(kept[0], str(reason)) from None
        for each, tensor in zip(kept, tensors, strict=True):
            if any(tensor is other for other in unread):
                if each.is_registered:
                    raise kept_tensor_error(each, "it depends on inputs, and state_dict() shows it")
                warn_of_unread_cache(each, self.reach.functions)

    def _check_kept_results(self) -> None:
        from lostwax.capture.caches import check_kept_results

        check_kept_results(self.tracer, self.inputs, self.attempt.declared, self._mutations())

    def _run_again(self) -> RecordedCall:
        """Make the call that would come next."""
        leaves = self.boundary.wrap(self.inputs.call_leaves)
        args, kwargs = unflatten_leaves(leaves, self.in_spec)
        with self.tracer.provenance.watch_calls(sys._getframe()):
            out = self._compute_result(args, kwargs)
        returned, spec = flatten_result(out)
        outputs = self.boundary.unwrap(returned)
        self._copy_literals(outputs)
        run = self._record_call(outputs, spec)
        self.tracer.maybe_views.settle(self.env, run.steps, run.results)
        return run

    def _record_call(self, outputs: list[Any], structure: pytree.TreeSpec) -> RecordedCall:
        from lostwax.capture.caches import HeldObjects, RecordedCall

        tracer = self.tracer
        held, writes = HeldObjects(tracer, self.root), bool(self._mutations())
        results = [self._logged_result(o) for o in outputs]
        needed = layouts_relied_on(tracer, self.inputs.named_tensors(), results)
        layouts = frozenset((value, offset, exact) for value, _, offset, exact in needed)
        tensors = [tracer.adopt(o) if isinstance(o, torch.Tensor) else None for o in outputs]
        roots = [None if t is None else t.tracked.root for t in tensors]
        steps = tracer.region.steps
        return RecordedCall(steps, results, roots, structure, layouts, writes, held)

    def _more_outputs(self) -> list[tuple[tuple[OutputKind, str | None], Value]]:
        """The outputs of the program after the results."""
        return []

    def _output_kind(self, index: int) -> OutputKind:
        """The kind of the result with this index."""
        return OutputKind.USER_OUTPUT

    # ------------------------------------------------------------------------------- the program

    def _make_program(self, outputs: list[Any]) -> ExportedProgram:
        mutations = self._mutations()
        self._copy_literals(outputs)
        results, more = [self._logged_result(o) for o in outputs], self._more_outputs()
        builder = Builder(self.tracer, self.tracer.origins, self.grad)
        input_specs = self._input_specs(builder)
        values = [v for _, v, _ in mutations] + results + [v for _, v in more]
        if self.tracer.regions.ended or self.tracer.regions.raised:
            from lostwax.capture.control.lifting import check_leaks

            check_leaks(self.tracer, values)
        assert_layouts(self.tracer, self.inputs, builder, values)
        self.tracer.maybe_views.settle(self.env, self.tracer.region.steps, values)
        guards = self._sort_guards()
        promises = self.symbols.promises if self.symbols else ()
        seen = self.calls.values()
        builder.add_steps(self.tracer.region, [*values, *seen], guards.in_graph)
        entered = {id(v): make_argument_spec(v, builder.node(v)) for v in seen}
        node = builder.add_output(values)
        names: Any = node.args[0]
        kinds = [kind for kind, _, _ in mutations]
        kinds += [(self._output_kind(i), None) for i in range(len(results))]
        kinds += [kind for kind, _ in more]
        specs = [
            OutputSpec(
                kind, make_argument_spec(value, arg), self._output_target(kind, of, input_specs)
            )
            for (kind, of), value, arg in zip(kinds, values, names, strict=True)
        ]
        for spec, (_, _, way) in zip(specs, mutations, strict=False):
            spec.write = way
        signature = ExportGraphSignature(input_specs, specs)
        layouts = list_layouts(self.tracer, self.inputs, values)
        questions = self.tracer.observer.questions
        assumed = self.inputs.list_assumptions(questions, self.grad, self.constant_names)
        module = builder.make_module()
        module.meta[TAKEN_APART] = tuple(self.tracer.provenance.wholes.values())
        if isinstance(self.root, torch.fx.GraphModule) and "custom" in self.root.meta:
            module.meta["custom"] = self.root.meta["custom"]  # the user's own notes
        ranges = range_constraints(self.env, self._declared_sizes())
        for delegate in self.tracer.delegates:
            delegate.give_ranges(ranges)
        return ExportedProgram(
            graph_module=module,
            graph_signature=signature,
            state_dict=dict(self.state.persistent),
            constants=self.constants,
            range_constraints=ranges,
            module_call_graph=self.calls.make_entries(
                self._call_signature(signature), lambda v: entered[id(v)]
            ),
            example_inputs=self.boundary.cut_example(self.args, self.kwargs),
            guards=order_guards([*promises, *guards.on_call]),
            settings=self._note_asked(module),
            training=None if type(self.state.root) is nn.Module else self.state.root.training,
            assumptions=(*self.declared, *assumed, *layouts),
            reads_views=not self.tracer.layout_assumptions.relies_on_view,
        )

    def _note_asked(self, module: torch.fx.GraphModule) -> Settings:
        """How torch was set, and what code was told that asked whether it is exported."""
        told, asked = self.attempt.tells_exporting, (*self.tracer.asked_exporting,)
        noted = self.settings._replace(exporting=told, asked=asked)
        return placements.note_sharding(noted, module, self.boundary, self.state.wrappers)

    def _sort_guards(self) -> SortedGuards:
        unnamed = self.symbols.unnamed if self.symbols else frozenset()
        defers = self.symbols is not None and self.symbols.spec.defers
        origins, steps = self.tracer.origins, self.tracer.region.steps
        found = sort_guards(self.env, origins, steps, unnamed, defers)
        if found.violations and self.symbols:
            from lostwax.capture.shapes.violations import violation_error

            raise violation_error(found.violations, self.symbols.spec, self.env)
        return found

    def _declared_sizes(self) -> list[Expr]:
        values = self.symbols.values if self.symbols else ()
        flat = [s for v in values for s in (v if isinstance(v, tuple) else (v,))]
        return [s for s in flat if isinstance(s, Expr)]

    def _output_target(
        self, kind: OutputKind, target: str | None, inputs: Sequence[InputSpec]
    ) -> str | None:
        """The name of the state or input that an output belongs to. Inputs go by their names in
        the graph."""
        if kind not in (OutputKind.USER_INPUT_MUTATION, OutputKind.GRADIENT_TO_USER_INPUT):
            return target
        users = [spec.arg.name for spec in inputs if spec.kind is InputKind.USER_INPUT]
        return dict(zip(self.inputs.names, users, strict=True))[target or ""]

    def _copy_literals(self, outputs: list[Any]) -> None:
        """Copy tensor literals that are returned or put in the place of state: each run of the
        module makes a new tensor there, so it must not be the constant that the program keeps."""
        for output in outputs:
            if isinstance(output, torch.Tensor):
                root = self.tracer.adopt(output).tracked.root
                if root.value.is_literal:
                    literal = self.tracer.temporary(root.value)
                    copy = self.tracer.evaluate(torch.ops.aten.clone.default, (literal,), {})
                    root.write(self.tracer.value_of(copy))

    def _logged_result(self, output: Any) -> Any:
        if isinstance(output, torch.Tensor):
            return self.tracer.value_of(self.tracer.adopt(output))
        return unwrap(output)

    def _mutations(self) -> list[tuple[tuple[OutputKind, str | None], Value, StateWrite | None]]:
        """The values that the program writes: first to parameters and buffers (and how), then to
        the user's inputs."""
        kinds = {
            "parameter": OutputKind.PARAMETER_MUTATION,
            "buffer": OutputKind.BUFFER_MUTATION,
        }
        found: list[tuple[tuple[OutputKind, str | None], Value, StateWrite | None]] = []
        written = self.tracer.gradients.written_without_autograd
        state = self.inputs.state_values() if written else {}
        unseen = [slot for value, slot in state.items() if value in written]
        for slot, value, way in self.inputs.written_state(self.reassigned, self.grad):
            if slot in unseen:
                check_next_gradient(f"the {slot.kind} {slot.name}", value)
            found.append(((kinds[slot.kind], slot.name), value, way))
        for name, value in self.inputs.written_inputs():
            found.append(((OutputKind.USER_INPUT_MUTATION, name), value, None))
        return found

    def _retire_fakes(self) -> None:
        if self.retiring:
            retire(self.inputs.fakes.values())

    def _input_specs(self, builder: Builder) -> list[InputSpec]:
        """Placeholders and their specs: parameters, buffers, constants, then the user's inputs."""
        inputs, slots = self.inputs, self.state.slots
        self.retiring = not (self.was_alone and is_alone())
        names = builder.add_placeholders(
            identifiers(inputs.for_each_slot("p_", "b_"), [slot.name for slot in slots]),
            [inputs.initial[id(fake)] for _, fake in inputs.slots],
            self.retiring,
        )
        parameter, buffer = InputKind.PARAMETER, InputKind.BUFFER
        specs = [
            InputSpec(parameter, TensorArgument(name), slot.name)
            if slot.kind == "parameter"
            else InputSpec(buffer, TensorArgument(name), slot.name, slot.is_persistent)
            for slot, name in zip(slots, names, strict=True)
        ]
        self.constant_names: list[str] = []
        self.constants: dict[str, Any] = dict(self.state.non_persistent)
        paths = self.state.find_attribute_paths() if self.tracer.outside.constants else {}
        numbered = self._constant_names([*chain.from_iterable(paths.values())])
        for tensor, value in self.tracer.outside.constants:
            path, *others = paths.get(id(tensor)) or (next(numbered),)
            self.constants.update(dict.fromkeys((path, *others), tensor))
            self.constant_names.append(path)
            node = builder.add_placeholder(f"c_{identifier(path)}", value, value.fake)
            specs.append(InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), path))
        for i, (leaf, name) in enumerate(zip(inputs.call_leaves, inputs.names, strict=True)):
            add = self._add_repeated_input if i in inputs.doubles else self._add_user_input
            specs.append(InputSpec(InputKind.USER_INPUT, add(builder, name, leaf), None))
        return specs

    def _constant_names(self, taken: Collection[str]) -> Iterator[str]:
        """Names for constants that the module has no name for."""
        for name in map("lifted_tensor_{}".format, count()):
            known = any(name in slot.names for slot in self.state.slots)
            if name not in taken and not known and not hasattr(self.root, name):
                yield name

    def _add_user_input(self, builder: Builder, name: str, leaf: Any) -> ArgumentSpec:
        if isinstance(leaf, FakeTensor):
            value = self.inputs.initial[id(leaf)]
            return TensorArgument(builder.add_placeholder(name, value, value.fake).name)
        if isinstance(leaf, (torch.SymInt, torch.SymFloat)) and id(leaf) in self.inputs.initial:
            placed = builder.add_placeholder(name, self.inputs.initial[id(leaf)], leaf).name
            is_int = isinstance(leaf, torch.SymInt)
            return SymIntArgument(placed) if is_int else SymFloatArgument(placed)
        return ConstantArgument(builder.add_placeholder(name, None, leaf).name, leaf)

    def _add_repeated_input(self, builder: Builder, name: str, fake: FakeTensor) -> ArgumentSpec:
        """Add a placeholder that is not read: the same tensor comes in another place, too."""
        first = self.inputs.initial[id(fake)].fake
        return TensorArgument(builder.add_placeholder(name, None, first).name)

    def _call_signature(self, signature: ExportGraphSignature) -> ModuleCallSignature:
        inputs = [s.arg for s in signature.input_specs if s.kind is InputKind.USER_INPUT]
        results = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
        outputs = [s.arg for s in signature.output_specs if s.kind in results]
        return ModuleCallSignature(
            inputs, outputs, self.in_spec, self.out_spec, self.argument_names, self.original
        )


OUTERMOST.add(Capture._compute_result.__code__)


def _drop_unused_state(program: ExportedProgram) -> ExportedProgram:
    """The program of a function, without state that it does not read."""
    inputs = zip(program.graph.nodes, program.graph_signature.input_specs, strict=False)
    if all(n.users for n, spec in inputs if spec.kind in (_PARAMETER, _BUFFER)):
        return program
    from lostwax.ir.passes.transforms.unused import UnusedState

    return UnusedState().run(program)


_PARAMETER, _BUFFER = InputKind.PARAMETER, InputKind.BUFFER


def flatten_result(out: Any) -> tuple[list[Any], pytree.TreeSpec]:
    """The leaves of what the module returns; lists that hooks have made are lists."""
    outputs, spec = pytree.tree_flatten(out)
    if any(isinstance(each, (list, dict, set)) for each in outputs):
        from lostwax.capture.flow.lists.growing import make_plain

        return pytree.tree_flatten(make_plain(out))
    return outputs, spec
