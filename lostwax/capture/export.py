"""`export`: from a module and an example call to an ExportedProgram.

The driver: state and inputs become fakes, the module runs under the tracer, the log becomes a
graph, the signature says what is what. Must not know how operators are evaluated or recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch._ops import OpOverload

from lostwax import collector
from lostwax.branches import OUTERMOST
from lostwax.capture import caches
from lostwax.capture.aliasing.input_layouts import Note
from lostwax.capture.example_call import (
    argument_names,
    as_call,
    check_leaves,
    flat_names,
    identifier,
    identifiers,
    leaves_of,
)
from lostwax.capture.inputs import Given
from lostwax.capture.module_calls import Calls
from lostwax.capture.patches import autocasting
from lostwax.capture.patches import table as patches
from lostwax.capture.patches.autograd_function import check_hooks
from lostwax.capture.python import functions_run
from lostwax.capture.python.assignments import functions_of, line_that_reads
from lostwax.capture.python.reachable import held_functions
from lostwax.capture.repeated_tensors import for_either
from lostwax.capture.replaced_layouts import check_relaid
from lostwax.capture.shapes.collect import AdditionalInputs
from lostwax.capture.shapes.dims import marks_of
from lostwax.capture.shapes.guards import range_constraints, sort_guards
from lostwax.capture.shapes.spec import Spec, resolve_spec
from lostwax.capture.shapes.symbols import Symbols
from lostwax.capture.shapes.violations import violation_error
from lostwax.capture.state import global_state
from lostwax.capture.state.argument_containers import find_containers, tell_of_changes
from lostwax.capture.state.module_state import (
    KeptTensor,
    ModuleState,
    is_from_outside,
    kept_tensor_error,
    refuse_scripted,
)
from lostwax.capture.state.root_module import find_root_module, forward_of
from lostwax.capture.state.unkept_changes import note_change, tell_of_change
from lostwax.capture.steps.provenance import Provenance
from lostwax.capture.steps.to_graph import Builder
from lostwax.capture.threads import claim, is_alone, one_at_a_time
from lostwax.capture.trace.grad_marks import (
    UntrackedError,
    check_next_gradient,
    check_results,
    keep_own_leaves,
)
from lostwax.capture.trace.gradient_steps import give_own_leaf
from lostwax.capture.trace.python_questions import refuse_version
from lostwax.capture.trace.refusals import refuse_what_cpp_refuses
from lostwax.capture.trace.tracer import Tracer
from lostwax.errors import (
    CaptureError,
    DataDependentError,
    LostwaxError,
    MissingFakeRuleError,
    NotYetError,
    UnsupportedFakeError,
    collect_errors,
)
from lostwax.fake import autocast
from lostwax.fake.mode import retire
from lostwax.fake.symbolic.node import unwrap
from lostwax.fake.tensor import FakeTensor
from lostwax.fake.undo import Undo, undone
from lostwax.ir.data import ModuleCallSignature, Question
from lostwax.ir.declared import declared
from lostwax.ir.passes.transforms.unused import UnusedState
from lostwax.ir.program import ExportedProgram
from lostwax.ir.pytree import call_paths, leaf_paths, put_together
from lostwax.ir.run.module import LAYOUT_ASKED
from lostwax.ir.run.questions import OFFSET, STRIDES, VISIBLE_STRIDES, answer
from lostwax.ir.run.settings import settings_now
from lostwax.ir.signature import (
    ArgumentSpec,
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    StateWrite,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from lostwax.ir.trace.log import Value
from lostwax.sym import BoolExpr, Expr
from lostwax.sym.guards import put_divisions_last
from lostwax.sym.numbers.real import Real


def export(
    mod: nn.Module | Callable[..., Any],
    args: Any,
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    constraints: Sequence[str] = (),
    strict: bool = False,
    preserve_module_call_signature: Sequence[str] = (),
    keep: Sequence[OpOverload] = (),
) -> ExportedProgram:
    """Capture a module, a function or a method into a functional ATen program.

    `args` and `kwargs` are an example call; tensors stand for all tensors of their size, Python
    values are baked in, but for what `dynamic_shapes` declares to vary (`Dim`). `constraints` are
    relations between dims, `"seq % 8 == 0"`. `keep` names composite operators
    (`torch.ops.aten.linear.default`) that stay single nodes. `preserve_module_call_signature` names
    submodules (`"layers.0"`) whose arguments and results `module_call_graph` is to describe. The
    module is not changed, nothing is computed and no weight is copied.
    """
    if strict:
        raise NotYetError("strict=True", "the default, strict=False, runs the module's own Python")
    _check_keep(keep)
    call_args, call_kwargs = as_call(args, kwargs)
    spec = None
    if dynamic_shapes is not None or constraints or _is_marked(call_args, call_kwargs):
        spec = resolve_spec(dynamic_shapes, mod, call_args, call_kwargs, constraints)
    preserved = preserve_module_call_signature
    program = export_call(mod, call_args, call_kwargs, spec, frozenset(keep), preserved)
    if isinstance(dynamic_shapes, AdditionalInputs):
        dynamic_shapes.check(program)
    return program


def export_call(
    mod: nn.Module | Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    spec: Spec | None,
    keep: frozenset[OpOverload] = frozenset(),
    preserved: Sequence[str] = (),
) -> ExportedProgram:
    """The same of a call that was looked at: `spec` says what varies in it."""
    call = (mod, args, kwargs, spec, keep, preserved)

    def captured(*more: bool) -> ExportedProgram:
        try:
            return Capture(*call, False, *more).run()
        except UntrackedError:
            pass  # outside of here, which would keep the first capture alive
        return Capture(*call, True, *more).run()

    with one_at_a_time:
        return for_either(captured(), lambda agreed: captured(True, agreed))


class Capture:
    """One capture."""

    def __init__(
        self,
        mod: nn.Module | Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        spec: Spec | None,
        keep: frozenset[OpOverload],
        preserved: Sequence[str],
        tracked: bool,
        apart: bool = False,
        agreed: bool = True,
    ) -> None:
        """`apart`: one tensor in several places is several that share memory. `agreed`: it has the
        same sizes in all of them."""
        self.call = mod
        self.args, self.kwargs = args, kwargs
        self.root = find_root_module(mod)
        self.state = ModuleState(self.root)
        self.calls = Calls(self.state.places, preserved)
        provenance = Provenance(self.state.paths, self.calls if preserved else None)
        self.tracer = self.calls.tracer = Tracer(provenance, keep=keep, tracked=tracked)
        self.grad = torch.is_grad_enabled()
        self.settings = settings_now()
        forward = forward_of(mod)
        self.original = declared(forward)
        tops = argument_names(forward, len(args), kwargs)
        self.argument_names = [*tops, *kwargs]
        self.leaves, self.in_spec = pytree.tree_flatten((args, kwargs))
        self.names = flat_names(tops, args, kwargs)
        check_leaves(
            self.leaves, "the input ", lambda: call_paths(self.in_spec, self.argument_names)
        )
        assert self.tracer.shape_env is not None
        self.env = self.tracer.shape_env
        own = {id(slot.tensor) for slot in self.state.slots} if spec is not None else ()
        self.symbols = None if spec is None else Symbols(self.env, spec, self.leaves, own, agreed)
        self.apart = apart
        self.was_alone = is_alone()
        self.retiring = True
        """Another thread may have taken a fake out of the module, and is to learn so."""

    def run(self) -> ExportedProgram:
        program = undone(self._run)
        self.tracer.forget()  # the program's fakes keep the tracer alive
        # What they are asked now is not asked by the program.
        self.tracer.differentiable = self.tracer.sees_gradients = False
        return program if type(self.root) is not nn.Module else _trimmed(program)

    def _run(self, undo: Undo) -> ExportedProgram:
        undo.tell = tell_of_change
        collector.pause(undo.add)
        tracer = self.tracer
        claim(tracer, undo)
        given = self.given = Given(tracer, self.state)
        undo.add(self._retire)
        given.enter(self.leaves, self.names, self.symbols, self.apart)
        tracer.differentiable = self.grad and given.is_differentiable
        tracer.sees_gradients = self.grad
        check_hooks(tracer, self.state.modules)
        args, kwargs = put_together(given.users, self.in_spec)
        containers = find_containers(
            zip(self.argument_names, (*args, *kwargs.values()), strict=False)
        )
        functions = held_functions(self.state.modules)  # before caught calls are among them
        tracer.provenance.catch_calls(self.state.modules, undo)
        self.state.replace(given.fakes, undo)
        kept_before = global_state.restore_later(self.call, functions, self.state.modules, undo)
        patches.apply(tracer, self.call, functions, self.state.modules, undo)
        around = autocast.is_entered()
        with tracer:
            with collect_errors() as refusals, tracer.provenance.watching(sys._getframe()):
                out = self._result_of(args, kwargs)
            _check_caught(refusals)
            autocasting.check(tracer, around)
            given.check_gradients()
            tell_of_changes(containers)
            if tracer.state_views:  # which are themselves until an operator gets them
                self._check_versions()
            outputs, self.out_spec = pytree.tree_flatten(out)
            check_leaves(outputs, "the result", lambda: leaf_paths(self.out_spec))
            read = [tensor for tensor, _ in (*tracer.constants, *tracer.state_views)]
            read += [out for out in outputs if is_from_outside(out)]
            self.reassigned, kept = self.state.find_changes(given.fakes, read, self.call)
            replaced = given.replaced(self.reassigned)
            given.check_replaced(replaced, outputs)
            check_relaid(tracer, given, replaced, outputs)
            self._tell_of_objects(outputs)
            self._copy_literals([each.held for each in replaced])
            if self.grad:
                check_results(outputs, given.initial)
                if tracer.grad_marks.has_own_leaves():
                    if not tracer.tracked:
                        raise UntrackedError
                    paths = leaf_paths(self.out_spec, "the result")
                    results = zip(outputs, paths, strict=True)
                    keep_own_leaves(results, tracer.value_of, partial(give_own_leaf, tracer))
            program = self._program(outputs)
            if kept:
                self._check_caches(kept, outputs)
        global_state.tell_of_numbers(self.call, self.state.modules, kept_before, undo)
        return program

    def _result_of(self, args: Any, kwargs: dict[str, Any]) -> Any:
        """What the program computes."""
        try:
            return functions_run.call_watched(self.call, *args, **kwargs)
        except TypeError as error:
            refuse_scripted(error)
            raise
        except RuntimeError as error:
            refuse_what_cpp_refuses(error)
            raise

    def _tell_of_objects(self, outputs: list[Any]) -> None:
        """A program has the values of tensors, not the very objects: who would go on to change
        those (`m.view.data = ...`) can do without a program."""
        if any(is_from_outside(out) and self.given.is_view_of_state(out) for out in outputs):
            note_change("a result is itself a tensor that the module keeps, a view of its state")
        for name in self.given.renamed(self.reassigned):
            note_change(f"{name} is replaced by a view of itself")

    def _check_versions(self) -> None:
        """How often a view of state was written to is nothing that a program knows."""
        line = line_that_reads("_version", functions_of(self.call, self.state.modules))
        if line is not None:
            tensor, root = self.tracer.state_views[0]
            size = tuple(tensor.shape)
            refuse_version(f"a tensor, in a module that keeps a view {size} of {root.name},", line)

    def _check_caches(self, kept: list[KeptTensor], outputs: list[Any]) -> None:
        """Tensors that the call left in modules are no matter if they are caches."""
        shared = [each for each in kept if each.is_shared]
        if shared:
            raise kept_tensor_error(shared[0], "it belongs to a class, and to all modules of it")
        tensors = [self.tracer.adopt(each.tensor) for each in kept]
        try:
            first = self._recorded(outputs, self.out_spec)
            caches.check(self.tracer, tensors, self.given.tensors(), first, self._next)
        except caches.NoCache as reason:
            raise kept_tensor_error(kept[0], str(reason)) from None

    def _next(self) -> caches.Run:
        """The call that would come next."""
        args, kwargs = put_together(self.given.users, self.in_spec)
        with self.tracer.provenance.watching(sys._getframe()):
            out = self._result_of(args, kwargs)
        outputs, spec = pytree.tree_flatten(out)
        self._copy_literals(outputs)
        run = self._recorded(outputs, spec)
        self.tracer.doubts.settle(self.env, run.steps, run.results)
        return run

    def _recorded(self, outputs: list[Any], structure: pytree.TreeSpec) -> caches.Run:
        tracer = self.tracer
        held, writes = caches.Held(tracer, self.root), bool(self._mutations())
        results = [self._result(o) for o in outputs]
        needed = self._layouts(self.given.tensors(), results)
        layouts = frozenset((value, offset, exact) for value, _, offset, exact in needed)
        tensors = [tracer.adopt(o) if isinstance(o, torch.Tensor) else None for o in outputs]
        roots = [None if t is None else t.tracked.root for t in tensors]
        steps = tracer.region.steps
        return caches.Run(steps, results, roots, structure, layouts, writes, held)

    def _more_outputs(self) -> list[tuple[tuple[OutputKind, str | None], Value]]:
        """What the program returns after the results."""
        return []

    def _kind(self, index: int) -> OutputKind:
        """What a result is."""
        return OutputKind.USER_OUTPUT

    # ------------------------------------------------------------------------------- the program

    def _program(self, outputs: list[Any]) -> ExportedProgram:
        mutations = self._mutations()
        self._copy_literals(outputs)
        results, more = [self._result(o) for o in outputs], self._more_outputs()
        builder = Builder(self.tracer, self.tracer.origins, self.grad)
        inputs = self._input_specs(builder)
        values = [v for _, v, _ in mutations] + results + [v for _, v in more]
        self._layout_assertions(builder, values)
        self.tracer.doubts.settle(self.env, self.tracer.region.steps, values)
        unnamed = self.symbols.unnamed if self.symbols else frozenset()
        found = sort_guards(self.env, self.tracer.origins, unnamed)
        if found.violations and self.symbols:
            raise violation_error(found.violations, self.symbols.spec)
        seen = self.calls.values()
        builder.body(self.tracer.region, [*values, *seen], found.in_graph)
        entered = {id(v): _argument(v, builder.node(v)) for v in seen}
        node = builder.output(values)
        names: Any = node.args[0]
        kinds = [kind for kind, _, _ in mutations]
        kinds += [(self._kind(i), None) for i in range(len(results))]
        kinds += [kind for kind, _ in more]
        specs = [
            OutputSpec(kind, _argument(value, arg), self._target(kind, target, inputs))
            for (kind, target), value, arg in zip(kinds, values, names, strict=True)
        ]
        for spec, (_, _, way) in zip(specs, mutations, strict=False):
            spec.write = way
        signature = ExportGraphSignature(inputs, specs)
        state_dict, constants = self._tensors()
        asked = self.tracer.observer.questions
        return ExportedProgram(
            graph_module=builder.module(),
            graph_signature=signature,
            state_dict=state_dict,
            constants=constants,
            range_constraints=range_constraints(self.env, self._declared_sizes()),
            module_call_graph=self.calls.entries(
                self._call_signature(signature), lambda v: entered[id(v)]
            ),
            example_inputs=(self.args, self.kwargs),
            guards=put_divisions_last(
                [*(self.symbols.promises if self.symbols else ()), *found.on_call]
            ),
            settings=self.settings,
            training=None if type(self.state.root) is nn.Module else self.state.root.training,
            asks=self.given.asks(asked, self.grad, self._state_layouts(values)),
            reads_views=not self.tracer.relies_on_view,
        )

    def _declared_sizes(self) -> list[Expr]:
        values = self.symbols.values if self.symbols else ()
        flat = [s for v in values for s in (v if isinstance(v, tuple) else (v,))]
        return [s for s in flat if isinstance(s, Expr)]

    def _target(
        self, kind: OutputKind, target: str | None, inputs: Sequence[InputSpec]
    ) -> str | None:
        """What an output belongs to: an input by the name that the graph has for it."""
        if kind not in (OutputKind.USER_INPUT_MUTATION, OutputKind.GRADIENT_TO_USER_INPUT):
            return target
        users = [spec.arg.name for spec in inputs if spec.kind is InputKind.USER_INPUT]
        return dict(zip(self.given.names, users, strict=True))[target or ""]

    def _layout_assertions(self, builder: Builder, outputs: list[Any]) -> None:
        """Where the program holds for the example's strides alone, it asks for them."""
        names = self.given.tensors()
        for value, notes, offset, exact in self._layouts(names, outputs):
            assert value.type is not None
            name, t = names[value], value.type
            note = next(n for n in notes if n.offset or not offset)
            place = f" and storage offset {t.offset}" if offset else ""
            copy = "clone()" if offset else "contiguous()"
            if exact and any(size == 1 or not isinstance(size, int) for size in t.size):
                copy = "clone(memory_format=torch.contiguous_format)"
            fix = f"pass {name}.{copy}, or " if t.is_contiguous else ""
            text = (
                f"the input {name} must have strides {tuple(t.stride)}{place}, {LAYOUT_ASKED}\n"
                f"  because of {note.what} at {note.where}\n"
                f"  fix: {fix}capture it again with such an input"
            )
            empty = any(n.empty for n in notes)
            builder.layout_assertion(value, offset, empty, exact, text)

    def _state_layouts(self, outputs: list[Any]) -> list[Question]:
        """The same of the state: a graph does not assert what a module has itself."""
        found: list[Question] = []
        if not self.tracer.reliance.notes:
            return found
        slots = self.given.state_values()
        names = {value: slot.name for value, slot in slots.items()}
        for value, notes, offset, exact in self._layouts(names, outputs):
            tensor, of = slots[value].tensor, (names[value],)
            asked = [STRIDES if exact else VISIBLE_STRIDES, *([OFFSET] if offset else ())]
            found += [Question(q, of, answer(q, tensor), str(notes[0].where)) for q in asked]
        return found

    def _layouts(
        self, inputs: Mapping[Value, str], outputs: list[Any]
    ) -> list[tuple[Value, list[Note], bool, bool]]:
        """The inputs whose strides matter, because of what, and whether their offset does, too, and
        the strides of dimensions of size 1."""
        found = self.tracer.reliance.inputs(inputs, self.tracer.region.steps, outputs)
        return [
            (v, notes, any(n.is_place_of(inputs[v]) for n in notes), any(n.exact for n in notes))
            for v, notes in found.items()
        ]

    def _copy_literals(self, outputs: list[Any]) -> None:
        """A tensor literal is a new tensor in each run of the module: what is returned of it must
        not be the constant that the program keeps; nor what is put in the place of state."""
        for output in outputs:
            if isinstance(output, torch.Tensor):
                root = self.tracer.adopt(output).tracked.root
                if root.value.is_literal:
                    literal = self.tracer.temporary(root.value)
                    copy = self.tracer.evaluate(torch.ops.aten.clone.default, (literal,), {})
                    root.write(self.tracer.value_of(copy))

    def _result(self, output: Any) -> Any:
        if isinstance(output, torch.Tensor):
            return self.tracer.value_of(self.tracer.adopt(output))
        return unwrap(output)

    def _mutations(self) -> list[tuple[tuple[OutputKind, str | None], Value, StateWrite | None]]:
        """What the program writes: buffers and parameters first, then the user's inputs. Of state,
        how."""
        kinds = {
            "parameter": OutputKind.PARAMETER_MUTATION,
            "buffer": OutputKind.BUFFER_MUTATION,
        }
        found: list[tuple[tuple[OutputKind, str | None], Value, StateWrite | None]] = []
        state = self.given.state_values() if self.tracer.overwritten_unseen else {}
        unseen = [slot for value, slot in state.items() if value in self.tracer.overwritten_unseen]
        for slot, value, way in self.given.written_state(self.reassigned, self.grad):
            if slot in unseen:
                check_next_gradient(f"the {slot.kind} {slot.name}", value)
            found.append(((kinds[slot.kind], slot.name), value, way))
        for name, value in self.given.written_inputs():
            found.append(((OutputKind.USER_INPUT_MUTATION, name), value, None))
        return found

    def _retire(self) -> None:
        if self.retiring:
            retire(self.given.fakes.values())

    def _input_specs(self, builder: Builder) -> list[InputSpec]:
        """Placeholders and their specs: parameters, buffers, constants, then the user's inputs."""
        given, slots = self.given, self.state.slots
        self.retiring = not (self.was_alone and is_alone())
        names = builder.placeholders(
            identifiers(given.for_each_slot("p_", "b_"), [slot.name for slot in slots]),
            [given.initial[id(fake)] for _, fake in given.slots],
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
        paths = _attributes(self.state) if self.tracer.constants else {}
        numbered = self._numbered(paths.values())
        for tensor, value in self.tracer.constants:
            path = paths.get(id(tensor)) or next(numbered)
            self.constant_names.append(path)
            node = builder.placeholder(f"c_{identifier(path)}", value, value.fake)
            specs.append(InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), path))
        for i, (leaf, name) in enumerate(zip(given.users, given.names, strict=True)):
            made = self._again if i in given.doubles else self._user_input
            specs.append(InputSpec(InputKind.USER_INPUT, made(builder, name, leaf), None))
        return specs

    def _numbered(self, taken: Collection[str]) -> Iterator[str]:
        """Names of constants that the module has no name for."""
        for name in map("lifted_tensor_{}".format, count()):
            known = any(name in slot.names for slot in self.state.slots)
            if name not in taken and not known and not hasattr(self.root, name):
                yield name

    def _user_input(self, builder: Builder, name: str, leaf: Any) -> ArgumentSpec:
        if isinstance(leaf, FakeTensor):
            return TensorArgument(self._placeholder(builder, name, leaf))
        if isinstance(leaf, (torch.SymInt, torch.SymFloat)) and id(leaf) in self.given.initial:
            placed = builder.placeholder(name, self.given.initial[id(leaf)], leaf).name
            is_int = isinstance(leaf, torch.SymInt)
            return SymIntArgument(placed) if is_int else SymFloatArgument(placed)
        return ConstantArgument(builder.placeholder(name, None, leaf).name, leaf)

    def _again(self, builder: Builder, name: str, fake: FakeTensor) -> ArgumentSpec:
        """A tensor that the program is given in another place already, and reads there."""
        first = self.given.initial[id(fake)].fake
        return TensorArgument(builder.placeholder(name, None, first).name)

    def _placeholder(self, builder: Builder, name: str, fake: FakeTensor) -> str:
        value = self.given.initial[id(fake)]
        return builder.placeholder(name, value, value.fake).name

    def _tensors(self) -> tuple[dict[str, Any], dict[str, Any]]:
        constants: dict[str, Any] = dict(self.state.non_persistent)
        for name, (tensor, _) in zip(self.constant_names, self.tracer.constants, strict=True):
            constants[name] = tensor
        return dict(self.state.persistent), constants

    def _call_signature(self, signature: ExportGraphSignature) -> ModuleCallSignature:
        inputs = [s.arg for s in signature.input_specs if s.kind is InputKind.USER_INPUT]
        results = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
        outputs = [s.arg for s in signature.output_specs if s.kind in results]
        return ModuleCallSignature(
            inputs, outputs, self.in_spec, self.out_spec, self.argument_names, self.original
        )


