"""`report`: one run finds all the problems of a module that it can, each with line and fix."""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch.fx import Node

from lostwax.capture import threads
from lostwax.capture.attempt import Attempt
from lostwax.capture.example_call import ExampleArgs, as_call
from lostwax.capture.export import capture_call
from lostwax.capture.observed import copy_call
from lostwax.capture.python.functions_run import let_watch
from lostwax.capture.request import Request
from lostwax.capture.shapes.collect import DynamicShapes
from lostwax.capture.strict.baked_in import ReadsWatcher
from lostwax.dialects.edge import lower_to_edge
from lostwax.dialects.edge_operators import EdgeOperator
from lostwax.dialects.edge_rules import is_core
from lostwax.dialects.manager import EdgeConfig, EdgeProgramManager
from lostwax.errors import ConstraintViolationError, LostwaxError, LoweringError
from lostwax.ir.decompose.core_aten import default_decompositions
from lostwax.ir.graph.lookup import all_nodes
from lostwax.ir.program import ExportedProgram
from lostwax.ir.text import list_frames
from lostwax.location import (
    Location,
    Span,
    find_raised,
    find_user_frame,
    locate_span,
    read_columns,
)
from lostwax.ops.decompositions.runtime import INSTEAD, RUNTIME
from lostwax.problems import kinds
from lostwax.problems.continuing import ContinueAfterRefusal
from lostwax.problems.finding import Finding, Report
from lostwax.problems.kinds import Kind
from lostwax.pte.lowering.listing import Listing
from lostwax.pte.lowering.lower import Lowering
from lostwax.pte.lowering.state import State
from lostwax.undo.undo import Undo, run_and_undo

MOST_ROUNDS = 50
_TOO_MANY = "too many problems"
_WHOLE = "the refusal is of the call as a whole"


def report(
    mod: nn.Module | Callable[..., Any],
    args: ExampleArgs,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: DynamicShapes = None,
    strict: bool = False,
    control_flow: str = "capture",
    constants: Collection[str] = (),
    partitioner: Any = None,
) -> Report:
    """Find all the problems that an export of a module, and its way to an executable, would meet.
    The arguments before `partitioner` are those of `lostwax.export`.

    After a refusal the guilty expression is taken as what it gives in eager, so that those after it
    are found, too; declarations that do not hold are taken as they can. With a `partitioner`, what
    its backend does not take is listed. The module is left as it was, and no program is kept.
    """
    work = _Work(mod, args, dict(kwargs or {}), dynamic_shapes, strict, control_flow)
    work.constants = constants
    frame = find_user_frame(sys._getframe(1))
    work.caller = None if frame is None else locate_span(frame)
    program = work.capture()
    if program is not None:
        work.stages.append("export")
        work.list_program(program)
        work.lower(program, partitioner)
    found = sorted(dict.fromkeys(work.findings), key=lambda f: (not f.line, f.file, f.line))
    return Report(tuple(found), tuple(work.stages), work.stopped)


