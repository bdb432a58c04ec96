"""`draft_export`: as `export`, but dims that cannot vary as declared are declared as they can, and
custom operators without a fake kernel return what they do in eager; a report lists both, and custom
operators that do not do what they say.

What has no program at all (a branch on data, state that is kept) is refused as `export` does: the
errors of lostwax name all that they found at once, with lines and fixes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn
from torch._ops import OpOverload

from lostwax.capture.attempt import Attempt
from lostwax.capture.example_call import ExampleArgs, as_call
from lostwax.capture.export import capture_call
from lostwax.capture.observed import OperatorFault, OperatorWatch, calls_custom, copy_call
from lostwax.capture.python.functions_run import let_watch
from lostwax.capture.python.told_exporting import TellExporting
from lostwax.capture.request import Request
from lostwax.capture.shapes.collect import DynamicShapes
from lostwax.capture.shapes.marks import find_attached_spec
from lostwax.capture.state.root_module import forward_of
from lostwax.capture.strict.baked_in import BakedIn, ReadsWatcher
from lostwax.capture.trace.single_step_composites import read_keep
from lostwax.errors import ConstraintViolationError, LostwaxError, MissingFakeRuleError
from lostwax.ir.program import ExportedProgram
from lostwax.undo.undo import Undo, run_and_undo

_MOST_ROUNDS = 8


@dataclass
class DraftReport:
    """What `draft_export` found, and the declarations with which it exported in the end."""

    failures: list[LostwaxError] = field(default_factory=list)
    """The errors that `export` raises, one after the other."""
    operators: list[OperatorFault] = field(default_factory=list)
    """Custom operators that do other things than their schemas and fake kernels say."""
    dynamic_shapes: Any = None
    constraints: list[str] = field(default_factory=list)
    baked_in: list[BakedIn] = field(default_factory=list)
    """The numbers and texts that the module reads from attributes, globals and variables."""

    def successful(self) -> bool:
        """Did the declarations hold as they were written, and operators what they say?"""
        return not self.failures and not self.operators

    def apply_suggested_fixes(self) -> Any:
        """The `dynamic_shapes` that hold."""
        return self.dynamic_shapes

    def __str__(self) -> str:
        parts = [str(error) for error in self.failures]
        if any(isinstance(error, ConstraintViolationError) for error in self.failures):
            parts.append(
                f"exported with\n  dynamic_shapes={self.dynamic_shapes!r}\n"
                f"  constraints={self.constraints!r}"
            )
        if self.operators:
            parts += ["the program takes these at their word, and may be wrong:"]
            parts += map(str, self.operators)
        if self.baked_in:
            parts.append("\n".join(["baked in:", *(f"  {each}" for each in self.baked_in)]))
        return "\n\n".join(parts) or "export: nothing to report"


def draft_export(
    mod: nn.Module | Callable[..., Any],
    args: ExampleArgs,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: DynamicShapes = None,
    preserve_module_call_signature: Sequence[str] = (),
    strict: bool = False,
    prefer_deferred_runtime_asserts_over_guards: bool = False,
    keep: Sequence[OpOverload] | Literal["composite"] = (),
    constants: Collection[str] = (),
    tell_exporting: TellExporting = "auto",
) -> ExportedProgram:
    """Export, with declarations corrected where they do not hold. The arguments are those of
    `lostwax.export`.

    `program._report` says which those were and what was written in their place, and which numbers
    were baked in that the module reads beside its arguments; print it. The program is right for
    what the corrected declarations allow, and refuses other calls.

    If it has custom operators, the module is also called once in eager, on copies. One without a
    fake kernel is taken to return what it does there, in any sizes; one that writes or returns what
    its schema does not say is listed.
    """
    report = DraftReport(dynamic_shapes=dynamic_shapes)
    reading = ReadsWatcher()
    request = Request(
        mod,
        *as_call(args, kwargs),
        keep=read_keep(keep),
        preserved=preserve_module_call_signature,
        strict=strict,
        defers=prefer_deferred_runtime_asserts_over_guards,
        constants=constants,
        tell_exporting=tell_exporting,
    )
    watch = OperatorWatch()
    eager = copy_call(mod, request.args, request.kwargs)
    attached = find_attached_spec(forward_of(mod), None)  # it stays what it is

    def correct(attempt: Attempt, error: BaseException) -> Attempt | None:
        if isinstance(error, MissingFakeRuleError):
            return stand_in(attempt, error)
        if not isinstance(error, ConstraintViolationError) or attached is not None:
            return None
        if len(report.failures) == _MOST_ROUNDS:
            return None
        report.failures.append(error)
        report.dynamic_shapes = error.dynamic_shapes
        report.constraints = list(error.constraints)
        spec = request.read_shapes(report.dynamic_shapes, report.constraints)
        return attempt._replace(spec=spec)

    def stand_in(attempt: Attempt, error: MissingFakeRuleError) -> Attempt | None:
        """Let an operator return what it does in eager."""
        if not watch.has_run:
            watch.watch(eager)
        kernel = watch.stand_in(error.operator)
        if kernel is None or error.operator in attempt.kernels:
            return None
        report.failures.append(error)
        return attempt._replace(kernels={**attempt.kernels, error.operator: kernel})

    def capture_listing(undo: Undo) -> ExportedProgram:
        let_watch(reading, undo)
        return capture_call(request, request.first_attempt(dynamic_shapes), correct)

    program = run_and_undo(capture_listing)
    if calls_custom(program) and not watch.has_run:
        watch.watch(eager)
    report.operators = [*watch.faults]
    report.baked_in = reading.reads.values
    program._report = report
    return program
