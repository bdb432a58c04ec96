"""Compares an executable, run by the real runtime, with the program that it was lowered from, or
with its module; names the first operator that differs.

To name it, the method is written once more with a copy of each operator's result, into memory
beside the arena: what the planner decided stays as it is. Must not change the executable.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Interpreter, Node
from torch.utils._pytree import tree_leaves

from lostwax.capture.check import (
    CheckResult,
    Close,
    Difference,
    list_cases,
    make_close,
    state_values,
)
from lostwax.capture.check_inputs import DrawnCall
from lostwax.doors import enter
from lostwax.ir.graph.delegate import find_delegate
from lostwax.ir.program import ExportedProgram
from lostwax.ir.run.module import call_convention
from lostwax.ir.text import source_text, target_text
from lostwax.pte.executable import ExecutableProgram, emit_recording
from lostwax.pte.runtime import load_runtime

SIDES = ("executable", "module")
CALLS = 2
"""How often each case is called: at the second call memory holds what the first has left there."""


def check_executable(
    executable: ExecutableProgram,
    module: Callable[..., Any] | None = None,
    inputs: Sequence[Any] | None = None,
    *,
    method: str = "forward",
    draws: int = 8,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    on_case: Callable[[str], None] | None = None,
) -> CheckResult:
    """Compare a method of an executable with the module; without one, with the program that it was
    lowered from. See `lostwax.check`."""
    program = executable.exported_program(method)
    close = _close_to_scale if rtol is None and atol is None else make_close(rtol, atol)
    agreed: list[str] = []
    for case in list_cases(program, inputs, draws, seed, on_case):
        beside = program.module() if module is None else copy.deepcopy(module)
        what = _find_difference(executable, method, beside, case, close)
        if what:
            node = _find_first_operator(executable, method, case, close)
            found = Difference(case.title, what, node, _write_code(case, method), SIDES)
            return CheckResult(tuple(agreed), (), (found,), SIDES)
        agreed.append(case.title)
    return CheckResult(tuple(agreed), sides=SIDES)


def _close_to_scale(got: Any, want: Any) -> str:
    """The bar of the runtime's kernels: 1e-4, relative to the largest value."""
    scale = 1.0
    if isinstance(want, torch.Tensor) and want.dtype.is_floating_point:
        finite = want.detach()[want.isfinite()].abs()
        scale = max(float(finite.max()), 1e-3) if finite.numel() else 1.0
    return make_close(1e-4, 1e-4 * scale)(got, want)


def _find_difference(
    executable: ExecutableProgram, method: str, beside: Any, case: DrawnCall, close: Close
) -> str:
    loaded = load_runtime(executable.buffer, executable.weights)
    given = _bind_inputs(executable.exported_program(method), case)
    for i in range(CALLS):
        args, kwargs = copy.deepcopy((case.args, case.kwargs))
        try:
            got = loaded.run(given, method=method)
        except RuntimeError as error:
            return f"the runtime raises {str(error).splitlines()[0]}"
        with torch.no_grad():
            want = tree_leaves(beside(*args, **kwargs))
        if len(got) != len(want):
            return f"there are {len(got)} results instead of {len(want)}"
        for at, (a, b) in enumerate(zip(got, want, strict=True)):
            if wrong := close(a, b):
                return f"result {at} of call {i + 1}: {wrong}"
    return ""


def _bind_inputs(program: ExportedProgram, case: DrawnCall) -> list[Any]:
    args, kwargs = copy.deepcopy((case.args, case.kwargs))
    return list(call_convention(program, True).bind(args, kwargs))


def _find_first_operator(
    executable: ExecutableProgram, method: str, case: DrawnCall, close: Close
) -> str:
    """The first operator of the program whose result in the runtime is another."""
    program = executable.exported_program(method)
    buffer, nodes = emit_recording(executable, method)
    given = _bind_inputs(program, case)
    loaded, state = load_runtime(buffer), copy.deepcopy(state_values(program))
    try:
        got = loaded.run(given, method=method)
    except RuntimeError:
        return ""
    values = dict(zip(nodes, got[len(got) - len(nodes) :], strict=True))
    beside = _ComparingInterpreter(program, values, close)
    with torch.no_grad():
        beside.run(*state, *given)
    return beside.found


class _ComparingInterpreter(Interpreter):
    """Runs a program and compares each node with what the runtime computed there."""

    def __init__(self, program: ExportedProgram, values: Mapping[Node, Any], close: Close) -> None:
        super().__init__(program.graph_module, garbage_collect_values=False)
        self.values, self.close = values, close
        self.found = ""

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if n in self.values and not self.found:
            wrong = self.close(self.values[n], value)
            if wrong:
                where = f"\n    at {source_text(n)}" if source_text(n) else ""
                self.found = f"{n.name} = {target_text(n.target)}{where}\n    {wrong}"
                self.found += self._look_into(n)
        return value

    def _look_into(self, node: Node) -> str:
        """What differs in the delegate that computes a node, if one does."""
        call = node.args[0] if node.args else None
        delegate = find_delegate(call) if isinstance(call, Node) else None
        if delegate is None:
            return ""
        name = f"\n    a result of the delegate {call.args[0]} of {delegate.backend_id}"  # type: ignore[union-attr]
        inputs = [self.env[n] for n in call.args[1:]]  # type: ignore[union-attr, index]
        inside = enter("find_in_delegate")(delegate, inputs, self.close)
        return f"{name}; in it: {inside}" if inside else name


def _write_code(case: DrawnCall, method: str) -> str:
    return "\n".join(
        [
            "import copy, torch, lostwax",
            "from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten",
            f"program = executable.exported_program({method!r})",
            case.code,
            "loaded = lostwax.pte.load_runtime(executable.buffer, executable.weights)",
            f"for _ in range({CALLS}):",
            f"    got = loaded.run(tree_leaves((args, kwargs)), method={method!r})",
            "    expected = tree_leaves(module(*copy.deepcopy(args), **copy.deepcopy(kwargs)))",
            "    torch.testing.assert_close(got, expected)",
        ]
    )