OUTERMOST.add(Capture._result_of.__code__)


def _check_caught(seen: Sequence[LostwaxError]) -> None:
    """Eager would not have raised it, and not have gone the way that the program went."""
    for error in seen:
        if isinstance(error, _REFUSALS):
            raise CaptureError(
                f"{error}\n  note: the module's own code caught this error and went on, where "
                "eager would not have raised it"
            ) from error


_REFUSALS = (
    CaptureError,
    DataDependentError,
    MissingFakeRuleError,
    NotYetError,
    UnsupportedFakeError,
)


def _trimmed(program: ExportedProgram) -> ExportedProgram:
    """A function's program carries what it reads: its modules may have more."""
    inputs = zip(program.graph.nodes, program.graph_signature.input_specs, strict=False)
    is_whole = all(n.users for n, spec in inputs if spec.kind in (_PARAMETER, _BUFFER))
    return program if is_whole else UnusedState().run(program)


_PARAMETER, _BUFFER = InputKind.PARAMETER, InputKind.BUFFER


def _check_keep(keep: Any) -> None:
    wrong = (
        [each for each in keep if not isinstance(each, OpOverload)] if _is_many(keep) else [keep]
    )
    if wrong:
        raise TypeError(
            f"keep= takes a list of operators, not {wrong[0]!r}\n"
            "  instead: overloads such as torch.ops.aten.linear.default"
        )


def _is_many(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str)


def _is_marked(*call: Any) -> bool:
    return any(isinstance(x, torch.Tensor) and marks_of(x) for x in leaves_of(*call))


def _argument(value: Any, arg: Any) -> ArgumentSpec:
    if isinstance(value, Value):
        return TensorArgument(arg.name)
    if not isinstance(arg, torch.fx.Node):
        return ConstantArgument("", arg)
    if isinstance(value, Real):
        return SymFloatArgument(arg.name)
    is_bool = isinstance(value, BoolExpr)
    return SymBoolArgument(arg.name) if is_bool else SymIntArgument(arg.name)


def _attributes(state: ModuleState) -> dict[int, str]:
    """Tensors kept in plain attributes, by id: their path."""
    found: dict[int, str] = {}
    for module in state.modules:
        path = state.paths[id(module)]
        for name, value in module.__dict__.items():
            if isinstance(value, torch.Tensor):
                found.setdefault(id(value), f"{path}.{name}" if path else name)
    return found
