"""ExportedProgram: a program, and what users do with it.

It is made by capture, read by passes and writers, and run by `module()`. What a method needs is
loaded by its first call: few programs are asked for everything. Must not know how it was made.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

from lostwax.errors import InputTypeError, NotCallableError, NotPickledError, NotYetError
from lostwax.ir.data import ModuleCallEntry, Program, Sharding
from lostwax.ir.signature import ExportGraphSignature
from lostwax.late_imports import late_import
from lostwax.location import user_location

if TYPE_CHECKING:
    from lostwax.late_imports import EdgeConfig, EdgeProgramManager, Page


class ExportedProgram(Program):
    """A program that was captured from a module.

    The graph is functional: parameters, buffers and constants are placeholders, in this order,
    before the user's inputs; what the original writes is returned first, before its results.
    `graph_signature` says which is which. `state_dict` has the parameters and persistent buffers,
    `constants` all else that was lifted, both under the names of the original. Calling a program
    is refused: `module()` gives a module to run.
    """

    _report: Any
    """What `draft_export` or a strict export found; other programs have none."""

    def module(self, check_guards: bool = True) -> torch.nn.Module:
        """An ordinary `nn.Module` that runs this program.

        It has the names of the original's parameters and buffers, and its `forward` the original's
        arguments. What is only read shares memory with the program; what the program writes is
        copied, so that running changes neither the program nor another module of it. Without
        `check_guards` the conditions on dynamic sizes are not checked.
        """
        from lostwax.ir.run.module import program_module

        return program_module(self, check_guards)

    def run_decompositions(
        self,
        decomp_table: Mapping[OpOverload, Callable[..., Any]] | None = None,
        decompose_custom_triton_ops: bool = False,
    ) -> ExportedProgram:
        """A new program in which the operators of the table are taken apart; this one stays.

        Without a table the result is in core ATen: what torch tags so, and a few that nothing takes
        apart. `lostwax.default_decompositions()` is that table, to be edited. All other nodes, the
        signature and the constraints stay as they are. Operators of Triton kernels stay whole.
        """
        if decompose_custom_triton_ops:
            raise NotYetError(
                "decompose_custom_triton_ops=True", "False keeps operators of Triton kernels whole"
            )
        from lostwax.ir.decompose.decompose import decompose_program

        made = decompose_program(self, decomp_table)
        made.validate()
        return made

    def to_edge(
        self,
        *,
        constant_methods: Mapping[str, Any] | None = None,
        config: EdgeConfig | None = None,
    ) -> EdgeProgramManager:
        """This program in the Edge dialect, as the method "forward": `lostwax.to_edge(program)`."""
        made: EdgeProgramManager = late_import("to_edge")(
            self, constant_methods=constant_methods, config=config
        )
        return made

    def to_onnx(self, **options: Any) -> Any:
        """This program as an `onnx_ir.Model`: `lostwax.onnx.to_onnx(program, opset=23)`. To write a
        file, `lostwax.onnx.save(program, "model.onnx")`."""
        return late_import("to_onnx")(self, **options)

    def plot(self, **options: Any) -> Page:
        """This program as a page to look at, for the last line of a notebook's cell:
        `lostwax.explore(program)`."""
        page: Page = late_import("plot")(self, **options)
        return page

    def validate(self) -> None:
        """Check every rule of the IR specification; `VerificationError` names what is broken."""
        from lostwax.ir.rules.verify import validate

        validate(self)

    @property
    def sharding(self) -> Sharding | None:
        """Which of the parameters, inputs and results are shards of DTensors, and how these were
        cut; None if none of them is."""
        return None if self.settings is None else self.settings.sharding

    @property
    def verifier(self) -> Any:
        """The class that checks programs of this dialect: `program.verifier().check(program)`."""
        from lostwax.ir.rules.verify import find_verifier

        return find_verifier(self.dialect)

    @property
    def verifiers(self) -> list[Any]:
        """The `verifier` alone: torch.export has a list of them."""
        return [self.verifier]

    def _update(
        self,
        graph_module: GraphModule,
        graph_signature: ExportGraphSignature,
        *,
        state_dict: dict[str, torch.Tensor] | None = None,
        constants: dict[str, Any] | None = None,
        verifiers: Sequence[Any] | None = None,
    ) -> ExportedProgram:
        """A new program with another graph and signature, verified; passes written for torch.export
        end so. What their nodes lack, types and where they come from, is added. The first of the
        `verifiers` says its dialect."""
        program = replace(
            self,
            state_dict=self.state_dict if state_dict is None else state_dict,
            constants=self.constants if constants is None else constants,
            dialect=verifiers[0].dialect if verifiers else self.dialect,
        )
        made: ExportedProgram = late_import("update_program")(
            program, graph_module, graph_signature
        )
        made.validate()
        return made

    if not TYPE_CHECKING:  # else nothing would be a mistake

        def __getattr__(self, name: str) -> Any:
            """Say what is missing: what a GraphModule has is not looked for in a program."""
            hint = ""
            if name in ("to_executable", "to_executorch", "to_backend"):
                hint = f"\n  why: {name} is of a program in the Edge dialect\n  instead: "
                hint += f"program.to_edge().{name}(...)"
            elif name == "meta" or (hasattr(GraphModule, name) and not name.startswith("_")):
                hint = "; program.module() is a GraphModule, which has it"
            elif taker := _find_taker(sys._getframe(1)):
                hint = f"; {taker} {_TAKES}"
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

        @property
        def __class__(self) -> Any:
            """Python asks for it where `isinstance` is asked for another class: torch does so of
            programs that it is given, and would say that it takes no 'ExportedProgram'."""
            if taker := _find_taker(sys._getframe(1)):
                raise InputTypeError(
                    f"{taker} is given a program of lostwax\n"
                    f"  why: {taker} reads the classes of torch.export, which these are not\n"
                    f"  instead: {taker} {_TAKES}, or program.module(), where it takes modules"
                )
            return type(self)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotCallableError(
            "an ExportedProgram is data and cannot be called; "
            "call program.module(), an nn.Module with its parameters: program.module()(...)"
        )

    def __copy__(self) -> ExportedProgram:
        return replace(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> ExportedProgram:
        """Copy the program, with a graph and state of its own. Structures and guards, which nothing
        changes, are shared. (FX's own copy of a graph may choose other names.)"""
        from lostwax.ir.graph.copying import copy_module, copy_shared

        copy_shared((*self.state_dict.values(), *self.constants.values()), memo)
        for leaf in tree_leaves(self.example_inputs):
            if isinstance(leaf, torch.Tensor) and not leaf.is_leaf:
                memo[id(leaf)] = leaf  # torch cannot copy it; nobody writes to it, so share it
        return replace(
            self,
            graph_module=copy_module(self.graph_module)[0],
            graph_signature=copy.deepcopy(self.graph_signature, memo),
            state_dict=copy.deepcopy(self.state_dict, memo),
            constants=copy.deepcopy(self.constants, memo),
            range_constraints=copy.copy(self.range_constraints),
            module_call_graph=[_copy_entry(entry, memo) for entry in self.module_call_graph],
            example_inputs=copy.deepcopy(self.example_inputs, memo),
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise NotPickledError("a program")

    def __str__(self) -> str:
        from lostwax.ir.text import program_text

        return program_text(self)

    def __repr__(self) -> str:
        from lostwax.ir.text import summary_text

        return summary_text(self)

    def _repr_html_(self) -> str:
        from lostwax.ir.notebook import program_html

        return program_html(self)


def check_is_program(given: Any, taker: str) -> None:
    """Refuse what is no program of ours; of torch's, say how it becomes one."""
    if isinstance(given, ExportedProgram):
        return
    error = TypeError(f"{taker} takes a program of lostwax, not {describe_stranger(given)}")
    error.add_note(f"  at {user_location()}")
    raise error


def describe_stranger(given: Any) -> str:
    """What it is that is no program of ours, and how it becomes one."""
    kind, fix = type(given), "export it first, lostwax.export(module, args)"
    if kind.__name__ == "ExportedProgram":
        fix = "lostwax.interop.from_torch(program)"
    elif isinstance(given, (str, os.PathLike)):
        fix = f"load it first, lostwax.load({str(given)!r})"
    why = "a program is what was captured, with its graph and signature"
    return f"a {kind.__module__}.{kind.__qualname__}\n  why: {why}\n  instead: {fix}"


def _find_taker(frame: FrameType) -> str:
    """Who asks, if it takes torch's programs and not ours."""
    name = str(frame.f_globals.get("__name__"))
    return next((taker for taker in _TAKERS if f"{name}.".startswith(f"{taker}.")), "")


_TAKERS = (
    *("torch.export", "torch._export", "torch._inductor", "torch.onnx"),
    *("executorch", "openvino"),
)
_TAKES = "takes lostwax.interop.to_torch(program)"


def _copy_entry(entry: ModuleCallEntry, memo: dict[int, Any]) -> ModuleCallEntry:
    signature = entry.signature
    if signature is None:
        return replace(entry)
    inputs, outputs = copy.deepcopy((signature.inputs, signature.outputs), memo)
    return replace(entry, signature=replace(signature, inputs=inputs, outputs=outputs))
