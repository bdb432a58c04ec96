"""`export_joint`: forward and backward in one functional graph.

The module runs with autograd enabled. Then we differentiate its loss (or its results, with incoming
gradients) while the tracer still records. Must not know derivatives: autograd does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import torch
import torch.utils._pytree as pytree
from torch import nn

from lostwax.capture.attempt import Attempt
from lostwax.capture.example_call import ExampleArgs, as_call
from lostwax.capture.export import Capture
from lostwax.capture.request import Request
from lostwax.capture.shapes.collect import DynamicShapes
from lostwax.capture.shapes.marks import find_attached_spec
from lostwax.capture.shapes.spec import Spec
from lostwax.capture.state.root_module import forward_of
from lostwax.capture.steps.provenance import OtherLine, Provenance, StepPlace, new_place
from lostwax.capture.threads import one_at_a_time
from lostwax.errors import JointError
from lostwax.fake.tensor import FakeTensor, new_fake
from lostwax.identity import ByIdentity
from lostwax.ir.data import SHARD
from lostwax.ir.program import ExportedProgram
from lostwax.ir.pytree import leaf_paths
from lostwax.ir.shards import is_dtensor
from lostwax.ir.signature import OutputKind
from lostwax.ir.text import type_text
from lostwax.ir.trace.log import Value
from lostwax.sym import current
from lostwax.types import TensorType

TANGENTS = "tangents"
_count = torch._C._autograd._get_sequence_nr


def export_joint(
    mod: nn.Module | Callable[..., Any],
    args: ExampleArgs,
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    loss_index: int | None = None,
    tangents: bool = False,
    dynamic_shapes: DynamicShapes = None,
    keep: Any = (),
) -> ExportedProgram:
    """Capture the forward and the backward of `mod` into one functional program.

    `args`, `kwargs` and `dynamic_shapes` are those of `lostwax.export`.

    What is differentiated is one of: the module's only result, a scalar; the result number
    `loss_index` (of the flat results); what `loss` makes of the result, and then the program
    returns `(result, loss)`; or, with `tangents`, all results that have gradients, against incoming
    ones, which the program takes as a further argument `tangents=(...)`.

    Gradients are those of the parameters and inputs that require them. They are the last outputs,
    `graph_signature.backward_signature` names them, and `program.module()` returns them.

    Composite operators are always taken apart, as autograd does to differentiate them: with `keep`
    not empty this is an error.
    """
    if keep:
        raise JointError(
            "export_joint keeps no composite operators whole\n"
            "  why: autograd differentiates the operators that they consist of, and the backward "
            "uses results of these\n"
            "  instead: leave keep= out; export(..., keep=...) keeps them in a forward alone"
        )
    call_args, call_kwargs = as_call(args, kwargs)
    if (loss is not None) + (loss_index is not None) + tangents > 1:
        raise JointError("loss, loss_index and tangents exclude each other: give one of them")
    if tangents and TANGENTS in call_kwargs:
        raise JointError(
            f"the module has an argument {TANGENTS!r} of its own\n  instead: rename it"
        )
    dynamic_shapes = find_attached_spec(forward_of(mod), dynamic_shapes)
    spec = None
    if dynamic_shapes is not None:
        spec = Request(mod, call_args, call_kwargs).read_shapes(dynamic_shapes, ())
    with one_at_a_time, torch.enable_grad():
        joint = _JointCapture(mod, call_args, call_kwargs, spec)
        joint.loss, joint.loss_index, joint.takes_tangents = loss, loss_index, tangents
        return joint.run()


class _JointCapture(Capture):
    """One capture of forward and backward."""

    differentiates = True
    loss: Callable[[Any], torch.Tensor] | None = None
    loss_index: int | None = None
    takes_tangents = False

    def __init__(
        self, mod: Any, args: tuple[Any, ...], kwargs: dict[str, Any], spec: Spec | None
    ) -> None:
        super().__init__(Request(mod, args, kwargs), Attempt(spec, tracked=True))
        self.lines = _BackwardLines(self.state.paths)
        self.tracer.provenance = self.lines
        self.tracer.gradients.stay_inside = True
        self.grad = False  # of the program: it has computed its gradients itself
        self.gradients: list[tuple[tuple[OutputKind, str | None], torch.Tensor]] = []

    def _compute_result(self, args: Any, kwargs: dict[str, Any]) -> Any:
        result = self.call(*args, **kwargs)
        if self.loss is not None:
            result = (result, self.loss(result))
        leaves, spec = pytree.tree_flatten(result)
        self.lines.begin_backward()
        if self.takes_tangents:
            roots = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
            tangents = self._add_tangents(roots)
        else:
            roots, tangents = [self._find_loss(leaves, list(leaf_paths(spec, "result")))], None
        self._differentiate(roots, tangents, len(leaves))
        return result

    # ---- what is differentiated

    def _find_loss(self, leaves: list[Any], paths: list[str]) -> torch.Tensor:
        """The loss among the results; raises an error if there is none."""
        if self.loss is not None:
            self.loss_index = len(leaves) - 1
        elif self.loss_index is None:
            if len(leaves) != 1:
                raise JointError(
                    f"the module returns {len(leaves)} values: which is the loss?\n"
                    f"{_list_values(leaves, paths)}\n"
                    "  instead: loss_index=0, or loss=lambda result: ..., or tangents=True"
                )
            self.loss_index = 0
        if not 0 <= self.loss_index < len(leaves):
            raise JointError(
                f"loss_index={self.loss_index}, but the module returns {len(leaves)} values:\n"
                f"{_list_values(leaves, paths)}\n  instead: loss_index=0, or another of these"
            )
        found = leaves[self.loss_index]
        if not isinstance(found, torch.Tensor) or found.ndim or found.is_complex():
            raise JointError(
                f"the loss is {_describe(found)}, but a loss is one real number, a tensor of size "
                "[]\n  instead: loss=lambda result: result.mean(), or tangents=True for the "
                "gradients of all results against incoming ones"
            )
        return found

    def _add_tangents(self, roots: list[torch.Tensor]) -> list[torch.Tensor]:
        """Add an input for the incoming gradient of each result."""
        found = []
        for i, result in enumerate(roots):
            if is_dtensor(result):
                raise JointError(
                    "a result is a DTensor, and its incoming gradient may be cut in many ways\n"
                    "  instead: loss=lambda result: ..., or return result.full_tensor()"
                )
            fake = self.tracer.adopt(result).fake_type
            made = new_fake(self.tracer, TensorType(fake.size, fake.dtype, fake.device))
            self.inputs.add_input(made, f"{TANGENTS}_{i}")
            found.append(made)
        self.kwargs = {**self.kwargs, TANGENTS: tuple(map(_ones, found))}
        self.in_spec = pytree.tree_structure((self.args, self.kwargs))
        self.argument_names = [*self.argument_names, TANGENTS]
        # A program takes tangents of any layout, but the recorded steps rely on this one.
        return [t.clone(memory_format=torch.contiguous_format) for t in found]

    def _differentiate(
        self, roots: list[torch.Tensor], tangents: list[torch.Tensor] | None, results: int
    ) -> None:
        targets: list[tuple[tuple[OutputKind, str | None], torch.Tensor]] = []
        for slot, fake in self.inputs.slots:
            if slot.kind == "parameter" and slot.tensor.requires_grad:
                targets.append(((OutputKind.GRADIENT_TO_PARAMETER, slot.name), fake))
        whole = dict(self.boundary.list_whole())
        targets += self._list_whole_parameters()
        for i, name, leaf in self.inputs.own_inputs():
            leaf = whole.get(i, leaf)
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                targets.append(((OutputKind.GRADIENT_TO_USER_INPUT, name), leaf))
        if not targets:
            _refuse("no parameter and no input requires a gradient")
        if not any(r.requires_grad for r in roots):
            what = "the loss does not depend" if tangents is None else "no result depends"
            _refuse(f"{what} on anything that requires a gradient")
        found = torch.autograd.grad(roots, [t for _, t in targets], tangents, allow_unused=True)
        seen: set[Value] = set()
        for (kind, _), gradient in zip(targets, found, strict=True):
            if gradient is not None:
                gradient = self.boundary.add_result(results + len(self.gradients), gradient)
                self.gradients.append((kind, self._make_distinct(gradient, seen)))
        if not self.gradients:
            _refuse("all gradients are undefined")

    def _list_whole_parameters(self) -> Iterator[tuple[tuple[OutputKind, str | None], Any]]:
        """The DTensors among the parameters, by the names of their shards."""
        names = {name: slot.name for slot, _ in self.inputs.slots for name in slot.names}
        found: ByIdentity[torch.Tensor, str] = ByIdentity()
        for path, whole in self.state.fake_wrappers.items():
            if whole.requires_grad and whole not in found:
                found[whole] = names[f"{path}.{SHARD}"]
                yield (OutputKind.GRADIENT_TO_PARAMETER, found[whole]), whole

    def _make_distinct(self, gradient: torch.Tensor, seen: set[Value]) -> torch.Tensor:
        """Make each gradient a node of its own, so that its name says whose it is."""
        if self.tracer.value_of(self.tracer.adopt(gradient)) in seen:
            gradient = gradient.view(gradient.shape)
        seen.add(self.tracer.value_of(self.tracer.adopt(gradient)))
        return gradient

    # ---- the program

    def _output_kind(self, index: int) -> OutputKind:
        return OutputKind.LOSS_OUTPUT if index == self.loss_index else OutputKind.USER_OUTPUT

    def _more_outputs(self) -> list[tuple[tuple[OutputKind, str | None], Value]]:
        return [(kind, self._logged_result(gradient)) for kind, gradient in self.gradients]


def _refuse(why: str) -> NoReturn:
    raise JointError(
        f"there is nothing to differentiate: {why}\n"
        "  instead: module.requires_grad_(), or x.requires_grad_() for an input"
    )


def _ones(fake: FakeTensor) -> torch.Tensor:
    """An example of an incoming gradient. It takes no memory."""
    t = fake.fake_type
    one = torch.ones((), dtype=t.dtype, device=t.device)
    sizes = [s if isinstance(s, int) else current(s) for s in t.size]
    return one.expand([s if isinstance(s, int) else s.hint or 0 for s in sizes])


def _list_values(leaves: list[Any], paths: list[str]) -> str:
    return "\n".join(
        f"  {i}: {path}, {_describe(x)}"
        for i, (path, x) in enumerate(zip(paths, leaves, strict=True))
    )


def _describe(value: Any) -> str:
    return type_text(value) or repr(value)


class _BackwardLines(Provenance):
    """Gives operators of the backward the line of the operator that they differentiate."""

    def __init__(self, paths: dict[int, str]) -> None:
        super().__init__(paths)
        self._counts_seen: list[int] = []
        self._places: dict[int, StepPlace] = {}
        """The places of forward operators, by autograd's sequence number, in order."""

    def begin_backward(self) -> None:
        """From here on, operators belong to the backward."""
        self._counts_seen = list(self._places)

    def here(self) -> StepPlace:
        if not self._counts_seen:
            place = super().here()
            # Operators that follow without a number of their own do not change the place.
            self._places.setdefault(_count() - 1, place)
            return place
        node = torch._C._current_autograd_node()
        found = None if node is None else self._forward_place(node._sequence_nr())
        return super().here() if found is None else OtherLine(new_place(None, ()), found)

    def _forward_place(self, count: int) -> StepPlace | None:
        """The place of the forward operator with this sequence number. An operator that writes
        takes several numbers: its node has the first, and we have seen a later one."""
        at = bisect_left(self._counts_seen, count)
        return self._places[self._counts_seen[at]] if at < len(self._counts_seen) else None
