"""`export`: from a module and an example call to an ExportedProgram.

The driver: state and inputs become fakes, the module runs under the tracer, the log becomes a
graph, the signature says what is what. Must not know how operators are evaluated or recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from operator import attrgetter, is_
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch._ops import OpOverload
from torch.fx._lazy_graph_module import _LazyGraphModule

from lostwax.capture import caches, control, functions, plain_numbers
from lostwax.capture.build import Builder
from lostwax.capture.calls import Calls
from lostwax.capture.collect import AdditionalInputs
from lostwax.capture.demands import demands, range_constraints
from lostwax.capture.dims import marks_of
from lostwax.capture.functionalize import Root, check_layout
from lostwax.capture.inputs import (
    argument_names,
    as_call,
    check_leaves,
    flat_names,
    identifier,
    identifiers,
    leaves_of,
)
from lostwax.capture.marks import Given, check_results, refuse_replaced, refuse_twice
from lostwax.capture.portable import portable_modules
from lostwax.capture.provenance import Provenance
from lostwax.capture.reliance import Note
from lostwax.capture.spec import Spec, resolve
from lostwax.capture.state import Kept, Slot, State, check_alike, kept_tensor
from lostwax.capture.steps import Value, new_value
from lostwax.capture.symbols import Symbols
from lostwax.capture.tracer import Tracer
from lostwax.capture.violations import report
from lostwax.errors import NotYetError
from lostwax.fake.symnode import unwrap, wrap
from lostwax.fake.tensor import FakeTensor, is_marked, is_marked_leaf
from lostwax.ir import collector
from lostwax.ir.declared import declared
from lostwax.ir.numbers import Origin
from lostwax.ir.program import ExportedProgram, ModuleCallSignature
from lostwax.ir.pytree import call_paths, leaf_paths
from lostwax.ir.signature import (
    ArgumentSpec,
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from lostwax.sym import BoolExpr, Expr
from lostwax.sym.guards import in_order
from lostwax.sym.real import Real


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
        spec = resolve(dynamic_shapes, mod, call_args, call_kwargs, constraints)
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
    with collector.paused():
        try:
            return Capture(mod, args, kwargs, spec, keep, preserved, tracked=False).run()
        except RuntimeError as error:
            if "does not require grad" not in str(error):
                raise
            # The program differentiates inside: autograd must see its operators.
            return Capture(mod, args, kwargs, spec, keep, preserved, tracked=True).run()


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
    ) -> None:
        self.call = mod
        self.args, self.kwargs = args, kwargs
        self.root = module_of(mod)
        self.state = State(self.root)
        self.calls = Calls(self.state.places, preserved)
        provenance = Provenance(self.state.paths, self.calls if preserved else None)
        self.tracer = self.calls.tracer = Tracer(provenance, keep=keep, tracked=tracked)
        self.grad = torch.is_grad_enabled()
        forward = mod.forward if isinstance(mod, nn.Module) else mod
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
        self.symbols = None if spec is None else Symbols(self.env, spec, self.leaves)

    def run(self) -> ExportedProgram:
        tracer = self.tracer
        self.shared: dict[int, Root] = {}
        self.initial: dict[int, Value] = {}
        self.roots: dict[int, Root] = {}
        tensors = [slot.tensor for slot in self.state.slots]
        entered = self._state_entered(tensors)
        self.slots = list(zip(self.state.slots, entered, strict=True))
        self.fakes = dict(zip(map(id, tensors), entered, strict=True))
        values = self.symbols.values if self.symbols else [None] * len(self.leaves)
        flat = self.user_inputs = [
            self._user_value(leaf, name, value)
            for leaf, name, value in zip(self.leaves, self.names, values, strict=True)
        ]
        tracer.differentiable = self.grad and (
            any(tensor.requires_grad for tensor in tensors)
            or any(isinstance(t, torch.Tensor) and t.requires_grad for t in self.leaves)
        )
        functions.check_hooks(tracer, self.state.modules)
        self._find_symbols()
        args, kwargs = pytree.tree_unflatten(flat, self.in_spec)
        with (
            torch.set_grad_enabled(torch.is_grad_enabled()),  # put back, whatever the module does
            self.state.replaced(self.fakes),
            tracer,
            _announced(),
            functions.recorded(tracer),
            portable_modules(self.state.modules),
            control.answered(),
            plain_numbers.taken(tracer),
            control.own_random_numbers(),
        ):
            with tracer.provenance.watching(self.state.modules):
                out = self._result_of(args, kwargs)
            self._check_gradients()
            read = [tensor for tensor, _ in tracer.constants]
            self.reassigned, kept = self.state.after(self.fakes, read)
            outputs, self.out_spec = pytree.tree_flatten(out)
            check_leaves(outputs, "the result", lambda: leaf_paths(self.out_spec))
            if self.grad:
                check_results(outputs, self.initial)
            program = self._program(outputs)
            if kept:
                self._check_caches(kept, outputs)
        tracer.forget()  # the program's fakes keep the tracer alive
        tracer.differentiable = False  # what they are asked now is not asked by the program
        return program

    def _result_of(self, args: Any, kwargs: dict[str, Any]) -> Any:
        """What the program computes."""
        return self.call(*args, **kwargs)

    def _check_caches(self, kept: list[Kept], outputs: list[Any]) -> None:
        """Tensors that the call left in modules are no matter if they are caches."""
        shared = [each for each in kept if each.is_shared]
        if shared:
            raise kept_tensor(shared[0], "it belongs to a class, and to all modules of it")
        tensors = [self.tracer.adopt(each.tensor) for each in kept]
        try:
            first = self._recorded(outputs, self.out_spec)
            caches.check(self.tracer, tensors, self._input_values(), first, self._next)
        except caches.NoCache as reason:
            raise kept_tensor(kept[0], str(reason)) from None

    def _next(self) -> caches.Run:
        """The call that would come next."""
        args, kwargs = pytree.tree_unflatten(self.user_inputs, self.in_spec)
        with self.tracer.provenance.watching(self.state.modules):
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
        needed = self._layouts(self._input_values(), results)
        layouts = frozenset((value, offset) for value, _, offset in needed)
        tensors = [tracer.adopt(o) if isinstance(o, torch.Tensor) else None for o in outputs]
        roots = [None if t is None else t.tracked.root for t in tensors]
        steps = tracer.region.steps
        return caches.Run(steps, results, roots, structure, layouts, writes, held)

    def _check_gradients(self) -> None:
        """What the caller holds must have the gradients it came with."""
        tracer = self.tracer
        if not tracer.tracked and not tracer.grad_marks.given:
            return
        users = zip(self.names, self.leaves, self.user_inputs, strict=False)
        given = [Given("the input", *each) for each in users]
        for slot, fake in self.slots:
            given.append(Given(_KINDS[slot.kind], slot.name, slot.tensor, fake))
        tracer.grad_marks.check(given)

    def _more_outputs(self) -> list[tuple[tuple[OutputKind, str | None], Value]]:
        """What the program returns after the results."""
        return []

    def _kind(self, index: int) -> OutputKind:
        """What a result is."""
        return OutputKind.USER_OUTPUT

    def _user_value(self, leaf: Any, name: str, value: Any) -> Any:
        """What the module is called with in a leaf's place; `value` is symbolic, or None."""
        if isinstance(leaf, torch.Tensor):
            return self._input(leaf, name, value)
        if value is None:
            return leaf
        number = wrap(value)
        self.initial[id(number)] = new_value(None, None, None, number)
        return number

    def _find_symbols(self) -> None:
        """Tell the tracer where the program finds the values of symbols."""
        for symbol, place in self.symbols.places.items() if self.symbols else ():
            value = self.initial[id(self.user_inputs[place.leaf])]
            self.tracer.origins[symbol] = Origin(value, place.dim, place.scale, place.offset)

    def _input(self, tensor: torch.Tensor, name: str, sizes: tuple[Any, ...] | None) -> FakeTensor:
        """What the module is given for a tensor of the user's."""
        tracer = self.tracer
        if sizes is None:
            fake = tracer.fake_tensor_converter.keep(tracer, tensor)
        else:
            fake = tracer.from_tensor(tensor, static_shapes=True, sizes=sizes, source=name)
        return self._entered(fake, "the input", name)

    def _state_entered(self, tensors: list[torch.Tensor]) -> list[FakeTensor]:
        """The inputs of a module's state, which may be many: what `_entered` does, for all."""
        keep, slots = self.tracer.fake_tensor_converter.keep, self.state.slots
        fakes = [keep(self.tracer, tensor) for tensor in tensors]
        kinds, names = self._for_each_slot(*_KINDS.values()), [slot.name for slot in slots]
        storages = {id(fake.fake_storage) for fake in fakes}
        if len(storages) != len(fakes):  # some share memory
            return list(map(self._entered, fakes, kinds, names))
        roots = self.tracer.inputs(fakes, kinds, names)
        ids = list(map(id, fakes))
        self.roots = dict(zip(ids, roots, strict=True))
        self.initial = dict(zip(ids, self.tracer.region.inputs, strict=True))
        self.shared = {id(fake.fake_storage): fake.tracked for fake in fakes}
        return fakes

    def _for_each_slot(self, parameter: str, buffer: str) -> list[str]:
        count = self.state.parameters
        return [parameter] * count + [buffer] * (len(self.state.slots) - count)

    def _entered(self, fake: FakeTensor, kind: str, name: str) -> FakeTensor:
        """An input of the program. One tensor in two places is two inputs that share memory."""
        if fake.tracked is not None:
            if self.tracer.tracked and is_marked(fake):
                refuse_twice(fake.tracked.root, kind, name)
            fake = fake.snapshot()
        root = self.roots[id(fake)] = self.tracer.input(fake, kind, name)
        self.initial[id(fake)] = root.value
        first = self.shared.setdefault(id(fake.fake_storage), root)
        if first is not root:
            first.others = root.others = True
        return fake

    # ------------------------------------------------------------------------------- the program

    def _program(self, outputs: list[Any]) -> ExportedProgram:
        mutations = self._mutations()
        self._copy_literals(outputs)
        results, more = [self._result(o) for o in outputs], self._more_outputs()
        builder = Builder(self.tracer, self.tracer.origins, self.grad)
        inputs = self._input_specs(builder)
        values = [v for _, v in mutations] + results + [v for _, v in more]
        self._layout_assertions(builder, values)
        self.tracer.doubts.settle(self.env, self.tracer.region.steps, values)
        unnamed = self.symbols.unnamed if self.symbols else frozenset()
        found = demands(self.env, self.tracer.origins, unnamed)
        if found.violations and self.symbols:
            raise report(found.violations, self.symbols.spec)
        seen = self.calls.values()
        builder.body(self.tracer.region, [*values, *seen], found.in_graph)
        entered = {id(v): _argument(v, builder.node(v)) for v in seen}
        node = builder.output(values)
        names: Any = node.args[0]
        kinds = [kind for kind, _ in mutations]
        kinds += [(self._kind(i), None) for i in range(len(results))]
        kinds += [kind for kind, _ in more]
        specs = [
            OutputSpec(kind, _argument(value, arg), self._target(kind, target, inputs))
            for (kind, target), value, arg in zip(kinds, values, names, strict=True)
        ]
        signature = ExportGraphSignature(inputs, specs)
        module = _LazyGraphModule(builder.modules, builder.graph)
        state_dict, constants = self._tensors()
        return ExportedProgram(
            graph_module=module,
            graph_signature=signature,
            state_dict=state_dict,
            constants=constants,
            range_constraints=range_constraints(self.env, self._declared_sizes()),
            module_call_graph=self.calls.entries(
                self._call_signature(signature), lambda v: entered[id(v)]
            ),
            example_inputs=(self.args, self.kwargs),
            guards=in_order([*(self.symbols.promised if self.symbols else ()), *found.on_call]),
            training=None if type(self.state.root) is nn.Module else self.state.root.training,
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
        return dict(zip(self.names, users, strict=True))[target or ""]

    def _layout_assertions(self, builder: Builder, outputs: list[Any]) -> None:
        """Where the program holds for the example's strides alone, it asks for them."""
        names = self._input_values()
        for value, note, offset in self._layouts(names, outputs):
            assert value.type is not None
            name, t = names[value], value.type
            place = f" and storage offset {t.offset}" if offset else ""
            copy = "clone()" if offset else "contiguous()"
            fix = f"pass {name}.{copy}, or " if t.is_contiguous else ""
            text = (
                f"the input {name} must have strides {tuple(t.stride)}{place}, as at capture: the "
                f"program relies on them\n  because of {note.what} at {note.where}\n"
                f"  fix: {fix}capture it again with such an input"
            )
            builder.layout_assertion(value, offset, text)

    def _layouts(
        self, inputs: Collection[Value], outputs: list[Any]
    ) -> list[tuple[Value, Note, bool]]:
        """The inputs whose strides matter, because of what, and whether their offset does, too."""
        found = self.tracer.reliance.inputs(inputs, self.tracer.region.steps, outputs)
        return [(v, note, note.offset and note.value is v) for v, note in found.items()]

    def _input_values(self) -> dict[Value, str]:
        """The tensors that the user passes, with their names."""
        named = zip(self.user_inputs, self.names, strict=True)
        return {self.initial[id(x)]: name for x, name in named if isinstance(x, FakeTensor)}

    def _copy_literals(self, outputs: list[Any]) -> None:
        """A tensor literal is a new tensor in each run of the module: what is returned of it must
        not be the constant that the program keeps."""
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

    def _mutations(self) -> list[tuple[tuple[OutputKind, str | None], Value]]:
        """What the program writes: buffers and parameters first, then the user's inputs."""
        found: list[tuple[tuple[OutputKind, str | None], Value]] = []
        for slot, fake in self.slots if self._has_changes() else ():
            new = self._written(slot, fake)
            if new is not None:
                kind = (
                    OutputKind.BUFFER_MUTATION
                    if slot.kind == "buffer"
                    else OutputKind.PARAMETER_MUTATION
                )
                found.append(((kind, slot.name), new))
        for fake, name in zip(self.user_inputs, self.names, strict=True):
            if isinstance(fake, FakeTensor):
                new = self._final(fake)
                if new is not None:
                    found.append(((OutputKind.USER_INPUT_MUTATION, name), new))
        return found

    def _has_changes(self) -> bool:
        """Is anything of the state other than it was?"""
        fakes = [fake for _, fake in self.slots]
        roots = [self.roots[id(fake)] for fake in fakes]
        return bool(
            self.reassigned
            or any(map(_VERSION, roots))
            or not all(map(is_, map(_TRACKED, fakes), roots))
            or not all(map(is_, map(_FAKE_TYPE, fakes), map(_TYPE, roots)))
        )

    def _written(self, slot: Slot, fake: FakeTensor) -> Value | None:
        again = self.reassigned.get(slot.name)
        if again is None:
            return self._final(fake)
        held = self.tracer.adopt(again)
        if self.grad and id(held) not in self.initial and is_marked_leaf(held):
            refuse_replaced(f"{_KINDS[slot.kind]} {slot.name}")
        root = self.roots[id(fake)]
        check_alike(slot, root.type, held.fake_type)
        if held.tracked.root is root and held.fake_type == root.type:  # another name for all of it
            return root.value if root.version else None
        return self.tracer.laid_out(self.initial[id(fake)], self.tracer.value_of(held))

    def _final(self, fake: FakeTensor) -> Value | None:
        """What an input's value is when the program is over; None if it is still the first."""
        root = self.roots[id(fake)]
        if fake.fake_type is not root.type:
            check_layout(root, fake.fake_type)
        if fake.tracked.root is not root:  # `x.data = y`
            return self.tracer.laid_out(self.initial[id(fake)], self.tracer.value_of(fake))
        return root.value if root.version else None

    def _input_specs(self, builder: Builder) -> list[InputSpec]:
        """Placeholders and their specs: parameters, buffers, constants, then the user's inputs."""
        initial = self.initial
        slots = self.state.slots
        names = builder.placeholders(
            identifiers(self._for_each_slot("p_", "b_"), [slot.name for slot in slots]),
            [initial[id(fake)] for _, fake in self.slots],
        )
        parameter, buffer = InputKind.PARAMETER, InputKind.BUFFER
        specs = [
            InputSpec(parameter, TensorArgument(name), slot.name)
            if slot.kind == "parameter"
            else InputSpec(buffer, TensorArgument(name), slot.name, slot.persistent)
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
        for leaf, name in zip(self.user_inputs, self.names, strict=True):
            specs.append(
                InputSpec(InputKind.USER_INPUT, self._user_input(builder, name, leaf), None)
            )
        return specs

    def _numbered(self, taken: Collection[str]) -> Iterator[str]:
        """Names of constants that the module has no name for."""
        for name in map("lifted_tensor_{}".format, count()):
            if name not in taken and not any(name in slot.names for slot in self.state.slots):
                yield name

    def _user_input(self, builder: Builder, name: str, leaf: Any) -> ArgumentSpec:
        if isinstance(leaf, FakeTensor):
            return TensorArgument(self._placeholder(builder, name, leaf))
        if isinstance(leaf, (torch.SymInt, torch.SymFloat)) and id(leaf) in self.initial:
            placed = builder.placeholder(name, self.initial[id(leaf)], leaf).name
            is_int = isinstance(leaf, torch.SymInt)
            return SymIntArgument(placed) if is_int else SymFloatArgument(placed)
        return ConstantArgument(builder.placeholder(name, None, leaf).name, leaf)

    def _placeholder(self, builder: Builder, name: str, fake: FakeTensor) -> str:
        value = self.initial[id(fake)]
        return builder.placeholder(name, value, value.fake).name

    def _tensors(self) -> tuple[dict[str, Any], dict[str, Any]]:
        constants: dict[str, Any] = dict(self.state.passing)
        for name, (tensor, _) in zip(self.constant_names, self.tracer.constants, strict=True):
            constants[name] = tensor
        return dict(self.state.kept), constants

    def _call_signature(self, signature: ExportGraphSignature) -> ModuleCallSignature:
        inputs = [s.arg for s in signature.input_specs if s.kind is InputKind.USER_INPUT]
        results = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
        outputs = [s.arg for s in signature.output_specs if s.kind in results]
        return ModuleCallSignature(
            inputs, outputs, self.in_spec, self.out_spec, self.argument_names, self.original
        )


_VERSION, _TRACKED = attrgetter("version"), attrgetter("tracked")
_FAKE_TYPE, _TYPE = attrgetter("fake_type"), attrgetter("type")
_KINDS = {"parameter": "the parameter", "buffer": "the buffer"}


def module_of(mod: nn.Module | Callable[..., Any]) -> nn.Module:
    """The module whose state the program carries."""
    if isinstance(mod, nn.Module):
        return mod
    owner = getattr(mod, "__self__", None)
    if isinstance(owner, nn.Module):
        return owner
    if not callable(mod):
        raise TypeError(f"export takes a module, a function or a method, not {type(mod).__name__}")
    return nn.Module()


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


def _attributes(state: State) -> dict[int, str]:
    """Tensors kept in plain attributes, by id: their path."""
    found: dict[int, str] = {}
    for module in state.modules:
        path = state.paths[id(module)]
        for name, value in module.__dict__.items():
            if isinstance(value, torch.Tensor):
                found.setdefault(id(value), f"{path}.{name}" if path else name)
    return found


@contextmanager
def _announced() -> Iterator[None]:
    """`torch.compiler.is_exporting()` says so: libraries ask."""
    compiler = torch.compiler
    before = compiler._is_exporting_flag, compiler._is_compiling_flag
    compiler._is_exporting_flag = compiler._is_compiling_flag = True
    try:
        yield
    finally:
        compiler._is_exporting_flag, compiler._is_compiling_flag = before
