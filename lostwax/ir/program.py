"""ExportedProgram: a graph with its signature, its state and its calling convention.

Data: it is made by capture, read by passes and writers, and run by `module()`. Must not know how it
was made.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule
from torch.utils._pytree import TreeSpec, tree_leaves

from lostwax.errors import NotCallableError, NotPickledError
from lostwax.ir import text
from lostwax.ir.declared import Declared
from lostwax.ir.run.questions import Asks
from lostwax.ir.run.settings import Settings
from lostwax.ir.signature import ArgumentSpec, ExportGraphSignature
from lostwax.sym import Guard


@dataclass
class ModuleCallSignature:
    """How one module was called: its arguments and results in the graph, and their structure.

    `forward_arg_names` names the arguments of `in_spec`, the positional ones first. `original` is
    what the original's code declares, if it is known: more arguments than were given, and defaults.
    """

    inputs: list[ArgumentSpec]
    outputs: list[ArgumentSpec]
    in_spec: TreeSpec
    out_spec: TreeSpec
    forward_arg_names: list[str] | None = None
    original: Declared | inspect.Signature | None = field(default=None, compare=False, repr=False)

    @property
    def signature(self) -> inspect.Signature | None:
        """The signature of the original, if it is known."""
        found = self.original
        return found.signature() if isinstance(found, Declared) else found


@dataclass
class ModuleCallEntry:
    """A module of the original, by name. The root's `fqn` is "", and it has a signature."""

    fqn: str
    signature: ModuleCallSignature | None = None


class CallSpec(NamedTuple):
    """The structure of a call, `(args, kwargs)`, and of its result; None if it is not known."""

    in_spec: TreeSpec | None
    out_spec: TreeSpec | None


@dataclass(repr=False, eq=False)
class ExportedProgram:
    """A program that was captured from a module.

    The graph is functional: parameters, buffers and constants are placeholders, in this order,
    before the user's inputs; what the original writes is returned first, before its results.
    `graph_signature` says which is which. `state_dict` has the parameters and persistent buffers,
    `constants` all else that was lifted, both under the names of the original. Calling a program
    is refused: `module()` gives a module to run.
    """

    graph_module: GraphModule
    graph_signature: ExportGraphSignature
    state_dict: dict[str, torch.Tensor]
    constants: dict[str, Any]
    range_constraints: Mapping[Any, Any]
    module_call_graph: list[ModuleCallEntry]
    example_inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    dialect: str = "ATEN"
    guards: Sequence[Guard] = field(default=())
    """Conditions on the sizes of inputs under which the program is right; checked on each call."""
    training: bool | None = None
    """Whether the module was in training mode when it was captured; None if that is not known."""
    settings: Settings | None = None
    """How torch was set around the capture; None if that is not known."""
    asks: Asks | None = None
    """What the original's Python has asked of its tensors, for each call to check; None if that is
    not known."""
    reads_views: bool = False
    """Whether views are only read: nothing was written through one, or behind it. Then a copy does
    as well where an input's strides allow no view."""

    @property
    def graph(self) -> Graph:
        return self.graph_module.graph

    @property
    def tensor_constants(self) -> dict[str, Any]:
        return self.constants

    @property
    def call_spec(self) -> CallSpec:
        root = self.root_signature
        return CallSpec(None, None) if root is None else CallSpec(root.in_spec, root.out_spec)

    @property
    def root_signature(self) -> ModuleCallSignature | None:
        """How the program as a whole is called."""
        found = (e.signature for e in self.module_call_graph if e.fqn == "")
        return next(found, None)

    @property
    def named_by_calls(self) -> set[str]:
        """The nodes that the calls of modules speak of: their values are wanted, read or not."""
        signatures = [e.signature for e in self.module_call_graph if e.signature is not None]
        return {arg.name for s in signatures for arg in (*s.inputs, *s.outputs)}

    # ---- state

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        for name in self.graph_signature.parameters:
            yield name, self.state_dict[name]  # type: ignore[misc]

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        for _, parameter in self.named_parameters():
            yield parameter

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All buffers, persistent or not."""
        passing = set(self.graph_signature.non_persistent_buffers)
        for name in self.graph_signature.buffers:
            yield name, (self.constants if name in passing else self.state_dict)[name]

    def buffers(self) -> Iterator[torch.Tensor]:
        for _, buffer in self.named_buffers():
            yield buffer

    # ---- use

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
        table: Mapping[OpOverload, Callable[..., Any]] | None = None,
        *,
        decomp_table: Mapping[OpOverload, Callable[..., Any]] | None = None,
    ) -> ExportedProgram:
        """A new program in which the operators of the table are taken apart; this one stays.

        Without a table the result is in core ATen: what torch tags so, and a few that nothing takes
        apart. `lostwax.default_decompositions()` is that table, to be edited. All other nodes, the
        signature and the constraints stay as they are. (`decomp_table` is torch.export's name of
        the argument.)
        """
        from lostwax.ir.decompose.decompose import decomposed

        return decomposed(self, decomp_table if table is None else table)

    def validate(self) -> None:
        """Check every rule of the IR specification; `VerificationError` names what is broken."""
        from lostwax.ir.rules.verify import validate

        validate(self)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotCallableError(
            "an ExportedProgram is data and cannot be called; "
            "call program.module(), an nn.Module with its parameters: program.module()(...)"
        )

    def __copy__(self) -> ExportedProgram:
        return replace(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> ExportedProgram:
        """With a graph and state of its own; structures and guards, which nothing changes, are
        shared. (FX's own copy of a graph may choose other names.)"""
        from lostwax.ir.graph.copying import copied_module, copy_shared

        copy_shared((*self.state_dict.values(), *self.constants.values()), memo)
        for leaf in tree_leaves(self.example_inputs):
            if isinstance(leaf, torch.Tensor) and not leaf.is_leaf:
                memo[id(leaf)] = leaf  # torch copies none that has a history; nobody writes to it
        return replace(
            self,
            graph_module=copied_module(self.graph_module)[0],
            graph_signature=copy.deepcopy(self.graph_signature, memo),
            state_dict=copy.deepcopy(self.state_dict, memo),
            constants=copy.deepcopy(self.constants, memo),
            range_constraints=dict(self.range_constraints),
            module_call_graph=[_copied_entry(entry, memo) for entry in self.module_call_graph],
            example_inputs=copy.deepcopy(self.example_inputs, memo),
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise NotPickledError("a program")

    def __str__(self) -> str:
        return text.program_text(self)

    def __repr__(self) -> str:
        return text.program_text(self)

    def _repr_html_(self) -> str:
        return text.program_html(self)


def _copied_entry(entry: ModuleCallEntry, memo: dict[int, Any]) -> ModuleCallEntry:
    signature = entry.signature
    if signature is None:
        return replace(entry)
    inputs, outputs = copy.deepcopy((signature.inputs, signature.outputs), memo)
    return replace(entry, signature=replace(signature, inputs=inputs, outputs=outputs))