class _Work:
    def __init__(
        self, mod: Any, args: Any, kwargs: dict[str, Any], shapes: Any, strict: bool, flow: str
    ) -> None:
        self.mod, self.args, self.kwargs = mod, args, kwargs
        self.shapes, self.strict, self.flow = shapes, strict, flow
        self.constants: Collection[str] = ()
        self.findings: list[Finding] = []
        self.stages: list[str] = []
        self.stopped = ""
        self.caller: Span | None = None
        self.reading = ReadsWatcher()
        self.stood_in: set[tuple[str, int]] = set()

    # -------------------------------------------------------------------------------------- export

    def capture(self) -> ExportedProgram | None:
        with threads.one_at_a_time:
            return run_and_undo(self._capture)

    def _capture(self, undo: Undo) -> ExportedProgram | None:
        given = self.args if isinstance(self.args, (tuple, list)) else (self.args,)
        continuing = ContinueAfterRefusal(copy_call(self.mod, tuple(given), self.kwargs), undo)
        continuing.start_again()
        try:
            return run_and_undo(partial(self._export, continuing))
        except LostwaxError as error:
            if not self.stopped:  # it is of the declarations
                self.findings.append(self._read_error(error))
                self.stopped = _WHOLE
        except Exception as error:  # of the model's own, perhaps after what stood in
            place = find_raised(error)
            where = "" if place is None else f"{place[0]}:{place[1]}: "
            self.stopped = f"{where}{type(error).__name__}: {error}"
        return None

    def _export(self, continuing: ContinueAfterRefusal, undo: Undo) -> ExportedProgram:
        let_watch(self.reading, undo)
        call = as_call(self.args, self.kwargs or None)
        request = Request(
            self.mod,
            *call,
            control_flow=self.flow,
            strict=self.strict,
            constants=self.constants,
        )
        first = request.first_attempt(self.shapes)
        rounds = iter(range(MOST_ROUNDS - 1))

        def go_on(attempt: Attempt, error: BaseException) -> Attempt | None:
            spec = attempt.spec
            if isinstance(error, ConstraintViolationError):
                self._note_violations(error)
                if error.dynamic_shapes is None:
                    self.stopped = _TOO_MANY
                else:
                    spec = request.read_shapes(error.dynamic_shapes, list(error.constraints))
            elif isinstance(error, LostwaxError):
                self._note_refusal(error, continuing)
            else:
                return None
            if next(rounds, None) is None:
                self.stopped = self.stopped or _TOO_MANY
            continuing.start_again()
            return None if self.stopped else first._replace(spec=spec)

        return capture_call(request, first, go_on)

    def _note_refusal(self, error: LostwaxError, continuing: ContinueAfterRefusal) -> None:
        """Note a refusal, and let something stand in for the expression that it is of."""
        finding, span = self._read_error(error), error.span
        self.findings.append(finding)
        if span is None or self._is_callers(span):
            self.stopped = _WHOLE
        elif reason := continuing.replace(span):
            self.stopped = f"nothing can stand in at {finding.place}: {reason}"
        else:
            self.stood_in.add((span.file, span.line))

    def _is_callers(self, span: Span) -> bool:
        """Is it the line that asks for the report? Then nothing of the module was running."""
        caller = self.caller
        return caller is not None and (span.file, span.line) == (caller.file, caller.line)

    def _read_error(self, error: LostwaxError) -> Finding:
        """A refusal as a finding: the parts of its text, and the place that it names."""
        text = str(error.args[0] if error.args else error)
        what, _, rest = text.partition("\n")
        what = _SHOWN.sub("", what)
        why, fix = _find_part(rest, "why"), _find_part(rest, "instead|fix|until then")
        span = error.span
        if span is not None and not self._is_callers(span):
            return _at_span(span, error.code, "error", what, why, fix)
        found = _PLACE.search(text)
        file, line, function = (found[1], int(found[2]), found[3]) if found else ("", 0, "")
        file = os.path.abspath(file) if file else ""
        return Finding(error.code, "error", what, fix, file, line, function=function, why=why)

    def _note_violations(self, error: ConstraintViolationError) -> None:
        for violation in error.violations:
            guard = violation.guard
            wrong = (
                "" if violation.counterexample is None else f", not at {violation.counterexample}"
            )
            right = f"right only where {guard.predicate}{wrong}"
            what = f"{violation.dim} cannot vary as declared: {right}"
            fix = violation.fix.strip().replace("\n", "; ")
            self._add(kinds.SPECIALIZED, what, guard.where, guard.reason, f"declare {fix}")

    # ------------------------------------------------------------------------------------- program

    def list_program(self, program: ExportedProgram) -> None:
        """Conditions that the program was captured under, and what is baked into it."""
        for guard in program.guards:
            self._add(
                kinds.GUARD, f"the program is for {guard.predicate}", guard.where, guard.reason
            )
        for each in self.reading.reads.values:
            text = (
                repr(each.value) if len(repr(each.value)) <= 60 else f"{repr(each.value)[:60]}..."
            )
            self._add(kinds.BAKED_IN, f"{each.path} is baked in as {text}", each.where)

    def lower(self, program: ExportedProgram, partitioner: Any) -> None:
        """What keeps the program from core ATen, from Edge, from the runtime and from a backend."""
        try:
            others = _list_others(program)
        except LostwaxError as error:
            self._add_lowering(error, kinds.NOT_CORE)
            return
        self.stages.append("core")
        try:
            edge = self._list_edge(program)
        except LostwaxError as error:
            self._list_core(others)
            self._add_lowering(error, kinds.NOT_EDGE)
            return
        # A few are not core and yet no problem: Edge leaves out `detach`, it has no gradients.
        targets = [n.target for n in all_nodes(edge.exported_program().graph_module)]
        left = {each.overload for each in targets if isinstance(each, EdgeOperator)}
        self._list_core([node for node in others if node.target in left])
        self.stages.append("edge")
        ways = {"runtime": partial(self._list_kernels, edge.exported_program())}
        if partitioner is not None:
            ways["delegates"] = partial(self._list_undelegated, edge, partitioner)
        for name, list_problems in ways.items():
            try:
                list_problems()
            except LostwaxError as error:
                self._add_lowering(error, kinds.NO_KERNEL)
            else:
                self.stages.append(name)

    def _list_undelegated(self, edge: EdgeProgramManager, partitioner: Any) -> None:
        for each in edge.to_backend(partitioner).delegation_report().undelegated:
            what = f"{each.operator} ({each.node}) is not delegated"
            found = _PLACE.search(f"at {each.place}")
            where = Location(os.path.abspath(found[1]), int(found[2]), found[3]) if found else None
            if where is not None and (where.file, where.line) in self.stood_in:
                continue  # it is of what stands there for the refused expression
            self._add(kinds.NOT_DELEGATED, what, where, "; ".join(each.reasons))

    def _list_core(self, others: list[Node]) -> None:
        for node in others:
            target: Any = node.target
            instead = INSTEAD.get(target.name(), "")
            self._add(kinds.NOT_CORE, f"{target} is not in core ATen", _locate(node), "", instead)

    def _list_edge(self, program: ExportedProgram) -> EdgeProgramManager:
        table = default_decompositions().offer(RUNTIME)
        lowered = lower_to_edge(program.run_decompositions(table))
        others = []
        for node in all_nodes(lowered.graph_module):
            target = node.target
            if isinstance(target, EdgeOperator) and not is_core(target):
                others.append(target.overload)
                instead = INSTEAD.get(target.name(), "")
                what = f"{target.overload} is not in the Edge dialect"
                self._add(kinds.NOT_EDGE, what, _locate(node), "nothing takes it apart", instead)
        return EdgeProgramManager({"forward": lowered}, {}, EdgeConfig(preserve_ops=tuple(others)))

    def _list_kernels(self, edge: ExportedProgram) -> None:
        for node, error in find_missing_kernels(edge):
            if node is None:
                self._add_lowering(error, kinds.UNBOUNDED)
            else:
                self._add_lowering(error, kinds.NO_KERNEL, _locate(node))

    def _add_lowering(self, error: LostwaxError, kind: Kind, where: Location | None = None) -> None:
        text = str(error.args[0])
        what, _, rest = text.partition("\n")
        why, fix = _find_part(rest, "why"), _find_part(rest, "instead|fix")
        self._add(kind, what.rstrip("."), where, why, fix)

    def _add(
        self, kind: Kind, what: str, where: Location | None, why: str = "", fix: str = ""
    ) -> None:
        file, line, function = (where.file, where.line, where.function) if where else ("", 0, "")
        made = Finding(
            kind.code, kind.level, what, fix or kind.fix, file, line, 0, 0, function, why
        )
        self.findings.append(made)


