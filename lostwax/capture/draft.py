"""`draft_export`: as `export`, but dims that cannot vary as declared are declared as they can, and
listed in a report instead of an error.

What has no program at all (a branch on data, state that is kept) is refused as `export` does: the
errors of lostwax name all that they found at once, with lines and fixes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from lostwax.capture.export import export
from lostwax.errors import ConstraintViolationError
from lostwax.ir.program import ExportedProgram

_MOST_ROUNDS = 8


@dataclass
class DraftReport:
    """What `draft_export` found, and the declarations with which it exported in the end."""

    failures: list[ConstraintViolationError] = field(default_factory=list)
    dynamic_shapes: Any = None
    constraints: list[str] = field(default_factory=list)

    def successful(self) -> bool:
        """Did the declarations hold as they were written?"""
        return not self.failures

    def apply_suggested_fixes(self) -> Any:
        """The `dynamic_shapes` that hold."""
        return self.dynamic_shapes

    def __str__(self) -> str:
        if not self.failures:
            return "export: nothing to report"
        found = "\n\n".join(str(error) for error in self.failures)
        return (
            f"{found}\n\nexported with\n  dynamic_shapes={self.dynamic_shapes!r}\n"
            f"  constraints={self.constraints!r}"
        )


def draft_export(
    mod: nn.Module | Callable[..., Any],
    args: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    preserve_module_call_signature: Sequence[str] = (),
    strict: bool = False,
    prefer_deferred_runtime_asserts_over_guards: bool = False,
) -> ExportedProgram:
    """Export, with declarations corrected where they do not hold.

    `program._report` says which those were and what was written in their place; print it. The
    program is right for what the corrected declarations allow, and refuses other calls.
    """
    report = DraftReport(dynamic_shapes=dynamic_shapes)
    while True:
        try:
            program = export(
                mod,
                args,
                kwargs,
                dynamic_shapes=report.dynamic_shapes,
                strict=strict,
                preserve_module_call_signature=preserve_module_call_signature,
                prefer_deferred_runtime_asserts_over_guards=(
                    prefer_deferred_runtime_asserts_over_guards
                ),
                constraints=report.constraints,
            )
        except ConstraintViolationError as error:
            if len(report.failures) == _MOST_ROUNDS:
                raise
            report.failures.append(error)
            report.dynamic_shapes = error.dynamic_shapes
            report.constraints = list(error.constraints)
        else:
            program._report = report
            return program
