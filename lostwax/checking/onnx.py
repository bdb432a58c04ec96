"""One call of an ONNX model, run by onnxruntime, and of its module. Needs `onnx-ir`.

Must not change the module.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lostwax.checking.calls import DrawnCall, list_calls
from lostwax.checking.check import compare_calls
from lostwax.checking.program import copy_callable
from lostwax.checking.result import CheckResult, Close, close_to_scale
from lostwax.checking.untouched import leave_untouched
from lostwax.errors import OnnxError
from lostwax.ir.program import ExportedProgram
from lostwax.ir.signature import ConstantArgument, InputKind
from lostwax.onnx.runtime import LoadedModel

CALLS = 2
"""How often each case is called: at the second call state is what the first has left."""


def check_onnx(
    make_model: Callable[[], LoadedModel],
    program: ExportedProgram,
    module: Any,
    *,
    draws: int = 8,
    seed: int = 0,
    on_case: Callable[[str], None] | None = None,
) -> CheckResult:
    """Compare a model with its module, in onnxruntime, at the example and at drawn sizes.

    `make_model` loads it anew, with its first state. The program says which sizes and arguments
    there may be; the bar is 1e-4 of the largest value.
    """
    calls = list_calls(program, None, draws, seed, on_case)
    return compare_calls(
        calls, partial(OnnxCase, make_model, program, module, close_to_scale), ("model", "module")
    )


class OnnxCase:
    """One call of a model and of its module."""

    def __init__(
        self,
        make_model: Callable[[], LoadedModel],
        program: ExportedProgram,
        module: Any,
        close: Close,
        call: DrawnCall,
    ) -> None:
        self.make_model, self.program, self.close, self.call = make_model, program, close, call
        self.beside = copy_callable(module)

    def find_difference(self) -> str:
        with leave_untouched(self.beside):
            return self._compare_calls()

    def _compare_calls(self) -> str:
        model = self.make_model()
        for i in range(CALLS):
            args, kwargs = copy.deepcopy((self.call.args, self.call.kwargs))
            given = list_inputs(self.program, (args, kwargs))
            try:
                found = model.run(dict(zip(model.inputs, copy.deepcopy(given), strict=False)))
            except OnnxError as error:
                return str(error.args[0]).splitlines()[0]
            with torch.no_grad():
                result = self.beside(*args, **kwargs)
            wrong = self._compare(list(found.values()), list_results(result))
            wrong = wrong or self._compare_state(
                model, dict(zip(model.inputs, given, strict=False))
            )
            if wrong:
                return f"call {i + 1}: {wrong}"
        return ""

    def _compare(self, got: list[Tensor], want: list[Tensor]) -> str:
        if len(got) != len(want):
            return f"there are {len(got)} results instead of {len(want)}"
        for at, (a, b) in enumerate(zip(got, want, strict=True)):
            if wrong := self.close(a, b):
                return f"result {at}: {wrong}"
        return ""

    def _compare_state(self, model: LoadedModel, given: dict[str, Any]) -> str:
        held = dict(self.beside.state_dict()) if isinstance(self.beside, torch.nn.Module) else {}
        for name, got in model.state.items():
            want = (held | given).get(name)
            if isinstance(want, Tensor) and (wrong := self.close(got, want)):
                return f"{name} afterwards: {wrong}"
        return ""

    def find_first_node(self) -> str:
        return ""

    def code(self) -> str:
        return "\n".join(
            [
                "import copy, torch",
                "from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten",
                "from lostwax.onnx.runtime import LoadedModel",
                self.call.code,
                "got = LoadedModel(file)(*tree_leaves((args, kwargs)))",
                "expected = tree_leaves(module(*copy.deepcopy(args), **copy.deepcopy(kwargs)))",
                "torch.testing.assert_close(got, expected)",
            ]
        )


def list_inputs(program: ExportedProgram, arguments: Any) -> list[Any]:
    """What a model is given of arguments, in order: those that the program does not hold itself."""
    specs = program.graph_signature.input_specs
    users = [spec for spec in specs if spec.kind is InputKind.USER_INPUT]
    leaves = tree_leaves(arguments)
    return [
        leaf
        for spec, leaf in zip(users, leaves, strict=True)
        if not isinstance(spec.arg, ConstantArgument)
    ]


def list_results(results: Any) -> list[Tensor]:
    """What a model gives of results: tensors; numbers are such, too, also members of enums."""
    found = []
    for x in tree_leaves(results):
        if isinstance(x, (bool, int, float)):
            plain = x if isinstance(x, bool) else float(x) if isinstance(x, float) else int(x)
            kind = {bool: torch.bool, int: torch.int64}.get(type(plain), torch.float64)
            x = torch.tensor(plain, dtype=kind)
        found += [x] if isinstance(x, Tensor) else []
    return found