_PLACE = re.compile(r"\bat (\S+?):(\d+) in ([^\s:,]+)")
_SHOWN = re.compile(r" at \S+:\d+ in [^\s:]+: .*$")


def _find_part(text: str, names: str) -> str:
    """What a message says after "why:" or "instead:"."""
    found = re.search(rf"^  (?:{names}): ([\s\S]*?)(?=^  \w[\w ]*: |\Z)", text, re.M)
    return " ".join(line.strip() for line in found[1].splitlines()) if found else ""


def _at_span(span: Span, code: str, level: str, what: str, why: str, fix: str) -> Finding:
    columns = read_columns(span)
    start = end = 0
    if columns is not None:
        source, start, end = columns
        indent = len(linecache.getline(span.file, span.line).rstrip()) - len(source)
        start, end = start + indent + 1, end + indent + 1
    return Finding(
        code, level, what.rstrip("."), fix, span.file, span.line, start, end, span.function, why
    )


def _list_others(program: ExportedProgram) -> list[Node]:
    """The calls that are not of core ATen after all that can be taken apart was."""
    return [
        node
        for node in all_nodes(program.run_decompositions().graph_module)
        if isinstance(node.target, OpOverload)
        and torch.Tag.core not in node.target.tags
        and _has_tensors(node)
    ]


def _has_tensors(node: Node) -> bool:
    value = node.meta.get("val")
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return any(isinstance(part, torch.Tensor) for part in parts)


def _locate(node: Node) -> Location | None:
    """The user's line that a node comes from."""
    frames = list_frames(str(node.meta.get("stack_trace") or ""))
    return Location(frames[-1][0], int(frames[-1][1]), frames[-1][2]) if frames else None


class _Boundless(Listing):
    """A listing in which a size without an upper bound has one."""

    unbounded: LoweringError | None = None

    def _greatest(self, size: Any) -> int:
        try:
            return super()._greatest(size)
        except LoweringError as error:
            self.unbounded = self.unbounded or error
            return 1 << 20


class _ListingAll(Lowering):
    """Lowers a program, and goes on after a call that no kernel computes."""

    def __init__(self, program: ExportedProgram) -> None:
        super().__init__("forward", program, State({"forward": program}, ()).storages)
        self.listing = self.boundless = _Boundless("forward")
        self.missing: list[tuple[Node, LoweringError]] = []

    def lower_call(self, node: Node) -> None:
        try:
            super().lower_call(node)
        except LoweringError as error:
            self.missing.append((node, error))
            value = node.meta.get("val")
            if isinstance(value, (tuple, list)):
                self.values[node] = [self.new_like(part) for part in value]
            else:
                self.values[node] = self.new_like(value)  # type: ignore[arg-type]


def find_missing_kernels(edge: ExportedProgram) -> list[tuple[Node | None, LoweringError]]:
    """The calls of an Edge program that no kernel computes, each with what is said of it; and that
    a size has no upper bound."""
    lowering = _ListingAll(edge)
    lowering.run()
    unbounded = lowering.boundless.unbounded
    return [*lowering.missing, *([(None, unbounded)] if unbounded else [])]
