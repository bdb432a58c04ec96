"""One call of an executable, run by the real runtime, and of its module, or of the program that it
was lowered from.

To name the first operator that differs, the method is written once more with a copy of each
operator's result, into memory beside the arena: what the planner decided stays as it is. Must not
change the executable.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Interpreter, Node
from torch.utils._pytree import tree_leaves

from lostwax.checking.calls import DrawnCall
from lostwax.checking.delegate import find_in_delegate
from lostwax.checking.program import copy_callable
from lostwax.checking.result import Close, describe_node, state_values
from lostwax.checking.untouched import leave_untouched
from lostwax.ir.graph.delegate import find_delegate
from lostwax.ir.program import ExportedProgram
from lostwax.ir.run.module import call_convention
from lostwax.pte.executable import ExecutableProgram, emit_recording
from lostwax.pte.runtime import load_runtime

CALLS = 2
"""How often each case is called: at the second call memory holds what the first has left there."""


class ExecutableCase:
    """One call of a method of an executable and of its module."""

    def __init__(
        self,
        executable: ExecutableProgram,
        method: str,
        module: Any,
        close: Close,
        call: DrawnCall,
    ) -> None:
        self.executable, self.method, self.close, self.call = executable, method, close, call
        self.program = executable.exported_program(method)
        self.beside = self.program.module() if module is None else copy_callable(module)

    def find_difference(self) -> str:
        with leave_untouched(self.beside):
            return self._compare_calls()

    def _compare_calls(self) -> str:
        loaded = load_runtime(self.executable.buffer, self.executable.weights)
        given = self._bind_inputs()
        for i in range(CALLS):
            args, kwargs = copy.deepcopy((self.call.args, self.call.kwargs))
            try:
                got = loaded.run(given, method=self.method)
            except RuntimeError as error:
                return f"the runtime raises {str(error).splitlines()[0]}"
            with torch.no_grad():
                want = tree_leaves(self.beside(*args, **kwargs))
            if len(got) != len(want):
                return f"there are {len(got)} results instead of {len(want)}"
            for at, (a, b) in enumerate(zip(got, want, strict=True)):
                if wrong := self.close(a, b):
                    return f"result {at} of call {i + 1}: {wrong}"
        return ""

    def _bind_inputs(self) -> list[Any]:
        args, kwargs = copy.deepcopy((self.call.args, self.call.kwargs))
        return list(call_convention(self.program, True).bind(args, kwargs))

    def find_first_node(self) -> str:
        buffer, nodes = emit_recording(self.executable, self.method)
        given, state = self._bind_inputs(), copy.deepcopy(state_values(self.program))
        try:
            got = load_runtime(buffer).run(given, method=self.method)
        except RuntimeError:
            return ""
        values = dict(zip(nodes, got[len(got) - len(nodes) :], strict=True))
        beside = _RuntimeComparison(self.program, values, self.close)
        with torch.no_grad():
            beside.run(*state, *given)
        return beside.found

    def code(self) -> str:
        return "\n".join(
            [
                "import copy, torch, lostwax",
                "from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten",
                f"program = executable.exported_program({self.method!r})",
                self.call.code,
                "loaded = lostwax.pte.load_runtime(executable.buffer, executable.weights)",
                f"for _ in range({CALLS}):",
                f"    got = loaded.run(tree_leaves((args, kwargs)), method={self.method!r})",
                "    expected = tree_leaves(module(*copy.deepcopy(args), **copy.deepcopy(kwargs)))",
                "    torch.testing.assert_close(got, expected)",
            ]
        )


class _RuntimeComparison(Interpreter):
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
                self.found = describe_node(n, wrong) + self._look_into(n)
        return value

    def _look_into(self, node: Node) -> str:
        """What differs in the delegate that computes a node, if one does."""
        call = node.args[0] if node.args else None
        delegate = find_delegate(call) if isinstance(call, Node) else None
        if delegate is None:
            return ""
        name = f"\n    a result of the delegate {call.args[0]} of {delegate.backend_id}"  # type: ignore[union-attr]
        inputs = [self.env[n] for n in call.args[1:]]  # type: ignore[union-attr, index]
        inside = find_in_delegate(delegate, inputs, self.close)
        return f"{name}; in it: {inside}" if inside else name
